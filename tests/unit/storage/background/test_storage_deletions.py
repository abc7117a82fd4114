"""Ledgers are dropped with their segments, and what others need of these stays.

They stay dropped, whatever happens to the segment that logged it. The record is needed as long as
an older segment mentions the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from quire.codec.log.state_records import Deleted, RecordKind, StateRecord
from quire.errors import DiskFullError, StorageError, UsageError
from quire.storage.background.sealer import mentions_of
from quire.storage.read.read_exceptions import NoLedger
from quire.storage.recovery.scan import scan_groups
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import TOMBSTONE_TTL_MS, Catalogue
from quire.storage.segment.segment import LogSegment, SegmentState, segment_name
from quire_simulator.machine.disk import PowerLossError, SimDisk
from tests.support.storage.storage import (
    SMALL,
    StoreOnDisk,
    disk_of,
    entries,
    fill_segments,
    key_of,
    make_batch,
    opened,
    run,
    sim_disk,
)

DEAD = 7
"""The ledger that is dropped."""
KEPT = 1
FILLER = 5


def current(box: StoreOnDisk) -> int:
    return max(one.number for one in box.store.usage() if one.state == "current")


def fill(box: StoreOnDisk, ledger_id: int) -> int:
    """The rest of the current segment, which is sealed then: its number."""
    number = current(box)
    while current(box) == number:
        first = box.store.last_entry_id(ledger_id) + 1 if ledger_id in box.store.ledgers else 0
        box.append([(ledger_id, first + n, bytes(300)) for n in range(10)])
        box.pump()
    return number


def speaks_in_runs_only(box: StoreOnDisk) -> int:
    """Begin a segment that has entries of the ledger, in several groups, and no record of it."""
    fill(box, DEAD)
    number = current(box)
    for entry in range(1_000, 1_006):
        box.append([(DEAD, entry, bytes(300)), (KEPT, entry, bytes(300))])
        box.pump()
    box.append([(KEPT, 1_006, bytes(300))])  # the group that a start writes once more
    box.pump()
    return number


def lose_a_group(disk: SimDisk, directory_id: bytes, number: int) -> None:
    """Lose a group that is neither the first nor the last."""
    file = disk.open(segment_name(number))
    groups = scan_groups(file, directory_id, number, 4096).groups
    file.close()
    assert len(groups) > 3
    disk.flip_bit(segment_name(number), groups[2].header.offset + 100)


def forget_why(box: StoreOnDisk) -> None:
    """Remove everything live in the segment that logs the drop, and so the segment."""
    logged_in = fill(box, 8)
    fill(box, 9)
    box.drop([8, FILLER])
    box.idle()
    assert logged_in not in [one.number for one in box.store.usage()]


def test_runs_in_a_segment_with_lost_groups_do_not_restore_a_deleted_ledger() -> None:
    box = StoreOnDisk(sim_disk())
    box.open()
    number = speaks_in_runs_only(box)
    directory_id = box.store._directory_id
    disk_of(box).kill()
    lose_a_group(disk_of(box), directory_id, number)
    assert box.open().negatives_unknown
    assert box.store._catalogue.segments[number].state is SegmentState.CLOSED
    assert DEAD in box.store.ledgers
    fill(box, FILLER)
    box.drop([DEAD])
    forget_why(box)
    box.close()
    box.open()
    assert DEAD not in box.store.ledgers
    box.close()


def test_a_lost_group_that_is_readable_again_does_not_restore_a_deleted_ledger() -> None:
    """One start cannot read the group, and the next one can."""
    box = StoreOnDisk(sim_disk())
    box.open()
    number = speaks_in_runs_only(box)
    disk_of(box).kill()
    disk = disk_of(box)
    before = bytes(disk._file(segment_name(number)).data.read(0, 1 << 20))
    for group in range(6):
        disk.flip_bit(segment_name(number), group * 4096 + 4096 + 100)
    assert box.open().negatives_unknown
    fill(box, FILLER)
    box.drop([DEAD])
    forget_why(box)
    box.close()
    file = disk.open(segment_name(number))
    file.write([before], 0)
    file.sync()
    file.close()
    box.open()
    assert DEAD not in box.store.ledgers
    box.close()


def test_a_segment_whose_index_is_damaged_does_not_restore_a_deleted_ledger() -> None:
    """The groups have entries of the ledger that the index never named."""
    box = StoreOnDisk(sim_disk())
    box.open()
    number = speaks_in_runs_only(box)
    entry = 2_000
    while current(box) == number:
        box.append([(FILLER, entry + n, bytes(300)) for n in range(10)])
        box.log.run()  # and nothing of the maintenance, which would seal it
        entry += 10
    box.drop([DEAD])
    logged_in = current(box)
    for entry in range(3):
        box.append([(8, entry, bytes(300))])
        box.log.run()
    disk_of(box).kill()  # before it was sealed
    box.open()
    box.idle()
    assert box.store._catalogue.segments[number].state is SegmentState.SEALED
    box.drop([8, FILLER])
    box.idle()
    assert logged_in not in [one.number for one in box.store.usage()]
    box.close()
    disk = disk_of(box)
    size = disk._file(segment_name(number)).data.size
    disk.flip_bit(segment_name(number), size - 20)
    box.open()
    assert DEAD not in box.store.ledgers
    box.close()


def test_a_footer_mentions_dropped_ledgers_without_deleting_them() -> None:
    """The deletion itself may not be durable, and the ledger may have been created again."""
    box = opened()
    fill_segments(box, 1, 1)
    box.append([(DEAD, n, bytes(300)) for n in range(5)])
    box.fence(DEAD)
    box.pump()
    catalogue = box.store._catalogue
    for number, segment in catalogue.segments.items():
        segment.forgotten = {DEAD, 99}
        said = [one for one in mentions_of(segment) if one.ledger_id not in (KEPT, 8)]
        assert {one.ledger_id for one in said} == {99} | (
            {DEAD} - {one.ledger_id for one in segment.records}
        )
        again = [StateRecord(RecordKind.DELETED, one, said[0].value) for one in (DEAD, KEPT)]
        for record in [*said, *again]:
            assert record.kind is RecordKind.DELETED
            catalogue.apply_record(record, number)
        segment.forgotten = set()
    assert {KEPT, DEAD} <= {*box.store.ledger_ids()}
    assert box.store.ledgers[DEAD].fenced
    assert not box.store.is_refused(99)
    assert not box.store.is_refused(DEAD)
    for ledger_id in KEPT, DEAD:
        last = max(entry for ledger, entry in box.written if ledger == ledger_id)
        assert run(box.store.entry_ranges(ledger_id)) == [(0, last)]
    assert box.read(KEPT, 0) == [box.written[KEPT, 0]]


def test_dropped_ledgers_and_their_segments_are_removed() -> None:
    box = opened()
    fill_segments(box, 1, 3)
    box.append(entries(2, 0, 5))
    box.idle()
    before = box.store.stats()
    box.drop([1, 77])
    with pytest.raises(NoLedger):
        box.read(1, 0)
    assert box.store.ledger_ids() == [2]
    box.idle()
    after = box.store.stats()
    assert after.segments < before.segments
    assert after.segments_removed >= 3
    assert after.live_bytes < before.live_bytes
    names = box.disk.list("log")
    box.close()
    assert box.disk.list("log") != names
    box.open()
    assert box.report.problems == ()
    assert box.store.ledger_ids() == [2]
    assert box.read(2, 0, 5) == [box.written[2, i] for i in range(5)]


def test_state_records_survive_the_segment_that_held_them() -> None:
    box = opened()
    box.store.create_ledger(3, key_of(3))
    box.fence(4)
    packet = (5).to_bytes(8, "big") * 2
    box.store.create_ledger(5, key_of(5))
    box.store.write_explicit_lac(5, packet, lambda error: None)
    fill_segments(box, 1, 1)
    first = box.store.usage()[0].number
    box.append(entries(3, 0, 1))
    box.drop([1])
    box.idle()
    assert box.store.usage()[0].number > first
    disk_of(box).crash()
    box.open()
    assert box.store.ledgers[3].master_key == key_of(3)
    assert box.store.ledgers[4].fenced
    assert box.store.ledgers[4].master_key == key_of(4)
    assert box.store.ledgers[5].explicit_lac == packet
    assert 1 not in box.store.ledgers


def test_a_ledger_fenced_and_deleted_stays_refused_for_a_week() -> None:
    box = opened()
    box.append([*entries(1, 0, 2), *entries(2, 0, 2)])
    box.fence(1)
    box.idle()
    box.drop([1, 2])
    box.idle()
    for restart in range(4):
        assert box.store.is_refused(1), restart
        assert not box.store.is_refused(2), restart
        with pytest.raises(UsageError, match="fenced and deleted"):
            box.store.create_ledger(1, key_of(1))
        box.idle()
        box.close()
        box.open()
        box.idle()
    box.clock.ms += TOMBSTONE_TTL_MS - 1
    assert box.store.is_refused(1)
    box.clock.ms += 1
    assert not box.store.is_refused(1)
    assert box.store.stats().tombstones == 0
    box.append(entries(1, 0, 1))
    box.idle()
    assert box.read(1, 0) == [box.written[1, 0]]


def test_expired_refusals_are_forgotten() -> None:
    """Each once used memory until its ledger was requested, and the metric counted it."""
    box = opened()
    for ledger_id in (1, 2, 3):
        box.append(entries(ledger_id, 0, 1))
        box.fence(ledger_id)
        box.idle()
        box.drop([ledger_id])
        box.idle()
        box.clock.ms += 1_000
    box.store.refuse_ledger(99)
    box.idle()
    for restart in (False, True):
        if restart:
            disk_of(box).crash()
            box.open()
        box.store.check_space()
        assert box.store.stats().tombstones == 4
    box.clock.ms += TOMBSTONE_TTL_MS - 2_000
    box.store.check_space()
    assert box.store.stats().tombstones == 2
    assert not box.store.is_refused(2)
    assert box.store.is_refused(3)
    box.clock.ms += 2_000
    box.store.check_space()
    assert box.store.stats().tombstones == 0


def test_a_clock_that_was_ahead_for_a_moment_keeps_no_later_refusals() -> None:
    """The refusal from that moment once kept all later ones in memory until its own end."""
    box = opened()
    year_ms = 365 * 24 * 3600 * 1000
    box.clock.ms += year_ms
    box.store.refuse_ledger(1)
    box.clock.ms -= year_ms
    for ledger_id in range(2, 5):
        box.store.refuse_ledger(ledger_id)
    box.idle()
    box.clock.ms += TOMBSTONE_TTL_MS - 1
    box.store.check_space()
    assert box.store.stats().tombstones == 4
    box.clock.ms += 1
    box.store.check_space()
    assert [*box.store._catalogue.tombstones] == [1]
    assert box.store.is_refused(1)


def test_a_ledger_recreated_for_copies_is_fenced_after_a_start() -> None:
    box = opened()
    box.append(entries(1, 0, 2))
    box.fence(1)
    box.idle()
    box.drop([1])
    box.idle()
    assert box.store.create_ledger(1, key_of(1), again=True).fenced
    box.append(entries(1, 5, 1), reserve=True)
    box.pump()
    for _ in range(2):
        disk_of(box).crash()
        box.open()
        assert box.store.ledgers[1].fenced
        assert box.read(1, 5) == [box.written[1, 5]]


def test_a_deleted_ledger_does_not_come_back_from_an_older_segment() -> None:
    """The record of the deletion is in a segment that is removed before those that it concerns."""
    box = opened()
    box.append(entries(1, 0, 3))
    box.append(entries(2, 0, 3))
    fill_segments(box, 3, 1)
    box.drop([1])
    fill_segments(box, 3, 1)
    box.drop([3])
    box.idle()
    assert box.store.usage()[0].live_ledgers == 1
    for _ in range(3):
        box.close()
        box.open()
        box.idle()
        assert box.store.ledger_ids() == [2]
    box.append(entries(1, 7, 1))
    box.idle()
    for _ in range(2):
        box.close()
        box.open()
        box.idle()
        assert run(box.store.entry_ranges(1)) == [(7, 7)]


def test_a_relogged_deletion_does_not_remove_later_entries() -> None:
    box = opened()
    box.append(entries(1, 0, 3))
    box.append(entries(2, 0, 3))
    fill_segments(box, 3, 1)
    box.drop([1])
    fill_segments(box, 4, 1)
    box.append(entries(1, 7, 1))
    box.fence(1)
    fill_segments(box, 5, 1)
    # The segment with the deletion dies; that with the new entry is older than the copy.
    before = box.store.stats().segments_removed
    box.drop([3, 4])
    box.idle()
    assert box.store.stats().segments_removed > before
    for _ in range(2):
        box.close()
        box.open()
        box.idle()
        assert run(box.store.entry_ranges(1)) == [(7, 7)]
        assert box.store.ledgers[1].fenced


FORMER_LAC, NEW_LAC = ((1).to_bytes(8, "big") + lac.to_bytes(8, "big") for lac in (900, 5))
"""Packets of explicit LACs of ledger 1."""


def live_twice(box: StoreOnDisk, *, cached: bool, fenced: bool) -> None:
    """Fence and delete ledger 1, and create it again. The segment with the deletion is removed.

    The older segment with the fence and the explicit LAC stays, because of ledger 2. With `cached`,
    an index cache covers it. With `fenced`, the new ledger has a fence and an explicit LAC too.
    """
    box.append(entries(1, 0, 3))
    box.store.write_explicit_lac(1, FORMER_LAC, lambda error: None)
    box.fence(1)
    fill_segments(box, 2, 1)
    if cached:
        box.close()
        box.open()
        box.idle()
    fill_segments(box, 3, 1)
    box.drop([1])
    fill_segments(box, 4, 1)
    box.clock.ms += TOMBSTONE_TTL_MS
    box.append(entries(1, 7, 1))
    if fenced:
        box.store.write_explicit_lac(1, NEW_LAC, lambda error: None)
        box.fence(1)
    fill_segments(box, 5, 1)
    before = box.store.stats().segments_removed
    box.drop([3, 4])
    box.idle()
    assert box.store.stats().segments_removed > before


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_a_recreated_ledger_has_no_fence_or_lac_from_before_its_deletion(
    cached: bool, fenced: bool
) -> None:
    """An old fence would end its writer, and readers would trust an old LAC."""
    box = opened()
    live_twice(box, cached=cached, fenced=fenced)
    for restart in range(2):
        disk_of(box).crash()
        assert box.open().index_cache.startswith("used") is cached, restart
        box.idle()
        info = box.store.ledgers[1]
        assert run(box.store.entry_ranges(1)) == [(7, 7)]
        assert (info.fenced, info.fence_queued, info.fence_durable) == (fenced, fenced, fenced)
        assert info.explicit_lac == (NEW_LAC if fenced else None)
        assert info.last_add_confirmed < 900


def test_a_relogged_deletion_does_not_remove_a_ledger_recreated_in_its_first_segment() -> None:
    """A crash may leave that segment beside the new record. The ledger is in no other segment."""
    catalogue = Catalogue()

    def log(kind: RecordKind, value: bytes, number: int) -> None:
        catalogue.apply_record(StateRecord(kind, 1, value), number)

    log(RecordKind.MASTER_KEY, b"former", 3)
    log(RecordKind.DELETED, Deleted(0, False).encode(), 5)
    log(RecordKind.MASTER_KEY, b"new", 5)
    log(RecordKind.FENCE, b"", 5)
    log(RecordKind.EXPLICIT_LAC, NEW_LAC, 5)
    info = catalogue.ledgers[1]
    segment = catalogue.segments[5] = LogSegment(5, None, 0)
    [run_of_two] = make_batch(entries(1, 7, 2)).runs
    run_of_two.batch = LogBatch((), ())
    catalogue.index(run_of_two, segment, info)
    log(RecordKind.DELETED, Deleted(0, False, 5).encode(), 9)
    assert catalogue.ledgers[1] is info
    assert (info.master_key, info.fenced, info.explicit_lac) == (b"new", True, NEW_LAC)
    assert (info.last_entry_id, len(info.open_parts), segment.live_ledgers) == (8, 1, 1)
    log(RecordKind.DELETED, Deleted(0, False, 6).encode(), 9)
    assert 1 not in catalogue.ledgers
    assert segment.live_ledgers == 0


def test_a_refusal_outlives_the_segments_that_mention_the_ledger() -> None:
    """The refusal lasts exactly a week, whatever segments are removed."""
    assert timedelta(milliseconds=TOMBSTONE_TTL_MS) == timedelta(days=7)
    box = opened()
    box.append(entries(1, 0, 2))
    box.fence(1)
    box.append(entries(2, 0, 1))
    box.pump()
    box.drop([1, 2])
    fill_segments(box, 3, 2)
    before = box.store.stats().segments_removed
    box.drop([3])
    fill_segments(box, 4, 1)
    assert box.store.stats().segments_removed > before
    for _ in range(2):
        disk_of(box).crash()
        box.open()
        assert box.store.is_refused(1)
        assert not box.store.is_refused(2)
        box.idle()
    box.clock.ms += TOMBSTONE_TTL_MS
    assert not box.store.is_refused(1)
    box.drop([4])
    fill_segments(box, 5, 1)
    box.idle()
    disk_of(box).crash()
    box.open()
    assert box.store.stats().tombstones == 0


def test_the_last_of_several_deletions_decides_how_long_a_ledger_is_refused() -> None:
    """The record of the first deletion may come later in the log, because it was logged again."""
    box = opened()
    box.append(entries(1, 0, 2))
    fill_segments(box, 2, 1)
    box.fence(1)
    box.idle()
    box.drop([1])
    fill_segments(box, 3, 1)
    box.clock.ms += TOMBSTONE_TTL_MS // 2
    box.store.create_ledger(1, key_of(1), again=True)
    box.append(entries(1, 5, 1), reserve=True)
    box.idle()
    box.drop([1])
    box.idle()
    last = box.clock.ms
    fill_segments(box, 4, 1)
    removed = box.store.stats().segments_removed
    box.drop([2, 3])
    box.idle()
    assert box.store.stats().segments_removed > removed
    for _ in range(2):
        disk_of(box).crash()
        box.open()
        box.idle()
        assert box.store._catalogue.tombstones[1] == last + TOMBSTONE_TTL_MS


def test_no_segment_is_removed_before_pending_deletions_are_logged() -> None:
    """A crash would restore the ledger without its fence, which is in one of the segments."""
    box = opened()
    fill_segments(box, 1, 2)
    box.idle()
    collector = box.store._maintenance.collector
    real = collector._log_records

    def log_records(
        records: Sequence[StateRecord], done: Callable[[StorageError | None], None]
    ) -> None:
        if any(one.kind is RecordKind.DELETED for one in records):
            done(DiskFullError("the log of the bookie is full"))
        else:
            real(records, done)

    collector._log_records = log_records
    box.drop([1])
    box.store.check_space()
    box.idle()
    assert not box.store.deletions_logged
    assert box.store.stats().segments_removed == 0
    collector._log_records = real
    box.store.check_space()
    box.idle()
    assert box.store.deletions_logged
    assert box.store.stats().segments_removed > 0


def test_a_started_removal_waits_for_pending_deletions_to_be_logged() -> None:
    """The removed segment had the fence of a ledger that a crash then brought back."""
    box = opened()
    box.fence(DEAD)
    fill(box, FILLER)
    box.append([*entries(DEAD, 0, 2), *entries(KEPT, 0, 2)])
    box.idle()
    collector = box.store._maintenance.collector
    real = collector._log_records

    def log_records(
        records: Sequence[StateRecord], done: Callable[[StorageError | None], None]
    ) -> None:
        if any(one.kind is RecordKind.DELETED for one in records):
            done(DiskFullError("the log of the bookie is full"))
        else:
            real(records, done)

    box.drop([FILLER])
    box.log.run()  # The removal has begun: a job reads the state records of the segment.
    collector._log_records = log_records
    removed = box.store.stats().segments_removed
    box.store.drop_ledgers([DEAD])
    box.pump()
    assert not box.store.deletions_logged
    assert box.store.stats().segments_removed == removed
    disk_of(box).crash()
    box.open()
    assert box.store.ledgers[DEAD].fenced
    box.store.drop_ledgers([DEAD, FILLER])
    box.idle()
    assert box.store.deletions_logged
    assert box.store.stats().segments_removed > 0


def test_a_deletion_relogged_twice_does_not_remove_later_entries() -> None:
    """The deletion applies to entries before its first record, not before its second one."""
    box = opened()
    box.append(entries(1, 0, 3))
    box.append(entries(2, 0, 3))
    fill_segments(box, 3, 1)
    box.drop([1])
    fill_segments(box, 4, 1)
    box.append(entries(1, 7, 1))
    fill_segments(box, 5, 1)
    for dropped, filler in (([3, 4], 6), ([5, 6], 7), ([7], 8)):
        removed = box.store.stats().segments_removed
        box.drop(dropped)
        box.idle()
        assert box.store.stats().segments_removed > removed
        fill_segments(box, filler, 1)
    for _ in range(2):
        disk_of(box).crash()
        box.open()
        assert run(box.store.entry_ranges(1)) == [(7, 7)]


def test_a_removal_whose_records_span_segments_loses_none_in_a_crash() -> None:
    """The state records need several batches, with a new segment between them."""
    config = replace(SMALL, segment_bytes=600_000, reserve_bytes=600_000)
    packet = bytes(4000)
    for operation in range(1, 40):
        box = opened(config)
        for ledger_id in range(100, 200):
            box.store.create_ledger(ledger_id, key_of(ledger_id))
            box.store.write_explicit_lac(ledger_id, packet, lambda error: None)
        fill_segments(box, 1, 1)
        entry_id = 0
        while box.store.usage()[-1].live_bytes < 240_000:
            box.append([(2, entry_id, bytes(5000))])
            entry_id += 1
            box.pump()
        disk = disk_of(box)
        disk.crash_after(operation, lambda: None)
        try:
            box.drop([1])
            box.idle()
        except PowerLossError:
            pass
        disk.kill()
        box.open()
        assert box.report.problems == ()
        for ledger_id in range(100, 200):
            info = box.store.ledgers[ledger_id]
            assert (info.master_key, info.explicit_lac) == (key_of(ledger_id), packet)


def test_a_removal_logged_in_a_torn_group_has_no_effect() -> None:
    box = opened()
    fill_segments(box, 1, 1)
    box.idle()
    written = dict(box.written)
    box.drop([1])
    box.maintenance.run()
    box.append([(2, 0, b"y" * 7000)])
    while box.maintenance.run():
        pass
    box.log.step()
    disk = disk_of(box)
    disk.kill()
    name = segment_name(box.store.usage()[-1].number)
    data = disk.open(name).read(0, 1 << 20)
    assert data is not None
    file = disk.open(name)
    file.write([bytes(512)], (data.index(b"y" * 3000) + 3000) // 512 * 512)
    file.sync()
    report = box.open()
    assert report.torn_group is not None
    assert report.problems == ()
    for key, entry in written.items():
        assert box.read(*key) == [entry]
    with pytest.raises(NoLedger):
        box.read(2, 0)


def test_all_deletions_that_found_no_space_are_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of several calls is retried, not only the last one."""
    box = opened()
    box.append([(DEAD, 0, b"x"), (KEPT, 0, b"y")])
    box.pump()
    collector = box.store._maintenance.collector
    with monkeypatch.context() as full:
        full.setattr(collector, "_log_records", lambda records, done: done(DiskFullError("full")))
        box.drop([DEAD])
        box.store.refuse_ledger(99)
        assert not box.store.deletions_logged
    disk = disk_of(box)
    collector.retry()
    box.pump()
    assert box.store.deletions_logged
    disk.kill()
    box.open()
    assert DEAD not in box.store.ledgers
    assert {DEAD, 99} & {*box.store._catalogue.tombstones} == {99}
    box.close()


@pytest.mark.parametrize("fenced", [False, True])
def test_a_ledger_that_is_created_again_before_its_deletion_found_space_has_nothing_of_before(
    monkeypatch: pytest.MonkeyPatch, *, fenced: bool
) -> None:
    """The deletion was forgotten, and the next start added the old entries to the new ledger."""
    box = opened()
    box.append([(DEAD, entry, b"old") for entry in range(5)])
    if fenced:
        box.fence(DEAD)
    box.pump()
    collector = box.store._maintenance.collector
    with monkeypatch.context() as full:
        full.setattr(collector, "_log_records", lambda records, done: done(DiskFullError("full")))
        box.drop([DEAD])
    box.store.create_ledger(DEAD, key_of(DEAD), again=True)
    box.append([(DEAD, 2, b"new")], reserve=True)
    box.pump()
    collector.retry()
    box.pump()
    assert box.store.deletions_logged
    for _ in range(2):
        disk_of(box).crash()
        box.open()
        assert run(box.store.entry_ranges(DEAD)) == [(2, 2)]
        assert box.store.ledgers[DEAD].fenced is fenced
    box.close()
