"""A tree of nodes with data, versions and children, changed in transactions.

What streams keep is there (Apache DistributedLog's layout needs no more): in ZooKeeper its nodes
are znodes at the very paths, in SQLite they are rows of a table of their own. A tree
belongs to the store, not to a cluster in it: it is there before `initialise`, and whoever chooses
paths keeps away from ledgers roots and from `/quire`.

- Paths are absolute. '/' is always there. A node can be created only below one that exists.
- A node begins with version 0; each `Put` adds one. A node that is deleted and created again begins
  anew: a version tells about changes of one node, not of one path.
- An *ephemeral* node is deleted when the session that created it ends. It has no children.
- A *sequential* name ends in ten digits: how many nodes were created below the parent before, of
  whatever kind. A number is not used again below the same parent.

One conformance suite (`tests/conformance/test_tree.py`) runs against all drivers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quire.metadata.values import ANY_VERSION, Versioned, Watch

COMMIT_OPERATIONS_MAX = 1_000
"""Of one commit."""

COMMIT_BYTES_MAX = 1_000_000
"""Of one commit: its paths, its values, and `OPERATION_BYTES` for each operation. What ZooKeeper
takes as one request at its default settings, less some room. A single value has the bound of all
metadata, `NODE_BYTES_MAX`."""

OPERATION_BYTES = 64
"""What an operation takes in a request besides its path and value."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. `NoSuchKeyError` without its parent, `KeyExistsError` if it is there,
    `UsageError` below an ephemeral node."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    """Deleted with the session."""
    sequential: bool = False
    """`path` is the beginning of the name; ten digits are added."""


@dataclass(frozen=True, slots=True)
class Put:
    """Replace a node's value. `NoSuchKeyError`, `VersionConflictError`."""

    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node. `NoSuchKeyError`, `VersionConflictError`, `NotEmptyError`."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but only if the node has this version (`ANY_VERSION`: if it is there).
    `NoSuchKeyError`, `VersionConflictError`."""

    path: str
    version: int


Operation = Create | Put | Delete | Check

Result = str | int | None
"""Of one operation: `Create` gives its path (with its number, if sequential), `Put` the new
version."""


class Tree(Protocol):
    """Calls raise only errors of `quire.errors`. `UsageError`: a path that not every store can
    have, a value or a commit beyond the bounds. `MetadataUnavailableError`: the store does not
    answer. Cancelling a read is safe; a change that was cancelled has an unknown outcome."""

    @property
    def session_id(self) -> int:
        """Of the session that ephemeral nodes hang on now; another one once it was lost."""
        ...

    async def read(self, path: str) -> Versioned[bytes]:
        """`NoSuchKeyError`. A change that another process committed a moment ago may be missing:
        see `sync`. The same is true of `exists` and `children`."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def children(self, path: str) -> list[str]:
        """Their names, sorted. `NoSuchKeyError`."""
        ...

    async def commit(self, *operations: Operation) -> list[Result]:
        """Carry out all of the operations or, if one cannot be, none; durable on return. They are
        carried out in order, and each sees those before it. Errors name the operation and the path
        (see the operations) and leave nothing changed. The one exception is
        `MetadataUnavailableError`, whose outcome is unknown unless it says otherwise: look at the
        nodes before trying again, and let something in a value say whose it is. It is raised when
        the store could not be reached for long, or when the session was lost with an answer; a
        connection that was lost is not enough."""
        ...

    async def make_path(self, path: str, value: bytes = b"") -> None:
        """Create a node and the parents that are missing (without data). If it is there, that is
        success, and its value stays. Parents may be there although this failed."""
        ...

    async def delete_tree(self, path: str) -> None:
        """Delete a node with all below it. A missing one is success. In ZooKeeper not all at once:
        after an error or a cancellation some is left; call it again."""
        ...

    def watch_children(self, path: str, changed: Callable[[list[str] | None], None]) -> Watch:
        """Call `changed` (on the event loop) with the sorted names that there are, then after each
        change of them (changes close together may come as one), with None while there is no such
        node. It goes on over deletion and creation, lost connections and sessions, until closed."""
        ...

    def watch_value(self, path: str, changed: Callable[[Versioned[bytes] | None], None]) -> Watch:
        """As `watch_children`, for the value and version of the node."""
        ...

    async def sync(self) -> None:
        """Whatever was committed before this call is seen by reads after it."""
        ...

    def on_session_lost(self, lost: Callable[[], None]) -> Watch:
        """Call `lost` (on the event loop) each time a new session has begun in the place of one
        that ended: its ephemeral nodes are gone. By then others may have seen so for a while: what
        must not be done without an ephemeral node is committed together with a `Check` of that
        node, under a name that nobody else can have (a sequential one). Not called by `close`."""
        ...
