"""Every short sequence of lost requests and replies, given by a substitute for the connection.

What the driver remembers of a node after a loss must not be taken for what the node has.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar, cast

import pytest

from quire._runtime.tasks import TaskSet
from quire.errors import (
    KeyExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)
from quire.metadata.common import encode_address
from quire.metadata.interface import ANY_VERSION, BookieAddress
from quire.metadata.tree import Create, Delete, Operation, Put, Result
from quire.metadata.zookeeper.bookies import ZooKeeperRegistration
from quire.metadata.zookeeper.commits import Commits
from quire.metadata.zookeeper.kazoo_adapter import (
    BadVersionError,
    LostConnectionError,
    NodeExistsError,
    NoNodeError,
    NotSentError,
    Stat,
    ZooKeeperConnection,
)
from quire.metadata.zookeeper.root import ZooKeeperRoot
from quire.metadata.zookeeper.values import Cookies, Values

T = TypeVar("T")

REQUEST_LOST, REPLY_LOST, NOT_SENT = "request lost", "reply lost", "not sent"
LOSSES = (REQUEST_LOST, REPLY_LOST, NOT_SENT)


@dataclass
class Node:
    data: bytes
    owner: int
    version: int = 0
    zxid: int = 0


class ZooKeeper:
    """A ZooKeeper with one session, which loses the requests or replies that it is told to lose."""

    servers, session_id = "zk:2181", 1

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.zxid = 0
        self.losses: list[str] = []
        """The losses of the next commits, one for each."""
        self.stuck = False
        """Whether the connection does not come back after the last of the losses."""

    async def wait_connected(self) -> None:
        if self.stuck and not self.losses:
            await asyncio.Event().wait()

    async def create(self, path: str, data: bytes = b"", **how: Any) -> tuple[str, Stat]:
        if how.get("sequence"):
            path = f"{path}{self.zxid:010d}"
        if path in self.nodes:
            raise NodeExistsError
        self.zxid += 1
        self.nodes[path] = Node(data, self.session_id if how.get("ephemeral") else 0, 0, self.zxid)
        return path, self._stat(path)

    async def exists(self, path: str, notify: object = None) -> Stat | None:
        return self._stat(path) if path in self.nodes else None

    async def sync(self, path: str) -> None:
        pass

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        (found,) = self._carry_out([Put(path, data, version)])
        assert found == self.nodes[path].version
        return self._stat(path)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._carry_out([Delete(path, version)])

    async def commit(self, operations: Sequence[Operation]) -> list[Result]:
        loss = self.losses.pop(0) if self.losses else ""
        if loss == NOT_SENT:
            raise NotSentError
        if loss == REQUEST_LOST:
            raise LostConnectionError
        try:
            results = self._carry_out(operations)
        except (NoNodeError, BadVersionError, NodeExistsError):
            if loss:
                raise LostConnectionError from None
            raise
        if loss:
            raise LostConnectionError
        return results

    def _carry_out(self, operations: Sequence[Operation]) -> list[Result]:
        for step, operation in enumerate(operations):  # All of them are checked first.
            node = self.nodes.get(operation.path)
            error: Exception | None = None
            if isinstance(operation, Create):
                error = NodeExistsError() if node is not None else None
            elif node is None:
                error = NoNodeError()
            elif operation.version not in (ANY_VERSION, node.version):
                error = BadVersionError()
            if error is not None:
                error.step = step  # type: ignore[attr-defined]
                raise error
        self.zxid += 1
        results: list[Result] = []
        for operation in operations:
            match operation:
                case Create(path, value):
                    self.nodes[path] = Node(value, self.session_id, 0, self.zxid)
                    results.append(path)
                case Put(path, value):
                    node = self.nodes[path]
                    node.data, node.version, node.zxid = value, node.version + 1, self.zxid
                    results.append(node.version)
                case Delete(path):
                    del self.nodes[path]
                    results.append(None)
        return results

    def _stat(self, path: str) -> Stat:
        node = self.nodes[path]
        return Stat(node.version, 0, node.owner, 0, 1, node.zxid, 0, 1)

    def on_connected(self, call: object) -> Any:
        return lambda: None

    def forget(self, call: object) -> None:
        pass


class Root(ZooKeeperRoot):
    """A root of a cluster that exists."""

    async def know_layout(self) -> None:
        pass

    async def check_layout(self) -> None:
        pass


def root_of(zk: ZooKeeper) -> Root:
    return Root(cast(Any, zk), "/ledgers", random.Random(1))


def sequences(most: int) -> Iterator[tuple[str, ...]]:
    for count in range(most + 1):
        yield from product(LOSSES, repeat=count)


# -- commits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", list(sequences(4)), ids=lambda lost: ", ".join(lost) or "none")
async def test_a_commit_is_done_once_whatever_is_lost(lost: tuple[str, ...]) -> None:
    zk, tasks = ZooKeeper(), TaskSet()
    zk.nodes["/a"] = Node(b"", 0)
    zk.losses = list(lost)
    assert await Commits(root_of(zk), tasks).commit([Put("/a", b"1")]) == [1]
    assert zk.nodes["/a"].version == 1
    await tasks.close()


@pytest.mark.parametrize("lost", list(sequences(3)), ids=lambda lost: ", ".join(lost) or "none")
async def test_a_commit_given_up_after_losses_does_not_disturb_the_next_one(
    lost: tuple[str, ...],
) -> None:
    """The mark of the former may have another version than is known, so nobody may use it again.

    Otherwise the next commit, after a loss of its own, would take a mark that was changed before
    for a trace of itself, and report success although nothing was done.
    """
    for upcoming in sequences(2):
        zk, tasks = ZooKeeper(), TaskSet()
        zk.nodes["/a"], zk.nodes["/b"] = Node(b"", 0), Node(b"", 0)
        commits = Commits(root_of(zk), tasks)
        await commits.commit([Put("/b", b"0")])
        zk.losses, zk.stuck = list(lost), True
        given_up = asyncio.ensure_future(commits.commit([Put("/a", b"1")]))
        for _ in range(10 + 10 * len(lost)):
            await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert not zk.losses
        zk.losses, zk.stuck = list(upcoming), False
        assert await commits.commit([Put("/b", b"1")]) == [2]
        assert (zk.nodes["/b"].data, zk.nodes["/b"].version) == (b"1", 2)
        await tasks.close()


# -- registrations ----------------------------------------------------------------------------

PAYLOADS = tuple(
    encode_address(BookieAddress("b", "h", 3181, properties={"n": n})) for n in ("1", "2")
)
CHANGES = list(product(range(2), (False, True), range(3), (False, True)))
"""The payload, whether the bookie is read-only, the number of the write to lose, and whether the
reply is lost and not the request."""


class LosingWrites(ZooKeeper):
    """It refuses all calls after the loss of one write, so that a change of the bookie fails."""

    lose: tuple[int, bool] | None = None

    async def _write(self, work: Callable[[], Awaitable[T]]) -> T:
        if self.lose is None:
            return await work()
        left, reply = self.lose
        self.lose = left - 1, reply
        if left > 0:
            return await work()
        if left == 0 and reply:
            await work()
        raise MetadataUnavailableError("no answer")

    async def create(self, path: str, data: bytes = b"", **how: Any) -> tuple[str, Stat]:
        made = super().create
        return await self._write(lambda: made(path, data, **how))

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        write = super().set
        return await self._write(lambda: write(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        delete = super().delete
        await self._write(lambda: delete(path, version))

    async def commit(self, operations: Sequence[Operation]) -> list[Result]:
        commit = super().commit
        return await self._write(lambda: commit(operations))


@pytest.mark.parametrize("first", CHANGES, ids=str)
async def test_a_registration_has_the_last_payload_whatever_failed_before(
    first: tuple[int, bool, int, bool],
) -> None:
    """A change that failed may have been carried out, so the node may not have what it had."""
    for second in (None, *CHANGES):
        for payload, readonly in product(PAYLOADS, (False, True)):
            zk, tasks = LosingWrites(), TaskSet()
            registration = ZooKeeperRegistration(
                root_of(zk), tasks, BookieAddress("b", "h", 3181), False, session_timeout_ms=1000
            )
            registration._payload = PAYLOADS[0]
            await registration._register()
            for change in (first, second):
                if change is not None:
                    number, registration._readonly, write, reply = change
                    registration._payload = PAYLOADS[number]
                    zk.lose = write, reply
                    try:
                        await registration._register()
                    except MetadataError:
                        pass
                    zk.lose = None
            registration._payload, registration._readonly = payload, readonly
            await registration._register()
            wanted, other = registration._paths()
            assert other not in zk.nodes
            assert zk.nodes[wanted].data == payload, (first, second)
            await tasks.close()


# -- values and cookies that others delete and create -----------------------------------------


class OthersChange(ZooKeeper):
    """It loses the reply to one write, and others change the node before the connection is back."""

    get_or_sync = ZooKeeperConnection.get_or_sync
    get_synced = ZooKeeperConnection.get_synced

    def __init__(self, others: Sequence[Operation]) -> None:
        super().__init__()
        self.made: dict[str, int] = {}
        """The transaction that created each node."""
        self.others = others
        self.armed = False
        for base in ("/ledgers/INSTANCEID", "/quire/ledgers"):
            self.nodes[base] = Node(b"a cluster", 0)

    def _carry_out(self, operations: Sequence[Operation]) -> list[Result]:
        results = super()._carry_out(operations)
        self._note()
        return results

    def _note(self) -> None:
        self.made = {path: self.made.get(path, self.zxid) for path in self.nodes}

    def _stat(self, path: str) -> Stat:
        return dataclasses.replace(super()._stat(path), created_zxid=self.made[path])

    async def get(self, path: str, notify: object = None) -> tuple[bytes, Stat]:
        self._note()
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path].data, self._stat(path)

    async def create(self, path: str, data: bytes = b"", **how: Any) -> tuple[str, Stat]:
        self._note()
        if path in self.nodes:
            raise NodeExistsError
        self._carry_out([Create(path, data)])
        self._lose()
        return path, self._stat(path)

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        done = await super().set(path, data, version)
        self._lose()
        return done

    async def commit(self, operations: Sequence[Operation]) -> list[Result]:
        results = await super().commit(operations)
        self._lose()
        return results

    def _lose(self) -> None:
        if self.armed:
            self.armed = False
            for one in self.others:
                self._carry_out([one])
            raise LostConnectionError


HISTORIES = ["deleted", "created again", "created again and changed"]


def values_of(zk: ZooKeeper) -> Values:
    root = root_of(zk)
    return Values(root, Commits(root, TaskSet()), random.Random(1))


def history(path: str, name: str) -> list[Operation]:
    changes: list[Operation] = [Delete(path), Create(path, b"=theirs"), Put(path, b"=later")]
    return changes[: HISTORIES.index(name) + 1]


@pytest.mark.parametrize("name", HISTORIES)
async def test_a_value_that_was_written_and_then_deleted_by_others_is_in_doubt(name: str) -> None:
    """The error said that nothing was written, so a put of an object was done twice.

    It brought back an object that others had deleted, or replaced the one that they put afterwards.
    """
    path = "/quire/ledgers/a"
    zk = OthersChange(history(path, name))
    values = values_of(zk)
    await values.write(("a",), b"old", None, None)
    zk.armed = True
    with pytest.raises((NoSuchKeyError, VersionConflictError)) as changed:
        await values.write(("a",), b"mine", 0, b"old")
    assert not changed.value.outcome_known


@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("name", HISTORIES)
async def test_a_value_is_created_once_although_others_delete_it(name: str, parent: bool) -> None:
    """The repeated request created it again, so an object that others had deleted came back."""
    path = "/quire/ledgers/a"
    zk = OthersChange(history(path, name))
    values = values_of(zk)
    await values.write(("b",), b"", None, None)
    if parent:
        zk._carry_out([Create(path, b"")])
    zk.armed = True
    assert await values.write(("a",), b"mine", None, None) == int(parent)
    assert not zk.armed
    left = zk.nodes.get(path)
    assert (left and left.data) == [None, b"=theirs", b"=later"][HISTORIES.index(name)]


@pytest.mark.parametrize("lost", list(sequences(3)), ids=lambda lost: ", ".join(lost) or "none")
async def test_a_value_is_created_whatever_is_lost(lost: tuple[str, ...]) -> None:
    zk = OthersChange([])
    zk.losses = list(lost)
    values = values_of(zk)
    assert await values.write(("a",), b"mine", None, None) == 0
    assert zk.nodes["/quire/ledgers/a"].data.endswith(b"mine")
    with pytest.raises(KeyExistsError) as there:
        await values.write(("a",), b"other", None, None)
    assert there.value.outcome_known


@pytest.mark.parametrize("name", HISTORIES)
async def test_a_cookie_that_was_written_and_then_deleted_by_others_is_in_doubt(name: str) -> None:
    path = "/ledgers/cookies/b:1"
    zk = OthersChange(history(path, name))
    cookies = Cookies(root_of(zk))
    await cookies.write("b:1", b"old", None)
    if name != "created again":  # that one has the version to be replaced
        zk.armed = True
        with pytest.raises((NoSuchKeyError, VersionConflictError)) as changed:
            await cookies.write("b:1", b"mine", 0)
        assert not changed.value.outcome_known
    if name != "deleted":
        zk._carry_out([Delete(path)])
        zk.armed = True
        with pytest.raises(KeyExistsError) as created:
            await cookies.write("b:1", b"mine", None)
        assert not created.value.outcome_known


async def test_a_value_that_is_not_there_is_no_reason_for_doubt() -> None:
    values = values_of(OthersChange([]))
    with pytest.raises(NoSuchKeyError) as missing:
        await values.write(("a",), b"mine", 0, b"old")
    assert missing.value.outcome_known
    await values.write(("a",), b"there", None, None)
    with pytest.raises(KeyExistsError) as there:
        await values.write(("a",), b"mine", None, None)
    assert there.value.outcome_known
