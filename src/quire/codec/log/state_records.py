"""State records, arrays of integers and block checksums, which groups and footers share.

A state record is a fact about a ledger or the log that is not an entry. All integers are
little-endian. The run index is the number of runs of the same group that come before the record.

| offset | size | field                                                         |
|--------|------|---------------------------------------------------------------|
| 0      | 1    | kind                                                          |
| 1      | 3    | zeros                                                         |
| 4      | 4    | length V of the value in bytes, unsigned                      |
| 8      | 4    | run index, unsigned                                           |
| 12     | 8    | ledger id, signed; -1: none                                   |
| 20     | V    | value                                                         |

| kind           | value                                                                           |
|----------------|---------------------------------------------------------------------------------|
| 1 MASTER_KEY   | the ledger's key (20 bytes); the ledger exists from here on                     |
| 2 FENCE        | empty; the ledger is fenced                                                     |
| 3 EXPLICIT_LAC | the LAC packet as the client sent it                                            |
| 4 DELETED      | time in ms since 1970 (8 bytes, signed), number of a segment (8), 1 if the      |
|                | ledger was fenced (1); see `Deleted`                                            |
| 5 DROPPED      | number of a segment (8) that is about to be removed                             |
| 6 REPAIRED     | number of a segment (8); what was lost in segments before it is not missed any  |
|                | more                                                                            |
| 7 SUPERSEDED   | number of a segment (8), checksum in its trailer (4); see `Superseded`          |
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
"""The largest length, in bytes, of a group's table or a segment header. A larger one counts as
damage."""

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
    """Return `size` rounded up to whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class FormatError(ValueError):
    """The bytes do not match their format. The caller decides what that means."""


class VersionError(FormatError):
    """The data was written by a later version. Refuse it, and do not treat it as damage."""


# -- state records ----------------------------------------------------------------------------


class RecordKind(enum.IntEnum):
    """The kind of a state record."""

    MASTER_KEY = 1
    """The key of a ledger, which exists from here on."""
    FENCE = 2
    EXPLICIT_LAC = 3
    """The LAC packet as the client sent it."""
    DELETED = 4
    """The deletion of a ledger. See `Deleted`."""
    DROPPED = 5
    """The number of a segment that is about to be removed."""
    REPAIRED = 6
    """The number of a segment. What was lost in segments before it is not missed any more."""
    SUPERSEDED = 7
    """The replacement of a segment by compaction. See `Superseded`."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One state record."""

    kind: RecordKind
    ledger_id: int = -1
    value: bytes = b""
    run_index: int = 0
    """The number of runs of the same group that come before the record."""

    @property
    def size_bytes(self) -> int:
        return RECORD_BYTES + len(self.value)


@dataclass(frozen=True, slots=True)
class Deleted:
    """The value of a DELETED record: everything about the ledger that was logged before it is void.

    When the segment of the record is removed, the record is copied. The copy names that segment and
    voids only what was logged in segments before it, because the ledger may have been created again
    since.
    """

    time_ms: int
    fenced: bool
    before_segment: int = 0
    """The segment in which the record was first written, or 0 if this record is not a copy."""

    def encode(self) -> bytes:
        return _DELETED.pack(self.time_ms, self.before_segment, self.fenced)

    @classmethod
    def decode(cls, value: Buffer) -> Deleted:
        if len(value) != _DELETED.size:
            raise FormatError(f"a DELETED record of the log has a wrong length: {len(value)} bytes")
        time_ms, before_segment, fenced = _DELETED.unpack(value)
        return cls(time_ms, bool(fenced), before_segment)


class Superseded(NamedTuple):
    """The value of a SUPERSEDED record: the live entries of that segment are copied here.

    The value identifies a file and not only a segment number. If a crash prevents the removal of
    the superseded file and its index is lost, the segment is used again. Its number may then belong
    to the output of a later compaction, of which no entry is copied here.
    """

    segment: int
    trailer_crc: int | None
    """The checksum in the trailer of the superseded file. None in an old record, which identifies
    no file."""

    def encode(self) -> bytes:
        assert self.trailer_crc is not None
        return segment_value(self.segment) + self.trailer_crc.to_bytes(4, "little")

    @classmethod
    def decode(cls, value: Buffer) -> Superseded:
        if len(value) not in (8, 12):
            raise FormatError(
                f"a SUPERSEDED record of the log has a wrong length: {len(value)} bytes"
            )
        crc = int.from_bytes(value[8:], "little") if len(value) == 12 else None
        return cls(decode_segment_value(value[:8]), crc)


def segment_value(number: int) -> bytes:
    """Return the value of a DROPPED or REPAIRED record."""
    return number.to_bytes(8, "little")


def decode_segment_value(value: Buffer) -> int:
    """Return the segment number in a value.

    Raises:
        FormatError: The value has another length.
    """
    if len(value) != 8:
        raise FormatError(
            f"a record of the log has a segment number of wrong length: {len(value)} bytes"
        )
    return int.from_bytes(value, "little")


def encode_records(records: Iterable[StateRecord]) -> bytes:
    return b"".join([encode_record(record, record.run_index) for record in records])


def encode_record(record: StateRecord, run_index: int) -> bytes:
    value = record.value
    return _RECORD.pack(record.kind, len(value), run_index, record.ledger_id) + value


def decode_records(data: Buffer, at: int, count: int) -> tuple[list[StateRecord], int]:
    """Return `count` records from offset `at` on, and the offset after them.

    Raises:
        FormatError: A record is cut off or has an unknown kind.
    """
    records = []
    for _ in range(count):
        if at + RECORD_BYTES > len(data):
            raise FormatError("the state records of the log end within the header of a record")
        kind, size, run_index, ledger_id = _RECORD.unpack_from(data, at)
        at += RECORD_BYTES
        if at + size > len(data):
            raise FormatError("the state records of the log end within the value of a record")
        try:
            known = RecordKind(kind)
        except ValueError:
            raise FormatError(
                f"a state record of the log has the kind {kind}, which this version of Quire "
                "does not know"
            ) from None
        records.append(StateRecord(known, ledger_id, bytes(data[at : at + size]), run_index))
        at += size
    return records, at


# -- numbers in bulk --------------------------------------------------------------------------


def little(values: array[int]) -> bytes:
    """Return the bytes of an array, little-endian."""
    if sys.byteorder == "little":
        return values.tobytes()
    swapped = array(values.typecode, values)  # pragma: no cover - needs a big-endian machine
    swapped.byteswap()  # pragma: no cover
    return swapped.tobytes()  # pragma: no cover


def from_little(typecode: str, data: Buffer) -> array[int]:
    """Return the array with these little-endian bytes."""
    values: array[int] = array(typecode)
    values.frombytes(data)
    if sys.byteorder != "little":  # pragma: no cover - needs a big-endian machine
        values.byteswap()
    return values


def block_checksums(buffers: Iterable[Buffer]) -> array[int]:
    """Return the checksum of each block of the joined buffers. The last block may be shorter."""
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
