"""Blocking code on the simulated loop, one step at a time.

A stepped thread runs only while the loop stands still and waits for it: from the start, or where it
paused, to its next pause. So its steps come in an order that the seed decides, like all
others. What it does between two pauses nobody sees halfway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

T = TypeVar("T")


class _Ended(BaseException):
    """Thrown through the code of a world that is over. Not an `Exception`: nobody handles it."""


class SteppedThread(Generic[T]):
    """`resume` until `done`; then `result`. One that is not done is to be ended at last."""

    def __init__(self, work: Callable[[], T]) -> None:
        """What `work` puts on the loop belongs to the node of whoever makes this."""
        self.done = False
        self._work = work
        self._context = copy_context()
        self._found: T
        self._error: BaseException | None = None
        self._ended = False
        self._its_turn, self._our_turn = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="stepped", daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Run it to its next pause, or to its end."""
        self._its_turn.release()
        self._our_turn.acquire()
        if self.done:
            self._thread.join()

    def pause(self) -> None:
        """Called by the code that runs in it; nothing anywhere else."""
        if threading.current_thread() is self._thread:
            self._our_turn.release()
            self._wait()

    def result(self) -> T:
        """What the work returned, or raises what it raised."""
        assert self.done
        if self._error is not None:
            raise self._error
        return self._found

    def end(self) -> None:
        """What it has left to do is not done, but for what unwinds."""
        self._ended = True
        while not self.done:
            self.resume()

    def _run(self) -> None:
        try:
            self._wait()
            self._found = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - handed to who asks for the result
            self._error = error
        self.done = True
        self._our_turn.release()

    def _wait(self) -> None:
        self._its_turn.acquire()
        if self._ended:
            raise _Ended
