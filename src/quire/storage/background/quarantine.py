"""Keep track of damaged segments: what is damaged, what is missing, and when to rewrite them.

    found (by a scrub) -> checked -> missing (the bookie reports it) -> repaired -> rewritten

A damaged segment stays as it is. Its healthy entries are served, and compaction leaves it out.
Entries that are restored from another bookie are in newer segments. Once newer segments have all
damaged entries of ledgers that still exist, the segment is rewritten without the damaged parts
(`compactor`, `salvage`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from quire.codec.log.state_records import BLOCK_BYTES
from quire.core.ranges import Range
from quire.storage.background.job import BackgroundJob, JobContext
from quire.storage.background.quarantine_record import (
    SegmentDamage,
    encode_record,
    limited,
    record_name,
    stored_records,
)
from quire.storage.background.salvage import Footers, Newer, Salvage, lacking, newer_copies
from quire.storage.background.scrub import Findings
from quire.storage.directory import remove_small_file, write_small_file
from quire.storage.interfaces import Disk
from quire.storage.log.preallocation import may_pass
from quire.storage.segment import extents
from quire.storage.segment.sealed_rows import unpack
from quire.storage.segment.segment import LedgerInfo, LedgerPart, LogSegment, SegmentState

CHECK_INTERVAL_S = 10.0
"""Seconds between two checks whether the damaged entries of a segment were restored."""


class Quarantine(BackgroundJob):
    """The damaged segments of one store, and what is known about the damage in each."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self.records: dict[int, SegmentDamage] = {}
        self._checked: set[int] = set()
        """The numbers of the damaged segments whose damaged entries were compared with newer
        segments, so that it is known which of the entries are missing."""
        self._lacking: set[int] | None = None
        """The ids of the ledgers that lack entries according to the checked records, or None if the
        set must be computed again."""
        self._seen: set[int] = set()
        """The numbers of the segments in which a scrub of this process has found damage. An older
        record may describe a file that was rewritten since, if a crash prevented the removal of the
        record."""
        self._unread: set[int] = set()
        """The numbers of the segments whose record was on the disk at the start but could not be
        read."""
        self._rest: dict[int, dict[int, list[Range]]] = {}
        """The damaged entries of ledgers that do not fit into the record of a segment, by segment
        number and ledger id. If ledgers that the record names turn out to lack entries, this is
        dropped, and a later scrub finds the other ledgers again."""
        self._unsaved: set[int] = set()
        """The numbers of the segments whose record on disk is out of date."""
        self._saving = False
        self._checking = False
        self._next_check_s = 0.0
        self.closed = False
        """Whether the background jobs are about to be stopped. If so, nothing new is begun."""
        self.suspect: Callable[[int], None] = lambda number: None
        """A function that is called with the number of a segment that should be scrubbed again."""
        self.on_change: Callable[[SegmentDamage, bool], None] = lambda damage, repaired: None
        """A function that is called with the damage of a segment and False when it is found, and
        with the damage and True when the segment is no longer damaged."""

    def load(self) -> list[int]:
        """Load the stored records of damaged segments. This blocks.

        Return the numbers of segments that must be scrubbed again because their record cannot be
        read.

        Raises:
            LaterStorageError: A later version wrote a record.
            OSError: The directory cannot be listed.
        """
        for number, record in stored_records(self._disk):
            segment = self._catalogue.segments.get(number)
            if segment is None:
                self._unsaved.add(number)
            elif record is None:
                self._unread.add(number)
            else:
                self._put(segment, record)
        return sorted(self._unread)

    # -- what is known --------------------------------------------------------------------------

    def lacking_ledgers(self) -> Set[int]:
        """Return the ids of the ledgers with entries of which this directory has no good copy.

        A deleted ledger stays in the set until its segment is checked again. Two kinds of ledgers
        are left out for now: those in segments whose damage is not yet compared with newer
        segments, and those after the first `LEDGERS_MAX` of a segment.
        """
        if self._lacking is None:
            named = (self.records[number].ledgers for number in self._checked)
            self._lacking = set().union(*named)
        return self._lacking

    def lacking(self, ledger_ids: Sequence[int]) -> dict[int, list[Range]]:
        """Return the entries of these ledgers of which this directory has no good copy.

        The result has ranges (first, last) by ledger id. Ledgers without such entries are left out,
        and so are those that `lacking_ledgers` leaves out. There may be many records, and each can
        name 8,192 ledgers. So ask for some of the ledgers at a time.
        """
        found: dict[int, list[Range]] = {}
        for number in sorted(self._checked):
            named = self.records[number].ledgers
            for ledger_id in ledger_ids:
                if ledger_id in named and self._lives_in(ledger_id, number):
                    found.setdefault(ledger_id, []).extend(named[ledger_id])
        return found

    def ready(self) -> Iterator[LogSegment]:
        """Yield the damaged segments that can be rewritten now, because no entry is missing.

        A segment whose damage this process has only read from a record is scrubbed again first.
        """
        for number in sorted(self._checked):
            record, segment = self.records[number], self._catalogue.segments.get(number)
            if (
                segment is not None
                and segment.state is SegmentState.SEALED
                and segment.live_ledgers
                and not segment.compacting
                and not self._alive(record)
                and not record.more
                and not record.header
                and not (record.index and record.lost_tables)
            ):
                if number in self._seen:
                    yield segment
                else:
                    self.suspect(number)

    def salvage(self, segment: LogSegment) -> Salvage:
        """Return what a rewrite must know about a damaged segment that `ready` has yielded."""
        record = self.records[segment.number]
        newer = {
            ledger_id: newer_copies(self._catalogue.segments, info, segment.number)
            for ledger_id in segment.mentions
            if (info := self._catalogue.ledgers.get(ledger_id)) is not None
        }
        return Salvage(record.blocks, bool(record.index), newer)

    def recheck(self, number: int) -> None:
        """Have a segment scrubbed again, because more of it is damaged than was known."""
        self._checked.discard(number)
        self._lacking = None
        self.suspect(number)

    def _alive(self, record: SegmentDamage) -> dict[int, Sequence[Range]]:
        """Return the entries in the record whose ledgers still have entries in the segment."""
        return {
            ledger_id: ranges
            for ledger_id, ranges in record.ledgers.items()
            if self._lives_in(ledger_id, record.number)
        }

    def _lives_in(self, ledger_id: int, number: int) -> bool:
        info = self._catalogue.ledgers.get(ledger_id)
        segment = self._catalogue.segments.get(number)
        return (
            info is not None
            and segment is not None
            and (info.lives_in(number) or ledger_id in segment.parts)
        )

    # -- what a scrub has found -----------------------------------------------------------------

    def take(self, segment: LogSegment, found: Findings) -> None:
        """Record what a scrub of a whole segment has found.

        If the segment is not damaged, an earlier record is dropped. The segment must be in the
        catalogue.
        """
        number = segment.number
        if found.clean:
            segment.damage = ""  # A compaction may have met a temporary error.
            if number in self.records or number in self._unread:
                self.release(number)
            return
        old = self.records.get(number)
        hurt = self._hurt(segment, found)
        ledgers, more = limited(hurt)
        self._rest.pop(number, None)
        if more and segment.trailer is not None:
            self._rest[number] = _others(hurt, ledgers)
        self._seen.add(number)
        record = SegmentDamage(
            number,
            self._now_ms() if old is None else old.found_ms,
            tuple(found.blocks),
            found.header,
            found.index,
            found.lost_tables,
            found.extent_known,
            ledgers,
            more,
        )
        self._put(segment, record)
        self._checked.discard(number)
        self._lacking = None
        self._next_check_s = 0.0
        self._unsaved.add(number)
        if old is None:
            self.on_change(record, False)
        self.tick()

    def _hurt(self, segment: LogSegment, found: Findings) -> dict[int, list[Range]]:
        if segment.trailer is None:
            return damaged_here(tuple(segment.parts.items()), found.blocks)
        return damaged_sealed(segment, found, self._catalogue.ledgers)

    def release(self, number: int) -> None:
        """Forget the damage of a segment that was rewritten or removed, or can be read again."""
        record = self.records.pop(number, None)
        self._lacking = None
        for known in (self._checked, self._seen, self._unread):
            known.discard(number)
        self._rest.pop(number, None)
        self._unsaved.add(number)
        segment = self._catalogue.segments.get(number)
        if segment is not None:
            segment.damage = ""
        if record is not None:
            self.on_change(record, True)
        self._save()

    def _put(self, segment: LogSegment, record: SegmentDamage) -> None:
        self.records[record.number] = record
        self._lacking = None
        segment.damage = record.describe()

    # -- what was restored --------------------------------------------------------------------

    def tick(self) -> None:
        """Save changed records, drop those of removed segments, and look for missing entries.

        The store calls this every few seconds.
        """
        if self.closed:
            return
        for number in [one for one in self.records if one not in self._catalogue.segments]:
            self.release(number)
        self._save()
        now = self._monotonic()
        if not self._checking and self.records and now >= self._next_check_s:
            self._next_check_s = now + CHECK_INTERVAL_S
            self._check(sorted(self.records))

    def _check(self, numbers: Sequence[int]) -> None:
        """Check the records of the segments with these numbers, one after the other."""
        self._checking = False
        while numbers and not self.closed:
            number, numbers = numbers[0], numbers[1:]
            record, segment = self.records.get(number), self._catalogue.segments.get(number)
            if record is None or segment is None:
                continue
            self._checking = True
            if segment.trailer is None:  # It may have a hundred thousand runs.
                self._jobs.run(
                    partial(damaged_here, tuple(segment.parts.items()), record.blocks),
                    partial(self._on_damaged, segment, record, numbers),
                )
            else:
                self._look(segment, record, False, numbers, self._alive(record))
            return

    def _on_damaged(
        self,
        segment: LogSegment,
        record: SegmentDamage,
        upcoming: Sequence[int],
        damaged: dict[int, list[Range]] | None,
        error: Exception | None,
    ) -> None:
        self._look_at(error)
        if damaged is None or self.closed:
            self._check(upcoming)
        else:
            self._look(segment, record, True, upcoming, damaged)

    def _look(
        self,
        segment: LogSegment,
        record: SegmentDamage,
        whole: bool,
        upcoming: Sequence[int],
        damaged: Mapping[int, Sequence[Range]],
    ) -> None:
        """Find out which of the damaged entries are missing, and go on with the `upcoming` records.

        `whole` means that `damaged` is complete. Otherwise the record may have left out ledgers.
        """
        ledgers = self._catalogue.ledgers
        alive = {
            ledger_id: ranges
            for ledger_id, ranges in damaged.items()
            if ledger_id in ledgers  # It may have been deleted in the meantime.
        }
        newer = {
            ledger_id: newer_copies(self._catalogue.segments, ledgers[ledger_id], record.number)
            for ledger_id in alive
        }
        self._jobs.run(
            partial(_left, self._disk, segment, record, alive, newer),
            partial(self._on_checked, segment, record, whole, upcoming),
        )

    def _on_checked(
        self,
        segment: LogSegment,
        record: SegmentDamage,
        whole: bool,
        upcoming: Sequence[int],
        left: dict[int, list[Range]] | None,
        error: Exception | None,
    ) -> None:
        """Update a record after its damaged entries were compared with newer segments."""
        self._look_at(error)
        number = record.number
        same = self.records.get(number) is record
        if left is not None and same and self._catalogue.segments.get(number) is segment:
            ledgers, more = limited(left)
            more = more if whole else record.more
            rest = self._rest.pop(number, None)
            if not ledgers and rest:  # These are restored. Continue with the next ones.
                ledgers, more = limited(rest)
                if more:
                    self._rest[number] = _others(rest, ledgers)
                upcoming = (number, *upcoming)
            else:
                self._checked.add(number)
                self._lacking = None
                if not ledgers and more:
                    self.suspect(number)  # These are restored. Find the others.
            if ledgers != record.ledgers or more != record.more:
                self._put(segment, replace(record, ledgers=ledgers, more=more))
                self._unsaved.add(number)
        self._check(upcoming)
        self._save()

    # -- files ------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self._saving or self.closed or not self._unsaved:
            return
        self._saving = True
        number = self._unsaved.pop()
        record, name = self.records.get(number), record_name(number)
        if record is None:
            work = partial(remove_small_file, self._disk, name)
        else:
            work = partial(write_small_file, self._disk, name, encode_record(record))
        self._jobs.run(work, partial(self._on_saved, number))

    def _on_saved(self, number: int, _: None, error: Exception | None) -> None:
        self._saving = False
        if error is None:
            self._save()
        elif may_pass(error):
            self._unsaved.add(number)  # The next tick tries again.
        else:
            self._broken(error)


def _others(hurt: Mapping[int, list[Range]], named: Mapping[int, object]) -> dict[int, list[Range]]:
    return {ledger_id: ranges for ledger_id, ranges in hurt.items() if ledger_id not in named}


def damaged_here(
    parts: Sequence[tuple[int, LedgerPart]], blocks: Sequence[Range]
) -> dict[int, list[Range]]:
    """Return the damaged entries of a segment without a footer, from the index in memory.

    `parts` has the runs of each ledger in the segment, and `blocks` the ranges of damaged blocks.
    The result has ranges (first, last) of entries by ledger id. Runs may be added in the meantime.
    """
    ledgers: dict[int, list[Range]] = {}
    if not blocks:
        return ledgers
    low, high = blocks[0][0] * BLOCK_BYTES, (blocks[-1][1] + 1) * BLOCK_BYTES
    for ledger_id, part in parts:
        runs = [run for run in part.runs[:] if run.batch.buffers is None]
        # There may be many thousands of runs, but only a few are near the damaged blocks.
        if not any(
            start < high and start + run.size_bytes > low
            for run in runs
            for start in (run.batch.file_offset + run.offset,)
        ):
            continue
        synced = [extents.of_run(run) for run in runs]
        if hurt := extents.damaged_entries(synced, blocks):
            ledgers[ledger_id] = hurt
    return ledgers


def damaged_sealed(
    segment: LogSegment, found: Findings, ledgers: Mapping[int, LedgerInfo]
) -> dict[int, list[Range]]:
    """Return the damaged entries of a segment with a footer, for ledgers that live in it.

    The result has ranges (first, last) of entries by ledger id. If it is not known what is damaged,
    all entries of the segment are returned.
    """
    number = segment.number
    if found.extent_known:
        return {
            ledger_id: ranges
            for ledger_id, ranges in found.ledgers.items()
            if (info := ledgers.get(ledger_id)) is not None
            and (info.lives_in(number) or ledger_id in segment.parts)
        }
    whole: dict[int, list[Range]] = {}
    for ledger_id in segment.mentions:
        info = ledgers.get(ledger_id)
        for row in () if info is None else unpack(info.sealed):
            if row[0] == number:
                whole[ledger_id] = [(row[1], row[2])]
    return whole


def _left(
    disk: Disk,
    segment: LogSegment,
    record: SegmentDamage,
    damaged: Mapping[int, Sequence[Range]],
    newer: Mapping[int, Newer],
) -> dict[int, list[Range]]:
    """Return the damaged entries that no newer segment has, as ranges by ledger id.

    This runs on the maintenance worker.
    """
    found: dict[int, list[Range]] = {}
    with Footers(disk) as footers:
        for ledger_id, ranges in damaged.items():
            exact = list(ranges)
            if segment.trailer is not None and not record.index:
                # The record may name more entries than are damaged.
                runs = footers.extents(record.number, segment.trailer, ledger_id)
                if runs:
                    exact = extents.damaged_entries(runs, record.blocks)
            if left := lacking(footers, ledger_id, exact, newer[ledger_id]):
                found[ledger_id] = left
    return found
