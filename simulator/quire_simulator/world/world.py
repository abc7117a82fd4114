"""A cluster on a simulated loop: real bookies and clients, each on its own node."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from quire.bookie.server import Address, Bookie
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.config import BookieConfig, ClientConfig, PlacementConfig
from quire.errors import ClientClosedError, MetadataUnavailableError
from quire.metadata.interface import Versioned
from quire.storage.directories import DataDirectory
from quire.storage.store import StoreEvents
from quire_simulator.faults.bit_rot import BitRot
from quire_simulator.faults.disorder import Disorder
from quire_simulator.faults.index_caches import IndexCaches
from quire_simulator.faults.slow_starts import SlowStarts
from quire_simulator.faults.unreadable import UnreadableItems
from quire_simulator.invariants.claims import Claims
from quire_simulator.machine.clock import SimClock
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.loop import (
    Node,
    SimTask,
    SimulatedLoop,
    SimulationError,
    describe,
)
from quire_simulator.machine.network import SimHost, SimNetwork
from quire_simulator.machine.trace import Trace
from quire_simulator.machine.worker import SimWorker
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.lag import Lags, View
from quire_simulator.metadata.nodes import Change
from quire_simulator.metadata.store import Hook, MemoryStore
from quire_simulator.plans.faults import Fault

T = TypeVar("T")

PORT = 3181
BOOKIE_CONFIG = BookieConfig(
    segment_bytes=1 << 20,
    min_free_bytes=0,
    max_queued_bytes=1 << 20,
    seal_idle_s=0.05,
    compact_minor_ratio=0.0,
    compact_major_ratio=0.0,
)
CLIENT_CONFIG = ClientConfig(add_timeout_s=1.0, read_timeout_s=1.0)
UNEVEN_S = (0.000_2, 0.4)
STALL_S = 1.5
"""The longest time that a call of the metadata store waits for a connection that was lost."""
NOWHERE = "nowhere"
"""A host that does not exist."""
NODE_POLL_S = 0.05
"""The interval at which a caller that waits for a node checks whether it is alive."""


def bookie_id(name: str) -> str:
    """Return the id by which ledgers name the bookie on this node."""
    return f"{name}:{PORT}"


def _owner(session: str) -> str:
    """Return the client or the bookie of a session. The name of a bookie's has a number, too."""
    return session.partition(" ")[0]


async def _nothing(name: str, bookie: Bookie) -> None:
    pass


async def _no_fault(fault: Fault) -> None:
    pass


class ObservedCluster(MemoryCluster):
    """A cluster that calls observers when a ledger, a value or the tree changes or is read."""

    observer: Callable[[int], None] = staticmethod(lambda ledger_id: None)
    read_observer: Callable[[int, LedgerMetadata], None] = staticmethod(lambda ledger_id, now: None)
    """Called with each ledger that is read. `World.metadata_caller` names the calling client or
    bookie.
    """
    rewrite_observer: Callable[[int], None] = staticmethod(lambda ledger_id: None)
    """Called when the metadata of a ledger was written again without a change."""
    tree_observer: Callable[[Iterable[Change]], None] = staticmethod(lambda changes: None)
    shown_observer: Callable[[int, Versioned[LedgerMetadata]], None] = staticmethod(
        lambda ledger_id, found: None
    )
    """Called with each ledger that a client or a bookie reads, as the caller receives it."""
    value_shown_observer: Callable[[tuple[str, ...], bytes | None], None] = staticmethod(
        lambda key, data: None
    )
    """Called with each value that a client reads."""
    value_observer: Callable[[tuple[str, ...], bytes | None, bytes | None], None] = staticmethod(
        lambda key, before, after: None
    )
    """Called with the former and the present bytes of a value that a client has changed."""

    def ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        found = super().ledger(ledger_id)
        self.read_observer(ledger_id, found.value)
        return found

    def shown(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        found = super().shown(ledger_id)
        self.shown_observer(ledger_id, found)
        return found

    def ledger_changed(self, ledger_id: int) -> None:
        super().ledger_changed(ledger_id)
        self.observer(ledger_id)

    def ledger_rewritten(self, ledger_id: int) -> None:
        super().ledger_rewritten(ledger_id)
        self.rewrite_observer(ledger_id)

    def value_shown(self, key: tuple[str, ...], data: bytes | None) -> None:
        self.value_shown_observer(key, data)

    def value_changed(
        self, key: tuple[str, ...], before: bytes | None, after: bytes | None
    ) -> None:
        self.value_observer(key, before, after)

    def tree_changed(self, changes: Iterable[Change]) -> None:
        super().tree_changed(changes)
        self.tree_observer(changes)


@dataclass
class World:
    """The simulated cluster of a scenario. Bookies are named `bookie-0` etc. and use port 3181."""

    loop: SimulatedLoop
    network: SimNetwork
    trace: Trace
    cluster: ObservedCluster
    unreadable: UnreadableItems
    disks: dict[str, SimDisk]
    clocks: dict[str, SimClock]
    bookies: dict[str, Bookie] = field(default_factory=dict)
    """Bookies that are starting, run or are stopping."""
    more_disks: dict[str, list[SimDisk]] = field(default_factory=dict)
    """The additional disks of bookies with several data directories."""
    metadata_failures: float = 0.0
    """The probability that a request to the metadata store is lost before its effect, and the
    probability that an answer is lost after it.
    """
    metadata_delay_s: float = 0.0
    """The longest delay of a request to the metadata store, and of its answer."""
    slow_metadata_s: dict[str, float] = field(default_factory=dict)
    """The longest delay of a request to the metadata store, and of its answer, for single
    clients.
    """
    metadata_stalls: dict[str, float] = field(default_factory=dict)
    """The probability that a call of the metadata store by a single client waits for up to
    `STALL_S`. Its answer is lost with half of this probability, unless `metadata_failures` is set.
    """
    metadata_away: bool = False
    """Whether an older copy is in place of the metadata store. Clients cannot reach it then."""
    skew_ms: int = 0
    """The largest error of the calendars of clients in milliseconds."""
    ledger_ids: dict[int, int] = field(default_factory=dict)
    """The ids of the created ledgers, by their number in the plan."""
    stream_ledgers: dict[int, int] = field(default_factory=dict)
    """The newest ledger of each stream, by its number in the plan."""
    destroyed: set[str] = field(default_factory=set)
    """Bookies whose disks were damaged. Their copies do not count."""
    metadata_caller: str = ""
    """The client or bookie whose call the metadata store is executing."""
    lies: dict[str, float] = field(default_factory=dict)
    """The lies that the Byzantine bookie tells now, with their probabilities (`byzantine`)."""
    racks: dict[str, str] = field(default_factory=dict)
    """The rack of each bookie by its id, or empty if racks are not used."""
    placement: Callable[[dict[str, str]], PlacementConfig] = lambda racks: PlacementConfig()
    """Returns the placement configuration that clients receive."""
    clients: list[Client] = field(default_factory=list)
    """Clients that learn when bookies change racks."""
    client_made: Callable[[str, Client], None] = lambda name, client: None
    """Called with each new client and its name."""
    relocated: Callable[[], None] = lambda: None
    """Called when a bookie was moved to another rack."""
    recreate: Callable[[Fault], Awaitable[None]] = _no_fault
    """Deletes a ledger and creates another one with its id (`invariants.recreated`)."""
    rack_lost: Callable[[str], None] = lambda rack: None
    """Called before all bookies of a rack lose power."""
    bit_rot: dict[str, list[BitRot]] = field(default_factory=dict)
    """The bits that flipped on each bookie, oldest first."""
    later: set[str] = field(default_factory=set)
    """Bookies that do not take part yet, and must not start."""
    wiped: set[str] = field(default_factory=set)
    """Bookies whose disks were wiped and which must not start."""
    formatted: set[str] = field(default_factory=set)
    """Bookies that have had a cookie."""
    lossy: set[str] = field(default_factory=set)
    """Bookies that have lost a data directory for good.

    They have other directories or an empty one in its place, and may report lost data.
    """
    partly_lost: set[str] = field(default_factory=set)
    """Bookies that count as lossy, and whose disk has some of what counts as lost."""
    tampered: set[str] = field(default_factory=set)
    """Bookies of which a file of the log was lost, exchanged or restored."""
    pretending: set[str] = field(default_factory=set)
    """Bookies whose answers a walkthrough has changed."""
    hostile_connections: int = 0
    """The number of connections that hostile clients have made."""
    moments_come: Counter[str] = field(default_factory=Counter)
    """The number of disks that filled at each kind of moment."""
    log_files_struck: Counter[str] = field(default_factory=Counter)
    """The number of faults of each kind that changed a file of a log."""
    outdated: set[str] = field(default_factory=set)
    """Bookies with a replaced disk in place of its replacement, which must not start."""
    addresses: dict[str, str] = field(default_factory=dict)
    """The addresses of bookies that have moved. The others have the names of their nodes."""
    disorder: Disorder | None = None
    """The answers that bookies hold back, if any bookie has ever done so."""
    flipped: bool = False
    """Whether the network has changed bytes."""
    uneven: bool = False
    """Whether each route between a client and a bookie has its own delay."""
    starts: int = 0
    completed_starts: Counter[str] = field(default_factory=Counter)
    """The number of times that each bookie has started to serve."""
    claims: Claims = field(default_factory=Claims)
    index_caches: IndexCaches = field(default_factory=IndexCaches)
    slow_starts: SlowStarts = field(default_factory=SlowStarts)
    sessions: dict[str, MemoryStore] = field(default_factory=dict)
    """The sessions of clients that own ephemeral nodes, which end when the client dies."""
    started: Callable[[str, Bookie], Awaitable[None]] = _nothing
    """Awaited on the bookie's node when a bookie has started."""
    _starting: dict[str, SimTask[None]] = field(default_factory=dict)
    store_calls: Counter[str] = field(default_factory=Counter)
    """The number of calls of the metadata store by each client and each life of a bookie."""
    ledger_writes: Counter[str] = field(default_factory=Counter)
    """The number of those calls that change the metadata of a ledger."""
    called: Callable[[str, int], None] = lambda name, count: None
    """Called before each call of the store, with the number of calls in the current second."""
    _store_calls_now: Counter[str] = field(default_factory=Counter)
    _store_calls_since_s: dict[str, float] = field(default_factory=dict)
    _client_stores: dict[str, MemoryStore] = field(default_factory=dict)
    _stores: list[tuple[str, MemoryStore]] = field(default_factory=list)
    _lags: Lags | None = None

    @classmethod
    def make(cls, seed: int, bookies: int = 3, directories: int = 1, **limits: float) -> World:
        """Create a world in which each bookie has this number of data directories.

        `limits` are those of `SimulatedLoop`.
        """
        loop = SimulatedLoop(seed, **limits)  # type: ignore[arg-type]
        trace = Trace(loop.time)
        network = SimNetwork(loop, loop.derive("network"), trace=trace)
        cluster = ObservedCluster("sim", clock=SimClock(loop), rng=loop.derive("metadata"))
        cluster.initialise()
        names = [f"bookie-{number}" for number in range(bookies)]
        disks = {name: SimDisk(loop.derive(f"disk {name}"), name) for name in names}
        clocks = {name: SimClock(loop) for name in names}
        unreadable = UnreadableItems(cluster, trace.record)
        world = cls(loop, network, trace, cluster, unreadable, disks, clocks)
        for name in names if directories > 1 else ():
            more = [f"{name}.{number}" for number in range(1, directories)]
            world.more_disks[name] = [SimDisk(loop.derive(f"disk {one}"), one) for one in more]
        return world

    # -- bookies ------------------------------------------------------------------------------

    async def start(self, name: str, config: BookieConfig = BOOKIE_CONFIG) -> bool:
        """Start a bookie that does not run, and return False if it died meanwhile.

        If `Bookie.start` raises, the bookie is dead, and the error is raised here.
        """
        assert name not in self.bookies, f"{name} runs already"
        host = self.network.node(name)
        self._starting[name] = task = host.node.create_task(self._serve(name, host, config))
        try:
            return await self.until_dead(host.node, task)
        except BaseException:
            self.kill(name)
            raise
        finally:
            if self._starting.get(name) is task:  # A later start may have replaced this one.
                del self._starting[name]

    async def _serve(self, name: str, host: SimHost, config: BookieConfig) -> None:
        disk, self.starts = self.disks[name], self.starts + 1
        life = f"{name} {self.starts}"
        more = []
        for other in self.more_disks.get(name, ()):
            it = f"{other.path} {self.starts}"
            log = SimWorker(self.loop, self.loop.derive(f"log {it}"), other)
            keeper = SimWorker(self.loop, self.loop.derive(f"keeper {it}"), other)
            reads = self.slow_starts.reads(self.loop, self.loop.derive(f"reader {it}"))
            more.append(DataDirectory(other, log, keeper, reads))
        bookie = Bookie(
            disk=disk,
            log_worker=SimWorker(self.loop, self.loop.derive(f"log {life}"), disk),
            maintenance_worker=SimWorker(self.loop, self.loop.derive(f"keeper {life}"), disk),
            metadata=self.metadata_store(life),
            network=host,
            clock=self.clocks[name],
            address=Address(name, PORT, self.addresses.get(name, name)),
            config=config,
            log=lambda event, **fields: self.trace.record(name, event, **fields),
            random_bytes=self.loop.derive(f"identity {life}").randbytes,
            reader=self.slow_starts.reader(
                self.loop, self.loop.derive(f"reader {life}"), self.disks_of(name)
            ),
            more_directories=more,
        )
        self.bookies[name] = bookie
        self.claims.watch(bookie_id(name), bookie.store)
        await bookie.start()
        # Like the program, end a bookie that cannot continue.
        bookie.failed.add_done_callback(lambda failed: self._gave_up(name, bookie))
        self.formatted.add(name)
        self.completed_starts[name] += 1
        await self.started(name, bookie)

    def move(self, name: str, *, silently: bool) -> None:
        """Give a bookie that is down another address, or its first one if it has moved before.

        Its former address refuses connections, or with `silently` nothing answers there.
        """
        addresses, former = self.network.addresses, self.addresses.get(name, name)
        addresses[former] = None if silently else NOWHERE
        self.addresses[name] = now = name if former != name else f"{name} elsewhere"
        addresses[now] = name
        self.trace.record(name, "moved", address=now, silently=silently)

    def retired(self, name: str) -> bool:
        """Return whether the bookie was decommissioned and must not start again."""
        return name in self.formatted and bookie_id(name) not in self.cluster.cookies

    def _gave_up(self, name: str, bookie: Bookie) -> None:
        if self.bookies.get(name) is bookie and not bookie.failed.cancelled():
            self.trace.record(name, "gave up")
            self.kill(name)

    async def stop(self, name: str) -> bool:
        """Stop a bookie as SIGTERM does. Return False if it died meanwhile."""
        host, bookie = self.network.node(name), self.bookies[name]
        stopped = await self.until_dead(host.node, host.node.create_task(bookie.stop()))
        if stopped and self.bookies.get(name) is bookie:
            self.claims.ends(bookie_id(name), bookie.store)
            await bookie.metadata.close()
            del self.bookies[name]
            self._end(name)
        return stopped

    def stop_start(self, name: str) -> None:
        """Stop a bookie that is starting. Its `start` raises `CancelledError`."""
        self.trace.record(name, "stop while it starts")
        self._starting[name].cancel()

    def starts_now(self, name: str) -> bool:
        """Return whether the bookie is starting and already among `bookies`."""
        return name in self._starting and name in self.bookies

    def kill(self, name: str, *, session_left_s: float = 0.0) -> None:
        """End only the process: what it wrote stays in the page cache.

        Its metadata session lives for `session_left_s`.
        """
        self.trace.record(name, "kill")
        self._leave(name, session_left_s)
        self._end(name)

    def crash(self, name: str, *, session_left_s: float = 0.0) -> None:
        """Lose power: the process ends, and what was not synced may be lost."""
        self.trace.record(name, "crash")
        self._leave(name, session_left_s)
        self.network.kill(name)
        for disk in self.disks_of(name):
            disk.crash()

    def crash_in_write(self, name: str, operations: int, struck: SimDisk | None = None) -> None:
        """Lose power in place of the n-th future operation that changes the disk `struck`.

        If `struck` is None, one of the bookie's disks is chosen.
        """

        def then() -> None:
            self.trace.record(name, "crash in write")
            self._leave(name, 0.0)
            self.network.kill(name)
            for disk in disks:
                if disk is not struck:
                    disk.crash()

        disks = self.disks_of(name)
        struck = struck or disks[operations % len(disks)]
        struck.crash_after(operations, then)

    def _end(self, name: str) -> None:
        self.network.kill(name)
        for disk in self.disks_of(name):
            disk.kill()

    def disks_of(self, name: str) -> list[SimDisk]:
        """Return the disks of all data directories."""
        return [self.disks[name], *self.more_disks.get(name, ())]

    def exchange(self, name: str, one: SimDisk, other: SimDisk) -> None:
        """Replace one disk of a stopped bookie by another."""
        if self.disks[name] is one:
            self.disks[name] = other
        else:
            more = self.more_disks[name]
            more[more.index(one)] = other

    def add_disk(self, name: str, disk: SimDisk) -> None:
        """Add a disk to a stopped bookie."""
        self.more_disks.setdefault(name, []).append(disk)

    def drop_disk(self, name: str, disk: SimDisk) -> None:
        """Remove this disk from a stopped bookie that has others."""
        disks = [one for one in self.disks_of(name) if one is not disk]
        self.disks[name], self.more_disks[name] = disks[0], disks[1:]

    def put_back_index(
        self, disk: SimDisk, chance: random.Random, *, foreign: bool = False
    ) -> None:
        """Restore an earlier index cache of a stopped bookie, or one of another directory.

        If the disk has no space for it, the disk has no index cache afterwards.
        """
        try:
            self.index_caches.put_back(disk, chance, foreign=foreign)
        except OSError as error:
            self.trace.record("nemesis", "no index put back", disk=disk.path, error=str(error))

    def misses_a_directory(self, name: str) -> bool:
        """Return whether this bookie runs without one of its data directories."""
        bookie = self.bookies.get(name)
        if bookie is None or not bookie.recovered:
            return False
        return any(one.state == "failed" for one in bookie.store.directories())

    def _leave(self, name: str, session_left_s: float) -> None:
        bookie = self.bookies.pop(name, None)
        if bookie is None:
            return
        if bookie.recovered:
            self.claims.ends(bookie_id(name), bookie.store)
        store = bookie.metadata
        assert isinstance(store, MemoryStore)
        if session_left_s:
            expire = self._expire_for_good
            self.loop.call_later(
                session_left_s, expire, store, context=self.loop.main.context.copy()
            )
        else:
            self._expire_for_good(store)

    @staticmethod
    def _expire_for_good(store: MemoryStore) -> None:
        store.expire_session(back=False)

    def expire_session(self, name: str) -> None:
        """End the session of a running bookie, which then begins another."""
        store = self.bookies[name].metadata
        assert isinstance(store, MemoryStore)
        self.trace.record(name, "session expired")
        store.expire_session()

    def end_session_of(self, client: str, session_left_s: float) -> None:
        """End the session of a client that has died."""
        if (store := self.sessions.pop(client, None)) is not None:
            expire = self._expire_for_good
            self.loop.call_later(
                session_left_s, expire, store, context=self.loop.main.context.copy()
            )

    async def within(self, bookie: Bookie, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a bookie's own code on its node. Return the result, or None if the bookie died.

        No other node may await such code. It may wait for a lock that another task of the bookie
        holds, or for an answer of its worker, and nothing of a dead node runs again.
        `nobody_is_inside` checks this.
        """
        name = next((one for one, here in self.bookies.items() if here is bookie), None)
        if name is None:
            work.close()
            return None
        node = self.network.node(name).node
        task = node.create_task(work)
        return task.result() if await self.until_dead(node, task) else None

    def nobody_is_inside(self) -> None:
        """End the run with an error if a task of the main node awaits a bookie's own code."""
        for task in self.loop.tasks_inside(self.loop.main, (Bookie, StoreEvents)):
            what = f"{describe(task)} awaits the code of a bookie, which may die: use World.within"
            error = SimulationError(what)
            self.loop.call_exception_handler({"message": "a wait without end", "exception": error})

    async def until_dead(self, node: Node, task: SimTask[Any]) -> bool:
        """Return whether the node lived until its task was done. Errors of the task are raised."""
        while not task.done() and not node.dead:
            await asyncio.wait([task], timeout=NODE_POLL_S)
        if node.dead:
            return False
        task.result()
        return True

    # -- clients ------------------------------------------------------------------------------

    def client(
        self, name: str, config: ClientConfig = CLIENT_CONFIG, *, lazy_addresses: bool = False
    ) -> Client:
        """Return a client for the node of that name.

        Use it on that node if it is to be paused or killed with it. With `lazy_addresses`, it reads
        addresses as the client of an autorecovery process does.
        """
        if self.uneven:
            self._lay_routes(name)
        if self.racks:
            config = replace(config, placement=self.placement(self.racks))
        client = Client(
            self.metadata_store(name),
            config=config,
            network=self.network.node(name),
            clock=self.clock_of(name),
            rng=self.loop.derive(name),
            lazy_addresses=lazy_addresses,
        )
        if self.racks:
            self.clients.append(client)
        self.client_made(name, client)
        return client

    def relocate(self, amount: float) -> None:
        """Move a bookie to another rack, and let every client know. No rack becomes empty."""
        stand = list(self.racks.values())
        movable = [bookie for bookie, rack in self.racks.items() if stand.count(rack) > 1]
        if not movable or len(set(stand)) < 2:
            return
        bookie = movable[int(amount * len(movable))]
        others = sorted(set(stand) - {self.racks[bookie]})
        rack = others[int(amount * 1_000) % len(others)]
        self.racks = {**self.racks, bookie: rack}
        self.trace.record("nemesis", "relocated", bookie=bookie, rack=rack)
        self.relocated()
        for client in self.clients:
            try:
                client.placement.relocate(self.racks)
            except ClientClosedError:
                pass

    def _lay_routes(self, name: str) -> None:
        chance, (low, high) = self.loop.derive(f"routes {name}"), UNEVEN_S
        for bookie in self.disks:
            for route in ((name, bookie), (bookie, name)):
                slow_s = low * (high / low) ** chance.random()
                self.network.route_latency_s[route] = (slow_s / 2, slow_s)

    def clock_of(self, name: str) -> SimClock:
        """Return the clock of a client, whose calendar is wrong by the same amount each time."""
        skew = self.loop.derive(f"clock {name}").uniform(-1, 1) * self.skew_ms
        return SimClock(self.loop, skew_ms=int(skew))

    def metadata_store(self, name: str) -> MemoryStore:
        """Return a store with the delays and failures of this client's connection."""
        store = MemoryStore(self.cluster, hook=self._hook(name))
        self._stores.append((_owner(name), store))
        if lag_s := self.lags.of(_owner(name)):
            store.view.lag(lag_s, begins=True)
        if not name.startswith("bookie-"):
            self._client_stores[name] = store
        return store

    @property
    def lags(self) -> Lags:
        """The lags of the servers to which clients and bookies are connected."""
        if self._lags is None:
            self._lags = Lags(self.cluster.history, self._views, self.loop.derive)
        return self._lags

    def _views(self) -> Iterator[tuple[str, View]]:
        self._stores = [(owner, store) for owner, store in self._stores if not store.closed]
        for owner, store in self._stores:
            yield owner, store.view

    def _count_call(self, name: str, operation: str) -> None:
        """Count a call of the metadata store, in all and within one simulated second."""
        self.store_calls[name] += 1
        self.ledger_writes[name] += operation == "write_ledger"
        now_s, since_s = self.loop.time(), self._store_calls_since_s.get(name, -1.0)
        if now_s - since_s >= 1.0:
            self._store_calls_since_s[name], self._store_calls_now[name] = now_s, 0
        self._store_calls_now[name] += 1
        self.called(name, self._store_calls_now[name])

    def client_stores(self) -> list[MemoryStore]:
        """Return the newest session of each client, dead or alive."""
        return list(self._client_stores.values())

    def lose_session(self, client: str) -> Callable[[], None]:
        """End the session of a client. Return a function that begins another one."""
        store = self._client_stores.get(client)
        if store is None:
            return lambda: None
        self.trace.record(client, "session expired")
        store.expire_session(back=False)
        return store.restore_session

    def _hook(self, name: str) -> Hook:
        chance = self.loop.derive(f"metadata {name}")

        is_client = not name.startswith("bookie-")

        async def hook(operation: str, done: bool) -> None:
            if self.metadata_away and is_client:
                raise MetadataUnavailableError(f"{operation} was not answered")
            stalls = self.metadata_stalls.get(name, 0.0)
            if not done:
                self._count_call(name, operation)
                limit_s = self.slow_metadata_s.get(name, self.metadata_delay_s)
                await asyncio.sleep(chance.random() * limit_s)
                if stalls and chance.random() < stalls:
                    await asyncio.sleep(chance.random() * STALL_S)
            lost = self.metadata_failures or (stalls / 2 if done else 0.0)
            if lost and chance.random() < lost:
                what = "answer" if done else "request"
                self.trace.record(name, "metadata lost", operation=operation, what=what)
                raise MetadataUnavailableError(f"the {what} of {operation} was lost")
            self.metadata_caller = name
            if done and (limit_s := self.slow_metadata_s.get(name, self.metadata_delay_s)):
                await asyncio.sleep(chance.random() * limit_s)

        return hook
