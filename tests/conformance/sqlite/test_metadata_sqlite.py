"""The SQLite store alone: several processes on one file, leases, and errors of the disk."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire._runtime.shortages import READ_ONLY
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import (
    ClientClosedError,
    ClusterNotInitialisedError,
    KeyExistsError,
    LaterClusterError,
    LedgerExistsError,
    MetadataError,
    MetadataUnavailableError,
    MetadataWentBackError,
)
from quire.metadata import open_metadata
from quire.metadata.interface import BookieAddress, Bookies
from quire.metadata.sqlite.file import QUEUED_CALLS_MAX, SqliteFile
from quire.metadata.sqlite.session import ProcessId, ThisMachine, _boot_id_of_sysctl
from quire.metadata.sqlite.store import SqliteStore
from tests.support.metadata.backends import Backend, ids_of
from tests.support.metadata.sqlite import (
    LONG_MS,
    FakeMachine,
    next_line,
    open_store,
    path_of,
    process,
)
from tests.support.waiting import until

METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("a:1",)),))
ONE = BookieAddress("bookie-1", "10.0.0.1", 3181)


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


# -- other processes --------------------------------------------------------------------------

REGISTER = """
import asyncio, random, sys
from pathlib import Path
from quire._runtime.clock import SystemClock
from quire.metadata.interface import BookieAddress
from quire.metadata.sqlite.store import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), create=False, clock=SystemClock(),
                                   rng=random.Random(), session_timeout_ms=int(sys.argv[2]))
    await store.register_bookie(BookieAddress("bookie-1", "10.0.0.1", 3181))
    print("registered", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

CREATE = """
import asyncio, sys
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.metadata import open_metadata

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    store = await open_metadata(sys.argv[1], create=True)
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("a:1",)),))
    ids = [(await store.create_ledger(metadata))[0] for _ in range(10)]
    print(await store.instance_id(), *ids, flush=True)
    await store.close()

asyncio.run(main())
"""


async def test_a_killed_bookie_vanishes_at_once(sqlite: Backend) -> None:
    """Its lease would last for an hour, and it is a zombie that nobody has waited for."""
    store = await sqlite.store()
    seen: list[Bookies] = []
    store.watch_bookies(seen.append)
    with process(REGISTER, str(path_of(sqlite)), str(LONG_MS)) as running:
        assert await next_line(running) == "registered"
        assert (await store.bookies()).writable == {ONE.bookie_id: ONE}
        await until(lambda: seen[-1:] == [Bookies({ONE.bookie_id: ONE}, {})])
        running.send_signal(signal.SIGKILL)
        await until(lambda: seen[-1] == Bookies({}, {}))
        assert await store.bookies() == Bookies({}, {})
        await store.register_bookie(ONE)  # the id is free: no waiting for the lease


async def test_a_stopped_bookie_vanishes_with_its_lease(sqlite: Backend) -> None:
    """It is alive but does not renew its lease. When it continues, it is registered again."""
    store = await sqlite.store()
    seen: list[Bookies] = []
    store.watch_bookies(seen.append)
    with process(REGISTER, str(path_of(sqlite)), "800") as running:
        assert await next_line(running) == "registered"
        await until(lambda: seen[-1:] == [Bookies({ONE.bookie_id: ONE}, {})])
        running.send_signal(signal.SIGSTOP)
        await until(lambda: seen[-1] == Bookies({}, {}))
        running.send_signal(signal.SIGCONT)
        await until(lambda: seen[-1] == Bookies({ONE.bookie_id: ONE}, {}))


async def test_many_processes_make_one_cluster(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'new.db'}"
    with process(CREATE, uri) as a, process(CREATE, uri) as b, process(CREATE, uri) as c:
        running = (a, b, c)
        for one in running:
            assert await next_line(one) == "ready"
        for one in running:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        lines = [(await next_line(one)).split() for one in running]
    assert len({instance_id for instance_id, *_ in lines}) == 1
    ids = sorted(int(ledger_id) for _, *ids in lines for ledger_id in ids)
    assert ids == list(range(30))


# -- leases -----------------------------------------------------------------------------------


async def test_leases_end_with_their_time_process_or_boot(sqlite: Backend) -> None:
    machine = FakeMachine()
    owner = await open_store(sqlite, machine=machine, session_timeout_ms=LONG_MS)
    observer = await open_store(sqlite, machine=machine)
    there = Bookies({ONE.bookie_id: ONE}, {})
    try:
        await owner.register_bookie(ONE)
        machine.time_ms += LONG_MS - 1
        assert await observer.bookies() == there
        machine.time_ms += 1
        assert await observer.bookies() == Bookies({}, {})
        machine.time_ms -= 1
        machine.gone = {machine.process.pid}
        assert await observer.bookies() == Bookies({}, {})
        machine.gone = set()
        assert await observer.bookies() == there
        machine.boot = "boot-2"  # as a process sees it that was started after the restart
        machine.time_ms = 0
        later = await open_store(sqlite, machine=machine)
        try:
            assert await later.bookies() == Bookies({}, {})
            await later.register_bookie(replace(ONE, port=99))
            assert (await later.bookies()).writable[ONE.bookie_id].port == 99
        finally:
            await later.close()
    finally:
        await owner.close()
        await observer.close()


async def test_a_lost_session_is_registered_again(sqlite: Backend) -> None:
    """The lease ran out and another process cleared it away: the next renewal registers again, in
    the list where the bookie was."""
    mine, others = FakeMachine(), FakeMachine()
    owner = await open_store(sqlite, machine=mine, session_timeout_ms=2_000)
    other = await open_store(sqlite, machine=others)
    seen: list[Bookies] = []
    try:
        registration = await owner.register_bookie(ONE)
        await registration.set_readonly(True)
        other.watch_bookies(seen.append)
        await until(lambda: seen[-1:] == [Bookies({}, {ONE.bookie_id: ONE})])
        others.time_ms += 10_000
        await other.register_bookie(replace(ONE, bookie_id="bookie-2"))  # clears away
        await until(lambda: seen[-1].find(ONE.bookie_id) is None)
        others.time_ms -= 10_000
        await until(lambda: ONE.bookie_id in seen[-1].readonly)
    finally:
        await owner.close()
        await other.close()


async def test_an_id_that_was_taken_over_is_not_taken_back(
    sqlite: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    mine, others = FakeMachine(), FakeMachine()
    owner = await open_store(sqlite, machine=mine, session_timeout_ms=1_000)
    other = await open_store(sqlite, machine=others, session_timeout_ms=LONG_MS)
    try:
        registration = await owner.register_bookie(ONE)
        others.time_ms += 5_000
        await other.register_bookie(replace(ONE, port=99))
        await until(lambda: "another process has registered bookie bookie-1" in caplog.text)
        with pytest.raises(KeyExistsError):
            await registration.set_readonly(True)
        await registration.close()
        assert (await other.bookies()).writable[ONE.bookie_id].port == 99
    finally:
        await owner.close()
        await other.close()


def test_a_reused_process_id_is_not_taken_for_the_former_process() -> None:
    machine = ThisMachine()
    me = machine.this_process()
    assert me.pid == os.getpid()
    assert machine.exists(me)
    assert machine.boot_id() == machine.boot_id() != ""
    assert machine.now_ms() <= machine.now_ms()
    if not Path("/proc/self/stat").exists():
        pytest.skip("without /proc only leases tell")
    assert not machine.exists(replace(me, start=me.start + 1))  # the id was used again
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not machine.exists(replace(me, pid=ended.pid))
    assert machine.exists(ProcessId(ended.pid, "another namespace", 1))  # cannot be seen


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open no file in the block. Those that are open can be used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_process_without_descriptors_ends_no_session_of_others(sqlite: Backend) -> None:
    """It cannot look at their processes, and once took them for ended ones."""
    two = replace(ONE, bookie_id="bookie-2")
    store = await open_store(sqlite)
    try:
        await store.register_bookie(two)
        with process(REGISTER, str(path_of(sqlite)), str(LONG_MS)) as running:
            assert await next_line(running) == "registered"
            with no_descriptor_left():
                assert set((await store.bookies()).writable) == {"bookie-1", "bookie-2"}
                assert await store._renew_now(tuple(store._presences.values())) == []
            assert set((await store.bookies()).writable) == {"bookie-1", "bookie-2"}
    finally:
        await store.close()


def test_a_process_that_proc_hides_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `hidepid` or `ProtectProc`, /proc does not show the processes of other users."""
    machine = ThisMachine()
    if not Path("/proc/self/stat").exists():
        pytest.skip("without /proc only leases tell")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    hidden = replace(machine.this_process(), pid=ended.pid)
    assert not machine.exists(hidden)

    def refused(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert machine.exists(hidden)


def test_a_boot_id_that_cannot_be_read_is_not_another_one() -> None:
    """All sessions would belong to an earlier start of the machine."""
    machine = ThisMachine()
    if not Path("/proc/sys/kernel/random/boot_id").exists():
        pytest.skip("the boot id is read from /proc on Linux only")
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        machine.boot_id()


def test_a_boot_id_that_macos_does_not_tell_in_time_is_not_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(command: list[str], **how: Any) -> None:
        raise subprocess.TimeoutExpired(command, 5)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(OSError, match="boot id of the machine could not be read"):
        _boot_id_of_sysctl()


async def test_a_cancelled_registration_leaves_no_bookie(sqlite: Backend) -> None:
    """The thread is at it already, waiting for the file, when the caller gives up."""
    store = await open_store(sqlite)
    other = await open_store(sqlite)
    holder = sqlite3.connect(path_of(sqlite), isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        registering = asyncio.ensure_future(store.register_bookie(ONE))
        await asyncio.sleep(0)
        await until(store._file._thread._work_queue.empty)
        registering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await registering
        holder.execute("ROLLBACK")
        await store.instance_id()  # behind what was asked of the thread
        assert await other.bookies() == Bookies({}, {})
        await store.register_bookie(ONE)
        assert await other.bookies() == Bookies({ONE.bookie_id: ONE}, {})
    finally:
        holder.close()
        await store.close()
        await other.close()


# -- the file ---------------------------------------------------------------------------------


async def test_opening_a_missing_file_does_not_create_it(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotInitialisedError, match=r"typo\.db"):
        await open_metadata(f"sqlite:///{tmp_path / 'typo.db'}")
    assert names_in(tmp_path) == []
    with pytest.raises(MetadataError, match="directory"):
        await open_metadata(f"sqlite:///{tmp_path / 'nowhere' / 'x.db'}", create=True)
    assert names_in(tmp_path) == []


async def test_an_empty_file_is_not_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(ClusterNotInitialisedError, match=r"empty\.db"):
        await open_metadata(f"sqlite:///{path}")
    assert path.stat().st_size == 0
    store = await open_metadata(f"sqlite:///{path}", create=True)
    assert await store.initialise()
    await store.close()


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("create", [False, True])
async def test_a_log_whose_file_is_missing_or_empty_is_kept(
    sqlite: Backend, tmp_path: Path, empty: bool, create: bool
) -> None:
    """SQLite deletes the log of an empty file when it opens it, and the newest commits with it."""
    store = await open_store(sqlite)
    path, uri = path_of(sqlite), sqlite.uri
    log, kept = Path(f"{path}-wal"), tmp_path / "kept"
    kept.mkdir()
    try:
        known, _ = await store.create_ledger(METADATA)
        # What a process leaves that is killed: the file, and the log with what is committed.
        for one in (path, log):
            shutil.copyfile(one, kept / one.name)
    finally:
        await store.close()
    shutil.move(kept / log.name, log)
    if empty:
        os.truncate(path, 0)
    else:
        path.unlink()
    size = bytes_in(log)
    with pytest.raises(ClusterNotInitialisedError, match="-wal") as raised:
        await open_metadata(uri, create=create)
    assert "init" not in raised.value.remedy
    assert bytes_in(log) == size > 0
    assert (path.name in names_in(tmp_path)) == empty
    shutil.move(kept / path.name, path)
    again = await open_metadata(uri)
    try:
        assert await ids_of(again) == [known]
    finally:
        await again.close()


@pytest.mark.parametrize("grown", [False, True])
async def test_a_backup_copied_over_a_file_in_use_gives_no_complete_list(
    sqlite: Backend, grown: bool
) -> None:
    """The backup's old pages lack newer ledgers, but the log beside it has the newest marks.

    A bookie that trusted this list dropped 3,000 ledgers. `grown`: the log has the first page.
    """
    path = path_of(sqlite)
    store = await open_store(sqlite)
    try:
        known, _ = await store.create_ledger(METADATA)
        user = sqlite3.connect(path, isolation_level=None)
        _copy(user, path.with_name("backup.db"))
        row = "SELECT ledger_id + {}, version, ctime_ms, zeroblob(2000) FROM ledgers"
        for doubled in range(8):
            user.execute("INSERT INTO ledgers " + row.format(1 << doubled))
        user.execute("UPDATE cluster SET next_ledger_id = 256")
        complete = [span async for span in store.list_ledgers(complete=True)]
        assert len(complete[0].ledger_ids) == 256
        user.execute("PRAGMA wal_checkpoint(RESTART)")
        user.execute("UPDATE cluster SET next_ledger_id = 257")
        if grown:
            user.execute("INSERT INTO \"values\" VALUES ('large', 0, zeroblob(10000))")
        shutil.copyfile(path.with_name("backup.db"), path)
    finally:
        await store.close()
    for _ in range(2):  # the second finds no log any more
        again = await open_metadata(sqlite.uri)
        try:
            assert await ids_of(again) == [known]
            with pytest.raises(MetadataError, match="is damaged"):
                _ = [span async for span in again.list_ledgers(complete=True)]
        finally:
            await again.close()
        user.close()


def _copy(source: sqlite3.Connection, target: Path) -> None:
    backup = sqlite3.connect(target)
    source.backup(backup)
    backup.close()


async def test_foreign_files_are_refused_and_not_changed(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to have a header" * 10)
    for path, words in ((other, "another program"), (text, "damaged"), (tmp_path, "opened")):
        before = path.read_bytes() if path.is_file() else b""
        for create in (False, True):
            with pytest.raises(MetadataError, match=words) as raised:
                await open_metadata(f"sqlite:///{path}", create=create)
            assert str(path) in str(raised.value)
        assert (path.read_bytes() if path.is_file() else b"") == before


async def test_a_later_schema_is_refused(sqlite: Backend) -> None:
    connection = sqlite3.connect(path_of(sqlite))
    connection.execute("PRAGMA user_version=3")
    connection.close()
    with pytest.raises(LaterClusterError, match="schema 3"):
        await open_store(sqlite)


async def test_a_migration_to_a_later_schema_is_noticed_in_an_open_file(sqlite: Backend) -> None:
    """A process of a later version may migrate the file while processes of this one use it."""
    store = await open_store(sqlite)
    connection = sqlite3.connect(path_of(sqlite))
    connection.execute("PRAGMA user_version=3")
    connection.close()
    with pytest.raises(LaterClusterError, match="schema 3"):
        await store.write_value(("a",), b"b", None)
    with pytest.raises(LaterClusterError, match="schema 3"):
        await store.read_value(("a",))
    await store.close()


async def test_relative_paths_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await open_metadata("sqlite:///here.db", create=True)
    assert store.uri == f"sqlite:///{tmp_path / 'here.db'}"
    again = await open_metadata(store.uri)
    assert await again.instance_id() == await store.instance_id()
    await store.close()
    await again.close()


async def test_every_commit_is_synced(sqlite: Backend) -> None:
    store = await open_store(sqlite)
    try:

        def pragmas(connection: sqlite3.Connection) -> tuple[object, ...]:
            names = ("synchronous", "journal_mode")
            return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)

        assert await store._file.read(pragmas) == (2, "wal")
    finally:
        await store.close()


async def test_a_call_on_a_locked_file_fails_after_the_limit(sqlite: Backend) -> None:
    """The loop continues while a call waits. After the limit it fails with a known outcome."""
    store = await open_store(sqlite, busy_timeout_ms=300)
    holder = sqlite3.connect(path_of(sqlite), isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        assert await store.list_cookies() == []  # readers do not wait
        creating = asyncio.ensure_future(store.create_ledger(METADATA))
        turns = 0
        while not creating.done():
            turns += 1
            await asyncio.sleep(0.01)
        assert turns > 3
        with pytest.raises(MetadataUnavailableError, match="locked") as raised:
            await creating
        assert str(path_of(sqlite)) in str(raised.value)
        assert raised.value.outcome_known
        holder.execute("ROLLBACK")
        assert (await store.create_ledger(METADATA))[0] == 0
    finally:
        holder.close()
        await store.close()


async def test_a_full_disk_is_reported(sqlite: Backend) -> None:
    store = await open_store(sqlite)

    def fill(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")

    try:
        await store._file.read(fill)
        with pytest.raises(MetadataUnavailableError, match="full") as raised:
            await store.write_value(("large",), bytes(100_000), None)
        assert raised.value.outcome_known
        assert str(path_of(sqlite)) in str(raised.value)
        assert await store.list_values(()) == []
    finally:
        await store.close()


# -- commits that are shared ------------------------------------------------------------------


@asynccontextmanager
async def thread_held(file: SqliteFile) -> AsyncIterator[Callable[[], None]]:
    """Let everything wait for the file's thread until the function is called."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        begun.set()
        assert go_on.wait(60)

    holding = asyncio.ensure_future(file.read(hold))
    try:
        assert await asyncio.to_thread(begun.wait, 60)
        yield go_on.set
    finally:
        go_on.set()
        await holding


async def commits_in(file: SqliteFile) -> list[str]:
    """Grows with each statement that ends a write."""
    said: list[str] = []

    def note(statement: str) -> None:
        if statement == "COMMIT" or statement.startswith("ROLLBACK"):
            said.append(statement)

    await file.read(lambda connection: connection.set_trace_callback(note))
    said.clear()  # that of the read itself
    return said


async def test_waiting_writes_share_a_commit(sqlite: Backend) -> None:
    """A failing write changes nothing and affects no other. A write of a cancelled caller is left
    out.
    """
    store = await open_store(sqlite)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE cluster SET next_ledger_id = 1000")
        raise ValueError("in the middle")

    try:
        said = await commits_in(store._file)
        async with thread_held(store._file) as go_on:
            creating = [asyncio.ensure_future(store.create_ledger(METADATA)) for _ in range(50)]
            taken = asyncio.ensure_future(store.create_ledger(METADATA, 7))
            again = asyncio.ensure_future(store.create_ledger(METADATA, 7))
            gone = asyncio.ensure_future(store.create_ledger(METADATA, 99))
            failing = asyncio.ensure_future(store._file.write(half))
            last = asyncio.ensure_future(store.create_ledger(METADATA))
            await asyncio.sleep(0)
            gone.cancel()
            go_on()
            assert [(await one)[0] for one in creating] == list(range(50))
            for refused in (taken, again):
                with pytest.raises(LedgerExistsError):
                    await refused
            with pytest.raises(ValueError, match="in the middle"):
                await failing
            assert (await last)[0] == 50
        assert [one for one in said if one == "COMMIT"] == ["COMMIT"] * 2  # and the holding read's
        assert len([one for one in said if one.startswith("ROLLBACK TO")]) == 3
        found = await ids_of(store)
        assert found == [*range(51)]
    finally:
        await store.close()


async def test_every_write_of_a_failed_commit_fails(sqlite: Backend) -> None:
    store = await open_store(sqlite, busy_timeout_ms=50)
    holder = sqlite3.connect(path_of(sqlite), isolation_level=None)
    try:
        async with thread_held(store._file) as go_on:
            creating = [asyncio.ensure_future(store.create_ledger(METADATA)) for _ in range(3)]
            await asyncio.sleep(0)
            holder.execute("BEGIN IMMEDIATE")
            go_on()
            told = await asyncio.gather(*creating, return_exceptions=True)
        assert [str(one)[:17] for one in told] == ["the metadata file"] * 3
        assert len({id(one) for one in told}) == 3  # each has a story of its own
        holder.execute("ROLLBACK")
        assert (await store.create_ledger(METADATA))[0] == 0
    finally:
        holder.close()
        await store.close()


async def test_a_write_that_breaks_the_transaction_fails_all(sqlite: Backend) -> None:
    """SQLite itself rolls a transaction back after some disk errors."""
    store = await open_store(sqlite)

    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    try:
        async with thread_held(store._file) as go_on:
            before = asyncio.ensure_future(store.create_ledger(METADATA))
            await asyncio.sleep(0)
            breaking = asyncio.ensure_future(store._file.write(broken))
            behind = asyncio.ensure_future(store.create_ledger(METADATA))
            await asyncio.sleep(0)
            go_on()
            told = await asyncio.gather(before, breaking, behind, return_exceptions=True)
        assert all("disk I/O error" in str(one) for one in told), told
        assert (await store.create_ledger(METADATA))[0] == 0
    finally:
        await store.close()


async def test_closing_waits_for_pending_writes(sqlite: Backend) -> None:
    store = await open_store(sqlite)
    async with thread_held(store._file) as go_on:
        creating = [asyncio.ensure_future(store.create_ledger(METADATA)) for _ in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store._file.close())
        await asyncio.sleep(0)
        go_on()
        assert [(await one)[0] for one in creating] == [0, 1, 2]
        await closing
    await store.close()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (sqlite3.SQLITE_BUSY, MetadataUnavailableError, "locked"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, MetadataUnavailableError, "locked"),
        (sqlite3.SQLITE_FULL, MetadataUnavailableError, "full"),
        (sqlite3.SQLITE_IOERR_FSYNC, MetadataUnavailableError, "read or written"),
        (sqlite3.SQLITE_CORRUPT, MetadataError, "damaged"),
        (sqlite3.SQLITE_READONLY, MetadataError, "permissions"),
        (sqlite3.SQLITE_CANTOPEN, MetadataError, "permissions"),
        (sqlite3.SQLITE_ERROR, MetadataError, "failed"),
    ],
)
async def test_errors_of_sqlite_become_errors_of_quire(
    sqlite: Backend, code: int, kind: type[MetadataError], words: str
) -> None:
    store = await open_store(sqlite)
    failure = sqlite3.OperationalError("as SQLite says it")
    failure.sqlite_errorcode = code

    def fail(connection: sqlite3.Connection) -> None:
        raise failure

    try:
        with pytest.raises(kind, match=words) as raised:
            await store._file.write(fail)
        assert type(raised.value) is kind
        assert str(path_of(sqlite)) in str(raised.value)
        assert await store.list_cookies() == []
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("code", "outcome_known"),
    [
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_IOERR_SHMSIZE, False),
        (sqlite3.SQLITE_CANTOPEN, False),
    ],
)
async def test_every_error_of_a_full_disk_names_the_full_disk(
    sqlite: Backend, code: int, outcome_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite said "disk I/O error" if its shared memory could not grow."""
    store = await open_store(sqlite)
    failure = sqlite3.OperationalError("as SQLite says it")
    failure.sqlite_errorcode = code

    def fail(connection: sqlite3.Connection) -> None:
        raise failure

    space = SimpleNamespace(f_bavail=0, f_bfree=0, f_frsize=4096, f_blocks=512)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    try:
        with pytest.raises(MetadataUnavailableError) as raised:
            await store._file.write(fail)
    finally:
        await store.close()
    assert str(raised.value).startswith(
        f"the disk of the metadata file is full ({path_of(sqlite)}: 0 B of 2.1 MB free). "
    )
    assert raised.value.outcome_known is outcome_known


@pytest.mark.parametrize("code", [sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN])
async def test_an_error_of_a_read_only_file_system_is_not_about_permissions(
    sqlite: Backend, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(sqlite)
    failure = sqlite3.OperationalError("attempt to write a readonly database")
    failure.sqlite_errorcode = code

    def fail(connection: sqlite3.Connection) -> None:
        raise failure

    real = os.statvfs
    mounted = SimpleNamespace(
        f_flag=os.ST_RDONLY, **{name: getattr(real("/"), name) for name in ("f_bfree", "f_bavail")},
        f_frsize=4096, f_blocks=2**30,
    )  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda path: mounted)
    try:
        with pytest.raises(MetadataError) as raised:
            await store._file.write(fail)
    finally:
        await store.close()
    assert str(raised.value) == (
        f"the metadata file {path_of(sqlite)} cannot be opened for writing: {READ_ONLY}"
    )


async def test_an_error_without_a_file_descriptor_is_not_about_permissions(
    sqlite: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(sqlite)
    failure = sqlite3.OperationalError("unable to open database file")
    failure.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN

    def fail(connection: sqlite3.Connection) -> None:
        raise failure

    monkeypatch.setattr("quire.metadata.sqlite.file.none_left", lambda: "no descriptor is left")
    try:
        with pytest.raises(MetadataUnavailableError) as raised:
            await store._file.write(fail)
    finally:
        await store.close()
    assert str(raised.value) == (
        f"the metadata file {path_of(sqlite)} could not be used, because no descriptor is left"
    )


async def test_a_damaged_file_is_reported(sqlite: Backend) -> None:
    store = await open_store(sqlite)
    for _ in range(200):
        await store.create_ledger(METADATA)
    await store.close()
    for opened in sqlite.opened:  # type: ignore[attr-defined]
        await opened.close()
    path = path_of(sqlite)
    content = bytearray(path.read_bytes())
    content[4096 + 8 :] = bytes(b ^ 0xA5 for b in content[4096 + 8 :])
    path.write_bytes(content)

    async def open_and_list() -> None:
        damaged = await open_store(sqlite)
        try:
            assert [r async for r in damaged.list_ledgers()]
        finally:
            await damaged.close()

    with pytest.raises(MetadataError, match="damaged") as raised:
        await open_and_list()
    assert str(path) in str(raised.value)


async def test_an_unreadable_row_is_damage_and_not_absence(sqlite: Backend) -> None:
    store = await open_store(sqlite)
    try:
        ledger_id, _ = await store.create_ledger(METADATA)

        def spoil(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE ledgers SET metadata = ?", (b"rubbish",))

        await store._file.write(spoil)
        with pytest.raises(MetadataError, match="damaged"):
            await store.read_ledger(ledger_id)
    finally:
        await store.close()


async def test_calls_after_the_end_of_the_interpreter_raise_client_closed(tmp_path: Path) -> None:
    """A program that ended with an open client said that no futures can be scheduled any more, in
    a traceback of the watches."""
    file, _ = await SqliteFile.open(tmp_path / "metadata.db", "one")
    file._thread.shutdown()  # as the interpreter does
    for _ in range(QUEUED_CALLS_MAX + 1):
        with pytest.raises(ClientClosedError, match="this process is ending"):
            await file.data_version()
    for _ in range(QUEUED_CALLS_MAX + 1):
        with pytest.raises(ClientClosedError, match="this process is ending"):
            await file.write(lambda connection: None)


# -- a file that is not there any more ------------------------------------------------------------

GONE = "deleted or moved away|replaced by another file"


def bytes_in(path: Path) -> int:
    return path.stat().st_size


async def refuses_everything(store: SqliteStore, known: int, match: str = GONE) -> None:
    """Neither reads nor writes are answered, and absence least of all."""
    for call in (
        lambda: store.read_ledger(known),
        lambda: store.read_ledger(10**6),
        lambda: store.create_ledger(METADATA),
        lambda: store.delete_ledger(known),
        lambda: ids_of(store),
        lambda: store.tree.read("/none"),
    ):
        with pytest.raises(MetadataUnavailableError, match=match) as raised:
            await call()  # type: ignore[operator]
        assert raised.value.outcome_known


def _delete(path: Path) -> None:
    path.unlink()


def _replace_by_a_copy(path: Path) -> None:
    copy = path.with_name("copy.db")
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    copy.replace(path)


def _replace_by_nothing(path: Path) -> None:
    path.with_name("empty.db").touch()
    path.with_name("empty.db").replace(path)


def _remove_the_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def _remove_the_index_of_the_log(path: Path) -> None:
    Path(f"{path}-shm").unlink()


@pytest.mark.parametrize(
    "harm",
    [
        _delete,
        _replace_by_a_copy,
        _replace_by_nothing,
        _remove_the_log,
        _remove_the_index_of_the_log,
    ],
)
async def test_a_file_unlinked_while_open_refuses_every_call(
    sqlite: Backend, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite writes on into it, and what it writes vanishes with the last process."""
    store = await open_store(sqlite)
    try:
        known, _ = await store.create_ledger(METADATA)
        harm(path_of(sqlite))
        await refuses_everything(store, known)
        errors = [one for one in caplog.records if one.levelname == "ERROR"]
        assert len(errors) == 1  # the alarm, once
    finally:
        await store.close()


async def test_a_file_that_gets_its_name_back_is_used_again(
    sqlite: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(sqlite)
    try:
        known, _ = await store.create_ledger(METADATA)
        path = path_of(sqlite)
        kept = path.with_name("kept.db")
        kept.hardlink_to(path)  # the same file, which has another name left
        path.unlink()
        await refuses_everything(store, known)
        kept.replace(path)
        assert await ids_of(store) == [known]
        newer, _ = await store.create_ledger(METADATA)
        assert "is back" in caplog.text
    finally:
        await store.close()
    again = await open_store(sqlite)
    try:
        assert await ids_of(again) == [known, newer]
    finally:
        await again.close()


async def test_a_file_that_is_deleted_during_a_commit_leaves_the_outcome_unknown(
    sqlite: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(sqlite)
    try:
        await store.create_ledger(METADATA)
        run = store._file._run

        def late(connection: sqlite3.Connection, writes: list[object]) -> None:
            run(connection, writes)  # type: ignore[arg-type]
            path_of(sqlite).unlink()

        monkeypatch.setattr(store._file, "_run", late)
        with pytest.raises(MetadataUnavailableError, match="outcome is unknown") as raised:
            await store.create_ledger(METADATA)
        assert not raised.value.outcome_known
    finally:
        await store.close()


async def test_a_file_replaced_during_its_opening_is_opened_again(
    sqlite: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overlay file system replaces it once, or somebody replaces it repeatedly."""
    path, left = path_of(sqlite), [1]
    is_cluster = SqliteFile._is_cluster

    def replaced(file: SqliteFile) -> bool:
        if left[0]:
            left[0] -= 1
            _replace_by_a_copy(path)
        return is_cluster(file)

    monkeypatch.setattr(SqliteFile, "_is_cluster", replaced)
    store = await open_store(sqlite)
    await store.create_ledger(METADATA)
    await store.close()
    left[0] = 10
    with pytest.raises(MetadataUnavailableError, match="replaced repeatedly"):
        await open_store(sqlite)


async def test_a_watching_process_reports_a_missing_file(
    sqlite: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that only watches hears of it as well, within a moment."""
    store = await open_store(sqlite)
    watch = store.watch_bookies(lambda bookies: None)
    try:
        await asyncio.sleep(0)
        await store.bookies()
        path_of(sqlite).unlink()
        await until(lambda: "watches cannot read the metadata store" in caplog.text)
    finally:
        watch.close()
        await store.close()


async def test_watches_and_the_lease_continue_after_an_unexpected_error(
    sqlite: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task ended: no watch ever fired again, and the bookie's lease ran out."""
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    store = await open_store(sqlite)
    calls: list[str] = []

    def failing(name: str) -> Callable[..., Any]:
        async def fail(*_: object) -> None:
            calls.append(name)
            raise KeyError("a defect")

        return fail

    monkeypatch.setattr(store, "_session_timeout_ms", 30)
    monkeypatch.setattr(store, "_renew_now", failing("renew"))
    monkeypatch.setattr(store._watches, "_poll_s", 0.01)
    monkeypatch.setattr(store._watches, "_look", failing("look"))
    store._keep_session()
    watch = store.watch_bookies(lambda bookies: None)
    try:
        await until(lambda: min(calls.count("renew"), calls.count("look")) > 2)
    finally:
        watch.close()
        await store.close()


async def test_another_cluster_in_the_same_file_is_detected(sqlite: Backend) -> None:
    """A copy over the file keeps its inode."""
    store = await open_store(sqlite)
    try:
        known, _ = await store.create_ledger(METADATA)
        await store.read_ledger(known)
        with sqlite3.connect(path_of(sqlite)) as other:
            other.execute("UPDATE cluster SET instance_id = 'another'")
        other.close()
        for call in (lambda: store.read_ledger(7), lambda: store.create_ledger(METADATA)):
            with pytest.raises(MetadataError, match="now contains another cluster"):
                await call()
        with sqlite3.connect(path_of(sqlite)) as other:
            own = store._file._instance_id
            other.execute("UPDATE cluster SET instance_id = ?, next_ledger_id = 0", (own,))
        other.close()
        with pytest.raises(MetadataWentBackError, match="its next ledger id is 0, and was"):
            await store.read_ledger(known)
    finally:
        await store.close()
