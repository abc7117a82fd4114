"""The state that all stores of an in-memory cluster share, and the watches of its changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from typing import Protocol

from quire._runtime.clock import Clock
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import (
    ClusterNotInitialisedError,
    KeyExistsError,
    MetadataDeniedError,
    UnreadableMetadataError,
)
from quire.metadata.common import (
    WatchHandle,
    decode_address,
    logger,
    new_instance_id,
    no_such_ledger,
)
from quire.metadata.interface import BookieAddress, Bookies, Versioned
from quire.metadata.ledgers.unreadable import decode_ledger
from quire_simulator.metadata.items import MemoryPresence, StoredItem
from quire_simulator.metadata.lag import History, Readable, View
from quire_simulator.metadata.nodes import Change, Nodes

LEARNT_S = 0.001
"""How much later than its lag a server shows a change."""


class MemoryCluster(Readable):
    """The state that all stores of a cluster share. `name` appears only in messages and URIs."""

    def __init__(self, name: str, *, clock: Clock, rng: random.Random) -> None:
        self.name = name
        self.clock = clock
        self.rng = rng
        self.notice_delay_s = 0.0
        """The delay after which watches notice a change, to model slow notifications."""
        self.instance_id: str | None = None
        self.next_ledger_id = 0
        self.ledgers: dict[int, StoredItem] = {}
        self.ledger_ids: list[int] = []
        self.unreadable: dict[int, bytes | None] = {}
        """The bytes that clients find in place of the metadata of these ledgers.

        They cannot be decoded. They are None if the store refuses to show the node.
        """
        self.cookies: dict[str, StoredItem] = {}
        self.values: dict[tuple[str, ...], StoredItem] = {}
        self.presences: dict[str, MemoryPresence] = {}
        self.ledger_watches: dict[int, list[MemoryLedgerWatch]] = {}
        self.bookie_watches: list[MemoryBookieWatch] = []
        self.tree = Nodes()
        self.tree_watches: dict[Change, list[ClusterWatch]] = {}
        self.history = History(self)
        self._sessions_begun = 0
        self.lost_swaps = 0
        """The number of compare-and-swaps that lost because of the knob `LOST_SWAPS`."""

    def new_session_id(self) -> int:
        self._sessions_begun += 1
        return self._sessions_begun

    def initialise(self) -> str:
        if self.instance_id is not None:
            raise KeyExistsError(f"memory://{self.name} holds a cluster already")
        self.instance_id = new_instance_id(self.rng)
        for watch in list(self.watches()):
            watch.notify()
        return self.instance_id

    def require(self) -> str:
        if self.instance_id is None:
            raise ClusterNotInitialisedError(f"memory://{self.name} holds no cluster")
        return self.instance_id

    def ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        node = self.ledgers.get(ledger_id)
        if node is None:
            raise no_such_ledger(ledger_id)
        found = decode_ledger(ledger_id, node.data, node.ctime_ms, node.version)
        return Versioned(found, node.version, node.ctime_ms)

    def shown(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Return a ledger as clients see it. `ledger` returns it as it is.

        Raises the errors of `MetadataStore.read_ledger`.
        """
        node = self.ledgers.get(ledger_id)
        if node is not None and ledger_id in self.unreadable:
            damaged = self.unreadable[ledger_id]
            if damaged is None:
                raise MetadataDeniedError(f"the node of ledger {ledger_id} may not be read")
            found = decode_ledger(ledger_id, damaged, node.ctime_ms, node.version)
            return Versioned(found, node.version, node.ctime_ms)
        return self.ledger(ledger_id)

    def bookies(self) -> Bookies:
        writable: dict[str, BookieAddress] = {}
        readonly: dict[str, BookieAddress] = {}
        for bookie_id, presence in sorted(self.presences.items()):
            address = decode_address(bookie_id, presence.payload)
            if address is not None:
                (readonly if presence.readonly else writable)[bookie_id] = address
        return Bookies(writable, readonly)

    def watches(self) -> Iterator[MemoryLedgerWatch | MemoryBookieWatch]:
        for watches in self.ledger_watches.values():
            yield from watches
        yield from self.bookie_watches

    def ledger_changed(self, ledger_id: int) -> None:
        for watch in list(self.ledger_watches.get(ledger_id, ())):
            watch.notify()

    def ledger_rewritten(self, ledger_id: int) -> None:
        """Give the metadata a new version, as if somebody wrote the same again."""
        self.ledgers[ledger_id].version += 1
        for watch in list(self.ledger_watches.get(ledger_id, ())):
            watch.notify()

    def bookies_changed(self) -> None:
        for watch in list(self.bookie_watches):
            watch.notify()

    def value_shown(self, key: tuple[str, ...], data: bytes | None) -> None:
        """Called when a client reads a value. `data` is None if there is none."""

    def value_changed(
        self, key: tuple[str, ...], before: bytes | None, after: bytes | None
    ) -> None:
        """Called when a client has changed a value. None means that there is none."""

    def tree_changed(self, changes: Iterable[Change]) -> None:
        for change in changes:
            for watch in list(self.tree_watches.get(change, ())):
                watch.notify()


class WatchingSession(Protocol):
    """The session that a watch belongs to."""

    @property
    def alive(self) -> bool: ...

    @property
    def view(self) -> View: ...


class ClusterWatch(WatchHandle):
    """A watch that delivers the state that its session sees in a later event-loop iteration.

    It delivers nothing while its session is lost. `notify` makes it look again.
    """

    def __init__(self, cluster: MemoryCluster, session: WatchingSession) -> None:
        super().__init__(self._forget)
        self._cluster = cluster
        self._session = session
        self._loop = asyncio.get_running_loop()
        # A watcher runs in its own context, not in that of the caller who made the change. In the
        # simulator one may die while the other lives.
        self._context = copy_context()

    def notify(self, *, begins: bool = False) -> None:
        """Look again after a change, or for the first time if the watch `begins`."""
        lag_s = 0.0 if begins else self._session.view.lag_s
        if delay_s := self._cluster.notice_delay_s + (lag_s and lag_s + LEARNT_S):
            self._loop.call_later(delay_s, self._look, context=self._context)
        else:
            self.look_soon()

    def look_soon(self) -> None:
        """Look again, because the session may see something newer than before."""
        self._loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        if not self.closed and self._session.alive and self._ready():
            with self._session.view.shown():
                deliver = self._found()
            if deliver is not None:
                deliver()

    def _ready(self) -> bool:
        return self._cluster.instance_id is not None

    def _found(self) -> Callable[[], None] | None:
        """Return a function that delivers what is new, or None if nothing is."""
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError


class MemoryLedgerWatch(ClusterWatch):
    def __init__(
        self,
        cluster: MemoryCluster,
        session: WatchingSession,
        ledger_id: int,
        changed: Callable[[Versioned[LedgerMetadata] | None], None],
    ) -> None:
        super().__init__(cluster, session)
        self._ledger_id = ledger_id
        self._changed = changed
        self._seen: tuple[object, int] = (None, -1)
        cluster.ledger_watches.setdefault(ledger_id, []).append(self)
        self.notify(begins=True)

    def _found(self) -> Callable[[], None] | None:
        node = self._cluster.ledgers.get(self._ledger_id)
        if node is None:
            return self._gone
        if self._seen == (node.creation, node.version):
            return None
        self._seen = (node.creation, node.version)
        try:
            found = self._cluster.shown(self._ledger_id)
        except (UnreadableMetadataError, MetadataDeniedError) as error:
            logger.warning("a watch waits: %s", error)
            return None  # Wait for the next version.
        return lambda: self._changed(found)

    def _gone(self) -> None:
        if self._session.view.lag_s and self._ledger_id in self._cluster.ledgers:
            # The driver lets the server catch up before it calls a ledger missing.
            self._session.view.caught_up(self._cluster.history.newest)
            return
        self.close()
        self._changed(None)

    def _forget(self) -> None:
        watches = self._cluster.ledger_watches[self._ledger_id]
        watches.remove(self)
        if not watches:
            del self._cluster.ledger_watches[self._ledger_id]


class MemoryBookieWatch(ClusterWatch):
    def __init__(
        self,
        cluster: MemoryCluster,
        session: WatchingSession,
        changed: Callable[[Bookies], None],
        shown: Callable[[Bookies], Bookies],
    ) -> None:
        super().__init__(cluster, session)
        self._changed = changed
        self._shown = shown
        self._seen: Bookies | None = None
        cluster.bookie_watches.append(self)
        self.notify(begins=True)

    def _found(self) -> Callable[[], None] | None:
        bookies = self._cluster.bookies()
        if bookies == self._seen:
            return None
        self._seen = bookies
        return lambda: self._changed(self._shown(bookies))

    def _forget(self) -> None:
        self._cluster.bookie_watches.remove(self)
