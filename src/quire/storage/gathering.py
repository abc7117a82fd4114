"""Runs that took turns with those of a few other ledgers, read as one stretch of the file.

Such a ledger has runs of one or some entries, with those of others between. Where these lie near
each other, what is between is read too, and the frames are put together: then they are a run like
any other, and are checked as one. All blocks of the stretch must be whole; where anything is out of
the ordinary the runs are read one by one, which tells what is damaged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from quire.codec.frame_runs import FrameRun
from quire.codec.log_footer import CONSECUTIVE, LedgerRows
from quire.codec.log_parts import BLOCK_BYTES
from quire.storage.frames import frames_are
from quire.storage.segment import Segment

STRETCH_BYTES = 1024 * 1024
"""Read at once."""
RUNS_MIN = 8
"""Fewer are read one by one."""
ENTRIES_MAX = 4096
"""Put together in one turn of the event loop, in a millisecond or two."""
SPREAD_MAX = 32
"""Bytes that are read for one that is wanted, at most."""
PASSED_SHARE = 4
"""Of a budget for reads beside adds, one byte for so many that are read with those wanted."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole blocks of a segment's file, in which runs of consecutive entries lie."""

    segment: Segment
    ledger_id: int
    first: int
    runs: Sequence[tuple[int, int]]
    """Where each begins and ends in the file; ascending, none in another."""
    sizes: Sequence[int]
    """Of all frames."""

    @property
    def offset(self) -> int:
        return self.runs[0][0] - self.runs[0][0] % BLOCK_BYTES

    @property
    def size(self) -> int:
        return -(-self.runs[-1][1] // BLOCK_BYTES) * BLOCK_BYTES - self.offset

    @property
    def cost_bytes(self) -> int:
        """What is passed over is read and checked on a thread, but not taken apart."""
        return max(sum(self.sizes), self.size // PASSED_SHARE)

    def run(self, data: bytes) -> FrameRun | None:
        """Of what was read there, all of whose blocks check; None: something else lies there."""
        base, count, head_bytes = self.offset, len(self.sizes), self.segment.head_bytes
        frames = b"".join([data[start - base : end - base] for start, end in self.runs])
        ids, size = range(self.first, self.first + count), self.sizes[0]
        equal = self.sizes.count(size) == count
        sizes, size = ((), size) if equal else (self.sizes, 0)
        if not frames_are(frames, self.ledger_id, ids, sizes, size, head_bytes):
            return None
        return FrameRun(memoryview(frames), count, size, sizes, head_bytes)


def stretch_of(
    segment: Segment,
    ledger_id: int,
    rows: LedgerRows,
    entry_id: int,
    most: int,
    max_bytes: int,
    overhead: int,
) -> Stretch | None:
    """The stretch that begins with this entry, of at most so many entries; `max_bytes`, `overhead`:
    see `LedgerStore.read`. None: it is not worth it, or not that simple. No runs of the ledger
    overlap in the segment."""
    row = bisect_right(rows.firsts, entry_id) - 1
    most = min(most, ENTRIES_MAX)
    if row < 0 or len(rows.firsts) - row < RUNS_MIN or most < RUNS_MIN:
        return None
    per_entry, wanted, behind, stop = overhead - segment.head_bytes, entry_id, 0, 0
    runs: list[tuple[int, int]] = []
    sizes: list[int] = []
    for one in range(row, min(len(rows.firsts), row + ENTRIES_MAX)):
        start, size = rows.offsets[one], rows.frame_sizes[one]
        frames: Sequence[int] = (size,)
        if not (rows.counts[one] == 1 and size and rows.firsts[one] == wanted):
            start, frames = _frames_from(rows, one, wanted, most - len(sizes))
            size = sum(frames)
        elif rows.ids_at[one] != CONSECUTIVE:
            break
        stop = stop or start + STRETCH_BYTES
        count = len(frames)
        if start + size > stop or size + per_entry * count > max_bytes:
            frames = frames[: _that_fit(frames, stop - start, max_bytes, per_entry)]
            count, size = len(frames), sum(frames)
            most = len(sizes) + count  # the last of them
        if not frames or start < behind:
            break
        behind = start + size
        runs.append((start, behind))
        sizes += frames
        if len(sizes) >= most:
            break
        max_bytes -= size + per_entry * count
        wanted += count
    if len(runs) < RUNS_MIN or behind - runs[0][0] > SPREAD_MAX * sum(sizes):
        return None
    return Stretch(segment, ledger_id, entry_id, runs, sizes)


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


def _that_fit(sizes: Sequence[int], room: int, max_bytes: int, per_entry: int) -> int:
    """How many of these frames, from the first on."""
    for count, size in enumerate(sizes):
        room -= size
        max_bytes -= size + per_entry
        if room < 0 or max_bytes < 0:
            return count
    return len(sizes)
