"""The tree in a SQLite file alone: files of a former version, leases, and several processes."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from pathlib import Path

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.errors import KeyExistsError, MetadataUnavailableError, NoSuchKeyError
from quire.metadata.interface import BookieAddress, Bookies, Versioned
from quire.metadata.sqlite.file import APPLICATION_ID, SCHEMA_VERSION, SqliteFile
from quire.metadata.tree import Check, Create, Put
from tests.support.metadata.backends import Backend
from tests.support.metadata.sqlite import (
    LONG_MS,
    FakeMachine,
    next_line,
    open_store,
    path_of,
    process,
)
from tests.support.waiting import until

ONE = BookieAddress("bookie-1", "10.0.0.1", 3181)
METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("a:1",)),), ctime_ms=5, ctime_stored=True)

# -- files of the former version --------------------------------------------------------------

SCHEMA_1 = """
CREATE TABLE cluster (
    one            INTEGER PRIMARY KEY CHECK (one = 1),
    instance_id    TEXT NOT NULL,
    next_ledger_id INTEGER NOT NULL
);
CREATE TABLE ledgers (
    ledger_id INTEGER PRIMARY KEY,
    version   INTEGER NOT NULL,
    ctime_ms  INTEGER NOT NULL,
    metadata  BLOB NOT NULL
);
CREATE TABLE cookies (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    data    BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE "values" (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    data    BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE sessions (
    session_id    INTEGER PRIMARY KEY,
    boot_id       TEXT NOT NULL,
    deadline_ms   INTEGER NOT NULL,
    pid           INTEGER NOT NULL,
    pid_namespace TEXT NOT NULL,
    process_start INTEGER NOT NULL
);
CREATE TABLE bookies (
    bookie_id  TEXT PRIMARY KEY,
    session_id INTEGER NOT NULL,
    readonly   INTEGER NOT NULL,
    payload    BLOB NOT NULL
) WITHOUT ROWID;
"""


def write_schema_1(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.executescript(SCHEMA_1)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("PRAGMA user_version=1")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("INSERT INTO cluster VALUES (1, 'the-instance', 8)")
        connection.execute("INSERT INTO ledgers VALUES (7, 3, 5, ?)", (encode(METADATA),))
    finally:
        connection.close()


async def test_a_file_of_schema_1_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    write_schema_1(path)
    opened = await asyncio.gather(*(SqliteFile.open(path, None) for _ in range(4)))
    try:
        for file, created in opened:
            assert not created
            assert await file.read(lambda c: c.execute("PRAGMA user_version").fetchone()) == (
                SCHEMA_VERSION,
            )
    finally:
        for file, _ in opened:
            await file.close()
    backend = _Named(f"sqlite:///{path}")
    store = await open_store(backend)
    try:
        assert await store.instance_id() == "the-instance"
        assert await store.read_ledger(7) == Versioned(METADATA, 3)
        assert await store.tree.children("/") == []
        await store.tree.commit(Create("/a", b"1"))
    finally:
        await store.close()
    again = await open_store(backend)
    try:
        assert await again.tree.read("/a") == Versioned(b"1", 0)
    finally:
        await again.close()


class _Named(Backend):
    def __init__(self, uri: str) -> None:
        self.name = "sqlite"
        self.uri = uri


# -- leases -----------------------------------------------------------------------------------


async def test_an_expired_lease_is_not_renewed(sqlite: Backend) -> None:
    """After a long pause of the process, others have seen its nodes disappear, so they are gone.

    Its bookie, which no other session has, stays registered.
    """
    machine = FakeMachine()
    owner = await open_store(sqlite, machine=machine, session_timeout_ms=LONG_MS)
    observer = await open_store(sqlite, machine=machine, session_timeout_ms=10 * LONG_MS)
    told: list[int] = []
    try:
        await owner.register_bookie(ONE)
        await owner.tree.commit(Create("/lock", ephemeral=True), Create("/stays"))
        before = owner.tree.session_id
        owner.tree.on_session_lost(lambda: told.append(owner.tree.session_id))
        machine.time_ms += LONG_MS - 1
        assert await observer.tree.children("/") == ["lock", "stays"]
        machine.time_ms += 1
        for store in (observer, owner):
            assert await store.tree.children("/") == ["stays"]
            assert not await store.tree.exists("/lock")
            with pytest.raises(NoSuchKeyError):
                await store.tree.commit(Check("/lock", 0))
        assert await owner.tree.commit(Create("/lock", b"again", ephemeral=True)) == ["/lock"]
        await until(lambda: told == [owner.tree.session_id])
        assert owner.tree.session_id != before
        assert await observer.tree.read("/lock") == Versioned(b"again", 0)
        assert await observer.bookies() == Bookies({ONE.bookie_id: ONE}, {})
    finally:
        await owner.close()
        await observer.close()


async def test_a_lease_is_renewed_for_an_ephemeral_node_alone(sqlite: Backend) -> None:
    """An ephemeral node alone keeps the session alive, past its time-out."""
    timeout_ms = 1_500  # A busy machine may stop this process for most of a second.
    store = await open_store(sqlite, session_timeout_ms=timeout_ms)
    other = await open_store(sqlite)
    deadlines: set[int] = set()

    def deadline(connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT deadline_ms FROM sessions").fetchone()[0])

    try:
        await store.tree.commit(Create("/mine", ephemeral=True))
        async with asyncio.timeout(30):
            while len(deadlines) < 4 or max(deadlines) - min(deadlines) < 2 * timeout_ms:
                deadlines.add(await other._file.read(deadline))
                assert await other.tree.exists("/mine")
                await asyncio.sleep(0.02)
    finally:
        await store.close()
        await other.close()


async def test_a_session_removed_by_another_process_is_noticed(sqlite: Backend) -> None:
    mine, others = FakeMachine(), FakeMachine()
    owner = await open_store(sqlite, machine=mine, session_timeout_ms=1_000)
    other = await open_store(sqlite, machine=others, session_timeout_ms=LONG_MS)
    told: list[int] = []
    try:
        await owner.tree.commit(Create("/lock", b"1", ephemeral=True))
        owner.tree.on_session_lost(lambda: told.append(1))
        others.time_ms += 5_000
        assert await other.tree.commit(Create("/lock", b"2", ephemeral=True)) == ["/lock"]
        with pytest.raises(KeyExistsError):
            await owner.tree.commit(Create("/lock", b"1", ephemeral=True))
        await until(lambda: told == [1])
    finally:
        await owner.close()
    try:
        assert await other.tree.read("/lock") == Versioned(b"2", 0)
    finally:
        await other.close()


async def test_a_node_of_an_unknown_session_is_treated_as_missing(sqlite: Backend) -> None:
    """A program of the former version clears sessions away, but knows no nodes."""
    store = await open_store(sqlite)
    connection = sqlite3.connect(path_of(sqlite), isolation_level=None)
    try:
        await store.tree.commit(Create("/here", b"", ephemeral=True))
        connection.execute("INSERT INTO tree VALUES ('/left', '/', 0, 0, 4711, x'')")
        assert await store.tree.children("/") == ["here"]
        assert not await store.tree.exists("/left")
        assert await store.tree.commit(Create("/left", b"new")) == ["/left"]
        assert await store.tree.read("/left") == Versioned(b"new", 0)
    finally:
        connection.close()
        await store.close()


class LateMachine(FakeMachine):
    """A machine on which every lease has ended before it can be used."""

    def now_ms(self) -> int:
        self.time_ms += LONG_MS
        return self.time_ms


async def test_a_commit_that_always_loses_its_lease_changes_nothing(sqlite: Backend) -> None:
    store = await open_store(sqlite, machine=LateMachine())
    try:
        with pytest.raises(MetadataUnavailableError, match="nothing was committed") as caught:
            await store.tree.commit(Create("/lock", ephemeral=True))
        assert caught.value.outcome_known
        assert await store.tree.children("/") == []
    finally:
        await store.close()


# -- other processes --------------------------------------------------------------------------

HOLD = """
import asyncio, sys
from quire.metadata import open_metadata
from quire.metadata.tree import Create

async def main():
    store = await open_metadata(sys.argv[1], session_timeout_s=3_600)
    await store.tree.commit(Create("/member_", b"child", ephemeral=True, sequential=True))
    print("created", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="without /proc only leases tell")
async def test_the_nodes_of_a_killed_process_vanish_at_once(sqlite: Backend) -> None:
    """Its lease would hold for an hour. A watch hears of it, though the file does not change."""
    store = await open_store(sqlite)
    try:
        with process(HOLD, sqlite.uri) as running:
            assert await next_line(running) == "created"
            seen: list[list[str] | None] = []
            values: list[Versioned[bytes] | None] = []
            store.tree.watch_children("/", seen.append)
            store.tree.watch_value("/member_0000000000", values.append)
            await until(lambda: seen == [["member_0000000000"]])
            running.send_signal(signal.SIGKILL)
            await until(lambda: seen[1:] == [[]])
            await until(lambda: values == [Versioned(b"child", 0), None])
        await store.tree.commit(Put("/", b""))  # whoever commits clears away
        rows = await store._file.read(lambda c: c.execute("SELECT path FROM tree").fetchall())
        assert rows == [("/",)]
        (path,) = await store.tree.commit(Create("/member_", ephemeral=True, sequential=True))
        assert path == "/member_0000000001"
    finally:
        await store.close()
