"""Miniature machines: network namespaces joined by a hub that can drop what one sends to another.

    with Net(["zookeeper", "bookie", "client"]) as net:
        subprocess.Popen([*net["bookie"].prefix, "quire", "bookie", ...])
        net["client"].run(work)         # a coroutine, on a thread that lives in that namespace
        net.cut("bookie", "client")

Each machine has one cable to the hub, which forwards packets. A cut is a routing rule of the hub.
It is as silent as a pulled cable: nobody is notified, and retransmissions arrive once the cut has
ended. Open files of this process hold the namespaces, so nothing remains when the process ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self, TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
THIS_THREAD = "/proc/thread-self/ns/net"
COMMAND_LIMIT_S = 20.0
MACHINES_MAX = 200
ESTABLISHED = "01"
"""The code for established connections in the kernel's table of TCP connections."""


class NamespacesRefused(Exception):
    """The error of a machine whose kernel or software does not permit network namespaces."""


def refused() -> str:
    """Return the reason why namespaces cannot be created here, or '' if they can."""
    try:
        with Net(["a", "b"]) as net:
            net.cut("a", "b")
    except NamespacesRefused as error:
        return str(error)
    return ""


class Machine:
    """A machine: one network namespace with a cable to the hub."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.99.{number}.2"
        self.gateway = f"10.99.{number}.1"
        self.cable = f"cable{number}"
        """The name of the network interface at the hub's end of the cable."""
        self._file = _new_namespace()

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def prefix(self) -> list[str]:
        """The words to put before a command that is to run on this machine."""
        return ["nsenter", f"--net={self.path}", "--"]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread, and all that it starts, to this machine while the block runs."""
        before = os.open(THIS_THREAD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", self._file, CLONE_NEWNET)
            yield
        finally:
            _call("setns", before, CLONE_NEWNET)
            os.close(before)

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine on a new thread of this machine, and return a future of its result."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                with self.entered():
                    done.set_result(asyncio.run(work()))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)

        threading.Thread(target=run, name=f"on {self.name}").start()
        return done

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self.start(work).result()

    def flows(self) -> list[tuple[str, int, str, int]]:
        """Return the established TCP connections: own address and port, then those of the peer."""
        with self.entered(), open("/proc/thread-self/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table.readlines()[1:]]
        return [(*_endpoint(row[1]), *_endpoint(row[2])) for row in rows if row[3] == ESTABLISHED]

    def close(self) -> None:
        os.close(self._file)


class Net:
    """Machines by name, and the hub between them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        assert len(self._names) < MACHINES_MAX
        self._machines: dict[str, Machine] = {}
        self._hub: Machine | None = None
        self._cut: set[tuple[str, str]] = set()
        self._silenced: list[str] = []
        """The routing rules that drop the data of single connections."""

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def __enter__(self) -> Self:
        for tool in ("ip", "nsenter"):
            if shutil.which(tool) is None:
                raise NamespacesRefused(f"the command {tool} is not installed")
        try:
            self._hub = Machine("hub", 0)
            for number, name in enumerate(self._names, start=1):
                self._machines[name] = Machine(name, number)
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for machine in (*self._machines.values(), *([self._hub] if self._hub else [])):
            machine.close()
        self._machines.clear()
        self._hub = None

    # -- cables -------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """Drop everything between two machines, in both directions."""
        self._rules("add", [(one, other), (other, one)])

    def cut_way(self, sender: str, receiver: str) -> None:
        """Drop everything from `sender` to `receiver`. The opposite direction stays open."""
        self._rules("add", [(sender, receiver)])

    def silence(self, machine: str, *others: str) -> int:
        """Drop the data of the existing connections between `machine` and the others.

        Nobody is notified, and new connections work. Returns the number of connections.
        """
        addresses = {self[name].address for name in others}
        rules = []
        flows = [flow for flow in self[machine].flows() if flow[2] in addresses]
        for own, port, peer, peer_port in flows:
            rules += [
                f"from {own} to {peer} ipproto tcp sport {port} dport {peer_port} blackhole",
                f"from {peer} to {own} ipproto tcp sport {peer_port} dport {port} blackhole",
            ]
        assert self._hub is not None
        _ip(self._hub, [f"rule add {rule}" for rule in rules])
        self._silenced += rules
        return len(flows)

    def heal(self) -> None:
        self._rules("del", sorted(self._cut))
        rules, self._silenced = self._silenced, []
        assert self._hub is not None
        _ip(self._hub, [f"rule del {rule}" for rule in rules])

    # -- inside -------------------------------------------------------------------------------

    def _rules(self, verb: str, ways: list[tuple[str, str]]) -> None:
        changed = [way for way in ways if (way in self._cut) is (verb == "del")]
        assert self._hub is not None
        _ip(
            self._hub,
            [
                f"rule {verb} from {self[a].address} to {self[b].address} blackhole"
                for a, b in changed
            ],
        )
        self._cut.symmetric_difference_update(changed)

    def _join(self) -> None:
        hub = self._hub
        assert hub is not None
        lines = ["link set lo up"]
        for machine in self._machines.values():
            lines += [
                f"link add {machine.cable} type veth peer name eth0 netns {machine.path}",
                f"addr add {machine.gateway}/30 dev {machine.cable}",
                f"link set {machine.cable} up",
            ]
        _ip(hub, lines)
        for machine in self._machines.values():
            own = [
                "link set lo up",
                f"addr add {machine.address}/30 dev eth0",
                "link set eth0 up",
                f"route add default via {machine.gateway}",
            ]
            _ip(machine, own)
        with hub.entered(), open("/proc/sys/net/ipv4/ip_forward", "w") as switch:
            switch.write("1")


def _endpoint(text: str) -> tuple[str, int]:
    """Parse an address and a port from the kernel's table."""
    address, _, port = text.partition(":")
    return socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder)), int(port, 16)


def _ip(machine: Machine, lines: list[str]) -> None:
    if not lines:
        return
    with machine.entered():
        done = subprocess.run(
            ["ip", "-batch", "-"],
            input="\n".join(lines) + "\n",
            text=True,
            capture_output=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().replace("\n", "; ")
        raise NamespacesRefused(f"`ip` on {machine.name}: {said}")


def _new_namespace() -> int:
    """Return a file descriptor that holds a new network namespace.

    The thread that created the namespace has ended.
    """
    made: Future[int] = Future()

    def make() -> None:
        try:
            _call("unshare", CLONE_NEWNET)
            made.set_result(os.open(THIS_THREAD, os.O_RDONLY | os.O_CLOEXEC))
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            made.set_exception(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made.result()


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library that Python offers only from version 3.12 on."""
    if sys.platform != "linux":
        raise NamespacesRefused("network namespaces exist only on Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise NamespacesRefused(f"the kernel refuses {name}: {os.strerror(number)}")
