"""Commits of the tree whose connection or session is lost at the worst moment.

Every outcome that can be known is reported, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.errors import (
    ClientClosedError,
    KeyExistsError,
    MetadataDeniedError,
    MetadataError,
    MetadataUnavailableError,
    VersionConflictError,
)
from quire.metadata.interface import Versioned
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Tree
from quire.metadata.uri import MetadataURI
from quire.metadata.zookeeper import absence
from quire.metadata.zookeeper import commits as zookeeper_commits
from quire.metadata.zookeeper import tree as zookeeper_tree
from quire.metadata.zookeeper.commits import COMMITS_AT_ONCE_MAX
from quire.metadata.zookeeper.kazoo_adapter import NoNodeError, ZooKeeperConnection
from quire.metadata.zookeeper.server import ZooKeeperServer
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire_simulator.metadata.store import MemoryCluster, MemoryStore
from tests.support.metadata.backends import SESSION_TIMEOUT_MS, Backend, connect
from tests.support.metadata.zookeeper_proxy import CREATE_2, DELETE, MULTI, Loss, Proxy, Request
from tests.support.waiting import until

zookeeper_test = pytest.mark.zookeeper

_bases = itertools.count()


def next_base() -> str:
    return f"/losses-{os.getpid()}-{next(_bases)}"


@pytest.fixture
async def proxy(zookeeper_server: ZooKeeperServer) -> AsyncIterator[Proxy]:
    async with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        yield proxy


@pytest.fixture
async def store(where: MetadataURI, proxy: Proxy) -> AsyncIterator[ZooKeeperStore]:
    """Yield a store that connects through the proxy."""
    opened = await behind(proxy, where)
    yield opened
    proxy.open.set()
    await opened.close()


@pytest.fixture
async def other(zookeeper: Backend) -> ZooKeeperStore:
    """Yield a store of another process, without the proxy."""
    opened = await zookeeper.store()
    assert isinstance(opened, ZooKeeperStore)
    return opened


@pytest.fixture
async def base(other: ZooKeeperStore) -> str:
    path = next_base()
    await other.tree.make_path(path)
    return path


async def behind(
    proxy: Proxy, where: MetadataURI, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> ZooKeeperStore:
    servers = (f"127.0.0.1:{proxy.port}",)
    return await connect(replace(where, servers=servers), session_timeout_ms=session_timeout_ms)


def nth(number: int) -> Callable[[Request], bool]:
    """The request after `number` others."""
    left = number

    def wanted(request: Request) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return wanted


def commits(request: Request) -> bool:
    return request.kind == MULTI


async def held_back(proxy: Proxy) -> None:
    """Wait until the request was carried out and its connection lost; no new one is let through
    until `proxy.open` is set."""
    await until(lambda: not (proxy.armed or proxy.connections))


# -- every operation, every request -----------------------------------------------------------

REQUESTS_MAX = 80
"""More than `all_operations` makes."""
AT_ONCE = 8


async def all_operations(tree: Tree, base: str) -> None:
    """Each kind of operation, with its answer checked."""
    counter, members = f"{base}/counter", f"{base}/members"
    await tree.make_path(f"{base}/a/b", b"value")
    assert await tree.commit(Create(counter, b"0"), Create(members)) == [counter, members]
    for version in range(3):
        assert await tree.commit(Put(counter, b"%d" % (version + 1), version)) == [version + 1]
    assert await tree.commit(Put(counter, b"4"), Check(base, 0), Put(counter, b"5")) == [4, None, 5]
    member = Create(f"{members}/m-", sequential=True)
    assert await tree.commit(member, member) == [
        f"{members}/m-0000000000",
        f"{members}/m-0000000001",
    ]
    mine = Create(f"{members}/mine-", ephemeral=True, sequential=True)
    assert await tree.commit(mine, Delete(f"{members}/m-0000000000"), member) == [
        f"{members}/mine-0000000002",
        None,
        f"{members}/m-0000000003",
    ]
    assert await tree.commit(Delete(counter, 5), Create(counter, b"anew")) == [None, counter]
    with pytest.raises(KeyExistsError):
        await tree.commit(Put(base, b"not"), Create(counter))
    assert await tree.read(counter) == Versioned(b"anew", 0)
    assert not await tree.exists(f"{base}/none")
    await tree.make_path(f"{base}/gone/with/all")
    await tree.delete_tree(f"{base}/gone")
    await tree.sync()
    assert await tree.children(members) == ["m-0000000001", "m-0000000003", "mine-0000000002"]


async def lose_one(number: int, loss: Loss, server: ZooKeeperServer, where: MetadataURI) -> bool:
    """All operations, with a loss at request `number`; False if there were fewer requests."""
    base = next_base()
    direct = await connect(where)
    async with Proxy(server.host, server.port) as proxy:
        store = await behind(proxy, where)
        try:
            proxy.lose(nth(number), loss)
            await all_operations(store.tree, base)
            tree = direct.tree
            await tree.sync()
            assert await tree.children(base) == ["a", "counter", "members"]
            assert await tree.read(f"{base}/counter") == Versioned(b"anew", 0)
            assert await tree.read(base) == Versioned(b"", 0)
            assert await tree.read(f"{base}/a/b") == Versioned(b"value", 0)
            assert len(await tree.children(f"{base}/members")) == 3
            assert len(proxy.lost) == (not proxy.armed)
            return not proxy.armed
        finally:
            await store.close()
            await direct.close()


@zookeeper_test
@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.ANSWER])
async def test_a_commit_survives_a_lost_connection_at_any_request(
    loss: Loss, zookeeper_server: ZooKeeperServer, where: MetadataURI
) -> None:
    for first in range(0, REQUESTS_MAX, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(lose_one(number, loss, zookeeper_server, where))
                for number in range(first, first + AT_ONCE)
            ]
        if not all(run.result() for run in runs):
            assert first > 20
            return
    pytest.fail("there are more requests than that")


async def count_to_five(tree: Tree, base: str) -> list[MetadataUnavailableError]:
    """Count with commits that can be recognised by their values, and return the uncertain ones."""
    doubts: list[MetadataUnavailableError] = []
    for number in range(5):
        while True:
            now = await tree.read(base)
            if now.value == b"%d" % number:
                break
            try:
                await tree.commit(
                    Put(base, b"%d" % number, now.version), Create(f"{base}/{number}")
                )
            except MetadataUnavailableError as error:
                doubts.append(error)
    return doubts


@zookeeper_test
async def test_a_commit_survives_a_lost_session_at_any_request(
    zookeeper_server: ZooKeeperServer, where: MetadataURI
) -> None:
    """The outcome of a commit may be unknown, which is reported. A check before the retry avoids
    repeats.
    """
    doubts: list[MetadataUnavailableError] = []
    for number in itertools.count():
        base = next_base()
        async with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
            store = await behind(proxy, where)
            try:
                await store.tree.make_path(base)
                proxy.lose(nth(number), Loss.SESSION)
                doubts += await count_to_five(store.tree, base)
                assert await store.tree.read(base) == Versioned(b"4", 5)
                assert len(await store.tree.children(base)) == 5
                if proxy.armed:
                    break
            finally:
                await store.close()
    assert number > 10
    assert len(doubts) == 5
    for error in doubts:
        assert not error.outcome_known
        assert "and the session has ended" in str(error)


@zookeeper_test
@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.ANSWER])
async def test_a_commit_survives_a_lost_connection_at_the_first_request(
    loss: Loss,
    where: MetadataURI,
    proxy: Proxy,
    other: ZooKeeperStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This commit creates the place for marks."""
    for number in itertools.count():
        base = next_base()
        await other.tree.make_path(base)
        monkeypatch.setattr(zookeeper_commits, "MARKS", f"/quire/.marks{base[1:]}")
        store = await behind(proxy, where)
        try:
            proxy.lose(nth(number), loss)
            assert await store.tree.commit(Put(base, b"1")) == [1]
            assert await store.tree.read(base) == Versioned(b"1", 1)
        finally:
            await store.close()
        await other.tree.delete_tree(zookeeper_commits.MARKS)
        if proxy.armed:
            break
    assert number >= 5


# -- what could be mistaken -------------------------------------------------------------------


@zookeeper_test
async def test_an_identical_commit_of_another_client_is_not_mistaken_for_ours(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, base: str
) -> None:
    """Two take the same token with the same bytes; one request is lost. To take the other's for
    ours would give the token to two."""
    take = (Put(base, b"taken", 0), Create(f"{base}/owner", b"?"))
    await store.tree.commit(Check(base, 0))  # its mark is there
    proxy.lose(commits, Loss.REQUEST, reopen=False)
    taking = asyncio.ensure_future(store.tree.commit(*take))
    await held_back(proxy)
    assert await other.tree.commit(*take) == [1, f"{base}/owner"]
    proxy.open.set()
    with pytest.raises(VersionConflictError) as raised:
        await taking
    assert raised.value.outcome_known
    assert await other.tree.read(base) == Versioned(b"taken", 1)


@zookeeper_test
async def test_a_lost_reply_is_resolved_after_later_changes_by_others(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, base: str
) -> None:
    """Our commit was executed, and later changes by others are kept."""
    proxy.lose(commits, Loss.ANSWER, reopen=False)
    committing = asyncio.ensure_future(
        store.tree.commit(
            Put(base, b"ours"), Create(f"{base}/n-", sequential=True), Create(f"{base}/x")
        )
    )
    await held_back(proxy)
    await other.tree.commit(Delete(f"{base}/x"), Create(f"{base}/n-", sequential=True))
    proxy.open.set()
    assert await committing == [1, f"{base}/n-0000000000", f"{base}/x"]
    assert await other.tree.children(base) == ["n-0000000000", "n-0000000002"]


@zookeeper_test
@pytest.mark.parametrize("hidden", ["version", "node"])
async def test_a_lost_reply_that_cannot_be_resolved_is_reported(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, base: str, hidden: str
) -> None:
    """It was executed, but changes by others hide the resulting version or name."""
    proxy.lose(commits, Loss.ANSWER, reopen=False)
    committing = asyncio.ensure_future(
        store.tree.commit(
            Put(base, b"ours") if hidden == "version" else Create(f"{base}/n-", sequential=True)
        )
    )
    await held_back(proxy)
    await other.tree.commit(
        Put(base, b"theirs") if hidden == "version" else Delete(f"{base}/n-0000000000")
    )
    proxy.open.set()
    with pytest.raises(MetadataUnavailableError, match="it was done"):
        await committing
    assert await store.tree.commit(Check(base, int(hidden == "version") * 2)) == [None]


# -- marks ------------------------------------------------------------------------------------


async def marks_of(raw: ZooKeeperConnection, store: ZooKeeperStore) -> int:
    stats = [
        await raw.exists(f"{zookeeper_commits.MARKS}/{name}")
        for name in await raw.children_synced(zookeeper_commits.MARKS)
    ]
    session_id = store.tree.session_id
    return sum(stat is not None and stat.owner == session_id for stat in stats)


@zookeeper_test
async def test_commit_marks_are_reused(
    other: ZooKeeperStore, raw: ZooKeeperConnection, base: str
) -> None:
    for number in range(10):
        await other.tree.commit(Put(base, b"", number))
        with pytest.raises(VersionConflictError):
            await other.tree.commit(Put(base, b"", number))
    assert await marks_of(raw, other) == 1
    async with asyncio.TaskGroup() as group:
        for _ in range(2 * COMMITS_AT_ONCE_MAX):
            group.create_task(other.tree.commit(Put(base, b"")))
    assert (await other.tree.read(base)).version == 10 + 2 * COMMITS_AT_ONCE_MAX
    assert await marks_of(raw, other) <= COMMITS_AT_ONCE_MAX
    await other.close()
    assert await marks_of(raw, other) == 0


@zookeeper_test
async def test_a_cancelled_commit_leaves_no_mark(
    store: ZooKeeperStore,
    raw: ZooKeeperConnection,
    proxy: Proxy,
    base: str,
) -> None:
    await store.tree.commit(Check(base, 0))
    proxy.open.clear()
    committing = asyncio.ensure_future(store.tree.commit(Put(base, b"1", 0)))
    await until(lambda: bool(store._zk._waiting))
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    proxy.open.set()
    await until(lambda: any(request.kind == DELETE for request in proxy.seen))
    await until(lambda: marks_of(raw, store), right=lambda count: count == 0)
    now = await store.tree.read(base)
    assert await store.tree.commit(Put(base, b"2", now.version)) == [now.version + 1]


# -- watches and sessions ---------------------------------------------------------------------


@zookeeper_test
async def test_an_outage_is_reported_when_it_is_over(
    where: MetadataURI, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absence, "AWAY_S", 0.1)
    store = await behind(proxy, where, 1_000)
    told: list[float] = []
    try:
        store.on_outage(told.append)
        closed = store.on_outage(told.append)
        closed.close()
        proxy.open.clear()
        await until(lambda: store._zk._absence._told)
        assert told == []
        proxy.open.set()
        await until(lambda: len(told) == 1)
        assert told[0] >= 0.1
    finally:
        await store.close()
    with pytest.raises(ClientClosedError):
        store.on_outage(told.append)


@zookeeper_test
async def test_watches_survive_an_outage_longer_than_the_session(
    where: MetadataURI, other: ZooKeeperStore, proxy: Proxy, base: str
) -> None:
    store = await behind(proxy, where, 1_000)
    try:
        lock = f"{base}/lock"
        await store.tree.commit(Create(lock, ephemeral=True))
        names: list[list[str] | None] = []
        values: list[Versioned[bytes] | None] = []
        comes: list[Versioned[bytes] | None] = []
        lost: list[int] = []
        store.tree.watch_children(base, names.append)
        store.tree.watch_value(base, values.append)
        store.tree.watch_value(f"{base}/comes", comes.append)
        store.tree.on_session_lost(lambda: lost.append(store.tree.session_id))
        await until(lambda: (names, values, comes) == ([["lock"]], [Versioned(b"", 0)], [None]))
        proxy.open.clear()
        await until(lambda: other.tree.exists(lock), right=lambda there: not there)
        await other.tree.commit(Create(f"{base}/comes", b"1"), Put(base, b"dark"))
        proxy.open.set()
        await until(lambda: len(lost) == 1)
        await until(lambda: names == [["lock"], ["comes"]])
        await until(lambda: values == [Versioned(b"", 0), Versioned(b"dark", 1)])
        await until(lambda: comes == [None, Versioned(b"1", 0)])
        assert lost == [store.tree.session_id]
    finally:
        await store.close()


@zookeeper_test
async def test_a_short_outage_keeps_the_session(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, base: str
) -> None:
    lost: list[int] = []
    names: list[list[str] | None] = []
    store.tree.on_session_lost(lambda: lost.append(1))
    store.tree.watch_children(base, names.append)
    await store.tree.commit(Create(f"{base}/lock", ephemeral=True))
    await until(lambda: names[-1:] == [["lock"]])
    proxy.open.clear()
    await proxy.drop()
    await other.tree.commit(Create(f"{base}/new"))
    proxy.open.set()
    await until(lambda: names[-1:] == [["lock", "new"]])
    assert await store.tree.commit(Check(f"{base}/lock", 0)) == [None]
    assert lost == []


# -- the in-memory store, as simulations lose things ------------------------------------------


@pytest.mark.parametrize("after", [False, True])
async def test_the_memory_store_reports_lost_requests_and_replies(after: bool) -> None:
    cluster = MemoryCluster("losses", clock=SystemClock(), rng=random.Random(1))
    seen: list[tuple[str, bool]] = []
    failing: list[bool] = []

    async def hook(name: str, done: bool) -> None:
        seen.append((name, done))
        if failing == [done]:
            raise MetadataUnavailableError("lost")

    store = MemoryStore(cluster, hook=hook)
    await store.tree.make_path("/a")
    failing.append(after)
    with pytest.raises(MetadataUnavailableError) as raised:
        await store.tree.commit(Put("/a", b"1", 0))
    assert not raised.value.outcome_known
    failing.clear()
    assert await store.tree.read("/a") == (Versioned(b"1", 1) if after else Versioned(b"", 0))
    assert ("tree_commit", False) in seen
    assert (("tree_commit", True) in seen) == after
    store.expire_session(back=False)
    with pytest.raises(MetadataUnavailableError):
        await store.tree.exists("/a")
    store.restore_session()
    assert await store.tree.exists("/a")
    await store.close()


@zookeeper_test
async def test_a_partly_deleted_tree_has_an_unknown_outcome(
    other: ZooKeeperStore, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of the first commits are gone, so the error must not say that none is."""
    monkeypatch.setattr(zookeeper_tree, "COMMIT_OPERATIONS_MAX", 2)
    for name in ("a", "b", "c"):
        await other.tree.make_path(f"{base}/{name}")
    commit, left = other._zk.commit, 1

    async def refuse(operations: Sequence[Operation], *how: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise MetadataDeniedError("ZooKeeper refuses access")
        return await commit(operations, *how)

    monkeypatch.setattr(other._zk, "commit", refuse)
    with pytest.raises(MetadataDeniedError) as part:
        await other.tree.delete_tree(base)
    assert not part.value.outcome_known
    assert len(await other.tree.children(base)) == 1
    with pytest.raises(MetadataDeniedError) as nothing:
        await other.tree.delete_tree(base)
    assert nothing.value.outcome_known


@zookeeper_test
async def test_a_tree_recreated_by_others_is_not_deleted(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, base: str
) -> None:
    """The deletion was repeated after its lost response, and deleted what another had created."""
    await other.tree.make_path(f"{base}/a/b", b"old")
    proxy.lose(lambda request: request.kind == MULTI, Loss.ANSWER, reopen=False)
    deleting = asyncio.ensure_future(store.tree.delete_tree(f"{base}/a"))
    await held_back(proxy)
    await other.tree.make_path(f"{base}/a/b", b"new")
    proxy.open.set()
    await deleting
    assert (await other.tree.read(f"{base}/a/b")).value == b"new"


@zookeeper_test
@pytest.mark.parametrize("loss", [None, Loss.ANSWER])
async def test_a_path_whose_parents_others_delete_has_a_known_outcome_without_a_loss(
    store: ZooKeeperStore,
    proxy: Proxy,
    base: str,
    loss: Loss | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If no connection was lost, the node was certainly not created."""
    attempts = 0
    create = store._zk.create

    async def hidden(path: str, *words: Any, **how: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1 and loss is not None:
            return await create(path, *words, **how)
        raise NoNodeError

    monkeypatch.setattr(store._zk, "create", hidden)
    monkeypatch.setattr(store._zk, "exists", nothing)
    if loss is not None:
        proxy.lose(lambda request: request.kind == CREATE_2, loss)
    with pytest.raises(MetadataError, match="was not created") as raised:
        await store.tree.make_path(f"{base}/a")
    assert raised.value.outcome_known == (loss is None)


async def nothing(path: str) -> None:
    return None
