"""Watches on a SQLite file, which does not report changes and is therefore polled.

While a store has watches, one task compares `PRAGMA data_version` every `WATCH_POLL_S`, which needs
no disk access. Leases expire and processes die without a change of the file. The task therefore
also reads registered bookies and ephemeral nodes of the tree every `LIVENESS_POLL_S`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quire._runtime.tasks import TaskSet, UnexpectedErrors, came
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import ClientClosedError, MetadataError, UnreadableMetadataError
from quire.metadata.common import WatchHandle, logger
from quire.metadata.interface import Bookies, Versioned
from quire.metadata.ledgers.unreadable import decode_ledger
from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.session import Session

V = TypeVar("V")

WATCH_POLL_S = 0.1
"""Seconds between two checks whether the file has changed."""
LIVENESS_POLL_S = 0.5
"""Seconds between two reads of registered bookies and ephemeral nodes, which may end without a
change of the file."""

NodeKey = tuple[str, str]
"""The kind of a watch and the path of its node. Watches with the same key share one read."""

NodeLook = Callable[[sqlite3.Connection], tuple[V | None, bool]]
"""A function that reads a node on the file's thread. It returns the value, or None if there is no
such node, and whether the value may end without a change of the file."""


@dataclass(frozen=True, slots=True)
class _View:
    """The result of one read of the file for all watches.

    The row of a ledger that does not exist is None. `bookies` is None if nothing watches them.
    """

    ledgers: dict[int, tuple[int, int, bytes] | None]
    bookies: Bookies | None
    nodes: dict[NodeKey, tuple[Any, bool]]


class SqliteLedgerWatch(WatchHandle):
    """A watch of the metadata of one ledger."""

    def __init__(
        self,
        closed: Callable[[], None],
        ledger_id: int,
        changed: Callable[[Versioned[LedgerMetadata] | None], None],
    ) -> None:
        super().__init__(closed)
        self.ledger_id = ledger_id
        self._changed = changed
        self._seen: tuple[int, int, bytes] | None = None

    def deliver(self, found: tuple[int, int, bytes] | None) -> None:
        if self.closed:
            return
        if found is None:
            self.close()
            self._changed(None)
        elif found != self._seen:
            version, ctime_ms, data = self._seen = found
            try:
                value = decode_ledger(self.ledger_id, data, ctime_ms, version)
            except UnreadableMetadataError as error:
                logger.warning("a watch cannot deliver the present version: %s", error)
                return  # the next version is delivered
            self._changed(Versioned(value, version, ctime_ms))


class SqliteBookieWatch(WatchHandle):
    """A watch of the registered bookies."""

    def __init__(self, closed: Callable[[], None], changed: Callable[[Bookies], None]) -> None:
        super().__init__(closed)
        self._changed = changed
        self._seen: Bookies | None = None

    def deliver(self, bookies: Bookies) -> None:
        if not self.closed and bookies != self._seen:
            self._seen = bookies
            self._changed(bookies)


class NodeWatch(WatchHandle, Generic[V]):
    """A watch of a node of the tree, or of its children."""

    def __init__(
        self,
        closed: Callable[[], None],
        key: NodeKey,
        look: NodeLook[V],
        changed: Callable[[V | None], None],
    ) -> None:
        super().__init__(closed)
        self.key = key
        self.look = look
        self._changed = changed
        self._seen: V | None = None
        self._first = True

    def deliver(self, found: V | None) -> None:
        if not self.closed and (self._first or found != self._seen):
            self._first, self._seen = False, found
            self._changed(found)


class Watches:
    """The watches of one store, and the task that serves them."""

    def __init__(
        self, file: SqliteFile, session: Session, tasks: TaskSet, *, poll_s: float = WATCH_POLL_S
    ) -> None:
        self._file = file
        self._session = session
        self._tasks = tasks
        self._unexpected = UnexpectedErrors()
        self._poll_s = poll_s
        self._ledgers: set[SqliteLedgerWatch] = set()
        self._bookies: set[SqliteBookieWatch] = set()
        self._nodes: set[NodeWatch[Any]] = set()
        self._nodes_mortal = False
        """Whether a watched value may end without a change of the file."""
        self._wake = asyncio.Event()
        self._polling = False

    def watch_ledger(
        self, ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> SqliteLedgerWatch:
        watch = SqliteLedgerWatch(lambda: self._ledgers.discard(watch), ledger_id, changed)
        self._ledgers.add(watch)
        self._start()
        return watch

    def watch_bookies(self, changed: Callable[[Bookies], None]) -> SqliteBookieWatch:
        watch = SqliteBookieWatch(lambda: self._bookies.discard(watch), changed)
        self._bookies.add(watch)
        self._start()
        return watch

    def watch_tree(
        self, key: NodeKey, look: NodeLook[V], changed: Callable[[V | None], None]
    ) -> NodeWatch[V]:
        watch = NodeWatch(lambda: self._nodes.discard(watch), key, look, changed)
        self._nodes.add(watch)
        self._start()
        return watch

    def wake(self) -> None:
        """Have the task read the file for all watches without waiting for `WATCH_POLL_S`.

        Call this after a write of this store, because `PRAGMA data_version` shows only the changes
        of other connections.
        """
        self._wake.set()

    def close(self) -> None:
        for watch in [*self._ledgers, *self._bookies, *self._nodes]:
            watch.close()

    def _start(self) -> None:
        self.wake()
        if not self._polling:
            self._polling = True
            self._tasks.start(self._poll())

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        known_version = -1
        look_at_leases = 0.0
        failing = False
        try:
            while self._ledgers or self._bookies or self._nodes:
                try:
                    version = await self._file.data_version()
                    mortal = bool(self._bookies) or self._nodes_mortal
                    leases = mortal and loop.time() >= look_at_leases
                    if self._wake.is_set() or version != known_version or leases:
                        self._wake.clear()
                        await self._look()
                        known_version = version
                        look_at_leases = loop.time() + LIVENESS_POLL_S
                    failing = False
                except ClientClosedError:
                    return
                except MetadataError as error:
                    if not failing:
                        logger.warning(
                            "watches cannot read the metadata store and try again: %s", error
                        )
                    failing = True
                    self._wake.set()  # changes in the meantime are unknown
                    await asyncio.sleep(self._poll_s)
                except Exception as error:  # noqa: BLE001 - otherwise no watch would fire again
                    self._unexpected.note("look for changes", error)
                    self._wake.set()
                    await asyncio.sleep(self._poll_s)
                await came(self._wake, asyncio.timeout(self._poll_s))
        finally:
            self._polling = False

    async def _look(self) -> None:
        ledgers, bookies, nodes = set(self._ledgers), set(self._bookies), set(self._nodes)
        looks = {watch.key: watch.look for watch in nodes}
        ledger_ids = {watch.ledger_id for watch in ledgers}

        def work(connection: sqlite3.Connection) -> _View:
            query = "SELECT version, ctime_ms, metadata FROM ledgers WHERE ledger_id = ?"
            return _View(
                {id_: connection.execute(query, (id_,)).fetchone() for id_ in ledger_ids},
                self._session.bookies(connection) if bookies else None,
                {key: look(connection) for key, look in looks.items()},
            )

        view = await self._file.read(work)
        self._nodes_mortal = any(mortal for _, mortal in view.nodes.values())
        # Called from the event loop, so that an error in a callback does not end this task.
        loop = asyncio.get_running_loop()
        for watch in ledgers:
            loop.call_soon(watch.deliver, view.ledgers[watch.ledger_id])
        if view.bookies is not None:
            for bookie_watch in bookies:
                loop.call_soon(bookie_watch.deliver, view.bookies)
        for node_watch in nodes:
            loop.call_soon(node_watch.deliver, view.nodes[node_watch.key][0])
