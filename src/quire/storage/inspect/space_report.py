"""Where the bytes of a data directory are, and why they do not come back. Reads only.

Works on the directory of a bookie that runs as well: what is looked at is then a moment of the log,
and a file that goes while it is looked at makes the whole look begin again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import CONSECUTIVE, LedgerRows, Trailer, decode_ledger_rows
from quire.codec.log.state_records import FormatError
from quire.core.compaction import why_not
from quire.core.ranges import count
from quire.storage.background.compactor import candidate_of
from quire.storage.background.quarantine_record import stored_records
from quire.storage.background.suspension import read_note
from quire.storage.config import StorageConfig
from quire.storage.inspect.contents import file_sizes, kind_of, number_of
from quire.storage.inspect.snapshot import with_log
from quire.storage.interfaces import Disk
from quire.storage.recovery.log_recovery import RecoveredLog, missing_problem
from quire.storage.segment.catalogue import VOUCHES
from quire.storage.segment.footer import Loaded, load_footer, read
from quire.storage.segment.segment import (
    SPARE_NAME,
    LedgerInfo,
    LogSegment,
    SegmentState,
    segment_name,
)

COPIES_ENTRIES_MAX = 2_000_000
"""Of one ledger, whose entry ids are held in memory to find copies."""


@dataclass(frozen=True, slots=True)
class SegmentSpace:
    number: int
    name: str
    state: str
    """sealed, open (not sealed yet), damaged, dropped, or prepared."""
    file_bytes: int
    live_bytes: int
    """Frames of ledgers that are not deleted."""
    copies_bytes: int
    """Of these, frames of entries that a newer segment has too."""
    deleted_bytes: int
    """Frames that its index names and whose ledger is deleted, or has moved to another segment."""
    index_bytes: int
    """Its footer: rows, state records, checksums."""
    ledgers: int
    live_ledgers: int
    state_records: int
    why: str
    """Why what is not alive in it does not come back."""
    damaged_blocks: int = 0
    lacking_ledgers: int = 0
    """Of which entries were damaged, and this bookie has no other copy."""
    lacking_entries: int = 0

    @property
    def other_bytes(self) -> int:
        """Headers, padding, what was preallocated, and frames that died before it was sealed."""
        return self.file_bytes - self.live_bytes - self.deleted_bytes - self.index_bytes


@dataclass(frozen=True, slots=True)
class FileSpace:
    """Of a file that is no segment of the log."""

    name: str
    file_bytes: int
    what: str


@dataclass(frozen=True, slots=True)
class LedgerSpace:
    ledger_id: int
    live_bytes: int
    copies_bytes: int
    segments: int
    fenced: bool


@dataclass(frozen=True, slots=True)
class SpaceReport:
    path: str
    total_bytes: int
    """Of the file system."""
    free_bytes: int
    reserve_bytes: int
    """Preallocated for a compaction."""
    segments: tuple[SegmentSpace, ...]
    files: tuple[FileSpace, ...]
    """All others, also those that are not a bookie's."""
    ledgers: tuple[LedgerSpace, ...]
    """The largest first."""
    problems: tuple[str, ...]
    absence_unknown: bool
    """Something of the log is lost and nobody knows what: a bookie takes no new ledgers then."""

    @property
    def file_bytes(self) -> int:
        """Of all files below the directory, preallocated parts included."""
        return sum(one.file_bytes for one in self.segments) + sum(
            one.file_bytes for one in self.files
        )


def look(disk: Disk, config: StorageConfig) -> SpaceReport:
    """`StorageError` where the directory holds no log of ours, or changes too fast; `OSError`."""
    return with_log(disk, lambda recovered, own_id: _Look(disk, config, own_id, recovered).report())


class _Look:
    def __init__(
        self, disk: Disk, config: StorageConfig, directory_id: bytes, recovered: RecoveredLog
    ) -> None:
        self._disk = disk
        self._config = config
        self._directory_id = directory_id
        self._recovered = recovered
        self._catalogue = recovered.replayer.catalogue
        self._vouchers = self._catalogue.vouchers()
        self._damage = dict(stored_records(disk))
        self._sizes = dict(file_sizes(disk))
        self._available_bytes = max(self._sizes.get(SPARE_NAME, 0), disk.free_bytes())
        """For the output of a compaction."""
        self._suspended = read_note(disk)
        self._copies: dict[int, int] = {}
        """By segment."""
        self._ledger_copies: dict[int, int] = {}

    def report(self) -> SpaceReport:
        for info in self._catalogue.ledgers.values():
            if not info.ordered:
                self._count_copies(info)
        segments = [
            self._with_damage(self._segment(one))
            for _, one in sorted(self._catalogue.segments.items())
        ]
        segments += self._others()
        files = [
            FileSpace(name, size, kind_of(name))
            for name, size in sorted(self._sizes.items())
            if number_of(name) is None
        ]
        ledgers = sorted(
            (
                LedgerSpace(
                    info.ledger_id, info.size_bytes, self._ledger_copies.get(info.ledger_id, 0),
                    info.sealed_count + len(info.open_parts), info.fenced,
                )
                for info in self._catalogue.ledgers.values()
            ),
            key=lambda one: (-one.live_bytes, one.ledger_id),
        )  # fmt: skip
        return SpaceReport(
            self._disk.path, self._disk.total_bytes(), self._disk.free_bytes(),
            self._sizes.get(SPARE_NAME, 0), tuple(segments), tuple(files), tuple(ledgers),
            self._problems(), self._catalogue.negatives_unknown,
        )  # fmt: skip

    def _problems(self) -> tuple[str, ...]:
        """What a start finds, but for segments that are missed no more."""
        before = self._catalogue.repaired_before
        repaired = {missing_problem(n) for n in self._catalogue.missing if n < before}
        return tuple(one for one in self._recovered.problems if one not in repaired)

    def _segment(self, segment: LogSegment) -> SegmentSpace:
        number = segment.number
        if segment.state is not SegmentState.SEALED or segment.trailer is None:
            newest = number == max(self._catalogue.segments)
            state, why = "open", "adds go to it" if newest else "it waits to be sealed"
            if segment.loss:
                state, why = "damaged", segment.loss
            return SegmentSpace(
                number, segment.name, state, segment.file_bytes, segment.live_bytes, 0, 0, 0,
                len(segment.parts), segment.live_ledgers, len(segment.records), why,
            )  # fmt: skip
        trailer = segment.trailer
        loaded = self._load(number)
        named = sum(loaded.summary.size_bytes)
        return SegmentSpace(
            number, segment.name, "sealed", trailer.file_bytes, segment.live_bytes,
            self._copies.get(number, 0), named - segment.live_bytes,
            trailer.file_bytes - trailer.footer_at, trailer.ledgers, segment.live_ledgers,
            trailer.records, self._why(segment),
        )  # fmt: skip

    def _with_damage(self, one: SegmentSpace) -> SegmentSpace:
        """As a scrub has found it."""
        damage = self._damage.get(one.number)
        if damage is None:
            return one
        return replace(
            one,
            state="damaged",
            why=f"quarantined: {damage.describe()}",
            damaged_blocks=count(damage.blocks),
            lacking_ledgers=len(damage.ledgers),
            lacking_entries=damage.entries,
        )

    def _why(self, segment: LogSegment) -> str:
        if segment.number in self._vouchers:
            return VOUCHES
        if not segment.live_ledgers:
            return (
                "nothing in it is alive: a running bookie logs its state records again and "
                "removes it"
            )
        ratio = self._config.compact_major_ratio
        if ratio <= 0:
            return "compaction is switched off"
        candidate = candidate_of(segment)
        reason = why_not(candidate, below_ratio=ratio, available_bytes=self._available_bytes)
        if reason:
            return reason
        minor = candidate.live_ratio < self._config.compact_minor_ratio
        if self._suspended is not None and self._suspended.stops(minor=minor):
            return self._suspended.describe()
        if minor:
            return "it is compacted at the next minor interval"
        return "it is compacted at the next major interval, or when the disk is full"

    def _others(self) -> Iterator[SegmentSpace]:
        """Files that are prepared for the log, or that the log does not name any more."""
        newest = max(self._catalogue.segments, default=0)
        for name, size in sorted(self._sizes.items()):
            number = number_of(name)
            if number is None or number in self._catalogue.segments:
                continue
            state, why = "prepared", "adds go to it when the one before is full"
            if number < newest:
                state, why = "dropped", "the next start removes it"
            elif size < self._config.segment_bytes and size <= self._config.reserve_bytes:
                why = "kept for fences, deletions and the adds of recoveries when the disk is full"
            yield SegmentSpace(number, name, state, size, 0, 0, 0, 0, 0, 0, 0, why)

    # -- copies -----------------------------------------------------------------------------------

    def _count_copies(self, info: LedgerInfo) -> None:
        """Entries of sealed segments that a newer sealed segment has too."""
        seen: set[int] = set()
        for number in reversed(info.sealed_numbers):
            rows = self._rows(number, info.ledger_id)
            if rows is None:
                continue
            here: set[int] = set()
            for ids, sizes in _runs(rows):
                copied = 0
                for entry_id, size in zip(ids, sizes):
                    if entry_id in seen or entry_id in here:
                        copied += size
                here.update(ids)
                self._copies[number] = self._copies.get(number, 0) + copied
                ledger_id = info.ledger_id
                self._ledger_copies[ledger_id] = self._ledger_copies.get(ledger_id, 0) + copied
            seen |= here
            if len(seen) > COPIES_ENTRIES_MAX:
                return

    def _rows(self, number: int, ledger_id: int) -> LedgerRows | None:
        file = self._disk.open(segment_name(number))
        try:
            loaded = load_footer(file, self._directory_id, number)
            found = loaded.summary.find(ledger_id)
            if found is None:
                return None
            trailer: Trailer = loaded.trailer
            data = read(file, trailer.footer_at + found.rows_at, found.rows_bytes)
            if crc32c(data) != found.rows_crc:
                return None
            return decode_ledger_rows(data, found.rows)
        except FormatError:
            return None
        finally:
            file.close()

    def _load(self, number: int) -> Loaded:
        file = self._disk.open(segment_name(number))
        try:
            return load_footer(file, self._directory_id, number)
        except FormatError as error:
            # A compaction has put another file there.
            raise FileNotFoundError(str(error)) from None
        finally:
            file.close()


def _runs(rows: LedgerRows) -> Iterator[tuple[range | list[int], list[int]]]:
    for row, first in enumerate(rows.firsts):
        count, size = rows.counts[row], rows.frame_sizes[row]
        at, sizes_at = rows.ids_at[row], rows.sizes_at[row]
        consecutive = at == CONSECUTIVE
        ids = range(first, first + count) if consecutive else list(rows.ids[at : at + count])
        yield ids, [size] * count if size else list(rows.sizes[sizes_at : sizes_at + count])
