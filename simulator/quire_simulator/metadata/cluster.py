"""The state that all stores of an in-memory cluster share, and the watches of its changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from dataclasses import dataclass

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
from quire_simulator.metadata.nodes import Change, Nodes


@dataclass(slots=True)
class StoredItem:
    """The bytes of a ledger, cookie or value, with their version."""

    data: bytes
    version: int = 0
    ctime_ms: int = -1


@dataclass(slots=True)
class MemoryPresence:
    """A registered bookie."""

    owner: object
    """The session that holds the registration."""
    payload: bytes
    readonly: bool


class MemoryCluster:
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


class ClusterWatch(WatchHandle):
    """A watch that delivers the current state in a later event-loop iteration.

    It delivers nothing while its session is lost. `notify` makes it look again.
    """

    def __init__(self, cluster: MemoryCluster, alive: Callable[[], bool]) -> None:
        super().__init__(self._forget)
        self._cluster = cluster
        self._alive = alive
        self._loop = asyncio.get_running_loop()
        # A watcher runs in its own context, not in that of the caller who made the change. In the
        # simulator one may die while the other lives.
        self._context = copy_context()

    def notify(self) -> None:
        if delay_s := self._cluster.notice_delay_s:
            self._loop.call_later(delay_s, self._look, context=self._context)
        else:
            self._loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        if not self.closed and self._alive() and self._ready():
            self._deliver()

    def _ready(self) -> bool:
        return self._cluster.instance_id is not None

    def _deliver(self) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError


class MemoryLedgerWatch(ClusterWatch):
    def __init__(
        self,
        cluster: MemoryCluster,
        alive: Callable[[], bool],
        ledger_id: int,
        changed: Callable[[Versioned[LedgerMetadata] | None], None],
    ) -> None:
        super().__init__(cluster, alive)
        self._ledger_id = ledger_id
        self._changed = changed
        self._seen: tuple[StoredItem | None, int] = (None, -1)
        cluster.ledger_watches.setdefault(ledger_id, []).append(self)
        self.notify()

    def _deliver(self) -> None:
        node = self._cluster.ledgers.get(self._ledger_id)
        if node is None:
            self.close()
            self._changed(None)
        elif self._seen[0] is not node or node.version > self._seen[1]:
            self._seen = (node, node.version)
            try:
                found = self._cluster.shown(self._ledger_id)
            except (UnreadableMetadataError, MetadataDeniedError) as error:
                logger.warning("a watch waits: %s", error)
                return  # Wait for the next version.
            self._changed(found)

    def _forget(self) -> None:
        watches = self._cluster.ledger_watches[self._ledger_id]
        watches.remove(self)
        if not watches:
            del self._cluster.ledger_watches[self._ledger_id]


class MemoryBookieWatch(ClusterWatch):
    def __init__(
        self,
        cluster: MemoryCluster,
        alive: Callable[[], bool],
        changed: Callable[[Bookies], None],
        shown: Callable[[Bookies], Bookies],
    ) -> None:
        super().__init__(cluster, alive)
        self._changed = changed
        self._shown = shown
        self._seen: Bookies | None = None
        cluster.bookie_watches.append(self)
        self.notify()

    def _deliver(self) -> None:
        bookies = self._cluster.bookies()
        if bookies != self._seen:
            self._seen = bookies
            self._changed(self._shown(bookies))

    def _forget(self) -> None:
        self._cluster.bookie_watches.remove(self)
