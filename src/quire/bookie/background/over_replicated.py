"""Finding copies that nobody asks for any more: of ledgers that are closed and name this bookie in
no segment (metadata spec, 3.2; rule 27). They are what is left where a ledger's replicas were moved
to another bookie, and where a copy was given up before it was named.

A copy is named in the metadata *after* it was made, so one that is not named may be about to be.
What keeps what is being copied from being dropped:

- Whoever copies holds the ledger's lock, and the metadata is read again under that lock. A lock may
  be lost without its holder knowing, and Apache's `recover` takes none. So
- a ledger must have been found the same, with nothing added to it, by the pass before, a whole
  interval ago; and
- the metadata is written as it is, and so gets another version, before anything is dropped. Who
  read it before, and stood still since, cannot name the copy any more: ours copy again then
  (`replication.fragment`). Apache's try again with the new version; for them the interval counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.tasks import each
from quire.bookie.background.collection_guard import CollectionGuard, check_cluster
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
"""Ledgers whose metadata is read before a pass looks at what it found."""

Copies = tuple[int, int, int]
"""Changes whenever something is added to a ledger here."""


class OverReplicated:
    """What the passes of one bookie remember of each other."""

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
        """Of the last pass: ledger -> version of its metadata, and what was here."""
        self._passing = asyncio.Lock()
        self._held: dict[str, bytes] = {}
        """Path and value of locks that are there, or may be."""
        self._locks_made = 0
        self.dropped = 0
        """Since the start."""
        self.waiting = 0
        """That the last pass found, and left to the next."""
        self.unread = Unread()
        """The number of ledgers that the last pass skipped because their metadata cannot be
        read."""

    async def collect(self, log: EventLog) -> list[int]:
        """Make one pass and return the ledgers that were dropped. Passes must be an interval apart.

        Raises CollectionOffError while collection is switched off, and MetadataError or CookieError
        if the store cannot be trusted or does not answer. The log lists the ledgers that were
        dropped before the error. Cancel-safe.
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
                    # An older store still names bookies that have dropped their copies.
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
        """What there is of a ledger that is closed and does not name this bookie; None of others.
        One that is gone is the affair of the other collection; one whose metadata makes no sense
        may want what is here."""
        copies = self._copies(ledger_id)
        if copies is None:
            return None
        stored = await read_or_skip(self._metadata, ledger_id, self.unread)
        if stored is None:
            return None
        value = stored.value
        if not value.closed or any(self._bookie_id in one.ensemble for one in value.segments):
            return None
        return stored.version, copies

    def _copies(self, ledger_id: int) -> Copies | None:
        info = self._store.ledgers.get(ledger_id)
        if info is None:
            return None
        sealed = info.sealed_numbers
        runs = sum(len(part.runs) for part in info.open_parts)
        return runs, len(sealed), sealed[-1] if len(sealed) else 0

    async def _drop(self, ledger_id: int, found: tuple[int, Copies]) -> bool:
        lock = await self._take_lock(ledger_id)
        if lock is None:
            return False  # somebody works on its replicas
        try:
            version, copies = found
            if not await self._renew(ledger_id, version):
                return False
            if self._copies(ledger_id) != copies:  # added while the metadata was written
                return False
            self._store.drop_ledgers([ledger_id])
            return True
        finally:
            await self._give_back(lock)

    async def _renew(self, ledger_id: int, version: int) -> bool:
        """Write the metadata unchanged, to raise its version.

        Return False if the store has another version by now, or if another program made the
        metadata larger than this client may write.
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
        """The path of the ledger's lock; None where somebody else has it."""
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
        """A lock that we may have: a call whose answer was lost may have made it."""
        tree = self._metadata.tree
        try:
            if (await tree.read(path)).value == self._held[path]:
                await tree.commit(Delete(path))
        except NoSuchKeyError:
            pass  # the session was lost
        del self._held[path]
