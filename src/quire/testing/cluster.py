"""A whole cluster of real processes on this machine.

It is used by tests, demos and benchmarks, and by `quire local`.

    with LocalCluster(bookies=3) as cluster:
        client = quire.blocking.connect(cluster.uri)
        cluster.bookies[0].kill()
        cluster.bookies[0].start()

`async with` works as well: a thread then starts and ends the processes.

Every process ends when the block is left, also after an error, and when this process ends for any
reason. A directory that is used again gives the same cluster with its data; its `cluster.json`
records the ports.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from quire._runtime.secret_files import PRIVATE_FILE_MODE
from quire._runtime.shortages import shortage
from quire._runtime.units import counted
from quire.errors import (
    KeyExistsError,
    MetadataUnavailableError,
    StartError,
    UsageError,
    whole_number,
)
from quire.testing._process import (
    LOOPBACK,
    ServerProcess,
    StoppedError,
    free_ports,
    quire_command,
)

START_TIMEOUT_S = 60.0
"""Seconds for a bookie, or for all bookies of a cluster together, to start.

A bookie that was killed waits for its old registration to expire.
"""
ZOOKEEPER_ROOT = "/ledgers"
DEFAULT_BOOKIES = 3
BOOKIES_MAX = 1_000
PORT_MAX = 65_535
SMALL_ARGUMENTS = ("--set", f"segment_bytes={16 * 1024 * 1024}")
"""The arguments of each bookie, before those of the user. With them an empty bookie takes 40 MiB:
the current segment, the next one, and 8 MiB of reserve. Without them the size of a segment depends
on the disk, and is up to 256 MiB."""
STAT_BLOCK_BYTES = 512
"""The number of bytes in one unit of `st_blocks`. POSIX does not define it, and every system uses
512.
"""

_STATE_FILE = "cluster.json"
_LOCK_FILE = "cluster.lock"
_TOKEN_FILE = "http-token"
_RETRY_S = 0.1


class BookieProcess(ServerProcess):
    """One `quire bookie` of a local cluster.

    Attributes:
        port: The port on which it listens.
        id: The id of the bookie.
        directory: Its first data directory.
        directories: All of its data directories.
    """

    def __init__(
        self,
        number: int,
        port: int,
        directory: Path,
        uri: str,
        arguments: Sequence[str],
        data_directories: int = 1,
    ) -> None:
        self.port = port
        self.id = f"{LOOPBACK}:{port}"
        self.directory = directory / f"bookie-{number}"
        more = [directory / f"bookie-{number}.{disk}" for disk in range(2, data_directories + 1)]
        self.directories = [self.directory, *more]
        named = [word for one in self.directories for word in ("--dir", str(one))]
        command = quire_command(
            "bookie", "--metadata", uri, *named, "--port", str(port), "--advertise", LOOPBACK,
            *arguments,
        )  # fmt: skip
        super().__init__(f"bookie {self.id}", command, directory / f"bookie-{number}.log")

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the bookie, and wait until it serves.

        A bookie that is started again has the same directories and the same port, so it is the same
        bookie.

        Args:
            timeout_s: Seconds to wait.

        Raises:
            StartError: The bookie was not ready in time, or ended, and does not run now. The
                message has the last line of its log.
            UsageError: The bookie is already running.
            OSError: The log file cannot be written, or the system cannot start the process.
        """
        self.launch()
        self.wait_ready(time.monotonic() + timeout_s)


@dataclass(slots=True)
class _State:
    """The contents of `cluster.json`."""

    metadata: str
    bookie_ports: list[int] = field(default_factory=list)
    zookeeper_port: int = 0
    data_directories: int = 1
    """The number of data directories of each bookie."""


def _check_ports(first: int, count: int) -> None:
    """Raise UsageError unless the ports of all bookies are valid."""
    last = first + count - 1
    if not 1 <= first <= last <= PORT_MAX:
        raise UsageError(
            f"{counted(count, 'bookie')} from port {first} on would need ports up to {last}, but "
            f"ports are from 1 to {PORT_MAX}",
            remedy="Use a lower base port (--base-port)",
        )


class LocalCluster:
    """Bookies and their metadata store as processes on this machine, on the loopback interface.

    Entering a block (`with` or `async with`) starts the cluster, and leaving the block stops the
    cluster. If `async with` is cancelled while the cluster starts, the start is completed, and the
    cluster is stopped, before CancelledError is raised.

    Attributes:
        uri: The metadata URI, once the cluster has started.
        bookies: The bookies of the running cluster. Empty before `start` and after `stop`.
        zookeeper: The ZooKeeper server of the running cluster, or None with SQLite.
        temporary: Whether the directory is removed at the end.
    """

    def __init__(
        self,
        bookies: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        zookeeper: bool | None = None,
        bookie_args: Sequence[str] = (),
        *,
        base_port: int | None = None,
        data_directories: int = 1,
        start_timeout_s: float = START_TIMEOUT_S,
        stopping: threading.Event | None = None,
        http_token: str = "",
    ) -> None:
        """Describe a cluster, without starting it.

        Args:
            bookies: The number of bookies to start. The default is the number that the directory
                had before, or else three. If the directory had more bookies, the last ones are not
                started, and keep their data (`left_out`).
            directory: The directory of the cluster, which keeps its data. The default is a
                temporary directory, which is removed at the end.
            zookeeper: Whether the metadata is in ZooKeeper instead of SQLite. The default is what
                the directory had before, or else SQLite.
            bookie_args: Further arguments of each `quire bookie`, for example `["--set",
                "gc_interval_s=1"]`. The segments of the log have 16 MiB here, so that the cluster
                takes little space. `["--set", "segment_bytes=0"]` gives them the size that they
                have in other clusters.
            base_port: The port of the first bookie. The others have the ports after it. By default
                the system's free ports are used.
            data_directories: The number of data directories of each bookie. If the bookies had more
                before, they keep that number.
            start_timeout_s: Seconds for the whole cluster to start.
            stopping: An event that ends a running `start` with StoppedError when it is set, for
                example by a signal handler.
            http_token: The token that changes over the HTTP API of the bookies need. Reading needs
                none. It is written into `token_file`. Give `--http` in `bookie_args`.

        Raises:
            UsageError: A number is not valid.
        """
        if bookies is not None:
            bookies = whole_number("the number of bookies", bookies)
        if bookies is not None and not 1 <= bookies <= BOOKIES_MAX:
            raise UsageError(f"a local cluster can have 1 to {BOOKIES_MAX} bookies, not {bookies}")
        if base_port is not None:
            _check_ports(base_port, bookies or 1)
        if data_directories < 1:
            raise UsageError(
                "a bookie of a local cluster must have at least one data directory, not "
                f"{data_directories}"
            )
        self.temporary = directory is None
        self.bookies: list[BookieProcess] = []
        self.zookeeper: ServerProcess | None = None
        self.uri = ""
        self._directory = None if directory is None else Path(directory).absolute()
        self._wanted = bookies
        self._with_zookeeper = zookeeper
        self._base_port = base_port
        self._data_directories = data_directories
        self._arguments = (*SMALL_ARGUMENTS, *bookie_args)
        self._http_token = http_token
        self._timeout_s = start_timeout_s
        self._stopping = stopping
        self._lock: IO[str] | None = None
        self._state = _State("")
        self._owner = os.getpid()

    @property
    def directory(self) -> Path:
        """The directory of the cluster. A temporary one exists only while the cluster runs.

        Raises:
            UsageError: The directory is temporary, and the cluster does not run.
        """
        if self._directory is None:
            raise UsageError(
                "a temporary local cluster has a directory only while it is running",
                remedy="Start it first",
            )
        return self._directory

    @property
    def token_file(self) -> Path:
        """The path of the file with the token of the HTTP API.

        The file exists only while a cluster with `http_token` runs.

        Raises:
            UsageError: The directory is temporary, and the cluster does not run.
        """
        return self.directory / _TOKEN_FILE

    @property
    def token_arguments(self) -> tuple[str, ...]:
        """The options that make a server require `http_token` for changes, or () without a token.

        The server also sends the token to bookies, to read their reports and to forward changes.

        Raises:
            UsageError: There is a token, the directory is temporary, and the cluster does not run.
        """
        if not self._http_token:
            return ()
        file = str(self.token_file)
        return (
            "--http-token-file", file, "--http-reads", "open", "--http-bookies-token-file", file
        )  # fmt: skip

    @property
    def processes(self) -> list[ServerProcess]:
        """The metadata server, if there is one, and the bookies."""
        return [*([self.zookeeper] if self.zookeeper else []), *self.bookies]

    @property
    def left_out(self) -> list[str]:
        """While the cluster runs, the ids of the bookies of the directory that it did not start."""
        return [f"{LOOPBACK}:{port}" for port in self._state.bookie_ports[len(self.bookies) :]]

    def disk_bytes(self) -> int:
        """Return the space that the directory takes on the disk now, in bytes.

        Returns:
            The number of bytes.

        Raises:
            UsageError: The directory is temporary, and the cluster does not run.
        """
        return sum(_blocks_bytes(path) for path in (self.directory, *self.directory.rglob("*")))

    # -- starting -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes, and wait until every bookie serves.

        If the start fails, no process is left running.

        Raises:
            StartError: A process did not start in time. The message has the last line of its log.
                Or the directory cannot be used, or another local cluster uses it.
            StoppedError: The event `stopping` was set. This is a StartError as well.
            MetadataUnavailableError: The metadata store could not be initialised in time, or its
                disk is full.
            UsageError: The cluster is already running, a port is not valid, or the directory holds
                a cluster of another kind or with other ports.
            OSError: The directory cannot be created or written, or the system cannot start a
                process.
        """
        if self._lock is not None:
            raise UsageError(
                "this local cluster is already running", remedy="Stop it before you start it again"
            )
        atexit.register(self.stop)
        try:
            self._start(time.monotonic() + self._timeout_s)
        except StartError as error:
            if self.temporary:
                error.remedy = ""  # the remedy names a log, which `stop` removes
            self.stop()
            raise
        except BaseException:
            self.stop()
            raise

    def _start(self, deadline: float) -> None:
        self._owner = os.getpid()
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="quire-"))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self._directory)
            self._state = self._decide(_read_state(self._directory))
            _write_state(self._directory, self._state)
            if self._http_token:
                _write_secret(self.token_file, self._http_token)
        except OSError as error:
            why = shortage(error)
            if not why:
                raise
            raise StartError(
                f"the directory {self._directory} of the local cluster cannot be used: {why}",
                remedy="Use another directory, or correct this one",
            ) from error
        if self._state.metadata == "zookeeper":
            self._start_zookeeper(deadline)
        else:
            self._check_metadata_file(self._directory / "metadata.db")
            self.uri = f"sqlite:///{self._directory / 'metadata.db'}"
        _outside_any_loop(_initialise(self.uri, deadline))
        count = self._wanted or len(self._state.bookie_ports)
        self.bookies = [
            self._bookie(number, port)
            for number, port in enumerate(self._state.bookie_ports[:count], start=1)
        ]
        for bookie in self.bookies:
            bookie.launch()
        for bookie in self.bookies:
            bookie.wait_ready(deadline, self._stopping)

    def _check_metadata_file(self, path: Path) -> None:
        """Raise StartError if bookies have data and the metadata file is gone.

        An empty file in its place would mean that none of their ledgers ever existed.
        """
        begun = sorted(one.parent.parent.name for one in path.parent.glob("bookie-*/current/*"))
        if begun and not path.exists():
            raise StartError(
                f"the metadata file {path} is missing, but {begun[0]} next to it has data: the "
                "metadata of this local cluster is lost, or was moved away. Nothing was changed",
                remedy="Put the file or a backup of it back, or use another directory",
            )

    def _decide(self, kept: _State | None) -> _State:
        """Return the state that the directory is to have. `kept` is changed and returned.

        Nothing that the directory had is removed, and bookies are added if more are wanted. Raises
        UsageError if the kept state and the options contradict each other.
        """
        zookeeper = self._with_zookeeper
        if kept is None:
            state = _State("zookeeper" if zookeeper else "sqlite")
            if zookeeper:
                state.zookeeper_port = free_ports(1)[0]
        else:
            state = kept
            if zookeeper is not None and zookeeper != (state.metadata == "zookeeper"):
                raise UsageError(
                    f"the directory {self.directory} holds a local cluster whose metadata is in "
                    f"{state.metadata}. Nothing was changed",
                    remedy="Use another directory, or start it with the same metadata store",
                )
            if self._base_port not in (None, *state.bookie_ports[:1]):
                raise UsageError(
                    f"the bookies of the local cluster in {self.directory} have ports from "
                    f"{state.bookie_ports[0]} on, and these cannot be changed",
                    remedy="Leave the base port (--base-port) out, or use another directory",
                )
        state.data_directories = max(state.data_directories, self._data_directories)
        wanted = self._wanted or len(state.bookie_ports) or DEFAULT_BOOKIES
        missing = wanted - len(state.bookie_ports)
        if missing > 0:
            state.bookie_ports += self._new_ports(missing, state)
        return state

    def _new_ports(self, count: int, state: _State) -> list[int]:
        if self._base_port is not None:
            first = self._base_port + len(state.bookie_ports)
            _check_ports(first, count)
            return list(range(first, first + count))
        # Get more than are needed, because some may belong to bookies that are down.
        taken = {*state.bookie_ports, state.zookeeper_port}
        found = [port for port in free_ports(count + len(taken)) if port not in taken]
        return found[:count]

    def _start_zookeeper(self, deadline: float) -> None:
        port = self._state.zookeeper_port
        self.uri = f"zk+hierarchical://{LOOPBACK}:{port}{ZOOKEEPER_ROOT}"
        directory = self.directory / "zookeeper"
        command = quire_command("zookeeper", "--dir", str(directory), "--port", str(port))
        self.zookeeper = ServerProcess(
            "ZooKeeper", command, self.directory / "zookeeper.log", signal.SIGTERM
        )
        self.zookeeper.launch()
        self.zookeeper.wait_ready(deadline, self._stopping)

    def _bookie(self, number: int, port: int) -> BookieProcess:
        token = self.token_arguments if "--http" in self._arguments else ()
        return BookieProcess(
            number,
            port,
            self.directory,
            self.uri,
            (*self._arguments, *token),
            self._state.data_directories,
        )

    def add_bookie(self) -> BookieProcess:
        """Add one bookie to the running cluster, and wait until it serves. The directory keeps it.

        If `start` left out bookies of the directory, this starts the first of them instead of
        creating one.

        Returns:
            The bookie that was started.

        Raises:
            StartError: The bookie did not start. `bookies` does not contain it, and the next call
                tries to start the same bookie.
            UsageError: The cluster does not run, or the port of the new bookie is not valid.
            OSError: The directory cannot be written, or the system cannot start the process.
        """
        if self._lock is None:
            raise UsageError(
                "a bookie cannot be added, because this local cluster is not running",
                remedy="Start it first",
            )
        if len(self.bookies) == len(self._state.bookie_ports):
            self._state.bookie_ports += self._new_ports(1, self._state)
            _write_state(self.directory, self._state)
        number = len(self.bookies) + 1
        bookie = self._bookie(number, self._state.bookie_ports[number - 1])
        self.bookies.append(bookie)
        try:
            bookie.start(self._timeout_s)
        except BaseException:
            bookie.kill()
            if bookie in self.bookies:  # unless another thread has stopped the cluster
                self.bookies.remove(bookie)
            raise
        return bookie

    # -- ending -------------------------------------------------------------------------------

    def stop(self) -> list[str]:
        """Stop the bookies, then the metadata server. A temporary directory is removed.

        A process that does not end within 20 seconds is killed. Calling this again does nothing.

        Returns:
            A line for each process that did not end cleanly when it was asked to, or that is still
            there 10 seconds after SIGKILL. Processes that had ended before are not listed.
        """
        if self._owner != os.getpid():
            return []  # this is a fork of the process that started the cluster
        atexit.unregister(self.stop)
        for bookie in self.bookies:
            bookie.terminate()
        unclean = []
        # Stop the metadata server last, so that bookies can unregister.
        for process in reversed(self.processes):
            try:
                clean = process.stop()
            except subprocess.TimeoutExpired:  # it hangs in the kernel: the others must still end
                unclean.append(f"{process.name} (pid {process.pid}) is still there after SIGKILL")
                continue
            if not clean:
                unclean.append(
                    f"{process.name} ended {process.how_it_ended()}. Last log line: "
                    f"{process.last_words()}"
                )
        self.bookies = []
        self.zookeeper = None
        if self._lock is not None:
            self.token_file.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None
        if self.temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        return unclean

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> LocalCluster:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])  # the thread cannot be cancelled
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)


# -- the directory ----------------------------------------------------------------------------


def _lock(directory: Path) -> IO[str]:
    """Lock the directory until the returned file is closed, or until this process ends."""
    file = (directory / _LOCK_FILE).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StartError(
            f"the directory {directory} is in use by another local cluster",
            remedy="Stop that one, or use another directory",
        ) from None
    return file


def _blocks_bytes(path: Path) -> int:
    """Return the number of bytes that a file takes on the disk, or 0 if the file is gone."""
    try:
        return path.lstat().st_blocks * STAT_BLOCK_BYTES
    except FileNotFoundError:
        return 0


def _read_state(directory: Path) -> _State | None:
    path = directory / _STATE_FILE
    try:
        return _State(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise StartError(
            f"the file {path}, which describes the local cluster in this directory, cannot be "
            f"decoded: {error}",
            remedy="Restore the file, or use another directory",
        ) from None


def _write_state(directory: Path, state: _State) -> None:
    path = directory / _STATE_FILE
    written = path.with_suffix(".tmp")
    with written.open("w") as file:
        file.write(json.dumps(asdict(state)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_secret(path: Path, text: str) -> None:
    """Write a file that only this account can read, and replace an earlier file of that name."""
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE)
    with os.fdopen(file, "w") as opened:
        opened.write(text + "\n")


# -- the metadata -----------------------------------------------------------------------------


async def _initialise(uri: str, deadline: float) -> None:
    """Initialise the cluster's metadata, unless it exists."""
    from quire.metadata import open_metadata
    from quire.metadata.sqlite.disk_space import metadata_disk

    while True:
        try:
            store = await open_metadata(uri, create=True)
            try:
                if not await store.is_initialised():
                    await store.initialise()
            except KeyExistsError:
                pass
            finally:
                await store.close()
            return
        except MetadataUnavailableError:
            disk = metadata_disk(uri)
            # A full disk does not become free while this waits.
            if (disk is not None and disk.full) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_RETRY_S)


def _outside_any_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a thread of its own, in case the caller is inside an event loop."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, name="quire-initialise")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


__all__ = ["BookieProcess", "LocalCluster", "ServerProcess", "StoppedError", "free_ports"]
