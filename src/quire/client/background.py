"""One event loop in a background thread, for the blocking twins: all handles of a process share it,
so that they work inside a running loop too (Jupyter). After a fork the child gets one of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from quire.errors import UsageError

T = TypeVar("T")


class _Background:
    """One event loop in a daemon thread, for this process."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="quire-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("the blocking API was called from its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
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


def _forget_loop() -> None:
    global _background, _starting
    _background = None
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for it."""
    global _background
    if _background is None:
        with _starting:
            if _background is None:
                _background = _Background()
    return _background.call(work)
