"""A bookie that only the clients of a walkthrough use, on a disk and in a cluster of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from quire.bookie.metrics import bookie_metrics
from quire.bookie.server import Address, Bookie
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.config import BookieConfig
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.faults.slow_starts import SlowReader, SlowReads
from quire_simulator.machine.clock import SimClock
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.network import SimHost
from quire_simulator.machine.stepped_thread import SteppedThread
from quire_simulator.machine.worker import SimWorker
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore

T = TypeVar("T")

PORT = 3181
METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("another:3181",)),))
LOADING_POLL_S = 0.05
ROOM_BYTES = 64 << 20
"""A limit of memory that no walkthrough reaches, whatever was drawn as knobs."""
GC_INTERVAL_S = 1_000.0
"""An interval of garbage collection that is longer than any walkthrough."""


class DrivenBookie:
    """A bookie that is started and stopped again and again on one disk."""

    def __init__(self, walk: Walk, config: BookieConfig, *, cold: float) -> None:
        """Create a bookie. `cold` is the probability that a read has to wait for the disk."""
        loop = walk.stage.world.loop
        self.walk = walk
        self.name = f"{walk.name}-bookie"
        self.config = config
        self.disk = SimDisk(
            loop.derive("disk of a raw bookie"), self.name, cold_read_probability=cold
        )
        self.events: list[tuple[str, dict[str, object]]] = []
        """What the bookie has logged since its last start."""
        self._cold = cold
        self._cluster = MemoryCluster(
            "raw", clock=SimClock(loop), rng=loop.derive("cluster of a raw bookie")
        )
        self._cluster.initialise()
        self._store = MemoryStore(self._cluster)
        """The session of the present life."""
        self._lives = 0
        self._host: SimHost
        self._threads: list[SteppedThread[Any]] = []
        self.bookie: Bookie

    # -- life ---------------------------------------------------------------------------------

    def make(self, *, slowly: bool = False) -> Coroutine[Any, Any, None]:
        """Create the bookie of the next life, and return the coroutine that starts it.

        With `slowly`, loading the log takes some time.
        """
        world, name = self.walk.stage.world, self.name
        loop = world.loop
        self._lives += 1
        self._store = MemoryStore(self._cluster)
        self._host = host = world.network.node(name)
        life = f"{name} {self._lives}"
        reader: SlowReads | None = SlowReads(loop, loop.derive(f"reader {life}"))
        if slowly:
            reader = SlowReader(loop, loop.derive(f"reader {life}"), [self.disk], self._threads)
        elif not self._cold:
            reader = None
        self.events = events = []

        def log(event: str, **fields: Any) -> None:
            events.append((event, fields))
            world.trace.record(name, event, **fields)

        async def start() -> None:
            self.bookie = Bookie(
                disk=self.disk,
                log_worker=SimWorker(loop, loop.derive(f"log {life}"), self.disk),
                maintenance_worker=SimWorker(loop, loop.derive(f"keeper {life}"), self.disk),
                metadata=self._store,
                network=host,
                clock=SimClock(loop),
                address=Address(name, PORT, name),
                config=self.config,
                log=log,
                random_bytes=loop.derive(f"identity {life}").randbytes,
                reader=reader,
            )
            await self.bookie.start()

        return start()

    async def start(self) -> None:
        await self.inside(self.make())

    async def load(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Start slowly, and call `meanwhile` if the bookie begins to serve while it loads."""
        world = self.walk.stage.world
        work = self.make(slowly=True)
        node = world.network.node(self.name).node
        task = node.create_task(work)
        while not task.done() and not any(one == "serving_early" for one, _ in self.events):
            await asyncio.sleep(LOADING_POLL_S)
        if not task.done():
            await meanwhile()
        await world.until_dead(node, task)
        self.disk.before_access = None

    async def inside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run code of the bookie on its node, and return the result."""
        node = self.walk.stage.world.network.node(self.name).node
        task = node.create_task(work)
        lived = await self.walk.stage.world.until_dead(node, task)
        assert lived, "nothing but `kill` ends the node of this bookie"
        return task.result()

    async def stop(self) -> None:
        await self.inside(self.bookie.stop())
        await self._store.close()
        self._end()

    def kill(self) -> None:
        """End the process. What it wrote stays in the page cache."""
        self._store.expire_session(back=False)
        self._end()

    def _end(self) -> None:
        self.walk.stage.world.network.kill(self.name)
        self.disk.kill()

    # -- changes ------------------------------------------------------------------------------

    async def know(self, ledger_id: int) -> None:
        """Put metadata of a ledger into the cluster, so that the bookie keeps the ledger."""
        if ledger_id not in self._cluster.ledgers:
            await self._store.create_ledger(METADATA, ledger_id)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, and let the bookie collect the garbage."""
        del self._cluster.ledgers[ledger_id]
        self._cluster.ledger_ids.remove(ledger_id)
        why = await self.inside(self.bookie.collect_garbage())
        self.walk.same("why garbage was not collected", why, "")

    # -- reports ------------------------------------------------------------------------------

    def values(self) -> dict[str, float]:
        """Return the value of each metric that has only one."""
        now_s = self.walk.stage.world.loop.time()
        found = bookie_metrics(self.bookie, now_s)
        return {one.name: one.samples[0].value for one in found if len(one.samples) == 1}
