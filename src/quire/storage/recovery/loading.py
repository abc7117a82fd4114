"""The progress of a start. The thread that reads the log updates it, and other threads read it."""

from __future__ import annotations

from quire.codec.log.footer import Trailer
from quire.storage.recovery.index_cache import LedgerSearch
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import LogSegment


class LoadStopped(Exception):
    """The start was stopped while it read the log. Nothing was written."""


class LoadProgress:
    """The progress of a start, and the request to stop it.

    Each segment counts twice: when its trailer or groups are read, and when it is indexed.
    """

    def __init__(self) -> None:
        self.segments = 0
        self._done = 0
        self._stopped = False
        self.sealed: dict[int, LogSegment] = {}
        """The sealed segments that are indexed, or are about to be. These are separate objects, for
        reads that do not wait for the rest of the start (`early_reads`)."""
        self.search: LedgerSearch | None = None
        """Finds the ledgers of the index cache while they are loaded from it. They have rows only
        in segments that are in `sealed`."""

    def begin(self, segments: int) -> None:
        """Begin to count. This is called again if the start begins again.

        Raises:
            LoadStopped: `stop` was called.
        """
        self.segments = segments
        self._done = 0
        self.check()

    def advance(self, segments: int = 1) -> None:
        """Count segments that are loaded. Raises LoadStopped if `stop` was called."""
        self._done += segments
        self.check()

    def index(self, number: int, trailer: Trailer) -> None:
        """Add a sealed segment. This must be done before any ledger's rows name it."""
        known = self.sealed.get(number)
        if known is not None and known.trailer == trailer:
            return  # The start begins again, and reads may have the file open.
        segment = LogSegment(number, None, trailer.file_bytes)
        segment.seal(trailer, LedgerIdSet())
        self.sealed[number] = segment

    def stop(self) -> None:
        """Ask the start to end after the current segment. This may be called from any thread."""
        self._stopped = True

    def check(self) -> None:
        """Raise `LoadStopped` if the start was asked to end."""
        if self._stopped:
            raise LoadStopped

    @property
    def percent(self) -> int:
        """The share of the log that is loaded, in percent, or 0 before the start has begun."""
        return min(100, 50 * self._done // self.segments) if self.segments else 0
