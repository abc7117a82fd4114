"""The store's calls: order of visibility, space, failure, and lifecycle."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.codec.wire.v2 import Buffer
from quire.errors import DiskFullError, StorageError, UsageError
from quire.storage.config import StorageConfig
from quire.storage.log.appender import STATE_SHARE
from quire.storage.log.preallocation import prepare
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.segment.batch import Run
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.disk import SimFile
from tests.support.storage.storage import (
    SMALL,
    StoreOnDisk,
    disk_of,
    entries,
    fill_segments,
    key_of,
    make_batch,
    make_entry,
    opened,
    sim_disk,
)

# -- order of visibility ----------------------------------------------------------------------


def test_a_queued_add_is_readable_and_acknowledged_after_its_sync() -> None:
    box = opened()
    box.append(entries(1, 0, 3))
    assert box.read(1, 0, 10) == list(box.written.values())
    assert box.acknowledged == {}
    box.log.step()
    assert box.acknowledged == {}
    assert box.store.queued_bytes > 0
    box.log.deliver()
    assert box.acknowledged == box.written
    assert box.store.queued_bytes == 0
    assert box.read(1, 0, 10) == list(box.written.values())


def test_acknowledgements_keep_the_order_of_appends_across_groups_and_segments() -> None:
    box = opened()
    for turn in range(60):
        box.append(entries(1 + turn % 3, turn // 3 * 7, 7, 300))
    box.pump()
    assert box.acknowledged_order == list(range(60))
    stats = box.store.stats()
    assert stats.groups > 10
    assert stats.sealed_segments >= 1
    assert stats.batches >= 60


def test_entries_gather_in_the_next_group_while_one_is_written() -> None:
    box = opened()
    groups = box.store.stats().groups
    box.append(entries(1, 0, 1))
    box.log.step()
    for number in range(1, 10):
        box.append(entries(1, number, 1))
    box.log.run()
    assert box.store.stats().groups == groups + 2
    assert len(box.acknowledged) == 10


def test_a_fence_applies_at_once_and_is_durable_after_the_queued_entries() -> None:
    box = opened()
    box.append(entries(1, 0, 2))
    box.fence(1)
    assert box.store.ledgers[1].fenced
    assert not box.store.ledgers[1].fence_durable
    again: list[object] = []
    box.store.fence(1, again.append)
    assert box.fenced == set()
    assert again == []
    box.pump()
    assert box.fenced == {1}
    assert again == [None]
    assert box.acknowledged == box.written
    box.store.fence(1, again.append)
    assert again == [None, None]


def test_the_fence_of_an_unknown_ledger_keeps_its_key() -> None:
    box = opened()
    with pytest.raises(NoLedger):
        box.store.fence(5, lambda error: None)
    box.fence(5)
    box.pump()
    disk_of(box).crash()
    box.open()
    assert box.store.ledgers[5].fenced
    assert box.store.ledgers[5].fence_durable
    assert box.store.ledgers[5].master_key == key_of(5)
    with pytest.raises(NoEntry):
        box.read(5, 0)


def test_a_barrier_completes_once_earlier_appends_are_durable() -> None:
    box = opened()
    passed: list[object] = []
    box.store.barrier(passed.append)
    assert passed == [None]
    box.append(entries(1, 0, 2))
    box.store.barrier(passed.append)
    box.append(entries(1, 2, 2))
    assert passed == [None]
    box.log.run()
    assert passed == [None, None]


def test_the_header_of_a_segment_is_synced_before_its_first_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A damaged header would otherwise not show whether a group was acknowledged."""
    steps: dict[int, list[int | str]] = {}
    write, sync = SimFile.write, SimFile.sync

    def writing(self: SimFile, buffers: Sequence[Buffer], offset: int) -> None:
        if any(b"".join(buffers)):  # a file is prepared with zeros
            steps.setdefault(id(self._inode), []).append(offset)
        write(self, buffers, offset)

    def syncing(self: SimFile) -> None:
        steps.setdefault(id(self._inode), []).append("sync")
        sync(self)

    monkeypatch.setattr(SimFile, "write", writing)
    monkeypatch.setattr(SimFile, "sync", syncing)
    box = opened()
    fill_segments(box, 1, 2)
    disk = disk_of(box)
    names = [segment_name(one.number) for one in box.store.usage()]
    assert len(names) == 3
    for name in names:
        order = steps[id(disk.open(name)._inode)]
        first_group = next((at for at, step in enumerate(order) if step not in (0, "sync")), None)
        assert "sync" in order[order.index(0) : first_group], order


def test_a_barrier_waits_for_every_group_before_it() -> None:
    box = opened()
    waiting: list[int] = []
    for number in range(8):
        box.append(entries(1, 40 * number, 40, 50))
    box.store.barrier(lambda error: waiting.append(8 - len(box.acknowledged_order)))
    while not waiting:
        assert box.log.run()
    assert waiting == [0]
    assert box.store.stats().groups > 1


def test_a_barrier_makes_a_new_ledger_durable() -> None:
    box = opened()
    box.store.create_ledger(9, key_of(9))
    passed: list[object] = []
    box.store.barrier(passed.append)
    assert passed == []
    box.pump()
    assert passed == [None]
    disk_of(box).crash()
    box.open()
    assert box.store.ledgers[9].master_key == key_of(9)


def test_a_new_ledger_without_entries_is_logged_soon() -> None:
    box = opened()
    box.store.create_ledger(9, key_of(9))
    box.idle()
    disk_of(box).crash()
    box.open()
    assert 9 in box.store.ledgers


def test_keys_of_any_length_are_kept() -> None:
    box = opened()
    keys = {1: b"x", 2: b"y" * 3000}
    for ledger_id, key in keys.items():
        box.store.create_ledger(ledger_id, key)
    box.idle()
    box.close()
    box.open()
    assert {i: info.master_key for i, info in box.store.ledgers.items()} == keys
    with pytest.raises(UsageError, match="ledger 1 is in this bookie's store already"):
        box.store.create_ledger(1, b"x")


def test_an_explicit_lac_is_kept_and_raises_the_known_one() -> None:
    box = opened()
    box.append(entries(1, 0, 5))
    packet = (1).to_bytes(8, "big") + (4).to_bytes(8, "big") + b"digest"
    done: list[object] = []
    box.store.write_explicit_lac(1, packet, done.append)
    assert box.store.ledgers[1].explicit_lac == packet
    box.idle()
    assert done == [None]
    disk_of(box).crash()
    box.open()
    assert box.store.ledgers[1].explicit_lac == packet
    assert box.store.ledgers[1].last_add_confirmed == 4


def test_the_known_lac_survives_as_that_of_the_last_entry() -> None:
    box = opened()
    box.append(entries(1, 0, 5))
    box.pump()
    box.store.ledgers[1].last_add_confirmed = 3
    disk_of(box).crash()
    box.open()
    assert box.store.ledgers[1].last_add_confirmed == 3
    box.idle()
    box.store.ledgers[1].last_add_confirmed = 4
    box.close()
    box.open()
    assert box.store.ledgers[1].last_add_confirmed in (3, 4)


# -- bounds and space -------------------------------------------------------------------------


def test_a_full_queue_and_its_draining_are_reported() -> None:
    box = opened(replace(SMALL, max_queued_bytes=20_000))
    drained: list[int] = []
    box.store.on_drained = lambda: drained.append(box.store.queued_bytes)
    number = 0
    while not box.store.queue_full:
        box.append(entries(1, number, 10))
        number += 10
    assert box.store.queued_bytes >= 20_000
    assert drained == []
    box.pump()
    assert len(drained) == 1
    assert drained[0] <= 10_000
    assert not box.store.queue_full


def test_the_queue_counts_as_full_while_no_segment_is_prepared() -> None:
    box = opened()
    drained: list[int] = []
    box.store.on_drained = lambda: drained.append(1)
    for number in range(40):
        # Maintenance does not run, but there is still space for what was received already.
        box.append(entries(1, number * 10, 10, 200))
        while box.log.run():
            pass
    assert len(box.acknowledged) == 400
    assert box.store.queue_full
    assert drained == []
    box.maintenance.run()
    assert drained == [1]
    assert not box.store.queue_full
    box.idle()
    assert box.read(1, 0, 400) == [box.written[1, i] for i in range(400)]


def test_a_full_queue_counts_as_drained_after_the_log_has_failed() -> None:
    """Connections that wait for space in the queue must learn that nothing is queued any more."""
    box = opened(replace(SMALL, max_queued_bytes=20_000))
    drained: list[int] = []
    box.store.on_drained = lambda: drained.append(box.store.queued_bytes)
    number = 0
    while not box.store.queue_full:
        box.append(entries(1, number, 10))
        number += 10
    disk_of(box).fail_sync_once()
    box.pump()
    assert box.store.failed is not None
    assert drained == [0]
    assert not box.store.queue_full


def test_a_failed_log_does_not_wait_for_a_segment() -> None:
    box = opened()
    drained: list[int] = []
    box.store.on_drained = lambda: drained.append(1)
    number = 0
    while not box.store.queue_full:
        # Maintenance does not run, so no segment is prepared.
        box.append(entries(1, number, 10, 200))
        while box.log.run():
            pass
        number += 10
    disk_of(box).fail_sync_once()
    box.append(entries(1, number, 10, 200))
    while box.log.run():
        pass
    assert box.store.failed is not None
    assert drained == [1]
    assert not box.store.queue_full


def test_on_a_full_disk_adds_are_refused_but_fences_and_recovery_are_not() -> None:
    box = opened()
    disk = disk_of(box)
    changes: list[bool] = []
    box.store.on_writable_changed = changes.append
    disk.capacity_bytes -= disk.free_bytes()
    number = 0
    while box.store.writable:
        box.append(entries(1, number, 10, 200))
        box.pump()
        number += 10
    with pytest.raises(DiskFullError, match="takes no more entries"):
        box.append(entries(1, number, 10, 200))
    assert changes == [False]
    assert box.store.failed is None
    assert box.read(1, 0, number) == [box.written[1, i] for i in range(number)]
    box.append(entries(1, number, 3), reserve=True)
    box.fence(1)
    box.idle()
    assert (1, number + 2) in box.acknowledged
    assert box.fenced == {1}
    taken, refusal = use_up_the_reserve(box)
    assert taken > 0
    assert "the log of the bookie is full" in refusal
    assert box.store.failed is None
    disk.capacity_bytes += 1 << 20
    box.store.check_space()
    box.pump()
    assert changes == [False, True]
    box.append(entries(2, 0, 10))
    box.idle()
    assert (2, 9) in box.acknowledged
    for key, entry in box.acknowledged.items():
        assert box.read(*key) == [entry]


def test_an_add_that_finds_no_space_leaves_pending_records_for_the_next_add() -> None:
    """Without the key, the ledger would refuse its writer after a start."""
    box = opened()
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    use_up_the_reserve(box)
    with pytest.raises(DiskFullError):
        box.append(entries(9, 1000, 20, 200), reserve=True)
    disk.capacity_bytes += 1 << 20
    box.store.check_space()
    box.pump()
    box.append(entries(1, 0, 1))
    box.pump()
    assert (1, 0) in box.acknowledged
    disk.crash()
    box.open()
    assert box.store.ledgers[9].master_key == key_of(9)


def test_a_refused_batch_is_unchanged() -> None:
    """Otherwise the pending records would be logged again with the next use of the batch."""
    box = opened()
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    use_up_the_reserve(box)
    box.store.create_ledger(9, key_of(9))
    batch = make_batch(entries(9, 0, 20, 200))
    done: list[object] = []
    for _ in range(2):
        with pytest.raises(DiskFullError):
            box.store.append(batch, lambda _, error: done.append(error), reserve=True)
        assert (batch.records, batch.run_count, done) == ((), 1, [])
    disk.capacity_bytes += 1 << 20
    box.store.check_space()
    box.pump()
    box.store.append(batch, lambda _, error: done.append(error))
    box.pump()
    assert done == [None]
    current = box.store._appender.current
    assert current is not None
    assert [one.ledger_id for one in current.records] == [9]


def test_a_prepared_file_has_no_data_of_an_earlier_file_with_its_name() -> None:
    """A start would take what is left of its groups for a part of the new segment."""
    disk = sim_disk()
    disk.make_directory("log")
    file = disk.create(segment_name(3))
    file.write([bytes(range(256)) * 64], 0)
    file.sync()
    file.close()
    segment = prepare(disk, 3, 8192)
    assert segment.file is not None
    assert (segment.number, segment.capacity) == (3, 8192)
    assert bytes(segment.file.read(0, 1 << 20)) == bytes(8192)
    synced = disk.durable_entries[segment_name(3)]
    assert not isinstance(synced, bool)
    assert bytes(synced.durable.read(0, 1 << 20)) == bytes(8192)


@pytest.mark.parametrize("new", [False, True])
def test_a_file_that_could_not_be_prepared_is_empty_or_removed(new: bool) -> None:
    """An existing file stays: without it, a later file would suggest a lost segment."""
    disk = sim_disk()
    disk.make_directory("log")
    if not new:
        disk.create(segment_name(3)).write([b"old"], 0)
    disk.fail_sync_once(segment_name(3))
    with pytest.raises(OSError, match="simulated"):
        prepare(disk, 3, 8192)
    assert disk.exists(segment_name(3)) is not new
    assert new or disk.open(segment_name(3)).size() == 0


def test_a_file_that_cannot_be_emptied_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems need space to cut a file. Each attempt of a start left it open."""
    disk = sim_disk()
    disk.make_directory("log")
    disk.create(segment_name(3)).close()
    closed: list[SimFile] = []
    close = SimFile.close

    def full(file: SimFile, size: int) -> None:
        raise OSError(errno.ENOSPC, "simulated")

    def closing(file: SimFile) -> None:
        closed.append(file)
        close(file)

    monkeypatch.setattr(SimFile, "truncate", full)
    monkeypatch.setattr(SimFile, "close", closing)
    with pytest.raises(OSError, match="simulated"):
        prepare(disk, 3, 8192)
    assert len(closed) == 1
    assert disk.exists(segment_name(3))


def test_records_that_found_no_space_are_retried() -> None:
    """Without the record of a deletion, no segment may be removed."""
    box = opened()
    fill_segments(box, 1, 2)
    box.idle()
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    use_up_the_reserve(box)
    last = 1000
    while not box.errors:
        last += 1
        box.fence(last)
        box.pump()
    assert isinstance(box.errors[-1], DiskFullError)
    assert box.store.ledgers[last].fenced
    box.fence(last)
    assert len(box.errors) == 2
    box.drop([1])
    box.pump()
    assert box.store.stats().segments_removed == 0
    disk.capacity_bytes += 1 << 20
    for _ in range(3):
        box.store.check_space()
        box.idle()
    assert box.store.stats().segments_removed > 0
    box.fence(last)
    box.idle()
    assert last in box.fenced
    disk.crash()
    box.open()
    assert all(box.store.ledgers[ledger_id].fenced for ledger_id in box.fenced)
    assert 1 not in box.store.ledgers


def use_up_the_reserve(box: StoreOnDisk) -> tuple[int, str]:
    """Return how many entries found space, and the error of the next one."""
    number = 0
    while True:
        try:
            box.append(entries(3, number, 10, 200), reserve=True)
        except DiskFullError as error:
            return number, str(error)
        box.pump()
        number += 10


def test_recovery_adds_on_a_full_disk_leave_only_the_share_of_state_records() -> None:
    """They use the last segment up to this share, not only the segments before it."""
    box = opened()
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    use_up_the_reserve(box)
    last = box.store.usage()[-1]
    share, batch = SMALL.reserve_bytes // STATE_SHARE, 2 * BLOCK_BYTES
    assert share <= last.file_bytes - last.end_bytes < share + batch


def test_a_reserve_is_never_larger_than_a_segment() -> None:
    """Neither is the share of it that recovery adds leave to state records."""
    taken = []
    for reserve_bytes in (SMALL.segment_bytes, 100 * SMALL.segment_bytes):
        box = opened(replace(SMALL, reserve_bytes=reserve_bytes))
        disk = disk_of(box)
        disk.capacity_bytes -= disk.free_bytes()
        while box.store.writable:
            box.append(entries(1, 10 * len(box.acknowledged), 10, 200))
            box.pump()
        taken.append(use_up_the_reserve(box)[0])
    assert taken[0] == taken[1] > 0


def test_too_little_free_space_makes_the_store_read_only() -> None:
    box = opened(replace(SMALL, min_free_bytes=100_000, writable_free_bytes=100_000))
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes() - 99_999
    assert box.store.writable
    box.store.check_space()
    box.pump()
    assert not box.store.writable
    with pytest.raises(DiskFullError, match="99999 bytes are free, less than 100000"):
        box.append(entries(1, 0, 1))
    disk.capacity_bytes += 1
    box.store.check_space()
    box.pump()
    assert box.store.writable


@pytest.mark.parametrize("more", [0, 1, 30_000, SMALL.segment_bytes - 1, SMALL.segment_bytes])
def test_a_prepared_segment_leaves_the_least_free_space(more: int) -> None:
    least = 100_000
    box = opened(replace(SMALL, min_free_bytes=least, writable_free_bytes=least))
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes() - least - more
    while box.store.writable:
        box.append(entries(1, 10 * len(box.acknowledged), 10, 200))
        box.pump()
    assert disk.free_bytes() >= least


def test_a_start_on_a_full_disk_uses_a_preallocated_segment() -> None:
    box = opened()
    box.append(entries(1, 0, 5))
    box.pump()
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    disk.kill()
    box.open()
    assert not box.store.writable or box.store.usage()[-1].file_bytes == SMALL.segment_bytes
    box.fence(1)
    box.pump()
    assert box.fenced == {1}
    assert box.read(1, 0, 5) == [box.written[1, i] for i in range(5)]


def test_a_start_without_any_space_is_refused_with_the_reason() -> None:
    disk = sim_disk(capacity_bytes=1000)
    box = StoreOnDisk(disk)
    with pytest.raises(DiskFullError, match="no space for a new log segment of 20,480 bytes"):
        box.open()
    disk.capacity_bytes = 40_000
    box.open()
    assert not box.store.writable
    disk.capacity_bytes = 1 << 20
    box.store.check_space()
    box.pump()
    assert box.store.writable


def test_an_entry_larger_than_a_segment_is_refused() -> None:
    box = opened()
    with pytest.raises(UsageError, match="Raise segment_bytes"):
        box.append([(1, 0, bytes(70_000))])
    box.append([(1, 0, b"small")])
    box.pump()
    assert box.read(1, 0) == [box.written[1, 0]]


def test_small_segments_take_entries_however_many_of_them_there_are() -> None:
    """A header lists the ranges of the segments, and adjacent segments are one range."""
    box = opened(replace(SMALL, segment_bytes=16 * 1024, reserve_bytes=16 * 1024))
    while box.store.stats().sealed_segments < 520:
        box.append(entries(1, len(box.written), 1))
        box.pump()
    box.fence(1)
    box.pump()
    assert box.fenced == {1}
    assert box.acknowledged == box.written
    box.open()
    assert box.store.ledgers[1].fenced
    for entry in (0, len(box.written) - 1):
        assert box.read(1, entry) == [box.written[1, entry]]


@pytest.mark.parametrize(("runs", "most", "sealed"), [(1, 10, 4), (4, 12, 16), (5, 12, 24)])
def test_a_segment_is_rolled_at_its_maximum_number_of_runs(
    runs: int, most: int, sealed: int
) -> None:
    """Each batch has this number of runs, and goes to one segment as a whole."""
    box = opened(replace(SMALL, max_runs_per_segment=most))
    for number in range(50):
        box.append([one for ledger in range(runs) for one in entries(ledger, number, 1, 1)])
        box.pump()
    assert box.store.stats().sealed_segments == sealed


def test_batches_of_unknown_ledgers_leave_nothing_behind() -> None:
    box = opened()
    box.store.create_ledger(1, key_of(1))
    batch = make_batch([*entries(1, 0, 3), *entries(2, 0, 3)])
    answers: list[object] = []
    with pytest.raises(UsageError, match="ledger 2 is not in this bookie's store"):
        box.store.append(batch, lambda batch, error: answers.append(error))
    with pytest.raises(NoEntry):
        box.read(1, 0)
    box.append(entries(1, 0, 1))
    box.idle()
    assert answers == []
    assert box.read(1, 0, 5) == [box.written[1, 0]]
    disk_of(box).crash()
    box.open()
    assert box.read(1, 0, 5) == [box.written[1, 0]]


def test_usage_reports_the_live_ledgers_and_bytes_of_each_segment() -> None:
    box = opened()
    box.append([*entries(1, 0, 10), *entries(2, 0, 10)])
    box.pump()
    fill_segments(box, 3, 1)
    usage = box.store.usage()[0]
    assert usage.state == "sealed"
    assert usage.live_ledgers == 3
    box.drop([1])
    box.idle()
    smaller = box.store.usage()[0]
    assert smaller.live_ledgers == 2
    assert 0 < smaller.live_bytes < usage.live_bytes


# -- failure and life -------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_group_fails_all_queued_and_later_appends(operation: str) -> None:
    box = opened()
    failures: list[StorageError] = []
    box.store.on_failure = failures.append
    box.append(entries(1, 0, 2))
    box.pump()
    if operation == "write":
        disk_of(box).fail_write_once()
    else:
        disk_of(box).fail_sync_once()
    box.append(entries(1, 2, 2))
    box.log.step()
    box.append(entries(1, 4, 2))
    box.fence(1)
    passed: list[object] = []
    box.store.barrier(passed.append)
    box.pump()
    assert len(failures) == 1
    assert "failed" in str(failures[0])
    assert box.store.failed is failures[0]
    assert not box.store.writable
    assert box.errors == [failures[0]] * 3
    assert passed == [failures[0]]
    box.append(entries(1, 6, 2))
    box.fence(2)
    box.store.barrier(passed.append)
    assert len(box.errors) == 5
    assert passed == [failures[0]] * 2
    assert set(box.acknowledged) == {(1, 0), (1, 1)}
    assert box.read(1, 0, 2) == [box.written[1, 0], box.written[1, 1]]
    box.idle()
    box.close()
    report = box.open()
    assert not report.clean
    assert box.read(1, 0, 2) == [box.written[1, 0], box.written[1, 1]]


@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_that_raises_does_not_keep_others_from_running(fails: bool) -> None:
    """Later batches and barriers once waited for ever, and a failed disk was not reported."""
    box = opened()
    failures: list[StorageError] = []
    box.store.on_failure = failures.append

    def bad(*_: object) -> None:
        raise RuntimeError("a callback that raises")

    answered: list[StorageError | None] = []
    box.append(entries(1, 0, 1))
    box.store.append(make_batch(entries(1, 1, 1)), bad)
    box.append(entries(1, 2, 1))
    box.store.barrier(bad)
    box.store.barrier(answered.append)
    if fails:
        disk_of(box).fail_sync_once()
    box.log.step()
    with pytest.raises(RuntimeError, match="a callback that raises"):
        box.log.deliver()
    assert len(box.acknowledged_order) == 2
    assert len(answered) == 1
    assert [error is not None for error in answered] == [fails]
    assert len(failures) == fails
    assert box.store.queued_bytes == 0
    if not fails:
        box.append(entries(1, 3, 1))
        box.pump()
        box.close()
        box.open()
        assert box.report.clean
        assert len(box.read(1, 0, 10)) == 4


def test_a_disk_failure_during_sealing_fails_the_store() -> None:
    box = opened()
    failures: list[StorageError] = []
    box.store.on_failure = failures.append
    while box.store.stats().segments == 2 or box.store.stats().segments_to_seal == 0:
        box.append(entries(1, len(box.written), 10, 200))
        while box.log.run():
            pass
        if box.store.stats().segments_to_seal:
            break
        box.maintenance.run()
    disk_of(box).fail_sync_once(segment_name(box.store.usage()[-2].number))
    box.pump()
    assert len(failures) == 1
    assert "the disk of" in str(failures[0])
    for key, entry in box.acknowledged.items():
        assert box.read(*key) == [entry]


def test_an_idle_log_marks_its_end_once() -> None:
    box = opened()
    box.append(entries(1, 0, 1))
    box.pump()
    groups = box.store.stats().groups
    while box.timers.fire() and box.store.stats().groups == groups:
        box.pump()
    assert box.store.stats().groups == groups + 1
    box.idle()
    box.idle()
    assert box.store.stats().groups == groups + 1
    assert box.timers.fire() == 0


def test_a_busy_log_does_not_mark_its_end() -> None:
    box = opened()
    box.append(entries(1, 0, 1))
    box.pump()
    groups = box.store.stats().groups
    for number in range(1, 5):
        box.append(entries(1, number, 1))
        box.pump()
        assert box.timers.fire() == 1
        box.pump()
    assert box.store.stats().groups == groups + 4


def test_a_clean_stop_is_recognised_at_the_next_start() -> None:
    box = opened()
    box.append(entries(1, 0, 50))
    box.fence(2)
    box.close()
    assert box.acknowledged == box.written
    disk_of(box).crash()
    report = box.open()
    assert report.clean
    assert report.groups_scanned == 0
    assert report.rewritten_group is None
    assert box.store.ledgers[2].fenced
    disk_of(box).kill()
    assert not box.open().clean


def test_a_stop_completes_patient_batches_even_without_room_for_the_end_mark() -> None:
    """On return, everything that was appended is durable or has failed."""
    box = opened()
    box.append(entries(1, 0, 1))
    box.append(entries(1, 1, 1), patient=True)
    box.store.write_explicit_lac(1, bytes(16), lambda error: told.append(error))
    told: list[object] = []
    box.pump()
    assert (1, 1) not in box.acknowledged
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object, **how: object) -> None:
            raise DiskFullError("the log of the bookie is full")

        patch.setattr(box.store._appender, "admit", full)
        box.close()
    assert box.acknowledged == box.written
    assert told == [None]
    box.open()
    assert box.read(1, 0, 9) == list(box.written.values())


def test_a_closed_store_refuses_appends_and_fences() -> None:
    box = opened()
    box.close()
    with pytest.raises(StorageError, match="closed"):
        box.append(entries(1, 0, 1))
    errors: list[object] = []
    box.store.ledgers[1].fenced = False
    box.store.fence(1, errors.append)
    assert len(errors) == 1
    assert errors[0] is not None
    box.close()


def test_a_directory_that_was_not_formatted_is_refused() -> None:
    box = opened()
    disk = sim_disk(9)
    box.store._disk = disk
    with pytest.raises(StorageError, match="is not a data directory of a Quire bookie"):
        box.store.recover()


def test_the_repr_of_a_run_names_its_ledger_and_entries() -> None:
    run_ = Run(4, 7, 3, 0, 100)
    assert (run_.last, run_.size_bytes) == (9, 300)
    assert repr(run_) == "Run(ledger 4, 7..9, 3 entries)"
    assert make_entry(1, 2, b"x")[:8] == (1).to_bytes(8, "big")


@pytest.mark.parametrize(
    "bad",
    [
        {"segment_bytes": 4096},
        {"reserve_bytes": 0},
        {"max_group_bytes": 0},
        {"max_open_files": 0},
        {"seal_idle_s": 0.0},
        {"footer_cache_bytes": -1},
    ],
)
def test_inconsistent_limits_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        StorageConfig(**bad)
