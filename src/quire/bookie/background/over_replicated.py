"""Removal of superfluous copies.

A copy is superfluous if its ledger is closed and no segment of it names this bookie. Such copies
remain when replicas were moved to another bookie, or when copying was abandoned before the metadata
named the copy. Rule 27 of docs/internals/replication-rules.md says when one may be dropped.

The metadata names a copy only *after* it was made. So a copy that is not named may be about to be.
Three rules protect such a copy:

- A process that copies holds the ledger's lock. A pass takes this lock, and reads the metadata
  again under it. But a lock can be lost without its holder knowing, and Apache's `recover` takes
  none.
- The previous pass, a whole interval ago, must have found the ledger unchanged, with nothing added.
- Before anything is dropped, the metadata is rewritten unchanged, which gives it a new version. A
  process that read the old version and then stalled can no longer name its copy. Quire's processes
  then copy again (`replication.repair.fragment`). Apache's processes retry with the new version,
  and only the interval protects their copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.tasks import each
from quire.bookie.background.collection_guard import CollectionGuard, check_cluster
from quire.bookie.background.copies import Copies, copies_of
from quire.codec.metadata.underreplication import LockHolder, lock_path
from quire.errors import (
    KeyExistsError,
    LedgerRecreatedError,
    MetadataTooLargeError,
    NoSuchKeyError,
    NoSuchLedgerError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.unreadable import UNREADABLE, Unread, read_or_skip
from quire.metadata.tree import Create, Delete
from quire.metadata.uri import replication_root
from quire.storage.directories import Store

READS_MAX = 1_000
"""The most ledgers whose metadata a pass reads before it drops the superfluous ones among them."""


class OverReplicated:
    """The removal of superfluous copies on one bookie, with its state between passes."""

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        clock: Clock,
        bookie_id: str,
        instance_id: str,
        guard: CollectionGuard,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._bookie_id = bookie_id
        self._instance_id = instance_id
        self._guard = guard
        self._root = replication_root(metadata.uri)
        self._seen: dict[int, tuple[int, Copies]] = {}
        """The superfluous ledgers that the last pass found, by ledger id, each with the version of
        its metadata and the state of its copies."""
        self._passing = asyncio.Lock()
        self._held: dict[str, bytes] = {}
        """The locks of ledgers that this bookie holds or may hold: the content of each by its
        path."""
        self._locks_made = 0
        self.dropped = 0
        """The number of ledgers that were dropped since the start."""
        self.waiting = 0
        """The number of superfluous ledgers that the last pass found and left to the next pass."""
        self.unread = Unread()
        """The ledgers that the last pass skipped because their metadata cannot be read."""

    async def collect(self, log: EventLog) -> list[int]:
        """Examine all ledgers here once, and return the ids of those that were dropped.

        Calls must be `gc_over_replicated_interval_s` apart, because each drops only what the
        previous one has found. Raises CollectionOffError while collection is switched off, and
        MetadataError or CookieError if the metadata store cannot be trusted or does not answer. The
        log shows how many ledgers were dropped before the error. Safe to cancel.
        """
        async with self._passing:
            return await self._collect(log)

    async def _collect(self, log: EventLog) -> list[int]:
        await self._guard.check()
        await check_cluster(self._metadata, self._instance_id, "nothing was deleted")
        for path in list(self._held):
            await self._give_back(path)
        seen: dict[int, tuple[int, Copies]] = {}
        dropped: list[int] = []
        self.unread = Unread()
        local = self._store.ledger_ids()
        try:
            for at in range(0, len(local), READS_MAX):
                candidates = await self._candidates(local[at : at + READS_MAX])
                if candidates:
                    # In a store that went back in time, ledgers name bookies that have since
                    # dropped their copies.
                    await self._guard.check()
                for ledger_id, now in candidates:
                    if self._seen.get(ledger_id) == now and await self._drop(ledger_id, now):
                        dropped.append(ledger_id)
                    else:
                        seen[ledger_id] = now
            self._seen, self.waiting = seen, len(seen)
        finally:
            self.dropped += len(dropped)
            if dropped:
                log("over_replicated_dropped", count=len(dropped), first=dropped[0])
            if self.unread:
                named = dict(self.unread.named)
                log("over_replicated_unreadable", count=len(self.unread), ledgers=named)
        return dropped

    async def _candidates(self, ids: Sequence[int]) -> list[tuple[int, tuple[int, Copies]]]:
        found = await each(ids, self._superfluous)
        return [(ledger, one) for ledger, one in zip(ids, found) if one is not None]

    async def _superfluous(self, ledger_id: int) -> tuple[int, Copies] | None:
        """Return the metadata version and the copies of a ledger that is superfluous here, or None.

        The result is also None for a ledger that does not exist, which `garbage` drops. It is None
        for a ledger whose metadata cannot be read, which may need the copies here.
        """
        copies = copies_of(self._store, ledger_id)
        if copies is None:
            return None
        stored = await read_or_skip(self._metadata, ledger_id, self.unread)
        if stored is None:
            return None
        value = stored.value
        if not value.closed or any(self._bookie_id in one.ensemble for one in value.segments):
            return None
        return stored.version, copies

    async def _drop(self, ledger_id: int, found: tuple[int, Copies]) -> bool:
        lock = await self._take_lock(ledger_id)
        if lock is None:
            return False  # another process is working on its replicas
        try:
            version, copies = found
            if not await self._renew(ledger_id, version):
                return False
            if copies_of(self._store, ledger_id) != copies:  # added while the metadata was written
                return False
            self._store.drop_ledgers([ledger_id])
            return True
        finally:
            await self._give_back(lock)

    async def _renew(self, ledger_id: int, version: int) -> bool:
        """Write a ledger's metadata unchanged, to raise its version.

        Return False if the ledger has another version by now or is gone, if its metadata cannot be
        read, or if another program made the metadata larger than this client may write.
        """
        try:
            stored = await self._metadata.read_ledger(ledger_id)
            if stored.version != version:
                return False
            await self._metadata.write_ledger(ledger_id, stored.value, version, stored)
        except (
            NoSuchLedgerError,
            VersionConflictError,
            LedgerRecreatedError,
            MetadataTooLargeError,
            *UNREADABLE,
        ):
            return False
        return True

    async def _take_lock(self, ledger_id: int) -> str | None:
        """Take the ledger's lock and return its path, or None if another process has it."""
        tree, path = self._metadata.tree, lock_path(self._root, ledger_id)
        await tree.make_path(path.rpartition("/")[0])
        self._locks_made += 1
        tag = f"{tree.session_id:x}/copies-{self._locks_made}"
        self._held[path] = LockHolder(self._bookie_id, self._clock.now_ms(), tag).encode()
        try:
            await tree.commit(Create(path, self._held[path], ephemeral=True))
        except KeyExistsError:
            del self._held[path]
            return None
        return path

    async def _give_back(self, path: str) -> None:
        """Release a lock that this bookie has, or may have if the answer to its creation was lost.

        A lock of another process at this path is left alone.
        """
        tree = self._metadata.tree
        try:
            if (await tree.read(path)).value == self._held[path]:
                await tree.commit(Delete(path))
        except NoSuchKeyError:
            pass  # the session was lost
        del self._held[path]
