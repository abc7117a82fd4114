"""What a store says of itself: its space, its directory, its numbers."""

from __future__ import annotations

from collections.abc import Sequence, Set

from quire.storage.background.background import Upkeep
from quire.storage.background.suspension import Suspension
from quire.storage.catalogue import Catalogue
from quire.storage.interfaces import Disk
from quire.storage.log.appender import Appender
from quire.storage.log.preallocation import Spares
from quire.storage.read.cache import ByteCache, SegmentFiles
from quire.storage.read.read_budget import ReadBudget
from quire.storage.read.reader import Reader
from quire.storage.read.system_cache import SystemCache
from quire.storage.recovery.loading import LoadProgress
from quire.storage.segment.segment import LedgerInfo
from quire.storage.stats import (
    DirectoryState,
    SegmentUsage,
    StorageStats,
    collect_stats,
    collect_usage,
)


class StoreFacts:
    """The part of a `LedgerStore` that only looks."""

    ledgers: dict[int, LedgerInfo]
    _disk: Disk
    _spares: Spares
    _catalogue: Catalogue
    _appender: Appender
    _upkeep: Upkeep
    _reader: Reader
    _cache: ByteCache
    _system_cache: SystemCache
    _budget: ReadBudget
    _files: SegmentFiles
    _loading: LoadProgress

    @property
    def writable(self) -> bool:
        """Whether plain adds should be taken. Not on a full disk, where fences and recovery adds
        are taken as long as the reserve lasts. Not where something was lost either, for fences may
        be among it; that is for the caller to refuse, `append` does not look at it."""
        return (
            self._spares.space
            and self._appender.failed is None
            and not self._catalogue.negatives_unknown
        )

    @property
    def log_lossy(self) -> bool:
        """Whether something of the log is lost, and `mark_repaired` would end that."""
        return self._catalogue.negatives_unknown

    @property
    def path(self) -> str:
        return self._disk.path

    @property
    def loading_percent(self) -> int:
        """How far `recover` is with the segments."""
        return self._loading.percent

    @property
    def disk_full(self) -> bool:
        """Whether there is too little room to take adds."""
        return not self._spares.space

    def total_bytes(self) -> int:
        """Of the file system under the directory. `OSError`."""
        return self._disk.total_bytes()

    def free_bytes(self) -> int:
        """Not used on that file system. `OSError`."""
        return self._disk.free_bytes()

    @property
    def room_bytes(self) -> int:
        """Free when it was last looked at, but for what is kept for a compaction."""
        return max(0, self._spares.free_bytes - self._spares.held_bytes)

    @property
    def deletions_logged(self) -> bool:
        """Whether all that was dropped stays dropped after a crash."""
        return self._upkeep.collector.deletions_logged

    def lacking_ledgers(self) -> Set[int]:
        """Ledgers of which entries were damaged here and have no other copy: another bookie's must
        be brought back. Adding them again heals. Some may be deleted."""
        return self._upkeep.quarantine.lacking_ledgers()

    def lacking(self, ledger_ids: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """Of those of these ledgers that lack any, the ranges (first, last) of the entries."""
        return self._upkeep.quarantine.lacking(ledger_ids)

    def stats(self) -> StorageStats:
        return collect_stats(
            self._catalogue, self._appender, self._upkeep, self._reader, self._cache, self._files,
            self._system_cache, self._budget, self.writable,
        )  # fmt: skip

    def directories(self) -> list[DirectoryState]:
        """What has become of the data directory."""
        state, reason = "writable", ""
        if self._appender.failed is not None:
            state, reason = "failed", str(self._appender.failed)
        elif self._catalogue.negatives_unknown:
            state, reason = "read-only", "something that was in it is lost"
        elif not self._spares.space:
            state, reason = "read-only", self._spares.error
        return [DirectoryState(self.path, state, reason, self.room_bytes, len(self.ledgers))]

    @property
    def compaction_suspended(self) -> Suspension | None:
        """By an operator."""
        return self._upkeep.compactor.suspended

    def usage(self) -> list[SegmentUsage]:
        """Each segment, oldest first."""
        return collect_usage(self._catalogue, self._upkeep.compactor)
