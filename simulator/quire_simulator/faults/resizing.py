"""Operators who add a disk to a bookie or remove one.

A removal uses the code of `quire bookie disk remove`, with or without a decommission that empties
the bookie first. Without one, the command must refuse as long as the disk is needed. Sometimes the
removed disk comes back, which the bookie must also refuse.
"""

from __future__ import annotations

import asyncio
import random

from quire.bookie.directories.lost_directory import content_of, known_bookie
from quire.bookie.directories.replacement import find_removal
from quire.errors import QuireError, UsageError
from quire.metadata.interface import MetadataStore
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.moves import decommission as taking_away
from quire.replication.moves.recover import MoveOptions, OpenLedgers
from quire_simulator.faults.disk_operators import (
    ATTEMPTS_MAX,
    RETRY_S,
    DiskOperator,
    SimDirectoryAccess,
)
from quire_simulator.invariants.ledger import bookies_of
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.world import bookie_id

DISKS_MAX = 3
EMPTIED = 0.7
"""The probability that the bookie is emptied first."""
EMPTYING_S = 30.0
"""Seconds after which an operator stops waiting: a writer may keep its ledger open."""
OPERATIONS_MAX = 10
"""The highest number of operations on a remaining disk during one removal. It writes one small
file.
"""
MEANWHILE = 0.5
"""The probability that the bookie is started after an interrupted removal."""
WITHOUT = 0.5
"""The share of these starts that are made without the disk to be removed."""
COMES_BACK = 0.3


class Resizing(DiskOperator):
    async def add(self, name: str, like: SimDisk, chance: random.Random) -> None:
        """Add a disk, unless there are enough."""
        if len(self._world.disks_of(name)) < DISKS_MAX:
            await self._end(name, chance)
            self._world.add_disk(name, self._another(name, like, elsewhere=True))
        await self._bring_back(name)

    async def take_away(self, name: str, disk: SimDisk, chance: random.Random) -> None:
        """Remove a disk, unless it is the only one or still needed."""
        if len(self._world.disks_of(name)) == 1:
            return
        emptying = chance.random() < EMPTIED
        if emptying:
            await self._empty(name)
        await self._end(name, chance)
        if await self._removed(name, disk, chance):
            self._forget(name, disk)
            if chance.random() < COMES_BACK:
                self._world.add_disk(name, disk)
                await self._is_refused(name)
                self._world.drop_disk(name, disk)
        await self._bring_back(name)
        if emptying:
            await self._take_back(name)

    async def command(self, name: str, disk: SimDisk) -> bool:
        """Run the code of `quire bookie disk remove` on the bookie's machine.

        Return False if it was interrupted. Errors of the command are raised.
        """

        async def work(store: MetadataStore, machine: SimDirectoryAccess, label: str) -> None:
            found = await find_removal(store, bookie_id(name), disk.path, machine)
            await found.check_not_needed(store)
            await found.carry_out(store, self._world.clocks[name].now_ms())

        self._world.trace.record(name, "take away", disk=disk.path)
        return await self._run(name, work)

    # -- inside -------------------------------------------------------------------------------

    async def _removed(self, name: str, disk: SimDisk, chance: random.Random) -> bool:
        """Repeat the command until it has succeeded or is refused."""
        world = self._world
        for _ in range(ATTEMPTS_MAX):
            struck = chance.choice([one for one in world.disks_of(name) if one is not disk])
            killing = self._cut_off(name, struck, OPERATIONS_MAX, chance)
            try:
                if await self.command(name, disk):
                    return True
            except UsageError as error:
                world.trace.record(name, "not taken away", error=str(error))
                return not await self._has(name, disk)  # An interrupted run had finished already.
            except QuireError as error:
                world.trace.record(name, "not taken away", error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                if killing is not None:
                    killing.cancel()
            world.trace.record(name, "removal cut off")
            if chance.random() < MEANWHILE:
                await self._start_meanwhile(name, disk, chance)
        return False

    async def _start_meanwhile(self, name: str, disk: SimDisk, chance: random.Random) -> None:
        world, without = self._world, chance.random() < WITHOUT
        if without:
            world.drop_disk(name, disk)
        await self._try(name)
        await self._end(name, chance)
        if without:
            world.add_disk(name, disk)

    async def _has(self, name: str, disk: SimDisk) -> bool:
        """Return whether the cluster lists the disk as one of the bookie's directories."""
        store = self._world.metadata_store(f"look at {name}")
        for _ in range(ATTEMPTS_MAX):
            try:
                return disk.path in (await known_bookie(store, bookie_id(name))).directories
            except QuireError:
                await asyncio.sleep(RETRY_S)
        return True

    def _forget(self, name: str, disk: SimDisk) -> None:
        """Remove the disk, and forget what only it had of ledgers that do not name the bookie.

        The bookie must still have the ledgers that name it.
        """
        world, me = self._world, bookie_id(name)
        world.drop_disk(name, disk)
        here = [content_of(one).ledgers or () for one in world.disks_of(name)]
        for ledger_id in world.claims.ledgers_of(me):
            named = ledger_id in world.cluster.ledgers and me in bookies_of(
                world.cluster.ledger(ledger_id).value
            )
            if not named and not any(ledger_id in ledgers for ledgers in here):
                world.claims.forget(me, ledger_id)
        world.trace.record(name, "taken away", disk=disk.path)

    async def _empty(self, name: str) -> None:
        """Run `quire bookie decommission --keep-cookie` for up to `EMPTYING_S`."""
        client = self._world.client(f"emptying {name}")
        owner = f"operator of {name}"
        try:
            async with asyncio.timeout(EMPTYING_S):
                await taking_away.decommission(
                    client,
                    ReplicationLocks(client.metadata, owner, client.clock),
                    bookie_id(name),
                    owner=owner,
                    now_ms=client.clock.now_ms,
                    keep_cookie=True,
                    options=MoveOptions(open_ledgers=OpenLedgers.FENCE),
                )
        except (QuireError, TimeoutError) as error:
            self._world.trace.record(name, "not emptied", error=str(error))
        finally:
            await client.close()

    async def _take_back(self, name: str) -> None:
        """Let the bookie accept entries again."""
        client = self._world.client(f"emptying {name}")
        try:
            for _ in range(ATTEMPTS_MAX):
                try:
                    await taking_away.take_back(client, bookie_id(name))
                    return
                except QuireError:
                    await asyncio.sleep(RETRY_S)
        finally:
            await client.close()
