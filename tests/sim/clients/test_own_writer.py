"""A client takes over from its own writer.

Both add to one ledger, over connections whose answers name only the ledger and the entry.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from quire.errors import LedgerClosedError, LedgerFencedError
from quire_simulator.world.world import World
from tests.support.long import long_after
from tests.support.sim.cluster import BOOKIES, SEEDS, payload


async def scenario(world: World, chance: random.Random) -> None:
    for name in BOOKIES:
        await world.start(name)
    client = world.client("one")
    for _ in range(5):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        acked = -1

        async def write(writer=writer) -> None:
            nonlocal acked
            try:
                for piece in range(1_000):
                    entries = range(piece * 5, piece * 5 + 5)
                    waiting = [writer.submit(payload(entry)) for entry in entries]
                    await asyncio.sleep(0.000_3)
                    if piece % 4 == 0:
                        acked = await writer.wait(waiting[-1])
            except (LedgerFencedError, LedgerClosedError):
                pass

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(chance.random() * 0.1)
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        await writing
        assert reader.last_add_confirmed >= acked
        found = [entry.payload async for entry in reader.read()]
        assert found == [payload(entry) for entry in range(reader.last_add_confirmed + 1)]
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


@pytest.mark.parametrize("seed", long_after(2, range(SEEDS)))
def test_a_client_can_recover_the_ledger_of_its_own_writer(seed: int) -> None:
    world = World.make(seed)
    world.loop.run(scenario(world, world.loop.derive("scenario")))
