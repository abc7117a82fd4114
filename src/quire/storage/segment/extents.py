"""Extents: adjacent frames of one ledger in a segment's file, and which of them are damaged."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

from quire.codec.log.footer import CONSECUTIVE, LedgerRows
from quire.codec.log.group import RunRow
from quire.codec.log.segment_header import ranges_of
from quire.codec.log.state_records import BLOCK_BYTES
from quire.core.ranges import Range, merged, overlapping, without
from quire.storage.segment.batch import Run


@dataclass(slots=True)
class FrameExtent:
    """Adjacent frames of one ledger in a segment's file: a run by its location in the file.

    Three other extents are ranges of bytes, which may have frames of several ledgers: `BlockExtent`
    is one to read, `FetchedExtent` is one that was read, and `ReadAheadExtent` is one to read
    ahead.
    """

    ledger_id: int
    first: int
    """The entry id of the first frame."""
    offset: int
    """The offset of the first frame in the file."""
    count: int
    frame_size: int
    """The size of each frame in bytes, or 0 if `sizes` lists the sizes."""
    sizes: Sequence[int] | None
    ids: Sequence[int] | None
    """The entry ids, ascending, or None if they are consecutive."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all frames."""
        return self.frame_size * self.count if self.sizes is None else sum(self.sizes)

    @property
    def last(self) -> int:
        """The entry id of the last frame."""
        return self.first + self.count - 1 if self.ids is None else self.ids[-1]

    @property
    def blocks(self) -> Range:
        """The numbers of the first and last block of the file that the frames touch."""
        return self.offset // BLOCK_BYTES, (self.offset + self.size_bytes - 1) // BLOCK_BYTES

    def entries(self) -> list[Range]:
        """Return the entry ids of all frames, as ranges (first, last)."""
        return self.entries_at(0, self.count)

    def entries_at(self, start: int, stop: int) -> list[Range]:
        """Return the entry ids of the frames from `start` up to but not including `stop`.

        The ids are returned as ranges (first, last). Frames are counted from 0.
        """
        if self.ids is None:
            return [(self.first + start, self.first + stop - 1)]
        return list(ranges_of(self.ids[start:stop]))

    def part(self, start: int, stop: int) -> Self:
        """Return an extent of the frames from `start` up to but not including `stop`."""
        if self.sizes is None:
            skipped, sizes = start * self.frame_size, None
        else:
            skipped, sizes = sum(self.sizes[:start]), self.sizes[start:stop]
        ids = None if self.ids is None else self.ids[start:stop]
        first = self.first + start if ids is None else ids[0]
        offset = self.offset + skipped
        return replace(self, first=first, offset=offset, count=stop - start, sizes=sizes, ids=ids)

    def parts_of(self, ranges: Iterable[Range]) -> Iterator[Self]:
        """Yield the parts of the extent with the entries in `ranges`, all of which it has."""
        for first, last in ranges:
            if self.ids is None:
                yield self.part(first - self.first, last - self.first + 1)
            else:
                start = bisect_left(self.ids, first)
                yield self.part(start, start + last - first + 1)

    def hit(self, blocks: Sequence[Range]) -> list[Range]:
        """Return the frames that touch any of these blocks, as ranges of frames counted from 0.

        `blocks` has ranges of block numbers, counted from the start of the file.
        """
        low, high = self.blocks
        touched = overlapping(blocks, low, high)
        if not touched:
            return []
        ends = None if self.sizes is None else list(accumulate(self.sizes))
        found = []
        for first, last in touched:
            start = max(first * BLOCK_BYTES - self.offset, 0)
            stop = min((last + 1) * BLOCK_BYTES - self.offset, self.size_bytes)
            if ends is None:
                found.append((start // self.frame_size, (stop - 1) // self.frame_size))
            else:
                found.append((bisect_right(ends, start), bisect_left(ends, stop)))
        return merged(found)


def of_rows(ledger_id: int, rows: LedgerRows) -> Iterator[FrameExtent]:
    """Return the extents of one ledger from its rows in a footer."""
    return (of_row(ledger_id, rows, row) for row in range(len(rows.firsts)))


def of_row(ledger_id: int, rows: LedgerRows, row: int) -> FrameExtent:
    """Return one extent of a ledger from its rows in a footer."""
    count, frame_size = rows.counts[row], rows.frame_sizes[row]
    sizes_at, ids_at = rows.sizes_at[row], rows.ids_at[row]
    return FrameExtent(
        ledger_id, rows.firsts[row], rows.offsets[row], count, frame_size,
        None if frame_size else rows.sizes[sizes_at : sizes_at + count],
        None if ids_at == CONSECUTIVE else rows.ids[ids_at : ids_at + count],
    )  # fmt: skip


def of_table_row(row: RunRow, start: int) -> FrameExtent:
    """Return the extent of a run in a group's table, which begins at `start` in the file."""
    return FrameExtent(
        row.ledger_id, row.first, start, row.count, row.frame_size, row.sizes, row.ids
    )


def of_run(run: Run) -> FrameExtent:
    """Return the extent of a run that is written to the file."""
    return FrameExtent(
        run.ledger_id, run.first, run.batch.file_offset + run.offset, run.count, run.frame_size,
        run.sizes, run.ids,
    )  # fmt: skip


def healthy(extent: FrameExtent, blocks: Sequence[Range]) -> Iterator[FrameExtent]:
    """Return the parts of the extent that touch none of these blocks."""
    start = 0
    for first, last in extent.hit(blocks):
        if first > start:
            yield extent.part(start, first)
        start = last + 1
    if start < extent.count:
        yield extent.part(start, extent.count) if start else extent


def damaged_entries(extents: Iterable[FrameExtent], blocks: Sequence[Range]) -> list[Range]:
    """Return the entries of one ledger of which `extents` has only damaged copies, as ranges.

    All extents are in one file. An entry is damaged if its frame touches one of `blocks`.
    """
    bad: list[Range] = []
    good: list[Range] = []
    for extent in extents:
        hit = extent.hit(blocks)
        for first, last in hit:
            bad += extent.entries_at(first, last + 1)
        for part in healthy(extent, blocks) if hit else (extent,):
            good += part.entries()
    return without(merged(bad), merged(good)) if bad else []
