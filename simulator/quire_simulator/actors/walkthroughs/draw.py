"""Which walkthroughs a run has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quire.errors import QuireError
from quire_simulator.actors.walkthroughs import (
    bad_copies,
    data,
    ledgers,
    limits,
    mirrors,
    placements,
    repairs,
    stores,
    streams,
)
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.actors.walkthroughs.wire import (
    answers_walk,
    connections_walk,
    losses_walk,
    requests_walk,
)
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.world.stage import Stage

Script = Callable[[Walk], Awaitable[None]]

LEDGERS: tuple[Script, ...] = (
    ledgers.walk_ledger,
    ledgers.walk_takeover,
    ledgers.walk_lost_bookie,
    data.walk_dataset,
    placements.walk_placement,
    bad_copies.walk_bad_copies,
    limits.walk_limits_of_ledgers,
)
STREAMS: tuple[Script, ...] = (
    streams.walk_stream,
    mirrors.walk_copies,
    mirrors.walk_following,
    mirrors.walk_topic_copies,
    data.walk_dictionary,
    limits.walk_limits_of_streams,
)
STORES: tuple[Script, ...] = (stores.walk_store,)
REPAIRS: tuple[Script, ...] = (repairs.walk_repair,)
PROTOCOL: tuple[Script, ...] = (
    requests_walk.walk_requests,
    connections_walk.walk_connections,
    requests_walk.walk_requests,
    answers_walk.walk_answers,
    losses_walk.walk_losses,
)
CHOICES = {
    "ledgers": LEDGERS,
    "streams": STREAMS,
    "stores": STORES,
    "repairs": REPAIRS,
    "protocol": PROTOCOL,
}
"""The walkthroughs of each kind. A run that does not name a kind has one of the first two."""
TIME_S = 300.0
"""Simulated seconds within which a walkthrough ends."""


async def judge(stage: Stage) -> None:
    """Walk through one part of the API, if the run has a walkthrough."""
    plan, mix, world = stage.plan, WORKLOADS[stage.plan.workload], stage.world
    if plan.liars or mix.hostile or mix.small_metadata:
        return  # These clusters have a broken bookie, or limits that no usual call respects.
    chance = world.loop.derive(f"walkthrough {plan.workload}")
    if chance.random() >= mix.walks:
        return
    scripts = CHOICES.get(mix.walks_mostly, LEDGERS + STREAMS)
    script = scripts[plan.seed % len(scripts)]
    usual = world.uneven, world.metadata_delay_s
    world.uneven, world.metadata_delay_s, world.network.quiet = False, 0.0, True
    walk = Walk(stage, script.__name__, chance)
    stage.history.add(walk.name, "begins")
    try:
        async with asyncio.timeout(TIME_S):
            await script(walk)
    except TimeoutError:
        walk.fail("a_quiet_cluster_costs_little", f"it did not end within {TIME_S:g} s")
    except QuireError as error:
        walk.fail("a_right_call_is_not_refused", f"a call raised {error!r}")
    finally:
        await walk.close()
        world.uneven, world.metadata_delay_s = usual
        world.network.quiet = False
