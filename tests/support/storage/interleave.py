"""Workers that pause before each disk operation, so that others can run in between.

Only one thread runs at a time, and a seed decides which one. Failures can therefore be repeated.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

SWITCH = 0.4
"""The probability that another thread continues when a thread pauses before an operation."""


class _StoppedError(BaseException):
    """The error in waiting threads that ends them when another thread has failed."""


class Interleaving:
    """A scheduler that runs calls side by side, each in a thread of which only one runs at a time.

    The calls must call `pause` before each operation.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: list[threading.Semaphore] = []
        self._alive: list[int] = []
        self._current = -1
        self._main = threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, calls: Sequence[Callable[[], object]]) -> None:
        """Run all calls to their ends. If one raises, the others are ended, and this raises."""
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
        """Let another thread run first, with the probability `SWITCH`."""
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
