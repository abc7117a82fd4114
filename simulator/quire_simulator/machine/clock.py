"""The calendar of a simulated node."""

from __future__ import annotations

import asyncio

EPOCH_MS = 1_750_000_000_000
"""What the calendar shows when the loop's clock shows 0."""


class SimClock:
    """`Clock` from the loop's time. `skew_ms` is how far this node's calendar is off;
    it may be changed at any time (the calendar jumps, `monotonic` does not)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()
