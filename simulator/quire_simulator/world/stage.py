"""What all clients of a run share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from quire.codec.entry.entry import Entry
from quire.errors import NoSuchEntryError, NoSuchLedgerError, QuireError
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.history import RunHistory, payload
from quire_simulator.plans.plans import LedgerPlan, RunPlan
from quire_simulator.world.world import World

POLL_S = 0.1


@dataclass
class DatasetRecord:
    """The publications of one dataset, as its clients know them."""

    tried: dict[str, frozenset[int]] = field(default_factory=dict)
    """Transaction key -> ledgers of a publication that was begun."""
    done: dict[str, int] = field(default_factory=dict)
    """Transaction key -> sequence of each publication that was reported as done."""


@dataclass
class Stage:
    world: World
    plan: RunPlan
    history: RunHistory
    checker: Checker
    begin_s: float = 0.0
    datasets: dict[str, DatasetRecord] = field(default_factory=dict)
    """The datasets by name."""
    healed: bool = False
    """Nothing is left for autorecovery to do."""

    async def ledger_id(self, plan: LedgerPlan) -> int | None:
        """Of a ledger once it exists; None if it does not come to be."""
        ids = self.world.ledger_ids
        while plan.number not in ids:
            if self.world.loop.time() > self.begin_s + self.plan.span_s:
                return None
            await asyncio.sleep(POLL_S)
        return ids[plan.number]

    def payload(self, ledger_id: int, entry_id: int) -> bytes:
        return payload(ledger_id, entry_id, self.checker.facts(ledger_id).scale)

    def seen(self, name: str, ledger_id: int, entry: Entry, expected: int) -> None:
        """An entry was read: it must be this one."""
        if entry.entry_id != expected or entry.payload != self.payload(ledger_id, expected):
            found = f"entry {entry.entry_id}: {bytes(entry.payload)[:40]!r}"
            self.wrong(name, ledger_id, f"{found} in the place of {expected}")

    def wrong(self, name: str, ledger_id: int, what: str) -> None:
        self.history.add(name, "wrong", ledger_id, note=what)

    def failed(self, name: str, ledger_id: int, error: QuireError) -> None:
        self.history.add(name, "failed", ledger_id, note=type(error).__name__)

    def denied(self, name: str, ledger_id: int, error: QuireError) -> None:
        """All reads stay below what was acknowledged: an explicit no is a lie."""
        if isinstance(error, NoSuchLedgerError | NoSuchEntryError):
            self.history.add(name, "denied", ledger_id, note=str(error))
