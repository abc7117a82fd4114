"""The types that readers of a stream receive: records, batches of records, and gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quire.client import LedgerReader
from quire.codec.distributedlog.control_record import ControlItem, decode_control
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import LaterStreamFormatError, StreamFormatError
from quire.codec.distributedlog.record import Records, decode_entry
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import LaterStreamError, StreamDamagedError, StreamError


class Record(NamedTuple):
    """One record of a stream."""

    payload: bytes
    """The bytes of the record."""
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
        for payload, slot, txid, position in zip(
            records.payloads(), records.slots, records.txids, records.positions
        ):
            yield Record(payload, DLSN(lssn, entry_id, slot), txid, base + position)

    @property
    def first(self) -> DLSN:
        """The position of the first record."""
        return DLSN(self.segment.lssn, self.entry_id, self.records.slots[0])

    @property
    def last(self) -> DLSN:
        """The position of the last record."""
        return DLSN(self.segment.lssn, self.entry_id, self.records.slots[-1])

    def payloads(self) -> list[bytes]:
        """Return the payloads of the records."""
        return self.records.payloads()


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of positions whose records no longer exist."""

    kind: str
    """The reason: "truncated" or "lost".

    Truncated records were given up by truncation or retention. Records are lost if their ledger, or
    the number of their segment, is missing.
    """
    first: DLSN
    """The first position of the gap."""
    behind: DLSN
    """The first position after the gap."""

    def __str__(self) -> str:
        return f"records from {self.first} to just before {self.behind} are {self.kind}"


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
        where = f"entry {entry_id} of segment {segment.lssn} (ledger {segment.ledger_id})"
        raise undecodable(where, error) from error


def undecodable(where: str, error: Exception) -> StreamError:
    """Return the error for a part of a stream that cannot be decoded. `error` is the reason."""
    if isinstance(error, LaterStreamFormatError):
        return LaterStreamError(f"{where} cannot be read: {error}")
    return StreamDamagedError(f"{where} cannot be decoded: {error}")


def control_items(payload: bytes) -> list[ControlItem]:
    """Return the items of a control record.

    Raises:
        LaterStreamError: A later version wrote the record.
        StreamDamagedError: The record cannot be decoded.
    """
    try:
        return decode_control(payload)
    except StreamFormatError as error:
        raise undecodable("a control record of the stream", error) from error


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
        StreamDamagedError: An entry cannot be decoded.
    """
    return [
        (entry.entry_id, decode(segment, entry.entry_id, bytes(entry.payload)))
        async for entry in reader.read(first, last)
    ]
