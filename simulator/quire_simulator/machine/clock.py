"""The calendar of a simulated node."""

from __future__ import annotations

import asyncio

EPOCH_MS = 1_750_000_000_000
"""The calendar time in milliseconds at which the loop's clock shows 0."""


class SimClock:
    """A `Clock` that follows the loop's time.

    `skew_ms` is the error of this node's calendar. It may change at any time: the calendar jumps
    then, but `monotonic` does not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()
