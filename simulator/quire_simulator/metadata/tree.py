"""The tree of an in-memory cluster, as one session sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from quire.metadata.common import (
    EventWatches,
    ancestors_of,
    check_operations,
    check_path,
    check_path_below_root,
    no_such_node,
)
from quire.metadata.interface import Versioned, Watch
from quire.metadata.tree import Create, Delete, Operation, Result
from quire_simulator.metadata.cluster import ClusterWatch, MemoryCluster, WatchingSession
from quire_simulator.metadata.nodes import Change, Nodes

T = TypeVar("T")
V = TypeVar("V")


class TreeSession(Protocol):
    """The session that a tree belongs to."""

    cluster: MemoryCluster

    async def call(self, name: str, work: Callable[[], T]) -> T:
        """Do the work of one operation while the session lives."""
        ...

    def check_open(self, name: str) -> None:
        """Raise ClientClosedError if the session is closed."""
        ...

    def watch_tree(self, watch: Callable[[WatchingSession], ClusterWatch]) -> Watch: ...


class TreeWatch(ClusterWatch, Generic[V]):
    """A watch of a node's children or of its value. It delivers None if there is no such node."""

    def __init__(
        self,
        cluster: MemoryCluster,
        session: WatchingSession,
        what: Change,
        look: Callable[[], V | None],
        changed: Callable[[V | None], None],
    ) -> None:
        super().__init__(cluster, session)
        self._what = what
        self._read = look
        self._changed = changed
        self._seen: V | None = None
        self._first = True
        cluster.tree_watches.setdefault(what, []).append(self)
        self.notify(begins=True)

    def _ready(self) -> bool:
        return True  # With or without an initialised cluster.

    def _found(self) -> Callable[[], None] | None:
        found = self._read()
        if not self._first and found == self._seen:
            return None
        self._first, self._seen = False, found
        return lambda: self._changed(found)

    def _forget(self) -> None:
        watches = self._cluster.tree_watches[self._what]
        watches.remove(self)
        if not watches:
            del self._cluster.tree_watches[self._what]


class MemoryTree:
    def __init__(self, session: TreeSession) -> None:
        self._session = session
        self._cluster = session.cluster
        self._session_id = self._cluster.new_session_id()
        self._session_watches: EventWatches[[]] = EventWatches()

    @property
    def _nodes(self) -> Nodes:
        return self._cluster.tree

    @property
    def session_id(self) -> int:
        return self._session_id

    async def read(self, path: str) -> Versioned[bytes]:
        check_path(path)

        def work() -> Versioned[bytes]:
            found = self._value(path)
            if found is None:
                raise no_such_node(path)
            return found

        return await self._session.call("tree_read", work)

    async def exists(self, path: str) -> bool:
        check_path(path)
        return await self._session.call("tree_exists", lambda: self._nodes.get(path) is not None)

    async def children(self, path: str) -> list[str]:
        check_path(path)

        def work() -> list[str]:
            found = self._nodes.children(path)
            if found is None:
                raise no_such_node(path)
            return found

        return await self._session.call("tree_children", work)

    async def commit(self, *operations: Operation) -> list[Result]:
        check_operations(operations)
        return await self._session.call("tree_commit", lambda: self._commit(*operations))

    async def make_path(self, path: str, value: bytes = b"") -> None:
        operations = [Create(each) for each in ancestors_of(check_path(path))]
        if path != "/":
            operations[-1] = Create(path, value)
            check_operations(operations[-1:])

        def work() -> None:
            if self._nodes.get(path) is None:
                self._commit(*(o for o in operations if self._nodes.get(o.path) is None))

        await self._session.call("tree_make_path", work)

    async def delete_tree(self, path: str) -> None:
        check_path_below_root(path)

        def work() -> None:
            self._commit(*(Delete(each) for each in self._nodes.below(path)))

        await self._session.call("tree_delete", work)

    async def sync(self) -> None:
        await self._session.call("tree_sync", lambda: None)

    def watch_children(self, path: str, changed: Callable[[list[str] | None], None]) -> Watch:
        check_path(path)
        return self._watch((path, True), lambda: self._nodes.children(path), changed)

    def watch_value(self, path: str, changed: Callable[[Versioned[bytes] | None], None]) -> Watch:
        check_path(path)
        return self._watch((path, False), lambda: self._value(path), changed)

    def _watch(
        self, what: Change, look: Callable[[], V | None], changed: Callable[[V | None], None]
    ) -> Watch:
        return self._session.watch_tree(
            lambda session: TreeWatch(self._cluster, session, what, look, changed)
        )

    def on_session_lost(self, lost: Callable[[], None]) -> Watch:
        self._session.check_open("on_session_lost")
        return self._session_watches.add(lost)

    def end_session(self) -> None:
        """Delete everything ephemeral. The id stays until the next session begins."""
        self._cluster.history.keep()
        self._cluster.tree_changed(self._nodes.end_session(self._session_id))

    def begin_session(self) -> None:
        self._session_id = self._cluster.new_session_id()
        self._session_watches.tell()

    def close(self) -> None:
        self._session_watches.close()
        self.end_session()

    def _value(self, path: str) -> Versioned[bytes] | None:
        node = self._nodes.get(path)
        return None if node is None else Versioned(node.value, node.version)

    def _commit(self, *operations: Operation) -> list[Result]:
        results, changes = self._nodes.commit(operations, self._session_id)
        self._cluster.tree_changed(changes)
        return results
