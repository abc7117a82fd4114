"""A simulated cluster with autorecovery processes that tests start and stop."""

from __future__ import annotations

import asyncio
from typing import Any

from quire.client import Client
from quire.core.fragments import stored_by
from quire.replication import Autorecovery, AutorecoverySettings, ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire_simulator.machine.clock import SimClock
from quire_simulator.machine.loop import SimTask
from quire_simulator.world.world import World
from tests.support.sim.replication import PLAIN, write
from tests.support.waiting import until

ENTRIES = 300


PATIENCE_S = 600.0


class Scene:
    """A cluster of five bookies, a client, and autorecovery processes on separate nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client("client")
        self.locks = ReplicationLocks(self.client.metadata, "tester", SimClock(world.loop))
        self.marks = ReplicationMarks(self.client.metadata)
        self._running: dict[str, tuple[Client, SimTask[None]]] = {}

    def begin(self, name: str, *, worker: bool = True, **settings: Any) -> Autorecovery:
        client = self.world.client(name)
        settings = {"backoff_s": 1.0, "poll_s": 1.0, "open_grace_s": 10.0, **settings}
        autorecovery = Autorecovery(
            client,
            name,
            settings=AutorecoverySettings(**settings),
            worker=worker,
            clock=client.clock,
            rng=self.world.loop.derive(name),
        )
        node = self.world.network.node(name).node
        self._running[name] = client, node.create_task(autorecovery.run(), name=name)
        return autorecovery

    async def end(self) -> None:
        for client, task in self._running.values():
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task.exception()
            await client.close()
        await self.client.close()

    async def ledger(
        self, shape: tuple[int, int, int] = PLAIN, *, entries: int = ENTRIES, close: bool = True
    ) -> Any:
        return await write(self.client, entries, shape, close)

    async def ensemble(self, ledger_id: int) -> tuple[str, ...]:
        return (await self.client.ledger_metadata(ledger_id)).segments[0].ensemble

    async def whole(self, ledger_id: int, lost: str) -> None:
        """Wait until a ledger is replicated completely.

        Its metadata must not name the bookie `lost`, it must have no under-replication mark, and
        each member must report that it has its entries.
        """
        await until(
            lambda: self.client.ledger_metadata(ledger_id),
            right=lambda now: not any(lost in one.ensemble for one in now.segments),
            limit_s=PATIENCE_S,
            poll_s=0.5,
        )
        await self.unmarked(ledger_id)
        await has_all(self.client, ledger_id)

    async def unmarked(self, ledger_id: int) -> None:
        await until(
            lambda: self.locks.marked(ledger_id),
            right=lambda mark: mark is None,
            limit_s=PATIENCE_S,
            poll_s=0.1,
        )


async def has_all(client: Client, ledger_id: int) -> None:
    """Check that each member of each segment reports to have all entries that it should store."""
    metadata = await client.ledger_metadata(ledger_id)
    for segment in metadata.segments:
        end = metadata.segment_end(segment, metadata.last_entry_id)
        for index, bookie in enumerate(segment.ensemble):
            if wanted := set(stored_by(metadata, index, segment.first_entry_id, end)):
                ranges = await client.list_entries(bookie, ledger_id)
                have = {n for low, high in ranges for n in range(low, high + 1)}
                assert wanted <= have
