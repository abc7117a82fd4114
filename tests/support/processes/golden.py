"""Clusters on copies of the golden data, which run the version of Quire under test.

    with GoldenCluster(SETS[0], tmp_path) as cluster:
        cluster.quire("ledger", "list")

`tests/golden/make_golden.py` made the data. Only the command line and the public Python API are
used here, so that the data stays readable when modules are renamed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from kazoo.client import KazooClient

from tests.support.processes.cli import COMMAND, Done, Quire

Json = dict[str, Any]

GOLDEN = Path(__file__).parents[2] / "golden"
SETS = sorted(path.parent for path in GOLDEN.glob("*/cluster.json"))
"""The directories of the golden data, one for each version that made some."""
LIMIT_S = 60.0
SMALL = ("--set", "segment_bytes=262144", "--set", "min_free_bytes=0")
FILLER = "golden-filler"


def sets_with(has: Callable[[Json], bool]) -> list[Path]:
    """Return the sets of golden data whose description satisfies `has`. There must be at least one.

    A test of something that the first versions did not record runs on the later sets only. A skip
    would hide that no set has it.
    """
    found = [one for one in SETS if has(json.loads((one / "cluster.json").read_text()))]
    assert found, "no set of golden data has what the test is about"
    return found


def payload(text: str, times: int = 1) -> bytes:
    """Return the payload of an entry that the golden data describes by a repeated text."""
    return text.encode("latin-1") * times


def entries(ledger: Json) -> list[bytes]:
    return [payload(*entry) for entry in ledger["entries"]]


class GoldenCluster:
    """The bookies of one set of golden data, started on a copy in `directory`.

    `uri` names the metadata store, or is None for the SQLite file of the copy. `arguments` go to
    each bookie. The processes are killed at the end.
    """

    def __init__(
        self,
        golden: Path,
        directory: Path,
        *,
        name: str = "cluster",
        uri: str | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.expected: Json = json.loads((golden / f"{name}.json").read_text())
        self.directory = directory
        with tarfile.open(golden / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
        self.uri = uri or f"sqlite:///{directory / 'metadata.db'}"
        self._arguments = arguments
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def bookies(self) -> dict[str, Json]:
        return {one["name"]: one for one in self.expected["bookies"]}

    def directories(self, name: str) -> list[str]:
        return [str(self.directory / one) for one in self.bookies[name]["directories"]]

    def ledger(self, what: str) -> Json:
        """Return the golden data's record of the ledger whose description is `what`."""
        (found,) = [one for one in self.expected["ledgers"] if one["what"] == what]
        return dict(found)

    # -- commands -----------------------------------------------------------------------------

    def run(self, *arguments: str, stdin: bytes = b"") -> Done:
        return Quire(self.uri)(*arguments, stdin=stdin)

    def quire(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a command that must succeed, and return its output."""
        return self.run(*arguments, stdin=stdin).ok()

    def lines(self, *arguments: str) -> list[Any]:
        """Return the objects that a command prints as JSON, one per line."""
        return [json.loads(line) for line in self.quire(*arguments, "--json").splitlines()]

    # -- processes ----------------------------------------------------------------------------

    def move(self) -> None:
        """Rewrite the cookies, which still name the directories in which the data was made."""
        for name in self.bookies:
            named = [word for one in self.directories(name) for word in ("--dir", one)]
            self.quire("bookie", "cookie", "update", self.bookies[name]["id"], *named)

    def start(self, name: str) -> None:
        """Start a bookie on any free port and wait until it serves under its former id."""
        named = [word for one in self.directories(name) for word in ("--dir", one)]
        command = ["bookie", "start", *named, "--port", "0", *SMALL, *self._arguments]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*COMMAND, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=Quire(self.uri).environment,
                start_new_session=True,
            )
        self._processes[name] = process
        assert process.stdout is not None
        served = process.stdout.readline().decode().strip()
        assert served == self.bookies[name]["id"], self.log(name).read_text()

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        assert process.wait(LIMIT_S) == 0, self.log(name).read_text()
        assert process.stdout is not None
        process.stdout.close()

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def events(self, name: str, event: str) -> list[Json]:
        """Return the events of this kind that the bookie has logged."""
        lines = self.log(name).read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [one for one in found if one["event"] == event]

    def port(self, name: str) -> int:
        """Return the port on which the bookie listens now."""
        ports = {one["id"]: one["port"] for one in self.lines("cluster", "bookies")}
        return int(ports[self.bookies[name]["id"]])

    def __enter__(self) -> GoldenCluster:
        try:
            self.move()
            for name in self.bookies:
                self.start(name)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._processes.clear()


# -- a bookie that is asked without the client ----------------------------------------------------

ADD, ADD_HEADER = 1, b"\x02\x01\x00\x00"
OK, UNAUTHORIZED, FENCED = 0, 102, 104


def add(port: int, ledger_id: int, entry_id: int, master_key: bytes) -> int:
    """Add an entry to any ledger in protocol v2, and return the code in the bookie's answer."""
    ids = b"".join(one.to_bytes(8, "big") for one in (ledger_id, entry_id, 0, 1))
    frame = ADD_HEADER + master_key + ids + bytes(8) + b"x"
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = b""
        while len(answer) < 12:
            part = connection.recv(4096)
            assert part, "the bookie closed the connection"
            answer += part
    assert answer[5] == ADD
    return int.from_bytes(answer[8:12], "big")


# -- ZooKeeper ------------------------------------------------------------------------------------


@contextmanager
def zookeeper(golden: Path, directory: Path) -> Iterator[str]:
    """Run a new ZooKeeper with the nodes of the golden data, and yield the metadata URI."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["zookeeper", "--dir", str(directory), "--port", address.rpartition(":")[2]]
    server = subprocess.Popen(
        [*COMMAND, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline(), "ZooKeeper did not start"
        load_nodes(address, json.loads((golden / "zookeeper.json").read_text())["nodes"])
        yield f"zk+hierarchical://{address}/ledgers"
    finally:
        server.terminate()
        server.wait(LIMIT_S)
        server.stdout.close()


def load_nodes(address: str, nodes: Json) -> None:
    """Create the golden nodes, each with its version and its counter of sequential children.

    The binding of a namespace names the address of ZooKeeper, so it gets the address of this
    server.
    """
    client = KazooClient(hosts=address)
    client.start()
    try:
        for path, (text, version, _) in nodes.items():
            data = _rebound(text.encode("latin-1"), address)
            if client.exists(path) is None:
                client.create(path, data)
            while client.get(path)[1].version < version:
                client.set(path, data)
        for path, (_, version, created) in nodes.items():
            filler = f"{path.rstrip('/')}/{FILLER}"
            while _created(client, path) < created:
                client.create(filler)
                client.delete(filler)
            assert client.get(path)[1].version == version
    finally:
        client.stop()
        client.close()


def _created(client: KazooClient, path: str) -> int:
    """Return the number of children that were ever created below a node."""
    stat = client.get(path)[1]
    return int(stat.cversion + stat.numChildren) // 2


def _rebound(data: bytes, address: str) -> bytes:
    if not data.startswith(b"1\nBKDL\n"):
        return data
    binding = json.loads(data.removeprefix(b"1\nBKDL\n"))
    for value in binding.values():
        if value.get("str", "").startswith("127.0.0.1:"):
            value["str"] = address
    return b"1\nBKDL\n" + json.dumps(binding, separators=(",", ":")).encode()
