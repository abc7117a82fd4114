"""The compression of entries and of record sets.

| code | name | stored form                                                                      |
|------|------|----------------------------------------------------------------------------------|
| 0    | none | the body; both lengths in the header are equal                                   |
| 1    | lz4  | one raw LZ4 block, without frame, length or checksum                             |
| 2, 3 |      | undefined; Java reads such a body as uncompressed, and Quire refuses it          |

The format has no code for snappy or zstd. The library for LZ4 is loaded when it is first needed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import lru_cache

from quire._runtime.units import counted
from quire.codec.distributedlog.limits import BY, LaterStreamFormatError, StreamFormatError
from quire.codec.entry.digest import Buffer
from quire.errors import UsageError, written_later

CODEC_BITS = 0b11


class Compression(enum.IntEnum):
    """A compression method that the format has a code for."""

    NONE = 0
    LZ4 = 1

    @classmethod
    def parse(cls, name: str) -> Compression:
        """Return the compression method with this name, such as "lz4" or "none".

        Raises:
            UsageError: There is no such compression.
        """
        try:
            return cls[name.upper()]
        except KeyError:
            raise UsageError(
                f"{name!r} is not a compression of streams",
                remedy="Use none or lz4: the format of streams has no others",
            ) from None


class _Lz4:
    """The two functions of the LZ4 library that are used, with their types."""

    compress: Callable[[Buffer], bytes]
    decompress: Callable[[Buffer, int], bytes]

    def __init__(self) -> None:
        try:
            from lz4.block import LZ4BlockError, compress, decompress
        except ImportError:
            raise UsageError(
                "a compressed stream cannot be read or written: the Python package lz4 is not "
                "installed",
                remedy="Install it with: pip install lz4",
            ) from None
        error: type[Exception] = LZ4BlockError

        def pack(data: Buffer) -> bytes:
            block: bytes = compress(data, store_size=False)
            return block

        def unpack(block: Buffer, size: int) -> bytes:
            try:
                data: bytes = decompress(block, uncompressed_size=size)
            except (error, ValueError) as reason:
                raise StreamFormatError(
                    f"an LZ4-compressed body of the entry is damaged: {reason}"
                ) from None
            return data

        self.compress = pack
        self.decompress = unpack


@lru_cache(maxsize=1)
def _lz4() -> _Lz4:
    return _Lz4()


def check_available(name: str) -> None:
    """Check that bodies can be compressed with the method of this name.

    Raises:
        UsageError: There is no such compression, or the library for it is not installed.
    """
    if Compression.parse(name) is Compression.LZ4:
        _lz4()


def compress(compression: Compression, body: bytes) -> tuple[Compression, bytes]:
    """Return the stored form of a body, and the code for its header.

    A body that would not become shorter is kept as it is.

    Raises:
        UsageError: The library for LZ4 is not installed.
    """
    if compression is Compression.LZ4 and body:
        stored = _lz4().compress(body)
        if len(stored) < len(body):
            return Compression.LZ4, stored
    return Compression.NONE, body


def check_lengths(code: int, size_bytes: int, stored_bytes: int, room_bytes: int) -> None:
    """Check the three numbers of a header against each other and against the bytes that follow it.

    The numbers are the compression code, the size before compression and the stored size.

    Raises:
        LaterStreamFormatError: The compression code is unknown.
        StreamFormatError: The sizes do not fit together.
    """
    if code > Compression.LZ4:
        found, known = f"compression code {code}", f"the codes 0 to {Compression.LZ4:d}"
        raise LaterStreamFormatError(written_later("the body", found, known, by=BY))
    if size_bytes < 0 or stored_bytes < 0:
        raise StreamFormatError(
            "the header of the entry or of a record set in it has a negative length: "
            f"{size_bytes} bytes, {stored_bytes} stored"
        )
    if stored_bytes > room_bytes:
        raise StreamFormatError(
            "the header of the entry or of a record set in it gives a "
            f"stored length of {counted(stored_bytes, 'byte')}, but only {room_bytes:,} follow"
        )
    if code == Compression.NONE and size_bytes != stored_bytes:
        raise StreamFormatError(
            "the header of the entry or of a record set in it has different lengths "
            f"({size_bytes:,} and {counted(stored_bytes, 'byte')}), although its body is not "
            "compressed"
        )


def expand(block: Buffer, size_bytes: int, limit_bytes: int) -> bytes:
    """Return the `size_bytes` bytes of an LZ4 block.

    Raises:
        StreamFormatError: The block is damaged, expands to another number of bytes, or to more than
            `limit_bytes`.
        UsageError: The library for LZ4 is not installed.
    """
    if size_bytes > limit_bytes:
        raise StreamFormatError(
            "an LZ4-compressed body of the entry claims to expand to "
            f"{counted(size_bytes, 'byte')}, but at most {limit_bytes:,} are allowed"
        )
    if not size_bytes and not len(block):
        return b""
    data = _lz4().decompress(block, size_bytes)
    if len(data) != size_bytes:
        raise StreamFormatError(
            f"an LZ4-compressed body of the entry expands to {counted(len(data), 'byte')}, but "
            f"its header says {size_bytes:,}"
        )
    return data
