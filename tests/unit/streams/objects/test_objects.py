"""Objects are put, read, replaced, deleted and listed, and damage is reported."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.wire.v2 import Buffer
from quire.errors import (
    LaterMetadataError,
    MetadataError,
    NoSuchObjectError,
    ObjectDamagedError,
    ObjectExistsError,
    UsageError,
)
from quire.streams.objects import format as object_format
from quire.streams.objects.format import (
    BUCKET_KEY,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    NAME_KEY,
    ObjectInfo,
    decode_head,
    encode_head,
    head_key,
)
from quire.streams.objects.objects import PAGE_OBJECTS, Objects
from quire.streams.objects.source import chunks_of
from tests.support.objects import Bench, content, names, some_bytes


@pytest.fixture
async def objects(bench: Bench) -> Objects:
    return await bench.objects()


# -- put and get ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 999, 1_000, 1_001, 25_500])
async def test_an_object_is_returned_as_it_was_put(
    bench: Bench, objects: Objects, size: int
) -> None:
    data = some_bytes(size)
    info = await objects.put(
        "jobs/42/checkpoint-7", data, chunk_bytes=1_000, metadata={"step": "7", "Ä": ""}
    )
    assert info == ObjectInfo(
        "jobs/42/checkpoint-7",
        ledger_id=info.ledger_id,
        size_bytes=size,
        chunk_bytes=1_000,
        sha256=hashlib.sha256(data).hexdigest(),
        ctime_ms=info.ctime_ms,
        metadata={"step": "7", "Ä": ""},
    )
    other = await bench.objects()
    assert await other.info("jobs/42/checkpoint-7") == info
    async with await other.get("jobs/42/checkpoint-7") as found:
        assert found.info == info
        assert [len(piece) async for piece in found.read()] == [
            min(1_000, size - at) for at in range(0, size, 1_000)
        ]
        assert await found.read_all() == data
    ledger = await (await bench.client()).ledger_metadata(info.ledger_id)
    assert (ledger.closed, ledger.last_entry_id + 1, ledger.length) == (True, info.chunks, size)
    assert ledger.custom == {BUCKET_KEY: b"default", NAME_KEY: b"jobs/42/checkpoint-7"}


async def test_a_source_iterator_may_reuse_its_buffer_for_large_pieces(objects: Objects) -> None:
    data = some_bytes(50_000)

    async def pieces() -> AsyncIterator[Buffer]:
        buffer = bytearray(700)
        for at in range(0, len(data), 700):
            piece = data[at : at + 700]
            buffer[: len(piece)] = piece
            yield memoryview(buffer)[: len(piece)]

    await objects.put("one", pieces(), chunk_bytes=600)
    await objects.put("two", pieces(), chunk_bytes=40_000)
    assert await content(objects, "one") == data
    assert await content(objects, "two") == data


@pytest.mark.parametrize("view", [memoryview, lambda held: memoryview(held).toreadonly()])
async def test_an_iterator_may_reuse_its_buffer(view: Callable[[bytearray], Buffer]) -> None:
    held = bytearray(4)

    async def source() -> AsyncIterator[Buffer]:
        for piece in (b"aaaa", b"bbbb", b"cccc"):
            held[:] = piece
            yield view(held)

    chunks = [chunk async for chunk in chunks_of(source(), 4)]
    assert [bytes(chunk) for chunk in chunks] == [b"aaaa", b"bbbb", b"cccc"]


@pytest.mark.parametrize(
    "view", [memoryview(b"a1b2c3")[::2], memoryview(array("d")), memoryview(array("i", [1, 2]))]
)
async def test_the_bytes_of_any_view_are_stored(view: memoryview) -> None:
    """A view with gaps was refused with a TypeError."""

    async def source() -> AsyncIterator[Buffer]:
        yield view

    for given_source in (view, source()):
        chunks = [bytes(chunk) async for chunk in chunks_of(given_source, 2)]
        assert b"".join(chunks) == view.tobytes()


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 50), st.sampled_from("bmv"))
def test_all_chunks_but_the_last_have_the_same_size(
    pieces: list[bytes], chunk_bytes: int, kind: str
) -> None:
    as_kind: Callable[[bytes], Buffer] = {"b": bytes, "m": bytearray, "v": memoryview}[kind]

    async def source() -> AsyncIterator[Buffer]:
        for piece in pieces:
            yield as_kind(piece)

    async def run() -> list[bytes]:
        chunks = [bytes(chunk) async for chunk in chunks_of(source(), chunk_bytes)]
        whole = as_kind(b"".join(pieces))
        assert [bytes(chunk) async for chunk in chunks_of(whole, chunk_bytes)] == chunks
        return chunks

    chunks = asyncio.run(run())
    assert b"".join(chunks) == b"".join(pieces)
    assert all(len(chunk) == chunk_bytes for chunk in chunks[:-1])
    assert all(0 < len(chunk) <= chunk_bytes for chunk in chunks)


async def test_a_range_of_an_object_can_be_read(objects: Objects) -> None:
    data = some_bytes(2_500)
    await objects.put("o", data, chunk_bytes=1_000)
    async with await objects.get("o") as found:
        for first, size in [
            (0, 1), (999, 2), (1_000, 1_000), (2_400, None), (2_400, 5_000), (0, 2_499), (1, None),
            (2_500, None), (2_500, 1), (17, 0), (0, 0), (0, 2_500), (0, None), (999, 1_002),
        ]:  # fmt: skip
            end = len(data) if size is None else first + size
            assert await found.read_all(first, size) == data[first:end], (first, size)
        for first, size in [(-1, 1), (0, -1), (2_501, None), (2_501, 1)]:
            with pytest.raises(UsageError):
                await found.read_all(first, size)


async def test_a_range_reads_only_its_chunks(objects: Objects) -> None:
    await objects.put("o", some_bytes(10_000), chunk_bytes=1_000)
    async with await objects.get("o") as found:
        asked: list[tuple[int, int | None]] = []
        read_runs = found._ledger.read_runs

        def watched(first: int = 0, last: int | None = None):  # type: ignore[no-untyped-def]
            asked.append((first, last))
            return read_runs(first, last)

        found._ledger.read_runs = watched  # type: ignore[method-assign]
        await found.read_all(2_999, 2)
        await found.read_all(3_000, 1_000)
        await found.read_all(5_000, 0)
        assert asked == [(2, 3), (3, 3)]


async def test_a_put_to_an_existing_name_is_refused(bench: Bench, objects: Objects) -> None:
    first = await objects.put("o", b"one")
    with pytest.raises(ObjectExistsError, match="object 'o' already exists"):
        await objects.put("o", b"two")
    assert bench.ledgers() == [first.ledger_id]  # it was not even begun
    assert await content(objects, "o") == b"one"


async def test_buckets_have_separate_names(bench: Bench, objects: Objects) -> None:
    other = await bench.objects(bucket="other one")
    await objects.put("o", b"one")
    await other.put("o", b"two")
    assert (await content(objects, "o"), await content(other, "o")) == (b"one", b"two")
    assert await other.delete("o")
    assert await names(objects) == ["o"]
    assert await names(other) == []


async def test_an_object_that_was_never_put_does_not_exist(objects: Objects) -> None:
    for call in (objects.info, objects.get):
        with pytest.raises(NoSuchObjectError, match="object 'a/b' does not exist in bucket"):
            await call("a/b")
    assert not await objects.delete("a/b")


BAD_NAMES = ["", "/", "/a", "a/", "a//b", ".", "a/..", "a\nb", "a\0", "x" * 513, "ä" * 257]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_invalid_names_are_refused(bench: Bench, objects: Objects, name: str) -> None:
    for call in (lambda: objects.put(name, b""), lambda: objects.get(name)):
        with pytest.raises(UsageError):
            await call()
    with pytest.raises(UsageError):
        await objects.delete(name)
    assert bench.ledgers() == []


async def test_invalid_arguments_are_refused(bench: Bench, objects: Objects) -> None:
    client = await bench.client()
    for bucket in ("", "a/b", "..", "x" * 65, "\t"):
        with pytest.raises(UsageError, match="bucket"):
            Objects(client, bucket)
    for chunk_bytes in (0, -1, 4 * 1024 * 1024 + 1):
        with pytest.raises(UsageError, match="chunk"):
            await objects.put("o", b"", chunk_bytes=chunk_bytes)
    for metadata in ({"": "x"}, {"x": 1}, {"x": "\ud800"}, {"x": "y" * METADATA_BYTES_MAX}):
        with pytest.raises(UsageError, match="metadata"):
            await objects.put("o", b"", metadata=metadata)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        await objects.put("o", b"", ensemble_size=2)
    assert bench.ledgers() == []
    await objects.put("o" * NAME_BYTES_MAX, b"", chunk_bytes=4 * 1024 * 1024)


# -- replace and delete -----------------------------------------------------------------------


async def test_replace_frees_the_old_ledger(bench: Bench, objects: Objects) -> None:
    first = await objects.put("o", b"one", replace=True)
    second = await objects.put("o", b"two", replace=True)
    assert first.ledger_id != second.ledger_id
    assert bench.ledgers() == [second.ledger_id]
    assert await content(objects, "o") == b"two"


async def test_a_reader_of_an_old_version_never_sees_the_new_one(
    bench: Bench, objects: Objects
) -> None:
    """It reads on as long as bookies have the entries, and then gets an error."""
    data = some_bytes(100_000)
    first = await objects.put("o", data, chunk_bytes=1_000)
    other = await bench.objects()
    async with await other.get("o") as old:
        await objects.put("o", b"new", replace=True)
        assert await old.read_all() == data

        async def gone(first: int, last: int, near: str | None = None):  # type: ignore[no-untyped-def]
            await old._ledger._view.refresh()  # What the engine does when all bookies deny it.
            yield

        old._ledger._engine.runs = gone  # type: ignore[method-assign]
        with pytest.raises(NoSuchObjectError, match=f"ledger {first.ledger_id} was read"):
            await old.read_all()


async def test_a_deleted_object_is_gone_and_its_name_is_free(
    bench: Bench, objects: Objects
) -> None:
    await objects.put("a/b", b"one")
    await objects.put("a", b"two")
    assert await objects.delete("a/b")
    assert not await objects.delete("a/b")
    assert await names(objects) == ["a"]
    assert await objects.delete("a")
    assert bench.ledgers() == []
    assert bench.heads() == []
    await objects.put("a/b", b"again")
    assert await content(objects, "a/b") == b"again"


async def test_an_object_without_its_ledger_is_damaged_and_its_name_is_free(
    bench: Bench, objects: Objects
) -> None:
    """A deletion by `quire ledger delete`, for instance, is damage, not absence, and the name is
    free.
    """
    info = await objects.put("o", b"one")
    await (await bench.client()).delete_ledger(info.ledger_id)
    with pytest.raises(ObjectDamagedError, match=f"its ledger {info.ledger_id} was deleted"):
        await objects.get("o")
    await objects.put("o", b"two")
    assert await content(objects, "o") == b"two"


async def test_get_succeeds_if_the_object_is_replaced_meanwhile(
    bench: Bench, objects: Objects
) -> None:
    """The head is read, then another version takes its place and the ledger goes."""
    await objects.put("o", b"one")
    replaced = False

    async def hook(name: str, done: bool) -> None:
        nonlocal replaced
        if name == "read" and done and not replaced:
            replaced = True
            await objects.put("o", b"two", replace=True)

    assert await content(await bench.objects(hook), "o") == b"two"


async def test_delete_keeps_a_version_that_was_put_meanwhile(
    bench: Bench, objects: Objects
) -> None:
    await objects.put("o", b"one")
    replaced = False

    async def hook(name: str, done: bool) -> None:
        nonlocal replaced
        if name == "read" and done and not replaced:
            replaced = True
            await objects.put("o", b"two", replace=True)

    assert await (await bench.objects(hook)).delete("o")
    assert await content(objects, "o") == b"two"
    assert len(bench.ledgers()) == 1


# -- damage -----------------------------------------------------------------------------------


async def put_badly(
    bench: Bench, entries: list[bytes], *, sealed: bool = True, **other: object
) -> None:
    """Create an object 'bad' whose ledger has these entries, whatever its head says."""
    client = await bench.client()
    writer = await client.create_ledger()
    if entries:
        await writer.append_many(entries)
    if sealed:
        await writer.close()
    whole = b"0123456789" * 25
    info = {
        "size_bytes": 250,
        "chunk_bytes": 100,
        "sha256": hashlib.sha256(whole).hexdigest(),
        **other,
    }
    head = ObjectInfo("bad", writer.ledger_id, ctime_ms=1, **info)  # type: ignore[arg-type]
    await client.metadata.write_value(head_key("default", "bad"), encode_head(head), None)


WHOLE = b"0123456789" * 25
GOOD = [WHOLE[:100], WHOLE[100:200], WHOLE[200:]]


async def test_an_object_stored_in_the_documented_format_is_read(
    bench: Bench, objects: Objects
) -> None:
    await put_badly(bench, GOOD)
    assert await content(objects, "bad") == WHOLE


async def test_a_wrong_sha256_is_raised_instead_of_the_last_piece(
    bench: Bench, objects: Objects
) -> None:
    await put_badly(bench, [GOOD[0], GOOD[1], b"x" * 50])
    async with await objects.get("bad") as found:
        pieces = found.read()
        assert [await anext(pieces), await anext(pieces)] == GOOD[:2]
        with pytest.raises(ObjectDamagedError, match=r"object 'bad' .* is damaged: its SHA-256"):
            await anext(pieces)
        assert await found.read_all(0, 249) == WHOLE[:200] + b"x" * 49  # a range has no such sum


async def test_the_checksum_of_an_empty_object_is_verified(bench: Bench, objects: Objects) -> None:
    await put_badly(bench, [], size_bytes=0)
    with pytest.raises(ObjectDamagedError, match="SHA-256"):
        await content(objects, "bad")


@pytest.mark.parametrize(
    "entries", [[GOOD[0], GOOD[1][:99], GOOD[2]], [GOOD[0], GOOD[1], GOOD[2] + b"x"]]
)
async def test_chunks_of_a_wrong_size_are_reported_as_damage(
    bench: Bench, objects: Objects, entries: list[bytes]
) -> None:
    await put_badly(bench, entries)
    async with await objects.get("bad") as found:
        with pytest.raises(ObjectDamagedError, match=r"chunk \d has \d+ bytes"):
            await found.read_all()
        with pytest.raises(ObjectDamagedError, match=r"chunk \d has \d+ bytes"):
            await found.read_all(150, 100)


@pytest.mark.parametrize(
    ("entries", "sealed", "why"),
    [
        (GOOD[:2], True, "closed and has 2 entries, but the object was put with 3 chunks"),
        ([*GOOD, b"x"], True, "closed and has 4 entries, but the object was put with 3 chunks"),
        (GOOD, False, "not closed"),
    ],
)
async def test_a_ledger_that_does_not_match_its_object_is_reported_as_damage(
    bench: Bench, objects: Objects, entries: list[bytes], sealed: bool, why: str
) -> None:
    await put_badly(bench, entries, sealed=sealed)
    with pytest.raises(ObjectDamagedError, match=why):
        await objects.get("bad")


GOOD_HEAD = (
    b'{"format":1,"ledger":7,"bytes":1,"chunk_bytes":10,"sha256":"%s","ctime_ms":1,"metadata":{}}'
    % (b"0" * 64)
)


def test_the_head_is_encoded_as_the_format_documents() -> None:
    info = decode_head("o", GOOD_HEAD)
    assert info == ObjectInfo("o", 7, 1, 10, "0" * 64, 1, {})
    assert encode_head(info) == GOOD_HEAD


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"\xff", "cannot be decoded"),
        (b"[]", "not a JSON object"),
        (b'{"format":2}', "format 2"),
        (b'{"format":1}', "cannot be decoded"),
        (GOOD_HEAD.replace(b":7", b":-7"), "a negative ledger id"),
        (GOOD_HEAD.replace(b":10", b":0"), "must be from 1 to"),
        (GOOD_HEAD.replace(b'"0000', b'"000X'), "is not a SHA-256"),
        (GOOD_HEAD.replace(b"{}", b"[]"), "cannot be decoded"),
        (GOOD_HEAD.replace(b":1,", b":1e999,"), "cannot be decoded"),
        (GOOD_HEAD.replace(b"{}", b"[" * 100_000), "cannot be decoded"),
    ],
)
async def test_bad_heads_give_one_clear_error(
    bench: Bench, objects: Objects, stored: bytes, message: str
) -> None:
    store = (await bench.client()).metadata
    await store.write_value(head_key("default", "o"), stored, None)
    for good in ("a", "z"):
        await objects.put(good, b"1")
    with pytest.raises(MetadataError, match=message):
        await objects.get("o")
    listed = []

    async def listing() -> None:
        async for info in objects.list():
            listed.append(info.name)

    with pytest.raises(MetadataError, match=r"1 object of bucket .* cannot be read.*object 'o'"):
        await listing()
    assert listed == ["a", "z"]
    for replace in (False, lambda old: True):
        with pytest.raises(MetadataError, match=message):
            await objects.put("o", b"new", replace=replace)
    if "format 2" in message:  # a later version wrote it
        with pytest.raises(LaterMetadataError):
            await objects.put("o", b"new", replace=True)
        return
    await objects.put("o", b"new", replace=True)
    async with objects.get("o") as found:
        assert await found.read_all() == b"new"
    assert [info.name async for info in objects.list()] == ["a", "o", "z"]


# All printable characters, because a filter would discard most generated examples.
printable = st.characters(
    codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ", exclude_characters="/"
)
good_parts = st.text(printable, min_size=1, max_size=8).filter(
    lambda part: part.isprintable() and part not in (".", "..") and "/" not in part
)


@given(st.lists(good_parts, min_size=1, max_size=4), good_parts)
def test_keys_decode_to_the_names_they_encode(parts: list[str], bucket: str) -> None:
    """Keys can be stored in every metadata store."""
    name = "/".join(parts)
    key = head_key(object_format.check_bucket(bucket), object_format.check_name(name))
    assert all(part.isascii() and part.isprintable() and "/" not in part for part in key)
    assert object_format.listed_names(parts[:-1], [key[-1]]) == [name]
    below = object_format.folder_key(bucket, parts)
    assert object_format.listed_names(parts[:-1], [below[-1]]) == [name + "/"]
    assert key[:-1] == below[:-1]


# -- listing ----------------------------------------------------------------------------------


async def place(bench: Bench, *some: str) -> None:
    """Create only heads, because a listing does not read ledgers."""
    store = (await bench.client()).metadata
    for name in some:
        head = encode_head(ObjectInfo(name, 1, 0, 1, "0" * 64, 1))
        await store.write_value(head_key("default", name), head, None)


async def test_a_listing_is_in_the_order_of_names(bench: Bench, objects: Objects) -> None:
    some = [
        "a", "a-b", "a.b", "a/b", "a/b/c", "a/b-c", "a0", "%2F", "=a", "=/=", "jobs/4", "jobs/42/x",
        "jobs/42/y", "jobs/42", "jobs/421", "ä/ö", "ä", "z", "~", " x",
    ]  # fmt: skip
    await place(bench, *some)
    assert await names(objects) == sorted(some)
    for prefix in ("", "a", "a/", "a/b", "jobs/42", "jobs/42/", "jobs", "nothing", "ä/", "=", "%"):
        wanted = [name for name in sorted(some) if name.startswith(prefix)]
        assert await names(objects, prefix) == wanted, prefix
        for after in (*some, "a/", "a/a", "jobs/42/xx", "\U0010ffff"):
            assert await names(objects, prefix, after) == [n for n in wanted if n > after]
    for prefix in ("/", "//", "a//", "../", "a/./b"):
        assert await names(objects, prefix) == []


async def test_a_listing_reads_pages(bench: Bench, objects: Objects) -> None:
    some = sorted(f"d{number % 3}/n{number}" for number in range(2 * PAGE_OBJECTS + 1))
    await place(bench, *some)
    pages = [[info.name for info in page] async for page in objects.pages()]
    assert [len(page) for page in pages] == [PAGE_OBJECTS, PAGE_OBJECTS, 1]
    assert [name for page in pages for name in page] == some


async def test_a_listing_continues_after_an_object_is_deleted(
    bench: Bench, objects: Objects
) -> None:
    await place(bench, "a", "b", "c")
    deleted = False

    async def hook(name: str, done: bool) -> None:
        nonlocal deleted
        if name == "list_values" and done and not deleted:
            deleted = True
            await objects.delete("b")

    assert await names(await bench.objects(hook)) == ["a", "c"]
