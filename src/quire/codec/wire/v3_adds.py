"""v3 ADD requests and their responses as bytes, without a message object for each.

The requests of a client that writes one ledger differ only in TXN, ENTRY and BODY:

    length | 0a HL 08 03 10 02 18 TXN [20 PRIORITY] | aa 06 AL | 08 LEDGER | 10 ENTRY |
    1a 14 KEY | 22 BL BODY | [28 FLAGS] [a0 06 01]

The two-digit numbers are bytes in hexadecimal, and the length is 4 bytes, unsigned and big-endian.
KEY has 20 bytes and BODY has BL bytes. The other names are varints; HL, AL and BL are lengths in
bytes.

If the first request of a batch has this form, with its fields in the order of their numbers as
every generated encoder writes them, the others can be compared with it. A request with the same
bytes outside of the three parts, and with numbers of the same size in them, means the same as its
message would. `v3.parse_request` handles everything else.

`DeferredAddEncoder` writes such requests, with FLAGS 1 (deferred sync). Their transaction id is the
entry id. A client that adds to one ledger on a connection recognises its responses by ledger and
entry.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from operator import lt
from typing import NamedTuple

from quire.codec.entry.digest import DIGEST_SIZE_BYTES, DigestType
from quire.codec.entry.entry import META, META_BYTES, EntryCodec
from quire.codec.protobuf_wire import WireError, decode_varint, encode_varint, int64
from quire.codec.wire.v2 import KEY_BYTES, LENGTH, MAX_FRAME_BYTES, Buffer
from quire.codec.wire.v3 import status_varint

_HEADER = b"\x08\x03\x10\x02\x18"  # version 3, operation ADD, txnId follows
_ADD_TAG = b"\xaa\x06"
_RECOVERY_FLAG = b"\xa0\x06\x01"
_HEAD_BYTES = 24
"""The length of the fields at the beginning of a body that are read here: ledger, entry and LAC."""


class AddShape(NamedTuple):
    """The positions of the parts of one request in its frame, and what the whole batch shares."""

    txn: slice
    entry: slice
    body: slice
    key: bytes
    ledger: bytes
    """The bytes of the ledger id as a varint, which the response repeats."""
    high_priority: bool
    recovery: bool
    write_flags: int


class AddStretch(NamedTuple):
    """A batch of similar requests, as columns."""

    ledger_id: int
    """The ledger id in the bodies, to which the entries are added. The id outside of the body is
    only repeated in the response."""
    entry_ids: Sequence[int]
    """The entry ids, ascending."""
    last_lac: int
    """The last add confirmed in the last body."""
    bodies: list[memoryview]
    txns: Sequence[bytes]
    """The transaction ids as varints of one size."""
    echoed_entries: Sequence[bytes]
    """The entry ids outside of the bodies, as varints of one size. The responses repeat them."""
    shape: AddShape


def shape_of(view: memoryview, at: int, size: int) -> AddShape | None:
    """Return the shape of the request whose frame of `size` bytes begins at `at`.

    Return None if it has another form.
    """
    frame = bytes(view[at : at + size])
    try:
        return _shape_of(frame)
    except (WireError, IndexError):
        return None


def _shape_of(frame: bytes) -> AddShape | None:
    if frame[4] != 0x0A or frame[6:11] != _HEADER:
        return None
    header_end = 6 + frame[5]
    _, txn_end = decode_varint(frame, 11)
    priority, place = 0, txn_end
    if frame[place] == 0x20 and place < header_end:
        priority, place = decode_varint(frame, place + 1)
    if place != header_end or frame[place : place + 2] != _ADD_TAG:
        return None
    add_bytes, place = decode_varint(frame, place + 2)
    if place + add_bytes != len(frame) or frame[place] != 0x08:
        return None
    ledger_start = place + 1
    _, ledger_end = decode_varint(frame, ledger_start)
    if frame[ledger_end] != 0x10:
        return None
    _, entry_end = decode_varint(frame, ledger_end + 1)
    key_start = entry_end + 2
    if frame[entry_end:key_start] != bytes((0x1A, KEY_BYTES)):
        return None
    key_end = key_start + KEY_BYTES
    if frame[key_end] != 0x22:
        return None
    body_bytes, body_start = decode_varint(frame, key_end + 1)
    place = body_start + body_bytes
    if body_bytes < _HEAD_BYTES or place > len(frame):
        return None
    body = slice(body_start, place)
    write_flags = 0
    if frame[place : place + 1] == b"\x28":
        write_flags, place = decode_varint(frame, place + 1)
    rest = frame[place:]
    if rest not in (b"", _RECOVERY_FLAG):
        return None
    return AddShape(
        slice(11, txn_end),
        slice(ledger_end + 1, entry_end),
        body,
        frame[key_start:key_end],
        frame[ledger_start:ledger_end],
        int64(priority) & 0xFFFFFFFF != 0,
        bool(rest),
        write_flags,
    )


@lru_cache(maxsize=64)
def _columns_of(
    txn_start: int, txn_end: int, entry_start: int, entry_end: int, body_start: int, rest: str
) -> struct.Struct:
    """Return the `struct` format of one request, for these offsets of its parts.

    It has fields for the transaction id, for the entry id, and for the ledger, the entry and the
    LAC in the body. The bytes before each of these three parts are a field too. The caller's `rest`
    is the format of what follows.
    """
    return struct.Struct(
        f">{txn_start}s{txn_end - txn_start}s{entry_start - txn_end}s{entry_end - entry_start}s"
        f"{body_start - entry_end}sqqq{rest}"
    )


def stretch_of(view: memoryview, at: int, size: int, count: int) -> AddStretch | None:
    """Return the `count` requests of `size` bytes from `at` on as one batch.

    Return None unless they have one shape and add ascending entries to one ledger.
    """
    shape = shape_of(view, at, size)
    if shape is None:
        return None
    txn, entry, body = shape.txn, shape.entry, shape.body
    columns = _columns_of(
        txn.start, txn.stop, entry.start, entry.stop, body.start,
        f"{body.stop - body.start - _HEAD_BYTES}x{size - body.stop}s",
    )  # fmt: skip
    before, txns, between, echoed, key_part, ledgers, entry_ids, lacs, behind = zip(
        *columns.iter_unpack(view[at : at + size * count])
    )
    if not all(
        column.count(column[0]) == count for column in (before, between, key_part, ledgers, behind)
    ):
        return None
    if not (_are_varints(txns) and _are_varints(echoed) and all(map(lt, entry_ids, entry_ids[1:]))):
        return None
    first = entry_ids[0]
    ids: Sequence[int] = entry_ids
    if entry_ids[-1] - first == count - 1:
        ids = range(first, first + count)
    bodies = [
        view[start : start + body.stop - body.start]
        for start in range(at + body.start, at + size * count, size)
    ]
    return AddStretch(ledgers[0], ids, lacs[-1], bodies, txns, echoed, shape)


def _are_varints(column: Sequence[bytes]) -> bool:
    """Return whether each item is exactly one varint. All have as many bytes as the first one."""
    width = len(column[0])
    joined = b"".join(column)
    if max(joined[width - 1 :: width]) > 0x7F:
        return False
    return all(min(joined[place::width]) > 0x7F for place in range(width - 1))


def add_responses(
    code: int, txns: Sequence[bytes], ledger: bytes, entries: Sequence[bytes]
) -> bytes:
    """Return the responses to a batch, from the varints of its requests.

    The transaction ids have one size, and so have the entry ids.
    """
    status = status_varint(code)
    own = b"".join((b"\x08", status, b"\x10", ledger, b"\x18"))
    behind = b"".join((b"\x10", status, _ADD_TAG, bytes((len(own) + len(entries[0]),)), own))
    header = b"".join((b"\x0a", bytes((len(_HEADER) + len(txns[0]),)), _HEADER))
    size = len(header) + len(txns[0]) + len(behind) + len(entries[0])
    before = LENGTH.pack(size) + header
    return b"".join([before + txn + behind + entry for txn, entry in zip(txns, entries)])


# -- deferred adds of a client ----------------------------------------------------------------

_DEFERRED = b"\x28\x01"

MAX_HEAD_BYTES = 80
"""The largest number of bytes around the entry in a frame."""


def max_deferred_payload_bytes(digest: DigestType) -> int:
    """Return the size of the largest payload whose v3 ADD frame every bookie accepts."""
    return MAX_FRAME_BYTES - MAX_HEAD_BYTES - META_BYTES - DIGEST_SIZE_BYTES[digest]


class DeferredAddEncoder:
    """An encoder that makes v3 ADD frames with deferred sync.

    Its methods do the same as those of `entry.AddEncoder` with these names.
    """

    __slots__ = ("_codec", "_key", "_ledger")

    def __init__(self, codec: EntryCodec, key: bytes) -> None:
        self._codec = codec
        self._ledger = b"\x08" + encode_varint(codec.ledger_id) + b"\x10"
        self._key = b"\x1a" + encode_varint(len(key)) + key + b"\x22"

    def frames(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[Sequence[Buffer], int]:
        """Return the frames of consecutive entries. See `entry.AddEncoder.frames`."""
        parts, length = self.parts(first, lac, length, payloads)
        return (b"".join(parts),), length

    def parts(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[list[Buffer], int]:
        """Return five buffers for each of consecutive entries, and the next ledger length.

        The entries have ids from `first` on, and the buffers of all frames are to be joined. `lac`
        is the last add confirmed in each entry. `length` is the ledger length before `first`, and
        the returned one is that after the last entry.
        """
        codec = self._codec
        of, head_bytes, pack = codec.of, codec.head_bytes, META.pack
        pieces: list[Buffer] = []
        extend = pieces.extend
        size = body_bytes = -1
        body_length = b""
        for entry_id, payload in enumerate(payloads, start=first):
            if len(payload) != size:
                size = len(payload)
                body_bytes = head_bytes + size
                body_length = encode_varint(body_bytes)
            length += size
            meta = pack(codec.ledger_id, entry_id, lac, length)
            entry = encode_varint(entry_id)
            own = b"".join((self._ledger, entry, self._key, body_length))
            head = b"".join(
                (
                    b"\x0a",
                    bytes((len(_HEADER) + len(entry),)),
                    _HEADER,
                    entry,
                    _ADD_TAG,
                    encode_varint(len(own) + body_bytes + len(_DEFERRED)),
                    own,
                )
            )
            frame_bytes = LENGTH.pack(len(head) + body_bytes + len(_DEFERRED))
            extend((frame_bytes + head, meta, of(meta, payload), payload, _DEFERRED))
        return pieces, length
