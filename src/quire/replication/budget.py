"""A limit on the rate at which replication copies and reads entries."""

from __future__ import annotations

import asyncio

from quire.config import KIB

BURST_S = 0.02
"""Seconds for which unused budget is kept."""
SLICE_S = 0.008
"""The seconds of a rate limit's budget that one slice of a copy uses. Entries are copied slice by
slice, so an append of another client waits on a bookie for one slice, and not for a megabyte."""
SLICE_BYTES_MIN = 16 * KIB


class Budget:
    """A rate limit in bytes per second that all copies which `take` from it share.

    A rate of None means no limit.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._paid_until = 0.0

    @property
    def bounded(self) -> bool:
        return self._rate is not None

    def slice_bytes(self, bytes_max: int) -> int:
        """Return how many bytes to read or write at a time.

        With a rate limit, the number is that of one slice, but at least `SLICE_BYTES_MIN` and at
        most `bytes_max`. Without a rate limit, it is `bytes_max`.
        """
        if self._rate is None:
            return bytes_max
        return min(bytes_max, max(int(self._rate * SLICE_S), SLICE_BYTES_MIN))

    async def take(self, size_bytes: int) -> None:
        """Take bytes from the budget, and wait as long as the rate requires.

        Cancel-safe: the bytes of a cancelled call count as taken.
        """
        if self._rate is None or not size_bytes:
            return
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_S) + size_bytes / self._rate
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)


UNBOUNDED = Budget(None)
