"""Retries: pauses that grow with each failure in a row, with random jitter, up to a limit.

Every loop that repeats failed work takes its pauses from here. Jitter keeps clients that failed at
the same moment, because a store or a switch restarted, from coming back at the same moment. The
random generator and the clock are arguments, so that the simulator can repeat a run exactly.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

EQUAL_JITTER = 0.5
"""The default for the share of a pause that is random. The other half is always waited, so that a
retry never follows at once."""
_DOUBLINGS_MAX = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses after the first, the second and further failures in a row."""

    first_s: float
    """The longest pause after the first failure, in seconds. It doubles with each further
    failure."""
    most_s: float = math.inf
    """The upper bound of every pause, in seconds."""
    jitter: float = EQUAL_JITTER
    """The largest share of a pause that is subtracted at random, from 0 to 1."""

    def longest_s(self, failures: int) -> float:
        """Return the seconds of the pause without jitter after 1 or more failures in a row."""
        return min(self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.most_s)

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait, with jitter, after 1 or more failures in a row."""
        return self.longest_s(failures) * (1 - self.jitter * rng.random())


class Retry:
    """The retry state of one operation: its failures in a row, its pauses and its limits.

    retry = Retry(BACKOFF, rng, attempts=5)
    while True:
        try:
            return await work()
        except PassingError:
            if not await retry.pause():
                raise
    """

    def __init__(
        self,
        backoff: Backoff,
        rng: random.Random,
        *,
        attempts: int | None = None,
        limit_s: float | None = None,
        now: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Set the limits of the attempts. Without a limit the work is repeated for ever.

        Args:
            backoff: The pauses.
            rng: The source of their jitter.
            attempts: The largest number of attempts, counted from the start or from `reset`.
            limit_s: Seconds from now after which a failure is final. The last attempt may begin
                later than that, by the pause before it.
            now: The clock. The default is that of the event loop.
            sleep: The function that pauses.
        """
        self.failures = 0
        """The number of failures since the start, or since `reset`."""
        self._backoff = backoff
        self._rng = rng
        self._attempts = attempts
        self._sleep = sleep
        self._now = now
        self._give_up_s = math.inf if limit_s is None else self._time() + limit_s

    def _time(self) -> float:
        return asyncio.get_running_loop().time() if self._now is None else self._now()

    def reset(self) -> None:
        """Begin again with the shortest pause, because the work has made progress. The time limit
        stays."""
        self.failures = 0

    def failed(self) -> bool:
        """Count one more failure. Return whether another attempt is allowed."""
        self.failures += 1
        if self._attempts is not None and self.failures >= self._attempts:
            return False
        return self._give_up_s == math.inf or self._time() < self._give_up_s

    def pause_s(self) -> float:
        """Return the seconds to wait after the failures so far, drawn anew by each call."""
        return self._backoff.pause_s(max(1, self.failures), self._rng)

    async def pause(self) -> bool:
        """Count one more failure and wait. Return False at once if a limit is reached."""
        if not self.failed():
            return False
        await self._sleep(self.pause_s())
        return True
