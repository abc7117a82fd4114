"""Entries that took turns with those of a few other ledgers, read as one stretch of the file.

Such a ledger has runs of one entry, with others between. Where these lie near each other, what is
between is read too, and the frames are put together: then they are a run like any other, and are
checked as one. All blocks of the stretch must be whole; where anything is out of the ordinary the
entries are read one by one, which tells what is damaged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.codec.frame_runs import FrameRun
from quire.codec.log_footer import CONSECUTIVE, LedgerRows
from quire.codec.log_parts import BLOCK_BYTES
from quire.storage.frames import frames_are
from quire.storage.segment import Segment

STRETCH_BYTES = 1024 * 1024
"""Read at once."""
ENTRIES_MIN = 8
"""Fewer are read one by one."""
ENTRIES_MAX = 4096
"""Put together in one turn of the event loop, in a millisecond or two."""
SPREAD_MAX = 32
"""Bytes that are read for one that is wanted, at most."""
PASSED_SHARE = 4
"""Of a budget for reads beside adds, one byte for so many that are read with those wanted."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole blocks of a segment's file, in which frames of consecutive entries lie."""

    segment: Segment
    ledger_id: int
    first: int
    starts: Sequence[int]
    """Of the frames, in the file; ascending."""
    frame_size: int

    @property
    def offset(self) -> int:
        return self.starts[0] - self.starts[0] % BLOCK_BYTES

    @property
    def size(self) -> int:
        return -(-(self.starts[-1] + self.frame_size) // BLOCK_BYTES) * BLOCK_BYTES - self.offset

    @property
    def cost_bytes(self) -> int:
        """What is passed over is read and checked on a thread, but not taken apart."""
        return max(self.frame_size * len(self.starts), self.size // PASSED_SHARE)

    def shorter(self, count: int) -> Stretch | None:
        return replace(self, starts=self.starts[:count]) if count >= ENTRIES_MIN else None

    def run(self, data: bytes) -> FrameRun | None:
        """Of what was read there, all of whose blocks check; None: something else lies there."""
        size, base, count = self.frame_size, self.offset, len(self.starts)
        frames = b"".join([data[at - base : at - base + size] for at in self.starts])
        ids, head_bytes = range(self.first, self.first + count), self.segment.head_bytes
        if not frames_are(frames, self.ledger_id, ids, (), size, head_bytes):
            return None
        return FrameRun(memoryview(frames), count, size, (), head_bytes)


def stretch_of(
    segment: Segment, ledger_id: int, rows: LedgerRows, entry_id: int, most: int
) -> Stretch | None:
    """The stretch that begins with this entry, of at most so many; None: it is not worth it, or not
    that simple. No runs of the ledger overlap in the segment."""
    at = bisect_left(rows.firsts, entry_id)
    most = min(most, len(rows.firsts) - at, ENTRIES_MAX)
    if most < ENTRIES_MIN or rows.firsts[at] != entry_id:
        return None
    size = rows.frame_sizes[at]
    if not size:
        return None
    starts = _near(rows.offsets[at : at + most], STRETCH_BYTES - size)
    count = _equal(rows.counts[at : at + len(starts)], 1)
    count = min(count, _equal(rows.frame_sizes[at : at + count], size))
    count = min(count, _equal(rows.ids_at[at : at + count], CONSECUTIVE))
    if list(rows.firsts[at : at + count]) != list(range(entry_id, entry_id + count)):
        return None
    if count < ENTRIES_MIN or starts[count - 1] - starts[0] > SPREAD_MAX * size * count:
        return None
    return Stretch(segment, ledger_id, entry_id, starts[:count], size)


def _equal(values: Sequence[int], value: int) -> int:
    """How many of them, from the first on, are this."""
    for index, one in enumerate(values):
        if one != value:
            return index
    return len(values)


def _near(values: Sequence[int], reach: int) -> Sequence[int]:
    """Those that ascend, from the first on, and are not further from it than this."""
    last, stop = values[0] - 1, values[0] + reach
    for index, one in enumerate(values):
        if not last < one <= stop:
            return values[:index]
        last = one
    return values
