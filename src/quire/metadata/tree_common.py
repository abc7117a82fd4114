"""What the drivers share about trees: checks of arguments, errors, who hears of lost sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextvars import copy_context

from quire.errors import (
    KeyExistsError,
    NoSuchKeyError,
    NotEmptyError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.common import WatchHandle, check_size, conflict
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import (
    COMMIT_BYTES_MAX,
    COMMIT_OPERATIONS_MAX,
    OPERATION_BYTES,
    Check,
    Create,
    Delete,
    Operation,
    Put,
)

ROOT = "/"

_RESERVED = "zookeeper"
"""The top node that ZooKeeper keeps for itself."""

_UNUSABLE = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""What ZooKeeper allows in no name."""


def check_path(path: str) -> str:
    """`path`; `UsageError` unless it can be a path in every store."""
    if path == ROOT:
        return path
    slash, *names = path.split("/")
    if slash or not names or any(name in ("", ".", "..") for name in names):
        raise UsageError(
            f"{path!r} is not a path in the tree",
            remedy="Begin it with '/', end it without, and use names other than '.' and '..'",
        )
    if _UNUSABLE.search(path):
        raise UsageError(
            f"{path!r} cannot be a path in the tree: it has a character that ZooKeeper refuses",
            remedy="Use no control or private characters, and none beyond U+FFEF",
        )
    if names[0] == _RESERVED:
        raise UsageError(f"{path!r} cannot be used: /{_RESERVED} is ZooKeeper's own")
    return path


def check_path_below_root(path: str) -> str:
    """As `check_path`, for what cannot be done to '/'."""
    if path == ROOT:
        raise UsageError("the node / is always there: it is neither created nor deleted")
    return check_path(path)


def check_operations(operations: Sequence[Operation]) -> None:
    """`UsageError` unless every store could carry them out in one transaction."""
    size = 0
    for operation in operations:
        match operation:
            case Create(path, value):
                check_path_below_root(path)
                size += len(check_size(value, f"the value of {path}"))
            case Put(path, value, version):
                check_path(path)
                size += len(check_size(value, f"the value of {path}"))
                _check_version(version)
            case Delete(path, version):
                check_path_below_root(path)
                _check_version(version)
            case Check(path, version):
                check_path(path)
                _check_version(version)
        size += len(operation.path.encode()) + OPERATION_BYTES
    if len(operations) > COMMIT_OPERATIONS_MAX or size > COMMIT_BYTES_MAX:
        raise UsageError(
            f"a commit of {len(operations)} operations and {size} bytes is too large: "
            f"{COMMIT_OPERATIONS_MAX} operations and {COMMIT_BYTES_MAX} bytes are allowed",
            remedy="Keep large data in a ledger, or use several commits",
        )


def _check_version(version: int) -> None:
    if version < ANY_VERSION:
        raise UsageError(f"{version} is no version of a node")


def parent_of(path: str) -> str:
    """'' for '/'."""
    if path == ROOT:
        return ""
    return path.rpartition("/")[0] or ROOT


def prefix_of(parent: str) -> str:
    """With what the paths of the nodes below `parent` begin."""
    return parent if parent == ROOT else parent + "/"


def ancestors_of(path: str) -> list[str]:
    """From the top down, without '/', with `path` itself."""
    names = path.split("/")[1:]
    return ["/" + "/".join(names[:end]) for end in range(1, len(names) + 1)]


def sequential_path(path: str, number: int) -> str:
    return f"{path}{number:010d}"


# -- errors -----------------------------------------------------------------------------------


def no_such_node(path: str) -> NoSuchKeyError:
    return NoSuchKeyError(f"the node {path} does not exist")


def missing(operation: Operation) -> NoSuchKeyError:
    """The node of the operation, or the parent of the one that it was to create."""
    if isinstance(operation, Create):
        return NoSuchKeyError(
            f"{_named(operation)}: the node {parent_of(operation.path)} does not exist"
        )
    return NoSuchKeyError(f"{_named(operation)}: there is no such node")


def exists_already(operation: Operation) -> KeyExistsError:
    return KeyExistsError(f"{_named(operation)}: the node exists already")


def version_conflict(operation: Operation, found: int | None = None) -> VersionConflictError:
    expected = ANY_VERSION if isinstance(operation, Create) else operation.version
    return conflict(f"{_named(operation)}: the node", expected, found)


def not_empty(operation: Operation) -> NotEmptyError:
    return NotEmptyError(
        f"{_named(operation)}: there are nodes below it", remedy="Delete those first"
    )


def below_ephemeral(operation: Operation) -> UsageError:
    return UsageError(
        f"{_named(operation)}: {parent_of(operation.path)} is ephemeral and has no children"
    )


def _named(operation: Operation) -> str:
    return f"{type(operation).__name__.lower()} {operation.path}"


# -- lost sessions ----------------------------------------------------------------------------


class SessionWatches:
    """Who is to be told when a new session has begun."""

    def __init__(self) -> None:
        # A dictionary as a set that keeps its order: the same seed, the same run.
        self._watches: dict[_SessionWatch, None] = {}

    def add(self, lost: Callable[[], None]) -> WatchHandle:
        def forget() -> None:
            self._watches.pop(watch, None)

        watch = _SessionWatch(forget, lost)
        self._watches[watch] = None
        return watch

    def tell(self) -> None:
        for watch in list(self._watches):
            watch.notify()

    def close(self) -> None:
        for watch in list(self._watches):
            watch.close()


class _SessionWatch(WatchHandle):
    def __init__(self, closed: Callable[[], None], lost: Callable[[], None]) -> None:
        super().__init__(closed)
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    def notify(self) -> None:
        """In a later turn of the loop, so that an error in a caller's callback is not ours."""
        self._loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        if not self.closed:
            self._lost()
