"""The systems that are compared: how each is built, started, stopped and loaded.

Each has three servers on loopback, and a client in `bench/peer` that takes the same arguments and
prints the same lines.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from harness import procfs
from harness.model import BenchmarkError
from harness.sides import QuireCluster

PEER = Path(__file__).resolve().parents[2] / "peer"
CACHE = Path.home() / ".cache" / "quire-bench-peers"

KAFKA = "4.3.1"
NATS = "2.15.2"
SERVERS = 3

BUILD_LIMIT_S = 900
"""The first build downloads the sources or jars of a system."""
START_LIMIT_S = 120
KILL_LIMIT_S = 30
FIRST_PORT, LAST_PORT = 26_000, 32_000

BROKER_HEAP = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC")
CLIENT_HEAP = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC")


class System(ABC):
    """One column of the table: a system with its settings."""

    name: str
    title: str
    durability: str
    """The promise of an acknowledgement, in a few words."""

    def __init__(self, root: Path, logs: Path) -> None:
        self.root = root
        self.logs = logs

    @property
    @abstractmethod
    def directories(self) -> Sequence[Path]:
        """The data directory of each server, which may be a mount point."""

    @abstractmethod
    def build(self) -> None:
        """Download and compile what is not in the cache."""

    @abstractmethod
    def start(self, *, again: bool = False) -> None:
        """Start the servers, on the data that is there if `again` is given."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the servers, and remove their data."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the servers and keep their data."""

    @abstractmethod
    def pids(self) -> list[int]: ...

    @abstractmethod
    def client(self, **given: object) -> list[str]:
        """Return the command that loads this system."""


class Quire(System):
    name, title = "quire", "Quire"
    durability = "on the disks of two of three bookies (`fdatasync`)"

    def __init__(self, root: Path, logs: Path) -> None:
        super().__init__(root, logs)
        self._cluster = QuireCluster(SERVERS, root, logs, zookeeper=False)

    @property
    def directories(self) -> Sequence[Path]:
        return [self.root / f"bookie-{number}" for number in range(1, SERVERS + 1)]

    def build(self) -> None:
        pass

    def start(self, *, again: bool = False) -> None:
        self._cluster.start(empty=False)

    def stop(self) -> None:
        self._cluster.stop()

    def kill(self) -> None:
        self._cluster.kill()

    def pids(self) -> list[int]:
        return self._cluster.bookie_pids()

    def client(self, **given: object) -> list[str]:
        at = self._cluster.metadata_uri
        return [sys.executable, str(PEER / "streams.py"), *_words(at, given)]


class _Servers(System):
    """Three processes that were started here."""

    def __init__(self, root: Path, logs: Path) -> None:
        super().__init__(root, logs)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports: list[int] = []

    @property
    def directories(self) -> Sequence[Path]:
        return [self.root / f"server-{number}" for number in range(1, SERVERS + 1)]

    @abstractmethod
    def commands(self, *, again: bool) -> list[list[str]]: ...

    def start(self, *, again: bool = False) -> None:
        for directory in self.directories:
            directory.mkdir(parents=True, exist_ok=True)
        if not again:
            self._ports = free_ports(2 * SERVERS)
        for number, command in enumerate(self.commands(again=again), 1):
            with (self.logs / f"{self.name}-{number}.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        deadline = time.monotonic() + START_LIMIT_S
        for process, port in zip(self._processes, self._ports, strict=False):
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise BenchmarkError(
                        f"a server of {self.title} does not listen on port {port}: see {self.logs}"
                    )
                time.sleep(0.1)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(KILL_LIMIT_S)
        self._processes.clear()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports[:SERVERS])


class Kafka(_Servers):
    """Brokers with combined roles (KRaft). `flush.messages=1` is a setting of topics."""

    def __init__(self, root: Path, logs: Path, *, fsync: bool) -> None:
        super().__init__(root, logs)
        self.name = "kafka-fsync" if fsync else "kafka"
        self.title = f"Kafka {KAFKA}{', flush.messages=1' if fsync else ''}"
        self.durability = (
            "on the disks of all in-sync brokers (`flush.messages=1`)"
            if fsync
            else "in the memory of all in-sync brokers (`acks=all`)"
        )
        self._fsync = fsync

    @property
    def _class_path(self) -> str:
        return f"{CACHE / 'kafka'}:{(CACHE / 'kafka' / 'cp.txt').read_text().strip()}"

    def build(self) -> None:
        source, made = PEER / "kafka", CACHE / "kafka"
        if _newer(made / "KafkaBench.class", source / "KafkaBench.java", source / "pom.xml"):
            return
        made.mkdir(parents=True, exist_ok=True)
        found = f"-Dmdep.outputFile={made / 'cp.txt'}"
        _build("mvn", "-q", "-B", f"-Dkafka.version={KAFKA}", "dependency:build-classpath", found,
               at=source)  # fmt: skip
        classes = (made / "cp.txt").read_text().strip()
        _build("javac", "-cp", classes, "-d", str(made), "KafkaBench.java", at=source)

    def _java(self, heap: Sequence[str], *words: str) -> list[str]:
        return ["java", *heap, "-cp", self._class_path, *words]

    def commands(self, *, again: bool) -> list[list[str]]:
        listeners, controllers = self._ports[:SERVERS], self._ports[SERVERS:]
        voters = ",".join(f"{n}@127.0.0.1:{p}" for n, p in enumerate(controllers, 1))
        files = []
        for number in range(SERVERS):
            path = self.root / f"server-{number + 1}.properties"
            path.write_text(
                f"""process.roles=broker,controller
node.id={number + 1}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{listeners[number]},CONTROLLER://127.0.0.1:{controllers[number]}
advertised.listeners=PLAINTEXT://127.0.0.1:{listeners[number]}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={self.directories[number]}
min.insync.replicas=2
offsets.topic.replication.factor=3
"""
            )
            files.append(path)
        if not again:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            for path in files:
                format_ = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(path))
                _build(*self._java(("-Xmx256m",), *format_), at=self.root)
        return [self._java(BROKER_HEAP, "kafka.Kafka", str(path)) for path in files]

    def client(self, **given: object) -> list[str]:
        if self._fsync:
            given["fsync"] = "true"
        return self._java(CLIENT_HEAP, "KafkaBench", *_words(self.addresses, given))


class Nats(_Servers):
    def __init__(self, root: Path, logs: Path, *, always: bool) -> None:
        super().__init__(root, logs)
        self.name = "nats-sync" if always else "nats"
        self.title = f"NATS JetStream {NATS}{', sync_interval: always' if always else ''}"
        self.durability = (
            "on the disks of two of three servers (`sync_interval: always`)"
            if always
            else "in the memory of two of three servers, synced every two minutes"
        )
        self._always = always

    def build(self) -> None:
        source, made = PEER / "nats", CACHE / "nats"
        made.mkdir(parents=True, exist_ok=True)
        if not (made / f"nats-server-{NATS}").exists():
            module = f"github.com/nats-io/nats-server/v2@v{NATS}"
            _build("go", "install", module, at=made, GOBIN=str(made), GOFLAGS="-buildvcs=false")
            (made / "nats-server").rename(made / f"nats-server-{NATS}")
        if not _newer(made / "bench", source / "main.go", source / "go.sum"):
            _build("go", "build", "-buildvcs=false", "-o", str(made / "bench"), ".", at=source)

    def commands(self, *, again: bool) -> list[list[str]]:
        clients, routes = self._ports[:SERVERS], self._ports[SERVERS:]
        urls = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        sync = "; sync_interval: always" if self._always else ""
        found = []
        for number in range(SERVERS):
            path = self.root / f"server-{number + 1}.conf"
            path.write_text(
                f"""server_name: n{number + 1}
listen: 127.0.0.1:{clients[number]}
jetstream {{ store_dir: "{self.directories[number]}"{sync} }}
cluster {{ name: c, listen: 127.0.0.1:{routes[number]}, routes: [{urls}] }}
"""
            )
            found.append([str(CACHE / "nats" / f"nats-server-{NATS}"), "-c", str(path)])
        return found

    def client(self, **given: object) -> list[str]:
        return [str(CACHE / "nats" / "bench"), *_words(self.addresses, given)]


NAMES = ("quire", "kafka", "kafka-fsync", "nats", "nats-sync")


def system(name: str, root: Path, logs: Path) -> System:
    if name == "quire":
        return Quire(root, logs)
    if name.startswith("kafka"):
        return Kafka(root, logs, fsync=name == "kafka-fsync")
    return Nats(root, logs, always=name == "nats-sync")


def require_tools(names: Sequence[str]) -> None:
    """Raise an error with one line that names the tools that are missing."""
    needed = {"java": "openjdk-17-jdk", "javac": "openjdk-17-jdk", "mvn": "maven"}
    tools = dict(needed) if any(name.startswith("kafka") for name in names) else {}
    if any(name.startswith("nats") for name in names):
        tools["go"] = "golang 1.26 or later"
    missing = [f"{tool} ({package})" for tool, package in tools.items() if not shutil.which(tool)]
    if missing:
        raise BenchmarkError(
            f"The peers need {', '.join(missing)}. Choose others with --systems, for example "
            "--systems quire."
        )
    if not procfs.available():
        raise BenchmarkError("The benchmark reads /proc and needs Linux.")


def free_ports(count: int) -> list[int]:
    """Return free ports below those that the system gives to clients, which no client takes."""
    found: list[int] = []
    for port in range(FIRST_PORT, LAST_PORT):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise BenchmarkError(f"There are no {count} free ports between {FIRST_PORT} and {LAST_PORT}.")


def end(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _words(at: str, given: dict[str, object]) -> list[str]:
    return [f"at={at}", *(f"{name}={value}" for name, value in given.items())]


def _newer(made: Path, *sources: Path) -> bool:
    return made.exists() and all(made.stat().st_mtime > one.stat().st_mtime for one in sources)


def _build(*command: str, at: Path, **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=at,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise BenchmarkError(f"`{' '.join(command)[:80]}` failed: {said}")
