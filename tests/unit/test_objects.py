"""Objects on three bookies in this process, with a metadata store whose hook models lost requests,
lost answers, and others that come in between."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.client import Client, swap
from quire.clock import SystemClock
from quire.codec.frames import Buffer
from quire.codec.ledger_metadata import LedgerMetadata, Segment
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchObjectError,
    ObjectDamagedError,
    ObjectExistsError,
    UsageError,
)
from quire.metadata.memory import Hook, MemoryStore
from quire.metadata.memory_cluster import MemoryCluster
from quire.metadata.update import update_ledger
from quire.streams import object_format
from quire.streams.object_format import (
    BUCKET_KEY,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    NAME_KEY,
    ObjectInfo,
    decode_head,
    encode_head,
    head_key,
)
from quire.streams.object_source import chunks_of
from quire.streams.objects import PAGE_OBJECTS, Objects
from tests.support.bookie import running_bookie

BOOKIES = 3
NOW_MS = 1_000_000_000


class LateClock:
    """Everything that exists is old; until the test turns it."""

    def __init__(self) -> None:
        self.ahead_ms = 3_600_000

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return SystemClock().monotonic()


class Bench:
    """A cluster, and clients of it as they are asked for."""

    def __init__(self, cluster: MemoryCluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self.clock = LateClock()
        self._stack = stack

    async def client(self, hook: Hook | None = None) -> Client:
        store = MemoryStore(self.cluster) if hook is None else MemoryStore(self.cluster, hook=hook)
        return await self._stack.enter_async_context(Client(store))

    async def objects(self, hook: Hook | None = None, bucket: str = "default") -> Objects:
        return Objects(await self.client(hook), bucket, clock=self.clock)

    def ledgers(self) -> list[int]:
        return list(self.cluster.ledger_ids)

    def heads(self) -> list[tuple[str, ...]]:
        return [key for key in self.cluster.values if key[0] == "objects"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    cluster = MemoryCluster("test", clock=SystemClock(), rng=random.Random(3))
    cluster.initialise()
    async with AsyncExitStack() as stack:
        for number in range(BOOKIES):
            bookie = running_bookie(tmp_path / str(number), metadata=MemoryStore(cluster))
            await stack.enter_async_context(bookie)
        yield Bench(cluster, stack)


@pytest.fixture
async def objects(bench: Bench) -> Objects:
    return await bench.objects()


def some_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def content(objects: Objects, name: str) -> bytes:
    async with await objects.get(name) as found:
        return await found.read_all()


async def names(objects: Objects, prefix: str = "", after: str = "") -> list[str]:
    return [info.name async for info in objects.list(prefix, after=after)]


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


# -- put and get ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 999, 1_000, 1_001, 25_500])
async def test_what_is_put_comes_back(bench: Bench, objects: Objects, size: int) -> None:
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


async def test_an_iterator_may_use_its_buffer_again(objects: Objects) -> None:
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


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 50), st.sampled_from("bmv"))
def test_chunks_have_one_size(pieces: list[bytes], chunk_bytes: int, kind: str) -> None:
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


async def test_ranges(objects: Objects) -> None:
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


async def test_a_range_reads_its_chunks_only(objects: Objects) -> None:
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


async def test_a_name_that_is_taken(bench: Bench, objects: Objects) -> None:
    first = await objects.put("o", b"one")
    with pytest.raises(ObjectExistsError, match="object 'o' exists already"):
        await objects.put("o", b"two")
    assert bench.ledgers() == [first.ledger_id]  # it was not even begun
    assert await content(objects, "o") == b"one"


async def test_buckets_are_apart(bench: Bench, objects: Objects) -> None:
    other = await bench.objects(bucket="other one")
    await objects.put("o", b"one")
    await other.put("o", b"two")
    assert (await content(objects, "o"), await content(other, "o")) == (b"one", b"two")
    assert await other.delete("o")
    assert await names(objects) == ["o"]
    assert await names(other) == []


async def test_what_was_never_put(objects: Objects) -> None:
    for call in (objects.info, objects.get):
        with pytest.raises(NoSuchObjectError, match="object 'a/b' does not exist in bucket"):
            await call("a/b")
    assert not await objects.delete("a/b")


BAD_NAMES = ["", "/", "/a", "a/", "a//b", ".", "a/..", "a\nb", "a\0", "x" * 513, "ä" * 257]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_names_must_be_names(bench: Bench, objects: Objects, name: str) -> None:
    for call in (lambda: objects.put(name, b""), lambda: objects.get(name)):
        with pytest.raises(UsageError):
            await call()
    with pytest.raises(UsageError):
        await objects.delete(name)
    assert bench.ledgers() == []


async def test_other_arguments_that_cannot_be(bench: Bench, objects: Objects) -> None:
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
    """It reads on as long as bookies have the entries, and is told once they have not."""
    data = some_bytes(100_000)
    first = await objects.put("o", data, chunk_bytes=1_000)
    other = await bench.objects()
    async with await other.get("o") as old:
        await objects.put("o", b"new", replace=True)
        assert await old.read_all() == data

        async def gone(first: int, last: int, near: str | None = None):  # type: ignore[no-untyped-def]
            await old._ledger._view.refresh()  # what the engine does where all bookies deny it
            yield

        old._ledger._engine.runs = gone  # type: ignore[method-assign]
        with pytest.raises(NoSuchObjectError, match=f"ledger {first.ledger_id} was deleted or re"):
            await old.read_all()


async def test_delete(bench: Bench, objects: Objects) -> None:
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


async def test_an_object_whose_ledger_was_deleted(bench: Bench, objects: Objects) -> None:
    """By `quire ledger delete`, say: the name says so, and is free."""
    info = await objects.put("o", b"one")
    await (await bench.client()).delete_ledger(info.ledger_id)
    with pytest.raises(NoSuchObjectError, match=f"its ledger {info.ledger_id} was deleted"):
        await objects.get("o")
    await objects.put("o", b"two")
    assert await content(objects, "o") == b"two"


async def test_get_meets_a_replacement(bench: Bench, objects: Objects) -> None:
    """The head is read, then another version takes its place and the ledger goes."""
    await objects.put("o", b"one")
    replaced = False

    async def hook(name: str, done: bool) -> None:
        nonlocal replaced
        if name == "read" and done and not replaced:
            replaced = True
            await objects.put("o", b"two", replace=True)

    assert await content(await bench.objects(hook), "o") == b"two"


async def test_delete_leaves_a_version_that_came_meanwhile(bench: Bench, objects: Objects) -> None:
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
    """An object 'bad' whose ledger holds these entries, whatever its head says."""
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


async def test_what_is_stored_as_it_should_be(bench: Bench, objects: Objects) -> None:
    await put_badly(bench, GOOD)
    assert await content(objects, "bad") == WHOLE


async def test_a_wrong_sha256_comes_in_place_of_the_last_piece(
    bench: Bench, objects: Objects
) -> None:
    await put_badly(bench, [GOOD[0], GOOD[1], b"x" * 50])
    async with await objects.get("bad") as found:
        pieces = found.read()
        assert [await anext(pieces), await anext(pieces)] == GOOD[:2]
        with pytest.raises(ObjectDamagedError, match=r"object 'bad' .* is damaged: its SHA-256"):
            await anext(pieces)
        assert await found.read_all(0, 249) == WHOLE[:200] + b"x" * 49  # a range has no such sum


async def test_an_empty_object_is_checked_too(bench: Bench, objects: Objects) -> None:
    await put_badly(bench, [], size_bytes=0)
    with pytest.raises(ObjectDamagedError, match="SHA-256"):
        await content(objects, "bad")


@pytest.mark.parametrize(
    "entries", [[GOOD[0], GOOD[1][:99], GOOD[2]], [GOOD[0], GOOD[1], GOOD[2] + b"x"]]
)
async def test_chunks_of_a_wrong_size(bench: Bench, objects: Objects, entries: list[bytes]) -> None:
    await put_badly(bench, entries)
    async with await objects.get("bad") as found:
        with pytest.raises(ObjectDamagedError, match=r"chunk \d has \d+ bytes"):
            await found.read_all()
        with pytest.raises(ObjectDamagedError, match=r"chunk \d has \d+ bytes"):
            await found.read_all(150, 100)


@pytest.mark.parametrize(
    ("entries", "sealed", "why"),
    [
        (GOOD[:2], True, "closed and has 2 entries, 3 were put"),
        ([*GOOD, b"x"], True, "closed and has 4 entries, 3 were put"),
        (GOOD, False, "not closed"),
    ],
)
async def test_ledgers_that_are_none_of_objects(
    bench: Bench, objects: Objects, entries: list[bytes], sealed: bool, why: str
) -> None:
    await put_badly(bench, entries, sealed=sealed)
    with pytest.raises(ObjectDamagedError, match=why):
        await objects.get("bad")


GOOD_HEAD = (
    b'{"format":1,"ledger":7,"bytes":1,"chunk_bytes":10,"sha256":"%s","ctime_ms":1,"metadata":{}}'
    % (b"0" * 64)
)


def test_the_head_is_what_the_format_says() -> None:
    info = decode_head("o", GOOD_HEAD)
    assert info == ObjectInfo("o", 7, 1, 10, "0" * 64, 1, {})
    assert encode_head(info) == GOOD_HEAD


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"\xff", "cannot be understood"),
        (b"[]", "no JSON object"),
        (b'{"format":2}', "format 2"),
        (b'{"format":1}', "cannot be understood"),
        (GOOD_HEAD.replace(b":7", b":-7"), "cannot be negative"),
        (GOOD_HEAD.replace(b":10", b":0"), "a chunk has"),
        (GOOD_HEAD.replace(b'"0000', b'"000X'), "is no SHA-256"),
        (GOOD_HEAD.replace(b"{}", b"[]"), "cannot be understood"),
    ],
)
async def test_bad_heads_give_one_clear_error(
    bench: Bench, objects: Objects, stored: bytes, message: str
) -> None:
    store = (await bench.client()).metadata
    await store.write_value(head_key("default", "o"), stored, None)
    with pytest.raises(MetadataError, match=message):
        await objects.get("o")
    with pytest.raises(MetadataError, match="object 'o'"):
        await names(objects)


good_parts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda part: part.isprintable() and part not in (".", "..") and "/" not in part
)


@given(st.lists(good_parts, min_size=1, max_size=4), good_parts)
def test_keys_give_the_names_back(parts: list[str], bucket: str) -> None:
    """And can be kept in every store."""
    name = "/".join(parts)
    key = head_key(object_format.check_bucket(bucket), object_format.check_name(name))
    assert all(part.isascii() and part.isprintable() and "/" not in part for part in key)
    assert object_format.listed_names(parts[:-1], [key[-1]]) == [name]
    below = object_format.folder_key(bucket, parts)
    assert object_format.listed_names(parts[:-1], [below[-1]]) == [name + "/"]
    assert key[:-1] == below[:-1]


# -- listing ----------------------------------------------------------------------------------


async def place(bench: Bench, *some: str) -> None:
    """Heads alone, as a listing does not look at ledgers."""
    store = (await bench.client()).metadata
    for name in some:
        head = encode_head(ObjectInfo(name, 1, 0, 1, "0" * 64, 1))
        await store.write_value(head_key("default", name), head, None)


async def test_listing_is_in_the_order_of_names(bench: Bench, objects: Objects) -> None:
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


async def test_listing_reads_pages(bench: Bench, objects: Objects) -> None:
    some = sorted(f"d{number % 3}/n{number}" for number in range(2 * PAGE_OBJECTS + 1))
    await place(bench, *some)
    pages = [[info.name for info in page] async for page in objects.pages()]
    assert [len(page) for page in pages] == [PAGE_OBJECTS, PAGE_OBJECTS, 1]
    assert [name for page in pages for name in page] == some


async def test_a_listing_goes_on_when_an_object_is_deleted(bench: Bench, objects: Objects) -> None:
    await place(bench, "a", "b", "c")
    deleted = False

    async def hook(name: str, done: bool) -> None:
        nonlocal deleted
        if name == "list_values" and done and not deleted:
            deleted = True
            await objects.delete("b")

    assert await names(await bench.objects(hook)) == ["a", "c"]


# -- puts that fail ---------------------------------------------------------------------------


async def nothing_there(bench: Bench, name: str) -> None:
    objects = await bench.objects()
    with pytest.raises(NoSuchObjectError):
        await objects.get(name)
    assert await names(objects) == []


async def test_a_source_that_fails_leaves_nothing(bench: Bench, objects: Objects) -> None:
    closed = False

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            yield some_bytes(10_000)
            await nothing_there(bench, "o")
            raise OSError("the disk is gone")
        finally:
            closed = True

    with pytest.raises(OSError, match="the disk is gone"):
        await objects.put("o", pieces(), chunk_bytes=1_000)
    assert closed
    assert bench.ledgers() == []
    await nothing_there(bench, "o")


async def test_a_cancelled_put_leaves_nothing(bench: Bench, objects: Objects) -> None:
    under_way = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield some_bytes(10_000)
        under_way.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(objects.put("o", pieces(), chunk_bytes=1_000))
    await under_way.wait()
    assert len(bench.ledgers()) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.ledgers() == []
    await nothing_there(bench, "o")


async def test_a_put_cancelled_while_it_is_published_is_whole(bench: Bench) -> None:
    """The write was done, and the answer was not waited for."""
    asked = asyncio.Event()

    async def hook(name: str, done: bool) -> None:
        if name == "write" and done and not asked.is_set():
            asked.set()
            await asyncio.Event().wait()

    slow = await bench.objects(hook)
    task = asyncio.ensure_future(slow.put("o", b"whole"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await content(await bench.objects(), "o") == b"whole"


async def test_a_put_that_loses_to_another_leaves_nothing(bench: Bench) -> None:
    """Both saw that the name was free."""
    other = await bench.objects()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"mine"
        await other.put("o", b"theirs")

    objects = await bench.objects()
    with pytest.raises(ObjectExistsError):
        await objects.put("o", pieces())
    assert await content(objects, "o") == b"theirs"
    assert len(bench.ledgers()) == 1


class LostAnswers:
    """Loses the first answers (or requests) of some operation, once `armed`."""

    def __init__(self, operation: str, losses: int, after: bool) -> None:
        self.operation = operation
        self.losses = losses
        self.after = after

    async def __call__(self, name: str, done: bool) -> None:
        if name == self.operation and done is self.after and self.losses:
            self.losses -= 1
            raise MetadataUnavailableError("lost")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "UNKNOWN_DELAY_S", 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("losses", [1, 3])
@pytest.mark.parametrize("after", [False, True])
async def test_lost_replies_of_the_publication_are_decided_by_the_content(
    bench: Bench, objects: Objects, replace: bool, losses: int, after: bool
) -> None:
    if replace:
        await objects.put("o", b"old")
    lossy = await bench.objects(LostAnswers("write", losses, after))
    info = await lossy.put("o", b"new", replace=replace)
    assert await content(objects, "o") == b"new"
    assert bench.ledgers() == [info.ledger_id]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("after", [False, True])
async def test_lost_replies_of_a_deletion(bench: Bench, objects: Objects, after: bool) -> None:
    await objects.put("o", b"old")
    assert await (await bench.objects(LostAnswers("delete", 2, after))).delete("o")
    await nothing_there(bench, "o")
    assert bench.ledgers() == []


@pytest.mark.usefixtures("impatient")
async def test_a_store_that_stays_away_leaves_an_orphan(bench: Bench, objects: Objects) -> None:
    lossy = await bench.objects(LostAnswers("write", 1_000, False))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"some"
        store = lossy._store
        assert isinstance(store, MemoryStore)
        store._hook = LostAnswers("read", 1_000, False)

    with pytest.raises(MetadataUnavailableError):
        await lossy.put("o", pieces())
    await nothing_there(bench, "o")
    (orphan,) = [orphan async for orphan in objects.orphans(60)]
    assert [orphan.ledger_id] == bench.ledgers()
    assert (orphan.name, orphan.size_bytes) == ("o", 4)
    assert await objects.sweep(60) == [orphan.ledger_id]
    assert bench.ledgers() == []


# -- orphans ----------------------------------------------------------------------------------


async def orphan(bench: Bench, name: str, bucket: str = "default") -> int:
    """What a put that was killed leaves behind."""
    custom = {BUCKET_KEY: bucket.encode(), NAME_KEY: name.encode()}
    writer = await (await bench.client()).create_ledger(custom=custom)
    await writer.append(b"a part of it")
    writer.abandon()
    return writer.ledger_id


async def test_the_sweep_takes_old_orphans_only(bench: Bench, objects: Objects) -> None:
    kept = await objects.put("kept", b"one")
    lost = await orphan(bench, "lost")
    old = await orphan(bench, "kept")
    elsewhere = await orphan(bench, "lost", bucket="elsewhere")
    async with await (await bench.client()).create_ledger() as foreign:
        pass
    assert await objects.sweep(7_200) == []  # nothing is that old
    assert [found.ledger_id async for found in objects.orphans(1_800)] == [lost, old]
    assert await objects.sweep(1_800, first=old) == [old]
    assert await objects.sweep(1_800) == [lost]
    assert bench.ledgers() == [kept.ledger_id, elsewhere, foreign.ledger_id]
    assert await content(objects, "kept") == b"one"


@pytest.mark.parametrize("replace", [False, True])
async def test_a_put_whose_ledger_is_swept_fails(bench: Bench, replace: bool) -> None:
    """It is slower than the age limit of the sweep. The old version stays."""
    objects = await bench.objects()
    if replace:
        await objects.put("o", b"old")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(0)
        assert len(await objects.sweep(60)) == 1

    with pytest.raises(NoSuchLedgerError):
        await (await bench.objects()).put("o", pieces(), replace=replace)
    if replace:
        assert await content(objects, "o") == b"old"
    else:
        await nothing_there(bench, "o")


# -- races ------------------------------------------------------------------------------------


class FakeWriter:
    """Enough of a writer for a put: its ledger holds the bytes it was given."""

    def __init__(self, client: FakeClient, ledger_id: int, ctime_ms: int) -> None:
        self.client = client
        self.ledger_id = ledger_id
        self.metadata = type("Metadata", (), {"ctime_ms": ctime_ms})()

    def submit(self, payload: bytes) -> None:
        self.client.bytes_of[self.ledger_id] = bytes(payload)

    async def room(self) -> None: ...

    async def close(self) -> None:
        store = self.client.metadata
        stored = await store.read_ledger(self.ledger_id)
        await update_ledger(
            store, self.ledger_id, stored, lambda now: None if now.closed else now.with_close(0, 1)
        )

    def abandon(self) -> None: ...


class FakeClient:
    """A client without bookies, so that hundreds of races fit into a second."""

    def __init__(self, store: MemoryStore, bytes_of: dict[int, bytes]) -> None:
        self.metadata = store
        self.bytes_of = bytes_of

    async def create_ledger(self, *, custom: dict[str, bytes], **_: object) -> FakeWriter:
        metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),), custom=custom)
        ledger_id, stored = await self.metadata.create_ledger(metadata)
        return FakeWriter(self, ledger_id, stored.value.ctime_ms)

    async def list_ledgers(self, first: int) -> AsyncIterator[int]:
        async for found in self.metadata.list_ledgers(first):
            for ledger_id in found.ledger_ids:
                yield ledger_id


def race(seed: int, losses: float, deaths: float) -> None:
    """Puts, deletions and sweeps of two names in any order of their steps; all of them are older
    than the sweeps' limit, and some die."""
    chance = random.Random(seed)
    cluster = MemoryCluster("test", clock=SystemClock(), rng=random.Random(seed))
    cluster.initialise()
    bytes_of: dict[int, bytes] = {}
    succeeded: dict[int, str] = {}
    deleted: set[str] = set()

    async def hook(name: str, done: bool) -> None:
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        if chance.random() < losses:
            raise MetadataUnavailableError("lost")

    def session(store: MemoryStore) -> Objects:
        return Objects(FakeClient(store, bytes_of), clock=LateClock())  # type: ignore[arg-type]

    async def act(number: int) -> None:
        objects = session(MemoryStore(cluster, hook=hook))
        name = chance.choice("ab")
        kind = chance.randrange(6)
        try:
            if kind < 3:
                info = await objects.put(name, b"%d" % number, replace=chance.random() < 0.6)
                succeeded[info.ledger_id] = name
            elif kind == 3:
                deleted.add(name)
                await objects.delete(name)
            else:
                await objects.sweep(60)
        except (ObjectExistsError, NoSuchLedgerError, MetadataUnavailableError):
            pass

    async def act_and_die(number: int) -> None:
        task = asyncio.ensure_future(act(number))
        for _ in range(chance.randrange(400)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task((act_and_die if chance.random() < deaths else act)(number))
        calm = session(MemoryStore(cluster))
        heads = {info.name: info async for info in calm.list()}
        await calm.sweep(60)
        for name, info in heads.items():
            if info.ledger_id in cluster.ledger_ids:
                assert hashlib.sha256(bytes_of[info.ledger_id]).hexdigest() == info.sha256
                continue
            # Only where a put died between making the head and looking whether it may.
            assert info.ledger_id not in succeeded, f"{info} has lost its ledger"
            assert losses or deaths, f"{name} stands for nothing"
        for name in succeeded.values():
            assert name in heads or name in deleted, f"{name} was put and is gone"
        held = {info.ledger_id for info in heads.values()}
        assert set(cluster.ledger_ids) <= held, "something is left behind by a sweep"

    with asyncio.Runner() as runner:
        runner.run(run())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("losses", "deaths"), [(0.0, 0.0), (0.0, 0.3), (0.03, 0.2)])
def test_no_race_takes_the_ledger_of_an_object(
    caplog: pytest.LogCaptureFixture, losses: float, deaths: float
) -> None:
    caplog.set_level(logging.ERROR)
    for seed in range(300):
        race(seed, losses, deaths)
