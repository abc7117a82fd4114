"""What the things have in common that go on in the background of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.storage.config import StorageConfig
from quire.storage.interfaces import Disk
from quire.storage.log.appender import Handle, Schedule
from quire.storage.log.job_queue import Maintenance
from quire.storage.log.preallocation import Spares, may_pass
from quire.storage.read.cache import SegmentFiles
from quire.storage.segment.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class Tools:
    """What the store gives each of them."""

    disk: Disk
    directory_id: bytes
    catalogue: Catalogue
    files: SegmentFiles
    maintenance: Maintenance
    spares: Spares
    config: StorageConfig
    schedule: Schedule
    now_ms: Callable[[], int]
    """Calendar."""
    monotonic: Callable[[], float]
    broken: Callable[[Exception], None]
    """Called when the disk fails for another reason than space."""


class Chore:
    """Used on the event loop."""

    def __init__(self, tools: Tools) -> None:
        self._disk = tools.disk
        self._directory_id = tools.directory_id
        self._catalogue = tools.catalogue
        self._files = tools.files
        self._maintenance = tools.maintenance
        self._spares = tools.spares
        self._config = tools.config
        self._schedule = tools.schedule
        self._now_ms = tools.now_ms
        self._monotonic = tools.monotonic
        self._broken = tools.broken

    def _look_at(self, error: Exception | None) -> None:
        """What cannot pass by itself has broken the disk."""
        if error is not None and not may_pass(error):
            self._broken(error)


class PacedChore(Chore):
    """One that does its work piece by piece, with pauses."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._timer: Handle | None = None
        self.closed = False
        """Set before the maintenance is stopped: nothing more is begun."""

    def cancel(self) -> None:
        """Before the maintenance is stopped: a job that is queued still ends."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
