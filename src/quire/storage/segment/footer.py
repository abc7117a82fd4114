"""Writing the footer of a segment that takes no more groups, and reading it back at a start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from quire.codec.log.footer import (
    TRAILER_BARE,
    TRAILER_BYTES,
    FooterParts,
    Summary,
    Trailer,
    decode_footer_records,
    decode_footer_summary,
    decode_trailer,
)
from quire.codec.log.group import BARE_HEAD_BYTES
from quire.codec.log.state_records import StateRecord
from quire.storage.interfaces import Readable
from quire.storage.segment.footer_rows import Described, FooterRows
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import LogSegment


@dataclass(frozen=True, slots=True)
class SealInput:
    """What the event loop hands over: a closed segment does not change any more, but its ledgers
    may be dropped meanwhile."""

    directory_id: bytes
    segment: LogSegment
    ledgers: Iterable[Described]
    """Sorted by ledger id."""
    records: Sequence[StateRecord]


@dataclass(frozen=True, slots=True)
class Sealed:
    trailer: Trailer
    ledgers: Summary
    mentions: LedgerIdSet


def write_footer(seal: SealInput) -> Sealed:
    """Write the footer, cut the file to its true size and sync it. Durable on return.

    Until the trailer is whole, the groups are still the truth: a crash here loses nothing. So the
    trailer is written when all that it speaks for is synced: a loss of power tears what was not in
    any place, and may keep the trailer of an index that it drops."""
    segment = seal.segment
    rows = FooterRows(segment)
    rows.add(seal.ledgers)
    ledgers = rows.summary
    footer = FooterParts(
        seal.directory_id, segment.number, segment.first_group, segment.end_group,
        segment.groups_at, segment.end, rows.pieces, ledgers,
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
    return Sealed(trailer, ledgers, mentioned(ledgers.ledger_ids, seal.records))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a start needs of a sealed segment."""

    trailer: Trailer
    summary: Summary
    records: Sequence[StateRecord]


def load_footer(file: Readable, directory_id: bytes, number: int) -> Loaded:
    """`FormatError` where it does not check: the groups are then to be scanned. `OSError`."""
    return load_behind(file, load_trailer(file, directory_id, number))


def load_trailer(file: Readable, directory_id: bytes, number: int) -> Trailer:
    """`FormatError` where it does not check, as it does not of a segment without a footer.
    `OSError`."""
    size = file.size()
    data = read(file, max(0, size - TRAILER_BYTES), TRAILER_BYTES)
    return decode_trailer(data, directory_id, number, size)


def load_behind(file: Readable, trailer: Trailer) -> Loaded:
    """What the trailer, which checks, says is there. `FormatError` where that does not check.
    `OSError`."""
    summary = decode_footer_summary(read(file, trailer.summary_at, trailer.summary_bytes), trailer)
    return Loaded(trailer, summary, load_records(file, trailer))


def load_records(file: Readable, trailer: Trailer) -> list[StateRecord]:
    """`FormatError` where they do not check."""
    return decode_footer_records(read(file, trailer.records_at, trailer.records_bytes), trailer)


def read(file: Readable, offset: int, size: int) -> bytes:
    data = file.read(offset, size)
    return b"" if data is None else bytes(data)


def mentioned(ledger_ids: Sequence[int], records: Sequence[StateRecord]) -> LedgerIdSet:
    """The ledgers that a segment says something about."""
    return LedgerIdSet((*ledger_ids, *(record.ledger_id for record in records)))
