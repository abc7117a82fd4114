"""The footer of a sealed segment, which is its index.

It starts at the block after the last group and ends with the file. All integers are little-endian.
Tables are stored column by column, so that they can be searched without being decoded. Checksums
are CRC-32C in 4 bytes, unsigned.

    ledger rows of the 1st ledger | ... of the last | state records | block checksums | summary |
    trailer (the last 128 bytes of the file)

The ledger rows are the n runs of one ledger, sorted by first entry id, then by offset. Ids are
signed, the other columns unsigned:

| column        | size   | content                                                                 |
|---------------|--------|-------------------------------------------------------------------------|
| firsts        | 8 n    | first entry id                                                          |
| offsets       | 8 n    | offset of the first frame in the file, in bytes                         |
| counts        | 4 n    | number of entries                                                       |
| frame sizes   | 4 n    | size of each frame in bytes; 0: they differ, and are among *sizes*      |
| sizes at      | 4 n    | index among *sizes* of the run's first frame size                       |
| ids at        | 4 n    | index among *ids* of the run's first id; 0xFFFFFFFF: consecutive        |
| number        | 4      | number of the sizes                                                     |
| sizes         | 4 each | frame sizes in bytes                                                    |
| ids           | 8 each | entry ids, to the end of the rows                                       |

The state records are those of the whole segment, in order; their run index has no meaning (see
`state_records`). They were logged before the runs of the footer, or concern other ledgers.

There is a block checksum (4 bytes) for each block between the segment header and the footer,
including group headers and tables. If the right checksum of a damaged block is unknown, a wrong one
is stored.

The summary has the following columns for m ledgers, sorted by ledger id:

| column             | size | content                                                              |
|--------------------|------|----------------------------------------------------------------------|
| ledger id          | 8 m  | signed                                                               |
| first entry        | 8 m  | signed                                                               |
| last entry         | 8 m  | signed                                                               |
| last add confirmed | 8 m  | highest known LAC, signed; -1: none                                  |
| bytes              | 8 m  | bytes of all frames                                                  |
| span               | 8 m  | greatest difference between last and first entry of a run, if runs   |
|                    |      | overlap; -1 if they do not                                           |
| rows at            | 8 m  | offset of the ledger rows from the start of the footer, in bytes     |
| rows length        | 8 m  | length of the ledger rows in bytes                                   |
| rows               | 4 m  | number of rows, unsigned                                             |
| rows checksum      | 4 m  | checksum of the ledger rows                                          |

Trailer, all integers unsigned:

| offset | size | field                                                                            |
|--------|------|----------------------------------------------------------------------------------|
| 0      | 8    | "QSEALED", and the version, 1 (1 byte)                                           |
| 8      | 16   | directory id                                                                     |
| 24     | 8    | segment number                                                                   |
| 32     | 8    | number of the first group                                                        |
| 40     | 8    | number of the group after the last                                               |
| 48     | 8    | offset of the first group in the file (the length of the segment header)         |
| 56     | 8    | offset of the footer in the file                                                 |
| 64     | 8    | length of all ledger rows in bytes                                               |
| 72     | 8    | length of the state records in bytes                                             |
| 80     | 8    | length of the block checksums in bytes                                           |
| 88     | 8    | length of the summary in bytes                                                   |
| 96     | 4    | number of state records                                                          |
| 100    | 4    | number of ledgers                                                                |
| 104    | 4    | checksum of the state records                                                    |
| 108    | 4    | checksum of the block checksums                                                  |
| 112    | 4    | checksum of the summary                                                          |
| 116    | 4    | flags; 1: the frames are bare                                                    |
| 120    | 4    | zeros                                                                            |
| 124    | 4    | checksum of bytes 0..123                                                         |

Another version, another flag, and anything but zeros in bytes 120..123 are from a later version of
Quire, if the trailer matches its checksum. Every version keeps bytes 0..31 and the checksum.
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
    VersionError,
    decode_records,
    encode_records,
    from_little,
    little,
)

_TRAILER_START = b"QSEALED"
TRAILER_VERSION = 1
TRAILER_MAGIC = _TRAILER_START + bytes([TRAILER_VERSION])
CONSECUTIVE = 0xFFFFFFFF
DISJOINT = -1
TRAILER_BARE = 1
"""The flag of a trailer: the frames are bare. There is no other flag."""

_TRAILER = struct.Struct(
    "<"
    "8s"  # magic
    "16s"  # directory id
    "Q"  # segment number
    "Q"  # first group
    "Q"  # group after the last
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
    "4s"  # zeros
)
_ZEROS = bytes(4)
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
        """Return the last entry id of a run."""
        at = self.ids_at[row]
        if at == CONSECUTIVE:
            return self.firsts[row] + self.counts[row] - 1
        return self.ids[at + self.counts[row] - 1]


PLAIN_ROWS_MAX = 64
"""The largest number of rows that one call packs. A ledger whose entries arrived between those of
other ledgers usually has a few rows, each with consecutive ids and one frame size."""


@lru_cache(maxsize=PLAIN_ROWS_MAX)
def _plain_rows(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}q{count}q{count}I{count}I{count}I{count}II")


@lru_cache(maxsize=4 * PLAIN_ROWS_MAX)
def _rest_of_singles(rows: int, frame_size: int) -> bytes:
    """Return the bytes after the offsets, for rows with one entry each."""
    counts, sizes, no_ids = (1,) * rows, (frame_size,) * rows, (CONSECUTIVE,) * rows
    return _plain_rows(rows).pack(*bytes(2 * rows), *counts, *sizes, *bytes(rows), *no_ids, 0)[
        16 * rows :
    ]


def encode_ledger_rows(runs: Sequence[RunLike], offsets: Sequence[int]) -> bytes:
    """Return the ledger rows of sorted runs.

    `offsets` are the offsets of their first frames in the file.
    """
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
    """Return the ledger rows of runs with consecutive ids, each with frames of one size.

    There are at most `PLAIN_ROWS_MAX` of them.
    """
    rows, frame_size = len(firsts), frame_sizes[0]
    if counts.count(1) == frame_sizes.count(frame_size) == rows:
        return encode_singles(firsts, offsets, frame_size)
    no_ids = (CONSECUTIVE,) * rows
    return _plain_rows(rows).pack(
        *firsts, *offsets, *counts, *frame_sizes, *bytes(rows), *no_ids, 0
    )


def encode_singles(firsts: Sequence[int], offsets: Sequence[int], frame_size: int) -> bytes:
    """Return the ledger rows of runs with one entry each. All frames have one size."""
    counts = (len(firsts),)
    [rows] = encode_each_singles(array("q", firsts), array("q", offsets), counts, frame_size)
    return rows


def encode_each_singles(
    firsts: array[int], offsets: array[int], counts: Sequence[int], frame_size: int
) -> list[bytes]:
    """Return the ledger rows of each of many ledgers whose runs have one entry each.

    The columns contain the runs of all ledgers one after the other, and `counts` their number for
    each ledger. All frames have one size.
    """
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
    """Decode ledger rows, which the caller has verified with the checksum in the summary.

    Raises:
        FormatError: The rows are cut off.
    """
    view = memoryview(data)
    at = _ROW_BYTES * count
    if at + _U32.size > len(view):
        raise FormatError("the rows of a ledger in the segment's index are cut off")
    (sizes,) = _U32.unpack_from(view, at)
    at += _U32.size
    ids_at = at + 4 * sizes
    if ids_at > len(view) or (len(view) - ids_at) % 8:
        raise FormatError("the entry sizes of a ledger in the segment's index are cut off")
    columns = _columns(view, _ROW_COLUMNS, count)
    columns.append(_numbers("I", view[at:ids_at]))
    columns.append(_numbers("q", view[ids_at:]))
    return LedgerRows(*columns)


# -- summary ----------------------------------------------------------------------------------


class LedgerSummary(NamedTuple):
    """The summary of one ledger in one segment. Its fields are in the order of the columns."""

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
    """The summaries of all ledgers of one segment, as columns."""

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
        """Return the summary of a ledger, or None if the segment has no entries of it."""
        at = bisect_left(self.ledger_ids, ledger_id)
        if at == len(self.ledger_ids) or self.ledger_ids[at] != ledger_id:
            return None
        return LedgerSummary(
            self.ledger_ids[at], self.firsts[at], self.lasts[at], self.last_add_confirmeds[at],
            self.size_bytes[at], self.spans[at], self.rows_at[at], self.rows_bytes[at],
            self.rows[at], self.rows_crcs[at],
        )  # fmt: skip


def summary_columns() -> list[array[int]]:
    """Return empty columns of a `Summary` in the order of its fields.

    Fill them sorted by ledger id.
    """
    return [array(kind) for kind, _ in _SUMMARY_COLUMNS]


def encode_summary(summary: Summary) -> bytes:
    columns = [getattr(summary, field.name) for field in fields(summary)]
    return b"".join([little(array(kind, one)) for (kind, _), one in zip(_SUMMARY_COLUMNS, columns)])


def decode_summary(data: Buffer, count: int) -> Summary:
    if len(data) != _SUMMARY_BYTES * count:
        raise FormatError("the ledger summary in the segment's index has a wrong length")
    return Summary(*_columns(memoryview(data), _SUMMARY_COLUMNS, count))


# -- trailer ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trailer:
    """The content of a trailer, which says where the parts of the footer are."""

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
        """The number of bytes of each frame of the segment before the entry."""
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
        """The checksum of the trailer, which differs between files with the same segment number."""
        return int.from_bytes(self.encode()[-_U32.size :], "little")

    def encode(self) -> bytes:
        body = _TRAILER.pack(
            TRAILER_MAGIC, self.directory_id, self.segment, self.first_group, self.end_group,
            self.groups_at, self.footer_at, self.rows_bytes, self.records_bytes,
            self.checksums_bytes, self.summary_bytes, self.records, self.ledgers,
            self.records_crc, self.checksums_crc, self.summary_crc, self.flags, _ZEROS,
        )  # fmt: skip
        return body + _U32.pack(crc32c(body))


def decode_trailer(data: Buffer, directory_id: bytes, segment: int, file_bytes: int) -> Trailer:
    """Decode the trailer of this segment of this directory.

    Raises:
        FormatError: The trailer is damaged, belongs to another segment, or does not fit the file.
        VersionError: A later version wrote the trailer.
    """
    start = len(_TRAILER_START)
    if len(data) != TRAILER_BYTES or bytes(data[:start]) != _TRAILER_START:
        raise FormatError("there is no trailer")
    (crc,) = _U32.unpack_from(data, _TRAILER.size)
    if crc != crc32c(memoryview(data)[: _TRAILER.size]):
        raise FormatError("a trailer does not match its checksum")
    _, *values, zeros = _TRAILER.unpack_from(data, 0)
    trailer = Trailer(*values)
    # This comes first: an entry of a client, at the end of a file, could look like a trailer, but
    # clients do not know the directory's id.
    if (trailer.directory_id, trailer.segment) != (directory_id, segment):
        raise FormatError("the trailer belongs to another segment")
    if data[start] != TRAILER_VERSION:
        raise VersionError(f"an index of version {data[start]}", f"version {TRAILER_VERSION}")
    if trailer.flags & ~TRAILER_BARE or zeros != _ZEROS:
        more = f" and {zeros.hex()} after them" if zeros != _ZEROS else ""
        raise VersionError(
            f"an index with the flags {trailer.flags:#x}{more}", f"the flags in {TRAILER_BARE:#x}"
        )
    if trailer.file_bytes != file_bytes or trailer.footer_at % BLOCK_BYTES:
        raise FormatError(
            "the trailer of the segment file states another file size, or a wrong place of the "
            "index"
        )
    return trailer


@dataclass(frozen=True, slots=True)
class FooterParts:
    """The parts of a footer that is to be written. `rows` are the ledger rows, as buffers."""

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
    """The flags of the trailer."""

    def encode(self) -> tuple[list[bytes], Trailer]:
        """Return the buffers of the footer in order, the last of which is the trailer.

        The trailer is also returned as a value.
        """
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
    """Decode the state records of a footer.

    Raises:
        FormatError: The records do not match their checksum, or one is cut off.
        VersionError: A later version wrote a record.
    """
    if len(data) != trailer.records_bytes or crc32c(data) != trailer.records_crc:
        raise FormatError("the state records in the segment's index do not match their checksum")
    return decode_records(data, 0, trailer.records)[0]


def decode_footer_checksums(data: Buffer, trailer: Trailer) -> Sequence[int]:
    if len(data) != trailer.checksums_bytes or crc32c(data) != trailer.checksums_crc:
        raise FormatError(
            "the block checksums in the segment's index do not match their own checksum"
        )
    return _numbers("I", memoryview(data))


def decode_footer_summary(data: Buffer, trailer: Trailer) -> Summary:
    if len(data) != trailer.summary_bytes or crc32c(data) != trailer.summary_crc:
        raise FormatError("the ledger summary in the segment's index does not match its checksum")
    return decode_summary(data, trailer.ledgers)
