"""Write ledgers of each kind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any, Generic, TypeVar

from quire.client import Client, LedgerWriter
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.writer import WriteHandle
from quire.errors import EntryExistsError, QuireError
from quire_simulator.actors.calls import CallCancelledError, call
from quire_simulator.invariants.history import PAYLOAD_MAX_BYTES
from quire_simulator.plans.plans import LedgerPlan
from quire_simulator.world.stage import Stage

H = TypeVar("H", bound=WriteHandle)

FORCED = 0.4
"""The probability that a batch with deferred sync is forced."""
FORCED_MEANWHILE = 0.5
"""The probability that the writer continues to append while a force runs."""
MEANWHILE_S = 0.01
"""The longest delay of these appends after the force begins. A force covers what was sent earlier.
"""
LEFT_OUT = 0.3
"""The probability that a batch with caller-chosen ids omits one id for now."""
KNOWN_S = 3.0
"""Seconds of rest after which bookies know the last acknowledged entry, also over slow connections.
"""
TURN_S = 0.01
"""The interval at which writers in one client append together."""
CANCELLED = 0.1
"""The probability that an append with a caller-chosen id is cancelled and repeated."""


async def write(stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None:
    ensemble, write_quorum, ack_quorum = plan.shape
    own_ids, deferred = plan.kind == "own ids", plan.kind == "deferred"
    handle: LedgerWriter | CallerIdWriter | None = None
    while handle is None:
        try:
            handle = await call(
                stage,
                name,
                client.create_ledger(
                    ensemble_size=ensemble,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    digest=plan.digest,
                    password=plan.password,
                    deferred_sync=deferred,
                    caller_ids=own_ids,
                ),
            )
        except CallCancelledError:
            continue  # An empty ledger that nobody writes may be left.
    await follow_plan(stage, name, handle, plan)


async def write_together(
    stage: Stage, name: str, client: Client, plans: Sequence[LedgerPlan]
) -> None:
    """Write all ledgers with one client, an entry to each in turn.

    Their entries have the same size, the same key and the same bookies, so a bookie receives
    entries of alternating ledgers in one piece.
    """
    pens: list[LedgerWriterActor[Any]] = []
    for plan in plans:
        ensemble, write_quorum, ack_quorum = plan.shape
        try:
            handle = await client.create_ledger(
                ensemble_size=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest=plan.digest,
                password=plan.password,
            )
        except QuireError as error:
            stage.failed(name, -1, error)
            continue
        pens.append(_prepared(stage, name, handle, plan))
    turns = Turns()
    for pen in pens:
        assert isinstance(pen, InTurn)
        pen.turns = turns
    telling = asyncio.ensure_future(turns.run())
    try:
        await asyncio.gather(*(pen.write() for pen in pens))
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def follow_plan(
    stage: Stage, name: str, handle: LedgerWriter | CallerIdWriter, plan: LedgerPlan
) -> None:
    """Write the ledger that was created as the plan says."""
    await _prepared(stage, name, handle, plan).write()


def _prepared(
    stage: Stage, name: str, handle: LedgerWriter | CallerIdWriter, plan: LedgerPlan
) -> LedgerWriterActor[Any]:
    """Tell the invariants about a new ledger, and return the actor that writes it."""
    ensemble, write_quorum, ack_quorum = plan.shape
    own_ids, deferred = plan.kind == "own ids", plan.kind == "deferred"
    ledger_id = handle.ledger_id
    facts = stage.checker.facts(ledger_id)
    facts.handle_confirmed = lambda: handle.last_add_confirmed
    facts.member_failed = lambda: handle._session._changes is not None
    facts.backlog = lambda: handle._session.pipeline.unacked_bytes_max()
    # The writer admits one more batch once there is room. With caller-chosen ids, all appends that
    # waited for one id are admitted together.
    entries = 2 * plan.batch_entries_max if own_ids else 1
    facts.backlog_max_bytes = (
        stage.plan.unacked_bytes
        + stage.plan.client_config.max_turn_bytes
        + entries * PAYLOAD_MAX_BYTES * max(plan.scale, 1)
    )
    facts.scale, facts.password = plan.scale, plan.password
    stage.world.ledger_ids[plan.number] = ledger_id
    stage.history.add(
        name, "create", ledger_id, note=f"{ensemble}/{write_quorum}/{ack_quorum} {plan.kind}"
    )
    chance = stage.world.loop.derive(f"actor {name}")
    if isinstance(handle, CallerIdWriter):
        return OwnIds(stage, name, handle, plan, chance)
    if plan.scale == 0:
        return InTurn(stage, name, handle, plan, chance)
    return (Deferred if deferred else Plain)(stage, name, handle, plan, chance)


class LedgerWriterActor(Generic[H]):
    """A writer that follows its plan."""

    def __init__(
        self, stage: Stage, name: str, handle: H, plan: LedgerPlan, chance: random.Random
    ) -> None:
        self.stage = stage
        self.name = name
        self.handle = handle
        self.ledger_id = handle.ledger_id
        self.plan = plan
        self.chance = chance

    async def write(self) -> None:
        try:
            for number in range(self.plan.batches):
                try:
                    await self.batch(self.chance.randint(1, self.plan.batch_entries_max))
                except CallCancelledError:
                    pass  # What was handed over stays, and the handle can still be used.
                await asyncio.sleep(self.chance.random() * self.plan.pause_s)
                if number == self.plan.batches // 2:
                    await self.rest()
            await self.end()
        except QuireError as error:
            self.stage.failed(self.name, self.ledger_id, error)
            self.refused(error)
            if self.handle.closed:
                await self.insist(error)

    async def rest(self) -> None:
        """Append nothing for a while.

        With explicit LACs, the bookies learn of the last acknowledged entry meanwhile. This is
        checked only without faults, which may delay it for as long as they last.
        """
        plan, last = self.stage.plan, self.handle.last_add_confirmed
        await asyncio.sleep(self.plan.idle_s)
        ended = self.handle.closed or self.stage.checker.facts(self.ledger_id).deleted
        undisturbed = not plan.schedule and not plan.cancelling and not ended
        if not plan.explicit_lac_interval_ms or not undisturbed or self.plan.idle_s < KNOWN_S:
            return
        if (known := self.stage.checker.lac_of(self.ledger_id)) < last:
            what = (
                f"ledger {self.ledger_id}: {last} was acknowledged, but bookies know only {known}"
            )
            self.stage.checker.fail("the_last_entry_becomes_known", what)

    def refused(self, error: QuireError) -> None:
        """Check an error with `outcome_known`, which says that nothing of the call was done.

        The next entry must not become part of the ledger, and this writer must not have closed it.
        """
        if not error.outcome_known:
            return
        first = self.handle._session.pipeline.accepted + 1
        if not isinstance(self.handle, CallerIdWriter):
            self.stage.history.add(self.name, "refused", self.ledger_id, first, first)
        if self.stage.checker.facts(self.ledger_id).closed_by == self.name:
            what = f"{self.name} closed ledger {self.ledger_id}, and was told that it did not"
            self.stage.checker.fail("what_was_refused_is_not_done", f"{what}: {error!r}")

    async def end(self) -> None:
        if self.plan.end == "close":
            try:
                self.closed(await call(self.stage, self.name, self.handle.close()))
            except CallCancelledError:
                await self.closed_again()
        else:
            self.handle.abandon()

    async def closed_again(self) -> None:
        """Close a handle whose `close` was cancelled. It must report that the outcome is unknown.

        If the first call was cancelled before its first step, it has done nothing, and this call
        may succeed.
        """
        if self.handle._closing is None:
            self.closed(await self.handle.close())
            return
        try:
            self.closed(await self.handle.close())
        except QuireError as error:
            if error.outcome_known:
                what = f"{self.name} was told of ledger {self.ledger_id}: {error!r}"
                self.stage.checker.fail("a_cancelled_close_is_in_doubt", what)
            raise
        what = f"ledger {self.ledger_id}: a cancelled close succeeded when it was called again"
        self.stage.checker.fail("a_cancelled_close_is_in_doubt", what)

    async def insist(self, error: QuireError) -> None:
        """Try to append once more after a final error, which must fail."""
        try:
            await self.another()
        except QuireError:
            return
        what = f"appended after {type(error).__name__}"
        self.stage.history.add(self.name, "late", self.ledger_id, note=what)

    def closed(self, last: int) -> None:
        if self.stage.recreated is not None:
            self.stage.recreated.closed(self.name, self.ledger_id)
        self.stage.history.add(self.name, "closed", self.ledger_id, 0, last)
        self.acked(0, last)
        if last != self.last():
            what = f"closed at {last}, but {self.last()} was the last entry submitted"
            self.stage.wrong(self.name, self.ledger_id, what)

    async def call(self, work: Awaitable[int] | Awaitable[None]) -> Any:
        """Await a call of the handle, which may be cancelled."""
        return await call(self.stage, self.name, work)

    def last(self) -> int:
        """Return the last submitted entry before which no id is missing."""
        return self.handle.last_add_pushed

    def acked(self, first: int, last: int) -> None:
        if last >= first:
            self.stage.history.add(self.name, "acked", self.ledger_id, first, last)

    def payloads(self, first: int, last: int) -> Sequence[bytes]:
        self.stage.history.add(self.name, "append", self.ledger_id, first, last)
        return [self.stage.payload(self.ledger_id, entry) for entry in range(first, last + 1)]

    async def batch(self, count: int) -> None:
        raise NotImplementedError

    async def another(self) -> None:
        raise NotImplementedError


class Plain(LedgerWriterActor[LedgerWriter]):
    """Append batches and wait for each, or submit entries and flush now and then."""

    async def batch(self, count: int) -> None:
        first = self.handle.last_add_pushed + 1
        payloads = self.payloads(first, first + count - 1)
        if not self.plan.piped:
            last = await self.call(self.handle.append_many(payloads))
        else:
            for payload in payloads:
                await self.call(self.handle.room())
                self.handle.submit(payload)
            if self.chance.random() < 0.7:
                return
            last = await self.call(self.handle.flush())
        self.accepted(first, last)

    def accepted(self, first: int, last: int) -> None:
        self.acked(first, last)

    async def another(self) -> None:
        await self.handle.append(b"another")


class Turns:
    """The moments at which all writers of one client append."""

    def __init__(self) -> None:
        self._upcoming = asyncio.Event()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            now, self._upcoming = self._upcoming, asyncio.Event()
            now.set()

    async def wait(self) -> None:
        await self._upcoming.wait()


class InTurn(Plain):
    """Append the entries of a batch at moments at which the other writers append as well."""

    turns: Turns

    async def batch(self, count: int) -> None:
        for _ in range(count):
            await self.turns.wait()
            entry = self.handle.last_add_pushed + 1
            self.handle.submit(self.payloads(entry, entry)[0])
        first = self.handle.last_add_confirmed + 1
        self.accepted(first, await self.call(self.handle.flush()))


class Deferred(Plain):
    """Append with deferred sync: an accepted entry is durable only after a force."""

    _accepted = -1

    async def batch(self, count: int) -> None:
        await super().batch(count)
        if self.chance.random() < FORCED:
            accepted = self._accepted
            force = asyncio.ensure_future(self.call(self.handle.force()))
            if self.chance.random() < FORCED_MEANWHILE:
                try:
                    await asyncio.sleep(self.chance.random() * MEANWHILE_S)
                    await super().batch(count)
                except BaseException:
                    await asyncio.wait([force])
                    force.exception()
                    raise
            durable = await force
            if durable < accepted:
                what = f"force returned {durable}, but {accepted} was accepted before it"
                self.stage.wrong(self.name, self.ledger_id, what)
            self.acked(0, durable)

    def accepted(self, first: int, last: int) -> None:
        self._accepted = last
        self.stage.history.add(self.name, "accepted", self.ledger_id, first, last)


class OwnIds(LedgerWriterActor[CallerIdWriter]):
    """Append each batch in random order.

    Sometimes one id is appended with the next batch, or never.
    """

    _missing: int | None = None
    _upcoming = 0

    async def batch(self, count: int) -> None:
        chance, first = self.chance, self._upcoming
        last = first + count - 1
        self._upcoming = last + 1
        self.payloads(first, last)
        ids = [*range(first, last + 1)] + ([] if self._missing is None else [self._missing])
        chance.shuffle(ids)
        self._missing = ids.pop() if chance.random() < LEFT_OUT else None
        for entry_id in ids:
            await self._append(entry_id)
        through = last if self._missing is None else self._missing - 1
        if through >= 0 and not (self.plan.piped and chance.random() < 0.7):
            self.acked(0, await self.call(self.handle.wait(through)))

    async def _append(self, entry_id: int) -> None:
        payload = self.stage.payload(self.ledger_id, entry_id)
        await self.handle.room()
        if self.chance.random() < CANCELLED:
            task = asyncio.ensure_future(self.handle.append_at(entry_id, payload))
            await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.01]))
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
        try:
            self.handle.submit_at(entry_id, payload)
        except EntryExistsError:
            pass  # The append had begun before it was cancelled.

    async def end(self) -> None:
        if self._missing is not None and self.chance.random() < 0.7:
            await self._append(self._missing)
            self._missing = None
        await super().end()

    def last(self) -> int:
        return self._upcoming - 1 if self._missing is None else self._missing - 1

    async def another(self) -> None:
        await self.handle.append_at(self._upcoming, b"another")
