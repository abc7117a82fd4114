"""Reading ahead of readers that go through a ledger on the device from one entry to the next.

While what a reader has asked for is checked and sent, the device brings what it wants next into the
system's cache: the cache, its bounds, and what it gives up first, are the system's. It has a thread
of its own, so that no read waits behind what nobody has asked for yet. The event loop then reads it
from there: a thread that did would have to be woken for each piece, which takes longer than to copy
it (`cold_reads`).

Behind the end of what a ledger has in a segment comes an index, without which nobody knows where it
goes on. So it is looked for as soon as less than `AHEAD_BYTES` are known to lie before the reader.
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
"""How far ahead of a reader: what the device brings while some answers are made and sent."""
STEP_BYTES = 1024 * 1024
"""Less is not worth a call, but at the end. Large calls make a sync beside them wait longer."""
AHEAD_EXTENTS_MAX = 4
"""Known ahead of a reader, in as many segments: each takes an index that may be large."""
CALLS_MAX = 8
"""Under way at the same time. A reader that finds so many is looked at again when it reads on: with
many readers the device has enough to do with what they wait for."""
FOLLOWED_MAX = 256
"""Ledgers whose readers are followed; the one that was read least recently is forgotten."""
STEPS_BEFORE = 2
"""Reads that must have followed each other: a single look at an entry reads nothing else."""
THROUGH_BYTES = 512 * 1024
"""A reader that takes several entries of so many bytes at once goes on: one such read is enough."""

ROWS_MAX = 4096
"""Runs that are looked at for one extent: in a millisecond or two. The next begins after it."""

_Call = Literal["entries", "index"]


@dataclass(slots=True)
class ReadAheadExtent:
    """A part of a segment's file, most of which belongs to one ledger."""

    segment: LogSegment
    start: int
    stop: int
    last: int
    """The last entry in it."""
    until: int
    """Everything before was asked for."""
    cached: bool = False
    """As far as is known. What is in the cache need not be brought there."""


def read_ahead_extent(
    segment: LogSegment, rows: LedgerRows, size_bytes: int, entry_id: int | None
) -> ReadAheadExtent | None:
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
    return ReadAheadExtent(segment, start, _end_of(rows, row), rows.last(row), start)


def _end_of(rows: LedgerRows, row: int) -> int:
    """Of a run, in the file."""
    count, frame_size = rows.counts[row], rows.frame_sizes[row]
    if frame_size:
        return rows.offsets[row] + frame_size * count
    base = rows.sizes_at[row]
    return rows.offsets[row] + sum(rows.sizes[base : base + count])


class _Follow:
    __slots__ = (
        "end", "extents", "goes_through", "known", "next_entry", "piece_bytes", "steps",
        "under_way", "waited_in",
    )  # fmt: skip

    def __init__(self, next_entry: int) -> None:
        self.next_entry = next_entry
        self.steps = 0
        self.goes_through = False
        """It is time to read ahead."""
        self.piece_bytes = 0, 0
        """Of the last two: one may be what was left of an answer."""
        self.extents: deque[ReadAheadExtent] = deque()
        """Where the reader is, and what comes then."""
        self.end = 0
        """Where in the first of them the last entry ends that was read."""
        self.known = False
        """Nothing comes behind the last of them."""
        self.under_way: set[_Call] = set()
        self.waited_in: LogSegment | None = None
        """Where a read had to wait last."""

    @property
    def ahead_bytes(self) -> int:
        """Known to lie before the reader."""
        return sum(one.stop - self.begin(one) for one in self.extents)

    def begin(self, extent: ReadAheadExtent) -> int:
        """Where what is wanted of it begins."""
        return self.end if extent is self.extents[0] else extent.start


class ReadAhead:
    """Used on the event loop."""

    def __init__(self, files: SegmentFiles, blocking: BlockingReader) -> None:
        self._files = files
        self._blocking = blocking
        self._follows: OrderedDict[int, _Follow] = OrderedDict()
        self.closed = False
        self.calls = 0
        """Under way."""
        self.asked_bytes = 0
        """Read ahead since the start."""

    def waits(self, ledger_id: int, entry_id: int, segment: LogSegment) -> None:
        """A read has to wait for the device: its reader is worth to be followed, to the end of the
        segment."""
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
        follow = self._follows.get(ledger_id)
        return follow is not None and (
            follow.waited_in is segment or any(one.segment is segment for one in follow.extents)
        )

    def may_be_at_hand(self, ledger_id: int, entry_id: int, piece_bytes: int) -> bool:
        """Whether a reader has come here in pieces of so many bytes, so that what it wants has been
        brought, or is on its way."""
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
        """Entries of a sealed segment, which end at this offset of it. `extent`: how far the ledger
        goes on there."""
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
        if not self._may_call(follow, "entries"):
            return
        left = AHEAD_BYTES
        for extent in follow.extents:
            begin = follow.begin(extent)
            stop = min(extent.stop, begin + left)
            start = max(begin, extent.until)
            size = stop - start
            if not extent.cached and size > 0 and (size >= STEP_BYTES or stop == extent.stop):
                extent.until = stop  # Before it is asked for: that may be done at once.
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
        """The last that is known to lie before a reader, where it is time to look how the ledger
        goes on behind it."""
        follow = self._follows.get(ledger_id)
        if follow is None or follow.known or not self._may_call(follow, "index"):
            return None
        if not 0 < len(follow.extents) < AHEAD_EXTENTS_MAX or follow.ahead_bytes >= AHEAD_BYTES:
            return None
        return follow.extents[-1]

    def bring_index(self, ledger_id: int, segment: LogSegment, at: int, size: int) -> None:
        """Of a segment in which the ledger may go on: ask again once it is there."""
        self._bring(self._follows[ledger_id], "index", segment, at, size)

    def has_looked_beyond(self, ledger_id: int, extent: ReadAheadExtent | None) -> None:
        """The ledger goes on here. None: it does not, or not where it is worth to be brought."""
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
            return  # Whoever reads it next is told.
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
