"""Report where the bytes of a data directory are, and why space is not given back.

This changes nothing, and works while a bookie runs. The report shows one moment of the log. If a
file is removed in the meantime, the report begins again.
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
from quire.storage.inspect.contents import file_sizes, kind_of
from quire.storage.inspect.snapshot import with_log
from quire.storage.interfaces import Disk
from quire.storage.recovery.log_recovery import RecoveredLog
from quire.storage.segment.catalogue import VOUCHES
from quire.storage.segment.footer import Loaded, load_footer, read
from quire.storage.segment.segment import (
    SPARE_NAME,
    LedgerInfo,
    LogSegment,
    SegmentState,
    number_of,
    segment_name,
)

COPIES_ENTRIES_MAX = 2_000_000
"""The most entry ids of one ledger that are kept in memory to find further copies of an entry."""


@dataclass(frozen=True, slots=True)
class SegmentSpace:
    """The space of one segment, measured in its files.

    `stats.SegmentUsage` is the same for a running store.
    """

    number: int
    name: str
    state: str
    """The state: sealed, open (not sealed yet), damaged, dropped, or prepared."""
    file_bytes: int
    live_bytes: int
    """The number of bytes of frames of ledgers that are not deleted."""
    copies_bytes: int
    """The part of `live_bytes` with entries that this or a newer segment has a second time."""
    deleted_bytes: int
    """The number of bytes of frames in the index that no longer count. Their ledger is deleted, or
    has these entries in another segment."""
    index_bytes: int
    """The size of the footer in bytes: rows, state records and checksums."""
    ledgers: int
    live_ledgers: int
    state_records: int
    why: str
    """The reason in words why the space of dead entries in the segment is not freed."""
    damaged_blocks: int = 0
    lacking_ledgers: int = 0
    """The number of ledgers with damaged entries of which this bookie has no other copy."""
    lacking_entries: int = 0

    @property
    def other_bytes(self) -> int:
        """The bytes of headers, padding, preallocated space, and frames that are in no index."""
        return self.file_bytes - self.live_bytes - self.deleted_bytes - self.index_bytes


@dataclass(frozen=True, slots=True)
class FileSpace:
    """The size of a file that is not a segment of the log."""

    name: str
    file_bytes: int
    what: str


@dataclass(frozen=True, slots=True)
class LedgerSpace:
    """The space of one ledger."""

    ledger_id: int
    live_bytes: int
    copies_bytes: int
    segments: int
    fenced: bool


@dataclass(frozen=True, slots=True)
class SpaceReport:
    """The space of one data directory."""

    path: str
    total_bytes: int
    """The size of the file system in bytes."""
    free_bytes: int
    reserve_bytes: int
    """The number of bytes that are preallocated for the output of a compaction."""
    segments: tuple[SegmentSpace, ...]
    files: tuple[FileSpace, ...]
    """All files that are not segments, including those that do not belong to a bookie."""
    ledgers: tuple[LedgerSpace, ...]
    """The ledgers in the directory, those with the most live bytes first."""
    problems: tuple[str, ...]
    absence_unknown: bool
    """Whether a part of the log is lost and not repaired, so that entries that are not found may
    have existed. A bookie then takes no new ledgers."""

    @property
    def file_bytes(self) -> int:
        """The size of all files below the directory together, including preallocated space."""
        return sum(one.file_bytes for one in self.segments) + sum(
            one.file_bytes for one in self.files
        )


def look(disk: Disk, config: StorageConfig) -> SpaceReport:
    """Return a report about the space of a data directory. `config` has the limits of its bookie.

    Raises:
        LaterStorageError: A later version of Quire wrote a part of the directory.
        StorageError: The directory has no log of a bookie, or changes too fast.
        OSError: The disk fails.
    """
    return with_log(disk, lambda recovered, own_id: _Look(disk, config, own_id, recovered).report())


class _Look:
    """The making of one report, from the log as `with_log` has read it."""

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
        """The number of bytes that are available for the output of a compaction."""
        self._suspended = read_note(disk)
        self._copies: dict[int, int] = {}
        """The number of bytes of second copies of entries in each segment, by segment number."""
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
            tuple(self._recovered.problems), self._catalogue.negatives_unknown,
        )  # fmt: skip

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
        """Return the space of a segment with the damage that a scrub has recorded."""
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
        """Return in words why the space of dead entries in a sealed segment is not freed."""
        if segment.number in self._vouchers:
            return VOUCHES
        if not segment.live_ledgers:
            return (
                "nothing in it is alive: a running bookie logs its state records again and "
                "removes it"
            )
        ratio = self._config.compact_ratio
        if ratio <= 0:
            return "compaction is switched off"
        candidate = candidate_of(segment)
        reason = why_not(candidate, below_ratio=ratio, available_bytes=self._available_bytes)
        if reason:
            return reason
        minor = candidate.live_ratio < self._config.compact_minor_ratio
        major = self._config.compact_major_ratio > 0
        if self._suspended is not None and self._suspended.stops(minor=minor, major=major):
            return self._suspended.describe()
        if minor:
            return "it is compacted at the next minor interval"
        return "it is compacted at the next major interval, or when the disk is full"

    def _others(self) -> Iterator[SegmentSpace]:
        """Yield the space of preallocated segments, and of those that the log no longer names."""
        newest = max(self._catalogue.segments, default=0)
        for name, size in sorted(self._sizes.items()):
            number = number_of(name)
            if number is None or number in self._catalogue.segments:
                continue
            state, why = "prepared", "it is used when the current segment is full"
            if number < newest:
                state, why = "dropped", "the next start removes it"
            elif size < self._config.segment_bytes and size <= self._config.reserve_bytes:
                why = "kept for fences, deletions and the adds of recoveries when the disk is full"
            yield SegmentSpace(number, name, state, size, 0, 0, 0, 0, 0, 0, 0, why)

    # -- copies -----------------------------------------------------------------------------------

    def _count_copies(self, info: LedgerInfo) -> None:
        """Count the bytes of entries of a ledger that are in sealed segments more than once."""
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
            # A compaction has replaced the file.
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
