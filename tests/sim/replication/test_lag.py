"""A replica that merely lags is reported neither short nor missing while it catches up.

A replica that stays behind is reported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire.client import Client
from quire.core.replicas import Finding, Kind
from quire.replication.autorecovery.auditor import Auditor
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.explain.explain import explain_ledger
from quire.replication.repair.repair_findings import repair_ledger
from quire.replication.repair.replica_reader import LAG_S
from quire_simulator.world.world import World, bookie_id
from tests.support.sim.replication import audited, locks_of, payload, simulated, start, write
from tests.support.waiting import until

LATE = "bookie-2"


async def ledger_with_a_late_replica(world: World, client: Client, entries: int = 40) -> int:
    """Closed, with the last half of it on an ack quorum only."""
    writer = await write(client, entries // 2, close=False)
    world.kill(LATE)
    await writer.append_many([payload(n) for n in range(entries // 2, entries)])
    await writer.close()
    await world.start(LATE)
    ledger_id: int = writer.ledger_id
    return ledger_id


async def catch_up(world: World, client: Client, ledger_id: int) -> None:
    await asyncio.sleep(LAG_S / 2)
    lacking = Finding(ledger_id, 20, 39, bookie_id(LATE), Kind.SHORT)
    done = await repair_ledger(client, locks_of(world, client), ledger_id, [lacking])
    assert (done.written_back, done.left) == (20, [])


async def an_auditor_s_checks(world: World, client: Client, ledger_id: int, lags: bool) -> None:
    stats, locks = AutorecoveryStats(), locks_of(world, client, "auditor")
    auditor = Auditor(
        client,
        locks,
        settings=AutorecoverySettings(replicas_check_interval_s=1e6),
        stats=stats,
        clock=client.clock,
        rng=random.Random(1),
        log=lambda event, **fields: None,
    )
    running = asyncio.ensure_future(auditor.run())
    done = await until(
        lambda: (stats.ledger_checks, stats.replicas_checks), right=lambda done: done == (1, 1)
    )
    missing = stats.replicas_missing  # an auditor that has ended reports none
    running.cancel()
    await asyncio.wait([running])
    assert done
    mark = await locks.marked(ledger_id)
    assert (mark is None) is lags
    assert stats.replicas_lagged == (2 if lags else 0)
    assert missing == (0 if lags else 20)


async def an_audit(world: World, client: Client, ledger_id: int, lags: bool) -> None:
    found = [(one.first, one.last, one.kind) for one in await audited(client, [ledger_id])]
    assert found == ([] if lags else [(20, 39, Kind.SHORT)])


async def an_explanation(world: World, client: Client, ledger_id: int, lags: bool) -> None:
    said = (await explain_ledger(client, ledger_id)).verdict.sentence
    assert said.startswith("Nothing is wrong" if lags else "No entry is lost: every entry is on")


async def a_deep_explanation(world: World, client: Client, ledger_id: int, lags: bool) -> None:
    said = (await explain_ledger(client, ledger_id, deep=True)).verdict.sentence
    assert said.startswith("Nothing is wrong" if lags else "No entry is lost: every entry is on")


Look = Callable[[World, Client, int, bool], Awaitable[Any]]


@pytest.mark.parametrize("lags", [True, False], ids=["lags", "stays behind"])
@pytest.mark.parametrize(
    "look",
    [an_auditor_s_checks, an_audit, an_explanation, a_deep_explanation],
    ids=lambda one: one.__name__,
)
def test_a_check_asks_again_for_a_late_replica(look: Look, lags: bool) -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client, other = world.client("client"), world.client("other")
        ledger_id = await ledger_with_a_late_replica(world, client)
        catching = asyncio.ensure_future(
            catch_up(world, other, ledger_id) if lags else asyncio.sleep(0)
        )
        await look(world, client, ledger_id, lags)
        await catching
        await client.close()
        await other.close()

    simulated(scenario, bookies=3)
