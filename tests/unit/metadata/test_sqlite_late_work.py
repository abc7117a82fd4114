"""Work of a SQLite store that reaches its file after the caller has gone on."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import decode
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.errors import MetadataError
from quire.metadata import open_metadata
from quire.metadata.interface import BookieAddress
from quire.metadata.sqlite import store as store_module
from quire.metadata.sqlite.store import SqliteStore

LIMIT_S = 10.0
METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("b",)),))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await open_metadata(f"sqlite:///{tmp_path}/cluster.db", create=True)
    assert isinstance(opened, SqliteStore)
    await opened.initialise()
    yield opened
    await opened.close()


async def held(store: SqliteStore) -> threading.Event:
    """Block the thread of the store's file until the event is set."""
    release, blocked = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(blocked.set)
        release.wait(LIMIT_S)

    task = asyncio.ensure_future(store._file.read(work))
    task.add_done_callback(lambda done: done.exception())
    await blocked.wait()
    return release


async def test_a_bookie_that_registers_again_at_once_stays_registered(store: SqliteStore) -> None:
    """The clean-up of the attempt that was cancelled deleted the next registration."""
    release = await held(store)
    first = asyncio.ensure_future(store.register_bookie(BookieAddress("b", "h", 3181)))
    await asyncio.sleep(0)
    first.cancel()

    async def again() -> Any:
        with pytest.raises(asyncio.CancelledError):
            await first
        return await store.register_bookie(BookieAddress("b", "h", 3182))

    second = asyncio.ensure_future(again())
    release.set()
    await second
    await store._file.read(lambda connection: None)
    assert {name: one.port for name, one in (await store.bookies()).writable.items()} == {"b": 3182}


async def test_a_watch_sees_a_change_whose_caller_was_cancelled(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the caller woke the watches, and the store's own changes do not show otherwise."""
    ledger_id, created = await store.create_ledger(METADATA)
    seen: asyncio.Queue[Any] = asyncio.Queue()
    watch = store.watch_ledger(ledger_id, seen.put_nowait)
    async with asyncio.timeout(LIMIT_S):
        assert (await seen.get()).version == 0
        release, started = threading.Event(), asyncio.Event()
        loop, encoded = asyncio.get_running_loop(), decode

        def slow(*what: Any) -> Any:
            loop.call_soon_threadsafe(started.set)
            release.wait(LIMIT_S)
            return encoded(*what)

        monkeypatch.setattr(store_module, "decode", slow)
        changed = created.value.with_state(LedgerState.IN_RECOVERY)
        change = asyncio.ensure_future(store.write_ledger(ledger_id, changed, 0))
        await started.wait()
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change
        release.set()
        assert (await seen.get()).version == 1
    watch.close()


async def test_the_highest_ledger_id_cannot_be_skipped(store: SqliteStore) -> None:
    """The store once raised OverflowError, which is not an error of Quire."""
    with pytest.raises(MetadataError, match="used up"):
        await store.skip_ledger_ids(LEDGER_ID_MAX)
    await store.skip_ledger_ids(LEDGER_ID_MAX - 1)
    with pytest.raises(MetadataError, match="used up"):
        await store.create_ledger(METADATA)
