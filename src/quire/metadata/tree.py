"""A tree of nodes with data, versions and children, changed in transactions.

Streams are stored here, in the layout of Apache DistributedLog. In ZooKeeper the nodes are znodes
at the same paths, and in SQLite they are rows of a table. The tree belongs to the store and not to
a cluster in it, so it can be used before `initialise`. Do not choose paths below a ledgers root or
below `/quire`.

- Paths are absolute. The node '/' always exists. Every other node needs an existing parent.
- A new node has version 0, and each `Put` adds one. If a node is deleted and created again, its
  versions begin again, so a version identifies a state of one node and not of its path.
- An *ephemeral* node is deleted when the session that created it ends. It cannot have children.
- A *sequential* name ends in ten digits: the number of nodes of any kind that were created below
  the parent before. A number is not used again below the same parent.

One conformance suite (`tests/conformance/test_tree.py`) runs against all drivers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quire.metadata.values import ANY_VERSION, Versioned, Watch

COMMIT_OPERATIONS_MAX = 1_000
"""The largest number of operations in one commit."""

COMMIT_BYTES_MAX = 1_000_000
"""The largest size of one commit, in bytes: its paths, its values, and `OPERATION_BYTES` for each
operation. ZooKeeper accepts a little more than that in one request at its default settings. A
single value has the limit of all metadata, `NODE_BYTES_MAX`."""

OPERATION_BYTES = 64
"""The bytes that an operation takes in a request besides its path and value."""


@dataclass(frozen=True, slots=True)
class Create:
    """An operation that creates a node.

    A commit raises NoSuchKeyError if the parent does not exist, KeyExistsError if the node exists,
    and UsageError below an ephemeral node.
    """

    path: str
    value: bytes = b""
    ephemeral: bool = False
    """Whether the node is deleted when the session ends."""
    sequential: bool = False
    """Whether ten digits are appended to `path`. They make the name unique below its parent."""


@dataclass(frozen=True, slots=True)
class Put:
    """An operation that replaces the value of a node.

    A commit raises NoSuchKeyError if the node does not exist, and VersionConflictError if the
    node's version is not `version`. With `ANY_VERSION`, any value is replaced.
    """

    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """An operation that deletes a node without children.

    A commit raises NoSuchKeyError if the node does not exist, VersionConflictError if the node's
    version is not `version`, and NotEmptyError if the node has children. With `ANY_VERSION`, the
    version does not matter.
    """

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """An operation that changes nothing, and fails unless the node exists and has this version.

    `ANY_VERSION` checks only that the node exists. A commit raises NoSuchKeyError or
    VersionConflictError.
    """

    path: str
    version: int


Operation = Create | Put | Delete | Check

Result = str | int | None
"""The result of one operation. A `Create` returns its path, with the number if it is sequential. A
`Put` returns the new version. The other operations return None."""


class Tree(Protocol):
    """The tree of a metadata store.

    Calls raise only errors of `quire.errors`. UsageError means that a path cannot be used in every
    store, or that a value or a commit is too large. MetadataUnavailableError means that the store
    does not answer, and MetadataDeniedError that it denies this client access to a node. Any other
    failure of the store is a MetadataError. After the store's `close`, calls raise
    ClientClosedError. It is safe to cancel a read; the outcome of a cancelled change is unknown.
    """

    @property
    def session_id(self) -> int:
        """The id of the session that holds the ephemeral nodes.

        It changes when the session is lost.
        """
        ...

    async def read(self, path: str) -> Versioned[bytes]:
        """Return the value of a node.

        A change that another process has just committed may not be visible yet (see `sync`). This
        is also true of `exists` and `children`.

        Raises:
            NoSuchKeyError: The node does not exist.
            MetadataError: The store fails. `Tree` names the kinds.
        """
        ...

    async def exists(self, path: str) -> bool:
        """Return whether the node exists.

        Raises MetadataError if the store fails. `Tree` names the kinds.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names of the children of a node, sorted.

        Raises:
            NoSuchKeyError: The node does not exist.
            MetadataError: The store fails. `Tree` names the kinds.
        """
        ...

    async def commit(self, *operations: Operation) -> list[Result]:
        """Carry out all of the operations in order, or none of them. Return a result for each.

        Each operation sees the effects of those before it. The changes are durable on return. If an
        operation fails, its error names the operation and the path, and nothing was changed (see
        the classes of the operations).

        Raises:
            MetadataUnavailableError: The store could not be reached for a long time, or the session
                ended before the response came. A lost connection alone does not raise it. The
                outcome is unknown unless the error says otherwise. Read the nodes before you try
                again, and put something into a value that identifies its writer.
            MetadataError: The store fails in another way. `Tree` names the kinds.
        """
        ...

    async def make_path(self, path: str, value: bytes = b"") -> None:
        """Create a node and its missing parents, which get no data.

        If the node exists, the call succeeds and the value stays. The nodes are durable on return.
        After an error some of the parents may exist.

        Raises:
            UsageError: A parent is ephemeral, or the value is too large.
            MetadataUnavailableError: The store does not answer. The outcome is unknown.
            MetadataError: The store fails in another way. `Tree` names the kinds.
        """
        ...

    async def delete_tree(self, path: str) -> None:
        """Delete a node and everything below it. It is no error if the node does not exist.

        In ZooKeeper this takes several transactions. After an error or a cancellation a part may be
        left; call it again. Raises MetadataError if the store fails.
        """
        ...

    def watch_children(self, path: str, changed: Callable[[list[str] | None], None]) -> Watch:
        """Watch the names of the children of a node, until the watch is closed.

        `changed` is called on the event loop with the sorted names, first with the present ones and
        then after each change, and with None while the node does not exist. Several changes in
        quick succession may be reported as one. The watch continues when the node is deleted and
        created again, and survives lost connections and sessions.
        """
        ...

    def watch_value(self, path: str, changed: Callable[[Versioned[bytes] | None], None]) -> Watch:
        """Watch the value and version of a node, like `watch_children`."""
        ...

    async def sync(self) -> None:
        """Make everything that was committed before this call visible to reads after it.

        Raises MetadataError if the store fails. `Tree` names the kinds.
        """
        ...

    def on_session_lost(self, lost: Callable[[], None]) -> Watch:
        """Call `lost` on the event loop whenever a new session has replaced one that ended.

        The ephemeral nodes of the old session are gone, and other processes may have seen that for
        a while. Therefore commit a change that needs an ephemeral node together with a `Check` of
        the node. Give the node a sequential name, which no other process can have. `close` does not
        call `lost`.
        """
        ...
