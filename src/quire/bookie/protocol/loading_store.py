"""The store that a bookie uses while it loads its log, which serves reads of loaded entries.

All other requests are refused in a way that no client takes for a statement about missing entries
(see `BookieService.loading`). `storage.recovery.early_reads` decides which entries can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from quire.codec.entry.frame_runs import Entries
from quire.errors import StorageError
from quire.storage.directories import Store
from quire.storage.log.appender import Done
from quire.storage.read.read_exceptions import NoLedger
from quire.storage.read.reader import DEFAULT_OVERHEAD_BYTES
from quire.storage.segment.segment import LedgerInfo

WAIT_S = 2.0
"""The most seconds that a read waits until its part of the log is loaded. After that, the answer
tells the client to try again or to ask another bookie. Clients wait longer than this for an
answer."""
WAITING_MAX = 256
"""The most reads that may wait for their part of the log. Further reads are refused at once."""
POLL_S = 0.1
"""Seconds between two checks of a waiting read whether its entries are loaded."""

Room = Callable[[], AbstractAsyncContextManager[None]]
"""A function that returns a context manager, which reserves memory for an answer."""


class LoadingStore:
    """The object that takes the place of the bookie's store in its service while the log is loaded.

    It belongs to the event loop.
    """

    failed = None
    queue_full = False

    def __init__(self, store: Store) -> None:
        """Create a substitute for `store`, whose log is being loaded."""
        self._store = store
        self._waiting = 0
        self._ended = False
        self.ledgers: Mapping[int, LedgerInfo] = {}
        """An empty mapping, because the state of no ledger is known while the log is loaded."""

    def end(self) -> None:
        """Let waiting reads continue in the store, which has loaded its log and started."""
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
        """Read entries as `LedgerStore.read_blocking` does, after waiting until they are loaded.

        Raises NoLedger if they are not loaded within `WAIT_S`, or at once if `WAITING_MAX` reads
        wait. After `end`, the errors are those of `LedgerStore.read_blocking`. `room` is entered
        for each attempt, and left while the call waits for the next attempt. The other arguments
        are those of `LedgerStore.read`.
        """
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
        done(
            StorageError(
                "the bookie cannot make entries durable yet, because it still loads its log",
                remedy="Try again later",
            )
        )

    def total_bytes(self) -> int:
        return self._store.total_bytes()

    def free_bytes(self) -> int:
        return self._store.free_bytes()
