"""The dates between which an X.509 certificate is valid, read from its DER encoding.

Python's `ssl` decodes a certificate only if the other side of a connection has presented it and it
was verified. A process must also know when its own certificate expires, and that of a bookie whose
certificate was refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

_INTEGER, _SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x02, 0x30, 0x17, 0x18, 0xA0
_CENTURY_AT = 50
"""A year of two digits below this number is in the 21st century (RFC 5280, 4.1.2.5.1)."""
LENGTH_BYTES_MAX = 4


class BadCertificateError(ValueError):
    """The error for bytes that are not a certificate."""


@dataclass(frozen=True, slots=True)
class ValidDates:
    """The time in which a certificate is valid, as Unix times in milliseconds."""

    begins_ms: int
    ends_ms: int


def valid_dates(der: bytes) -> ValidDates:
    """Return the dates of a certificate in its DER encoding.

    Raises:
        BadCertificateError: The bytes are not a certificate.
    """
    _, outer, _ = _element(der, 0, _SEQUENCE)
    _, fields, _ = _element(outer, 0, _SEQUENCE)
    at = 0
    if fields[:1] == bytes([_VERSION]):  # certificates of version 1 do not have it
        _, _, at = _element(fields, at)
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serial number, signature algorithm, issuer
        _, _, at = _element(fields, at, tag)
    _, dates, _ = _element(fields, at, _SEQUENCE)
    tag, begins, at = _element(dates, 0)
    begins_ms = _time_ms(tag, begins)
    tag, ends, _ = _element(dates, at)
    return ValidDates(begins_ms, _time_ms(tag, ends))


def _element(data: bytes, at: int, wanted: int | None = None) -> tuple[int, bytes, int]:
    """Return the element at an offset as (tag, contents, offset after it).

    Raises:
        BadCertificateError: The element is incomplete, or its tag is not `wanted`.
    """
    head = data[at : at + 2]
    if len(head) < 2 or (wanted is not None and head[0] != wanted):
        raise BadCertificateError(f"the certificate has no element {wanted} at byte {at}")
    length, start = head[1], at + 2
    if length & 0x80:
        size = length & 0x7F
        if not 1 <= size <= LENGTH_BYTES_MAX:
            raise BadCertificateError(f"the certificate has a bad length at byte {at}")
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    end = start + length
    if end > len(data):
        raise BadCertificateError(f"the certificate ends within the element at byte {at}")
    return head[0], data[start:end], end


def _time_ms(tag: int, value: bytes) -> int:
    text = value.decode("ascii", "replace")
    if tag == _UTC_TIME and text[:2].isdecimal():
        text = ("20" if int(text[:2]) < _CENTURY_AT else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise BadCertificateError("the certificate has no dates")
    try:
        found = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise BadCertificateError(f"{text!r} in the certificate is not a date") from None
    return int(found.timestamp()) * 1000
