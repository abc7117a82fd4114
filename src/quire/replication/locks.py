"""Marks and locks of the under-replication tree, where Apache's auditor and workers have them.

In ZooKeeper the tree lies below the ledgers root; the other stores have one of their own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quire.clock import Clock
from quire.codec.underreplication import Underreplicated, lock_owner, lock_path, lock_value
from quire.codec.underreplication import mark_path as mark_path_below
from quire.errors import (
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    NotEmptyError,
    VersionConflictError,
)
from quire.metadata.base import MetadataStore, Versioned
from quire.metadata.tree import Create, Delete, Put
from quire.metadata.uri import VALUES_ROOT, Driver, parse_uri

NODE = "underreplication"
MARK_DEPTH = 4
"""Nodes between `ledgers` and a mark."""
MARK_ATTEMPTS = 100
"""Of one mark, against others that mark the same ledger."""


class LockHeldError(MetadataError):
    """Somebody else works on this ledger's replicas."""


@dataclass(slots=True)
class ReplicationLock:
    """Held while its session lives."""

    ledger_id: int
    mark: Versioned[Underreplicated] | None
    """What was said of the ledger when the lock was taken; None: nothing."""


class ReplicationLocks:
    def __init__(self, store: MetadataStore, owner: str, clock: Clock) -> None:
        """`owner` is what others see in our locks: a host, or a bookie's id."""
        where = parse_uri(store.uri)
        top = where.root if where.driver is Driver.ZOOKEEPER else VALUES_ROOT
        self.root = f"{top}/{NODE}"
        self._tree = store.tree
        self._owner = owner
        self._clock = clock

    @asynccontextmanager
    async def hold(self, ledger_id: int) -> AsyncGenerator[ReplicationLock, None]:
        """The lock of this ledger, given back at the end. LockHeldError where somebody else has
        it. Whoever needs the lock for safety does not have it: its session may be lost unseen. It
        only keeps two from doing the same work; the metadata's version decides."""
        path = lock_path(self.root, ledger_id)
        await self._tree.make_path(path.rpartition("/")[0])
        try:
            await self._tree.commit(Create(path, lock_value(self._owner), ephemeral=True))
        except KeyExistsError:
            raise LockHeldError(
                f"the replicas of ledger {ledger_id} are worked on by {await self._who(path)}",
                remedy="Try again when that is done",
            ) from None
        try:
            yield ReplicationLock(ledger_id, await self.marked(ledger_id))
        finally:
            try:
                await self._tree.commit(Delete(path))
            except NoSuchKeyError:
                pass  # the session was lost

    async def _who(self, path: str) -> str:
        try:
            return lock_owner((await self._tree.read(path)).value)
        except (NoSuchKeyError, ValueError):
            return "somebody else"

    # -- marks --------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, replicas: Sequence[str]) -> None:
        """Say that these bookies lack entries of the ledger. Nothing is written where that is
        said already. Safe to repeat."""
        path = mark_path_below(self.root, ledger_id)
        now_ms = self._clock.now_ms()
        for _ in range(MARK_ATTEMPTS):
            try:
                found = await self._tree.read(path)
            except NoSuchKeyError:
                await self._tree.make_path(path.rpartition("/")[0])
                value = Underreplicated(tuple(replicas), now_ms).encode()
                try:
                    await self._tree.commit(Create(path, value))
                except (KeyExistsError, NoSuchKeyError):
                    continue
                return
            wanted = _decoded(path, found.value).adding(replicas, now_ms)
            if wanted is None:
                return
            try:
                await self._tree.commit(Put(path, wanted.encode(), found.version))
            except (VersionConflictError, NoSuchKeyError):
                continue
            return
        raise MetadataError(f"{path} was changed by others {MARK_ATTEMPTS} times in a row")

    async def marked(self, ledger_id: int) -> Versioned[Underreplicated] | None:
        """What is said of the ledger; None: it lacks nothing."""
        path = mark_path_below(self.root, ledger_id)
        try:
            found = await self._tree.read(path)
        except NoSuchKeyError:
            return None
        return Versioned(_decoded(path, found.value), found.version)

    async def replicated(self, lock: ReplicationLock) -> None:
        """The ledger has all its replicas: remove its mark, unless it was marked again since the
        lock was taken (rule 26)."""
        if lock.mark is None:
            return
        path = mark_path_below(self.root, lock.ledger_id)
        try:
            await self._tree.commit(Delete(path, lock.mark.version))
            for _ in range(MARK_DEPTH):
                path = path.rpartition("/")[0]
                await self._tree.commit(Delete(path))
        except (VersionConflictError, NoSuchKeyError, NotEmptyError):
            pass


def _decoded(path: str, value: bytes) -> Underreplicated:
    try:
        return Underreplicated.decode(value)
    except ValueError as error:
        raise MetadataError(f"{path} cannot be understood: {error}") from None
