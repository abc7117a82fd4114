"""Gather many small runs of one ledger with a single read.

If entries of many ledgers are interleaved, the runs of each ledger are short and scattered over the
segment. One call of a thread reads many of them. If runs are close together, the bytes between them
are read as well, as one extent of the file. The frames are joined into one run, which is checked
like any other. Every block must match its checksum. If anything is wrong, the runs are read one by
one instead, to find out what is damaged.
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
"""The most bytes that one gather read reads."""
GATHERED_EXTENTS_MAX = 128
"""The most extents that one gather read reads."""
RUNS_MIN = 4
"""The fewest runs that are gathered with one read. Fewer runs are read one by one."""
ENTRIES_MAX = 4096
"""The most entries of one gather read. Joining them in one event-loop iteration takes a millisecond
or two."""
SPREAD_MAX = 32
"""The most bytes between runs that are read for each wanted byte of the same extent."""
PASSED_MAX_BYTES = 128 * 1024
"""The largest gap in bytes between two runs that is read as well. A gap of at most a block is
always read."""
PASSED_SHARE = 4
"""The divisor for the cost of a gather read in the budget of large reads (`ReadBudget`). It costs
at least the bytes that it reads, divided by this."""


class BlockExtent(NamedTuple):
    """A range of whole blocks in a segment's file that contains runs to gather."""

    offset: int
    runs: Sequence[tuple[int, int]]
    """The offsets (start, end) of each run in the file. They ascend and do not overlap."""

    @property
    def end(self) -> int:
        """The offset of the first block after the extent."""
        return aligned(self.runs[-1][1])

    @property
    def size(self) -> int:
        return self.end - self.offset


@dataclass(frozen=True, slots=True)
class GatherRead:
    """The plan of a gather read: entries of one ledger, and the extents of the file to read."""

    segment: LogSegment
    ledger_id: int
    first: int
    extents: Sequence[BlockExtent]
    """The extents of the file to read. They ascend and do not overlap."""
    sizes: Sequence[int]
    """The sizes in bytes of the frames of all entries."""

    @property
    def cost_bytes(self) -> int:
        """The number of bytes that the read costs in the budget of large reads (`ReadBudget`).

        Bytes between the wanted runs are read and checked on a thread but not processed further, so
        they count for less.
        """
        read_bytes = sum([extent.size for extent in self.extents])
        return max(sum(self.sizes), read_bytes // PASSED_SHARE)

    def run(self, found: Sequence[bytes]) -> FrameRun | None:
        """Return the entries as one run, or None if the bytes are not the expected frames.

        `found` has the bytes of each extent, whose blocks the caller has compared with their
        checksums.
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
    """Plan a gather read of the entries from `entry_id` on.

    The runs of the ledger must not overlap in the segment. Return None if a gather read is not
    worthwhile or not possible.

    `rows` has the runs of the ledger in the segment, and `most` is the largest number of entries to
    read. `max_bytes` and `overhead` are `max_bytes` and `overhead_bytes` of `LedgerStore.read`.
    """
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
            size, most = sum(frames), len(sizes) + len(frames)  # This is the last run.
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
    """Return the offset of an entry's frame, and the sizes of at most `most` frames from it on.

    `row` is the number of the run in the footer. There are no sizes if the run does not have the
    entry, or if its ids are not consecutive.
    """
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
    """Return how many of these frames fit into `budget`, and with overhead into `max_bytes`."""
    for count, size in enumerate(sizes):
        budget -= size
        max_bytes -= size + per_entry
        if budget < 0 or max_bytes < 0:
            return count
    return len(sizes)
