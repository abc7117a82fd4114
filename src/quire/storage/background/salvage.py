"""Decide what to copy when a damaged segment is rewritten.

Damaged entries are left out, but only if newer segments have them. Older segments do not count, so
two damaged segments never rely on each other. It is enough that a newer segment *names* an entry.
If that copy is damaged too, this is damage of that segment, which is never reported as "no such
entry". If the footer is damaged, the groups tell what the segment contains.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import LedgerRows, Summary, Trailer, decode_footer_summary
from quire.codec.log.footer import decode_ledger_rows as decode_rows
from quire.codec.log.group import RunRow
from quire.codec.log.state_records import Deleted, FormatError, RecordKind, StateRecord
from quire.core.ranges import Range, merged, without
from quire.errors import DamagedError
from quire.storage.interfaces import Disk, File
from quire.storage.log.preallocation import may_pass
from quire.storage.recovery.scan import scan_groups
from quire.storage.segment import extents, sealed_rows
from quire.storage.segment.extents import FrameExtent
from quire.storage.segment.footer import read
from quire.storage.segment.segment import LedgerInfo, LedgerPart, LogSegment, segment_name


class BadSegmentError(DamagedError):
    """The error that a segment cannot be copied or compared, because it fails its check."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(
            f"{segment_name(number)} is damaged: {what}",
            remedy="The bookie keeps the segment as it is. Autorecovery restores what the segment "
            "has lost",
        )
        self.number = number


@dataclass(frozen=True, slots=True)
class Newer:
    """The entries of one ledger in newer segments, listed on the event loop."""

    sealed: tuple[tuple[int, Trailer], ...]
    """The number and the trailer of each newer segment with a footer that has entries of the
    ledger."""
    open: tuple[Range, ...]
    """The ranges (first, last) of synced entries of the ledger in newer segments without
    footers."""


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
) -> Newer | None:
    """Return where the ledger may have newer copies of entries in the segment `number`.

    `sources` are the numbers of the segments that a compaction copies, ascending. Newer copies may
    be in segments between `number` and the last source that are not sources themselves. A sealed
    one counts only if the range of the ledger's entries in it overlaps the range in `number`.
    Return None if no segment counts. Compactions do not copy across a segment that is known to be
    damaged, so none of the segments that count is.
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
    return Newer(tuple(sealed), tuple(merged(ranges)))


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
        self._open: dict[int, tuple[File, Summary] | OSError | FormatError] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Footers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rows(self, number: int, trailer: Trailer, ledger_id: int) -> LedgerRows | None:
        """Return the rows of the ledger in the segment `number`.

        Return None if there are none or if the footer cannot be read. Raises `OSError` if that is
        only because no file descriptor is left.
        """
        try:
            return self.checked_rows(number, trailer, ledger_id)
        except FormatError:
            return None
        except OSError as error:
            if may_pass(error):
                raise
            return None

    def checked_rows(self, number: int, trailer: Trailer, ledger_id: int) -> LedgerRows:
        """Return the rows of a ledger that must be in the segment `number`.

        Raises:
            FormatError: The footer is damaged, or does not name the ledger.
            OSError: The footer cannot be read.
        """
        file, summary = self._summary(number, trailer)
        found = summary.find(ledger_id)
        if found is None:
            raise FormatError(f"its index does not name ledger {ledger_id}")
        data = read(file, trailer.footer_at + found.rows_at, found.rows_bytes)
        if len(data) != found.rows_bytes or crc32c(data) != found.rows_crc:
            raise FormatError(f"the index of ledger {ledger_id} does not match its checksum")
        return decode_rows(data, found.rows)

    def _summary(self, number: int, trailer: Trailer) -> tuple[File, Summary]:
        """Return the open file and the summary of a segment, which is read only once."""
        known = self._open.get(number)
        if known is None:
            try:
                file = self._disk.open(segment_name(number))
                self._stack.callback(file.close)
                data = read(file, trailer.summary_at, trailer.summary_bytes)
                known = file, decode_footer_summary(data, trailer)
            except (OSError, FormatError) as error:
                known = error
            self._open[number] = known
        if isinstance(known, Exception):
            raise known
        return known

    def extents(self, number: int, trailer: Trailer, ledger_id: int) -> list[FrameExtent]:
        """Return the runs of the ledger in the segment `number`, or [] if they cannot be read.

        Raises `OSError` as `rows` does.
        """
        rows = self.rows(number, trailer, ledger_id)
        return [] if rows is None else list(extents.of_rows(ledger_id, rows))


def lacking(
    footers: Footers, ledger_id: int, damaged: Sequence[Range], newer: Newer
) -> list[Range]:
    """Return those of the `damaged` entries of a ledger that no newer segment names, as ranges.

    A newer segment whose footer cannot be read names nothing. Raises `OSError` if it cannot be read
    only because no file descriptor is left.
    """
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

    Raises:
        BadSegmentError: The footer of one of these segments cannot be read, or does not name the
            ledger. So it is unknown which entries have newer copies there.
        OSError: No file descriptor is left.
    """
    ranges = list(newer.open)
    for number, trailer in newer.sealed:
        try:
            rows = footers.checked_rows(number, trailer, ledger_id)
        except FormatError as error:
            raise BadSegmentError(number, str(error)) from None
        except OSError as error:
            if may_pass(error):
                raise
            raise BadSegmentError(number, f"reading its file failed: {error}") from error
        for extent in extents.of_rows(ledger_id, rows):
            ranges += extent.entries()
    return merged(ranges)


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
        VersionError: A later version wrote a group.
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
        OSError: No file descriptor is left.
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
