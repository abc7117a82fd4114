"""Statistics of a store, for metrics and for decisions about space."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Protocol

from quire.storage.background.compactor import Compactor
from quire.storage.background.maintenance import BackgroundMaintenance
from quire.storage.log.appender import Appender
from quire.storage.log.page_cache import LogPageCache
from quire.storage.read.cache import ByteCache, SegmentFiles
from quire.storage.read.read_budget import ReadBudget
from quire.storage.read.reader import Reader
from quire.storage.segment.catalogue import VOUCHES, Catalogue
from quire.storage.segment.segment import LogSegment, SegmentState


@dataclass(frozen=True, slots=True)
class SegmentUsage:
    """The space of one segment of a running store.

    `inspect.space_report` measures the same in the files.
    """

    number: int
    state: str
    file_bytes: int
    end_bytes: int
    """The offset in the file at which the next group would be written."""
    live_bytes: int
    """The number of bytes of frames of ledgers that are not deleted, including further copies of an
    entry."""
    live_ledgers: int
    runs_in_memory: int
    reclaimable: bool
    """Whether the segment is sealed and can be removed, or would become smaller if it was compacted
    by itself."""
    why: str
    """The reason in words why the space of dead entries in the segment is not freed."""


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """The number and sizes of the segments of one data directory that are in the same state."""

    path: str
    """The path of the data directory."""
    state: str
    """The state of the segments: current, closed, sealed, retired, or damaged."""
    segments: int
    file_bytes: int
    live_bytes: int
    """The number of bytes of frames of ledgers that are not deleted."""


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The state of one data directory."""

    path: str
    state: str
    """The state of the directory: writable, read-only, or failed."""
    reason: str
    """The reason why the directory is not writable, or ""."""
    free_bytes: int
    """The free bytes at the last check, without the space set aside for a compaction. 0 if this is
    one of several directories and has failed."""
    ledgers: int | None
    """The number of ledgers in the directory, or None if it could not be read."""
    kind: str = ""
    """The kind of the reason why the directory is not writable: "full", "lost" or "failed", or ""
    if it is writable."""
    prepared_bytes: int = 0
    """The size of the files that are prepared: segments for later entries, and the space for the
    output of a compaction. 0 if the directory has failed."""


@dataclass(frozen=True, slots=True)
class StorageStats:
    """The statistics of a store. Counters begin at 0 with each start."""

    ledgers: int
    segments: int
    sealed_segments: int
    segment_bytes: int
    """The size of all segment files together, including preallocated space."""
    sealed_bytes: int
    """The size of the files of sealed segments together."""
    live_bytes: int
    runs_in_memory: int
    queued_bytes: int
    groups: int
    """The number of groups written. Each was synced once."""
    batches: int
    bytes_written: int
    """The number of bytes of frames written to the log."""
    log_given_back_bytes: int
    """The number of bytes of the log that were released from the system's page cache."""
    segments_removed: int
    segments_to_seal: int
    """The number of closed segments whose seal has begun and has not ended."""
    compactions: int
    """The number of completed compactions."""
    compactions_major: int
    """The number of completed compactions that looked for segments below the major ratio."""
    compaction_copied_bytes: int
    """The number of bytes of frames that compactions have copied."""
    compaction_written_bytes: int
    compaction_freed_bytes: int
    compaction_reserve_bytes: int
    """The number of bytes that are preallocated for the next compaction."""
    last_error: str
    """The error of a compaction, a removal or a seal that failed, or "". The next compaction or
    removal that succeeds clears its own error. The error of a seal stays until the next start."""
    damaged_reads: int
    """The number of damaged copies of entries that reads have found."""
    damaged_segments: int
    damaged_ledgers: int
    """The number of ledgers with entries of which this directory has no good copy."""
    scrubbed_bytes: int
    """The number of bytes that the scrub has checked."""
    scrubbed_segments: int
    scrub_rounds: int
    catch_up_waited_seconds: float
    """The seconds that all large reads together have waited because entries were being added."""
    footer_cache_bytes: int
    open_files: int
    index_caches_written: int
    """The number of index caches written."""
    tombstones: int
    """The number of ledgers that were fenced and then deleted, and whose adds are still refused."""
    negatives_unknown: bool
    """Whether something was lost, so that an entry that is not found may have existed."""
    writable: bool


COUNTERS = frozenset((
    "groups", "batches", "bytes_written", "log_given_back_bytes", "segments_removed",
    "compactions", "compactions_major", "compaction_copied_bytes", "compaction_written_bytes",
    "compaction_freed_bytes", "damaged_reads", "scrubbed_bytes", "scrubbed_segments",
    "scrub_rounds", "catch_up_waited_seconds", "index_caches_written",
))  # fmt: skip
"""The fields of `StorageStats` that count from the start of the process on, and never sink."""


def collect_stats(
    catalogue: Catalogue,
    appender: Appender,
    maintenance: BackgroundMaintenance,
    reader: Reader,
    cache: ByteCache,
    files: SegmentFiles,
    page_cache: LogPageCache,
    budget: ReadBudget,
    writable: bool,
) -> StorageStats:
    segments = catalogue.segments.values()
    collector, compactor, sealer = maintenance.collector, maintenance.compactor, maintenance.sealer
    quarantine, scrubber = maintenance.quarantine, maintenance.scrubber
    return StorageStats(
        ledgers=len(catalogue.ledgers),
        segments=len(segments),
        sealed_segments=sum(s.state is SegmentState.SEALED for s in segments),
        segment_bytes=sum(s.file_bytes for s in segments),
        sealed_bytes=sum(s.file_bytes for s in segments if s.state is SegmentState.SEALED),
        live_bytes=sum(s.live_bytes for s in segments),
        runs_in_memory=sum(s.run_count for s in segments),
        queued_bytes=appender.queued_bytes,
        groups=appender.groups,
        batches=appender.batches,
        bytes_written=appender.bytes_written,
        log_given_back_bytes=page_cache.given_back_bytes,
        segments_removed=collector.removed,
        segments_to_seal=sealer.under_way,
        compactions=compactor.done,
        compactions_major=compactor.done_major,
        compaction_copied_bytes=compactor.copied_bytes,
        compaction_written_bytes=compactor.written_bytes,
        compaction_freed_bytes=compactor.freed_bytes,
        compaction_reserve_bytes=compactor.reserve_bytes,
        last_error=compactor.error or collector.error or sealer.error or "",
        damaged_reads=reader.damaged_reads,
        damaged_segments=len(quarantine.records),
        damaged_ledgers=len(quarantine.lacking_ledgers()),
        scrubbed_bytes=scrubber.bytes_read,
        scrubbed_segments=scrubber.segments,
        scrub_rounds=scrubber.rounds,
        catch_up_waited_seconds=budget.waited_s,
        footer_cache_bytes=cache.size_bytes,
        open_files=len(files),
        index_caches_written=maintenance.index_cache.written,
        tombstones=len(catalogue.tombstones),
        negatives_unknown=catalogue.negatives_unknown,
        writable=writable,
    )


class HasSpace(Protocol):
    """A data directory, or its store, that says how much space its file system has."""

    def file_system(self) -> Hashable: ...

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int: ...


def space_of(places: Iterable[HasSpace]) -> tuple[int, int] | None:
    """Return the total and the free bytes of data directories together.

    A file system with several of them counts once. One that does not answer is left out. The result
    is None if no file system answers.
    """
    found: dict[Hashable, tuple[int, int]] = {}
    for place in places:
        with suppress(OSError):
            found[place.file_system()] = place.total_bytes(), place.free_bytes()
    if not found:
        return None
    return sum(total for total, _ in found.values()), sum(free for _, free in found.values())


def total_stats(parts: Sequence[StorageStats], ended: Sequence[StorageStats] = ()) -> StorageStats:
    """Combine the statistics of one or more stores.

    Numbers are added. A text is the first one that is not empty. A flag is True if it is True for
    any store. `ended` has the statistics of stores that have failed, of which only the counters are
    added.
    """
    total: dict[str, Any] = {}
    for field in fields(StorageStats):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], str):
            total[field.name] = next(filter(None, values), "")
        else:
            if field.name in COUNTERS:
                values += [getattr(part, field.name) for part in ended]
            total[field.name] = any(values) if isinstance(values[0], bool) else sum(values)
    return StorageStats(**total)


def collect_usage(catalogue: Catalogue, compactor: Compactor) -> list[SegmentUsage]:
    """Return the space of each segment, oldest first."""
    vouchers = catalogue.vouchers()
    return [
        SegmentUsage(
            segment.number,
            segment.state.name.lower(),
            segment.file_bytes,
            segment.end,
            segment.live_bytes,
            segment.live_ledgers,
            segment.run_count,
            segment.state is SegmentState.SEALED
            and segment.number not in vouchers
            and compactor.is_worth_it(segment),
            _why(segment, compactor, vouchers),
        )
        for _, segment in sorted(catalogue.segments.items())
    ]


def collect_totals(path: str, catalogue: Catalogue) -> list[SegmentTotals]:
    """Return the number and sizes of the segments of a directory by state.

    This is cheaper than `collect_usage` if there are many segments.
    """
    found: dict[str, list[int]] = {}
    for segment in catalogue.segments.values():
        state = "damaged" if segment.loss else segment.state.name.lower()
        sums = found.setdefault(state, [0, 0, 0])
        for at, value in enumerate((1, segment.file_bytes, segment.live_bytes)):
            sums[at] += value
    return [SegmentTotals(path, state, *sums) for state, sums in sorted(found.items())]


def _why(segment: LogSegment, compactor: Compactor, vouchers: Set[int]) -> str:
    """Return in words why the space of dead entries in a segment is not freed."""
    if segment.state is SegmentState.CURRENT:
        return "adds go to it"
    if segment.loss:
        return f"damaged: {segment.loss}"
    if segment.state is SegmentState.CLOSED:
        return "it waits to be sealed"
    if segment.state is SegmentState.RETIRED:
        return "it is being removed"
    if segment.number in vouchers:
        return VOUCHES
    if not segment.live_ledgers:
        return "nothing in it is alive: it is removed next"
    return compactor.why_not(segment)
