"""What a bookie serves while it still loads its log: reads of entries that are loaded already.

All else is refused so that nobody takes it for an answer about what is here: see
`BookieService.loading`. What may be said is in `storage.recovery.early_reads`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from quire.codec.entry.frame_runs import Entries
from quire.errors import StorageError
from quire.storage.directories import Store
from quire.storage.log.appender import Done
from quire.storage.read.outcomes import NoLedger
from quire.storage.read.reader import DEFAULT_OVERHEAD_BYTES
from quire.storage.segment.segment import LedgerInfo

WAIT_S = 2.0
"""How long a read waits for its part of the log; then its client is told to ask again, or another
bookie. Less than clients wait for an answer."""
WAITING_MAX = 256
"""Reads that wait. More are told at once."""
POLL_S = 0.1
"""How often they look."""

Room = Callable[[], AbstractAsyncContextManager[None]]
"""A context manager that reserves the memory of an answer."""


class LoadingStore:
    """Stands for the bookie's store in its service: what requests ask for while `loading` is
    set. Used on the event loop."""

    failed = None
    queue_full = False

    def __init__(self, store: Store) -> None:
        """The one that is being loaded."""
        self._store = store
        self._waiting = 0
        self._ended = False
        self.ledgers: Mapping[int, LedgerInfo] = {}
        """Of none can be said what it is."""

    def end(self) -> None:
        """The log is loaded, and its store has started."""
        self._ended = True

    async def read_blocking(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead_bytes: int = DEFAULT_OVERHEAD_BYTES,
        room: Room = nullcontext,
    ) -> Entries:
        """See `LedgerStore.read_blocking`. It waits for what is not loaded yet, and gives up by
        `NoLedger`. `room` is entered for each attempt, and left while the call waits for the next
        one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        asked = ledger_id, first, max_count, max_bytes, overhead_bytes
        while True:
            async with room():
                for early in self._store.early:
                    found = await early.read(*asked)
                    if found is not None:
                        return found
                if self._ended:
                    return await self._store.read_blocking(*asked)
            if self._waiting >= WAITING_MAX or loop.time() >= deadline:
                raise NoLedger
            self._waiting += 1
            try:
                await asyncio.sleep(POLL_S)
            finally:
                self._waiting -= 1

    def last_entry_id(self, ledger_id: int) -> int:
        raise NoLedger

    async def entry_ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        raise NoLedger

    def force(self, ledger_id: int, done: Done) -> None:
        done(StorageError("the bookie still loads its log", remedy="Try again later"))

    def total_bytes(self) -> int:
        return self._store.total_bytes()

    def free_bytes(self) -> int:
        return self._store.free_bytes()
