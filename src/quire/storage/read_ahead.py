"""Reading ahead of readers that go through a ledger on the device from one entry to the next.

While what a reader has asked for is checked and sent, the device brings what it wants next into the
system's cache: the cache, its bounds, and what it gives up first, are the system's. It has a thread
of its own, so that no read waits behind what nobody has asked for yet.

Of a segment that a compaction wrote, large pieces are sent as they lie there: the event loop is
done with each before the next one, which is fetched meanwhile (`cold_reads`), has come. More that
is brought there costs an eighth of the rate. There only the index of the next segment is brought.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from quire.codec.frame_runs import FrameRun
from quire.storage.blocking import BlockingReader
from quire.storage.cache import SegmentFiles
from quire.storage.segment import Segment, SegmentState

AHEAD_BYTES = 8 * 1024 * 1024
"""How far ahead of a reader: what the device brings while one answer is made and sent."""
STEP_BYTES = 1024 * 1024
"""Less is not worth a call, but at the end."""
CALLS_MAX = 8
"""Under way at the same time. A reader that finds so many is looked at again when it reads on: with
many readers the device has enough to do with what they wait for."""
FOLLOWED_MAX = 256
"""Ledgers whose readers are followed; the one that was read least recently is forgotten."""
LARGE_BYTES = 256 * 1024
"""Of a piece."""
STEPS_BEFORE = 2
"""Pieces that must have come one behind the other: a single look at an entry reads nothing else."""


class _Follow:
    __slots__ = (
        "beyond", "beyond_until", "busy", "end", "index_alone", "looked_beyond", "next_entry",
        "segment", "steps", "stop", "until", "waited_in",
    )  # fmt: skip

    def __init__(self, next_entry: int) -> None:
        self.next_entry = next_entry
        self.steps = 0
        self.segment: Segment | None = None
        self.end = 0
        """Where in the segment the last entry ends that was read."""
        self.stop = 0
        """Up to here most of the segment is of this ledger."""
        self.until = 0
        """Everything before was asked for."""
        self.busy = False
        self.waited_in: Segment | None = None
        """Where a read had to wait: what is in the cache need not be brought there."""
        self.index_alone = False
        """Nothing else is worth bringing: see above."""
        self.looked_beyond = False
        """Whether it is known where the ledger goes on behind `segment`."""
        self.beyond: Segment | None = None
        self.beyond_until = 0
        """The same as `segment` and `until`, of the segment that comes next."""


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

    def waits(self, ledger_id: int, entry_id: int, segment: Segment) -> None:
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

    def is_followed(self, ledger_id: int, segment: Segment) -> bool:
        follow = self._follows.get(ledger_id)
        return follow is not None and (follow.waited_in is segment or follow.beyond is segment)

    def goes_on(self, ledger_id: int, entry_id: int, segment: Segment) -> bool:
        """Whether a reader is followed there that has come to this entry one piece behind the
        other."""
        follow = self._follows.get(ledger_id)
        return (
            follow is not None
            and follow.next_entry == entry_id
            and follow.steps >= STEPS_BEFORE
            and self.is_followed(ledger_id, segment)
        )

    def has_read(
        self, ledger_id: int, entry_id: int, run: FrameRun, segment: Segment, end: int, stop: int
    ) -> None:
        """Entries of a sealed segment, which end at this offset of it. Up to `stop` most is of the
        same ledger."""
        follow = self._follows.get(ledger_id)
        if follow is None:
            return
        self._follows.move_to_end(ledger_id)
        goes_on = follow.next_entry == entry_id
        follow.steps = follow.steps + 1 if goes_on else 0
        follow.next_entry = entry_id + run.count
        if follow.segment is not segment or not goes_on:
            if follow.beyond is segment:
                follow.waited_in, end_ahead = segment, max(end, follow.beyond_until)
            else:
                end_ahead = end
            follow.segment, follow.until = segment, end_ahead
            follow.beyond, follow.looked_beyond = None, False
        follow.end, follow.stop = end, stop
        follow.index_alone = run.bare and run.frame_bytes >= LARGE_BYTES
        if follow.index_alone:
            follow.until = stop
        self._advance(follow)

    def _advance(self, follow: _Follow) -> None:
        segment = follow.segment
        if segment is None or follow.waited_in is not segment or follow.busy or self.closed:
            return
        if follow.steps < STEPS_BEFORE or self.calls >= CALLS_MAX:
            return
        start = max(follow.end, follow.until)
        stop = min(follow.end + AHEAD_BYTES, follow.stop)
        size = stop - start
        if size <= 0 or (size < STEP_BYTES and stop < follow.stop):
            return
        follow.until = stop  # Before it is asked for: that may be done at once.
        self._bring(follow, segment, start, size)

    def wants_beyond(self, ledger_id: int, segment: Segment) -> bool:
        """Whether a reader comes to the end of what the ledger has here, so that it is time to look
        where it goes on."""
        follow = self._follows.get(ledger_id)
        return (
            follow is not None
            and follow.segment is segment
            and follow.steps >= STEPS_BEFORE
            and follow.until >= follow.stop
            and not (follow.looked_beyond or follow.busy or self.closed)
            and self.calls < CALLS_MAX
        )

    def bring_index(self, ledger_id: int, segment: Segment, at: int, size: int) -> None:
        """Of the segment in which the ledger goes on: ask again once it is there."""
        self._bring(self._follows[ledger_id], segment, at, size)

    def has_looked_beyond(
        self, ledger_id: int, segment: Segment | None, start: int = 0, stop: int = 0
    ) -> None:
        """The ledger goes on in this segment, which is not cached, from `start` on. None: it does
        not, or nothing need be brought."""
        follow = self._follows[ledger_id]
        follow.looked_beyond = True
        if segment is None:
            return
        until = start if follow.index_alone else min(start + AHEAD_BYTES, stop)
        follow.beyond, follow.beyond_until = segment, until
        if until > start:
            self._bring(follow, segment, start, until - start)

    def _bring(self, follow: _Follow, segment: Segment, start: int, size: int) -> None:
        if segment.state is not SegmentState.SEALED:
            return
        try:
            file = self._files.borrow(segment)
        except OSError:
            return  # Whoever reads it next is told.
        follow.busy = True
        self.calls += 1
        self.asked_bytes += size
        self._blocking.ahead(
            partial(file.prefetch, start, size), partial(self._done, follow, segment)
        )

    def _done(self, follow: _Follow, segment: Segment) -> None:
        self.calls -= 1
        follow.busy = False
        self._files.give_back(segment, close=self.closed)
        self._advance(follow)
