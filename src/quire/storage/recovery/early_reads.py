"""Read entries that a start has already loaded, while it still loads the rest of the log.

An entry in a sealed segment that passes its check may be returned, whatever newer segments say. Its
payload is the same in every copy, unless a repair replaced a wrong one, which clients refuse, or
the ledger's id was used before (docs/reference/metadata.md names this limit). Even if a newer
segment records its deletion, the answer is one that the bookie would have given before garbage
collection.

Nothing else is known before everything is loaded. An entry or ledger that is not found may come
later, and so may the good copy of a damaged entry. The last entry of a ledger, and whether it is
open, are also unknown.

The loading thread and the event loop share three things: the rows of a ledger, which are one
immutable object; the segments that the rows name, which are added before the rows are; and the
search for ledgers in the index cache. The rows of a ledger that is not loaded from the cache yet
are looked up in the file. They are what the cache has of it, so they are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from quire.codec.entry.frame_runs import Entries
from quire.errors import StorageError
from quire.storage.config import StorageConfig
from quire.storage.interfaces import BlockingReader, Disk
from quire.storage.read.cache import ByteCache, SegmentFiles
from quire.storage.read.cold_reads import ColdReads
from quire.storage.read.read_ahead import ReadAhead
from quire.storage.read.read_budget import ReadBudget
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.read.reader import Reader
from quire.storage.recovery.loading import LoadProgress
from quire.storage.segment import sealed_rows
from quire.storage.segment.segment import LedgerInfo

FOUND_BYTES = 4 * 1024 * 1024
"""The most bytes of rows, found in the index cache or not, that early reads remember."""


class EarlyReads:
    """A reader of the entries that a store has loaded so far, while the store starts.

    It belongs to the event loop. It has its own files and caches, because those of the store belong
    to the loading thread.
    """

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        blocking: BlockingReader,
        ledgers: Mapping[int, LedgerInfo],
        loading: LoadProgress,
    ) -> None:
        """Read what a running start has loaded. `ledgers` and `loading` belong to that start."""
        self._ledgers = ledgers
        self._loading = loading
        self._segments = loading.sealed
        self._found = ByteCache(FOUND_BYTES)
        """The rows of ledgers that were looked up in the index cache. b"" if none were found."""
        self._files = SegmentFiles(disk, config.max_open_files)
        self._ahead = ReadAhead(self._files, blocking)
        self._blocking = blocking
        reader = Reader(
            self._segments, self._files, ByteCache(config.footer_cache_bytes), self._ahead
        )
        budget = ReadBudget(0, lambda: (0, 0))  # No entries are added yet.
        self._cold = ColdReads(reader, self._files, self._ahead, blocking, self._info, budget)

    async def read(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int, overhead_bytes: int
    ) -> Entries | None:
        """Read entries as `LedgerStore.read_blocking` does, from what is loaded so far.

        The ledger may have more entries than this returns. It returns None if the first entry is
        not loaded yet, is damaged or cannot be read now, or after `close`. It may be cancelled. It
        raises `asyncio.CancelledError` if the threads end because the bookie stops.
        """
        await self._look_up(ledger_id)
        try:
            return await self._cold.read(ledger_id, first, max_count, max_bytes, overhead_bytes)
        except (NoLedger, NoEntry, StorageError):
            return None

    async def _look_up(self, ledger_id: int) -> None:
        """Look up a ledger in the index cache, if it is not loaded from there yet."""
        search = self._loading.search
        if search is None or ledger_id in self._ledgers or self._found.get(ledger_id) is not None:
            return
        rows = await self._blocking.run(partial(search.rows, ledger_id))
        self._found.put(ledger_id, rows, len(rows))

    def _rows(self, ledger_id: int) -> bytes:
        if self._cold.closed:
            # The store has started, so rows may name segments that were sealed or compacted since.
            return b""
        # Look at this first. Once the search is over, all ledgers of the cache are loaded.
        searching = self._loading.search is not None
        known = self._ledgers.get(ledger_id)
        if known is not None:
            return known.sealed
        return self._found.get(ledger_id) or b"" if searching else b""

    def _info(self, ledger_id: int) -> LedgerInfo:
        rows = self._rows(ledger_id)
        if not rows:
            raise NoLedger
        info = LedgerInfo(ledger_id, b"")
        info.sealed, info.ordered = rows, sealed_rows.is_ordered(rows)
        info.last_entry_id = max(last for _, _, last, _ in sealed_rows.unpack(rows))
        return info

    def close(self) -> None:
        """Stop reading. Each file is closed after its last read, which still returns its result."""
        self._cold.closed = self._ahead.closed = True
        for segment in list(self._segments.values()):
            self._files.close(segment)
