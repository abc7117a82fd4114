"""One SQLite file, its worker thread, and the translation of its errors.

Every call may block on the disk or on another process that holds the lock. So all calls run on one
thread that this object owns, never on the event loop. The file uses write-ahead logging with
`synchronous=FULL`: a commit is one fsync, and readers do not wait for writers. Writes that arrive
while the thread is busy share one commit.

Each transaction checks that the file still belongs to this cluster. The path must name the open
file (`open_file_check`). The file must have the instance id with which it was opened, and the
counter of ledger ids must not have gone back. Only then does a missing record mean that the record
does not exist.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from quire._runtime.secret_files import PRIVATE_FILE_MODE
from quire._runtime.shortages import READ_ONLY, none_left, reason_of, shortage
from quire._runtime.units import counted
from quire.errors import (
    ClientClosedError,
    ClusterNotInitialisedError,
    LaterClusterError,
    MetadataError,
    MetadataUnavailableError,
    MetadataWentBackError,
    QuireError,
    nothing_done,
    written_later,
)
from quire.metadata.common import store_closed
from quire.metadata.sqlite.disk_space import disk_of
from quire.metadata.sqlite.open_file_check import LOG_SUFFIX, OpenFileCheck

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_TIMEOUT_MS = 5_000
"""Milliseconds that a call waits for another process to release the file."""

FREE_SPACE_REMEDY = "Free some space on that disk. No process has to be restarted"
QUEUED_CALLS_MAX = 1_024
"""The largest number of calls of one store in the queue of its thread. Further callers wait for a
place in the queue."""

APPLICATION_ID = 0x51756972
"""The SQLite application id of a metadata file: 'Quir' in ASCII."""

SCHEMA_VERSION = 2
"""The version of the tables. Version 2 added the tree, which a file of version 1 gets when it is
opened."""

OPEN_ATTEMPTS_MAX = 3
"""The number of attempts to open a file whose inode changes in the meantime."""

MISSING_REMEDY = (
    "If the cluster is new, create it with `quire cluster init --metadata URI`. If it is not, "
    "correct the URI, or restore the file or a backup of it "
    "(docs/guides/repair/disaster-recovery.md): the bookies still have their entries"
)

_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

_SCHEMA = """
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

_TREE_SCHEMA = """
CREATE TABLE tree (
    path    TEXT PRIMARY KEY,
    parent  TEXT NOT NULL,
    version INTEGER NOT NULL,
    created INTEGER NOT NULL,
    owner   INTEGER,
    data    BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX tree_children ON tree (parent, owner);
CREATE INDEX tree_ephemeral ON tree (owner) WHERE owner IS NOT NULL;
INSERT INTO tree VALUES ('/', '', 0, 0, NULL, x'');
"""


class _Write:
    """A write that shares a commit with others, and its result or error."""

    __slots__ = ("error", "future", "result", "work")

    def __init__(self, work: Work[Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None

    def tell(self) -> None:
        """Complete the future of the caller."""
        if self.future.done():
            return  # its caller was cancelled
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class SqliteFile:
    """An open SQLite file and its thread.

    Open it with `SqliteFile.open`; `close` ends the thread.
    """

    def __init__(self, path: Path, *, busy_timeout_ms: int) -> None:
        self.path = path.absolute()
        self._busy_timeout_ms = busy_timeout_ms
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sqlite-{path.name}")
        self._queue = asyncio.Semaphore(QUEUED_CALLS_MAX)
        self._writes: list[_Write] = []
        """The writes of the next commit. The thread takes all of them at once."""
        self._taking = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._presence = OpenFileCheck(self.path)
        self._instance_id: str | None = None
        """The instance id of the cluster, once the file is open."""
        self._next_ledger_id = 0
        """The counter of ledger ids as last read. It never decreases."""
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        instance_id: str | None,
        *,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    ) -> tuple[SqliteFile, bool]:
        """Open a file, and return it with whether it was created now.

        If the call fails or is cancelled, nothing stays open.

        Args:
            path: The path of the file.
            instance_id: The instance id of a new cluster. With it, a missing or empty file becomes
                this cluster.
            busy_timeout_ms: Milliseconds to wait for another process to release the file.

        Raises:
            ClusterNotInitialisedError: The file is missing or empty, and there is no `instance_id`,
                or its log still has content. Nothing was changed on the disk.
            MetadataError: The file cannot be used.
        """
        file = cls(path, busy_timeout_ms=busy_timeout_ms)
        try:
            created = await file._submit(lambda: file._connect(instance_id))
        except BaseException:
            await file.close()
            raise
        return file, created

    async def close(self) -> None:
        """Close the file and end its thread. If the call is cancelled, the file is closed too."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        disconnected = loop.run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)
        # The shield closes the connection and the file even if this call is cancelled.
        await asyncio.shield(disconnected)

    async def read(self, work: Work[T]) -> T:
        """Run `work` in one read transaction, in which the file does not change.

        Return the result of `work`. Raises MetadataError if the file cannot be used, and
        ClientClosedError after `close`. Errors of `work` reach the caller.
        """
        return await self._submit(lambda: self._read(work))

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a write transaction, and return its result when it is durable.

        The write may share its commit with others, and sees the effects of those before it. If
        `work` raises an error, nothing of its own was changed. If the commit fails, all writes that
        share it fail. If the call is cancelled, the outcome is unknown. Raises MetadataError if the
        file cannot be used, and ClientClosedError after `close`.
        """
        await self._place()
        write = _Write(work, asyncio.get_running_loop().create_future())
        write.future.add_done_callback(lambda _: self._queue.release())
        with self._taking:
            self._writes.append(write)
            first = len(self._writes) == 1
        if first:
            try:
                committed = self._on_thread(self._commit)
            except ClientClosedError:
                self._writes.remove(write)
                write.future.cancel()
                raise
            committed.add_done_callback(_tell)
        return await write.future  # type: ignore[no-any-return]

    async def data_version(self) -> int:
        """Return a number that changes when another connection has changed the file.

        Raises MetadataError if the file cannot be used, and ClientClosedError after `close`.
        """
        return await self._submit(self._data_version)

    async def check_structure(self) -> None:
        """Read the whole file, and check that its pages fit together.

        If a backup is copied over a file in use, its old pages are mixed with the newer ones in the
        log. Ledgers may then be missing although the newest marks of garbage collection are there.
        The check cannot notice this if the file has not grown since the backup.

        Raises:
            MetadataError: The pages do not fit together, or the file cannot be used.
            ClientClosedError: The file is closed.
        """
        await self._submit(self._check_structure)

    async def _submit(self, work: Callable[[], T]) -> T:
        await self._place()
        try:
            future = self._on_thread(lambda: self._translated(work))
        except ClientClosedError:
            self._queue.release()
            raise
        future.add_done_callback(lambda _: self._queue.release())
        return await future

    async def _place(self) -> None:
        """Wait for a place in the queue. The caller must release it."""
        self._check_open()
        await self._queue.acquire()
        try:
            self._check_open()
        except ClientClosedError:
            self._queue.release()
            raise

    def _on_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError:
            # The interpreter is ending although this is open, so no thread accepts work any more.
            raise ClientClosedError(
                f"the metadata store {self.path} cannot be used any more, because this process "
                "is ending"
            ) from None

    def _check_open(self) -> None:
        if self._closed:
            raise store_closed(f"the metadata store {self.path}")

    # -- on the thread ------------------------------------------------------------------------

    def _connect(self, instance_id: str | None) -> bool:
        """Open the file, and return whether it was created now.

        An overlay file system may give the file another inode when it is first opened for writing.
        The file is then opened once more.
        """
        for _ in range(OPEN_ATTEMPTS_MAX):
            created = self._open_once(instance_id)
            if created is not None:
                return created
            self._disconnect()
        raise MetadataUnavailableError(
            f"the metadata file {self.path} was replaced repeatedly while it was opened",
            remedy="Find out which program replaces it, and open the file again",
        )

    def _open_once(self, instance_id: str | None) -> bool | None:
        """Open the file, and return whether it was created now.

        Return None if the path named another file before the open than after it.
        """
        before = self._stat()
        if before is None or before.st_size == 0:
            self._refuse_nothing(instance_id)
            if not self.path.parent.is_dir():
                raise MetadataError(
                    f"the directory {self.path.parent} of the metadata file does not exist",
                    remedy="Create it, or correct the URI",
                )
            if instance_id is not None:
                # SQLite gives its log the mode of the file, but the file itself that of the umask.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE_MODE))
        mode = "rwc" if instance_id is not None else "rw"
        self._connection = connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=self._busy_timeout_ms / 1000,
        )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: a plain fsync stops at the drive's cache
        created = False
        if not self._is_cluster():
            if instance_id is None:
                raise ClusterNotInitialisedError(
                    f"the metadata file {self.path} is empty, so it contains no cluster",
                    remedy=MISSING_REMEDY,
                )
            created = self._transaction("BEGIN IMMEDIATE", lambda _: self._create(instance_id))
        if self._number("PRAGMA user_version") != SCHEMA_VERSION:
            self._transaction("BEGIN IMMEDIATE", lambda _: self._migrate())
        self._use_write_ahead_log(connection)
        if not self._presence.opened(before):
            return None
        self._transaction("BEGIN", self._recognise)
        self._presence.check(after_commit=created)
        return created

    def _refuse_nothing(self, instance_id: str | None) -> None:
        """Raise ClusterNotInitialisedError if the file is missing or empty, and must not be opened.

        A missing or empty file may be opened only with the `instance_id` of a new cluster, and if
        its log is empty too. SQLite would delete the log of an empty file, and with it the newest
        commits.
        """
        log = Path(f"{self.path}{LOG_SUFFIX}")
        try:
            logged = log.stat().st_size
        except FileNotFoundError:
            logged = 0
        found = self._stat()  # after the log, because another process may be creating the cluster
        if found is not None and found.st_size:
            return
        what = "does not exist" if found is None else "is empty, so it contains no cluster"
        if logged:
            raise ClusterNotInitialisedError(
                f"the metadata file {self.path} {what}, but its log {log} has "
                f"{counted(logged, 'byte')} with the newest changes of a cluster. Nothing was "
                "changed",
                remedy="Restore the file that this log belongs to. To use a backup instead "
                "(docs/guides/repair/disaster-recovery.md), move the log away first, and keep it",
            )
        if instance_id is None:
            raise ClusterNotInitialisedError(
                f"the metadata file {self.path} {what}", remedy=MISSING_REMEDY
            )

    def _stat(self) -> os.stat_result | None:
        try:
            return os.stat(self.path)
        except FileNotFoundError:
            return None

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Check that the file is the cluster that was opened, and has not gone back in time.

        Check also that no later version of Quire has changed the tables since it was opened.
        """
        self._refuse_later_schema(self._number("PRAGMA user_version"))
        instance_id, upcoming = connection.execute(
            "SELECT instance_id, next_ledger_id FROM cluster"
        ).fetchone()
        if self._instance_id is None:
            self._instance_id = instance_id
        if instance_id != self._instance_id:
            raise MetadataError(
                f"the metadata file {self.path} now contains another cluster: {instance_id}, not "
                f"{self._instance_id}. Nothing was changed",
                remedy="Restore the file of this cluster, and restart this process",
            )
        if upcoming < self._next_ledger_id:
            raise MetadataWentBackError(
                f"the metadata file {self.path} was replaced by an older state of itself: its "
                f"next ledger id is {upcoming}, and was {self._next_ledger_id}. Nothing was "
                "changed",
                remedy="Put the newest state of the file back, find out what is missing "
                "(docs/guides/repair/disaster-recovery.md), and then restart this process",
            )
        self._next_ledger_id = upcoming

    def _data_version(self) -> int:
        found = self._number("PRAGMA data_version")
        self._presence.check()
        return found

    def _read(self, work: Work[T]) -> T:
        result = self._transaction("BEGIN", work)
        self._presence.check()
        return result

    def _check_structure(self) -> None:
        assert self._connection is not None
        # This gives the file the length that the log says, whatever its own first page says.
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        found = self._read(self._misfit)
        if found:
            raise MetadataError(
                f"the metadata file {self.path} is damaged, so the list of ledgers may not be "
                f"complete: {found}",
                remedy="Stop all processes that use the file, and restore it from a backup "
                "(docs/guides/repair/disaster-recovery.md). A backup that was copied over a file "
                "in use is mixed with its log",
            )

    def _misfit(self, connection: sqlite3.Connection) -> str:
        """Return which pages of the file do not fit together, or '' if all of them do."""
        pages, page_bytes = self._number("PRAGMA page_count"), self._number("PRAGMA page_size")
        stat = self._stat()
        if stat is not None and stat.st_size > pages * page_bytes:
            held = counted(stat.st_size, "byte")
            return f"it has {held}, but its first page says {counted(pages, 'page')}"
        told = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        return "" if told == "ok" else told.rpartition("\n")[2]

    def _use_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        """Switch the file to write-ahead logging, which the file remembers.

        The mode cannot be changed while another process reads or writes. The next process that
        opens the file then changes it. Until then commits are slower.
        """
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY_CODES:
                raise

    def _is_cluster(self) -> bool:
        application_id = self._number("PRAGMA application_id")
        schema_version = self._number("PRAGMA user_version")
        tables = self._number("SELECT count(*) FROM sqlite_master")
        if application_id == 0 and tables == 0:
            return False
        if application_id != APPLICATION_ID:
            raise MetadataError(
                f"the file {self.path} is a SQLite file of another program, not a metadata store "
                "of Quire",
                remedy="Name another file in the metadata URI",
            )
        self._refuse_later_schema(schema_version)
        if schema_version < 1:
            raise MetadataError(
                f"the metadata file {self.path} has schema {schema_version}, which no version of "
                "Quire has written",
                remedy="Restore it from a backup (docs/guides/repair/disaster-recovery.md)",
            )
        return True

    def _refuse_later_schema(self, schema_version: int) -> None:
        if schema_version > SCHEMA_VERSION:
            raise LaterClusterError(
                written_later(
                    f"the metadata file {self.path}", f"schema {schema_version}",
                    f"the schemas 1 to {SCHEMA_VERSION}",
                )
            )  # fmt: skip

    def _create(self, instance_id: str) -> bool:
        if self._is_cluster():
            return False  # another process was faster
        assert self._connection is not None
        for statement in (_SCHEMA + _TREE_SCHEMA).split(";"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        self._connection.execute("INSERT INTO cluster VALUES (1, ?, 0)", (instance_id,))
        return True

    def _migrate(self) -> None:
        """Change schema 1 to 2, unless another process has done that."""
        assert self._connection is not None
        if self._number("PRAGMA user_version") != SCHEMA_VERSION:
            for statement in _TREE_SCHEMA.split(";"):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _number(self, sql: str) -> int:
        assert self._connection is not None
        return int(self._connection.execute(sql).fetchone()[0])

    def _transaction(self, begin: str, work: Work[T]) -> T:
        connection = self._connection
        assert connection is not None
        connection.execute(begin)
        try:
            if self._instance_id is not None:
                self._recognise(connection)
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _commit(self) -> list[_Write]:
        """Run all waiting writes in one transaction, and set the result or error of each."""
        with self._taking:
            writes, self._writes = self._writes, []
        writes = [write for write in writes if not write.future.cancelled()]
        try:
            self._transaction("BEGIN IMMEDIATE", lambda connection: self._run(connection, writes))
        except Exception as error:  # noqa: BLE001 - all writes that share the commit get the error
            for write in writes:
                write.error = self._in_our_words(error)
        else:
            self._check_committed(writes)
        return writes

    def _check_committed(self, writes: list[_Write]) -> None:
        """Set an error with an unknown outcome on the writes if the file was replaced meanwhile.

        The same if that is not known, because the file cannot be examined.
        """
        try:
            self._presence.check(after_commit=True)
        except MetadataUnavailableError as error:
            why, remedy = "was deleted or replaced during a commit", error.remedy
        except OSError as error:
            why = f"could not be examined after a commit ({reason_of(error)})"
            remedy = "Check the path, the permissions and the disk"
        else:
            return
        for write in writes:
            write.error = MetadataUnavailableError(
                f"the metadata file {self.path} {why}, so the outcome is unknown", remedy=remedy
            )

    def _run(self, connection: sqlite3.Connection, writes: list[_Write]) -> None:
        self._presence.check()
        for write in writes:
            connection.execute("SAVEPOINT write")
            try:
                write.result = write.work(connection)
            except Exception as error:
                if not connection.in_transaction:
                    raise  # SQLite has rolled back the writes before it as well
                connection.execute("ROLLBACK TO write")
                write.error = self._in_our_words(error)
            connection.execute("RELEASE write")

    def _translated(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except Exception as error:
            ours = self._in_our_words(error)
            if ours is error:
                raise
            raise ours from error

    def _in_our_words(self, error: Exception) -> Exception:
        if isinstance(error, QuireError):
            return error
        if isinstance(error, sqlite3.Error):
            ours: Exception = _translate(self.path, error, self._busy_timeout_ms)
        elif isinstance(error, OSError):
            ours = MetadataError(
                f"the metadata file {self.path} cannot be used: {reason_of(error)}",
                remedy="" if shortage(error) else "Check the path, the permissions and the disk",
            )
        else:
            return error
        ours.__cause__ = error
        return ours


def _tell(committed: asyncio.Future[list[_Write]]) -> None:
    for write in committed.result():
        write.tell()


def _is_read_only(path: Path) -> bool:
    """Return whether the file system of a file is mounted read-only."""
    try:
        return bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _full(path: Path) -> str:
    disk = disk_of(path)
    told = disk if disk is not None and disk.full else path  # a quota may be smaller than the disk
    return f"the disk of the metadata file is full ({told})"


def _translate(path: Path, error: sqlite3.Error, busy_timeout_ms: int) -> QuireError:
    """Return the Quire error for an error of SQLite.

    The primary result code, which decides, is the low byte of the error's code.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY_CODES:
        return nothing_done(
            MetadataUnavailableError(
                f"the metadata file {path} was locked by another process for {busy_timeout_ms} ms. "
                "Nothing was changed",
                remedy="Try again. If that does not help, stop the process that locks the file",
            )
        )
    if code == sqlite3.SQLITE_FULL:
        return nothing_done(
            MetadataUnavailableError(
                f"{_full(path)}. Nothing was changed", remedy=FREE_SPACE_REMEDY
            )
        )
    disk = disk_of(path)
    if disk is not None and disk.full and code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        # SQLite gives these codes if its shared memory, which is a file too, cannot grow.
        return MetadataUnavailableError(
            f"{_full(path)}. A write may or may not have been stored", remedy=FREE_SPACE_REMEDY
        )
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and (why := none_left()):
        return MetadataUnavailableError(
            f"the metadata file {path} could not be used, because {why}", remedy=""
        )
    if code == sqlite3.SQLITE_IOERR:
        return MetadataUnavailableError(
            f"the metadata file {path} could not be read or written ({error}). A write may or "
            "may not have been stored",
            remedy="Check the disk, and look at the result before you try again",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return MetadataError(
            f"the metadata file {path} is damaged, or it is not a SQLite file ({error})",
            remedy=(
                "Correct the metadata URI if it names another file. Otherwise restore the "
                "file from a backup (docs/guides/repair/disaster-recovery.md)"
            ),
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and _is_read_only(path):
        return MetadataError(
            f"the metadata file {path} cannot be opened for writing: {READ_ONLY}", remedy=""
        )
    if code in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_AUTH,
    ):
        return MetadataError(
            f"the metadata file {path} cannot be opened for writing ({error})",
            remedy="Check the permissions of the file and of its directory",
        )
    return MetadataError(
        f"the metadata file {path} failed: {error}",
        remedy="Check the file and its disk. If they are in order, report this error",
    )
