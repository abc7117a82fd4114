"""Run blocking code on the simulated loop, one step at a time.

A stepped thread runs only while the loop waits for it, from its start or last pause to its next
pause. So the seed decides the order of its steps, like that of all others. No other code runs
during a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

T = TypeVar("T")


class _Ended(BaseException):
    """Raised in the code of a finished world; not an `Exception`, so that nobody handles it."""


class SteppedThread(Generic[T]):
    """Call `resume` until `done`, and then `result`. A thread that is not done must be ended."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Create a thread that will run `work`.

        What `work` schedules on the loop belongs to the caller's node.
        """
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
        """Run the thread to its next pause or its end."""
        self._its_turn.release()
        self._our_turn.acquire()
        if self.done:
            self._thread.join()

    def pause(self) -> None:
        """Pause until the next `resume`. In any other thread this does nothing."""
        if threading.current_thread() is self._thread:
            self._our_turn.release()
            self._wait()

    def result(self) -> T:
        """Return or raise the result of the work."""
        assert self.done
        if self._error is not None:
            raise self._error
        return self._found

    def end(self) -> None:
        """Abandon the remaining work, and run only what unwinds the thread's stack."""
        self._ended = True
        while not self.done:
            self.resume()

    def _run(self) -> None:
        try:
            self._wait()
            self._found = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self.done = True
        self._our_turn.release()

    def _wait(self) -> None:
        self._its_turn.acquire()
        if self._ended:
            raise _Ended
