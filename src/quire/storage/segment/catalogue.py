"""What the store knows: its ledgers, its segments, and which deleted ledgers stay refused.

The log is the truth; this is rebuilt from it at a start by `apply_record` and `index`, in the order
of the log."""

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
    decode_segment_value,
)
from quire.storage.segment import sealed_rows
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.segment import LedgerInfo, LedgerPart, LogSegment, SegmentState

TOMBSTONE_TTL_MS = 7 * 24 * 3600 * 1000
"""How long a ledger that was fenced and then deleted stays refused."""
VOUCHES = "its header tells what is lost of the segment before it, as long as that is missed"

_EXPLICIT_LAC = struct.Struct(">qq")  # ledger id, LAC: the head of the packet


class Catalogue:
    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerInfo] = {}
        self.segments: dict[int, LogSegment] = {}
        self.tombstones: dict[int, int] = {}
        """Fenced and then deleted: ledger id -> when it may be forgotten (calendar, ms)."""
        self.missing: set[int] = set()
        """Segments that should exist and do not."""
        self.repaired_before = 0
        """What was lost in segments before this one is not missed any more."""
        self._last_key = b""

    # -- ledgers ----------------------------------------------------------------------------------

    def create(self, ledger_id: int, master_key: bytes, touched: int) -> LedgerInfo:
        info = LedgerInfo(ledger_id, self._shared(master_key), touched)
        self.ledgers[ledger_id] = info
        return info

    def _shared(self, master_key: bytes) -> bytes:
        """Most ledgers of a cluster have one password, and so one key: one object will do."""
        if master_key != self._last_key:
            self._last_key = master_key
        return self._last_key

    def index(self, run: Run, segment: LogSegment, info: LedgerInfo) -> None:
        """A run whose `batch` is set, behind all that were indexed before."""
        part = info.tail
        if part is None or part.segment is not segment:
            part = self.new_part(info, segment, run.first)
        part.add(run)
        info.last_entry_id = max(info.last_entry_id, run.last)

    def index_batch(self, batch: LogBatch, segment: LogSegment) -> None:
        """All of a batch of adds. `KeyError`: it names a ledger that is not here; what stands
        before that is indexed."""
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
        part = LedgerPart(segment, info.ledger_id, first)
        segment.parts[info.ledger_id] = part
        segment.live_ledgers += 1
        info.open_parts += (part,)
        info.tail = part
        info.touched = segment.number
        return part

    def index_sealed(self, summary: Summary, segment: LogSegment) -> None:
        """All ledgers of a sealed segment."""
        columns = zip(
            summary.ledger_ids, summary.firsts, summary.lasts, summary.last_add_confirmeds,
            summary.size_bytes,
        )  # fmt: skip
        for ledger_id, first, last, last_add_confirmed, size in columns:
            info = self.ledgers.get(ledger_id)
            if info is None:
                # Its master key was lost with another segment.
                info = self.create(ledger_id, b"", segment.number)
            info.touched = segment.number
            info.add_sealed(segment.number, first, last, size)
            info.last_entry_id = max(info.last_entry_id, last)
            info.last_add_confirmed = max(info.last_add_confirmed, last_add_confirmed)
        segment.live_ledgers = len(summary.ledger_ids)
        segment.payload_bytes = segment.live_bytes = sum(summary.size_bytes)

    def restore(self, ledgers: Iterable[CachedLedger]) -> None:
        """Ledgers as an index cache has them; the segments of their rows are there."""
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
        """Nothing is known any more: a start begins anew."""
        self.ledgers.clear()
        self.segments.clear()
        self.tombstones.clear()
        self.missing.clear()
        self.repaired_before = 0

    def forget(self, ledger_id: int) -> LedgerInfo | None:
        """The ledger is deleted: what it has in the segments is dead."""
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
        """What the ledger has in segments before `number` is dead; where something newer is known
        of it, it was created again since."""
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

    def unindex(self, info: LedgerInfo, number: int) -> None:
        """What the ledger has in this sealed segment is dead."""
        if info.lives_in(number):
            segment = self.segments[number]
            segment.live_ledgers -= 1
            segment.live_bytes -= info.remove_sealed(number)

    def _apply_superseded(self, record: Superseded) -> None:
        """A crash came between a compaction and the removal of what it had copied. Where it is not
        known whether this is the file that it had copied, its entries are there twice."""
        segment = self.segments.get(record.segment)
        if segment is None or segment.trailer is None or segment.trailer.crc != record.trailer_crc:
            return
        for ledger_id in segment.mentions:
            info = self.ledgers.get(ledger_id)
            if info is not None:
                self.unindex(info, record.segment)

    # -- state records ----------------------------------------------------------------------------

    def apply_record(self, record: StateRecord, number: int) -> None:
        """A record that is durable in segment `number`."""
        kind, ledger_id = record.kind, record.ledger_id
        if kind is RecordKind.DELETED:
            self._apply_deleted(ledger_id, Deleted.decode(record.value))
            return
        if kind is RecordKind.REPAIRED:
            self.repaired_before = max(self.repaired_before, decode_segment_value(record.value))
            return
        if kind is RecordKind.SUPERSEDED:
            self._apply_superseded(Superseded.decode(record.value))
            return
        if kind is RecordKind.DROPPED:
            return  # The start has looked at these before.
        info = self.ledgers.get(ledger_id)
        if info is None:
            info = self.create(ledger_id, b"", number)
        info.touched = number
        if kind is RecordKind.MASTER_KEY:
            self.tombstones.pop(ledger_id, None)
            info.master_key = self._shared(record.value)
        elif kind is RecordKind.FENCE:
            info.fenced = info.fence_queued = info.fence_durable = True
        elif kind is RecordKind.EXPLICIT_LAC:
            info.explicit_lac = record.value
            if len(record.value) >= _EXPLICIT_LAC.size:
                lac = _EXPLICIT_LAC.unpack_from(record.value)[1]
                info.last_add_confirmed = max(info.last_add_confirmed, lac)

    def _apply_deleted(self, ledger_id: int, deleted: Deleted) -> None:
        if deleted.before_segment:
            self.forget_before(ledger_id, deleted.before_segment)
        else:
            self.forget(ledger_id)
        if deleted.fenced and ledger_id not in self.ledgers:
            self.tombstones[ledger_id] = deleted.time_ms + TOMBSTONE_TTL_MS

    # -- segments ---------------------------------------------------------------------------------

    def live_numbers(self) -> set[int]:
        """What the next segment's header must name: those that exist, and those that should."""
        present = {
            number
            for number, segment in self.segments.items()
            if segment.state is not SegmentState.RETIRED
        }
        return present | {n for n in self.missing if n >= self.repaired_before}

    def vouchers(self) -> set[int]:
        """Segments whose headers tell with which group those before them ended, of which some are
        lost: they stay what they are until that is not missed any more."""
        if not any(map(self._is_missed, self.segments)):
            return set()
        return {
            number
            for before, number in pairwise(sorted(self.live_numbers()))
            if self._is_missed(before) and number in self.segments
        }

    def _is_missed(self, number: int) -> bool:
        """Whether something of this segment was lost, and has not been repaired."""
        segment = self.segments.get(number)
        return segment is not None and segment.lost_groups > 0 and number >= self.repaired_before

    @property
    def negatives_unknown(self) -> bool:
        """Whether something was lost, so that absence proves nothing."""
        return any(number >= self.repaired_before for number in self.missing) or any(
            map(self._is_missed, self.segments)
        )
