"""DistributedLog's write lock of a stream.

The lock keeps writers from interrupting each other, but it does not decide who may write. Versions
and fencing decide that (`stream_metadata`), also when a lock is lost and nobody notices it in time.
Java's writers always take the lock and wait for its owner. Quire's writers do so on request.

Members are ephemeral, sequential nodes below `lock`. The member with the lowest number owns the
lock. Each other member watches the one before it, so that a release wakes only one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire._runtime.names.process_numbers import process_number
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


class StreamLock:
    """One member of a lock, which can acquire the lock once. `release` ends it in any state."""

    def __init__(self, tree: Tree, path: str, tasks: TaskSet) -> None:
        """Create a member. `path` is the path of the stream's node `lock`."""
        self._tree = tree
        self._path = path
        self._tasks = tasks
        self._client_id = f"quire/{tree.session_id:x}/{process_number()}"
        self._member: LockMember | None = None
        self._left = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when this member owned the lock and is gone, because its session has ended.

        Another member may own the lock then. `release` cancels the future.
        """
        self._watch: Watch | None = None
        self._joining: asyncio.Task[None] | None = None
        self._failure: QuireError | None = None
        """The error that ended the attempt to get the lock, or None."""
        self._waiting = asyncio.Event()
        """Set when the member before this one is gone, or when `_failure` is known."""

    async def acquire(self, timeout_s: float) -> None:
        """Acquire the lock, and wait for it for at most `timeout_s` seconds.

        Raises StreamLockedError, which names the owner, NoSuchKeyError if the stream was deleted or
        renamed, MetadataUnavailableError and ClientClosedError. No member is left after an error or
        a cancellation, unless the metadata store does not answer: then the member disappears when
        the session ends.
        """
        assert self._member is None, "a lock can be acquired only once"
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
            f"the lock {self._path} of a stream is held by {owner.client_id} (session "
            f"{owner.session_id:#x} of the metadata store), which did not release it within "
            f"{timeout_s:g} s",
            remedy="Wait for that writer to close, or open the stream without the lock, which "
            "fences that writer",
        )

    async def release(self) -> None:
        """Release the lock, or stop waiting for it. Cancel-safe, and safe to call again.

        If the metadata store does not answer, the lock is released when the session ends.
        """
        self.lost.cancel()
        if self._watch is not None:
            self._watch.close()
        if not self._left:
            await asyncio.shield(self._tasks.start(self._leave()))

    async def _client_closed(self, error: ClientClosedError) -> None:
        if self._watch is None:  # `acquire` is still waiting
            self._failure = error
            self._waiting.set()
            await self.release()

    # -- the member ---------------------------------------------------------------------------

    async def _join_and_wait(self, timeout_s: float) -> LockMember | None:
        """Wait for the lock, and return None, or its owner if the time runs out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if self._member is None:
                # Shielded, because the member of a cancelled call would block all others until the
                # session ends.
                self._joining = self._tasks.start(self._join())
                await asyncio.shield(self._joining)
                if self._failure is not None:
                    raise self._failure.with_traceback(None)
            own, members = self._own, await self._members()
            if own not in members:
                self._member = None  # the session has ended: join again in the new one
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
                raise self._failure.with_traceback(None)

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
        """Return the members in the order in which they get the lock."""
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
            # Delete all own members, because a lost reply may have left one that is unknown here.
            ours = [m for m in await self._members() if m.client_id == self._client_id]
            await each(ours, self._delete)
        except NoSuchKeyError:
            pass  # the stream was deleted, and the lock with it
        except MetadataError:
            return  # the member disappears when the session ends
        self._left = True

    async def _delete(self, member: LockMember) -> None:
        try:
            await self._tree.commit(Delete(f"{self._path}/{member.name}"))
        except NoSuchKeyError:
            pass


def _parse(name: str) -> LockMember:
    # The data and the owner of a node matter only for old kinds of names, and only in error
    # messages.
    return LockMember.parse(name, name.encode(), 0)


def _order(member: LockMember) -> tuple[int, str]:
    return member.number, member.name
