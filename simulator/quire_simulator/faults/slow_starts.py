"""Bookies whose start takes a while.

Reading the log takes simulated time. Meanwhile clients, faults and other bookies continue, and so
do reads of the starting bookie, which it answers early.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from quire.storage.worker import InlineReader
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.loop import SimulatedLoop, current_node
from quire_simulator.machine.stepped_thread import SteppedThread

T = TypeVar("T")

LONGEST_PAUSES_S = (0.02, 0.1, 0.3, 1.0)
"""The choices for the longest single wait for the disk during a start."""
PAUSED_MAX_S = 12.0
"""The longest total wait of a start. Clients wait for less, and the final checks for more."""
READ_TIME_S = 0.02
"""The longest time that a cold read takes."""


class SlowStarts:
    """The readers of starting bookies. While `slow` is true, a start takes simulated time."""

    def __init__(self) -> None:
        self.slow = False
        self._threads: list[SteppedThread[Any]] = []

    def reader(
        self, loop: SimulatedLoop, chance: random.Random, disks: list[SimDisk]
    ) -> SlowReader | None:
        """Return the reader for a start on these disks, or None if starts take no time."""
        return SlowReader(loop, chance, disks, self._threads) if self.slow else None

    def reads(self, loop: SimulatedLoop, chance: random.Random) -> SlowReads | None:
        """Return the reader of every data directory but the first, whose reader reads all logs."""
        return SlowReads(loop, chance) if self.slow else None

    def end(self) -> None:
        """End the threads of bookies that died while they started."""
        for thread in self._threads:
            thread.end()
        self._threads.clear()


class SlowReads(InlineReader):
    """A `quire.storage.interfaces.BlockingReader` whose cold reads take time."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random) -> None:
        self._loop = loop
        self._chance = chance

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        self._loop.call_later(self._chance.random() ** 3 * READ_TIME_S, lambda: done(call()))


class SlowReader(SlowReads):
    """A reader whose first call, the start, also takes time: it waits at every access to a file."""

    def __init__(
        self,
        loop: SimulatedLoop,
        chance: random.Random,
        disks: list[SimDisk],
        threads: list[SteppedThread[Any]],
    ) -> None:
        super().__init__(loop, chance)
        self._disks = disks
        self._threads = threads
        self._left_s = PAUSED_MAX_S
        self._longest_s = chance.choice(LONGEST_PAUSES_S)
        self._begun = False

    async def run(self, call: Callable[[], T]) -> T:
        if self._begun:
            return call()
        self._begun = True
        thread, found, node = SteppedThread(call), self._loop.create_future(), current_node.get()
        self._threads.append(thread)

        def access() -> None:
            if self._left_s:
                thread.pause()

        def step() -> None:
            thread.resume()
            if not thread.done:
                self._loop.call_later(self._pause_s(), step)
                return
            self._threads.remove(thread)
            if not node.dead and not found.done():
                found.set_result(None)

        for disk in self._disks:
            disk.before_access = access
        self._loop.call_soon(step)
        await found
        return thread.result()

    def _pause_s(self) -> float:
        # The cube makes most waits short and some long, as on real disks.
        pause_s = min(self._chance.random() ** 3 * self._longest_s, self._left_s)
        self._left_s -= pause_s
        return pause_s
