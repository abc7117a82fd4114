"""Check a query at the end: it must have read everything, or reported what is gone."""

from __future__ import annotations

import asyncio

from quire.client import Client
from quire.errors import QuireError
from quire_simulator.spark.driver import QueryDriver, checkpoint_of
from quire_simulator.streams.plans import DyingPlan, StreamPlan
from quire_simulator.streams.stage import StreamStage
from quire_simulator.world.stage import POLL_S

ATTEMPTS_MAX = 10


async def judge_query(stage: StreamStage, judge: str, client: Client, plan: StreamPlan) -> None:
    """Let the query of this sink read what is left, and check that it has read everything."""
    checkpoint, chance = checkpoint_of(stage, plan), stage.world.loop.derive(f"query {judge}")
    query = plan.queries[0]
    if not all(stage.exists(stage.lives[number].plan) for number in (*query.sources, plan.number)):
        return  # One of them was never created, or not created again.
    for attempt in range(ATTEMPTS_MAX):
        if checkpoint.ended:
            return
        driver = QueryDriver(stage, judge, client, plan, query, DyingPlan(0.0, 0, 0.0), chance)
        try:
            await driver.drain()
            break
        except QuireError as error:
            stage.note(judge, "query failed", f"{type(error).__name__}: {error}")
            driver.ends_with(error)
            if attempt == ATTEMPTS_MAX - 1:
                raise
        await asyncio.sleep(POLL_S)
    stage.note(judge, "drained", f"{checkpoint.committed + 1} batches")
    views = checkpoint.views.get(checkpoint.committed, {})
    for number in query.sources:
        now, view = stage.lives[number], views.get(number)
        if not stage.exists(now.plan) or now.deleting or not now.acked:
            continue
        if view is None or view.facts is not now:
            what = f"{now.plan.name} was created again, and the query neither read it nor said so"
            checkpoint.fail("a_query_notices_another_stream", what)
        elif (view.position.upcoming or 0) < stage.ends.get(number, 0):
            at = view.position.upcoming or 0
            what = f"{now.plan.name} has {stage.ends[number]} records, but the query read {at}"
            checkpoint.fail("a_query_reads_everything", what)
