"""Entries that a start has found already, read while it loads the rest of the log.

An entry that lies in a sealed segment and checks is that entry, whatever newer segments say: its
payload is the same in every copy, and one that a newer segment says is deleted is one that garbage
collection has not come to yet. Nothing else is known before all is loaded: not that an entry or a
ledger is not here, nor which entry is the last, nor that a ledger is open; and what is damaged may
have a good copy that comes later.

The thread that loads and the event loop share two things: the rows of a ledger, which are one
immutable object, and the segments that they name, which are there before the rows are.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.codec.entry.frame_runs import Entries
from quire.errors import DamagedError
from quire.storage.config import StorageConfig
from quire.storage.interfaces import BlockingReader, Disk
from quire.storage.read.cache import ByteCache, SegmentFiles
from quire.storage.read.cold_reads import ColdReads
from quire.storage.read.outcomes import NoEntry, NoLedger
from quire.storage.read.read_ahead import ReadAhead
from quire.storage.read.read_budget import ReadBudget
from quire.storage.read.reader import Reader
from quire.storage.recovery.loading import LoadProgress
from quire.storage.segment import sealed_rows
from quire.storage.segment.segment import LedgerInfo


class EarlyReads:
    """Used on the event loop. Files and caches are its own: those of the store are the loading
    thread's."""

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        blocking: BlockingReader,
        ledgers: Mapping[int, LedgerInfo],
        loading: LoadProgress,
    ) -> None:
        """`ledgers` and `loading`: of the start, which goes on meanwhile."""
        self._ledgers = ledgers
        self._segments = loading.sealed
        self._files = SegmentFiles(disk, config.max_open_files)
        self._ahead = ReadAhead(self._files, blocking)
        reader = Reader(
            self._segments, self._files, ByteCache(config.footer_cache_bytes), self._ahead
        )
        budget = ReadBudget(0, lambda: (0, 0))  # Nothing is taken yet.
        self._cold = ColdReads(reader, self._files, self._ahead, blocking, self._info, budget)

    async def read(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int, overhead_bytes: int
    ) -> Entries | None:
        """Like `LedgerStore.read_blocking`, of what is known so far: maybe fewer entries than there
        are. None: the first is not among them (yet)."""
        try:
            return await self._cold.read(ledger_id, first, max_count, max_bytes, overhead_bytes)
        except (NoLedger, NoEntry, DamagedError):
            return None

    def _info(self, ledger_id: int) -> LedgerInfo:
        # Once the store has started, rows may name segments that are sealed or compacted since.
        known = None if self._cold.closed else self._ledgers.get(ledger_id)
        rows = b"" if known is None else known.sealed
        if not rows:
            raise NoLedger
        info = LedgerInfo(ledger_id, b"")
        info.sealed, info.ordered = rows, sealed_rows.is_ordered(rows)
        info.last_entry_id = max(last for _, _, last, _ in sealed_rows.unpack(rows))
        return info

    def close(self) -> None:
        """Files close behind the reads that are under way, which give what they have by then."""
        self._cold.closed = self._ahead.closed = True
        for segment in list(self._segments.values()):
            self._files.close(segment)
