"""Readers that keep their handles while all the bookies that they know disappear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from quire.client import Client, LedgerReader
from quire.codec.entry.entry import Entry
from quire.errors import QuireError
from quire_simulator.actors.readers import read_range
from quire_simulator.plans.plans import LedgerPlan
from quire_simulator.world.stage import POLL_S, Stage

OPENED_S = 0.5
"""The longest time after the creation of a ledger at which a handle is opened."""
TAKES = 3
"""The largest number of entries that are taken from a tail before it pauses."""
ATTEMPTS_MAX = 3
"""The number of attempts to read after all bookies have gone. One must succeed."""
STORE_CALLS_MAX = 40
"""The largest number of calls of the metadata store by these reads.

Each attempt reads the metadata once for each segment whose bookies have gone.
"""


def is_holder(name: str) -> bool:
    return name.startswith("holder-")


async def hold(stage: Stage, name: str, client: Client, plan: LedgerPlan) -> None:
    """Open a ledger early, and read it with the same handle when its first bookies are gone."""
    ledger_id = await stage.ledger_id(plan)
    if ledger_id is None:
        return
    chance = stage.world.loop.derive(f"actor {name}")
    await asyncio.sleep(chance.random() * OPENED_S)
    reader = await _opened(stage, name, client, ledger_id, plan.password)
    async with aclosing(reader.tail(0)) as entries:
        upcoming, failed = await _some(stage, name, reader, entries, chance.randint(0, TAKES))
        await stage.moved.wait()
        before = stage.world.store_calls[name]
        await _read_on(stage, name, reader)
        await _follow_on(stage, name, reader, entries, upcoming, failed)
    calls = stage.world.store_calls[name] - before
    if calls > STORE_CALLS_MAX:
        what = f"{name} called the metadata store {calls} times to read ledger {ledger_id}"
        stage.checker.fail("calls_are_bounded", what)


async def _opened(
    stage: Stage, name: str, client: Client, ledger_id: int, password: bytes
) -> LedgerReader:
    while True:
        try:
            return await client.open_ledger(ledger_id, password=password)
        except QuireError as error:
            stage.failed(name, ledger_id, error)
            await asyncio.sleep(POLL_S)


async def _some(
    stage: Stage,
    name: str,
    reader: LedgerReader,
    entries: AsyncGenerator[Entry, None],
    count: int,
) -> tuple[int, bool]:
    """Take some entries of a tail, which then pauses.

    Return the next entry, and whether the tail failed.
    """
    upcoming = 0
    while upcoming < min(count, reader.last_add_confirmed + 1):
        try:
            entry = await anext(entries)
        except QuireError as error:
            stage.failed(name, reader.ledger_id, error)
            return upcoming, True
        stage.seen(name, reader.ledger_id, entry, upcoming)
        upcoming += 1
    return upcoming, False


async def _read_on(stage: Stage, name: str, reader: LedgerReader) -> None:
    """Read the whole ledger with the old handle."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            await reader.refresh()
            await read_range(stage, name, reader, 0)
            return
        except QuireError as error:
            stage.failed(name, reader.ledger_id, error)
            if attempt == ATTEMPTS_MAX - 1:
                _lost(stage, name, reader, error)


async def _follow_on(
    stage: Stage,
    name: str,
    reader: LedgerReader,
    entries: AsyncGenerator[Entry, None],
    upcoming: int,
    failed: bool,
) -> None:
    """Continue with the tail to the end of the ledger, which is closed by now.

    If the tail has `failed` before, another one of the same handle takes its place.
    """
    if failed:
        entries = reader.tail(upcoming)
    try:
        async with aclosing(entries):
            async for entry in entries:
                stage.seen(name, reader.ledger_id, entry, upcoming)
                upcoming += 1
    except QuireError as error:
        _lost(stage, name, reader, error)
        return
    if upcoming != reader.last_add_confirmed + 1:
        what = f"a tail of {name} ended before entry {upcoming} of ledger {reader.ledger_id}"
        stage.checker.fail("a_long_lived_reader_follows", what)


def _lost(stage: Stage, name: str, reader: LedgerReader, error: QuireError) -> None:
    what = f"{name} cannot read ledger {reader.ledger_id} with its old handle: {error!r}"
    stage.checker.fail("a_long_lived_reader_follows", what)
