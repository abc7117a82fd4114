"""Protobuf's varints: 7 bits in each byte, the lowest bits first.

Negative numbers are 64-bit two's complement. Generated code reads and writes whole messages. These
functions are for code that handles many requests as columns (`wire/v3_adds`), and for the length
before binary ledger metadata.
"""

from __future__ import annotations

_VARINT_BYTES_MAX = 10
_MASK64 = (1 << 64) - 1


class WireError(ValueError):
    """The error for bytes that are not protobuf."""


_SMALL = [bytes((value,)) for value in range(0x80)]


def encode_varint(value: int) -> bytes:
    """Return a number as a varint."""
    if 0 <= value <= 0x7F:  # the usual case: field numbers, sizes, quorums
        return _SMALL[value]
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the unsigned number at `offset`, and the offset after it.

    Raises:
        WireError: The bytes end inside the number, or it is too long.
    """
    if offset < len(data) and data[offset] < 0x80:
        return data[offset], offset + 1
    value = 0
    for at in range(_VARINT_BYTES_MAX):
        if offset + at >= len(data):
            raise WireError("the bytes end within an encoded number (varint)")
        byte = data[offset + at]
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return value & _MASK64, offset + at + 1
    raise WireError("an encoded number (varint) has more than ten bytes")


def int64(value: int) -> int:
    """Return the signed value of an unsigned 64-bit number."""
    return value - (1 << 64) if value >> 63 else value
