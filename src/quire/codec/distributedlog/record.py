"""Records, and entries full of them: the hot path of streams.

All integers are signed and big-endian.

| offset | size | field                                                                           |
|--------|------|---------------------------------------------------------------------------------|
| 0      | 8    | metadata: bits 0-2 flags, 15 the payload has an envelope (`record_envelope`),   |
|        |      | 16-47 position; the others are written as 0 and ignored                         |
| 8      | 8    | txid: a number of the application, or 2**63-1 for the end of the stream         |
| 16     | 4    | payload length in bytes                                                         |
| 20     |      | payload                                                                         |

The position counts the user records of a segment from 1. A control record and the end of the stream
have the number of user records so far. Slots number all records of an entry from 0, including each
member of a record set.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, compress

from quire._runtime.units import counted
from quire.codec.distributedlog.control_record import check_version
from quire.codec.distributedlog.envelope import MAX_BODY_BYTES, unwrap
from quire.codec.distributedlog.limits import (
    MAX_EXPANDED_BYTES,
    MAX_POSITION,
    MAX_RECORD_BYTES,
    MAX_TXID,
    MAX_USER_TXID,
    StreamFormatError,
)
from quire.codec.distributedlog.record_envelope import ENVELOPE_FLAG, MAGIC
from quire.codec.distributedlog.record_set import member_bounds, member_count
from quire.codec.entry.digest import Buffer
from quire.errors import UsageError

HEAD = struct.Struct(">qqi")  # metadata, txid, payload length
HEAD_BYTES = HEAD.size
MAX_PAYLOAD_BYTES = MAX_RECORD_BYTES - HEAD_BYTES

CONTROL_PAYLOAD = b"control"
KEEPALIVE_PAYLOAD = b"keepalive"
END_OF_STREAM_PAYLOAD = b"endOfStream"


class RecordFlag(enum.IntFlag):
    """The flags of a record."""

    NONE = 0
    CONTROL = 1
    """The flag of a control record, which is never delivered to an application, whatever its
    payload is."""
    END_OF_STREAM = 2
    """The flag of the last record of a stream."""
    RECORD_SET = 4
    """The flag of a record set. See `record_set`."""


_FLAG_BITS = 0b111
_SPECIAL_BITS = _FLAG_BITS | ENVELOPE_FLAG
"""The bits of the metadata that are all 0 in a plain user record, and only there."""
_CONTROL = int(RecordFlag.CONTROL)
_END_OF_STREAM = int(RecordFlag.END_OF_STREAM)
_RECORD_SET = int(RecordFlag.RECORD_SET)
_POSITION_SHIFT = 16
_POSITION_BITS = 2**32 - 1
_STEP = 1 << _POSITION_SHIFT
"""The difference between the metadata of two adjacent records without flags."""
_METADATA_END = 1 << 48

_SHORTEST_RUN = 8
"""The smallest number of similar records that are decoded faster all at once than one by one."""


# -- writing ----------------------------------------------------------------------------------


def encode_records(
    payloads: Sequence[Buffer], txids: Sequence[int], first_position: int, envelopes: bytes = b""
) -> tuple[list[Buffer], int]:
    """Return user records from `first_position` on, as two buffers for each, and their size.

    The size is in bytes, and the buffers are to be joined. Nothing is encoded if an argument is
    invalid. `entry_ends` returns how many records fit into an entry.

    Args:
        payloads: The payload of each record.
        txids: The transaction id of each record.
        first_position: The position of the first record.
        envelopes: For each record, 1 if its payload begins with an envelope, else 0. It may be
            shorter than the records: those after its end have none.

    Raises:
        UsageError: The numbers of payloads and txids differ, a payload exceeds `MAX_PAYLOAD_BYTES`,
            a txid is outside 0..`MAX_USER_TXID`, or a position is outside 1..`MAX_POSITION`.
    """
    count = len(payloads)
    if len(txids) != count:
        raise UsageError(
            f"each record needs one txid, but the number of txids is {len(txids):,} for "
            f"{counted(count, 'record')}"
        )
    if not count:
        return [], 0
    sizes = list(map(len, payloads))
    if max(sizes) > MAX_PAYLOAD_BYTES:
        raise UsageError(
            f"a record of {max(sizes)} bytes is too large for a stream",
            remedy=f"Split it: a record has at most {MAX_PAYLOAD_BYTES} bytes",
        )
    if min(txids) < 0 or max(txids) > MAX_USER_TXID:
        raise UsageError(
            f"the txids of records must be from 0 to {MAX_USER_TXID}, but these are from "
            f"{min(txids)} to {max(txids)}"
        )
    end_position = first_position + count
    if first_position < 1 or end_position - 1 > MAX_POSITION:
        raise UsageError(
            f"nothing was appended: the records would get the numbers {first_position} to "
            f"{end_position - 1} of their segment, but numbers are from 1 to {MAX_POSITION}",
            remedy="Close the writer and open the stream for writing again, which begins a new "
            "segment",
        )
    metadata: Sequence[int] = range(
        first_position << _POSITION_SHIFT, end_position << _POSITION_SHIFT, _STEP
    )
    if envelopes:
        flags = envelopes.ljust(count, b"\0")
        metadata = [word | ENVELOPE_FLAG if flag else word for word, flag in zip(metadata, flags)]
    parts: list[Buffer] = [b""] * (2 * count)
    parts[::2] = list(map(HEAD.pack, metadata, txids, sizes))
    parts[1::2] = payloads
    return parts, sum(sizes) + HEAD_BYTES * count


def encode_record(position: int, txid: int, payload: Buffer, flags: int = RecordFlag.NONE) -> bytes:
    """Return the bytes of one record. `flags` are those of `RecordFlag`, and say its kind.

    A record set has the position of its first member, and a control record the number of user
    records so far. Only a control record and the end of the stream may have the txid `MAX_TXID`.

    Raises:
        UsageError: The payload is too long, or the position or the txid is out of range.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(
            f"a record of {len(payload)} bytes is too large for a stream",
            remedy=f"Split it: a record has at most {MAX_PAYLOAD_BYTES} bytes",
        )
    if not 0 <= position <= MAX_POSITION:
        raise UsageError(
            f"a segment of a stream cannot hold record number {position}: numbers are from 0 to "
            f"{MAX_POSITION}",
            remedy="Close the writer and open the stream for writing again, which begins a new "
            "segment",
        )
    limit = MAX_TXID if flags & (_CONTROL | _END_OF_STREAM) else MAX_USER_TXID
    if not 0 <= txid <= limit:
        raise UsageError(
            f"txid {txid} is not allowed: the txid of this record must be from 0 to {limit}"
        )
    head = HEAD.pack(position << _POSITION_SHIFT | flags, txid, len(payload))
    return b"".join((head, payload))


def control_record(position: int, txid: int, payload: bytes = CONTROL_PAYLOAD) -> bytes:
    """Return a control record.

    Args:
        position: The number of user records so far.
        txid: The txid of the last of them, or the segment's first txid if there is none.
        payload: The payload.

    Raises:
        UsageError: The payload is too long, or the position or the txid is out of range.
    """
    return encode_record(position, txid, payload, _CONTROL)


def end_of_stream_record(position: int) -> bytes:
    """Return the last record of a stream. `position` is the number of user records so far.

    Raises:
        UsageError: The position is out of range.
    """
    return encode_record(position, MAX_TXID, END_OF_STREAM_PAYLOAD, _END_OF_STREAM)


def entry_ends(
    payloads: Sequence[Buffer], limit_bytes: int = MAX_BODY_BYTES, first_bytes: int = 0
) -> list[int]:
    """Return the index after the last payload of each entry, if `payloads` are split into entries.

    A payload that exceeds the limit gets an entry of its own.

    Args:
        payloads: The payloads of the records.
        limit_bytes: The most bytes of records in an entry.
        first_bytes: The bytes of records that the first entry has already. If nothing more fits
            into it, its end is 0.
    """
    sums = list(accumulate(map(HEAD_BYTES.__add__, map(len, payloads))))
    ends: list[int] = []
    at, base = 0, -first_bytes
    while at < len(sums):
        end = bisect_right(sums, base + limit_bytes, at)
        if end == at and (ends or not first_bytes):
            end = at + 1
        ends.append(end)
        at = end
        base = sums[end - 1] if end else 0
    return ends


# -- reading ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Records:
    """The records of an entry as columns over one buffer, without an object for each record.

    The payload of record k is `data[starts[k] : ends[k]]`. Record sets are replaced by their
    members, unless `decode_entry` was called with `expand_sets=False`. Control records and the end
    of the stream are included, and marked by their flags.
    """

    data: bytes
    flags: bytes
    """One byte for each record: the bits of `RecordFlag`, 0 for a user record."""
    positions: Sequence[int]
    txids: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    slots: Sequence[int]
    envelopes: bytes = b""
    """One byte for each record: 1 if its payload begins with an envelope. Empty if none does."""

    def __len__(self) -> int:
        return len(self.flags)

    @property
    def only_users(self) -> bool:
        """Whether there are neither control records nor the end of the stream."""
        return not any(self.flags)

    @property
    def user_count(self) -> int:
        """The number of user records."""
        return self.flags.count(0)

    def payload(self, index: int) -> bytes:
        """Return the payload of one record."""
        return self.data[self.starts[index] : self.ends[index]]

    def payloads(self) -> list[bytes]:
        """Return the payload of each record, as one bytes object for each."""
        data = self.data
        return [data[a:b] for a, b in zip(self.starts, self.ends)]

    def part(self, first: int, end: int) -> Records:
        """Return the records with the indexes `first` to `end` - 1. They share the buffer."""
        if first <= 0 and end >= len(self.flags):
            return self
        kept = slice(max(first, 0), max(end, 0))
        return Records(
            self.data,
            self.flags[kept],
            self.positions[kept],
            self.txids[kept],
            self.starts[kept],
            self.ends[kept],
            self.slots[kept],
            _if_any(self.envelopes[kept]),
        )

    def users(self) -> Records:
        """Return only the user records, up to the end of the stream if it is included."""
        if self.only_users:
            return self
        kept = self.part(0, end) if (end := self.end_of_stream) is not None else self
        chosen = [not flags for flags in kept.flags]
        return Records(
            kept.data,
            bytes(sum(chosen)),
            list(compress(kept.positions, chosen)),
            list(compress(kept.txids, chosen)),
            list(compress(kept.starts, chosen)),
            list(compress(kept.ends, chosen)),
            list(compress(kept.slots, chosen)),
            bytes(compress(kept.envelopes, chosen)),
        )

    @property
    def end_of_stream(self) -> int | None:
        """The index of the record that ends the stream, or None."""
        for index, flags in enumerate(self.flags if self.flags.strip(b"\0\1") else b""):
            if flags & _END_OF_STREAM:
                return index
        return None

    def controls(self) -> Iterator[tuple[int, bytes]]:
        """Yield the index and payload of each control record."""
        for index, flags in enumerate(self.flags if any(self.flags) else b""):
            if flags & _CONTROL:
                yield index, self.payload(index)


def _if_any(envelopes: bytes) -> bytes:
    return envelopes if 1 in envelopes else b""


def decode_entry(entry: Buffer, enveloped: bool = True, *, expand_sets: bool = True) -> Records:
    """Decode the records of an entry.

    An entry is decoded completely or not at all, and damage is never treated as its end.

    Args:
        entry: The bytes of the entry.
        enveloped: Whether the entries of its segment have envelopes.
        expand_sets: Whether a record set is replaced by its members. If False, it is one record
            with the flag of a set, and takes as many slots as it has members.

    Raises:
        LaterStreamFormatError: A later version wrote the entry.
        StreamFormatError: The entry is damaged.
        UsageError: The entry is compressed, and the library for that is not installed.
    """
    data = entry if isinstance(entry, bytes) else bytes(entry)
    data, at, end = unwrap(data) if enveloped else (data, 0, len(data))
    return _decode_equal(data, at, end) or _decode_each(data, at, end, expand_sets)


@lru_cache(maxsize=256)
def _equal_records(payload_bytes: int) -> struct.Struct:
    return struct.Struct(f"{HEAD.format}{payload_bytes}x")


def _equal_run(
    data: bytes, at: int, count: int, size: int
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the positions and txids of `count` records at `at`.

    Return None unless each has a payload of `size` bytes and no flags, and their positions are
    consecutive.
    """
    end = at + count * (HEAD_BYTES + size)
    metadata, txids, lengths = zip(*_equal_records(size).iter_unpack(memoryview(data)[at:end]))
    first, last = metadata[0], metadata[-1]
    if (
        first & (_STEP - 1)
        or not 0 <= first <= last < _METADATA_END
        or lengths.count(size) != count
        or metadata != tuple(range(first, last + 1, _STEP))
    ):
        return None
    return range(first >> _POSITION_SHIFT, (last >> _POSITION_SHIFT) + 1), txids


def _run_length(data: bytes, at: int, limit: int, size: int) -> int:
    """Estimate how many records like the one at `at` follow each other there, including that one.

    The estimate reads a few headers, at distances that double and are then halved. It is 1 below
    `_SHORTEST_RUN`.
    """
    unpack, step = HEAD.unpack_from, HEAD_BYTES + size
    first: int = unpack(data, at)[0]

    def fits(count: int) -> bool:
        metadata, _, length = unpack(data, at + (count - 1) * step)
        return length == size and bool(metadata == first + (count - 1) * _STEP)

    good, bad = 1, _SHORTEST_RUN
    while bad <= limit and fits(bad):
        good, bad = bad, 2 * bad
    if good == 1:
        return 1
    bad = min(bad, limit + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def _decode_equal(data: bytes, at: int, end: int) -> Records | None:
    """Decode all records at once if they are user records of one size. Return None otherwise."""
    if end - at < HEAD_BYTES:
        return None
    size = HEAD.unpack_from(data, at)[2]
    step = HEAD_BYTES + size
    if size < 0 or (end - at) % step:
        return None
    count = (end - at) // step
    found = _equal_run(data, at, count, size)
    if found is None:
        return None
    positions, txids = found
    starts = range(at + HEAD_BYTES, end + 1, step)
    ends = range(at + step, end + 1, step)
    return Records(data, bytes(count), positions, txids, starts, ends, range(count))


class _Columns:
    """The records of one entry while they are being decoded, as columns."""

    __slots__ = (
        "data",
        "ends",
        "enveloped",
        "expanded",
        "flags",
        "positions",
        "slot",
        "slots",
        "starts",
        "txids",
    )

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.flags = bytearray()
        self.positions: list[int] = []
        self.txids: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.slots: list[int] = []
        self.expanded: list[bytes] = []
        self.enveloped: list[int] = []
        """The indexes of the records with an envelope."""
        self.slot = 0

    def add_run(self, at: int, count: int, size: int) -> bool:
        """Add `count` records of `size` bytes at once. Return False if they are not similar."""
        found = _equal_run(self.data, at, count, size)
        if found is None:
            return False
        step = HEAD_BYTES + size
        stop = at + count * step
        self.flags += bytes(count)
        self.positions += found[0]
        self.txids += found[1]
        self.starts += range(at + HEAD_BYTES, stop + 1, step)
        self.ends += range(at + step, stop + 1, step)
        self.slots += range(self.slot, self.slot + count)
        self.slot += count
        return True

    def add_set(self, position: int, txid: int, start: int, stop: int) -> None:
        """Add the members of a record set. A decompressed body is appended to the buffer."""
        held = sum(map(len, self.expanded))
        members = member_bounds(self.data, start, stop, MAX_EXPANDED_BYTES - held)
        starts, ends = members.starts, members.ends
        if members.body is not None:
            base = len(self.data) + held
            starts = [base + at for at in starts]
            ends = [base + at for at in ends]
            self.expanded.append(members.body)
        count = len(starts)
        self.flags += bytes(count)
        self.positions += range(position, position + count)
        self.txids += [txid] * count
        self.starts += starts
        self.ends += ends
        self.slots += range(self.slot, self.slot + count)
        self.slot += count

    def records(self) -> Records:
        data = b"".join((self.data, *self.expanded)) if self.expanded else self.data
        envelopes = bytearray(len(self.flags) if self.enveloped else 0)
        for index in self.enveloped:
            envelopes[index] = 1
        return Records(
            data, bytes(self.flags), self.positions, self.txids, self.starts, self.ends, self.slots,
            bytes(envelopes),
        )  # fmt: skip


def _decode_each(data: bytes, at: int, end: int, expand_sets: bool) -> Records:
    columns = _Columns(data)
    flags, positions, txids = columns.flags, columns.positions, columns.txids
    starts, ends, slots = columns.starts, columns.ends, columns.slots
    unpack = HEAD.unpack_from
    previous, next_try = -1, 0
    while at < end:
        start = at + HEAD_BYTES
        if start > end:
            raise StreamFormatError(
                f"the entry ends within the header of the record at byte {at}: it has only "
                f"{counted(end - at, 'byte')} of it"
            )
        metadata, txid, size = unpack(data, at)
        stop = start + size
        if size < 0 or stop > end:
            raise StreamFormatError(
                f"the record at byte {at} of the entry has an impossible length: "
                f"{counted(size, 'byte')}"
            )
        special = metadata & _SPECIAL_BITS
        if size == previous and not special and len(flags) >= next_try:
            count = _run_length(data, at, (end - at) // (HEAD_BYTES + size), size)
            if count > 1 and columns.add_run(at, count, size):
                at += count * (HEAD_BYTES + size)
                continue
            # A failed attempt costs as much as decoding these records one by one, so there is no
            # other attempt among them.
            next_try = len(flags) + max(count, _SHORTEST_RUN)
        previous = size
        kind = special & _FLAG_BITS
        if kind & _CONTROL:
            check_version(data, start, stop)
        position = metadata >> _POSITION_SHIFT & _POSITION_BITS
        if kind & _RECORD_SET and expand_sets:
            columns.add_set(position, txid, start, stop)
        else:
            if special == ENVELOPE_FLAG and data.startswith(MAGIC, start, stop):
                columns.enveloped.append(len(flags))
            flags.append(kind)
            positions.append(position)
            txids.append(txid)
            starts.append(start)
            ends.append(stop)
            slots.append(columns.slot)
            columns.slot += member_count(data, start, stop) if kind & _RECORD_SET else 1
        at = stop
    return columns.records()
