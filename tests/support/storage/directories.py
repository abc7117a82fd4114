"""A bookie's data directories on several simulated disks, whose workers the test runs."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from quire.errors import StorageError
from quire.storage.config import StorageConfig
from quire.storage.directories import LedgerDirectories
from quire.storage.directory import ensure_directory
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.store import LedgerStore
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.storage import SMALL, HandClock, HandTimers, HandWorker


class DirectoriesOnDisks:
    """The data directories of one bookie, opened again and again on the same disks."""

    def __init__(self, count: int = 2, seed: int = 1, config: StorageConfig = SMALL) -> None:
        self.disks = [SimDisk(random.Random(seed + n), f"disk-{n}") for n in range(count)]
        self.config = config
        self.clock = HandClock()
        self.store: LedgerDirectories
        self.stores: list[LedgerStore]
        self.report: RecoveryReport

    def open(self, broken: Collection[int] = ()) -> RecoveryReport:
        """Start a new process. The directories with the numbers in `broken` are not usable."""
        self.timers = HandTimers()
        self.workers: list[HandWorker] = []
        self.stores = []
        for number, disk in enumerate(self.disks):
            if number not in broken:
                ensure_directory(disk, random.Random(number).randbytes)
            log, maintenance = HandWorker(), HandWorker()
            self.workers += [log, maintenance]
            self.stores.append(
                LedgerStore(disk, log, maintenance, self.config, self.clock, schedule=self.timers)
            )
        self.store = LedgerDirectories(self.stores)
        for number in broken:
            self.store.refuse(self.disks[number].path, StorageError("it is not mounted"))
        self.report = self.store.recover()
        self.store.start()
        return self.report

    def pump(self, only: Sequence[int] | None = None) -> None:
        """Run the workers until they have nothing left to do. Timers do not run.

        `only` limits this to the directories with these numbers.
        """
        workers = self.workers
        if only is not None:
            workers = [w for number in only for w in self.workers[2 * number : 2 * number + 2]]
        moved = True
        while moved:
            moved = False
            for worker in workers:
                moved |= worker.run()

    def idle(self) -> None:
        self.pump()
        for _ in range(3):
            self.timers.fire()
            self.pump()

    def crash(self) -> None:
        for disk in self.disks:
            disk.crash()

    def kill(self) -> None:
        for disk in self.disks:
            disk.kill()
