"""Work of a SQLite store that reaches its file after the caller has gone on."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import decode
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.errors import MetadataError, MetadataUnavailableError
from quire.metadata import open_metadata
from quire.metadata.interface import BookieAddress
from quire.metadata.sqlite import store as store_module
from quire.metadata.sqlite import watch as sqlite_watch
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.tree import Create, Put

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


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize(
    "error", [MetadataUnavailableError("no answer"), KeyError("a defect")], ids=repr
)
@pytest.mark.parametrize("what", ["ledger", "value", "children", "bookies"])
async def test_a_watch_sees_an_own_change_although_the_read_after_it_fails(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception, failures: int
) -> None:
    """The store's own changes do not show in the file, so the failed read must be repeated."""
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    monkeypatch.setattr(sqlite_watch, "LIVENESS_POLL_S", 10 * LIMIT_S)
    monkeypatch.setattr(store._watches, "_poll_s", 0.001)
    ledger_id, created = await store.create_ledger(METADATA)
    await store.tree.make_path("/a")
    seen: asyncio.Queue[Any] = asyncio.Queue()
    watch: Any = {
        "ledger": lambda: store.watch_ledger(ledger_id, seen.put_nowait),
        "value": lambda: store.tree.watch_value("/a", seen.put_nowait),
        "children": lambda: store.tree.watch_children("/a", seen.put_nowait),
        "bookies": lambda: store.watch_bookies(seen.put_nowait),
    }[what]()
    async with asyncio.timeout(LIMIT_S):
        first = await seen.get()
        look, left = store._watches._look, failures

        async def failing() -> None:
            nonlocal left
            if left:
                left -= 1
                raise error
            await look()

        monkeypatch.setattr(store._watches, "_look", failing)
        if what == "ledger":
            await store.write_ledger(
                ledger_id, created.value.with_state(LedgerState.IN_RECOVERY), 0
            )
        elif what == "value":
            await store.tree.commit(Put("/a", b"1"))
        elif what == "children":
            await store.tree.commit(Create("/a/b"))
        else:
            await store.register_bookie(BookieAddress("b", "h", 3181))
        assert await seen.get() != first
        assert left == 0
    watch.close()


CHANGES = list(product((False, True), (None, "1", "2")))


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("before", CHANGES, ids=str)
async def test_a_renewal_carries_out_a_change_of_a_registration_that_failed(
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[bool, str | None],
    change: tuple[bool, str | None],
) -> None:
    """Until it is restarted, the bookie would keep its former list and properties."""
    registration = await store.register_bookie(BookieAddress("b", "h", 3181))

    async def becomes(readonly: bool, value: str | None) -> None:
        await registration.set_readonly(readonly, None if value is None else {"n": value})

    async def fails(work: Any) -> Any:
        raise MetadataUnavailableError("no answer")

    await becomes(*before)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", fails)
        with pytest.raises(MetadataUnavailableError):
            await becomes(*change)
    assert await store._renew_now(tuple(store._presences.values())) == []
    found = await store.bookies()
    assert ("b" in found.readonly, "b" in found.writable) == (change[0], not change[0])
    address = found.find("b")
    value = before[1] if change[1] is None else change[1]
    assert address is not None
    assert address.properties.get("n") == value
    await registration.close()


async def test_the_highest_ledger_id_cannot_be_skipped(store: SqliteStore) -> None:
    """The store once raised OverflowError, which is not an error of Quire."""
    with pytest.raises(MetadataError, match="used up"):
        await store.skip_ledger_ids(LEDGER_ID_MAX)
    await store.skip_ledger_ids(LEDGER_ID_MAX - 1)
    with pytest.raises(MetadataError, match="used up"):
        await store.create_ledger(METADATA)
