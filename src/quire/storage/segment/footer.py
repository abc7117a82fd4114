"""Write the footer of a segment that takes no more groups, and read it back.

`footer_rows` builds the tables of the footer, and `quire.codec.log.footer` has its format.
"""

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
    """The input for writing a footer, prepared on the event loop.

    The closed segment no longer changes, but ledgers may be dropped while the footer is written. So
    this has the runs of all ledgers.
    """

    directory_id: bytes
    segment: LogSegment
    ledgers: Iterable[Described]
    """The id, the runs and the LAC of each ledger with entries in the segment, sorted by id."""
    records: Sequence[StateRecord]


@dataclass(frozen=True, slots=True)
class Sealed:
    """The result of writing a footer.

    `mentions` has the ids of all ledgers with entries or state records in the segment.
    """

    trailer: Trailer
    ledgers: Summary
    mentions: LedgerIdSet


def write_footer(seal: SealInput) -> Sealed:
    """Write the footer of a segment, cut the file to its final size, and sync it.

    The footer is durable on return. Until the trailer is valid, a start reads the groups instead,
    so a crash in the meantime loses nothing. The trailer is written only after everything else is
    synced. Otherwise a power loss could leave a valid trailer for an index that was never written.
    Raises `OSError` if the disk fails.
    """
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
    """The parts of a sealed segment's footer that a start needs."""

    trailer: Trailer
    summary: Summary
    records: Sequence[StateRecord]


def load_footer(file: Readable, directory_id: bytes, number: int) -> Loaded:
    """Read the trailer, the summary and the state records in the footer of a segment.

    Raises:
        FormatError: The footer fails its check. The groups must be scanned instead.
        VersionError: A later version wrote the footer.
        OSError: The file cannot be read.
    """
    return load_behind(file, load_trailer(file, directory_id, number))


def load_trailer(file: Readable, directory_id: bytes, number: int) -> Trailer:
    """Read the trailer of a segment, the last part of its footer.

    Raises:
        FormatError: The trailer fails its check, or the segment has no footer.
        VersionError: A later version wrote the trailer.
        OSError: The file cannot be read.
    """
    size = file.size()
    data = read(file, max(0, size - TRAILER_BYTES), TRAILER_BYTES)
    return decode_trailer(data, directory_id, number, size)


def load_behind(file: Readable, trailer: Trailer) -> Loaded:
    """Read the summary and the records of a footer whose trailer was read and checked.

    Raises:
        FormatError: The summary or the records fail their check.
        VersionError: A later version wrote a record.
        OSError: The file cannot be read.
    """
    summary = decode_footer_summary(read(file, trailer.summary_at, trailer.summary_bytes), trailer)
    return Loaded(trailer, summary, load_records(file, trailer))


def load_records(file: Readable, trailer: Trailer) -> list[StateRecord]:
    """Read the state records of a footer.

    Raises:
        FormatError: The records fail their check.
        VersionError: A later version wrote a record.
        OSError: The file cannot be read.
    """
    return decode_footer_records(read(file, trailer.records_at, trailer.records_bytes), trailer)


def read(file: Readable, offset: int, size: int) -> bytes:
    """Read `size` bytes of a file from `offset` on, or fewer at its end.

    This waits for the device.
    """
    data = file.read(offset, size)
    return b"" if data is None else bytes(data)


def mentioned(ledger_ids: Sequence[int], records: Sequence[StateRecord]) -> LedgerIdSet:
    """Return the ids of all ledgers that a segment has entries or state records of."""
    return LedgerIdSet((*ledger_ids, *(record.ledger_id for record in records)))
