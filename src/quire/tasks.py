"""Background work in an event loop: every task has an owner that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """Tasks that live until they end or `close` cancels them.

    What can happen to a coroutine given here is its own affair; anything else goes to the loop's
    exception handler.
    """

    def __init__(self) -> None:
        # A dictionary as a set that keeps its order: the same seed, the same run.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": "unexpected error in background work", "exception": error, "task": task}
            )

    async def close(self) -> None:
        """Cancel what runs (but for the task that calls this) and wait until it has ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
