"""Bytes per second, as a bound."""

from __future__ import annotations

import asyncio

from quire.config import KIB

BURST_S = 0.02
"""What was not used is kept for so long."""
SLICE_S = 0.008
"""What the bound gives in so long goes at a time: appends of others wait for that on a bookie's
disk and in its event loop, and not for a megabyte."""
SLICE_BYTES_MIN = 16 * KIB


class Budget:
    """Who takes bytes waits until they are paid for. None: no bound. Cancel-safe: what was taken
    stays taken."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._paid_until = 0.0

    @property
    def bounded(self) -> bool:
        return self._rate is not None

    def slice_bytes(self, bytes_max: int) -> int:
        """How much to read and to write at a time: `bytes_max` where there is no bound."""
        if self._rate is None:
            return bytes_max
        return min(bytes_max, max(int(self._rate * SLICE_S), SLICE_BYTES_MIN))

    async def take(self, size_bytes: int) -> None:
        if self._rate is None or not size_bytes:
            return
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_S) + size_bytes / self._rate
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)


UNBOUNDED = Budget(None)
