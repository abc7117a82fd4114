"""Check at the end that compaction frees space, also on full disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.bookie.server import Bookie
from quire.storage.store import LedgerStore
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World, bookie_id

ROUNDS_MAX = 60
ROUND_S = 1.0
PARTS = 3
"""One part of the ledgers is deleted, then another while disks are full. The third part is kept."""
ROOM_BYTES = 1 << 30
STARTS = 3
"""The number of starts of a bookie that writes index caches all the time."""


async def judge(stage: Stage) -> None:
    """Check that compaction finishes, first with free space and then on full disks.

    Most ledgers are deleted in the process. A ledger that was fenced and deleted must stay refused
    throughout.
    """
    world, checker = stage.world, stage.checker
    await _delete(stage, 1)
    await _again(stage, 1)
    await _settle(stage, "")
    await _until(lambda: _without_reserve(world))
    for disk in (disk for name in world.disks for disk in world.disks_of(name)):
        disk.capacity_bytes -= disk.free_bytes()
    await _delete(stage, 2)
    await _settle(stage, "from full disks: ")
    refused = {name: _refused(stage, name) for name in world.bookies}
    await _again(stage, 2)
    for name in world.bookies:
        forgotten = refused[name] - _refused(stage, name)
        if forgotten:
            what = (
                f"{name} accepts entries of ledgers {sorted(forgotten)}, "
                "which were fenced and then deleted"
            )
            checker.fail("what_is_dropped_stays_refused", what)


async def _delete(stage: Stage, turn: int) -> None:
    """Delete one part of the existing ledgers, and collect garbage everywhere."""
    client = stage.world.client(f"cleaner-{turn}", stage.plan.client_config)
    for ledger_id in sorted(stage.world.cluster.ledgers):
        if ledger_id % PARTS == turn:
            stage.checker.facts(ledger_id).deleted = True
            await client.delete_ledger(ledger_id)
    await client.close()
    await stage.checker.garbage_is_collected()


async def _settle(stage: Stage, when: str) -> None:
    left = await _until(lambda: _reclaimable(stage.world))
    if left:
        stage.checker.fail("space_comes_back", when + "; ".join(left))


async def _again(stage: Stage, turn: int) -> None:
    """Crash and start all bookies after their drops have become durable.

    Bookies that write index caches all the time are started more than once, each time with an older
    cache.
    """
    world, chance = stage.world, stage.world.loop.derive(f"again {turn}")
    starts = STARTS if WORKLOADS[stage.plan.workload].caching else 1
    for name, bookie in list(world.bookies.items()):
        await world.within(bookie, _durable(bookie))
        gone = {n for n, facts in stage.checker.ledgers.items() if facts.deleted}
        gone -= bookie.store.ledgers.keys()
        disks = world.disks_of(name)
        for disk in disks:
            disk.capacity_bytes += ROOM_BYTES
        for _ in range(starts):
            world.crash(name)
            for disk in disks if starts > 1 else ():
                world.put_back_index(disk, chance)
            await world.start(name, stage.plan.bookie_config)
            back = gone & world.claims.known[bookie_id(name)]
            if back:
                what = f"{name} has ledgers {sorted(back)} again, which it had dropped"
                stage.checker.fail("what_is_dropped_stays_gone", what)


async def _durable(bookie: Bookie) -> None:
    """Wait until everything that the bookie has done so far is durable."""
    durable = asyncio.get_running_loop().create_future()
    bookie.store.barrier(durable.set_result)
    await durable


def _refused(stage: Stage, name: str) -> set[int]:
    store = stage.world.bookies[name].store
    return {ledger_id for ledger_id in stage.checker.ledgers if store.is_refused(ledger_id)}


async def _until(left: Callable[[], list[str]]) -> list[str]:
    """Wait until nothing is left or all rounds are over, and return what is left."""
    for _ in range(ROUNDS_MAX):
        if not left():
            break
        await asyncio.sleep(ROUND_S)
    return left()


def _reclaimable(world: World) -> list[str]:
    return [
        f"{name}: {one.live_bytes} of {one.file_bytes} bytes of segment {one.number} are live, "
        f"but it is not compacted: {one.why}"
        for name, bookie in world.bookies.items()
        for one in bookie.store.usage()
        if one.reclaimable
    ]


def _without_reserve(world: World) -> list[str]:
    return [
        name
        for name, bookie in world.bookies.items()
        for store in _stores(bookie)
        if (stats := store.stats()).sealed_segments and not stats.compaction_reserve_bytes
    ]


def _stores(bookie: Bookie) -> list[LedgerStore]:
    """Return the ledger stores of all data directories."""
    store = bookie.store
    return [store] if isinstance(store, LedgerStore) else [one.store for one in store._places]
