"""The header of a segment file of a bookie's log, and the mark of a clean stop.

All integers are unsigned and little-endian, unlike those of the protocol, so that tables are moved
as whole arrays. Every checksum is a CRC-32C in 4 bytes. A block is 4,096 bytes. Groups start at
multiples of a block, so that a block that was synced is never written again.

A segment file is a header, then groups (see `group`), then a footer once it is sealed (see
`footer`). Until then the rest of the file is zeros, because it is preallocated.

Segment header, padded with zeros to whole blocks:

| offset | size | field                                                                         |
|--------|------|-------------------------------------------------------------------------------|
| 0      | 8    | "QSEGMENT"                                                                    |
| 8      | 4    | format version: 1; 3 if compaction wrote the segment with bare frames; 2 if   |
|        |      | an earlier version of compaction wrote it, with whole frames                  |
| 12     | 4    | length of the header in bytes, including the padding                          |
| 16     | 16   | directory id                                                                  |
| 32     | 8    | segment number                                                                |
| 40     | 8    | number of the first group                                                     |
| 48     | 8    | number of the previous segment, which ends with the previous group; 0: none   |
| 56     | 4    | number of ranges R                                                            |
| 60     | 4    | checksum of bytes 0..59 and of the ranges                                     |
| 64     | 16 R | ranges (first 8, last 8) of the other segments that exist                     |

Compaction replaces the file of a segment. The new header contains what the old one said about the
log. The groups are numbered from 0, and all state records are in the first group. The frames are
bare (see `group`), so that the response to a read of a whole ledger consists of bytes of the file.
The key of the ledger, which whole frames contain before each entry, is in a state record.

Mark of a clean stop, the file `log/CLEAN`:

| offset | size | field                                                                         |
|--------|------|-------------------------------------------------------------------------------|
| 0      | 8    | "QCLEAN" 00, and the version, 1 (1 byte)                                      |
| 8      | 16   | directory id                                                                  |
| 24     | 8    | number of the last segment                                                    |
| 32     | 8    | number of the next group                                                      |
| 40     | 4    | checksum of bytes 0..39                                                       |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from quire._runtime.units import counted
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
"""The format version of a segment that an earlier version of compaction wrote with whole ADD
frames."""
COMPACTED_VERSION = 3
"""The format version of a segment that compaction wrote with bare frames."""
ID_BYTES = 16

SEGMENT_MAGIC = b"QSEGMENT"
_CLEAN_START = b"QCLEAN\x00"
CLEAN_VERSION = 1
CLEAN_MAGIC = _CLEAN_START + bytes([CLEAN_VERSION])

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
    """The content of a segment header."""

    directory_id: bytes
    segment: int
    first_group: int
    previous: int
    """The number of the segment that ends where this one starts, or 0 if there is none. Its file
    may be gone."""
    live: tuple[tuple[int, int], ...]
    """The ranges (first, last) of the other segments that must exist, including missing ones that
    count as lost."""
    size_bytes: int = 0
    """The length of the header, including the padding. `decode_segment_header` sets it."""
    compacted: bool = False
    bare: bool = False
    """Whether the frames are bare, which is possible only if the segment was compacted."""


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending ranges (first, last) that contain exactly these numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def segment_header_size(ranges: int) -> int:
    """Return the length, in bytes, of a header with this number of ranges."""
    return aligned(_SEGMENT.size + _CRC.size + ranges * _RANGE.size)


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the bytes of a header, including the padding."""
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
    """Return the length that a header states in its first block. The checksum is not checked yet.

    Raises:
        FormatError: The block is not the start of a segment header.
    """
    if len(head) < _SEGMENT.size or bytes(head[:8]) != SEGMENT_MAGIC:
        raise FormatError("the segment file does not begin with a segment header")
    (size,) = _CRC.unpack_from(head, 12)
    if size % BLOCK_BYTES or not 0 < size <= MAX_TABLE_BYTES:
        raise FormatError(
            f"the header of the segment file states an invalid length of itself: "
            f"{counted(size, 'byte')}"
        )
    return int(size)


def decode_segment_header(data: Buffer) -> SegmentHeader:
    """Decode a whole header.

    Raises:
        FormatError: The header is damaged.
        VersionError: The header is valid, but a later version wrote the segment. Later versions do
            not change the header.
    """
    size = segment_header_bytes(data)
    _, version, _, directory_id, segment, first_group, previous, count = _SEGMENT.unpack_from(
        data, 0
    )
    end = _SEGMENT.size + _CRC.size + count * _RANGE.size
    if len(data) < size or end > size:
        raise FormatError("the header of the segment file is cut off")
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    view = memoryview(data)
    ranges = view[_SEGMENT.size + _CRC.size : end]
    if crc != crc32c(ranges, crc32c(view[: _SEGMENT.size])):
        raise FormatError("the header of the segment file does not match its checksum")
    if not FORMAT_VERSION <= version <= COMPACTED_VERSION:
        raise VersionError(
            f"log format {version}", f"the log formats {FORMAT_VERSION} to {COMPACTED_VERSION}"
        )
    return SegmentHeader(
        directory_id, segment, first_group, previous, tuple(_RANGE.iter_unpack(ranges)), size,
        version != FORMAT_VERSION, version == COMPACTED_VERSION,
    )  # fmt: skip


# -- the mark of a clean stop -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CleanMark:
    """The mark of a clean stop: the log ends with this segment, before this group."""

    directory_id: bytes
    last_segment: int
    next_group: int

    def encode(self) -> bytes:
        body = _CLEAN.pack(CLEAN_MAGIC, self.directory_id, self.last_segment, self.next_group)
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, data: Buffer) -> CleanMark:
        """Decode a mark.

        Raises:
            FormatError: The mark is damaged.
            VersionError: A later version wrote the mark.
        """
        if _is_later_mark(data):
            raise VersionError(
                f"version {data[len(_CLEAN_START)]} of this mark", f"version {CLEAN_VERSION}"
            )
        if len(data) != _CLEAN.size + _CRC.size:
            raise FormatError(
                f"the mark of a clean stop has {counted(len(data), 'byte')} instead of "
                f"{_CLEAN.size + _CRC.size}"
            )
        magic, directory_id, last_segment, next_group = _CLEAN.unpack_from(data, 0)
        (crc,) = _CRC.unpack_from(data, _CLEAN.size)
        if magic != CLEAN_MAGIC or crc != crc32c(memoryview(data)[: _CLEAN.size]):
            raise FormatError("the mark of a clean stop does not match its checksum")
        return cls(directory_id, last_segment, next_group)


def _is_later_mark(data: Buffer) -> bool:
    """Return whether a later version wrote this mark. Every version ends it with a checksum."""
    end = len(data) - _CRC.size
    start = len(_CLEAN_START)
    if end <= start or bytes(data[:start]) != _CLEAN_START or data[start] <= CLEAN_VERSION:
        return False
    (crc,) = _CRC.unpack_from(data, end)
    return bool(crc == crc32c(memoryview(data)[:end]))
