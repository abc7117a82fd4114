"""Simulated operators who replace disks of a bookie.

They replace a dead disk by an empty one, with the code of `quire bookie disk replace`, which is
sometimes interrupted and run again. Old disks come back, and healthy disks are named by mistake:
both must be refused. Directories that are restored from older copies must count as lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from quire.bookie.background import damage
from quire.bookie.directories.lost_directory import content_of
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
"""The probability that the bookie first runs for a while without the lost directory."""
UNMOUNTED = 0.7
"""The probability that the lost directory's path does not exist then."""
ELSEWHERE = 0.4
"""The probability that the empty disk has another path."""
OPERATIONS_MAX = 24
"""The highest number of disk operations of one replacement."""
MEANWHILE = 0.6
"""The probability that the bookie is started after an interrupted replacement."""
MEANWHILE_S = 1.0
BACK_S = 100.0
"""Seconds within which lost entries are back. An auditor's own search, which could hide a missing
mark, takes longer.
"""
COMES_BACK = 0.3
"""The probability that the dead disk is mounted again at once, in place of the empty one."""
ROUND_S = 20.0
"""In this time a bookie checks all ledgers, and a worker closes the ledgers of dead writers. A knob
may let a bookie check fewer ledgers at once. The round then lasts longer (`_round_s`)."""
ROUNDS_MAX = 4
PASS_CALLS_MAX = 8
"""The most calls of the metadata store, one after the other, in a pass over few ledgers."""

FULL_AGAIN = 0.4
"""The probability that the disk of a directory that was rolled back is full at the next start."""
FULL_S = 4.0
"""The longest time for which it is full."""
ROOM_LEFT_BYTES = 20_000


class Replacements(DiskOperator):
    def __init__(self, world: World, bring_back: Act, start_once: Act) -> None:
        super().__init__(world, bring_back, start_once)
        self._dead: list[tuple[SimDisk, SimDisk]] = []
        """The replaced disks, each with its replacement."""

    async def replace(
        self, name: str, lost: SimDisk, chance: random.Random, duration_s: float
    ) -> None:
        """Lose the disk for good, and replace it by an empty one sooner or later."""
        world = self._world
        await self._end(name, chance)
        forget(world, name, lost)
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
            return  # The final checks will notice.
        if new.path != lost.path:
            world.exchange(name, nothing, new)
        self._dead.append((lost, new))
        if chance.random() < COMES_BACK:
            await self.bring_back_old(name, chance)
        await self._bring_back(name)

    async def command(self, name: str, lost: str, new: SimDisk) -> bool:
        """Run the code of `quire bookie disk replace` on the bookie's machine.

        Return False if it was interrupted. Errors of the command are raised.
        """
        world = self._world

        async def work(store: MetadataStore, machine: SimDirectoryAccess, label: str) -> None:
            found = await find_replacement(store, bookie_id(name), lost, new.path, machine)
            random_bytes = world.loop.derive(label).randbytes
            await found.carry_out(store, random_bytes, world.clocks[name].now_ms())

        world.trace.record(name, "replace", lost=lost, new=new.path)
        return await self._run(name, work, new)

    async def bring_back_old(self, name: str, chance: random.Random) -> None:
        """Mount a replaced disk again, in place of its replacement, at the path of either disk.

        The bookie must not start with it.
        """
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
        """Replace a healthy directory by mistake.

        If the command does not refuse this, the entries are gone although the bookie never reported
        a loss.
        """
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
        once more and go on for a while. Then restore the directory from the backup. Now and then
        the restored disk has no room for the first seconds of the bookie, or nearly none.
        """
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
        forget(world, name, disk)
        kept = content_of(backup).ledgers or ()
        for ledger_id, what in held.items():
            if ledger_id in kept and world.claims.lost(ledger_id).get(me):
                world.claims.keep(me, ledger_id, what)
        world.exchange(name, disk, backup)
        if chance.random() < FULL_AGAIN:
            self._fill(name, backup, chance)
        await self._bring_back(name)

    # -- inside -------------------------------------------------------------------------------

    def _fill(self, name: str, disk: SimDisk, chance: random.Random) -> None:
        """Leave a disk at most a little room for a while."""
        world, taken = self._world, disk.free_bytes()
        taken -= min(taken, chance.choice([0, int(chance.random() * ROOM_LEFT_BYTES)]))
        disk.capacity_bytes -= taken

        def has_room() -> None:
            disk.capacity_bytes += taken
            world.trace.record("nemesis", "room", disk=disk.path)

        world.trace.record("nemesis", "full when it starts", disk=disk.path, target=name)
        context = world.loop.main.context.copy()
        world.loop.call_later(chance.random() * FULL_S, has_room, context=context)

    def _has_all(self, name: str) -> bool:
        """Return whether the bookie runs with all its directories."""
        bookie = self._world.bookies.get(name)
        return bookie is not None and bookie.recovered and not self._world.misses_a_directory(name)

    def _nothing(self, name: str, lost: SimDisk, chance: random.Random) -> SimDisk:
        """Put what is found at a dead disk's path in its place: no directory, or an empty one.

        If it was the bookie's only directory, there is always an empty one.
        """
        nothing = self._another(name, lost, elsewhere=False)
        nothing.away = len(self._world.disks_of(name)) > 1 and chance.random() < UNMOUNTED
        self._world.exchange(name, lost, nothing)
        return nothing


def forget(world: World, name: str, lost: SimDisk) -> None:
    """Record the loss of all data that the stopped bookie had in no other directory."""
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
    """Check that lost entries come back without an auditor's search, and that the bookies then
    recover fully.

    Afterwards bookies answer that entries do not exist, and accept entries of writers. They check
    all ledgers ten minutes after the previous check, and also when they start. So the bookies are
    restarted here.
    """
    lossy = sorted(stage.world.lossy)
    for name in lossy:
        await restart(name)
    if left := await _until(lambda: _lost(stage), BACK_S):
        stage.checker.fail("what_is_lost_comes_back", left[0])
    for _ in range(ROUNDS_MAX):
        for name in lossy:
            await restart(name)
        if not (left := await _until(lambda: _lossy(stage), _round_s(stage))):
            _fences_are_back(stage)
            return
    stage.checker.fail("a_loss_comes_to_its_end", left[0])


def _round_s(stage: Stage) -> float:
    """Return the seconds in which a bookie checks all ledgers, with two passes to spare."""
    passes = len(stage.checker.ledgers) // damage.LEDGERS_PER_PASS + 2
    # The interval begins when a pass has ended. Requests and replies are both delayed.
    pass_s = stage.plan.damage_report_interval_s + PASS_CALLS_MAX * 2 * stage.plan.metadata_delay_s
    return max(ROUND_S, passes * pass_s)


async def _until(left: Callable[[], list[str]], limit_s: float) -> list[str]:
    """Wait until nothing is left or the time is over, and return what is left."""
    for _ in range(int(limit_s / RETRY_S)):
        if not left():
            break
        await asyncio.sleep(RETRY_S)
    return left()


def _fences_are_back(stage: Stage) -> None:
    """Check the lost fences of ledgers that are closed and have named the bookie all the time."""
    cluster = stage.world.cluster
    for name in sorted(stage.world.lossy):
        me, store = bookie_id(name), stage.world.bookies[name].store
        for ledger_id in sorted(stage.world.claims.lost_fences.get(me, ())):
            if ledger_id not in cluster.ledgers:
                continue
            closed, info = cluster.ledger(ledger_id).value.closed, store.ledgers.get(ledger_id)
            if closed and (info is None or not info.fenced):
                what = f"{name} has not recovered the fence of ledger {ledger_id}"
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
    return [f"{name} still reports lost data" for name in names if _is_lossy(stage.world, name)]


def _is_lossy(world: World, name: str) -> bool:
    bookie = world.bookies.get(name)
    return bookie is None or bookie.store.negatives_unknown or not bookie.writable
