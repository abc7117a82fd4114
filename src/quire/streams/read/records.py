"""The types that readers of a stream receive: records, batches of records, and gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from quire.client import LedgerReader
from quire.codec.distributedlog.control_record import ControlItem, decode_control
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import LaterStreamFormatError, StreamFormatError
from quire.codec.distributedlog.record import Records, decode_entry
from quire.codec.distributedlog.record_envelope import EPOCH, RecordEnvelope, decode_envelope
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import LaterStreamError, StreamDamagedError, StreamError

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})
"""The headers of a record that has none."""


class Record(NamedTuple):
    """One record of a stream.

    A record that was appended with a key, headers or an event time is a `KeyedRecord`.
    """

    payload: bytes
    """The bytes of the record, without its key, headers and event time."""
    position: DLSN
    """The position of the record. Start a reader at `position.next_slot()` to continue after it."""
    txid: int
    """The transaction id: the application's number, or the time of the append in milliseconds.

    The stream's setting `txids` decides which of the two it is.
    """
    sequence: int
    """The number of records of the stream before this one.

    It is negative in segments that do not store the number.
    """

    @property
    def value(self) -> bytes:
        """The bytes of the record, the same as `payload`."""
        return self.payload

    @property
    def key(self) -> bytes | None:
        """The key of the record, or None if it was appended without one."""
        return None

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers of the record by name, in the order of the append."""
        return NO_HEADERS

    @property
    def event_time(self) -> datetime | None:
        """The event time of the record in UTC, or None if it was appended without one."""
        return None


class KeyedRecord(Record):
    """A record that was appended with a key, headers or an event time."""

    _envelope: RecordEnvelope

    @property
    def key(self) -> bytes | None:
        """The key of the record, or None if it was appended without one."""
        return self._envelope.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers of the record by name, in the order of the append."""
        return MappingProxyType(self._envelope.headers)

    @property
    def event_time(self) -> datetime | None:
        """The event time of the record in UTC, or None if it was appended without one."""
        time_us = self._envelope.event_time_us
        return None if time_us is None else EPOCH + timedelta(microseconds=time_us)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(payload={self.payload!r}, position={self.position!r}, "
            f"txid={self.txid}, sequence={self.sequence}, key={self.key!r}, "
            f"headers={dict(self.headers)!r}, event_time={self.event_time!r})"
        )


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """The records of one entry in columns, without an object for each record."""

    segment: StreamSegment
    """The segment that holds the entry."""
    entry_id: int
    """The id of the entry in the segment's ledger."""
    records: Records
    """The columns of the records. Control records are left out."""

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        lssn, entry_id, records = self.segment.lssn, self.entry_id, self.records
        base = self.segment.first_sequence_id - 1
        if records.envelopes:
            yield from map(self.record, range(len(records)))
            return
        for payload, slot, txid, position in zip(
            records.payloads(), records.slots, records.txids, records.positions
        ):
            yield Record(payload, DLSN(lssn, entry_id, slot), txid, base + position)

    def record(self, index: int) -> Record:
        """Return one record.

        Args:
            index: The index of the record in the batch.

        Returns:
            The record.

        Raises:
            IndexError: The batch has no record with this index.
            LaterStreamError: A later version wrote the envelope of the record.
            StreamDamagedError: The envelope of the record cannot be decoded.
        """
        records = self.records
        position = DLSN(self.segment.lssn, self.entry_id, records.slots[index])
        sequence = self.segment.first_sequence_id - 1 + records.positions[index]
        if not records.envelopes or not records.envelopes[index]:
            return Record(records.payload(index), position, records.txids[index], sequence)
        envelope = self._envelope(index)
        value = records.data[envelope.value_start : records.ends[index]]
        record = KeyedRecord(value, position, records.txids[index], sequence)
        record._envelope = envelope
        return record

    def _envelope(self, at: int) -> RecordEnvelope:
        """Return the envelope of a record that has one."""
        records = self.records
        return envelope_of(
            DLSN(self.segment.lssn, self.entry_id, records.slots[at]),
            records.data, records.starts[at], records.ends[at],
        )  # fmt: skip

    @property
    def first(self) -> DLSN:
        """The position of the first record."""
        return DLSN(self.segment.lssn, self.entry_id, self.records.slots[0])

    @property
    def last(self) -> DLSN:
        """The position of the last record."""
        return DLSN(self.segment.lssn, self.entry_id, self.records.slots[-1])

    def payloads(self) -> list[bytes]:
        """Return the payloads of the records, without keys, headers and event times.

        Raises:
            LaterStreamError: A later version wrote the envelope of a record.
            StreamDamagedError: The envelope of a record cannot be decoded.
        """
        records = self.records
        if not records.envelopes:
            return records.payloads()
        data = records.data
        starts = [
            self._envelope(at).value_start if has_envelope else start
            for at, (start, has_envelope) in enumerate(zip(records.starts, records.envelopes))
        ]
        return [data[start:end] for start, end in zip(starts, records.ends)]

    @property
    def keyed(self) -> bool:
        """Whether a record of the batch has a key, headers or an event time."""
        return bool(self.records.envelopes)


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of positions whose records no longer exist."""

    kind: str
    """The reason why the records no longer exist: "truncated" or "lost".

    Truncated records were given up by truncation or retention. Records are lost if their ledger,
    the end of their ledger, or the number of their segment is missing.
    """
    first: DLSN
    """The first position of the gap."""
    behind: DLSN
    """The first position after the gap."""

    def __str__(self) -> str:
        return f"records from {self.first} to just before {self.behind} are {self.kind}"


def lacks_end(segment: StreamSegment, last: int) -> bool:
    """Return whether a segment has records after the last acknowledged entry of its ledger.

    If the ledger is closed they are lost: bookies had lost entries when it was recovered. Otherwise
    the writer died before it closed the ledger, and a recovery finds them.
    """
    return not (segment.in_progress or segment.lost) and last < segment.last_entry_id


def decode(segment: StreamSegment, entry_id: int, payload: bytes) -> Records:
    """Decode all records of an entry, control records included.

    Args:
        segment: The segment that holds the entry.
        entry_id: The id of the entry.
        payload: The payload of the entry.

    Returns:
        The records in columns.

    Raises:
        LaterStreamError: A later version wrote the entry. The error names its place.
        StreamDamagedError: The entry cannot be decoded. The error names its place.
    """
    try:
        return decode_entry(payload, segment.enveloped)
    except StreamFormatError as error:
        raise undecodable_entry(segment, entry_id, error) from error


def place_of(segment: StreamSegment, entry_id: int) -> str:
    """Return an entry of a stream as a noun phrase, for messages."""
    return f"entry {entry_id} of segment {segment.lssn} (ledger {segment.ledger_id})"


def envelope_of(position: DLSN, data: bytes, start: int, end: int) -> RecordEnvelope:
    """Return the envelope at the beginning of the payload in `data[start:end]`.

    Args:
        position: The position of the record, for the error.
        data: The buffer.
        start: The first byte of the payload.
        end: The byte after the payload.

    Returns:
        The content of the envelope.

    Raises:
        LaterStreamError: A later version wrote the envelope. The error names its place.
        StreamDamagedError: The envelope cannot be decoded. The error names its place.
    """
    try:
        return decode_envelope(data, start, end)
    except StreamFormatError as error:
        raise undecodable(f"the record at {position}", error, _CONTINUE) from error


_CONTINUE = "To read what follows, begin at a later position"


def undecodable(where: str, error: Exception, remedy: str) -> StreamError:
    """Return the error for a part of a stream that cannot be decoded.

    Args:
        where: The part, as a noun phrase.
        error: The reason.
        remedy: The advice for a part that is damaged. If a later version wrote the part, the advice
            is to install that version.
    """
    if isinstance(error, LaterStreamFormatError):
        return LaterStreamError(f"{where} cannot be read: {error}")
    return StreamDamagedError(f"{where} cannot be decoded: {error}", remedy=remedy)


def undecodable_entry(
    segment: StreamSegment, entry_id: int, error: Exception, stream: str = ""
) -> StreamError:
    """Return the error for an entry that cannot be decoded. `error` is the reason."""
    where = place_of(segment, entry_id) + (f" of stream {stream}" if stream else "")
    return undecodable(
        where, error,
        f"`quire explain ledger {segment.ledger_id} --deep` shows whether its copies differ. "
        f"{_CONTINUE}",
    )  # fmt: skip


def control_items(segment: StreamSegment, entry_id: int, payload: bytes) -> list[ControlItem]:
    """Return the items of a control record.

    Args:
        segment: The segment that holds the entry of the record.
        entry_id: The id of the entry.
        payload: The payload of the record.

    Raises:
        LaterStreamError: A later version wrote the record. The error names its place.
        StreamDamagedError: The record cannot be decoded. The error names its place.
    """
    try:
        return decode_control(payload)
    except StreamFormatError as error:
        raise undecodable_entry(segment, entry_id, error) from error


async def read_entries(
    reader: LedgerReader, segment: StreamSegment, first: int, last: int
) -> list[tuple[int, Records]]:
    """Read and decode a few entries.

    Args:
        reader: A reader of the segment's ledger.
        segment: The segment.
        first: The id of the first entry.
        last: The id of the last entry, inclusive.

    Returns:
        The id and the records of each entry.

    Raises:
        ReadError: No replica of an entry can be read.
        LaterStreamError: A later version wrote an entry.
        StreamDamagedError: An entry cannot be decoded.
    """
    return [
        (entry.entry_id, decode(segment, entry.entry_id, bytes(entry.payload)))
        async for entry in reader.read(first, last)
    ]
