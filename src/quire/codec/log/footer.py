"""The footer of a sealed segment: its index at rest.

It starts at the block behind the last group and ends with the file. All integers are little-endian;
tables lie column by column, so that they are searched without being decoded. Checksums are CRC-32C.

    ledger rows of the 1st ledger | ... of the last | state records | block checksums | summary |
    trailer (the last 128 bytes of the file)

Ledger rows: the n runs of one ledger, sorted by first entry id, then by offset:

| column        | width | content                                                              |
|---------------|-------|----------------------------------------------------------------------|
| firsts        | 8 n   | first entry id                                                       |
| offsets       | 8 n   | offset of the first frame in the file                                |
| counts        | 4 n   | number of entries                                                    |
| frame sizes   | 4 n   | size of each frame, or 0: see sizes                                  |
| sizes at      | 4 n   | where the run's frame sizes start among the sizes, if frame size is 0 |
| ids at        | 4 n   | where the run's ids start among the ids; 0xFFFFFFFF: consecutive     |
| number        | 4     | how many sizes follow                                                |
| sizes         | 4 each| frame sizes                                                          |
| ids           | 8 each| entry ids, to the end                                                |

State records: see `log_parts`; those of the whole segment, in order, their run index without
meaning. They were logged before the runs of the footer, or concern other ledgers.

Block checksums: u32 for each block between the segment header and the footer, group headers and
tables included. What a damaged block should be is not always known: it then has a wrong one.

Summary: for m ledgers, sorted by ledger id, the columns ledger id, first entry, last entry,
greatest LAC known, bytes of all frames, span (greatest last - first of a run, where runs overlap;
-1 where they do not), rows at (from the start of the footer), rows length: 8 m each; number of
rows, checksum of the rows: 4 m each.

Trailer:

| offset | size | field                                                    |
|--------|------|----------------------------------------------------------|
| 0      | 8    | "QSEALED" 01                                             |
| 8      | 16   | directory id                                             |
| 24     | 8    | segment number                                           |
| 32     | 8    | first group                                              |
| 40     | 8    | the group behind the last                                |
| 48     | 8    | where groups start (length of the segment header)        |
| 56     | 8    | where the footer starts                                  |
| 64     | 8    | length of all ledger rows                                |
| 72     | 8    | length of the state records                              |
| 80     | 8    | length of the block checksums                            |
| 88     | 8    | length of the summary                                    |
| 96     | 4    | number of state records                                  |
| 100    | 4    | number of ledgers                                        |
| 104    | 4    | checksum of the state records                            |
| 108    | 4    | checksum of the block checksums                          |
| 112    | 4    | checksum of the summary                                  |
| 116    | 4    | flags; 1: the frames are bare                            |
| 120    | 4    | reserved, 0                                              |
| 124    | 4    | checksum of bytes 0..123                                 |
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

from quire.codec.entry.digest import crc32c
from quire.codec.log.group import RunLike, head_bytes_of
from quire.codec.log.state_records import (
    BLOCK_BYTES,
    Buffer,
    FormatError,
    StateRecord,
    decode_records,
    encode_records,
    from_little,
    little,
)

TRAILER_MAGIC = b"QSEALED\x01"
CONSECUTIVE = 0xFFFFFFFF
DISJOINT = -1
TRAILER_BARE = 1

_TRAILER = struct.Struct(
    "<"
    "8s"  # magic
    "16s"  # directory id
    "Q"  # segment number
    "Q"  # first group
    "Q"  # group behind the last
    "Q"  # where groups start
    "Q"  # where the footer starts
    "Q"  # length of rows
    "Q"  # length of records
    "Q"  # length of checksums
    "Q"  # length of summary
    "I"  # records
    "I"  # ledgers
    "I"  # checksum of records
    "I"  # checksum of block checksums
    "I"  # checksum of summary
    "I"  # flags
    "4x"
)
_U32 = struct.Struct("<I")
TRAILER_BYTES = _TRAILER.size + _U32.size
_ROW_COLUMNS = (("q", 8), ("q", 8), ("I", 4), ("I", 4), ("I", 4), ("I", 4))
_ROW_BYTES = sum(width for _, width in _ROW_COLUMNS)
_SUMMARY_COLUMNS = (*(("q", 8),) * 8, ("I", 4), ("I", 4))
_SUMMARY_BYTES = sum(width for _, width in _SUMMARY_COLUMNS)


def _columns(data: memoryview, kinds: Sequence[tuple[str, int]], n: int) -> list[Sequence[int]]:
    columns: list[Sequence[int]] = []
    at = 0
    for typecode, width in kinds:
        column = data[at : at + width * n]
        columns.append(_numbers(typecode, column))
        at += width * n
    return columns


def _numbers(typecode: str, data: memoryview) -> Sequence[int]:
    if sys.byteorder == "little":
        return data.cast(typecode)  # type: ignore[call-overload, no-any-return]
    return from_little(typecode, data)  # pragma: no cover - needs a big-endian machine


# -- the runs of one ledger -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """The runs of one ledger in one segment, as columns."""

    firsts: Sequence[int]
    offsets: Sequence[int]
    counts: Sequence[int]
    frame_sizes: Sequence[int]
    sizes_at: Sequence[int]
    ids_at: Sequence[int]
    sizes: Sequence[int]
    ids: Sequence[int]

    def last(self, row: int) -> int:
        """The last entry id of a run."""
        at = self.ids_at[row]
        if at == CONSECUTIVE:
            return self.firsts[row] + self.counts[row] - 1
        return self.ids[at + self.counts[row] - 1]


PLAIN_ROWS_MAX = 64
"""A ledger that got its entries in turn with others has a few rows of one kind: one packing."""


@lru_cache(maxsize=PLAIN_ROWS_MAX)
def _plain_rows(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}q{count}q{count}I{count}I{count}I{count}II")


@lru_cache(maxsize=4 * PLAIN_ROWS_MAX)
def _rest_of_singles(rows: int, frame_size: int) -> bytes:
    """What stands behind the offsets, of rows with one entry each."""
    counts, sizes, no_ids = (1,) * rows, (frame_size,) * rows, (CONSECUTIVE,) * rows
    return _plain_rows(rows).pack(*bytes(2 * rows), *counts, *sizes, *bytes(rows), *no_ids, 0)[
        16 * rows :
    ]


def encode_ledger_rows(runs: Sequence[RunLike], offsets: Sequence[int]) -> bytes:
    """`runs` sorted as the format demands; `offsets` of their first frames in the file."""
    count = len(runs)
    if count <= PLAIN_ROWS_MAX:
        frame_sizes = [run.frame_size for run in runs if run.ids is None]
        if len(frame_sizes) == count and 0 not in frame_sizes:
            firsts, counts = [run.first for run in runs], [run.count for run in runs]
            return encode_plain_rows(firsts, offsets, counts, frame_sizes)
    return _encode_any_rows(runs, offsets)


def encode_plain_rows(
    firsts: Sequence[int],
    offsets: Sequence[int],
    counts: Sequence[int],
    frame_sizes: Sequence[int],
) -> bytes:
    """`encode_ledger_rows` of at most `PLAIN_ROWS_MAX` runs of consecutive ids, each with frames of
    one size."""
    rows, frame_size = len(firsts), frame_sizes[0]
    if counts.count(1) == frame_sizes.count(frame_size) == rows:
        return encode_singles(firsts, offsets, frame_size)
    no_ids = (CONSECUTIVE,) * rows
    return _plain_rows(rows).pack(
        *firsts, *offsets, *counts, *frame_sizes, *bytes(rows), *no_ids, 0
    )


def encode_singles(firsts: Sequence[int], offsets: Sequence[int], frame_size: int) -> bytes:
    """`encode_plain_rows` of runs with one entry each, all frames of one size."""
    counts = (len(firsts),)
    [rows] = encode_each_singles(array("q", firsts), array("q", offsets), counts, frame_size)
    return rows


def encode_each_singles(
    firsts: array[int], offsets: array[int], counts: Sequence[int], frame_size: int
) -> list[bytes]:
    """The same of many ledgers: the columns of all, one behind the other, and how many rows each
    has."""
    rests = {count: _rest_of_singles(count, frame_size) for count in set(counts)}
    entries, places = little(firsts), little(offsets)
    encoded = []
    start = 0
    for count in counts:
        end = start + 8 * count
        encoded.append(entries[start:end] + places[start:end] + rests[count])
        start = end
    return encoded


def _encode_any_rows(runs: Sequence[RunLike], offsets: Sequence[int]) -> bytes:
    sizes = array("I")
    ids = array("q")
    sizes_at = array("I")
    ids_at = array("I")
    for run in runs:
        sizes_at.append(len(sizes))
        if not run.frame_size:
            assert run.sizes is not None
            sizes.extend(run.sizes)
        if run.ids is None:
            ids_at.append(CONSECUTIVE)
        else:
            ids_at.append(len(ids))
            ids.extend(run.ids)
    return b"".join(
        (
            little(array("q", [run.first for run in runs])),
            little(array("q", offsets)),
            little(array("I", [run.count for run in runs])),
            little(array("I", [run.frame_size for run in runs])),
            little(sizes_at),
            little(ids_at),
            _U32.pack(len(sizes)),
            little(sizes),
            little(ids),
        )
    )


def decode_ledger_rows(data: Buffer, count: int) -> LedgerRows:
    """`data` has been checked against the checksum in the summary."""
    view = memoryview(data)
    at = _ROW_BYTES * count
    if at + _U32.size > len(view):
        raise FormatError("the rows of a ledger are cut off")
    (sizes,) = _U32.unpack_from(view, at)
    at += _U32.size
    ids_at = at + 4 * sizes
    if ids_at > len(view) or (len(view) - ids_at) % 8:
        raise FormatError("the sizes of a ledger are cut off")
    columns = _columns(view, _ROW_COLUMNS, count)
    columns.append(_numbers("I", view[at:ids_at]))
    columns.append(_numbers("q", view[ids_at:]))
    return LedgerRows(*columns)


# -- summary ----------------------------------------------------------------------------------


class LedgerSummary(NamedTuple):
    """One ledger in one segment, in the order of the columns."""

    ledger_id: int
    first: int
    last: int
    last_add_confirmed: int
    size_bytes: int
    span: int
    rows_at: int
    rows_bytes: int
    rows: int
    rows_crc: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All ledgers of one segment, as columns."""

    ledger_ids: Sequence[int]
    firsts: Sequence[int]
    lasts: Sequence[int]
    last_add_confirmeds: Sequence[int]
    size_bytes: Sequence[int]
    spans: Sequence[int]
    rows_at: Sequence[int]
    rows_bytes: Sequence[int]
    rows: Sequence[int]
    rows_crcs: Sequence[int]

    def find(self, ledger_id: int) -> LedgerSummary | None:
        at = bisect_left(self.ledger_ids, ledger_id)
        if at == len(self.ledger_ids) or self.ledger_ids[at] != ledger_id:
            return None
        return LedgerSummary(
            self.ledger_ids[at], self.firsts[at], self.lasts[at], self.last_add_confirmeds[at],
            self.size_bytes[at], self.spans[at], self.rows_at[at], self.rows_bytes[at],
            self.rows[at], self.rows_crcs[at],
        )  # fmt: skip


def summary_columns() -> list[array[int]]:
    """Of a `Summary`, in the order of its fields: empty, to be filled sorted by ledger id."""
    return [array(kind) for kind, _ in _SUMMARY_COLUMNS]


def encode_summary(summary: Summary) -> bytes:
    columns = [getattr(summary, field.name) for field in fields(summary)]
    return b"".join([little(array(kind, one)) for (kind, _), one in zip(_SUMMARY_COLUMNS, columns)])


def decode_summary(data: Buffer, count: int) -> Summary:
    if len(data) != _SUMMARY_BYTES * count:
        raise FormatError("the summary of a segment has a wrong length")
    return Summary(*_columns(memoryview(data), _SUMMARY_COLUMNS, count))


# -- trailer ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trailer:
    directory_id: bytes
    segment: int
    first_group: int
    end_group: int
    groups_at: int
    footer_at: int
    rows_bytes: int
    records_bytes: int
    checksums_bytes: int
    summary_bytes: int
    records: int
    ledgers: int
    records_crc: int
    checksums_crc: int
    summary_crc: int
    flags: int = 0

    @property
    def head_bytes(self) -> int:
        """Of each frame of the segment, before the entry."""
        return head_bytes_of(bare=bool(self.flags & TRAILER_BARE))

    @property
    def records_at(self) -> int:
        return self.footer_at + self.rows_bytes

    @property
    def checksums_at(self) -> int:
        return self.records_at + self.records_bytes

    @property
    def summary_at(self) -> int:
        return self.checksums_at + self.checksums_bytes

    @property
    def trailer_at(self) -> int:
        return self.summary_at + self.summary_bytes

    @property
    def file_bytes(self) -> int:
        return self.trailer_at + TRAILER_BYTES

    @property
    def crc(self) -> int:
        """The trailer's own checksum: another file of the same number has another."""
        return int.from_bytes(self.encode()[-_U32.size :], "little")

    def encode(self) -> bytes:
        body = _TRAILER.pack(
            TRAILER_MAGIC, self.directory_id, self.segment, self.first_group, self.end_group,
            self.groups_at, self.footer_at, self.rows_bytes, self.records_bytes,
            self.checksums_bytes, self.summary_bytes, self.records, self.ledgers,
            self.records_crc, self.checksums_crc, self.summary_crc, self.flags,
        )  # fmt: skip
        return body + _U32.pack(crc32c(body))


def decode_trailer(data: Buffer, directory_id: bytes, segment: int, file_bytes: int) -> Trailer:
    """The trailer of this segment of this directory, `FormatError` where it is not that."""
    if len(data) != TRAILER_BYTES or bytes(data[:8]) != TRAILER_MAGIC:
        raise FormatError("no trailer")
    (crc,) = _U32.unpack_from(data, _TRAILER.size)
    if crc != crc32c(memoryview(data)[: _TRAILER.size]):
        raise FormatError("a trailer does not match its checksum")
    trailer = Trailer(*_TRAILER.unpack_from(data, 0)[1:])
    if (trailer.directory_id, trailer.segment) != (directory_id, segment):
        raise FormatError("a trailer of another segment")
    if trailer.file_bytes != file_bytes or trailer.footer_at % BLOCK_BYTES:
        raise FormatError("a trailer that does not fit its file")
    return trailer


@dataclass(frozen=True, slots=True)
class FooterParts:
    """A footer in the making: all `rows` of its ledgers, in pieces, and their summary."""

    directory_id: bytes
    segment: int
    first_group: int
    end_group: int
    groups_at: int
    footer_at: int
    rows: Sequence[bytes]
    ledgers: Summary
    records: Sequence[StateRecord]
    checksums: array[int]
    flags: int = 0
    """Of the trailer."""

    def encode(self) -> tuple[list[bytes], Trailer]:
        """The pieces of the footer in order; the last is the trailer."""
        records = encode_records(self.records)
        checksums = little(self.checksums)
        summary = encode_summary(self.ledgers)
        trailer = Trailer(
            self.directory_id, self.segment, self.first_group, self.end_group, self.groups_at,
            self.footer_at, sum(map(len, self.rows)), len(records), len(checksums), len(summary),
            len(self.records), len(self.ledgers.ledger_ids), crc32c(records),
            crc32c(checksums), crc32c(summary), self.flags,
        )  # fmt: skip
        return [*self.rows, records, checksums, summary, trailer.encode()], trailer


def decode_footer_records(data: Buffer, trailer: Trailer) -> list[StateRecord]:
    """The state records; `FormatError` where they do not match their checksum."""
    if len(data) != trailer.records_bytes or crc32c(data) != trailer.records_crc:
        raise FormatError("the state records of a segment do not match their checksum")
    return decode_records(data, 0, trailer.records)[0]


def decode_footer_checksums(data: Buffer, trailer: Trailer) -> Sequence[int]:
    if len(data) != trailer.checksums_bytes or crc32c(data) != trailer.checksums_crc:
        raise FormatError("the block checksums of a segment do not match their checksum")
    return _numbers("I", memoryview(data))


def decode_footer_summary(data: Buffer, trailer: Trailer) -> Summary:
    if len(data) != trailer.summary_bytes or crc32c(data) != trailer.summary_crc:
        raise FormatError("the summary of a segment does not match its checksum")
    return decode_summary(data, trailer.ledgers)
