"""Puts of objects that fail, their leftovers, and races.

An object never exists without its ledger.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from quire._runtime.clock import SystemClock
from quire._runtime.retry import Backoff
from quire.client import compare_and_swap
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchObjectError,
    ObjectExistsError,
    UnreadableMetadataError,
)
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.update import update_ledger
from quire.streams.objects.format import BUCKET_KEY, NAME_KEY, head_key
from quire.streams.objects.objects import ObjectInfo, Objects, _condemned
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore
from tests.support.metadata.lagging import LaggingServer
from tests.support.objects import Bench, LateClock, content, names, some_bytes


@pytest.fixture
async def objects(bench: Bench) -> Objects:
    return await bench.objects()


# -- puts that fail ---------------------------------------------------------------------------


async def nothing_there(bench: Bench, name: str) -> None:
    objects = await bench.objects()
    with pytest.raises(NoSuchObjectError):
        await objects.get(name)
    assert await names(objects) == []


async def test_a_put_from_a_failing_source_leaves_no_object_or_ledger(
    bench: Bench, objects: Objects
) -> None:
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


async def test_a_cancelled_put_leaves_no_object_or_ledger(bench: Bench, objects: Objects) -> None:
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


async def test_a_put_cancelled_during_its_publication_stores_the_whole_object(bench: Bench) -> None:
    """The write was done, but its reply was not awaited."""
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


async def test_a_put_that_loses_to_another_leaves_no_ledger(bench: Bench) -> None:
    """Both puts found the name free."""
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
    monkeypatch.setattr(compare_and_swap, "UNKNOWN_BACKOFF", Backoff(0.0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("losses", [1, 3])
@pytest.mark.parametrize("after", [False, True])
async def test_a_lost_reply_of_a_publication_is_resolved_by_the_stored_content(
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
async def test_a_deletion_with_lost_replies_succeeds(
    bench: Bench, objects: Objects, after: bool
) -> None:
    await objects.put("o", b"old")
    assert await (await bench.objects(LostAnswers("delete", 2, after))).delete("o")
    await nothing_there(bench, "o")
    assert bench.ledgers() == []


@pytest.mark.usefixtures("impatient")
async def test_a_put_during_an_outage_of_the_metadata_store_leaves_an_orphan(
    bench: Bench, objects: Objects
) -> None:
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
    """Create what a killed put leaves."""
    custom = {BUCKET_KEY: bucket.encode(), NAME_KEY: name.encode()}
    writer = await (await bench.client()).create_ledger(custom=custom)
    await writer.append(b"a part of it")
    writer.abandon()
    return writer.ledger_id


async def test_the_sweep_deletes_only_old_orphans(bench: Bench, objects: Objects) -> None:
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


async def test_the_sweep_continues_after_unreadable_objects(
    bench: Bench, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that no object can have, a damaged head, a damaged ledger: each is named, what it may
    own is kept, and all other orphans go."""
    nameless = await orphan(bench, "a//b")
    held = await objects.put("damaged", b"one")
    of_damaged = await orphan(bench, "damaged")
    unreadable = await orphan(bench, "u")
    lost = await orphan(bench, "lost")
    store = (await bench.client()).metadata
    key = head_key("default", "damaged")
    await store.write_value(key, b"{", (await store.read_value(key)).version)
    read = objects._store.read_ledger

    async def read_ledger(ledger_id: int) -> Versioned[LedgerMetadata]:
        if ledger_id == unreadable:
            raise MetadataError("it cannot be understood")
        return await read(ledger_id)

    objects._store.read_ledger = read_ledger  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "quire.objects"):
        assert await objects.sweep(0) == [lost]
    assert bench.ledgers() == [nameless, held.ledger_id, of_damaged, unreadable]
    assert "skipped what it could not read (4)" in caplog.text
    for ledger_id in (nameless, held.ledger_id, of_damaged, unreadable):
        assert f"ledger {ledger_id}" in caplog.text


@pytest.mark.parametrize("replace", [False, True])
async def test_a_put_whose_ledger_is_swept_fails(bench: Bench, replace: bool) -> None:
    """The put is slower than the age limit of the sweep. The old version stays."""
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
        self.rng = random.Random(1)
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
            assert losses or deaths, f"{name} names no stored object"
        for name in succeeded.values():
            assert name in heads or name in deleted, f"{name} was put and is missing"
        held = {info.ledger_id for info in heads.values()}
        assert set(cluster.ledger_ids) <= held, "a sweep left an orphaned ledger"

    with asyncio.Runner() as runner:
        runner.run(run())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 100), marks=pytest.mark.long)])
@pytest.mark.parametrize(("losses", "deaths"), [(0.0, 0.0), (0.0, 0.3), (0.03, 0.2)])
def test_no_race_takes_the_ledger_of_an_object(
    caplog: pytest.LogCaptureFixture, losses: float, deaths: float, seeds: range
) -> None:
    caplog.set_level(logging.ERROR)
    for seed in seeds:
        race(seed, losses, deaths)


# -- names that others delete and put again ------------------------------------------------------


class Meanwhile:
    """Lets another client delete and put an object again just before an operation."""

    def __init__(self, operation: str, others: Objects, data: bytes) -> None:
        self.operation = operation
        self.others = others
        self.data = data
        self.ledger_id = -1

    async def __call__(self, name: str, done: bool) -> None:
        if name == self.operation and not done and self.ledger_id < 0:
            await self.others.delete("o")
            self.ledger_id = (await self.others.put("o", self.data)).ledger_id


async def test_a_deletion_spares_an_object_that_was_put_meanwhile(
    bench: Bench, objects: Objects
) -> None:
    """The versions of a head begin again, so the new head has the version of the deleted one."""
    await objects.put("o", b"old")
    meanwhile = Meanwhile("delete", objects, b"new")
    assert await (await bench.objects(meanwhile)).delete("o")
    assert await content(objects, "o") == b"new"
    assert bench.ledgers() == [meanwhile.ledger_id]


async def test_a_failed_put_does_not_bring_back_a_deleted_object(
    bench: Bench, objects: Objects
) -> None:
    """Before a put deletes its ledger, it writes the head again that it has found."""
    meanwhile = Meanwhile("write", objects, b"new")
    late = await bench.objects(meanwhile)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"mine"
        await objects.put("o", b"old")

    with pytest.raises(ObjectExistsError):
        await late.put("o", pieces())
    assert await content(objects, "o") == b"new"
    assert bench.ledgers() == [meanwhile.ledger_id]


async def test_a_put_replaces_only_the_object_that_was_shown(
    bench: Bench, objects: Objects
) -> None:
    old = await objects.put("o", b"old")
    meanwhile = Meanwhile("write", objects, b"new")
    late = await bench.objects(meanwhile)
    with pytest.raises(ObjectExistsError):
        await late.put("o", b"mine", replace=lambda there: there == old)
    assert await content(objects, "o") == b"new"
    assert bench.ledgers() == [meanwhile.ledger_id]


class After:
    """Lets another client change an object just after the first write of its head.

    With `lost`, the answer to the write is lost as well.
    """

    def __init__(self, change: Callable[[], Awaitable[object]], *, lost: bool) -> None:
        self.change = change
        self.lost = lost
        self.done = False

    async def __call__(self, name: str, done: bool) -> None:
        if name == "write" and done and not self.done:
            self.done = True
            await self.change()
            if self.lost:
                raise MetadataUnavailableError("lost")


@pytest.mark.parametrize("replace", [False, True, lambda there: True])
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.usefixtures("impatient")
async def test_a_put_that_was_replaced_while_its_answer_was_lost_is_in_doubt(
    bench: Bench, objects: Objects, replace: bool | Callable[[ObjectInfo], bool], deleted: bool
) -> None:
    """The put once said that it had stored nothing, although others had read its object."""

    async def change() -> None:
        assert await content(objects, "o") == b"mine"
        if deleted:
            await objects.delete("o")
        else:
            await objects.put("o", b"theirs", replace=True)

    late = await bench.objects(After(change, lost=True))
    with pytest.raises(MetadataUnavailableError, match="may have been stored") as put:
        await late.put("o", b"mine", replace=replace)
    assert not put.value.outcome_known
    assert len(bench.ledgers()) == (0 if deleted else 1)
    if not deleted:
        assert await content(objects, "o") == b"theirs"


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.usefixtures("impatient")
async def test_a_put_whose_answer_was_lost_does_not_replace_a_later_object(
    bench: Bench, objects: Objects, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """The put was done twice: the client that replaced its object had not condemned its ledger."""

    async def dies(*_: object) -> None:
        pass

    async def change() -> None:
        assert await content(objects, "o") == b"mine"
        with monkeypatch.context() as patch:
            patch.setattr(objects, "_clean_up", dies)
            await objects.put("o", b"theirs", replace=True)

    if there:
        await objects.put("o", b"old")
    late = await bench.objects(After(change, lost=True))
    with pytest.raises(MetadataUnavailableError, match="may have been stored") as put:
        await late.put("o", b"mine", replace=True)
    assert not put.value.outcome_known
    assert await content(objects, "o") == b"theirs"


@pytest.mark.usefixtures("impatient")
async def test_a_put_whose_answer_was_lost_does_not_bring_back_its_deleted_object(
    bench: Bench, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put was done twice: the client that deleted its object had not condemned its ledger."""

    async def dies(*_: object) -> None:
        pass

    async def change() -> None:
        assert await content(objects, "o") == b"mine"
        with monkeypatch.context() as patch:
            patch.setattr(objects, "_clean_up", dies)
            assert await objects.delete("o")

    await objects.put("o", b"old")
    late = await bench.objects(After(change, lost=True))
    with pytest.raises(MetadataUnavailableError, match="may have been stored") as put:
        await late.put("o", b"mine", replace=True)
    assert not put.value.outcome_known
    await nothing_there(bench, "o")


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_put_that_was_replaced_before_it_returns_has_succeeded(
    bench: Bench, objects: Objects, deleted: bool
) -> None:
    """Its ledger is being deleted by those who replaced it. It once blamed a sweep and failed."""

    async def change() -> None:
        assert await content(objects, "o") == b"mine"
        if deleted:
            await objects.delete("o")
        else:
            await objects.put("o", b"theirs", replace=True)

    late = await bench.objects(After(change, lost=False))
    info = await late.put("o", b"mine")
    assert info.size_bytes == len(b"mine")
    assert info.ledger_id not in bench.ledgers()
    if not deleted:
        assert await content(objects, "o") == b"theirs"


@pytest.mark.usefixtures("impatient")
async def test_a_put_that_undoes_itself_with_a_lost_reply_is_in_doubt(
    bench: Bench, objects: Objects
) -> None:
    """A sweep has condemned the ledger. The deletion of the head is done, its answer is lost."""
    losses = LostAnswers("delete", 1, after=True)

    async def hook(name: str, done: bool) -> None:
        if name == "write" and done:
            (ledger_id,) = bench.ledgers()
            stored = await objects._store.read_ledger(ledger_id)
            await update_ledger(objects._store, ledger_id, stored, _condemned)
        await losses(name, done)

    late = await bench.objects(hook)
    with pytest.raises(MetadataUnavailableError, match="may have been stored"):
        await late.put("o", b"mine")
    await nothing_there(bench, "o")
    assert bench.ledgers() == []


@pytest.mark.usefixtures("impatient")
async def test_a_put_whose_object_others_replaced_and_deleted_was_done(
    bench: Bench, objects: Objects
) -> None:
    """A sweep has condemned the ledger. When the put takes its object back, it is not there any
    more, and the error said that it had never been stored."""

    async def hook(name: str, done: bool) -> None:
        if name == "write" and done:
            (ledger_id,) = bench.ledgers()
            stored = await objects._store.read_ledger(ledger_id)
            await update_ledger(objects._store, ledger_id, stored, _condemned)
        if name == "delete" and not done:
            await objects.put("o", b"theirs", replace=True)
            assert await objects.delete("o")

    late = await bench.objects(hook)
    await late.put("o", b"mine")
    await nothing_there(bench, "o")


async def test_a_put_whose_ledger_cannot_be_checked_again_is_in_doubt(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error said that its outcome is known, although the object was stored."""
    looks = 0
    really = Objects._refuse_condemned

    async def unreadable_at_last(self: Objects, info: ObjectInfo) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise UnreadableMetadataError("the metadata of ledger 0 cannot be read")
        await really(self, info)

    monkeypatch.setattr(Objects, "_refuse_condemned", unreadable_at_last)
    with pytest.raises(MetadataUnavailableError, match="was stored in ledger") as caught:
        await objects.put("o", b"value")
    assert not caught.value.outcome_known
    assert await content(objects, "o") == b"value"


# -- a server of the metadata store that lags -------------------------------------------------


@pytest.mark.parametrize("published", ["before the mark", "before the search", "never"])
async def test_a_sweep_through_a_server_that_lags_keeps_a_published_object(
    bench: Bench, objects: Objects, published: str
) -> None:
    """Its mark in the ledger makes the server catch up, before the head decides."""
    sweeper = await bench.objects()
    server = LaggingServer(sweeper._store)
    finished, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"bytes"
        finished.set()
        await go_on.wait()

    putting = asyncio.ensure_future(objects.put("o", slow()))
    await finished.wait()
    server.fall_behind()
    if published == "before the search":
        go_on.set()
        await putting
    [orphan] = [one async for one in sweeper.orphans(0)]
    assert server.behind
    if published == "before the mark":
        go_on.set()
        await putting
    swept = await sweeper._discard(orphan.name, orphan.ledger_id)
    assert swept == (published == "never")
    go_on.set()
    if published == "never":
        with pytest.raises(NoSuchLedgerError):
            await putting
        await nothing_there(bench, "o")
    else:
        async with objects.get("o") as found:
            assert await found.read_all() == b"bytes"


# -- servers of the metadata store that lag ---------------------------------------------------


async def test_reads_through_a_server_that_lags_see_every_earlier_change(
    bench: Bench, objects: Objects
) -> None:
    reader = await bench.objects()
    server = LaggingServer(reader._store)
    server.fall_behind()
    await objects.put("o", b"1")
    async with reader.get("o") as found:
        assert await found.read_all() == b"1"
    server.fall_behind()
    await objects.put("p", b"1")
    assert await names(reader) == ["o", "p"]
    server.fall_behind()
    put = await objects.put("o", b"2", replace=True)
    assert await reader.info("o") == put


async def test_a_put_through_a_server_that_lags_takes_the_name_of_a_deleted_object(
    bench: Bench, objects: Objects
) -> None:
    other = await bench.objects()
    server = LaggingServer(other._store)
    await objects.put("o", b"1")
    server.fall_behind()
    await objects.delete("o")
    await other.put("o", b"2")
    async with objects.get("o") as found:
        assert await found.read_all() == b"2"


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_deletion_through_a_server_that_lags_deletes_the_present_object(
    replaced: bool, bench: Bench, objects: Objects
) -> None:
    other = await bench.objects()
    server = LaggingServer(other._store)
    if replaced:
        await objects.put("o", b"1")
    server.fall_behind()
    await objects.put("o", b"2", replace=True)
    assert await other.delete("o")
    await nothing_there(bench, "o")
