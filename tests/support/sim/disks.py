"""A bookie with ledgers in several directories, for tests of disk commands."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from quire.bookie.directories.lost_directory import content_of
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.world import World

BOOKIE = "bookie-0"
LEDGERS = 6


async def write_ledgers(world: World) -> None:
    """Start the bookie and write ledgers 0..LEDGERS-1 with one entry each, closed."""
    await world.start(BOOKIE)
    client = world.client("client")
    for n in range(LEDGERS):
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"%d" % n)
        await writer.close()
    await client.close()


def ledgers_on(disk: SimDisk) -> list[int]:
    """Return the ledgers that a stopped bookie has on this disk: some, but not all of LEDGERS."""
    there = content_of(disk).ledgers
    assert there is not None
    found = [n for n in range(LEDGERS) if n in there]
    assert 0 < len(found) < LEDGERS
    return found


def first_that_is_not_cut_off(cut_off: Callable[[int], bool]) -> int:
    """Return the smallest operation number at which the command is not interrupted.

    `cut_off` interrupts the command at an operation, and returns False if it ended before that.
    """
    return next(operation for operation in count(1) if not cut_off(operation))
