"""Scrub a whole data directory at once, for `quire bookie scrub`.

This changes nothing, and works while a bookie runs. Each segment is then checked as it was at some
moment. `check` also finds entries that are in the groups of a segment but not in its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quire.codec.log.group import GROUP_START
from quire.codec.log.state_records import BLOCK_BYTES, FormatError
from quire.core.ranges import Range, count
from quire.storage.background.quarantine import damaged_here, damaged_sealed
from quire.storage.background.salvage import Footers, lacking, newer_copies
from quire.storage.background.scrub import Findings, SegmentScrub
from quire.storage.background.scrubber import target_of
from quire.storage.directory import naming
from quire.storage.inspect.snapshot import LOOKS_MAX, with_log
from quire.storage.interfaces import Disk
from quire.storage.recovery.log_recovery import RecoveredLog
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.footer import load_footer, read
from quire.storage.segment.segment import LogSegment


@dataclass(frozen=True, slots=True)
class SegmentScrubbed:
    """The result of scrubbing one segment."""

    number: int
    name: str
    checked_bytes: int
    blocks: tuple[Range, ...]
    """The ranges (first, last) of numbers of damaged blocks, counted from the start of the file."""
    header: bool
    """Whether the header is damaged."""
    index: str
    """The problem with the footer in words, or ""."""
    lost_groups: int
    """The number of groups that a start has found missing, or of places where this scrub has found
    a damaged run table, whichever is more."""
    damaged: dict[int, tuple[Range, ...]]
    """The entries of existing ledgers that have no good copy in this segment, as ranges (first,
    last) by ledger id."""
    lacking: dict[int, tuple[Range, ...]]
    """The entries in `damaged` that no newer segment has either, as ranges (first, last) by ledger
    id."""

    @property
    def clean(self) -> bool:
        """Whether nothing in the segment is damaged or lost."""
        return not (self.blocks or self.header or self.index or self.lost_groups)

    @property
    def lacking_entries(self) -> int:
        return sum(map(count, self.lacking.values()))


class DirectoryScrub:
    """The scrub of a data directory. Use it as `for one in DirectoryScrub(disk).segments(): ...`.

    Creating it reads the log as a start does, and raises the errors of `snapshot.with_log`.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._directory_id = b""
        self._catalogue = Catalogue()
        self._footers: set[int] = set()
        """The numbers of the segments that have the remains of a footer after their groups."""
        self.problems: tuple[str, ...] = ()
        """The problems of the log as a whole that a start would report, such as missing segments,
        in words."""
        with_log(disk, self._take)
        self.total_bytes = sum(one.file_bytes for one in self._catalogue.segments.values())

    def _take(self, recovered: RecoveredLog, directory_id: bytes) -> None:
        self._directory_id = directory_id
        self._catalogue = recovered.replayer.catalogue
        newest = max(self._catalogue.segments, default=0)
        self._footers = {
            one.number
            for one in recovered.unsealed
            # The newest segment gets its footer at a clean stop. Otherwise it may end with a group
            # that was never written completely, which is no damage.
            if one.scan.tail_used and (recovered.clean or one.number != newest)
            if not read(one.file, one.scan.end, BLOCK_BYTES).startswith(GROUP_START)
        }
        self.problems = tuple(recovered.problems)

    def segments(
        self, advance: Callable[[int], None] = lambda size: None
    ) -> Iterator[SegmentScrubbed]:
        """Scrub each segment, oldest first, and yield the result.

        A segment that the bookie removes in the meantime is left out. `advance` is called with the
        number of bytes of each read.

        Raises:
            LaterStorageError: A later version wrote a segment.
            OSError: The disk fails.
        """
        for _, segment in sorted(self._catalogue.segments.items()):
            for _ in range(LOOKS_MAX):
                found = self._check(segment, advance)
                if found is None:
                    break
                if found.clean or not self._was_replaced(segment):
                    yield self._scrubbed(segment, found)
                    break

    def _check(self, segment: LogSegment, advance: Callable[[int], None]) -> Findings | None:
        """Scrub one segment, and return what was found, or None if the segment is gone."""
        try:
            file = self._disk.open(segment.name)
        except FileNotFoundError:
            return None
        try:
            scrub = SegmentScrub(file, self._directory_id, target_of(segment))
            with naming(self._disk, segment.name):
                while size := scrub.step():
                    advance(size)
            if segment.trailer is None and segment.number in self._footers:
                scrub.found.index = (
                    "its footer is damaged; the next start rebuilds it from the groups"
                )
            return scrub.found
        finally:
            file.close()

    def _was_replaced(self, segment: LogSegment) -> bool:
        """Return whether a compaction or a seal has replaced the file of the segment.

        If so, `segment` gets the values of the new file, and the caller scrubs it again.
        """
        try:
            file = self._disk.open(segment.name)
        except FileNotFoundError:
            return False
        try:
            trailer = load_footer(file, self._directory_id, segment.number).trailer
        except (FormatError, OSError):
            return False
        finally:
            file.close()
        if trailer == segment.trailer:
            return False
        segment.trailer = trailer
        segment.groups_at, segment.end = trailer.groups_at, trailer.footer_at
        segment.head_bytes = trailer.head_bytes
        return True

    def _scrubbed(self, segment: LogSegment, found: Findings) -> SegmentScrubbed:
        catalogue = self._catalogue
        if segment.trailer is None:
            damaged = damaged_here(tuple(segment.parts.items()), found.blocks)
        else:
            damaged = damaged_sealed(segment, found, catalogue.ledgers)
        left: dict[int, tuple[Range, ...]] = {}
        with Footers(self._disk) as footers:
            for ledger_id, ranges in damaged.items():
                newer = newer_copies(
                    catalogue.segments, catalogue.ledgers[ledger_id], segment.number
                )
                if rest := lacking(footers, ledger_id, ranges, newer):
                    left[ledger_id] = tuple(rest)
        return SegmentScrubbed(
            segment.number, segment.name, segment.file_bytes, tuple(found.blocks), found.header,
            found.index, max(found.lost_tables, segment.lost_groups),
            {ledger_id: tuple(ranges) for ledger_id, ranges in damaged.items()}, left,
        )  # fmt: skip
