"""What the formats of groups and footers share: state records, and numbers in bulk.

State record (little-endian), `run_index` being how many runs of its group come before it:

| offset | size | field                |
|--------|------|----------------------|
| 0      | 1    | kind                 |
| 1      | 3    | zeros                |
| 4      | 4    | value length V       |
| 8      | 4    | run index            |
| 12     | 8    | ledger id, or -1     |
| 20     | V    | value                |
"""

from __future__ import annotations

import enum
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.codec.entry.digest import crc32c_of

Buffer = bytes | bytearray | memoryview

BLOCK_BYTES = 4096
MAX_TABLE_BYTES = 256 * 1024 * 1024
"""A longer table of a group, or header of a segment, is not believed."""

_RECORD = struct.Struct(
    "<"
    "B"  # kind
    "3x"
    "I"  # value length
    "I"  # run index
    "q"  # ledger id
)
RECORD_BYTES = _RECORD.size
_DELETED = struct.Struct("<qQB")  # time, before segment, fenced


def aligned(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class FormatError(ValueError):
    """Bytes that do not check. What that means is decided where they were read."""


class VersionError(FormatError):
    """Written by a later version: to be refused, not taken for damage."""


# -- state records ----------------------------------------------------------------------------


class RecordKind(enum.IntEnum):
    MASTER_KEY = 1
    """value: the key. The ledger exists from here on."""
    FENCE = 2
    EXPLICIT_LAC = 3
    """value: the packet as the client sent it."""
    DELETED = 4
    """value: see `Deleted`."""
    DROPPED = 5
    """value: number of a segment that is about to be removed."""
    REPAIRED = 6
    """value: a segment number; what was lost in segments before it is not missed any more."""
    SUPERSEDED = 7
    """value: see `Superseded`."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    kind: RecordKind
    ledger_id: int = -1
    value: bytes = b""
    run_index: int = 0
    """How many runs of its group come before it."""

    @property
    def size_bytes(self) -> int:
        return RECORD_BYTES + len(self.value)


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a DELETED record says: everything about the ledger that was logged before it is void.

    The record outlives its segment as a copy; the copy names that segment, and voids only what
    was logged in segments before it, for the ledger may have been created again since.
    """

    time_ms: int
    fenced: bool
    before_segment: int = 0
    """0: the record stands where it was first written."""

    def encode(self) -> bytes:
        return _DELETED.pack(self.time_ms, self.before_segment, self.fenced)

    @classmethod
    def decode(cls, value: Buffer) -> Deleted:
        if len(value) != _DELETED.size:
            raise FormatError(f"a DELETED record of {len(value)} bytes")
        time_ms, before_segment, fenced = _DELETED.unpack(value)
        return cls(time_ms, bool(fenced), before_segment)


class Superseded(NamedTuple):
    """The value of a SUPERSEDED record: the live entries of that segment are copied here.

    It names the file, not the number: a segment whose removal a crash has prevented may live again,
    where its index was lost, and then be the place of a later compaction, of which nothing is here.
    """

    segment: int
    trailer_crc: int | None
    """None: of a log that was written before there was one; it names no file."""

    def encode(self) -> bytes:
        assert self.trailer_crc is not None
        return segment_value(self.segment) + self.trailer_crc.to_bytes(4, "little")

    @classmethod
    def decode(cls, value: Buffer) -> Superseded:
        if len(value) not in (8, 12):
            raise FormatError(f"a SUPERSEDED record of {len(value)} bytes")
        crc = int.from_bytes(value[8:], "little") if len(value) == 12 else None
        return cls(decode_segment_value(value[:8]), crc)


def segment_value(number: int) -> bytes:
    """The value of DROPPED and REPAIRED records."""
    return number.to_bytes(8, "little")


def decode_segment_value(value: Buffer) -> int:
    if len(value) != 8:
        raise FormatError(f"a segment number of {len(value)} bytes")
    return int.from_bytes(value, "little")


def encode_records(records: Iterable[StateRecord]) -> bytes:
    return b"".join([encode_record(record, record.run_index) for record in records])


def encode_record(record: StateRecord, run_index: int) -> bytes:
    value = record.value
    return _RECORD.pack(record.kind, len(value), run_index, record.ledger_id) + value


def decode_records(data: Buffer, at: int, count: int) -> tuple[list[StateRecord], int]:
    """`count` records from offset `at` on, and the offset behind them."""
    records = []
    for _ in range(count):
        if at + RECORD_BYTES > len(data):
            raise FormatError("state records are cut off")
        kind, size, run_index, ledger_id = _RECORD.unpack_from(data, at)
        at += RECORD_BYTES
        if at + size > len(data):
            raise FormatError("a state record is cut off")
        try:
            known = RecordKind(kind)
        except ValueError:
            raise FormatError(f"a state record of unknown kind {kind}") from None
        records.append(StateRecord(known, ledger_id, bytes(data[at : at + size]), run_index))
        at += size
    return records, at


# -- numbers in bulk --------------------------------------------------------------------------


def little(values: array[int]) -> bytes:
    """The array's bytes, little-endian."""
    if sys.byteorder == "little":
        return values.tobytes()
    swapped = array(values.typecode, values)  # pragma: no cover - needs a big-endian machine
    swapped.byteswap()  # pragma: no cover
    return swapped.tobytes()  # pragma: no cover


def from_little(typecode: str, data: Buffer) -> array[int]:
    values: array[int] = array(typecode)
    values.frombytes(data)
    if sys.byteorder != "little":  # pragma: no cover - needs a big-endian machine
        values.byteswap()
    return values


def block_checksums(buffers: Iterable[Buffer]) -> array[int]:
    """The checksum of each block of the buffers' concatenation; a last short one as it is."""
    found = array("I")
    crc, room = 0, BLOCK_BYTES
    for buffer in buffers:
        size = len(buffer)
        if size < room:
            crc = crc32c_of(buffer, crc)
            room -= size
            continue
        view = memoryview(buffer)
        found.append(crc32c_of(view[:room], crc))
        end = size - (size - room) % BLOCK_BYTES
        found.extend(
            [crc32c_of(view[at : at + BLOCK_BYTES]) for at in range(room, end, BLOCK_BYTES)]
        )
        crc, room = crc32c_of(view[end:]), BLOCK_BYTES - (size - end)
    if room != BLOCK_BYTES:
        found.append(crc)
    return found
