"""Single files of a bookie's log that are lost, exchanged, or restored from an older copy.

An operator's mistake, a damaged file system or a careless restore does this between two starts.
Bookies must notice it, count as one that lost a segment, and be repaired by autorecovery. An older
copy of a file that a compaction has replaced since is left out: nothing in the log distinguishes
the two (docs/internals/simulator.md).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from quire.codec.log.state_records import BLOCK_BYTES
from quire.storage.inspect.contents import segment_numbers
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name
from quire_simulator.faults.disk_operators import ATTEMPTS_MAX, DiskOperator
from quire_simulator.faults.replacements import forget
from quire_simulator.machine.disk import SimDisk

Change = Callable[[SimDisk], bool]
"""A change of the files of a bookie that is down. Returns whether it changed anything."""


class LogFiles(DiskOperator):
    """The faults that strike single files of the log."""

    async def strike(
        self, kind: str, name: str, disk: SimDisk, chance: random.Random, duration_s: float
    ) -> None:
        """Let the bookie report where its log ends, end it, and change a file."""
        change: Change | None = None
        if kind == "old segment":
            change = restore_of(disk, chance)
            await asyncio.sleep(chance.random() * duration_s)
        if not await self._reported(name):
            return
        bookie = self._world.bookies[name]
        if chance.random() < 0.5 or not await self._world.stop(name):
            self._world.crash(name)
        if self._world.bookies.get(name) not in (None, bookie):
            return
        if change is None:
            change = CHANGES[kind](chance)
        if change(disk):
            self._world.log_files_struck[kind] += 1
            forget(self._world, name, disk)
            self._world.partly_lost.add(name)
            self._world.tampered.add(name)
        await self._bring_back(name)

    async def _reported(self, name: str) -> bool:
        """Return whether the running bookie has reported the end of its log to the metadata store.

        What was logged after the last report may be lost unnoticed, as the documentation says.
        """
        for _ in range(ATTEMPTS_MAX):
            bookie = self._world.bookies.get(name)
            if bookie is None or not bookie.recovered or bookie.rollbacks is None:
                return False
            node = self._world.network.node(name).node
            reporting = node.create_task(bookie.rollbacks.report())
            if not await self._world.until_dead(node, reporting):
                return False
            if reporting.result() and not bookie.rollbacks.unreported_s:
                return self._world.bookies.get(name) is bookie
        return False


def begun_segments(disk: SimDisk) -> list[int]:
    """Return the numbers of the segments that have content, oldest first."""
    numbers = sorted(segment_numbers(disk))
    return [n for n in numbers if disk.written_bytes(segment_name(n)) > BLOCK_BYTES]


def _lose(chance: random.Random) -> Change:
    """Delete any segment."""

    def change(disk: SimDisk) -> bool:
        begun = begun_segments(disk)
        if begun:
            disk.remove(segment_name(chance.choice(begun)))
            disk.sync_directory(LOG_DIRECTORY)
        return bool(begun)

    return change


def _lose_newest(chance: random.Random) -> Change:
    """Delete the newest segments, and all preallocated ones."""

    def change(disk: SimDisk) -> bool:
        begun = begun_segments(disk)
        first = begun[-chance.randint(1, min(2, len(begun)))] if begun else 1
        gone = [number for number in segment_numbers(disk) if number >= first]
        for number in gone:
            disk.remove(segment_name(number))
        disk.sync_directory(LOG_DIRECTORY)
        return bool(gone)

    return change


def _lose_prepared(chance: random.Random) -> Change:
    """Delete the preallocated files, and nothing that was ever written."""

    def change(disk: SimDisk) -> bool:
        begun = begun_segments(disk)
        gone = [n for n in segment_numbers(disk) if n > max(begun, default=0)]
        for number in gone:
            disk.remove(segment_name(number))
        disk.sync_directory(LOG_DIRECTORY)
        return bool(gone)

    return change


def _swap(chance: random.Random) -> Change:
    """Exchange the names of two segments."""

    def change(disk: SimDisk) -> bool:
        begun = begun_segments(disk)
        if len(begun) < 2:
            return False
        one, other = (segment_name(number) for number in chance.sample(begun, 2))
        aside = f"{LOG_DIRECTORY}/aside"
        for old, new in ((one, aside), (other, one), (aside, other)):
            disk.rename(old, new)
        disk.sync_directory(LOG_DIRECTORY)
        return True

    return change


def restore_of(disk: SimDisk, chance: random.Random) -> Change:
    """Copy a segment now, and return the change that restores the copy."""
    backup = disk.copy()
    backup.crash()
    begun = [n for n in begun_segments(backup) if backup.durable_bytes(segment_name(n))]
    # A sealed segment does not change any more, so the newest ones matter most.
    name = segment_name(begun[-1 - int(chance.random() ** 3 * len(begun))]) if begun else ""

    def change(now: SimDisk) -> bool:
        if now is not disk or file is None or not now.exists(name):
            return False
        return now.identity(name) is file and now.restore(name, backup)

    file = disk.identity(name) if name and disk.exists(name) else None
    return change


CHANGES: dict[str, Callable[[random.Random], Change]] = {
    "lose segment": _lose,
    "lose newest segments": _lose_newest,
    "lose prepared segments": _lose_prepared,
    "swap segments": _swap,
}
