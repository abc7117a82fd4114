"""Begin a new segment at a start, according to what `log_recovery` has found in the log.

Everything here blocks. Meanwhile the store answers only early reads.
"""

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
from quire.storage.read.read_exceptions import WouldBlock
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
"""The space for state records in the smallest segment that a start creates."""
FOOTER_SHARE = 16
"""A footer usually takes at most this share of its segment: one byte of 16."""


@dataclass(frozen=True, slots=True)
class Started:
    """The result of starting the log."""

    segment: LogSegment
    """The new segment."""
    sequence: int
    """The number of the last batch."""
    report: RecoveryReport
    keyless: list[LedgerInfo]
    """The ledgers whose master key was lost."""
    cached: dict[int, Trailer]
    """The trailers of the segments that came from the index cache."""


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
    """Recover the log, begin a new segment, and write the last group again.

    When this returns, everything that counts in the log is durable.

    Raises:
        LaterStorageError: A later version wrote a part of the log.
        StorageError: The log cannot be used.
        DiskFullError: The disk has no space for a segment.
        OSError: The disk fails.
        LoadStopped: The start was stopped.
    """
    disk.make_directory(LOG_DIRECTORY)
    # The directory may have been created by an earlier start that died before it was durable.
    disk.sync_directory()
    recovered = LogRecovery(
        disk, identity, catalogue, progress, use_cache=True, expected=expected
    ).run()
    try:
        if disk.exists(TEMPORARY_NAME):
            disk.remove(TEMPORARY_NAME)
        if recovered.index_cache and not recovered.cached:
            # A cache that is newer than the log must not stay. It would count again once the log is
            # as long, and it describes groups that were lost since.
            _remove_cache(disk, recovered)
        segment = _fresh_segment(disk, recovered, config, preallocated)
        preallocated.next_number = segment.number + 1
        _write_first_group(disk, recovered, segment, writer)
        mark_log_begun(disk, identity)
        # Do this only now, because the group just written may have the records of a dropped segment
        # that are still needed.
        for name in recovered.stale:
            disk.remove(name)
        disk.sync_directory(LOG_DIRECTORY)
        # Remove these one by one, newest first, because a preallocated file proves that the one
        # before it was begun.
        for name in recovered.prepared:
            disk.remove(name)
            disk.sync_directory(LOG_DIRECTORY)
        remove_small_file(disk, CLEAN_NAME)
    except BaseException:
        for open_segment in catalogue.segments.values():
            if open_segment.file is not None:
                open_segment.file.close()
        raise
    catalogue.loaded()
    keyless = [info for info in catalogue.ledgers.values() if not info.master_key]
    return Started(
        segment, recovered.replayer.sequence, recovered.report(), keyless, recovered.cached
    )


def _fresh_segment(
    disk: Disk, recovered: RecoveredLog, config: StorageConfig, preallocated: PreallocatedSegments
) -> LogSegment:
    """Create a segment in full size, or as large as a full disk allows.

    A bookie must be able to start on a full disk and serve reads. If there is no space, the index
    cache is removed, then unused preallocated space, then the reserve for a compaction.

    Raises:
        DiskFullError: There is no space even then.
        OSError: The disk fails.
    """
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
                preallocated.note_shortage(
                    f"there is no space for a segment of {config.segment_bytes} bytes"
                )
            return segment
    raise DiskFullError(
        f"the data directory {disk.path} has no space for a new log segment of {least:,} bytes, so "
        "the bookie cannot start with it",
        remedy="Free space on its file system, and start the bookie again "
        "(docs/guides/repair/full-disk.md)",
    )


def _nothing(disk: Disk, recovered: RecoveredLog) -> None:
    pass


def _remove_cache(disk: Disk, recovered: RecoveredLog) -> None:
    """Remove the index cache. If it was used, its content is loaded, and the log has it too."""
    if disk.exists(CACHE_NAME):
        disk.remove(CACHE_NAME)
        disk.sync_directory(LOG_DIRECTORY)
        recovered.cached = {}


def _cut_preallocated(disk: Disk, recovered: RecoveredLog) -> None:
    """Shorten unsealed segments to their last group, with space for their footers.

    Only zeros are removed, so that the next start decides about the last group as this one does. A
    start that lost power on a full disk may have left a segment in which nothing counts but which
    takes all the space there was.
    """
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
    if found.scan.tail_used:  # An incomplete group or index comes after it.
        used = used_end(found.file, used)
    end = aligned(used + used // FOOTER_SHARE) + BLOCK_BYTES
    if found.file.size() > end:
        found.file.truncate(end)
        found.file.sync()


def _remove_spare(disk: Disk, recovered: RecoveredLog) -> None:
    """Remove the reserve for a compaction. It is created again when deletions free some space."""
    if disk.exists(SPARE_NAME):
        disk.remove(SPARE_NAME)
        disk.sync_directory(LOG_DIRECTORY)


def _write_first_group(
    disk: Disk, recovered: RecoveredLog, segment: LogSegment, writer: LogWriter
) -> None:
    """Write the last group of the old log again.

    If there is none, an empty group is written, which proves that the segment was begun.
    """
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
    """Return the segments that the last group records as dropped and that still exist.

    That group also has their records that are still needed. Until its copy is durable, the segments
    must exist. So the header of the new segment, which is synced before the copy, lists them.
    """
    if tail is None:
        return set()
    records = [one for one in tail.group.table.records if one.kind is RecordKind.DROPPED]
    numbers = {decode_segment_value(one.value) for one in records}
    return {number for number in numbers if disk.exists(segment_name(number))}


def find_master_key(reader: Reader, files: SegmentFiles, info: LedgerInfo) -> bytes | None:
    """Return the master key of a ledger whose key record was lost, from its last entry.

    Return None if no whole frame of that entry can be read. Bare frames have no key. This blocks.
    """
    fetched: dict[ExtentKey, FetchedExtent] = {}
    while True:
        try:
            return reader.master_key(info, fetched)
        except WouldBlock as missing:
            try:
                data = files.get(missing.segment).read(missing.offset, missing.size)
            except OSError:
                data = None  # A frame that cannot be read counts as damaged.
            fetched[missing.key] = FetchedExtent(data or b"")
