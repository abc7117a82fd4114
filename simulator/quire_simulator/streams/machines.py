"""State machines over streams: leaders that take over from each other, and followers."""

from __future__ import annotations

import asyncio
import random

from quire.client import Client
from quire.errors import QuireError, StreamGapError
from quire.statemachine import Leader
from quire.streams import Namespace
from quire.streams.statemachine.state_machine import follow, lead
from quire_simulator.streams.machine import Commands, HashChain, State
from quire_simulator.streams.plans import StreamerPlan, StreamPlan
from quire_simulator.streams.stage import StreamStage
from quire_simulator.world.stage import POLL_S

LEAD_ATTEMPTS = 4
PATIENCE_S = (0.3, 3.0, 10.0)
"""The choices for how long a machine follows before another replaces it."""
LAST_PATIENCE_S = 60.0


async def lead_machine(
    stage: StreamStage, who: str, client: Client, plan: StreamPlan, mine: StreamerPlan
) -> None:
    chance = stage.world.loop.derive(f"actor {who}")
    streams = await stage.namespace(client)
    try:
        for _ in range(mine.turns):
            await _turn(stage, who, streams, plan, mine, chance)
            if stage.over:
                break
            await asyncio.sleep(chance.random() * mine.pause_s)
    finally:
        await streams.close()


async def _turn(
    stage: StreamStage,
    who: str,
    streams: Namespace,
    plan: StreamPlan,
    mine: StreamerPlan,
    chance: random.Random,
) -> None:
    commands = stage.commands(plan)
    leader, machine = await start_leader(stage, who, streams, plan, mine.snapshot_every)
    if leader is None:
        return
    try:
        await asyncio.sleep(mine.wait_s)
        for number in range(mine.batches):
            draw = chance.random()
            if draw < 0.1:
                await leader.snapshot()
            elif draw < 0.2:
                await _confirm(commands, leader, machine, who)
            else:
                await _execute(commands, leader, who, chance.randint(1, mine.batch_records_max))
            await asyncio.sleep(chance.random() * mine.pause_s)
            if number == mine.batches // 2:
                await asyncio.sleep(mine.idle_s)
            if stage.over:
                break
        if mine.end == "close":
            await leader.close()
    except QuireError as error:
        stage.note(who, "failed", f"{type(error).__name__}: {error}")
    finally:
        await leader.__aexit__(QuireError, QuireError("left"), None)


async def start_leader(
    stage: StreamStage, who: str, streams: Namespace, plan: StreamPlan, snapshot_every: int
) -> tuple[Leader[State] | None, HashChain]:
    commands = stage.commands(plan)
    for _ in range(LEAD_ATTEMPTS):
        machine, acked = HashChain(commands), commands.last_acked
        try:
            if not stage.exists(plan):
                await streams.create_stream(plan.name, settings=plan.settings)
            leader = await lead(streams, plan.name, machine, snapshot_every=snapshot_every)
        except QuireError as error:
            stage.note(who, "does not lead", f"{type(error).__name__}: {error}")
            await asyncio.sleep(POLL_S)
            continue
        stage.note(who, "leads", f"{plan.name} at {machine.state[0]}")
        _knows(commands, leader, machine, acked, who)
        return leader, machine
    return None, HashChain(commands)


def _knows(
    commands: Commands, leader: Leader[State], machine: HashChain, acked: int, who: str
) -> None:
    """Check that a leader has applied every command that was durable for an earlier leader."""
    if machine.state[0] < acked or leader.applied != machine.state[0]:
        what = f"{who} applied {machine.state[0]} ({leader.applied}) of {acked} durable commands"
        commands.tell("no_command_is_lost", what)


async def _confirm(commands: Commands, leader: Leader[State], machine: HashChain, who: str) -> None:
    acked = commands.last_acked
    await leader.confirm()
    _knows(commands, leader, machine, acked, who)


async def _execute(commands: Commands, leader: Leader[State], who: str, count: int) -> None:
    names = [f"{who} {commands.begun + k}" for k in range(count)]
    commands.begun += count
    tasks = [asyncio.ensure_future(_one(commands, leader, name)) for name in names]
    await asyncio.wait(tasks)
    for task in tasks:
        task.exception()
    for task in tasks:
        task.result()


async def _one(commands: Commands, leader: Leader[State], name: str) -> None:
    commands.executed(name, await leader.execute(name.encode()))


async def follow_machine(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    """Follow with a second machine to the last command, and restart it now and then."""
    chance = stage.world.loop.derive(f"actor {who}")
    streams = await stage.namespace(client)
    commands = stage.commands(plan)
    try:
        while plan.number not in stage.finished or stage.exists(plan):
            machine = HashChain(commands)
            try:
                async with await follow(streams, plan.name, machine) as follower:
                    patience_s = chance.choice(PATIENCE_S)
                    if plan.number in stage.finished:
                        patience_s = LAST_PATIENCE_S
                    async with asyncio.timeout(patience_s):
                        await follower.wait_applied(stage.ends.get(plan.number, 1 << 60))
                    return
            except TimeoutError:
                pass
            except StreamGapError as error:
                stage.note(who, "failed", f"{error}")
            except QuireError as error:
                stage.note(who, "failed", f"{type(error).__name__}: {error}")
                if "cannot be restored: commands are missing" in str(error):
                    commands.tell("no_command_is_lost", f"{who}: {error}")
            await asyncio.sleep(POLL_S)
    finally:
        await streams.close()
