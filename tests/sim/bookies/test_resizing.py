"""Data directories are added and removed by the code behind `quire bookie disk remove`.

It is interrupted at each of its operations and refused where required. The cases of `resized` are
covered.
"""

from __future__ import annotations

import pytest

from quire.errors import CookieError, UsageError
from quire_simulator import simulate
from quire_simulator.faults.resizing import Resizing
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.world import World, bookie_id
from tests.support.sim.disks import (
    BOOKIE,
    LEDGERS,
    first_that_is_not_cut_off,
    ledgers_on,
    write_ledgers,
)

OPERATIONS_MIN = 4
"""The operations on a remaining disk: one small file."""
FIRST_SEED = 61
SEEDS_MAX = 30


class Scene:
    """A bookie with three directories; the second is to go."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World.make(seed, 1, 3)
        self.operator = Resizing(self.world, self.world.start, self.world.start)
        self.kept: list[int] = []

    async def begin(self, *, delete: bool = True) -> SimDisk:
        """The directory that goes, of a bookie that is down. `delete`: its ledgers."""
        world = self.world
        await write_ledgers(world)
        disk = world.disks_of(BOOKIE)[1]
        world.kill(BOOKIE)
        gone = ledgers_on(disk)
        self.kept = [n for n in range(LEDGERS) if n not in gone]
        client = world.client("client")
        for ledger_id in gone if delete else ():
            await client.delete_ledger(ledger_id)
        await client.close()
        return disk

    async def check(self) -> None:
        """The bookie starts with what is left, and has all that it should."""
        await self.world.start(BOOKIE)
        store = self.world.bookies[BOOKIE].store
        assert not store.negatives_unknown
        for ledger_id in self.kept:
            assert ledger_id in store.ledgers
        self.world.crash(BOOKIE)


@pytest.mark.parametrize("struck", [0, 2])
def test_a_resize_survives_a_power_loss_at_each_operation(struck: int) -> None:
    async def cut_off(scene: Scene, operation: int) -> bool:
        world, disk = scene.world, await scene.begin()
        world.crash_in_write(BOOKIE, operation, world.disks_of(BOOKIE)[struck])
        if await scene.operator.command(BOOKIE, disk):
            return False
        assert await scene.operator.command(BOOKIE, disk)
        world.drop_disk(BOOKIE, disk)
        for _ in range(2):
            await scene.check()
        world.add_disk(BOOKIE, disk)
        with pytest.raises(CookieError):
            await world.start(BOOKIE)
        return True

    def run(operation: int) -> bool:
        scene = Scene(operation)
        return bool(scene.world.loop.run(cut_off(scene, operation)))

    assert first_that_is_not_cut_off(run) > OPERATIONS_MIN


def test_a_directory_that_is_needed_is_not_removed() -> None:
    async def scenario() -> None:
        disk = await scene.begin(delete=False)
        with pytest.raises(UsageError, match=r"ledgers? names? bookie .* nothing was changed"):
            await scene.operator.command(BOOKIE, disk)
        await scene.check()

    scene = Scene()
    scene.world.loop.run(scenario())


def test_the_last_directory_is_not_removed() -> None:
    async def scenario() -> None:
        await scene.world.start(BOOKIE)
        scene.world.kill(BOOKIE)
        for _ in range(2):
            disk = scene.world.disks_of(BOOKIE)[1]
            assert await scene.operator.command(BOOKIE, disk)
            scene.world.drop_disk(BOOKIE, disk)
        with pytest.raises(UsageError, match="has no other directory"):
            await scene.operator.command(BOOKIE, scene.world.disks_of(BOOKIE)[0])

    scene = Scene()
    scene.world.loop.run(scenario())


@pytest.mark.long
def test_the_workload_removes_directories_and_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The invariants of the workload would otherwise prove nothing."""
    taken: list[str] = []
    refused: list[str] = []
    command, forget = Resizing.command, Resizing._forget

    async def noted(self: Resizing, name: str, disk: SimDisk) -> bool:
        try:
            return await command(self, name, disk)
        except UsageError as error:
            refused.append(str(error))
            raise

    def forgotten(self: Resizing, name: str, disk: SimDisk) -> None:
        taken.append(bookie_id(name))
        forget(self, name, disk)

    monkeypatch.setattr(Resizing, "command", noted)
    monkeypatch.setattr(Resizing, "_forget", forgotten)
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        assert simulate(seed, "resized").failure is None
        if taken and any("not in its other directories" in one for one in refused):
            return
    pytest.fail(f"{len(taken)} taken away, {len(refused)} refused")
