"""Where a reader begins: by position, txid, time, sequence id, at the beginning, at the end.

Txids, times and sequence ids do not decrease along a stream, so that a place is found by halving:
first among the segments, by what their metadata says, then among the entries of one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from quire.client import Client, LedgerReader
from quire.codec.distributedlog.control_record import CreationTime, decode_control
from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.codec.distributedlog.limits import StreamFormatError
from quire.codec.distributedlog.record import Records
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import ArgumentTypeError, NoSuchLedgerError, UsageError
from quire.streams.read.records import read_entries


@dataclass(frozen=True, slots=True)
class AtTxid:
    """The first record whose txid is not less."""

    txid: int


@dataclass(frozen=True, slots=True)
class AtSequence:
    """The record with this sequence id: so many records of the stream come before it."""

    sequence: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that was appended at this time or later. Where entries do not tell the time
    (they do in streams whose txids are given, if Quire wrote them), the txid is taken for it."""

    time_ms: int


EARLIEST = "earliest"
"""The oldest record that there is."""
LATEST = "latest"
"""Behind the newest record that bookies know to be acknowledged: one that was acknowledged some
milliseconds ago may still come."""

Start = DLSN | AtTxid | AtTime | AtSequence | str
"""A DLSN is inclusive: give `position.next_slot()` to go on behind a record."""

_STARTS = f"Give {EARLIEST!r}, {LATEST!r}, a DLSN, AtTxid, AtTime or AtSequence"
PLACES = "earliest, latest, a position (5:12:3), txid:N, time:ISO or seq:N"
"""What `parse_start` understands, for messages."""


def parse_start(text: str) -> Start:
    """What a person means by a place in a stream. A time without a zone is UTC. UsageError."""
    if text in (EARLIEST, LATEST):
        return text
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "txid":
            return AtTxid(int(rest))
        if colon and kind == "seq":
            return AtSequence(int(rest))
        if colon and kind == "time":
            return AtTime(_parsed_ms(rest))
        return DLSN.parse(text)
    except (ValueError, StreamFormatError):
        raise UsageError(f"{text!r} is no place in a stream: give {PLACES}") from None


def _parsed_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000)


async def find(
    client: Client, segments: Sequence[StreamSegment], start: Start, password: bytes
) -> DLSN:
    """Return the position that `start` means now.

    A position that no longer exists, or does not exist yet, is returned unchanged: reading reports
    it. If the record may have been in a segment whose ledger is gone, the beginning of that segment
    is returned, so that reading reports the gap.
    """
    if isinstance(start, DLSN):
        return start
    check_start(start)
    oldest = oldest_position(segments)
    if start == EARLIEST:
        return oldest
    if start == LATEST:
        return await _end(client, segments, oldest, password)
    if isinstance(start, AtTxid):
        wanted = start.txid
        return await _search(
            client, segments, oldest, password,
            lambda segment: segment.last_txid < wanted,
            lambda segment, records, at: records.txids[at] < wanted,
        )  # fmt: skip
    if isinstance(start, AtTime):
        time_ms = start.time_ms
        return await _search(
            client, segments, oldest, password,
            lambda segment: segment.completion_time_ms < time_ms,
            lambda segment, records, at: _time_ms(records, at) < time_ms,
        )  # fmt: skip
    if isinstance(start, AtSequence):
        number = start.sequence
        return await _search(
            client, segments, oldest, password,
            lambda segment: segment.following_sequence_id <= number,
            lambda segment, records, at: segment.sequence_id(records.positions[at]) < number,
        )  # fmt: skip
    raise AssertionError("unreachable: `check_start` has refused it")  # pragma: no cover


def check_start(start: Start) -> None:
    """Check that `start` is a place to begin.

    Raises:
        UsageError: There is no such place. ArgumentTypeError, if the type is wrong.
    """
    if isinstance(start, str):
        if start not in (EARLIEST, LATEST):
            raise UsageError(f"{start!r} is no place to begin", remedy=_STARTS)
    elif not isinstance(start, DLSN | AtTxid | AtTime | AtSequence):
        raise ArgumentTypeError(
            f"{type(start).__name__} is no type of a place to begin", remedy=_STARTS
        )


def check_position(position: DLSN) -> None:
    """Raise ArgumentTypeError unless it is a position in a stream."""
    if not isinstance(position, DLSN):
        raise ArgumentTypeError(
            f"a position is a DLSN, not {type(position).__name__}",
            remedy="Use the `position` of a record, or DLSN.parse(text)",
        )


def oldest_position(segments: Sequence[StreamSegment]) -> DLSN:
    """Behind all that was truncated."""
    for segment in segments:
        if segment.truncation is Truncation.PARTIAL:
            return segment.min_active_dlsn
        if segment.truncation is not Truncation.TRUNCATED:
            return segment.first_dlsn
    return segments[-1].last_dlsn.next_segment() if segments else INITIAL_DLSN


async def last_entry(
    client: Client, segment: StreamSegment, password: bytes
) -> tuple[int, Records] | None:
    """(id, records) of the last acknowledged entry of a segment with records that applications
    see, or that end the stream; None if there is none."""
    async with await client.open_ledger(segment.ledger_id, password=password) as reader:
        upcoming = reader.last_add_confirmed
        while upcoming >= 0:
            [(entry_id, records)] = await read_entries(reader, segment, upcoming, upcoming)
            if records.user_count or records.end_of_stream is not None:
                return entry_id, records
            upcoming -= 1
    return None


async def _end(
    client: Client, segments: Sequence[StreamSegment], oldest: DLSN, password: bytes
) -> DLSN:
    for segment in reversed(segments):
        try:
            found = await last_entry(client, segment, password)
        except NoSuchLedgerError:
            given_up = segment.truncation is Truncation.TRUNCATED
            if segment.in_progress or given_up or not segment.record_count:
                continue
            return segment.first_dlsn.next_segment()
        if found is not None:
            entry_id, records = found
            return DLSN(segment.lssn, entry_id, records.slots[-1]).next_slot()
    return oldest


async def _search(
    client: Client,
    segments: Sequence[StreamSegment],
    oldest: DLSN,
    password: bytes,
    segment_is_before: Callable[[StreamSegment], bool],
    record_is_before: Callable[[StreamSegment, Records, int], bool],
) -> DLSN:
    end = oldest
    lost: DLSN | None = None
    """The beginning of a segment without a ledger, in which the record may have been."""
    for segment in segments:
        if segment.truncation is Truncation.TRUNCATED:
            continue  # its ledger may be gone
        if not (segment.in_progress or segment.lost) and segment_is_before(segment):
            end, lost = segment.last_dlsn.next_slot(), None
            continue
        try:
            async with await client.open_ledger(segment.ledger_id, password=password) as reader:
                found = await search_segment(reader, segment, record_is_before)
                first = await search_segment(reader, segment, lambda *_: False) if lost else None
        except NoSuchLedgerError:
            lost = segment.first_dlsn if lost is None else lost
            continue
        if found is not None:
            return lost if lost is not None and found == first else found
        if first is not None:
            lost = None  # the record comes later than this segment
        end = DLSN(segment.lssn, reader.last_add_confirmed + 1, 0)
    return end if lost is None else lost


async def search_segment(
    reader: LedgerReader,
    segment: StreamSegment,
    is_before: Callable[[StreamSegment, Records, int], bool],
) -> DLSN | None:
    """The first record of the segment that is not before; None if there is none yet."""
    low, high = 0, reader.last_add_confirmed + 1
    best: DLSN | None = None
    while low < high:
        middle = (low + high) // 2
        # Entries without records for applications say nothing: look at the next that has some.
        at, records = middle, None
        while at < high:
            [(_, records)] = await read_entries(reader, segment, at, at)
            if records.user_count:
                break
            at += 1
        if at == high or records is None:
            high = middle
            continue
        users = [k for k, flags in enumerate(records.flags) if not flags]
        if is_before(segment, records, users[-1]):
            low = at + 1
        else:
            first = next(k for k in users if not is_before(segment, records, k))
            best = DLSN(segment.lssn, at, records.slots[first])
            high = middle
    return best


def creation_time_ms(records: Records, at: int) -> int | None:
    """When record `at` was appended, as the entry tells; None: it does not."""
    time_ms: int | None = None
    for index, payload in records.controls():
        if index < at:
            for item in decode_control(payload):
                if isinstance(item, CreationTime):
                    time_ms = item.time_ms
    return time_ms


def _time_ms(records: Records, at: int) -> int:
    told = creation_time_ms(records, at)
    return records.txids[at] if told is None else told
