"""The clock, as an argument that tests and the simulator can replace.

Durations inside an event loop come from the loop (`loop.time()`, `asyncio.timeout`), which the
simulator replaces. Code that needs the calendar, for example for creation times, or a duration
outside a loop takes a `Clock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the calendar time and of durations."""

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds, which may jump when the clock is set."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment, for durations. The value never decreases."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # called for every received chunk
