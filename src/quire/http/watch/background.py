"""What is looked at in the background while somebody wants to know, and shared by all who do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine

from quire._runtime.tasks import TaskSet

LOOK_WAIT_S = 0.1
"""Who asks waits so long for a look that is under way; then what the one before has found is the
answer."""


class Background:
    """One look at a time, and not more often than every `interval_s`; never while nobody asks."""

    def __init__(
        self, monotonic: Callable[[], float], interval_s: float, wait_s: float = LOOK_WAIT_S
    ) -> None:
        self.interval_s = interval_s
        self._wait_s = wait_s
        self._monotonic = monotonic
        self._tasks = TaskSet()
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = self._ended_s = -math.inf
        """When something was found, and when the last look ended, however it did."""

    @property
    def age_s(self) -> float | None:
        """Of what the last look has found; None: there was none."""
        age_s = self._monotonic() - self._looked_s
        return age_s if math.isfinite(age_s) else None

    async def refresh(self, look: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begin a look if it is time for one, and wait for what is under way, a little."""
        due = self._monotonic() - self._ended_s >= self.interval_s
        if due and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.start(self._look_once(look))
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=self._wait_s)

    async def _look_once(self, look: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await look()
            self._looked_s = self._monotonic()
        finally:
            self._ended_s = self._monotonic()

    def forget(self) -> None:
        """What was found is of no use any more: the next who asks begins a look."""
        self._looked_s = self._ended_s = -math.inf

    async def close(self) -> None:
        await self._tasks.close()
