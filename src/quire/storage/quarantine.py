"""Damaged segments: what is remembered of them, what lacks, and when they may be written anew.

    found (by a scrub) -> checked -> lacking (the bookie reports it) -> healed -> written anew

A damaged segment stays as it is: its healthy entries are served, compaction goes around it. What
another bookie's copy has brought back stands in a newer segment; once that holds of all that is
damaged, and alive, the segment is rewritten without it (`compactor`, `salvage`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from quire.core.ranges import Range
from quire.storage import extents
from quire.storage.catalogue import Catalogue
from quire.storage.copies import Footers, Newer, lacking, newer_copies
from quire.storage.directory import remove_small_file, write_small_file
from quire.storage.maintenance import Maintenance
from quire.storage.quarantine_record import (
    SegmentDamage,
    encode_record,
    limited,
    record_name,
    stored_records,
)
from quire.storage.salvage import Salvage
from quire.storage.scrub import Findings
from quire.storage.sealed_rows import unpack
from quire.storage.seams import Disk
from quire.storage.segment import LedgerInfo, Segment, SegmentState
from quire.storage.spares import is_full

CHECK_INTERVAL_S = 10.0
"""Between two looks whether what is damaged is there once more."""


class Quarantine:
    """Used on the event loop."""

    def __init__(
        self,
        disk: Disk,
        catalogue: Catalogue,
        maintenance: Maintenance,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        broken: Callable[[Exception], None],
    ) -> None:
        """`broken` is called when the disk fails for another reason than space."""
        self._disk = disk
        self._catalogue = catalogue
        self._maintenance = maintenance
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._broken = broken
        self.records: dict[int, SegmentDamage] = {}
        self._checked: set[int] = set()
        """Records of which it is known what lacks, and not only what is damaged."""
        self._unsaved: set[int] = set()
        """Numbers whose file is not what it should be."""
        self._saving = False
        self._checking = False
        self._next_check_s = 0.0
        self.closed = False
        """Set before the maintenance is stopped: nothing more is begun."""
        self.suspect: Callable[[int], None] = lambda number: None
        """Called with the number of a segment that should be looked at again."""
        self.on_change: Callable[[SegmentDamage, bool], None] | None = None
        """Called when a segment is found damaged, and (True) when it is so no more."""

    def load(self) -> list[int]:
        """What earlier starts have found. Blocks. Numbers of segments to be looked at again, for
        what was remembered of them cannot be read. `OSError`, `StorageError`."""
        unread = []
        for number, record in stored_records(self._disk):
            segment = self._catalogue.segments.get(number)
            if segment is None:
                self._unsaved.add(number)
            elif record is None:
                unread.append(number)
            else:
                self._put(segment, record)
        return unread

    # -- what is known --------------------------------------------------------------------------

    def lacking(self) -> dict[int, list[Range]]:
        """Ledgers, and entries of them, of which this bookie has no good copy any more."""
        found: dict[int, list[Range]] = {}
        for number in sorted(self._checked):
            for ledger_id, ranges in self._alive(self.records[number]).items():
                found.setdefault(ledger_id, []).extend(ranges)
        return found

    def ready(self) -> Iterator[Segment]:
        """Segments that may be written anew."""
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
                yield segment

    def salvage(self, segment: Segment) -> Salvage:
        """How to write it anew; it is `ready`."""
        record = self.records[segment.number]
        newer = {
            ledger_id: newer_copies(self._catalogue.segments, info, segment.number)
            for ledger_id in segment.mentions
            if (info := self._catalogue.ledgers.get(ledger_id)) is not None
        }
        return Salvage(record.blocks, bool(record.index), newer)

    def doubt(self, number: int) -> None:
        """It could not be written anew, or compacted: more of it is damaged than is known."""
        self._checked.discard(number)
        self.suspect(number)

    def _alive(self, record: SegmentDamage) -> dict[int, Sequence[Range]]:
        """What is named and whose ledger still has entries there."""
        ledgers = self._catalogue.ledgers
        segment = self._catalogue.segments.get(record.number)
        if segment is None:
            return {}
        return {
            ledger_id: ranges
            for ledger_id, ranges in record.ledgers.items()
            if (info := ledgers.get(ledger_id)) is not None
            and (info.lives_in(record.number) or ledger_id in segment.parts)
        }

    # -- what a scrub has found -----------------------------------------------------------------

    def take(self, segment: Segment, found: Findings) -> None:
        """All of the segment was checked. It is what the catalogue has under its number."""
        number = segment.number
        if found.clean:
            if number in self.records:
                self.release(number)
            return
        old = self.records.get(number)
        ledgers, more = limited(self._hurt(segment, found))
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
        self._next_check_s = 0.0
        self._unsaved.add(number)
        if old is None and self.on_change is not None:
            self.on_change(record, False)
        self.tick()

    def _hurt(self, segment: Segment, found: Findings) -> dict[int, list[Range]]:
        if segment.trailer is None:
            return damaged_here(segment, found.blocks)
        return damaged_sealed(segment, found, self._catalogue.ledgers)

    def release(self, number: int) -> None:
        """The segment was written anew, is gone, or reads well again."""
        record = self.records.pop(number, None)
        self._checked.discard(number)
        self._unsaved.add(number)
        segment = self._catalogue.segments.get(number)
        if segment is not None:
            segment.damage = ""
        if record is not None and self.on_change is not None:
            self.on_change(record, True)
        self._save()

    def _put(self, segment: Segment, record: SegmentDamage) -> None:
        self.records[record.number] = record
        segment.damage = record.describe()

    # -- what is there once more ----------------------------------------------------------------

    def tick(self) -> None:
        """Every few seconds: write what could not be written, forget what is gone, look again at
        what lacks."""
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
        """One after the other."""
        self._checking = False
        while numbers and not self.closed:
            number, numbers = numbers[0], numbers[1:]
            record, segment = self.records.get(number), self._catalogue.segments.get(number)
            if record is None or segment is None:
                continue
            if segment.trailer is None:
                damaged: Mapping[int, Sequence[Range]] = damaged_here(segment, record.blocks)
            else:
                damaged = self._alive(record)
            newer = {
                ledger_id: newer_copies(
                    self._catalogue.segments, self._catalogue.ledgers[ledger_id], number
                )
                for ledger_id in damaged
            }
            self._checking = True
            self._maintenance.run(
                partial(_left, self._disk, segment, record, damaged, newer),
                partial(self._on_checked, segment, record, numbers),
            )
            return

    def _on_checked(
        self,
        segment: Segment,
        record: SegmentDamage,
        rest: Sequence[int],
        left: dict[int, list[Range]] | None,
        error: Exception | None,
    ) -> None:
        number = record.number
        same = self.records.get(number) is record
        if left is not None and same and self._catalogue.segments.get(number) is segment:
            ledgers, more = limited(left)
            self._checked.add(number)
            if ledgers != record.ledgers:
                new = replace(record, ledgers=ledgers, more=record.more or more)
                self._put(segment, new)
                self._unsaved.add(number)
            if not ledgers and record.more:
                self.suspect(number)  # these are healed: who else is there?
        self._check(rest)
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
        self._maintenance.run(work, partial(self._on_saved, number))

    def _on_saved(self, number: int, _: None, error: Exception | None) -> None:
        self._saving = False
        if error is None:
            self._save()
        elif is_full(error):
            self._unsaved.add(number)  # the next tick tries again
        else:
            self._broken(error)


def damaged_here(segment: Segment, blocks: Sequence[Range]) -> dict[int, list[Range]]:
    """Entries without a good copy in a segment that has no footer, by the index in memory."""
    ledgers = {}
    for ledger_id, part in segment.parts.items():
        synced = [extents.of_run(run) for run in part.runs if run.batch.buffers is None]
        if hurt := extents.damaged_entries(synced, blocks):
            ledgers[ledger_id] = hurt
    return ledgers


def damaged_sealed(
    segment: Segment, found: Findings, ledgers: Mapping[int, LedgerInfo]
) -> dict[int, list[Range]]:
    """The same of one that has a footer, of ledgers that live in it. Where nobody knows, all."""
    number = segment.number
    if found.extent_known:
        return {
            ledger_id: ranges
            for ledger_id, ranges in found.ledgers.items()
            if (info := ledgers.get(ledger_id)) is not None and info.lives_in(number)
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
    segment: Segment,
    record: SegmentDamage,
    damaged: Mapping[int, Sequence[Range]],
    newer: Mapping[int, Newer],
) -> dict[int, list[Range]]:
    """What of it lacks. On the maintenance worker."""
    found: dict[int, list[Range]] = {}
    with Footers(disk) as footers:
        for ledger_id, ranges in damaged.items():
            exact = list(ranges)
            if segment.trailer is not None and not record.index:
                # What is named may be more than what is damaged.
                runs = footers.extents(record.number, segment.trailer, ledger_id)
                if runs:
                    exact = extents.damaged_entries(runs, record.blocks)
            if left := lacking(footers, ledger_id, exact, newer[ledger_id]):
                found[ledger_id] = left
    return found
