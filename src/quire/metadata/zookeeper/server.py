"""A real ZooKeeper for development and tests, from the jars in PySpark.

Nothing else needs to be installed: PySpark contains ZooKeeper's class `QuorumPeerMain`, which plain
`java -cp` starts as a standalone server. It is one server with one directory and no replication, so
do not use it in production.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from quire._runtime.names.extras import install_extra
from quire._runtime.secret_files import PRIVATE_DIRECTORY_MODE
from quire._runtime.units import host_port
from quire.errors import StartError, UsageError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
"""Seconds between SIGTERM and SIGKILL, which is sent only if the server still runs."""

PORT_ATTEMPTS_MAX = 5
"""The number of ports to try if another process takes a free port before the server does."""

TICK_MS = 2_000
HEAP_MB = 256
SNAPSHOTS_KEPT = 3
"""The number of snapshots that are kept, with the logs of transactions that belong to them."""
PURGE_INTERVAL_H = 1
"""Hours between two removals of older snapshots and logs. The first one is at the start."""
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""With the quick compiler alone, a start takes half as much processor time."""
_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 2.0
_LOG_TAIL_LINES = 5
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer:
    """A server process.

    Use it as a context manager, or call `start` and `stop`. All calls block.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        tick_ms: int = TICK_MS,
        command_prefix: Sequence[str] = (),
    ) -> None:
        """Describe a server without starting it.

        Args:
            data_dir: The directory of the server. It is created if it is missing.
            port: The port, or 0 to choose a free one. The attribute `port` then has the chosen one.
            host: The address to listen at.
            tick_ms: ZooKeeper's tickTime in milliseconds. Session time-outs are between 2 and 20
                times this.
            command_prefix: A command that starts the server, such as a launcher that ends it with
                its parent.
        """
        directory = os.fspath(data_dir)
        if not host or not host.isprintable() or set(host) & set(" []/"):
            raise UsageError(
                f"{host!r} cannot be the host of a ZooKeeper server: give a name or an address of "
                "printable characters, without spaces, slashes or brackets"
            )
        if not directory or not directory.isprintable():
            raise UsageError(
                f"{directory!r} cannot be the directory of a ZooKeeper server: give a path of "
                "printable characters"
            )
        self.data_dir = Path(data_dir).absolute()
        if not str(self.data_dir).isascii() or "\\" in str(self.data_dir):
            # Java would read another path in the configuration, and use that directory.
            raise UsageError(
                f"{str(self.data_dir)!r} cannot be the directory of a ZooKeeper server: its path "
                "must have ASCII characters only, and no backslash",
                remedy="Use another directory",
            )
        self.host = host
        self.port = port
        self._any_port = port == 0
        self._tick_ms = tick_ms
        self._command_prefix = tuple(command_prefix)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    def address(self) -> str:
        return host_port(self.host, self.port)

    @property
    def log_file(self) -> Path:
        return self.data_dir / "zookeeper.log"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def uri(self, root: str = "/ledgers") -> str:
        return f"zk+hierarchical://{self.address}{root}"

    def start(self) -> None:
        """Start the server, and return when it answers clients.

        Raises:
            StartError: The server did not start. Nothing is left running.
        """
        if self._process is not None:
            raise StartError(
                f"the ZooKeeper server in {self.data_dir} was already started by this object",
                remedy="Call stop() before you start it again",
            )
        java = _java()
        options = [f"-Xmx{HEAP_MB}m", *JVM_OPTIONS, "-cp", _class_path(), _MAIN]
        command = [*self._command_prefix, java, *options]
        try:
            self.data_dir.mkdir(PRIVATE_DIRECTORY_MODE, parents=True, exist_ok=True)
            self._take_lock()
            for attempt in range(PORT_ATTEMPTS_MAX):
                if self._any_port:
                    self.port = _free_port(self.host)
                self._launch(command)
                if self._wait_until_it_answers(last=attempt == PORT_ATTEMPTS_MAX - 1):
                    return
        except OSError as error:
            self.stop()
            raise StartError(
                f"ZooKeeper could not be started in {self.data_dir}: {error}",
                remedy="Check the directory, its permissions, and that Java can be run",
            ) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server, after `STOP_TIMEOUT_S` with SIGKILL. Repeated calls do nothing.

        Everything that the server confirmed to clients is on the disk.
        """
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the server ends by itself, and return its exit status.

        Return None if it still runs after `timeout_s` seconds, or if it was not started. With None
        as `timeout_s`, the wait has no limit.
        """
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def __enter__(self) -> ZooKeeperServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- starting -----------------------------------------------------------------------------

    def _take_lock(self) -> None:
        """Lock the directory. Two servers in one directory would destroy each other's data."""
        self._lock = (self.data_dir / "quire.lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"another ZooKeeper server is already running in {self.data_dir}",
                remedy="Use that server, or another directory",
            ) from None

    def _launch(self, command: list[str]) -> None:
        config = self.data_dir / "zoo.cfg"
        config.write_text(
            f"tickTime={self._tick_ms}\n"
            f"dataDir={self.data_dir}\n"
            f"clientPortAddress={self.host}\n"
            f"clientPort={self.port}\n"
            "admin.enableServer=false\n"
            "maxClientCnxns=0\n"
            # Otherwise every snapshot and every log of transactions stays for ever.
            f"autopurge.snapRetainCount={SNAPSHOTS_KEPT}\n"
            f"autopurge.purgeInterval={PURGE_INTERVAL_H}\n"
            "4lw.commands.whitelist=ruok,srvr,conf\n",
            encoding="utf-8",
        )
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
            )

    def _wait_until_it_answers(self, *, last: bool) -> bool:
        """Return True when the server answers.

        Return False if it ended because its port was taken, and another port may be tried.
        """
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                if self._any_port and not last and b"Address already in use" in self._log_bytes():
                    return False
                raise StartError(
                    f"ZooKeeper in {self.data_dir} ended right after its start (status "
                    f"{self._process.returncode}). The end of its log: {self._log_tail()}",
                    remedy=f"See its log, {self.log_file}",
                )
            if self._answers():
                return True
            time.sleep(_POLL_S)
        raise StartError(
            f"ZooKeeper in {self.data_dir} did not answer at {self.address} within "
            f"{START_TIMEOUT_S:g} s, and was stopped",
            remedy=f"See its log, {self.log_file}",
        )

    def _answers(self) -> bool:
        """Return whether the server at the port is ours, by the directory that it names."""
        try:
            address = (self.host, self.port)
            with socket.create_connection(address, _ANSWER_TIMEOUT_S) as connection:
                connection.sendall(b"conf")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return False
        return f"dataDir={self.data_dir}".encode() in answer

    def _log_bytes(self) -> bytes:
        return self.log_file.read_bytes()

    def _log_tail(self) -> str:
        lines = self._log_bytes().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-_LOG_TAIL_LINES:])


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise StartError(
            "ZooKeeper cannot be started: Java was not found",
            remedy="Install Java 17 or later, or set JAVA_HOME to its directory",
        )
    return found


def _class_path() -> str:
    """Return Java's class path with all jars of PySpark, without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        if any(Path(place, "jars").glob("zookeeper-*.jar")):
            return str(Path(place, "jars", "*"))
    raise StartError(
        "ZooKeeper cannot be started: PySpark, whose jars contain it, is not installed",
        remedy=install_extra("spark"),
    )


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
