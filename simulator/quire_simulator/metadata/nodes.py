"""The nodes of an in-memory tree. Notifications of changes are sent by `cluster`, not here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quire.errors import QuireError
from quire.metadata.common import (
    ROOT,
    below_ephemeral,
    exists_already,
    missing,
    not_empty,
    parent_of,
    prefix_of,
    sequential_path,
    version_conflict,
)
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Result

PERSISTENT = 0
"""The owner of a node that is not ephemeral."""


@dataclass(slots=True)
class TreeNode:
    value: bytes
    owner: int = PERSISTENT
    """The session with which the node ends."""
    version: int = 0
    created: int = 0
    """The number of nodes created below this one so far, which numbers the next sequential node."""
    children: dict[str, None] = field(default_factory=dict)
    """The children's paths, in a dict so that one seed gives one order."""


Change = tuple[str, bool]
"""A path, and whether its children have changed (True) or the node itself."""


class Nodes:
    def __init__(self) -> None:
        self._nodes = {ROOT: TreeNode(b"")}
        self._ephemeral: dict[str, None] = {}
        self._copy: Nodes | None = None
        """A copy of the nodes, or None if they have changed since the last one."""

    def snapshot(self) -> Nodes:
        """Return a copy that does not change any more."""
        if self._copy is None:
            self._copy = Nodes()
            self._copy._nodes = _copied(self._nodes)
        return self._copy

    def get(self, path: str) -> TreeNode | None:
        return self._nodes.get(path)

    def children(self, path: str) -> list[str] | None:
        """Return the sorted names of the children, or None if there is no such node."""
        node = self._nodes.get(path)
        if node is None:
            return None
        start = len(prefix_of(path))
        return sorted(child[start:] for child in node.children)

    def copy(self) -> dict[str, TreeNode]:
        """Return a copy of all nodes that are not ephemeral, by path."""
        return _copied({p: node for p, node in self._nodes.items() if node.owner == PERSISTENT})

    def restore(self, nodes: Mapping[str, TreeNode]) -> None:
        """Replace all nodes by those of a copy."""
        self._nodes, self._ephemeral, self._copy = _copied(nodes), {}, None

    def commit(
        self, operations: Sequence[Operation], session_id: int
    ) -> tuple[list[Result], Iterable[Change]]:
        """Apply all operations, or none if one of them raises."""
        undo: list[Callable[[], object]] = []
        changes: dict[Change, None] = {}
        results: list[Result] = []
        self._copy = None
        try:
            for operation in operations:
                results.append(self._apply(operation, session_id, undo, changes))
        except QuireError:
            for step in reversed(undo):
                step()
            raise
        return results, changes

    def end_session(self, session_id: int) -> Iterable[Change]:
        """Delete the ephemeral nodes of a session."""
        mine = [path for path in self._ephemeral if self._nodes[path].owner == session_id]
        return self.commit([Delete(path) for path in mine], session_id)[1]

    def below(self, path: str) -> Iterator[str]:
        """Yield everything below `path`, and then `path` itself if it exists."""
        node = self._nodes.get(path)
        if node is not None:
            for child in node.children:
                yield from self.below(child)
            yield path

    def _apply(
        self,
        operation: Operation,
        session_id: int,
        undo: list[Callable[[], object]],
        changes: dict[Change, None],
    ) -> Result:
        if isinstance(operation, Create):
            return self._create(operation, session_id, undo, changes)
        path = operation.path
        node = self._nodes.get(path)
        if node is None:
            raise missing(operation)
        if operation.version not in (ANY_VERSION, node.version):
            raise version_conflict(operation, node.version)
        match operation:
            case Check():
                return None
            case Put(_, value):
                before = node.value, node.version

                def put_back() -> None:
                    node.value, node.version = before

                node.value, node.version = bytes(value), node.version + 1
                undo.append(put_back)
                changes[path, False] = None
                return node.version
            case Delete():
                if node.children:
                    raise not_empty(operation)
                self._remove(path)
                undo.append(lambda: self._add(path, node))
                changes[path, False] = changes[path, True] = None
                changes[parent_of(path), True] = None
                return None

    def _create(
        self,
        operation: Create,
        session_id: int,
        undo: list[Callable[[], object]],
        changes: dict[Change, None],
    ) -> str:
        parent = self._nodes.get(parent_of(operation.path))
        if parent is None:
            raise missing(operation)
        path = operation.path
        if operation.sequential:
            path = sequential_path(path, parent.created)
        if path in self._nodes:
            raise exists_already(operation)
        if parent.owner != PERSISTENT:
            raise below_ephemeral(operation)
        owner = session_id if operation.ephemeral else PERSISTENT
        self._add(path, TreeNode(bytes(operation.value), owner))
        parent.created += 1

        def remove_again() -> None:
            self._remove(path)
            parent.created -= 1

        undo.append(remove_again)
        changes[path, False] = changes[path, True] = None
        changes[parent_of(path), True] = None
        return path

    def _add(self, path: str, node: TreeNode) -> None:
        self._nodes[path] = node
        self._nodes[parent_of(path)].children[path] = None
        if node.owner != PERSISTENT:
            self._ephemeral[path] = None

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path)
        del self._nodes[parent_of(path)].children[path]
        if node.owner != PERSISTENT:
            del self._ephemeral[path]


def _copied(nodes: Mapping[str, TreeNode]) -> dict[str, TreeNode]:
    """Return copies of the nodes, in which no other nodes are children."""
    return {
        path: replace(node, children={child: None for child in node.children if child in nodes})
        for path, node in nodes.items()
    }
