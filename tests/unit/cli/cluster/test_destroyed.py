"""Commands that destroy data say what is lost, and what needs it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli.bookie import start
from quire.cli.cluster.destroyed import destroyed
from quire.cli.main import cli
from quire.metadata.interface import BookieAddress, Bookies, Versioned
from quire.streams.namespace.namespace import open_namespace
from tests.support.objects import Bench, object_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with object_bench(tmp_path) as made:
        yield made


async def test_destroying_a_cluster_or_bookie_names_the_owners_of_its_ledgers(bench: Bench) -> None:
    client = await bench.client()
    assert await destroyed(client.metadata) == "the cluster has 0 ledgers"
    ledger = await client.create_ledger()
    await ledger.close()
    assert await destroyed(client.metadata) == (
        "the cluster has 1 ledger; no stream, object or dataset needs it"
    )
    streams = await open_namespace(client, "/streams", create=True)
    await streams.create_stream("orders")
    async with await streams.open_writer("orders") as writer:
        await writer.append(b"1")
    await (await bench.objects()).put("jobs/1", b"a")
    needed = (
        "; 2 of them are needed by object jobs/1 in bucket default, stream orders in namespace "
        "/streams"
    )
    count = len(bench.ledgers())
    assert await destroyed(client.metadata) == f"the cluster has {count} ledgers{needed}"
    bookie = min((await client.bookies()).writable)
    assert await destroyed(client.metadata, bookie) == (
        f"{count} ledgers have a replica on bookie {bookie}{needed}"
    )
    assert await destroyed(client.metadata, "another:1") == (
        "0 ledgers have a replica on bookie another:1"
    )


def nowhere(host: str, *more: Any) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_bookie_with_a_host_that_does_not_resolve_is_created_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    uri = f"sqlite:///{tmp_path / 'cluster.db'}"
    assert CliRunner().invoke(cli, ["cluster", "init", "--metadata", uri]).exit_code == 0
    words = ["bookie", "init", "--metadata", uri, "--dir", str(tmp_path / "one")]
    found = CliRunner().invoke(cli, [*words, "--advertise", "bookie-9"])
    assert found.exit_code == 0, found.output
    assert found.stderr.startswith(
        "warning: the host bookie-9 cannot be resolved here (Name or service not known)"
    )


def test_a_starting_bookie_logs_the_same_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, dict[str, Any]]] = []

    def log(event: str, **told: Any) -> None:
        events.append((event, told))

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    start._check_resolves("bookie-9", log)
    ((event, told),) = events
    assert (event, told["host"]) == ("advertise_unresolved", "bookie-9")
    monkeypatch.undo()
    start._check_resolves("127.0.0.1", log)
    assert len(events) == 1


class Cluster:
    """A cluster in ZooKeeper that changes between two looks at it.

    The server shows bookies that have just started only after a `sync`.
    """

    uri = "zk+null://h:1/ledgers"

    def __init__(self, *looks: tuple[str, Bookies]) -> None:
        self._looks = iter(looks)
        self._bookies = Bookies({}, {})

    async def instance_id(self) -> str:
        found, self._bookies = next(self._looks)
        self._synced = False
        return found

    async def bookies(self) -> Bookies:
        return self._bookies if self._synced else EMPTY

    def _sync(self) -> None:
        self._synced = True

    @property
    def tree(self) -> Any:
        return Nodes({"/ledgers": ["INSTANCEID", "LAYOUT", "available"]}, self._sync)


class Nodes:
    """The tree of a cluster from which nothing may be deleted. A node without children is absent.

    Each LAYOUT has a value.
    """

    def __init__(
        self, children: dict[str, list[str]], synced: Callable[[], None] = lambda: None
    ) -> None:
        self._children = children
        self._synced = synced

    async def sync(self) -> None:
        self._synced()

    async def children(self, path: str) -> list[str]:
        return self._children.get(path, [])

    async def read(self, path: str) -> Versioned[bytes]:
        assert path.endswith("/LAYOUT")
        return Versioned(b"2\nfactory:1", 0)

    async def delete_tree(self, path: str) -> None:
        raise AssertionError("nothing may be deleted")


EMPTY = Bookies({}, {})
STARTED = Bookies({"b:1": BookieAddress("b:1", "b", 1)}, {})


@pytest.mark.parametrize(
    ("later", "says"),
    [(("one", STARTED), "still registered (b:1)"), (("two", EMPTY), "is two, not one")],
)
def test_a_cluster_that_has_changed_since_the_question_is_not_erased(
    later: tuple[str, Bookies], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = Cluster(("one", EMPTY), later)

    @asynccontextmanager
    async def opened(uri: str) -> AsyncIterator[Any]:
        yield cluster

    async def told(store: Any) -> str:
        return "the cluster has 0 ledgers"

    monkeypatch.setattr("quire.cli.cluster.metadata.opened_metadata", opened)
    monkeypatch.setattr("quire.cli.cluster.metadata.destroyed", told)
    done = CliRunner().invoke(cli, ["cluster", "erase", "--metadata", cluster.uri, "--yes"])
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr
    assert "nothing was changed" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "cluster erase --metadata URI --yes",
        "cluster erase --metadata URI --dry-run",
        "shell --metadata URI nukeexistingcluster -p /ledgers -f",
        "shell --metadata URI metaformat -n -f",
    ],
)
@pytest.mark.parametrize("inner", ["test/eu", "00", "000/eu", "00/0000/eu", "2026"])
def test_a_cluster_around_another_one_is_not_erased(
    words: str, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bookies are stopped, and those of the other cluster may be running.

    A cluster below a node with the name of a directory of ledgers was erased all the same.
    """

    class Outer(Cluster):
        async def is_initialised(self) -> bool:
            return True

        @property
        def tree(self) -> Any:
            root = ["INSTANCEID", "LAYOUT", "available"]
            children = {"/ledgers": [*root, "01", "cookies"], "/ledgers/01": ["0000"]}
            children["/ledgers/01/0000"] = ["L0007"]
            path = "/ledgers"
            for name in inner.split("/"):
                children.setdefault(path, []).append(name)
                path = f"{path}/{name}"
            return Nodes({**children, path: root})

    cluster: Any = Outer(("one", EMPTY), ("one", EMPTY))

    @asynccontextmanager
    async def opened(uri: str, *, create: bool = False) -> AsyncIterator[Any]:
        yield cluster

    monkeypatch.setattr("quire.cli.cluster.metadata.opened_metadata", opened)
    monkeypatch.setattr("quire.cli.shell.session.opened_metadata", opened)
    done = CliRunner().invoke(cli, words.replace("URI", cluster.uri).split())
    assert done.exit_code == 2, done.output
    assert f"contain those of another cluster (/ledgers/{inner})" in done.stderr
    assert "nothing was changed" in done.stderr
