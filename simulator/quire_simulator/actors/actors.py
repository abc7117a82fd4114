"""The set of all clients of a run, each on its own simulated node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from quire.client import Client
from quire.errors import QuireError
from quire_simulator.actors.healers import LAST, HealInvariants, heal, is_healer
from quire_simulator.actors.holders import hold, is_holder
from quire_simulator.actors.objects import use_objects
from quire_simulator.actors.operators import JobInvariants, operate
from quire_simulator.actors.publishers import follow, publish
from quire_simulator.actors.racks import RackInvariants
from quire_simulator.actors.readers import delete, read, read_closed, recover, tail
from quire_simulator.actors.writers import write, write_together
from quire_simulator.faults.byzantine import BYZANTINE, ByzantineBookie, hear
from quire_simulator.invariants.objects import ObjectInvariants
from quire_simulator.machine.loop import SimTask
from quire_simulator.plans.plans import LedgerPlan, TopicPlan, readers_of
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.streams.actors import is_tailer, stream_actors
from quire_simulator.streams.stage import StreamStage
from quire_simulator.streams.topics.actors import use_topics
from quire_simulator.streams.topics.history import TopicInvariants
from quire_simulator.world.stage import Stage

Work = Callable[[Stage, str, Client], Awaitable[None]]


class LedgerActor(Protocol):
    """A client that works on one ledger."""

    async def __call__(self, stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None: ...


HOLDERS = 2
"""The number of long-lived readers of each ledger."""
READERS: dict[str, LedgerActor] = {
    "recoverer": recover,
    "tail": tail,
    "reader": read,
    "deleter": delete,
}


class Actors:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.tasks: list[SimTask[None]] = []
        self.streams = StreamStage(stage)
        self.topics: TopicInvariants | None = None
        """What is known of topics, in runs that have some."""
        if stage.plan.topics:
            self.topics = TopicInvariants(stage.world, stage.checker)
        if stage.plan.healers:
            HealInvariants(stage)
        if stage.plan.jobs:
            JobInvariants(stage)
        if stage.plan.racks:
            RackInvariants(stage)
        if stage.plan.objects:
            stage.objects = ObjectInvariants(stage.world, stage.checker)
        if stage.plan.liars:
            ByzantineBookie(stage.world, BYZANTINE)
        stage.begin_s = stage.world.loop.time()

    def start(self) -> None:
        together = WORKLOADS[self.stage.plan.workload].together
        if together:
            plans = self.stage.plan.ledgers
            self._spawn("writer-0", plans[0].begin_s, partial(write_together, plans=plans))
        for plan in self.stage.plan.ledgers:
            if not together:
                self._spawn(f"writer-{plan.number}", plan.begin_s, partial(write, plan=plan))
            for what, times in readers_of(plan):
                for k, at_s in enumerate(times):
                    work = partial(READERS[what], plan=plan)
                    self._spawn(f"{what}-{plan.number}.{k}", at_s, work)
            for k in range(WORKLOADS[self.stage.plan.workload].eager):
                self._spawn(f"eager-{plan.number}.{k}", 0.0, partial(read_closed, plan=plan))
            if self.stage.plan.later:
                for k in range(HOLDERS):
                    self._spawn(f"holder-{plan.number}.{k}", 0.0, partial(hold, plan=plan))
        for one in self.stage.plan.publishers:
            self._spawn(f"publisher-{one.number}", one.begin_s, partial(publish, plan=one))
            self._spawn(f"follower-{one.number}", one.begin_s, partial(follow, plan=one))
        for objects in self.stage.plan.objects:
            work = partial(use_objects, plan=objects)
            self._spawn(f"objects-{objects.number}", objects.begin_s, work)
        for topics in self.stage.plan.topics:
            assert self.topics is not None
            use = partial(_use_topics, streams=self.streams, facts=self.topics, plan=topics)
            self._spawn(f"topics-{topics.number}", topics.begin_s, use)
        for healer in self.stage.plan.healers:
            self._spawn(f"healer-{healer.number}", healer.begin_s, partial(heal, plan=healer))
        for job in self.stage.plan.jobs:
            self._spawn(f"job-{job.number}", job.begin_s, partial(operate, plan=job))
        for name, begin_s, act in stream_actors(self.streams):
            self._spawn(name, begin_s, act)

    def unfinished(self) -> list[str]:
        """Return the names of the living clients that have not finished."""
        waiting = (is_tailer, is_healer, is_holder)
        return [name for name in self._alive() if not any(one(name) for one in waiting)]

    def holders(self) -> list[str]:
        """Return the names of the living readers that wait until all bookies have moved."""
        return [name for name in self._alive() if is_holder(name)]

    def another_healer(self) -> None:
        """Start one more healer, because all others may have died."""
        for one in self.stage.plan.healers[:1]:
            self._spawn(LAST, 0.0, partial(heal, plan=replace(one, part="both")))

    def healers(self) -> list[str]:
        return [name for name in self._alive() if is_healer(name)]

    def tailers(self) -> list[str]:
        """Return the names of the living clients that wait for the last record of a stream."""
        return [name for name in self._alive() if is_tailer(name)]

    def _alive(self) -> list[str]:
        return [t.get_name() for t in self.tasks if not t.done() and not t.node.dead]

    def _spawn(self, name: str, at_s: float, work: Work) -> None:
        node = self.stage.world.network.node(name).node
        self.tasks.append(node.create_task(self._act(name, at_s, work), name=name))

    async def _act(self, name: str, at_s: float, work: Work) -> None:
        stage = self.stage
        await asyncio.sleep(at_s)
        client = stage.world.client(name, stage.plan.client_config, lazy_addresses=is_healer(name))
        try:
            await work(stage, name, client)
        except QuireError as error:
            stage.history.add(name, "failed", note=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - an invariant: only QuireError may be raised
            stage.checker.fail("only_our_errors", f"{name}: {error!r}")
        hear(stage, name, client)
        try:
            await client.close()
        except QuireError as error:
            stage.history.add(name, "close failed", note=type(error).__name__)


async def _use_topics(
    stage: Stage,
    name: str,
    client: Client,
    *,
    streams: StreamStage,
    facts: TopicInvariants,
    plan: TopicPlan,
) -> None:
    await use_topics(streams, facts, name, client, plan)
