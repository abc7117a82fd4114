"""The tree in ZooKeeper. Its nodes are znodes at the same paths, wherever the ledgers root is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from quire._runtime.batches import batches
from quire._runtime.tasks import TaskSet
from quire.errors import MetadataError, QuireError
from quire.metadata.common import (
    ROOT,
    EventWatches,
    below_ephemeral,
    check_operations,
    check_path,
    check_path_below_root,
    in_doubt,
    no_such_node,
    parent_of,
)
from quire.metadata.interface import Versioned, Watch
from quire.metadata.tree import (
    COMMIT_BYTES_MAX,
    COMMIT_OPERATIONS_MAX,
    OPERATION_BYTES,
    Create,
    Delete,
    Operation,
    Result,
)
from quire.metadata.zookeeper.commits import Commits
from quire.metadata.zookeeper.kazoo_adapter import (
    BelowEphemeralError,
    NodeError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    Notify,
)
from quire.metadata.zookeeper.root import PARENT_ATTEMPTS_MAX, FirstSeen, ZooKeeperRoot
from quire.metadata.zookeeper.watch import ZooKeeperWatch

V = TypeVar("V")

DELETE_ATTEMPTS_MAX = 100
"""The number of attempts of one `delete_tree` while others change what it deletes."""

LOOK_ATTEMPTS_MAX = 100
"""The number of attempts to read a node that others delete and create repeatedly."""

LISTED_AT_ONCE = 100
"""The number of nodes whose children are listed concurrently."""

_OWN = "zookeeper"
"""The node below '/' that ZooKeeper reserves for itself."""


class ZooKeeperTree:
    """The tree of a ZooKeeper store. `quire.metadata.tree.Tree` documents the calls."""

    def __init__(
        self,
        root: ZooKeeperRoot,
        commits: Commits,
        tasks: TaskSet,
        check_open: Callable[[], None],
    ) -> None:
        self._root = root
        self._zk = root.zk
        self._tasks = tasks
        self._check_open = check_open
        self._commits = commits
        self._session_watches: EventWatches[[]] = EventWatches()
        self._session_seen = self._zk.session_id
        self._forget = self._zk.on_connected(self._look_at_session)

    @property
    def session_id(self) -> int:
        return self._zk.session_id

    async def read(self, path: str) -> Versioned[bytes]:
        check_path(path)

        async def work(again: bool) -> Versioned[bytes]:
            try:
                value, stat = await self._zk.get_or_sync(path)
            except NoNodeError:
                raise no_such_node(path) from None
            return Versioned(value, stat.version)

        return await self._root.do(f"read {path}", work, check=False)

    async def exists(self, path: str) -> bool:
        check_path(path)

        async def work(again: bool) -> bool:
            if await self._zk.exists(path) is not None:
                return True
            await self._zk.sync(path)  # the server may lag behind a process that just created it
            return await self._zk.exists(path) is not None

        return await self._root.do(f"look for {path}", work, check=False)

    async def children(self, path: str) -> list[str]:
        check_path(path)

        async def work(again: bool) -> list[str]:
            try:
                return _names(path, await self._zk.children(path))
            except NoNodeError:
                pass
            try:
                return _names(path, await self._zk.children_synced(path))
            except NoNodeError:
                raise no_such_node(path) from None

        return await self._root.do(f"list the children of {path}", work, check=False)

    async def commit(self, *operations: Operation) -> list[Result]:
        check_operations(operations)
        return await self._commits.commit(operations) if operations else []

    async def make_path(self, path: str, value: bytes = b"") -> None:
        if check_path(path) == ROOT:
            return
        check_operations([Create(path, value)])

        async def work(again: bool) -> None:
            if await self._zk.exists(path) is not None:
                return
            todo = [path]
            for _ in range(PARENT_ATTEMPTS_MAX + path.count("/")):
                if not todo:
                    return
                each = todo[-1]
                try:
                    await self._zk.create(each, value if each == path else b"")
                    todo.pop()
                except NodeExistsError:
                    todo.pop()
                except NoNodeError:
                    todo.append(parent_of(each))
                except BelowEphemeralError:
                    raise below_ephemeral(Create(each)) from None
            raise MetadataError(
                f"the node {path} in ZooKeeper was not created: other processes deleted its "
                "parents again and again",
                remedy="Try again",
            )

        await self._root.do(f"make {path}", work, check=False)

    async def delete_tree(self, path: str) -> None:
        check_path_below_root(path)

        begun = False
        first = FirstSeen()

        async def work(again: bool) -> None:
            nonlocal begun
            for _ in range(DELETE_ATTEMPTS_MAX):
                there = await self._zk.exists_or_sync(path, synced=again)
                if there is None or not first.is_same(there):
                    return  # the node is deleted, and perhaps created again by another process
                paths = await self._below(path)
                try:
                    for operations in _deletions(paths):
                        await self._zk.commit(operations)
                        begun = True
                    return
                except (NoNodeError, NodeNotEmptyError):
                    continue  # others create or delete nodes below it at the same time
            raise MetadataError(
                f"the node {path} in ZooKeeper was not deleted completely: other processes "
                f"changed the nodes below it {DELETE_ATTEMPTS_MAX} times in a row",
                remedy="Stop these processes, or try again",
            )

        try:
            await self._root.do(f"delete {path} with all below it", work, check=False)
        except QuireError as error:
            if begun:
                in_doubt(error)  # a part is deleted
            raise

    async def _below(self, path: str) -> list[str]:
        """Return `path` and everything below it, children before parents.

        The result is empty if the node does not exist.
        """
        found: list[str] = []
        level = [path]
        while level:
            below: list[str] = []
            for start in range(0, len(level), LISTED_AT_ONCE):
                asked = level[start : start + LISTED_AT_ONCE]
                for each, names in zip(
                    asked, await asyncio.gather(*map(self._listed, asked)), strict=True
                ):
                    if names is not None:
                        found.append(each)
                        below += [f"{each}/{name}" for name in names]
            level = below
        return found[::-1]

    async def _listed(self, path: str) -> list[str] | None:
        try:
            return await self._zk.children(path)
        except NoNodeError:
            return None

    async def sync(self) -> None:
        async def work(again: bool) -> None:
            await self._zk.sync(ROOT)

        await self._root.do("sync", work, check=False)

    # -- watches ------------------------------------------------------------------------------

    def watch_children(self, path: str, changed: Callable[[list[str] | None], None]) -> Watch:
        async def look(notify: Notify) -> list[str]:
            return _names(path, await self._zk.children(path, notify))

        return self._watch(path, look, changed)

    def watch_value(self, path: str, changed: Callable[[Versioned[bytes] | None], None]) -> Watch:
        async def look(notify: Notify) -> Versioned[bytes]:
            value, stat = await self._zk.get(path, notify)
            return Versioned(value, stat.version)

        return self._watch(path, look, changed)

    def _watch(
        self, path: str, look: Callable[[Notify], Awaitable[V]], changed: Callable[[V | None], None]
    ) -> Watch:
        self._check_open()
        check_path(path)
        first = True
        seen: V | None = None

        async def look_or_wait(notify: Notify) -> V | None:
            for _ in range(LOOK_ATTEMPTS_MAX):
                try:
                    return await look(notify)
                except NoNodeError:
                    if await self._zk.exists(path, notify) is None:
                        return None
            raise NodeError(
                f"the node {path} in ZooKeeper was deleted and created {LOOK_ATTEMPTS_MAX} times "
                "while it was read"
            )

        def deliver(found: V | None) -> bool:
            nonlocal first, seen
            if first or found != seen:
                first, seen = False, found
                changed(found)
            return True

        return ZooKeeperWatch(self._root, self._tasks, look_or_wait, deliver)

    def on_session_lost(self, lost: Callable[[], None]) -> Watch:
        self._check_open()
        return self._session_watches.add(lost)

    def _look_at_session(self) -> None:
        if self._session_seen != self._zk.session_id:
            self._session_seen = self._zk.session_id
            self._session_watches.tell()

    def close(self) -> None:
        self._forget()
        self._session_watches.close()


def _names(path: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if path != ROOT or name != _OWN)


def _deletions(paths: Iterable[str]) -> Iterator[list[Operation]]:
    """Yield the deletions in commits that ZooKeeper accepts."""

    def size_of(path: str) -> int:
        return len(path.encode()) + OPERATION_BYTES

    for some in batches(paths, size_of, COMMIT_BYTES_MAX, COMMIT_OPERATIONS_MAX):
        yield [Delete(path) for path in some]
