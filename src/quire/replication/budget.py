"""Bytes per second, as a bound."""

from __future__ import annotations

import asyncio

BURST_S = 0.1
"""What was not used is kept for so long."""


class Budget:
    """Who takes bytes waits until they are paid for. None: no bound. Cancel-safe: what was taken
    stays taken."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._paid_until = 0.0

    @property
    def bounded(self) -> bool:
        return self._rate is not None

    async def take(self, size_bytes: int) -> None:
        if self._rate is None or not size_bytes:
            return
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_S) + size_bytes / self._rate
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)


UNBOUNDED = Budget(None)
