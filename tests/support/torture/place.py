"""The machines, disks and servers of a torture run.

On Linux as root, every server has a machine of its own (a network namespace, see
`tests.support.network.netns`), and every bookie has a small disk of its own. Otherwise everything
is on loopback and on the disk of this machine, and the faults of networks or full disks are left
out. `Place.left_out` says which.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from quire.errors import StartError
from quire.testing._process import LOOPBACK, ServerProcess, free_ports, quire_command
from tests.support.network.netns import NamespacesRefused, Net
from tests.support.processes.cli import descendants
from tests.support.storage.small_disk import MIB, MountRefused, SmallDisk

T = TypeVar("T")

ZOOKEEPER, CLIENTS, OTHERS = "zookeeper", "clients", "others"
BOOKIE_PORT = 3181
ZOOKEEPER_PORT = 2181
DISK_MB = 512
START_LIMIT_S = 180.0
SETTINGS = {
    "segment_bytes": 4 * MIB,
    "min_free_bytes": 16 * MIB,
    "compact_reserve_bytes": 4 * MIB,
    "read_only_dwell_s": 1,
    "check_space_s": 1,
    "gc_interval_s": 5,
    "gc_full_interval_s": 5,
    "gc_over_replicated_interval_s": 30,
    "compact_minor_interval_s": 10,
    "compact_major_interval_s": 20,
    "index_cache_interval_s": 10,
    "scrub_interval_s": 30,
    "scrub_bytes_per_s": 8 * MIB,
    "damage_report_interval_s": 2,
    "log_position_interval_s": 2,
    "session_timeout_s": 4,
}
REPAIRS = {
    "lost_bookie_delay_s": 3,
    "bookie_check_interval_s": 30,
    "replicas_check_interval_s": 15,
    "open_grace_s": 5,
    "backoff_s": 0.5,
    "backoff_max_s": 5,
    "poll_s": 1,
    "ledgers_at_once": 4,
}
CLIENT_PROGRAMS = (
    ("writer", 3), ("producer", 2), ("reader", 1), ("recoverer", 1), ("deleter", 1),
    ("consumer", 1),
)  # fmt: skip
HEALERS = 2


def _set(option: str, settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (option, f"{name}={value}")]


@dataclass
class Server:
    """A process that is started again after it was killed."""

    name: str
    machine: str
    process: ServerProcess
    busy: bool = False
    """Whether a fault is using the process now, so that no other fault may take it."""

    def start(self) -> None:
        if not self.process.alive:
            self.process.launch()

    def wait(self) -> None:
        self.process.wait_ready(time.monotonic() + START_LIMIT_S)


@dataclass
class BookieServer(Server):
    data: Path = Path()
    """The path of the bookie's data directory, as this process sees it."""
    disk: SmallDisk | None = None
    copy: Path | None = None
    """An older copy of the bookie's data directory, made while the bookie did not run, or None."""
    served: int = 0
    """The number of times that the bookie had begun to serve when the copy was made."""

    def events(self, name: str) -> int:
        """Return the number of times that the bookie's log has the event `name`."""
        return self.process.log_path.read_text(errors="replace").count(f'"event": "{name}"')


class ZooKeeperServer(Server):
    """A process `quire zookeeper`, which starts Java. Signals go to the Java process, too."""

    def signal(self, number: signal.Signals) -> None:
        for pid in descendants(self.process.pid):
            os.kill(pid, number)

    def kill(self) -> None:
        below = descendants(self.process.pid)
        self.process.kill()
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@dataclass
class Place:
    directory: Path
    uri: str
    net: Net | None
    zookeeper: ZooKeeperServer
    bookies: list[BookieServer]
    healers: list[Server]
    programs: list[Server]
    left_out: list[str] = field(default_factory=list)

    @property
    def journals(self) -> Path:
        return self.directory / "journals"

    @property
    def servers(self) -> list[Server]:
        return [self.zookeeper, *self.bookies, *self.healers, *self.programs]

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the machine of the clients, and return its result."""
        return asyncio.run(work()) if self.net is None else self.net[OTHERS].run(work)


def prefix(net: Net | None, machine: str) -> list[str]:
    return [] if net is None else net[machine].prefix


@contextmanager
def place(directory: Path, bookies: int, chance: random.Random) -> Iterator[Place]:
    """Start the servers, and yield the place. The clients' programs are defined but not started."""
    names = [f"bookie-{number}" for number in range(bookies)]
    left_out: list[str] = []
    with ExitStack() as stack:
        net: Net | None = None
        try:
            net = stack.enter_context(Net([ZOOKEEPER, CLIENTS, OTHERS, *names]))
        except NamespacesRefused as error:
            left_out.append(f"faults of networks ({error})")
        found = _describe(directory, net, names, stack, left_out, chance)
        stack.callback(_end, found)
        found.zookeeper.start()
        found.zookeeper.wait()
        yield found


def _describe(
    directory: Path,
    net: Net | None,
    names: Sequence[str],
    stack: ExitStack,
    left_out: list[str],
    chance: random.Random,
) -> Place:
    ports = [BOOKIE_PORT] * len(names) + [ZOOKEEPER_PORT]
    if net is None:
        ports = free_ports(len(names) + 1)
    host = LOOPBACK if net is None else net[ZOOKEEPER].address
    uri = f"zk+hierarchical://{host}:{ports[-1]}/ledgers"
    (directory / "journals").mkdir(parents=True)
    (directory / "logs").mkdir()

    def process(name: str, machine: str, command: Sequence[str], before: Sequence[str] = ()) -> Any:
        log = directory / "logs" / f"{name}.log"
        return ServerProcess(name, [*prefix(net, machine), *before, *command], log)

    java = quire_command(
        "zookeeper", "--dir", str(directory / "zookeeper"), "--host", host, "--port", str(ports[-1])
    )
    zookeeper = ZooKeeperServer(ZOOKEEPER, ZOOKEEPER, process(ZOOKEEPER, ZOOKEEPER, java))
    servers = []
    for number, name in enumerate(names):
        disk = _disk(directory / name, stack, left_out)
        data, seen = directory / name / "data", directory / name / "data"
        if disk is not None:
            seen = disk.seen / "data"
        command = quire_command(
            "bookie", "start", "--metadata", uri, "--dir", str(data), "--bookie-id", name,
            "--port", str(ports[number]),
            "--advertise", LOOPBACK if net is None else net[name].address,
            *_set("--set", SETTINGS),
        )  # fmt: skip
        before = [] if disk is None else disk.prefix
        servers.append(
            BookieServer(name, name, process(name, name, command, before), data=seen, disk=disk)
        )
    healers = [
        Server(name, OTHERS, process(name, OTHERS, quire_command(
            "autorecovery", "start", "--metadata", uri, "--name", name, *_set("--set", REPAIRS)
        )))
        for name in (f"healer-{number}" for number in range(HEALERS))
    ]  # fmt: skip
    programs = [
        Server(name, CLIENTS, process(name, CLIENTS, [
            sys.executable, "-m", f"{__package__}.clients", kind, uri, str(directory / "journals"),
            name, str(chance.randrange(1 << 32)),
        ]))
        for kind, count in CLIENT_PROGRAMS
        for name in (f"{kind}-{number}" for number in range(count))
    ]  # fmt: skip
    return Place(directory, uri, net, zookeeper, servers, healers, programs, left_out)


def _disk(path: Path, stack: ExitStack, left_out: list[str]) -> SmallDisk | None:
    disk = SmallDisk(path, DISK_MB, image=os.geteuid() == 0)
    try:
        return stack.enter_context(disk)
    except MountRefused as error:
        what = f"full disks ({error})"
        if what not in left_out:
            left_out.append(what)
        return None


def _end(found: Place) -> None:
    for server in (*found.programs, *found.healers, *found.bookies):
        server.process.kill()
    if found.zookeeper.process.alive:
        found.zookeeper.kill()


def start_all(servers: Sequence[Server]) -> None:
    """Start the servers that do not run, and wait until all of them serve.

    A server that fails to start is tried again, because its former registration may not have
    expired yet.
    """
    deadline_s = time.monotonic() + START_LIMIT_S
    for server in servers:
        server.start()
    for server in servers:
        while True:
            try:
                server.start()
                server.wait()
                break
            except StartError:
                if time.monotonic() > deadline_s:
                    raise


def copy_directory(source: Path, target: Path) -> None:
    """Replace the directory `target` with a copy of `source` that keeps the times of the files."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
