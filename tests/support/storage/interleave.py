"""Workers that stand still before each operation on the disk, so that others come between.

Only one of the threads runs at a time, and a seed says which: what it finds, it finds again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

SWITCH = 0.4
"""How often another thread goes on, at an operation."""


class _StoppedError(BaseException):
    """Thrown through what waits for its turn when another thread has failed."""


class Interleaving:
    """Runs calls side by side; `pause` is to be called by them before each operation."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: list[threading.Semaphore] = []
        self._alive: list[int] = []
        self._current = -1
        self._main = threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, calls: Sequence[Callable[[], object]]) -> None:
        """All of them, to their ends. What one throws ends the others, and is thrown on."""
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
        """Maybe somebody else first."""
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
