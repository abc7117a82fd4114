"""A group: the part of a segment that is written and synced at once.

Integers are unsigned and little-endian, unless the table says otherwise. Checksums are CRC-32C in 4
bytes. A block is 4,096 bytes.

    header | run rows | sizes | ids | state records | block checksums | payload | zeros to a block

The *table* is everything between the header and the payload. Header:

| offset | size | field                                                                         |
|--------|------|-------------------------------------------------------------------------------|
| 0      | 8    | "QGROUP" 00, and the version, 1 (1 byte)                                      |
| 8      | 16   | directory id                                                                  |
| 24     | 8    | segment number                                                                |
| 32     | 8    | group number, consecutive over all segments                                   |
| 40     | 8    | offset of this group in its file, in bytes                                    |
| 48     | 4    | number of runs                                                                |
| 52     | 4    | number of state records                                                       |
| 56     | 4    | length of the table in bytes                                                  |
| 60     | 4    | flags; 1: written by compaction, 2: the last group of a compaction, 4: its    |
|        |      | frames are bare                                                               |
| 64     | 8    | length of the payload in bytes                                                |
| 72     | 4    | checksum of what follows the table in the block in which the table ends       |
| 76     | 4    | checksum of bytes 0..75 and of the table                                      |

A *run* is a sequence of entries of one ledger, whose frames are back to back. A frame is a complete
ADD frame as it was received, or a bare one: the length of the entry (4 bytes, big-endian) and the
entry, as in the response to a BATCH_READ. Run row (32 bytes):

| offset | size | field                                                                         |
|--------|------|-------------------------------------------------------------------------------|
| 0      | 8    | ledger id, signed                                                             |
| 8      | 8    | first entry id, signed                                                        |
| 16     | 4    | number of entries                                                             |
| 20     | 4    | size of each frame in bytes; 0: the next entries of *sizes*                   |
| 24     | 4    | offset of the first frame in the payload, in bytes                            |
| 28     | 4    | flags; 1: the ids are not consecutive, and are the next entries of *ids*      |

Sizes are 4 bytes each, and ids are 8 bytes each and signed. Each has as many items as the runs that
refer to it have entries. `state_records` describes the state records.

There is a block checksum (4 bytes) for each block of the group that starts at or after the end of
the table, including the final zeros. The list has payload length / 4096 + 1 items. The last one is
0 if it is not needed.

Another version, another flag and another kind of record are from a later version of Quire, if the
header and the table match their checksum. Every version keeps bytes 0..59 of the header, and the
checksum at 76.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from quire.codec.entry.digest import crc32c
from quire.codec.log.state_records import (
    BLOCK_BYTES,
    MAX_TABLE_BYTES,
    Buffer,
    FormatError,
    StateRecord,
    VersionError,
    aligned,
    block_checksums,
    decode_records,
    encode_record,
    from_little,
    little,
)
from quire.codec.packed_rows import pack_rows
from quire.codec.wire.v2 import BATCH_ENTRY_OVERHEAD_BYTES, FRAME_HEADER_BYTES

BARE_HEAD_BYTES = BATCH_ENTRY_OVERHEAD_BYTES
"""The number of bytes before the entry in a bare frame: its length."""
GROUP_START = b"QGROUP\x00"
"""The first bytes of a group of any version."""
GROUP_VERSION = 1
GROUP_MAGIC = GROUP_START + bytes([GROUP_VERSION])

_GROUP = struct.Struct(
    "<"
    "8s"  # magic
    "16s"  # directory id
    "Q"  # segment number
    "Q"  # group number
    "Q"  # offset
    "I"  # runs
    "I"  # records
    "I"  # table length
    "I"  # flags
    "Q"  # payload length
    "I"  # checksum of the payload's head
)
_TABLE_BYTES_AT = 56
_GROUP_START = struct.Struct("<8s16sQ")
_CRC = struct.Struct("<I")
GROUP_HEADER_BYTES = _GROUP.size + _CRC.size
RUN_ROW = struct.Struct(
    "<"
    "q"  # ledger id
    "q"  # first entry id
    "I"  # count
    "I"  # frame size
    "I"  # offset
    "I"  # flags
)
ROW_HAS_IDS = 1
GROUP_COMPACTED = 1
GROUP_LAST = 2
GROUP_BARE = 4
GROUP_FLAGS = GROUP_COMPACTED | GROUP_LAST | GROUP_BARE
WRONG_BYTES_MAX = 4
"""The largest number of wrong bytes in the first fields of a header that is still recognised."""


def head_bytes_of(*, bare: bool) -> int:
    """Return the number of bytes of a frame before the entry."""
    return BARE_HEAD_BYTES if bare else FRAME_HEADER_BYTES


class RunLike(Protocol):
    """An object with the properties of a run from which its row in a table is made."""

    @property
    def ledger_id(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def frame_size(self) -> int: ...
    @property
    def sizes(self) -> array[int] | None: ...
    @property
    def ids(self) -> array[int] | None: ...


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, as decoded from a table."""

    ledger_id: int
    first: int
    count: int
    offset: int
    frame_size: int
    sizes: array[int] | None = None
    ids: array[int] | None = None


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """The content of a group's header."""

    directory_id: bytes
    segment: int
    number: int
    offset: int
    runs: int
    records: int
    table_bytes: int
    flags: int
    payload_bytes: int
    head_crc: int
    version: int = GROUP_VERSION

    @property
    def payload_offset(self) -> int:
        """The offset of the payload in the file."""
        return self.offset + GROUP_HEADER_BYTES + self.table_bytes

    @property
    def head_bytes(self) -> int:
        """The number of bytes of each frame before the entry."""
        return head_bytes_of(bare=bool(self.flags & GROUP_BARE))

    @property
    def end(self) -> int:
        """The offset in the file at which the next group starts."""
        return aligned(self.payload_offset + self.payload_bytes)


@dataclass(frozen=True, slots=True)
class GroupTable:
    """The content of a group's table."""

    runs: tuple[RunRow, ...]
    records: tuple[StateRecord, ...]
    checksums: array[int]
    """The checksums of the blocks that start at or after the end of the table."""


class ColumnarBatch(NamedTuple):
    """Single entries of several ledgers, in columns.

    Their frames have one size and are back to back, and each is a run of its own.
    """

    ledger_ids: Sequence[int]
    entry_ids: Sequence[int]
    frame_size: int


class GroupEncoder:
    """Encodes one group: call `add` for each batch in order, then `finish`.

    Payloads are not copied, only checksummed.
    """

    def __init__(self, directory_id: bytes, segment: int, number: int, offset: int) -> None:
        self._place = (directory_id, segment, number, offset)
        self._rows: list[bytes] = []
        self._row_count = 0
        self._sizes: list[bytes] = []
        self._ids: list[bytes] = []
        self._records: list[bytes] = []
        self._payload: list[Buffer] = []
        self.payload_bytes = 0

    def add(
        self,
        runs: Iterable[RunLike] | ColumnarBatch,
        buffers: Iterable[Buffer],
        size_bytes: int,
        records: Iterable[StateRecord] = (),
    ) -> int:
        """Add runs with their frames, and state records.

        Return the offset of the buffers in the payload.

        `buffers` are the frames of the runs, which have `size_bytes` bytes in total. The
        `run_index` of a record counts the runs of this call.
        """
        base = self.payload_bytes
        for record in records:
            self._records.append(encode_record(record, self._row_count + record.run_index))
        if isinstance(runs, ColumnarBatch):
            self._add_columns(runs, base)
        else:
            for run in runs:
                self._add_run(run, base)
        self._payload.extend(buffers)
        self.payload_bytes = base + size_bytes
        return base

    def _add_columns(self, columns: ColumnarBatch, base: int) -> None:
        ledger_ids, entry_ids, size = columns
        count = len(ledger_ids)
        packed = {0: ledger_ids, 1: entry_ids, 3: range(base, base + size * count, size)}
        # The count (1) and the frame size are packed as one number, and the offset and flags (0)
        # as another.
        self._rows.append(pack_rows("<", "qqQQ", (0, 0, 1 | size << 32, 0), packed, count))
        self._row_count += count

    def _add_run(self, run: RunLike, base: int) -> None:
        size, ids, count = run.frame_size, run.ids, run.count
        if not size:
            assert run.sizes is not None
            assert len(run.sizes) == count
            self._sizes.append(little(run.sizes))
        if ids is not None:
            assert len(ids) == count
            self._ids.append(little(ids))
        flags = 0 if ids is None else ROW_HAS_IDS
        self._rows.append(
            RUN_ROW.pack(run.ledger_id, run.first, count, size, base + run.offset, flags)
        )
        self._row_count += 1

    def finish(self, flags: int = 0) -> EncodedGroup:
        """Return the finished group. `flags` are those of its header, such as `GROUP_LAST`."""
        fixed = b"".join((*self._rows, *self._sizes, *self._ids, *self._records))
        # The number of checksums depends on the end of the table, which depends on their number.
        # So there may be one too many, which is 0.
        room = self.payload_bytes // BLOCK_BYTES + 1
        start = GROUP_HEADER_BYTES + len(fixed) + 4 * room
        first_block = aligned(start)
        end = aligned(start + self.payload_bytes)
        padding = bytes(end - start - self.payload_bytes)
        head, rest = _split((*self._payload, padding), first_block - start)
        blocks = block_checksums(rest)
        table = fixed + little(blocks) + bytes(4 * (room - len(blocks)))
        directory_id, segment, number, offset = self._place
        header = GroupHeader(
            directory_id, segment, number, offset, self._row_count, len(self._records),
            len(table), flags, self.payload_bytes, _crc_of(head),
        )  # fmt: skip
        packed = _pack_group(header)
        start_bytes = b"".join((packed, _CRC.pack(crc32c(table, crc32c(packed))), table))
        checksums = block_checksums((start_bytes, *head))
        checksums.extend(blocks)
        return EncodedGroup(header, (start_bytes, *self._payload, padding), checksums)


class EncodedGroup(NamedTuple):
    """A group to be written."""

    header: GroupHeader
    buffers: tuple[Buffer, ...]
    """The buffers to write at the group's offset. Together they are whole blocks."""
    checksums: array[int]
    """The checksum of each block of the group, from its first block on."""


def _pack_group(header: GroupHeader) -> bytes:
    return _GROUP.pack(
        GROUP_MAGIC, header.directory_id, header.segment, header.number, header.offset,
        header.runs, header.records, header.table_bytes, header.flags, header.payload_bytes,
        header.head_crc,
    )  # fmt: skip


def _split(buffers: Iterable[Buffer], at: int) -> tuple[list[Buffer], list[Buffer]]:
    """Return the first `at` bytes of the joined buffers, and the rest, without copies."""
    head: list[Buffer] = []
    rest: list[Buffer] = []
    for buffer in buffers:
        size = len(buffer)
        if at <= 0:
            rest.append(buffer)
        elif size <= at:
            head.append(buffer)
        else:
            view = memoryview(buffer)
            head.append(view[:at])
            rest.append(view[at:])
        at -= size
    return head, rest


def _crc_of(buffers: Iterable[Buffer]) -> int:
    crc = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return crc


def decode_group_header(
    data: Buffer, at: int, directory_id: bytes, segment: int, offset: int
) -> GroupHeader | None:
    """Decode the header at `data[at:]` if it is one of this directory, segment and offset.

    Return None otherwise, and if its table would be longer than `MAX_TABLE_BYTES`. The header is
    not verified yet; `check_group_table` does that. The header may be of a later version: call
    `check_group_version` next.
    """
    if bytes(data[at : at + 7]) != GROUP_START or at + GROUP_HEADER_BYTES > len(data):
        return None
    header = GroupHeader(*_GROUP.unpack_from(data, at)[1:], data[at + 7])  # type: ignore[call-arg]
    if (header.directory_id, header.segment, header.offset) != (directory_id, segment, offset):
        return None
    return header if header.table_bytes <= MAX_TABLE_BYTES else None


def looks_like_group(data: Buffer, directory_id: bytes, segment: int) -> bool:
    """Return whether `data` starts with a header of this directory and segment.

    At most `WRONG_BYTES_MAX` bytes of its first fields may be wrong.
    """
    start = _GROUP_START.pack(GROUP_MAGIC, directory_id, segment)
    same = sum(a == b for a, b in zip(start, bytes(data[: len(start)])))
    return same >= len(start) - WRONG_BYTES_MAX


def check_group_table(data: Buffer, header: GroupHeader) -> bool:
    """Return whether header and table, at the start of `data`, match their checksum.

    Return False as well if `data` ends within the table.
    """
    end = GROUP_HEADER_BYTES + header.table_bytes
    if len(data) < end:
        return False
    view = memoryview(data)
    (crc,) = _CRC.unpack_from(view, _GROUP.size)
    return bool(crc == crc32c(view[GROUP_HEADER_BYTES:end], crc32c(view[: _GROUP.size])))


def check_group_version(header: GroupHeader) -> None:
    """Check the version and the flags of a header that was verified.

    Raises:
        VersionError: A later version wrote the group.
    """
    if header.version != GROUP_VERSION:
        raise VersionError(f"a group of version {header.version}", f"version {GROUP_VERSION}")
    if header.flags & ~GROUP_FLAGS:
        raise VersionError(
            f"a group with the flags {header.flags:#x}", f"the flags in {GROUP_FLAGS:#x}"
        )


def turned_table_length(data: Buffer, directory_id: bytes, segment: int, offset: int) -> bool:
    """Return whether header and table are valid after one bit of the table length is flipped.

    This finds the only wrong bit that hides the size of the table. If any other bit is wrong, the
    length in the header still says how many bytes belong to the table.
    """
    for bit in range(32):
        turned = bytearray(data)
        turned[_TABLE_BYTES_AT + bit // 8] ^= 1 << bit % 8
        header = decode_group_header(turned, 0, directory_id, segment, offset)
        if header is not None and check_group_table(turned, header):
            return True
    return False


def decode_group_table(data: Buffer, header: GroupHeader) -> GroupTable:
    """Decode the runs and records of a group whose table was verified. `data` starts at its header.

    Raises:
        FormatError: The table contradicts itself or the header.
        VersionError: A later version wrote the group.
    """
    check_group_version(header)
    view = memoryview(data)[GROUP_HEADER_BYTES : GROUP_HEADER_BYTES + header.table_bytes]
    rows_end = header.runs * RUN_ROW.size
    if rows_end > len(view):
        raise FormatError("the run table of a group in the segment is cut off")
    rows = list(RUN_ROW.iter_unpack(view[:rows_end]))
    sizes_at = rows_end
    ids_at = sizes_at + 4 * sum(row[2] for row in rows if not row[3])
    runs = []
    for ledger_id, first, count, frame_size, offset, flags in rows:
        if flags & ~ROW_HAS_IDS:
            raise VersionError(f"a run with the flags {flags:#x}", f"the flags in {ROW_HAS_IDS:#x}")
        sizes = ids = None
        if not frame_size:
            sizes = from_little("I", view[sizes_at : sizes_at + 4 * count])
            sizes_at += 4 * count
        if flags & ROW_HAS_IDS:
            ids = from_little("q", view[ids_at : ids_at + 8 * count])
            ids_at += 8 * count
        span = frame_size * count if sizes is None else sum(sizes)
        if not count or offset + span > header.payload_bytes:
            raise FormatError(
                "the run table of a group in the segment is damaged: one of its runs has no "
                "entries, or ends outside of the group"
            )
        runs.append(RunRow(ledger_id, first, count, offset, frame_size, sizes, ids))
    records, at = decode_records(view, ids_at, header.records)
    if (len(view) - at) != 4 * (header.payload_bytes // BLOCK_BYTES + 1):
        raise FormatError("the run table of a group in the segment has a wrong length")
    blocks = (header.end - header.offset - aligned(GROUP_HEADER_BYTES + len(view))) // BLOCK_BYTES
    return GroupTable(tuple(runs), tuple(records), from_little("I", view[at : at + 4 * blocks]))


def group_checksums(data: Buffer, header: GroupHeader, table: GroupTable) -> tuple[array[int], int]:
    """Return the checksum that each block of a group must have, and the number of damaged blocks.

    `data` is the group, whose table was verified. Blocks that are missing at its end count as
    damaged. If the block in which the table ends is damaged, its right checksum is unknown, and a
    wrong one is returned.
    """
    view = memoryview(data)
    start = GROUP_HEADER_BYTES + header.table_bytes
    front_end = aligned(start)
    expected = block_checksums((view[:front_end],))
    damaged = 0
    if len(view) < front_end or crc32c(view[start:front_end]) != header.head_crc:
        # The right checksum of this block is unknown, but it is not the one that it has.
        expected[-1] ^= 0xFFFFFFFF
        damaged += 1
    found = block_checksums((view[front_end : header.end - header.offset],))
    expected.extend(table.checksums)
    damaged += sum(a != b for a, b in zip(found, table.checksums))
    return expected, damaged + len(table.checksums) - len(found)
