"""Which runs of a ledger are read as one stretch, and what of it is believed."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import accumulate

import pytest

from quire.codec.frames import FRAME_HEADER_BYTES
from quire.codec.log_footer import CONSECUTIVE, LedgerRows
from quire.storage.gathering import (
    ENTRIES_MAX,
    RUNS_MIN,
    SPREAD_MAX,
    STRETCH_BYTES,
    Stretch,
    stretch_of,
)
from quire.storage.segment import Segment

LEDGER = 7
SIZE = 200
SEGMENT = Segment(1, None, 1 << 30)
PLENTY = 1 << 30


def rows_of(
    counts: list[int], *, sizes: list[int] | None = None, apart: int = 5_000, first: int = 0
) -> LedgerRows:
    """Runs of so many entries, one behind the other, `apart` bytes from start to start."""
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
) -> Stretch | None:
    return stretch_of(SEGMENT, LEDGER, rows, entry_id, most, max_bytes, 4)


def some(
    rows: LedgerRows, entry_id: int = 0, most: int = 1_000, max_bytes: int = PLENTY
) -> Stretch:
    stretch = found(rows, entry_id, most, max_bytes)
    assert stretch is not None
    return stretch


def test_a_stretch_begins_and_ends_within_runs() -> None:
    stretch = some(rows_of([3] * 20, first=90), 91, most=25)
    assert stretch.first == 91
    assert stretch.runs[0] == (10_000 + SIZE, 10_000 + 3 * SIZE)
    assert stretch.runs[1] == (15_000, 15_000 + 3 * SIZE)
    assert len(stretch.sizes) == 25
    assert stretch.runs[-1] == (50_000, 50_000 + 2 * SIZE)
    assert (stretch.offset, stretch.offset % 4096) == (8_192, 0)
    assert stretch.offset + stretch.size >= stretch.runs[-1][1]


def test_frames_of_different_sizes_are_found_too() -> None:
    sizes = [100 + 7 * n for n in range(60)]
    stretch = some(rows_of([3] * 20, sizes=sizes), 2, most=30)
    assert list(stretch.sizes) == sizes[2:32]
    assert stretch.runs[0] == (10_000 + sum(sizes[:2]), 10_000 + sum(sizes[:3]))
    assert stretch.runs[1] == (15_000, 15_000 + sum(sizes[3:6]))


def test_entries_that_do_not_fit_are_left() -> None:
    """As `LedgerStore.read` counts: entries without what the file has before them, and four bytes
    for each."""
    each = SIZE - FRAME_HEADER_BYTES + 4
    stretch = some(rows_of([3] * 40), max_bytes=50 * each)
    assert len(stretch.sizes) == 50
    assert len(some(rows_of([3] * 40), max_bytes=50 * each - 1).sizes) == 49
    assert found(rows_of([3] * 40), max_bytes=0) is None
    assert found(rows_of([3] * 40), max_bytes=-5) is None


def test_no_more_is_read_than_one_stretch() -> None:
    stretch = some(rows_of([1] * 1_000, apart=6_000))
    assert stretch.runs[-1][1] - stretch.runs[0][0] <= STRETCH_BYTES
    assert len(stretch.runs) == 1 + (STRETCH_BYTES - SIZE) // 6_000
    assert len(some(rows_of([12] * 500, apart=2_500), most=PLENTY).sizes) == ENTRIES_MAX
    long = rows_of([3] * 9 + [1_000_000] + [1], apart=5_000)
    stretch = some(long, most=PLENTY)
    assert stretch.runs[-1][1] - stretch.runs[0][0] <= STRETCH_BYTES


def test_what_is_far_apart_or_little_is_read_alone() -> None:
    assert found(rows_of([1] * 100, apart=SPREAD_MAX * SIZE)) is not None
    assert found(rows_of([1] * 100, apart=SPREAD_MAX * SIZE * 2)) is None
    assert found(rows_of([1] * RUNS_MIN)) is not None
    assert found(rows_of([1] * (RUNS_MIN - 1))) is None
    assert found(rows_of([1] * 100), most=RUNS_MIN - 1) is None
    assert found(rows_of([1] * 100, first=5), 4) is None
    assert found(rows_of([3] * 100), 300) is None


def test_it_ends_before_anything_out_of_the_ordinary() -> None:
    rows = rows_of([2] * 30)
    gap = replace(rows, firsts=[one + (row >= 12) for row, one in enumerate(rows.firsts)])
    assert len(some(gap).runs) == 12
    listed = replace(rows, ids_at=[0 if row == 13 else CONSECUTIVE for row in range(30)])
    assert len(some(listed).runs) == 13
    # A recovery has written what was missing behind what follows it.
    offsets = list(rows.offsets)
    offsets[14], offsets[15] = offsets[15], offsets[14]
    assert len(some(replace(rows, offsets=offsets)).runs) == 15


@pytest.mark.parametrize("sizes", [None, [150 + n for n in range(40)]], ids=["equal", "any"])
def test_frames_must_be_those_of_the_index(sizes: list[int] | None) -> None:
    stretch = some(rows_of([2] * 20, sizes=sizes, apart=1_000))
    data, lengths = bytearray(stretch.size), iter(stretch.sizes)
    at = {}
    for entry_id, (start, size) in enumerate(
        (start + before, size)
        for start, _ in stretch.runs
        for before, size in _two_of(next(lengths), next(lengths))
    ):
        at[entry_id] = start - stretch.offset
        struct.pack_into(">I", data, at[entry_id], size - 4)
        struct.pack_into(">qq", data, at[entry_id] + FRAME_HEADER_BYTES, LEDGER, entry_id)
    run = stretch.run(bytes(data))
    assert run is not None
    assert [entry[8:16] for entry in run.entries()] == [n.to_bytes(8, "big") for n in range(40)]
    assert [len(entry) + FRAME_HEADER_BYTES for entry in run.entries()] == list(stretch.sizes)
    for entry_id, within in ((5, 0), (17, FRAME_HEADER_BYTES), (30, FRAME_HEADER_BYTES + 15)):
        wrong = bytearray(data)
        wrong[at[entry_id] + within] ^= 1
        assert stretch.run(bytes(wrong)) is None


def _two_of(first: int, second: int) -> list[tuple[int, int]]:
    return [(0, first), (first, second)]
