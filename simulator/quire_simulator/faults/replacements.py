"""Simulated operators who replace disks of a bookie.

They replace a dead disk by an empty one, with the code of `quire bookie disk replace`, which is
sometimes interrupted and run again. Old disks come back, and healthy disks are named by mistake:
both must be refused. Directories that are restored from older copies must count as lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from quire.bookie.directories.lost import content_of
from quire.bookie.directories.replacement import find_replacement
from quire.errors import QuireError, StorageError
from quire.metadata.interface import MetadataStore
from quire_simulator.faults.disk_operators import (
    ATTEMPTS_MAX,
    RETRY_S,
    Act,
    DiskOperator,
    SimDirectoryAccess,
)
from quire_simulator.invariants.ledger import bookies_of
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World, bookie_id

WITHOUT = 0.5
"""How often it goes on for a while without the directory that it has lost."""
UNMOUNTED = 0.7
"""How often there is no directory then."""
ELSEWHERE = 0.4
"""How often the empty disk has another path."""
OPERATIONS_MAX = 24
"""Of a disk, for one replacement."""
MEANWHILE = 0.6
"""How often the bookie is started where a replacement was cut off."""
MEANWHILE_S = 1.0
BACK_S = 100.0
"""By then what it has lost is back: auditors look for what nobody has marked after longer."""
COMES_BACK = 0.3
"""How often the disk that died is mounted again at once, in the place of the empty one."""
ROUND_S = 20.0
"""A bookie looks at all ledgers in that time, and a worker closes those of dead writers."""
ROUNDS_MAX = 4


class Replacements(DiskOperator):
    def __init__(self, world: World, bring_back: Act, start_once: Act) -> None:
        super().__init__(world, bring_back, start_once)
        self._dead: list[tuple[SimDisk, SimDisk]] = []
        """Those that were replaced, and by which."""

    async def replace(
        self, name: str, lost: SimDisk, chance: random.Random, duration_s: float
    ) -> None:
        """The disk dies for good, and sooner or later an empty one is in its place."""
        world = self._world
        await self._end(name, chance)
        _forget(world, name, lost)
        nothing = self._nothing(name, lost, chance)
        if len(world.disks_of(name)) > 1 and chance.random() < WITHOUT:
            await self._bring_back(name)
            await asyncio.sleep(chance.random() * duration_s)
            await self._end(name, chance)
        new = self._another(name, lost, elsewhere=chance.random() < ELSEWHERE)
        if new.path == lost.path:
            world.exchange(name, nothing, new)
        for _ in range(ATTEMPTS_MAX):
            killing = self._cut_off(name, new, OPERATIONS_MAX, chance)
            try:
                if await self.command(name, lost.path, new):
                    break
            except QuireError as error:
                world.trace.record(name, "not replaced", error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                if killing is not None:
                    killing.cancel()
            world.trace.record(name, "replacement cut off")
            if chance.random() < MEANWHILE:
                await self._try(name)
                await asyncio.sleep(chance.random() * MEANWHILE_S)
                done = new in world.disks_of(name) and self._has_all(name)
                await self._end(name, chance)
                if done:
                    break
        else:
            return  # who waits for all to be calm notices
        if new.path != lost.path:
            world.exchange(name, nothing, new)
        self._dead.append((lost, new))
        if chance.random() < COMES_BACK:
            await self.bring_back_old(name, chance)
        await self._bring_back(name)

    async def command(self, name: str, lost: str, new: SimDisk) -> bool:
        """As `quire bookie disk replace` does, on the machine of the bookie. False: it was cut off.
        Raises what that raises."""
        world = self._world

        async def work(store: MetadataStore, machine: SimDirectoryAccess, label: str) -> None:
            found = await find_replacement(store, bookie_id(name), lost, new.path, machine)
            random_bytes = world.loop.derive(label).randbytes
            await found.carry_out(store, random_bytes, world.clocks[name].now_ms())

        world.trace.record(name, "replace", lost=lost, new=new.path)
        return await self._run(name, work, new)

    async def bring_back_old(self, name: str, chance: random.Random) -> None:
        """A disk that was replaced is mounted again, in the place of the one that replaced it, at
        the path that either has. The bookie must not start with it."""
        world = self._world
        there = [(old, new) for old, new in self._dead if new in world.disks_of(name)]
        if not there:
            return
        old, new = chance.choice(there)
        await self._end(name, chance)
        world.exchange(name, new, old)
        await self._is_refused(name)
        world.exchange(name, old, new)
        await self._bring_back(name)

    async def replace_good(self, name: str, good: SimDisk, chance: random.Random) -> None:
        """By mistake: of a directory that is well. Where it is not refused, its entries are gone,
        and were never said to be lost."""
        await self._end(name, chance)
        new = self._another(name, good, elsewhere=True)
        for _ in range(ATTEMPTS_MAX):
            try:
                if await self.command(name, good.path, new):
                    self._world.exchange(name, good, new)
                    break
            except StorageError:
                break
            except QuireError:
                pass
            await asyncio.sleep(RETRY_S)
        await self._bring_back(name)

    async def roll_back(
        self, name: str, disk: SimDisk, chance: random.Random, duration_s: float
    ) -> None:
        """Back up the directory while the bookie runs or is down. Let the bookie start at least
        once more and go on for a while. Then restore the directory from the backup."""
        world, me = self._world, bookie_id(name)
        backup = disk.copy()
        backup.usual_slowness = backup.slowness = disk.usual_slowness
        backup.crash()
        held = world.claims.held_by(me)
        starts = world.completed_starts[name]
        for _ in range(ATTEMPTS_MAX):
            await self._end(name, chance)
            await self._bring_back(name)
            if world.completed_starts[name] > starts:
                break
        else:
            return
        await asyncio.sleep(chance.random() * duration_s)
        await self._end(name, chance)
        _forget(world, name, disk)
        kept = content_of(backup).ledgers or ()
        for ledger_id, what in held.items():
            if ledger_id in kept and world.claims.lost(ledger_id).get(me):
                world.claims.keep(me, ledger_id, what)
        world.exchange(name, disk, backup)
        await self._bring_back(name)

    # -- inside -------------------------------------------------------------------------------

    def _has_all(self, name: str) -> bool:
        """Whether the bookie runs with all its directories."""
        bookie = self._world.bookies.get(name)
        return bookie is not None and bookie.recovered and not self._world.misses_a_directory(name)

    def _nothing(self, name: str, lost: SimDisk, chance: random.Random) -> SimDisk:
        """What is at the path of a disk that died: no directory, or an empty one. An only directory
        is made by whoever starts on it."""
        nothing = self._another(name, lost, elsewhere=False)
        nothing.away = len(self._world.disks_of(name)) > 1 and chance.random() < UNMOUNTED
        self._world.exchange(name, lost, nothing)
        return nothing


def _forget(world: World, name: str, lost: SimDisk) -> None:
    """What was in no other directory of the bookie, which is down, is lost."""
    others = [content_of(disk).ledgers or () for disk in world.disks_of(name) if disk is not lost]
    me = bookie_id(name)
    gone = [n for n in world.claims.ledgers_of(me) if not any(n in here for here in others)]
    world.trace.record("nemesis", "directory lost", disk=lost.path, ledgers=str(gone))
    world.claims.lose(me, gone, world.loop.time())
    for ledger_id in gone:
        if ledger_id in world.cluster.ledgers:
            world.claims.named(ledger_id, bookies_of(world.cluster.ledger(ledger_id).value))
    world.lossy.add(name)


# -- the end ----------------------------------------------------------------------------------


async def judge(stage: Stage, restart: Act) -> None:
    """What is lost comes back without an auditor that looks for it. Then bookies say "no" again,
    and take entries of writers. By themselves they look at all ledgers ten minutes after the last
    time: here they start again, and do so at once."""
    lossy = sorted(stage.world.lossy)
    for name in lossy:
        await restart(name)
    if left := await _until(lambda: _lost(stage), BACK_S):
        stage.checker.fail("what_is_lost_comes_back", left[0])
    for _ in range(ROUNDS_MAX):
        for name in lossy:
            await restart(name)
        if not (left := await _until(lambda: _lossy(stage), ROUND_S)):
            _fences_are_back(stage)
            return
    stage.checker.fail("a_loss_comes_to_its_end", left[0])


async def _until(left: Callable[[], list[str]], limit_s: float) -> list[str]:
    """What is left when nothing is, or the time is over."""
    for _ in range(int(limit_s / RETRY_S)):
        if not left():
            break
        await asyncio.sleep(RETRY_S)
    return left()


def _fences_are_back(stage: Stage) -> None:
    """Those of ledgers that are closed, and have named the bookie all the time."""
    cluster = stage.world.cluster
    for name in sorted(stage.world.lossy):
        me, store = bookie_id(name), stage.world.bookies[name].store
        for ledger_id in sorted(stage.world.claims.lost_fences.get(me, ())):
            if ledger_id not in cluster.ledgers:
                continue
            closed, info = cluster.ledger(ledger_id).value.closed, store.ledgers.get(ledger_id)
            if closed and (info is None or not info.fenced):
                what = f"{name} has lost the fence of ledger {ledger_id}"
                stage.checker.fail("what_is_lost_comes_back", what)


def _lost(stage: Stage) -> list[str]:
    return [
        f"{name} lacks entry {min(entries)} of ledger {ledger_id}"
        for name in sorted(stage.world.lossy)
        for ledger_id in stage.checker.ledgers
        if (entries := stage.checker.lost_entries(name, ledger_id))
    ]


def _lossy(stage: Stage) -> list[str]:
    names = sorted(stage.world.lossy)
    return [f"{name} has lost something" for name in names if _is_lossy(stage.world, name)]


def _is_lossy(world: World, name: str) -> bool:
    bookie = world.bookies.get(name)
    return bookie is None or bookie.store.negatives_unknown or not bookie.writable
