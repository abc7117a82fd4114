"""A bookie with several data directories: where ledgers go, and failures of directories."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.directories.identity import COOKIE_FILE
from quire.bookie.server import Bookie
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.cookie import decode, split_directories
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.underreplication import mark_path
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.v2 import Code
from quire.errors import (
    CookieError,
    LaterStorageError,
    QuireError,
    StorageError,
    UsageError,
)
from quire.http.routes.bookie import BookieRoutes
from quire.http.server.api import Call
from quire.metadata.interface import MetadataStore
from quire.metadata.uri import replication_root
from quire.storage.directories import LedgerDirectories, last_of
from quire.storage.disk import RealDisk
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.recovery.scan import scan_groups
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.segment import segment_name
from quire.storage.stats import COUNTERS
from quire.storage.store import LedgerStore
from tests.support.bookies.bookie import SMALL, memory_metadata, peer_of, running_bookie
from tests.support.storage.directories import DirectoriesOnDisks
from tests.support.storage.storage import key_of, make_batch, make_entry, run

KEY = master_key(b"")


def ignore(*_: object) -> None:
    pass


async def test_an_error_closing_one_directory_does_not_keep_the_others_open() -> None:
    """The other directories were once left as after a crash."""
    box = DirectoriesOnDisks(3)
    box.open()
    closed: list[int] = []

    def closing(number: int, error: Exception | None) -> Any:
        async def close() -> None:
            closed.append(number)
            if error is not None:
                raise error

        return close

    for number, store in enumerate(box.stores):
        store.close = closing(number, None if number else OSError("first"))  # type: ignore[method-assign]
    with pytest.raises(OSError, match="first"):
        await box.store.close()
    assert closed == [0, 1, 2]


def test_counters_do_not_sink_when_a_directory_fails() -> None:
    """A monitoring system takes a counter that sinks for one that began again at 0."""
    box = DirectoriesOnDisks(2)
    box.open()
    for ledger_id in range(4):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
        box.store.append(make_batch([(ledger_id, 0, b"x" * 100)]), ignore)
    box.idle()
    assert all(len(store.ledgers) == 2 for store in box.stores)
    before = box.store.stats()
    for number, ledgers in enumerate((2, 4)):
        box.stores[number]._disk_failed(OSError("it is broken"))
        box.idle()
        after = box.store.stats()
        assert after.ledgers == ledgers
        assert {one: getattr(after, one) for one in COUNTERS} == (
            {one: getattr(before, one) for one in COUNTERS}
        )


# -- where a ledger goes ----------------------------------------------------------------------


def test_new_ledgers_are_distributed_in_proportion_to_free_space() -> None:
    box = DirectoriesOnDisks(2)
    box.disks[0].capacity_bytes = 30_000_000
    box.disks[1].capacity_bytes = 10_000_000
    box.open()
    for ledger_id in range(80):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
    first, second = (len(store.ledgers) for store in box.stores)
    assert first + second == 80
    assert 2.7 < first / second < 3.3


async def test_directories_on_one_disk_count_its_space_once(tmp_path: Path) -> None:
    """Clients once saw twice the real space, and jobs relied on it."""
    disks = [RealDisk(str(tmp_path / name)) for name in ("one", "two", "three")]
    async with running_bookie(tmp_path / "first", more=disks) as bookie:
        total_bytes = disks[0].total_bytes()
        assert bookie.store.total_bytes() == total_bytes
        assert bookie.store.free_bytes() <= total_bytes
        assert bookie.space()[0] == total_bytes
        assert bookie.space()[1] <= total_bytes
        assert [one[1] for one in bookie.spaces()] == [total_bytes] * 4  # of each directory
        info = await BookieRoutes(bookie, None, None).info(Call({}, {}, {}))  # type: ignore[arg-type]
        assert info["totalSpace"] == total_bytes


def test_the_space_of_different_disks_is_added() -> None:
    box = DirectoriesOnDisks(2)
    box.disks[0].capacity_bytes = 30_000_000
    box.disks[1].capacity_bytes = 10_000_000
    box.open()
    assert box.store.total_bytes() == 40_000_000
    assert box.store.free_bytes() == sum(disk.free_bytes() for disk in box.disks)


def test_a_disk_that_does_not_answer_is_left_out_of_the_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients got an error for the space of the whole bookie, and its own page did not."""

    def silent() -> int:
        raise OSError("the disk does not answer")

    box = DirectoriesOnDisks(2)
    box.disks[0].capacity_bytes = 30_000_000
    box.disks[1].capacity_bytes = 10_000_000
    box.open()
    monkeypatch.setattr(box.disks[0], "free_bytes", silent)
    assert box.store.total_bytes() == 10_000_000
    assert box.store.free_bytes() == box.disks[1].free_bytes()
    monkeypatch.setattr(box.disks[1], "total_bytes", silent)
    with pytest.raises(OSError, match="no file system"):
        box.store.free_bytes()


def test_a_full_directory_gets_no_new_ledger_and_the_other_accepts_adds() -> None:
    box = DirectoriesOnDisks(2)
    box.open()
    for ledger_id in (1, 2):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
    box.idle()
    box.disks[0].capacity_bytes -= box.disks[0].free_bytes()
    full = next(iter(box.stores[0].ledgers))
    other = next(iter(box.stores[1].ledgers))
    entry = 0
    while box.stores[0].writable:
        box.store.append(make_batch([(full, entry, b"x" * 3000)]), ignore)
        entry += 1
        box.idle()
    assert box.store.writable
    assert not box.store.all_writable
    assert not box.store.takes(full)
    assert box.store.takes(other)
    assert box.store.takes(99)
    for ledger_id in range(10, 20):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
    assert list(box.stores[0].ledgers) == [full]
    state, good = box.store.directories()
    assert (state.state, good.state) == ("read-only", "writable")
    assert "no space" in state.reason
    # One chunk for both: each part has its own answer.
    answers: list[tuple[int, bool]] = []

    def done(batch: LogBatch, error: StorageError | None) -> None:
        answers.extend((one.ledger_id, error is None) for one in batch.runs)

    box.store.append(make_batch([(full, entry, b"x"), (other, 0, b"y")]), done)
    box.idle()
    assert sorted(answers) == sorted([(full, False), (other, True)])


def test_a_dropped_ledger_is_recreated_in_its_directory() -> None:
    """The deletion is not durable yet: after a crash the ledger would be in two directories."""
    box = DirectoriesOnDisks(2)
    box.open()
    box.store.create_ledger(1, key_of(1))
    box.store.append(make_batch([(1, 0, b"old")]), ignore)
    box.idle()
    home = next(n for n in range(2) if 1 in box.stores[n].ledgers)
    box.store.drop_ledgers([1])
    box.store.create_ledger(1, key_of(1), again=True)
    box.store.append(make_batch([(1, 5, b"new")]), ignore)
    other = 1 - home
    box.pump([other])
    box.crash()
    box.open()
    assert 1 not in box.stores[other].ledgers


def test_a_ledger_that_was_fenced_and_dropped_is_recreated_fenced() -> None:
    for seed in range(4):
        box = DirectoriesOnDisks(2, seed)
        box.open()
        for ledger_id in range(1, 2 + seed):
            box.store.create_ledger(ledger_id, key_of(ledger_id))
        box.store.fence(1, ignore)
        box.idle()
        box.store.drop_ledgers([1])
        box.idle()
        assert box.store.is_refused(1)
        assert box.store.create_ledger(1, key_of(1), again=True).fenced


def test_a_ledger_found_in_two_directories_is_lost_until_it_is_dropped() -> None:
    """Somebody copied files, so it is unknown which directory is right."""
    box = DirectoriesOnDisks(2)
    box.open()
    for ledger_id in (1, 2):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
    for store in box.stores:
        if 1 not in store.ledgers:
            store.create_ledger(1, key_of(1))
    box.idle()
    box.kill()
    report = box.open()
    assert any("ledger 1 is in two directories" in problem for problem in report.problems)
    assert 1 not in box.store.ledgers
    assert len(box.store.ledgers) == 1
    assert box.store.is_lost(1)
    assert box.store.absence_unknown(1)
    assert not box.store.absence_unknown(2)
    assert 1 in box.store.ledger_ids()
    box.store.drop_ledgers([1])
    assert not box.store.is_lost(1)
    assert all(1 not in store.ledgers for store in box.stores)


def lose_last_group_but_one(box: DirectoriesOnDisks, number: int) -> None:
    """Damage the table of a synced group in the newest segment of a directory."""
    segment = box.stores[number].usage()[-1].number
    directory_id = box.stores[number]._directory_id
    name = segment_name(segment)
    groups = scan_groups(box.disks[number].open(name), directory_id, segment, 4096).groups
    assert len(groups) > 3
    box.disks[number].flip_bit(name, groups[-2].header.offset + 100)


@pytest.mark.parametrize("outdated", [0, 1])
def test_a_directory_that_lost_a_deletion_does_not_decide_what_a_ledger_has(outdated: int) -> None:
    """The other directory is complete: the ledger was recreated there after the deletion."""
    box = DirectoriesOnDisks(2)
    box.open()
    old, new = box.stores[outdated], box.stores[1 - outdated]
    old.create_ledger(1, key_of(1))
    new.create_ledger(1, key_of(1))
    for entry_id in range(4):
        old.append(make_batch([(1, entry_id, b"first life")]), ignore)
        box.pump()
    new.append(make_batch([(1, 9, b"second life")]), ignore)
    box.idle()
    box.kill()
    lose_last_group_but_one(box, outdated)
    for _ in range(2):
        report = box.open()
        assert report.negatives_unknown
        assert "ledger 1 is in two directories" not in str(report.problems)
        box.idle()
        assert 1 in box.store.ledgers
        assert 1 in box.stores[1 - outdated].ledgers
        assert 1 not in box.stores[outdated].ledgers
        assert box.store.last_entry_id(1) == 9
        with pytest.raises(NoEntry):
            box.store.read(1, 0, 1, 1 << 20)
        box.kill()


def test_a_ledger_in_two_directories_with_losses_is_lost() -> None:
    box = DirectoriesOnDisks(2)
    box.open()
    for store in box.stores:
        store.create_ledger(1, key_of(1))
        for entry_id in range(4):
            store.append(make_batch([(1, entry_id, b"x")]), ignore)
            box.pump()
    box.idle()
    box.kill()
    for number in range(2):
        lose_last_group_but_one(box, number)
    report = box.open()
    assert "ledger 1 is in two directories" in str(report.problems)
    assert box.store.is_lost(1)
    assert not box.store.takes(1)
    with pytest.raises(StorageError, match="may be in a data directory that failed"):
        box.store.create_ledger(1, key_of(1))
    assert all(1 in store.ledgers for store in box.stores), "nothing is dropped"


@pytest.mark.parametrize("failed", [0, 1])
def test_a_ledger_that_an_unread_directory_may_hold_is_neither_created_nor_denied(
    failed: int,
) -> None:
    box = DirectoriesOnDisks(2)
    box.open()
    for number, store in enumerate(box.stores):
        store.create_ledger(number, key_of(number))
        store.append(make_batch([(number, 0, b"x")]), ignore)
    box.idle()
    box.kill()
    box.open([failed])
    there = 1 - failed
    store = box.store
    assert list(store.ledgers) == [there]
    assert store.negatives_unknown
    for ledger_id in (failed, 77):
        assert store.is_lost(ledger_id)
        assert store.absence_unknown(ledger_id)
        assert not store.takes(ledger_id)
        with pytest.raises(StorageError, match=f"does not create ledger {ledger_id}"):
            store.create_ledger(ledger_id, key_of(ledger_id))
        told: list[StorageError | None] = []
        store.force(ledger_id, told.append)
        assert "unknown whether its entries are durable" in str(told[0])
    assert not store.is_lost(there)
    assert not store.absence_unknown(there)
    told = []
    store.force(there, told.append)
    store.barrier(told.append)
    box.pump()
    assert told == [None, None]


def test_a_force_of_a_ledger_that_no_directory_can_hold_succeeds_at_once() -> None:
    box = DirectoriesOnDisks(2)
    box.open()
    told: list[StorageError | None] = []
    box.store.force(77, told.append)
    assert told == [None]
    assert not box.store.is_lost(77)
    assert not box.store.absence_unknown(77)


def test_every_call_fails_once_all_directories_have_failed() -> None:
    box = DirectoriesOnDisks(2)
    box.open()
    box.store.create_ledger(1, key_of(1))
    failures: list[StorageError] = []
    box.store.on_failure = failures.append
    for number, place in enumerate(list(box.store._places)):
        assert failures == []
        assert box.store.failed is None
        box.store._failed_now(place, StorageError(f"disk {number}"))
    assert [str(one) for one in failures] == ["disk 1"]
    assert str(box.store.failed) == "disk 0"
    told: list[StorageError | None] = []
    box.store.barrier(told.append)
    assert [str(one) for one in told] == ["disk 0"]
    for call in (lambda: box.store.create_ledger(2, key_of(2)), lambda: box.store.refuse_ledger(3)):
        with pytest.raises(StorageError, match="disk 0"):
            call()
    assert box.store.is_lost(1)
    assert not box.store.writable


def test_adds_go_to_a_ledgers_directory_and_new_ledgers_where_there_is_space() -> None:
    box = DirectoriesOnDisks(2)
    box.open()
    for number, store in enumerate(box.stores):
        store.create_ledger(number, key_of(number))
    places = list(box.store._places)
    for full in ([], [0], [1], [0, 1]):
        for number, place in enumerate(places):
            box.store._writable_changed(place, number not in full)
        assert [box.store.takes(number) for number in range(2)] == [
            number not in full for number in range(2)
        ]
        assert box.store.takes(77) is (len(full) < 2)
        assert box.store.writable is (len(full) < 2)
        assert box.store.all_writable is (not full)


def test_the_first_error_is_the_result_of_calls_to_several_directories() -> None:
    results: list[StorageError | None] = []
    one = last_of(3, results.append)
    first, second = StorageError("first"), StorageError("second")
    one(None)
    one(first)
    assert results == []
    one(second)
    assert results == [first]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_batch_for_two_directories_is_answered_in_parts(order: tuple[int, int]) -> None:
    """Each directory has its own part, and a part that does not fit is refused alone."""
    box = DirectoriesOnDisks(2)
    box.open()
    for ledger_id in (1, 2):
        box.stores[ledger_id - 1].create_ledger(ledger_id, key_of(ledger_id))
    content = {1: [b"a" * 50, b"b" * 70, b"c"], 2: [b"d" * 33, b"e" * 7, b"f" * 90]}
    batch = make_batch(
        [(order[n % 2], n // 2, content[order[n % 2]][n // 2]) for n in range(6)], cuts=(40, 111)
    )
    answers: list[tuple[set[int], StorageError | None]] = []

    def done(batch: LogBatch, error: StorageError | None) -> None:
        assert batch.partial
        answers.append(({one.ledger_id for one in batch.runs}, error))

    box.store.append(batch, done)
    box.pump([0])
    assert answers == [({1}, None)]
    box.pump()
    assert answers == [({1}, None), ({2}, None)]
    for _ in range(2):
        for ledger_id, payloads in content.items():
            for entry_id, payload in enumerate(payloads):
                [found] = run(box.store.read_blocking(ledger_id, entry_id, 1, 1 << 20))
                assert found == make_entry(ledger_id, entry_id, payload)
        box.kill()
        box.open()
    answers.clear()
    box.store.append(make_batch([(1, 5, bytes(70_000)), (2, 5, b"fits")]), done)
    box.pump()
    (refused, why), (accepted, no_error) = answers
    assert (refused, accepted, no_error) == ({1}, {2}, None)
    assert "do not fit into a segment" in str(why)
    assert not isinstance(why, UsageError)
    assert box.store.last_entry_id(1) == 2
    with pytest.raises(UsageError, match="ledger 9 is not in this bookie's store"):
        box.store.append(make_batch([(1, 6, b"x"), (9, 0, b"y")]), done)
    box.pump()
    assert box.store.last_entry_id(1) == 2


@pytest.mark.parametrize("later", [0, 1])
def test_a_directory_of_a_later_version_does_not_harm_the_others(
    later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie of the later version starts with all directories."""
    box = DirectoriesOnDisks(2)
    box.open()
    box.store.create_ledger(1, key_of(1))
    box.store.append(make_batch([(1, 0, b"x")]), ignore)
    box.idle()
    box.kill()
    recover = LedgerStore.recover

    def recovering(store: LedgerStore) -> object:
        if store is box.stores[later]:
            raise LaterStorageError("a later version wrote it")
        return recover(store)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerStore, "recover", recovering)
        with pytest.raises(LaterStorageError):
            box.open()
    box.kill()
    assert box.open().problems == ()
    assert box.store.last_entry_id(1) == 0


def test_a_barrier_ends_once_for_all_directories() -> None:
    box = DirectoriesOnDisks(3)
    box.open()
    for ledger_id in range(3):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
        box.store.append(make_batch([(ledger_id, 0, b"x")]), ignore)
    done: list[StorageError | None] = []
    box.store.barrier(done.append)
    box.pump([0, 1])
    assert done == []
    box.pump()
    assert done == [None]


# -- a bookie ---------------------------------------------------------------------------------


class BreakableDisk(RealDisk):
    """A disk on which every write fails once `broken` is set."""

    broken = False

    def create(self, name: str) -> Any:
        return _File(super().create(name), self)

    def open(self, name: str) -> Any:
        return _File(super().open(name), self)


class _File:
    def __init__(self, file: Any, disk: BreakableDisk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "sync") and self._disk.broken:
            raise OSError(errno.EIO, "I/O error")
        return getattr(self._file, name)


def entry(ledger: int, entry_id: int) -> bytes:
    codec = EntryCodec(ledger, DigestType.CRC32C, b"")
    return codec.pack(entry_id, entry_id - 1, 5 * (entry_id + 1), b"hello")


@pytest.fixture
async def metadata() -> AsyncIterator[MetadataStore]:
    store = memory_metadata()
    await store.initialise()
    yield store
    await store.close()


def start(tmp_path: Path, metadata: MetadataStore, *names: str) -> Any:
    first, *others = [tmp_path / name for name in names]
    more = [BreakableDisk(path, make=False) for path in others]
    return running_bookie(first, SMALL, metadata, bookie_id="b", more=more)


def homes(bookie: Bookie) -> list[int]:
    """A ledger of each directory."""
    assert isinstance(bookie.store, LedgerDirectories)
    return [next(iter(place.store.ledgers)) for place in bookie.store._places]


async def fill(bookie: Bookie) -> tuple[int, int]:
    """An entry in each of two ledgers, in one chunk; the ledgers of both directories."""
    async with peer_of(bookie) as peer:
        peer.send(b"".join(frames.add_request(KEY, entry(n, 0)) for n in (1, 2)))
        answers = {await peer.receive(), await peer.receive()}
        assert answers == {frames.add_response(0, n, 0) for n in (1, 2)}
    first, second = homes(bookie)
    return first, second


def listed(path: Path) -> tuple[str, ...]:
    return split_directories(decode((path / COOKIE_FILE).read_bytes()).ledger_dirs)


async def test_ledgers_in_two_directories_survive_a_restart(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    paths = (str(tmp_path / "one"), str(tmp_path / "two"))
    async with start(tmp_path, metadata, "one", "two") as bookie:
        assert set(await fill(bookie)) == {1, 2}
        assert listed(tmp_path / "one") == listed(tmp_path / "two") == paths
        assert decode((await metadata.read_cookie("b")).value).ledger_dirs.split("\t")[0] == "2"
    async with start(tmp_path, metadata, "two", "one") as bookie, peer_of(bookie) as peer:
        for ledger in (1, 2):
            answer = await peer.ask(frames.read_request(ledger, 0))
            assert answer == frames.read_response(0, ledger, 0, entry(ledger, 0))
        assert listed(tmp_path / "one") == paths
        assert await peer.ask(frames.read_request(3, 0)) == frames.read_response(
            Code.NO_LEDGER, 3, 0
        )


async def test_a_start_accepts_an_added_directory(tmp_path: Path, metadata: MetadataStore) -> None:
    async with start(tmp_path, metadata, "one") as bookie:
        assert not isinstance(bookie.store, LedgerDirectories)
    async with start(tmp_path, metadata, "one", "two") as bookie:
        await fill(bookie)
        assert bookie.store.all_writable
    assert len(listed(tmp_path / "one")) == len(listed(tmp_path / "two")) == 2


async def test_a_start_refuses_when_a_known_directory_is_left_out(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    async with start(tmp_path, metadata, "one", "two"):
        pass
    with pytest.raises(CookieError, match=r"has data in .*/two, which was not given") as caught:
        async with start(tmp_path, metadata, "one"):
            pass
    assert f"quire bookie disk replace b {tmp_path / 'two'} " in caught.value.remedy
    assert f"quire bookie disk remove b {tmp_path / 'two'} " in caught.value.remedy
    assert f"--dir {tmp_path / 'two'}" in caught.value.remedy


async def test_a_ledger_is_unknown_while_a_directory_is_not_mounted(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    """The missing directory may hold any ledger, so nothing is reported as absent."""
    async with start(tmp_path, metadata, "one", "two") as bookie:
        here, away = await fill(bookie)
    for how in ("missing", "empty"):
        (tmp_path / "two").rename(tmp_path / "kept")
        if how == "empty":
            (tmp_path / "two").mkdir()
        async with start(tmp_path, metadata, "one", "two") as bookie, peer_of(bookie) as peer:
            good = await peer.ask(frames.read_request(here, 0))
            assert good == frames.read_response(0, here, 0, entry(here, 0))
            for unknown in (away, 77):
                lost = frames.read_response(Code.IO_ERROR, unknown, 0)
                assert await peer.ask(frames.read_request(unknown, 0)) == lost
                assert bookie.service.fence(unknown, KEY, ignore) == Code.IO_ERROR
                refused = frames.add_response(Code.IO_ERROR, unknown, 1)
                assert await peer.ask(frames.add_request(KEY, entry(unknown, 1))) == refused
                assert unknown not in bookie.store.ledgers
            goes_on = await peer.ask(frames.add_request(KEY, entry(here, 1)))
            assert goes_on == frames.add_response(0, here, 1)
            assert "b" in (await metadata.bookies()).readonly
            state = bookie.store.directories()[1]
            assert (state.state, state.ledgers) == ("failed", None)
            assert "not mounted" in state.reason
        assert not (tmp_path / "two" / "current").exists()
        shutil.rmtree(tmp_path / "two", ignore_errors=True)
        (tmp_path / "kept").rename(tmp_path / "two")
    async with start(tmp_path, metadata, "one", "two") as bookie, peer_of(bookie) as peer:
        back = await peer.ask(frames.read_request(away, 0))
        assert back == frames.read_response(0, away, 0, entry(away, 0))
        assert "b" in (await metadata.bookies()).writable


async def test_the_ledgers_of_a_failed_directory_are_marked_for_replication(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    """Ledgers of the failed directory are copied to other bookies, and the others are not."""
    async with start(tmp_path, metadata, "one", "two") as bookie:
        here, away = await fill(bookie)
    for ledger_id in (1, 2, 3):
        member = "b" if ledger_id < 3 else "c"
        segments = (Segment(0, (member,)),)
        await metadata.create_ledger(LedgerMetadata(1, 1, 1, segments), ledger_id)
    (tmp_path / "two").rename(tmp_path / "kept")
    async with start(tmp_path, metadata, "one", "two") as bookie:
        await bookie.report_damage()
    root = replication_root(metadata.uri)
    marked = [n for n in (1, 2, 3) if await metadata.tree.exists(mark_path(root, n))]
    assert marked == [away]
    assert here not in marked


async def test_a_start_with_all_directories_gone_is_refused(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    async with start(tmp_path, metadata, "one", "two"):
        pass
    for name in ("one", "two"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(QuireError, match="not mounted"):
        async with start(tmp_path, metadata, "one", "two"):
            pass


async def test_a_start_refuses_the_directory_of_another_bookie(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    async with running_bookie(tmp_path / "two", SMALL, metadata, bookie_id="other"):
        pass
    with pytest.raises(CookieError, match="belongs to bookie other"):
        async with start(tmp_path, metadata, "one", "two"):
            pass
    assert not (tmp_path / "one" / "current").exists()


async def test_the_other_directory_serves_after_one_disk_fails(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    async with start(tmp_path, metadata, "one", "two") as bookie, peer_of(bookie) as peer:
        here, broken = await fill(bookie)
        disk = bookie._disks[1]
        assert isinstance(disk, BreakableDisk)
        disk.broken = True
        # One chunk is for both, in each protocol. Entries in the good directory are acknowledged.
        peer.send(b"".join(frames.add_request(KEY, entry(n, 1)) for n in (1, 2)))
        answers = {await peer.receive(), await peer.receive()}
        assert answers == {
            frames.add_response(0, here, 1),
            frames.add_response(Code.IO_ERROR, broken, 1),
        }
        assert not bookie.failed.done()
        lost = frames.read_response(Code.IO_ERROR, broken, 0)
        assert await peer.ask(frames.read_request(broken, 0)) == lost
        assert bookie.service.fence(broken, KEY, ignore) == Code.IO_ERROR
        # It is known what it did not contain, so new ledgers are accepted.
        none = frames.read_response(Code.NO_LEDGER, 77, 0)
        assert await peer.ask(frames.read_request(77, 0)) == none
        added = await peer.ask(frames.add_request(KEY, entry(78, 0)))
        assert added == frames.add_response(0, 78, 0)
        assert "b" in (await metadata.bookies()).writable
        assert bookie.store.directories()[1].state == "failed"
        good = bookie._disks[0]
        bookie.store._places[0].store._disk_failed(OSError(good.path))
        async with asyncio.timeout(20):
            await bookie.failed
    async with start(tmp_path, metadata, "one", "two") as bookie, peer_of(bookie) as peer:
        back = await peer.ask(frames.read_request(broken, 0))
        assert back == frames.read_response(0, broken, 0, entry(broken, 0))


async def test_deferred_adds_are_forced_in_their_own_directory(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    """A force must not succeed merely because another directory works."""
    async with start(tmp_path, metadata, "one", "two") as bookie, peer_of(bookie) as peer:
        here, broken = await fill(bookie)

        def add(txn: int, ledger: int, entry_id: int, **how: bool) -> bytes:
            return v3.add_request(txn, KEY, entry(ledger, entry_id), ledger, entry_id, **how)

        async def codes(count: int) -> dict[int, int]:
            found = {}
            for _ in range(count):
                answer = v3.parse_response((await peer.receive())[4:])
                found[answer.header.txnId] = v3.status_of(answer, 0)
            return found

        bookie._disks[1].broken = True
        peer.send(
            add(1, broken, 1, deferred_sync=True)
            + add(2, here, 1, deferred_sync=True)
            + add(3, broken, 2)
            + add(4, here, 2)
        )
        assert await codes(4) == {1: Code.OK, 2: Code.OK, 3: Code.IO_ERROR, 4: Code.OK}
        peer.send(v3.force_request(5, broken) + v3.force_request(6, here))
        assert await codes(2) == {5: Code.IO_ERROR, 6: Code.OK}
        # It is refused at once, beside one that is accepted.
        peer.send(add(7, broken, 3, deferred_sync=True) + add(8, here, 3, deferred_sync=True))
        assert await codes(2) == {7: Code.IO_ERROR, 8: Code.OK}
