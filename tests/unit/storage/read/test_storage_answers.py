"""The store's answers to reads: which entries, from which copies, and around damage."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from quire.errors import DamagedError
from quire.storage.read.read_exceptions import NoEntry, NoLedger, WouldBlock
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.segment import segment_name
from quire.storage.worker import InlineReader
from tests.support.storage.storage import (
    SMALL,
    disk_of,
    entries,
    fill_segments,
    key_of,
    make_batch,
    opened,
    run,
)


def test_a_read_distinguishes_a_missing_ledger_from_a_missing_entry() -> None:
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
def test_a_read_stops_before_the_entry_that_would_exceed_its_budget(state: str) -> None:
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


def test_the_newest_of_several_copies_is_served() -> None:
    """Recovery writes an entry again, with other metadata."""
    box = opened()

    def write(entry_id: int, lac: int) -> bytes:
        batch = make_batch([(1, entry_id, b"same payload")])
        frame = bytearray(batch.buffers[0])  # type: ignore[index]
        frame[44:52] = lac.to_bytes(8, "big", signed=True)
        box.store.append(LogBatch([bytes(frame)], batch.runs), lambda batch, error: None)
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


def test_an_intact_copy_is_served_instead_of_a_damaged_one() -> None:
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
def test_a_frame_that_contradicts_the_index_is_damage(wrong: Run) -> None:
    box = opened()
    batch = make_batch([(1, 0, bytes(100)), (1, 1, bytes(100))])
    for ledger_id in (1, 2):
        box.store.create_ledger(ledger_id, key_of(ledger_id))
    assert batch.runs[0].frame_size == 160
    box.store.append(LogBatch(batch.buffers or (), [wrong]), lambda batch, error: None)
    for count in (1, 2):
        with pytest.raises(DamagedError):
            box.read(wrong.ledger_id, wrong.first, count)
        box.pump()
        with pytest.raises(DamagedError):
            box.read(wrong.ledger_id, wrong.first, count)


def test_a_read_after_a_damaged_entry_succeeds() -> None:
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
    """It once closed the file of the segment that the stop still had to write (found by the
    simulator).
    """
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
