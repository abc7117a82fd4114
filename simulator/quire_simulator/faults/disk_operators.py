"""The common parts of operators who work on disks.

They stop a bookie, run a command on its machine, which may be interrupted, and try to start the
bookie with the disks it has then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from quire.errors import CookieError, QuireError, StartError
from quire.metadata.interface import MetadataStore
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.world import World

ATTEMPTS_MAX = 60
"""How often an operator tries. Metadata may fail for a while, and a session may outlive its bookie.
"""
RETRY_S = 0.5
STARTS_MAX = 10
"""How often the bookie is started with a disk that it must refuse. Other errors may come first."""
CLEANLY = 0.4
"""The probability that the bookie is stopped cleanly beforehand instead of losing power."""
CUT_OFF = 0.6
POWER_LOSS = 0.7
"""The share of interrupted commands that are interrupted by a power loss."""
CALLS_MAX = 8
"""A command is killed within about this many calls of the metadata store."""

Act = Callable[[str], Awaitable[object]]


class SimDirectoryAccess:
    """An implementation of `DirectoryAccess` with these simulated disks."""

    def __init__(self, disks: Iterable[SimDisk]) -> None:
        self._disks = {disk.path: disk for disk in disks}

    def hold(self, path: str) -> SimDisk | None:
        disk = self.look(path)
        if disk is not None:
            try:
                disk.lock()
            except BlockingIOError:
                raise StartError(f"A bookie is running on {path}.") from None
        return disk

    def look(self, path: str) -> SimDisk | None:
        disk = self._disks.get(path)
        return None if disk is None or disk.away else disk


Work = Callable[[MetadataStore, SimDirectoryAccess, str], Awaitable[object]]
"""A command, given its metadata store, the bookie's machine, and a name for its random numbers."""


class DiskOperator:
    """An operator who runs commands on the disks of bookies.

    `bring_back` starts a bookie and retries until it runs. `start_once` tries once and raises its
    error.
    """

    def __init__(self, world: World, bring_back: Act, start_once: Act) -> None:
        self._world = world
        self._bring_back = bring_back
        self._start_once = start_once
        self._made = 0
        self._commands = 0

    async def _run(self, name: str, work: Work, new: SimDisk | None = None) -> bool:
        """Run a command on the bookie's machine, and return False if it was interrupted.

        Errors of the command are raised.
        """
        world, host = self._world, self._world.network.node(name)
        self._commands += 1
        label = f"operator {self._commands} of {name}"
        others = (disk for disk in world.disks_of(name) if disk is not new)
        machine = SimDirectoryAccess(others if new is None else (new, *others))
        store = world.metadata_store(label)

        async def run() -> None:
            await work(store, machine, label)

        try:
            return await world.until_dead(host.node, host.node.create_task(run()))
        finally:
            world.kill(name)  # The command has ended: release everything it had locked.
            if new is not None:
                new.kill()

    def _cut_off(
        self, name: str, struck: SimDisk, operations_max: int, chance: random.Random
    ) -> asyncio.TimerHandle | None:
        """Arrange for some of the commands to be interrupted.

        Either the power fails in place of one of the command's disk operations, or the process is
        killed.
        """
        world = self._world
        if chance.random() >= CUT_OFF:
            return None
        if chance.random() < POWER_LOSS:
            world.crash_in_write(name, 1 + chance.randrange(operations_max), struck)
            return None
        after_s = chance.random() * CALLS_MAX * (world.metadata_delay_s + 0.001)
        context = world.loop.main.context.copy()
        return world.loop.call_later(after_s, world.kill, name, context=context)

    async def _end(self, name: str, chance: random.Random) -> None:
        if name not in self._world.bookies:
            self._world.kill(name)
        elif chance.random() >= CLEANLY or not await self._world.stop(name):
            self._world.crash(name, session_left_s=chance.random())

    async def _try(self, name: str) -> QuireError | None:
        """Try to start the bookie once, and return the error if there was one."""
        try:
            await self._start_once(name)
        except QuireError as error:
            self._world.trace.record(name, "start failed", error=str(error))
            return error
        return None

    async def _is_refused(self, name: str) -> None:
        """Try to start the bookie until it refuses a disk with which it must not start."""
        world = self._world
        world.outdated.add(name)
        for _ in range(STARTS_MAX):
            if isinstance(await self._try(name), CookieError):
                break
            await asyncio.sleep(RETRY_S)
        world.kill(name)
        world.outdated.discard(name)

    def _another(self, name: str, like: SimDisk, *, elsewhere: bool) -> SimDisk:
        """Return an empty disk of the same size."""
        self._made += 1
        label = f"{name} new {self._made}"
        new = SimDisk(
            self._world.loop.derive(f"disk {label}"), label, capacity_bytes=like.capacity_bytes
        )
        if not elsewhere:
            new.path = like.path
        new.usual_slowness = new.slowness = like.usual_slowness
        return new
