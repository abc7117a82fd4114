"""Writing the footer of a segment that takes no more groups, and reading it back at a start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import add, eq, mul, sub

from quire.codec.digest import crc32c_of
from quire.codec.log_footer import (
    DISJOINT,
    PLAIN_ROWS_MAX,
    TRAILER_BARE,
    TRAILER_BYTES,
    FooterParts,
    LedgerSummary,
    Summary,
    Trailer,
    decode_footer_records,
    decode_footer_summary,
    decode_trailer,
    encode_ledger_rows,
    encode_plain_rows,
    encode_singles,
)
from quire.codec.log_group import BARE_HEAD_BYTES
from quire.codec.log_parts import StateRecord
from quire.storage.batch import Run
from quire.storage.ledger_ids import LedgerIds
from quire.storage.seams import File
from quire.storage.segment import ROW_BITS, ROW_MASK, Part, Segment


@dataclass(frozen=True, slots=True)
class SealInput:
    """What the event loop hands over: a closed segment does not change any more, but its ledgers
    may be dropped meanwhile."""

    directory_id: bytes
    segment: Segment
    ledgers: Iterable[tuple[int, Part, int]]
    """(ledger id, its runs, greatest LAC known), sorted by ledger id."""
    records: Sequence[StateRecord]


@dataclass(frozen=True, slots=True)
class Sealed:
    trailer: Trailer
    ledgers: Sequence[LedgerSummary]
    mentions: LedgerIds


def _joined(runs: Sequence[Run]) -> tuple[Sequence[Run], list[int]]:
    """The runs and their offsets in the file; those that go on where another ends become one."""
    offsets = [run.batch.file_offset + run.offset for run in runs]
    ends = [offset + run.frame_size * run.count for run, offset in zip(runs, offsets)]
    if not set(ends).intersection(offsets):
        return runs, offsets
    joined: list[Run] = []
    places, offsets = offsets, []
    for run, offset in zip(runs, places):
        if joined and run.ids is None and run.frame_size:
            before = joined[-1]
            if (
                before.ids is None
                and before.frame_size == run.frame_size
                and before.first + before.count == run.first
                and offsets[-1] + before.count * before.frame_size == offset
            ):
                joined[-1] = Run(
                    run.ledger_id, before.first, before.count + run.count, 0, run.frame_size
                )
                continue
        joined.append(run)
        offsets.append(offset)
    return joined, offsets


def _arrived(run: Run) -> tuple[int, int]:
    return run.first, run.batch.file_offset + run.offset


_Rows = tuple[bytes, int, int, int, int, int]
"""Of one ledger: its rows encoded, first and last entry, bytes of frames, span, number of rows."""


def _any(part: Part) -> _Rows | None:
    runs, span = part.runs, part.span
    if not runs:
        return None
    size = sum([run.size_bytes for run in runs])
    if span == DISJOINT:
        joined, offsets = _joined(runs)
        last = joined[-1].last
    else:
        joined = sorted(runs, key=_arrived)
        offsets = [run.batch.file_offset + run.offset for run in joined]
        span = max(run.last - run.first for run in joined)
        last = max(run.last for run in joined)
    encoded = encode_ledger_rows(joined, offsets)
    return encoded, joined[0].first, last, size, span, len(joined)


def _plain(part: Part) -> _Rows | None:
    """The same, as columns, of a ledger that got its entries in turn with others; None where it is
    not that simple. A segment may have tens of thousands of these."""
    rows = part.plain_rows()
    if rows is None or not 0 < len(rows[0]) <= PLAIN_ROWS_MAX:
        return None
    firsts, offsets, counts, frame_sizes = rows
    sizes = tuple(map(mul, counts, frame_sizes))
    if True in map(eq, map(add, offsets, sizes), offsets[1:]):
        return None  # one goes on where another ends, and they may become one
    last = firsts[-1] + counts[-1] - 1
    return encode_plain_rows(*rows), firsts[0], last, sum(sizes), DISJOINT, len(firsts)


def _in_turn(part: Part, bases: Sequence[int], frame_size: int) -> _Rows | None:
    """The same, of a ledger whose entries all came in turn with others, in frames of this size;
    `bases`: where the segment's chunks begin in its file."""
    rows = part.rows
    count = len(rows)
    if part.listed is not None or not 0 < count <= PLAIN_ROWS_MAX:
        return None
    offsets = [bases[row >> ROW_BITS] + (row & ROW_MASK) * frame_size for row in rows]
    if frame_size in map(sub, offsets[1:], offsets):
        return None
    encoded = encode_singles(part.ids, offsets, frame_size)
    return encoded, part.first, part.last, count * frame_size, DISJOINT, count


def write_footer(seal: SealInput) -> Sealed:
    """Write the footer, cut the file to its true size and sync it. Durable on return.

    Until the trailer is whole, the groups are still the truth: a crash here loses nothing. So the
    trailer is written when all that it speaks for is synced: a loss of power tears what was not in
    any place, and may keep the trailer of an index that it drops."""
    segment = seal.segment
    rows: list[bytes] = []
    ledgers: list[LedgerSummary] = []
    rows_at = 0
    bases = [batch.file_offset for batch, _ in segment.chunks]
    sizes = {size for _, size in segment.chunks}
    one_size = sizes.pop() if len(sizes) == 1 else 0
    for ledger_id, part, last_add_confirmed in seal.ledgers:
        described = _in_turn(part, bases, one_size) if one_size else None
        described = described or _plain(part) or _any(part)
        if described is None:
            continue
        encoded, first, last, size, span, count = described
        summary = LedgerSummary(
            ledger_id, first, last, last_add_confirmed, size, span, rows_at, len(encoded), count,
            crc32c_of(encoded),
        )  # fmt: skip
        ledgers.append(summary)
        rows.append(encoded)
        rows_at += len(encoded)
    footer = FooterParts(
        seal.directory_id, segment.number, segment.first_group, segment.end_group,
        segment.groups_at, segment.end, rows, ledgers,
        [replace(one, run_index=0) if one.run_index else one for one in seal.records],
        segment.checksums, TRAILER_BARE if segment.head_bytes == BARE_HEAD_BYTES else 0,
    )  # fmt: skip
    pieces, trailer = footer.encode()
    assert segment.file is not None
    segment.file.write(pieces[:-1], trailer.footer_at)
    segment.file.truncate(trailer.file_bytes)
    segment.file.sync()
    segment.file.write(pieces[-1:], trailer.file_bytes - TRAILER_BYTES)
    segment.file.sync()
    return Sealed(trailer, ledgers, mentioned([one.ledger_id for one in ledgers], seal.records))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a start needs of a sealed segment."""

    trailer: Trailer
    summary: Summary
    records: Sequence[StateRecord]


def load_footer(file: File, directory_id: bytes, number: int) -> Loaded:
    """`FormatError` where it does not check: the groups are then to be scanned. `OSError`."""
    return load_behind(file, load_trailer(file, directory_id, number))


def load_trailer(file: File, directory_id: bytes, number: int) -> Trailer:
    """`FormatError` where it does not check, as it does not of a segment without a footer.
    `OSError`."""
    size = file.size()
    data = read(file, max(0, size - TRAILER_BYTES), TRAILER_BYTES)
    return decode_trailer(data, directory_id, number, size)


def load_behind(file: File, trailer: Trailer) -> Loaded:
    """What the trailer, which checks, says is there. `FormatError` where that does not check.
    `OSError`."""
    summary = decode_footer_summary(read(file, trailer.summary_at, trailer.summary_bytes), trailer)
    return Loaded(trailer, summary, load_records(file, trailer))


def load_records(file: File, trailer: Trailer) -> list[StateRecord]:
    """`FormatError` where they do not check."""
    return decode_footer_records(read(file, trailer.records_at, trailer.records_bytes), trailer)


def read(file: File, offset: int, size: int) -> bytes:
    data = file.read(offset, size)
    return b"" if data is None else bytes(data)


def mentioned(ledger_ids: Sequence[int], records: Sequence[StateRecord]) -> LedgerIds:
    """The ledgers that a segment says something about."""
    return LedgerIds((*ledger_ids, *(record.ledger_id for record in records)))
