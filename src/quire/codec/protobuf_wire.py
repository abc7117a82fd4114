"""The binary form of protobuf, as far as BookKeeper's metadata needs it.

| part             | bytes                                                    |
|------------------|----------------------------------------------------------|
| field            | varint of `number << 3 \\| wire type`, then its value     |
| wire type 0      | varint: 7 bits per byte, low bits first; negative numbers |
|                  | as 64-bit two's complement, ten bytes                    |
| wire type 2      | varint length, then that many bytes                      |
| wire types 1, 5  | 8 and 4 bytes: never used by these messages, skipped     |

Written by hand because the metadata messages are few and small, and because the bytes must not
depend on which version of a code generator happens to be installed.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_FIXED_SIZE_BYTES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES_MAX = 10
_MASK64 = (1 << 64) - 1


class WireError(ValueError):
    """The bytes are not a protobuf message."""


_SMALL = [bytes((value,)) for value in range(0x80)]


def encode_varint(value: int) -> bytes:
    if 0 <= value <= 0x7F:  # most are: field numbers, sizes, quorums
        return _SMALL[value]
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The unsigned value at `offset` and the offset behind it."""
    if offset < len(data) and data[offset] < 0x80:
        return data[offset], offset + 1
    value = 0
    for at in range(_VARINT_BYTES_MAX):
        if offset + at >= len(data):
            raise WireError("the bytes end inside a number")
        byte = data[offset + at]
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return value & _MASK64, offset + at + 1
    raise WireError("a number is longer than ten bytes")


def int64(value: int) -> int:
    """The signed meaning of a varint."""
    return value - (1 << 64) if value >> 63 else value


def int32(value: int) -> int:
    """The signed meaning of a varint in a 32-bit field: its low 32 bits, as Java reads them."""
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def int_field(number: int, value: int) -> bytes:
    return encode_varint(number << 3 | _VARINT) + encode_varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    return bytes_field(number, value.encode())


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in the order of the bytes. Fixed-size fields are left out: none of our
    messages has one, so they can only be fields that we do not know."""
    offset = 0
    while offset < len(data):
        key, offset = decode_varint(data, offset)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError("field number 0")
        if wire_type == _VARINT:
            value, offset = decode_varint(data, offset)
            yield number, value
        elif wire_type == _BYTES:
            size, offset = decode_varint(data, offset)
            if size > len(data) - offset:
                raise WireError(f"the bytes end inside field {number}")
            yield number, data[offset : offset + size]
            offset += size
        elif wire_type in _FIXED_SIZE_BYTES:
            offset += _FIXED_SIZE_BYTES[wire_type]
            if offset > len(data):
                raise WireError(f"the bytes end inside field {number}")
        else:
            raise WireError(f"field {number} has wire type {wire_type}")
