"""Check that single items of the metadata store that cannot be read stop nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quire.bookie.server import Bookie
from quire.client import Client
from quire.errors import QuireError
from quire.metadata.common import parent_of
from quire.replication.explain.at_risk import at_risk
from quire.replication.explain.status import overview
from quire.replication.marks.notes import last_unreadable
from quire_simulator.actors import healers
from quire_simulator.invariants.checker import InvariantError
from quire_simulator.world.stage import Stage

JUDGE = "judge-unreadable"
NAMED_S = 120.0
"""Seconds within which the auditor names what it skips. It checks all ledgers more often."""
RETRY_S = 1.0

Recover = Callable[[Stage, str, Client, int], Awaitable[None]]


async def judge(stage: Stage, recover: Recover) -> None:
    """Check everything that does not need the unreadable items, and then restore them.

    `recover` recovers and reads a ledger. It raises InvariantError if it cannot.
    """
    world = stage.world
    if world.unreadable.lasting:
        client = world.client(JUDGE, stage.plan.client_config)
        for ledger_id in list(world.ledger_ids.values()):
            if ledger_id in set(world.cluster.ledgers) - world.cluster.unreadable.keys():
                await recover(stage, JUDGE, client, ledger_id)
        try:
            if stage.plan.healers:
                await healers.replicated(stage, but=world.unreadable.ledgers())
                await _names(stage, client)
            await _passes(stage, client)
        except QuireError as error:
            stage.checker.fail("one_bad_item_stops_nothing", f"a pass ended with {error!r}")
        await client.close()
    world.unreadable.mend()


async def _names(stage: Stage, client: Client) -> None:
    """Wait until the auditor names every unreadable ledger, and no ledger that can be read."""
    unreadable, loop = stage.world.unreadable, stage.world.loop
    begin_s, named = loop.time(), set[int]()
    while loop.time() - begin_s < NAMED_S:
        note = await last_unreadable(client.metadata)
        named = set() if note is None else {ledger for ledger, _ in note.first}
        if _unreadable(stage) <= named <= unreadable.ledgers():
            return
        await asyncio.sleep(RETRY_S)
    raise InvariantError(
        "what_cannot_be_read_is_named",
        f"ledgers {sorted(_unreadable(stage))} cannot be read, but {sorted(named)} are named",
    )


def _unreadable(stage: Stage) -> set[int]:
    cluster = stage.world.cluster
    return set(cluster.unreadable).intersection(cluster.ledgers)


async def _passes(stage: Stage, client: Client) -> None:
    """Run the passes over all ledgers that only read, and the garbage collection of bookies."""
    world = stage.world
    # A listing of several pages may or may not have what is created or deleted meanwhile.
    began = set(world.cluster.ledgers)
    found = {ledger_id async for ledger_id in client.list_ledgers()}
    ended = set(world.cluster.ledgers)
    if not began & ended <= found <= began | ended:
        what = f"{sorted(found)} were listed, but there are {sorted(ended)}"
        stage.checker.fail("one_bad_item_stops_nothing", what)
    registered = set(world.cluster.presences)
    risks = [one async for one in at_risk(client, registered, {})][-1]
    if {ledger for ledger, _ in risks.skipped_first} != _unreadable(stage):
        what = f"{sorted(_unreadable(stage))} cannot be read, but {risks} was found"
        stage.checker.fail("what_cannot_be_read_is_named", what)
    # A mark that is set while the others are counted need not be among them. A stray mark beside
    # the unreadable mark of the same ledger makes no second one.
    tree, paths = world.cluster.tree, list(world.unreadable.marks)
    before = {path: tree.get(path) for path in paths}
    seen = await overview(client.metadata, clock=client.clock)
    there = [path for path in paths if before[path] and tree.get(path) is before[path]]
    if seen.marked < len({parent_of(path) for path in there}):
        what = f"{seen.marked} marked ledgers were counted, but {there} cannot be read"
        stage.checker.fail("what_cannot_be_read_is_named", what)
    for name, bookie in list(world.bookies.items()):
        # A bookie that was decommissioned may end at any moment.
        if world.bookies.get(name) is bookie and bookie.recovered:
            await world.within(bookie, _look(bookie))


async def _look(bookie: Bookie) -> None:
    await bookie.collect_garbage()
    await bookie.collect_over_replicated()
