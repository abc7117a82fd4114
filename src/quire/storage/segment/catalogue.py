"""The catalogue: everything that a store knows about its ledgers and segments.

The log is authoritative. A start rebuilds the catalogue from the log, in the order of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise

from quire.codec.log.footer import Summary
from quire.codec.log.index_cache import CachedLedger
from quire.codec.log.state_records import (
    Deleted,
    RecordKind,
    StateRecord,
    Superseded,
)
from quire.storage.segment import sealed_rows
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.segment import LedgerInfo, LedgerPart, LogSegment, SegmentState

TOMBSTONE_TTL_MS = 7 * 24 * 3600 * 1000
"""Milliseconds for which adds to a ledger that was fenced and then deleted are refused."""
VOUCHES = "its header shows which groups the segment before it has lost; they are not restored yet"
"""The reason in words why the space of a segment that is in `Catalogue.vouchers` is not freed."""

_EXPLICIT_LAC = struct.Struct(">qq")  # the ledger id and the LAC, at the start of the packet


class Catalogue:
    """The ledgers, segments and deleted ledgers of one data directory."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerInfo] = {}
        self.segments: dict[int, LogSegment] = {}
        self.tombstones: dict[int, int] = {}
        """The Unix time in milliseconds from which each ledger that was fenced and then deleted may
        be forgotten, by ledger id."""
        self.lossy: set[int] = set()
        """The numbers of the segments that should exist but do not, or that have lost groups. The
        start fills it. It is empty once everything that was lost is restored."""
        self._last_key = b""
        self._fenced_in: dict[int, int] = {}
        """During a start, the number of the newest segment with a fence, by ledger id."""
        self._lac_in: dict[int, int] = {}
        """During a start, the number of the newest segment with an explicit LAC, by ledger id."""
        self._cached_through = 0
        """During a start, the number of the newest segment that the index cache covers, or 0.
        Fences and explicit LACs that are in no later segment come from the cache."""

    # -- ledgers ----------------------------------------------------------------------------------

    def create(self, ledger_id: int, master_key: bytes, touched: int) -> LedgerInfo:
        """Add a ledger that the segment with the number `touched` mentions, and return it."""
        info = LedgerInfo(ledger_id, self._shared(master_key), touched)
        self.ledgers[ledger_id] = info
        return info

    def _shared(self, master_key: bytes) -> bytes:
        """Return one shared object for equal keys. Most ledgers of a cluster have the same key."""
        if master_key != self._last_key:
            self._last_key = master_key
        return self._last_key

    def index(self, run: Run, segment: LogSegment, info: LedgerInfo) -> None:
        """Add a run that is newer than all others of its ledger. Its `batch` must be set."""
        part = info.tail
        if part is None or part.segment is not segment:
            part = self.new_part(info, segment, run.first)
        part.add(run)
        info.last_entry_id = max(info.last_entry_id, run.last)

    def index_batch(self, batch: LogBatch, segment: LogSegment) -> None:
        """Add a batch of adds to the index.

        Raises:
            KeyError: An entry belongs to an unknown ledger. The entries before it are indexed.
        """
        columns, ledgers = batch.columns, self.ledgers
        if columns is None:
            for run in batch.runs:
                run.batch = batch
                self.index(run, segment, ledgers[run.ledger_id])
            return
        rows = segment.columnar.add(batch, len(columns.ledger_ids), columns.frame_size)
        infos = map(ledgers.__getitem__, columns.ledger_ids)
        for info, entry, row in zip(infos, columns.entry_ids, rows):
            part = info.tail
            if part is None or part.segment is not segment:
                part = self.new_part(info, segment, entry)
            last = part.last
            if entry > last and part.listed is None:
                entries = part.entries
                if entries is None and entry - last != 1:
                    entries = part.list_entries()
                part.rows.append(row)
                if entries is not None:
                    entries.append(entry)
                part.last = entry
            else:
                part.add(part.run_of(entry, row))
            if entry > info.last_entry_id:
                info.last_entry_id = entry

    def new_part(self, info: LedgerInfo, segment: LogSegment, first: int) -> LedgerPart:
        """Add an empty part of the ledger to a segment that is not sealed, and return the part.

        `first` is the id of the first entry that will be added.
        """
        part = LedgerPart(segment, info.ledger_id, first)
        segment.parts[info.ledger_id] = part
        segment.live_ledgers += 1
        info.open_parts += (part,)
        info.tail = part
        info.touched = segment.number
        return part

    def index_sealed(self, summary: Summary, segment: LogSegment) -> None:
        """Add the ledgers in the summary of a sealed segment to the index."""
        columns = zip(
            summary.ledger_ids, summary.firsts, summary.lasts, summary.last_add_confirmeds,
            summary.size_bytes,
        )  # fmt: skip
        for ledger_id, first, last, last_add_confirmed, size in columns:
            info = self.ledgers.get(ledger_id)
            if info is None:
                # The ledger's master key was lost with another segment.
                info = self.create(ledger_id, b"", segment.number)
            info.touched = segment.number
            info.add_sealed(segment.number, first, last, size)
            info.last_entry_id = max(info.last_entry_id, last)
            info.last_add_confirmed = max(info.last_add_confirmed, last_add_confirmed)
        segment.live_ledgers = len(summary.ledger_ids)
        segment.payload_bytes = segment.live_bytes = sum(summary.size_bytes)

    def restore(self, ledgers: Iterable[CachedLedger], through: int) -> None:
        """Add ledgers from an index cache, which covers the segments up to the number `through`.

        The segments must exist already.
        """
        self._cached_through = through
        for one in ledgers:
            info = self.create(one.ledger_id, one.master_key, one.touched)
            info.born = one.born
            info.fenced = one.fenced
            info.fence_queued = info.fence_durable = one.fence_durable
            info.explicit_lac = one.explicit_lac
            info.last_entry_id = one.last_entry_id
            info.last_add_confirmed = one.last_add_confirmed
            info.sealed, info.ordered = one.rows, one.ordered

    def clear(self) -> None:
        """Forget everything, because reading the log begins again."""
        self.ledgers.clear()
        self.segments.clear()
        self.tombstones.clear()
        self.lossy.clear()
        self.loaded()

    def loaded(self) -> None:
        """Forget what only a start needs. Call this once the whole log is applied."""
        self._fenced_in.clear()
        self._lac_in.clear()
        self._cached_through = 0

    def forget(self, ledger_id: int) -> LedgerInfo | None:
        """Remove a deleted ledger, and return what was known about it, or None if nothing was.

        Its entries no longer count as live in any segment.
        """
        info = self.ledgers.pop(ledger_id, None)
        if info is None:
            return None
        for part in info.open_parts:
            self._forget_part(ledger_id, part)
        for number, _, _, size in sealed_rows.unpack(info.sealed):
            self.segments[number].live_ledgers -= 1
            self.segments[number].live_bytes -= size
        return info

    @staticmethod
    def _forget_part(ledger_id: int, part: LedgerPart) -> None:
        del part.segment.parts[ledger_id]
        part.segment.forgotten.add(ledger_id)
        part.segment.live_ledgers -= 1
        part.segment.live_bytes -= part.size_bytes

    def forget_before(self, ledger_id: int, number: int) -> None:
        """Apply a deletion that was first logged in segment `number`.

        This removes what the ledger has in earlier segments: entries, fence and explicit LAC. The
        ledger itself remains if anything about it was logged in `number` or later, because it
        was created again after the deletion.
        """
        info = self.ledgers.get(ledger_id)
        if info is None:
            return
        if info.touched < number:
            self.forget(ledger_id)
            return
        for part in [part for part in info.open_parts if part.segment.number < number]:
            info.drop_part(part)
            self._forget_part(ledger_id, part)
        for old in [old for old in info.sealed_numbers if old < number]:
            self.unindex(info, old)
        lasts = [part.last for part in info.open_parts]
        lasts += [row[2] for row in sealed_rows.unpack(info.sealed)]
        info.last_entry_id = max(lasts, default=-1)
        info.last_add_confirmed = -1
        if self._fenced_in.get(ledger_id, self._cached_through or number) < number:
            info.fenced = info.fence_queued = info.fence_durable = False
        if self._lac_in.get(ledger_id, self._cached_through or number) < number:
            info.explicit_lac = None

    def unindex(self, info: LedgerInfo, number: int) -> None:
        """Remove a ledger's entries in a sealed segment from the index, so that they are dead."""
        if info.lives_in(number):
            segment = self.segments[number]
            segment.live_ledgers -= 1
            segment.live_bytes -= info.remove_sealed(number)

    def _apply_superseded(self, record: Superseded) -> None:
        """Remove the entries of a segment that a compaction has copied elsewhere from the index.

        The file of the segment still exists only if a crash prevented its removal. The record
        applies only if the segment's trailer matches. Otherwise the file may be another one, and
        its entries remain indexed beside their copies.
        """
        segment = self.segments.get(record.segment)
        if segment is None or segment.trailer is None or segment.trailer.crc != record.trailer_crc:
            return
        for ledger_id in segment.mentions:
            info = self.ledgers.get(ledger_id)
            if info is not None:
                self.unindex(info, record.segment)

    # -- state records ----------------------------------------------------------------------------

    def apply_record(self, record: StateRecord, number: int) -> None:
        """Apply a state record that is durable in segment `number`."""
        kind, ledger_id = record.kind, record.ledger_id
        if kind is RecordKind.DELETED:
            self._apply_deleted(ledger_id, Deleted.decode(record.value))
            return
        if kind is RecordKind.SUPERSEDED:
            self._apply_superseded(Superseded.decode(record.value))
            return
        if kind is RecordKind.DROPPED:
            return  # The start has handled these records before.
        if kind is RecordKind.REPAIRED:
            return  # Headers and footers show what is repaired; see `log_recovery`.
        info = self.ledgers.get(ledger_id)
        if info is None:
            info = self.create(ledger_id, b"", number)
        info.touched = number
        if kind is RecordKind.MASTER_KEY:
            self.tombstones.pop(ledger_id, None)
            info.master_key = self._shared(record.value)
        elif kind is RecordKind.FENCE:
            info.fenced = info.fence_queued = info.fence_durable = True
            self._fenced_in[ledger_id] = number
        elif kind is RecordKind.EXPLICIT_LAC:
            info.explicit_lac = record.value
            self._lac_in[ledger_id] = number
            if len(record.value) >= _EXPLICIT_LAC.size:
                lac = _EXPLICIT_LAC.unpack_from(record.value)[1]
                info.last_add_confirmed = max(info.last_add_confirmed, lac)

    def _apply_deleted(self, ledger_id: int, deleted: Deleted) -> None:
        if deleted.before_segment:
            self.forget_before(ledger_id, deleted.before_segment)
        else:
            self.forget(ledger_id)
        if deleted.fenced and ledger_id not in self.ledgers:
            # A copy of an earlier deletion's record comes after the record of a later deletion.
            expires_ms = deleted.time_ms + TOMBSTONE_TTL_MS
            self.tombstones[ledger_id] = max(expires_ms, self.tombstones.get(ledger_id, 0))

    # -- segments ---------------------------------------------------------------------------------

    def live_numbers(self) -> set[int]:
        """Return the numbers that the next segment's header must list.

        These are the segments that exist, and the missing ones whose loss is not repaired.
        """
        present = {
            number
            for number, segment in self.segments.items()
            if segment.state is not SegmentState.RETIRED
        }
        return present | self.lossy

    def vouchers(self) -> set[int]:
        """Return the numbers of segments that must stay because the one before has lost groups.

        Their headers show the group that the earlier segment ended with. They are neither removed
        nor compacted until the loss is repaired.
        """
        holed = self.lossy & self.segments.keys()
        if not holed:
            return set()
        return {
            number
            for before, number in pairwise(sorted(self.live_numbers()))
            if before in holed and number in self.segments
        }

    @property
    def negatives_unknown(self) -> bool:
        """Whether something was lost and is not repaired yet.

        If so, an entry that is not found may have existed.
        """
        return bool(self.lossy)
