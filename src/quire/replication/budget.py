"""A limit of the rate, in bytes per second."""

from __future__ import annotations

import asyncio

from quire.config import KIB

BURST_S = 0.02
"""Seconds for which unused budget is kept."""
SLICE_S = 0.008
"""The duration of a slice in seconds. Copies are made in slices of this much budget, so that
appends of others wait on a bookie for one slice, and not for a megabyte."""
SLICE_BYTES_MIN = 16 * KIB


class Budget:
    """A rate limit: `take` waits until the bytes are paid for. None means no limit.

    Cancel-safe: bytes that were taken stay taken.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._paid_until = 0.0

    @property
    def bounded(self) -> bool:
        return self._rate is not None

    def slice_bytes(self, bytes_max: int) -> int:
        """Return how many bytes to read or write at a time: `bytes_max` if there is no limit."""
        if self._rate is None:
            return bytes_max
        return min(bytes_max, max(int(self._rate * SLICE_S), SLICE_BYTES_MIN))

    async def take(self, size_bytes: int) -> None:
        """Take bytes from the budget, and wait until they are paid for."""
        if self._rate is None or not size_bytes:
            return
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_S) + size_bytes / self._rate
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)


UNBOUNDED = Budget(None)
