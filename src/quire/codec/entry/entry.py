"""Entries: the bytes that are stored and sent, with their digest.

All integers are signed, big-endian and 64 bits wide.

| offset | size | field                                                                           |
|--------|------|---------------------------------------------------------------------------------|
| 0      | 8    | ledger id                                                                       |
| 8      | 8    | entry id                                                                        |
| 16     | 8    | the last add confirmed (LAC) that the writer knew when it sent the entry; -1:   |
|        |      | none                                                                            |
| 24     | 8    | ledger length: the payload bytes of all entries up to and including this one    |
| 32     | D    | digest of bytes 0..31 and of the payload; D is 0, 4, 8 or 20 (see `digest`)     |
| 32+D   |      | payload                                                                         |

An explicit LAC packet is the ledger id (8 bytes), the LAC (8), and the digest of these 16 bytes
(D).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from quire._runtime.units import counted
from quire.codec.entry.digest import (
    DIGEST_SIZE_BYTES,
    Buffer,
    DigestType,
    crc32c_of,
    digester,
    digests_of,
)
from quire.codec.packed_rows import pack_rows, unpack_rows
from quire.codec.wire.v2 import (
    ADD_PREFIX,
    FRAME_HEADER_BYTES,
    LENGTH,
    MAX_FRAME_BYTES,
    Opcode,
    header_word,
)

_META_ROW = "qqqq"  # ledger, entry, last add confirmed, ledger length
META = struct.Struct(f">{_META_ROW}")
META_BYTES = META.size
PIECES = 4
"""The number of buffers that make an ADD frame: prefix, entry metadata, digest and payload."""
LAC_PACKET = struct.Struct(">qq")  # ledger, last add confirmed; then the digest
RESPONSE_OVERHEAD_BYTES = FRAME_HEADER_BYTES + META_BYTES  # the same in ADD and READ frames
MAX_ENTRY_ID = 2**31 - 2
"""The highest entry id. Java's programs compute write sets in 32 bits (`write_set`)."""


class Entry(NamedTuple):
    """One entry of a ledger, as it was written.

    Attributes:
        ledger_id: The id of the ledger.
        entry_id: The id of the entry.
        ledger_length: The payload bytes of the ledger up to and including this entry.
        payload: The bytes that the application wrote.
    """

    ledger_id: int
    entry_id: int
    ledger_length: int
    payload: bytes


class BadEntryError(ValueError):
    """The error for bytes that are not the wanted entry, or whose digest does not match."""


class WrongEntryError(BadEntryError):
    """The error for a valid entry or LAC packet that is not the wanted one."""


def max_payload_bytes(digest: DigestType) -> int:
    """Return the size of the largest payload that fits into a frame of the default size, 5 MiB."""
    return MAX_FRAME_BYTES - RESPONSE_OVERHEAD_BYTES - DIGEST_SIZE_BYTES[digest]


class EntryCodec:
    """The encoding and verification of the entries of one ledger. It is immutable."""

    __slots__ = ("digest", "digest_bytes", "head_bytes", "ledger_id", "of")

    def __init__(self, ledger_id: int, digest: DigestType, password: bytes) -> None:
        self.ledger_id = ledger_id
        self.digest = digest
        self.digest_bytes = DIGEST_SIZE_BYTES[digest]
        self.head_bytes = META_BYTES + self.digest_bytes
        self.of: Callable[[Buffer, Buffer], bytes] = digester(digest, password)

    def pack(self, entry_id: int, lac: int, length: int, payload: Buffer) -> bytes:
        """Return the bytes of an entry.

        `length` is the ledger length, which includes this payload.
        """
        meta = META.pack(self.ledger_id, entry_id, lac, length)
        return b"".join((meta, self.of(meta, payload), payload))

    def all_match(
        self, metas: Sequence[bytes], payloads: Sequence[bytes], digests: Sequence[bytes]
    ) -> bool:
        """Return whether each digest matches its metadata and payload."""
        if self.digest is DigestType.CRC32C:
            crcs = [crc32c_of(payload, crc32c_of(meta)) for meta, payload in zip(metas, payloads)]
            return struct.pack(f">{len(crcs)}I", *crcs) == b"".join(digests)
        return list(map(self.of, metas, payloads)) == list(digests)

    def check(self, data: Buffer, entry_id: int | None = None) -> tuple[int, int, int]:
        """Verify the bytes of an entry. Return its entry id, last add confirmed and ledger length.

        The checks are made in the order of Apache's `DigestManager`: the size, the digest, the
        ledger id, the entry id.

        Args:
            data: The bytes of the entry.
            entry_id: The id that the entry must have. With None, any entry of the ledger is
                accepted, as in the response to a request for the last entry.

        Raises:
            BadEntryError: The bytes are too few, or the digest does not match.
            WrongEntryError: The entry is valid, but belongs to another ledger or has another id.
        """
        if len(data) < self.head_bytes:
            raise BadEntryError(
                f"the bookie's answer has {counted(len(data), 'byte')}, too few for an entry with "
                "its digest"
            )
        view = memoryview(data)
        meta = view[:META_BYTES]
        head = self.head_bytes
        if self.of(meta, view[head:]) != view[META_BYTES:head]:
            raise BadEntryError("the digest of the bookie's copy does not match its bytes")
        ledger, entry, lac, length = META.unpack(meta)
        if ledger != self.ledger_id:
            raise WrongEntryError(
                f"the bookie answered with an entry of ledger {ledger} instead of ledger "
                f"{self.ledger_id}"
            )
        if entry_id is not None and entry != entry_id:
            raise WrongEntryError(
                f"the bookie answered with entry {entry} instead of entry {entry_id}"
            )
        return entry, lac, length

    def unpack(self, data: Buffer, entry_id: int | None = None) -> Entry:
        """Verify the bytes of an entry, and return the entry.

        The arguments and errors are those of `check`.
        """
        entry, _, length = self.check(data, entry_id)
        return Entry(self.ledger_id, entry, length, bytes(data[self.head_bytes :]))

    def content(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the ledger length and the payload of an entry, in which honest copies agree."""
        return data[24:32], data[self.head_bytes :]

    def pack_lac(self, lac: int) -> bytes:
        """Return an explicit LAC packet."""
        packet = LAC_PACKET.pack(self.ledger_id, lac)
        return packet + self.of(packet, b"")

    def unpack_lac(self, data: Buffer) -> int:
        """Verify an explicit LAC packet, and return its LAC.

        Raises:
            BadEntryError: The bytes are too few, or the digest does not match.
            WrongEntryError: The packet belongs to another ledger.
        """
        view = memoryview(data)
        if len(view) < LAC_PACKET.size + self.digest_bytes:
            raise BadEntryError(
                f"the bookie's answer has {counted(len(view), 'byte')}, too few for a "
                "last-add-confirmed record (LAC) with its digest"
            )
        packet = view[: LAC_PACKET.size]
        if self.of(packet, b"") != view[LAC_PACKET.size : LAC_PACKET.size + self.digest_bytes]:
            raise BadEntryError(
                "the digest of the bookie's last-add-confirmed record (LAC) does not match its "
                "bytes"
            )
        ledger, lac = LAC_PACKET.unpack(packet)
        if ledger != self.ledger_id:
            raise WrongEntryError(
                "the bookie answered with the last-add-confirmed record (LAC) of ledger "
                f"{ledger} instead of ledger {self.ledger_id}"
            )
        return int(lac)


@lru_cache(maxsize=256)
def _add_prefix(size: int, word: int, key: bytes) -> bytes:
    """Return the bytes of an ADD frame before the entry.

    The result is cached. Ledgers with the same password share it for entries of one size.
    """
    return ADD_PREFIX.pack(size, word, key)


class AddEncoder:
    """An encoder that makes ADD frames from payloads, many at a time.

    It is the hot path of the client. `key` is the master key of the ledger, and `flags` are those
    of every request (`wire.v2.Flag`).
    """

    __slots__ = ("_fixed_bytes", "_key", "_prefix", "_prefix_size", "_word", "codec")

    def __init__(self, codec: EntryCodec, key: bytes, flags: int = 0) -> None:
        self.codec = codec
        self._key = key
        self._word = header_word(Opcode.ADD, flags)
        self._fixed_bytes = FRAME_HEADER_BYTES - LENGTH.size + codec.head_bytes
        self._prefix_size = -1
        self._prefix = b""

    def prefix(self, payload_bytes: int) -> bytes:
        """Return the bytes of a frame before the entry. Payloads of one size share them."""
        if payload_bytes != self._prefix_size:
            self._prefix_size = payload_bytes
            self._prefix = _add_prefix(self._fixed_bytes + payload_bytes, self._word, self._key)
        return self._prefix

    def frames(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[Sequence[Buffer], int]:
        """Return the frames of consecutive entries from `first` on, and the next ledger length.

        The frames are buffers to be joined; several entries are one buffer. `lac` is the last add
        confirmed in each entry. `length` is the ledger length before `first`, and the returned one
        is that after the last entry.
        """
        parts, length = self.parts(first, lac, length, payloads)
        return (parts if len(payloads) == 1 else (b"".join(parts),)), length

    def parts(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[list[Buffer], int]:
        """Return `PIECES` buffers for each of consecutive entries, and the next ledger length.

        The entries have ids from `first` on, and the buffers of all frames are to be joined. `lac`
        is the last add confirmed in each entry. `length` is the ledger length before `first`, and
        the returned one is that after the last entry.
        """
        ledger, of, pack = self.codec.ledger_id, self.codec.of, META.pack
        pieces: list[Buffer] = []
        extend = pieces.extend
        entry_id = first
        size = -1
        prefix = b""
        for payload in payloads:
            if len(payload) != size:
                size = len(payload)
                prefix = self.prefix(size)
            length += size
            meta = pack(ledger, entry_id, lac, length)
            extend((prefix, meta, of(meta, payload), payload))
            entry_id += 1
        return pieces, length

    @staticmethod
    def frames_each(
        encoders: Sequence[AddEncoder],
        ledger_ids: Sequence[int],
        entry_ids: Sequence[int],
        lacs: Sequence[int],
        lengths: Sequence[int],
        payloads: Sequence[Buffer],
    ) -> list[Buffer]:
        """Return `PIECES` buffers for the frame of one entry of each of many ledgers.

        `lacs` are the last add confirmed in each entry, and `lengths` are the ledger lengths that
        include these entries. The entries are encoded column by column, because calls for each
        entry are the largest part of the cost of a frame.
        """
        columns = {0: ledger_ids, 1: entry_ids, 2: lacs, 3: lengths}
        packed = pack_rows(">", _META_ROW, (0, 0, 0, 0), columns, len(encoders))
        [metas] = unpack_rows(">", f"{META_BYTES}s", 1, packed, META_BYTES)
        pieces: list[Buffer] = [b""] * (PIECES * len(encoders))
        pieces[0::PIECES] = [
            one._prefix if one._prefix_size == size else one.prefix(size)
            for one, size in zip(encoders, map(len, payloads))
        ]
        pieces[1::PIECES] = metas
        pieces[2::PIECES] = digests_of([one.codec.of for one in encoders], metas, payloads)
        pieces[3::PIECES] = payloads
        return pieces


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Consecutive verified entries in one buffer, without a Python object for each entry.

    Entry `first + k` has its payload at `data[offsets[k] : ends[k]]`, and its cumulative ledger
    length in `ledger_lengths[k]`. `len()` is the number of entries.

    Attributes:
        ledger_id: The id of the ledger.
        first: The id of the first entry.
        data: The buffer that holds the payloads.
        offsets: The position in `data` at which each payload begins.
        ends: The position in `data` at which each payload ends.
        ledger_lengths: For each entry, the payload bytes of the ledger up to and including it.
        last_add_confirmed: The highest LAC that these entries contain.
        contents: The payloads, if checking the entries has extracted them already.
    """

    ledger_id: int
    first: int
    data: Buffer
    offsets: Sequence[int]
    ends: Sequence[int]
    ledger_lengths: Sequence[int]
    last_add_confirmed: int
    contents: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def last(self) -> int:
        """The id of the last entry."""
        return self.first + len(self.offsets) - 1

    def part(self, first: int, last: int) -> EntryRun:
        """Return the part of the run from one entry to another.

        The part shares the buffer of the run, and its `last_add_confirmed` is that of the whole
        run.

        Args:
            first: The id of the first entry wanted.
            last: The id of the last entry wanted.

        Returns:
            A run with the wanted entries that this run has.
        """
        if first <= self.first and last >= self.last:
            return self
        kept = slice(max(first - self.first, 0), max(last - self.first + 1, 0))
        return EntryRun(
            self.ledger_id,
            max(first, self.first),
            self.data,
            self.offsets[kept],
            self.ends[kept],
            self.ledger_lengths[kept],
            self.last_add_confirmed,
            None if self.contents is None else self.contents[kept],
        )

    def payloads(self) -> list[bytes]:
        """Return the payload of each entry.

        Returns:
            One bytes object for each entry, in order.
        """
        if self.contents is not None:
            return self.contents
        data = self.data
        if isinstance(data, bytes):
            return [data[a:b] for a, b in zip(self.offsets, self.ends)]
        return [bytes(data[a:b]) for a, b in zip(self.offsets, self.ends)]


@lru_cache(maxsize=256)
def _equal_entries(digest_bytes: int, payload_bytes: int) -> struct.Struct:
    return struct.Struct(f">I{META_BYTES}s{digest_bytes}s{payload_bytes}s")


def check_batch(
    codec: EntryCodec, data: bytes, first: int, at: int, end: int, limit: int
) -> EntryRun:
    """Verify the entries in `data[at:end]`, which are pairs of length and entry bytes.

    The result has at most `limit` entries, and ends before the first one that does not match.

    Raises:
        BadEntryError: Entry `first` itself does not match.
    """
    run = _check_equal(codec, data, first, at, end, limit) or _check_each(
        codec, data, first, at, end, limit
    )
    if not run:
        start = at + LENGTH.size
        size = int.from_bytes(data[at:start], "big")
        codec.check(data[start : start + size], first)
        raise BadEntryError(
            f"the bookie's answer to a read from entry {first} on contains no entry"
        )
    return run


def _check_equal(
    codec: EntryCodec, data: bytes, first: int, at: int, end: int, limit: int
) -> EntryRun | None:
    """Verify all entries column by column. Return None unless they have one size and all match."""
    if end - at < LENGTH.size:
        return None
    (size,) = LENGTH.unpack_from(data, at)
    step = LENGTH.size + size
    count = (end - at) // step
    if count < 2 or count * step != end - at or count > limit or size < codec.head_bytes:
        return None
    rows = _equal_entries(codec.digest_bytes, size - codec.head_bytes)
    sizes, metas, digests, payloads = zip(*rows.iter_unpack(memoryview(data)[at:end]))
    if sizes.count(size) != count or not codec.all_match(metas, payloads, digests):
        return None
    ledgers, entries, lacs, lengths = zip(*META.iter_unpack(b"".join(metas)))
    if ledgers.count(codec.ledger_id) != count or entries != tuple(range(first, first + count)):
        return None
    offsets = range(at + LENGTH.size + codec.head_bytes, end + 1, step)
    ends = range(at + step, end + 1, step)
    return EntryRun(codec.ledger_id, first, data, offsets, ends, lengths, max(lacs), list(payloads))


def _check_each(
    codec: EntryCodec, data: bytes, first: int, at: int, end: int, limit: int
) -> EntryRun:
    offsets: list[int] = []
    ends: list[int] = []
    lengths: list[int] = []
    head, of, ledger_id = codec.head_bytes, codec.of, codec.ledger_id
    unpack_length, unpack_meta = LENGTH.unpack_from, META.unpack_from
    view = memoryview(data)
    expected, highest = first, -1
    while at + 4 <= end and expected - first < limit:
        start = at + 4
        at = start + unpack_length(data, at)[0]
        body = start + head
        if at > end or body > at:
            break
        meta = start + META_BYTES
        ledger, entry, lac, length = unpack_meta(data, start)
        if (
            entry != expected
            or ledger != ledger_id
            or of(view[start:meta], view[body:at]) != data[meta:body]
        ):
            break
        offsets.append(body)
        ends.append(at)
        lengths.append(length)
        if lac > highest:
            highest = lac
        expected += 1
    return EntryRun(codec.ledger_id, first, data, offsets, ends, lengths, highest)
