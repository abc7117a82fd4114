"""What is in a stream: how many records and bytes, segment by segment, and counting from its end.

Completed segments say it in the metadata; of the one in progress the last acknowledged entry does.
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
    segment: StreamSegment
    records: int
    """Acknowledged ones; those before a point of truncation count."""
    size_bytes: int
    """Of its ledger, as far as it is known."""
    last: DLSN | None
    """Of its last record; None if it has none."""
    last_txid: int | None
    ctime_ms: int
    """When its ledger was made; -1: not known."""
    lost: bool = False
    """Its ledger is gone, and nobody gave it up."""

    @property
    def truncated(self) -> bool:
        return self.segment.truncation is Truncation.TRUNCATED

    @property
    def ended(self) -> bool:
        """Whether the stream ends with this segment."""
        return not self.segment.in_progress and self.segment.last_txid == MAX_TXID

    def described(self) -> dict[str, Any]:
        """Return what tables and JSON say of a segment. What is not known, or does not exist, is
        None."""
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
    """Of each segment. Raises what ledgers raise; one that is gone is told. Cancel-safe."""

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
    """How many acknowledged records of the stream lie at the position or behind it."""
    position = max(position, oldest_position([fact.segment for fact in facts]))
    count = 0
    for fact in facts:
        lssn = fact.segment.lssn
        if fact.truncated or fact.lost or lssn < position.lssn:
            continue
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
    """The position of the `count`-th record from the end of what is acknowledged, or of the oldest
    one if there are fewer. No record before a lost segment counts. Where nothing follows a lost
    segment it is the beginning of that segment, so that whoever reads is told.
    None: of a stream without records, or for a count of 0."""
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


async def _numbered(
    client: Client, segment: StreamSegment, number: int, password: bytes
) -> DLSN | None:
    """The position of a segment's `number`-th record."""
    async with await client.open_ledger(segment.ledger_id, password=password) as reader:
        return await search_segment(
            reader, segment, lambda _, records, at: records.positions[at] < number
        )
