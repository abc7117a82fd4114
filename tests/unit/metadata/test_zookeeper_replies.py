"""ZooKeeper's replies that need a second look, given by a substitute for the connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire._runtime.tasks import TaskSet
from quire.codec.metadata import layout
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.codec.metadata.ledger_path import HIERARCHICAL, high_order_name, long_id
from quire.errors import (
    KeyExistsError,
    LaterVersionError,
    LedgerRecreatedError,
    MetadataDeniedError,
    MetadataError,
    NoSuchKeyError,
    UnreadableMetadataError,
)
from quire.metadata.interface import ANY_VERSION, Versioned
from quire.metadata.tree import Operation, Put, Result
from quire.metadata.zookeeper.bookies import LISTS_ATTEMPTS_MAX, read_bookies, read_ids
from quire.metadata.zookeeper.commits import Commits
from quire.metadata.zookeeper.ids import LedgerIdCounter
from quire.metadata.zookeeper.kazoo_adapter import (
    LostConnectionError,
    NoNodeError,
    ZooKeeperConnection,
)
from quire.metadata.zookeeper.ledgers import ZooKeeperLedgers
from quire.metadata.zookeeper.root import ZooKeeperRoot
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire.metadata.zookeeper.tree import ZooKeeperTree
from quire.metadata.zookeeper.values import Values, read_instance_id

OLD = LedgerMetadata(1, 1, 1, (Segment(0, ("b",)),))
NEW = OLD.with_close(3, 30)


class Root:
    """A root whose connection is the given substitute."""

    path = "/ledgers"

    def __init__(self, zk: object) -> None:
        self.zk = zk
        self.rng = random.Random(1)

    async def do(self, what: str, work: Callable[[bool], Awaitable[Any]], **how: object) -> Any:
        return await work(False)

    async def know_layout(self) -> None:
        pass

    async def check_layout(self) -> None:
        pass

    def at(self, below: str) -> str:
        return f"/ledgers/{below}"

    def ledger_path(self, ledger_id: int) -> str:
        return f"/ledgers/L{ledger_id}"


def stat(created_zxid: int, version: int) -> Any:
    return SimpleNamespace(created_zxid=created_zxid, version=version, ctime_ms=0)


@pytest.mark.parametrize("recreated", [False, True])
async def test_a_ledger_recreated_just_before_a_write_is_noticed(*, recreated: bool) -> None:
    """ZooKeeper compares only versions, and the new node has the same one."""

    class ZooKeeper:
        async def get_or_sync(self, path: str) -> tuple[bytes, Any]:
            return encode(OLD), stat(100, 0)

        get_synced = get_or_sync

        async def set(self, path: str, data: bytes, version: int) -> Any:
            return stat(200 if recreated else 100, version + 1)

    ledgers = ZooKeeperLedgers(cast(Any, Root(ZooKeeper())), TaskSet())
    known = await ledgers.read(7)
    if recreated:
        with pytest.raises(LedgerRecreatedError, match="overwritten the metadata") as caught:
            await ledgers.write(7, encode(NEW), 0, known)
        assert not caught.value.outcome_known
    else:
        written = await ledgers.write(7, encode(NEW), 0, known)
        assert (written.value.last_entry_id, written.version, written.created) == (3, 1, 100)


async def test_a_server_that_lags_does_not_let_a_write_change_a_recreated_ledger() -> None:
    """The server showed the former ledger, and the write overwrote the metadata of the new one."""

    class ZooKeeper:
        get_synced = ZooKeeperConnection.get_synced
        get_or_sync = ZooKeeperConnection.get_or_sync
        synced = False

        async def get(self, path: str, notify: object = None) -> tuple[bytes, Any]:
            return encode(OLD), stat(200 if self.synced else 100, 0)

        async def sync(self, path: str) -> None:
            self.synced = True

        async def set(self, path: str, data: bytes, version: int) -> Any:
            raise AssertionError("the new ledger was changed")

    ledgers = ZooKeeperLedgers(cast(Any, Root(ZooKeeper())), TaskSet())
    known = await ledgers.read(7)
    with pytest.raises(LedgerRecreatedError, match="was not changed") as caught:
        await ledgers.write(7, encode(NEW), 0, known)
    assert caught.value.outcome_known


async def test_a_node_is_missing_only_if_the_newest_state_lacks_it() -> None:
    """A server may lag behind the process that has just created the node."""
    synced: list[str] = []

    class ZooKeeper:
        session_id = 1

        def on_connected(self, look: Callable[[], None]) -> Callable[[], None]:
            return lambda: None

        async def exists(self, path: str) -> Any:
            return stat(1, 0) if path in synced and path == "/there" else None

        async def sync(self, path: str) -> None:
            synced.append(path)

    root: Any = Root(ZooKeeper())
    tree = ZooKeeperTree(root, Commits(root, TaskSet()), TaskSet(), lambda: None)
    assert await tree.exists("/there")
    assert not await tree.exists("/missing")
    assert synced == ["/there", "/missing"]


async def test_marks_of_an_earlier_session_are_not_kept() -> None:
    """After 10 marks, a commit once failed as if its session had ended 10 times."""
    answer = asyncio.Event()

    class ZooKeeper:
        session_id, made = 1, 0

        async def create(self, path: str, **how: object) -> tuple[str, Any]:
            self.made += 1
            return f"{path}{self.session_id}-{self.made}", None

        async def commit(self, operations: Sequence[Operation]) -> list[Result]:
            if f"mark-{self.session_id}-" not in operations[0].path:
                raise NoNodeError
            await answer.wait()
            return [1] * len(operations)

    zk = ZooKeeper()
    commits = Commits(cast(Any, Root(zk)), TaskSet())
    waiting = [asyncio.ensure_future(commits.commit([Put("/a", b"")])) for _ in range(12)]
    while zk.made < len(waiting):
        await asyncio.sleep(0)
    zk.session_id = 2
    waiting.append(asyncio.ensure_future(commits.commit([Put("/a", b"")])))
    while zk.made < len(waiting):
        await asyncio.sleep(0)
    answer.set()
    await asyncio.gather(*waiting)
    answer.clear()
    two = [asyncio.ensure_future(commits.commit([Put("/a", b"")])) for _ in range(2)]
    asyncio.get_running_loop().call_soon(answer.set)
    await asyncio.gather(*two)
    assert zk.made == len(waiting) + 1  # one idle mark of this session, and a new one


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_watched_ledger_is_deleted_only_if_the_newest_state_lacks_it(
    *, deleted: bool
) -> None:
    """After a lost session, the next server may lag behind the creation of the ledger.

    Its writer and its readers were told that the ledger was deleted.
    """
    synced = False
    told: list[Any] = []

    class ZooKeeper:
        def on_connected(self, look: Callable[[], None]) -> Callable[[], None]:
            return lambda: None

        def forget(self, notify: Callable[[], None]) -> None:
            pass

        async def wait_connected(self) -> None:
            pass

        async def get(self, path: str, notify: object = None) -> tuple[bytes, Any]:
            if deleted or not synced:
                raise NoNodeError
            return encode(OLD), stat(100, 0)

        async def get_or_sync(self, path: str, notify: object = None) -> tuple[bytes, Any]:
            return await ZooKeeperConnection.get_or_sync(cast(Any, self), path, cast(Any, notify))

        async def sync(self, path: str) -> None:
            nonlocal synced
            synced = True

    tasks = TaskSet()
    watch = ZooKeeperLedgers(cast(Any, Root(ZooKeeper())), tasks).watch(7, told.append)
    while not told:
        await asyncio.sleep(0)
    assert told == [None if deleted else Versioned(replace(OLD, ctime_ms=0), 0, 100)]
    assert synced
    watch.close()
    await tasks.close()


class LaggingServer:
    """A server that has none of the nodes of the cluster until it is told to catch up."""

    servers = "zk:2181"
    get_or_sync = ZooKeeperConnection.get_or_sync
    get_synced = ZooKeeperConnection.get_synced
    exists_or_sync = ZooKeeperConnection.exists_or_sync

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.seen: dict[str, bytes] = {}

    async def get(self, path: str, notify: object = None) -> tuple[bytes, Any]:
        if path not in self.seen:
            raise NoNodeError
        return self.seen[path], stat(100, 0)

    async def exists(self, path: str, notify: object = None) -> Any:
        return stat(100, 0) if path in self.seen else None

    async def sync(self, path: str) -> None:
        self.seen = self.nodes

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        if path not in self.nodes:
            raise NoNodeError
        del self.nodes[path]


async def test_a_value_is_missing_only_if_the_newest_state_lacks_it() -> None:
    """The server may lag behind the process that has just stored the first value of the cluster.

    The value was said not to exist, and its deletion did nothing.
    """
    nodes = {"/ledgers/INSTANCEID": b"one", "/quire/ledgers": b"one", "/quire/ledgers/a": b"=1"}

    def values() -> Values:
        root: Any = Root(LaggingServer(nodes))
        return Values(root, Commits(root, TaskSet()), random.Random(1))

    assert await values().read(("a",)) == Versioned(b"1", 0)
    assert await read_instance_id(cast(Any, Root(LaggingServer(nodes)))) == "one"
    with pytest.raises(KeyExistsError):
        await values().refuse_leftovers()
    await values().delete(("a",), ANY_VERSION, None)
    assert "/quire/ledgers/a" not in nodes
    with pytest.raises(NoSuchKeyError):
        await values().read(("a",))


async def test_a_cluster_is_missing_only_if_the_newest_state_lacks_it() -> None:
    def store(nodes: dict[str, bytes]) -> ZooKeeperStore:
        server = LaggingServer(nodes)
        opened: Any = object.__new__(ZooKeeperStore)
        opened._zk, opened._root, opened._closed = server, Root(server), False
        return cast(ZooKeeperStore, opened)

    assert await store({"/ledgers/LAYOUT": b"2"}).is_initialised()
    assert not await store({}).is_initialised()


@pytest.mark.parametrize(
    "data", [b"3\nx:1", f"2\n{layout.FLAT}:2".encode()], ids=["format", "manager"]
)
async def test_a_later_layout_is_an_error_of_the_cluster_and_not_of_one_ledger(data: bytes) -> None:
    """A command that accepts a ledger with unreadable metadata must not accept this error."""
    server = cast(ZooKeeperConnection, LaggingServer({"/ledgers/LAYOUT": data}))
    root = ZooKeeperRoot(server, "/ledgers", random.Random(1))
    with pytest.raises(LaterVersionError, match="cannot be used: LAYOUT was written by") as raised:
        await root.check_layout()
    assert isinstance(raised.value, MetadataError)
    assert not isinstance(raised.value, UnreadableMetadataError)


@pytest.mark.parametrize(("before", "now"), [([], [3]), ([1], [1, 3])])
async def test_no_id_is_generated_that_another_process_has_skipped(
    before: list[int], now: list[int]
) -> None:
    """The server lagged behind the process that has skipped the ids, and a skipped one was given.

    A ledger with such an id may have entries on bookies that belong to a lost ledger.
    """

    class ZooKeeper:
        high = before

        async def exists(self, path: str, notify: object = None) -> Any:
            return stat(1, 0) if self.high else None

        async def children(self, path: str) -> list[str]:
            return [high_order_name(high) for high in self.high]

        async def create(self, path: str, *data: bytes, **how: object) -> tuple[str, Any]:
            self.high = now  # the answer to a write comes after everything that was written before
            return f"{path}0000000007", None

        async def delete(self, path: str) -> None:
            pass

    root: Any = Root(ZooKeeper())
    root.manager = HIERARCHICAL
    tasks = TaskSet()
    assert await LedgerIdCounter(root, tasks).next(False) == long_id(3, 7)
    await tasks.close()


async def test_a_commit_in_doubt_stays_in_doubt_if_its_session_cannot_be_continued() -> None:
    """The next server refused the identity, and the error said that the outcome is known."""

    class ZooKeeper:
        servers, session_id, attempts = "zk:2181", 1, 0

        async def wait_connected(self) -> None:
            if self.attempts:
                raise MetadataDeniedError("the server refuses the identity")

        async def create(self, path: str, **how: object) -> tuple[str, Any]:
            return f"{path}1", None

        async def commit(self, operations: Sequence[Operation]) -> list[Result]:
            self.attempts += 1
            raise LostConnectionError

        async def delete(self, path: str) -> None:
            pass

    root = ZooKeeperRoot(cast(Any, ZooKeeper()), "/ledgers", random.Random(1))
    tasks = TaskSet()
    with pytest.raises(MetadataDeniedError) as caught:
        await Commits(root, tasks).commit([Put("/a", b"")])
    assert not caught.value.outcome_known
    await tasks.close()


class MovingBookie:
    """A ZooKeeper in which b:1 becomes writable after the first look at the writable list."""

    def __init__(self, moves: int = 1) -> None:
        self.moves = moves
        self.writable = False
        self.changes = 0
        self.looks = self.checks = 0

    def _stat(self, path: str) -> Any:
        changes = self.changes
        return SimpleNamespace(created_zxid=1, children_version=changes, children_zxid=10 + changes)

    async def children_stat(self, path: str, notify: object = None) -> tuple[list[str], Any]:
        if path == "/ledgers/available/readonly":
            return [] if self.writable else ["b:1"], self._stat(path)
        found = ["readonly", "b:1"] if self.writable else ["readonly"], self._stat(path)
        self.looks += 1
        if self.moves:
            self.moves -= 1
            self.writable, self.changes = not self.writable, self.changes + 1
        return found

    async def exists(self, path: str) -> Any:
        self.checks += 1
        return self._stat(path)

    async def get(self, path: str) -> tuple[bytes, Any]:
        return b"", self._stat(path)


async def test_lists_of_bookies_of_one_moment_are_read_with_two_requests() -> None:
    """The read-only list did not change after the writable one, so it needs no third request."""
    zk = MovingBookie(moves=0)
    assert await read_ids(cast(ZooKeeperRoot, Root(zk))) == {"b:1"}
    assert (zk.looks, zk.checks) == (1, 0)


async def test_a_bookie_that_becomes_writable_during_a_listing_is_not_missing() -> None:
    """A missing bookie would count as lost, and its ledgers would be marked."""
    assert await read_ids(cast(ZooKeeperRoot, Root(MovingBookie()))) == {"b:1"}
    found = await read_bookies(cast(ZooKeeperRoot, Root(MovingBookie())), True)
    assert (list(found.writable), list(found.readonly)) == (["b:1"], [])


async def test_lists_of_bookies_that_keep_changing_are_read_a_limited_number_of_times() -> None:
    zk = MovingBookie(moves=1_000)
    await read_ids(cast(ZooKeeperRoot, Root(zk)))
    assert zk.looks == LISTS_ATTEMPTS_MAX
