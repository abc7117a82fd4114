"""Commits of the tree in ZooKeeper. Each is carried out once, although its response may be lost.

The bytes of the nodes belong to the caller, and another process may write the same bytes, so they
do not show whose commit was done. Therefore each commit also changes a *mark*: an ephemeral node of
this session below `/quire/.marks`. Only one commit at a time uses a mark, and the commit names the
version that it expects the mark to have. After a lost connection the commit is sent again. It
succeeds if the first attempt was not carried out, and fails at the mark if it was. If the session
is lost, the mark is lost as well, and the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from quire._runtime.tasks import TaskSet
from quire.errors import MetadataError, MetadataUnavailableError, QuireError
from quire.metadata.common import (
    below_ephemeral,
    exists_already,
    missing,
    not_empty,
    parent_of,
    prefix_of,
    version_conflict,
)
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Operation, Put, Result
from quire.metadata.uri import VALUES_ROOT
from quire.metadata.zookeeper.kazoo_adapter import (
    Access,
    BadVersionError,
    BelowEphemeralError,
    LostConnectionError,
    NodeError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    NotSentError,
)
from quire.metadata.zookeeper.root import ZooKeeperRoot

MARKS = f"{VALUES_ROOT}/.marks"
"""The parent of all marks. Other clusters, with other identities, have theirs here as well."""

COMMITS_AT_ONCE_MAX = 64
"""The number of concurrent commits of one session, and so of its marks. Further callers wait."""

_ATTEMPTS_MAX = 10
"""The number of attempts for one commit whose session ends each time before it is sent."""

_SEQUENCE_DIGITS = 10


@dataclass(slots=True)
class _Mark:
    path: str
    session_id: int
    version: int = 0


class Commits:
    """The commits of one store, and the marks that they use."""

    def __init__(self, root: ZooKeeperRoot, tasks: TaskSet) -> None:
        self._root = root
        self._tasks = tasks
        self._at_once = asyncio.Semaphore(COMMITS_AT_ONCE_MAX)
        self._idle: list[_Mark] = []
        self._session_id = 0

    async def commit(self, operations: Sequence[Operation], what: str = "") -> list[Result]:
        """Carry out all of the operations or none, with the errors of `Tree.commit`.

        `what` names the commit in messages. Otherwise its first operation does.
        """
        what = what or f"commit {len(operations)} operations, the first on {operations[0].path}"
        async with self._at_once:
            commit = _Commit(self, self._root, operations, what)

            async def work(again: bool) -> list[Result]:
                return await commit.attempt()

            try:
                return await self._root.do(what, work, check=False, decides=True)
            finally:
                commit.leave_mark()

    async def take(self) -> _Mark:
        """Return a mark of the session for one commit: an idle one, or else a new one."""
        zk = self._root.zk
        if self._session_id != zk.session_id:
            self._session_id = zk.session_id
            self._idle.clear()  # they were deleted with the session before
        if self._idle:
            return self._idle.pop()
        try:
            path, _ = await zk.create(f"{MARKS}/mark-", ephemeral=True, sequence=True)
        except NoNodeError:
            await self._make(VALUES_ROOT)
            await self._make(MARKS)
            path, _ = await zk.create(f"{MARKS}/mark-", ephemeral=True, sequence=True)
        return _Mark(path, self._session_id)

    async def _make(self, path: str) -> None:
        try:
            await self._root.zk.create(path, access=Access.SHARED)
        except NodeExistsError:
            pass

    def give_back(self, mark: _Mark) -> None:
        """Keep a mark for the next commit, unless it was deleted with an earlier session."""
        if mark.session_id == self._session_id:
            self._idle.append(mark)

    def drop(self, mark: _Mark) -> None:
        """Delete a mark whose version is unknown.

        If that fails, it is deleted when the session ends.
        """
        self._tasks.start(self._delete_quietly(mark.path))

    async def _delete_quietly(self, path: str) -> None:
        try:
            await self._root.zk.delete(path)
        except (NodeError, QuireError):
            pass


class _Commit:
    """One commit and its attempts."""

    def __init__(
        self, commits: Commits, root: ZooKeeperRoot, operations: Sequence[Operation], what: str
    ) -> None:
        self._commits = commits
        self._zk = root.zk
        self._operations = operations
        self._what = what
        self._mark: _Mark | None = None
        self._mark_known = True
        """Whether the version of the mark's node is known to be the remembered one."""
        self._in_doubt = False
        """Whether an attempt was sent and its response was lost."""

    def leave_mark(self) -> None:
        """Give the mark back, or delete it if its version is unknown."""
        if self._mark is not None:
            (self._commits.give_back if self._mark_known else self._commits.drop)(self._mark)

    async def attempt(self) -> list[Result]:
        """Send the commit, and return its results.

        If the mark shows that an earlier attempt was carried out, the results of that attempt are
        returned. If the session ends before anything was sent, the commit is sent in the next one.

        Raises:
            LostConnectionError: It is not known whether the commit was carried out. Call this
                again.
            MetadataUnavailableError: It can no longer be found out whether it was carried out.
            MetadataError: An operation failed, or the session ended too often. Nothing was changed.
        """
        for _ in range(_ATTEMPTS_MAX):
            if self._mark is None:
                self._mark = await self._commits.take()
            mark = self._mark
            self._mark_known = False  # in case the commit is cancelled now
            try:
                results = await self._zk.commit(
                    [Put(mark.path, b"", mark.version), *self._operations]
                )
            except NotSentError:
                self._mark_known = not self._in_doubt
                raise
            except LostConnectionError:
                self._in_doubt = True
                raise
            except NodeError as error:
                if error.step > 0:
                    # The mark had the version that we remember, so no earlier attempt was done.
                    self._mark_known = True
                    raise _translated(self._operations[error.step - 1], error) from None
                if isinstance(error, BadVersionError) and self._in_doubt:
                    results = [mark.version + 1, *await self._results(mark)]
                else:
                    self._mark = None  # the mark is gone, so this is a new session
                    if self._in_doubt:
                        raise self._unknown("the session has ended") from None
                    continue
            mark.version += 1
            self._mark_known = True
            return results[1:]
        raise MetadataError(
            f"{self._what}: nothing was changed, because the session with ZooKeeper ended "
            f"{_ATTEMPTS_MAX} times before the request was sent",
            remedy=(
                "Use a longer session time-out (session_timeout_s), or find out what delays "
                "this process or ZooKeeper"
            ),
        )

    # -- the results of a commit whose response was lost --------------------------------------

    async def _results(self, mark: _Mark) -> list[Result]:
        """Return the results in the lost response.

        All nodes of a commit have the same transaction number, by which its changes are recognised.
        """
        stat = await self._zk.exists(mark.path)
        if stat is None:
            raise self._unknown("the session has ended")
        return [
            await self._result_of(at, operation, stat.changed_zxid)
            for at, operation in enumerate(self._operations)
        ]

    async def _result_of(self, at: int, operation: Operation, zxid: int) -> Result:
        match operation:
            case Create(path, sequential=False):
                return path
            case Create():
                return await self._created(at, operation, zxid)
            case Put(_, _, version) if version != ANY_VERSION:
                return version + 1
            case Put():
                return await self._version_of(at, operation, zxid)
            case _:
                return None

    async def _created(self, at: int, operation: Create, zxid: int) -> str:
        """Return the path of a sequential node that the commit created."""
        parent = parent_of(operation.path)
        start = len(operation.path)
        found = []
        try:
            names = await self._zk.children(parent)
        except NoNodeError:
            names = []
        for name in sorted(names):
            path = prefix_of(parent) + name
            number = path[start:]
            if path.startswith(operation.path) and len(number) == _SEQUENCE_DIGITS:
                stat = await self._zk.exists(path) if number.isdecimal() else None
                if stat is not None and stat.created_zxid == zxid:
                    found.append(path)
        alike = [index for index, each in enumerate(self._operations) if each == operation]
        if len(found) != len(alike):
            raise self._unknown("the commit was done, but a node that it created is gone")
        return found[alike.index(at)]

    async def _version_of(self, at: int, operation: Put, zxid: int) -> int:
        """Return the version that a `Put` without a version made."""
        later = [each for each in self._operations[at + 1 :] if each.path == operation.path]
        stat = await self._zk.exists(operation.path)
        if (
            stat is None
            or stat.changed_zxid != zxid
            or not all(isinstance(each, Put | Check) for each in later)
        ):
            raise self._unknown(f"the commit was done, but {operation.path} was changed since")
        return stat.version - sum(isinstance(each, Put) for each in later)

    def _unknown(self, why: str) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"{self._what}: it is unknown whether this was done, because ZooKeeper's response "
            f"was lost and {why}",
            remedy="Read the nodes to find out before you try again",
        )


def _translated(operation: Operation, error: NodeError) -> QuireError:
    match error:
        case NoNodeError():
            return missing(operation)
        case NodeExistsError():
            return exists_already(operation)
        case BadVersionError():
            return version_conflict(operation)
        case NodeNotEmptyError():
            return not_empty(operation)
        case BelowEphemeralError():
            return below_ephemeral(operation)
    raise error
