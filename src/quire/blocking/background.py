"""The event loop that runs the calls of the blocking API, in a background thread.

All blocking handles of a process share this loop. Therefore they also work inside a running loop,
as in Jupyter. After a fork the child gets a loop of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from quire._runtime.names.caller_warnings import blocking_caller, find_caller
from quire.errors import ClientClosedError, UsageError

P = ParamSpec("P")
T = TypeVar("T")

EXIT_LIMIT_S = 5.0
"""Seconds that the end of the process waits for the loop to stop."""


class _Background:
    """One event loop in a daemon thread of this process."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="quire-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ended:
            # Code of the program, such as a state machine's `apply`, may raise what ends a loop.
            # The caller in another thread raises it as well, and all other callers still need the
            # loop.
            with suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def stop(self) -> None:
        """Stop the loop and its thread, at the end of the process.

        A thread that still runs uvloop while the interpreter is finalized crashes the process now
        and then. Nothing is closed here: the threads that closing needs have ended already.
        """
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(EXIT_LIMIT_S)

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        if self._ended or sys.is_finalizing() or threading.current_thread() is self._thread:
            work.close()
        else:
            self.call(work)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "the blocking API was called from its own event loop, which cannot wait for itself",
                remedy="Do not call it in functions that Quire calls, such as `apply` of a state "
                "machine",
            )
        if self._ended:
            work.close()
            raise ClientClosedError("the process is ending, and the blocking API has ended")
        # The loop runs the work in a copy of this context.
        token = blocking_caller.set(find_caller())
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        finally:
            blocking_caller.reset(token)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_background: _Background | None = None
_starting = threading.Lock()
_reopening = threading.RLock()


def _forget_loop() -> None:
    """Forget the loop and the locks: a child has none of its parent's threads, which hold them."""
    global _background, _starting, _reopening
    _background = None
    _starting = threading.Lock()
    _reopening = threading.RLock()


os.register_at_fork(after_in_child=_forget_loop)


def _stop_at_exit() -> None:
    if _background is not None:
        _background.stop()


# Registered on import, so that it runs after whatever a program registers later.
atexit.register(_stop_at_exit)


def _started() -> _Background:
    global _background
    if _background is None:
        with _starting:
            if _background is None:
                _background = _Background()
    return _background


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for it."""
    return _started().call(work)


def end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that ends something, from wherever Python's garbage collection calls this.

    It works as `call`, but does nothing in two cases. The thread of the loop cannot wait for
    itself, and ends collected objects anyway. While the process ends, the loop does not run any
    more.
    """
    _started().end(work)


def run(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function on the thread of the background loop, and wait for its result."""

    async def work() -> T:
        return function(*args, **kwargs)

    return call(work())


def reopening() -> threading.RLock:
    """Return the lock under which handles are opened again after a fork."""
    return _reopening
