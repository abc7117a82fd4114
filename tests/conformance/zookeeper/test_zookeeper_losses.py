"""Connections and sessions are lost at the worst moment, but nothing is repeated or forgotten.

A proxy between the store and a real ZooKeeper cuts the connection before the server receives a
request, or after the server has executed it. It may also end the session.
`test_every_operation_survives_a_lost_connection_at_any_request` does this at every single
request of a run with all operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.errors import (
    ClientClosedError,
    ClusterNotInitialisedError,
    KeyExistsError,
    LedgerExistsError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)
from quire.metadata.interface import BookieAddress, Bookies, Versioned
from quire.metadata.ledgers.update import update_ledger
from quire.metadata.uri import MetadataURI
from quire.metadata.zookeeper.kazoo_adapter import ZooKeeperConnection
from quire.metadata.zookeeper.server import ZooKeeperServer
from quire.metadata.zookeeper.store import ZooKeeperStore
from tests.support.long import long_after
from tests.support.metadata.backends import PATIENCE_S, SESSION_TIMEOUT_MS, Backend, connect, ids_of
from tests.support.metadata.zookeeper_proxy import (
    CREATE_2,
    DELETE,
    MULTI,
    SET,
    Loss,
    Proxy,
    Request,
)
from tests.support.waiting import until

pytestmark = pytest.mark.zookeeper

METADATA = LedgerMetadata(3, 2, 2, (Segment(0, ("a:1", "b:1", "c:1")),))
ONE = BookieAddress("bookie-1", "127.0.0.1", 23181, {"zone": "a"}, tls=True)


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


# -- every operation, every request -----------------------------------------------------------


async def all_operations(store: ZooKeeperStore) -> list[int]:
    """Each kind of change, with its answer checked. Returns the ids of the ledgers it made."""
    made, created = await store.create_ledger(METADATA)
    assert created.version == 0
    chosen = await store.create_ledger(METADATA, 2**40 + 7)
    assert chosen[0] == 2**40 + 7
    recovering = await store.write_ledger(
        made, created.value.with_state(LedgerState.IN_RECOVERY), 0
    )
    assert recovering.version == 1
    closed = await update_ledger(store, made, recovering, lambda now: now.with_close(9, 99))
    assert closed.version == 2
    assert await store.read_ledger(made) == closed
    gone, _ = await store.create_ledger(METADATA, 123_456)
    await store.delete_ledger(gone)

    assert await store.write_cookie(ONE.bookie_id, b"5\n", None) == 0
    assert await store.write_cookie(ONE.bookie_id, b"6\n", 0) == 1
    assert await store.write_cookie("gone", b"5\n", None) == 0
    await store.delete_cookie("gone", 0)

    assert await store.write_value(("counter",), b"0", None) == 0
    for number in (1, 2):
        now = await store.read_value(("counter",))
        assert await store.write_value(("counter",), b"%d" % number, now.version) == number
    assert await store.write_value(("gone", "below"), b"", None) == 0
    await store.delete_value(("gone", "below"), 0)

    registration = await store.register_bookie(ONE)
    await registration.set_readonly(True)
    await registration.set_readonly(False)
    await registration.set_readonly(True)
    return [made, 2**40 + 7]


async def check_all_operations(made: list[int], other: ZooKeeperStore) -> None:
    assert await ids_of(other) == sorted(made)
    assert (await other.read_ledger(made[0])).version == 2
    assert (await other.read_ledger(made[1])).version == 0
    assert await other.list_cookies() == [ONE.bookie_id]
    assert await other.read_cookie(ONE.bookie_id) == Versioned(b"6\n", 1)
    assert await other.list_values(()) == ["counter"]
    assert await other.read_value(("counter",)) == Versioned(b"2", 2)


async def until_registered(
    store: ZooKeeperStore, raw: ZooKeeperConnection, path: str, absent: str
) -> None:
    """Wait until the node exists once and belongs to the session of `store`."""
    session = store._zk
    await until(
        lambda: raw.exists(path),
        right=lambda stat: stat is not None and stat.owner == session.session_id,
    )
    await until(lambda: raw.exists(absent), right=lambda stat: stat is None)


REQUESTS_MAX = 80
"""More than `all_operations` makes."""
AT_ONCE = 16
"""Most of a run is waiting to be connected again."""


async def lose_one(
    number: int,
    loss: Loss,
    server: ZooKeeperServer,
    where: MetadataURI,
    raw: ZooKeeperConnection,
) -> bool:
    """All operations, with a loss at request `number`; False if there were fewer requests."""
    root = replace(where, root=f"{where.root}-{number}")
    direct = await connect(root)
    async with Proxy(server.host, server.port) as proxy:
        store = await behind(proxy, root)
        try:
            proxy.lose(nth(number), loss)
            instance_id = await store.initialise()
            made = await all_operations(store)
            assert await direct.instance_id() == instance_id
            await check_all_operations(made, direct)
            available = f"{root.root}/available"
            await until_registered(
                store, raw, f"{available}/readonly/{ONE.bookie_id}", f"{available}/{ONE.bookie_id}"
            )
            assert await direct.bookies() == Bookies({}, {ONE.bookie_id: ONE})
            if proxy.armed:
                return False
            assert len(proxy.lost) == 1
            assert (len(proxy.sessions) > 1) == (loss is Loss.SESSION)
            return True
        finally:
            await store.close()
            await direct.close()


@pytest.mark.parametrize(
    "loss", long_after(1, sorted(Loss, key=lambda loss: loss is not Loss.ANSWER))
)
async def test_every_operation_survives_a_lost_connection_at_any_request(
    loss: Loss, zookeeper_server: ZooKeeperServer, where: MetadataURI, raw: ZooKeeperConnection
) -> None:
    for first in range(0, REQUESTS_MAX, AT_ONCE):
        numbers = range(first, first + AT_ONCE)
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(lose_one(number, loss, zookeeper_server, where, raw))
                for number in numbers
            ]
        if not all(run.result() for run in runs):
            assert first > 30
            return
    pytest.fail("there are more requests than that")


# -- what cannot be told by the traces --------------------------------------------------------


def change(kind: int, part: str) -> Callable[[Request], bool]:
    return lambda request: request.kind == kind and part in request.path


async def held_back(proxy: Proxy) -> None:
    """Wait until the request was carried out and its connection lost; no new one is let through
    until `proxy.open` is set."""
    await until(lambda: not proxy.armed)
    await until(lambda: not proxy.connections)


@pytest.mark.parametrize("update", [False, True])
async def test_a_lost_reply_hidden_by_a_later_write_is_reported(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, update: bool
) -> None:
    """Ours was done, and is hidden by theirs: said as it is, and decided again by the content."""
    ledger_id, created = await store.create_ledger(METADATA)
    changed = ("a:1", "b:1", "d:1")
    decided: list[tuple[str, ...]] = []

    def replace_c(now: LedgerMetadata) -> LedgerMetadata | None:
        decided.append(now.last_segment.ensemble)
        return None if now.last_segment.ensemble == changed else now.with_ensemble_from(5, changed)

    proxy.lose(change(SET, ""), Loss.ANSWER, reopen=False)
    writing = asyncio.ensure_future(
        update_ledger(store, ledger_id, created, replace_c)
        if update
        else store.write_ledger(ledger_id, created.value.with_ensemble_from(5, changed), 0)
    )
    await held_back(proxy)
    after = await other.read_ledger(ledger_id)
    assert (after.version, after.value.last_segment.ensemble) == (1, changed)
    recovering = after.value.with_state(LedgerState.IN_RECOVERY)
    theirs = await other.write_ledger(ledger_id, recovering, after.version)
    proxy.open.set()
    if update:
        assert await writing == theirs
        assert decided == [("a:1", "b:1", "c:1"), changed]
    else:
        with pytest.raises(VersionConflictError, match="This write may have been done") as raised:
            await writing
        assert not raised.value.outcome_known
    assert await other.read_ledger(ledger_id) == theirs


async def test_a_conflict_without_a_lost_reply_has_a_known_outcome(store: ZooKeeperStore) -> None:
    ledger_id, created = await store.create_ledger(METADATA)
    await store.write_ledger(ledger_id, created.value, 0)
    with pytest.raises(VersionConflictError) as raised:
        await store.write_ledger(ledger_id, created.value, 0)
    assert raised.value.outcome_known


async def test_two_writes_of_the_same_bytes_are_distinguished(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    """Both count from 0 to 1. Ours never arrived: to take theirs for ours would lose a count."""
    await store.write_value(("counter",), b"0", None)
    proxy.lose(change(SET, "counter"), Loss.REQUEST, reopen=False)
    writing = asyncio.ensure_future(store.write_value(("counter",), b"1", 0))
    await held_back(proxy)
    assert await other.write_value(("counter",), b"1", 0) == 1
    proxy.open.set()
    with pytest.raises(VersionConflictError) as raised:
        await writing
    assert raised.value.outcome_known
    proxy.lose(change(MULTI, ""), Loss.REQUEST, reopen=False)
    creating = asyncio.ensure_future(store.write_value(("lock",), b"taken", None))
    await held_back(proxy)
    assert await other.write_value(("lock",), b"taken", None) == 0
    proxy.open.set()
    with pytest.raises(KeyExistsError):
        await creating


async def test_a_deletion_of_a_cookie_recreated_by_others_claims_no_failure(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    """The first attempt was carried out, so the error must not say that nothing was changed."""
    await store.write_cookie("b:1", b"0", None)
    await store.write_cookie("b:1", b"1", 0)
    proxy.lose(change(DELETE, "cookies"), Loss.ANSWER, reopen=False)
    deleting = asyncio.ensure_future(store.delete_cookie("b:1", 1))
    await held_back(proxy)
    await other.write_cookie("b:1", b"2", None)
    proxy.open.set()
    with pytest.raises(VersionConflictError) as deleted:
        await deleting
    assert not deleted.value.outcome_known

    await other.write_cookie("b:1", b"3", 0)
    proxy.lose(change(SET, "cookies"), Loss.ANSWER, reopen=False)
    changing = asyncio.ensure_future(store.write_cookie("b:1", b"4", 1))
    await held_back(proxy)
    await other.delete_cookie("b:1")
    await other.write_cookie("b:1", b"5", None)
    proxy.open.set()
    with pytest.raises(VersionConflictError) as changed:
        await changing
    assert not changed.value.outcome_known

    await other.delete_cookie("b:1")
    proxy.lose(change(CREATE_2, "cookies"), Loss.ANSWER, reopen=False)
    creating = asyncio.ensure_future(store.write_cookie("b:1", b"6", None))
    await held_back(proxy)
    await other.write_cookie("b:1", b"7", 0)
    proxy.open.set()
    with pytest.raises(KeyExistsError) as created:
        await creating
    assert not created.value.outcome_known


async def test_a_cookie_recreated_by_others_is_not_deleted(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    """The first attempt was carried out. The new node has the version of the deleted one."""
    await store.write_cookie("b:1", b"old", None)
    proxy.lose(change(DELETE, "cookies"), Loss.ANSWER, reopen=False)
    deleting = asyncio.ensure_future(store.delete_cookie("b:1", 0))
    await held_back(proxy)
    assert await other.write_cookie("b:1", b"new", None) == 0
    proxy.open.set()
    with pytest.raises(VersionConflictError, match="created again") as cookie:
        await deleting
    assert not cookie.value.outcome_known
    assert await other.read_cookie("b:1") == Versioned(b"new", 0)

    await store.write_value(("lock",), b"old", None)
    proxy.lose(change(DELETE, "lock"), Loss.ANSWER, reopen=False)
    deleting = asyncio.ensure_future(store.delete_value(("lock",), 0))
    await held_back(proxy)
    assert await other.write_value(("lock",), b"new", None) == 0
    proxy.open.set()
    with pytest.raises(VersionConflictError, match="created again") as value:
        await deleting
    assert not value.value.outcome_known
    assert await other.read_value(("lock",)) == Versioned(b"new", 0)


async def test_a_ledger_recreated_by_others_is_not_deleted(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    """The deletion was repeated after its lost response, and deleted the ledger of another."""
    await store.create_ledger(METADATA, 77)
    proxy.lose(change(DELETE, "L0077"), Loss.ANSWER, reopen=False)
    deleting = asyncio.ensure_future(store.delete_ledger(77))
    await held_back(proxy)
    _, again = await other.create_ledger(METADATA, 77)
    proxy.open.set()
    await deleting
    assert await other.read_ledger(77) == again


async def test_a_deletion_of_any_version_spares_a_recreated_cookie(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    await store.write_cookie("b:1", b"old", None)
    proxy.lose(change(DELETE, "cookies"), Loss.ANSWER, reopen=False)
    deleting = asyncio.ensure_future(store.delete_cookie("b:1"))
    await held_back(proxy)
    await other.write_cookie("b:1", b"new", None)
    proxy.open.set()
    await deleting
    assert await other.read_cookie("b:1") == Versioned(b"new", 0)

    await store.write_value(("lock",), b"old", None)
    proxy.lose(change(DELETE, "lock"), Loss.ANSWER, reopen=False)
    deleting = asyncio.ensure_future(store.delete_value(("lock",)))
    await held_back(proxy)
    await other.write_value(("lock",), b"new", None)
    proxy.open.set()
    await deleting
    assert await other.read_value(("lock",)) == Versioned(b"new", 0)


@pytest.mark.parametrize("again", [True, False])
async def test_a_deletion_of_a_value_with_children_spares_a_recreated_value(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, *, again: bool
) -> None:
    """Such a value leaves its node behind, so the new value has the node of the old one."""
    await store.write_value(("job",), b"old", None)
    await store.write_value(("job", "part"), b"1", None)
    proxy.lose(change(SET, "job"), Loss.ANSWER if again else Loss.REQUEST, reopen=False)
    deleting = asyncio.ensure_future(store.delete_value(("job",)))
    await held_back(proxy)
    version = await other.write_value(("job",), b"new", None if again else 0)
    proxy.open.set()
    if again:
        with pytest.raises(VersionConflictError) as caught:
            await deleting
        assert not caught.value.outcome_known
        assert await other.read_value(("job",)) == Versioned(b"new", version)
    else:  # the first attempt was not carried out, and any version is to be deleted
        await deleting
        with pytest.raises(NoSuchKeyError):
            await other.read_value(("job",))
    assert (await other.read_value(("job", "part"))).value == b"1"


async def test_a_late_write_spares_a_value_recreated_by_others(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    await store.write_value(("o",), b"old", None)
    proxy.lose(change(SET, "o"), Loss.REQUEST, reopen=False)
    writing = asyncio.ensure_future(store.write_value(("o",), b"late", 0, known=b"old"))
    await held_back(proxy)
    await other.delete_value(("o",), 0, known=b"old")
    assert await other.write_value(("o",), b"new", None) == 0
    proxy.open.set()
    with pytest.raises(VersionConflictError, match="created again"):
        await writing
    assert await other.read_value(("o",)) == Versioned(b"new", 0)


async def test_a_lost_write_to_an_erased_cluster_has_an_unknown_outcome(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy, raw: ZooKeeperConnection
) -> None:
    proxy.lose(change(CREATE_2, "cookies"), Loss.ANSWER, reopen=False)
    creating = asyncio.ensure_future(store.write_cookie("b:1", b"0", None))
    await held_back(proxy)
    await other.tree.delete_tree(other._root.path)
    proxy.open.set()
    with pytest.raises(ClusterNotInitialisedError) as raised:
        await creating
    assert not raised.value.outcome_known
    with pytest.raises(ClusterNotInitialisedError) as known:
        await store.read_cookie("b:1")
    assert known.value.outcome_known


async def test_a_ledger_of_another_client_with_the_same_id_is_distinguished(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    """Another client chose the same id while our request was lost. The token shows that it is
    theirs.
    """
    for ledger_id, chosen in ((77, True), (0, False)):
        proxy.lose(change(CREATE_2, "/L00"), Loss.REQUEST, reopen=False)
        creating = asyncio.ensure_future(
            store.create_ledger(METADATA, ledger_id if chosen else None)
        )
        await held_back(proxy)
        _, theirs = await other.create_ledger(METADATA, ledger_id)
        proxy.open.set()
        if chosen:
            with pytest.raises(LedgerExistsError, match="77"):
                await creating
        else:
            assert (await creating)[0] == 1
        assert await other.read_ledger(ledger_id) == theirs


@pytest.mark.parametrize("version", [1, 2])
async def test_a_lost_creation_in_an_old_format_never_gives_two_writers(
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    proxy: Proxy,
    version: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The owner of the ledger is unknown, so there must never be two writers.

    With a chosen id the outcome is unknown. Otherwise another id is taken, as in Java.
    """
    old = replace(METADATA, format_version=version)
    if version == 1:
        old = replace(old, digest=None, password=None)
    await store.create_ledger(old, 1)  # parents are there: the first create is the ledger
    proxy.lose(change(CREATE_2, "/L00"), Loss.ANSWER)
    with pytest.raises(MetadataUnavailableError, match="ledger 2") as raised:
        await store.create_ledger(old, 2)
    assert not raised.value.outcome_known
    proxy.lose(change(CREATE_2, "/L00"), Loss.ANSWER)
    ledger_id, created = await store.create_ledger(old)
    assert created.value.format_version == version
    assert await other.read_ledger(ledger_id) == created
    assert "may be left behind" in caplog.text
    assert await ids_of(other) == [0, 1, 2, ledger_id]


async def test_ids_are_unique_while_connections_break(
    where: MetadataURI, other: ZooKeeperStore, proxy: Proxy
) -> None:
    stores = [await behind(proxy, where) for _ in range(2)]
    try:
        ids: list[int] = []

        async def create(store: ZooKeeperStore) -> None:
            for _ in range(25):
                ids.append((await store.create_ledger(METADATA))[0])

        creating = asyncio.gather(*(create(store) for store in (*stores, other)))
        while not creating.done():
            await proxy.drop()
            await asyncio.sleep(0.02)
        await creating
        assert len(set(ids)) == len(ids) == 75
        assert await ids_of(other) == sorted(ids)
    finally:
        for store in stores:
            await store.close()


async def test_a_cookie_changed_by_others_is_a_conflict(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: Proxy
) -> None:
    await store.write_cookie("b:1", b"0", None)
    proxy.lose(change(SET, "cookies"), Loss.ANSWER, reopen=False)
    writing = asyncio.ensure_future(store.write_cookie("b:1", b"1", 0))
    await held_back(proxy)
    assert await other.write_cookie("b:1", b"2", 1) == 2
    proxy.open.set()
    with pytest.raises(VersionConflictError) as raised:
        await writing
    assert not raised.value.outcome_known
    proxy.lose(change(DELETE, "cookies"), Loss.ANSWER)
    await store.delete_cookie("b:1", 2)
    with pytest.raises(NoSuchKeyError):
        await other.read_cookie("b:1")


# -- sessions ---------------------------------------------------------------------------------

SHORT_MS = 1_000
"""The session timeout behind a proxy that stops passing data on."""


async def until_gone(store: ZooKeeperStore, bookie_id: str) -> None:
    await until(store.bookies, right=lambda found: found.find(bookie_id) is None)


async def test_a_bookie_is_registered_again_after_a_long_outage(
    where: MetadataURI, other: ZooKeeperStore, proxy: Proxy
) -> None:
    """The bookie is back with the same data, watches tell what was missed, once."""
    store = await behind(proxy, where, SHORT_MS)
    try:
        registration = await store.register_bookie(ONE)
        await registration.set_readonly(True)
        ledger_id, created = await other.create_ledger(METADATA)
        ledgers: list[Versioned[LedgerMetadata] | None] = []
        bookies: list[Bookies] = []
        store.watch_ledger(ledger_id, ledgers.append)
        store.watch_bookies(bookies.append)
        await until(lambda: ledgers == [created] and len(bookies) == 1)
        first_session = store._zk.session_id
        proxy.open.clear()
        await until_gone(other, ONE.bookie_id)
        written = await other.write_ledger(ledger_id, created.value.with_close(1, 1), 0)
        second = replace(ONE, bookie_id="second")
        await other.register_bookie(second)
        proxy.open.set()
        wanted = Bookies({"second": second}, {ONE.bookie_id: ONE})
        await until(lambda: ledgers == [created, written] and bookies[-1:] == [wanted])
        assert await other.bookies() == wanted
        assert store._zk.session_id != first_session
        assert not registration.lost.done()
        await registration.set_readonly(False)
        assert ONE.bookie_id in (await other.bookies()).writable
    finally:
        await store.close()


async def test_a_short_outage_keeps_the_session(
    where: MetadataURI,
    raw: ZooKeeperConnection,
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    proxy: Proxy,
) -> None:
    await store.register_bookie(ONE)
    path = f"{where.root}/available/{ONE.bookie_id}"
    stat = await raw.exists(path)
    assert stat is not None
    ledger_id, created = await other.create_ledger(METADATA)
    ledgers: list[Versioned[LedgerMetadata] | None] = []
    store.watch_ledger(ledger_id, ledgers.append)
    await until(lambda: ledgers == [created])
    proxy.open.clear()
    await proxy.drop()
    await until(lambda: not store._zk.connected)
    written = await other.write_ledger(ledger_id, created.value.with_close(1, 1), 0)
    proxy.open.set()
    await until(lambda: ledgers == [created, written])
    assert await raw.exists(path) == stat
    await other.delete_ledger(ledger_id)
    await until(lambda: ledgers == [created, written, None])


async def test_a_bookie_whose_id_was_taken_during_an_outage_stops(
    where: MetadataURI, other: ZooKeeperStore, proxy: Proxy
) -> None:
    """The loser is notified and stops, and can register again once the other has gone."""
    store = await behind(proxy, where, SHORT_MS)
    try:
        registration = await store.register_bookie(ONE)
        proxy.open.clear()
        taken = await other.register_bookie(replace(ONE, port=99))
        proxy.open.set()
        async with asyncio.timeout(PATIENCE_S):
            error = await registration.lost
        assert isinstance(error, KeyExistsError)
        assert ONE.bookie_id in str(error)
        with pytest.raises(KeyExistsError):
            await registration.set_readonly(True)
        await registration.close()
        assert (await other.bookies()).writable[ONE.bookie_id].port == 99
        await taken.close()
        again = await store.register_bookie(ONE)
        assert await other.bookies() == Bookies({ONE.bookie_id: ONE}, {})
        await again.close()
    finally:
        await store.close()


async def test_a_bookie_whose_id_was_taken_and_freed_registers_again(
    where: MetadataURI,
    other: ZooKeeperStore,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = await behind(proxy, where)
    try:
        registration = await store.register_bookie(ONE)
        proxy.open.clear()
        taken = await other.register_bookie(replace(ONE, port=99))
        proxy.open.set()
        await until(lambda: "another session has its id" in caplog.text)
        await taken.close()
        bookies: list[Bookies] = []
        other.watch_bookies(bookies.append)
        await until(lambda: bookies[-1:] == [Bookies({ONE.bookie_id: ONE}, {})])
        assert not registration.lost.done()
    finally:
        await store.close()


# -- a store that is closed meanwhile -----------------------------------------------------------


@pytest.mark.parametrize("connected", [True, False])
async def test_a_change_during_the_close_of_its_store_has_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    proxy: Proxy,
    *,
    connected: bool,
) -> None:
    """It was carried out, but its error said that the outcome is known."""
    await store.write_value(("job",), b"old", None)
    if connected:  # the answer is on its way
        settle, held = store._zk._settle, asyncio.Event()

        def settle_reads(path: str, future: asyncio.Future[Any], result: Any) -> None:
            if isinstance(result.value[0], bytes):
                settle(path, future, result)
            else:
                held.set()

        monkeypatch.setattr(store._zk, "_settle", settle_reads)
        writing = asyncio.ensure_future(store.write_value(("job",), b"new", 0))
        await held.wait()
    else:  # the answer is lost, and there is no connection to ask again
        proxy.lose(change(SET, "job"), Loss.ANSWER, reopen=False)
        writing = asyncio.ensure_future(store.write_value(("job",), b"new", 0))
        await held_back(proxy)
    await store.close()
    with pytest.raises(ClientClosedError) as caught:
        await writing
    assert not caught.value.outcome_known
    assert await other.read_value(("job",)) == Versioned(b"new", 1)
    with pytest.raises(ClientClosedError) as closed:
        await store.write_value(("job",), b"newer", 1)
    assert closed.value.outcome_known
