"""Putting keys, headers and event times in front of the values of records.

`quire.codec.distributedlog.record_envelope` describes the bytes. A record without any of the three
stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from quire.client.write.writer import payload_bytes
from quire.codec.distributedlog.record_envelope import EPOCH, encode_envelope
from quire.codec.wire.v2 import Buffer
from quire.errors import ArgumentTypeError, UsageError

T = TypeVar("T")

Text = Buffer | str
"""Bytes, or a text that is encoded in UTF-8."""
Headers = Mapping[str, Text]
"""The headers of a record by name."""

MICROSECOND = timedelta(microseconds=1)


def sealed(
    payloads: Sequence[bytes],
    keys: Sequence[Text | None] | None,
    headers: Sequence[Headers | None] | None,
    event_times: Sequence[datetime | None] | None,
) -> tuple[Sequence[bytes], bytes]:
    """Return the payloads with their envelopes, and which of them have one.

    Args:
        payloads: The value of each record.
        keys: The key of each record, or None if no record has one.
        headers: The headers of each record, or None if no record has any.
        event_times: The event time of each record, or None if no record has one.

    Returns:
        The payloads, and one byte for each: 1 if it begins with an envelope, else 0. The bytes are
            empty if no payload begins with one.

    Raises:
        UsageError: An argument is not valid.
    """
    count = len(payloads)
    given_keys: Sequence[Text | None] = each_given("keys", keys, count)
    checked_keys = [
        None if key is None else text_bytes(key, "the key of a record") for key in given_keys
    ]
    checked_headers = [_headers(one) for one in each_given("headers", headers, count)]
    times_us = [
        None if moment is None else _microseconds(moment)
        for moment in each_given("event_times", event_times, count)
    ]
    return seal(payloads, checked_keys, checked_headers, times_us)


def seal(
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None],
    headers: Sequence[Mapping[str, bytes] | None],
    times_us: Sequence[int | None],
) -> tuple[Sequence[bytes], bytes]:
    """Return the payloads with their envelopes, and one byte for each: 1 if it has an envelope.

    The bytes are empty if no payload has one. Times are in microseconds since 1970. `sealed` does
    the same for the types that applications pass. Raises UsageError for what the format cannot
    store.
    """
    flags = bytearray(len(payloads))
    found = list(payloads)
    for at, (payload, key, named, time_us) in enumerate(zip(payloads, keys, headers, times_us)):
        if key is None and time_us is None and not named:
            continue
        found[at] = encode_envelope(payload, key, named, time_us)
        flags[at] = 1
    return found, bytes(flags) if 1 in flags else b""


def each_given(name: str, given: Sequence[T | None] | None, count: int) -> Sequence[T | None]:
    """Return the items of an argument with one item for each of `count` records.

    If the argument was not given, each item is None. Raises ArgumentTypeError if the argument is
    not a sequence, and UsageError if it has another number of items.
    """
    if given is None:
        return (None,) * count
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise ArgumentTypeError(
            f"the argument {name} must be a list with one item for each record, not "
            f"{type(given).__name__}. Nothing was appended"
        )
    if len(given) != count:
        raise UsageError(
            f"the argument {name} needs one item for each record, but it has {len(given):,} for "
            f"{count:,} records. Nothing was appended",
            remedy="Pass None for a record without one",
        )
    return given


def text_bytes(given: Any, what: str) -> bytes:
    """Return bytes unchanged, and a text in UTF-8. `what` names the value in an error.

    Raises ArgumentTypeError for another type, and UsageError for a text that cannot be encoded.
    """
    if not isinstance(given, str):
        try:
            return payload_bytes(given, what)
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{what} must be bytes or a text, not {type(given).__name__}. Nothing was appended",
                remedy="Pass a number as text: str(number)" if isinstance(given, int) else None,
            ) from None
    try:
        return given.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{what} cannot be encoded in UTF-8: {given[:80]!r}. Nothing was appended",
            remedy="Pass bytes",
        ) from None


def _headers(given: Headers | None) -> dict[str, bytes] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"the headers of a record must be a dictionary, not {type(given).__name__}. Nothing "
            "was appended"
        )
    for name in given:
        if not isinstance(name, str):
            raise ArgumentTypeError(
                f"the name of a header must be str, not {type(name).__name__}. Nothing was appended"
            )
    return {
        name: text_bytes(value, f"header {name!r} of a record") for name, value in given.items()
    }


def _microseconds(moment: datetime) -> int:
    if not isinstance(moment, datetime):
        raise ArgumentTypeError(
            f"the event time of a record must be a datetime, not {type(moment).__name__}. Nothing "
            "was appended",
            remedy="Convert seconds since 1970 with datetime.fromtimestamp(seconds, UTC)",
        )
    if moment.tzinfo is None:
        raise UsageError(
            f"the event time {moment.isoformat()} of a record has no time zone. Nothing was "
            "appended",
            remedy="Use a time with a zone, such as datetime.now(UTC)",
        )
    return (moment - EPOCH) // MICROSECOND
