"""Ledgers that are deleted and created again under the same id, while their clients live.

The clients of the former ledger must not change the new one, and must not take it for theirs. The
entries are not checked: bookies cannot tell the two ledgers apart if both have the same password.
"""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from dataclasses import replace

from quire.client import LedgerReader
from quire.codec.metadata.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.metadata.interface import Versioned
from quire_simulator.invariants.checker import Checker
from quire_simulator.metadata.items import StoredItem
from quire_simulator.plans.faults import Fault
from quire_simulator.world.world import World

GAP_S = (0.002, 0.5)
"""How long the ledger does not exist."""
CTOKEN_BITS = 63

Creation = tuple[int, int]
"""The creation token of a ledger, and the time of its creation."""


def creation_of(stored: Versioned[LedgerMetadata]) -> Creation:
    return stored.value.ctoken, stored.created


class RecreatedLedgers:
    """A fault that recreates ledgers, and checks who changes the new ones."""

    def __init__(self, world: World, checker: Checker) -> None:
        self.count = 0
        """The number of ledgers that were created again."""
        self.made: dict[int, Creation] = {}
        """The creations of the new ledgers."""
        self.at_s: dict[int, float] = {}
        """The time at which each of the new ledgers was created."""
        self._world = world
        self._checker = checker
        self._opened: dict[tuple[str, int], Creation] = {}
        """The creation that a client found first, after it began to open the ledger."""
        world.recreate = self.recreate
        world.cluster.shown_observer = self._shown
        observer = world.cluster.observer

        def on_ledger(ledger_id: int) -> None:
            if ledger_id in self.made:
                self._changed(ledger_id)
            observer(ledger_id)

        world.cluster.observer = on_ledger

    async def recreate(self, fault: Fault) -> None:
        """Delete a ledger, and create another one with its id a moment later."""
        cluster, chance = self._world.cluster, self._world.loop.derive(f"recreate {fault}")
        number = int(fault.target.rpartition("-")[2])
        ledger_id = self._world.ledger_ids.get(number, -1)
        if ledger_id not in cluster.ledgers:
            return
        metadata = cluster.ledger(ledger_id).value
        facts = self._checker.facts(ledger_id)
        facts.deleted = facts.recreated = True
        # Nobody begins to work on the new ledger as if it were the former one.
        del self._world.ledger_ids[number]
        self._remove(ledger_id)
        await asyncio.sleep(GAP_S[0] + chance.random() ** 2 * GAP_S[1])
        if ledger_id in cluster.ledgers:
            return
        made = self._new(metadata, chance)
        now_ms = cluster.clock.now_ms()
        cluster.ledgers[ledger_id] = StoredItem(encode(made), ctime_ms=now_ms)
        insort(cluster.ledger_ids, ledger_id)
        self.count += 1
        self.made[ledger_id] = made.ctoken, now_ms
        self.at_s[ledger_id] = self._world.loop.time()
        self._world.trace.record("nemesis", "recreated", ledger=ledger_id)

    def _new(self, former: LedgerMetadata, chance: random.Random) -> LedgerMetadata:
        bookies = sorted(self._world.cluster.cookies)
        ensemble = former.segments[0].ensemble
        if chance.random() < 0.5 and len(bookies) >= former.ensemble_size:
            ensemble = tuple(chance.sample(bookies, former.ensemble_size))
        return replace(
            former,
            segments=(Segment(0, ensemble),),
            state=LedgerState.OPEN,
            last_entry_id=NO_ENTRY,
            length=0,
            ctime_ms=self._world.cluster.clock.now_ms(),
            ctoken=chance.getrandbits(CTOKEN_BITS) if former.ctoken else 0,
        )

    def remove_all(self) -> None:
        """Delete the new ledgers, which nobody writes."""
        for ledger_id in list(self.made):
            self._remove(ledger_id)

    def _remove(self, ledger_id: int) -> None:
        cluster = self._world.cluster
        self.made.pop(ledger_id, None)
        if cluster.ledgers.pop(ledger_id, None) is not None:
            cluster.unreadable.pop(ledger_id, None)
            cluster.ledger_ids.remove(ledger_id)
            self._world.metadata_caller = "nemesis"
            cluster.ledger_changed(ledger_id)

    # -- who changes a new ledger -------------------------------------------------------------

    def opens(self, client: str, ledger_id: int) -> None:
        """Note that a client begins to open a ledger."""
        self._opened.pop((client, ledger_id), None)

    def _shown(self, ledger_id: int, found: Versioned[LedgerMetadata]) -> None:
        caller = self._world.metadata_caller
        self._opened.setdefault((caller, ledger_id), creation_of(found))

    def _changed(self, ledger_id: int) -> None:
        caller = self._world.metadata_caller
        known = self._opened.get((caller, ledger_id))
        if caller.startswith("writer-") or (
            caller.startswith("recoverer-") and known != self.made[ledger_id]
        ):
            what = f"{caller} changed ledger {ledger_id}, which was created again"
            self._checker.fail("a_recreated_ledger_is_left_alone", what)

    def closed(self, writer: str, ledger_id: int) -> None:
        """Check a close that the client reported to a writer as successful."""
        facts = self._checker.facts(ledger_id)
        if facts.recreated and not facts.closes:
            what = f"{writer} was told that it closed ledger {ledger_id}, which was deleted before"
            self._checker.fail("a_recreated_ledger_is_left_alone", what)

    def same(self, client: str, reader: LedgerReader, creation: Creation) -> None:
        """Check that a reader still reads the ledger that it was opened for."""
        if reader._view.creation != creation:
            what = f"{client} reads another ledger {reader.ledger_id} than it opened"
            self._checker.fail("a_handle_stays_with_its_ledger", what)
