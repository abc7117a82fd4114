"""Readers that follow a ledger, and writers with deferred sync, while bookies crash.

The client and bookies are the real ones, on a seed.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from quire.client import Client, LedgerReader
from quire.codec.entry.entry import Entry
from quire.config import ClientConfig
from quire.errors import QuireError
from quire_simulator.world.world import World
from tests.support.sim.cluster import BOOKIES, SEEDS, payload

PIECES = 40
READERS = 3


def client_of(world: World, name: str, **changes: int) -> Client:
    config = ClientConfig(add_timeout_s=1.0, read_timeout_s=1.0, long_poll_s=0.3, **changes)
    return world.client(name, config)


async def follow(world: World, name: str, reader: LedgerReader, found: list[Entry]) -> None:
    async for entry in reader.tail(0):
        assert entry.entry_id == len(found), "each entry once, in order"
        found.append(entry)
    world.trace.record(name, "end", entries=len(found))


async def crash_and_return(world: World, chance: random.Random) -> None:
    """One bookie at a time."""
    for _ in range(3):
        await asyncio.sleep(chance.random() * 0.5)
        victim = chance.choice(BOOKIES)
        world.crash(victim)
        await asyncio.sleep(chance.random() * 2)
        await world.start(victim)
        await asyncio.sleep(0.5)


async def tail_scenario(world: World, chance: random.Random) -> None:
    for name in BOOKIES:
        await world.start(name)
    shape = chance.choice([(3, 3, 2), (3, 2, 2), (3, 2, 1), (2, 2, 1)])
    interval = chance.choice([0, 50])
    client = client_of(world, "writer", explicit_lac_interval_s=interval / 1000)
    ensemble, write, ack = shape
    writer = await client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    found: list[list[Entry]] = [[] for _ in range(READERS)]
    clients = [client_of(world, f"reader-{k}") for k in range(READERS)]
    acked = -1
    async with asyncio.TaskGroup() as group:
        for k, reading in enumerate(clients):
            reader = await reading.open_ledger(writer.ledger_id)
            group.create_task(follow(world, f"reader-{k}", reader, found[k]))
        trouble = group.create_task(crash_and_return(world, chance))
        try:
            for _ in range(PIECES):
                entries = range(acked + 1, acked + 2 + chance.randrange(10))
                acked = await writer.append_many([payload(entry) for entry in entries])
                await asyncio.sleep(chance.random() * 0.1)
            if chance.random() < 0.5:
                writer.abandon()
            else:
                await writer.close()
        except QuireError as error:  # a crash too many for this shape
            world.trace.record("writer", "gave up", error=type(error).__name__)
        await trouble
        taking_over = client_of(world, "next")
        closed = await taking_over.open_ledger(writer.ledger_id, recover=True)
    assert closed.last_add_confirmed >= acked
    for entries in found:
        assert [e.payload for e in entries] == [
            payload(entry) for entry in range(closed.last_add_confirmed + 1)
        ]
    for other in (client, taking_over, *clients):
        await other.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


def run(seed: int, scenario: object) -> str:
    world = World.make(seed)
    world.loop.run(scenario(world, world.loop.derive("scenario")))  # type: ignore[operator]
    return world.trace.hexdigest()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_tail_skips_and_repeats_no_entry(seed: int) -> None:
    run(seed, tail_scenario)


def test_the_same_seed_gives_the_same_tail() -> None:
    assert run(3, tail_scenario) == run(3, tail_scenario)


async def deferred_scenario(world: World, chance: random.Random) -> None:
    """Entries that a force covered survive a power loss everywhere."""
    for name in BOOKIES:
        await world.start(name)
    client = client_of(world, "writer", max_unforced_bytes=chance.choice([500, 10_000, 1 << 20]))
    shape = chance.choice([(3, 3, 2), (3, 2, 2), (3, 3, 3), (3, 2, 1)])
    writer = await client.create_ledger(
        ensemble_size=shape[0], write_quorum=shape[1], ack_quorum=shape[2], deferred_sync=True
    )
    forced = accepted = -1
    trouble = asyncio.ensure_future(crash_and_return(world, chance))
    try:
        for _ in range(PIECES):
            entries = range(accepted + 1, accepted + 2 + chance.randrange(10))
            accepted = await writer.append_many([payload(entry) for entry in entries])
            assert writer.last_add_confirmed <= accepted
            if chance.random() < 0.3:
                forced = await writer.force()
                assert forced >= accepted
                assert forced == writer.last_add_confirmed
            await asyncio.sleep(chance.random() * 0.1)
        forced = max(forced, writer.last_add_confirmed)
        if chance.random() < 0.3:
            forced = await writer.close()
            assert forced == accepted
    except QuireError as error:
        forced = max(forced, writer.last_add_confirmed)
        world.trace.record("writer", "gave up", error=type(error).__name__)
    await trouble
    for name in BOOKIES:
        world.crash(name)
    await client.close()
    for name in BOOKIES:
        await world.start(name)
    reading = client_of(world, "reader")
    reader = await reading.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed >= forced
    assert [e.payload async for e in reader.read()] == [
        payload(entry) for entry in range(reader.last_add_confirmed + 1)
    ]
    world.trace.record("reader", "read", forced=forced, found=reader.last_add_confirmed)
    await reading.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_forced_entries_survive_a_power_loss(seed: int) -> None:
    run(seed, deferred_scenario)
