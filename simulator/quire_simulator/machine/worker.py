"""A disk thread that runs on the simulated loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context

from quire_simulator.machine.disk import SimDisk

WAKE_DELAY_S = (0.000_01, 0.001)
STEP_TIME_S = (0.000_1, 0.010)
SPURIOUS = 0.0
"""The probability that a worker wakes again although nobody woke it."""


class SimWorker:
    """An implementation of `quire.storage.interfaces.Worker` on the simulated loop.

    A step runs at one moment, some time after its wake. What it posted runs some time later, and
    only then can the next step begin. So a crash can happen before the step, or after it but before
    its result is known. With `SimDisk.crash_after` it can also happen during the step. All of this
    belongs to the node that calls `start`, so the worker stops or dies with that node.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, disk: SimDisk | None = None
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._disk = disk
        self._context = copy_context()
        self._step: Callable[[], None] | None = None
        self._pending = False
        self._busy = False
        self._posted: list[Callable[[], None]] = []
        self._idle: list[asyncio.Future[None]] = []

    def start(self, step: Callable[[], None]) -> None:
        assert self._step is None, "a worker is started once"
        self._step = step
        self._context = copy_context()
        self._begin()

    def wake(self) -> None:
        self._pending = True
        self._begin()

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.append(callback)

    async def stop(self) -> None:
        while self._busy:
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle
        self._step = None

    def _begin(self) -> None:
        if self._pending and not self._busy and self._step is not None:
            self._busy = True
            self._later(WAKE_DELAY_S, self._run)

    def _run(self) -> None:
        assert self._step is not None
        self._pending = False
        try:
            self._step()
        finally:
            # After an error, which the loop reports, the next wake runs the next step.
            self._later(STEP_TIME_S, self._finish)

    def _finish(self) -> None:
        posted, self._posted = self._posted, []
        for callback in (*posted, self._end):
            self._loop.call_soon(callback, context=self._context)

    def _end(self) -> None:
        self._busy = False
        if SPURIOUS and self._rng.random() < SPURIOUS:
            self._pending = True
        self._begin()
        if not self._busy:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()

    def _later(self, bounds: tuple[float, float], callback: Callable[[], None]) -> None:
        low, high = bounds
        # The cube makes most delays short and some long, as on real disks.
        delay = low + (high - low) * self._rng.random() ** 3
        if self._disk is not None:
            delay *= self._disk.slowness
        self._loop.call_later(delay, callback, context=self._context)
