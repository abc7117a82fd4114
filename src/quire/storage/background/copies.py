"""Whether entries that are damaged in one segment are there once more, in newer ones.

Only newer segments count: so two damaged segments never excuse each other. That a newer segment
*names* an entry is enough: should that copy be damaged too, it is that segment's damage, and never
"no such entry".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import LedgerRows, Summary, Trailer, decode_footer_summary
from quire.codec.log.footer import decode_ledger_rows as decode_rows
from quire.codec.log.state_records import FormatError
from quire.core.ranges import Range, merged, without
from quire.storage.interfaces import Disk, File
from quire.storage.segment import extents
from quire.storage.segment.extents import Extent
from quire.storage.segment.sealing import read
from quire.storage.segment.segment import LedgerInfo, Segment, segment_name


@dataclass(frozen=True, slots=True)
class Newer:
    """Where else a ledger has entries, as the event loop knows it."""

    sealed: tuple[tuple[int, Trailer], ...]
    """Segments with footers."""
    open: tuple[Range, ...]
    """Entries that are synced, in segments that have none yet."""


def newer_copies(segments: Mapping[int, Segment], info: LedgerInfo, number: int) -> Newer:
    """All that the ledger has behind segment `number`."""
    sealed = []
    for other in info.sealed_numbers:
        trailer = segments[other].trailer
        if other > number and trailer is not None:
            sealed.append((other, trailer))
    ranges: list[Range] = []
    for part in info.open_parts:
        if part.segment.number > number:
            for run in part.runs:
                if run.batch.buffers is None:  # else a crash may take it back
                    ranges += extents.of_run(run).entries()
    return Newer(tuple(sealed), tuple(merged(ranges)))


class Footers:
    """Rows of ledgers in sealed segments. For one job of the maintenance: it closes what it has
    opened."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, tuple[File, Summary] | None] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Footers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rows(self, number: int, trailer: Trailer, ledger_id: int) -> LedgerRows | None:
        """None where the segment has none of the ledger, or its index does not check."""
        if number not in self._open:
            self._open[number] = None
            with suppress(OSError, FormatError):
                file = self._disk.open(segment_name(number))
                self._stack.callback(file.close)
                data = read(file, trailer.summary_at, trailer.summary_bytes)
                self._open[number] = file, decode_footer_summary(data, trailer)
        known = self._open[number]
        if known is None:
            return None
        file, summary = known
        found = summary.find(ledger_id)
        if found is None:
            return None
        with suppress(OSError, FormatError):
            data = read(file, trailer.footer_at + found.rows_at, found.rows_bytes)
            if len(data) == found.rows_bytes and crc32c(data) == found.rows_crc:
                return decode_rows(data, found.rows)
        return None

    def extents(self, number: int, trailer: Trailer, ledger_id: int) -> list[Extent]:
        """Its runs, none where they cannot be read."""
        rows = self.rows(number, trailer, ledger_id)
        return [] if rows is None else list(extents.of_rows(ledger_id, rows))


def lacking(
    footers: Footers, ledger_id: int, damaged: Sequence[Range], newer: Newer
) -> list[Range]:
    """Those of the damaged entries that no newer segment names."""
    left = without(damaged, newer.open)
    for number, trailer in reversed(newer.sealed):
        if not left:
            break
        there: list[Range] = []
        for extent in footers.extents(number, trailer, ledger_id):
            there += extent.entries()
        left = without(left, merged(there))
    return left
