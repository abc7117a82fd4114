"""The content of Quire's control records, which are stored in order with the records of a stream.

Readers of Apache never deliver them to an application. All integers are big-endian; lengths and
counts are unsigned, and other numbers signed.

    "quire:1 "   8  marks a control record of Quire, with the version 1
    items           one after the other: kind (1), length of the content in bytes (4), content

| kind | item            | content                                                            |
|------|-----------------|--------------------------------------------------------------------|
| `p`  | producer mark   | first sequence (8), count (4), producer id                         |
| `s`  | producers       | number (4), then for each, in the order of the ids: last sequence  |
|      |                 | (8), its position (3 x 8), length of the id (1), id                |
| `f`  | fencing token   | the token                                                          |
| `t`  | creation time   | milliseconds since 1970 (8)                                        |

Ids and tokens are UTF-8. An item of an unknown kind is skipped. An item that a reader must not skip
requires another version, at which every reader stops. Payloads that do not begin with `quire:` were
written by other programs: `control` and `keepalive` are Apache's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quire._runtime.units import counted
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import LaterStreamFormatError, StreamFormatError
from quire.errors import UsageError, written_later

OURS = b"quire:"
MAGIC = OURS + b"1 "
MAX_ID_BYTES = 64
"""The largest size, in bytes of UTF-8, of a producer id and of a fencing token."""
MAX_PRODUCERS = 8_192
"""The largest number of producers in one list, so that the list always fits into a record."""
MAX_SEQUENCE = 2**63 - 1

ITEM = struct.Struct(">cI")  # kind, length
MARK = struct.Struct(">qI")  # first sequence, count; then the id
COUNT = struct.Struct(">I")
PRODUCER = struct.Struct(">qqqqB")  # last sequence, segment, entry, slot, length of the id
TIME = struct.Struct(">q")
_INT64_END = 2**63


@dataclass(frozen=True, slots=True)
class ProducerMark:
    """A mark for the next `count` user records of the same entry, which are from this producer.

    The producer numbered them from `first_sequence` on. Members of record sets count one by one.
    """

    producer_id: str
    first_sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The last record that a producer has appended."""

    last_sequence: int
    last_dlsn: DLSN
    """The position of the record with the sequence number `last_sequence`."""


@dataclass(frozen=True, slots=True)
class Producers:
    """The states of all producers, by id.

    With them a new writer need not read the earlier records.
    """

    states: Mapping[str, ProducerState]


@dataclass(frozen=True, slots=True)
class FencingToken:
    """The fencing token that appends must name from this record on. An empty one means none."""

    token: str


@dataclass(frozen=True, slots=True)
class CreationTime:
    """The time at which the following records were appended, up to the next `CreationTime`."""

    time_ms: int


ControlItem = ProducerMark | Producers | FencingToken | CreationTime


# -- writing ----------------------------------------------------------------------------------


def encode_control(*items: ControlItem) -> bytes:
    """Return the payload of a control record.

    Raises:
        UsageError: The format cannot store an item.
    """
    parts = [MAGIC]
    for item in items:
        kind, body = _encode_item(item)
        parts += (ITEM.pack(kind, len(body)), body)
    return b"".join(parts)


def _encode_item(item: ControlItem) -> tuple[bytes, bytes]:
    if isinstance(item, ProducerMark):
        return b"p", _encode_mark(item)
    if isinstance(item, Producers):
        return b"s", _encode_producers(item)
    if isinstance(item, FencingToken):
        return b"f", _encode_id(item.token, "a fencing token", empty=True)
    if not -_INT64_END <= item.time_ms < _INT64_END:
        raise UsageError(
            f"{item.time_ms} ms cannot be the creation time of records: it does not fit into 64 "
            "bits"
        )
    return b"t", TIME.pack(item.time_ms)


def _encode_mark(mark: ProducerMark) -> bytes:
    last = mark.first_sequence + mark.count - 1
    if mark.count < 1 or mark.first_sequence < 0 or last > MAX_SEQUENCE or mark.count >= 2**32:
        raise UsageError(
            f"producer {mark.producer_id!r} cannot send {counted(mark.count, 'record')} from "
            f"sequence number {mark.first_sequence} on: numbers are from 0 to {MAX_SEQUENCE}, and "
            "one append has 1 to 4,294,967,295 records"
        )
    return MARK.pack(mark.first_sequence, mark.count) + _encode_id(mark.producer_id)


def _encode_producers(producers: Producers) -> bytes:
    if len(producers.states) > MAX_PRODUCERS:
        raise UsageError(
            f"a stream can remember at most {MAX_PRODUCERS} producers, not {len(producers.states)}"
        )
    parts = [COUNT.pack(len(producers.states))]
    for producer_id, state in sorted(producers.states.items()):
        if not 0 <= state.last_sequence <= MAX_SEQUENCE:
            raise UsageError(
                f"producer {producer_id!r} cannot have the sequence number "
                f"{state.last_sequence}: numbers are from 0 to {MAX_SEQUENCE}"
            )
        encoded = _encode_id(producer_id)
        parts += (PRODUCER.pack(state.last_sequence, *state.last_dlsn, len(encoded)), encoded)
    return b"".join(parts)


def check_token(token: str) -> str:
    """Return `token` if it is short enough. An empty one means none.

    Raises:
        UsageError: The token is too long.
    """
    size = len(token.encode(errors="surrogatepass"))
    if size > MAX_ID_BYTES:  # do not reveal the token itself
        raise UsageError(
            f"the fencing token has {size} bytes, but at most {MAX_ID_BYTES} are allowed"
        )
    return token


def _encode_id(text: str, what: str = "a producer id", *, empty: bool = False) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} cannot be {what}: it is not valid Unicode text") from None
    if not empty and not data:
        raise UsageError(f"{what} must not be empty")
    if len(data) > MAX_ID_BYTES:
        raise UsageError(f"{text[:80]!r} is too long for {what}: at most {MAX_ID_BYTES} bytes")
    return data


# -- reading ----------------------------------------------------------------------------------


def is_ours(payload: bytes) -> bool:
    """Return whether the payload of a control record was written by Quire, in any version."""
    return payload.startswith(OURS)


def check_version(data: bytes, start: int, end: int) -> None:
    """Raise LaterStreamFormatError if a later version of Quire wrote a control record.

    The payload of the record is `data[start:end]`. Every decoder of entries calls this, because a
    later version may have changed the meaning of the records around it.
    """
    if data.startswith(OURS, start, end) and not data.startswith(MAGIC, start, end):
        version = data[start : min(end, start + 20)]
        raise LaterStreamFormatError(
            written_later("a control record", f"the version {version!r}", f"{MAGIC!r}")
        )


def decode_control(payload: bytes) -> list[ControlItem]:
    """Return the items of a control record. The list is empty if the record is not one of Quire's.

    Raises:
        LaterStreamFormatError: A later version of Quire wrote the record.
        StreamFormatError: The record is damaged.
    """
    if not is_ours(payload):
        return []
    check_version(payload, 0, len(payload))
    items: list[ControlItem] = []
    at = len(MAGIC)
    while at < len(payload):
        start = at + ITEM.size
        if start > len(payload):
            raise StreamFormatError(
                "a control record in the entry ends within the header of an item"
            )
        kind, size = ITEM.unpack_from(payload, at)
        at = start + size
        if at > len(payload):
            raise StreamFormatError(
                f"a control record in the entry ends within its item of kind {kind!r}"
            )
        decode = _DECODERS.get(kind)
        if decode is not None:
            try:
                items.append(decode(payload[start:at]))
            except (struct.error, UnicodeDecodeError) as error:
                raise StreamFormatError(
                    f"a control record in the entry has a damaged item of kind {kind!r}: {error}"
                ) from None
    return items


def _decode_mark(body: bytes) -> ProducerMark:
    first, count = MARK.unpack_from(body)
    if first < 0 or count < 1 or first + count - 1 > MAX_SEQUENCE:
        raise StreamFormatError(
            f"a control record in the entry has an invalid producer mark: "
            f"{counted(count, 'record')} from sequence number {first} on"
        )
    return ProducerMark(_decode_id(body[MARK.size :]), first, count)


def _decode_producers(body: bytes) -> Producers:
    (count,) = COUNT.unpack_from(body)
    if count > MAX_PRODUCERS:
        raise StreamFormatError(
            f"a control record in the entry lists {count} producers, but at most {MAX_PRODUCERS} "
            "are allowed"
        )
    states: dict[str, ProducerState] = {}
    at = COUNT.size
    for _ in range(count):
        last, lssn, entry_id, slot_id, size = PRODUCER.unpack_from(body, at)
        start = at + PRODUCER.size
        at = start + size
        if at > len(body):
            raise StreamFormatError(
                "the list of producers in a control record of the entry is cut off"
            )
        states[_decode_id(body[start:at])] = ProducerState(last, DLSN(lssn, entry_id, slot_id))
    if at != len(body) or len(states) != count:
        raise StreamFormatError(
            f"a control record in the entry has a damaged list of {count} producers: bytes "
            "follow it, or it names a producer twice"
        )
    return Producers(states)


def _decode_token(body: bytes) -> FencingToken:
    return FencingToken(_decode_id(body, empty=True))


def _decode_time(body: bytes) -> CreationTime:
    (time_ms,) = TIME.unpack(body)
    return CreationTime(time_ms)


def _decode_id(data: bytes, *, empty: bool = False) -> str:
    if len(data) > MAX_ID_BYTES or not (data or empty):
        raise StreamFormatError(
            f"a control record in the entry has a producer id or fencing token of {len(data)} "
            "bytes, which is not allowed"
        )
    return data.decode()


_DECODERS: Mapping[bytes, Callable[[bytes], ControlItem]] = {
    b"p": _decode_mark,
    b"s": _decode_producers,
    b"f": _decode_token,
    b"t": _decode_time,
}
