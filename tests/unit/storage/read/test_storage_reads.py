"""How reads avoid delaying adds.

They use slices, wait off the event loop, and read ahead. The index of a sealed segment is taken
over.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from quire.errors import DamagedError
from quire.storage.background import sealer
from quire.storage.read import cold_reads, read_ahead
from quire.storage.read import gather_read as gathering
from quire.storage.read.gather_read import GATHERED_BYTES
from quire.storage.read.read_exceptions import NoEntry, NoLedger, WouldBlock
from quire.storage.read.reader import SCATTERED_BYTES, SLICE_BYTES
from quire.storage.segment.segment import SegmentState, segment_name
from quire.storage.worker import InlineReader, ThreadReader
from quire_simulator.machine.disk import SimDisk, SimFile
from tests.support.storage.reads import (
    LARGE,
    Recorder,
    answer,
    only_sealed,
    opened,
    sealed,
    written_of,
)
from tests.support.storage.storage import SMALL, StoreOnDisk, compact, disk_of, run

FAR = 80
"""A number of ledgers in turn at which the entries between two of one ledger are not read."""


def current(box: StoreOnDisk) -> Any:
    return box.store._appender.current


def turns(coroutine: Any) -> Iterator[Any]:
    """Yield None for each event-loop iteration that it gives to others, then its result."""
    try:
        while True:
            yield coroutine.send(None)
    except StopIteration as stop:
        yield stop.value


# -- slices -----------------------------------------------------------------------------------


def test_a_large_read_yields_to_the_event_loop_after_every_megabyte() -> None:
    box, _ = sealed(0.0, 120, 50_000)
    *waits, found = turns(box.store.read_blocking(1, 0, 200, 1 << 30))
    assert [bytes(entry) for entry in found] == list(box.written.values())
    assert len(waits) >= 120 * 50_000 // SLICE_BYTES - 1


@pytest.mark.parametrize("budget", [0, 49_999, 50_036, 1_200_000, 3_000_000, 3_000_100])
def test_a_sliced_read_returns_the_same_entries_as_a_single_read(budget: int) -> None:
    box, _ = sealed(0.0, 120, 50_000)
    whole = box.store.read(1, 3, 100, budget)
    found = run(box.store.read_blocking(1, 3, 100, budget))
    assert [bytes(one) for one in found] == [bytes(one) for one in whole]
    assert len(found) == max(1, budget // (50_032 + 4))


def test_a_cold_read_fetches_nothing_twice() -> None:
    """The read once began again after each wait, with one fetch and many checks."""
    box, recorder = sealed(1.0, 200, 20_000)
    checked: list[int] = []
    frames = box.store._reader._frames

    def counted(*given: Any) -> Any:
        loaded = frames(*given)
        checked.append(given[0].start)
        return loaded

    box.store._reader._frames = counted  # type: ignore[method-assign,assignment]
    found = run(box.store.read_blocking(1, 0, 1_000, 1 << 30))
    assert [bytes(entry) for entry in found] == list(box.written.values())
    assert len(set(recorder.reads)) == len(recorder.reads)
    assert len(checked) > 5
    assert len(set(checked)) == len(checked)


@pytest.mark.parametrize("size", [400, 900])
def test_scattered_runs_are_fetched_many_at_a_time(size: int) -> None:
    """A ledger that took entries in turn with others once needed a thread call for each."""
    box, recorder = sealed(1.0, 8_000, size, ledgers=FAR)
    found = run(box.store.read_blocking(3, 0, 1_000, 1 << 30))
    assert [bytes(entry) for entry in found] == written_of(box, 3)
    assert recorder.calls < len(found) // 20
    assert all(bytes <= SCATTERED_BYTES for _, bytes in recorder.reads[3:])


@pytest.mark.parametrize("size", [60, 900, 6_000])
def test_adjacent_runs_are_read_in_one_request(size: int) -> None:
    box, recorder = sealed(1.0, 2_000, size, ledgers=10)
    found = run(box.store.read_blocking(3, 0, 1_000, 1 << 30))
    assert [bytes(entry) for entry in found] == written_of(box, 3)
    assert len(recorder.reads) <= 4 + 2_000 * (size + 100) // GATHERED_BYTES


@pytest.mark.parametrize("ledgers", [10, FAR])
@pytest.mark.parametrize("budget", [0, 2_000, 30_000, 100_000])
def test_a_scattered_read_returns_the_same_entries_as_a_single_read(
    budget: int, ledgers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm, _ = sealed(0.0, 200 * ledgers, 900, ledgers=ledgers)
    box, recorder = sealed(1.0, 200 * ledgers, 900, ledgers=ledgers)
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "RUNS_MIN", 1 << 30)
        wanted = [bytes(one) for one in warm.store.read(3, 5, 90, budget)]
    assert [bytes(one) for one in run(box.store.read_blocking(3, 5, 90, budget))] == wanted
    assert len(recorder.reads) <= len(wanted) + 3  # nothing is fetched that does not fit


def in_turn(rng: random.Random) -> Iterator[list[tuple[int, int, bytes]]]:
    """Return batches of ledgers in turn.

    Runs have one or some entries, of one size, mostly of one, or of any, sometimes with gaps.
    """
    longest, odd = rng.choice((1, 1, 3, 6)), rng.choice((0.0, 0.02, 1.0))
    ledgers = rng.choice((5, FAR))
    usual, upcoming = rng.randrange(50, 3_000), [0] * ledgers
    for _ in range(30):
        batch = []
        for number in range(max(20, ledgers)):
            ledger = number % ledgers
            for _ in range(rng.randint(1, longest)):
                entry_id = upcoming[ledger]
                upcoming[ledger] += 1
                size = rng.randrange(50, 3_000) if rng.random() < odd else usual
                if rng.random() < 0.995:
                    batch.append((1 + ledger, entry_id, bytes([entry_id % 251]) * size))
        yield batch


@pytest.mark.parametrize("seed", range(24))
def test_a_gathered_read_returns_the_same_entries_as_separate_reads(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any contents and any damage."""
    rng = random.Random(seed)
    box, _ = opened(LARGE, 1.0)
    for batch in in_turn(rng):
        box.append(batch)
        box.pump()
    run(box.store.close())
    box.open()
    box.pump()
    segment, disk = only_sealed(box), box.disk
    assert isinstance(disk, SimDisk)
    for _ in range(rng.choice((0, 1, 3))):
        disk.flip_bit(segment.name, rng.randrange(segment.groups_at, segment.end), 1)

    def all_of(ledger_id: int) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        at, chance = 0, random.Random(seed)
        while at <= box.store.last_entry_id(ledger_id):
            try:
                most = chance.choice((10, 50, 1_000))
                some = run(box.store.read_blocking(ledger_id, at, most, 200_000))
                found += [(at + n, bytes(entry)) for n, entry in enumerate(some)]
                at += len(some)
            except DamagedError:
                found.append((at, None))
                at += 1
            except NoEntry:
                at += 1
        return found

    gathered: list[int] = []
    real = gathering.GatherRead.run

    def noted(one: Any, pieces: Any) -> Any:
        gathered.append(len(one.sizes))
        return real(one, pieces)

    monkeypatch.setattr(gathering.GatherRead, "run", noted)
    together = [all_of(ledger_id) for ledger_id in range(1, 6)]
    assert gathered
    monkeypatch.setattr(gathering, "RUNS_MIN", 1 << 30)
    assert [all_of(ledger_id) for ledger_id in range(1, 6)] == together


@pytest.mark.parametrize("ledgers", [10, FAR])
def test_scattered_runs_are_not_read_on_the_event_loop(ledgers: int) -> None:
    """Reading cached entries singly took 40 us each on the event loop."""
    box, _ = sealed(0.0, 200 * ledgers, 900, ledgers=ledgers)
    with pytest.raises(WouldBlock):
        box.store.read(3, 0, 100, 1 << 30)
    assert [bytes(one) for one in box.store.read(3, 5, 1, 1 << 30)] == [written_of(box, 3)[5]]
    assert len(box.store.read(3, 0, 3, 1 << 30)) == 3
    assert len(box.store.read(3, 0, 100, 3_000)) == 3


def test_damage_in_entries_of_other_ledgers_does_not_affect_a_read() -> None:
    """Entries of other ledgers in between are read too, and may be damaged."""
    box, recorder = sealed(1.0, 2_000, 6_000, ledgers=10)
    run(box.store.read_blocking(3, 0, 1, 1 << 30))
    waits = box.store._reader.upcoming(box.store._catalogue.ledgers[3], 30, 1, 1 << 20, 4)
    assert waits is not None
    disk = box.disk
    assert isinstance(disk, SimDisk)
    disk.flip_bit(waits.segment.name, waits.offset + 5 * 6_000, 1)
    del recorder.reads[:]
    found = run(box.store.read_blocking(3, 0, 1_000, 1 << 30))
    assert [bytes(entry) for entry in found] == written_of(box, 3)
    assert max(size for _, size in recorder.reads) > GATHERED_BYTES // 2


@pytest.mark.parametrize("ledgers", [10, FAR])
def test_a_scattered_read_ends_before_a_damaged_entry(ledgers: int) -> None:
    box, _ = sealed(1.0, 200 * ledgers, 900, ledgers=ledgers)
    written, reader = written_of(box, 3), box.store._reader
    run(box.store.read_blocking(3, 0, 1, 1 << 30))  # the index is known then
    waits = reader.upcoming(box.store._catalogue.ledgers[3], 30, 1, 1 << 20, 4)
    assert waits is not None
    assert waits.entries
    disk = box.disk
    assert isinstance(disk, SimDisk)
    disk.flip_bit(waits.segment.name, waits.offset + 100, 1)
    before = [bytes(one) for one in run(box.store.read_blocking(3, 0, 1_000, 1 << 30))]
    assert before == written[: len(before)]
    assert 20 < len(before) <= 30
    with pytest.raises(DamagedError):
        run(box.store.read_blocking(3, 30, 10, 1 << 30))
    behind = run(box.store.read_blocking(3, 40, 10, 1 << 30))
    assert [bytes(one) for one in behind] == written[40:50]


def test_large_cached_extents_are_read_on_the_event_loop() -> None:
    """No thread is woken for them."""
    box, recorder = sealed(0.0, 240, 50_000)
    whole = answer(box, 1, 0, 1 << 30)
    assert whole == list(box.written.values())
    assert not recorder.reads
    assert not recorder.aheads
    box, recorder = sealed(0.0, 2_000, 100, ledgers=10)
    assert answer(box, 3, 0, 1 << 30) == written_of(box, 3)
    assert recorder.reads  # Small ones are put together on a thread, and each piece is read once.
    assert len(set(recorder.reads)) == len(recorder.reads)


def test_a_thread_repeats_a_read_that_lacked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread reports the failure. On the event loop nobody would have got an answer."""
    box, recorder = sealed(0.0, 40, 50_000)
    box.read(1, 0)
    read = SimFile.read

    def no_memory(file: SimFile, offset: int, size: int, *, wait: bool = True) -> bytes | None:
        if not wait and not recorder.calls:
            raise MemoryError
        return read(file, offset, size, wait=wait)

    monkeypatch.setattr(SimFile, "read", no_memory)
    assert answer(box, 1, 0, 1 << 30) == list(box.written.values())
    assert recorder.calls


def test_a_thread_reads_a_large_extent_that_turns_out_to_be_uncached() -> None:
    box, recorder = sealed(0.0, 240, 50_000)
    disk = disk_of(box)
    reading = box.store.read_blocking(1, 0, 1_000, 1 << 30)
    for _ in range(5):
        reading.send(None)
    assert not recorder.reads
    disk.cold_read_probability = 1.0
    *_, found = turns(reading)
    assert [bytes(one) for one in found] == list(box.written.values())
    pieces = [size for _, size in recorder.reads if size > cold_reads.LARGE_BYTES]
    assert len(pieces) > 5
    assert not recorder.waited  # By then its reader is followed, and no request is repeated.


class Later(Recorder):
    """A reader whose data arrives when the test says so."""

    def read(self, call: Any, done: Callable[[Any], None]) -> None:
        _, offset, size, *_ = call.args
        self.reads.append((offset, size))
        self.waiting.append(lambda: done(call()))


async def test_the_next_extent_is_read_while_the_previous_one_is_parsed() -> None:
    box, _ = sealed(1.0, 120, 50_000)
    later = box.store._cold._blocking = Later()
    reading = asyncio.ensure_future(box.store.read_blocking(1, 0, 120, 1 << 30))
    most = 0
    while not reading.done():
        await asyncio.sleep(0)
        most = max(most, len(later.waiting))
        if later.waiting:
            later.waiting.pop(0)()
    assert most == 2
    assert [bytes(one) for one in reading.result()] == list(box.written.values())
    assert len(set(later.reads)) == len(later.reads)


async def test_a_cancelled_read_keeps_the_file_until_the_thread_has_read() -> None:
    box, _ = sealed(0.0, 120, 50_000)
    box.read(1, 0)
    disk_of(box).cold_read_probability = 1.0
    later = box.store._cold._blocking = Later()
    reading = asyncio.ensure_future(box.store.read_blocking(1, 0, 120, 1 << 30))
    await asyncio.sleep(0)
    segment = only_sealed(box)
    assert segment.readers == len(later.waiting) == 2
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    box.drop([1])
    box.idle()
    assert segment.state is SegmentState.RETIRED
    assert segment.file is not None
    later.finish()
    assert segment.readers == 0
    assert segment.file is None


async def test_a_read_interrupted_by_a_stop_is_cancelled_and_not_damaged() -> None:
    box, _ = sealed(1.0, 20, 50_000)

    class Closing(Recorder):
        def read(self, call: Any, done: Callable[[Any], None]) -> None:
            done(None)

    box.store._cold._blocking = Closing()
    with pytest.raises(asyncio.CancelledError):
        await box.store.read_blocking(1, 0, 20, 1 << 30)
    assert box.store.stats().damaged_reads == 0


def test_a_read_that_lacks_memory_fails_with_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader was once cancelled without reason, and its peer waited in vain."""
    box, _ = sealed(1.0, 20, 5_000)

    def no_memory(data: Any) -> list[int]:
        raise MemoryError

    async def read() -> None:
        reader = ThreadReader(asyncio.get_running_loop())
        box.store._cold._blocking = reader
        try:
            with pytest.raises(DamagedError):
                await box.store.read_blocking(1, 0, 1, 1 << 20)
        finally:
            reader.close()

    monkeypatch.setattr(cold_reads, "checksums_of", no_memory)
    asyncio.run(read())


def test_a_ledger_dropped_between_two_slices_ends_the_read() -> None:
    box, _ = sealed(0.0, 120, 50_000)
    reading = box.store.read_blocking(1, 0, 200, 1 << 30)
    assert next(turns(reading)) is None
    box.store.drop_ledgers([1])
    *_, found = turns(reading)
    assert 0 < len(found) < 120
    assert [bytes(entry) for entry in found] == list(box.written.values())[: len(found)]
    with pytest.raises(NoLedger):
        run(box.store.read_blocking(1, 0, 1, 100))


def test_damage_after_the_first_slice_is_reported_by_the_next_read() -> None:
    box, _ = sealed(0.0, 120, 50_000)
    segment = next(iter(box.store._catalogue.segments.values()))
    box.disk.flip_bit(segment_name(segment.number), 4_000_000, 1)  # type: ignore[attr-defined]
    found = run(box.store.read_blocking(1, 0, 200, 1 << 30))
    assert SLICE_BYTES < sum(map(len, found)) < 4_000_000
    assert [bytes(entry) for entry in found] == list(box.written.values())[: len(found)]


# -- which entries there are ------------------------------------------------------------------


def many_segments(ledgers: int, rounds: int) -> tuple[StoreOnDisk, Recorder]:
    """Return a store with entries of ledgers in turn, with gaps, in many small segments.

    The cache holds none of their indexes for long.
    """
    box, recorder = opened(replace(SMALL, footer_cache_bytes=1), cold=1.0)
    for number in range(rounds):
        box.append([(1 + n % ledgers, number * 20 + n // ledgers, b"x" * 300) for n in range(40)])
        box.pump()
    box.idle()
    return box, recorder


def test_listing_the_ranges_of_a_ledger_reads_each_segment_once() -> None:
    """Indexes were once fetched again for each later segment, or kept for all."""
    box, recorder = many_segments(8, 60)
    numbers = box.store.ledgers[3].sealed_numbers
    assert len(numbers) > 8
    held: list[int] = []
    rows_in = box.store._reader.rows_in

    def counted(segment: Any, ledger_id: int, have: Any) -> Any:
        held.append(len(have))
        return rows_in(segment, ledger_id, have)

    box.store._reader.rows_in = counted  # type: ignore[method-assign]
    recorder.reads.clear()
    found = run(box.store.entry_ranges(3))
    assert found == [(number * 20, number * 20 + 4) for number in range(60)]
    assert len(recorder.reads) <= 2 * len(numbers)  # a summary and the rows
    assert max(held) <= 2


def test_ranges_are_complete_even_if_segments_are_sealed_and_compacted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_reads, "ROWS_PER_TURN", 1)
    for seed in range(12):
        box, _ = many_segments(8, 40)
        at, total = 0, 40
        reading = turns(box.store.entry_ranges(3))
        done: Any = None
        while done is None:
            done = next(reading)
            if done is None and at % (seed + 1) == 0 and total < 80:
                box.append([(1 + n % 8, total * 20 + n // 8, b"x" * 300) for n in range(40)])
                total += 1
                if at == 3 * (seed + 1):
                    box.drop([1, 2, 4, 5, 6])
                box.store.check_space()
                box.pump()
            at += 1
        assert done[:40] == [(number * 20, number * 20 + 4) for number in range(40)]
        assert len(done) <= total


def test_ranges_are_complete_even_if_a_segment_is_sealed_after_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There was no space for its footer. The reader had passed it and did not check again."""
    write_footer = sealer.write_footer
    postponed: list[Any] = []

    def full_once(job: Any) -> Any:
        if not postponed:
            postponed.append(job.segment)
            raise OSError(errno.ENOSPC, "no room")
        return write_footer(job)

    monkeypatch.setattr(sealer, "write_footer", full_once)
    box, _ = many_segments(8, 20)
    [late] = postponed
    assert box.store.ledgers[3].sealed_numbers[0] > late.number
    reading = turns(box.store.entry_ranges(3))
    next(reading)  # It has been through a newer one.
    assert late.state is SegmentState.CLOSED
    box.store.check_space()
    box.pump()
    assert late.state is SegmentState.SEALED
    *_, found = reading
    assert found == [(number * 20, number * 20 + 4) for number in range(20)]


def test_a_ledger_dropped_while_its_ranges_are_read_does_not_exist() -> None:
    box, _ = many_segments(8, 40)
    reading = turns(box.store.entry_ranges(3))
    next(reading)
    box.drop([3])
    with pytest.raises(NoLedger):
        list(reading)


# -- reading ahead ----------------------------------------------------------------------------


def read_on(box: StoreOnDisk, first: int, count: int) -> int:
    return first + len(run(box.store.read_blocking(1, first, count, 1 << 30)))


def test_a_sequential_reader_is_read_ahead() -> None:
    box, recorder = sealed(1.0, 240, 50_000)
    at = 0
    while at < 240:
        at = read_on(box, at, 10)
        recorder.finish()
    segment = only_sealed(box)
    assert recorder.aheads
    ends = [offset + size for offset, size in recorder.aheads]
    assert all(
        end <= offset for end, (offset, _) in zip(ends, recorder.aheads[1:])
    )  # nothing twice
    assert all(size <= read_ahead.AHEAD_BYTES for _, size in recorder.aheads)
    assert ends[-1] <= segment.end
    assert box.store._ahead.asked_bytes == sum(size for _, size in recorder.aheads)
    recorder.finish()
    assert segment.readers == 0


def test_read_ahead_stays_within_its_bound_and_runs_one_step_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 4 << 20)
    monkeypatch.setattr(read_ahead, "STEP_BYTES", 1 << 20)
    box, recorder = sealed(1.0, 240, 50_000)
    at = 0
    for _ in range(4):
        at = read_on(box, at, 10)
    assert len(recorder.waiting) == 1
    while recorder.waiting:
        recorder.finish()
    [follow] = box.store._ahead._follows.values()
    ahead_bytes = follow.extents[0].until - follow.end
    assert read_ahead.AHEAD_BYTES - read_ahead.STEP_BYTES < ahead_bytes <= read_ahead.AHEAD_BYTES


def test_reading_a_ledger_again_reads_ahead_again() -> None:
    """The segment that a reader had read to its end was once not read ahead again."""
    box, recorder = sealed(1.0, 240, 50_000)
    asked = []
    for _ in range(2):
        at = 0
        while at < 240:
            at = read_on(box, at, 10)
            recorder.finish()
        asked.append(box.store._ahead.asked_bytes)
    assert asked[1] > 1.9 * asked[0]


def test_the_number_of_concurrent_read_ahead_calls_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "CALLS_MAX", 0)
    box, recorder = sealed(1.0, 240, 50_000)
    at = read_on(box, read_on(box, 0, 40), 40)
    assert not recorder.aheads
    monkeypatch.setattr(read_ahead, "CALLS_MAX", 1)
    read_on(box, at, 10)
    assert len(recorder.aheads) == box.store._ahead.calls == 1
    recorder.finish()
    recorder.finish()
    assert box.store._ahead.calls == 0


def test_random_reads_trigger_no_read_ahead() -> None:
    box, recorder = sealed(1.0, 240, 50_000)
    for entry_id in (3, 200, 50, 51, 120, 7):
        read_on(box, entry_id, 1)
    assert not recorder.aheads


def test_a_large_first_read_starts_read_ahead_at_once() -> None:
    """Read-ahead once started after two reads, a sixth of the time of a ledger of 42 MB."""
    box, recorder = sealed(1.0, 240, 50_000)
    read_on(box, 0, 15)  # 750,000 bytes
    [(offset, size)] = recorder.aheads
    assert offset <= box.store._ahead._follows[1].end <= offset + size
    assert size > read_ahead.THROUGH_BYTES


def test_a_small_first_read_starts_read_ahead_only_after_a_second_read() -> None:
    box, recorder = sealed(1.0, 240, 50_000)
    at = read_on(box, 0, 8)  # 400,000 bytes
    assert not recorder.aheads
    read_on(box, at, 8)
    assert len(recorder.aheads) == 1


def test_random_reads_of_large_entries_trigger_no_read_ahead() -> None:
    box, recorder = sealed(1.0, 40, 600_000)
    for entry_id in (3, 20, 35, 7, 12):
        read_on(box, entry_id, 1)
    assert not recorder.aheads


def test_ledgers_that_share_a_segment_are_not_read_ahead() -> None:
    """Reading ahead would mostly fetch data of other ledgers."""
    box, recorder = sealed(1.0, 240, 50_000, ledgers=4)
    at = 0
    while at < 60:
        at = read_on(box, at, 5)
    assert not recorder.aheads


def test_cached_data_is_not_read_ahead() -> None:
    box, recorder = sealed(0.0, 240, 50_000)
    at = 0
    while at < 240:
        at = read_on(box, at, 10)
    assert not recorder.aheads
    assert not recorder.reads


def test_the_number_of_followed_readers_is_limited() -> None:
    box, _ = opened()
    box.append([(1, 0, b"x")])
    box.pump()
    segment = next(iter(box.store._catalogue.segments.values()))
    for ledger_id in range(read_ahead.FOLLOWED_MAX + 10):
        box.store._ahead.waits(ledger_id, 0, segment)
    assert len(box.store._ahead._follows) == read_ahead.FOLLOWED_MAX
    assert not box.store._ahead.is_followed(0, segment)


class ColdFiles:
    """The system's cache: it has what was prefetched, and what was waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has: dict[str, set[int]] = {}
        """Pages of each file."""
        self.waits: list[tuple[str, int]] = []
        self.brought: list[str] = []
        read = SimFile.read

        def reading(file: SimFile, offset: int, size: int, *, wait: bool = True) -> bytes | None:
            pages, has = pages_of(offset, size), self.has.setdefault(file._name, set())
            if not pages <= has:
                if not wait:
                    return None
                self.waits.append((file._name, offset))
                has |= pages
            return read(file, offset, size)

        def prefetching(file: SimFile, offset: int, size: int) -> None:
            self.brought.append(file._name)
            self.has.setdefault(file._name, set()).update(pages_of(offset, size))

        monkeypatch.setattr(SimFile, "read", reading)
        monkeypatch.setattr(SimFile, "prefetch", prefetching)


class Bringing(Recorder):
    """Reads ahead at once. `finish` reports that it is done."""

    def ahead(self, call: Any, done: Callable[[], None]) -> None:
        call()
        super().ahead(call, done)


def pages_of(offset: int, size: int) -> set[int]:
    return set(range(offset // 4096, (offset + size - 1) // 4096 + 1))


def three_segments(ledgers: int = 1) -> tuple[StoreOnDisk, Recorder]:
    """Sealed, and one that is not."""
    box, _ = opened(replace(LARGE, segment_bytes=6 << 20, max_queued_bytes=8 << 20))
    entry_id = 0
    while box.store.stats().sealed_segments < 3:
        box.append([(1 + n % ledgers, entry_id + n, bytes(20_000)) for n in range(20)])
        entry_id += 20
        box.idle()
    recorder = Bringing()
    box.store._cold._blocking = box.store._ahead._blocking = recorder
    return box, recorder


def read_through(box: StoreOnDisk, recorder: Recorder) -> None:
    at = 0
    while at <= box.store.last_entry_id(1):
        at += len(run(box.store.read_blocking(1, at, 1 << 20, 1 << 20)))
        recorder.finish()


def test_a_reader_does_not_wait_at_the_start_of_the_next_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index and the first entries of the next segment are read ahead."""
    box, recorder = three_segments()
    files = ColdFiles(monkeypatch)
    read_through(box, recorder)
    assert {name for name, _ in files.waits} == {segment_name(1), current(box).name}
    assert {segment_name(2), segment_name(3)} <= set(files.brought)


def test_read_ahead_may_finish_before_its_call_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This happens with the simulator's disk. It was once requested endlessly."""
    box, recorder = three_segments()
    files = ColdFiles(monkeypatch)
    box.store._cold._blocking = box.store._ahead._blocking = InlineReader()
    read_through(box, recorder)
    assert segment_name(3) in {name for name, _ in files.waits}  # It brings nothing.


def test_cached_data_of_the_next_segment_is_not_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box, recorder = three_segments()
    files = ColdFiles(monkeypatch)
    files.has[segment_name(2)] = pages_of(0, 8 << 20)
    read_through(box, recorder)
    assert segment_name(1) in files.brought
    assert segment_name(2) not in files.brought


def test_shared_next_segments_are_not_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box, recorder = three_segments(ledgers=5)
    files = ColdFiles(monkeypatch)
    at = 0
    for _ in range(60):
        run(box.store.read_blocking(1, at, 1, 1 << 20))
        at += 5
        recorder.finish()
    assert files.brought == []


def test_a_ledger_with_its_oldest_entries_in_the_newest_segment_is_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compaction leads to this state. Only the segment with the next number was once checked."""
    eager = replace(
        LARGE, segment_bytes=6 << 20, max_queued_bytes=8 << 20,
        compact_minor_interval_s=0.0, compact_major_interval_s=0.0,
    )  # fmt: skip
    box, _ = opened(eager)
    entry_id = 0
    while (number := box.store.stats().sealed_segments) < 5:
        ledger_ids = (1, 2) if number in (0, 3) else (1,)
        box.append([(n, entry_id + at, bytes(20_000)) for at in range(10) for n in ledger_ids])
        entry_id += 10
        box.idle()
    box.drop([2])
    box.pump()
    assert compact(box)
    box.idle()
    assert not box.store.ledgers[1].ordered
    recorder = Bringing()
    box.store._cold._blocking = box.store._ahead._blocking = recorder
    files = ColdFiles(monkeypatch)
    read_through(box, recorder)
    [(first, _)] = box.store.ledgers[1].sealed_with(0)
    numbers = box.store.ledgers[1].sealed_numbers
    assert first != numbers[0]
    assert {name for name, _ in files.waits} == {segment_name(first), current(box).name}
    assert {segment_name(one) for one in numbers} <= set(files.brought)


def test_read_ahead_looks_up_the_next_segments_in_advance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of known segments is limited by a count and by a number of bytes."""
    monkeypatch.setattr(read_ahead, "AHEAD_EXTENTS_MAX", 2)
    box, recorder = three_segments()
    files = ColdFiles(monkeypatch)
    ahead, known = box.store._ahead, []
    at = 0
    while at <= box.store.last_entry_id(1):
        at += len(run(box.store.read_blocking(1, at, 20, 1 << 20)))
        recorder.finish()
        [follow] = ahead._follows.values()
        known.append([reach.segment.number for reach in follow.extents])
    assert [1, 2] in known
    assert [2, 3] in known
    assert max(map(len, known)) == 2
    monkeypatch.setattr(read_ahead, "AHEAD_EXTENTS_MAX", 4)
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 1 << 20)
    box, recorder = three_segments()
    files.has.clear()
    for at in range(0, 120, 20):
        run(box.store.read_blocking(1, at, 20, 1 << 20))
        recorder.finish()
    [follow] = box.store._ahead._follows.values()
    assert [reach.segment.number for reach in follow.extents] == [1]


def test_data_wrongly_taken_as_cached_is_read_ahead_once_a_read_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box, recorder = three_segments()
    files = ColdFiles(monkeypatch)
    files.has[segment_name(2)] = pages_of(0, 1 << 20) | pages_of(5 << 20, 3 << 20)
    read_through(box, recorder)
    waits = [offset for name, offset in files.waits if name == segment_name(2)]
    assert len(waits) == 1
    assert waits[0] <= 1 << 20
    assert segment_name(2) in files.brought


def test_a_segment_removed_during_read_ahead_is_closed_afterwards() -> None:
    box, recorder = sealed(1.0, 240, 50_000)
    at = 0
    for _ in range(4):
        at = read_on(box, at, 10)
    segment = only_sealed(box)
    assert segment.readers == 1
    box.drop([1])
    box.idle()
    assert segment.state is SegmentState.RETIRED
    assert segment.file is not None
    recorder.finish()
    assert segment.file is None
    assert not recorder.waiting


# -- taking over an index ---------------------------------------------------------------------


def test_a_sealed_segment_is_indexed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices, ledgers are read, added to, dropped and recreated."""
    monkeypatch.setattr(sealer, "LEDGERS_PER_SLICE", 3)
    box, _ = opened()
    segment = current(box)
    number = segment.number
    entry_id = 0
    while segment.state is SegmentState.CURRENT:
        box.append([(ledger_id, entry_id, b"x" * 300) for ledger_id in range(1, 11)])
        box.log.run()
        entry_id += 1
    box.pump()
    assert segment.state is SegmentState.CLOSED
    assert len(segment.parts) == 7
    assert box.store.stats().segments_to_seal == 1
    box.drop([2, 9])  # one that was taken over, one that was not
    box.append([(9, 0, b"again")])
    seen = []
    while segment.state is SegmentState.CLOSED:
        seen.append(len(segment.parts))
        for (ledger_id, entry), data in box.written.items():
            assert box.read(ledger_id, entry) == [data]
        assert box.timers.fire()
        box.pump()
    assert seen == [6, 3, 1]
    usage = {one.number: one for one in box.store.usage()}[number]
    infos = box.store.ledgers.values()
    alive = [row for info in infos for row in _rows(info) if row[0] == number]
    assert usage.live_ledgers == len(alive) == 8
    assert usage.live_bytes == sum(row[3] for row in alive)
    for (ledger_id, entry), data in box.written.items():
        assert box.read(ledger_id, entry) == [data]


def _rows(info: Any) -> Any:
    from quire.storage.segment import sealed_rows

    return sealed_rows.unpack(info.sealed)


def test_a_stop_between_two_slices_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealer, "LEDGERS_PER_SLICE", 1)
    box, _ = opened()
    segment = current(box)
    entry_id = 0
    while segment.state is SegmentState.CURRENT:
        box.append([(ledger_id, entry_id, b"x" * 300) for ledger_id in range(1, 6)])
        box.log.run()
        entry_id += 1
    box.pump()
    assert segment.parts
    timers = box.timers
    box.close()
    while timers.fire():
        pass  # The scheduled call finds a closed store.
    assert segment.state is SegmentState.CLOSED
    assert box.open().clean
    for (ledger_id, entry), data in box.written.items():
        assert box.read(ledger_id, entry) == [data]


def test_written_batches_are_freed_without_the_garbage_collector() -> None:
    """Runs and their batch once formed a reference cycle that only the collector could break."""
    import gc
    import weakref

    from quire.storage.segment.batch import LogBatch
    from tests.support.storage.storage import make_batch

    class Watched(LogBatch):
        pass

    box, _ = opened()
    box.append([(1, 0, b"first")])
    box.pump()
    gc.collect()
    gc.disable()
    try:
        made = make_batch([(1, 1, b"second")])
        watched = Watched(made.buffers or (), made.runs)
        gone = weakref.ref(watched)
        box.store.append(watched, lambda batch, error: None)
        del made, watched
        box.pump()
        box.drop([1])
        box.idle()
        assert gone() is None
    finally:
        gc.enable()
