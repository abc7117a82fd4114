"""A cluster of real processes with any mix of Apache's bookies and ours.

Everything listens on loopback, keeps its state and its log below one directory, and is ended by its
own process id.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from quire.metadata.zookeeper.server import ZooKeeperServer
from quire.testing._process import with_parent
from quire.testing.cluster import BookieProcess, free_ports
from tests.support.interop.apache_java import JVM_OPTIONS, class_path, initialise_cluster
from tests.support.interop.shell_lines import in_4_17s_words
from tests.support.waiting import wait_for

LOOPBACK = "127.0.0.1"
START_LIMIT_S = 120.0
SHELL_LIMIT_S = 180
STOP_LIMIT_S = 15.0
BOOKIE_HEAP_MB = 192
TOOL_HEAP_MB = 96
SHELL_LINE = r"%replace{%m %X}{ \{\}$}{}%n"
"""The log4j pattern of BookieShell's lines: the message, and then its attributes.

Version 4.18 has in attributes what 4.17 says in the message.
"""
SESSION_TIMEOUT_MS = 6_000
"""Milliseconds for which a killed bookie stays registered."""

SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
ROCKS = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
STORAGES = {"sorted": SORTED, "db": ROCKS}

SMALL = {
    # The sizes of files and buffers. The defaults are meant for a dedicated machine.
    "journalMaxSizeMB": 64,
    "journalPreAllocSizeMB": 4,
    "skipListSizeLimit": 16 << 20,
    "skipListArenaChunkSize": 2 << 20,
    "logSizeLimit": 64 << 20,
    "minUsableSizeForEntryLogCreation": 1 << 20,
    "minUsableSizeForIndexFileCreation": 1 << 20,
    "dbStorage_writeCacheMaxSizeMb": 32,
    "dbStorage_readAheadCacheMaxSizeMb": 16,
    "dbStorage_rocksDB_blockCacheSize": 16 << 20,
    "numJournalCallbackThreads": 1,
    "numReadWorkerThreads": 2,
    "numHighPriorityWorkerThreads": 2,
    "serverNumIOThreads": 2,
}


class JavaProcess:
    """A Java server of Apache's project in a process of its own."""

    def __init__(
        self,
        name: str,
        directory: Path,
        arguments: Sequence[str],
        *,
        heap_mb: int = BOOKIE_HEAP_MB,
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self._command = [
            *with_parent(), "java", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m",
            *JVM_OPTIONS, *options, "-cp", class_path(), *arguments,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        assert not self.alive, f"{self.name} is running already"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """Fail the test, with the end of the log, unless the process runs."""
        assert self.alive, f"{self.name} ended; its log:\n{self.last_words()}"

    def last_words(self, lines: int = 30) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """Kill the process with SIGKILL, and return when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop the process with SIGTERM, and with SIGKILL if it does not end in time."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
        self.kill()

    def pause(self) -> None:
        """Pause the process with SIGSTOP: it is alive but silent. `kill` still works."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)


class ApacheBookie(JavaProcess):
    def __init__(self, number: int, port: int, directory: Path, configuration: Path) -> None:
        self.port = port
        self.host = LOOPBACK
        self.configuration = configuration
        super().__init__(
            f"apache-{number}",
            directory,
            ["org.apache.bookkeeper.server.Main", "-c", str(configuration)],
        )

    @property
    def id(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        def serves() -> bool:
            self.check()
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1):
                return True
            return False

        wait_for(serves, f"{self.name} listens: {self.log_path}", limit_s=START_LIMIT_S)


Bookie = ApacheBookie | BookieProcess


class Cluster:
    """ZooKeeper, a cluster initialised by Apache's own code, and the bookies that are added."""

    running: ClassVar[list[Cluster]] = []

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bookies: list[Bookie] = []
        self._added: list[Bookie] = []
        self._others: list[JavaProcess] = []
        self._zookeeper = ZooKeeperServer(
            directory / "zookeeper", tick_ms=1_000, command_prefix=with_parent()
        )
        self._kazoo: KazooClient | None = None
        self.uri = ""

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        Cluster.running.append(self)
        try:
            self._zookeeper.start()
            self.uri = self._zookeeper.uri()
            initialise_cluster(self.uri)
            self._kazoo = KazooClient(self._zookeeper.address)
            self._kazoo.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        Cluster.running.remove(self)
        for server in (*self._others, *self.bookies):
            server.kill()
        if self._kazoo is not None:
            self._kazoo.stop()
            self._kazoo.close()
        self._zookeeper.stop()
        # Keep the logs, from which failures are diagnosed. Delete the large data of dozens of
        # bookies.
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    # -- bookies ------------------------------------------------------------------------------

    def add_apache(
        self, count: int = 1, storage: str = "sorted", **settings: object
    ) -> list[ApacheBookie]:
        """Launch `count` more of Apache's bookies. `wait_ready` waits until they serve."""
        added = []
        for port in free_ports(count):
            number = len(self.bookies) + 1
            own = {
                "bookiePort": port,
                "advertisedAddress": LOOPBACK,
                "journalDirectory": self.directory / f"journal-{number}",
                "ledgerDirectories": self.directory / f"ledgers-{number}",
                "ledgerStorageClass": STORAGES[storage],
            }
            configuration = self._configure(f"apache-{number}", **{**own, **settings})
            bookie = ApacheBookie(number, port, self.directory, configuration)
            self._add(bookie)
            added.append(bookie)
        return added

    def add_quire(
        self, count: int = 1, arguments: Sequence[str] = (), **settings: object
    ) -> list[BookieProcess]:
        """Launch `count` more of Quire's bookies, and return at once. `wait_ready` waits for them.

        `settings` are those of `quire.BookieConfig`, and `arguments` are passed to the command.
        """
        settings = {"session_timeout_s": SESSION_TIMEOUT_MS / 1000, **settings}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        words += arguments
        added = []
        for port in free_ports(count):
            number = len(self.bookies) + 1
            bookie = BookieProcess(number, port, self.directory, self.uri, words)
            self._add(bookie)
            added.append(bookie)
        return added

    def read_only(self, bookie: Bookie) -> Bookie:
        """Restart the bookie in read-only mode, and return the new bookie."""
        bookie.stop()
        self.wait_gone(bookie)
        number = self.bookies.index(bookie) + 1
        if isinstance(bookie, ApacheBookie):
            with bookie.configuration.open("a") as file:
                file.write("readOnlyModeEnabled=true\nforceReadOnlyBookie=true\n")
            bookie.start()
        else:
            never = ("--set", f"min_free_bytes={1 << 60}")
            bookie = BookieProcess(number, bookie.port, self.directory, self.uri, never)
            bookie.start()
            self.bookies[number - 1] = bookie
        wait_for(lambda: bookie.id in self.children("available/readonly"), "it is read-only")
        return bookie

    def _add(self, bookie: Bookie) -> None:
        self.bookies.append(bookie)
        self._added.append(bookie)
        bookie.launch()

    def wait_ready(self) -> None:
        """Wait until every bookie added since the last call serves and is registered."""
        for bookie in self._added:
            if isinstance(bookie, ApacheBookie):
                bookie.wait_ready()
            else:
                bookie.wait_ready(time.monotonic() + START_LIMIT_S)
        self.wait_registered(*self._added)
        self._added.clear()

    def wait_registered(self, *bookies: Bookie) -> None:
        wanted = {bookie.id for bookie in bookies}
        wait_for(lambda: wanted <= set(self.children("available")), f"{wanted} register")

    def wait_gone(self, *bookies: Bookie) -> None:
        """Wait until the sessions of these bookies have expired.

        From then on nobody considers the bookies available.
        """
        lost = {bookie.id for bookie in bookies}
        wait_for(
            lambda: not lost & {*self.children("available"), *self.children("available/readonly")},
            f"{lost} are gone",
        )

    # -- tools --------------------------------------------------------------------------------

    def shell(self, *words: str) -> str:
        """Run Apache's BookieShell, and return its output in the words of version 4.17."""
        return self._shell(self._configure("shell"), words)

    def shell_of(self, bookie: Bookie, *words: str) -> str:
        """Run BookieShell with the configuration of Apache's bookie, and return its output."""
        configuration = self._configure(
            f"shell-{bookie.port}", bookiePort=bookie.port, advertisedAddress=LOOPBACK
        )
        return self._shell(configuration, words)

    def _shell(self, configuration: Path, words: Sequence[str]) -> str:
        done = subprocess.run(
            [
                *with_parent(), "java", f"-Xmx{TOOL_HEAP_MB}m", *JVM_OPTIONS,
                "-Dinterop.level=info", f"-Dinterop.pattern={SHELL_LINE}", "-cp", class_path(),
                "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(configuration), *words,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SHELL_LIMIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return in_4_17s_words(done.stdout)

    def autorecovery(self, **settings: object) -> JavaProcess:
        """Start Apache's auditor and replication worker in one process, and await the election."""
        name = f"autorecovery-{len(self._others) + 1}"
        settings = {
            "openLedgerRereplicationGracePeriod": 1_000,
            "rwRereplicateBackoffMs": 500,
            "lostBookieRecoveryDelay": 0,
            "lockReleaseOfFailedLedgerGracePeriod": 2_000,
            **settings,
        }
        configuration = self._configure(
            name, bookiePort=free_ports(1)[0], advertisedAddress=LOOPBACK, **settings
        )
        process = JavaProcess(
            name,
            self.directory,
            ["org.apache.bookkeeper.replication.AutoRecoveryMain", "-c", str(configuration)],
            heap_mb=TOOL_HEAP_MB,
        )
        self._others.append(process)
        process.launch()

        def elected() -> bool:
            process.check()
            return bool(self.children("underreplication/auditorelection"))

        wait_for(elected, "an auditor is elected")
        return process

    def _configure(self, name: str, **settings: object) -> Path:
        path = self.directory / f"{name}.conf"
        lines = {
            "metadataServiceUri": self.uri,
            "zkTimeout": SESSION_TIMEOUT_MS,
            "allowLoopback": "true",
            "httpServerEnabled": "false",
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            **SMALL,
            **settings,
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    # -- what ZooKeeper holds -----------------------------------------------------------------

    @property
    def zookeeper(self) -> str:
        """The address of the ZooKeeper server, as HOST:PORT."""
        return self._zookeeper.address

    @property
    def kazoo(self) -> KazooClient:
        assert self._kazoo is not None
        return self._kazoo

    def children(self, path: str) -> list[str]:
        """Return the names of the children of a path below /ledgers, except for "readonly".

        The result is empty if the path does not exist.
        """
        try:
            found: list[str] = self.kazoo.get_children(f"/ledgers/{path}")
        except NoNodeError:
            return []
        return [name for name in found if name != "readonly"]

    def underreplicated(self) -> list[int]:
        """Return the ids of the ledgers that the auditor has marked and that are not finished."""
        found = []
        waiting = ["underreplication/ledgers"]
        while waiting:
            path = waiting.pop()
            name = path.rpartition("/")[2]
            if name.startswith("urL"):
                found.append(int(name.removeprefix("urL")))
            else:
                waiting += [f"{path}/{child}" for child in self.children(path)]
        return found
