"""Numbers about a store, for metrics and for decisions about space."""

from __future__ import annotations

from dataclasses import dataclass

from quire.storage.appender import Appender
from quire.storage.cache import ByteCache, SegmentFiles
from quire.storage.catalogue import Catalogue
from quire.storage.collector import Collector
from quire.storage.reader import Reader
from quire.storage.sealer import Sealer
from quire.storage.segment import SegmentState


@dataclass(frozen=True, slots=True)
class SegmentUsage:
    number: int
    state: str
    file_bytes: int
    live_bytes: int
    """Frames of ledgers that are not deleted; of a sealed segment as of the last deletion."""
    live_ledgers: int
    runs_in_memory: int


@dataclass(frozen=True, slots=True)
class StorageStats:
    ledgers: int
    segments: int
    sealed_segments: int
    segment_bytes: int
    """Of all segment files, preallocated parts included."""
    live_bytes: int
    runs_in_memory: int
    queued_bytes: int
    groups: int
    """Written since the start; each was synced once."""
    batches: int
    bytes_written: int
    """Frames, since the start."""
    segments_removed: int
    segments_to_seal: int
    damaged_reads: int
    """Copies of entries found damaged by reads, since the start."""
    footer_cache_bytes: int
    open_files: int
    tombstones: int
    negatives_unknown: bool
    writable: bool


def collect_stats(
    catalogue: Catalogue,
    appender: Appender,
    collector: Collector,
    sealer: Sealer,
    reader: Reader,
    cache: ByteCache,
    files: SegmentFiles,
    writable: bool,
) -> StorageStats:
    segments = catalogue.segments.values()
    return StorageStats(
        ledgers=len(catalogue.ledgers),
        segments=len(segments),
        sealed_segments=sum(s.state is SegmentState.SEALED for s in segments),
        segment_bytes=sum(s.file_bytes for s in segments),
        live_bytes=sum(s.live_bytes for s in segments),
        runs_in_memory=sum(s.run_count for s in segments),
        queued_bytes=appender.queued_bytes,
        groups=appender.groups,
        batches=appender.batches,
        bytes_written=appender.bytes_written,
        segments_removed=collector.removed,
        segments_to_seal=sealer.waiting,
        damaged_reads=reader.damaged_reads,
        footer_cache_bytes=cache.size_bytes,
        open_files=len(files),
        tombstones=len(catalogue.tombstones),
        negatives_unknown=catalogue.negatives_unknown,
        writable=writable,
    )


def collect_usage(catalogue: Catalogue) -> list[SegmentUsage]:
    return [
        SegmentUsage(
            segment.number,
            segment.state.name.lower(),
            segment.file_bytes,
            segment.live_bytes,
            segment.live_ledgers,
            segment.run_count,
        )
        for _, segment in sorted(catalogue.segments.items())
    ]
