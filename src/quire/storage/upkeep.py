"""What goes on in the background of a store: sealing, removal, compaction, scrub, quarantine, and
the index cache."""

from __future__ import annotations

from collections.abc import Callable

from quire.clock import Clock
from quire.storage.appender import Done, Schedule
from quire.storage.cache import SegmentFiles
from quire.storage.catalogue import Catalogue
from quire.storage.collector import Collector, LogRecords
from quire.storage.compactor import Compactor
from quire.storage.config import StorageConfig
from quire.storage.index_cache_writer import IndexCacheWriter
from quire.storage.maintenance import Maintenance
from quire.storage.quarantine import Quarantine
from quire.storage.scrubber import Scrubber
from quire.storage.sealer import Sealer
from quire.storage.seams import Disk
from quire.storage.segment import Segment, SegmentState
from quire.storage.spares import Spares


class Upkeep:
    """Used on the event loop, but for `load`."""

    def __init__(
        self,
        disk: Disk,
        directory_id: bytes,
        catalogue: Catalogue,
        files: SegmentFiles,
        maintenance: Maintenance,
        spares: Spares,
        config: StorageConfig,
        schedule: Schedule,
        clock: Clock,
        log_records: LogRecords,
        end_group: Callable[[], int],
        barrier: Callable[[Done], None],
        broken: Callable[[Exception], None],
    ) -> None:
        """See `IndexCacheWriter` for `end_group` and `barrier`. `broken` is called when the disk
        failed."""
        self._catalogue = catalogue
        self._spares = spares
        now_ms, monotonic = clock.now_ms, clock.monotonic
        self.quarantine = Quarantine(disk, catalogue, maintenance, now_ms, monotonic, broken)
        self.scrubber = Scrubber(
            disk, directory_id, catalogue, files, maintenance,
            self.quarantine, config, schedule, now_ms, monotonic, broken,
        )  # fmt: skip
        self.collector = Collector(disk, catalogue, files, maintenance, log_records, now_ms)
        self.sealer = Sealer(
            disk, directory_id, catalogue, files, maintenance, schedule, self.collector.collect,
            broken,
        )  # fmt: skip
        self.compactor = Compactor(
            disk, directory_id, catalogue, files, maintenance,
            spares, self.collector, self.quarantine, config, schedule, now_ms, monotonic, broken,
        )  # fmt: skip
        self.collector.on_log_full = self.compactor.log_is_full
        self.index_cache = IndexCacheWriter(
            disk, directory_id, catalogue, maintenance, config, schedule, monotonic,
            self._may_cache, lambda: self.compactor.done, end_group, barrier, broken,
        )  # fmt: skip

    def _may_cache(self) -> bool:
        return self._spares.space and self.collector.deletions_logged

    def load(self, *, damaged: bool) -> None:
        """Take up what earlier starts, and this one (`damaged`), have found damaged. `OSError`."""
        self.scrubber.load()
        for number in self.quarantine.load():
            self.scrubber.suspect(number)
        if damaged:
            for segment in self._closed():
                self.scrubber.suspect(segment.number)

    def _closed(self) -> list[Segment]:
        segments = self._catalogue.segments.values()
        return [segment for segment in segments if segment.state is SegmentState.CLOSED]

    def start(self) -> None:
        """Seal what an earlier process did not."""
        for segment in self._closed():
            self.sealer.seal(segment)

    def tick(self) -> None:
        """Whatever is due, every few seconds."""
        self.sealer.retry()
        self.collector.retry()
        self.quarantine.tick()
        self.compactor.tick()
        self.scrubber.tick()
        self.index_cache.tick()

    def cancel(self) -> None:
        """Before the maintenance is stopped. What waits to be sealed still is."""
        self.quarantine.closed = True
        self.scrubber.cancel()
        self.compactor.cancel()
        self.index_cache.cancel()

    def close(self) -> None:
        """Behind the last job."""
        self.compactor.close()
        self.sealer.closed = True
