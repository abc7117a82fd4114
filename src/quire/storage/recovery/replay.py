"""Decide which groups of unsealed segments count, and rebuild the catalogue.

`log_recovery` explains the rules.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire._runtime.units import are, counted
from quire.codec.log.footer import Trailer
from quire.codec.log.group import GROUP_COMPACTED, GROUP_LAST
from quire.codec.log.segment_header import SegmentHeader
from quire.codec.log.state_records import BLOCK_BYTES, StateRecord, aligned, block_checksums
from quire.storage.interfaces import File
from quire.storage.recovery.scan import ScannedGroup, SegmentScan
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.footer import Loaded, mentioned, read
from quire.storage.segment.segment import LogSegment, SegmentState, segment_name

_LENGTH = struct.Struct(">I")
_ENTRY_HEAD = struct.Struct(">qqq")  # ledger, entry, LAC


@dataclass(frozen=True, slots=True)
class LastGroup:
    """The last group of the log, which is valid but may never have been synced."""

    group: ScannedGroup
    payload: bytes


@dataclass(slots=True)
class UnsealedSegment:
    """A segment without a valid footer, whose groups were scanned."""

    number: int
    header: SegmentHeader | None
    scan: SegmentScan
    file: File

    @property
    def compacted(self) -> bool:
        """Whether a compaction wrote the segment, so that its groups are numbered separately."""
        if self.header is not None:
            return self.header.compacted
        return any(group.header.flags & GROUP_COMPACTED for group in self.scan.groups)


@dataclass(slots=True)
class GroupChain:
    """The groups of all unsealed segments, and which of them count."""

    next_group: int
    """The number of the next group of the log. It is that of `tail` or of the torn group, if there
    is one."""
    tail: LastGroup | None = None
    """The last group, if it must be written again. It is not in `kept`."""
    torn_group: int | None = None
    """The number of the last group, if it is torn and does not count."""
    kept: dict[int, list[ScannedGroup]] = field(default_factory=dict)
    """The groups that count, by segment."""
    lost: dict[int, int] = field(default_factory=dict)
    """The number of groups that are missing in each segment. The content of a lost group is
    unknown."""
    emptied: int | None = None
    """The newest segment, if nothing in it counts. Not even its header may have been synced."""


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The evidence that the neighbours of an unsealed segment give about its groups."""

    first: int | None
    """The number of its first group, or None if it is unknown."""
    limit: int | None
    """The number from which on its groups do not count, or None if all do."""
    adjacent: bool
    """Whether `limit` is the number after its last group, if it is known."""
    followers_removed: bool = False
    """Whether the segments that were begun next are gone, so that nothing shows where it ended."""
    unclean: bool = False
    """Whether it is the newest segment, and there is no mark of a clean stop."""


def judge(
    live: Sequence[int],
    headers: Mapping[int, SegmentHeader | None],
    trailers: Mapping[int, Trailer],
    unsealed: Mapping[int, UnsealedSegment],
    clean_end: int | None,
) -> GroupChain:
    """Decide which groups count.

    Args:
        live: The numbers of the segments that count, ascending.
        headers: The header of each segment, or None if it is damaged.
        trailers: The trailers of the sealed segments.
        unsealed: The scanned groups of all other segments, including those that do not count.
        clean_end: The number after the last group, if there is a mark of a clean stop. None if
            there is no such mark.

    Raises:
        OSError: The last group cannot be read again.
    """
    chain = GroupChain(0)
    # A segment that is no longer live may still have the last group. An earlier start that was
    # interrupted may have begun it only to write that group again.
    extras = [
        found for number, found in unsealed.items() if number not in live and not found.compacted
    ]
    for at, number in enumerate(live):
        if number in trailers:
            chain.next_group = max(chain.next_group, trailers[number].end_group)
            continue
        found = unsealed[number]
        if found.compacted:
            chain.kept[number] = list(found.scan.groups)
            chain.lost[number] = int(not _is_whole(found))
            first = _first_group(number, headers, trailers) or 0
            chain.next_group = max(chain.next_group, first)
            continue
        around = _surroundings(at, live, headers, trailers, clean_end, chain.next_group)
        limit, groups = around.limit, found.scan.groups
        kept = [g for g in groups if limit is None or g.header.number < limit]
        if len(kept) < len(groups):
            extras.append(found)
        lost, end = _missing(found, kept, around, chain.next_group)
        chain.kept[number] = kept
        chain.lost[number] = lost
        chain.next_group = max(chain.next_group, end)
        if around.unclean:
            _judge_tail(chain, found, kept, extras)
            if not kept and not lost:
                chain.emptied = number
    return chain


def _first_group(
    number: int,
    headers: Mapping[int, SegmentHeader | None],
    trailers: Mapping[int, Trailer],
) -> int | None:
    """Return the number of the first group of a segment, or None if it is unknown."""
    header, trailer = headers.get(number), trailers.get(number)
    if header is not None:
        return header.first_group
    return None if trailer is None else trailer.first_group


def _surroundings(
    at: int,
    live: Sequence[int],
    headers: Mapping[int, SegmentHeader | None],
    trailers: Mapping[int, Trailer],
    clean_end: int | None,
    next_group: int,
) -> _Surroundings:
    """Return what the neighbours of the segment `live[at]` show about its groups.

    `next_group` is the number after the groups of the segments before it.
    """
    number = live[at]
    first = _first_group(number, headers, trailers)
    if first is None and at and live[at - 1] == number - 1:
        first = next_group
    if at == len(live) - 1:
        return _Surroundings(first, clean_end, adjacent=True, unclean=clean_end is None)
    following = live[at + 1]
    limit = _first_group(following, headers, trailers)
    # A start may leave numbers out, so the next segment need not have the next number.
    header = headers.get(following)
    adjacent = following == number + 1 if header is None else header.previous == number
    removed = not adjacent and following > number + 1
    adjacent = adjacent and limit is not None
    return _Surroundings(first, limit, adjacent=adjacent, followers_removed=removed)


def _missing(
    found: UnsealedSegment,
    kept: Sequence[ScannedGroup],
    around: _Surroundings,
    next_group: int,
) -> tuple[int, int]:
    """Return how many groups of a segment were lost, and the number after its last group.

    Args:
        found: The segment.
        kept: Those of its groups that count.
        around: What its neighbours show.
        next_group: The number after the groups of the segments before.
    """
    scan, groups = found.scan, found.scan.groups
    first, limit = around.first, around.limit
    present = {g.header.number for g in kept}
    lost = 0
    if first is None:
        first = min(present, default=next_group)
        # Without the header, the first number is unknown. A header takes at least one block. If the
        # first group that was found comes later than that, one may be lost.
        lost = int(bool(groups) and groups[0].header.offset > BLOCK_BYTES)
    end = max(present, default=first - 1) + 1
    if around.adjacent and limit is not None:
        end = limit
    lost += len(set(range(first, end)) - present)
    if found.header is None and not groups:
        lost = max(lost, 1)
        # Leave as many numbers free as it may have groups. If the file can be read again later,
        # none of them has the number of a new group, and the gap shows the loss.
        end += found.file.size() // BLOCK_BYTES
    # The group with the number of the limit may have been written again in the next segment. If
    # there are later ones, the next segment was begun by a start that could not read this one.
    lost += sum(limit is not None and g.header.number > limit for g in groups)
    if around.unclean:
        # Leave a gap in the numbers, which later starts will notice.
        return lost + scan.lost_behind, end + scan.lost_behind
    if not around.adjacent:
        # A segment gets its footer before the next ones are removed. If nothing was ever written
        # after its last group, the file is older than that, and later groups may be lost.
        outdated = around.followers_removed and not scan.tail_used
        lost = max(lost, scan.lost_behind, int(outdated))
    return lost, end


def _is_whole(found: UnsealedSegment) -> bool:
    """Return whether the header and all groups that a compaction wrote are there."""
    groups = found.scan.groups
    numbers = [group.header.number for group in groups]
    return (
        found.header is not None
        and bool(numbers)
        and numbers == list(range(len(numbers)))
        and bool(groups[-1].header.flags & GROUP_LAST)
    )


def _judge_tail(
    chain: GroupChain,
    newest: UnsealedSegment,
    kept: list[ScannedGroup],
    extras: Sequence[UnsealedSegment],
) -> None:
    """Decide whether the last group of the log is valid, torn or damaged, after an unclean stop.

    `kept` has the groups of the newest segment that count so far. `extras` are older segments that
    may have the last group, because an earlier start was interrupted before it had copied it.
    """
    last = kept[-1] if kept else None
    if newest.scan.lost_behind:
        return  # The damaged part was synced, and only what follows can be torn.
    if last is not None and last.damaged_blocks:
        if newest.scan.tail_used:
            return  # Something comes after it, so it was synced. It is damaged, not torn.
        if not last.may_be_torn:
            return  # It may have been acknowledged.
    if last is not None and not last.damaged_blocks:
        _write_again(chain, newest, last, kept)
        return
    # The newest segment has no valid last group. If it has no other group either, an earlier start
    # may have begun it to write the last group of an older segment again.
    if last is not None:
        kept.pop()
        chain.torn_group = chain.next_group = last.header.number
    if kept:
        return
    for old in sorted(extras, key=lambda found: found.number, reverse=True):
        for group in old.scan.groups:
            if group.header.number == chain.next_group and not group.damaged_blocks:
                chain.torn_group = None
                _write_again(chain, old, group, [])
                return


def _write_again(
    chain: GroupChain, source: UnsealedSegment, group: ScannedGroup, kept: list[ScannedGroup]
) -> None:
    """Note that the start must write the last group again, because it may not be synced."""
    header = group.header
    payload = read(source.file, header.payload_offset, header.payload_bytes)
    chain.tail = LastGroup(group, payload)
    chain.next_group = header.number
    if kept:
        kept.pop()


# -- the catalogue ----------------------------------------------------------------------------


class Replayer:
    """The builder of the catalogue at a start. Pass it the segments in ascending order."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.damaged_blocks = 0
        self.problems: list[str] = []
        self.sequence = 0

    def sealed(self, number: int, loaded: Loaded) -> None:
        """Add a segment with a footer to the catalogue."""
        trailer = loaded.trailer
        segment = LogSegment(number, None, trailer.file_bytes)
        segment.seal(trailer, mentioned(loaded.summary.ledger_ids, loaded.records))
        self.catalogue.segments[number] = segment
        # A footer has only runs that came after the state records of their ledgers.
        for record in loaded.records:
            self.catalogue.apply_record(record, number)
        self.catalogue.index_sealed(loaded.summary, segment)

    def unsealed(self, found: UnsealedSegment, groups: Sequence[ScannedGroup], lost: int) -> None:
        """Add a segment without a valid footer to the catalogue, from those `groups` that count.

        `lost` is the number of groups that are missing in the segment.
        """
        number = found.number
        segment = LogSegment(number, found.file, found.file.size())
        segment.state = SegmentState.CLOSED
        segment.lost_groups = lost
        if found.header is not None:
            segment.groups_at = found.header.size_bytes
            segment.first_group = found.header.first_group
        elif groups:
            segment.groups_at = groups[0].header.offset
            segment.first_group = 0 if found.compacted else groups[0].header.number
        segment.end = segment.groups_at
        segment.end_group = segment.first_group
        self.catalogue.segments[number] = segment
        if lost:
            self.catalogue.lossy.add(number)
            what = f"{counted(lost, 'group')} of {segment_name(number)}"
            self.problems.append(f"{what} {are(lost)} lost")
        damaged = 0
        for group in groups:
            damaged += group.damaged_blocks
            self._group(segment, group)
        if damaged:
            self.damaged_blocks += damaged
            what = f"{counted(damaged, 'block')} of {segment_name(number)}"
            self.problems.append(f"{what} {are(damaged)} damaged")
        self.find_lacs(segment)

    def _group(self, segment: LogSegment, group: ScannedGroup) -> None:
        header = group.header
        segment.head_bytes = header.head_bytes  # It is the same in all groups of a segment.
        gap = (header.offset - segment.end) // BLOCK_BYTES
        segment.checksums.extend(array("I", bytes(4 * gap)))
        segment.checksums.extend(group.checksums)
        segment.end = header.end
        if not header.flags & GROUP_COMPACTED:
            segment.end_group = header.number + 1
        segment.payload_bytes += header.payload_bytes
        segment.live_bytes += header.payload_bytes
        batch = LogBatch((), ())
        batch.buffers = None
        batch.file_offset = header.payload_offset
        self.apply(batch, runs_of(group), group.table.records, segment)

    def apply(
        self,
        batch: LogBatch,
        runs: Sequence[Run],
        records: Sequence[StateRecord],
        segment: LogSegment,
    ) -> None:
        """Apply the runs and records of one group in the order in which they were appended."""
        catalogue = self.catalogue
        self.sequence += 1
        batch.sequence = self.sequence
        segment.records.extend(records)
        segment.run_count += len(runs)
        done = 0
        for record in records:
            for run in runs[done : record.run_index]:
                self._index(run, batch, segment)
            done = max(done, record.run_index)
            catalogue.apply_record(record, segment.number)
        for run in runs[done:]:
            self._index(run, batch, segment)

    def _index(self, run: Run, batch: LogBatch, segment: LogSegment) -> None:
        run.batch = batch
        info = self.catalogue.ledgers.get(run.ledger_id)
        if info is None:
            # The ledger's master key was lost with another group.
            info = self.catalogue.create(run.ledger_id, b"", segment.number)
        self.catalogue.index(run, segment, info)

    def find_lacs(self, segment: LogSegment) -> None:
        """Read the LAC in each ledger's last entry: a lower bound of the LAC before the stop."""
        file = segment.file
        assert file is not None
        for ledger_id, part in segment.parts.items():
            run = max(part.runs, key=lambda run: run.last)
            size = run.frame_size or (run.sizes[-1] if run.sizes else 0)
            at = run.batch.file_offset + run.offset + run.size_bytes - size
            data = _checked(segment, file, at, segment.head_bytes + _ENTRY_HEAD.size)
            if len(data) < segment.head_bytes + _ENTRY_HEAD.size:
                continue
            (length,) = _LENGTH.unpack_from(data)
            ledger, entry, lac = _ENTRY_HEAD.unpack_from(data, segment.head_bytes)
            if (length, ledger, entry) == (size - 4, ledger_id, run.last) and lac <= entry:
                info = self.catalogue.ledgers[ledger_id]
                info.last_add_confirmed = max(info.last_add_confirmed, lac)


def _checked(segment: LogSegment, file: File, at: int, size: int) -> bytes:
    """Return bytes of a segment, or b"" if a block cannot be read or fails its check."""
    low = at - at % BLOCK_BYTES
    try:
        data = read(file, low, aligned(at + size) - low)
    except OSError:
        return b""  # A read of the entry reports it.
    first = (low - segment.groups_at) // BLOCK_BYTES
    found = block_checksums((data,))
    if found != segment.checksums[first : first + len(found)]:
        return b""
    return bytes(data[at - low : at - low + size])


def runs_of(group: ScannedGroup) -> list[Run]:
    """Return the runs that a group's table describes."""
    return [
        Run(row.ledger_id, row.first, row.count, row.offset, row.frame_size, row.sizes, row.ids)
        for row in group.table.runs
    ]
