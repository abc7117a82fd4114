"""The one segment that a writer has open: drafts become entries of its ledger."""

from __future__ import annotations

from collections import deque

from quire.client import LedgerWriter
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import MAX_TXID
from quire.codec.distributedlog.record import (
    CONTROL_PAYLOAD,
    control_record,
    encode_records,
    end_of_stream_record,
)
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.wire.v2 import Buffer
from quire.streams.write.drafts import Draft


class SegmentWriter:
    """Numbers records, remembers what is under way, and knows the segment's last record."""

    def __init__(
        self,
        segment: StreamSegment,
        ledger: LedgerWriter,
        compression: Compression,
        start_sequence: int,
        due_s: float,
    ) -> None:
        """`due_s`: when it is to be rolled, by the event loop's time."""
        self.segment = segment
        self.start_sequence = start_sequence
        self.due_s = due_s
        self.ledger = ledger
        self._compression = compression
        self.in_flight: deque[Draft] = deque()
        self._sent_position = 0
        self._sent_txid = segment.first_txid
        self.count = 0
        """Records in acknowledged entries."""
        self.last_txid = segment.first_txid
        self.last = DLSN(segment.lssn, -1, -1)
        """The last record in an acknowledged entry; control records left out."""
        self.failed = False
        """The ledger took no more: what is under way tells why."""
        self.used = False
        """More than control records was sent."""
        self.invisible = False
        """The last entry sent has records: readers learn of it with the next entry only."""

    def send(self, draft: Draft) -> None:
        """Hand the draft to the ledger. Raises what the ledger raises; then it was not sent."""
        parts: list[Buffer] = []
        size, first, position = 0, 0, self._sent_position
        txid = self._sent_txid
        for at, payload in [*draft.marks, (len(draft), b"")]:
            if at > first:
                more, more_bytes = encode_records(
                    draft.payloads[first:at], draft.txids[first:at], position + 1
                )
                parts.extend(more)
                size += more_bytes
                position += at - first
                txid, first = draft.txids[at - 1], at
            if payload:
                record = control_record(position, txid, payload)
                parts.append(record)
                size += len(record)
        if draft.ends:
            record = end_of_stream_record(position)
            parts.append(record)
            size += len(record)
        draft.entry_id = self.ledger.submit(wrap(parts, size, self._compression))
        draft.lssn = self.segment.lssn
        self._sent_position, self._sent_txid = position, txid
        self.invisible = not draft.control
        self.used |= not draft.control
        self.in_flight.append(draft)

    def send_control(self, payload: bytes = CONTROL_PAYLOAD) -> None:
        """An entry without records, from which bookies learn that the one before is acknowledged
        (DistributedLog spec, 4.2). Raises as `send` does."""
        draft = Draft(0)
        draft.control = True
        draft.mark(payload)
        self.send(draft)

    async def acknowledged(self) -> list[Draft]:
        """Wait for the oldest entry under way; it, and all others that are acknowledged with it.
        Raises what ended the ledger. Cancel-safe."""
        await self.ledger.wait(self.in_flight[0].entry_id)
        return self.acknowledged_through(self.ledger.last_add_confirmed)

    def acknowledged_through(self, entry_id: int) -> list[Draft]:
        """Those under way up to this entry; they are no more."""
        drafts: list[Draft] = []
        while self.in_flight and self.in_flight[0].entry_id <= entry_id:
            draft = self.in_flight.popleft()
            drafts.append(draft)
            if len(draft):
                self.count += len(draft)
                self.last_txid = draft.txids[-1]
                self.last = draft.position(len(draft) - 1)
            if draft.ends:
                self.last_txid = MAX_TXID
                self.last = draft.position(len(draft))
        return drafts

    def completed(self, completion_time_ms: int) -> StreamSegment:
        """The segment as it is once all its entries are acknowledged and its ledger is closed."""
        return self.segment.completed(
            last_txid=self.last_txid,
            record_count=self.count,
            last_entry_id=self.last.entry_id,
            last_slot_id=self.last.slot_id,
            completion_time_ms=completion_time_ms,
            start_sequence_id=self.start_sequence,
        )

    def lost(self, completion_time_ms: int) -> StreamSegment:
        """Return the lost segment that replaces this one when its ledger is gone. Records in
        progress go into the next segment, with the same sequence ids."""
        return self.segment.completed_as_lost(
            last_txid=self.last_txid,
            record_count=self.count,
            completion_time_ms=completion_time_ms,
            start_sequence_id=self.start_sequence,
        )
