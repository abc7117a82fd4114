"""Deferred-sync ADD frames of protocol v3, many at a time and by hand: a generated message for each
entry costs several times as much.

    N | 0A len | 08 03 10 02 18 transaction id                                 header
      | AA 06 len | 08 ledger | 10 entry | 1A 14 key | 22 len | entry bytes | 28 01   addRequest

The transaction id is the entry id: who sends adds of one ledger on a connection finds their answers
by ledger and entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.codec.entry.digest import DIGEST_SIZE_BYTES, DigestType
from quire.codec.entry.entry import META, META_BYTES, EntryCodec
from quire.codec.protobuf_wire import encode_varint
from quire.codec.wire.v2 import LENGTH, MAX_FRAME_BYTES, Buffer

_ADD_HEADER = b"\x08\x03\x10\x02\x18"  # version 3, operation ADD, and the tag of the transaction
_ADD_TAG = encode_varint(101 << 3 | 2)
_DEFERRED = b"\x28\x01"

MAX_HEAD_BYTES = 80
"""What stands around the entry bytes in a frame, at most."""


def max_deferred_payload_bytes(digest: DigestType) -> int:
    """The largest payload whose v3 ADD frame every bookie accepts."""
    return MAX_FRAME_BYTES - MAX_HEAD_BYTES - META_BYTES - DIGEST_SIZE_BYTES[digest]


class DeferredAddEncoder:
    """Turns payloads into deferred-sync ADD frames; the twin of `entry.AddEncoder`."""

    __slots__ = ("_codec", "_key", "_ledger")

    def __init__(self, codec: EntryCodec, key: bytes) -> None:
        self._codec = codec
        self._ledger = b"\x08" + encode_varint(codec.ledger_id) + b"\x10"
        self._key = b"\x1a" + encode_varint(len(key)) + key + b"\x22"

    def frames(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[Sequence[Buffer], int]:
        """As `entry.AddEncoder.frames`."""
        parts, length = self.parts(first, lac, length, payloads)
        return (b"".join(parts),), length

    def parts(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[list[Buffer], int]:
        """Five pieces a frame, to be joined, for consecutive entries from `first` on; and the
        ledger length after them. `length` is the ledger length before `first`."""
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
                    bytes((len(_ADD_HEADER) + len(entry),)),
                    _ADD_HEADER,
                    entry,
                    _ADD_TAG,
                    encode_varint(len(own) + body_bytes + len(_DEFERRED)),
                    own,
                )
            )
            frame_bytes = LENGTH.pack(len(head) + body_bytes + len(_DEFERRED))
            extend((frame_bytes + head, meta, of(meta, payload), payload, _DEFERRED))
        return pieces, length
