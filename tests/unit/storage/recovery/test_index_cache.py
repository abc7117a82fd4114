"""When the index cache is written, when it is trusted, and what a start does without it."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from quire._runtime.tasks import TaskSet
from quire.bookie.server import Bookie
from quire.codec.log.footer import TRAILER_BYTES
from quire.codec.log.state_records import BLOCK_BYTES, RecordKind, StateRecord
from quire.errors import BookieUnavailableError, DiskFullError, StorageError
from quire.http.routes.bookie import BookieRoutes
from quire.http.server.api import Reply
from quire.storage.background.index_cache_writer import CacheFile, Snapshot
from quire.storage.directory import Identity
from quire.storage.recovery.index_cache import CACHE_NAME, TEMPORARY_NAME
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.segment import sealed_rows
from quire.storage.segment.segment import segment_name
from quire.storage.store import LedgerStore
from quire_simulator.machine.inode import InodeContent
from tests.sim.mutants.mutant import edit
from tests.support.bookies.bookie import running_bookie
from tests.support.crash.crash_sweep import contents_of
from tests.support.storage.index_cache import EAGER, check, fill, look, opened
from tests.support.storage.storage import StoreOnDisk, disk_of, key_of, run, sim_disk

COMPACTING = replace(
    EAGER,
    compact_major_ratio=0.8,
    compact_minor_interval_s=0.0,
    compact_major_interval_s=0.0,
)


def with_cache(box: StoreOnDisk, cache: InodeContent | None) -> StoreOnDisk:
    """Open a copy of the disk with this cache in a separate store."""
    contents = {name: one for name, one in contents_of(disk_of(box)).items() if name != CACHE_NAME}
    if cache is not None:
        contents[CACHE_NAME] = cache
    made = StoreOnDisk(disk_of(box).holding(contents), box.config)
    made.acknowledged = dict(box.acknowledged)
    made.open()
    return made


def cache_of(box: StoreOnDisk) -> InodeContent:
    found = contents_of(disk_of(box))[CACHE_NAME]
    assert found is not None
    return found.copy()


def log_only(box: StoreOnDisk) -> None:
    """Write the log, but seal and remove nothing."""
    while box.log.run():
        pass


# -- when it is trusted -----------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_a_fence_outlives_a_deletion_that_had_to_wait_for_space(cached: bool) -> None:
    """A ledger was dropped on a full disk, and created again before that was logged.

    The deletion was then logged in the segment after the one in which the ledger was created. A
    copy of it once removed the fence that had come from the index cache.
    """
    box = opened(replace(EAGER, index_cache_segments=1))
    store = box.store
    begin = partial(store._appender.begin_segment, lambda error: None)
    box.append([(1, 0, b"x"), (2, 0, b"y")])
    box.idle()
    begin()
    box.idle()
    collector = store._maintenance.collector
    log_records = collector._log_records
    collector._log_records = lambda records, done: done(DiskFullError("no space"))
    box.drop([1])
    collector._log_records = log_records
    assert not store.deletions_logged
    store.create_ledger(1, key_of(1))
    for _ in range(2):  # The deletion and the key are in a segment that is removed below.
        begin()
        log_only(box)
    box.append([(2, 1, b"y")])
    box.fence(1)
    log_only(box)
    begin()
    log_only(box)
    for _ in range(3):
        box.idle()
    if cached:
        look(box)
    assert store.stats().index_caches_written == cached
    assert box.fenced == {1}
    disk_of(box).kill()
    report = box.open()
    assert report.index_cache.startswith("used") is cached
    assert box.store.ledgers[1].fenced
    assert box.store.ledgers[1].master_key == key_of(1)
    check(box)


def test_a_start_after_a_clean_stop_reads_no_footers() -> None:
    box = opened()
    fill(box, 3, 1, 2)
    box.fence(2)
    box.idle()
    box.close()
    # The entries in the index are damaged, not absent. A start that read the index would scan the
    # groups.
    for one in box.store.usage():
        size = disk_of(box).open(segment_name(one.number)).size()
        disk_of(box).flip_bit(segment_name(one.number), size - TRAILER_BYTES - 4)
    report = box.open()
    assert report.index_cache == "used for 4 of 4 segments"
    assert report.problems == ()
    assert report.clean
    ids = [entry_id for ledger_id, entry_id in box.acknowledged if ledger_id == 1]
    assert box.store.last_entry_id(1) == max(ids)
    assert box.store.ledgers[2].fence_durable


def test_a_wrong_bit_anywhere_in_the_cache_is_detected() -> None:
    box = opened()
    fill(box, 2, 1, 2)
    box.drop([2])
    box.idle()
    box.close()
    cache = cache_of(box)
    for offset in range(0, cache.size, 7):
        wrong = cache.copy()
        wrong.apply(offset, bytes([wrong.read(offset, offset + 1)[0] ^ 0x10]))
        found = with_cache(box, wrong)
        assert found.report.index_cache.startswith("not used: "), offset
        assert found.store.ledger_ids() == [1]
    for size in (0, 1, 19, 20, 100, cache.size - 1):
        short = InodeContent()
        short.apply(0, cache.read(0, size))
        assert with_cache(box, short).report.index_cache.startswith("not used: "), size
    longer = cache.copy()
    longer.apply(cache.size, b"\0")
    assert with_cache(box, longer).report.index_cache.startswith("not used: ")
    assert with_cache(box, cache).report.index_cache.startswith("used ")
    assert with_cache(box, None).report.index_cache == ""


def test_a_start_works_without_an_unreadable_cache() -> None:
    box = opened()
    fill(box, 2, 1)
    box.close()
    disk_of(box).fail_reads(CACHE_NAME)
    assert box.open().index_cache.startswith("not used: ")
    check(box)


def test_the_cache_of_another_directory_is_not_used() -> None:
    box, other = opened(), StoreOnDisk(sim_disk(2), EAGER)
    fill(box, 2, 1)
    box.close()
    identity = Identity(b"\xab" * 16).encode()
    contents = {"current/DIRECTORY": InodeContent(bytearray(identity), len(identity))}
    other.disk = sim_disk(2).holding({"current": None, **contents, "log": None})
    other.open()
    fill(other, 2, 7)
    other.close()
    assert with_cache(other, cache_of(box)).report.index_cache == (
        "not used: the index cache belongs to another data directory"
    )


def test_a_rewritten_or_removed_segment_invalidates_the_cache() -> None:
    box = opened()
    fill(box, 3, 1, 2, 3)
    box.close()
    before = cache_of(box)
    assert with_cache(box, before).report.index_cache.startswith("used ")
    box.config = COMPACTING
    box.open()
    box.drop([2, 3])
    for _ in range(5):
        look(box)
    assert box.store.stats().compactions
    assert with_cache(box, before).report.index_cache.startswith("not used: log/")
    box.drop([1])
    look(box)
    found = with_cache(box, before)
    assert found.report.index_cache.startswith("not used: log/")
    assert found.store.ledger_ids() == []


def test_a_cache_that_is_newer_than_the_log_is_not_used() -> None:
    box = opened()
    fill(box, 2, 1, 2)
    earlier = disk_of(box).copy()
    box.drop([2])  # in no segment that is sealed
    box.idle()
    look(box)
    box.disk, newer = earlier, cache_of(box)
    found = with_cache(box, newer)
    assert found.report.index_cache == "not used: the index cache is newer than the log"
    assert found.store.ledger_ids() == [1, 2]


def test_a_cache_that_was_newer_than_the_log_is_not_used_later_either() -> None:
    """Such a cache once counted again as soon as the log was as long as before.

    A ledger whose deletion was lost with the later groups existed after one start, but not after
    the next.
    """
    box = opened()
    fill(box, 2, 1, 2)
    earlier = disk_of(box).copy()
    box.drop([2])
    box.idle()
    look(box)
    box.disk, newer = earlier, cache_of(box)
    found = with_cache(box, newer)
    assert found.report.index_cache == "not used: the index cache is newer than the log"
    for entry_id in range(20):
        found.append([(3, entry_id, bytes(10))])
        found.idle()
    found.open()  # Not after a clean stop.
    assert found.report.index_cache == ""
    assert found.store.ledger_ids() == [1, 2, 3]


def after_deletions() -> list[int]:
    """Return a state in which only segments after the cache mention a deleted ledger.

    Nothing shows its end once these segments are gone.
    """
    box = opened()
    fill(box, 2, 1)
    box.store.create_ledger(50, key_of(50))
    box.append([(60, 0, bytes(10))])
    box.idle()
    look(box)
    cache = cache_of(box)
    box.drop([50])
    fill(box, 1, 60)
    fill(box, 1, 61)
    box.drop([60, 61])
    fill(box, 1, 62)
    numbers = {one.number for one in box.store.usage()}
    assert not numbers >= set(range(1, max(numbers) + 1)), "nothing was dropped"
    found = with_cache(box, cache)
    assert found.report.index_cache.startswith("used ")
    return found.store.ledger_ids()


def test_a_deleted_ledger_does_not_come_back_from_the_cache() -> None:
    assert after_deletions() == [1, 62]


def test_a_deleted_ledger_would_come_back_if_the_cache_had_all_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit(monkeypatch, Snapshot, "blocks", ("if info.born > self.through:", "if False:"))
    monkeypatch.setattr(Snapshot, "_spoken_of", lambda self, rowless: rowless)
    assert 50 in after_deletions()


# -- when it is written -----------------------------------------------------------------------


def written(box: StoreOnDisk) -> int:
    return box.store.stats().index_caches_written


def test_the_cache_is_written_after_enough_new_segments_and_time() -> None:
    box = opened(replace(EAGER, index_cache_interval_s=100.0, index_cache_segments=3))
    fill(box, 3, 1)
    look(box)
    assert written(box) == 0  # too early
    box.clock.ms += 100_000
    look(box)
    assert written(box) == 1
    fill(box, 2, 1)
    box.clock.ms += 100_000
    look(box)
    assert written(box) == 1  # too little
    fill(box, 1, 1)
    box.clock.ms += 100_000
    look(box)
    assert written(box) == 2
    assert with_cache(box, cache_of(box)).report.index_cache == "used for 6 of 7 segments"
    box.drop([1])
    look(box)
    fill(box, 1, 2)
    box.clock.ms += 100_000
    look(box)
    assert written(box) == 3  # The covered segments are gone.


def test_a_loaded_cache_is_rewritten_only_after_new_segments() -> None:
    box = opened()
    fill(box, 3, 1)
    box.close()
    box.open()
    look(box)
    assert written(box) == 0
    fill(box, 2, 1)
    look(box)
    assert written(box) == 1


def test_a_compaction_abandons_the_cache_that_is_being_written() -> None:
    box = opened()
    fill(box, 3, 1, 2, 3)
    box.close()
    disk_of(box).remove(CACHE_NAME)
    box.config = COMPACTING
    box.open()
    box.pump()
    box.store.check_space()  # the cache is begun
    box.drop([2, 3])
    box.pump()
    for _ in range(20):  # And waits, as for a slow disk.
        if box.store.stats().compactions:
            break
        box.store._maintenance.compactor.tick()
        box.maintenance.run()
        box.log.run()
        compact = [one for one in box.timers._waiting if "Compactor" in repr(one.callback)]
        for one in compact:
            one.cancel()
            one.callback()
    assert box.store.stats().compactions
    box.idle()
    assert written(box) == 0
    assert not disk_of(box).exists(TEMPORARY_NAME)
    check_alive(box)


def test_a_cache_with_changes_that_are_not_durable_is_abandoned() -> None:
    """A start would otherwise rely on fences and deletions that the log lacks."""
    box = opened()
    fill(box, 3, 1, 2, 3)
    box.close()
    disk_of(box).remove(CACHE_NAME)
    box.open()
    box.pump()
    writer = box.store._maintenance.index_cache
    real = writer._barrier
    writer._barrier = lambda done: done(StorageError("the log failed"))
    box.store.check_space()
    box.idle()
    assert written(box) == 0
    assert not disk_of(box).exists(TEMPORARY_NAME)
    assert not disk_of(box).exists(CACHE_NAME)
    writer._barrier = real
    check_alive(box)


def check_alive(box: StoreOnDisk) -> None:
    look(box)
    assert written(box) == 1
    assert with_cache(box, cache_of(box)).report.index_cache.startswith("used ")


def test_the_cache_omits_segments_that_are_sealed_while_it_is_written() -> None:
    box = opened()
    fill(box, 3, 1, 2)
    snapshot = Snapshot(box.store._catalogue, box.store._directory_id)
    fill(box, 2, 2, 3)
    file = CacheFile(box.disk, snapshot)
    while file.step():
        pass
    file.publish(box.store._appender.end_group)
    found, truth = with_cache(box, cache_of(box)), with_cache(box, None)
    assert found.report.index_cache == "used for 3 of 6 segments"
    for one in truth.store.ledgers.values():
        same = found.store.ledgers[one.ledger_id]
        assert sealed_rows.unpack(same.sealed) == sealed_rows.unpack(one.sealed)
        assert same.last_entry_id == one.last_entry_id
    assert found.store.usage() == truth.store.usage()
    check(found)


def test_a_full_disk_writes_no_cache() -> None:
    box = opened()
    fill(box, 3, 1)
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    look(box)
    assert written(box) == 0
    assert not disk.exists(TEMPORARY_NAME)
    assert box.store.failed is None
    check(box)


def test_a_start_on_a_full_disk_removes_the_cache_for_space() -> None:
    box = opened()
    fill(box, 3, 1)
    box.close()
    disk = disk_of(box)
    assert disk.exists(CACHE_NAME)
    for name in disk.list("log"):  # nothing that is prepared is left
        if disk.open(f"log/{name}").size() and not disk.written_bytes(f"log/{name}"):
            disk.remove(f"log/{name}")
    # This amount is missing.
    disk.capacity_bytes -= disk.free_bytes() - (5 * BLOCK_BYTES - cache_of(box).size // 2)
    assert box.open().index_cache.startswith("used ")
    assert not disk.exists(CACHE_NAME)
    check(box)


@pytest.mark.parametrize("at", range(6))
def test_running_out_of_space_for_the_cache_does_not_fail_the_store(at: int) -> None:
    box = opened()
    fill(box, 3, 1)
    disk = disk_of(box)
    box.store.check_space()
    for _ in range(at):
        box.maintenance.run()
        box.timers.fire()
    disk.capacity_bytes -= disk.free_bytes()
    box.idle()
    assert box.store.failed is None
    disk.capacity_bytes += 1 << 20
    look(box)
    look(box)
    assert written(box) == 1
    assert not disk.exists(TEMPORARY_NAME)


def test_a_failed_sync_of_the_cache_fails_the_directory() -> None:
    box = opened()
    fill(box, 3, 1)
    disk_of(box).fail_sync_once(TEMPORARY_NAME)
    look(box)
    assert box.store.failed is not None
    assert written(box) == 0
    box.close()
    assert not disk_of(box).exists(CACHE_NAME)


def test_a_start_removes_an_unfinished_cache() -> None:
    box = opened()
    fill(box, 3, 1)
    box.close()
    file = disk_of(box).create(TEMPORARY_NAME)
    file.write([bytes(5000)], 0)
    file.close()
    box.open()
    assert not disk_of(box).exists(TEMPORARY_NAME)


def test_no_cache_is_written_while_deletions_wait_to_be_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = opened()
    fill(box, 3, 1)
    collector = type(box.store._maintenance.collector)
    monkeypatch.setattr(collector, "deletions_logged", property(lambda self: False))
    look(box)
    run(box.store.close())
    assert not disk_of(box).exists(CACHE_NAME)


# -- a start that takes its time --------------------------------------------------------------


@pytest.fixture
def slow_start(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    began, may_end = threading.Event(), threading.Event()
    recover = LedgerStore.recover

    def slow(store: LedgerStore) -> RecoveryReport:
        store._loading.begin(10)
        store._loading.advance(7)
        began.set()
        assert may_end.wait(60)
        return recover(store)

    monkeypatch.setattr(LedgerStore, "recover", slow)
    return began, may_end


async def test_a_loading_bookie_reports_its_progress(
    tmp_path: Path,
    slow_start: tuple[threading.Event, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_end = slow_start
    told: list[object] = []
    found: list[Bookie] = []
    start = Bookie.start

    async def remember(bookie: Bookie) -> None:
        found.append(bookie)
        bookie._log = lambda event, **fields: told.append((event, fields.get("percent")))
        await start(bookie)

    monkeypatch.setattr(Bookie, "start", remember)
    monkeypatch.setattr("quire.bookie.server.LOADING_TOLD_S", 0.01)

    async def look_at_it() -> None:
        await asyncio.to_thread(began.wait, 60)
        [bookie] = found
        routes = BookieRoutes(bookie, connect_to_nobody, TaskSet())
        ready = await routes.is_ready(no_call())
        assert isinstance(ready, Reply)
        assert ready.status == 503
        assert "35 % of its log is loaded" in str(ready)
        state = await routes.state(no_call())
        assert not state["running"]
        assert state["readOnly"]
        assert state["loadedPercent"] == 35
        with pytest.raises(BookieUnavailableError, match="35 % of its log"):
            await routes.last_log_mark(no_call())
        while ("loading", 35) not in told:
            await asyncio.sleep(0)
        may_end.set()

    looking = asyncio.create_task(look_at_it())
    async with running_bookie(tmp_path) as bookie:
        await looking
        assert bookie.recovered
        assert bookie.loading_percent == 100
        assert bookie.writable


async def connect_to_nobody() -> object:
    raise AssertionError("nobody is asked")


def no_call() -> object:
    return None


async def test_a_cancelled_start_ends_before_the_directory_is_released(
    tmp_path: Path, slow_start: tuple[threading.Event, threading.Event]
) -> None:
    began, may_end = slow_start

    async def start() -> None:
        async with running_bookie(tmp_path):
            raise AssertionError("it was cancelled")

    starting = asyncio.create_task(start())
    await asyncio.to_thread(began.wait, 60)
    for _ in range(2):  # Asking again does not make it faster.
        starting.cancel()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not starting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    open_files = [os.readlink(one.path) for one in os.scandir("/proc/self/fd") if one.is_symlink()]
    assert [name for name in open_files if name.startswith(str(tmp_path))] == []


def test_a_start_schedules_no_callbacks_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start runs on a thread, which must not use the event loop.

    Lost keys that were found in frames were once given to its timers.
    """
    box = opened()
    fill(box, 3, 1)
    box.close()
    disk_of(box).remove(CACHE_NAME)
    disk_of(box).remove(segment_name(1))
    recover = LedgerStore.recover

    def watched(store: LedgerStore) -> RecoveryReport:
        report = recover(store)
        assert store.ledgers[1].master_key == key_of(1)
        assert not box.timers.fire()
        return report

    monkeypatch.setattr(LedgerStore, "recover", watched)
    box.open()
    box.idle()
    noted = [one for s in box.store._catalogue.segments.values() for one in s.records]
    assert StateRecord(RecordKind.MASTER_KEY, 1, key_of(1)) in noted


def test_an_unreadable_frame_with_a_lost_key_does_not_prevent_a_start() -> None:
    box = opened()
    fill(box, 3, 1)
    box.close()
    disk_of(box).remove(CACHE_NAME)
    disk_of(box).remove(segment_name(1))
    number, _, _, _ = sealed_rows.unpack(box.store.ledgers[1].sealed)[-1]
    segment = box.store._catalogue.segments[number]
    groups_at, end = segment.groups_at, segment.end
    disk_of(box).fail_reads(segment_name(number), groups_at, end - groups_at)
    box.open()
    assert box.store.ledgers[1].master_key == b""
