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
    """Start the bookie, and write closed ledgers 0 to LEDGERS - 1 with one entry each."""
    await world.start(BOOKIE)
    client = world.client("client")
    for n in range(LEDGERS):
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"%d" % n)
        await writer.close()
    await client.close()


def ledgers_on(disk: SimDisk) -> list[int]:
    """Return which of the ledgers a stopped bookie has on this disk: some of them, but not all."""
    there = content_of(disk).ledgers
    assert there is not None
    found = [n for n in range(LEDGERS) if n in there]
    assert 0 < len(found) < LEDGERS
    return found


def first_that_is_not_cut_off(cut_off: Callable[[int], bool]) -> int:
    """Return the first operation at which an interruption comes too late for the command.

    `cut_off` interrupts the command at the operation with this number, and returns whether the
    command was still running.
    """
    return next(operation for operation in count(1) if not cut_off(operation))
