"""A queue of slow jobs for the maintenance worker, such as preallocating, sealing and removing."""

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
    """A queue of slow jobs that a worker runs one after the other, off the event loop.

    A job consists of two functions. `work` runs on the worker. Then `done(result, error)` runs on
    the event loop. `work` is expected to raise only `OSError` and `StorageError`. Any other
    exception is passed to `done` as well, and the worker reports it.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._urgent: deque[_Job[Any]] = deque()
        self._jobs: deque[_Job[Any]] = deque()
        self.draining = False
        """Whether the worker is about to be stopped. If so, its last step runs all waiting jobs."""

    def start(self) -> None:
        self._worker.start(self.step)

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
        *,
        urgent: bool = False,
    ) -> None:
        """Queue a job. Urgent jobs run before the others.

        A job is urgent if the log may be waiting for it, such as the preallocation of a segment.
        """
        (self._urgent if urgent else self._jobs).append(_Job(work, done))
        self._worker.wake()

    def step(self) -> None:
        """Run the next job. After `draining` is set, run all of them."""
        while self._urgent or self._jobs:
            job = self._urgent.popleft() if self._urgent else self._jobs.popleft()
            try:
                result = job.work()
            except (OSError, StorageError) as error:
                self._worker.post(partial(job.done, None, error))
            except Exception as error:
                self._worker.post(partial(job.done, None, error))
                if self._urgent or self._jobs:
                    self._worker.wake()
                raise
            else:
                self._worker.post(partial(job.done, result, None))
            if not self.draining and (self._urgent or self._jobs):
                self._worker.wake()
                return
