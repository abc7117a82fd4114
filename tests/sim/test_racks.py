"""A whole rack is lost under writes: every acknowledged entry is read without it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.config import PlacementConfig
from quire.core.placement import RackAware
from quire.errors import NotEnoughBookiesError, ReadError
from quire.testing.simulation.world import CLIENT_CONFIG, World, bookie_id
from tests.sim.mutants.mutant import edit

RACKS = {"/a": (0, 1), "/b": (2, 3), "/c": (4, 5), "/d": (6, 7)}
BOOKIES = 8
PATIENCE_S = 600
"""Simulated."""
ENTRIES = 60
SEEDS = range(3)
MUTANT_SEEDS = range(12)

Shape = tuple[int, int, int, int]
SHAPES: list[Shape] = [(2, 2, 2, 2), (3, 3, 2, 3), (4, 3, 2, 3)]
"""Ensemble, write quorum, ack quorum, racks: no rack has an ack quorum of any entry."""


def names(rack: str) -> list[str]:
    return [f"bookie-{number}" for number in RACKS[rack]]


async def lose_and_read(world: World, shape: Shape, seed: int) -> int:
    """Write while one bookie and then a whole rack are lost; read without each rack in turn. How
    often the ensemble changed."""
    for name in world.disks:
        await world.start(name)
    table = {bookie_id(name): rack for rack in RACKS for name in names(rack)}
    placement = PlacementConfig(locations=table, min_racks=shape[3], enforce_racks=True)
    config = replace(CLIENT_CONFIG, placement=placement)
    client = world.client("writer", config)
    chance = world.loop.derive(f"racks {seed}")
    lost = chance.choice(sorted(RACKS))
    alone = chance.choice([name for rack in RACKS if rack != lost for name in names(rack)])
    writer = await client.create_ledger(
        ensemble_size=shape[0], write_quorum=shape[1], ack_quorum=shape[2]
    )
    faults = {
        ENTRIES // 4: lambda: world.kill(alone, session_left_s=1.0),
        ENTRIES // 2: lambda: [world.kill(name, session_left_s=2.0) for name in names(lost)],
    }
    acknowledged = []
    async with asyncio.timeout(PATIENCE_S):
        for number in range(ENTRIES):
            if number in faults:
                faults[number]()
            if number == ENTRIES * 3 // 8:
                await world.start(alone)
            acknowledged.append(await writer.append(b"%d" % number))
        last = await writer.close()
        assert acknowledged == list(range(last + 1)) == list(range(ENTRIES))
        for name in names(lost):
            await world.start(name)
        for rack in RACKS:
            for name in names(rack):
                world.kill(name)
            reader = await client.open_ledger(writer.ledger_id)
            read = [entry.payload async for entry in reader.read(0, last)]
            assert read == [b"%d" % number for number in range(ENTRIES)], f"without {rack}"
            for name in names(rack):
                await world.start(name)
    changes = len(writer.metadata.segments)
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()
    return changes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rack_is_lost_and_nothing_with_it(shape: Shape) -> None:
    changes = 0
    for seed in SEEDS:
        world = World.make(seed, bookies=BOOKIES)
        changes += world.loop.run(lose_and_read(world, shape, seed)) - 1
    assert changes, "no bookie was replaced: nothing was tried"


def test_racks_that_are_not_counted_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with a placement that looks at no racks (a defect that this test must find)."""
    edit(monkeypatch, RackAware, "rules", ("least = self._racks(wanted.write_quorum)", "least = 1"))
    edit(monkeypatch, RackAware, "rank", ("uses)", ")"))
    for seed in MUTANT_SEEDS:
        world = World.make(seed, bookies=BOOKIES)
        try:
            world.loop.run(lose_and_read(world, SHAPES[0], seed))
        except ReadError:
            return
    pytest.fail(f"nothing was noticed in {len(MUTANT_SEEDS)} seeds")


async def acknowledged_without_a_rack(world: World, spread: bool) -> bool:
    """Whether an append returns while the only member of one rack is silent; and it returns when
    that one speaks again."""
    racks = {"bookie-0": "/a", "bookie-1": "/a", "bookie-2": "/b"}
    for name in racks:
        await world.start(name)
    placement = PlacementConfig(locations=racks, spread_acks=spread)
    client = world.client("writer", replace(CLIENT_CONFIG, add_timeout_s=60, placement=placement))
    async with asyncio.timeout(PATIENCE_S):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"first")
        world.network.stop("bookie-2")
        append = asyncio.ensure_future(writer.append(b"second"))
        await asyncio.sleep(5)
        done = append.done()
        world.network.cont("bookie-2")
        assert await append == 1
        await writer.close()
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()
    return done


@pytest.mark.parametrize("spread", [False, True])
def test_an_append_waits_for_two_racks_where_that_is_asked_for(spread: bool) -> None:
    world = World.make(1)
    assert world.loop.run(acknowledged_without_a_rack(world, spread)) is not spread


async def acknowledged_after_a_change(world: World) -> bool:
    """The same where a replacement has moved a member into another rack."""
    racks = {"bookie-0": "/a", "bookie-1": "/a", "bookie-2": "/b", "bookie-3": "/b"}
    for name in sorted(racks)[:3]:
        await world.start(name)
    placement = PlacementConfig(locations=racks, spread_acks=True)
    client = world.client("writer", replace(CLIENT_CONFIG, add_timeout_s=60, placement=placement))
    async with asyncio.timeout(PATIENCE_S):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"first")
        await world.start("bookie-3")
        world.kill("bookie-0")
        await writer.append(b"second")
        while bookie_id("bookie-3") not in writer.metadata.last_segment.ensemble:
            await asyncio.sleep(0.1)
        await writer.append(b"third")
        world.network.stop("bookie-1")
        append = asyncio.ensure_future(writer.append(b"fourth"))
        await asyncio.sleep(5)
        done = append.done()
        world.network.cont("bookie-1")
        assert await append == 3
        await writer.close()
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()
    return done


def test_where_members_are_is_asked_again_when_they_change() -> None:
    world = World.make(3, bookies=4)
    assert not world.loop.run(acknowledged_after_a_change(world))


async def a_rack_is_missing(world: World) -> None:
    """No bookie of a second rack is left: the writer ends instead of acknowledging."""
    racks = {"bookie-0": "/a", "bookie-1": "/a", "bookie-2": "/b"}
    for name in racks:
        await world.start(name)
    placement = PlacementConfig(locations=racks, spread_acks=True)
    client = world.client("writer", replace(CLIENT_CONFIG, placement=placement))
    async with asyncio.timeout(PATIENCE_S):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"first")
        world.kill("bookie-2")
        with pytest.raises(NotEnoughBookiesError, match="in the place of bookie-2:3181"):
            await writer.append(b"second")
        # Recovery takes what there is: nothing is acknowledged by it.
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed in (0, 1)
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


def test_a_writer_ends_where_a_second_rack_is_gone() -> None:
    world = World.make(2)
    world.loop.run(a_rack_is_missing(world))
