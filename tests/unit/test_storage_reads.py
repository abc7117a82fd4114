"""How reads keep out of the way of adds: slices, waiting off the loop, reading ahead; and how the
index of a sealed segment is taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from quire.storage import read_ahead, sealer
from quire.storage.reader import SLICE_BYTES
from quire.storage.segment import SegmentState, segment_name
from quire.storage.signals import NoLedger
from tests.support.storage import SMALL, StoreOnDisk, run, sim_disk

LARGE = replace(
    SMALL, segment_bytes=16 << 20, max_queued_bytes=32 << 20, max_group_bytes=1 << 20,
    footer_cache_bytes=1 << 20,
)  # fmt: skip


class Recorder:
    """`blocking.BlockingReader` that says what it was asked for."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.ahead: list[tuple[int, int]] = []
        self.waiting: list[Callable[[], None]] = []

    async def run(self, call: Any) -> Any:
        self.reads.append(call.args)
        return call()

    def start(self, call: Any, done: Callable[[], None]) -> None:
        self.ahead.append(call.args)
        self.waiting.append(done)

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()


def opened(config: Any = SMALL, cold: float = 0.0) -> tuple[StoreOnDisk, Recorder]:
    box = StoreOnDisk(sim_disk(1, cold_read_probability=cold), config)
    box.open()
    box.idle()
    recorder = Recorder()
    box.store._cold._blocking = box.store._ahead._blocking = recorder
    return box, recorder


def sealed(cold: float, entries: int, size: int, ledgers: int = 1) -> tuple[StoreOnDisk, Recorder]:
    """Entries of ledgers in turn, in one sealed segment."""
    box, recorder = opened(LARGE, cold)
    for at in range(0, entries, 20):
        places = range(at, min(entries, at + 20))
        box.append([(1 + n % ledgers, n // ledgers, bytes([n % 251]) * size) for n in places])
        box.pump()
    run(box.store.close())
    box.open()
    box.pump()
    box.store._cold._blocking = box.store._ahead._blocking = recorder
    return box, recorder


def only_sealed(box: StoreOnDisk) -> Any:
    [segment] = [s for s in box.store._catalogue.segments.values() if s.trailer is not None]
    return segment


def current(box: StoreOnDisk) -> Any:
    return box.store._appender.current


def turns(coroutine: Any) -> Iterator[Any]:
    """None for each turn of the loop that it gives to others, then its result."""
    try:
        while True:
            yield coroutine.send(None)
    except StopIteration as stop:
        yield stop.value


# -- slices -----------------------------------------------------------------------------------


def test_a_large_read_gives_others_a_turn_for_every_megabyte() -> None:
    box, _ = sealed(0.0, 120, 50_000)
    *waits, found = turns(box.store.read_blocking(1, 0, 200, 1 << 30))
    assert [bytes(entry) for entry in found] == list(box.written.values())
    assert len(waits) >= 120 * 50_000 // SLICE_BYTES - 1


@pytest.mark.parametrize("budget", [0, 49_999, 50_036, 1_200_000, 3_000_000, 3_000_100])
def test_slices_end_where_one_read_would(budget: int) -> None:
    box, _ = sealed(0.0, 120, 50_000)
    whole = box.store.read(1, 3, 100, budget)
    found = run(box.store.read_blocking(1, 3, 100, budget))
    assert [bytes(one) for one in found] == [bytes(one) for one in whole]
    assert len(found) == max(1, budget // (50_032 + 4))


def test_a_cold_read_fetches_nothing_twice() -> None:
    """It began from the front again whenever it had waited: fetched once, checked many times."""
    box, recorder = sealed(1.0, 200, 20_000)
    checked: list[int] = []
    load = box.store._reader._load

    def counted(*given: Any) -> Any:
        loaded = load(*given)
        checked.append(given[1])
        return loaded

    box.store._reader._load = counted  # type: ignore[method-assign,assignment]
    found = run(box.store.read_blocking(1, 0, 1_000, 1 << 30))
    assert [bytes(entry) for entry in found] == list(box.written.values())
    assert len(set(recorder.reads)) == len(recorder.reads)
    assert len(checked) > 5
    assert len(set(checked)) == len(checked)


def test_a_ledger_that_goes_between_two_slices_ends_the_read() -> None:
    box, _ = sealed(0.0, 120, 50_000)
    reading = box.store.read_blocking(1, 0, 200, 1 << 30)
    assert next(turns(reading)) is None
    box.store.drop_ledgers([1])
    *_, found = turns(reading)
    assert 0 < len(found) < 120
    assert [bytes(entry) for entry in found] == list(box.written.values())[: len(found)]
    with pytest.raises(NoLedger):
        run(box.store.read_blocking(1, 0, 1, 100))


def test_damage_behind_the_first_slice_ends_the_read_and_is_told_by_the_next() -> None:
    box, _ = sealed(0.0, 120, 50_000)
    segment = next(iter(box.store._catalogue.segments.values()))
    box.disk.flip_bit(segment_name(segment.number), 4_000_000, 1)  # type: ignore[attr-defined]
    found = run(box.store.read_blocking(1, 0, 200, 1 << 30))
    assert SLICE_BYTES < sum(map(len, found)) < 4_000_000
    assert [bytes(entry) for entry in found] == list(box.written.values())[: len(found)]


# -- reading ahead ----------------------------------------------------------------------------


def read_on(box: StoreOnDisk, first: int, count: int) -> int:
    return first + len(run(box.store.read_blocking(1, first, count, 1 << 30)))


def test_a_reader_that_goes_on_finds_what_comes_next_in_the_cache() -> None:
    box, recorder = sealed(1.0, 240, 50_000)
    at = 0
    while at < 240:
        at = read_on(box, at, 10)
        recorder.finish()
    segment = only_sealed(box)
    assert recorder.ahead
    ends = [offset + size for offset, size in recorder.ahead]
    assert all(end <= offset for end, (offset, _) in zip(ends, recorder.ahead[1:]))  # nothing twice
    assert all(size <= read_ahead.STEP_BYTES for _, size in recorder.ahead)
    assert ends[-1] <= segment.end
    assert box.store._ahead.asked_bytes == sum(size for _, size in recorder.ahead)
    recorder.finish()
    assert segment.readers == 0


def test_it_goes_no_farther_ahead_than_its_bound_and_waits_for_one_step_at_a_time() -> None:
    box, recorder = sealed(1.0, 240, 50_000)
    at = 0
    for _ in range(4):
        at = read_on(box, at, 10)
    assert len(recorder.waiting) == 1
    while recorder.waiting:
        recorder.finish()
    [follow] = box.store._ahead._follows.values()
    assert follow.until - follow.end == read_ahead.AHEAD_BYTES


def test_single_looks_read_nothing_ahead() -> None:
    box, recorder = sealed(1.0, 240, 50_000)
    for entry_id in (3, 200, 50, 51, 120, 7):
        read_on(box, entry_id, 1)
    assert not recorder.ahead


def test_ledgers_that_share_a_segment_are_not_read_ahead() -> None:
    """It would bring mostly what belongs to others."""
    box, recorder = sealed(1.0, 240, 50_000, ledgers=4)
    at = 0
    while at < 60:
        at = read_on(box, at, 5)
    assert not recorder.ahead


def test_what_is_cached_is_not_brought_into_the_cache() -> None:
    box, recorder = sealed(0.0, 240, 50_000)
    at = 0
    while at < 240:
        at = read_on(box, at, 10)
    assert not recorder.ahead
    assert not recorder.reads


def test_so_many_readers_are_followed() -> None:
    box, _ = opened()
    box.append([(1, 0, b"x")])
    box.pump()
    segment = next(iter(box.store._catalogue.segments.values()))
    for ledger_id in range(read_ahead.FOLLOWED_MAX + 10):
        box.store._ahead.waits(ledger_id, 0, segment)
    assert len(box.store._ahead._follows) == read_ahead.FOLLOWED_MAX
    assert not box.store._ahead.is_followed(0, segment)


def test_a_segment_that_goes_while_it_is_read_ahead_is_closed_behind_it() -> None:
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


def test_a_sealed_segment_is_taken_over_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers are read, added to, dropped and made again between any two of them."""
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
    from quire.storage import sealed_rows

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
        pass  # what was scheduled finds a closed store
    assert segment.state is SegmentState.CLOSED
    assert box.open().clean
    for (ledger_id, entry), data in box.written.items():
        assert box.read(ledger_id, entry) == [data]


def test_nothing_that_is_written_needs_a_look_at_all_objects_to_be_freed() -> None:
    """Runs and their batch named each other: a ring that only the collector could break."""
    import gc
    import weakref

    from quire.storage.batch import Batch
    from tests.support.storage import make_batch

    class Watched(Batch):
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
