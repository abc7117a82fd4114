"""One of three replicas rots, one bit in one page after the other. Readers get the right bytes."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from quire.client import Client
from quire.config import BookieConfig
from quire.errors import ReadError
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.world import World
from tests.support.storage.rot import bits_of

SEED = int(os.environ.get("QUIRE_CRASH_SEED", "1"))
BOOKIES = ("bookie-0", "bookie-1", "bookie-2")
CONFIG = BookieConfig(
    segment_bytes=128 << 10,
    min_free_bytes=0,
    max_queued_bytes=1 << 20,
    seal_idle_s=0.05,
)
ENTRIES = 120
ROTTEN_AT = 30_000
"""An offset in a segment at which there are entries."""
RESTARTS = 4
"""One flip in this many is read after a restart of its bookie."""


def payload(entry_id: int) -> bytes:
    return b"%d." % entry_id * (300 + entry_id % 400)


def rotting(disk: SimDisk, rng: random.Random) -> list[tuple[str, int, int]]:
    names = [f"log/{name}" for name in disk.list("log") if name.endswith(".seg")]
    return [(name, at, bit) for name in names for at, bit in bits_of(disk, name, rng, 1)]


def byte_of(disk: SimDisk, name: str, at: int) -> bytes:
    file = disk.open(name)
    try:
        return bytes(file.read(at, 1) or b"")
    finally:
        file.close()


async def written(world: World, ensemble: int, quorum: int) -> tuple[Client, int]:
    """Write a closed ledger on this number of bookies, and return it with its writer."""
    for name in BOOKIES[:ensemble]:
        await world.start(name, CONFIG)
    client = world.client("writer")
    writer = await client.create_ledger(
        ensemble_size=ensemble, write_quorum=quorum, ack_quorum=quorum
    )
    for first in range(0, ENTRIES, 10):
        await writer.append_many([payload(entry) for entry in range(first, first + 10)])
    await writer.close()
    await asyncio.sleep(1)  # The mark of the end, and footers.
    return client, writer.ledger_id


async def read_while_it_rots(world: World) -> tuple[int, int]:
    """Return the number of flips, and the number of reads of a bookie that found damage."""
    client, ledger_id = await written(world, 3, 3)
    rng = random.Random(SEED)
    flips = damaged = 0
    for name in BOOKIES:
        disk = world.disks[name]
        for segment, at, bit in rotting(disk, rng):
            if not disk.exists(segment) or not byte_of(disk, segment, at):
                continue  # The bookie was stopped since: it was only prepared, or is cut.
            flips += 1
            disk.flip_bit(segment, at, bit)
            wrong = byte_of(disk, segment, at)
            if flips % RESTARTS == 0:
                await world.stop(name)
                await world.start(name, CONFIG)
            before = world.bookies[name].store.stats().damaged_reads
            reader = await client.open_ledger(ledger_id)
            found = [entry.payload async for entry in reader.read()]
            assert found == [payload(entry) for entry in range(ENTRIES)], (name, segment, at)
            damaged += world.bookies[name].store.stats().damaged_reads > before
            if disk.exists(segment) and byte_of(disk, segment, at) == wrong:
                disk.flip_bit(segment, at, bit)
    await client.close()
    for name in BOOKIES:
        await world.stop(name)
    return flips, damaged


def test_readers_get_the_right_bytes_from_another_replica() -> None:
    world = World.make(SEED)
    flips, damaged = world.loop.run(read_while_it_rots(world))
    assert flips > 20
    assert damaged > flips // 8, "the replica that rots was hardly asked"


async def read_around_the_rot(
    world: World, ensemble: int, quorum: int, rotten: int, liars: int
) -> tuple[int, list[int]]:
    """Return the entries that were read, and those that cannot be."""
    client, ledger_id = await written(world, ensemble, quorum)
    for name in BOOKIES[:rotten]:
        disk = world.disks[name]
        disk.flip_bit(segment_name(1), ROTTEN_AT, 3)
    reader = await client.open_ledger(ledger_id, assume_liars=liars)
    found, lost, refused = 0, list[int](), list[int]()
    while found + len(lost) < ENTRIES:
        try:
            async for entry in reader.read(found + len(lost), ENTRIES - 1):
                assert (entry.entry_id, entry.payload) == (
                    found + len(lost),
                    payload(entry.entry_id),
                )
                found += 1
        except ReadError as error:
            lost.append(-1 if error.entry_id is None else error.entry_id)
            # Everything before it was returned.
            refused.append(found + len(lost) - 1)
    assert lost == refused
    await client.close()
    for name in BOOKIES[:ensemble]:
        await world.stop(name)
    return found, lost


@pytest.mark.parametrize(
    ("ensemble", "quorum", "rotten", "liars"),
    [(1, 1, 1, 0), (3, 1, 3, 0), (3, 3, 2, 1)],
    ids=["batches", "striped", "copies that are compared"],
)
def test_every_undamaged_entry_is_read(ensemble: int, quorum: int, rotten: int, liars: int) -> None:
    world = World.make(SEED)
    found, lost = world.loop.run(read_around_the_rot(world, ensemble, quorum, rotten, liars))
    assert 0 < len(lost) < 20
    assert found == ENTRIES - len(lost)
