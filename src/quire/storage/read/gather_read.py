"""Runs that took turns with those of other ledgers, read together.

Such a ledger has runs of one or some entries, with those of others between. Many of them are read
by one call of a thread. Where they lie near each other, what is between is read too, as one stretch
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
from quire.storage.segment.segment import Segment

GATHERED_BYTES = 1024 * 1024
"""Read together."""
STRETCHES_MAX = 128
"""So many."""
RUNS_MIN = 4
"""Fewer are read one by one."""
ENTRIES_MAX = 4096
"""Put together in one turn of the event loop, in a millisecond or two."""
SPREAD_MAX = 32
"""Bytes that are passed over for one that is wanted, in the stretch so far."""
PASSED_MAX_BYTES = 128 * 1024
"""Between two runs. A block always is."""
PASSED_SHARE = 4
"""Of a budget for reads beside adds, one byte for so many that are read with those wanted."""


class Stretch(NamedTuple):
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
class Gathering:
    """Runs of consecutive entries, and the stretches of a segment's file in which they lie."""

    segment: Segment
    ledger_id: int
    first: int
    stretches: Sequence[Stretch]
    """Ascending, none in another."""
    sizes: Sequence[int]
    """Of all frames."""

    @property
    def cost_bytes(self) -> int:
        """What is passed over is read and checked on a thread, but not taken apart."""
        read_bytes = sum([stretch.size for stretch in self.stretches])
        return max(sum(self.sizes), read_bytes // PASSED_SHARE)

    def run(self, pieces: Sequence[bytes]) -> FrameRun | None:
        """Of what was read of each stretch, all of whose blocks check; None: something else lies
        there."""
        count, head_bytes = len(self.sizes), self.segment.head_bytes
        parts: list[bytes] = []
        for (base, runs), data in zip(self.stretches, pieces, strict=True):
            parts += [data[start - base : end - base] for start, end in runs]
        frames = b"".join(parts)
        ids, size = range(self.first, self.first + count), self.sizes[0]
        equal = self.sizes.count(size) == count
        sizes, size = ((), size) if equal else (self.sizes, 0)
        if not frames_are(frames, self.ledger_id, ids, sizes, size, head_bytes):
            return None
        return FrameRun(memoryview(frames), count, size, sizes, head_bytes)


def gathering_of(
    segment: Segment,
    ledger_id: int,
    rows: LedgerRows,
    entry_id: int,
    most: int,
    max_bytes: int,
    overhead: int,
) -> Gathering | None:
    """Runs from this entry on, with so many entries at most; `max_bytes`, `overhead`: see
    `LedgerStore.read`. None: it is not worth it, or not that simple. No runs of the ledger overlap
    in the segment."""
    row = bisect_right(rows.firsts, entry_id) - 1
    most = min(most, ENTRIES_MAX)
    if row < 0 or len(rows.firsts) - row < RUNS_MIN or most < RUNS_MIN:
        return None
    per_entry, wanted, room = overhead - segment.head_bytes, entry_id, GATHERED_BYTES
    stretches: list[Stretch] = []
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
            if len(stretches) == STRETCHES_MAX:
                break
            begin, runs = start - start % BLOCK_BYTES, []
            passed, spared = 0, SPREAD_MAX * size
        spared -= passed
        room -= start - begin
        cost = size + per_entry * len(frames)
        if size > room or cost > max_bytes:
            frames = frames[: _that_fit(frames, room, max_bytes, per_entry)]
            if not frames:
                break
            size, most = sum(frames), len(sizes) + len(frames)  # the last of them
        if not runs:
            stretches.append(Stretch(begin, runs))
        behind = start + size
        runs.append((start, behind))
        sizes += frames
        if len(sizes) >= most:
            break
        room -= size
        max_bytes -= cost
        wanted += len(frames)
    few = sum([len(stretch.runs) for stretch in stretches]) < RUNS_MIN
    return None if few else Gathering(segment, ledger_id, entry_id, stretches, sizes)


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
