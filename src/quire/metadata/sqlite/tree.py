"""The tree in a SQLite file: one row for each node.

Ephemeral nodes depend on the lease of their session, like registrations of bookies. A node whose
session has ended does not exist for readers, and the next commit of any process deletes its row.
Each transaction finds out by itself which sessions have ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from quire.errors import MetadataUnavailableError, nothing_done
from quire.metadata.common import (
    ROOT,
    EventWatches,
    ancestors_of,
    below_ephemeral,
    check_operations,
    check_path,
    check_path_below_root,
    exists_already,
    missing,
    no_such_node,
    not_empty,
    parent_of,
    prefix_of,
    sequential_path,
    version_conflict,
)
from quire.metadata.interface import ANY_VERSION, Versioned, Watch
from quire.metadata.sqlite.file import SqliteFile, Work
from quire.metadata.sqlite.session import Session
from quire.metadata.sqlite.watch import Watches
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Result

T = TypeVar("T")

SESSION_ATTEMPTS_MAX = 10
"""The number of attempts for one commit whose lease expires each time before it reaches the
file."""


class _NoSessionError(Exception):
    """The session of a new ephemeral node has not begun, or its lease has expired."""


class SqliteTree:
    """The tree of a SQLite store. `quire.metadata.tree.Tree` documents the calls."""

    def __init__(
        self,
        file: SqliteFile,
        session: Session,
        watches: Watches,
        keep_session: Callable[[], None],
        check_open: Callable[[], None],
    ) -> None:
        """Create the tree of a store.

        Args:
            file: The open file.
            session: The session of the store.
            watches: The watches of the store.
            keep_session: Starts the renewal of the lease, if it is not running yet.
            check_open: Raises ClientClosedError if the store is closed.
        """
        self._file = file
        self._session = session
        self._watches = watches
        self._keep_session = keep_session
        self._check_open = check_open
        self._session_watches: EventWatches[[]] = EventWatches()
        self._session_seen = session.session_id

    @property
    def session_id(self) -> int:
        return self._session.session_id

    async def read(self, path: str) -> Versioned[bytes]:
        check_path(path)
        found = await self._file.read(lambda connection: self._value(connection, path)[0])
        if found is None:
            raise no_such_node(path)
        return found

    async def exists(self, path: str) -> bool:
        check_path(path)
        return await self._file.read(lambda connection: self._is_there(connection, path))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        found = await self._file.read(lambda connection: self._children(connection, path)[0])
        if found is None:
            raise no_such_node(path)
        return found

    async def commit(self, *operations: Operation) -> list[Result]:
        check_operations(operations)
        for _ in range(SESSION_ATTEMPTS_MAX):
            try:
                return await self._write(lambda connection: self._commit(connection, operations))
            except _NoSessionError:
                # This is a transaction of its own, so the session begins even if the commit fails.
                self._keep_session()
                await self._write(self._session.touch)
        raise nothing_done(
            MetadataUnavailableError(
                "nothing was committed: the lease of this process in the metadata file "
                f"{self._file.path} expired {SESSION_ATTEMPTS_MAX} times before it could be used",
                remedy=(
                    "Use a longer session time-out (session_timeout_s), or find out what delays "
                    "this process"
                ),
            )
        )

    async def make_path(self, path: str, value: bytes = b"") -> None:
        operations = [Create(each) for each in ancestors_of(check_path(path)) if each != ROOT]
        if operations:
            operations[-1] = Create(path, value)
            check_operations(operations[-1:])

        def work(connection: sqlite3.Connection) -> None:
            self._sweep(connection)
            for operation in operations:
                if _node(connection, operation.path) is None:
                    self._apply(connection, operation)

        await self._write(work)

    async def delete_tree(self, path: str) -> None:
        check_path_below_root(path)

        def work(connection: sqlite3.Connection) -> None:
            # The character '0' follows '/', so this range is everything below the path.
            connection.execute(
                "DELETE FROM tree WHERE path = ? OR (path > ? AND path < ?)",
                (path, path + "/", path + "0"),
            )

        await self._write(work)

    async def sync(self) -> None:
        """Check that the file can be read, and nothing more.

        There is nothing to wait for: reads of a SQLite file see everything that was committed.
        """
        await self._file.data_version()

    def watch_children(self, path: str, changed: Callable[[list[str] | None], None]) -> Watch:
        self._check_open()
        look = partial(self._children, path=check_path(path))
        return self._watches.watch_tree(("children", path), look, changed)

    def watch_value(self, path: str, changed: Callable[[Versioned[bytes] | None], None]) -> Watch:
        self._check_open()
        look = partial(self._value, path=check_path(path))
        return self._watches.watch_tree(("value", path), look, changed)

    def on_session_lost(self, lost: Callable[[], None]) -> Watch:
        self._check_open()
        return self._session_watches.add(lost)

    def look_at_session(self) -> None:
        """Call the callbacks of `on_session_lost` if a new session has begun since the last call.

        Call this after `Session.touch` or `Session.renew`.
        """
        if self._session_seen != self._session.session_id:
            self._session_seen = self._session.session_id
            self._session_watches.tell()

    def close(self) -> None:
        self._session_watches.close()

    async def _write(self, work: Work[T]) -> T:
        try:
            return await self._file.write(work)
        finally:  # also if the caller was cancelled, or the outcome is unknown
            self._watches.wake()
            self.look_at_session()

    # -- on the file's thread -----------------------------------------------------------------

    def _value(
        self, connection: sqlite3.Connection, path: str
    ) -> tuple[Versioned[bytes] | None, bool]:
        """Return a node, or None if it does not exist, and whether it is ephemeral.

        An ephemeral node may end without a change of the file, when the lease of its session
        expires.
        """
        row = _node(connection, path)
        if row is None:
            return None, False
        value, version, owner = row
        if owner is not None and owner not in self._session.living(connection):
            return None, False
        return Versioned(value, version), owner is not None

    def _children(self, connection: sqlite3.Connection, path: str) -> tuple[list[str] | None, bool]:
        """Return the names of the children, and whether the node or any child is ephemeral.

        The names are None if the node does not exist.
        """
        there, mortal = self._value(connection, path)
        if there is None:
            return None, False
        rows = connection.execute("SELECT path, owner FROM tree WHERE parent = ?", (path,))
        children = rows.fetchall()
        if any(owner is not None for _, owner in children):
            mortal = True
            living = self._session.living(connection)
            children = [row for row in children if row[1] is None or row[1] in living]
        start = len(prefix_of(path))
        return sorted(child[start:] for child, _ in children), mortal

    def _is_there(self, connection: sqlite3.Connection, path: str) -> bool:
        return self._value(connection, path)[0] is not None

    def _commit(
        self, connection: sqlite3.Connection, operations: Sequence[Operation]
    ) -> list[Result]:
        ephemeral = any(isinstance(each, Create) and each.ephemeral for each in operations)
        if ephemeral and self.session_id not in self._session.living(connection):
            raise _NoSessionError
        self._sweep(connection)
        return [self._apply(connection, operation) for operation in operations]

    def _sweep(self, connection: sqlite3.Connection) -> None:
        """Delete the nodes of sessions that have ended."""
        owners = connection.execute("SELECT DISTINCT owner FROM tree WHERE owner IS NOT NULL")
        ephemeral = [owner for (owner,) in owners]
        if ephemeral:
            living = self._session.living(connection)
            for owner in ephemeral:
                if owner not in living:
                    connection.execute("DELETE FROM tree WHERE owner = ?", (owner,))

    def _apply(self, connection: sqlite3.Connection, operation: Operation) -> Result:
        if isinstance(operation, Create):
            return self._create(connection, operation)
        path = operation.path
        row = _node(connection, path)
        if row is None:
            raise missing(operation)
        version = row[1]
        if operation.version not in (ANY_VERSION, version):
            raise version_conflict(operation, version)
        match operation:
            case Check():
                return None
            case Put(_, value):
                connection.execute(
                    "UPDATE tree SET version = ?, data = ? WHERE path = ?",
                    (version + 1, value, path),
                )
                return version + 1
            case Delete():
                if connection.execute(
                    "SELECT 1 FROM tree WHERE parent = ? LIMIT 1", (path,)
                ).fetchone():
                    raise not_empty(operation)
                connection.execute("DELETE FROM tree WHERE path = ?", (path,))
                return None

    def _create(self, connection: sqlite3.Connection, operation: Create) -> str:
        path, parent = operation.path, parent_of(operation.path)
        row = connection.execute(
            "SELECT created, owner FROM tree WHERE path = ?", (parent,)
        ).fetchone()
        if row is None:
            raise missing(operation)
        created, parent_owner = row
        if operation.sequential:
            path = sequential_path(path, created)
        if _node(connection, path) is not None:
            raise exists_already(operation)
        if parent_owner is not None:
            raise below_ephemeral(operation)
        owner = self.session_id if operation.ephemeral else None
        connection.execute(
            "INSERT INTO tree (path, parent, version, created, owner, data) "
            "VALUES (?, ?, 0, 0, ?, ?)",
            (path, parent, owner, operation.value),
        )
        connection.execute("UPDATE tree SET created = ? WHERE path = ?", (created + 1, parent))
        return path


def _node(connection: sqlite3.Connection, path: str) -> tuple[bytes, int, int | None] | None:
    """Return the value, version and owner of a node, even if the owner's session has ended."""
    found: tuple[bytes, int, int | None] | None = connection.execute(
        "SELECT data, version, owner FROM tree WHERE path = ?", (path,)
    ).fetchone()
    return found
