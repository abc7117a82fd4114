"""One run: faults and clients together, then calm, then the judgement."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quire.errors import QuireError, UsageError
from quire.testing.loop import SimulationError
from quire.testing.simulation.checker import Checker, LawError
from quire.testing.simulation.faults import Fault, Nemesis
from quire.testing.simulation.history import History
from quire.testing.simulation.workloads import WORKLOADS, Actors, Plan
from quire.testing.simulation.world import World

QUIET_S = 120.0
"""After the last fault everything is readable, and every client done, within this."""
ATTEMPTS_MAX = 40
RETRY_S = 1.0
STEPS_MAX = 5_000_000
TIME_MAX_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Failure:
    law: str
    """The name of the law that did not hold."""
    what: str


@dataclass(frozen=True, slots=True)
class Result:
    """`story` is what clients, metadata and faults did, line by line."""

    seed: int
    workload: str
    trace_digest: str
    simulated_s: float
    events: int
    checks: int
    failure: Failure | None
    schedule: tuple[Fault, ...]
    story: tuple[str, ...] = ()


def simulate(seed: int, workload: str = "all", *, story: bool = False) -> Result:
    """Run the cluster on this seed. Never raises for what it finds: that is `failure`.

    UsageError for a workload that does not exist."""
    if workload not in WORKLOADS:
        raise UsageError(f"no workload {workload!r}; there are: {', '.join(WORKLOADS)}")
    return run_plan(Plan.make(seed, workload), story=story)


def run_plan(plan: Plan, *, story: bool = False) -> Result:
    """The same for a plan that was made before, or changed: one without a fault, say."""
    world = World.make(plan.seed, plan.bookies, max_steps=STEPS_MAX, max_time_s=TIME_MAX_S)
    history = History(world.loop.time, world.trace)
    broken = world.loop.create_future()

    def on_broken() -> None:
        if not broken.done():
            broken.set_result(None)

    checker = Checker(world, history, on_broken)
    begin_s = world.loop.time()
    failure: Failure | None = None
    try:
        world.loop.run(_main(world, plan, history, checker, broken))
    except LawError as error:
        failure = Failure(error.law, error.what)
    except SimulationError as error:
        failure = Failure("the_run_comes_to_its_end", str(error))
    if checker.broken is not None:
        failure = Failure(checker.broken.law, checker.broken.what)
    return Result(
        seed=plan.seed,
        workload=plan.workload,
        trace_digest=world.trace.hexdigest(),
        simulated_s=world.loop.time() - begin_s,
        events=world.trace.count,
        checks=checker.checks,
        failure=failure,
        schedule=plan.schedule,
        story=tuple(_story(world, history)) if story else (),
    )


async def _main(
    world: World, plan: Plan, history: History, checker: Checker, broken: asyncio.Future[None]
) -> None:
    acting = asyncio.ensure_future(_scenes(world, plan, history, checker))
    await asyncio.wait([acting, broken], return_when=asyncio.FIRST_COMPLETED)
    if not acting.done():
        acting.cancel()
        await asyncio.wait([acting])
    if checker.broken is not None:
        raise checker.broken
    await acting


async def _scenes(world: World, plan: Plan, history: History, checker: Checker) -> None:
    nemesis = Nemesis(world, plan.bookie_config)
    for name in world.disks:
        await nemesis.bring_back(name)
    world.metadata_delay_s = plan.metadata_delay_s
    actors = Actors(world, plan, history, checker)
    actors.start()
    await nemesis.run(plan.schedule)
    await asyncio.sleep(max(0.0, actors.begin_s + plan.span_s - world.loop.time()))
    world.trace.record("nemesis", "calm")
    await nemesis.calm()
    for task in actors.tasks:  # a client that was paused for longer than the faults lasted
        if not task.node.dead:
            task.node.cont()
    try:
        async with asyncio.timeout(QUIET_S):
            await _judge(world, plan, actors, checker)
            while actors.unfinished():
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise LawError(
            "quiet_heals",
            f"{QUIET_S:g} s after the last fault: {', '.join(actors.unfinished()) or 'judges'}",
        ) from None
    await _garbage(world, checker)
    checker.check_all()
    await checker.replicated(frozenset(world.destroyed))
    for name in list(world.bookies):
        await world.stop(name)


async def _judge(world: World, plan: Plan, actors: Actors, checker: Checker) -> None:
    """Two readers recover and read every ledger that was not deleted, one after the other."""
    for judge in ("judge-0", "judge-1"):
        client = world.client(judge, plan.client_config)
        for ledger_id in list(actors.ids.values()):
            if not checker.facts(ledger_id).deleted:
                await _recover(judge, client, actors, ledger_id)
        await client.close()


async def _recover(judge: str, client: object, actors: Actors, ledger_id: int) -> None:
    for _ in range(ATTEMPTS_MAX):
        try:
            await actors.take_over(judge, client, ledger_id)  # type: ignore[arg-type]
            return
        except QuireError as error:
            why = error
            actors.history.add(judge, "failed", ledger_id, note=str(error))
            if actors.checker.facts(ledger_id).deleted:
                return
            await asyncio.sleep(RETRY_S)
    raise LawError("quiet_heals", f"ledger {ledger_id} cannot be read: {why}")


async def _garbage(world: World, checker: Checker) -> None:
    for bookie in list(world.bookies.values()):
        await bookie.collect_garbage()
    checker.garbage_is_collected()


def _story(world: World, history: History) -> list[str]:
    """Without the bytes on the network."""
    clients = {record.client for record in history.records}
    shown = {"nemesis", "checker", "metadata", *clients, *world.disks}
    return [
        line
        for line in world.trace.lines()
        if line.split(" ", 2)[1] in shown and "peer=" not in line
    ]
