"""A cluster of modelled bookies in racks, with real processes of autorecovery on its clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.scale.bookies import (
    PAYLOAD_BYTES,
    SCALE,
    ModelBookie,
    ModelPool,
    ModelProcess,
)
from harness.scale.zookeeper import SimulatedConnection, ZooKeeperModel
from quire.client import Client
from quire.client.client import pool_of
from quire.client.observability.tracing import Tracing
from quire.codec.metadata import layout
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.ledger_path import HIERARCHICAL
from quire.config import ClientConfig, PlacementConfig
from quire.core.placement import Wanted
from quire.metadata.bookies.orders import order_path
from quire.metadata.common import encode_address
from quire.metadata.interface import BookieAddress
from quire.metadata.ledgers.size import encode_new
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire.net.network import AsyncioNetwork
from quire.replication.autorecovery.autorecovery import Autorecovery
from quire.replication.autorecovery.settings import (
    BYTES_PER_S,
    AutorecoverySettings,
    AutorecoveryStats,
)
from quire_simulator.machine import SimClock, SimulatedLoop

URI = "zk://simulated:2181/ledgers"
ROOT = "/ledgers"
INSTANCE = "00000000-0000-0000-0000-000000000001"
SHAPE = (3, 3, 2)
"""Ensemble size, write quorum and ack quorum of all ledgers."""
ENTRIES_MEAN = 4
"""The mean number of entries of a ledger. The distribution is geometric, so sizes differ."""
SESSION_TIMEOUT_S = 10.0
"""The default session time-out of a bookie and of an autorecovery process."""
TICK_S = 2.0
"""The interval in which a ZooKeeper server ends silent sessions: its default tickTime."""
WRITER_NOTICES_S = 0.5
"""Seconds until the writer of an open ledger has replaced a bookie whose connection ended."""
ORDER_POLL_S = 0.2
"""How often a modelled bookie looks for an operator's order, in seconds. It costs no request."""
COPYING_TIMEOUT_S = 60.0
"""Seconds for an answer of a bookie. Entries stand for larger ones, so queues are lumpy."""


@dataclass(slots=True)
class Process:
    """One process of autorecovery, on the machine of a bookie."""

    bookie: ModelBookie
    client: Client
    connection: SimulatedConnection
    model: ModelProcess
    stats: AutorecoveryStats
    task: asyncio.Task[None] | None = None


class Cluster:
    """Bookies, their metadata, and the processes of autorecovery."""

    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        bookies: int,
        ledgers_per_bookie: int,
        rack_bookies: int,
        open_share: float,
    ) -> None:
        self.loop = loop
        self.rng = loop.derive("cluster")
        self.clock = SimClock(loop)
        self.server = ZooKeeperModel()
        self.rack_bookies = rack_bookies
        self.open_share = open_share
        self.ledger_count = bookies * ledgers_per_bookie
        self.bookies: dict[str, ModelBookie] = {}
        self.sessions: dict[str, int] = {}
        self.processes: list[Process] = []
        self.ledgers: dict[int, LedgerMetadata] = {}
        """The metadata of each ledger as its writer wrote it last."""
        self._make_metadata(bookies)

    def _make_metadata(self, count: int) -> None:
        server = self.server
        server.make(f"{ROOT}/LAYOUT", layout.encode(layout.Layout(layout.HIERARCHICAL)))
        server.make(f"{ROOT}/INSTANCEID", INSTANCE.encode())
        server.make(f"{ROOT}/available/readonly")
        server.make(f"{ROOT}/cookies")
        for number in range(count):
            bookie_id = f"bookie-{number:04d}.example:3181"
            self.bookies[bookie_id] = ModelBookie(bookie_id, number // self.rack_bookies)
            self.register(bookie_id)
            server.create(f"{ROOT}/cookies/{bookie_id}", b"4\nbookieHost: " + bookie_id.encode())

    def register(self, bookie_id: str, *, readonly: bool = False) -> None:
        """Register a bookie in a new session, in the writable or in the read-only list."""
        host, _, port = bookie_id.partition(":")
        address = encode_address(BookieAddress(bookie_id, host, int(port)))
        session = self.sessions[bookie_id] = self.server.new_session()
        below = "available/readonly" if readonly else "available"
        self.server.create(f"{ROOT}/{below}/{bookie_id}", address, owner=session)

    @property
    def racks(self) -> dict[str, str]:
        return {one.bookie_id: f"/rack-{one.rack:03d}" for one in self.bookies.values()}

    # -- clients ------------------------------------------------------------------------------

    def client(
        self, name: str, *, lazy: bool = False
    ) -> tuple[Client, SimulatedConnection, ModelProcess]:
        """Return a client with a session of its own. Call it in the node of its process.

        With `lazy`, it reads addresses as the client of an autorecovery process does.
        """
        connection, process = SimulatedConnection(self.server), ModelProcess()
        rng = self.loop.derive(name)
        where = replace(parse_uri(URI))
        store = ZooKeeperStore(where, connection, self.clock, rng)  # type: ignore[arg-type]
        config = ClientConfig(
            placement=PlacementConfig(locations=self.racks),
            read_timeout_s=COPYING_TIMEOUT_S,
            add_timeout_s=COPYING_TIMEOUT_S,
        )
        client = Client(store, config=config, clock=self.clock, rng=rng, lazy_addresses=lazy)
        client._pool._watch.close()
        client._pool.placement.close()
        how = store, AsyncioNetwork(), config, rng, client._tasks, Tracing()
        client._pool = ModelPool(self.bookies, process, *how, lazy=lazy)
        return client, connection, process

    async def start(self, settings: AutorecoverySettings, spread_s: float) -> None:
        """Start autorecovery on the machine of each bookie, one after the other."""
        settings = replace(settings, bytes_per_s=BYTES_PER_S / SCALE)
        for bookie in self.bookies.values():
            node = self.loop.node(f"autorecovery of {bookie.bookie_id}")
            node.create_task(self._begin(bookie, settings))
            await asyncio.sleep(spread_s / len(self.bookies))

    async def _begin(self, bookie: ModelBookie, settings: AutorecoverySettings) -> None:
        client, connection, model = self.client(bookie.bookie_id, lazy=True)
        process = Process(bookie, client, connection, model, AutorecoveryStats())
        self.processes.append(process)
        recovery = Autorecovery(
            client, bookie.bookie_id, settings=settings, clock=self.clock,
            rng=self.loop.derive(f"autorecovery {bookie.bookie_id}"), stats=process.stats,
        )  # fmt: skip
        process.task = asyncio.ensure_future(recovery.run())
        await asyncio.wait([process.task])

    # -- ledgers ------------------------------------------------------------------------------

    async def place(self, client: Client) -> None:
        """Create the metadata of all ledgers with the client's placement, and their entries."""
        manager, pool = HIERARCHICAL, pool_of(client)
        while len(client.placement.view().writable) < len(self.bookies):
            await asyncio.sleep(0.1)
        size, write_quorum, ack_quorum = SHAPE
        wanted = Wanted.new(size, write_quorum, ack_quorum)
        for ledger_id in range(self.ledger_count):
            chosen = pool.pick_now(wanted)
            ensemble = tuple(chosen[index] for index in range(size))
            entries = 1 + int(self.rng.expovariate(1 / (ENTRIES_MEAN - 0.5)))
            for bookie in ensemble:
                self.bookies[bookie].entries[ledger_id] = set(range(entries))
            metadata = LedgerMetadata(
                size, write_quorum, ack_quorum, (Segment(0, ensemble),), ctoken=ledger_id + 1
            )
            if self.rng.random() >= self.open_share:
                metadata = metadata.with_close(entries - 1, entries * PAYLOAD_BYTES)
            self.ledgers[ledger_id] = metadata
            self.server.make(f"{ROOT}/{manager.path_of(ledger_id)}", encode_new(metadata))

    def lose_rack(self, rack: int) -> list[ModelBookie]:
        """Lose all bookies of a rack with their disks, and the processes on their machines.

        Their sessions end when ZooKeeper has not heard of them for the session time-out. Writers
        of open ledgers replace the bookies as soon as their connections end.
        """
        lost = [one for one in self.bookies.values() if one.rack == rack]
        for bookie in lost:
            bookie.die()
        names = {one.bookie_id for one in lost}
        for process in self.processes:
            if process.bookie.bookie_id in names:
                self._silence(process.connection.session_id)
                process.connection.connected = False
                self.loop.node(f"autorecovery of {process.bookie.bookie_id}").kill()
        for name in names:
            self._silence(self.sessions[name])
        self.processes = [one for one in self.processes if one.bookie.alive]
        return lost

    def _silence(self, session: int) -> None:
        now_s = self.loop.time()
        heard_s = now_s - self.rng.uniform(0, SESSION_TIMEOUT_S / 3)
        ends_s = -(-(heard_s + SESSION_TIMEOUT_S) // TICK_S) * TICK_S
        self.loop.call_at(ends_s, self.server.expire, session)

    async def replace_in_open_ledgers(self, client: Client, lost: Sequence[ModelBookie]) -> int:
        """Do what the writers of open ledgers do: replace the lost bookies from the next entry on.

        Returns the number of ledgers.
        """
        await asyncio.sleep(WRITER_NOTICES_S)
        gone, pool = {one.bookie_id for one in lost}, pool_of(client)
        count = 0
        for ledger_id, metadata in self.ledgers.items():
            ensemble = metadata.last_segment.ensemble
            holes = {i: b for i, b in enumerate(ensemble) if b in gone}
            if metadata.closed or not holes:
                continue
            stored = await client.metadata.read_ledger(ledger_id)
            entries = max(len(self.bookies[b].entries.get(ledger_id, ())) for b in ensemble)
            wanted = Wanted.replacing(ensemble, holes, *SHAPE[1:], frozenset(gone))
            chosen = pool.pick_now(wanted)
            changed = tuple(chosen.get(i, b) for i, b in enumerate(ensemble))
            # A segment without entries is replaced: nothing was added since it began.
            before = [one for one in stored.value.segments if one.first_entry_id < entries]
            now = replace(stored.value, segments=(*before, Segment(entries, changed)))
            await client.metadata.write_ledger(ledger_id, now, stored.version, stored)
            self.ledgers[ledger_id] = now
            count += 1
        return count

    async def obey(self, bookie_id: str, writer: Client) -> None:
        """Do what a bookie does that is decommissioned: become read-only, and end.

        The writer of the open ledgers replaces it when it is read-only.
        """
        order = order_path(URI, bookie_id)
        while order not in self.server.nodes:
            await asyncio.sleep(ORDER_POLL_S)
        self.server.expire(self.sessions[bookie_id])
        self.register(bookie_id, readonly=True)
        await self.replace_in_open_ledgers(writer, [self.bookies[bookie_id]])
        while f"{ROOT}/cookies/{bookie_id}" in self.server.nodes:
            await asyncio.sleep(ORDER_POLL_S)
        self.server.expire(self.sessions[bookie_id])

    # -- what is asked of it ------------------------------------------------------------------

    @property
    def marks(self) -> int:
        """The number of ledgers that are marked as under-replicated now."""
        return sum(
            "/urL" in path for path in self.server.nodes if "/underreplication/ledgers/" in path
        )

    def named(self, names: set[str]) -> int:
        """Return the number of ledgers whose metadata names one of these bookies."""
        wanted = [name.encode() for name in names]
        return sum(
            any(name in node.value for name in wanted)
            for path, node in self.server.nodes.items()
            if path.startswith(f"{ROOT}/00") or "/L" in path
        )

    @property
    def auditor(self) -> Process | None:
        found = [one for one in self.processes if one.stats.elections_won]
        return found[0] if found else None


def seeded(seed: int, steps_max: int) -> SimulatedLoop:
    """Return the simulator's loop for one run."""
    random.seed(seed)
    return SimulatedLoop(seed, max_steps=steps_max)
