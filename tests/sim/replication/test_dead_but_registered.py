"""Dead bookies stay registered until their sessions expire."""

from __future__ import annotations

import asyncio

from quire_simulator.world.world import World

PATIENCE_S = 60
SESSION_LEFT_S = 8.0
AWAY_S = 5.0
CHANGES_MAX = 100


async def scenario(world: World) -> int:
    """Both bookies are away for a while; how often the writer changed its ensemble."""
    for name in world.disks:
        await world.start(name)
    client = world.client("writer")
    changes = 0

    def count(ledger_id: int) -> None:
        nonlocal changes
        changes += 1

    world.cluster.observer = count  # type: ignore[method-assign]
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    assert await writer.append(b"first") == 0
    for name in list(world.bookies):
        world.kill(name, session_left_s=SESSION_LEFT_S)
    async with asyncio.timeout(PATIENCE_S):
        appended = asyncio.ensure_future(writer.append(b"second"))
        await asyncio.sleep(AWAY_S)
        assert not appended.done()
        for name in world.disks:
            await world.start(name)
        assert await appended == 1
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()
    return changes


def test_ensemble_changes_between_dead_bookies_are_limited() -> None:
    """The writer wrote its metadata a thousand times in a second or two, and then gave up (found by
    the simulator)."""
    world = World.make(1, bookies=2)
    assert 0 < world.loop.run(scenario(world)) <= CHANGES_MAX
