"""Time, handed in.

Durations inside an event loop come from the loop (`loop.time()`, `asyncio.timeout`), which the
simulator replaces. What needs the calendar (creation times) or a duration outside a loop takes a
`Clock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970, by the calendar: may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # called for every received chunk
