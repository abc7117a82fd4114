"""The number of records and bytes in a stream, by segment, and counting from the end of the stream.

For completed segments these numbers are in the metadata. For the segment in progress they are in
its last acknowledged entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import MAX_TXID
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import NoSuchLedgerError
from quire.streams.read.positions import oldest_position, search_segment
from quire.streams.read.records import decode, read_entries


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """The size and the positions of one segment."""

    segment: StreamSegment
    records: int
    """The number of acknowledged records, including those before a truncation point."""
    size_bytes: int
    """The number of payload bytes in the segment's ledger, or 0 if the ledger is gone."""
    last: DLSN | None
    """The position of the last acknowledged record, or None if there is none. If another writer
    completed the segment in a takeover, it may be that of a control record after it."""
    last_txid: int | None
    """The txid of the record at `last`, or None if there is none."""
    ctime_ms: int
    """The Unix time in milliseconds at which the ledger was created, or -1 if it is unknown."""
    lost: bool = False
    """Whether the ledger is gone although the segment was not truncated."""

    @property
    def truncated(self) -> bool:
        """Whether the whole segment was truncated."""
        return self.segment.truncation is Truncation.TRUNCATED

    @property
    def ended(self) -> bool:
        """Whether the stream ends with this segment."""
        return not self.segment.in_progress and self.segment.last_txid == MAX_TXID

    def described(self) -> dict[str, Any]:
        """Return what tables and JSON print about a segment. None means unknown or absent."""
        segment = self.segment
        state = "in progress" if segment.in_progress else "completed"
        partial = segment.truncation is Truncation.PARTIAL
        return {
            "state": "lost" if self.lost else "truncated" if self.truncated else state,
            "records": self.records,
            "bytes": self.size_bytes,
            "first_sequence": segment.first_sequence_id if segment.first_sequence_id >= 0 else None,
            "first": str(segment.min_active_dlsn if partial else segment.first_dlsn),
            "last": None if self.last is None else str(self.last),
            "first_txid": segment.first_txid if segment.first_txid != MAX_TXID else None,
            "last_txid": self.last_txid if self.last_txid != MAX_TXID else None,
        }


async def segment_statistics(
    client: Client, segments: Sequence[StreamSegment], password: bytes = b""
) -> list[SegmentStatistics]:
    """Return the statistics of each segment, in order.

    A ledger that is gone is reported in the result. Other errors of ledgers are raised.
    Cancel-safe.
    """

    async def facts(segment: StreamSegment) -> SegmentStatistics:
        try:
            if segment.in_progress:
                return await _of_open(client, segment, password)
            ledger = await client.ledger_metadata(segment.ledger_id)
            size_bytes, ctime_ms, lost = ledger.length, ledger.ctime_ms, False
        except NoSuchLedgerError:
            size_bytes, ctime_ms = 0, -1
            lost = segment.truncation is not Truncation.TRUNCATED
        return SegmentStatistics(
            segment,
            0 if segment.in_progress else segment.known_records,
            size_bytes,
            segment.last_dlsn if segment.known_records and not segment.in_progress else None,
            segment.last_txid if segment.known_records and not segment.in_progress else None,
            ctime_ms,
            lost,
        )

    return await each(segments, facts)


async def _of_open(client: Client, segment: StreamSegment, password: bytes) -> SegmentStatistics:
    async with await client.open_ledger(segment.ledger_id, password=password) as reader:
        upcoming, size_bytes, ctime_ms = reader.last_add_confirmed, 0, reader.metadata.ctime_ms
        while upcoming >= 0:
            entry = await reader.read_entry(upcoming)
            size_bytes = size_bytes or entry.ledger_length
            users = decode(segment, upcoming, bytes(entry.payload)).users()
            if len(users):
                last = DLSN(segment.lssn, upcoming, users.slots[-1])
                return SegmentStatistics(
                    segment, users.positions[-1], size_bytes, last, users.txids[-1], ctime_ms
                )
            upcoming -= 1
    return SegmentStatistics(segment, 0, size_bytes, None, None, ctime_ms)


async def records_from(
    client: Client, facts: Sequence[SegmentStatistics], position: DLSN, password: bytes = b""
) -> int:
    """Return the number of acknowledged records of the stream from a position on.

    Truncated and lost records are not counted.
    """
    position = max(position, oldest_position([fact.segment for fact in facts]))
    count = 0
    for fact in facts:
        lssn = fact.segment.lssn
        if fact.truncated or fact.lost or lssn < position.lssn:
            continue
        if lssn == position.lssn and fact.last is not None and position > fact.last:
            continue  # after the last record of the segment, so nothing has to be read
        count += fact.records
        if lssn == position.lssn and position > fact.segment.first_dlsn:
            count -= await _records_before(client, fact, position, password)
    return count


async def _records_before(
    client: Client, fact: SegmentStatistics, position: DLSN, password: bytes
) -> int:
    segment = fact.segment
    async with await client.open_ledger(segment.ledger_id, password=password) as reader:
        for entry_id in range(position.entry_id, reader.last_add_confirmed + 1):
            [(_, records)] = await read_entries(reader, segment, entry_id, entry_id)
            users = records.users()
            for slot, number in zip(users.slots, users.positions):
                if DLSN(segment.lssn, entry_id, slot) >= position:
                    return number - 1
    return fact.records


async def before_end(
    client: Client, facts: Sequence[SegmentStatistics], count: int, password: bytes = b""
) -> DLSN | None:
    """Return the position of the `count`-th acknowledged record from the end of the stream.

    If that record is the first one of a segment, it is the beginning of the segment, where control
    records may come before the record. Control records at the end do not count. If there are fewer
    records, it is the position of the oldest one. Records before a lost segment do not count. If
    nothing follows a lost segment, its beginning is returned, so that a reader reports the loss.
    Returns None for a stream without records, and for a count of 0.
    """
    oldest = oldest_position([fact.segment for fact in facts])
    found: DLSN | None = None
    for fact in reversed(facts):
        if count <= 0 or fact.truncated:
            break
        if fact.lost:
            found = found or fact.segment.first_dlsn
            break
        if not fact.records:
            continue
        if count >= fact.records:
            found = fact.segment.first_dlsn
        else:
            found = await _numbered(client, fact.segment, fact.records - count + 1, password)
        count -= fact.records
    return None if found is None else max(found, oldest)


async def _numbered(client: Client, segment: StreamSegment, number: int, password: bytes) -> DLSN:
    """Return the position of a segment's `number`-th record, counted from 1.

    If the record is after the last entry that is known to be acknowledged, it is the next entry.
    """
    async with await client.open_ledger(segment.ledger_id, password=password) as reader:
        following = DLSN(segment.lssn, reader.last_add_confirmed + 1, 0)
        found = await search_segment(
            reader, segment, lambda _, __, records, at: records.positions[at] < number
        )
        return following if found is None else found
