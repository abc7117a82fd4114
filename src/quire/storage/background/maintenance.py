"""What goes on in the background of a store: sealing, removal, compaction, scrub, quarantine, and
the index cache."""

from __future__ import annotations

from collections.abc import Callable

from quire.storage.background.collector import Collector, LogRecords
from quire.storage.background.compactor import Compactor
from quire.storage.background.index_cache_writer import IndexCacheWriter
from quire.storage.background.job import JobContext
from quire.storage.background.quarantine import Quarantine
from quire.storage.background.scrubber import Scrubber
from quire.storage.background.sealer import Sealer
from quire.storage.log.appender import Done
from quire.storage.segment.segment import LogSegment, SegmentState


class BackgroundMaintenance:
    """Used on the event loop, but for `load`."""

    def __init__(
        self,
        context: JobContext,
        log_records: LogRecords,
        end_group: Callable[[], int],
        barrier: Callable[[Done], None],
    ) -> None:
        """See `IndexCacheWriter` for `end_group` and `barrier`."""
        self._catalogue = context.catalogue
        self._preallocated = context.preallocated
        self.quarantine = Quarantine(context)
        self.scrubber = Scrubber(context, self.quarantine)
        self.collector = Collector(context, log_records)
        self.sealer = Sealer(context, self.collector.collect)
        self.compactor = Compactor(context, self.collector, self.quarantine)
        self.collector.on_log_full = self.compactor.log_is_full
        self.index_cache = IndexCacheWriter(
            context, self._may_cache, lambda: self.compactor.done, end_group, barrier
        )

    def _may_cache(self) -> bool:
        return self._preallocated.space and self.collector.deletions_logged

    def load(self, *, damaged: bool) -> None:
        """Take up what earlier starts, and this one (`damaged`), have found damaged. `OSError`."""
        self.compactor.load()
        self.scrubber.load()
        for number in self.quarantine.load():
            self.scrubber.suspect(number)
        if damaged:
            for segment in self._closed():
                self.scrubber.suspect(segment.number)

    def _closed(self) -> list[LogSegment]:
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
