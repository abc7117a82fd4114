"""The state that all clients of a run share."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from quire.codec.entry.entry import Entry
from quire.errors import (
    MetadataTooLargeError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    UsageError,
)
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.history import RunHistory, payload
from quire_simulator.invariants.objects import ObjectInvariants
from quire_simulator.invariants.recreated import RecreatedLedgers
from quire_simulator.plans.plans import LedgerPlan, RunPlan
from quire_simulator.world.world import World

POLL_S = 0.1
CANCELLED_LEDGERS_MAX = 12
"""The largest number of ledgers in a run in which the calls of judges are cancelled too."""


@dataclass
class DatasetRecord:
    """The publications of one dataset, as its clients know them."""

    tried: dict[str, frozenset[int]] = field(default_factory=dict)
    """The ledgers of each publication that was begun, by transaction key."""
    done: dict[str, int] = field(default_factory=dict)
    """The sequence of each publication that was reported as done, by transaction key."""


@dataclass
class Stage:
    world: World
    plan: RunPlan
    history: RunHistory
    checker: Checker
    recreated: RecreatedLedgers | None = None
    begin_s: float = 0.0
    datasets: dict[str, DatasetRecord] = field(default_factory=dict)
    """The datasets by name."""
    objects: ObjectInvariants | None = None
    """What is known of objects, in runs that have some."""
    healed: bool = False
    """Whether nothing is left for autorecovery to do."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no bookie is left that was there first, in runs in which all of them leave."""
    calls_cancelled: int = 0
    """The number of calls of clients that were cancelled (`actors.calls`)."""
    _cancelling: dict[str, random.Random] = field(default_factory=dict)

    def cancelling(self, name: str) -> random.Random | None:
        """Return the random generator for a client's cancelled calls, or None if there are none.

        The judges of dozens of ledgers are left alone. They would need too long.
        """
        crowd = len(self.plan.ledgers) > CANCELLED_LEDGERS_MAX
        if not self.plan.cancelling or (crowd and name.startswith("judge-")):
            return None
        if name not in self._cancelling:
            self._cancelling[name] = self.world.loop.derive(f"calls of {name}")
        return self._cancelling[name]

    async def ledger_id(self, plan: LedgerPlan) -> int | None:
        """Wait until the ledger exists and return its id, or None if it is never created."""
        ids = self.world.ledger_ids
        while plan.number not in ids:
            if self.world.loop.time() > self.begin_s + self.plan.span_s:
                return None
            await asyncio.sleep(POLL_S)
        return ids[plan.number]

    def payload(self, ledger_id: int, entry_id: int) -> bytes:
        return payload(ledger_id, entry_id, self.checker.facts(ledger_id).scale)

    def seen(self, name: str, ledger_id: int, entry: Entry, expected: int) -> None:
        """Check that the entry that a reader received is the expected one."""
        if entry.entry_id != expected or entry.payload != self.payload(ledger_id, expected):
            found = f"entry {entry.entry_id}: {bytes(entry.payload)[:40]!r}"
            self.wrong(name, ledger_id, f"{found} instead of entry {expected}")

    def wrong(self, name: str, ledger_id: int, what: str) -> None:
        self.history.add(name, "wrong", ledger_id, note=what)

    def failed(self, name: str, ledger_id: int, error: QuireError) -> None:
        self.history.add(name, "failed", ledger_id, note=type(error).__name__)
        self.not_blamed(name, error)
        if isinstance(error, MetadataTooLargeError):
            what = f"{name} failed, because the metadata of ledger {ledger_id} has no room: {error}"
            self.checker.fail("metadata_leaves_room", what)

    def not_blamed(self, name: str, error: QuireError) -> None:
        """Check that the error does not say that the client used Quire wrongly."""
        if isinstance(error, UsageError):
            what = f"{name} was told that its call is wrong: {error!r}"
            self.checker.fail("a_right_call_is_not_refused", what)

    def denied(self, name: str, ledger_id: int, error: QuireError) -> None:
        """Record the error if it says that an entry or a ledger does not exist.

        No client asks for entries that were not acknowledged.
        """
        if isinstance(error, NoSuchLedgerError | NoSuchEntryError):
            self.history.add(name, "denied", ledger_id, note=str(error))
