"""What readers of a stream are given: records, many at once, and gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quire.client import LedgerReader
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import StreamFormatError
from quire.codec.distributedlog.record import Records, decode_entry
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import StreamDamagedError


class Record(NamedTuple):
    payload: bytes
    position: DLSN
    """Where it is: give `position.next_slot()` to read on behind it."""
    txid: int
    """The application's number, or the time in ms at which it was appended (`txids` of the
    settings)."""
    sequence: int
    """How many records of the stream came before it; negative in segments that do not tell."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """The records of one entry, in columns: no object per record."""

    segment: StreamSegment
    entry_id: int
    records: Records
    """Those that applications see."""

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
        return DLSN(self.segment.lssn, self.entry_id, self.records.slots[0])

    @property
    def last(self) -> DLSN:
        return DLSN(self.segment.lssn, self.entry_id, self.records.slots[-1])

    def payloads(self) -> list[bytes]:
        return self.records.payloads()


@dataclass(frozen=True, slots=True)
class Gap:
    """Records from `first` on, up to before `behind`, are not there any more."""

    kind: str
    """truncated: somebody gave them up (truncation, retention); lost: their ledger, or the number
    of a segment, is missing."""
    first: DLSN
    behind: DLSN

    def __str__(self) -> str:
        return f"records from {self.first} to before {self.behind} are {self.kind}"


def decode(segment: StreamSegment, entry_id: int, payload: bytes) -> Records:
    """All records of an entry, control records included. StreamDamagedError names the place."""
    try:
        return decode_entry(payload, segment.enveloped)
    except StreamFormatError as error:
        raise StreamDamagedError(
            f"entry {entry_id} of segment {segment.lssn} (ledger {segment.ledger_id}) cannot be "
            f"understood: {error}"
        ) from error


async def read_entries(
    reader: LedgerReader, segment: StreamSegment, first: int, last: int
) -> list[tuple[int, Records]]:
    """(entry id, its records) of a few entries."""
    return [
        (entry.entry_id, decode(segment, entry.entry_id, bytes(entry.payload)))
        async for entry in reader.read(first, last)
    ]
