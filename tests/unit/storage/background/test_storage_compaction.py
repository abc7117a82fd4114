"""Compaction in the store: freed space, what stays, damage, and full disks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.errors import DamagedError, DiskFullError, StorageError
from quire.storage.background.collector import READ_AGAIN_S, Collector
from quire.storage.background.compactor import Compaction
from quire.storage.background.suspension import NOTE_NAME, Suspension, read_note
from quire.storage.inspect.space_report import look
from quire.storage.read.read_exceptions import NoEntry, NoLedger, WouldBlock
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.segment.catalogue import TOMBSTONE_TTL_MS
from quire.storage.segment.segment import LOG_DIRECTORY, SPARE_NAME, segment_name
from tests.support.storage.compaction import opened
from tests.support.storage.storage import (
    EAGER,
    SMALL,
    StoreOnDisk,
    check,
    compact,
    disk_of,
    entries,
    fill_segments,
    mixed,
    run,
    sealed,
)


def check_numbers(box: StoreOnDisk) -> None:
    """Check that incremental numbers equal those that a start counts."""
    kept = [(u.number, u.state, u.live_ledgers, u.live_bytes) for u in box.store.usage()]
    box.close()
    box.open()
    found = {u.number: (u.number, u.state, u.live_ledgers, u.live_bytes) for u in box.store.usage()}
    assert [found[one[0]] for one in kept if one[1] == "sealed"] == [
        one for one in kept if one[1] == "sealed"
    ]


def test_compaction_frees_the_space_of_deleted_ledgers_and_keeps_the_rest_readable() -> None:
    box = opened()
    mixed(box, segments=4)
    before = box.store.stats()
    box.drop([1, 2, 3])
    box.pump()
    assert box.store.stats().live_bytes < before.live_bytes
    assert box.store.stats().segment_bytes == before.segment_bytes  # all segments have live entries
    done = compact(box)
    assert done
    assert not any(one.error for one in done)
    after = box.store.stats()
    assert after.compactions == len(done)
    assert after.sealed_bytes < 0.7 * before.sealed_bytes
    check(box)
    for ledger_id in (1, 2, 3):
        with pytest.raises(NoLedger):
            box.read(ledger_id, 0)
    check_numbers(box)
    check(box)
    assert box.report.clean
    assert box.report.problems == ()


def test_a_compacted_segment_is_not_compacted_again_without_new_deletions() -> None:
    box = opened()
    mixed(box)
    box.drop([1, 2, 3])
    box.pump()
    assert compact(box)
    assert compact(box) == []


def test_compacted_segments_are_compacted_again_when_more_dies() -> None:
    box = opened()
    mixed(box, segments=4)
    for ledger_id in (1, 2, 3, 4, 5):
        box.drop([ledger_id])
        box.pump()
        compact(box)
        check(box)
    assert box.store.stats().segments_removed >= 2
    assert box.store.stats().sealed_segments <= 2
    check_numbers(box)
    check(box)


def test_the_runs_of_a_ledger_are_adjacent_after_a_compaction() -> None:
    box = opened()
    for turn in range(200):
        box.append([(ledger_id, turn, bytes(100)) for ledger_id in (1, 2, 3)])
        box.pump()
        if box.store.stats().sealed_segments == 2:
            break
    box.idle()
    rows_before = sum(trailer_rows(box, number, 1) for number in sealed(box))
    box.drop([3])
    box.pump()
    assert compact(box)
    rows = [trailer_rows(box, number, 1) for number in sealed(box)]
    assert sum(rows) < rows_before / 10
    check(box)


def trailer_rows(box: StoreOnDisk, number: int, ledger_id: int) -> int:
    segment = box.store._catalogue.segments[number]
    found = box.store._reader.summary(segment, None).find(ledger_id)
    return 0 if found is None else found.rows


def test_state_records_outlive_a_compaction() -> None:
    box = opened()
    packet = (2).to_bytes(8, "big") + (1).to_bytes(8, "big") + b"digest"
    box.append([(2, 0, b"x"), (4, 0, b"y"), (5, 0, b"z")])
    box.fence(2)
    box.fence(4)
    box.store.write_explicit_lac(2, packet, lambda error: None)
    box.store.create_ledger(99, b"a key of another length")
    box.pump()
    mixed(box, segments=2, ledgers=1, size=900)
    box.drop([4])  # fenced and deleted: stays refused
    box.drop([1])
    box.pump()
    assert compact(box)
    disk_of(box).crash()
    box.open()
    store = box.store
    assert store.ledgers[2].fenced
    assert store.ledgers[2].explicit_lac == packet
    assert store.ledgers[99].master_key == b"a key of another length"
    assert store.is_refused(4)
    assert not store.is_refused(1)
    assert sorted(store.ledgers) == [2, 5, 99]
    assert box.read(5, 0) == [box.written[5, 0]]


def test_state_from_before_a_deletion_does_not_outlive_a_compaction() -> None:
    """The ledger was created again, in the same segment, when its deletion had expired."""
    box = opened()
    packet = (2).to_bytes(8, "big") + (1).to_bytes(8, "big") + b"digest"
    box.append([(1, 0, b"x")])
    box.store.write_explicit_lac(1, packet, lambda error: None)
    box.fence(1)
    box.idle()
    box.drop([1])
    box.idle()
    box.clock.ms += TOMBSTONE_TTL_MS
    box.append([(1, 5, b"y")])
    box.idle()
    fill_segments(box, 9, 1)
    box.drop([9])
    box.pump()
    assert compact(box)
    for _ in range(2):
        disk_of(box).crash()
        box.open()
        known = box.store.ledgers[1]
        assert (known.fenced, known.explicit_lac) == (False, None)
        assert run(box.store.entry_ranges(1)) == [(5, 5)]


def test_no_compaction_runs_until_a_pending_deletion_is_logged() -> None:
    box = opened()
    mixed(box)
    box.fence(1)
    box.idle()
    box.drop([1, 2, 3])
    done: list[Compaction] = []
    box.store.on_compaction = done.append
    for _ in range(5):
        box.store.check_space()
        while box.maintenance.run():
            pass
        box.timers.fire()
    assert done == []
    assert disk_of(box).exists(SPARE_NAME)  # the reserve, and nothing in it
    disk_of(box).crash()
    box.open()
    assert box.store.ledgers[1].fenced


def test_ledgers_deleted_or_recreated_during_a_compaction_stay_correct() -> None:
    box = opened(replace(EAGER, compact_bytes_per_s=1))
    mixed(box, segments=3)
    box.drop([1, 2])
    box.pump()
    box.store.check_space()
    for _ in range(4):
        box.pump()
    assert any(one.why == "it is being compacted" for one in box.store.usage())
    box.drop([3, 4])
    box.append([(4, 0, b"again")])
    box.pump()
    while box.timers.fire():
        box.pump()
    check(box)
    assert run(box.store.entry_ranges(4)) == [(0, 0)]
    with pytest.raises(NoLedger):
        box.read(3, 0)
    check_numbers(box)
    check(box)
    assert run(box.store.entry_ranges(4)) == [(0, 0)]


def test_the_space_of_a_ledger_recreated_during_a_compaction_is_counted_once() -> None:
    """Entries from before the deletion are dead in the output. A later compaction frees them."""
    box = opened()
    mixed(box, segments=3)
    box.drop([1, 2])
    box.pump()
    box.store.check_space()
    box.maintenance.step()
    assert any(one.why == "it is being compacted" for one in box.store.usage())
    box.drop([4])
    box.append([(4, 0, b"again")])
    while box.log.run():
        pass
    box.idle()
    assert run(box.store.entry_ranges(4)) == [(0, 0)]
    kept = [(u.number, u.live_ledgers, u.live_bytes) for u in box.store.usage()]
    disk_of(box).crash()
    box.open()
    found = [(u.number, u.live_ledgers, u.live_bytes) for u in box.store.usage()]
    assert kept == found[: len(kept)]


def test_a_read_in_progress_continues_in_the_old_file() -> None:
    box = opened()
    mixed(box, segments=2)
    position = sealed(box)[-1]
    box.drop([1, 2, 3])
    box.pump()
    disk_of(box).cold_read_probability = 1.0
    entry = next(e for (ledger, e) in box.acknowledged if ledger == 5)
    with pytest.raises(WouldBlock) as caught:
        box.store.read(5, entry, 1, 100)
    segment = caught.value.segment
    file = box.store._files.get(segment)
    segment.readers += 1  # as a read that waits for the device
    expected = file.read(caught.value.offset, caught.value.size)
    assert compact(box)
    assert file.read(caught.value.offset, caught.value.size) == expected
    segment.readers -= 1
    box.store._files.close(segment)
    assert position in sealed(box)
    check(box)


def test_duplicates_are_copied_once() -> None:
    box = opened()
    box.append([(9, i, bytes(500)) for i in range(20)])
    box.pump()
    box.append([(9, i, bytes(500)) for i in range(20)])  # once more, as a recovery does
    mixed(box, segments=2, ledgers=3)
    box.drop([1, 2, 3])
    box.pump()
    done = compact(box)
    assert sum(one.duplicate_bytes for one in done) > 0
    assert box.read(9, 0, 20) == [box.written[9, i] for i in range(20)]


@pytest.mark.parametrize("where", ["payload", "index"])
def test_a_damaged_segment_is_kept_and_others_are_compacted(where: str) -> None:
    box = opened()
    mixed(box, segments=3)
    bad = sealed(box)[0]
    disk = disk_of(box)
    segment = box.store._catalogue.segments[bad]
    assert segment.trailer is not None
    at = segment.groups_at + 4096 if where == "payload" else segment.trailer.records_at - 4
    disk.flip_bit(segment_name(bad), at)
    box.drop([1, 2, 3])
    box.pump()
    done = compact(box)
    assert any("is damaged" in one.error for one in done)
    assert {one.copied_bytes for one in done if one.error} == {0}
    assert any(not one.error for one in done)
    usage = {one.number: one for one in box.store.usage()}
    assert usage[bad].why.startswith("quarantined: ")
    assert box.store.failed is None
    readable = damaged = 0
    for (ledger_id, entry_id), entry in box.acknowledged.items():
        try:
            assert box.read(ledger_id, entry_id) == [entry]
            readable += 1
        except DamagedError:
            damaged += 1
    assert 0 < damaged < readable


def test_an_unreadable_dead_segment_is_read_again_only_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The segment was once read at every deletion and every few seconds."""
    box = opened()
    mixed(box, segments=2)
    number = sealed(box)[0]
    disk_of(box).fail_reads(segment_name(number))
    tried: list[int] = []
    load = Collector._load_records
    monkeypatch.setattr(
        Collector, "_load_records", lambda self, one: tried.append(one.number) or load(self, one)
    )
    box.drop(list(box.store.ledgers))
    for _ in range(5):
        box.store.check_space()
        box.idle()
        box.append([(77, 0, b"x")])
        box.drop([77])
    assert tried.count(number) == 1
    assert number in sealed(box)
    disk_of(box).mend_reads(segment_name(number))
    box.clock.set_ahead_ms = -86_400_000  # It is set back, and this must not prolong the wait.
    box.clock.ms += round(1000 * READ_AGAIN_S)
    box.store.check_space()
    box.idle()
    assert tried.count(number) == 2
    assert number not in sealed(box)
    assert number not in box.store._maintenance.collector._read_again_s


def test_an_unreadable_segment_is_not_fatal() -> None:
    box = opened()
    mixed(box, segments=2)
    disk_of(box).fail_reads(segment_name(sealed(box)[0]))
    box.drop([1, 2, 3])
    box.pump()
    done = compact(box)
    assert any("reading its file failed" in one.error for one in done)
    assert box.store.failed is None
    assert box.store.writable


def test_a_failed_sync_of_the_output_is_fatal() -> None:
    box = opened()
    mixed(box, segments=2)
    box.drop([1, 2, 3])
    box.idle()
    box.store.check_space()
    box.pump()
    disk_of(box).fail_sync_once(SPARE_NAME)
    failures: list[StorageError] = []
    box.store.on_failure = failures.append
    compact(box)
    assert len(failures) <= 1
    disk_of(box).crash()
    box.open()
    check(box)


def test_compaction_is_limited_to_its_configured_rate() -> None:
    config = replace(EAGER, compact_bytes_per_s=1000, segment_bytes=1 << 20)
    box = opened(config)
    delays: list[float] = []
    mixed(box, segments=3)
    box.drop([1, 2, 3])
    box.pump()
    real = box.timers.__class__.__call__

    def noting(self: Any, delay: float, callback: Any, /) -> Any:
        delays.append(delay)
        return real(self, delay, callback)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box.timers.__class__, "__call__", noting)
        written = box.store.stats().compaction_written_bytes
        compact(box)
        written = box.store.stats().compaction_written_bytes - written
    paced = [delay for delay in delays if delay > 1]
    assert sum(paced) == pytest.approx(written / 1000)
    check(box)


@pytest.mark.parametrize("switched_off", [True, False])
def test_compactions_follow_their_intervals_and_ratios(switched_off: bool) -> None:
    config = replace(
        SMALL,
        compact_minor_ratio=0.0 if switched_off else 0.3,
        compact_major_ratio=0.0 if switched_off else 0.9,
        compact_minor_interval_s=100.0,
        compact_major_interval_s=1000.0,
    )
    box = opened(config)
    mixed(box, segments=3)
    assert compact(box) == []  # nothing is due but now it has been looked at
    box.drop([1, 2])
    box.pump()
    assert compact(box) == []
    box.clock.ms += 101_000
    assert compact(box) == []  # too much is alive for the minor one
    box.clock.ms += 900_000
    assert bool(compact(box)) is not switched_off
    if not switched_off:
        box.drop([3, 4, 5])
        box.pump()
        assert compact(box) == []
        box.clock.ms += 101_000
        assert compact(box)


def test_minor_compactions_run_with_major_compactions_disabled() -> None:
    """A major ratio of 0 once disabled minor compactions as well."""
    config = replace(
        SMALL,
        compact_minor_ratio=0.3,
        compact_major_ratio=0.0,
        compact_minor_interval_s=100.0,
        compact_major_interval_s=1000.0,
    )
    box = opened(config)
    mixed(box, segments=4)
    assert compact(box) == []
    box.drop([1])
    box.pump()
    box.clock.ms += 2_000_000
    assert compact(box) == []  # Too much is alive, and no major compaction takes it.
    assert all("it is compacted below 30 %" in why for why in all_reasons(box))
    box.drop([2, 3, 4, 5])
    box.pump()
    assert {
        "it is compacted at the next minor interval",
        "it is compacted in 100 s, when the next compaction is due",
    } <= all_reasons(box)
    box.store.suspend_compaction(minor=True, major=False, by="me")
    box.pump()
    assert all("minor compaction is suspended by me" in why for why in all_reasons(box))
    box.clock.ms += 101_000
    assert compact(box) == []
    box.store.resume_compaction(minor=True, major=False)
    assert compact(box)
    stats = box.store.stats()
    assert stats.compactions > 0
    assert stats.compactions_major == 0
    check(box)


def test_a_full_disk_is_compacted_with_major_compactions_disabled() -> None:
    """Whatever is below the minor ratio is compacted at once, from the reserve."""
    box = opened(replace(SMALL, min_free_bytes=20_000, compact_major_ratio=0.0))
    mixed(box, segments=6)
    compact(box)
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    box.store.check_space()
    box.pump()
    assert not box.store.writable
    box.drop([1, 2, 3, 4, 5])
    box.pump()
    assert [one for one in compact(box) if not one.error]
    check(box)


def test_a_full_disk_compacts_from_its_reserve_and_becomes_writable_again() -> None:
    box = opened(replace(EAGER, min_free_bytes=20_000))
    mixed(box, segments=6)
    compact(box)
    disk = disk_of(box)
    assert disk.exists(SPARE_NAME)
    disk.capacity_bytes -= disk.free_bytes()
    box.store.check_space()
    box.pump()
    assert not box.store.writable
    assert disk.free_bytes() == 0
    box.drop([1, 2, 3, 4])
    box.pump()
    done = compact(box)
    assert len([one for one in done if not one.error]) > 1
    assert disk.free_bytes() > 20_000
    assert disk.exists(SPARE_NAME)
    box.store.check_space()
    box.pump()
    assert box.store.writable
    check(box)
    disk.crash()
    box.open()
    check(box)


def with_a_full_log() -> StoreOnDisk:
    """Return a store whose log has no space left even for a state record."""
    box = opened()
    mixed(box, segments=4)
    compact(box)
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    box.store.check_space()
    box.pump()
    # Recovery adds and fences take all that was prepared for them.
    number = 0
    errors = len(box.errors)
    while len(box.errors) == errors:
        number += 1
        box.fence(10_000 + number)
        box.pump()
        assert number < 1000
    return box


def test_the_log_gets_the_reserve_when_not_even_a_deletion_can_be_logged() -> None:
    box = with_a_full_log()
    box.drop([1, 2, 3, 4, 5, 6])
    box.idle()
    for _ in range(5):
        box.store.check_space()
        box.idle()
    assert box.store.stats().segments_removed >= 4
    assert box.store.writable


@pytest.mark.parametrize("meanwhile", ["nothing", "another deletion", "a refusal"])
def test_a_deletion_that_cannot_be_logged_is_retried(meanwhile: str) -> None:
    """A refusal that could not be logged once replaced the pending deletion."""
    box = with_a_full_log()
    box.fence(1)
    box.drop([1])
    if meanwhile == "another deletion":
        box.drop([2])
    elif meanwhile == "a refusal":
        box.store.refuse_ledger(77_777)
    disk_of(box).capacity_bytes += 1 << 20
    for _ in range(5):
        box.store.check_space()
        box.idle()
    disk_of(box).crash()
    box.open()
    assert 1 not in box.store.ledgers
    assert (2 in box.store.ledgers) is (meanwhile != "another deletion")
    assert box.store.is_refused(1)
    assert box.store.is_refused(77_777) is (meanwhile == "a refusal")


def test_a_start_removes_an_unfinished_output_of_a_compaction() -> None:
    box = opened(replace(EAGER, compact_bytes_per_s=1))
    mixed(box, segments=3)
    box.drop([1, 2, 3])
    box.pump()
    box.store.check_space()
    box.pump()
    assert disk_of(box).written_bytes(SPARE_NAME) > 0
    disk_of(box).kill()
    report = box.open()
    assert report.problems == ()
    check(box)
    assert compact(box)
    check(box)


def test_a_stop_in_the_middle_of_a_compaction_is_clean() -> None:
    box = opened(replace(EAGER, compact_bytes_per_s=1))
    mixed(box, segments=3)
    box.drop([1, 2, 3])
    box.pump()
    box.store.check_space()
    box.pump()
    box.close()
    report = box.open()
    assert report.clean
    assert report.problems == ()
    check(box)


def test_a_compacted_segment_whose_index_is_damaged_is_read_from_its_groups() -> None:
    box = opened()
    mixed(box, segments=2)
    box.fence(5)
    mixed_again = box.store.stats().sealed_segments
    box.drop([1, 2, 3])
    box.pump()
    assert compact(box)
    number = sealed(box)[-1] if mixed_again else 0
    generation = box.store._catalogue.segments[number]
    assert generation.generation == 1
    assert generation.trailer is not None
    at = generation.trailer.summary_at
    box.close()
    disk_of(box).remove(CACHE_NAME)
    disk_of(box).flip_bit(segment_name(number), at)
    report = box.open()
    assert report.problems == ()
    assert not report.negatives_unknown
    check(box)
    box.idle()
    assert number in sealed(box)  # its index was written again
    box.close()
    assert box.open().clean
    check(box)


def test_a_compacted_segment_that_lost_a_group_is_reported() -> None:
    box = opened()
    mixed(box, segments=2)
    box.drop([1, 2, 3])
    box.pump()
    assert compact(box)
    number = sealed(box)[-1]
    trailer = box.store._catalogue.segments[number].trailer
    assert trailer is not None
    groups_at = box.store._catalogue.segments[number].groups_at
    box.close()
    disk_of(box).remove(CACHE_NAME)
    disk_of(box).flip_bit(segment_name(number), trailer.summary_at)
    disk_of(box).flip_bit(segment_name(number), groups_at + 50)
    report = box.open()
    assert report.negatives_unknown
    for key, entry in box.acknowledged.items():
        try:
            assert box.read(*key) == [entry]
        except (NoEntry, NoLedger, DamagedError):
            pass


def test_the_log_directory_has_only_known_and_prepared_segments() -> None:
    box = opened()
    mixed(box, segments=4)
    box.drop([1, 2, 3, 4])
    box.pump()
    compact(box)
    names = {name for name in disk_of(box).list(LOG_DIRECTORY) if name.endswith(".seg")}
    known = {segment_name(one.number).rpartition("/")[2] for one in box.store.usage()}
    assert known <= names
    assert len(names - known) <= 2  # prepared ones


def test_a_full_bookie_survives_repeated_starts_serves_reads_and_recovers() -> None:
    box = opened(replace(EAGER, min_free_bytes=20_000))
    mixed(box, segments=5)
    box.fence(2)
    compact(box)
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    for turn in range(25):
        (disk.kill if turn % 3 else disk.crash)()
        report = box.open()
        assert report.problems == ()
        check(box)
        box.idle()
        assert not box.store.writable
        assert box.store.ledgers[2].fenced
        disk.capacity_bytes -= disk.free_bytes()
        box.store.check_space()
        box.pump()
    box.drop([1, 2, 3, 4])
    for _ in range(5):
        box.idle()
        compact(box)
    assert box.store.writable
    check(box)


def test_recovery_adds_leave_room_for_fences_on_a_full_disk() -> None:
    box = opened()
    mixed(box, segments=2)
    compact(box)  # so that it has its reserve
    disk = disk_of(box)
    disk.capacity_bytes -= disk.free_bytes()
    box.store.check_space()
    box.pump()
    entry = 100_000
    refused = False
    while not refused:
        try:
            box.append([(1, entry, bytes(900))], reserve=True)
        except DiskFullError:
            refused = True
        box.pump()
        entry += 1
    box.fence(1)
    box.pump()
    assert box.fenced == {1}
    disk.crash()
    box.open()
    assert box.store.ledgers[1].fenced
    check_entries = [key for key in box.acknowledged if key[1] >= 100_000]
    assert check_entries
    for key in check_entries:
        assert box.read(*key) == [box.acknowledged[key]]


def test_a_requested_compaction_does_not_wait_for_its_interval() -> None:
    config = replace(
        SMALL,
        compact_minor_ratio=0.2,
        compact_major_ratio=0.9,
        compact_minor_interval_s=100.0,
        compact_major_interval_s=1000.0,
    )
    box = opened(config)
    mixed(box, segments=3)
    assert compact(box) == []  # The intervals begin.
    box.drop([1, 2, 3])
    box.pump()
    assert compact(box) == []
    box.store.request_compaction(minor=True, major=False)
    assert not box.store.compaction_requested  # Nothing is below the minor ratio.
    assert compact(box) == []
    box.store.request_compaction(minor=False, major=True)
    assert box.store.compaction_requested
    assert compact(box)
    assert not box.store.compaction_requested
    assert box.store.stats().compactions_major
    box.drop([4])
    box.pump()
    assert compact(box) == []  # The interval starts again.
    check(box)


def test_a_request_does_not_lift_a_suspension() -> None:
    box = opened(replace(EAGER, compact_major_interval_s=1000.0, compact_minor_interval_s=1000.0))
    mixed(box, segments=3)
    compact(box)
    box.drop([1, 2, 3])
    box.store.suspend_compaction(minor=True, major=True, by="me")
    box.pump()
    box.store.request_compaction(minor=True, major=True)
    assert not box.store.compaction_requested
    assert compact(box) == []


# -- suspended by an operator -----------------------------------------------------------------


def all_reasons(box: StoreOnDisk) -> set[str]:
    """Return why the space of sealed segments does not come back, live and from the files."""
    here = {one.why for one in box.store.usage() if one.state == "sealed"}
    there = {one.why for one in look(box.disk, box.config).segments if one.state == "sealed"}
    return here | there


def reasons(box: StoreOnDisk) -> set[str]:
    """Return the reasons that name a suspension."""
    return {why for why in all_reasons(box) if "suspended" in why}


def test_suspended_compaction_waits_until_it_is_resumed() -> None:
    box = opened()
    mixed(box, segments=4)
    box.store.suspend_compaction(minor=True, major=True, by="the backup")
    box.drop([1, 2, 3])
    box.pump()
    held = box.store.compaction_suspended
    assert held == Suspension(True, True, "the backup", box.clock.now_ms())
    assert compact(box) == []
    assert reasons(box) == {held.describe()}
    assert "compaction is suspended by the backup since " in held.describe()
    box.store.resume_compaction(minor=False, major=True)
    assert compact(box)
    box.store.resume_compaction(minor=True, major=True)
    box.pump()
    assert box.store.compaction_suspended is None
    assert reasons(box) == set()
    assert not box.disk.exists(NOTE_NAME)
    check(box)
    check_numbers(box)


def test_minor_and_major_compaction_can_be_suspended_separately() -> None:
    """Segments that are half live are below the major ratio and above the minor one."""
    config = replace(EAGER, compact_minor_ratio=0.2, compact_major_ratio=0.9)
    box = opened(config)
    mixed(box, segments=4)
    box.store.suspend_compaction(minor=False, major=True, by="me")
    box.drop([1, 2, 3])
    box.pump()
    assert compact(box) == []
    assert len(reasons(box)) == 1
    box.drop([4, 5])
    box.pump()
    assert compact(box)  # now the minor kind takes them
    check(box)


def test_a_suspension_does_not_outlive_the_process() -> None:
    box = opened()
    mixed(box, segments=4)
    box.store.suspend_compaction(minor=True, major=True, by="me")
    box.store.suspend_compaction(minor=True, major=True, by="somebody else")
    box.drop([1, 2, 3])
    box.pump()
    found = read_note(box.disk)
    assert found is not None
    assert found.by == "me"
    box.close()
    box.open()
    assert box.store.compaction_suspended is None
    assert read_note(box.disk) is None
    assert compact(box)
    check(box)


def test_a_full_disk_does_not_lift_a_suspension() -> None:
    """The store could otherwise compact with the space of its reserve."""
    box = opened(replace(EAGER, min_free_bytes=20_000))
    mixed(box, segments=6)
    compact(box)
    disk = disk_of(box)
    assert disk.exists(SPARE_NAME)
    disk.capacity_bytes -= disk.free_bytes()
    box.store.suspend_compaction(minor=True, major=True, by="me")
    box.store.check_space()
    box.pump()
    assert not box.store.writable
    box.drop([1, 2, 3, 4])
    box.pump()
    assert compact(box) == []
    assert read_note(disk) is None  # There was no space for it, which does no harm.
    box.store.resume_compaction(minor=True, major=True)
    assert [one for one in compact(box) if not one.error]
    check(box)


def test_an_invalid_suspension_note_is_ignored() -> None:
    box = opened()
    for text in (b"", b"{}", b"[1]", b'{"minor": true, "nonsense": 1}'):
        file = box.disk.create(NOTE_NAME)
        file.write([text], 0)
        file.close()
        assert read_note(box.disk) is None
        box.disk.remove(NOTE_NAME)


def test_a_ledger_with_the_id_minus_one_is_compacted_like_any_other() -> None:
    """Earlier bookies accepted this id."""
    box = opened(EAGER)
    box.append(entries(-1, 0, 3))
    fill_segments(box, 1, 2)
    box.drop([1])
    box.idle()
    compact(box)
    assert box.store.stats().compactions > 0
    assert box.store.failed is None
    check(box)


def test_compaction_stops_once_the_log_has_failed() -> None:
    """A failed sync is final for its directory, which may stay in use for long beside others."""
    box = opened(replace(EAGER, compact_bytes_per_s=1))
    mixed(box, segments=4)
    box.drop([1, 2, 3, 4])
    box.pump()
    box.store.check_space()
    box.pump()  # It has copied a group, and pauses.
    disk = disk_of(box)
    before = {name: disk.open(f"{LOG_DIRECTORY}/{name}").size() for name in disk.list("log")}
    assert SPARE_NAME.removeprefix(f"{LOG_DIRECTORY}/") in before
    disk.fail_sync_once(segment_name(max(one.number for one in box.store.usage())))
    box.append(entries(99, 0, 1))
    box.pump()
    assert box.store.failed is not None
    for _ in range(20):
        box.idle()
        box.store.check_space()
    assert before == {
        name: disk.open(f"{LOG_DIRECTORY}/{name}").size() for name in disk.list("log")
    }
    check(box)


def test_space_for_a_compaction_is_reserved_only_if_one_may_run() -> None:
    """All ledgers are deleted, and other files fill the disk: only the free space counts."""
    least, free = 1_000_000, 10_000_000
    box = opened(replace(EAGER, min_free_bytes=least, writable_free_bytes=least))
    mixed(box, segments=2)
    disk_of(box).free_bytes = lambda: free  # type: ignore[method-assign]

    def fill(one: object) -> None:
        nonlocal free
        free = 30_000

    box.store.on_compaction = fill
    box.drop([1, 2, 3])
    for _ in range(10):
        box.store.check_space()
        box.idle()
    assert free == 30_000
    assert box.store.disk_full
    box.drop([4, 5, 6])
    for _ in range(10):
        box.store.check_space()
        box.idle()
    assert not sealed(box)
    free = least + 50_000
    for _ in range(20):
        box.store.check_space()
        box.idle()
    assert box.store.writable
