"""Workers that pause before each disk operation, so that others can run in between.

Only one thread runs at a time, and a seed decides which. So whatever it finds can be repeated.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

SWITCH = 0.4
"""The probability that another thread continues at an operation."""


class _StoppedError(BaseException):
    """Raised in waiting threads when another thread has failed."""


class Interleaving:
    """Runs calls side by side. They must call `pause` before each operation."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: list[threading.Semaphore] = []
        self._alive: list[int] = []
        self._current = -1
        self._main = threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, calls: Sequence[Callable[[], object]]) -> None:
        """Run all calls to their ends. An exception in one ends the others, and is raised."""
        if not calls:
            return
        self._turns = [threading.Semaphore(0) for _ in calls]
        self._alive = list(range(len(calls)))
        threads = [
            threading.Thread(target=self._run, args=(at, call), daemon=True)
            for at, call in enumerate(calls)
        ]
        for thread in threads:
            thread.start()
        self._pass_on()
        self._main.acquire()
        for thread in threads:
            thread.join()
        self._current = -1
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def running(self) -> bool:
        return self._current >= 0

    def pause(self) -> None:
        """Perhaps let another thread run first."""
        if not self.running or len(self._alive) < 2 or self._rng.random() >= SWITCH:
            return
        me = self._current
        self._pass_on()
        self._wait(me)

    def _pass_on(self) -> None:
        self._current = self._rng.choice(self._alive)
        self._turns[self._current].release()

    def _wait(self, me: int) -> None:
        self._turns[me].acquire()
        if self._error is not None:
            raise _StoppedError

    def _run(self, me: int, call: Callable[[], object]) -> None:
        try:
            self._wait(me)
            call()
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - thrown on in the thread that waits
            self._error = error
        self._alive.remove(me)
        if self._alive:
            self._pass_on()
        else:
            self._main.release()
