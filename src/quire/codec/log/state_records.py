"""State records, arrays of integers and block checksums, which groups and footers share.

A state record is a fact about a ledger or the log that is not an entry. All integers are
little-endian. The run index is the number of runs of the same group that come before the record.

| offset | size | field                                                         |
|--------|------|---------------------------------------------------------------|
| 0      | 1    | kind                                                          |
| 1      | 3    | zeros; anything else is from a later version                  |
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
| 6 REPAIRED     | number of a segment (8); losses in segments before it were repaired. Only       |
|                | earlier versions wrote this record, and it is not used any more                 |
| 7 SUPERSEDED   | number of a segment (8), checksum in its trailer (4); see `Superseded`          |

A kind above 7, and a value that is longer than the table says, are from a later version of Quire.
"""

from __future__ import annotations

import enum
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire._runtime.units import counted
from quire.codec.entry.digest import crc32c_of
from quire.errors import LaterStorageError, written_later

Buffer = bytes | bytearray | memoryview

BLOCK_BYTES = 4096
MAX_TABLE_BYTES = 256 * 1024 * 1024
"""The largest length, in bytes, of a group's table or a segment header. A larger one counts as
damage."""

_RECORD = struct.Struct(
    "<"
    "B"  # kind
    "3s"  # zeros
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
    """The error for bytes that do not match their format. The caller decides what that means."""


class VersionError(LaterStorageError):
    """The error for valid data that a later version wrote.

    This is no `FormatError`, so that no handler of damage catches it.
    """

    def __init__(self, found: str, known: str) -> None:
        super().__init__(f"it has {found}, but this version knows only {known}")
        self.found = found
        self.known = known

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.found, self.known)

    def within(self, where: str) -> LaterStorageError:
        """Return the error to report, which says in what file (`where`) the data is."""
        return LaterStorageError(written_later(where, self.found, self.known))


# -- state records ----------------------------------------------------------------------------


class RecordKind(enum.IntEnum):
    """The kind of a state record."""

    MASTER_KEY = 1
    """The key of a ledger, which exists from this record on."""
    FENCE = 2
    EXPLICIT_LAC = 3
    """The LAC packet as the client sent it."""
    DELETED = 4
    """The deletion of a ledger. See `Deleted`."""
    DROPPED = 5
    """The number of a segment that is about to be removed."""
    REPAIRED = 6
    """The number of a segment. Only earlier versions wrote this record, and it is ignored."""
    SUPERSEDED = 7
    """The replacement of a segment by compaction. See `Superseded`."""


KINDS_MAX = max(RecordKind)
_ZEROS = bytes(3)


def check_value_size(kind: RecordKind, value: Buffer, *sizes: int) -> None:
    """Check the length of a record's value.

    Raises:
        FormatError: The value has none of these sizes.
        VersionError: The value is longer than all of them, so a later version has added something.
    """
    if len(value) in sizes:
        return
    if len(value) > max(sizes):
        raise VersionError(
            f"a {kind.name} record with {counted(len(value), 'byte')}",
            f"such records of {counted(max(sizes), 'byte')}",
        )
    raise FormatError(f"a {kind.name} record has a wrong length, {counted(len(value), 'byte')}")


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
    """The number of the segment in which the record was first written. It is 0 if this record is
    not a copy."""

    def encode(self) -> bytes:
        return _DELETED.pack(self.time_ms, self.before_segment, self.fenced)

    @classmethod
    def decode(cls, value: Buffer) -> Deleted:
        check_value_size(RecordKind.DELETED, value, _DELETED.size)
        time_ms, before_segment, fenced = _DELETED.unpack(value)
        return cls(time_ms, bool(fenced), before_segment)


class Superseded(NamedTuple):
    """The value of a SUPERSEDED record, whose segment has copies of all live entries of another.

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
        check_value_size(RecordKind.SUPERSEDED, value, 8, 12)
        crc = int.from_bytes(value[8:], "little") if len(value) == 12 else None
        return cls(decode_segment_value(value[:8]), crc)


def segment_value(number: int) -> bytes:
    """Return the value of a DROPPED or REPAIRED record."""
    return number.to_bytes(8, "little")


def decode_segment_value(value: Buffer) -> int:
    """Return the segment number in a value.

    Raises:
        FormatError: The value has less than 8 bytes.
        VersionError: The value has more than 8 bytes.
    """
    check_value_size(RecordKind.DROPPED, value, 8)
    return int.from_bytes(value, "little")


def encode_records(records: Iterable[StateRecord]) -> bytes:
    return b"".join([encode_record(record, record.run_index) for record in records])


def encode_record(record: StateRecord, run_index: int) -> bytes:
    value = record.value
    return _RECORD.pack(record.kind, _ZEROS, len(value), run_index, record.ledger_id) + value


def decode_records(data: Buffer, at: int, count: int) -> tuple[list[StateRecord], int]:
    """Return `count` records from offset `at` on, and the offset after them.

    The caller has checked their checksum.

    Raises:
        FormatError: A record is cut off.
        VersionError: A later version wrote a record.
    """
    records = []
    for _ in range(count):
        if at + RECORD_BYTES > len(data):
            raise FormatError("state records are cut off")
        kind, zeros, size, run_index, ledger_id = _RECORD.unpack_from(data, at)
        at += RECORD_BYTES
        if at + size > len(data):
            raise FormatError("a state record is cut off")
        if not 1 <= kind <= KINDS_MAX or zeros != _ZEROS:
            flags = f" with the flags {zeros.hex()}" if zeros != _ZEROS else ""
            raise VersionError(
                f"a state record of kind {kind}{flags}",
                f"the kinds 1 to {KINDS_MAX}, without flags",
            )
        known = RecordKind(kind)
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
