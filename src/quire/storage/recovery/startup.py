"""What a start does to the log, behind what `recovery` found. Blocks; nothing is served yet."""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.log.footer import Trailer
from quire.codec.log.segment_header import ranges_of, segment_header_size
from quire.codec.log.state_records import (
    BLOCK_BYTES,
    RecordKind,
    aligned,
    decode_segment_value,
)
from quire.errors import DiskFullError
from quire.storage.config import StorageConfig
from quire.storage.directory import Identity, mark_log_begun, remove_small_file
from quire.storage.interfaces import Disk
from quire.storage.log.group_commit import LogWriter
from quire.storage.log.preallocation import PreallocatedSegments, is_full, prepare
from quire.storage.read.cache import SegmentFiles
from quire.storage.read.fetched import ExtentKey, FetchedExtent
from quire.storage.read.outcomes import WouldBlock
from quire.storage.read.reader import Reader
from quire.storage.recovery.incarnation import ExpectedLog
from quire.storage.recovery.index_cache import CACHE_NAME, TEMPORARY_NAME
from quire.storage.recovery.loading import LoadProgress
from quire.storage.recovery.log_recovery import (
    CLEAN_NAME,
    LogRecovery,
    RecoveredLog,
    RecoveryReport,
)
from quire.storage.recovery.replay import LastGroup, UnsealedSegment, runs_of
from quire.storage.recovery.scan import used_end
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import (
    LOG_DIRECTORY,
    SPARE_NAME,
    LedgerInfo,
    LogSegment,
    SegmentState,
    segment_name,
)

LEAST_ROOM_BYTES = 4 * BLOCK_BYTES
"""For state records, in the smallest segment that a start makes."""
FOOTER_SHARE = 16
"""A footer takes one byte of so many that are in the segment, mostly."""


@dataclass(frozen=True, slots=True)
class Started:
    segment: LogSegment
    """The fresh one."""
    sequence: int
    """Of the last batch."""
    report: RecoveryReport
    keyless: list[LedgerInfo]
    """Ledgers whose master key was lost."""
    cached: dict[int, Trailer]
    """Of the segments that came from the index cache."""


def start_log(
    disk: Disk,
    identity: Identity,
    catalogue: Catalogue,
    config: StorageConfig,
    writer: LogWriter,
    preallocated: PreallocatedSegments,
    progress: LoadProgress,
    expected: ExpectedLog,
) -> Started:
    """Recover, begin a fresh segment, write the last group again. `OSError`, `StorageError`."""
    disk.make_directory(LOG_DIRECTORY)
    # It may be there because an earlier start made it, which died before it was durable.
    disk.sync_directory()
    recovered = LogRecovery(
        disk, identity, catalogue, progress, use_cache=True, expected=expected
    ).run()
    try:
        if disk.exists(TEMPORARY_NAME):
            disk.remove(TEMPORARY_NAME)
        if recovered.index_cache and not recovered.cached:
            # One that is newer than the log would count once the log is as long again, by what was
            # written since: with what it has of the groups that are lost.
            _remove_cache(disk, recovered)
        segment = _fresh_segment(disk, recovered, config, preallocated)
        preallocated.next_number = segment.number + 1
        _write_first_group(disk, recovered, segment, writer)
        mark_log_begun(disk, identity)
        # Only now: what a dropped segment held of value may have been in the group just written.
        for name in recovered.stale:
            disk.remove(name)
        disk.sync_directory(LOG_DIRECTORY)
        # One by one, newest first: a prepared file tells that the one before it was begun.
        for name in recovered.prepared:
            disk.remove(name)
            disk.sync_directory(LOG_DIRECTORY)
        remove_small_file(disk, CLEAN_NAME)
    except BaseException:
        for open_segment in catalogue.segments.values():
            if open_segment.file is not None:
                open_segment.file.close()
        raise
    keyless = [info for info in catalogue.ledgers.values() if not info.master_key]
    return Started(
        segment, recovered.replayer.sequence, recovered.report(), keyless, recovered.cached
    )


def _fresh_segment(
    disk: Disk, recovered: RecoveredLog, config: StorageConfig, preallocated: PreallocatedSegments
) -> LogSegment:
    """In full size, or on a full disk in the size that there is room for: a bookie whose disk is
    full starts all the same, and serves reads. What gives way is what was preallocated."""
    number = recovered.next_number
    tail = 0 if recovered.tail is None else recovered.tail.group.header.end
    if recovered.tail is not None:
        tail -= recovered.tail.group.header.offset
    dropped = _dropped_by(disk, recovered.tail)
    ranges = len(recovered.replayer.catalogue.segments) + len(dropped) + 1
    least = segment_header_size(ranges) + tail + LEAST_ROOM_BYTES
    sizes = [config.segment_bytes]
    size = min(config.reserve_bytes, config.segment_bytes)
    while size > least:
        sizes.append(size)
        size = aligned(size // 2)
    sizes.append(least)
    for make_room in (_nothing, _remove_cache, _cut_preallocated, _remove_spare):
        make_room(disk, recovered)
        for size in sizes:
            try:
                segment = prepare(disk, number, size)
            except OSError as error:
                if not is_full(error):
                    raise
                continue
            if size < config.segment_bytes:
                preallocated.note_shortage(f"no room for a segment of {config.segment_bytes} bytes")
            return segment
    raise DiskFullError(f"{disk.path} has no room to begin a segment of {least} bytes")


def _nothing(disk: Disk, recovered: RecoveredLog) -> None:
    pass


def _remove_cache(disk: Disk, recovered: RecoveredLog) -> None:
    """What counts of it has been loaded, and is in the log."""
    if disk.exists(CACHE_NAME):
        disk.remove(CACHE_NAME)
        disk.sync_directory(LOG_DIRECTORY)
        recovered.cached = {}


def _cut_preallocated(disk: Disk, recovered: RecoveredLog) -> None:
    """Behind the last group of segments that are not sealed, but for their footers. Only zeros: how
    the next start judges that group must not change. A start that lost power on a full disk leaves
    one with nothing in it that counts, in which all room there was may be."""
    for found in recovered.unsealed:
        _cut(found)
    emptied = recovered.emptied
    if emptied is not None:
        emptied.file = disk.open(segment_name(emptied.number))
        try:
            _cut(emptied)
        finally:
            emptied.file.close()


def _cut(found: UnsealedSegment) -> None:
    used = found.scan.end
    if found.scan.tail_used:  # by a group, or an index, that was not written to its end
        used = used_end(found.file, used)
    end = aligned(used + used // FOOTER_SHARE) + BLOCK_BYTES
    if found.file.size() > end:
        found.file.truncate(end)
        found.file.sync()


def _remove_spare(disk: Disk, recovered: RecoveredLog) -> None:
    """The room of a compaction: made again from what the next deletions give back."""
    if disk.exists(SPARE_NAME):
        disk.remove(SPARE_NAME)
        disk.sync_directory(LOG_DIRECTORY)


def _write_first_group(
    disk: Disk, recovered: RecoveredLog, segment: LogSegment, writer: LogWriter
) -> None:
    """The last group of the log before, or none: then a mark that the segment was begun."""
    catalogue = recovered.replayer.catalogue
    segment.previous = max(catalogue.segments, default=0)
    segment.live = ranges_of(catalogue.live_numbers() | _dropped_by(disk, recovered.tail))
    segment.groups_at = segment.end = segment_header_size(len(segment.live))
    segment.state = SegmentState.CURRENT
    catalogue.segments[segment.number] = segment
    tail = recovered.tail
    if tail is None:
        batch = LogBatch((), ())
    else:
        batch = LogBatch((tail.payload,), runs_of(tail.group), tail.group.table.records)
    writer.next_group = recovered.next_group
    group = writer.write(segment, [batch])
    batch.buffers = None
    segment.end, segment.end_group = group.end, group.number + 1
    segment.checksums.extend(group.checksums)
    segment.payload_bytes = segment.live_bytes = batch.size_bytes
    recovered.replayer.apply(batch, list(batch.runs), batch.records, segment)
    recovered.replayer.find_lacs(segment)


def _dropped_by(disk: Disk, tail: LastGroup | None) -> set[int]:
    """Segments that are there, and of which only the last group says that they are dropped. It has
    what they held of value, and is not durable before its copy is: the header, which is durable
    first, names them."""
    if tail is None:
        return set()
    records = [one for one in tail.group.table.records if one.kind is RecordKind.DROPPED]
    numbers = {decode_segment_value(one.value) for one in records}
    return {number for number in numbers if disk.exists(segment_name(number))}


def find_master_key(reader: Reader, files: SegmentFiles, info: LedgerInfo) -> bytes | None:
    """Every frame has the key of its ledger: where the record was lost, take it from one that can
    be read. Blocks."""
    fetched: dict[ExtentKey, FetchedExtent] = {}
    while True:
        try:
            return reader.master_key(info, fetched)
        except WouldBlock as missing:
            try:
                data = files.get(missing.segment).read(missing.offset, missing.size)
            except OSError:
                data = None  # What cannot be read is damaged.
            fetched[missing.key] = FetchedExtent(data or b"")
