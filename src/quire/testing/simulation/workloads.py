"""What the clients of a run do: writers, zombies, tailing readers, recoverers, deleters.

A `Plan` is all of a run but the order in which things happen, as data, made from one integer. The
actors carry it out, each on a node of its own, and write down what they saw.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from quire.client import Client, LedgerReader, LedgerWriter
from quire.codec.entry import Entry
from quire.config import BookieConfig, ClientConfig
from quire.errors import NoSuchEntryError, NoSuchLedgerError, QuireError
from quire.testing.loop import SimTask
from quire.testing.simulation.checker import Checker
from quire.testing.simulation.faults import (
    ALL_KINDS,
    BETWEEN_TWO,
    BOOKIE_KINDS,
    CLIENT_KINDS,
    Fault,
    make_schedule,
)
from quire.testing.simulation.history import History, payload
from quire.testing.simulation.world import World

SHAPES = ((3, 3, 2), (3, 2, 2), (3, 2, 1), (2, 2, 1), (2, 2, 2), (3, 3, 3), (1, 1, 1), (4, 3, 2))
ATTEMPTS_MAX = 6
"""Of a recoverer, while faults go on."""
POLL_S = 0.1
ROTTEN_BOOKIES_MIN = 5


@dataclass(frozen=True, slots=True)
class Mix:
    """What a workload consists of."""

    kinds: tuple[str, ...]
    """Of faults."""
    faults: tuple[int, int]
    ledgers: tuple[int, int] = (2, 4)
    takeover: float = 0.6
    """How likely a ledger is recovered while its writer may still write."""
    tail: float = 0.6
    delete: float = 0.25
    rotten: bool = False
    """The disk of bookie-0 rots: there are bookies to take its place, and one more copy of all."""


WORKLOADS: dict[str, Mix] = {
    "all": Mix(ALL_KINDS, (2, 14)),
    "calm": Mix(("pause client",), (0, 0)),
    "recovery": Mix(
        (*CLIENT_KINDS, "crash", "kill", *BETWEEN_TWO), (2, 10), takeover=1.0, delete=0
    ),
    "disk": Mix(BOOKIE_KINDS, (3, 12)),
    "tail": Mix((*BETWEEN_TWO, "crash", "pause", "slow network"), (2, 10), tail=1.0),
    "delete": Mix(("crash", "restart", "metadata fails", "pause client"), (1, 8), delete=0.7),
    "rot": Mix(
        ("rot", "rot", "rot", "restart", "crash", "kill client", "kill", "cut"),
        (4, 12),
        rotten=True,
    ),
    "rolling": Mix(("rolling restart", "restart", "pause client"), (1, 3)),
}


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    number: int
    shape: tuple[int, int, int]
    begin_s: float
    batches: int
    batch_entries_max: int
    pause_s: float
    """The longest between two batches."""
    piped: bool
    """Entries are handed over without waiting for each batch."""
    end: str
    """close, or abandon."""
    recoveries_s: tuple[float, ...]
    tails_s: tuple[float, ...]
    reads_s: tuple[float, ...]
    delete_s: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    workload: str
    bookies: int
    span_s: float
    explicit_lac_interval_ms: int
    metadata_delay_s: float
    segment_bytes: int
    gc_interval_s: float
    ledgers: tuple[LedgerPlan, ...]
    schedule: tuple[Fault, ...]

    @classmethod
    def make(cls, seed: int, workload: str) -> Plan:
        chance, mix = random.Random(f"{seed}/plan {workload}"), WORKLOADS[workload]
        bookies, span_s = chance.randint(3, 6), chance.choice([3.0, 8.0, 15.0])
        bookies = max(bookies, ROTTEN_BOOKIES_MIN) if mix.rotten else bookies
        ledgers = tuple(
            _ledger_plan(chance, number, mix, bookies, span_s)
            for number in range(chance.randint(*mix.ledgers))
        )
        schedule = make_schedule(
            chance,
            kinds=mix.kinds,
            count=chance.randint(*mix.faults),
            span_s=span_s,
            bookies=[f"bookie-{number}" for number in range(bookies)],
            clients=_clients(ledgers),
        )
        return cls(
            seed=seed,
            workload=workload,
            bookies=bookies,
            span_s=span_s,
            explicit_lac_interval_ms=chance.choice([0, 0, 40]),
            metadata_delay_s=chance.choice([0.0, 0.002, 0.05]),
            segment_bytes=chance.choice([1 << 16, 1 << 20]),
            gc_interval_s=chance.choice([0.5, 3.0]),
            ledgers=ledgers,
            schedule=schedule,
        )

    @property
    def bookie_config(self) -> BookieConfig:
        return BookieConfig(
            segment_bytes=self.segment_bytes,
            min_free_bytes=0,
            max_queued_bytes=1 << 20,
            seal_idle_ms=50,
            gc_interval_s=self.gc_interval_s,
            check_space_s=0.5,
        )

    @property
    def client_config(self) -> ClientConfig:
        return ClientConfig(
            add_timeout_s=1.0,
            read_timeout_s=1.0,
            speculative_read_s=0.3,
            recovery_timeout_s=10.0,
            long_poll_ms=300,
            bookies_wait_s=0.5,
            avoid_failed_bookie_s=2.0,
            explicit_lac_interval_ms=self.explicit_lac_interval_ms,
        )


def _ledger_plan(
    chance: random.Random, number: int, mix: Mix, bookies: int, span_s: float
) -> LedgerPlan:
    recoveries: list[float] = []
    if chance.random() < mix.takeover:
        at = chance.random() * span_s
        # Several at one moment, or nearly.
        recoveries = [at + chance.random() * 0.05 for _ in range(chance.choice([1, 2, 2, 3]))]
    tails = chance.randint(1, 2) if chance.random() < mix.tail else 0
    return LedgerPlan(
        number=number,
        shape=chance.choice(
            [s for s in SHAPES if s[0] <= bookies and ((s[2] >= 2 and s[0] <= 3) or not mix.rotten)]
        ),
        begin_s=chance.random() * span_s / 3,
        batches=chance.randint(0, 40),
        batch_entries_max=chance.choice([1, 3, 12]),
        pause_s=chance.choice([0.001, 0.05, span_s / 20]),
        piped=chance.random() < 0.4,
        end=chance.choice(["close", "close", "abandon"]),
        recoveries_s=tuple(recoveries),
        tails_s=tuple(chance.random() * span_s / 2 for _ in range(tails)),
        reads_s=tuple(chance.random() * span_s for _ in range(chance.randint(0, 2))),
        delete_s=chance.random() * span_s if chance.random() < mix.delete else None,
    )


def _clients(ledgers: tuple[LedgerPlan, ...]) -> list[str]:
    names = []
    for plan in ledgers:
        names.append(f"writer-{plan.number}")
        for what, times in _readers(plan):
            names.extend(f"{what}-{plan.number}.{k}" for k in range(len(times)))
    return names


def _readers(plan: LedgerPlan) -> list[tuple[str, tuple[float, ...]]]:
    return [
        ("recoverer", plan.recoveries_s),
        ("tail", plan.tails_s),
        ("reader", plan.reads_s),
        ("deleter", () if plan.delete_s is None else (plan.delete_s,)),
    ]


class Actors:
    """All clients of a run."""

    def __init__(self, world: World, plan: Plan, history: History, checker: Checker) -> None:
        self.world = world
        self.plan = plan
        self.history = history
        self.checker = checker
        self.ids: dict[int, int] = {}
        """Of ledgers that were created, by their number in the plan."""
        self.tasks: list[SimTask[None]] = []
        self.begin_s = world.loop.time()

    def start(self) -> None:
        for ledger in self.plan.ledgers:
            self._spawn(f"writer-{ledger.number}", ledger.begin_s, self._write, ledger)
            work = {
                "recoverer": self._recover,
                "tail": self._tail,
                "reader": self._read,
                "deleter": self._delete,
            }
            for what, times in _readers(ledger):
                for k, at_s in enumerate(times):
                    self._spawn(f"{what}-{ledger.number}.{k}", at_s, work[what], ledger)

    def unfinished(self) -> list[str]:
        """Names of the clients that live and have not come to their end."""
        return [t.get_name() for t in self.tasks if not t.done() and not t.node.dead]

    def _spawn(
        self,
        name: str,
        at_s: float,
        work: Callable[[str, Client, LedgerPlan], Coroutine[Any, Any, None]],
        plan: LedgerPlan,
    ) -> None:
        task = self.world.network.node(name).node.create_task(
            self._act(name, at_s, work, plan), name=name
        )
        self.tasks.append(task)

    async def _act(
        self,
        name: str,
        at_s: float,
        work: Callable[[str, Client, LedgerPlan], Awaitable[None]],
        plan: LedgerPlan,
    ) -> None:
        await asyncio.sleep(at_s)
        client = self.world.client(name, self.plan.client_config)
        try:
            await work(name, client, plan)
        except QuireError as error:
            self.history.add(name, "failed", note=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - a law: nothing foreign comes out
            self.checker.fail("only_our_errors", f"{name}: {error!r}")
        try:
            await client.close()
        except QuireError as error:
            self.history.add(name, "close failed", note=type(error).__name__)

    # -- writers ------------------------------------------------------------------------------

    async def _write(self, name: str, client: Client, plan: LedgerPlan) -> None:
        ensemble, write, ack = plan.shape
        chance = self.world.loop.derive(f"actor {name}")
        writer = await client.create_ledger(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
        )
        ledger_id = writer.ledger_id
        self.ids[plan.number] = ledger_id
        self.checker.facts(ledger_id).handle_confirmed = lambda: writer.last_add_confirmed
        self.history.add(name, "create", ledger_id, note=f"{ensemble}/{write}/{ack}")
        try:
            for _ in range(plan.batches):
                await self._write_batch(name, writer, plan, chance)
                await asyncio.sleep(chance.random() * plan.pause_s)
            if plan.end == "close":
                last = await writer.close()
                self.history.add(name, "closed", ledger_id, 0, last)
            else:
                writer.abandon()
        except QuireError as error:
            self.history.add(name, "failed", ledger_id, note=type(error).__name__)

    async def _write_batch(
        self, name: str, writer: LedgerWriter, plan: LedgerPlan, chance: random.Random
    ) -> None:
        ledger_id, first = writer.ledger_id, writer.last_add_pushed + 1
        last = first + chance.randint(1, plan.batch_entries_max) - 1
        self.history.add(name, "append", ledger_id, first, last)
        payloads = [payload(ledger_id, entry) for entry in range(first, last + 1)]
        if not plan.piped:
            last = await writer.append_many(payloads)
        else:
            for entry in payloads:
                writer.submit(entry)
            if chance.random() < 0.7:
                return
            last = await writer.flush()
        self.history.add(name, "acked", ledger_id, first, last)

    async def _delete(self, name: str, client: Client, plan: LedgerPlan) -> None:
        ledger_id = await self._wait_for(plan)
        if ledger_id is not None:
            self.history.add(name, "delete", ledger_id)
            await client.delete_ledger(ledger_id)
            self.history.add(name, "deleted", ledger_id)

    # -- readers ------------------------------------------------------------------------------

    async def _wait_for(self, plan: LedgerPlan) -> int | None:
        """The id of a ledger once it exists."""
        while plan.number not in self.ids:
            if self.world.loop.time() > self.begin_s + self.plan.span_s:
                return None
            await asyncio.sleep(POLL_S)
        return self.ids[plan.number]

    async def _recover(self, name: str, client: Client, plan: LedgerPlan) -> None:
        ledger_id = await self._wait_for(plan)
        for _ in range(ATTEMPTS_MAX if ledger_id is not None else 0):
            assert ledger_id is not None
            try:
                await self.take_over(name, client, ledger_id)
                return
            except QuireError as error:
                self.history.add(name, "failed", ledger_id, note=type(error).__name__)
                self._denied(name, ledger_id, error)
                await asyncio.sleep(POLL_S)

    async def take_over(self, name: str, client: Client, ledger_id: int) -> None:
        """Recover a ledger and read all of it."""
        reader = await client.open_ledger(ledger_id, recover=True)
        self.history.add(name, "recovered", ledger_id, 0, reader.last_add_confirmed)
        await self._read_range(name, reader, 0)

    async def _read(self, name: str, client: Client, plan: LedgerPlan) -> None:
        """What is known to be acknowledged, and a little later again."""
        ledger_id = await self._wait_for(plan)
        if ledger_id is None:
            return
        try:
            reader = await client.open_ledger(ledger_id)
            upcoming = 0
            for _ in range(4):
                lac = reader.last_add_confirmed
                self.history.add(name, "observe", ledger_id, upcoming, lac)
                await self._read_range(name, reader, upcoming)
                upcoming = lac + 1
                await asyncio.sleep(POLL_S)
                await reader.refresh()
        except QuireError as error:
            self.history.add(name, "failed", ledger_id, note=type(error).__name__)
            self._denied(name, ledger_id, error)

    async def _read_range(self, name: str, reader: LedgerReader, first: int) -> None:
        last, upcoming = reader.last_add_confirmed, first
        async with aclosing(reader.read(first, last)) as entries:  # type: ignore[type-var]
            async for entry in entries:
                self._seen(name, reader.ledger_id, entry, upcoming)
                upcoming += 1
        if upcoming != last + 1:
            self.history.add(
                name, "wrong", reader.ledger_id,
                note=f"a read of {first}..{last} ended before {upcoming}",
            )  # fmt: skip
        if upcoming > first:
            self.history.add(name, "read", reader.ledger_id, first, upcoming - 1)

    def _seen(self, name: str, ledger_id: int, entry: Entry, expected: int) -> None:
        if entry.entry_id != expected or entry.payload != payload(ledger_id, expected):
            found = f"entry {entry.entry_id}: {bytes(entry.payload)[:40]!r}"
            self.history.add(name, "wrong", ledger_id, note=f"{found} in the place of {expected}")

    async def _tail(self, name: str, client: Client, plan: LedgerPlan) -> None:
        """Follow the ledger to its end; a tail that fails is begun again behind what it gave."""
        ledger_id, upcoming = await self._wait_for(plan), 0
        while ledger_id is not None:
            try:
                reader = await client.open_ledger(ledger_id)
                async with aclosing(reader.tail(upcoming)) as entries:
                    async for entry in entries:
                        self._seen(name, ledger_id, entry, upcoming)
                        self.history.add(name, "read", ledger_id, upcoming, upcoming)
                        upcoming += 1
                self.history.add(name, "tail ended", ledger_id, 0, upcoming - 1)
                end = self.checker.facts(ledger_id).closed_at
                if end != upcoming - 1 and not self.checker.facts(ledger_id).deleted:
                    note = f"the tail ended before {upcoming}, closed at {end}"
                    self.history.add(name, "wrong", ledger_id, note=note)
                return
            except NoSuchLedgerError as error:
                self._denied(name, ledger_id, error)
                return
            except QuireError as error:
                self.history.add(name, "failed", ledger_id, note=type(error).__name__)
                self._denied(name, ledger_id, error)
                await asyncio.sleep(POLL_S)

    def _denied(self, name: str, ledger_id: int, error: QuireError) -> None:
        """All reads stay below what was acknowledged: an explicit no is a lie."""
        if isinstance(error, NoSuchLedgerError | NoSuchEntryError):
            self.history.add(name, "denied", ledger_id, note=str(error))
