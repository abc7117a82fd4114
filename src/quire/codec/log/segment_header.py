"""A segment file of a bookie's log: its header, and the mark of a clean stop (groups: `log_group`,
footers: `log_footer`).

All integers are little-endian, unlike the wire's: tables are then moved as whole arrays. Every
checksum is CRC-32C. A block is 4,096 bytes. Groups start at multiples of a block, so that a block
that was synced is never written again.

Segment file: header | group | group | ... | footer once sealed (else zeros: it is preallocated).

Segment header, padded with zeros to whole blocks:

| offset | size | field                                                              |
|--------|------|--------------------------------------------------------------------|
| 0      | 8    | "QSEGMENT"                                                         |
| 8      | 4    | format version: 1; where a compaction wrote the segment 3, before  |
|        |      | that 2, whose frames are those of version 1                        |
| 12     | 4    | header length in bytes, padding included                           |
| 16     | 16   | directory id                                                       |
| 32     | 8    | segment number                                                     |
| 40     | 8    | number of the first group                                          |
| 48     | 8    | number of the segment before, which ends with the group before; 0: |
|        |      | there is none                                                      |
| 56     | 4    | number of ranges R                                                 |
| 60     | 4    | checksum of bytes 0..59 and of the ranges                          |
| 64     | 16 R | ranges (first, last) of the segments that exist, this one excluded |

A compaction puts a new file in the place of a segment: its header says what the old one said about
the log, its groups are numbered from 0 on, and its state records all stand in the first one. Its
frames are bare (see `log_group`): what a reader of the whole ledger gets are the bytes of the file.
What stood before the entries, the ledger's key, is among the state records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from quire.codec.entry.digest import crc32c
from quire.codec.log.state_records import (
    BLOCK_BYTES,
    MAX_TABLE_BYTES,
    Buffer,
    FormatError,
    VersionError,
    aligned,
)

FORMAT_VERSION = 1
FRAMED_COMPACTED_VERSION = 2
"""Of a segment that a compaction wrote with whole ADD frames, as it did once."""
COMPACTED_VERSION = 3
"""Of a segment that a compaction wrote."""
ID_BYTES = 16

SEGMENT_MAGIC = b"QSEGMENT"
CLEAN_MAGIC = b"QCLEAN\x00\x01"

_SEGMENT = struct.Struct(
    "<"
    "8s"  # magic
    "I"  # format version
    "I"  # header length
    "16s"  # directory id
    "Q"  # segment number
    "Q"  # first group
    "Q"  # segment before
    "I"  # ranges
)
_RANGE = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_CLEAN = struct.Struct("<8s16sQQ")  # magic, directory id, last segment, next group


# -- segment header ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    directory_id: bytes
    segment: int
    first_group: int
    previous: int
    """The segment that ends where this one starts; it may be gone. 0: there is none."""
    live: tuple[tuple[int, int], ...]
    """Ranges (first, last) of the other segments that exist."""
    size_bytes: int = 0
    """Padding included; filled in by `decode_segment_header`."""
    compacted: bool = False
    bare: bool = False
    """Its frames are. Only of one that is compacted."""


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending ranges (first, last) that cover just these numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def segment_header_size(ranges: int) -> int:
    """Length in bytes of a header with so many ranges."""
    return aligned(_SEGMENT.size + _CRC.size + ranges * _RANGE.size)


def encode_segment_header(header: SegmentHeader) -> bytes:
    ranges = b"".join(_RANGE.pack(first, last) for first, last in header.live)
    used = _SEGMENT.size + _CRC.size + len(ranges)
    size = segment_header_size(len(header.live))
    version = FORMAT_VERSION
    if header.compacted:
        version = COMPACTED_VERSION if header.bare else FRAMED_COMPACTED_VERSION
    fixed = _SEGMENT.pack(
        SEGMENT_MAGIC, version, size, header.directory_id, header.segment,
        header.first_group, header.previous, len(header.live),
    )  # fmt: skip
    crc = crc32c(ranges, crc32c(fixed))
    return fixed + _CRC.pack(crc) + ranges + bytes(size - used)


def segment_header_bytes(head: Buffer) -> int:
    """How long the header that starts with `head` (one block) says it is; not yet checked."""
    if len(head) < _SEGMENT.size or bytes(head[:8]) != SEGMENT_MAGIC:
        raise FormatError("no segment header")
    (size,) = _CRC.unpack_from(head, 12)
    if size % BLOCK_BYTES or not 0 < size <= MAX_TABLE_BYTES:
        raise FormatError(f"a segment header of {size} bytes")
    return int(size)


def decode_segment_header(data: Buffer) -> SegmentHeader:
    """The whole header; `FormatError` where it does not check, `VersionError` where it does but a
    later version wrote it (which keeps the header as it is)."""
    size = segment_header_bytes(data)
    _, version, _, directory_id, segment, first_group, previous, count = _SEGMENT.unpack_from(
        data, 0
    )
    end = _SEGMENT.size + _CRC.size + count * _RANGE.size
    if len(data) < size or end > size:
        raise FormatError("a segment header is cut off")
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    view = memoryview(data)
    ranges = view[_SEGMENT.size + _CRC.size : end]
    if crc != crc32c(ranges, crc32c(view[: _SEGMENT.size])):
        raise FormatError("a segment header does not match its checksum")
    if not FORMAT_VERSION <= version <= COMPACTED_VERSION:
        raise VersionError(f"log format {version}, this is {COMPACTED_VERSION}")
    return SegmentHeader(
        directory_id, segment, first_group, previous, tuple(_RANGE.iter_unpack(ranges)), size,
        version != FORMAT_VERSION, version == COMPACTED_VERSION,
    )  # fmt: skip


# -- the mark of a clean stop -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CleanMark:
    """Left behind by a clean stop: the log ends with this segment, before this group."""

    directory_id: bytes
    last_segment: int
    next_group: int

    def encode(self) -> bytes:
        body = _CLEAN.pack(CLEAN_MAGIC, self.directory_id, self.last_segment, self.next_group)
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, data: Buffer) -> CleanMark:
        if len(data) != _CLEAN.size + _CRC.size:
            raise FormatError(f"a clean mark of {len(data)} bytes")
        magic, directory_id, last_segment, next_group = _CLEAN.unpack_from(data, 0)
        (crc,) = _CRC.unpack_from(data, _CLEAN.size)
        if magic != CLEAN_MAGIC or crc != crc32c(memoryview(data)[: _CLEAN.size]):
            raise FormatError("a clean mark does not match its checksum")
        return cls(directory_id, last_segment, next_group)
