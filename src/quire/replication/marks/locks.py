"""Marks and locks in the under-replication tree, which Apache's auditor and workers share.

In ZooKeeper, the tree is below the ledgers root. Other stores have a tree of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from quire._runtime.clock import Clock
from quire._runtime.names.process_numbers import process_number
from quire.codec.metadata.underreplication import LockHolder, Underreplicated, lock_path
from quire.codec.metadata.underreplication import mark_path as mark_path_below
from quire.errors import (
    ClientClosedError,
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
"""The number of levels of nodes between `ledgers` and a mark."""


class LockHeldError(MetadataError):
    """The error for a ledger whose lock another process holds, to copy or repair its replicas."""


@dataclass(slots=True)
class ReplicationLock:
    """A held lock of one ledger. It is lost without notice if the session with the store ends."""

    ledger_id: int
    mark: Versioned[Underreplicated] | None
    """The mark of the ledger when the lock was taken, or None if there was none."""
    unreadable: str = ""
    """The reason why an existing mark cannot be read, or '' if it can be read or does not exist."""


class ReplicationLocks:
    """The marks and locks of a cluster's ledgers.

    Every call raises MetadataUnavailableError if the metadata store does not answer. Reads are
    cancel-safe. The outcome of a cancelled change is unknown; repeating the change is safe.
    """

    def __init__(self, store: MetadataStore, owner: str, clock: Clock) -> None:
        """Access marks and locks. `owner` is the name in locks: a host, or a bookie id."""
        self.root = replication_root(store.uri)
        self._store = store
        self._tree = store.tree
        self._owner = owner
        self._clock = clock
        self._made: dict[str, str] = {}
        """The tags of the locks that this object has created or may have created, by path."""
        self._held: set[str] = set()

    @asynccontextmanager
    async def hold(self, ledger_id: int) -> AsyncGenerator[ReplicationLock, None]:
        """Hold the lock of a ledger during the context.

        The lock only keeps two processes from doing the same work. It does not provide safety,
        because its session may be lost unnoticed; the version of the metadata does. If the lock
        cannot be released because the store does not answer, the next `hold` or `tidy` releases it.

        Raises LockHeldError if another process holds the lock, and MetadataError. A mark that
        cannot be read is not an error: see `ReplicationLock.unreadable`.
        """
        await self.tidy()
        path = lock_path(self.root, ledger_id)
        tag = f"{self._tree.session_id:x}/{process_number()}"
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
            await self._give_back(path, tag)

    async def _take(self, ledger_id: int, path: str, tag: str) -> None:
        value = LockHolder(self._owner, self._clock.now_ms(), tag).encode()
        await self._tree.make_path(path.rpartition("/")[0])
        if path in self._held:
            raise _held(ledger_id, self._owner)
        # Recorded first, because a call that is cancelled or not answered may create the lock.
        self._made[path] = tag
        self._held.add(path)
        try:
            await self._tree.commit(Create(path, value, ephemeral=True))
        except KeyExistsError:
            self._held.discard(path)
            del self._made[path]
            raise _held(ledger_id, await self._who(path)) from None
        except BaseException as error:
            self._held.discard(path)
            if isinstance(error, asyncio.CancelledError):
                # The call may have created the lock, and perhaps nobody calls `hold` again.
                with suppress(MetadataError, ClientClosedError):
                    await self.tidy()
            raise

    async def _give_back(self, path: str, tag: str) -> None:
        # The session is not asked for: it may have ended, and the lock with it, or the lock was
        # taken by a later session than the one in its tag. The tag alone tells whose lock it is.
        try:
            await self._release(path, tag)
        except (MetadataError, ClientClosedError):
            return  # it is released later, or disappears with the session
        except asyncio.CancelledError:
            # The session may go on for long, and perhaps nobody calls `hold` again.
            with suppress(MetadataError, ClientClosedError):
                await self.tidy()
            raise
        self._made.pop(path, None)

    async def tidy(self) -> None:
        """Release locks that could not be released before. Raises MetadataError."""
        for path, tag in list(self._made.items()):
            if path in self._held:
                continue
            await self._release(path, tag)
            if path not in self._held and self._made.get(path) == tag:
                del self._made[path]

    async def _release(self, path: str, tag: str) -> None:
        """Delete a lock if it is still the one with this tag and no task of this object holds it.

        A store that did not answer for a while may have ended the session meanwhile. The path may
        then have the lock of another process. Raises MetadataError.
        """
        try:
            found = LockHolder.decode((await self._tree.read(path)).value)
            if found.tag == tag and path not in self._held:
                await self._tree.commit(Delete(path))
        except (NoSuchKeyError, ValueError):
            pass

    async def held_by(self, ledger_id: int) -> LockHolder | None:
        """Return the holder of a ledger's lock, or None if the ledger is not locked.

        If the lock cannot be decoded, the holder is "an unknown process". Raises MetadataError.
        """
        try:
            found = await self._tree.read(lock_path(self.root, ledger_id))
        except NoSuchKeyError:
            return None
        try:
            return LockHolder.decode(found.value)
        except ValueError:
            return LockHolder("an unknown process")

    async def _who(self, path: str) -> str:
        try:
            return LockHolder.decode((await self._tree.read(path)).value).owner
        except (NoSuchKeyError, ValueError):
            return "somebody else"

    # -- marks --------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, replicas: Sequence[str]) -> bool:
        """Mark a ledger: these bookies lack entries of it, or cannot be reached.

        Workers read every entry that a named bookie should have, if the bookie answers. Return
        False if the mark says so already. Then it only gets a new version, so that a worker that
        began before this call does not remove it. Safe to repeat. Raises UnreadableMetadataError if
        an existing mark cannot be decoded, and MetadataError if the store fails or other processes
        change the mark too often.
        """
        return await mark_ledger(self._store, ledger_id, replicas, self._clock.now_ms())

    async def marked(self, ledger_id: int) -> Versioned[Underreplicated] | None:
        """Return the mark of a ledger, or None if it is not marked.

        Raises UnreadableMetadataError if the mark cannot be decoded, and MetadataError.
        """
        path = mark_path_below(self.root, ledger_id)
        try:
            found = await self._tree.read(path)
        except NoSuchKeyError:
            return None
        return Versioned(decoded_mark(path, found.value), found.version)

    async def is_marked(self, ledger_id: int) -> bool:
        """Return whether the ledger has a mark, or a stray node beside it (`strays`).

        Raises MetadataError.
        """
        path = mark_path_below(self.root, ledger_id)
        return await self._tree.exists(path) or bool(await self.strays(ledger_id))

    async def strays(self, ledger_id: int) -> list[str]:
        """Return the paths of the nodes beside a ledger's mark, which do not belong there.

        Only the mark belongs below its parent. Any other node was created by mistake, and is never
        deleted. Raises MetadataError.
        """
        above, _, own = mark_path_below(self.root, ledger_id).rpartition("/")
        try:
            names = await self._tree.children(above)
        except NoSuchKeyError:
            return []
        return [f"{above}/{name}" for name in names if name != own]

    async def replicated(self, lock: ReplicationLock) -> bool:
        """Remove the mark of a ledger that has all its replicas.

        Return True if the ledger has no mark any more, also if there was none. If the ledger was
        marked again since the lock was taken, the mark stays, and the result is False (rule 26).
        Raises MetadataError.
        """
        if lock.mark is None:
            return True
        path = mark_path_below(self.root, lock.ledger_id)
        try:
            # The lock may have been lost unnoticed. Then another process may have removed the mark,
            # and a new mark begins with the same version. The server may lag behind that process.
            await self._tree.sync()
            found = await self.marked(lock.ledger_id)
        except UnreadableMetadataError:
            return False
        if found is not None and found != lock.mark:
            return False
        try:
            await self._tree.commit(Delete(path, lock.mark.version))
        except NoSuchKeyError:
            lock.mark = None
            return True
        except VersionConflictError:
            return False
        # Remove it only once, because versions begin again with a new mark.
        lock.mark = None
        await self.clear_path(lock.ledger_id)
        return True

    async def clear_path(self, ledger_id: int) -> None:
        """Remove the empty parents of a mark that was removed. Raises MetadataError."""
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
        f"ledger {ledger_id} was left as it is, because {owner} is copying or repairing its "
        "replicas",
        remedy="Try again when that work is done",
    )


def misplaced_mark(ledger_id: int, strays: Sequence[str]) -> str:
    """Return a sentence about the first of `strays`, nodes in the place of a ledger's mark."""
    return f"{strays[0]} is in the place of the mark of ledger {ledger_id}, but is not its mark"
