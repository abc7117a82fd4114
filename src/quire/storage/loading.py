"""How far a start is with the log: written by the thread that reads it, looked at by others."""

from __future__ import annotations


class LoadProgress:
    """Counts segments twice: once when they are looked at, once when they are indexed."""

    def __init__(self) -> None:
        self.segments = 0
        self._done = 0

    def begin(self, segments: int) -> None:
        """Also where a start begins anew."""
        self.segments = segments
        self._done = 0

    def advance(self, segments: int = 1) -> None:
        self._done += segments

    @property
    def percent(self) -> int:
        """0 before it has begun."""
        return min(100, 50 * self._done // self.segments) if self.segments else 0
