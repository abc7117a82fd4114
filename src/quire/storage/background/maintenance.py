"""Create and drive all background jobs of a store.

The jobs seal segments, remove them, compact them, scrub them, put damaged ones into quarantine, and
write the index cache.
"""

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
    """All background jobs of one store.

    They belong to the event loop. Only `load` may be called on another thread, before `start`.
    """

    def __init__(
        self,
        context: JobContext,
        log_records: LogRecords,
        end_group: Callable[[], int],
        barrier: Callable[[Done], None],
    ) -> None:
        """Create the jobs. `log_records` logs state records, as `Appender.note` does.

        `IndexCacheWriter` explains `end_group` and `barrier`.
        """
        self._catalogue = context.catalogue
        self._preallocated = context.preallocated
        self.quarantine = Quarantine(context)
        self.scrubber = Scrubber(context, self.quarantine)
        self.collector = Collector(context, log_records)
        self.sealer = Sealer(context, self.collector.collect)
        self.compactor = Compactor(context, self.collector, self.quarantine)
        self.collector.on_log_full = self.compactor.log_is_full
        # A start takes an unsealed segment for an older copy if the next ones are removed.
        self.collector.on_removed = self.sealer.retry
        self.index_cache = IndexCacheWriter(
            context, self._may_cache, lambda: self.compactor.done, end_group, barrier
        )

    def _may_cache(self) -> bool:
        return self._preallocated.space and self.collector.deletions_logged

    def load(self, *, damaged: bool) -> None:
        """Load the records of damaged segments and the progress of the scrub. This blocks.

        The note of a suspension by an earlier process is removed. `damaged` means that the start
        has found damaged blocks in segments that are not sealed. All of these segments are then
        scrubbed soon.

        Raises:
            LaterStorageError: A later version wrote the record of a damaged segment.
            OSError: The disk fails.
        """
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
        """Begin to seal the segments that an earlier process has closed but not sealed."""
        for segment in self._closed():
            self.sealer.seal(segment)

    def tick(self) -> None:
        """Begin every background job that is due. The store calls this every few seconds."""
        self.sealer.retry()
        self.collector.retry()
        self.quarantine.tick()
        self.compactor.tick()
        self.scrubber.tick()
        self.index_cache.tick()

    def cancel(self) -> None:
        """Begin no more background work, because the background jobs are about to be stopped.

        Closed segments are still sealed.
        """
        self.quarantine.closed = True
        self.scrubber.cancel()
        self.compactor.cancel()
        self.index_cache.cancel()

    def close(self) -> None:
        """Close the files of a compaction that was stopped.

        Call this after `cancel`, when no job runs any more.
        """
        self.compactor.close()
        self.sealer.closed = True
