"""Threads below the storage seams: one for the log, one for maintenance, a few for cold reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

READER_THREADS = 4
"""Cold reads at the same time."""
AHEAD_THREADS = 1
"""It only tells the system what will be read: the waiting is the device's."""


class ThreadWorker:
    """`seams.Worker` as a thread. A step that raises is reported to the loop's exception handler;
    the next wake runs the next step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._awake = False
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Future[None] | None = None

    def start(self, step: Callable[[], None]) -> None:
        assert self._thread is None, "started twice"
        self._stopped = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(step,), name=self._name)
        self._thread.daemon = True
        self._thread.start()

    def wake(self) -> None:
        # Two threads may both find it asleep: the second token costs one step that finds nothing.
        if not self._awake:
            self._awake = True
            self._tokens.put(True)

    def post(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    async def stop(self) -> None:
        if self._thread is None or self._stopped is None:
            return
        self._tokens.put(False)
        await asyncio.shield(self._stopped)
        self._thread.join()

    def _run(self, step: Callable[[], None]) -> None:
        while self._tokens.get():
            # Before the step: what is queued behind this line wakes it again.
            self._awake = False
            self._step(step)
        if self._awake:
            self._step(step)
        self.post(self._finish)

    def _step(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the border of the thread: told to the loop
            context = {"message": f"{self._name} failed", "exception": error}
            self.post(lambda: self._loop.call_exception_handler(context))

    def _finish(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)


class ThreadReader:
    """Runs blocking reads on a few threads. See `blocking.BlockingReader`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = READER_THREADS) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quire-read")
        self._ahead = ThreadPoolExecutor(AHEAD_THREADS, thread_name_prefix="quire-ahead")

    async def run(self, call: Callable[[], T]) -> T:
        """Cancelling leaves it to finish unseen."""
        return await self._loop.run_in_executor(self._pool, call)

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        def ended(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                done(None)
                return
            error = future.exception()
            if error is None:
                done(future.result())
                return
            context = {"message": "a cold read failed", "exception": error}
            self._loop.call_exception_handler(context)
            done(None)

        self._loop.run_in_executor(self._pool, call).add_done_callback(ended)

    def ahead(self, call: Callable[[], None], done: Callable[[], None]) -> None:
        def ended(future: asyncio.Future[None]) -> None:
            if not future.cancelled():
                future.exception()  # Whoever reads it for its own sake is told.
            done()

        self._loop.run_in_executor(self._ahead, call).add_done_callback(ended)

    def close(self) -> None:
        """Waits for reads that run."""
        for pool in (self._pool, self._ahead):
            pool.shutdown(wait=True, cancel_futures=True)
