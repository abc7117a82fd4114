"""Looking at the records of a stream, for people.

This differs from `StreamReader` in two ways. It changes nothing: a ledger is read up to its LAC and
is never recovered or fenced. And it does not end at an entry or a record that cannot be read: the
entry is yielded with the reason, and the records after it follow.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from quire.client import Client, LedgerReader
from quire.client.read.outcomes import BATCHED_AT_ONCE, outcomes
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import Records
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.codec.entry.entry import Entry
from quire.errors import NoSuchLedgerError, QuireError, ReadError, StreamError
from quire.streams.read.positions import oldest_position
from quire.streams.read.records import Gap, Record, RecordBatch, decode, lacks_end
from quire.streams.read.statistics import (
    SegmentStatistics,
    before_end,
    records_from,
    segment_statistics,
)


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """An entry whose records cannot be shown, or a single record that cannot be shown."""

    position: DLSN
    """The position of the record, or the first position in an entry that cannot be shown."""
    error: QuireError
    """The reason. Its causes name what is wrong with each replica."""


Peeked = Record | Gap | UnreadableEntry


async def peek(
    client: Client,
    segments: Sequence[StreamSegment],
    start: DLSN,
    password: bytes = b"",
    at_once: int = BATCHED_AT_ONCE,
) -> AsyncGenerator[tuple[Peeked, DLSN], None]:
    """Yield what a stream has from a position on, each item with the position after it.

    An item is an acknowledged record, a gap for records that were truncated or lost, such as those
    of a ledger that does not exist, or an UnreadableEntry for an entry or a record that cannot be
    read or decoded. The last record is the last one that is acknowledged now. Cancel-safe. Raises
    the other errors of opening ledgers.

    Args:
        client: The client of the cluster.
        segments: All segments of the stream.
        start: The first position.
        password: The password of the ledgers.
        at_once: The largest number of entries that are requested at a time.
    """
    at = start
    for number, segment in enumerate(segments):
        if segment.lssn < at.lssn:
            continue
        if _is_before(segment, at):
            at = segment.first_dlsn.next_segment()
            continue
        first = segment.first_dlsn
        if segment.truncation is Truncation.TRUNCATED:
            gap = Gap("truncated", at, oldest_position(segments[number:]))
        else:
            if segment.truncation is Truncation.PARTIAL:
                first = segment.min_active_dlsn
            truncated = number == 0 or at.lssn == segment.lssn
            gap = Gap("truncated" if truncated else "lost", at, first)
        if at < gap.behind:
            at = gap.behind
            yield gap, at
        if segment.lssn < at.lssn:
            continue
        try:
            reader = await client.open_ledger(segment.ledger_id, password=password)
            async with reader, aclosing(_records_of(reader, segment, at, at_once)) as records:
                async for found, at in records:
                    yield found, at
        except NoSuchLedgerError:
            behind = segment.first_dlsn.next_segment()
            yield Gap("lost", at, behind), behind
        if not segment.in_progress:
            at = max(at, segment.first_dlsn.next_segment())


def _is_before(segment: StreamSegment, at: DLSN) -> bool:
    """Return whether the position is after the last record of a completed segment."""
    if segment.in_progress or segment.lssn != at.lssn:
        return False
    return at > max(segment.last_dlsn, segment.first_dlsn)


async def _records_of(
    reader: LedgerReader, segment: StreamSegment, at: DLSN, at_once: int
) -> AsyncGenerator[tuple[Peeked, DLSN], None]:
    """Yield what is in the ledger of one segment from a position on, up to the LAC."""
    first, last = at.entry_id if at.lssn == segment.lssn else 0, reader.last_add_confirmed
    closed = reader.ledger_closed  # it may be closed at a later entry while it is read
    async with aclosing(outcomes(reader, first, last, at_once)) as entries:
        async for entry_id, entry in entries:
            here, following = DLSN(segment.lssn, entry_id, 0), DLSN(segment.lssn, entry_id + 1, 0)
            try:
                records = _decoded(segment, entry_id, entry)
            except (ReadError, StreamError) as error:
                yield UnreadableEntry(here, error), following
                continue
            batch = RecordBatch(segment, entry_id, records.users())
            for index, slot in enumerate(batch.records.slots):
                position = DLSN(segment.lssn, entry_id, slot)
                if position < at:
                    continue
                found: Peeked
                try:
                    found = batch.record(index)
                except StreamError as error:
                    found = UnreadableEntry(position, error)
                yield found, position.next_slot()
    if lacks_end(segment, last):
        following = segment.first_dlsn.next_segment()
        if closed:
            yield Gap("lost", max(at, DLSN(segment.lssn, last + 1, 0)), following), following
        else:
            yield _not_closed(segment, last), following


def _decoded(segment: StreamSegment, entry_id: int, entry: Entry | ReadError) -> Records:
    if isinstance(entry, ReadError):
        raise entry
    return decode(segment, entry_id, bytes(entry.payload))


def _not_closed(segment: StreamSegment, last: int) -> UnreadableEntry:
    error = ReadError(
        f"the last entries of segment {segment.lssn}, from entry {last + 1} to "
        f"{segment.last_entry_id} of ledger {segment.ledger_id}, cannot be shown: the segment is "
        "completed, but its writer died before it closed the ledger",
        ledger_id=segment.ledger_id,
        entry_id=last + 1,
        remedy="A reader of the stream recovers and closes the ledger. This view never does",
    )
    return UnreadableEntry(DLSN(segment.lssn, last + 1, 0), error)


async def position_before_end(
    client: Client,
    segments: Sequence[StreamSegment],
    count: int,
    password: bytes = b"",
    end: DLSN | None = None,
) -> DLSN | None:
    """Return the position of the `count`-th acknowledged record before a position of the stream.

    Without `end`, the records are counted from the end of the stream. Only the last segments before
    the end are read, until they have `count` records. If there are fewer records, the result is the
    position of the oldest one, and None if there are none. Control records do not count, but the
    result may be the beginning of a segment, where they come before the first record. If nothing
    but a segment whose ledger is gone comes before `end`, the result is the beginning of that
    segment, so that reading reports the gap.
    """
    facts: list[SegmentStatistics] = []
    later = 0
    for segment in reversed(segments):
        if end is not None and segment.first_dlsn >= end:
            continue
        facts[:0] = await segment_statistics(client, [segment], password)
        if end is not None and len(facts) == 1:
            later = await records_from(client, facts, end, password)
            count += later
        if sum(fact.records for fact in facts) >= count:
            break
    if sum(fact.records for fact in facts) <= later and not any(fact.lost for fact in facts):
        return None  # only control records come before
    found = await before_end(client, facts, count, password)
    return found if found is None or end is None or found < end else None
