"""Objects while bookies crash and the metadata store loses requests and answers."""

from __future__ import annotations

import asyncio
import random

import pytest

from quire.errors import NoSuchLedgerError, NoSuchObjectError, ObjectExistsError, QuireError
from quire.streams.objects.objects import Objects
from quire_simulator.world.world import World
from tests.support.long import long_after
from tests.support.sim.cluster import BOOKIES, SEEDS

NAMES = ("a", "a/b", "c/d/e")
ROUNDS = 12
METADATA_FAILURES = 0.05


async def scenario(world: World, chance: random.Random) -> None:
    """Two clients put, replace, delete and get objects while a bookie crashes and returns.

    A name always refers to one complete version that somebody put.
    """
    for name in BOOKIES:
        await world.start(name)
    versions: dict[str, set[bytes]] = {name: set() for name in NAMES}

    async def act(objects: Objects, number: int) -> None:
        name, kind = chance.choice(NAMES), chance.randrange(6)
        try:
            if kind < 3:
                data = b"%d." % number * chance.randrange(2_000)
                versions[name].add(data)
                await objects.put(
                    name, data, replace=kind > 0, chunk_bytes=chance.randrange(50, 2_000)
                )
            elif kind == 3:
                await objects.delete(name)
            else:
                async with await objects.get(name) as found:
                    assert await found.read_all() in versions[name]
        except (NoSuchObjectError, ObjectExistsError, NoSuchLedgerError):
            pass
        except QuireError as error:
            if error.outcome_known:
                raise

    async def work(which: int) -> None:
        objects = Objects(world.client(f"client-{which}"))
        for number in range(ROUNDS):
            await act(objects, 1_000 * which + number)
        await objects._client.close()

    async def crash() -> None:
        await asyncio.sleep(chance.random())
        victim = chance.choice(BOOKIES)
        world.crash(victim)
        await asyncio.sleep(chance.random())
        await world.start(victim)

    world.metadata_failures = METADATA_FAILURES
    async with asyncio.TaskGroup() as group:
        for which in (1, 2):
            group.create_task(work(which))
    world.metadata_failures = 0.0
    async with asyncio.TaskGroup() as group:
        group.create_task(crash())
        group.create_task(work(3))
    objects = Objects(world.client("last"))
    await asyncio.sleep(1)
    await objects.sweep(0.5)
    held = {info.ledger_id: info.name async for info in objects.list()}
    for name in held.values():
        async with await objects.get(name) as found:
            assert await found.read_all() in versions[name]
    assert {i async for i in objects._client.list_ledgers()} == set(held)
    await objects._client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


@pytest.mark.parametrize("seed", long_after(2, range(SEEDS)))
def test_objects_are_complete_in_whole_runs(seed: int) -> None:
    world = World.make(seed)
    world.loop.run(scenario(world, world.loop.derive("scenario")))
