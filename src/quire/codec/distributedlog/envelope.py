"""The envelope of an entry, in segments of layout 4 and 5 (distributedlog spec, 3.1).

0   1  version, 1
1   4  flags: bits 0 and 1 the compression, the rest is written as 0 and not looked at
5   4  length of the body, not compressed
9   4  stored length
13     body: records, perhaps compressed. What follows the stored length is not looked at

Entries of older segments are the bare records. Nothing here has a checksum: the ledger has one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from quire.codec.distributedlog.compression import (
    CODEC_BITS,
    Compression,
    check_lengths,
    compress,
    expand,
)
from quire.codec.distributedlog.limits import MAX_ENTRY_BYTES, MAX_EXPANDED_BYTES, StreamFormatError
from quire.codec.entry.digest import Buffer
from quire.errors import UsageError

VERSION = 1
HEAD = struct.Struct(">bIii")  # version, flags, length, stored length
MAX_BODY_BYTES = MAX_ENTRY_BYTES - HEAD.size


def wrap(
    parts: Sequence[Buffer], size_bytes: int, compression: Compression = Compression.NONE
) -> bytes:
    """The entry of a body that is given in parts, `size_bytes` in total.

    Raises UsageError for more than MAX_BODY_BYTES: a Java reader need not take it.
    """
    if size_bytes > MAX_BODY_BYTES:
        raise UsageError(f"{size_bytes} bytes of records are too many for an entry of a stream")
    if compression is Compression.NONE:
        entry = b"".join((HEAD.pack(VERSION, 0, size_bytes, size_bytes), *parts))
        assert len(entry) == HEAD.size + size_bytes
        return entry
    body = b"".join(parts)
    assert len(body) == size_bytes
    used, stored = compress(compression, body)
    return HEAD.pack(VERSION, used, size_bytes, len(stored)) + stored


def unwrap(entry: bytes) -> tuple[bytes, int, int]:
    """(buffer, start, end) of the body: within `entry` itself where it is not compressed.

    Raises StreamFormatError.
    """
    if len(entry) < HEAD.size:
        raise StreamFormatError(f"{len(entry)} bytes are too few for an entry of a stream")
    version, flags, size, stored = HEAD.unpack_from(entry)
    if version != VERSION:
        raise StreamFormatError(f"the entry's envelope has version {version}, known is {VERSION}")
    code = flags & CODEC_BITS
    check_lengths(code, size, stored, len(entry) - HEAD.size)
    end = HEAD.size + stored
    if code == Compression.NONE:
        return entry, HEAD.size, end
    body = expand(memoryview(entry)[HEAD.size : end], size, MAX_EXPANDED_BYTES)
    return body, 0, size
