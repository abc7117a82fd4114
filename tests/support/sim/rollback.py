"""Recoveries and reads on simulated bookies whose directories are rolled back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from quire.codec.wire.v2 import Code
from quire.errors import QuireError
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire_simulator.world.world import BOOKIE_CONFIG, World
from tests.support.sim.loss import heal
from tests.support.waiting import until

CONFIG = replace(
    BOOKIE_CONFIG, segment_bytes=256 * 1024, damage_report_interval_s=2.0, check_space_s=1.0
)


def payload(number: int) -> bytes:
    return b"entry %d" % number


async def recovered_end(world: World, ledger_id: int, name: str) -> int | None:
    """Recover the ledger with a new client, and return the id of its last entry.

    Returns None if the recovery fails, for example without a quorum.
    """
    client = world.client(name)
    try:
        async with asyncio.timeout(60.0):
            reader = await client.open_ledger(ledger_id, recover=True)
            return reader.last_add_confirmed
    except (QuireError, TimeoutError):
        return None
    finally:
        await client.close()


async def answer_of(world: World, name: str, ledger_id: int, entry_id: int) -> int:
    """Return the protocol's code with which the bookie answers a read of this entry."""
    service = world.bookies[name].service
    try:
        await service.store.read_blocking(ledger_id, entry_id, 1, 1 << 20)
    except (NoEntry, NoLedger) as error:
        return service.code_of_missing(error, ledger_id)
    return Code.OK


async def healed(world: World, name: str) -> None:
    client = world.client("healer")
    work = heal(world, client)
    store = world.bookies[name].store
    await until(
        lambda: not store.negatives_unknown and store.writable,
        "the bookie is whole again",
        limit_s=3_000.0,
        poll_s=1.0,
    )
    work.cancel()
    await asyncio.wait([work])
    await client.close()
