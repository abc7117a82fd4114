"""The runs of a ledger that are read together, their extents, and what of them is trusted."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

from quire.codec.log.footer import CONSECUTIVE, LedgerRows
from quire.codec.wire.v2 import FRAME_HEADER_BYTES
from quire.storage.read.gather_read import (
    ENTRIES_MAX,
    GATHERED_BYTES,
    GATHERED_EXTENTS_MAX,
    PASSED_MAX_BYTES,
    RUNS_MIN,
    SPREAD_MAX,
    GatherRead,
    plan_gather_read,
)
from quire.storage.segment.segment import LogSegment

LEDGER = 7
SIZE = 200
SEGMENT = LogSegment(1, None, 1 << 30)
PLENTY = 1 << 30


def rows_of(
    counts: list[int], *, sizes: list[int] | None = None, apart: int = 5_000, first: int = 0
) -> LedgerRows:
    """Return rows of this number of entries each, at offsets that are `apart` bytes apart."""
    firsts = [first + before for before in accumulate(counts, initial=0)][:-1]
    at = [first_of - first for first_of in firsts]
    return LedgerRows(
        firsts=firsts,
        offsets=[10_000 + apart * row for row in range(len(counts))],
        counts=counts,
        frame_sizes=[SIZE if sizes is None else 0] * len(counts),
        sizes_at=[0] * len(counts) if sizes is None else at,
        ids_at=[CONSECUTIVE] * len(counts),
        sizes=sizes or [],
        ids=[],
    )


def found(
    rows: LedgerRows, entry_id: int = 0, most: int = 1_000, max_bytes: int = PLENTY
) -> GatherRead | None:
    return plan_gather_read(SEGMENT, LEDGER, rows, entry_id, most, max_bytes, 4)


def some(
    rows: LedgerRows, entry_id: int = 0, most: int = 1_000, max_bytes: int = PLENTY
) -> GatherRead:
    gathering = found(rows, entry_id, most, max_bytes)
    assert gathering is not None
    for one in gathering.extents:
        assert one.offset % 4096 == one.size % 4096 == 0
        assert one.offset <= one.runs[0][0] < one.offset + 4096
        assert one.end - 4096 < one.runs[-1][1] <= one.end
    assert all(one.end <= two.offset for one, two in pairwise(gathering.extents))
    assert sum(end - start for start, end in runs_of(gathering)) == sum(gathering.sizes)
    return gathering


def runs_of(gathering: GatherRead) -> list[tuple[int, int]]:
    return [run for extent in gathering.extents for run in extent.runs]


def read_bytes(gathering: GatherRead) -> int:
    return sum(extent.size for extent in gathering.extents)


def test_a_gathered_read_may_begin_and_end_within_runs() -> None:
    gathering = some(rows_of([3] * 20, first=90), 91, most=25)
    assert gathering.first == 91
    runs = runs_of(gathering)
    assert runs[0] == (10_000 + SIZE, 10_000 + 3 * SIZE)
    assert runs[1] == (15_000, 15_000 + 3 * SIZE)
    assert len(gathering.sizes) == 25
    assert runs[-1] == (50_000, 50_000 + 2 * SIZE)
    assert len(gathering.extents) == 1


def test_runs_with_frames_of_different_sizes_are_gathered() -> None:
    sizes = [100 + 7 * n for n in range(60)]
    gathering = some(rows_of([3] * 20, sizes=sizes), 2, most=30)
    assert list(gathering.sizes) == sizes[2:32]
    assert runs_of(gathering)[0] == (10_000 + sum(sizes[:2]), 10_000 + sum(sizes[:3]))
    assert runs_of(gathering)[1] == (15_000, 15_000 + sum(sizes[3:6]))


def test_entries_over_the_byte_budget_are_not_gathered() -> None:
    """The budget is counted as in `LedgerStore.read`.

    It counts each entry without its head in the file, plus four bytes.
    """
    each = SIZE - FRAME_HEADER_BYTES + 4
    assert len(some(rows_of([3] * 40), max_bytes=50 * each).sizes) == 50
    assert len(some(rows_of([3] * 40), max_bytes=50 * each - 1).sizes) == 49
    assert found(rows_of([3] * 40), max_bytes=0) is None
    assert found(rows_of([3] * 40), max_bytes=-5) is None


@pytest.mark.parametrize("apart", [2_500, 6_000, 10_000])
def test_a_gathered_read_stays_within_its_limits(apart: int) -> None:
    """The limits may be exceeded only by the rest of each extent's last block."""
    gathering = some(rows_of([1] * 1_000, apart=apart))
    rounded = 4096 * (1 + len(gathering.extents))
    assert read_bytes(gathering) <= GATHERED_BYTES + rounded
    if len(gathering.extents) < GATHERED_EXTENTS_MAX:
        assert read_bytes(gathering) >= GATHERED_BYTES - apart - rounded
    assert len(some(rows_of([12] * 500, apart=2_500), most=PLENTY).sizes) == ENTRIES_MAX
    long = rows_of([3] * 9 + [1_000_000] + [1], apart=5_000)
    assert read_bytes(some(long, most=PLENTY)) <= GATHERED_BYTES + 4096


def test_runs_that_are_far_apart_get_separate_extents() -> None:
    assert len(some(rows_of([1] * 20, apart=SPREAD_MAX * SIZE)).extents) == 1
    far = some(rows_of([1] * 1_000, apart=4096 + (2 * SPREAD_MAX + 1) * SIZE + 1))
    assert len(far.extents) == len(runs_of(far)) == GATHERED_EXTENTS_MAX
    assert all(len(one.runs) == 1 for one in far.extents)
    assert {one.size for one in far.extents} <= {4096, 8192}
    offsets = [10_000 + 3_000 * row + 200_000 * (row // 4) for row in range(40)]
    groups = some(replace(rows_of([1] * 40), offsets=offsets))
    assert [len(one.runs) for one in groups.extents] == [4] * 10


def test_a_small_gap_after_dense_runs_is_read_over() -> None:
    """Reading on costs less than a new read, but only up to a limit."""
    for gap, extents in ((PASSED_MAX_BYTES - 5_000, 1), (PASSED_MAX_BYTES + 5_000, 2)):
        offsets = [10_000 + 1_500 * row + gap * (row // 50) for row in range(60)]
        one = some(replace(rows_of([1] * 60), offsets=offsets))
        assert len(one.extents) == extents


@pytest.mark.parametrize("gaps", [(100,), (3_000,), (5_000,), (30_000,), (0, 3_000, 200_000)])
@pytest.mark.parametrize("sizes", [(60,), (200,), (60, 200, 3_000)])
def test_no_block_is_read_twice(sizes: tuple[int, ...], gaps: tuple[int, ...]) -> None:
    """The helper `some` checks the extents that it returns."""
    rng = random.Random(1)
    for _ in range(20):
        each = rng.choices(sizes, k=60)
        starts = accumulate(rng.choice(gaps) + size for size in (rng.randrange(4_096), *each))
        rows = replace(rows_of([1] * 60), offsets=list(starts)[:60], frame_sizes=each)
        assert some(rows, rng.randrange(40)).extents


def test_a_small_number_of_runs_is_not_gathered() -> None:
    assert found(rows_of([1] * RUNS_MIN)) is not None
    assert found(rows_of([1] * (RUNS_MIN - 1))) is None
    assert found(rows_of([1] * 100), most=RUNS_MIN - 1) is None
    assert found(rows_of([1] * 100, first=5), 4) is None
    assert found(rows_of([3] * 100), 300) is None


def test_gathering_ends_before_gaps_size_lists_and_backward_offsets() -> None:
    rows = rows_of([2] * 30)
    gap = replace(rows, firsts=[one + (row >= 12) for row, one in enumerate(rows.firsts)])
    assert len(runs_of(some(gap))) == 12
    listed = replace(rows, ids_at=[0 if row == 13 else CONSECUTIVE for row in range(30)])
    assert len(runs_of(some(listed))) == 13
    # A recovery wrote missing entries after later ones.
    offsets = list(rows.offsets)
    offsets[14], offsets[15] = offsets[15], offsets[14]
    assert len(runs_of(some(replace(rows, offsets=offsets)))) == 15


@pytest.mark.parametrize("apart", [1_000, 50_000])
@pytest.mark.parametrize("sizes", [None, [150 + n for n in range(40)]], ids=["equal", "any"])
def test_frames_that_differ_from_the_index_are_refused(sizes: list[int] | None, apart: int) -> None:
    gathering = some(rows_of([2] * 20, sizes=sizes, apart=apart))
    assert len(gathering.extents) == (1 if apart == 1_000 else 20)
    data, lengths = bytearray(1 << 21), iter(gathering.sizes)
    at = {}
    for entry_id, (start, size) in enumerate(
        (start + before, size)
        for start, _ in runs_of(gathering)
        for before, size in _two_of(next(lengths), next(lengths))
    ):
        at[entry_id] = start
        struct.pack_into(">I", data, start, size - 4)
        struct.pack_into(">qq", data, start + FRAME_HEADER_BYTES, LEDGER, entry_id)

    def pieces(file: bytearray) -> list[bytes]:
        return [bytes(file[one.offset : one.end]) for one in gathering.extents]

    run = gathering.run(pieces(data))
    assert run is not None
    assert [entry[8:16] for entry in run.entries()] == [n.to_bytes(8, "big") for n in range(40)]
    assert [len(entry) + FRAME_HEADER_BYTES for entry in run.entries()] == list(gathering.sizes)
    for entry_id, within in ((5, 0), (17, FRAME_HEADER_BYTES), (30, FRAME_HEADER_BYTES + 15)):
        wrong = bytearray(data)
        wrong[at[entry_id] + within] ^= 1
        assert gathering.run(pieces(wrong)) is None


def _two_of(first: int, second: int) -> list[tuple[int, int]]:
    return [(0, first), (first, second)]
