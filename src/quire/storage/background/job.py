"""The base classes of all background jobs of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.storage.config import StorageConfig
from quire.storage.interfaces import Disk
from quire.storage.log.appender import Schedule, TimerHandle
from quire.storage.log.job_queue import JobQueue
from quire.storage.log.preallocation import PreallocatedSegments, may_pass
from quire.storage.read.cache import SegmentFiles
from quire.storage.segment.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class JobContext:
    """The parts of a store that it shares with each of its background jobs."""

    disk: Disk
    directory_id: bytes
    catalogue: Catalogue
    files: SegmentFiles
    jobs: JobQueue
    preallocated: PreallocatedSegments
    config: StorageConfig
    schedule: Schedule
    now_ms: Callable[[], int]
    """A function that returns the Unix time in milliseconds."""
    monotonic: Callable[[], float]
    broken: Callable[[Exception], None]
    """A function that a job calls when the disk has failed, unless the error may go away by
    itself."""


class BackgroundJob:
    """A background job. It runs on the event loop, and does blocking work through `JobQueue`."""

    def __init__(self, context: JobContext) -> None:
        self._disk = context.disk
        self._directory_id = context.directory_id
        self._catalogue = context.catalogue
        self._files = context.files
        self._jobs = context.jobs
        self._preallocated = context.preallocated
        self._config = context.config
        self._schedule = context.schedule
        self._now_ms = context.now_ms
        self._monotonic = context.monotonic
        self._broken = context.broken

    def _look_at(self, error: Exception | None) -> None:
        """Report the error of a job as a failure of the disk, unless it may go away by itself."""
        if error is not None and not may_pass(error):
            self._broken(error)


class PacedJob(BackgroundJob):
    """A background job that does its work in pieces, with pauses between them."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self._timer: TimerHandle | None = None
        self.closed = False
        """Whether the background jobs are about to be stopped. If so, no further work is begun."""

    def cancel(self) -> None:
        """Begin no more pieces of work, because the background jobs are about to be stopped.

        A queued piece still runs.
        """
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
