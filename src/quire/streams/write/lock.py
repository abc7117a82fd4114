"""DistributedLog's write lock of a stream (DistributedLog spec, 2.7).

It keeps writers from interrupting each other, and decides nothing: who may write is decided by
versions and fencing (`stream_metadata`), which hold where the lock is lost without anybody noticing
it in time. Java's writers take it, and wait for whoever has it; ours do where they are asked to.

Waiting are ephemeral, sequential nodes below `lock`: the one with the lowest number owns it, and
each watches the one before its own, so that a release wakes one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from quire._runtime.tasks import TaskSet, each
from quire.codec.distributedlog.lock import LockMember, lock_member_prefix
from quire.errors import (
    ClientClosedError,
    MetadataError,
    NoSuchKeyError,
    QuireError,
    StreamLockedError,
)
from quire.metadata.interface import Versioned, Watch
from quire.metadata.tree import Create, Delete, Tree

_numbers = itertools.count(1)
"""Tells the members of one session apart."""


class StreamLock:
    """One member of a lock. To be acquired once; `release` ends it in any state."""

    def __init__(self, tree: Tree, path: str, tasks: TaskSet) -> None:
        """`path`: of the stream's node `lock`."""
        self._tree = tree
        self._path = path
        self._tasks = tasks
        self._client_id = f"quire/{tree.session_id:x}/{next(_numbers)}"
        self._member: LockMember | None = None
        self._left = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the member is gone that owned the lock, because its session has ended:
        somebody else may own it now. Cancelled by `release`."""
        self._watch: Watch | None = None
        self._joining: asyncio.Task[None] | None = None
        self._failure: QuireError | None = None
        """Of joining, or why the lock is no longer waited for."""
        self._waiting = asyncio.Event()
        """Set when the member before this one is gone, or `_failure` is known."""

    async def acquire(self, timeout_s: float) -> None:
        """Own the lock; 0: now or not at all. StreamLockedError names who has it, and leaves
        nothing behind; neither does a cancellation. MetadataUnavailableError."""
        assert self._member is None, "a lock is acquired once"
        try:
            owner = await self._join_and_wait(timeout_s)
            if owner is None:
                self._watch = self._when_gone(self._own, self._is_lost)
                return
        except BaseException:
            await self.release()
            raise
        await self.release()
        raise StreamLockedError(
            f"{self._path} is held by {owner.client_id} (session {owner.session_id:#x}) and was "
            f"not released within {timeout_s:g} s",
            remedy="Wait for that writer to close, or open without the lock: that ends the writer",
        )

    async def release(self) -> None:
        """Give it up, or give up waiting. If the store does not answer, the lock is free once the
        session has ended. Cancel-safe; may be called again."""
        self.lost.cancel()
        if self._watch is not None:
            self._watch.close()
        if not self._left:
            await asyncio.shield(self._tasks.start(self._leave()))

    async def _client_closed(self, error: ClientClosedError) -> None:
        if self._watch is None:  # it is still waited for
            self._failure = error
            self._waiting.set()
            await self.release()

    # -- the member ---------------------------------------------------------------------------

    async def _join_and_wait(self, timeout_s: float) -> LockMember | None:
        """None: it is ours; else who has it, when the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if self._member is None:
                # Shielded: a member that was made by a call that nobody waits for would stand in
                # the way of everybody until the session ends.
                self._joining = self._tasks.start(self._join())
                await asyncio.shield(self._joining)
                if self._failure is not None:
                    raise self._failure
            own, members = self._own, await self._members()
            if own not in members:
                self._member = None  # its session has ended: it waits in a new one
                continue
            before = [member for member in members if _order(member) < _order(own)]
            if not before:
                return None
            try:
                async with asyncio.timeout(deadline - loop.time()):
                    await self._gone(before[-1])
            except TimeoutError:
                return before[0]
            if self._failure is not None:
                raise self._failure

    @property
    def _own(self) -> LockMember:
        assert self._member is not None
        return self._member

    async def _join(self) -> None:
        prefix = lock_member_prefix(self._client_id, self._tree.session_id)
        create = Create(
            f"{self._path}/{prefix}", self._client_id.encode(), ephemeral=True, sequential=True
        )
        try:
            [made] = await self._tree.commit(create)
        except QuireError as error:
            self._failure = error
        else:
            self._member = _parse(str(made).rpartition("/")[2])

    async def _members(self) -> list[LockMember]:
        """In the order in which they get the lock."""
        names = await self._tree.children(self._path)
        return sorted(map(_parse, names), key=_order)

    async def _gone(self, member: LockMember) -> None:
        """Wait until a member is deleted, or its session has ended."""
        self._waiting.clear()
        watch = self._when_gone(member, self._waiting.set)
        try:
            if self._failure is None:
                await self._waiting.wait()
        finally:
            watch.close()

    def _when_gone(self, member: LockMember, gone: Callable[[], object]) -> Watch:
        def look(value: Versioned[bytes] | None) -> None:
            if value is None:
                gone()

        return self._tree.watch_value(f"{self._path}/{member.name}", look)

    def _is_lost(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    async def _leave(self) -> None:
        if self._joining is not None and not self._joining.done():
            await asyncio.wait([self._joining])
        try:
            # All of ours: an answer that was lost may have made one that we do not know.
            ours = [m for m in await self._members() if m.client_id == self._client_id]
            await each(ours, self._delete)
        except NoSuchKeyError:
            pass  # the stream was deleted, and the lock with it
        except MetadataError:
            return  # the session ends sooner or later, and the member with it
        self._left = True

    async def _delete(self, member: LockMember) -> None:
        try:
            await self._tree.commit(Delete(f"{self._path}/{member.name}"))
        except NoSuchKeyError:
            pass


def _parse(name: str) -> LockMember:
    # What else identifies a member, its data and its owner, matters only to the old kinds of names,
    # and there only for the words of an error.
    return LockMember.parse(name, name.encode(), 0)


def _order(member: LockMember) -> tuple[int, str]:
    return member.number, member.name
