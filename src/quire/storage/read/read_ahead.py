"""Read ahead for readers that go through a ledger on the device, one entry after the other.

While an answer is checked and sent, the device brings what the reader will want next into the
operating system's cache. The system decides how much it keeps and what it drops first. A separate
thread makes these calls, so no read waits for data that nobody has asked for yet. The event loop
then reads the data from the cache (`cold_reads`), because waking a thread for each piece takes
longer than copying it.

At the end of a ledger's entries in one segment, the index of another segment tells where they
continue. That index is looked up as soon as less than `AHEAD_BYTES` are known to be ahead of the
reader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from quire.codec.entry.frame_runs import FrameRun
from quire.codec.log.footer import LedgerRows
from quire.storage.interfaces import BlockingReader
from quire.storage.read.cache import SegmentFiles
from quire.storage.segment.segment import LogSegment, SegmentState

AHEAD_BYTES = 16 * 1024 * 1024
"""The number of bytes to read ahead of a reader. The device brings this much while a few answers
are built and sent."""
STEP_BYTES = 1024 * 1024
"""The fewest bytes that are read ahead with one call, except at the end of an extent. Larger calls
would delay the syncs that run beside them."""
AHEAD_EXTENTS_MAX = 4
"""The most extents that are known ahead of a reader, each in another segment. Each of them needs an
index, which may be large."""
CALLS_MAX = 8
"""The most calls for reading ahead that run at the same time. A reader that finds them all in use
is considered again with its next read. With many readers, the device is busy anyway."""
FOLLOWED_MAX = 256
"""The most ledgers whose readers are followed. Beyond that, the ledger that was read least recently
is forgotten."""
STEPS_BEFORE = 2
"""The number of reads in sequence after which data is read ahead. A single look at an entry causes
no other reads."""
THROUGH_BYTES = 512 * 1024
"""The bytes of entries that a reader must take at once to count as sequential after one read. A
single entry does not count."""

ROWS_MAX = 4096
"""The most runs that are examined for one extent, which takes a millisecond or two. The next extent
begins after them."""

_Call = Literal["entries", "index"]


@dataclass(slots=True)
class ReadAheadExtent:
    """A range of a segment's file that is worth reading ahead for a reader of one ledger.

    Most of the range has entries of that ledger.
    """

    segment: LogSegment
    start: int
    stop: int
    last: int
    """The id of the last entry in the range."""
    until: int
    """The offset in the file up to which the range was read ahead."""
    cached: bool = False
    """Whether the range is in the system's cache, as far as is known. If so, it need not be read
    ahead."""


def read_ahead_extent(
    segment: LogSegment, rows: LedgerRows, size_bytes: int, entry_id: int | None
) -> ReadAheadExtent | None:
    """Return a range of the segment's file to read ahead, or None if it has mostly other data.

    Args:
        segment: The segment.
        rows: The ledger's runs in the segment.
        size_bytes: The size of all frames of the ledger in the segment.
        entry_id: The id of the entry to begin with. The range ends at the first gap in the entries.
            None means all runs.
    """
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
    return ReadAheadExtent(segment, start, _end_of(rows, row), rows.last(row), start)


def _end_of(rows: LedgerRows, row: int) -> int:
    """Return the offset in the file at which the run with this row number ends."""
    count, frame_size = rows.counts[row], rows.frame_sizes[row]
    if frame_size:
        return rows.offsets[row] + frame_size * count
    base = rows.sizes_at[row]
    return rows.offsets[row] + sum(rows.sizes[base : base + count])


class _Follow:
    """The state of one ledger whose reader is followed."""

    __slots__ = (
        "end", "extents", "goes_through", "known", "next_entry", "piece_bytes", "steps",
        "under_way", "waited_in",
    )  # fmt: skip

    def __init__(self, next_entry: int) -> None:
        self.next_entry = next_entry
        self.steps = 0
        self.goes_through = False
        """Whether the reader counts as sequential, so that data is read ahead for it."""
        self.piece_bytes = 0, 0
        """The bytes of each of the last two reads. One of them may be the short rest of an
        answer."""
        self.extents: deque[ReadAheadExtent] = deque()
        """The range that the reader is in, and the ranges after it."""
        self.end = 0
        """The offset in the first range at which the last entry that was read ends."""
        self.known = False
        """Whether the next range was looked for, and none is worth reading ahead."""
        self.under_way: set[_Call] = set()
        self.waited_in: LogSegment | None = None
        """The segment in which a read last had to wait for the device."""

    @property
    def ahead_bytes(self) -> int:
        """The number of bytes in the known ranges that are ahead of the reader."""
        return sum(one.stop - self.begin(one) for one in self.extents)

    def begin(self, extent: ReadAheadExtent) -> int:
        """Return the offset in this range from which on the reader still needs data."""
        return self.end if extent is self.extents[0] else extent.start


class ReadAhead:
    """The reading ahead of one store, which belongs to the event loop."""

    def __init__(self, files: SegmentFiles, blocking: BlockingReader) -> None:
        self._files = files
        self._blocking = blocking
        self._follows: OrderedDict[int, _Follow] = OrderedDict()
        self.closed = False
        self.calls = 0
        """The number of calls for reading ahead that are running."""
        self.asked_bytes = 0
        """The number of bytes that were read ahead since the start."""

    def waits(self, ledger_id: int, entry_id: int, segment: LogSegment) -> None:
        """Note that a read of a ledger has to wait for the device.

        From now on, the reader of the ledger is followed.
        """
        follow = self._follows.get(ledger_id)
        if follow is not None:
            self._follows.move_to_end(ledger_id)
        else:
            follow = self._follows[ledger_id] = _Follow(entry_id)
            if len(self._follows) > FOLLOWED_MAX:
                self._follows.popitem(last=False)
        follow.waited_in = segment
        for extent in follow.extents:
            if extent.segment is segment and extent.cached:
                extent.cached, extent.until = False, follow.begin(extent)

    def is_followed(self, ledger_id: int, segment: LogSegment) -> bool:
        """Return whether the ledger has a reader in this segment that is followed."""
        follow = self._follows.get(ledger_id)
        return follow is not None and (
            follow.waited_in is segment or any(one.segment is segment for one in follow.extents)
        )

    def may_be_at_hand(self, ledger_id: int, entry_id: int, piece_bytes: int) -> bool:
        """Return whether the entry has probably been brought into the page cache.

        This is the case if a reader has come to it in sequence, in pieces of at least
        `piece_bytes`.
        """
        follow = self._follows.get(ledger_id)
        return (
            follow is not None
            and follow.next_entry == entry_id
            and follow.steps >= STEPS_BEFORE
            and max(follow.piece_bytes) >= piece_bytes
        )

    def has_read(
        self,
        ledger_id: int,
        entry_id: int,
        run: FrameRun,
        segment: LogSegment,
        end: int,
        extent: Callable[[], ReadAheadExtent | None],
    ) -> None:
        """Note that entries from `entry_id` on were read from a sealed segment.

        If the reader is sequential, this reads ahead. `end` is the offset in the file at which the
        entries end. `extent` returns how far the ledger continues in this segment.
        """
        follow = self._follows.get(ledger_id)
        if follow is None:
            return
        self._follows.move_to_end(ledger_id)
        goes_on = follow.next_entry == entry_id
        follow.steps = follow.steps + 1 if goes_on else 0
        follow.next_entry = entry_id + run.count
        follow.goes_through = follow.steps >= STEPS_BEFORE or (
            run.count > 1 and run.frame_bytes >= THROUGH_BYTES
        )
        follow.piece_bytes = follow.piece_bytes[1], run.frame_bytes
        follow.end = end
        extents = follow.extents
        if not goes_on:
            extents.clear()
        while extents and (extents[0].segment is not segment or extents[0].last < entry_id):
            extents.popleft()
            follow.known = False
        if not extents:
            follow.known = False
            here = extent()
            if here is None:
                return
            here.until, here.cached = end, follow.waited_in is not segment
            extents.append(here)
        self._advance(follow)

    def _advance(self, follow: _Follow) -> None:
        """Read ahead the next part of the known ranges, if a call is allowed now."""
        if not self._may_call(follow, "entries"):
            return
        left = AHEAD_BYTES
        for extent in follow.extents:
            begin = follow.begin(extent)
            stop = min(extent.stop, begin + left)
            start = max(begin, extent.until)
            size = stop - start
            if not extent.cached and size > 0 and (size >= STEP_BYTES or stop == extent.stop):
                extent.until = stop  # Set this before the call, which may be done at once.
                self._bring(follow, "entries", extent.segment, start, size)
                return
            left -= stop - begin

    def _may_call(self, follow: _Follow, call: _Call) -> bool:
        return (
            follow.goes_through
            and call not in follow.under_way
            and self.calls < CALLS_MAX
            and not self.closed
        )

    def wants_beyond(self, ledger_id: int) -> ReadAheadExtent | None:
        """Return the last range known ahead of a reader, if it is time to look for the next one."""
        follow = self._follows.get(ledger_id)
        if follow is None or follow.known or not self._may_call(follow, "index"):
            return None
        if not 0 < len(follow.extents) < AHEAD_EXTENTS_MAX or follow.ahead_bytes >= AHEAD_BYTES:
            return None
        return follow.extents[-1]

    def bring_index(self, ledger_id: int, segment: LogSegment, at: int, size: int) -> None:
        """Read ahead the index of a segment in which the ledger may continue.

        The caller tries again with the next read of the ledger.
        """
        self._bring(self._follows[ledger_id], "index", segment, at, size)

    def has_looked_beyond(self, ledger_id: int, extent: ReadAheadExtent | None) -> None:
        """Add the range in which the ledger continues after the known ranges.

        `extent` is None if no such range is worth reading ahead.
        """
        follow = self._follows[ledger_id]
        if extent is None:
            follow.known = True
        else:
            follow.extents.append(extent)
            self._advance(follow)

    def _bring(
        self, follow: _Follow, call: _Call, segment: LogSegment, start: int, size: int
    ) -> None:
        if segment.state is not SegmentState.SEALED:
            return
        try:
            file = self._files.borrow(segment)
        except OSError:
            return  # The next read of this segment reports the error.
        follow.under_way.add(call)
        self.calls += 1
        self.asked_bytes += size
        self._blocking.ahead(
            partial(file.prefetch, start, size), partial(self._done, follow, call, segment)
        )

    def _done(self, follow: _Follow, call: _Call, segment: LogSegment) -> None:
        self.calls -= 1
        follow.under_way.discard(call)
        self._files.give_back(segment, close=self.closed)
        self._advance(follow)
