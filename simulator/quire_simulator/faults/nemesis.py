"""Carry out the schedule of faults.

Faults that overlap on one bookie do not add up: a fault whose target is busy is skipped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from quire._runtime.tasks import TaskGroup
from quire.codec.log.state_records import BLOCK_BYTES
from quire.config import BookieConfig
from quire.errors import NoSuchLedgerError, QuireError
from quire.storage.inspect.contents import segment_numbers
from quire.storage.segment.segment import LOG_DIRECTORY
from quire_simulator.faults.bit_rot import rot, rot_entries
from quire_simulator.faults.disorder import Disorder
from quire_simulator.faults.flips import Flips
from quire_simulator.faults.full_moments import FullMoment
from quire_simulator.faults.hostile import Hostiles
from quire_simulator.faults.log_files import LogFiles
from quire_simulator.faults.older_metadata import Fail, OlderMetadata
from quire_simulator.faults.replacements import Replacements
from quire_simulator.faults.resizing import Resizing
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.transport import Route
from quire_simulator.metadata.store import MemoryStore
from quire_simulator.plans.faults import (
    BETWEEN_TWO,
    DISORDER_KINDS,
    FLOW_KINDS,
    FULL_KINDS,
    HOSTILE_KINDS,
    INDEX_KINDS,
    LIES,
    LOG_FILE_KINDS,
    MEMBER_KINDS,
    RECREATION_KINDS,
    REPLACEMENT_KINDS,
    RESET_KINDS,
    RESIZE_KINDS,
    ROLLBACK_KINDS,
    SILENT_KINDS,
    UNREADABLE_KINDS,
    Fault,
)
from quire_simulator.world.world import PORT, ObservedCluster, World, bookie_id

START_ATTEMPTS_MAX = 20
START_RETRY_S = 0.5
SESSION_LEFT_S = 2.0
CRASH_OPERATIONS_MAX = 60
START_OPERATIONS_MAX = 15
CRASH_SOON_S = 0.5
LOAD_STRUCK_S = 6.0
"""The latest time into a start at which a fault strikes a bookie that loads its log."""
ROLL_PAUSE_S = 4.0
"""Long enough for a writer to use a bookie again before the next one goes down."""
ROT_SPACING_BYTES = (50, 300, 2_000)
ROTTEN_ENTRIES = (0.2, 1.0)
"""The smallest and largest share of the groups on a disk whose entries are damaged."""
NOTICED_S = 1.0
"""The time within which a bookie notices that an operation on a disk has failed."""
SLOW_NETWORK_S = (0.01, 0.4)
SLOW_DISK_FACTOR = 60.0
SLOW_METADATA_S = 2.0
LATE_WATCHES_S = 2.0
METADATA_FAILURES = 0.3
ROOM_LEFT_BYTES = 1 << 18
"""The most free space left on a disk that is full or nearly full."""
LIES_TOLD = (0.3, 1.0)
"""The choices for the share of matching answers in which the bookie lies."""
LASTING = 0.5
CLEANLY = 0.3
"""The probability that the bookie is stopped cleanly, not crashed, before its index cache changes.
"""
CLOCK_JUMP_MS = 600_000
DISORDER_S = (0.001, 0.4)
"""The choices for the longest time that an answer is held back."""
LATE_S = 6.0
"""The longest time by which single answers are late. It is longer than the time-outs of clients."""
LATE_ANSWERS = 3
"""The largest number of answers that are late at a time."""
UNREACHABLE = 0.5
"""The probability that a former address of a bookie does not answer. Otherwise it refuses."""
MOMENT_S = 3.0
"""The longest time to wait for the moment at which a disk is to fill."""
MOMENT_POLLS = 30
OPERATED = frozenset((*REPLACEMENT_KINDS, *RESIZE_KINDS, *ROLLBACK_KINDS, *LOG_FILE_KINDS))
UNHINDERED = frozenset(
    (*BETWEEN_TWO, *LIES, *SILENT_KINDS, *FLOW_KINDS, *DISORDER_KINDS, *HOSTILE_KINDS)
)
"""Faults that may strike a bookie while another fault lasts."""


class Nemesis:
    """The task that carries out a schedule, and restarts bookies that stopped by themselves."""

    def __init__(
        self, world: World, config: BookieConfig, fail: Fail = lambda invariant, what: None
    ) -> None:
        """`fail` is called with an invariant that a fault found broken, and what was found."""
        self.world = world
        self.older_metadata = OlderMetadata(world, fail)
        self.config = config
        self.applied = 0
        self._taken: dict[str, asyncio.Lock] = {name: asyncio.Lock() for name in world.disks}
        self._capacity = {name: disk.capacity_bytes for name, disk in world.disks.items()}
        self._latency_s = world.network.latency_s
        acts = self.bring_back, lambda name: world.start(name, config)
        self._replacements = Replacements(world, *acts)
        self._resizing = Resizing(world, *acts)
        self._log_files = LogFiles(world, *acts)
        self.hostiles = Hostiles(world)

    async def run(self, schedule: Sequence[Fault]) -> None:
        begin = self.world.loop.time()
        async with TaskGroup() as group:
            supervisor = group.create_task(self.supervise())
            async with TaskGroup() as faults:
                for fault in schedule:
                    await asyncio.sleep(max(0.0, begin + fault.at_s - self.world.loop.time()))
                    faults.create_task(self._apply(fault))
            supervisor.cancel()

    async def join(self, after_s: float) -> None:
        """Start the bookies that take part from then on."""
        if self.world.later:
            await asyncio.sleep(after_s)
            for name in sorted(self.world.later):
                self.world.later.discard(name)
                await self.bring_back(name)

    async def supervise(self) -> None:
        """Restart bookies that stopped by themselves, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            self.world.nobody_is_inside()
            for name in self.world.disks:
                for disk in self.world.disks_of(name):
                    self.world.index_caches.look(disk)
                if name in self.world.later:
                    continue
                if name not in self.world.bookies and not self._taken[name].locked():
                    async with self._taken[name]:
                        await self.bring_back(name)

    async def _apply(self, fault: Fault) -> None:
        world = self.world
        if fault.kind in MEMBER_KINDS:
            fault = replace(fault, target=self._member(fault))
        known = fault.kind in (*RESET_KINDS, *RECREATION_KINDS) or world.network.knows(fault.target)
        if fault.target and not known:
            return  # The ledger or bookie was left out of the plan.
        world.trace.record("nemesis", fault.kind, target=fault.target, other=fault.other)
        self.applied += 1
        lock = self._taken.get(fault.target)
        if lock is None or fault.kind in UNHINDERED:
            await self._others(fault)
        elif not lock.locked():
            async with lock:
                if fault.target in world.bookies:
                    await self._bookie(fault)

    def _reset_recovery(self, fault: Fault) -> None:
        """Break the next connection of a recoverer of this ledger to the writer's most distant
        bookie.

        That bookie receives the writer's entries last. The reset loses the first request on the
        connection.
        """
        network, loop = self.world.network, self.world.loop
        recoverers, before = fault.target.replace("ledger", "recoverer") + ".", network.accepted

        def accepted(route: Route) -> None:
            before(route)
            if not armed or not route[0].startswith(recoverers):
                return
            if route[1] == self._member(fault):
                armed.clear()
                way_s = network.latency_of(*route)[0] + network.latency_of(*route[::-1])[0]
                context = loop.main.context.copy()
                loop.call_later(fault.amount * way_s, self._reset, route, context=context)

        armed, network.accepted = [True], accepted

    def _reset(self, route: Route) -> None:
        self.world.network.partition(*route, reset=True)
        self.world.network.heal_routes({route, route[::-1]})

    def _member(self, fault: Fault) -> str:
        """Return a bookie of the last ensemble of this ledger, or of this stream's newest ledger.

        Return "" if there is none.
        """
        what, _, number = fault.target.partition("-")
        ids = self.world.stream_ledgers if what == "stream" else self.world.ledger_ids
        ledger_id = ids.get(int(number), -1)
        try:
            metadata = self.world.cluster.ledger(ledger_id).value
        except NoSuchLedgerError:
            return ""
        ensemble = metadata.last_segment.ensemble
        if fault.kind == "crash fastest member":
            claimed = self.world.claims.of(ledger_id)
            return max(ensemble, key=lambda b: len(claimed.get(b, ()))).partition(":")[0]
        if fault.kind in RESET_KINDS:
            names = [bookie.partition(":")[0] for bookie in ensemble]
            latency_of, writer = self.world.network.latency_of, f"writer-{number}"
            return max(names, key=lambda name: latency_of(writer, name))
        return ensemble[int(fault.amount * len(ensemble))].partition(":")[0]

    # -- one bookie ---------------------------------------------------------------------------

    async def _bookie(self, fault: Fault) -> None:
        world, name = self.world, fault.target
        disks = world.disks_of(name)
        disk = disks[int(fault.amount * 1_000) % len(disks)]
        await self._strike(fault, disk)
        await asyncio.sleep(fault.duration_s)
        if fault.kind == "pause" and name in world.bookies:
            world.network.cont(name)
        if fault.kind == "flip":
            world.network.mangle = None
        disk.slowness = disk.usual_slowness
        disk.capacity_bytes = self._capacity[name]
        disk.away = False
        if fault.kind.startswith("directory") and world.misses_a_directory(name):
            world.kill(name)  # An operator replaces the disk and restarts the bookie.
        await self.bring_back(name)

    async def _strike(self, fault: Fault, disk: SimDisk) -> None:
        world, name = self.world, fault.target
        session_left_s = SESSION_LEFT_S * fault.amount
        match fault.kind:
            case "crash" | "crash member" | "crash fastest member":
                world.crash(name, session_left_s=session_left_s)
            case "crash in write" | "crash member in write":
                # Most strike early, in operations that have just begun.
                operations = 1 + int(fault.amount**3 * CRASH_OPERATIONS_MAX)
                world.crash_in_write(name, operations)
            case "kill":
                world.kill(name, session_left_s=session_left_s)
            case "move bookie":
                # Nobody learns from the network that the machine is gone.
                world.network.silence(name, *world.network.others(name))
                world.crash(name, session_left_s=session_left_s)
                world.move(name, silently=fault.amount < UNREACHABLE)
            case "kill, start, crash":
                await self._start_and_crash(name, 1 + int(fault.amount * 2))
            case "crash in start":
                world.kill(name)
                world.crash_in_write(name, 1 + int(fault.amount * START_OPERATIONS_MAX))
                await self.bring_back(name)
            case "crash in load" | "stop in load":
                await self._while_it_loads(fault)
            case "restart":
                await world.stop(name)
            case "pause":
                world.network.stop(name)
            case "expire session":
                world.expire_session(name)
            case "foreign store":
                await self._foreign_store(name)
            case "flip":
                world.destroyed.add(name)
                world.flipped = True
                world.network.mangle = Flips(name, world.loop.derive(f"flip {fault}"))
            case "clock jumps":
                world.clocks[name].skew_ms = int((fault.amount - 0.5) * CLOCK_JUMP_MS)
            case _:
                await self._strike_disk(fault, disk)

    async def _strike_disk(self, fault: Fault, disk: SimDisk) -> None:
        world, name = self.world, fault.target
        match fault.kind:
            case "slow disk":
                disk.slowness = 1.0 + fault.amount * SLOW_DISK_FACTOR
            case "fsync fails" | "directory fails":
                disk.fail_sync_once()
            case "fsync fails, crash":
                disk.fail_sync_once()
                await asyncio.sleep(fault.amount**2 * CRASH_SOON_S)
                world.crash(name)
            case "write fails":
                disk.fail_write_once()
            case "directory away":
                disk.away = True
                if fault.amount < 0.5:
                    await world.stop(name)
                else:
                    world.crash(name)
                await self.bring_back(name)
            case "disk full":
                room = int(max(0.0, fault.amount - 0.5) * 2 * ROOM_LEFT_BYTES)
                disk.capacity_bytes -= max(0, disk.free_bytes() - room)
            case kind if kind in FULL_KINDS:
                await self._full_at(fault, disk)
            case "lose disk":
                world.destroyed.add(name)
                world.crash(name)
                disk.wipe()
                world.wiped.add(name)
            case "rot":
                self._rot(fault)
            case "rot, crash" | "rot entries, crash":
                self._rot(fault)
                world.crash(name)
                await self.bring_back(name)
            case kind if kind in INDEX_KINDS:
                await self._index(fault, disk)
            case kind if kind in OPERATED:
                await self._operate(fault, disk)

    async def _full_at(self, fault: Fault, disk: SimDisk) -> None:
        """Fill the disk as soon as the moment comes, if it does."""
        world, name = self.world, fault.target
        moment = FullMoment(fault.kind, disk, world.loop.derive(f"full {fault}"))
        moment.watch(world.bookies.get(name))
        if fault.kind == "full at directory record":  # They are written when a bookie starts.
            await world.stop(name)
            self.world.loop.call_later(
                fault.duration_s, self._has_room, name, disk, context=world.loop.main.context.copy()
            )
            await self.bring_back(name)
        for _ in range(MOMENT_POLLS):
            if moment.come:
                break
            await asyncio.sleep(MOMENT_S / MOMENT_POLLS)
        moment.end()
        world.trace.record("nemesis", fault.kind, target=name, come=moment.come)
        world.moments_come[fault.kind] += moment.come

    def _has_room(self, name: str, disk: SimDisk) -> None:
        disk.capacity_bytes = self._capacity[name]

    async def _operate(self, fault: Fault, disk: SimDisk) -> None:
        name, chance = fault.target, self.world.loop.derive(f"exchange {fault}")
        match fault.kind:
            case "replace directory":
                await self._replacements.replace(name, disk, chance, fault.duration_s)
            case "replace good directory":
                await self._replacements.replace_good(name, disk, chance)
            case "old disk comes back":
                await self._replacements.bring_back_old(name, chance)
            case "roll directory back":
                await self._replacements.roll_back(name, disk, chance, fault.duration_s)
            case "add directory":
                await self._resizing.add(name, disk, chance)
            case "take directory away":
                await self._resizing.take_away(name, disk, chance)
            case _:
                await self._log_files.strike(fault.kind, name, disk, chance, fault.duration_s)

    async def _start_and_crash(self, name: str, times: int) -> None:
        """Kill and crash the bookie, so that data that was only in the page cache may be served
        briefly.
        """
        for _ in range(times):
            self.world.kill(name)
            await self.bring_back(name)
            self.world.crash(name)
            await self.bring_back(name)

    async def _while_it_loads(self, fault: Fault) -> None:
        """Strike the bookie while it loads its log, then wait for it to come back."""
        world, name = self.world, fault.target
        world.kill(name)
        starting = asyncio.ensure_future(self.bring_back(name))
        await asyncio.wait([starting], timeout=fault.amount * LOAD_STRUCK_S)
        if world.starts_now(name):
            if fault.kind == "crash in load":
                world.crash(name)
            else:
                world.stop_start(name)
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.result()

    async def _index(self, fault: Fault, disk: SimDisk) -> None:
        """Change the index cache while the bookie is down."""
        world, chance = self.world, self.world.loop.derive(f"index {fault}")
        world.index_caches.look(disk)
        if chance.random() < CLEANLY:
            await world.stop(fault.target)
        if fault.target in world.bookies:
            world.crash(fault.target)
        match fault.kind:
            case "lose index":
                world.index_caches.lose(disk)
            case "rot index":
                world.index_caches.rot(disk, chance)
            case "old index" | "foreign index":
                world.put_back_index(disk, chance, foreign=fault.kind == "foreign index")
        await self.bring_back(fault.target)

    async def _foreign_store(self, name: str) -> None:
        """Let one garbage collection pass find an empty store at the metadata address."""
        world, bookie = self.world, self.world.bookies[name]
        stranger = ObservedCluster("other", clock=world.clocks[name], rng=world.loop.derive(name))
        stranger.initialise()
        own, bookie.metadata = bookie.metadata, MemoryStore(stranger)
        try:
            await world.within(bookie, bookie.collect_garbage())
        finally:
            bookie.metadata = own
        if world.bookies.get(name) is not bookie and isinstance(own, MemoryStore):
            own.expire_session(back=False)  # The bookie died in the meantime.

    def _rot(self, fault: Fault) -> None:
        """Flip bits of one segment, or of the entries of all segments."""
        disk, chance = self.world.disks[fault.target], self.world.loop.derive(f"rot {fault}")
        self.world.destroyed.add(fault.target)
        names = [f"{LOG_DIRECTORY}/{name}" for name in disk.list(LOG_DIRECTORY)]
        begun = [name for name in names if disk.written_bytes(name) > BLOCK_BYTES]
        bit_rot = self.world.bit_rot.setdefault(fault.target, [])
        if fault.kind == "rot entries, crash":
            share = ROTTEN_ENTRIES[0] + fault.amount * (ROTTEN_ENTRIES[1] - ROTTEN_ENTRIES[0])
            for number in segment_numbers(disk):
                bit_rot.append(rot_entries(disk, number, share, chance))
            return
        name = chance.choice(begun or names)
        spacing_bytes = ROT_SPACING_BYTES[int(fault.amount * len(ROT_SPACING_BYTES))]
        bit_rot.append(rot(disk, name, spacing_bytes))

    async def restart(self, name: str) -> None:
        async with self._taken[name]:
            await self.world.stop(name)
            await self.bring_back(name)

    async def lose_once_more(self) -> None:
        """Delete a segment of each bookie whose earlier losses are repaired."""
        for name in sorted(self.world.lossy):
            async with self._taken[name]:
                disk = self.world.disks_of(name)[-1]
                chance = self.world.loop.derive(f"once more {name}")
                await self._log_files.strike("lose segment", name, disk, chance, 0.0)

    async def bring_back(self, name: str) -> None:
        """Start the bookie unless it runs, and retry a failed start, as an operator would."""
        only_once = name in self.world.wiped or self.world.retired(name)
        for _ in range(1 if only_once else START_ATTEMPTS_MAX):
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
            case "cut" | "cut one way" | "cut and reset" | "cut off" | "lose connections":
                undo = self._cut(fault)
            case "pause client" | "pause healer" | "zombie":
                network.stop(fault.target)
                undo = lambda: network.cont(fault.target)  # noqa: E731
            case "kill client" | "kill healer" | "kill job":
                network.kill(fault.target)
                world.end_session_of(fault.target, SESSION_LEFT_S * fault.amount)
            case "expire healer":
                if (store := world.sessions.get(fault.target)) is not None:
                    store.expire_session()
            case lie if lie in LIES:
                undo = self._lie(fault)
            case kind if kind in UNREADABLE_KINDS:
                undo = world.unreadable.strike(fault, world.loop.derive(f"unreadable {fault}"))
            case "slow network":
                network.latency_s = (SLOW_NETWORK_S[0], SLOW_NETWORK_S[1] * fault.amount + 0.02)
                undo = self._usual_network
            case "metadata fails":
                world.metadata_failures = METADATA_FAILURES * fault.amount
                undo = self._usual_metadata
            case "late watches":
                world.cluster.notice_delay_s = LATE_WATCHES_S * fault.amount
                undo = self._usual_metadata
            case "metadata lags":
                undo = world.lags.begin(str(fault))
                if fault.amount < LASTING:
                    undo = lambda: None  # noqa: E731 - The servers lag until faults end.
            case "slow metadata":
                world.slow_metadata_s[fault.target] = SLOW_METADATA_S * fault.amount
                undo = lambda: world.slow_metadata_s.pop(fault.target, None)  # noqa: E731
            case "sessions expire":
                world.metadata_failures = METADATA_FAILURES
                undo = self._usual_metadata
                for name in list(world.bookies):
                    world.expire_session(name)
            case "rolling restart":
                wait = self._roll(0.0, crash=False)
            case "rolling crash":
                wait = self._roll(ROLL_PAUSE_S * fault.amount, crash=fault.amount < 0.8)
            case "power loss everywhere":
                wait = self._power_loss(fault, list(self._taken))
            case "lose rack":
                wait = self._lose_rack(fault)
            case "relocate":
                world.relocate(fault.amount)
            case "reset recovery":
                self._reset_recovery(fault)
            case "metadata goes back":
                wait = self.older_metadata.go_back(fault)
            case "recreate ledger":
                wait = world.recreate(fault)
            case "expire client":
                undo = world.lose_session(fault.target)
            case "collection off":
                undo = self.older_metadata.switch_off()
            case "silence client":
                network.silence(fault.target, *world.disks)
            case "silence bookie":
                network.silence(fault.target, *network.others(fault.target))
            case "silence flow":
                network.silence(fault.target, fault.other, share=0.0)
            case "silence answers":
                network.silence(fault.target, *world.disks, sent=False)
            case "silence requests":
                network.silence(fault.target, *world.disks, received=False)
            case kind if kind in HOSTILE_KINDS:
                chance = world.loop.derive(f"hostile {fault}")
                undo = self.hostiles.attack(kind, fault.target, chance)
            case "answers in disorder" | "requests in disorder" | "late answer":
                undo = self._disorder(fault)
        if wait is not None:
            await wait
        else:
            await asyncio.sleep(fault.duration_s)
        undo()

    def _cut(self, fault: Fault) -> Callable[[], object]:
        network = self.world.network
        others = list(self.world.disks) if fault.kind == "cut off" else [fault.other]
        for other in others:
            network.partition(
                fault.target,
                other,
                one_way=fault.kind == "cut one way",
                reset=fault.kind in ("cut and reset", "cut off", "lose connections"),
            )
        routes = {(fault.target, other) for other in others}
        routes |= {(there, here) for here, there in routes}
        if fault.kind == "lose connections":
            network.heal_routes(routes)
            return lambda: None
        return lambda: network.heal_routes(routes)

    def _disorder(self, fault: Fault) -> Callable[[], object]:
        """Change the order of requests or answers of this bookie, or let its next answers be
        late.
        """
        world, name = self.world, fault.target
        disorder = world.disorder or Disorder(PORT, world.loop.derive("disorder"))
        world.network.disorder = world.disorder = disorder
        chance = world.loop.derive(f"disorder {fault}")
        if fault.kind != "late answer":
            answers = fault.kind == "answers in disorder"
            longest_s = disorder.answers_s if answers else disorder.requests_s
            longest_s[name] = chance.choice(DISORDER_S)
            return lambda: longest_s.pop(name, None)
        late = disorder.late.setdefault(name, deque())
        late.extend(fault.amount * LATE_S for _ in range(chance.randint(1, LATE_ANSWERS)))
        return lambda: None

    def _lie(self, fault: Fault) -> Callable[[], object]:
        """Start telling this lie. Some lies last to the end of the run."""
        self.world.destroyed.add(fault.target)
        self.world.lies[fault.kind] = LIES_TOLD[int(fault.amount * 4) % 2]
        if fault.amount < LASTING:
            return lambda: None
        return lambda: self.world.lies.pop(fault.kind, None)

    def _usual_network(self) -> None:
        self.world.network.latency_s = self._latency_s

    def _usual_metadata(self) -> None:
        self.world.metadata_failures = 0.0
        self.world.cluster.notice_delay_s = 0.0

    async def _roll(self, pause_s: float, *, crash: bool) -> None:
        for name, lock in self._taken.items():
            async with lock:
                if name in self.world.bookies:
                    if crash:
                        self.world.crash(name)
                    else:
                        await self.world.stop(name)
                await self.bring_back(name)
            await asyncio.sleep(pause_s)

    async def _lose_rack(self, fault: Fault) -> None:
        racks = self.world.racks
        rack = sorted(set(racks.values()))[int(fault.amount * len(set(racks.values())))]
        self.world.rack_lost(rack)
        names = [name for name in self._taken if racks[bookie_id(name)] == rack]
        await self._power_loss(fault, names)

    async def _power_loss(self, fault: Fault, names: Sequence[str]) -> None:
        free = [name for name in names if not self._taken[name].locked()]
        for name in free:
            if name in self.world.bookies:
                self.world.crash(name, session_left_s=SESSION_LEFT_S * fault.amount)
        await asyncio.sleep(fault.duration_s / 2)
        for name in free:
            async with self._taken[name]:
                await self.bring_back(name)

    async def calm(self) -> None:
        """End all faults, and start everything that can run."""
        world = self.world
        self._usual_network()
        self._usual_metadata()
        world.slow_metadata_s.clear()
        world.lags.end_all()
        world.slow_starts.slow = False
        world.network.mangle = None
        if world.disorder is not None:
            world.disorder.calm()
        world.network.heal()
        for name in world.disks:
            for disk in world.disks_of(name):
                disk.calm()
                disk.capacity_bytes = self._capacity[name]
            await self._restart_without_a_directory(name)
            if name in world.bookies:
                world.network.cont(name)
            await self.bring_back(name)
        if any(len(world.disks_of(name)) > 1 for name in world.disks):
            # A bookie may notice only now that a write or a sync failed just before.
            await asyncio.sleep(NOTICED_S)
            for name in world.disks:
                await self._restart_without_a_directory(name)

    async def _restart_without_a_directory(self, name: str) -> None:
        if self.world.misses_a_directory(name):
            self.world.kill(name)
            await self.bring_back(name)
