"""Simulated clusters and ledgers for tests of replication."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from quire.client import Client
from quire.replication import (
    ReplicationLocks,
)
from quire_simulator.machine.clock import SimClock
from quire_simulator.world.world import World, bookie_id
from tests.support.replication import audited as audited
from tests.support.sim.cluster import payload

PLAIN, STRIPED = (3, 3, 2), (4, 3, 2)


async def start(world: World, count: int) -> list[str]:
    names = [f"bookie-{number}" for number in range(count)]
    for name in names:
        await world.start(name)
    return [bookie_id(name) for name in names]


def name_of(bookie: str) -> str:
    return bookie.partition(":")[0]


def locks_of(world: World, client: Client, owner: str = "here") -> ReplicationLocks:
    return ReplicationLocks(client.metadata, owner, SimClock(world.loop))


async def write(
    client: Client, entries: int, quorums: tuple[int, int, int] = PLAIN, close: bool = True
) -> Any:
    writer = await client.create_ledger(
        ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2], password=b"pw"
    )
    if entries:
        await writer.append_many([payload(entry) for entry in range(entries)])
        await settled(writer)
    if close:
        await writer.close()
    return writer


async def settled(writer: Any) -> None:
    """Wait until every member of the ensemble has every entry, and not only the ack quorum."""
    pipeline = writer._session.pipeline
    while pipeline.unacked_bytes_max():
        await asyncio.sleep(0.001)


async def read_all(client: Client, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id, password=b"pw")
    return [entry.payload async for entry in reader.read()]


async def has(client: Client, ledger_id: int, bookie: str) -> list[int]:
    """Return the ids of the ledger's entries that the bookie reports to have."""
    ranges = await client.list_entries(bookie, ledger_id)
    return [entry for first, last in ranges for entry in range(first, last + 1)]


def simulated(
    scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1, bookies: int = 5
) -> None:
    world = World.make(seed, bookies)

    async def whole() -> None:
        await scenario(world)
        for bookie in list(world.bookies.values()):
            await bookie.stop()

    world.loop.run(whole())
