"""Marks and locks of the under-replication tree, where Apache's auditor and workers have them.

In ZooKeeper the tree lies below the ledgers root; the other stores have one of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quire._runtime.clock import Clock
from quire.codec.metadata.underreplication import LockHolder, Underreplicated, lock_path
from quire.codec.metadata.underreplication import mark_path as mark_path_below
from quire.errors import (
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    NotEmptyError,
    UnreadableMetadataError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.underreplicated import decoded_mark, mark_ledger
from quire.metadata.ledgers.unreadable import reason_of
from quire.metadata.tree import Create, Delete
from quire.metadata.uri import replication_root as replication_root

MARK_DEPTH = 4
"""Nodes between `ledgers` and a mark."""

_numbers = itertools.count(1)
"""Tells the locks of one session apart."""


class LockHeldError(MetadataError):
    """Somebody else works on this ledger's replicas."""


@dataclass(slots=True)
class ReplicationLock:
    """Held while its session lives."""

    ledger_id: int
    mark: Versioned[Underreplicated] | None
    """What was said of the ledger when the lock was taken; None: nothing."""
    unreadable: str = ""
    """The reason why an existing mark cannot be read; '' if it can be read, or if there is none."""


class ReplicationLocks:
    def __init__(self, store: MetadataStore, owner: str, clock: Clock) -> None:
        """`owner` is what others see in our locks: a host, or a bookie's id."""
        self.root = replication_root(store.uri)
        self._store = store
        self._tree = store.tree
        self._owner = owner
        self._clock = clock
        self._made: dict[str, str] = {}
        """Path -> tag of locks that are there, or may be."""
        self._held: set[str] = set()

    @asynccontextmanager
    async def hold(self, ledger_id: int) -> AsyncGenerator[ReplicationLock, None]:
        """The lock of this ledger, given back at the end. LockHeldError where somebody else has
        it. Whoever needs the lock for safety does not have it: its session may be lost unseen. It
        only keeps two from doing the same work; the metadata's version decides.

        A lock that cannot be given back, because the store does not answer, is given back by the
        next `hold` or `tidy`."""
        await self.tidy()
        path = lock_path(self.root, ledger_id)
        session = self._tree.session_id
        tag = f"{session:x}/{next(_numbers)}"
        await self._take(ledger_id, path, tag)
        try:
            mark, unreadable = None, ""
            try:
                mark = await self.marked(ledger_id)
            except UnreadableMetadataError as error:
                unreadable = reason_of(error)
            yield ReplicationLock(ledger_id, mark, unreadable)
        finally:
            self._held.discard(path)
            await self._give_back(path, session)

    async def _take(self, ledger_id: int, path: str, tag: str) -> None:
        value = LockHolder(self._owner, self._clock.now_ms(), tag).encode()
        await self._tree.make_path(path.rpartition("/")[0])
        if path in self._held:
            raise _held(ledger_id, self._owner)
        # Noted first: a call that is cancelled, or not answered, may have made it.
        self._made[path] = tag
        self._held.add(path)
        try:
            await self._tree.commit(Create(path, value, ephemeral=True))
        except KeyExistsError:
            self._held.discard(path)
            del self._made[path]
            raise _held(ledger_id, await self._who(path)) from None
        except BaseException:
            self._held.discard(path)
            raise

    async def _give_back(self, path: str, session: int) -> None:
        if self._tree.session_id != session:
            # It went with its session, and the one that is there is somebody else's.
            self._made.pop(path, None)
            return
        try:
            await self._tree.commit(Delete(path))
        except NoSuchKeyError:
            pass  # the session was lost
        except MetadataError:
            return  # it is tidied up later, or goes with the session
        self._made.pop(path, None)

    async def tidy(self) -> None:
        """Give back what could not be given back before. MetadataError."""
        for path, tag in list(self._made.items()):
            if path in self._held:
                continue
            try:
                found = LockHolder.decode((await self._tree.read(path)).value)
                if found.tag == tag and path not in self._held:
                    await self._tree.commit(Delete(path))
            except (NoSuchKeyError, ValueError):
                pass
            if path not in self._held and self._made.get(path) == tag:
                del self._made[path]

    async def held_by(self, ledger_id: int) -> LockHolder | None:
        """Who works on the ledger's replicas; None: nobody."""
        try:
            found = await self._tree.read(lock_path(self.root, ledger_id))
        except NoSuchKeyError:
            return None
        try:
            return LockHolder.decode(found.value)
        except ValueError:
            return LockHolder("somebody who is not named")

    async def _who(self, path: str) -> str:
        try:
            return LockHolder.decode((await self._tree.read(path)).value).owner
        except (NoSuchKeyError, ValueError):
            return "somebody else"

    # -- marks --------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, replicas: Sequence[str]) -> bool:
        """Say that these bookies lack entries of the ledger, or cannot be reached. Of a bookie that
        lives, workers read every entry that it should have. Nothing is written where that is said
        already: then False. Safe to repeat."""
        return await mark_ledger(self._store, ledger_id, replicas, self._clock.now_ms())

    async def marked(self, ledger_id: int) -> Versioned[Underreplicated] | None:
        """What is said of the ledger; None: it lacks nothing."""
        path = mark_path_below(self.root, ledger_id)
        try:
            found = await self._tree.read(path)
        except NoSuchKeyError:
            return None
        return Versioned(decoded_mark(path, found.value), found.version)

    async def is_marked(self, ledger_id: int) -> bool:
        """Return whether there is a mark, or another node in its place."""
        path = mark_path_below(self.root, ledger_id)
        return await self._tree.exists(path) or bool(await self.strays(ledger_id))

    async def strays(self, ledger_id: int) -> list[str]:
        """Return the paths of other nodes beside the place of a ledger's mark.

        Nothing but the mark belongs there. Such a node was created by mistake, and is never
        deleted.
        """
        above, _, own = mark_path_below(self.root, ledger_id).rpartition("/")
        try:
            names = await self._tree.children(above)
        except NoSuchKeyError:
            return []
        return [f"{above}/{name}" for name in names if name != own]

    async def replicated(self, lock: ReplicationLock) -> bool:
        """The ledger has all its replicas: remove its mark, unless it was marked again since the
        lock was taken (rule 26). Whether it has none now."""
        if lock.mark is None:
            return True
        path = mark_path_below(self.root, lock.ledger_id)
        try:
            await self._tree.commit(Delete(path, lock.mark.version))
        except NoSuchKeyError:
            lock.mark = None
            return True
        except VersionConflictError:
            return False
        # Once only: versions begin anew with a mark that is made again.
        lock.mark = None
        await self.clear_path(lock.ledger_id)
        return True

    async def clear_path(self, ledger_id: int) -> None:
        """Remove what is left above a mark that was removed."""
        path = mark_path_below(self.root, ledger_id)
        for _ in range(MARK_DEPTH):
            path = path.rpartition("/")[0]
            try:
                await self._tree.commit(Delete(path))
            except NoSuchKeyError:
                continue
            except NotEmptyError:
                return


def _held(ledger_id: int, owner: str) -> LockHeldError:
    return LockHeldError(
        f"the replicas of ledger {ledger_id} are worked on by {owner}",
        remedy="Try again when that is done",
    )


def misplaced_mark(ledger_id: int, strays: Sequence[str]) -> str:
    """Return a sentence about nodes that are where the mark of a ledger belongs."""
    return f"{strays[0]} is where the mark of ledger {ledger_id} belongs, but is not its mark"
