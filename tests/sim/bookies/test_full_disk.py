"""A bookie whose disk fills up reports it, loses nothing, and recovers by itself."""

from __future__ import annotations

import pytest

from quire.config import BookieConfig
from quire.errors import NotEnoughBookiesError
from quire_simulator.world.world import World
from tests.support.long import long_after
from tests.support.sim.cluster import BOOKIES, payload
from tests.support.waiting import until

SEEDS = range(12)
FREE_BYTES = 1 << 20
TIGHT = BookieConfig(
    segment_bytes=1 << 20,
    min_free_bytes=FREE_BYTES,
    read_only_dwell_s=5.0,
    max_queued_bytes=1 << 20,
    seal_idle_s=0.05,
    check_space_s=0.5,
)


async def until_registered(world: World, writable: set[str]) -> None:
    store = world.client("watcher")
    await until(
        store.bookies,
        right=lambda found: {b.split(":")[0] for b in found.writable} == writable,
        poll_s=0.1,
    )
    await store.close()


async def scenario(world: World) -> None:
    for name in BOOKIES:
        await world.start(name, TIGHT)
    client = world.client("writer")
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    full = writer.metadata.last_segment.ensemble[0].split(":")[0]
    count = 0
    for piece in range(200):
        entries = range(piece * 20, piece * 20 + 20)
        await writer.append_many([payload(entry) * 40 for entry in entries])
        count += 20
        if piece == 20:
            disk = world.disks[full]
            disk.capacity_bytes -= disk.free_bytes()
        if piece > 20 and len(writer.metadata.segments) > 1:
            break
    assert len(writer.metadata.segments) == 2, "the full bookie was not replaced"
    await until_registered(world, set(BOOKIES) - {full})
    assert await writer.close() == count - 1
    reader = await client.open_ledger(writer.ledger_id)
    found = [entry.payload async for entry in reader.read()]
    assert found == [payload(entry) * 40 for entry in range(count)]

    with pytest.raises(NotEnoughBookiesError, match="3 bookies are wanted; 2 are writable"):
        await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)

    world.disks[full].capacity_bytes += 64 << 20
    await until_registered(world, set(BOOKIES))
    again = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
    assert await again.append(b"writable again") == 0
    await again.close()
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


@pytest.mark.parametrize("seed", long_after(3, SEEDS))
def test_a_bookie_with_a_full_disk_becomes_read_only_and_writable_again(seed: int) -> None:
    world = World.make(seed)
    world.loop.run(scenario(world))
