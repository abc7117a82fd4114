"""How far a start is with the log: written by the thread that reads it, looked at by others."""

from __future__ import annotations

from quire.codec.log.footer import Trailer
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import LogSegment


class LoadStopped(Exception):
    """The start was given up: what was read is forgotten, and nothing was written."""


class LoadProgress:
    """Counts segments twice: once when they are looked at, once when they are indexed."""

    def __init__(self) -> None:
        self.segments = 0
        self._done = 0
        self._stopped = False
        self.sealed: dict[int, LogSegment] = {}
        """Sealed segments that are indexed, or are about to be: objects of their own, for reads
        that do not wait for the rest (`early_reads`)."""

    def begin(self, segments: int) -> None:
        """Also where a start begins anew. `LoadStopped`."""
        self.segments = segments
        self._done = 0
        self.check()

    def advance(self, segments: int = 1) -> None:
        """`LoadStopped`."""
        self._done += segments
        self.check()

    def index(self, number: int, trailer: Trailer) -> None:
        """Ahead of the ledgers' rows that name the segment."""
        known = self.sealed.get(number)
        if known is not None and known.trailer == trailer:
            return  # The start begins anew: reads may have its file open.
        segment = LogSegment(number, None, trailer.file_bytes)
        segment.seal(trailer, LedgerIdSet())
        self.sealed[number] = segment

    def stop(self) -> None:
        """From any thread: the start ends with the segment that it is at."""
        self._stopped = True

    def check(self) -> None:
        """`LoadStopped` where that was asked for."""
        if self._stopped:
            raise LoadStopped

    @property
    def percent(self) -> int:
        """0 before it has begun."""
        return min(100, 50 * self._done // self.segments) if self.segments else 0
