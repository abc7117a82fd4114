"""A second encoder of record envelopes, from the table in docs/reference/streams-format.md.

It shares no code with the product, so that a mistake there is not repeated here.
"""

from __future__ import annotations

import zlib

MICROSECONDS_MODULUS = 2**64


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def envelope(
    value: bytes,
    key: bytes | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    event_time_us: int | None = None,
    *,
    version: int = 1,
    parts: int | None = None,
    count: int | None = None,
    extra: bytes = b"",
) -> bytes:
    """Return the payload of a record with an envelope.

    Keyword arguments make it differ from the documented format.
    """
    flags = (key is not None) + 2 * (event_time_us is not None)
    content = b""
    if event_time_us is not None:
        content += number(event_time_us % MICROSECONDS_MODULUS, 8)
    if key is not None:
        content += number(len(key), 4) + key
    for name, one in headers:
        content += number(len(name), 2) + name + number(len(one), 4) + one
    content += extra
    head = b"\xfeQRE" + number(version, 1) + number(flags if parts is None else parts, 1)
    head += number(len(headers) if count is None else count, 2)
    start = number(16 + len(content), 4)
    return head + number(zlib.crc32(head + start + content), 4) + start + content + value
