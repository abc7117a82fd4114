"""Reading ahead of readers that go through a ledger on the device from one entry to the next.

While the event loop checks and sends one piece, a thread brings the next ones into the system's
cache, so that they are found there without waiting. The bytes are thrown away: the cache, its
bounds, and what it gives up first, are the system's.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from quire.storage.blocking import BlockingReader
from quire.storage.cache import SegmentFiles
from quire.storage.segment import Segment, SegmentState

AHEAD_BYTES = 4 * 1024 * 1024
"""How far ahead of a reader. It reads 1 MB at once: the device has three of them to go on with."""
STEP_BYTES = 1024 * 1024
"""Brought by one call."""
FOLLOWED_MAX = 256
"""Ledgers whose readers are followed; the one that was read least recently is forgotten."""
STEPS_BEFORE = 2
"""Pieces that must have come one behind the other: a single look at an entry reads nothing else."""


class _Follow:
    __slots__ = ("busy", "end", "next_entry", "segment", "steps", "stop", "until", "waited_in")

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


class ReadAhead:
    """Used on the event loop."""

    def __init__(self, files: SegmentFiles, blocking: BlockingReader) -> None:
        self._files = files
        self._blocking = blocking
        self._follows: OrderedDict[int, _Follow] = OrderedDict()
        self.closed = False
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
        return follow is not None and (follow.waited_in is segment)

    def has_read(
        self, ledger_id: int, entry_id: int, count: int, segment: Segment, end: int, stop: int
    ) -> None:
        """So many entries of a sealed segment, which end at this offset of it. Up to `stop` most is
        of the same ledger."""
        follow = self._follows.get(ledger_id)
        if follow is None:
            return
        follow.steps = follow.steps + 1 if follow.next_entry == entry_id else 0
        follow.next_entry = entry_id + count
        if follow.segment is not segment:
            follow.segment, follow.until = segment, end
        follow.end, follow.stop = end, stop
        self._advance(follow)

    def _advance(self, follow: _Follow) -> None:
        segment = follow.segment
        if segment is None or follow.waited_in is not segment or follow.busy or self.closed:
            return
        if follow.steps < STEPS_BEFORE:
            return
        start = max(follow.end, follow.until)
        size = min(STEP_BYTES, follow.end + AHEAD_BYTES - start, follow.stop - start)
        if size <= 0 or segment.state is not SegmentState.SEALED:
            return
        try:
            file = self._files.get(segment)
        except OSError:
            return  # Whoever reads it next is told.
        follow.busy = True
        follow.until = start + size
        self.asked_bytes += size
        segment.readers += 1
        self._blocking.start(partial(file.read, start, size), partial(self._done, follow, segment))

    def _done(self, follow: _Follow, segment: Segment) -> None:
        follow.busy = False
        segment.readers -= 1
        if segment.state is SegmentState.RETIRED or self.closed:
            self._files.close(segment)
        self._advance(follow)
