"""What the things have in common that go on in the background of a store."""

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
    """What the store gives each of them."""

    disk: Disk
    directory_id: bytes
    catalogue: Catalogue
    files: SegmentFiles
    jobs: JobQueue
    preallocated: PreallocatedSegments
    config: StorageConfig
    schedule: Schedule
    now_ms: Callable[[], int]
    """Calendar."""
    monotonic: Callable[[], float]
    broken: Callable[[Exception], None]
    """Called when the disk fails for another reason than space."""


class BackgroundJob:
    """Used on the event loop."""

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
        """What cannot pass by itself has broken the disk."""
        if error is not None and not may_pass(error):
            self._broken(error)


class PacedJob(BackgroundJob):
    """One that does its work piece by piece, with pauses."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self._timer: TimerHandle | None = None
        self.closed = False
        """Set before the maintenance is stopped: nothing more is begun."""

    def cancel(self) -> None:
        """Before the maintenance is stopped: a job that is queued still ends."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
