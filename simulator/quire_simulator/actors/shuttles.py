"""Operators who move closed ledgers away from a bookie and back to it, again and again.

The bookie drops its copy when the metadata no longer names it, and gets another one later. Its log
then has entries, deletions and entries of one ledger, while segments are compacted and removed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.fragments import fragments
from quire.errors import MetadataError, NoSuchLedgerError
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.moves.rebalance import RebalanceOptions, carry_out
from quire.replication.moves.rebalance_plan import PlannedMove, RebalancePlan
from quire.replication.moves.recover import NoProgress
from quire_simulator.invariants.ledger import bookies_of
from quire_simulator.plans.plans import JobPlan
from quire_simulator.world.stage import Stage

MOVES = (3, 6)
"""The range of the number of moves of one ledger."""
WAIT_S = 4.0
"""The longest time to wait until a bookie has dropped its copy."""
AWAY_S = 2.0
"""The longest time for which a ledger stays where it was moved."""
POLL_S = 0.1
IDLE_S = 0.5


async def shuttle(
    stage: Stage, name: str, client: Client, locks: ReplicationLocks, plan: JobPlan, ledgers: int
) -> int:
    """Move so many ledgers back and forth, one after the other. Return the number of moves."""
    chance = stage.world.loop.derive(f"moves of {name}")
    moved = 0
    for _ in range(ledgers):
        ids = sorted(set(stage.world.ledger_ids.values()) & stage.world.cluster.ledgers.keys())
        pair = await _pair(client, ids, chance)
        if pair is None:
            await asyncio.sleep(IDLE_S)
            continue
        ledger_id, here, there = pair
        for _ in range(chance.randint(*MOVES)):
            moved += await _move(client, locks, ledger_id, here, there, plan)
            await _until_dropped(stage, ledger_id, here)
            await asyncio.sleep(chance.random() ** 2 * AWAY_S)
            here, there = there, here
    return moved


async def _pair(
    client: Client, ids: Sequence[int], chance: random.Random
) -> tuple[int, str, str] | None:
    """Return a closed ledger, one of its bookies, and a bookie that is none of them."""
    writable = sorted((await client.bookies()).writable)
    for ledger_id in chance.sample(ids, len(ids)):
        metadata = await _closed(client, ledger_id)
        if metadata is None or metadata.last_entry_id < 0:
            continue
        members = bookies_of(metadata)
        others = [bookie for bookie in writable if bookie not in members]
        if others:
            return ledger_id, chance.choice(sorted(members)), chance.choice(others)
    return None


async def _closed(client: Client, ledger_id: int) -> LedgerMetadata | None:
    try:
        metadata = (await client.metadata.read_ledger(ledger_id)).value
    except NoSuchLedgerError:
        return None
    return metadata if metadata.closed else None


async def _move(
    client: Client,
    locks: ReplicationLocks,
    ledger_id: int,
    source: str,
    target: str,
    plan: JobPlan,
) -> int:
    """Move everything of a ledger from one bookie to another. Return the number of moves."""
    try:
        metadata = await _closed(client, ledger_id)
    except MetadataError:
        return 0  # The next move tries again.
    if metadata is None:
        return 0
    moves = [
        PlannedMove(ledger_id, one.segment_first, one.ensemble.index(source), source, target, 0, 0)
        for one in fragments(metadata, metadata.last_entry_id)
        if source in one.ensemble and target not in one.ensemble
    ]
    done = await carry_out(
        client,
        locks,
        RebalancePlan(tuple(moves), {}, {}),
        options=RebalanceOptions(parallel=plan.parallel, bytes_per_s=plan.bytes_per_s),
        progress=NoProgress(),
    )
    return done.moved


async def _until_dropped(stage: Stage, ledger_id: int, bookie: str) -> None:
    world = stage.world
    name = bookie.rpartition(":")[0]
    end_s = world.loop.time() + WAIT_S
    while world.loop.time() < end_s:
        running = world.bookies.get(name)
        if running is not None and running.recovered and ledger_id not in running.store.ledgers:
            return
        await asyncio.sleep(POLL_S)
