"""Disks replaced by the code behind `quire bookie disk replace`.

It is interrupted at each of its operations. The cases of the workload `replaced` are covered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from quire.bookie.directories import replacement as disk_replacement
from quire.bookie.server import Bookie
from quire.errors import CookieError, StartError, StorageError, UsageError
from quire_simulator import RunPlan, simulate
from quire_simulator.actors.healers import HealInvariants
from quire_simulator.faults import replacements
from quire_simulator.faults.replacements import Replacements, SimDirectoryAccess
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.history import RunHistory
from quire_simulator.knobs.drawing import DrawnKnob
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.trace import Trace
from quire_simulator.metadata.items import MemoryPresence
from quire_simulator.plans.faults import Fault
from quire_simulator.run import run_plan
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World, bookie_id
from tests.support.sim.disks import (
    BOOKIE,
    LEDGERS,
    first_that_is_not_cut_off,
    ledgers_on,
    write_ledgers,
)

OPERATIONS_MIN = 15
"""The operations on the new disk: two small files, of which one is written twice."""
FIRST_SEED = 41
SEEDS_MAX = 30


class Scene:
    """A bookie with two directories that hold ledgers; the second dies."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World.make(seed, 1, 2)
        self.operator = Replacements(self.world, self.world.start, self.world.start)
        self.gone: list[int] = []

    async def begin(self) -> SimDisk:
        """The disk that has died, of a bookie that is down."""
        world = self.world
        await write_ledgers(world)
        world.crash(BOOKIE)
        lost = world.disks_of(BOOKIE)[1]
        self.gone = ledgers_on(lost)
        lost.away = True
        return lost

    def mount(self, lost: SimDisk, *, elsewhere: bool) -> SimDisk:
        new = SimDisk(self.world.loop.derive("new disk"), "elsewhere")
        if not elsewhere:
            new.path = lost.path
            self.world.exchange(BOOKIE, lost, new)
        return new

    async def check(self) -> bool:
        """The bookie starts; what the lost directory held is unknown, and the rest is here. Whether
        it has the new one."""
        await self.world.start(BOOKIE)
        store = self.world.bookies[BOOKIE].store
        assert store.negatives_unknown
        for ledger_id in range(LEDGERS):
            assert (ledger_id in store.ledgers) == (ledger_id not in self.gone)
            assert store.absence_unknown(ledger_id) == (ledger_id in self.gone)
        complete = not self.world.misses_a_directory(BOOKIE)
        self.world.crash(BOOKIE)
        return complete


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_replacement_survives_a_power_loss_at_each_operation(elsewhere: bool) -> None:
    async def cut_off(scene: Scene, operation: int) -> bool:
        world, lost = scene.world, await scene.begin()
        new = scene.mount(lost, elsewhere=elsewhere)
        world.crash_in_write(BOOKIE, operation, new)
        if await scene.operator.command(BOOKIE, lost.path, new):
            return False
        if not await scene.check():
            for _ in range(2):  # once more than is needed
                assert await scene.operator.command(BOOKIE, lost.path, new)
        if elsewhere:
            world.exchange(BOOKIE, lost, new)
        for _ in range(2):
            assert await scene.check()
        lost.away = False
        world.exchange(BOOKIE, new, lost)
        with pytest.raises(CookieError, match="given up"):
            await world.start(BOOKIE)
        return True

    def run(operation: int) -> bool:
        scene = Scene(operation)
        return bool(scene.world.loop.run(cut_off(scene, operation)))

    assert first_that_is_not_cut_off(run) > OPERATIONS_MIN


def test_a_healthy_disk_is_not_replaced() -> None:
    async def scenario() -> None:
        lost = await scene.begin()
        lost.away = False
        new = SimDisk(scene.world.loop.derive("new disk"), "elsewhere")
        with pytest.raises(StorageError, match="can be read"):
            await scene.operator.command(BOOKIE, lost.path, new)
        await scene.world.start(BOOKIE)
        assert not scene.world.bookies[BOOKIE].store.negatives_unknown
        with pytest.raises(UsageError, match="is registered"):
            await scene.operator.command(BOOKIE, lost.path, new)

    scene = Scene()
    scene.world.loop.run(scenario())


def test_the_simulated_machine_opens_its_directories() -> None:
    disks = [SimDisk(Scene().world.loop.derive(name), name) for name in "ab"]
    machine = SimDirectoryAccess(disks)
    assert machine.hold("sim:/c") is machine.look("sim:/c") is None
    assert machine.hold("sim:/a") is machine.look("sim:/a") is disks[0]
    with pytest.raises(StartError):
        machine.hold("sim:/a")
    disks[1].away = True
    assert machine.hold("sim:/b") is machine.look("sim:/b") is None


class Met:
    """The events of disks in some runs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        record, find = Trace.record, disk_replacement.find_replacement

        def noted(trace: Trace, node: str, event: str, **fields: Any) -> None:
            self.seen[event] += 1
            if event == "directory lost":
                self.seen["ledgers lost"] += fields["ledgers"] != "[]"
            elif event == "start failed":
                self.seen["old disk refused"] += "given up" in fields["error"]
            record(trace, node, event, **fields)

        async def found(*how: Any) -> Any:
            self.seen["elsewhere"] += how[2] != how[3]
            try:
                return await find(*how)
            except StorageError:
                self.seen["good disk kept"] += 1
                raise

        patch.setattr(Trace, "record", noted)
        patch.setattr(replacements, "find_replacement", found)

    def everything(self) -> bool:
        return all(
            self.seen[what]
            for what in (
                "ledgers lost", "replacement cut off", "elsewhere", "old disk refused",
                "good disk kept", "damage_reported", "loss_healed",
            )
        )  # fmt: skip


@pytest.mark.long
def test_disks_are_replaced_and_restored_in_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run seeds until every case has occurred."""
    met = Met(monkeypatch)
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        result = simulate(seed, "replaced")
        assert result.failure is None, (seed, result.failure)
        if met.everything():
            break
    assert met.everything(), met.seen


@pytest.mark.parametrize("seed", [47, 64, 73, 90])
@pytest.mark.long
def test_a_bookie_that_checks_ledgers_one_by_one_has_time_for_all(seed: int) -> None:
    """The judge stopped the bookie in each round, because slow calls of the store did not count."""
    plan = replace(
        RunPlan.make(seed, "replaced"),
        knobs=(DrawnKnob("bookie.background.damage.LEDGERS_PER_PASS", 1),),
        metadata_delay_s=0.3,
        damage_report_interval_s=3.0,
    )
    assert run_plan(plan).failure is None


@pytest.mark.parametrize(
    ("back_s", "kind", "invariant"),
    [
        (2.0, "crash", "a_lost_bookie_is_waited_for"),
        (0.2, "crash", None),  # Nobody need have noticed.
        (2.0, "directory away", None),  # then it lacks something
    ],
)
def test_the_delay_starts_again_for_a_bookie_that_is_lost_again(
    back_s: float, kind: str, invariant: str | None
) -> None:
    """It must have been back for long enough that an auditor saw it."""
    plan = RunPlan.make(FIRST_SEED, "replaced")
    plan = replace(
        plan,
        healers=(replace(plan.healers[0], delay_s=3),),
        schedule=(Fault(0.0, kind, BOOKIE),),
    )
    world = World.make(1, 1)
    history = RunHistory(world.loop.time, world.trace)
    checker = Checker(world, history, lambda: None)
    running = cast(Bookie, object())

    async def scenario() -> None:
        for away_s in (2.5, 2.5):
            world.bookies[BOOKIE] = running
            world.cluster.presences[bookie_id(BOOKIE)] = cast(MemoryPresence, object())
            await world.started(BOOKIE, running)
            await asyncio.sleep(back_s)
            invariants._leaves(bookie_id(BOOKIE))
            invariants._down.add(bookie_id(BOOKIE))
            del world.bookies[BOOKIE], world.cluster.presences[bookie_id(BOOKIE)]
            await asyncio.sleep(away_s)
        invariants._is_given_up(1, bookie_id(BOOKIE))

    world.started = nothing
    invariants = HealInvariants(Stage(world, plan, history, checker))
    world.loop.run(scenario())
    assert (checker.broken and checker.broken.invariant) == invariant


async def nothing(name: str, bookie: Bookie) -> None:
    """Return what does not exist for an unknown bookie."""
