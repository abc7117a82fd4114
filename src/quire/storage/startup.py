"""What a start does to the log, behind what `recovery` found. Blocks; nothing is served yet."""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.log_format import ranges_of, segment_header_size
from quire.errors import DiskFullError
from quire.storage.batch import Batch
from quire.storage.catalogue import Catalogue
from quire.storage.config import StorageConfig
from quire.storage.directory import Identity, mark_log_begun, remove_small_file
from quire.storage.log import LogWriter
from quire.storage.recovery import CLEAN_NAME, Recovered, Recovery, RecoveryReport
from quire.storage.replay import runs_of
from quire.storage.seams import Disk
from quire.storage.segment import LOG_DIRECTORY, LedgerInfo, Segment, SegmentState
from quire.storage.spares import Spares, is_full, prepare


@dataclass(frozen=True, slots=True)
class Started:
    segment: Segment
    """The fresh one."""
    sequence: int
    """Of the last batch."""
    report: RecoveryReport
    keyless: list[LedgerInfo]
    """Ledgers whose master key was lost."""


def start_log(
    disk: Disk,
    identity: Identity,
    catalogue: Catalogue,
    config: StorageConfig,
    writer: LogWriter,
    spares: Spares,
) -> Started:
    """Recover, begin a fresh segment, write the last group again. `OSError`, `StorageError`."""
    disk.make_directory(LOG_DIRECTORY)
    recovered = Recovery(disk, identity, catalogue).run()
    try:
        segment = _fresh_segment(disk, recovered.next_number, config, spares)
        spares.next_number = segment.number + 1
        _write_first_group(recovered, segment, writer)
        mark_log_begun(disk, identity)
        # Only now: what a dropped segment held of value may have been in the group just written.
        for name in recovered.stale:
            disk.remove(name)
        disk.sync_directory(LOG_DIRECTORY)
        remove_small_file(disk, CLEAN_NAME)
    except BaseException:
        for open_segment in catalogue.segments.values():
            if open_segment.file is not None:
                open_segment.file.close()
        raise
    keyless = [info for info in catalogue.ledgers.values() if not info.master_key]
    return Started(segment, recovered.replayer.sequence, recovered.report(), keyless)


def _fresh_segment(disk: Disk, number: int, config: StorageConfig, spares: Spares) -> Segment:
    try:
        return prepare(disk, number, config.segment_bytes)
    except OSError as error:
        if not is_full(error):
            raise
    try:
        segment = prepare(disk, number, min(config.reserve_bytes, config.segment_bytes))
    except OSError as error:
        if not is_full(error):
            raise
        raise DiskFullError(
            f"{disk.path} has no room to begin a segment of {config.reserve_bytes} bytes"
        ) from error
    spares.note_shortage(f"no room for a segment of {config.segment_bytes} bytes")
    return segment


def _write_first_group(recovered: Recovered, segment: Segment, writer: LogWriter) -> None:
    """The last group of the log before, or none: then a mark that the segment was begun."""
    catalogue = recovered.replayer.catalogue
    segment.previous = max(catalogue.segments, default=0)
    segment.live = ranges_of(catalogue.live_numbers())
    segment.groups_at = segment.end = segment_header_size(len(segment.live))
    segment.state = SegmentState.CURRENT
    catalogue.segments[segment.number] = segment
    tail = recovered.tail
    if tail is None:
        batch = Batch((), ())
    else:
        batch = Batch((tail.payload,), runs_of(tail.group), tail.group.table.records)
    batch.segment = segment
    writer.next_group = recovered.next_group
    group = writer.write(segment, [batch])
    batch.buffers = None
    segment.end, segment.end_group = group.end, group.number + 1
    segment.checksums.extend(group.checksums)
    segment.payload_bytes = segment.live_bytes = batch.size_bytes
    recovered.replayer.apply(batch, list(batch.runs), batch.records, segment)
    recovered.replayer.find_lacs(segment)
