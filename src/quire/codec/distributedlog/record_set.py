"""Record sets: many records of one producer in one record.

The set is the payload of the record. All integers are 4 bytes wide, signed and big-endian.

| offset | size | field                                                                           |
|--------|------|---------------------------------------------------------------------------------|
| 0      | 4    | 0x1000 (the version), and the compression in bits 0 and 1                       |
| 4      | 4    | number of members                                                               |
| 8      | 4    | length of the body in bytes, before compression                                 |
| 12     | 4    | stored length in bytes                                                          |
| 16     |      | body, perhaps compressed: for each member its length in bytes (4) and its bytes |

Members have no header of their own. They share the txid of the set. The first member has the
position and slot of the set, and the others have the following ones.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from quire._runtime.units import counted
from quire.codec.distributedlog.compression import (
    CODEC_BITS,
    Compression,
    check_lengths,
    expand,
)
from quire.codec.distributedlog.limits import BY, LaterStreamFormatError, StreamFormatError
from quire.errors import written_later

VERSION = 0x1000
VERSION_BITS = 0xF000
HEAD = struct.Struct(">Iiii")  # version and compression, members, length, stored length
LENGTH = struct.Struct(">i")


class Members(NamedTuple):
    """The offsets at which the members of a set begin and end."""

    body: bytes | None
    """The buffer to which the offsets refer, or None for the buffer that contains the set."""
    starts: Sequence[int]
    ends: Sequence[int]


def member_count(data: bytes, start: int, end: int) -> int:
    """Return the number of members in the header of the set in `data[start:end]`.

    Raises:
        LaterStreamFormatError: A later version wrote the set.
        StreamFormatError: The header is damaged.
    """
    return _head(data, start, end)[1]


def member_bounds(data: bytes, start: int, end: int, limit_bytes: int) -> Members:
    """Return the offsets of the members of the set in `data[start:end]`.

    A compressed body may expand to at most `limit_bytes`.

    Raises:
        LaterStreamFormatError: A later version wrote the set.
        StreamFormatError: The set is damaged, has fewer or more bytes than its members, or would
            expand to more than `limit_bytes`.
        UsageError: The body is compressed, and the library for that is not installed.
    """
    word, count, size, stored = _head(data, start, end)
    at = start + HEAD.size
    check_lengths(word & CODEC_BITS, size, stored, end - at)
    if at + stored != end:
        raise StreamFormatError(
            f"a record set in the entry is damaged: it has {counted(end - at - stored, 'byte')} "
            "after its members"
        )
    if word & CODEC_BITS == Compression.NONE:
        return Members(None, *_walk(data, at, end, count))
    body = expand(memoryview(data)[at:end], size, limit_bytes)
    return Members(body, *_walk(body, 0, size, count))


def _head(data: bytes, start: int, end: int) -> tuple[int, int, int, int]:
    if end - start < HEAD.size:
        raise StreamFormatError(
            f"a record set in the entry is damaged: it has {counted(end - start, 'byte')}, fewer "
            "than its header"
        )
    word, count, size, stored = HEAD.unpack_from(data, start)
    version, flags = word & VERSION_BITS, word & ~(VERSION_BITS | CODEC_BITS)
    if version > VERSION or flags:
        more = f" and the flags {flags:#x}" if flags else ""
        found, known = f"version {version:#x}{more}", f"version {VERSION:#x} without flags"
        raise LaterStreamFormatError(written_later("the record set", found, known, by=BY))
    if version != VERSION:
        raise StreamFormatError(f"the record set has version {version:#x}")
    if count < 0:
        raise StreamFormatError(
            f"a record set in the entry is damaged: its number of members is {count}"
        )
    return word, count, size, stored


def _walk(data: bytes, at: int, end: int, count: int) -> tuple[list[int], list[int]]:
    if count * LENGTH.size > end - at:
        raise StreamFormatError(
            f"a record set in the entry is damaged: it has {counted(end - at, 'byte')}, too few "
            f"for {counted(count, 'member')}"
        )
    starts: list[int] = []
    ends: list[int] = []
    unpack = LENGTH.unpack_from
    for _ in range(count):
        start = at + LENGTH.size
        if start > end:
            raise StreamFormatError(
                f"a record set in the entry is damaged: it ends before the last of its {count} "
                "members"
            )
        (size,) = unpack(data, at)
        at = start + size
        if size < 0 or at > end:
            raise StreamFormatError(
                f"a record set in the entry is damaged: a member of {counted(size, 'byte')} does "
                "not fit into it"
            )
        starts.append(start)
        ends.append(at)
    if at != end:
        raise StreamFormatError(
            f"a record set in the entry is damaged: it has {counted(end - at, 'byte')} after its "
            f"{counted(count, 'member')}"
        )
    return starts, ends
