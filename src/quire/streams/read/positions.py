"""The places where a reader can begin: a position, txid, time or sequence id, or either end.

Txids, times and sequence ids do not decrease along a stream. A place is therefore found by binary
search: first among the segments, by their metadata, and then among the entries of one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from quire.client import Client, LedgerReader
from quire.codec.distributedlog.control_record import CreationTime
from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.codec.distributedlog.limits import MAX_TXID, StreamFormatError
from quire.codec.distributedlog.record import Records
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import ArgumentTypeError, NoSuchLedgerError, UsageError, whole_number
from quire.streams.read.records import control_items, lacks_end, read_entries

TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999 as a Unix time in milliseconds.

A larger txid is not a time, whatever the settings say.
"""


@dataclass(frozen=True, slots=True)
class AtTxid:
    """A start at the first record whose txid is at least this one."""

    txid: int
    """The transaction id."""


@dataclass(frozen=True, slots=True)
class AtSequence:
    """A start at the record with this sequence id."""

    sequence: int
    """The sequence id, which is the number of records of the stream before the record."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """A start at the first record that was appended at this time or later.

    If the stream assigns txids by time, the txid of a record is its time. Otherwise Quire's writers
    store the time in each entry. If an entry contains no time, its txids count as times. Txids that
    are too low for that (before September 2001) do not: the completion of the segment counts then,
    and records of the segment in progress count as later than any time.
    """

    time_ms: int
    """The time in milliseconds since 1970, UTC."""


EARLIEST = "earliest"
"""The start at the oldest record that still exists."""
LATEST = "latest"
"""The start after the newest record that bookies know to be acknowledged.

A record that was acknowledged some milliseconds ago may still be delivered.
"""

Start = DLSN | AtTxid | AtTime | AtSequence | str
"""A place where a reader begins.

A DLSN is inclusive: pass `position.next_slot()` to continue after a record.
"""

IsBefore = Callable[[StreamSegment, int, Records, int], bool]
"""Whether a record is before a place. Its arguments are the segment of the record, the id and the
records of its entry, and the index of the record in them."""

_STARTS = f"Use {EARLIEST!r}, {LATEST!r}, a DLSN, AtTxid, AtTime or AtSequence"
TIME_TXID_MIN = 10**12
"""The lowest txid that can be the time of an append: in September 2001, before there were streams.
"""
PLACES = "earliest, latest, a position (5:12:3), txid:N, time:ISO or seq:N"
"""The forms that `parse_start` accepts, for messages."""


def parse_start(text: str, *, end: bool = False) -> Start:
    """Parse a place in a stream that a user typed.

    Streams know the millisecond of an append. A time between two milliseconds becomes the earlier
    one, or the later one for an end, so that no record of that millisecond is left out.

    Args:
        text: One of the forms in `PLACES`. A time without a zone is UTC.
        end: Whether the place is the end of what is read, instead of the start.

    Returns:
        The place.

    Raises:
        UsageError: The text has another form, or a number in it is negative.
    """
    if text in (EARLIEST, LATEST):
        return text
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "txid":
            return AtTxid(_not_negative(int(rest)))
        if colon and kind == "seq":
            return AtSequence(_not_negative(int(rest)))
        if colon and kind == "time":
            return AtTime(_parsed_ms(rest, end))
        position = DLSN.parse(text)
        if colon:  # Other programs store such positions as Base64.
            _not_negative(min(position.lssn, position.entry_id, position.slot_id))
        return position
    except (ValueError, StreamFormatError):
        raise UsageError(f"{text!r} is not a place in a stream. Use {PLACES}") from None


def _not_negative(number: int) -> int:
    if number < 0:
        raise ValueError("a position, a txid and a sequence id are never negative")
    return number


def _parsed_ms(text: str, end: bool) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    millisecond = timedelta(milliseconds=1)
    return -(-since // millisecond) if end else since // millisecond


def place_text(place: Start) -> str:
    """Return a place in the form in which a user types it."""
    match place:
        case AtSequence():
            return f"seq:{place.sequence}"
        case AtTxid():
            return f"txid:{place.txid}"
        case AtTime():
            try:
                # A float of so many milliseconds would not be exact.
                moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=place.time_ms)
                return f"time:{moment.isoformat()}"
            except OverflowError:  # in UTC, it is not in the years 1 to 9999
                return f"the time {place.time_ms:,} ms after 1970"
        case _:
            return str(place)


def check_order(start: Start, end: Start | None) -> None:
    """Check that an end is not before the start, if that can be known without the stream.

    It is known for two places of the same kind, and for `EARLIEST`. Equal places are valid, because
    programs that continue where they stopped produce them.

    Args:
        start: The place at which reading would begin.
        end: The place before which it would end, or None for no end.

    Raises:
        UsageError: Nothing could be read, whatever the stream contains.
    """
    match start, end:
        case DLSN(), DLSN():
            wrong = end < start
        case AtTxid(), AtTxid():
            wrong = end.txid < start.txid
        case AtSequence(), AtSequence():
            wrong = end.sequence < start.sequence
        case AtTime(), AtTime():
            wrong = end.time_ms < start.time_ms
        case _:
            wrong = end == EARLIEST != start
    if wrong:
        assert end is not None
        raise UsageError(
            f"the end {place_text(end)} is before the start {place_text(start)}, so that nothing "
            "can be read",
            remedy="Exchange them, or choose another end",
        )


async def find(
    client: Client, segments: Sequence[StreamSegment], start: Start, password: bytes
) -> DLSN:
    """Return the position at which a reader with this start would begin now.

    A position that no longer exists, or does not exist yet, is returned unchanged: reading reports
    it. If the record may have been in a segment whose ledger is gone, the beginning of that segment
    is returned, so that reading reports the gap. If it may have been in the lost end of a ledger,
    the position after the last entry that is left is returned, for the same reason.

    Args:
        client: The client of the cluster.
        segments: All segments of the stream.
        start: The place to find.
        password: The password of the ledgers.

    Returns:
        The position.

    Raises:
        UsageError: `start` is not a valid start.
        UnauthorizedError: The password is wrong.
        ReadError: Too few bookies answer to read an entry of the search.
        StreamDamagedError: An entry cannot be decoded.
        LaterStreamError: A later version wrote an entry.
        MetadataError: The metadata store does not answer or refuses this client, or the metadata of
            a ledger cannot be decoded.
    """
    if isinstance(start, DLSN):
        return start
    start = checked_start(start)
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
            lambda _, __, records, at: records.txids[at] < wanted,
        )  # fmt: skip
    if isinstance(start, AtTime):
        time_ms = start.time_ms
        return await _search(
            client, segments, oldest, password,
            lambda segment: _is_before_time(segment, time_ms),
            lambda *place: _time_ms(*place) < time_ms,
        )  # fmt: skip
    if isinstance(start, AtSequence):
        number = start.sequence
        return await _search(
            client, segments, oldest, password,
            lambda segment: segment.following_sequence_id <= number,
            lambda segment, _, records, at: segment.sequence_id(records.positions[at]) < number,
        )  # fmt: skip
    raise AssertionError("unreachable: `checked_start` has refused it")  # pragma: no cover


async def find_end(
    client: Client, segments: Sequence[StreamSegment], end: Start, password: bytes
) -> DLSN:
    """Return the position before which a reader with this end would stop.

    If the ledger of a segment is gone that may have held records before the end, the position is
    after that segment, so that reading reports the gap.

    Args:
        client: The client of the cluster.
        segments: All segments of the stream.
        end: The place before which to end.
        password: The password of the ledgers.

    Returns:
        The position.

    Raises:
        UsageError: `end` is not a valid place.
        QuireError: The other errors of `find`.
    """
    position = await find(client, segments, end, password)
    if isinstance(end, DLSN):
        return position
    for segment in segments:
        if position == segment.first_dlsn and await _is_lost(client, segment):
            position = segment.first_dlsn.next_segment()
    return position


async def _is_lost(client: Client, segment: StreamSegment) -> bool:
    """Return whether a segment was not truncated, and its ledger is gone."""
    if segment.truncation is Truncation.TRUNCATED:
        return False
    try:
        await client.ledger_metadata(segment.ledger_id)
    except NoSuchLedgerError:
        return True
    return False


def checked_start(start: Start) -> Start:
    """Return a place at which a reader can begin, with its number as an int of Python.

    Args:
        start: The argument of the caller.

    Returns:
        The place.

    Raises:
        UsageError: `start` is an unknown text.
        ArgumentTypeError: `start`, or the number in it, has the wrong type.
    """
    if isinstance(start, str):
        if start not in (EARLIEST, LATEST):
            raise UsageError(f"a reader of a stream cannot begin at {start!r}", remedy=_STARTS)
    elif isinstance(start, AtTxid):
        return AtTxid(whole_number("the txid of a start", start.txid))
    elif isinstance(start, AtTime):
        return AtTime(whole_number("the time of a start", start.time_ms))
    elif isinstance(start, AtSequence):
        return AtSequence(whole_number("the sequence id of a start", start.sequence))
    elif not isinstance(start, DLSN):
        raise ArgumentTypeError(
            f"a reader of a stream cannot begin at a value of type {type(start).__name__}",
            remedy=_STARTS,
        )
    return start


def check_position(position: DLSN) -> None:
    """Check that a value is a position in a stream.

    Args:
        position: The argument of the caller.

    Raises:
        ArgumentTypeError: It is not a DLSN.
    """
    if not isinstance(position, DLSN):
        raise ArgumentTypeError(
            f"a position in a stream must be a DLSN, not {type(position).__name__}",
            remedy="Use the `position` of a record, or DLSN.parse(text)",
        )


def oldest_position(segments: Sequence[StreamSegment]) -> DLSN:
    """Return the first position that was not truncated.

    Args:
        segments: All segments of the stream.

    Returns:
        The position. If everything was truncated, it is after the last segment.
    """
    for segment in segments:
        if segment.truncation is Truncation.PARTIAL:
            return segment.min_active_dlsn
        if segment.truncation is not Truncation.TRUNCATED:
            return segment.first_dlsn
    return segments[-1].last_dlsn.next_segment() if segments else INITIAL_DLSN


async def last_entry(
    client: Client, segment: StreamSegment, password: bytes
) -> tuple[int, Records] | None:
    """Return the last acknowledged entry of a segment that holds more than control records.

    The entry holds records of the application, or it ends the stream.

    Args:
        client: The client of the cluster.
        segment: The segment.
        password: The password of its ledger.

    Returns:
        The id and the records of the entry, or None if there is no such entry.

    Raises:
        NoSuchLedgerError: The ledger is gone.
        QuireError: The errors of `Client.open_ledger` and of `records.read_entries`.
    """
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
    record_is_before: IsBefore,
) -> DLSN:
    end = oldest
    # The beginning of the first segment whose ledger is gone and may have held the record, or the
    # first entry that a search did not see because the ledger was not closed or closed too early.
    lost: DLSN | None = None
    for segment in segments:
        if segment.truncation is Truncation.TRUNCATED:
            continue  # its ledger may be gone
        if not (segment.in_progress or segment.lost) and segment_is_before(segment):
            # A segment without records has no last one. Its beginning is after all others.
            end, lost = max(segment.last_dlsn.next_slot(), segment.first_dlsn), None
            continue
        try:
            async with await client.open_ledger(segment.ledger_id, password=password) as reader:
                last = reader.last_add_confirmed  # entries that come during the search are left out
                found = await search_segment(reader, segment, record_is_before)
                first = await search_segment(reader, segment, lambda *_: False) if lost else None
        except NoSuchLedgerError:
            lost = segment.first_dlsn if lost is None else lost
            continue
        if found is not None:
            return lost if lost is not None and found == first else found
        if first is not None:
            lost = None  # the record comes later than this segment
        end = DLSN(segment.lssn, last + 1, 0)
        if lost is None and lacks_end(segment, last):
            lost = end
    return end if lost is None else lost


async def search_segment(
    reader: LedgerReader,
    segment: StreamSegment,
    is_before: IsBefore,
) -> DLSN | None:
    """Find the first record of a segment that is not before the place where a reader is to begin.

    Args:
        reader: A reader of the segment's ledger.
        segment: The segment.
        is_before: Returns whether a record is before that place.

    Returns:
        The position of the record, or None if there is no such record yet.

    Raises:
        QuireError: The errors of `records.read_entries`.
    """
    low, high = 0, reader.last_add_confirmed + 1
    best: DLSN | None = None
    while low < high:
        middle = (low + high) // 2
        # Entries without records of the application cannot be compared: take the next one that has
        # some.
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
        if is_before(segment, at, records, users[-1]):
            low = at + 1
        else:
            first = next(k for k in users if not is_before(segment, at, records, k))
            best = DLSN(segment.lssn, at, records.slots[first])
            high = middle
    return best


def creation_time_ms(
    segment: StreamSegment, entry_id: int, records: Records, at: int
) -> int | None:
    """Return the time at which a record was appended, if its entry contains it.

    Args:
        segment: The segment of the record.
        entry_id: The id of the record's entry.
        records: The records of the entry.
        at: The index of the record.

    Returns:
        The time in milliseconds, or None if the entry does not contain it.

    Raises:
        LaterStreamError: A later version wrote a control record of the entry.
        StreamDamagedError: A control record of the entry cannot be decoded.
    """
    time_ms: int | None = None
    for index, payload in records.controls():
        if index < at:
            for item in control_items(segment, entry_id, payload):
                if isinstance(item, CreationTime):
                    time_ms = item.time_ms
    return time_ms


def _is_before_time(segment: StreamSegment, time_ms: int) -> bool:
    """Return whether all records of a completed segment were certainly appended before a time.

    The txids of a segment can be later than its completion: its writer's clock was set back, or
    another machine completed it whose clock is behind.
    """
    last = segment.last_txid
    perhaps = time_ms <= last <= TIME_MAX_MS or last == MAX_TXID  # the end hides the last txid
    return segment.completion_time_ms < time_ms and not perhaps


def _time_ms(segment: StreamSegment, entry_id: int, records: Records, at: int) -> int:
    """Return the time at which a record was appended, or the latest time at which it can have been.

    Other programs store no time with records whose txids they choose, and neither did Spark jobs of
    version 0.2. Such a txid may be any number. One that is too low for a time says nothing, and
    must not make a record that was appended today count as an old one.
    """
    told = creation_time_ms(segment, entry_id, records, at)
    if told is None:
        told = records.txids[at]
        if told < TIME_TXID_MIN:
            told = TIME_MAX_MS if segment.in_progress else segment.completion_time_ms
    return told
