"""Execute one run: clients and faults together, then a calm phase, then the final checks."""

from __future__ import annotations

import asyncio

from quire._runtime.names.process_numbers import numbers_from_one
from quire.client import Client
from quire.errors import QuireError, UsageError
from quire_simulator.actors import healers, objects, operators, publishers, racks
from quire_simulator.actors.actors import Actors
from quire_simulator.actors.readers import take_over
from quire_simulator.actors.walkthroughs import draw
from quire_simulator.faults import byzantine, replacements
from quire_simulator.faults.hostile import with_low_limits
from quire_simulator.faults.nemesis import Nemesis
from quire_simulator.invariants import bit_rot, loading_answers, space, unreadable
from quire_simulator.invariants.checker import Checker, InvariantError
from quire_simulator.invariants.history import RunHistory
from quire_simulator.invariants.memory import BookieMemory
from quire_simulator.invariants.recreated import RecreatedLedgers
from quire_simulator.invariants.reports import bookies, clients, cluster, directories
from quire_simulator.invariants.reports.listings import judge_ledgers
from quire_simulator.invariants.silent_connections import SilentConnections
from quire_simulator.knobs.applied import applied
from quire_simulator.machine.loop import SimulationError
from quire_simulator.metadata.limits import metadata_limits
from quire_simulator.plans.plans import RunPlan
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.report.recorder import TraceRecorder
from quire_simulator.report.result import RunFailure, RunResult
from quire_simulator.streams.judge import judge_streams
from quire_simulator.streams.topics.actors import judge_topics
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World

QUIET_S = 120.0
"""Seconds after the last fault within which every ledger must be readable and every client done."""
LEAVES_S = 60.0
"""Seconds more for each bookie that is decommissioned after the last fault.

They leave one after the other, and an attempt fails if the change of a ledger was lost by chance.
"""
ATTEMPTS_MAX = 40
RETRY_S = 1.0
STEPS_MAX = 5_000_000
TIME_MAX_S = 3_600.0
SLOW_DISK_MAX = 30.0
"""The factor by which the slowest disk of an uneven cluster is slower than the fastest."""


def simulate(seed: int, workload: str = "all", *, trace: bool = False) -> RunResult:
    """Simulate a cluster with this seed and return the result.

    A broken invariant is not raised. It is the `failure` of the result.

    Raises:
        UsageError: The workload does not exist.
    """
    if workload not in WORKLOADS:
        raise UsageError(
            f"There is no workload {workload!r}. The workloads are: {', '.join(WORKLOADS)}."
        )
    return run_plan(RunPlan.make(seed, workload), trace=trace)


def run_plan(plan: RunPlan, *, trace: bool = False) -> RunResult:
    """Run a plan that exists already, for instance a plan from which faults were removed.

    Raises:
        UsageError: The plan has a knob that does not exist.
    """
    with applied(plan.knobs), numbers_from_one():
        return _run_plan(plan, trace=trace)


def _run_plan(plan: RunPlan, *, trace: bool) -> RunResult:
    world = World.make(
        plan.seed, plan.bookies, plan.directories, max_steps=STEPS_MAX, max_time_s=TIME_MAX_S
    )
    history = RunHistory(world.loop.time, world.trace)
    broken = world.loop.create_future()

    def on_broken() -> None:
        if not broken.done():
            broken.set_result(None)

    checker = Checker(world, history, on_broken)
    recorder = TraceRecorder(world, history, plan.schedule) if trace else None
    begin_s = world.loop.time()
    failure: RunFailure | None = None
    try:
        with metadata_limits(plan):
            world.loop.run(_main(world, plan, history, checker, broken))
    except InvariantError as error:
        failure = RunFailure(error.invariant, error.what)
    except SimulationError as error:
        failure = RunFailure("the_run_comes_to_its_end", str(error))
    except Exception as error:  # noqa: BLE001 - a check may fail on something broken
        failure = RunFailure("the_run_comes_to_its_end", repr(error))
    finally:
        world.slow_starts.end()
    if checker.broken is not None:
        failure = RunFailure(checker.broken.invariant, checker.broken.what)
    return RunResult(
        seed=plan.seed,
        workload=plan.workload,
        trace_digest=world.trace.hexdigest(),
        simulated_s=world.loop.time() - begin_s,
        events=world.trace.count,
        checks=checker.checks,
        failure=failure,
        schedule=plan.schedule,
        trace=recorder.steps() if recorder is not None else (),
    )


async def _main(
    world: World, plan: RunPlan, history: RunHistory, checker: Checker, broken: asyncio.Future[None]
) -> None:
    acting = asyncio.ensure_future(_scenes(Stage(world, plan, history, checker)))
    sampling = asyncio.ensure_future(checker.sample())
    await asyncio.wait([acting, sampling, broken], return_when=asyncio.FIRST_COMPLETED)
    for task in (acting, sampling):
        task.cancel()
    await asyncio.wait([acting, sampling])
    if not sampling.cancelled():
        sampling.result()  # Raise if sampling failed: a broken checker would find nothing.
    if checker.broken is None and not acting.cancelled() and acting.exception() is None:
        checker.nothing_is_left_behind()
    if checker.broken is not None:
        raise checker.broken
    await acting


async def _scenes(stage: Stage) -> None:
    world, plan, checker = stage.world, stage.plan, stage.checker
    if plan.uneven:
        for disk in world.disks.values():
            disk.usual_slowness = SLOW_DISK_MAX ** world.loop.derive(disk.path).random()
            disk.slowness = disk.usual_slowness
    if plan.racks:
        racks.settle(world, plan.racks)
    mix = WORKLOADS[plan.workload]
    config = plan.bookie_config
    if mix.hostile:
        config = with_low_limits(config)
        BookieMemory(world, checker)
    metrics = bookies.BookieReports(world, checker)
    counters = clients.ClientReports(world, checker)
    nemesis = Nemesis(world, config, checker.fail)
    world.later.update(list(world.disks)[plan.bookies - plan.later :])
    for name in world.disks:
        if name not in world.later:
            await nemesis.bring_back(name)
    world.slow_starts.slow = mix.slow_starts
    if mix.slow_starts or mix.replacing:
        loading_answers.LoadingAnswers(world, checker)
    SilentConnections(world, checker)
    world.metadata_delay_s, world.skew_ms = plan.metadata_delay_s, plan.skew_ms
    world.uneven = plan.uneven
    recreated = stage.recreated = RecreatedLedgers(world, checker)
    actors = Actors(stage)
    actors.start()
    joining = asyncio.ensure_future(nemesis.join(plan.joins_s))
    await nemesis.run(plan.schedule)
    await joining
    await asyncio.sleep(max(0.0, stage.begin_s + plan.span_s - world.loop.time()))
    world.trace.record("nemesis", "calm")
    await nemesis.calm()
    recreated.remove_all()
    for task in actors.tasks:  # A client may be paused for longer than the faults lasted.
        if not task.node.dead:
            task.node.cont()
    actors.another_healer()
    # Operations that were in flight when the faults ended may still fail.
    supervising = asyncio.ensure_future(nemesis.supervise())
    await unreadable.judge(stage, _recover)
    await _heal(stage, actors)
    nemesis.hostiles.end()
    await draw.judge(stage)
    if mix.replacing:
        await replacements.judge(stage, nemesis.restart)
        if mix.short_segments:
            await nemesis.lose_once_more()
            await replacements.judge(stage, nemesis.restart)
    if plan.healers:
        await healers.judge(stage)
        while actors.healers():
            await asyncio.sleep(RETRY_S)
    if plan.racks:
        client = world.client("judge-3", plan.client_config)
        await racks.explain(stage, client)
        await client.close()
    supervising.cancel()
    await asyncio.wait([supervising])
    for name in world.disks:
        await nemesis.bring_back(name)
    await checker.garbage_is_collected()
    if mix.slow_starts:
        await loading_answers.judge(stage)
    if plan.compact_ratio:
        await space.judge(stage)
    if plan.scrub_interval_s:
        await bit_rot.judge(stage)
    await operators.collect_copies(stage)
    checker.check_all()
    await checker.replicated(undisturbed=not plan.schedule and not plan.cancelling)
    await cluster.compare(stage)
    await metrics.compare(stage)
    counters.compare(stage)
    await directories.stop_and_inspect(stage)


async def _heal(stage: Stage, actors: Actors) -> None:
    """Check that without faults all work finishes in time."""
    checker = stage.checker
    quiet_s = QUIET_S + LEAVES_S * len(operators.leaving(stage.plan))
    try:
        async with asyncio.timeout(quiet_s):
            await _judge(stage)
            while actors.unfinished() or checker.unregistered() or checker.down():
                await asyncio.sleep(RETRY_S)
            await _judge_datasets(stage)
            await objects.judge(stage)
            await judge_streams(actors.streams, actors.tailers)
            await judge_topics(actors.streams, actors.topics)
            await operators.finish(stage)
            stage.moved.set()
            while actors.holders():
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        left = [
            *actors.unfinished(),
            *actors.tailers(),
            *actors.holders(),
            *checker.unregistered(),
            *checker.down(),
        ]
        raise InvariantError(
            "quiet_heals",
            f"{quiet_s:g} s after the last fault, not finished: {', '.join(left) or 'judges'}",
        ) from None


async def _judge(stage: Stage) -> None:
    """Recover and read every ledger with two readers, one after the other.

    Each must see every acknowledged entry, and the same end of the ledger as all earlier readers.
    """
    for judge in ("judge-0", "judge-1"):
        client = stage.world.client(judge, stage.plan.client_config)
        for ledger_id in list(stage.world.ledger_ids.values()):
            if ledger_id in stage.world.cluster.ledgers:
                await _recover(stage, judge, client, ledger_id)
        await judge_ledgers(stage, judge, client)
        byzantine.hear(stage, judge, client)
        await client.close()


async def _judge_datasets(stage: Stage) -> None:
    if stage.datasets:
        client = stage.world.client("judge-2", stage.plan.client_config)
        await publishers.judge(stage, client)
        await client.close()


async def _recover(stage: Stage, judge: str, client: Client, ledger_id: int) -> None:
    for _ in range(ATTEMPTS_MAX):
        try:
            await take_over(stage, judge, client, ledger_id)
            return
        except QuireError as error:
            why = error
            stage.history.add(judge, "failed", ledger_id, note=str(error))
            if ledger_id not in stage.world.cluster.ledgers:
                return
            await asyncio.sleep(RETRY_S)
    raise InvariantError("quiet_heals", f"ledger {ledger_id} cannot be recovered and read: {why}")
