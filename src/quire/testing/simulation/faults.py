"""The schedule of faults: values with times, made from the seed; and the hand that carries it out.

Faults that overlap on one bookie do not add up: one that finds its target taken is left out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quire.config import BookieConfig
from quire.errors import QuireError
from quire.storage.segment import LOG_DIRECTORY
from quire.testing.simulation.world import World

START_ATTEMPTS_MAX = 20
START_RETRY_S = 0.5
SESSION_LEFT_S = 2.0
CRASH_OPERATIONS_MAX = 60
ROT_SPACING_BYTES = (50, 300, 2_000)
SLOW_NETWORK_S = (0.01, 0.4)
SLOW_DISK_FACTOR = 60.0
METADATA_FAILURES = 0.3


@dataclass(frozen=True, slots=True)
class Fault:
    """`target` names a bookie or a client; `other` the far side of a partition; `amount` in (0, 1)
    scales what has a size; what lasts is undone after `duration_s`."""

    at_s: float
    kind: str
    target: str = ""
    duration_s: float = 0.0
    other: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        what = " ".join(part for part in (self.kind, self.target, self.other) if part)
        lasts = f" for {self.duration_s:.3f} s" if self.duration_s else ""
        return f"{self.at_s:9.4f} {what}{lasts} ({self.amount:.3f})"


def make_schedule(
    chance: random.Random,
    *,
    kinds: Sequence[str],
    count: int,
    span_s: float,
    bookies: Sequence[str],
    clients: Sequence[str],
) -> tuple[Fault, ...]:
    """`count` faults of these kinds within `span_s`."""
    faults = []
    for _ in range(count):
        kind = chance.choice(list(kinds))
        on_client = kind in ("pause client", "kill client")
        target = chance.choice(list(clients if on_client else bookies))
        others = [name for name in (*bookies, *clients) if name != target]
        faults.append(
            Fault(
                at_s=round(chance.random() * span_s, 6),
                kind=kind,
                target="" if kind in WHOLE else bookies[0] if kind == "rot" else target,
                # The square makes most of them short and some long.
                duration_s=round(0.05 + chance.random() ** 2 * span_s / 3, 6),
                other=chance.choice(others) if kind in BETWEEN_TWO else "",
                amount=round(chance.random(), 6),
            )
        )
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


BETWEEN_TWO = ("cut", "cut one way", "cut and reset", "lose connections")
WHOLE = ("slow network", "metadata fails", "rolling restart", "power loss everywhere")
BOOKIE_KINDS = (
    "crash",
    "crash",
    "crash in write",
    "kill",
    "restart",
    "pause",
    "slow disk",
    "expire session",
    "fsync fails",
    "write fails",
    "disk full",
    "clock jumps",
)
CLIENT_KINDS = ("pause client", "kill client")
ALL_KINDS = (*BOOKIE_KINDS, *CLIENT_KINDS, *BETWEEN_TWO, *WHOLE)


class Nemesis:
    """Carries out a schedule, and restarts what ended by itself."""

    def __init__(self, world: World, config: BookieConfig) -> None:
        self.world = world
        self.config = config
        self.applied = 0
        self._taken: dict[str, asyncio.Lock] = {name: asyncio.Lock() for name in world.disks}
        self._capacity = {name: disk.capacity_bytes for name, disk in world.disks.items()}
        self._latency_s = world.network.latency_s

    async def run(self, schedule: Sequence[Fault]) -> None:
        begin = self.world.loop.time()
        async with asyncio.TaskGroup() as group:
            supervisor = group.create_task(self._supervise())
            async with asyncio.TaskGroup() as faults:
                for fault in schedule:
                    await asyncio.sleep(max(0.0, begin + fault.at_s - self.world.loop.time()))
                    faults.create_task(self._apply(fault))
            supervisor.cancel()

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for name in self.world.disks:
                if name not in self.world.bookies and not self._taken[name].locked():
                    async with self._taken[name]:
                        await self.bring_back(name)

    async def _apply(self, fault: Fault) -> None:
        world = self.world
        world.trace.record("nemesis", fault.kind, target=fault.target, other=fault.other)
        self.applied += 1
        lock = self._taken.get(fault.target)
        if lock is None or fault.kind in BETWEEN_TWO:
            await self._others(fault)
        elif not lock.locked():
            async with lock:
                if fault.target in world.bookies:
                    await self._bookie(fault)

    # -- one bookie ---------------------------------------------------------------------------

    async def _bookie(self, fault: Fault) -> None:
        world, name, disk = self.world, fault.target, self.world.disks[fault.target]
        session_left_s = SESSION_LEFT_S * fault.amount
        match fault.kind:
            case "crash":
                world.crash(name, session_left_s=session_left_s)
            case "crash in write":
                world.crash_in_write(name, 1 + int(fault.amount * CRASH_OPERATIONS_MAX))
            case "kill":
                world.kill(name, session_left_s=session_left_s)
            case "restart":
                await world.stop(name)
            case "pause":
                world.network.stop(name)
            case "slow disk":
                disk.slowness = 1.0 + fault.amount * SLOW_DISK_FACTOR
            case "expire session":
                world.expire_session(name)
            case "fsync fails":
                disk.fail_sync_once()
            case "write fails":
                disk.fail_write_once()
            case "disk full":
                disk.capacity_bytes -= disk.free_bytes()
            case "rot":
                self._rot(fault)
            case "clock jumps":
                world.clocks[name].skew_ms = int((fault.amount - 0.5) * 600_000)
        await asyncio.sleep(fault.duration_s)
        if fault.kind == "pause" and name in world.bookies:
            world.network.cont(name)
        disk.slowness = 1.0
        disk.capacity_bytes = self._capacity[name]
        await self.bring_back(name)

    def _rot(self, fault: Fault) -> None:
        """Bits of one segment are wrong from now on."""
        disk, chance = self.world.disks[fault.target], self.world.loop.derive(f"rot {fault}")
        self.world.destroyed.add(fault.target)
        name = LOG_DIRECTORY + "/" + chance.choice(disk.list(LOG_DIRECTORY))
        disk.rot(name, ROT_SPACING_BYTES[int(fault.amount * len(ROT_SPACING_BYTES))])

    async def bring_back(self, name: str) -> None:
        """Start the bookie unless it runs. A start that fails is tried again, as an operator
        would."""
        for _ in range(START_ATTEMPTS_MAX):
            if name in self.world.bookies:
                return
            try:
                if await self.world.start(name, self.config):
                    return
            except QuireError as error:
                self.world.trace.record(name, "start failed", error=str(error))
            await asyncio.sleep(START_RETRY_S)

    # -- everything else ----------------------------------------------------------------------

    async def _others(self, fault: Fault) -> None:
        world, network = self.world, self.world.network
        undo: Callable[[], object] = lambda: None  # noqa: E731
        wait: Awaitable[None] | None = None
        match fault.kind:
            case "cut" | "cut one way" | "cut and reset":
                network.partition(
                    fault.target,
                    fault.other,
                    one_way=fault.kind == "cut one way",
                    reset=fault.kind == "cut and reset",
                )
                routes = {(fault.target, fault.other), (fault.other, fault.target)}
                undo = lambda: network.heal_routes(routes)  # noqa: E731
            case "lose connections":
                network.partition(fault.target, fault.other, reset=True)
                network.heal_routes({(fault.target, fault.other), (fault.other, fault.target)})
            case "pause client":
                network.stop(fault.target)
                undo = lambda: network.cont(fault.target)  # noqa: E731
            case "kill client":
                network.kill(fault.target)
            case "slow network":
                network.latency_s = (SLOW_NETWORK_S[0], SLOW_NETWORK_S[1] * fault.amount + 0.02)
                undo = self._usual_network
            case "metadata fails":
                world.metadata_failures = METADATA_FAILURES * fault.amount
                undo = self._usual_metadata
            case "rolling restart":
                wait = self._roll()
            case "power loss everywhere":
                wait = self._power_loss(fault)
        if wait is not None:
            await wait
        else:
            await asyncio.sleep(fault.duration_s)
        undo()

    def _usual_network(self) -> None:
        self.world.network.latency_s = self._latency_s

    def _usual_metadata(self) -> None:
        self.world.metadata_failures = 0.0

    async def _roll(self) -> None:
        for name, lock in self._taken.items():
            async with lock:
                if name in self.world.bookies:
                    await self.world.stop(name)
                await self.bring_back(name)

    async def _power_loss(self, fault: Fault) -> None:
        free = [name for name, lock in self._taken.items() if not lock.locked()]
        for name in free:
            if name in self.world.bookies:
                self.world.crash(name, session_left_s=SESSION_LEFT_S * fault.amount)
        await asyncio.sleep(fault.duration_s / 2)
        for name in free:
            async with self._taken[name]:
                await self.bring_back(name)

    async def calm(self) -> None:
        """No fault from now on; everything that can run does."""
        world = self.world
        self._usual_network()
        self._usual_metadata()
        world.network.heal()
        for name, disk in world.disks.items():
            disk.calm()
            disk.capacity_bytes = self._capacity[name]
            if name in world.bookies:
                world.network.cont(name)
            await self.bring_back(name)
