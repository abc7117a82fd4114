"""The two clusters, and the commands that run each side's benchmark.

Everything that depends on a command line is here: `quire_command`, `apache_command`, and how each
cluster is started and stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Protocol

from harness import procfs
from harness.model import BenchmarkError, Measure, Side, Work

PEER = Path(__file__).resolve().parent.parent / "peer" / "apache"

START_LIMIT_S = 300
"""Apache's first start downloads its jars from Maven Central."""
STOP_LIMIT_S = 60

_URI = re.compile(r"\b(?:sqlite:///|zk\+hierarchical://|zk://)\S+(?=\s)")
"""Includes the character after the URI, because a partial line may contain a partial URI."""


class Cluster(Protocol):
    @property
    def side(self) -> Side: ...
    @property
    def bookies(self) -> int: ...
    @property
    def kind(self) -> str:
        """A description of the cluster. Clusters with the same description are interchangeable."""
        ...

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def bookie_pids(self) -> list[int]: ...
    def server_pids(self) -> list[int]: ...
    def command(self, measure: Measure, rounds: int) -> list[str]: ...
    def environment(self) -> dict[str, str]: ...


# -- commands ---------------------------------------------------------------------------------


def quire_executable() -> str:
    beside = Path(sys.executable).with_name("quire")
    found = str(beside) if beside.exists() else shutil.which("quire")
    if not found:
        raise BenchmarkError("the command `quire` is not installed: run `make bench`")
    return found


def quire_local(bookies: int, directory: Path, zookeeper: bool) -> list[str]:
    # `quire local` has settings of its own, which keep it small. Measure those of other clusters.
    usual = ("--set", "segment_bytes=0", "--set", "gc_interval_s=600")
    where = ("--dir", str(directory))
    command = [quire_executable(), "local", "--no-ui", "--bookies", str(bookies), *usual, *where]
    return [*command, "--zookeeper"] if zookeeper else command


def quire_command(measure: Measure, metadata_uri: str, rounds: int) -> list[str]:
    work = measure.work
    command = [
        quire_executable(), "bench", *work.verb.split(),
        "--metadata", metadata_uri,
        "--entries", str(work.entries),
        "--size", str(work.size_bytes),
        *_load(work),
        "--ensemble", str(work.ensemble),
        "--write-quorum", str(work.write_quorum),
        "--ack-quorum", str(work.ack_quorum),
        "--rounds", str(rounds),
        "--json",
    ]  # fmt: skip
    if work.verb in ("ledgers", "recover", "rereplicate"):
        command += ["--ledgers", str(work.ledgers)]
    if work.verb in ("add", "ledgers"):
        command += ["--mode", work.mode]
    return command


def _load(work: Work) -> list[str]:
    if work.verb == "tail":
        load = ["--rate", str(work.appends_per_s), "--readers", str(work.readers)]
        clients = ["--clients", str(work.clients)] if work.clients else []
        return [*load, *clients, "--explicit-lac", str(work.explicit_lac_ms)]
    if work.verb.startswith("stream "):
        return ["--streams", str(work.streams)]
    return ["--outstanding", str(work.outstanding)]


STREAM_MODES = {"stream write": "stream", "stream read": "stream", "stream tail": "streamtail"}
STREAM_OUTSTANDING = 100_000
"""The number of outstanding records of Java's writer. Quire's writer has its own limit in bytes."""


def apache_command(measure: Measure, rounds: int) -> list[str]:
    """Return the command. Apache's mode `add` adds and then reads, and its lines say which."""
    work = measure.work
    mode = {"add": "add", "latency": "add", "read": "add", **STREAM_MODES}.get(work.verb, work.verb)
    command = [
        str(PEER), "bench", f"mode={mode}",
        f"v2={'false' if measure.protocol == 'v3' else 'true'}",
        "digest=CRC32C",
        f"E={work.ensemble}", f"W={work.write_quorum}", f"A={work.ack_quorum}",
        f"size={work.size_bytes}",
        f"n={work.entries}",
        f"out={STREAM_OUTSTANDING if work.verb in STREAM_MODES else work.outstanding}",
        f"L={work.ledgers}",
        f"rounds={rounds}",
    ]  # fmt: skip
    if work.verb == "tail":
        command += [f"rate={work.appends_per_s}", f"readers={work.readers}"]
    command += measure.settings
    return [*command, "batch=true"] if measure.protocol == "batch" else command


# -- clusters ---------------------------------------------------------------------------------


class QuireCluster:
    """`quire local` in the background, with its bookies as child processes."""

    side: Side = "quire"

    def __init__(self, bookies: int, directory: Path, logs: Path, *, zookeeper: bool) -> None:
        self.bookies = bookies
        self.kind = f"Quire with {bookies} bookies{' on ZooKeeper' if zookeeper else ''}"
        self.metadata_uri = ""
        self._directory = directory
        self._zookeeper = zookeeper
        self._log = logs / "quire-local.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def start(self, *, empty: bool = True) -> None:
        """Start the cluster, on the data of an earlier one unless it has to be `empty`."""
        if empty:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._output = self._log.open("wb")
        self._process = subprocess.Popen(
            quire_local(self.bookies, self._directory, self._zookeeper),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=self.environment(),
            start_new_session=True,
        )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            printed = self._log.read_text(errors="replace")
            if match := _URI.search(printed):
                self.metadata_uri = match.group()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
                self.stop()
                raise BenchmarkError(
                    f"`quire local` did not start: {last} (complete output: {self._log})"
                )
            time.sleep(0.1)

    def stop(self) -> None:
        self._end(signal.SIGINT)
        shutil.rmtree(self._directory, ignore_errors=True)

    def kill(self) -> None:
        """Kill all processes, and keep the data."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            servers = procfs.descendants(process.pid)
            process.send_signal(number)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _kill_what_is_left(servers)
        if self._output is not None:
            self._output.close()
            self._output = None

    def server_pids(self) -> list[int]:
        if self._process is None:
            return []
        return [self._process.pid, *procfs.descendants(self._process.pid)]

    def bookie_pids(self) -> list[int]:
        """Return the child processes that were started as `quire bookie ...`."""
        return [p for p in self.server_pids()[1:] if "bookie" in procfs.command_line(p)]

    def command(self, measure: Measure, rounds: int) -> list[str]:
        return quire_command(measure, self.metadata_uri, rounds)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONUNBUFFERED": "1"}


class ApacheCluster:
    """Apache's ZooKeeper and bookies, controlled through `bench/peer/apache`."""

    side: Side = "apache"

    def __init__(self, bookies: int, directory: Path, logs: Path, *, storage: str) -> None:
        self.bookies = bookies
        self.kind = f"Apache with {bookies} bookies"
        self._logs = logs
        self._directory = directory
        self._storage = storage
        self._zk_port = 0
        self._bookie_port = 0
        self._up = False

    def start(self) -> None:
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        self._zk_port, self._bookie_port = _free_ports(self.bookies)
        self._up = True
        result = self._peer("up", str(self.bookies), limit_s=START_LIMIT_S)
        if result.returncode != 0:
            said = (result.stderr.strip() or result.stdout.strip() or "nothing").splitlines()[-1]
            self.stop()
            raise BenchmarkError(f"Apache BookKeeper did not start. Its last line was: {said}")

    def stop(self) -> None:
        if self._up:
            self._up = False
            self._peer("down", limit_s=STOP_LIMIT_S)

    def _peer(self, *arguments: str, limit_s: float) -> subprocess.CompletedProcess[str]:
        # The servers inherit the outputs, so these are files: a pipe would never end.
        paths = [self._logs / f"apache-{arguments[0]}.{suffix}" for suffix in ("out", "err")]
        with paths[0].open("w") as out, paths[1].open("w") as err:
            status = subprocess.run(
                [str(PEER), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment(),
                start_new_session=True,
                timeout=limit_s,
                check=False,
            ).returncode
        texts = [path.read_text(errors="replace") for path in paths]
        return subprocess.CompletedProcess(arguments, status, *texts)

    def bookie_pids(self) -> list[int]:
        return self._pids("b*.pid")

    def server_pids(self) -> list[int]:
        return self._pids("*.pid")

    def _pids(self, pattern: str) -> list[int]:
        return [int(path.read_text()) for path in sorted(self._directory.glob(pattern))]

    def command(self, measure: Measure, rounds: int) -> list[str]:
        return apache_command(measure, rounds)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PEER_DIR": str(self._directory),
            "ZK_PORT": str(self._zk_port),
            "BOOKIE_PORT": str(self._bookie_port),
            "STORAGE": self._storage,
            "LC_ALL": "C",  # Java prints 1,9 for 1.9 in some languages.
        }


def _kill_what_is_left(pids: list[int]) -> None:
    for pid in pids:
        if any("quire" in part for part in procfs.command_line(pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _free_ports(bookies: int) -> tuple[int, int]:
    """Return a free port for ZooKeeper, and one below `bookies` consecutive free ports."""
    for base in range(23180, 33180, 100):
        if all(_is_free(port) for port in (base - 1, *range(base + 1, base + bookies + 1))):
            return base - 1, base
    raise BenchmarkError("There are no free ports between 23179 and 33187 on this machine.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# -- what the machine must have ---------------------------------------------------------------


def require_tools(*, apache: bool) -> None:
    """Raise an error with one line that names the missing tools."""
    if not Path("/proc/self/io").exists():
        raise BenchmarkError("The benchmark reads /proc and needs Linux.")
    quire_executable()
    if not apache:
        return
    packages = {"java": "openjdk-17-jre-headless", "javac": "openjdk-17-jdk-headless"}
    missing = [tool for tool in ("java", "javac", "mvn") if not shutil.which(tool)]
    if missing:
        named = ", ".join(f"{tool} (package {packages.get(tool, 'maven')})" for tool in missing)
        raise BenchmarkError(
            f"Apache BookKeeper needs {named}. To measure only Quire, use --sides quire."
        )
