"""The envelope of a record: a key, headers and an event time in front of its value.

DistributedLog's records have none of these. A record with an envelope is an ordinary user record
whose payload begins with the envelope, and whose flag bit 15 is set (`ENVELOPE_FLAG`).
DistributedLog leaves bits 3 to 15 unused, writes them as 0, and ignores them on reading. A record
has an envelope only if it has both: the flag, which no payload can imitate, and the magic, which a
foreign use of the flag would lack. Members of record sets have no flags, and no envelopes.

All integers are big-endian.

| offset | size | field                                                                           |
|--------|------|---------------------------------------------------------------------------------|
| 0      | 4    | magic: fe 51 52 45                                                              |
| 4      | 1    | version, 1                                                                      |
| 5      | 1    | bit 0: it has a key; bit 1: it has an event time                                |
| 6      | 2    | number of headers                                                               |
| 8      | 4    | CRC-32 of bytes 0-7 and of bytes 12 up to the value                             |
| 12     | 4    | offset of the value                                                             |
| 16     | 8    | event time in microseconds since 1970 in UTC, if it has one                     |
|        | 4    | length of the key, and the key, if it has one                                   |
|        | 2    | for each header: length of its name, and the name in UTF-8                      |
|        | 4    | length of its value, and the value                                              |
|        |      | value, up to the end of the payload                                             |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from quire._runtime.units import counted
from quire.codec.distributedlog.limits import BY, LaterStreamFormatError, StreamFormatError
from quire.codec.entry.digest import Buffer
from quire.errors import UsageError, written_later

MAGIC = b"\xfeQRE"
"""The first bytes of an envelope. No text in UTF-8 begins with them."""
VERSION = 1
HEAD = struct.Struct(">4sBBHII")  # magic, version, parts, headers, CRC-32, offset of the value
HEAD_BYTES = HEAD.size
ENVELOPE_FLAG = 1 << 15
"""The bit of a record's metadata that says that its payload begins with an envelope."""

HAS_KEY = 1
HAS_EVENT_TIME = 2
HEADERS_MAX = 2**16 - 1
"""The largest number of headers of a record."""
HEADER_NAME_BYTES_MAX = 2**16 - 1
"""The largest size of a header's name in bytes."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The time that event times count from."""
EVENT_TIME_MIN_US = -62_135_596_800_000_000
"""The beginning of the year 1, in microseconds since 1970."""
EVENT_TIME_MAX_US = 253_402_300_799_999_999
"""The end of the year 9999, in microseconds since 1970."""

_CRC_AT = 8
_CRC_END = 12
_TIME = struct.Struct(">q")
_LONG = struct.Struct(">I")
_SHORT = struct.Struct(">H")


class RecordEnvelope(NamedTuple):
    """The content of an envelope."""

    key: bytes | None
    """The key, or None if there is none."""
    headers: dict[str, bytes]
    """The headers by name, in the order in which they are stored."""
    event_time_us: int | None
    """The event time in microseconds since 1970 in UTC, or None if there is none."""
    value_start: int
    """The offset of the first byte of the value in the buffer."""


def encode_envelope(
    value: Buffer,
    key: Buffer | None = None,
    headers: Mapping[str, Buffer] | None = None,
    event_time_us: int | None = None,
) -> bytes:
    """Return the payload of a record with an envelope.

    The record must also get the flag `ENVELOPE_FLAG`, as `record.encode_records` gives it.

    Args:
        value: The value of the record.
        key: The key, or None if there is none.
        headers: The headers by name, or None if there are none.
        event_time_us: The event time in microseconds since 1970 in UTC, or None if there is none.

    Raises:
        UsageError: There are too many headers, a name is too long or not UTF-8, or the event time
            is out of range.
    """
    parts: list[Buffer] = []
    has = 0
    if event_time_us is not None:
        if not EVENT_TIME_MIN_US <= event_time_us <= EVENT_TIME_MAX_US:
            raise UsageError(
                f"the event time of a record cannot be {event_time_us} microseconds since 1970: it "
                "must be in the years 1 to 9999"
            )
        has |= HAS_EVENT_TIME
        parts.append(_TIME.pack(event_time_us))
    if key is not None:
        has |= HAS_KEY
        parts += (_LONG.pack(len(key)), key)
    count = len(headers) if headers else 0
    if headers:
        if count > HEADERS_MAX:
            raise UsageError(f"a record has {count:,} headers, but at most {HEADERS_MAX:,} fit")
        for name, its_value in headers.items():
            encoded = _encoded_name(name)
            parts += (_SHORT.pack(len(encoded)), encoded, _LONG.pack(len(its_value)), its_value)
    content = b"".join(parts)
    size = HEAD_BYTES + len(content)
    head = HEAD.pack(MAGIC, VERSION, has, count, 0, size)
    crc = zlib.crc32(content, zlib.crc32(head[_CRC_END:], zlib.crc32(head[:_CRC_AT])))
    return b"".join((HEAD.pack(MAGIC, VERSION, has, count, crc, size), content, value))


def _encoded_name(name: str) -> bytes:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the header name {name[:80]!r} of a record cannot be encoded in UTF-8"
        ) from None
    if len(encoded) > HEADER_NAME_BYTES_MAX:
        raise UsageError(
            f"a header name of a record has {len(encoded):,} bytes, but at most "
            f"{HEADER_NAME_BYTES_MAX:,} are allowed"
        )
    return encoded


def decode_envelope(data: bytes, start: int = 0, end: int | None = None) -> RecordEnvelope:
    """Decode the envelope at the beginning of the payload in `data[start:end]`.

    If `end` is None, the payload ends with `data`.

    Raises:
        LaterStreamFormatError: A later version wrote the envelope.
        StreamFormatError: The envelope is damaged.
    """
    if end is None:
        end = len(data)
    if end - start < HEAD_BYTES:
        raise _damaged(f"it has only {counted(end - start, 'byte')}")
    magic, version, has, count, crc, size = HEAD.unpack_from(data, start)
    if magic != MAGIC:
        raise _damaged(f"it begins with {magic.hex()} instead of {MAGIC.hex()}")
    if version > VERSION:
        raise LaterStreamFormatError(
            written_later(
                "the envelope of a record", f"version {version}", f"version {VERSION}", by=BY
            )
        )
    if version != VERSION:
        raise _damaged(f"its version is {version}")
    stop = start + size
    if size < HEAD_BYTES or stop > end:
        raise _damaged(
            f"its value would begin at byte {size:,} of a payload of {counted(end - start, 'byte')}"
        )
    if zlib.crc32(data[start + _CRC_END : stop], zlib.crc32(data[start : start + _CRC_AT])) != crc:
        raise _damaged("its checksum is wrong")
    if has & ~(HAS_KEY | HAS_EVENT_TIME):
        known = HAS_KEY | HAS_EVENT_TIME
        raise LaterStreamFormatError(
            written_later(
                "the envelope of a record", f"the parts {has:#x}", f"the parts in {known:#x}", by=BY
            )
        )
    at = start + HEAD_BYTES
    event_time_us: int | None = None
    key: bytes | None = None
    headers: dict[str, bytes] = {}
    if has & HAS_EVENT_TIME:
        if at + _TIME.size > stop:
            raise _beyond("its event time")
        event_time_us = _TIME.unpack_from(data, at)[0]
        if not EVENT_TIME_MIN_US <= event_time_us <= EVENT_TIME_MAX_US:
            raise _damaged(
                f"its event time of {event_time_us} microseconds since 1970 is not in the years 1 "
                "to 9999"
            )
        at += _TIME.size
    if has & HAS_KEY:
        key, at = _sized(data, at, stop, _LONG, "its key")
    for number in range(count):
        encoded, at = _sized(data, at, stop, _SHORT, f"the name of header {number}")
        try:
            name = encoded.decode()
        except UnicodeDecodeError:
            raise _damaged(f"the name of header {number} is not UTF-8: {encoded[:80]!r}") from None
        if name in headers:
            raise _damaged(f"it has two headers with the name {name[:80]!r}")
        headers[name], at = _sized(data, at, stop, _LONG, f"header {name[:80]!r}")
    if at != stop:
        raise _damaged(f"it has {counted(stop - at, 'byte')} after its last part")
    return RecordEnvelope(key, headers, event_time_us, stop)


def _sized(data: bytes, at: int, stop: int, length: struct.Struct, what: str) -> tuple[bytes, int]:
    """Return the bytes after their length at `at`, and the offset after them."""
    begin = at + length.size
    if begin > stop:
        raise _beyond(what)
    (size,) = length.unpack_from(data, at)
    end = begin + size
    if end > stop:
        raise _beyond(what)
    return data[begin:end], end


def _beyond(what: str) -> StreamFormatError:
    return _damaged(f"{what} reaches beyond its end")


def _damaged(why: str) -> StreamFormatError:
    return StreamFormatError(f"the envelope of a record is damaged: {why}")
