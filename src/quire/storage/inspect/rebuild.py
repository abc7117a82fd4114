"""Rebuild the index of segments from their groups, for `quire bookie disk rebuild-index`.

The groups of a sealed segment are authoritative, and its footer is derived from them. A footer that
fails its check, or names entries that no group has, is cut off and written again. A crash in
between loses nothing. Without its footer, the segment is one that was never sealed, and a start
scans and seals it.

A segment that has lost groups or whose header is damaged is not changed, because its footer may
have information that the rest of the file no longer has.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.codec.log.footer import Summary, Trailer
from quire.codec.log.group import GROUP_LAST
from quire.storage.background.scrub import ScrubTarget
from quire.storage.background.sealer import mentions_of
from quire.storage.inspect.check import Progress
from quire.storage.inspect.contents import SegmentDump, open_segment
from quire.storage.inspect.snapshot import identity_of, with_log
from quire.storage.interfaces import Disk, File
from quire.storage.recovery.log_recovery import RecoveredLog
from quire.storage.recovery.replay import Replayer, UnsealedSegment
from quire.storage.recovery.scan import SegmentScan, scan_groups
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.footer import SealInput, write_footer
from quire.storage.segment.segment import LogSegment, SegmentState, segment_name


class RebuildOutcome(enum.StrEnum):
    """The outcome of checking the index of one segment."""

    GOOD = "good"
    """The index is correct and was not changed."""
    REBUILT = "rebuilt"
    """The index was rebuilt, or would be rebuilt without `dry_run`."""
    OPEN = "open"
    """The segment is the newest one and has no index. The bookie's next start seals it."""
    INCOMPLETE = "incomplete"
    """The segment has lost groups, or its header is damaged, so its index was not changed."""
    GONE = "gone"
    """The bookie has removed the segment in the meantime. This happens only in a dry run."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of checking the index of one segment."""

    number: int
    outcome: RebuildOutcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class SegmentToRebuild:
    """A segment whose index is to be checked."""

    number: int
    newest: bool
    sealed: bool
    lost_groups: int
    """The number of lost groups in the segment. 0 if the segment is sealed."""
    end_group: int
    """The number after that of the last group that counts."""
    size_bytes: int


def plan(disk: Disk) -> list[SegmentToRebuild]:
    """Return all segments that the start of a bookie would find, ascending by number.

    This may raise `StorageError` or `OSError`.
    """

    def work(recovered: RecoveredLog, _: bytes) -> list[SegmentToRebuild]:
        segments = recovered.replayer.catalogue.segments
        newest = max(segments, default=0)
        return [
            SegmentToRebuild(
                number,
                number == newest,
                one.state is SegmentState.SEALED,
                one.lost_groups,
                one.end_group,
                one.end,
            )
            for number, one in sorted(segments.items())
        ]

    return with_log(disk, work)


def rebuild(
    disk: Disk, todo: Sequence[SegmentToRebuild], progress: Progress, *, dry_run: bool
) -> Iterator[Rebuilt]:
    """Check the index of each segment in `todo`, and rebuild it where necessary.

    With `dry_run`, nothing is changed, and the result says what would be done. Otherwise the caller
    must hold the disk's lock, and a rebuilt index is durable when its result is yielded. `progress`
    is called with the number of bytes that were read since its last call. This may raise
    `StorageError` or `OSError`.
    """
    own_id = identity_of(disk).directory_id
    for one in todo:
        try:
            yield _rebuild(disk, own_id, one, progress, dry_run)
        except FileNotFoundError:
            yield Rebuilt(one.number, RebuildOutcome.GONE)


def _rebuild(
    disk: Disk, own_id: bytes, work: SegmentToRebuild, progress: Progress, dry_run: bool
) -> Rebuilt:
    with open_segment(disk, work.number) as segment:
        why = _why(segment, work, progress)
        summary = segment.summary
    if not why:
        return Rebuilt(work.number, RebuildOutcome.GOOD)
    if not work.sealed and work.newest:
        return Rebuilt(work.number, RebuildOutcome.OPEN, "the next start seals it")
    file = disk.open(segment_name(work.number))
    try:
        found = UnsealedSegment(
            work.number, segment.description.header, _scan(file, own_id, segment), file
        )
        if not work.sealed and not found.compacted:
            # A crash may have left a torn group, or one that a later segment has again.
            groups = found.scan.groups
            found.scan.groups = [one for one in groups if one.header.number < work.end_group]
        lost = _what_is_lost(found, segment, work)
        if lost:
            return Rebuilt(work.number, RebuildOutcome.INCOMPLETE, f"{why}; {lost}")
        if not dry_run:
            _write(own_id, found, summary, segment.description.trailer)
        return Rebuilt(work.number, RebuildOutcome.REBUILT, why)
    finally:
        file.close()


def _why(segment: SegmentDump, work: SegmentToRebuild, progress: Progress) -> str:
    """Return in words what is wrong with the segment's index, or "" if nothing is."""
    trailer = segment.description.trailer
    if trailer is None:
        progress(work.size_bytes)
        return "it has no valid index"
    target = ScrubTarget(work.number, trailer.groups_at, trailer.footer_at, trailer, ())
    scrub = segment.scrub(target)
    while size := scrub.step():
        progress(size)
    return scrub.found.index


def _scan(file: File, own_id: bytes, segment: SegmentDump) -> SegmentScan:
    return scan_groups(file, own_id, segment.description.number, segment.description.groups_at)


def _what_is_lost(found: UnsealedSegment, segment: SegmentDump, work: SegmentToRebuild) -> str:
    """Return in words what is lost of the groups of a segment, or "" if they are complete."""
    if found.header is None:
        return "its header is damaged"
    if work.lost_groups:
        return f"{work.lost_groups} of its groups are lost"
    groups = found.scan.groups
    if found.compacted:
        numbers = range(len(groups))
        whole = bool(groups) and bool(groups[-1].header.flags & GROUP_LAST)
    else:
        trailer = segment.description.trailer
        end = found.header.first_group + len(groups) if trailer is None else trailer.end_group
        numbers = range(found.header.first_group, end)
        whole = True
    if not whole or [group.header.number for group in groups] != list(numbers):
        return "some of its groups are lost"
    return ""


def _write(
    own_id: bytes, found: UnsealedSegment, summary: Summary | None, trailer: Trailer | None
) -> None:
    """Write the footer of a segment, made from its groups. It is durable on return."""
    segment, replayed = _replay(found)
    if trailer is not None:
        # The groups of a compaction do not show which group numbers the segment stands for.
        segment.first_group, segment.end_group = trailer.first_group, trailer.end_group
    ledgers = []
    for ledger_id, part in sorted(segment.parts.items()):
        confirmed = replayed.ledgers[ledger_id].last_add_confirmed
        if summary is not None:
            known = summary.find(ledger_id)
            if known is None:  # It was deleted before the segment was sealed.
                segment.forgotten.add(ledger_id)
                continue
            confirmed = known.last_add_confirmed
        ledgers.append((ledger_id, part, confirmed))
    found.file.truncate(segment.end)
    found.file.sync()
    records = [*segment.records, *mentions_of(segment)]
    write_footer(SealInput(own_id, segment, ledgers, records))


def _replay(found: UnsealedSegment) -> tuple[LogSegment, Catalogue]:
    """Rebuild the index of one segment from its groups, as a start does."""
    catalogue = Catalogue()
    replayer = Replayer(catalogue)
    replayer.unsealed(found, found.scan.groups, 0)
    return catalogue.segments[found.number], catalogue
