"""Runs that took turns with those of other ledgers, read together.

Such a ledger has runs of one or some entries, with those of others between. Many of them are read
by one call of a thread. Where they lie near each other, what is between is read too, as one extent
of the file. The frames are put together: then they are a run like any other, and are checked as
one. All blocks that are read must be whole; where anything is out of the ordinary the runs are read
one by one, which tells what is damaged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.codec.entry.frame_runs import FrameRun
from quire.codec.log.footer import CONSECUTIVE, LedgerRows
from quire.codec.log.state_records import BLOCK_BYTES, aligned
from quire.storage.segment.frames import frames_are
from quire.storage.segment.segment import LogSegment

GATHERED_BYTES = 1024 * 1024
"""Read together."""
GATHERED_EXTENTS_MAX = 128
"""So many."""
RUNS_MIN = 4
"""Fewer are read one by one."""
ENTRIES_MAX = 4096
"""The most entries assembled in one event-loop iteration, which takes a millisecond or two."""
SPREAD_MAX = 32
"""Bytes that are passed over for one that is wanted, in the extent so far."""
PASSED_MAX_BYTES = 128 * 1024
"""Between two runs. A block always is."""
PASSED_SHARE = 4
"""Of a budget for reads beside adds, one byte for so many that are read with those wanted."""


class BlockExtent(NamedTuple):
    """Whole blocks of a segment's file, in which runs lie."""

    offset: int
    runs: Sequence[tuple[int, int]]
    """Where each begins and ends in the file; ascending, none in another."""

    @property
    def end(self) -> int:
        return aligned(self.runs[-1][1])

    @property
    def size(self) -> int:
        return self.end - self.offset


@dataclass(frozen=True, slots=True)
class GatherRead:
    """Runs of consecutive entries, and the extents of a segment's file that hold them."""

    segment: LogSegment
    ledger_id: int
    first: int
    extents: Sequence[BlockExtent]
    """Ascending, none in another."""
    sizes: Sequence[int]
    """Of all frames."""

    @property
    def cost_bytes(self) -> int:
        """What is passed over is read and checked on a thread, but not taken apart."""
        read_bytes = sum([extent.size for extent in self.extents])
        return max(sum(self.sizes), read_bytes // PASSED_SHARE)

    def run(self, found: Sequence[bytes]) -> FrameRun | None:
        """Return the run that was read, or None if something else lies there.

        `found` is what was read of each extent, all of whose blocks match their checksums.
        """
        count, head_bytes = len(self.sizes), self.segment.head_bytes
        parts: list[bytes] = []
        for (base, runs), data in zip(self.extents, found, strict=True):
            parts += [data[start - base : end - base] for start, end in runs]
        frames = b"".join(parts)
        ids, size = range(self.first, self.first + count), self.sizes[0]
        equal = self.sizes.count(size) == count
        sizes, size = ((), size) if equal else (self.sizes, 0)
        if not frames_are(frames, self.ledger_id, ids, sizes, size, head_bytes):
            return None
        return FrameRun(memoryview(frames), count, size, sizes, head_bytes)


def plan_gather_read(
    segment: LogSegment,
    ledger_id: int,
    rows: LedgerRows,
    entry_id: int,
    most: int,
    max_bytes: int,
    overhead: int,
) -> GatherRead | None:
    """Runs from this entry on, with so many entries at most; `max_bytes`, `overhead`: see
    `LedgerStore.read`. None: it is not worth it, or not that simple. No runs of the ledger overlap
    in the segment."""
    row = bisect_right(rows.firsts, entry_id) - 1
    most = min(most, ENTRIES_MAX)
    if row < 0 or len(rows.firsts) - row < RUNS_MIN or most < RUNS_MIN:
        return None
    per_entry, wanted, budget = overhead - segment.head_bytes, entry_id, GATHERED_BYTES
    extents: list[BlockExtent] = []
    runs: list[tuple[int, int]] = []
    sizes: list[int] = []
    behind = spared = 0
    for one in range(row, min(len(rows.firsts), row + ENTRIES_MAX)):
        start, size = rows.offsets[one], rows.frame_sizes[one]
        frames: Sequence[int] = (size,)
        if not (rows.counts[one] == 1 and size and rows.firsts[one] == wanted):
            start, frames = _frames_from(rows, one, wanted, most - len(sizes))
            size = sum(frames)
        elif rows.ids_at[one] != CONSECUTIVE:
            break
        if start < behind or not size:
            break
        passed = start - behind
        spared += SPREAD_MAX * size
        near = passed <= BLOCK_BYTES or (passed <= spared and passed <= PASSED_MAX_BYTES)
        begin = behind
        if not near or not runs:
            if len(extents) == GATHERED_EXTENTS_MAX:
                break
            begin, runs = start - start % BLOCK_BYTES, []
            passed, spared = 0, SPREAD_MAX * size
        spared -= passed
        budget -= start - begin
        cost = size + per_entry * len(frames)
        if size > budget or cost > max_bytes:
            frames = frames[: _that_fit(frames, budget, max_bytes, per_entry)]
            if not frames:
                break
            size, most = sum(frames), len(sizes) + len(frames)  # the last of them
        if not runs:
            extents.append(BlockExtent(begin, runs))
        behind = start + size
        runs.append((start, behind))
        sizes += frames
        if len(sizes) >= most:
            break
        budget -= size
        max_bytes -= cost
        wanted += len(frames)
    few = sum([len(extent.runs) for extent in extents]) < RUNS_MIN
    return None if few else GatherRead(segment, ledger_id, entry_id, extents, sizes)


def _frames_from(rows: LedgerRows, row: int, entry_id: int, most: int) -> tuple[int, Sequence[int]]:
    """Where the frame of this entry lies in this run, and the sizes of it and those behind it; none
    where the run lacks it, or has gaps."""
    skipped, at = entry_id - rows.firsts[row], rows.offsets[row]
    count = rows.counts[row] - skipped
    if rows.ids_at[row] != CONSECUTIVE or skipped < 0 or count <= 0:
        return at, []
    frame_size = rows.frame_sizes[row]
    if frame_size:
        return at + frame_size * skipped, [frame_size] * min(count, most)
    base = rows.sizes_at[row]
    first = base + skipped
    return at + sum(rows.sizes[base:first]), rows.sizes[first : first + min(count, most)]


def _that_fit(sizes: Sequence[int], budget: int, max_bytes: int, per_entry: int) -> int:
    """How many of these frames, from the first on."""
    for count, size in enumerate(sizes):
        budget -= size
        max_bytes -= size + per_entry
        if budget < 0 or max_bytes < 0:
            return count
    return len(sizes)
