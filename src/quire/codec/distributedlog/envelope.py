"""The envelope of an entry in segments of layout 4 and 5.

All integers are big-endian.

| offset | size | type   | field                                                                   |
|--------|------|--------|-------------------------------------------------------------------------|
| 0      | 1    | int8   | version, 1                                                              |
| 1      | 4    | uint32 | flags: bits 0 and 1 are the compression; the others are 0, or from a    |
|        |      |        | later version                                                           |
| 5      | 4    | int32  | length of the body in bytes, before compression                         |
| 9      | 4    | int32  | stored length in bytes                                                  |
| 13     |      |        | body: records, perhaps compressed; bytes after the stored length are    |
|        |      |        | ignored                                                                 |

Entries of older segments are bare records. The envelope has no checksum, because the entries of a
ledger have one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from quire._runtime.units import counted
from quire.codec.distributedlog.compression import (
    CODEC_BITS,
    Compression,
    check_lengths,
    compress,
    expand,
)
from quire.codec.distributedlog.limits import (
    BY,
    MAX_ENTRY_BYTES,
    MAX_EXPANDED_BYTES,
    LaterStreamFormatError,
    StreamFormatError,
)
from quire.codec.entry.digest import Buffer
from quire.errors import UsageError, written_later

VERSION = 1
HEAD = struct.Struct(">bIii")  # version, flags, length, stored length
MAX_BODY_BYTES = MAX_ENTRY_BYTES - HEAD.size


def wrap(
    parts: Sequence[Buffer], size_bytes: int, compression: Compression = Compression.NONE
) -> bytes:
    """Return the entry for a body, which is given as buffers with `size_bytes` bytes in total.

    Raises:
        UsageError: The body has more than `MAX_BODY_BYTES` bytes, so that a Java reader may refuse
            it, or the library for the compression is not installed.
    """
    if size_bytes > MAX_BODY_BYTES:
        raise UsageError(
            f"an entry of a stream cannot hold {size_bytes} bytes of records: the limit is "
            f"{MAX_BODY_BYTES} bytes"
        )
    if compression is Compression.NONE:
        entry = b"".join((HEAD.pack(VERSION, 0, size_bytes, size_bytes), *parts))
        assert len(entry) == HEAD.size + size_bytes
        return entry
    body = b"".join(parts)
    assert len(body) == size_bytes
    used, stored = compress(compression, body)
    return HEAD.pack(VERSION, used, size_bytes, len(stored)) + stored


def unwrap(entry: bytes) -> tuple[bytes, int, int]:
    """Return the body of an entry as (buffer, start, end).

    If the body is not compressed, the buffer is `entry`.

    Raises:
        LaterStreamFormatError: A later version wrote the envelope.
        StreamFormatError: The envelope is damaged.
        UsageError: The body is compressed, and the library for that is not installed.
    """
    if len(entry) < HEAD.size:
        raise StreamFormatError(
            f"the entry has {counted(len(entry), 'byte')}, too few for the header that every entry "
            "of a stream has"
        )
    version, flags, size, stored = HEAD.unpack_from(entry)
    if version > VERSION or flags & ~CODEC_BITS:
        raise LaterStreamFormatError(
            written_later(
                "the entry's envelope", f"version {version} and the flags {flags:#x}",
                f"version {VERSION} and the flags in {CODEC_BITS:#x}", by=BY,
            )
        )  # fmt: skip
    if version != VERSION:
        raise StreamFormatError(f"the entry's envelope has version {version}")
    code = flags & CODEC_BITS
    check_lengths(code, size, stored, len(entry) - HEAD.size)
    end = HEAD.size + stored
    if code == Compression.NONE:
        return entry, HEAD.size, end
    body = expand(memoryview(entry)[HEAD.size : end], size, MAX_EXPANDED_BYTES)
    return body, 0, size
