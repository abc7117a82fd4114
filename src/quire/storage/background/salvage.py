"""Decide what to copy when a damaged segment is rewritten.

Damaged entries are left out, but only if newer segments have them. Older segments do not count, so
two damaged segments never rely on each other. It is enough that a newer segment *names* an entry.
If that copy is damaged too, this is damage of that segment, which is never reported as "no such
entry". If the footer is damaged, the groups tell what the segment contains.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import LedgerRows, Summary, Trailer, decode_footer_summary
from quire.codec.log.footer import decode_ledger_rows as decode_rows
from quire.codec.log.group import RunRow
from quire.codec.log.state_records import Deleted, FormatError, RecordKind, StateRecord
from quire.core.ranges import Range, merged, without
from quire.storage.background.quarantine_record import SegmentDamage
from quire.storage.interfaces import Disk, File
from quire.storage.recovery.scan import scan_groups
from quire.storage.segment import extents, sealed_rows
from quire.storage.segment.extents import FrameExtent
from quire.storage.segment.footer import read
from quire.storage.segment.segment import LedgerInfo, LedgerPart, LogSegment, segment_name


@dataclass(frozen=True, slots=True)
class Newer:
    """The entries of one ledger in newer segments, listed on the event loop."""

    sealed: tuple[tuple[int, Trailer], ...]
    """The number and the trailer of each newer segment with a footer that has entries of the
    ledger."""
    open: tuple[Range, ...]
    """The ranges (first, last) of synced entries of the ledger in newer segments without
    footers."""
    damaged: tuple[Range, ...] = ()
    """The ranges of entries that do not count, because their copies in one of the newer segments
    are known to be damaged. Only `named` considers them."""


def newer_copies(segments: Mapping[int, LogSegment], info: LedgerInfo, number: int) -> Newer:
    """Return where the ledger has entries in segments with numbers above `number`."""
    sealed = []
    for other in info.sealed_numbers:
        trailer = segments[other].trailer
        if other > number and trailer is not None:
            sealed.append((other, trailer))
    ranges = _synced(part for part in info.open_parts if part.segment.number > number)
    return Newer(tuple(sealed), tuple(merged(ranges)))


def copies_between(
    segments: Mapping[int, LogSegment],
    info: LedgerInfo,
    number: int,
    sources: Sequence[int],
    damage: Mapping[int, SegmentDamage],
) -> Newer | None:
    """Return where the ledger may have newer copies of entries in the segment `number`.

    These are the segments between `number` and the last of the `sources` of a compaction that are
    not sources themselves, if the range of the ledger's entries there overlaps that in `number`.
    Return None if there are none. `damage` has the known damage of each damaged segment. The older
    copy of an entry that is damaged there must be kept.
    """
    below = [part for part in info.open_parts if number < part.segment.number < sources[-1]]
    if info.ordered and not below:
        return None
    rows = {row[0]: row for row in sealed_rows.unpack(info.sealed)}
    _, first, last, _ = rows[number]
    sealed = []
    for other, low, high, _ in rows.values():
        trailer = segments[other].trailer
        overlaps = low <= last and high >= first
        between = number < other < sources[-1] and other not in sources
        if overlaps and between and trailer is not None:
            sealed.append((other, trailer))
    ranges = _synced(below)
    if not sealed and not ranges:
        return None
    damaged: list[Range] = []
    for other in (*(other for other, _ in sealed), *(part.segment.number for part in below)):
        known = damage.get(other)
        if known is not None:
            # The record of a segment may leave out ledgers. Then all entries may be damaged there.
            damaged += known.ledgers.get(info.ledger_id, ((first, last),) if known.more else ())
    return Newer(tuple(sealed), tuple(merged(ranges)), tuple(merged(damaged)))


def _synced(parts: Iterable[LedgerPart]) -> list[Range]:
    """Return the ranges of entries in these parts that are synced. A crash may lose the others."""
    return [
        entries
        for part in parts
        for run in part.runs
        if run.batch.buffers is None
        for entries in extents.of_run(run).entries()
    ]


class Footers:
    """A reader of the rows of ledgers in the footers of sealed segments, for one background job.

    Use it in a `with` statement, which closes the files that it has opened.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, tuple[File, Summary] | None] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Footers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rows(self, number: int, trailer: Trailer, ledger_id: int) -> LedgerRows | None:
        """Return the rows of the ledger in the segment `number`.

        Return None if there are none or if the footer cannot be read.
        """
        if number not in self._open:
            self._open[number] = None
            with suppress(OSError, FormatError):
                file = self._disk.open(segment_name(number))
                self._stack.callback(file.close)
                data = read(file, trailer.summary_at, trailer.summary_bytes)
                self._open[number] = file, decode_footer_summary(data, trailer)
        known = self._open[number]
        if known is None:
            return None
        file, summary = known
        found = summary.find(ledger_id)
        if found is None:
            return None
        with suppress(OSError, FormatError):
            data = read(file, trailer.footer_at + found.rows_at, found.rows_bytes)
            if len(data) == found.rows_bytes and crc32c(data) == found.rows_crc:
                return decode_rows(data, found.rows)
        return None

    def extents(self, number: int, trailer: Trailer, ledger_id: int) -> list[FrameExtent]:
        """Return the runs of the ledger in the segment `number`, or [] if they cannot be read."""
        rows = self.rows(number, trailer, ledger_id)
        return [] if rows is None else list(extents.of_rows(ledger_id, rows))


def lacking(
    footers: Footers, ledger_id: int, damaged: Sequence[Range], newer: Newer
) -> list[Range]:
    """Return those of the `damaged` entries of a ledger that no newer segment names, as ranges."""
    left = without(damaged, newer.open)
    for number, trailer in reversed(newer.sealed):
        if not left:
            break
        there: list[Range] = []
        for extent in footers.extents(number, trailer, ledger_id):
            there += extent.entries()
        left = without(left, merged(there))
    return left


def named(footers: Footers, ledger_id: int, newer: Newer) -> list[Range]:
    """Return all entries of a ledger that the segments in `newer` name, as ranges.

    Entries that are damaged there are left out, and all entries of a segment whose footer cannot be
    read.
    """
    ranges = list(newer.open)
    for number, trailer in newer.sealed:
        for extent in footers.extents(number, trailer, ledger_id):
            ranges += extent.entries()
    return without(merged(ranges), newer.damaged)


@dataclass(frozen=True, slots=True)
class Salvage:
    """The facts that a rewrite needs about a damaged segment, prepared on the event loop."""

    blocks: Sequence[Range]
    """The ranges (first, last) of numbers of damaged blocks in the segment."""
    from_groups: bool
    """Whether to read the run tables of the groups because the footer is damaged. All of them must
    then be valid."""
    newer: Mapping[int, Newer]
    """The newer copies of the entries of each ledger that is alive in the segment, by ledger id."""


@dataclass(frozen=True, slots=True)
class FromGroups:
    """The contents of a segment's index, read from its groups because the footer is damaged."""

    extents: dict[int, list[FrameExtent]]
    records: list[StateRecord]
    checksums: array[int]


def read_groups(file: File, trailer: Trailer) -> FromGroups:
    """Read the contents of the index from the groups of a segment. This reads the whole segment.

    Raises:
        FormatError: A run table is damaged.
        OSError: The file cannot be read.
    """
    scan = scan_groups(file, trailer.directory_id, trailer.segment, trailer.groups_at)
    found = FromGroups({}, [], array("I"))
    end = trailer.groups_at
    for group in scan.groups:
        if group.header.offset != end:
            break
        end = group.header.end
        found.checksums.extend(group.checksums)
        _add_runs(found, group.header.payload_offset, group.table.runs, group.table.records)
    if end != trailer.footer_at:
        raise FormatError("both its index and a run table of its log groups are damaged")
    return found


def _add_runs(
    found: FromGroups, payload: int, runs: Sequence[RunRow], records: Sequence[StateRecord]
) -> None:
    """Add the runs and records of one group to `found`, in the order of the log.

    `payload` is the offset of the frames of the group. A deletion removes the runs of its ledger
    that come before it.
    """
    done = 0
    for record in (*records, None):
        stop = len(runs) if record is None else record.run_index
        for row in runs[done:stop]:
            extent = extents.of_table_row(row, payload + row.offset)
            found.extents.setdefault(row.ledger_id, []).append(extent)
        done = max(done, stop)
        if record is not None:
            # As in a footer, the position among these runs has no meaning outside of the group.
            found.records.append(replace(record, run_index=0))
            if is_original_deletion(record):
                found.extents.pop(record.ledger_id, None)


def is_original_deletion(record: StateRecord) -> bool:
    """Return whether a record deletes a ledger and is not a copy of an earlier deletion record.

    A copy removes nothing in the segment that it is in.
    """
    if record.kind is not RecordKind.DELETED:
        return False
    return Deleted.decode(record.value).before_segment == 0


def healthy_extents(
    footers: Footers, ledger_id: int, runs: Sequence[FrameExtent], salvage: Salvage
) -> list[FrameExtent]:
    """Return the undamaged parts of a ledger's runs, which a rewrite copies.

    Raises:
        FormatError: No newer segment has one of the damaged entries.
    """
    damaged = extents.damaged_entries(runs, salvage.blocks)
    newer = salvage.newer.get(ledger_id)
    left = damaged if newer is None else lacking(footers, ledger_id, damaged, newer)
    if left:
        raise FormatError(
            f"entry {left[0][0]} of ledger {ledger_id} is damaged, and no newer segment of this "
            "bookie has it"
        )
    return [part for run in runs for part in extents.healthy(run, salvage.blocks)]
