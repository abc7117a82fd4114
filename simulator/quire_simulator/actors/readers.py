"""Recover, read, tail and delete ledgers while their writers work."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial

from quire._runtime.tasks import TaskGroup
from quire.client import Client, LedgerReader
from quire.errors import NoSuchLedgerError, QuireError
from quire_simulator.actors.calls import call
from quire_simulator.invariants.costs import CostOfRecovery
from quire_simulator.plans.plans import LedgerPlan
from quire_simulator.world.stage import POLL_S, Stage

ATTEMPTS_MAX = 6
"""How often a recoverer tries while faults go on."""
LOOKS = 4
"""How often a reader refreshes and reads."""
LATE_SHARE = 0.25
"""The share of the plan's duration after which the late tail starts."""
CLOSED_S = 0.02
"""The interval at which a reader that waits for the close of a ledger looks for it."""
AFTERWARDS_S = 3.0
"""The time for which such a reader stays. In this time it asks bookies again."""
RESTLESS_S = 0.05
RESTLESS_ENTRIES = 7
"""The restless tail stops after this time or this number of entries, wherever it is then."""


async def recover(stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None:
    ledger_id = await stage.ledger_id(plan)
    if ledger_id is None:
        return
    for _ in range(ATTEMPTS_MAX):
        try:
            await take_over(stage, name, client, ledger_id)
            return
        except QuireError as error:
            stage.failed(name, ledger_id, error)
            stage.denied(name, ledger_id, error)
            await asyncio.sleep(POLL_S)


async def take_over(stage: Stage, name: str, client: Client, ledger_id: int) -> None:
    """Recover a ledger and read all of it."""
    facts = stage.checker.facts(ledger_id)
    facts.contested |= not facts.closed_by
    changes = facts.changed_by[name]
    cost = CostOfRecovery(stage, name, client, ledger_id)
    if stage.recreated is not None:
        stage.recreated.opens(name, ledger_id)
    opening = client.open_ledger(ledger_id, password=facts.password, recover=True)
    try:
        reader = await call(stage, name, opening)
    except QuireError as error:
        changed = facts.changed_by[name] > changes
        # A ledger that was deleted in the meantime is not as it was, and the error says so.
        if error.outcome_known and changed and ledger_id in stage.world.cluster.ledgers:
            what = f"{name} changed ledger {ledger_id}, and was told that it did not: {error!r}"
            stage.checker.fail("what_was_refused_is_not_done", what)
        raise
    finally:
        cost.check()
    stage.history.add(name, "recovered", ledger_id, 0, reader.last_add_confirmed)
    await read_range(stage, name, reader, 0)


async def read(stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None:
    """Read everything known to be acknowledged, repeatedly as the LAC advances."""
    ledger_id = await stage.ledger_id(plan)
    if ledger_id is None:
        return
    try:
        reader = await call(stage, name, client.open_ledger(ledger_id, password=plan.password))
        upcoming, creation = 0, reader._view.creation
        for _ in range(LOOKS):
            if reader.last_add_confirmed < upcoming - 1:
                what = f"LAC {reader.last_add_confirmed} after {upcoming - 1}"
                stage.wrong(name, ledger_id, what)
            lac = reader.last_add_confirmed
            stage.history.add(name, "observe", ledger_id, upcoming, lac)
            await read_range(stage, name, reader, upcoming)
            upcoming = max(upcoming, lac + 1)
            await asyncio.sleep(POLL_S)
            await call(stage, name, reader.refresh())
            _still(stage, name, reader, creation)
        if upcoming:
            # Read again from the middle, so that old entries are read as well.
            await read_range(stage, name, reader, upcoming // 2)
    except QuireError as error:
        stage.failed(name, ledger_id, error)
        stage.denied(name, ledger_id, error)


async def read_closed(stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None:
    """Read a ledger as soon as it is closed, while some of its bookies may still lag."""
    ledger_id = await stage.ledger_id(plan)
    if ledger_id is None:
        return
    facts, loop = stage.checker.facts(ledger_id), stage.world.loop
    while not facts.closed_by and loop.time() < stage.begin_s + stage.plan.span_s:
        await asyncio.sleep(CLOSED_S)
    try:
        reader = await client.open_ledger(ledger_id, password=plan.password)
        if reader.metadata.closed:
            await read_range(stage, name, reader, 0)
            await asyncio.sleep(AFTERWARDS_S)
    except QuireError as error:
        stage.failed(name, ledger_id, error)
        stage.denied(name, ledger_id, error)


def _still(stage: Stage, name: str, reader: LedgerReader, creation: tuple[int, int]) -> None:
    if stage.recreated is not None:
        stage.recreated.same(name, reader, creation)


async def read_range(stage: Stage, name: str, reader: LedgerReader, first: int) -> None:
    last, upcoming = reader.last_add_confirmed, first
    async with aclosing(reader.read(first, last)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            stage.seen(name, reader.ledger_id, entry, upcoming)
            upcoming += 1
    if upcoming != last + 1:
        what = f"a read of {first}..{last} ended before entry {upcoming}"
        stage.wrong(name, reader.ledger_id, what)
    if upcoming > first:
        stage.history.add(name, "read", reader.ledger_id, first, upcoming - 1)


async def tail(stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None:
    """Follow the ledger to its end with three tails of one client, which share what they read.

    One starts at once, one comes later and reads everything, and one repeatedly leaves and returns.
    """
    ledger_id = await stage.ledger_id(plan)
    if ledger_id is None:
        return
    work = partial(_follow, stage, client=client, ledger_id=ledger_id, password=plan.password)
    async with TaskGroup() as group:
        # The restless tail starts first, so it is the one that sends the shared requests.
        restless = work(f"{name}/restless", stays_s=RESTLESS_S, takes=RESTLESS_ENTRIES)
        group.create_task(restless)
        group.create_task(work(name))
        group.create_task(work(f"{name}/late", begin_s=stage.plan.span_s * LATE_SHARE))


async def _follow(
    stage: Stage,
    name: str,
    *,
    client: Client,
    ledger_id: int,
    password: bytes,
    begin_s: float = 0.0,
    stays_s: float | None = None,
    takes: int = 0,
) -> None:
    """Follow the ledger to its end.

    A tail that fails, is cancelled after `stays_s`, or stops after `takes` entries is started again
    after the last entry it delivered.
    """
    upcoming = 0
    await asyncio.sleep(begin_s)
    while True:
        began_at = upcoming
        try:
            reader = await call(stage, name, client.open_ledger(ledger_id, password=password))
            leaves_at, creation = upcoming + takes if takes else None, reader._view.creation
            async with asyncio.timeout(stays_s), aclosing(reader.tail(upcoming)) as entries:
                async for entry in entries:
                    stage.seen(name, ledger_id, entry, upcoming)
                    stage.history.add(name, "read", ledger_id, upcoming, upcoming)
                    upcoming += 1
                    _still(stage, name, reader, creation)
                    if upcoming == leaves_at:
                        break
            _still(stage, name, reader, creation)
            if upcoming == leaves_at:
                if stage.world.loop.time() > stage.begin_s + stage.plan.span_s:
                    takes *= 2  # The faults are over, and it must come to its end.
                continue
            stage.history.add(name, "tail ended", ledger_id, 0, upcoming - 1)
            facts = stage.checker.facts(ledger_id)
            if facts.closed_at != upcoming - 1 and not facts.deleted:
                what = f"the tail ended before entry {upcoming}, closed at {facts.closed_at}"
                stage.wrong(name, ledger_id, what)
            return
        except TimeoutError:
            if upcoming == began_at and stays_s is not None:
                stays_s *= 2  # Bookies may be slow or unavailable.
        except NoSuchLedgerError as error:
            stage.denied(name, ledger_id, error)
            return
        except QuireError as error:
            stage.failed(name, ledger_id, error)
            stage.denied(name, ledger_id, error)
            await asyncio.sleep(POLL_S)


async def delete(stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None:
    ledger_id = await stage.ledger_id(plan)
    if ledger_id is not None:
        stage.history.add(name, "delete", ledger_id)
        try:
            await call(stage, name, client.delete_ledger(ledger_id))
        except QuireError as error:
            if error.outcome_known and ledger_id not in stage.world.cluster.ledgers:
                what = f"{name} deleted ledger {ledger_id}, and was told that it did not: {error!r}"
                stage.checker.fail("what_was_refused_is_not_done", what)
            raise
        stage.history.add(name, "deleted", ledger_id)
