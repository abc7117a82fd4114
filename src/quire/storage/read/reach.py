"""How far a ledger goes on in a segment's file, so that it is worth to be read ahead."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from quire.codec.log.footer import LedgerRows
from quire.storage.segment.segment import Segment

ROWS_MAX = 4096
"""Runs that are looked at for one reach: in a millisecond or two. The next begins behind it."""


@dataclass(slots=True)
class Reach:
    """A part of a segment's file, most of which belongs to one ledger."""

    segment: Segment
    start: int
    stop: int
    last: int
    """The last entry in it."""
    until: int
    """Everything before was asked for."""
    cached: bool = False
    """As far as is known. What is in the cache need not be brought there."""


def reach_of(
    segment: Segment, rows: LedgerRows, size_bytes: int, entry_id: int | None
) -> Reach | None:
    """`size_bytes`: of all frames of the ledger in the segment. `entry_id`: the runs from this one
    on, as far as no entry lacks; else all runs. None: there is more of other ledgers between."""
    first, row = 0, len(rows.offsets) - 1
    if 2 * size_bytes < rows.offsets[row] - rows.offsets[0]:
        return None
    if entry_id is not None:
        first = row = bisect_right(rows.firsts, entry_id) - 1
        if row < 0 or rows.last(row) < entry_id:
            return None
        end = min(len(rows.firsts), first + ROWS_MAX)
        while row + 1 < end and rows.firsts[row + 1] == rows.last(row) + 1:
            row += 1
    start = rows.offsets[first]
    return Reach(segment, start, _end_of(rows, row), rows.last(row), start)


def _end_of(rows: LedgerRows, row: int) -> int:
    """Of a run, in the file."""
    count, frame_size = rows.counts[row], rows.frame_sizes[row]
    if frame_size:
        return rows.offsets[row] + frame_size * count
    base = rows.sizes_at[row]
    return rows.offsets[row] + sum(rows.sizes[base : base + count])
