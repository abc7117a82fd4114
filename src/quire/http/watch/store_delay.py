"""How long the metadata store takes to answer while the cluster is examined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

PAUSE_S = 0.2
"""Seconds between the answer to a small request and the next one."""
STEP_S = 0.1
"""Seconds after which an unanswered request is looked at again."""

T = TypeVar("T")


class StoreDelay:
    """The longest time that the metadata store took to answer a small request.

    A store whose process is paused again and again loses no connection. So this is the only sign of
    it to a process that does not run for long.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Create a measurement. `monotonic` returns the monotonic time in seconds."""
        self._monotonic = monotonic
        self.longest_s = 0.0
        """The longest time in seconds. A request that is not answered yet counts as well."""

    @asynccontextmanager
    async def watched(self, ask: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """Ask the store something small again and again while the context lasts.

        `ask` sends the request. Its errors are ignored: other requests to the store report them.
        """
        asking = asyncio.create_task(self._ask_often(ask))
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.wait([asking])

    async def of(self, request: Awaitable[T]) -> T:
        """Return the result of a request, and measure it. Raises its errors. Safe to cancel."""
        task = asyncio.ensure_future(request)
        waited_s, last_s = 0.0, self._monotonic()
        try:
            while not task.done():
                await asyncio.wait([task], timeout=STEP_S)
                now_s = self._monotonic()
                # If the process itself was busy or paused, that says nothing about the store.
                waited_s += min(now_s - last_s, 2 * STEP_S)
                last_s = now_s
                self.longest_s = max(self.longest_s, waited_s)
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _ask_often(self, ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await self.of(ask())
            except Exception:  # noqa: BLE001 - the other requests report it
                pass
            await asyncio.sleep(PAUSE_S)
