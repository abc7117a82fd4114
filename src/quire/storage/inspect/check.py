"""Check a whole data directory, for `quire bookie disk check`. This reads and changes nothing.

- Everything that a start would find is reported: missing segments and groups, and damage in
  segments that are not sealed.
- Every segment is checked completely, as a scrub does it (`scrub`).
- The groups of every sealed segment are compared with its index. Reads do not find entries that are
  in the groups but not in the index.

While a bookie runs, a problem in a segment that is not sealed is checked a second time. The log may
have grown between two steps of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quire._runtime.units import counted
from quire.codec.log.state_records import BLOCK_BYTES, Deleted, FormatError, RecordKind, StateRecord
from quire.core.ranges import Range, merged, without
from quire.storage.background.scrub import Findings, ScrubTarget
from quire.storage.inspect.contents import SegmentDump, open_segment, segment_numbers
from quire.storage.inspect.snapshot import with_log
from quire.storage.interfaces import Disk
from quire.storage.recovery.incarnation import LogPosition
from quire.storage.recovery.log_recovery import RecoveredLog, missing_problem
from quire.storage.recovery.scan import ScannedGroup
from quire.storage.segment.extents import FrameExtent, of_table_row
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import SegmentState

Progress = Callable[[int], None]
"""A function that is called with the number of bytes that were read since its last call."""
NAMED_MAX = 8
"""The most ledgers, ranges of bytes, or ranges of entries that the problems of one segment name."""


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """The result of checking one segment."""

    number: int
    state: str
    """The state of the segment: sealed, open, or gone. A segment is gone if it was removed or
    replaced during the check."""
    size_bytes: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """The segments to check, and the problems that a start would report."""

    segments: dict[int, ScrubTarget | None]
    """The segments by number, ascending. The value is what a scrub must know about a segment that
    is not sealed, or None for a sealed one."""
    ledgers: LedgerIdSet
    size_bytes: int
    problems: tuple[str, ...]
    torn_group: int | None
    """The number of the last group if it is incomplete, or None. It is being written, or the bookie
    ended while it was. This is no damage, because the group was never acknowledged."""
    position: LogPosition
    """The end of the log: its newest segment file and its last group."""


def survey(disk: Disk) -> Survey:
    """Read the log as the start of a bookie does, and return what to check.

    Raises:
        StorageError: The directory is not a bookie's data directory, or a bookie changes the log
            too fast to read it. LaterStorageError is such an error, and means that a later version
            wrote a part of the directory.
        OSError: The disk fails.
    """
    return with_log(disk, lambda recovered, _: _survey(recovered))


def _survey(recovered: RecoveredLog) -> Survey:
    catalogue = recovered.replayer.catalogue
    targets: dict[int, ScrubTarget | None] = {}
    size = 0
    for number, segment in sorted(catalogue.segments.items()):
        size += segment.end
        targets[number] = None
        if segment.state is not SegmentState.SEALED:
            targets[number] = ScrubTarget(
                number, segment.groups_at, segment.end, None, segment.checksums
            )
    return Survey(
        targets, LedgerIdSet(catalogue.ledgers), size, tuple(recovered.problems),
        recovered.torn_group, recovered.position,
    )  # fmt: skip


def check_segments(disk: Disk, found: Survey, progress: Progress) -> Iterator[CheckedSegment]:
    """Check each segment that `found` lists, oldest first, and yield the result.

    `progress` is called with the number of bytes that were read since its last call.

    Raises:
        LaterStorageError: A later version wrote a segment.
        StorageError: A bookie changes the log too fast to read it again.
        OSError: The disk fails.
    """
    for number, target in found.segments.items():
        checked = _check(disk, found, number, target, progress)
        if checked.problems and checked.state == "open":
            found_again = survey(disk)
            if number in found_again.segments:
                target = found_again.segments[number]
                checked = _check(disk, found_again, number, target, lambda _: None)
            elif missing_problem(number) not in found_again.problems:
                checked = CheckedSegment(number, "gone", 0)  # It was sealed and removed.
        yield checked


def _check(
    disk: Disk, found: Survey, number: int, target: ScrubTarget | None, progress: Progress
) -> CheckedSegment:
    try:
        with open_segment(disk, number) as segment:
            trailer = segment.description.trailer
            if trailer is not None:
                target = ScrubTarget(number, trailer.groups_at, trailer.footer_at, trailer, ())
            if target is None:
                return CheckedSegment(number, "gone", 0)  # A segment being sealed replaced it.
            scrub = segment.scrub(target)
            while size := scrub.step():
                progress(size)
            problems = list(_sentences(scrub.found))
            if trailer is not None and not problems:
                problems += _not_indexed(disk, segment, found.ledgers)
            if trailer is None and segment.has_remains(target.end):
                problems.append(
                    "its index is missing or damaged; the next start rebuilds it from the groups"
                )
            state = "open" if trailer is None else "sealed"
            return CheckedSegment(number, state, segment.description.file_bytes, tuple(problems))
    except FileNotFoundError:
        return CheckedSegment(number, "gone", 0)


def _sentences(found: Findings) -> Iterator[str]:
    """Yield the findings of a scrub of one segment in words."""
    if found.header:
        yield "its header does not match its checksum"
    if found.index:
        yield f"its index is damaged: {found.index}"
    if found.lost_tables:
        yield f"the tables of {counted(found.lost_tables, 'group')} are damaged"
    for first, last in found.blocks[:NAMED_MAX]:
        end = (last + 1) * BLOCK_BYTES - 1
        yield f"bytes {first * BLOCK_BYTES} to {end} do not match their checksums"
    if len(found.blocks) > NAMED_MAX:
        yield f"... and {counted(len(found.blocks) - NAMED_MAX, 'more range')}"
    for ledger_id, spans in sorted(found.ledgers.items())[:NAMED_MAX]:
        yield f"ledger {ledger_id}: the segment has no good copy of {words_of(spans)}"
    if len(found.ledgers) > NAMED_MAX:
        yield f"... and {counted(len(found.ledgers) - NAMED_MAX, 'more ledger')}"
    if not found.extent_known:
        yield "what else is damaged in it is unknown"


def words_of(spans: Sequence[Range]) -> str:
    """Return ranges (first, last) of entries in words, shortened if there are many."""
    some = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    more = ", ..." if len(some) > NAMED_MAX else ""
    return f"entries {', '.join(some[:NAMED_MAX])}{more}"


# -- what the index does not name -------------------------------------------------------------


def _not_indexed(disk: Disk, segment: SegmentDump, alive: LedgerIdSet) -> Iterator[str]:
    """Yield sentences about entries in the groups of an undamaged segment that its index lacks.

    `alive` has the ids of the ledgers that exist. Entries of deleted ledgers are rightly not in the
    index.
    """
    number = segment.description.number
    told = 0
    for ledger_id, held in sorted(runs_of_groups(segment.groups()).items()):
        if ledger_id not in alive:
            continue
        try:
            named = [span for one in segment.rows(ledger_id) for span in one.entries()]
        except FormatError:
            continue  # This was reported already.
        here = merged(span for one in held for span in one.entries())
        lacking = without(here, merged(named))
        if lacking and not _was_deleted(disk, ledger_id, number):
            told += 1
            if told <= NAMED_MAX:
                yield f"its index does not name {words_of(lacking)} of ledger {ledger_id}"
    if told > NAMED_MAX:
        yield f"... nor entries of {counted(told - NAMED_MAX, 'more ledger')}"


def runs_of_groups(groups: Iterator[ScannedGroup]) -> dict[int, list[FrameExtent]]:
    """Return the runs of entries of each ledger in these groups, by ledger id."""
    held: dict[int, list[FrameExtent]] = {}
    for group in groups:
        for row in group.table.runs:
            run = of_table_row(row, group.header.payload_offset + row.offset)
            held.setdefault(row.ledger_id, []).append(run)
    return held


def _was_deleted(disk: Disk, ledger_id: int, number: int) -> bool:
    """Return whether a deletion of the ledger in the log applies to the segment `number`."""
    for later in segment_numbers(disk):
        try:
            if later >= number:
                with open_segment(disk, later) as segment:
                    if any(_voids(one, ledger_id, number) for one in _records(segment)):
                        return True
        except FileNotFoundError:
            continue
    return False


def _records(segment: SegmentDump) -> Iterator[StateRecord]:
    yield from segment.records
    if segment.description.trailer is None:
        for group in segment.groups():
            yield from group.table.records


def _voids(record: StateRecord, ledger_id: int, number: int) -> bool:
    if record.kind is not RecordKind.DELETED or record.ledger_id != ledger_id:
        return False
    before = Deleted.decode(record.value).before_segment
    return before == 0 or before > number
