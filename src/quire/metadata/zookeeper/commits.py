"""Commits of the tree in ZooKeeper, each carried out once although its answer may get lost.

The nodes' bytes are the caller's, and somebody else may want the very same: they cannot tell whose
commit was done. So each commit also changes a *mark*, an ephemeral node of this session below
`/quire/.marks` that only one commit at a time uses, and only from the version that it is known to
have. After a lost connection the commit is simply made again: it succeeds if the first attempt was
not carried out, and fails at the mark if it was. Where the session is lost, so is the mark, and the
outcome is unknown.
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
"""Other clusters, with other identities, have theirs there as well."""

COMMITS_AT_ONCE_MAX = 64
"""Of one session, and so of its marks; behind them callers wait."""

_ATTEMPTS_MAX = 10
"""Of one commit whose session ends each time before it is sent."""

_SEQUENCE_DIGITS = 10


@dataclass(slots=True)
class _Mark:
    path: str
    version: int = 0


class Commits:
    def __init__(self, root: ZooKeeperRoot, tasks: TaskSet) -> None:
        self._root = root
        self._tasks = tasks
        self._at_once = asyncio.Semaphore(COMMITS_AT_ONCE_MAX)
        self._idle: list[_Mark] = []
        self._session_id = 0

    async def commit(self, operations: Sequence[Operation]) -> list[Result]:
        what = f"commit {len(operations)} operations, the first on {operations[0].path}"
        async with self._at_once:
            commit = _Commit(self, self._root, operations, what)

            async def work(again: bool) -> list[Result]:
                return await commit.attempt()

            try:
                return await self._root.do(what, work, check=False)
            finally:
                commit.leave_mark()

    async def take(self) -> _Mark:
        """A mark of the session, for one commit."""
        zk = self._root.zk
        if self._session_id != zk.session_id:
            self._session_id = zk.session_id
            self._idle.clear()  # gone with the session before
        if self._idle:
            return self._idle.pop()
        try:
            path, _ = await zk.create(f"{MARKS}/mark-", ephemeral=True, sequence=True)
        except NoNodeError:
            await self._make(VALUES_ROOT)
            await self._make(MARKS)
            path, _ = await zk.create(f"{MARKS}/mark-", ephemeral=True, sequence=True)
        return _Mark(path)

    async def _make(self, path: str) -> None:
        try:
            await self._root.zk.create(path, access=Access.SHARED)
        except NodeExistsError:
            pass

    def give_back(self, mark: _Mark) -> None:
        self._idle.append(mark)

    def drop(self, mark: _Mark) -> None:
        """Its version is not known. If this fails, the node goes with the session."""
        self._tasks.start(self._delete_quietly(mark.path))

    async def _delete_quietly(self, path: str) -> None:
        try:
            await self._root.zk.delete(path)
        except (NodeError, QuireError):
            pass


class _Commit:
    """One commit with its attempts."""

    def __init__(
        self, commits: Commits, root: ZooKeeperRoot, operations: Sequence[Operation], what: str
    ) -> None:
        self._commits = commits
        self._zk = root.zk
        self._operations = operations
        self._what = what
        self._mark: _Mark | None = None
        self._mark_known = True
        """Whether the mark's node has the version that we think it has."""
        self._in_doubt = False
        """An attempt was sent, and its answer lost."""

    def leave_mark(self) -> None:
        if self._mark is not None:
            (self._commits.give_back if self._mark_known else self._commits.drop)(self._mark)

    async def attempt(self) -> list[Result]:
        for _ in range(_ATTEMPTS_MAX):
            if self._mark is None:
                self._mark = await self._commits.take()
            mark = self._mark
            self._mark_known = False  # should we be cancelled now
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
                    # The mark was as we left it: no earlier attempt was carried out.
                    self._mark_known = True
                    raise _translated(self._operations[error.step - 1], error) from None
                if isinstance(error, BadVersionError) and self._in_doubt:
                    results = [mark.version + 1, *await self._results(mark)]
                else:
                    self._mark = None  # it is gone: this is a new session
                    if self._in_doubt:
                        raise self._unknown("the session with ZooKeeper was lost with it") from None
                    continue
            mark.version += 1
            self._mark_known = True
            return results[1:]
        raise MetadataError(
            f"{self._what}: the session with ZooKeeper ended {_ATTEMPTS_MAX} times before it was "
            "done",
            remedy="Use a longer session time-out",
        )

    # -- carried out, and the answer lost -----------------------------------------------------

    async def _results(self, mark: _Mark) -> list[Result]:
        """What the lost answer said, from what all nodes of a commit share: the transaction."""
        stat = await self._zk.exists(mark.path)
        if stat is None:
            raise self._unknown("the session with ZooKeeper was lost with it")
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
        """The path of a sequential node."""
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
            raise self._unknown("it was done, but a node that it created is gone")
        return found[alike.index(at)]

    async def _version_of(self, at: int, operation: Put, zxid: int) -> int:
        """The version that a blind `Put` gave."""
        later = [each for each in self._operations[at + 1 :] if each.path == operation.path]
        stat = await self._zk.exists(operation.path)
        if (
            stat is None
            or stat.changed_zxid != zxid
            or not all(isinstance(each, Put | Check) for each in later)
        ):
            raise self._unknown(f"it was done, but {operation.path} was changed since")
        return stat.version - sum(isinstance(each, Put) for each in later)

    def _unknown(self, why: str) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"{self._what}: ZooKeeper's answer was lost, and {why}",
            remedy="Look at the nodes before trying again",
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
