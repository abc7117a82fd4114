"""Writing the footer of a segment that takes no more groups, and reading it back at a start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from quire.codec.digest import crc32c
from quire.codec.log_footer import (
    DISJOINT,
    TRAILER_BYTES,
    FooterParts,
    LedgerSummary,
    Summary,
    Trailer,
    decode_footer_records,
    decode_footer_summary,
    decode_trailer,
    encode_ledger_rows,
)
from quire.codec.log_parts import StateRecord
from quire.storage.batch import Run
from quire.storage.ledger_ids import LedgerIds
from quire.storage.seams import File
from quire.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class SealInput:
    """What the event loop hands over: a closed segment does not change any more, but its ledgers
    may be dropped meanwhile."""

    directory_id: bytes
    segment: Segment
    ledgers: Iterable[tuple[int, Sequence[Run], int, int]]
    """(ledger id, its runs sorted by first id, span, greatest LAC known), sorted by ledger id."""
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


def write_footer(seal: SealInput) -> Sealed:
    """Write the footer, cut the file to its true size and sync it. Durable on return.

    Until the trailer is whole, the groups are still the truth: a crash here loses nothing. So the
    trailer is written when all that it speaks for is synced: a loss of power tears what was not in
    any place, and may keep the trailer of an index that it drops."""
    segment = seal.segment
    rows: list[bytes] = []
    ledgers: list[LedgerSummary] = []
    rows_at = 0
    for ledger_id, runs, span, last_add_confirmed in seal.ledgers:
        if not runs:
            continue
        size = sum([run.size_bytes for run in runs])
        if span == DISJOINT:
            joined, offsets = _joined(runs)
        else:
            joined = sorted(runs, key=_arrived)
            offsets = [run.batch.file_offset + run.offset for run in joined]
        encoded = encode_ledger_rows(joined, offsets)
        if span == DISJOINT:
            last = joined[-1].last
        else:
            span = max(run.last - run.first for run in joined)
            last = max(run.last for run in joined)
        summary = LedgerSummary(
            ledger_id, joined[0].first, last, last_add_confirmed, size, span, rows_at,
            len(encoded), len(joined), crc32c(encoded),
        )  # fmt: skip
        ledgers.append(summary)
        rows.append(encoded)
        rows_at += len(encoded)
    footer = FooterParts(
        seal.directory_id, segment.number, segment.first_group, segment.end_group,
        segment.groups_at, segment.end, rows, ledgers,
        [replace(record, run_index=0) for record in seal.records], segment.checksums,
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
    size = file.size()
    trailer_at = max(0, size - TRAILER_BYTES)
    trailer = decode_trailer(read(file, trailer_at, TRAILER_BYTES), directory_id, number, size)
    summary = decode_footer_summary(read(file, trailer.summary_at, trailer.summary_bytes), trailer)
    records = decode_footer_records(read(file, trailer.records_at, trailer.records_bytes), trailer)
    return Loaded(trailer, summary, records)


def load_records(file: File, trailer: Trailer) -> list[StateRecord]:
    """`FormatError` where they do not check."""
    return decode_footer_records(read(file, trailer.records_at, trailer.records_bytes), trailer)


def read(file: File, offset: int, size: int) -> bytes:
    data = file.read(offset, size)
    return b"" if data is None else bytes(data)


def mentioned(ledger_ids: Sequence[int], records: Sequence[StateRecord]) -> LedgerIds:
    """The ledgers that a segment says something about."""
    return LedgerIds((*ledger_ids, *(record.ledger_id for record in records)))
