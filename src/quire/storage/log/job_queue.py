"""Slow work off the event loop, one job after the other: preallocating, sealing, removing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from quire.errors import StorageError
from quire.storage.interfaces import Worker

T = TypeVar("T")


class _Job(Generic[T]):
    __slots__ = ("done", "work")

    def __init__(
        self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        self.work = work
        self.done = done


class JobQueue:
    """A queue of jobs on a worker. `work` runs on the worker; `done(result, error)` runs on the
    event loop behind it. Of errors only `OSError` and `StorageError` are expected; others are
    handed to `done` too, and reported by the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._urgent: deque[_Job[Any]] = deque()
        self._jobs: deque[_Job[Any]] = deque()
        self.draining = False
        """Set before the worker is stopped: its last step then does all that waits."""

    def start(self) -> None:
        self._worker.start(self.step)

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
        *,
        urgent: bool = False,
    ) -> None:
        """Urgent jobs go first: the log waits for preallocated segments."""
        (self._urgent if urgent else self._jobs).append(_Job(work, done))
        self._worker.wake()

    def step(self) -> None:
        while self._urgent or self._jobs:
            job = self._urgent.popleft() if self._urgent else self._jobs.popleft()
            try:
                result = job.work()
            except (OSError, StorageError) as error:
                self._worker.post(partial(job.done, None, error))
            except Exception as error:
                self._worker.post(partial(job.done, None, error))
                raise
            else:
                self._worker.post(partial(job.done, result, None))
            if not self.draining and (self._urgent or self._jobs):
                self._worker.wake()
                return
