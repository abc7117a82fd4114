"""The store's calls: order of visibility, reads, space, deletion, damage and failure."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from quire.errors import DamagedError, DiskFullError, StorageError, UsageError
from quire.storage.batch import Batch, Run
from quire.storage.blocking import InlineReader
from quire.storage.catalogue import TOMBSTONE_TTL_MS
from quire.storage.config import StorageConfig
from quire.storage.segment import segment_name
from quire.storage.signals import NoEntry, NoLedger, WouldBlock
from quire.testing.disk import PowerLossError, SimDisk
from tests.support.storage import (
    SMALL,
    StoreOnDisk,
    key_of,
    make_batch,
    make_entry,
    run,
    sim_disk,
)


def opened(config: StorageConfig = SMALL, **options: Any) -> StoreOnDisk:
    options.setdefault("cold_read_probability", 0.0)
    box = StoreOnDisk(sim_disk(1, **options), config)
    box.open()
    box.idle()
    return box


def disk_of(box: StoreOnDisk) -> SimDisk:
    assert isinstance(box.disk, SimDisk)
    return box.disk


def entries(
    ledger_id: int, first: int, count: int, size: int = 100
) -> list[tuple[int, int, bytes]]:
    return [(ledger_id, first + i, b"%d" % (first + i) * size) for i in range(count)]


def fill_segments(box: StoreOnDisk, ledger_id: int, count: int) -> None:
    """Until `count` more segments are sealed."""
    wanted = box.store.stats().sealed_segments + count
    while box.store.stats().sealed_segments < wanted:
        first = box.store.last_entry_id(ledger_id) + 1 if ledger_id in box.store.ledgers else 0
        box.append(entries(ledger_id, first, 10, 200))
        box.pump()


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


def test_acknowledgements_come_in_the_order_of_appends_over_groups_and_segments() -> None:
    box = opened()
    for turn in range(60):
        box.append(entries(1 + turn % 3, turn // 3 * 7, 7, 300))
    box.pump()
    assert box.acknowledged_order == list(range(60))
    stats = box.store.stats()
    assert stats.groups > 10
    assert stats.sealed_segments >= 1
    assert stats.batches >= 60


def test_while_one_group_is_written_the_next_gathers() -> None:
    box = opened()
    groups = box.store.stats().groups
    box.append(entries(1, 0, 1))
    box.log.step()
    for number in range(1, 10):
        box.append(entries(1, number, 1))
    box.log.run()
    assert box.store.stats().groups == groups + 2
    assert len(box.acknowledged) == 10


def test_a_fence_is_in_force_at_once_and_durable_behind_what_was_queued() -> None:
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


def test_a_barrier_is_passed_by_what_was_appended_before_it() -> None:
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


def test_a_new_ledger_alone_is_logged_soon() -> None:
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
    with pytest.raises(UsageError, match="ledger 1 is in the store already"):
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


# -- reads ------------------------------------------------------------------------------------


def test_reads_know_ledgers_and_entries() -> None:
    box = opened()
    with pytest.raises(NoLedger):
        box.store.read(1, 0, 1, 100)
    with pytest.raises(NoLedger):
        box.store.last_entry_id(1)
    box.store.create_ledger(1, key_of(1))
    assert box.store.last_entry_id(1) == -1
    with pytest.raises(NoEntry):
        box.store.read(1, 0, 1, 100)
    box.append(entries(1, 5, 2))
    assert box.store.last_entry_id(1) == 6
    for missing in (0, 4, 7, 1 << 40):
        with pytest.raises(NoEntry):
            box.store.read(1, missing, 10, 1 << 20)
    assert len(box.store.read(1, 6, 10, 1 << 20)) == 1


@pytest.mark.parametrize("state", ["queued", "written", "sealed"])
def test_a_read_stops_before_the_entry_that_would_pass_its_budget(state: str) -> None:
    box = opened()
    sizes = [47, 47, 47, 300, 40]
    box.append([(1, i, bytes(size - 32)) for i, size in enumerate(sizes)])
    box.append([(1, 5, bytes(15)), (1, 6, bytes(15))])
    # The budget counts 4 bytes more for each entry.
    if state != "queued":
        box.pump()
    if state == "sealed":
        fill_segments(box, 2, 1)
        assert not box.store.ledgers[1].open_parts
    for budget, expected in [
        (0, 1), (50, 1), (51, 1), (101, 1), (102, 2), (152, 2), (153, 3), (456, 3), (457, 4),
        (500, 4), (501, 5), (551, 5), (552, 6), (602, 6), (603, 7), (1 << 30, 7),
    ]:  # fmt: skip
        found = box.store.read(1, 0, 100, budget)
        assert len(found) == expected, budget
    assert len(box.store.read(1, 3, 2, 1 << 30)) == 2
    assert len(box.store.read(1, 0, 100, 153, 100)) == 1


def test_reads_cross_runs_batches_and_segments() -> None:
    box = opened()
    fill_segments(box, 1, 3)
    box.append(entries(1, box.store.last_entry_id(1) + 1, 5))
    count = box.store.last_entry_id(1) + 1
    expected = [box.written[1, i] for i in range(count)]
    assert box.read(1, 0, count + 5) == expected
    assert box.read(1, 17, 300) == expected[17:317]


def test_a_large_run_is_read_in_pieces() -> None:
    box = opened(replace(SMALL, segment_bytes=4 << 20, max_queued_bytes=8 << 20))
    box.append([(1, i, bytes([i % 251]) * 50_000) for i in range(50)])
    box.append([(1, 50 + i, bytes([i % 251]) * (50_000 - i)) for i in range(20)])
    box.pump()
    assert box.read(1, 0, 100) == list(box.written.values())


def test_striped_entries_are_found_and_the_gaps_are_absent() -> None:
    box = opened()
    ids = [0, 2, 3, 5, 6, 8, 9, 11]
    box.append([(1, i, b"%d" % i) for i in ids])
    for state in ("queued", "written", "sealed"):
        for entry_id in range(13):
            if entry_id in ids:
                assert box.read(1, entry_id) == [box.written[1, entry_id]], state
            else:
                with pytest.raises(NoEntry):
                    box.read(1, entry_id)
        assert len(box.read(1, 2, 10)) == 2
        assert run(box.store.entry_ranges(1)) == [(0, 0), (2, 3), (5, 6), (8, 9), (11, 11)]
        box.pump()
        if state == "written":
            fill_segments(box, 2, 1)


def test_buffers_may_be_cut_anywhere() -> None:
    box = opened()
    for cut in range(0, 300, 7):
        box.append(entries(1, cut * 3, 3, 20), cuts=[cut, cut + 1, cut + 40])
        assert box.read(1, cut * 3, 3) == [box.written[1, cut * 3 + i] for i in range(3)]
    box.pump()
    for key, entry in box.written.items():
        assert box.read(*key) == [entry]


def test_of_several_copies_the_newest_is_served() -> None:
    """Recovery writes an entry again with other metadata."""
    box = opened()

    def write(entry_id: int, lac: int) -> bytes:
        batch = make_batch([(1, entry_id, b"same payload")])
        frame = bytearray(batch.buffers[0])  # type: ignore[index]
        frame[44:52] = lac.to_bytes(8, "big", signed=True)
        box.store.append(Batch([bytes(frame)], batch.runs), lambda batch, error: None)
        return bytes(frame[28:])

    box.store.create_ledger(1, key_of(1))
    first = [write(i, -1) for i in range(6)]
    box.pump()
    second = {i: write(i, 40) for i in (2, 3)}
    expected = [second.get(i, first[i]) for i in range(6)]
    for state in ("queued", "written", "sealed", "restarted"):
        if state == "written":
            box.pump()
        elif state == "sealed":
            fill_segments(box, 2, 1)
            assert not box.store.ledgers[1].open_parts
        elif state == "restarted":
            box.close()
            box.open()
        assert [bytes(e) for e in box.store.read(1, 0, 10, 1 << 20)] == expected, state
        assert [box.read(1, i) for i in range(6)] == [[e] for e in expected], state
    third = write(4, 50)
    assert box.read(1, 3, 3) == [expected[3], third, expected[5]]


def test_a_damaged_copy_gives_way_to_a_good_one() -> None:
    box = opened()
    box.append(entries(1, 0, 4))
    box.pump()
    fill_segments(box, 2, 1)
    box.append(entries(1, 1, 1))
    box.pump()
    number = box.store.usage()[-1].number
    disk = disk_of(box)
    data = disk.open(segment_name(number)).read(0, 1 << 20)
    assert data is not None
    at = data.index(box.written[1, 1])
    disk.flip_bit(segment_name(number), at + 50)
    assert box.read(1, 0, 4) == [box.written[1, i] for i in range(4)]
    assert box.read(1, 1) == [box.written[1, 1]]
    assert box.store.stats().damaged_reads > 0


def test_a_read_error_of_the_device_is_damage() -> None:
    box = opened()
    box.append(entries(1, 0, 4))
    box.pump()
    disk = disk_of(box)
    disk.fail_reads(segment_name(box.store.usage()[-1].number))
    with pytest.raises(DamagedError, match="failed"):
        box.store.read(1, 0, 1, 100)
    disk.mend_reads(segment_name(box.store.usage()[-1].number))
    assert len(box.store.read(1, 0, 1, 100)) == 1


@pytest.mark.parametrize("wrong", [Run(1, 5, 2, 0, 160), Run(2, 0, 2, 0, 160)])
def test_a_frame_that_is_not_what_the_index_says_is_damage(wrong: Run) -> None:
    box = opened()
    batch = make_batch([(1, 0, bytes(100)), (1, 1, bytes(100))])
    for ledger_id in (1, 2):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
    assert batch.runs[0].frame_size == 160
    box.store.append(Batch(batch.buffers or (), [wrong]), lambda batch, error: None)
    for count in (1, 2):
        with pytest.raises(DamagedError):
            box.read(wrong.ledger_id, wrong.first, count)
        box.pump()
        with pytest.raises(DamagedError):
            box.read(wrong.ledger_id, wrong.first, count)


def test_a_read_behind_damage_starts_over_there() -> None:
    box = opened()
    box.append(entries(1, 0, 40, 300))
    box.pump()
    name = segment_name(box.store.usage()[-1].number)
    disk = disk_of(box)
    data = disk.open(name).read(0, 1 << 20)
    assert data is not None
    disk.flip_bit(name, data.index(box.written[1, 20]) + 100)
    found = box.read(1, 0, 40)
    assert found == [box.written[1, i] for i in range(len(found))]
    assert 0 < len(found) <= 20
    with pytest.raises(DamagedError, match="entry 20 of ledger 1 is damaged"):
        box.read(1, 20)
    assert box.read(1, 39) == [box.written[1, 39]]


def test_cold_reads_wait_off_the_loop() -> None:
    box = opened(cold_read_probability=1.0)
    fill_segments(box, 1, 2)
    with pytest.raises(WouldBlock):
        box.store.read(1, 0, 1, 100)
    fetched = []

    class Reader(InlineReader):
        def read(self, call: Any, done: Any) -> None:
            fetched.append(call)
            done(call())

    box.store._cold._blocking = Reader()
    count = box.store.last_entry_id(1) + 1
    assert box.read(1, 0, count) == [box.written[1, i] for i in range(count)]
    assert 5 < len(fetched) < count
    assert run(box.store.entry_ranges(1)) == [(0, count - 1)]


async def test_a_cold_read_that_ends_in_a_clean_stop_leaves_the_log_open() -> None:
    """It closed the file of the segment that the stop was still to write (found by the
    simulator)."""
    box = opened(cold_read_probability=1.0)
    box.append(entries(1, 0, 4))
    box.pump()
    go: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Reader(InlineReader):
        def read(self, call: Any, done: Any) -> None:
            go.add_done_callback(lambda _: done(call()))

    box.store._cold._blocking = Reader()
    reading = asyncio.ensure_future(box.store.read_blocking(1, 0, 4, 1 << 20))
    await asyncio.sleep(0)
    box.append(entries(1, 4, 1))
    drain = box.log.stop

    async def drain_behind_the_read() -> None:
        go.set_result(None)
        await reading
        await drain()

    box.log.stop = drain_behind_the_read  # type: ignore[method-assign]
    await box.store.close()
    assert box.acknowledged == box.written
    assert box.open().clean


def test_a_cold_read_that_fails_is_damage() -> None:
    box = opened(cold_read_probability=1.0)
    box.append(entries(1, 0, 4))
    box.pump()
    disk_of(box).fail_reads(segment_name(box.store.usage()[-1].number))
    with pytest.raises(DamagedError):
        box.read(1, 0)


def test_files_and_footers_are_kept_within_bounds() -> None:
    box = opened(replace(SMALL, footer_cache_bytes=3000, max_open_files=2))
    fill_segments(box, 1, 6)
    rng = random.Random(1)
    for _ in range(200):
        entry_id = rng.randrange(box.store.last_entry_id(1))
        assert box.read(1, entry_id) == [box.written[1, entry_id]]
        stats = box.store.stats()
        assert stats.open_files <= 2
        assert stats.footer_cache_bytes <= 3000


# -- bounds and space -------------------------------------------------------------------------


def test_a_full_queue_is_reported_and_so_is_its_draining() -> None:
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


def test_while_no_segment_is_prepared_no_more_should_be_received() -> None:
    box = opened()
    drained: list[int] = []
    box.store.on_drained = lambda: drained.append(1)
    for number in range(40):
        # Maintenance does not run: what was received already still finds room.
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
    with pytest.raises(DiskFullError, match="no more adds"):
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
    assert "the log is full" in refusal
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


def test_what_found_no_room_is_tried_again() -> None:
    """A fence, and deletions: without their record no segment may be removed."""
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
    """How many entries found room, and what the next was told."""
    number = 0
    while True:
        try:
            box.append(entries(3, number, 10, 200), reserve=True)
        except DiskFullError as error:
            return number, str(error)
        box.pump()
        number += 10


def test_little_free_space_is_enough_reason() -> None:
    box = opened(replace(SMALL, min_free_bytes=100_000))
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


def test_a_start_on_a_full_disk_uses_what_is_prepared() -> None:
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


def test_a_start_without_any_room_says_so() -> None:
    disk = sim_disk(capacity_bytes=1000)
    box = StoreOnDisk(disk)
    with pytest.raises(DiskFullError, match="no room to begin a segment of 20480 bytes"):
        box.open()
    disk.capacity_bytes = 40_000
    box.open()
    assert not box.store.writable
    disk.capacity_bytes = 1 << 20
    box.store.check_space()
    box.pump()
    assert box.store.writable


def test_what_does_not_fit_into_a_segment_is_refused() -> None:
    box = opened()
    with pytest.raises(UsageError, match="Raise segment_bytes"):
        box.append([(1, 0, bytes(70_000))])
    box.append([(1, 0, b"small")])
    box.pump()
    assert box.read(1, 0) == [box.written[1, 0]]


def test_a_segment_is_rolled_for_its_number_of_runs() -> None:
    box = opened(replace(SMALL, max_runs_per_segment=10))
    for number in range(50):
        box.append(entries(1 + number % 2, number // 2, 1, 1))
        box.pump()
    assert box.store.stats().sealed_segments == 4


def test_batches_of_unknown_ledgers_leave_nothing_behind() -> None:
    box = opened()
    box.store.create_ledger(1, key_of(1))
    batch = make_batch([*entries(1, 0, 3), *entries(2, 0, 3)])
    answers: list[object] = []
    with pytest.raises(UsageError, match="ledger 2 is not in the store"):
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


# -- failure and life -------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_group_fails_all_that_is_queued_and_all_that_comes(operation: str) -> None:
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


def test_a_disk_that_fails_at_sealing_is_not_trusted_either() -> None:
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
    assert "the disk under" in str(failures[0])
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


def test_a_clean_stop_is_known_again() -> None:
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


def test_a_closed_store_takes_nothing_more() -> None:
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
    with pytest.raises(StorageError, match="never formatted"):
        box.store.recover()


# -- deletion ---------------------------------------------------------------------------------


def test_dropped_ledgers_are_gone_and_their_segments_too() -> None:
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


def test_a_deleted_ledger_does_not_come_back_from_an_older_segment() -> None:
    """The record of the deletion lies in a segment that dies before those it speaks of."""
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


def test_a_deletion_that_is_logged_again_spares_what_came_after_it() -> None:
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


def test_a_removal_whose_records_span_segments_loses_none_in_a_crash() -> None:
    """More state records than one batch takes, with a roll between them."""
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


def test_a_removal_in_a_torn_group_has_not_happened() -> None:
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
    disk.flip_bit(name, data.index(b"y" * 3000) + 3000)
    report = box.open()
    assert report.torn_group is not None
    assert report.problems == ()
    for key, entry in written.items():
        assert box.read(*key) == [entry]
    with pytest.raises(NoLedger):
        box.read(2, 0)


def test_usage_tells_what_lives_where() -> None:
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


# -- damage -----------------------------------------------------------------------------------


def test_a_missing_segment_makes_absence_unknown_until_it_is_repaired() -> None:
    box = opened()
    fill_segments(box, 1, 2)
    missing = box.store.usage()[0].number
    box.close()
    disk_of(box).remove(segment_name(missing))
    changes: list[bool] = []
    for _ in range(3):
        report = box.open()
        assert report.negatives_unknown
        assert any("missing" in problem for problem in report.problems)
        assert not box.store.writable
        with pytest.raises(NoEntry):
            box.read(1, 0)
        # What is there is still served, and recovery adds are taken.
        assert box.read(1, box.store.last_entry_id(1))
        box.idle()
        box.close()
    box.open()
    box.store.on_writable_changed = changes.append
    done: list[object] = []
    box.store.mark_repaired(done.append)
    assert not box.store.negatives_unknown
    assert changes == [True]
    box.idle()
    assert done == [None]
    for _ in range(2):
        box.close()
        box.open()
        assert not box.store.negatives_unknown
        assert box.store.writable


def lose_a_group(box: StoreOnDisk) -> None:
    """Damage the table of a group in the current segment that is not the last, and die."""
    for number in range(6):
        box.append(entries(1, number * 3, 3))
        box.pump()
    disk = disk_of(box)
    segment = box.store.usage()[-1]
    groups_at = 4096 + 2 * 4096
    disk.kill()
    disk.flip_bit(segment_name(segment.number), groups_at + 100)


def test_a_lost_table_makes_absence_unknown_and_stays_so() -> None:
    box = opened()
    lose_a_group(box)
    for _ in range(3):
        report = box.open()
        assert report.negatives_unknown
        assert any("1 groups" in problem for problem in report.problems)
        found = 0
        for key, entry in box.acknowledged.items():
            try:
                assert box.read(*key) == [entry]
                found += 1
            except NoEntry:
                pass
        assert found == 15
        # Its key may be lost with the group, but every frame has it.
        assert box.store.ledgers[1].master_key == key_of(1)
        box.idle()
        box.close()
    box.open()
    box.store.mark_repaired(lambda error: None)
    box.idle()
    box.close()
    assert not box.open().negatives_unknown


def test_groups_lost_with_the_header_of_the_first_segment_are_missed() -> None:
    """Nothing else told that there had been groups before the first one that was left."""
    box = opened()
    lose_a_group(box)
    disk, name = disk_of(box), segment_name(1)
    disk.flip_bit(name, 20)  # the header
    for block in (1, 2):  # all groups before the one that is lost anyway
        disk.flip_bit(name, block * 4096 + 20)
    report = box.open()
    assert any("header" in problem for problem in report.problems)
    assert report.negatives_unknown


def test_the_last_group_is_not_torn_where_something_lies_behind_it() -> None:
    """Whatever began to be written next shows that it was synced: it is damaged."""
    box = opened()
    box.append(entries(1, 0, 3))
    box.pump()
    box.append([(1, 3, b"z" * 5000)])
    box.pump()
    disk = disk_of(box)
    disk.kill()
    name = segment_name(box.store.usage()[-1].number)
    data = bytes(disk.open(name).read(0, 1 << 20) or b"")
    end = -(-len(data.rstrip(b"\0")) // 4096) * 4096
    disk.flip_bit(name, data.index(b"z" * 5000) + 4000)
    behind = disk.open(name)
    behind.write([b"the next group, torn"], end + 512)
    behind.sync()
    report = box.open()
    assert report.torn_group is None
    assert report.damaged_blocks == 1
    assert not report.negatives_unknown
    assert box.read(1, 0, 3) == [box.written[1, i] for i in range(3)]
    with pytest.raises(DamagedError):
        box.read(1, 3)
    box.idle()
    box.close()
    assert box.open().clean
    with pytest.raises(DamagedError):
        box.read(1, 3)


def test_the_last_group_is_torn_where_nothing_lies_behind_it() -> None:
    box = opened()
    box.append(entries(1, 0, 3))
    box.pump()
    box.append([(1, 3, b"z" * 5000)])
    box.pump()
    disk = disk_of(box)
    disk.kill()
    name = segment_name(box.store.usage()[-1].number)
    data = disk.open(name).read(0, 1 << 20)
    assert data is not None
    disk.flip_bit(name, data.index(b"z" * 5000) + 4000)
    report = box.open()
    assert report.torn_group is not None
    assert box.read(1, 0, 9) == [box.written[1, i] for i in range(3)]


def test_the_key_of_a_ledger_is_found_in_its_frames() -> None:
    box = opened()
    box.idle()
    box.append(entries(1, 0, 3))
    box.pump()
    box.append(entries(1, 3, 3))
    box.idle()
    disk = disk_of(box)
    name = segment_name(box.store.usage()[-1].number)
    data = disk.open(name).read(0, 1 << 20)
    assert data is not None
    at = data.index(key_of(1))
    disk.kill()
    disk.flip_bit(name, at)
    report = box.open()
    assert report.negatives_unknown
    assert box.store.ledgers[1].master_key == key_of(1)
    assert box.read(1, 3, 3) == [box.written[1, i] for i in (3, 4, 5)]


def test_a_log_that_is_gone_is_not_a_new_directory() -> None:
    box = opened()
    box.append(entries(1, 0, 3))
    box.close()
    disk = disk_of(box)
    for name in disk.list("log"):
        disk.remove(f"log/{name}")
    for _ in range(2):
        report = box.open()
        assert report.negatives_unknown
        assert "the log is gone" in report.problems[0] or "missing" in report.problems[0]
        box.idle()
        box.close()


def test_the_newest_segment_cannot_vanish_unnoticed() -> None:
    box = opened()
    fill_segments(box, 1, 2)
    newest = box.store.usage()[-1].number
    box.idle()
    disk_of(box).kill()
    disk_of(box).remove(segment_name(newest))
    assert box.open().negatives_unknown
    box.idle()
    box.close()
    assert box.open().negatives_unknown


def test_a_footer_that_is_damaged_is_made_again_from_the_groups() -> None:
    box = opened()
    fill_segments(box, 1, 2)
    box.idle()
    box.close()
    disk = disk_of(box)
    first = box.store.usage()[0]
    disk.flip_bit(segment_name(first.number), first.file_bytes - 60)
    report = box.open()
    assert not report.negatives_unknown
    assert report.groups_scanned > 0
    count = box.store.last_entry_id(1) + 1
    assert box.read(1, 0, count) == [box.written[1, i] for i in range(count)]
    box.idle()
    assert box.store.usage()[0].state == "sealed"
    box.close()
    assert box.open().groups_scanned == 0
    assert box.read(1, 0, count) == [box.written[1, i] for i in range(count)]


def test_a_log_of_a_later_version_is_refused_untouched() -> None:
    from quire.codec.digest import crc32c

    box = opened()
    box.append(entries(1, 0, 3))
    box.idle()
    disk = disk_of(box)
    disk.kill()
    name = segment_name(box.store.usage()[-1].number)
    file = disk.open(name)
    head = bytearray(file.read(0, 64) or b"")
    ranges = int.from_bytes(head[56:60], "little")
    head += file.read(64, 16 * ranges) or b""
    head[8] = 9
    head[60:64] = crc32c(head[64:], crc32c(head[:60])).to_bytes(4, "little")
    file.write([bytes(head)], 0)
    before = file.read(0, 1 << 20)
    with pytest.raises(StorageError, match="log format 9"):
        box.open()
    assert disk.open(name).read(0, 1 << 20) == before


def test_runs_describe_themselves() -> None:
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
        {"seal_idle_ms": 0},
        {"footer_cache_bytes": -1},
    ],
)
def test_limits_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        StorageConfig(**bad)
