"""The ZooKeeper store alone: Apache's layout, lost connections and lost sessions."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import (
    ClientClosedError,
    ClusterNotInitialisedError,
    KeyExistsError,
    LedgerExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    StartError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.interface import BookieAddress, Bookies, Versioned
from quire.metadata.tree import Put
from quire.metadata.uri import MetadataURI, parse_uri
from quire.metadata.zookeeper import server as zookeeper_server
from quire.metadata.zookeeper.kazoo_adapter import (
    LostConnectionError,
    Notify,
    Stat,
    ZooKeeperConnection,
)
from quire.metadata.zookeeper.server import ZooKeeperServer
from quire.metadata.zookeeper.store import ZooKeeperStore
from tests.support.metadata.backends import (
    SESSION_TIMEOUT_MS,
    Backend,
    connect,
    end_session,
    ids_of,
    tree,
)
from tests.support.waiting import until

pytestmark = pytest.mark.zookeeper

METADATA = LedgerMetadata(3, 2, 2, (Segment(0, ("a:1", "b:1", "c:1")),))
ONE = BookieAddress("127.0.0.1:23181", "127.0.0.1", 23181)
GOLDEN = Path(__file__).parents[2] / "golden" / "metadata.json"


@pytest.fixture
async def store(zookeeper: Backend) -> ZooKeeperStore:
    opened = await zookeeper.store()
    assert isinstance(opened, ZooKeeperStore)
    return opened


def live_tree(name: str) -> dict[str, bytes]:
    vectors = json.loads(GOLDEN.read_text(encoding="utf-8"))["vectors"]
    nodes = next(v for v in vectors if v["name"] == name)["changed"]
    return {n["path"].removeprefix("/ledgers"): bytes.fromhex(n.get("hex") or "") for n in nodes}


# -- the layout -------------------------------------------------------------------------------


async def test_an_initialised_root_equals_apaches(
    where: MetadataURI, raw: ZooKeeperConnection
) -> None:
    ours, theirs = await tree(raw, where.root), live_tree("live_tree_after_initnewcluster")
    assert ours.keys() == theirs.keys()
    assert len(ours.pop("/INSTANCEID")) == len(theirs.pop("/INSTANCEID")) == 36
    assert ours == theirs


async def test_nodes_equal_apaches(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    theirs = live_tree("live_tree_after_four_bookies_started")
    await store.register_bookie(ONE)
    path = f"/available/{ONE.bookie_id}"
    payload, stat = await raw.get(where.root + path)
    assert payload == theirs[path]
    assert stat.owner != 0
    await store.write_cookie(ONE.bookie_id, b"5\n", None)
    for ledger_id in (0, 12345, 2**40 + 7):
        await store.create_ledger(METADATA, ledger_id)
    await store.create_ledger(METADATA)
    found = await tree(raw, where.root)
    assert found[f"/cookies/{ONE.bookie_id}"] == b"5\n"
    for ledger_path in ("/00/0000/L0000", "/00/0001/L2345", "/000/0001/0995/1162/L7783"):
        assert found[ledger_path].startswith(b"BookieMetadataFormatVersion\t3\n")
    assert "/idgen" in found


async def test_deleting_a_ledger_removes_empty_parents(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    before = await tree(raw, where.root)
    for ledger_id in (1, 2, 10_001, 2**40):
        await store.create_ledger(METADATA, ledger_id)
    await store.delete_ledger(1)
    assert (await raw.exists(f"{where.root}/00/0000")) is not None
    for ledger_id in (2, 10_001, 2**40):
        await store.delete_ledger(ledger_id)
    assert await tree(raw, where.root) == before


async def test_concurrent_creations_and_deletions_share_parents(zookeeper: Backend) -> None:
    """Parents of one ledger are created and deleted while the other one is changed."""
    one, two = await zookeeper.store(), await zookeeper.store()

    async def churn(owner: Any, ledger_id: int) -> None:
        for _ in range(30):
            await owner.create_ledger(METADATA, ledger_id)
            await owner.delete_ledger(ledger_id)

    await asyncio.gather(churn(one, 5), churn(two, 6))
    assert [ids for r in [r async for r in one.list_ledgers()] for ids in r.ledger_ids] == []


async def test_malformed_registrations_do_not_hide_other_bookies(
    where: MetadataURI,
    raw: ZooKeeperConnection,
    store: ZooKeeperStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An old bookie registers nothing, a broken one nonsense: the others are seen nevertheless."""
    for bookie_id, payload in (
        ("10.0.0.9:3181", b""),
        ("no-address", b""),
        ("nonsense", b"\xff\xff"),
        ("http-only", bytes.fromhex("3219 0a0a68747470736572766572 10903f 1a0168 220468747470")),
    ):
        await raw.create(f"{where.root}/available/{bookie_id}", payload, ephemeral=True)
    await store.register_bookie(ONE)
    found = await store.bookies()
    assert found.writable == {
        ONE.bookie_id: ONE,
        "10.0.0.9:3181": BookieAddress("10.0.0.9:3181", "10.0.0.9", 3181),
    }
    for named in ("no-address", "nonsense", "http-only"):
        assert named in caplog.text


async def test_a_cluster_without_instance_id_or_lists_is_accepted(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """Old tools create such clusters. INSTANCEID is optional."""
    for name in ("INSTANCEID", "available/readonly", "available"):
        await raw.delete(f"{where.root}/{name}")
    assert await store.instance_id() == ""
    assert await store.bookies() == Bookies({}, {})
    await store.register_bookie(ONE, readonly=True)
    assert await store.bookies() == Bookies({}, {ONE.bookie_id: ONE})
    await store.write_value(("a",), b"1", None)
    assert (await store.read_value(("a",))).value == b"1"


# -- what must not look like an empty cluster -------------------------------------------------


async def test_a_missing_layout_is_an_error(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    await store.create_ledger(METADATA, 5)
    assert [r async for r in store.list_ledgers()]
    await raw.delete(f"{where.root}/LAYOUT")
    for call in (store.read_ledger(6), store.bookies(), store.list_cookies(), ids_of(store)):
        with pytest.raises(ClusterNotInitialisedError):
            await call
    with pytest.raises(KeyExistsError, match="has no LAYOUT"):
        await store.initialise()


@pytest.mark.parametrize("ledger_ids", [(5,), (5, 10_005), (5, 2**40)])
async def test_a_root_that_vanishes_during_a_listing_is_an_error(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore, ledger_ids: tuple[int, ...]
) -> None:
    """It vanishes before a parent that the listing knows, and before the listing concludes the
    rest.
    """
    for ledger_id in ledger_ids:
        await store.create_ledger(METADATA, ledger_id)
    listing = store.list_ledgers()
    assert (await anext(listing)).ledger_ids == (5,)
    for ledger_id in ledger_ids:
        await store.delete_ledger(ledger_id)
    await raw.delete(f"{where.root}/LAYOUT")
    with pytest.raises(ClusterNotInitialisedError):
        await anext(listing)


async def test_an_empty_or_missing_level_is_not_the_end_of_the_list(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """Rule 45: otherwise every bookie would take later ledgers for deleted."""
    ids = (5, 50_000, 90_000, 2**40)
    for ledger_id in ids:
        await store.create_ledger(METADATA, ledger_id)
    for level in ("00/0001", "00/0007", "000", "000/0000"):
        if await raw.exists(f"{where.root}/{level}") is None:
            await raw.create(f"{where.root}/{level}")
    found = [one async for span in store.list_ledgers() for one in span.ledger_ids]
    assert found == list(ids)
    listing = store.list_ledgers()
    found = list((await anext(listing)).ledger_ids)
    await store.delete_ledger(50_000)  # and its parent, which the listing knows of
    found += [one async for span in listing for one in span.ledger_ids]
    assert [one for one in found if one != 50_000] == [5, 90_000, 2**40]


async def test_an_empty_root_can_be_initialised(
    where: MetadataURI, raw: ZooKeeperConnection
) -> None:
    """A root that an administrator made beforehand, with nothing in it, is ours to fill."""
    await raw.create(f"{where.root}-2")
    store = await connect(replace(where, root=f"{where.root}-2"))
    try:
        assert await store.initialise() == await store.instance_id()
        with pytest.raises(KeyExistsError):
            await store.initialise()
    finally:
        await store.close()


# -- Quire's own values -----------------------------------------------------------------------


async def test_values_are_stored_outside_the_ledgers_root(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    before = await tree(raw, where.root)
    await store.write_value(("datasets", "flights"), b"{}", None)
    assert await tree(raw, where.root) == before
    found = await tree(raw, f"/quire{where.root}")
    flights = found.pop("/datasets/flights")
    assert found == {"": (await store.instance_id()).encode(), "/datasets": b""}
    assert (flights[:1], len(flights[1:9]), flights[9:]) == (b"#", 8, b"{}")


async def test_values_in_the_former_format_are_read(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """They lack the mark by which a writer recognises its write. One was never written."""
    await store.write_value(("a",), b"1", None)
    await raw.set(f"/quire{where.root}/a", b"=old", 0)
    assert await store.read_value(("a",)) == Versioned(b"old", 1)
    assert await store.write_value(("a",), b"new", 1) == 2
    await raw.set(f"/quire{where.root}/a", b"?", 2)
    with pytest.raises(MetadataError, match="unknown form"):
        await store.read_value(("a",))


async def test_values_of_an_earlier_cluster_are_hidden(
    zookeeper: Backend, where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """They name ledgers of that cluster, so they are neither shown nor mixed with new ones."""
    await store.write_value(("datasets", "flights"), b"{}", None)
    await raw.set(f"{where.root}/INSTANCEID", b"another", -1)
    fresh = await zookeeper.store()
    for call in (
        fresh.read_value(("datasets", "flights")),
        fresh.list_values(()),
        fresh.write_value(("x",), b"", None),
    ):
        with pytest.raises(MetadataError, match="earlier cluster"):
            await call
    for name in ("INSTANCEID", "LAYOUT", "available/readonly", "available", ""):
        await raw.delete(f"{where.root}/{name}".rstrip("/"))
    with pytest.raises(KeyExistsError, match="earlier cluster"):
        await fresh.initialise()


async def test_a_remaining_parent_is_not_a_value(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    await store.write_value(("a", "b"), b"1", None)
    await raw.delete(f"/quire{where.root}/a/b")
    assert await store.list_values(()) == []
    with pytest.raises(NoSuchKeyError):
        await store.read_value(("a",))


# -- lost answers -----------------------------------------------------------------------------

Request = Callable[..., Awaitable[Any]]


@contextmanager
def lost_answer(connection: ZooKeeperConnection, method: str) -> Iterator[None]:
    """The first request by `method` is carried out, but its answer gets lost. Fails if there is
    none."""
    request: Request = getattr(connection, method)
    lost = False

    async def losing(*args: Any, **options: Any) -> Any:
        nonlocal lost
        answer = await request(*args, **options)
        if not lost:
            lost = True
            raise LostConnectionError
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection, method, losing)
        yield
    assert lost


async def test_a_watcher_is_notified_of_the_old_list_first(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """Apache's client forgets a bookie when its node is deleted, whichever list the node was in."""
    registration = await store.register_bookie(ONE)
    lists = f"{where.root}/available", f"{where.root}/available/readonly"
    for old, new, readonly in ((*lists, True), (*reversed(lists), False)):
        heard: list[str] = []
        gone = await raw.exists(f"{old}/{ONE.bookie_id}", partial(heard.append, "gone"))
        assert gone is not None
        await raw.children(new, partial(heard.append, "there"))
        await registration.set_readonly(readonly)
        await until(lambda heard=heard: len(heard) == 2)
        assert heard == ["gone", "there"]
        assert await raw.exists(f"{old}/{ONE.bookie_id}") is None
        stat = await raw.exists(f"{new}/{ONE.bookie_id}")
        assert stat is not None
        assert stat.owner == store._zk.session_id


async def test_a_missing_read_only_list_is_created(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """An Apache cluster that never had a read-only bookie lacks this list."""
    registration = await store.register_bookie(ONE)
    await raw.delete(f"{where.root}/available/readonly")
    await registration.set_readonly(True)
    assert await store.bookies() == Bookies({}, {ONE.bookie_id: ONE})


async def test_a_deleted_registration_is_restored(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    registration = await store.register_bookie(ONE)
    exists = store._zk.exists

    async def then_gone(path: str, *rest: Any) -> Any:
        stat = await exists(path, *rest)
        if path.endswith(f"available/{ONE.bookie_id}"):
            await raw.delete(path)
        return stat

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store._zk, "exists", then_gone)
        await registration.set_readonly(True)
    assert await store.bookies() == Bookies({}, {ONE.bookie_id: ONE})


async def test_ledger_changes_with_lost_replies_are_resolved(store: ZooKeeperStore) -> None:
    zk = store._zk
    await store.create_ledger(METADATA, 1)  # parents are there: the first create is the ledger
    with lost_answer(zk, "create"):
        created = (await store.create_ledger(METADATA, 2))[1]
    assert created == await store.read_ledger(2)
    with pytest.raises(LedgerExistsError):
        await store.create_ledger(METADATA, 2)
    with lost_answer(zk, "set"):
        written = await store.write_ledger(2, created.value.with_close(1, 2), 0)
    assert written == await store.read_ledger(2)
    assert written.version == 1
    with pytest.raises(VersionConflictError):
        await store.write_ledger(2, created.value, 0)
    with lost_answer(zk, "delete"):
        await store.delete_ledger(2)
    with pytest.raises(NoSuchLedgerError):
        await store.read_ledger(2)


async def test_ids_are_unique_despite_lost_replies(store: ZooKeeperStore) -> None:
    """An id may be left unused, but is never given twice."""
    await store.create_ledger(METADATA)
    with lost_answer(store._zk, "create"):
        ledger_id, _ = await store.create_ledger(METADATA)
    assert await ids_of(store) == [0, ledger_id]


async def test_other_changes_with_lost_replies_are_resolved(store: ZooKeeperStore) -> None:
    zk = store._zk
    await store.write_cookie("a:1", b"x", None)
    await store.write_value(("a",), b"x", None)
    with lost_answer(zk, "create"):
        assert await store.write_cookie("b:1", b"x", None) == 0
    with lost_answer(zk, "commit"):
        assert await store.write_value(("b",), b"x", None) == 0
    with lost_answer(zk, "create"):
        registration = await store.register_bookie(ONE)
    assert await store.bookies() == Bookies({ONE.bookie_id: ONE}, {})
    for readonly in (True, False, True):
        with lost_answer(zk, "commit"):
            await registration.set_readonly(readonly)
        assert (ONE.bookie_id in (await store.bookies()).readonly) is readonly
    assert await store.bookies() == Bookies({}, {ONE.bookie_id: ONE})
    with lost_answer(zk, "set"):
        assert await store.write_cookie("b:1", b"y", 0) == 1
    with lost_answer(zk, "set"):
        assert await store.write_value(("b",), b"y", 0) == 1
    with lost_answer(zk, "delete"):
        await store.delete_cookie("b:1", 1)
    with lost_answer(zk, "delete"):
        await store.delete_value(("b",), 1)
    assert await store.list_values(()) == ["a"]
    assert await store.list_cookies() == ["a:1"]
    with pytest.raises(KeyExistsError):
        await store.write_cookie("a:1", b"x", None)


async def test_an_initialisation_with_a_lost_reply_is_resolved(where: MetadataURI) -> None:
    store = await connect(replace(where, root=f"{where.root}-new"))
    try:
        with lost_answer(store._zk, "commit"):
            instance_id = await store.initialise()
        assert instance_id == await store.instance_id()
    finally:
        await store.close()


# -- the load of a large cluster --------------------------------------------------------------


async def test_a_bookie_watch_reads_only_new_addresses(
    zookeeper: Backend, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each client read all addresses after each change, the load would grow with the square."""
    bookies = [replace(ONE, bookie_id=f"bookie-{number}") for number in range(20)]
    other = await zookeeper.store()
    held = [await other.register_bookie(address) for address in bookies]
    read: list[str] = []
    get = store._zk.get

    async def counted(path: str, notify: Notify | None = None) -> tuple[bytes, Stat]:
        if "/available/" in path:
            read.append(path.rpartition("/")[2])
        return await get(path, notify)

    monkeypatch.setattr(store._zk, "get", counted)
    seen: list[Bookies] = []
    second: list[Bookies] = []
    store.watch_bookies(seen.append)
    store.watch_bookies(second.append)
    await until(lambda: [len(one.writable) for one in seen + second] == [20, 20])
    wanted = sorted(address.bookie_id for address in bookies)
    assert sorted(read) == wanted, "once for both watches"
    read.clear()
    await other.register_bookie(replace(ONE, bookie_id="new"))
    await until(lambda: {len(one[-1].writable) for one in (seen, second)} == {21})
    assert read == ["new"]
    await held[3].close()
    await held[4].set_readonly(True)
    there = await other.bookies()
    await until(lambda: seen[-1] == second[-1] == there)
    assert read == ["new", "bookie-4"], "from the list that it moved to"
    read.clear()
    assert len(await store.registered()) == 20
    assert read == []


async def test_a_watch_without_addresses_reads_only_the_requested_ones(
    zookeeper: Backend, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the reads at the start would grow with the square of the number of bookies."""
    other = await zookeeper.store()
    ids = [f"host-{number}:3181" for number in range(20)]
    held = [await other.register_bookie(replace(ONE, bookie_id=id_)) for id_ in [*ids, "named"]]
    read: list[str] = []
    get = store._zk.get

    async def counted(path: str, notify: Notify | None = None) -> tuple[bytes, Stat]:
        if "/available/" in path:
            read.append(path.rpartition("available/")[2])
        return await get(path, notify)

    monkeypatch.setattr(store._zk, "get", counted)
    seen: list[Bookies] = []
    store.watch_bookies(seen.append, addresses=False)
    await until(lambda: [len(one.writable) for one in seen] == [21])
    assert read == ["named"], "the id is not an address"
    assert [one.bookie_id for one in seen[0].writable.values() if not one.assumed] == ["named"]
    for _ in range(2):
        await store.learn_bookies(ids[3:5])
    assert sorted(read) == ["host-3:3181", "host-4:3181", "named"]
    read.clear()
    for number in (4, 5):
        await held[number].set_readonly(True)
    await until(lambda: seen[-1].readonly.keys() == {ids[4], ids[5]})
    assert read == ["readonly/host-4:3181"], "a client may have a connection to it"
    read.clear()
    everything: list[Bookies] = []
    store.watch_bookies(everything.append)
    there = await other.bookies()
    await until(lambda: everything == [there])
    assert len(read) == 18, "all addresses that were not read before"


# -- lost sessions ----------------------------------------------------------------------------


async def test_registrations_and_watches_are_restored_after_a_lost_session(
    zookeeper: Backend,
    where: MetadataURI,
    raw: ZooKeeperConnection,
    store: ZooKeeperStore,
) -> None:
    other = await zookeeper.store()
    watching: list[Bookies] = []
    there = Bookies({}, {ONE.bookie_id: ONE})
    other.watch_bookies(watching.append)
    registration = await store.register_bookie(ONE)
    await registration.set_readonly(True)
    ledger_id, created = await store.create_ledger(METADATA)
    ledgers: list[Versioned[LedgerMetadata] | None] = []
    bookies: list[Bookies] = []
    store.watch_ledger(ledger_id, ledgers.append)
    store.watch_bookies(bookies.append)
    await until(lambda: watching[-1:] == bookies[-1:] == [there] and ledgers == [created])
    first_session = store._zk.session_id

    await asyncio.to_thread(end_session, store)

    await until(lambda: store._zk.session_id != first_session)
    path = f"{where.root}/available/readonly/{ONE.bookie_id}"
    await until(
        lambda: raw.exists(path),
        right=lambda stat: stat is not None and stat.owner == store._zk.session_id,
    )
    await until(lambda: watching[-1] == there)
    # The watches of the new session tell of what happens from now on.
    written = await other.write_ledger(ledger_id, created.value.with_close(1, 1), 0)
    await until(lambda: ledgers[-1] == written)
    second = replace(ONE, bookie_id="second")
    await other.register_bookie(second)
    await until(lambda: bookies[-1].writable == {"second": second})
    await registration.close()
    await until(lambda: watching[-1] == Bookies({"second": second}, {}))


async def test_operations_continue_over_a_lost_session(store: ZooKeeperStore) -> None:
    ending = asyncio.ensure_future(asyncio.to_thread(end_session, store))
    ids = []
    while not ending.done() or len(ids) < 20:
        ids.append((await store.create_ledger(METADATA))[0])
    await ending
    assert sorted(set(ids)) == sorted(ids)
    assert set(ids) <= set(await ids_of(store))


async def test_a_client_that_stopped_is_replaced(store: ZooKeeperStore) -> None:
    """kazoo ends its loop on what it does not expect; a bookie must not be lost for good by it."""
    await store.register_bookie(ONE)
    broken = store._zk._client
    await asyncio.to_thread(broken.stop)
    await until(lambda: store._zk._client is not broken and store._zk.connected)
    seen: list[Bookies] = []
    store.watch_bookies(seen.append)
    await until(lambda: seen[-1:] == [Bookies({ONE.bookie_id: ONE}, {})])
    assert (await store.create_ledger(METADATA))[0] == 0


async def test_a_cancelled_registration_removes_only_its_own_node(store: ZooKeeperStore) -> None:
    """Its own node is removed, but never the node of a later attempt."""
    for _ in range(10):
        registering = asyncio.ensure_future(store.register_bookie(ONE))
        for _ in range(5):
            await asyncio.sleep(0)
        registering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await registering
    registration = await store.register_bookie(ONE)
    assert await store.bookies() == Bookies({ONE.bookie_id: ONE}, {})
    await registration.close()
    assert await store.bookies() == Bookies({}, {})


async def test_a_close_spares_the_next_registration_of_the_bookie(
    monkeypatch: pytest.MonkeyPatch, store: ZooKeeperStore
) -> None:
    """Both are in one session, so the close took the new node for its own."""
    first = await store.register_bookie(ONE)
    delete, begun, go_on = store._zk.delete, asyncio.Event(), asyncio.Event()

    async def delete_late(path: str, version: int = -1) -> None:
        begun.set()
        await go_on.wait()
        await delete(path, version)

    monkeypatch.setattr(store._zk, "delete", delete_late)
    closing = asyncio.ensure_future(first.close())
    await begun.wait()
    registering = asyncio.ensure_future(store.register_bookie(ONE))
    await asyncio.wait([registering], timeout=0.2)  # time enough to register, if it does not wait
    go_on.set()
    await closing
    await registering
    assert await store.bookies() == Bookies({ONE.bookie_id: ONE}, {})


async def test_closing_a_store_fails_waiting_calls(own_server: ZooKeeperServer) -> None:
    store = await connect(parse_uri(own_server.uri("/closing")))
    await store.initialise()
    registration = await store.register_bookie(ONE)
    await asyncio.to_thread(own_server.stop)
    waiting = [
        asyncio.ensure_future(registration.set_readonly(True)),
        asyncio.ensure_future(store.read_ledger(1)),
    ]
    await asyncio.sleep(0)
    await store.close()
    for waiter in waiting:
        with pytest.raises(ClientClosedError):
            await waiter
    await registration.close()


# -- a server that goes away ------------------------------------------------------------------


@pytest.fixture(scope="module")
def stoppable_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("own"), tick_ms=200) as server:
        server._any_port = False  # it comes back where it was
        yield server


@pytest.fixture
async def own_server(stoppable_server: ZooKeeperServer) -> ZooKeeperServer:
    """Run a server that the test may stop."""
    if stoppable_server.pid is None:
        await asyncio.to_thread(stoppable_server.start)
    return stoppable_server


async def test_operations_wait_for_a_restarted_server(own_server: ZooKeeperServer) -> None:
    """Operations wait for it, and registrations and watches are restored."""
    where = parse_uri(own_server.uri("/back"))
    store = await connect(where, session_timeout_ms=SESSION_TIMEOUT_MS)
    try:
        await store.initialise()
        await store.register_bookie(ONE)
        ledger_id, created = await store.create_ledger(METADATA)
        seen: list[Versioned[LedgerMetadata] | None] = []
        store.watch_ledger(ledger_id, seen.append)
        await until(lambda: seen == [created])
        await asyncio.to_thread(own_server.stop)
        await until(lambda: not store._zk.connected)
        writing = asyncio.ensure_future(
            store.write_ledger(ledger_id, created.value.with_close(1, 1), 0)
        )
        done, _ = await asyncio.wait([writing], timeout=0.2)
        assert not done
        await asyncio.to_thread(own_server.start)
        written = await writing
        assert await store.read_ledger(ledger_id) == written
        await until(lambda: seen[-1] == written)
        bookies: list[Bookies] = []
        store.watch_bookies(bookies.append)
        await until(lambda: bookies[-1:] == [Bookies({ONE.bookie_id: ONE}, {})])
    finally:
        await store.close()


async def test_operations_fail_if_the_server_stays_away(own_server: ZooKeeperServer) -> None:
    where = parse_uri(own_server.uri("/away"))
    store = await connect(where, session_timeout_ms=1_000, operation_timeout_s=0.5)
    try:
        await store.initialise()
        registration = await store.register_bookie(ONE)
        await asyncio.to_thread(own_server.stop)
        await until(lambda: not store._zk.connected)
        with pytest.raises(MetadataUnavailableError, match="did not answer within") as raised:
            await store.create_ledger(METADATA)
        assert own_server.address in str(raised.value)
        with pytest.raises(MetadataUnavailableError):
            await ids_of(store)
        with pytest.raises(MetadataUnavailableError):
            await registration.set_readonly(True)
        waiting = asyncio.ensure_future(store.read_ledger(1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    finally:
        await store.close()


async def test_an_address_that_never_answers_is_reported() -> None:
    """Something listens there, but it is not ZooKeeper."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(MetadataUnavailableError, match="does not answer like ZooKeeper"):
            await connect(
                parse_uri(f"zk://127.0.0.1:{port}/ledgers"),
                session_timeout_ms=1_000,
                connect_timeout_s=0.5,
            )


async def test_a_dead_server_beside_a_live_one_is_skipped(where: MetadataURI) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = f"127.0.0.1:{silent.getsockname()[1]}"
        store = await connect(replace(where, servers=(dead, *where.servers, dead)))
        try:
            assert await store.is_initialised()
        finally:
            await store.close()


# -- the server -------------------------------------------------------------------------------


def test_one_server_per_directory(zookeeper_server: ZooKeeperServer) -> None:
    with pytest.raises(StartError, match="already"):
        ZooKeeperServer(zookeeper_server.data_dir).start()
    with pytest.raises(StartError, match="already"):
        zookeeper_server.start()


def test_a_zookeeper_on_a_port_in_use_is_refused(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """The server at the port is another one: its answers do not count."""
    second = ZooKeeperServer(tmp_path / "second", zookeeper_server.port)
    with pytest.raises(StartError, match="ended right after its start") as raised:
        second.start()
    assert second.pid is None
    assert "zookeeper.log" in str(raised.value)


@pytest.mark.parametrize("name", ["jürgen", "a\\b"])
def test_a_directory_that_java_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    """The server used another directory, and the start waited for a minute for its answer."""
    with pytest.raises(UsageError, match="ASCII characters only, and no backslash"):
        ZooKeeperServer(tmp_path / name)


def test_a_server_that_exits_is_reported(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    assert server.wait(0) is None
    with server:
        assert server.wait(0.01) is None
        assert server._process is not None
        server._process.kill()
        assert server.wait(30) == -9
    server.stop()


def test_a_server_removes_old_snapshots_and_logs(tmp_path: Path) -> None:
    """ZooKeeper removes nothing by default, and refuses to keep fewer than three snapshots."""
    server = ZooKeeperServer(tmp_path, 1)
    server._launch(["true"])
    server.stop()
    lines = (tmp_path / "zoo.cfg").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    assert int(settings["autopurge.purgeInterval"]) > 0
    assert int(settings["autopurge.snapRetainCount"]) >= 3


def test_missing_pyspark_or_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(zookeeper_server.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(StartError, match=r'pip install "quire-log\[spark\]"'):
            ZooKeeperServer(tmp_path).start()
    with monkeypatch.context() as patched:
        patched.setattr(zookeeper_server.shutil, "which", lambda name, **options: None)
        with pytest.raises(StartError, match="Java"):
            ZooKeeperServer(tmp_path).start()


async def test_watches_that_were_closed_are_not_kept(
    where: MetadataURI, store: ZooKeeperStore
) -> None:
    """They stayed in memory until the node changed, also those of a reader that came again."""
    ledger_id, _ = await store.create_ledger(METADATA)
    client = store._zk._client

    def kept() -> int:
        kinds = (client._data_watchers, client._child_watchers)
        return sum(len(one) for kind in kinds for one in list(kind.values()))

    before = kept()
    for begin in (
        partial(store.watch_ledger, ledger_id),
        partial(store.tree.watch_value, f"{where.root}/LAYOUT"),
        partial(store.tree.watch_value, f"{where.root}/absent"),
        partial(store.tree.watch_children, where.root),
        store.watch_bookies,
    ):
        for _ in range(3):
            seen = asyncio.Event()
            watch = begin(lambda _, seen=seen: seen.set())
            await seen.wait()
            await until(lambda: kept() > before)  # kazoo adds it after it has told the response
            watch.close()
        assert kept() == before
    assert not store._zk._watched


async def test_another_watch_of_the_same_node_goes_on(
    where: MetadataURI, store: ZooKeeperStore
) -> None:
    path = f"{where.root}/watched"
    await store.tree.make_path(path)
    values: list[bytes | None] = []
    closed = store.tree.watch_value(path, lambda _: None)
    stays = store.tree.watch_value(path, lambda now: values.append(now and now.value))
    await until(lambda: values == [b""])
    closed.close()
    await store.tree.commit(Put(path, b"new"))
    await until(lambda: values == [b"", b"new"])
    stays.close()
