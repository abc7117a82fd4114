"""Threads for the interfaces of storage: for the log, for maintenance, and for cold reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Ended = Callable[[Any, Exception | None], object]

READER_THREADS = 4
"""The number of reads that can wait for the device at the same time."""
AHEAD_THREADS = 1
"""The number of threads for reading ahead. One is enough, because it only tells the system what
will be read."""


class ThreadWorker:
    """An `interfaces.Worker` that is a thread.

    An exception in a step is reported to the event loop's exception handler. The thread continues
    with the next wake.
    """

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
        # Two threads may both find the worker asleep. The second token then causes one step that
        # finds nothing to do.
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
            # Reset this before the step. Work that is queued from here on sends another token.
            self._awake = False
            self._step(step)
        if self._awake:
            self._step(step)
        self.post(self._finish)

    def _step(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - errors of the thread are reported to the loop
            context = {"message": f"{self._name} failed", "exception": error}
            self.post(lambda: self._loop.call_exception_handler(context))

    def _finish(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)


class _NotRunError(Exception):
    """The error that a call was not run, because the reader is being closed."""


class _Threads:
    """A few threads, started when needed, that run calls in the order of their arrival.

    An executor of the standard library creates eight objects and takes five locks for each call.
    This class needs one queue and one callback.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, most: int) -> None:
        self._loop = loop
        self._name = name
        self._most = most
        self._calls: SimpleQueue[tuple[Callable[[], Any], _Ended] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._closed = False

    def run(self, call: Callable[[], Any], ended: _Ended) -> None:
        """Run `call` on a thread, and then `ended(result, error)` on the event loop.

        The error is `_NotRunError` if `close` was called before the call has begun.
        """
        if self._closed:
            self._loop.call_soon(ended, None, _NotRunError())
            return
        self._under_way += 1
        if self._under_way > len(self._threads) < self._most:
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._calls.put((call, ended))

    def close(self, limit_s: float | None = None) -> bool:
        """End the threads, wait for them as `ThreadReader.close` does, and return its result."""
        self._closed = True
        with suppress(Empty):
            while (queued := self._calls.get_nowait()) is not None:
                self._tell(queued[1], None, _NotRunError())
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(limit_s)
            if thread.is_alive():
                return False
        return True

    def _serve(self) -> None:
        while (queued := self._calls.get()) is not None:
            call, ended = queued
            try:
                result, error = call(), None
            except Exception as raised:  # noqa: BLE001 - errors are passed to the event loop
                result, error = None, raised
            self._tell(ended, result, error)
            # Release these now, because the next call may come late, and what was read may be
            # large.
            del queued, call, ended, result, error

    def _tell(self, ended: _Ended, result: object, error: Exception | None) -> None:
        with suppress(RuntimeError):  # The loop is closed, so nobody waits for the result.
            self._loop.call_soon_threadsafe(self._end, ended, result, error)

    def _end(self, ended: _Ended, result: object, error: Exception | None) -> None:
        self._under_way -= 1
        ended(result, error)


class ThreadReader:
    """An `interfaces.BlockingReader` that runs blocking reads on a few threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = READER_THREADS) -> None:
        self._loop = loop
        self._readers = _Threads(loop, "quire-read", threads)
        self._ahead = _Threads(loop, "quire-ahead", AHEAD_THREADS)

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` on a thread, and return its result.

        Cancelling this does not stop the call. Exceptions of the call reach the caller. If the
        reader is closed before the call has begun, this raises `asyncio.CancelledError`.
        """
        found: asyncio.Future[T] = self._loop.create_future()
        self._readers.run(call, partial(_settle, found))
        return await found

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        self._readers.run(call, partial(self._read, done))

    def _read(
        self, done: Callable[[T | None], None], result: T | None, error: Exception | None
    ) -> None:
        if error is not None and not isinstance(error, _NotRunError):
            context = {"message": "a cold read failed", "exception": error}
            self._loop.call_exception_handler(context)
        done(result)

    def ahead(self, call: Callable[[], None], done: Callable[[], None]) -> None:
        # If a later read meets the same error, that read reports it.
        self._ahead.run(call, lambda result, error: done())

    def close(self, limit_s: float | None = None) -> bool:
        """Wait for the reads that are running, and return whether all of them have ended.

        Queued reads are not run. With `limit_s`, a read that takes longer than so many seconds
        ends the wait, because a disk that hangs may never finish it. Its thread remains until the
        process ends.
        """
        ended = self._readers.close(limit_s)
        return self._ahead.close(limit_s if ended else 0.0) and ended


def _settle(found: asyncio.Future[T], result: T, error: Exception | None) -> None:
    if found.done():
        return  # It was cancelled.
    if isinstance(error, _NotRunError):
        found.cancel()
    elif error is not None:
        found.set_exception(error)
    else:
        found.set_result(result)


class InlineReader:
    """An `interfaces.BlockingReader` that reads on the event loop.

    It is for disks that never make it wait, such as the simulator's.
    """

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        done(call())

    def ahead(self, call: Callable[[], None], done: Callable[[], None]) -> None:
        done()
