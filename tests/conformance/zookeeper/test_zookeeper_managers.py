"""The ledger managers in ZooKeeper: valid LAYOUTs, the paths of ledgers, and their ids."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from quire.codec.metadata import layout
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import MetadataError, UsageError
from quire.metadata.uri import MetadataURI
from quire.metadata.zookeeper import ids as zookeeper_ids
from quire.metadata.zookeeper.kazoo_adapter import ZooKeeperConnection
from quire.metadata.zookeeper.store import ZooKeeperStore
from tests.support.metadata.backends import Backend, connect, ids_of, tree
from tests.support.waiting import until

pytestmark = pytest.mark.zookeeper

METADATA = LedgerMetadata(3, 2, 2, (Segment(0, ("a:1", "b:1", "c:1")),))
SHORT, LONG, WRONG, FLAT_ONE = (
    "/00/0000/L0007",
    "/000/0000/0000/0000/L0007",
    "/42/0000/L0000",
    "/L0000000007",
)


@pytest.fixture
async def store(zookeeper: Backend) -> ZooKeeperStore:
    opened = await zookeeper.store()
    assert isinstance(opened, ZooKeeperStore)
    return opened


@pytest.mark.parametrize(
    ("factory", "paths"),
    [
        (layout.HIERARCHICAL, (LONG, WRONG, FLAT_ONE)),
        (layout.LONG_HIERARCHICAL, (SHORT, FLAT_ONE)),
        (layout.LEGACY_HIERARCHICAL, (LONG, FLAT_ONE)),
        (layout.FLAT, (SHORT, LONG)),
    ],
)
async def test_ledgers_of_another_manager_make_a_listing_fail(
    where: MetadataURI, raw: ZooKeeperConnection, factory: str, paths: tuple[str, ...]
) -> None:
    """Written through another ledger manager: to leave them out would delete them."""
    await raw.set(f"{where.root}/LAYOUT", layout.encode(layout.Layout(factory)), 0)
    store = await connect(replace(where, factory=None))
    try:
        for path in paths:
            parts = path.split("/")[1:]
            for end in range(1, len(parts) + 1):
                await raw.create(where.root + "/" + "/".join(parts[:end]))
            with pytest.raises(MetadataError, match="cannot be listed"):
                await ids_of(store)
            for end in range(len(parts), 0, -1):
                await raw.delete(where.root + "/" + "/".join(parts[:end]))
            assert await ids_of(store) == []
    finally:
        await store.close()


async def _make(raw: ZooKeeperConnection, root: str, path: str) -> None:
    parts = path.split("/")[1:]
    for end in range(1, len(parts) + 1):
        node = root + "/" + "/".join(parts[:end])
        if await raw.exists(node) is None:
            await raw.create(node)


@pytest.mark.parametrize(
    "small",
    ["/000/0000/0000/0000/L0007", "/000/0000/0000/0001/L2345", "/000/0000/0021/4748/L3646"],
)
async def test_small_ids_in_the_tree_of_long_ids_are_reported(
    where: MetadataURI, raw: ZooKeeperConnection, small: str
) -> None:
    """The LAYOUT was lost and restored with the wrong manager (apache/bookkeeper 870, 1014).

    Ledgers written before are at paths that this manager does not check.
    """
    await raw.set(f"{where.root}/LAYOUT", layout.encode(layout.Layout(layout.HIERARCHICAL)), 0)
    store = await connect(replace(where, factory=None))
    try:
        for ledger_id in (7, 12_345, 2**31 - 1, 2**40):
            await store.create_ledger(METADATA, ledger_id)
        assert await ids_of(store) == [7, 12_345, 2**31 - 1, 2**40]
        await _make(raw, where.root, small)
        for complete in (False, True):
            with pytest.raises(MetadataError, match="cannot be listed"):
                await _listed(store, complete=complete)
    finally:
        await store.close()


async def _listed(store: ZooKeeperStore, *, complete: bool) -> list[int]:
    ranges = [one async for one in store.list_ledgers(complete=complete)]
    found = [ledger_id for one in ranges for ledger_id in one.ledger_ids]
    if not complete:
        down = [one async for one in store.list_ledgers_down()]
        assert sorted(ledger_id for one in down for ledger_id in one.ledger_ids) == found
    return found


@pytest.mark.parametrize(
    ("factory", "path"),
    [
        (layout.HIERARCHICAL, "/00/0000/l0008"),
        (layout.HIERARCHICAL, "/00/0000/L00008"),
        (layout.HIERARCHICAL, "/00/00001/L0008"),
        (layout.HIERARCHICAL, "/00/L0008"),
        (layout.HIERARCHICAL, "/0/0000/L0008"),
        (layout.HIERARCHICAL, "/L8"),
        (layout.LONG_HIERARCHICAL, "/000/0000/0000/0000/L8"),
        (layout.LONG_HIERARCHICAL, "/000/0000/backup/0000/L0008"),
        (layout.LEGACY_HIERARCHICAL, "/00/0000/L8"),
        (layout.FLAT, "/L8"),
        (layout.FLAT, "/L00000000008"),
        (layout.FLAT, f"/L{2**63}"),
        (layout.FLAT, "/0000"),
    ],
)
async def test_unknown_names_among_the_ledgers_make_a_listing_incomplete(
    where: MetadataURI, raw: ZooKeeperConnection, factory: str, path: str
) -> None:
    """Such a list is never used for deletions. Plain listings show the other ledgers."""
    await raw.set(f"{where.root}/LAYOUT", layout.encode(layout.Layout(factory)), 0)
    store = await connect(replace(where, factory=None))
    try:
        for ledger_id in (7, 12_345):
            await store.create_ledger(METADATA, ledger_id)
        assert await _listed(store, complete=True) == [7, 12_345]
        await _make(raw, where.root, path)
        with pytest.raises(MetadataError, match="not be complete"):
            await _listed(store, complete=True)
        assert await _listed(store, complete=False) == [7, 12_345]
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("content", "manager"),
    [
        (layout.encode(layout.Layout(layout.HIERARCHICAL)) + b"\n", "hierarchical"),
        (b"1\nhierarchical:1", "hierarchical"),
        (b"1\nflat:1", "flat"),
        (layout.encode(layout.Layout(layout.FLAT)), "flat"),
        (layout.encode(layout.Layout(layout.LONG_HIERARCHICAL)), "longhierarchical"),
        (layout.encode(layout.Layout(layout.LEGACY_HIERARCHICAL)), "legacyhierarchical"),
        (layout.encode(layout.Layout(layout.HIERARCHICAL, 2)), None),
        (layout.encode(layout.Layout("org.example.MyFactory")), None),
        (b"nonsense", None),
    ],
)
@pytest.mark.parametrize("named", [None, *layout.FACTORIES])
async def test_the_layout_overrides_an_unspecified_manager_and_refuses_another(
    where: MetadataURI,
    raw: ZooKeeperConnection,
    content: bytes,
    manager: str | None,
    named: str | None,
) -> None:
    """LAYOUT wins where the URI names no manager; a URI that names another is refused."""
    await raw.set(f"{where.root}/LAYOUT", content, 0)
    factory = None if named is None else layout.FACTORIES[named]
    store = await connect(replace(where, factory=factory))
    try:
        if manager is not None and named in (None, manager):
            assert await store.list_cookies() == []
            assert store._root.manager.name == manager
            return
        with pytest.raises(MetadataError, match=r"LAYOUT|ledger manager") as raised:
            await store.list_cookies()
        if manager is not None:
            assert manager in str(raised.value)
            assert str(named) in str(raised.value)
    finally:
        await store.close()


async def test_a_changed_layout_is_noticed(where: MetadataURI, raw: ZooKeeperConnection) -> None:
    """In a cluster that was recreated meanwhile, a missing ledger proves nothing."""
    store = await connect(replace(where, factory=None))
    try:
        await store.create_ledger(METADATA, 5)
        await raw.set(f"{where.root}/LAYOUT", layout.encode(layout.Layout(layout.FLAT)), 0)
        await raw.delete(f"{where.root}/00/0000/L0005")
        with pytest.raises(MetadataError, match="was changed"):
            await store.read_ledger(5)
        with pytest.raises(MetadataError, match="was changed"):
            await ids_of(store)
    finally:
        await store.close()


async def test_a_recreated_cluster_denies_no_ledger(
    where: MetadataURI, raw: ZooKeeperConnection
) -> None:
    """The nodes are gone, and another cluster has the root.

    A client from before is not told that its ledger never existed.
    """
    store = await connect(replace(where, factory=None))
    try:
        await store.create_ledger(METADATA, 5)
        await raw.delete(f"{where.root}/00/0000/L0005")
        _, stat = await raw.get(f"{where.root}/INSTANCEID")
        await raw.set(f"{where.root}/INSTANCEID", b"another", stat.version)
        for call in (lambda: store.read_ledger(5), lambda: ids_of(store)):
            with pytest.raises(MetadataError, match="now contains another cluster"):
                await call()
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("factory", "ids", "paths"),
    [
        (layout.FLAT, (1, 2**31 - 1, 2**40), ("/L0000000001", "/L2147483647", "/L1099511627776")),
        (
            layout.LONG_HIERARCHICAL,
            (1, 2**31 - 1),
            ("/000/0000/0000/0000/L0001", "/000/0000/0021/4748/L3647"),
        ),
        (
            layout.LEGACY_HIERARCHICAL,
            (1, 2**31 - 1, 10**10 - 1),
            ("/00/0000/L0001", "/21/4748/L3647", "/99/9999/L9999"),
        ),
    ],
)
async def test_each_manager_stores_ledgers_at_apaches_paths(
    where: MetadataURI,
    raw: ZooKeeperConnection,
    factory: str,
    ids: tuple[int, ...],
    paths: tuple[str, ...],
) -> None:
    await raw.set(f"{where.root}/LAYOUT", layout.encode(layout.Layout(factory)), 0)
    before = await tree(raw, where.root)
    store = await connect(replace(where, factory=None))
    try:
        for ledger_id in ids:
            await store.create_ledger(METADATA, ledger_id)
        found = await tree(raw, where.root)
        assert {path for path, data in found.items() if data.startswith(b"Bookie")} == set(paths)
        assert await ids_of(store) == list(ids)
        too_large = 2**63 - 1
        if factory == layout.LEGACY_HIERARCHICAL:
            for call in (store.create_ledger(METADATA, too_large), store.read_ledger(too_large)):
                with pytest.raises(UsageError, match="legacyhierarchical"):
                    await call
        for ledger_id in ids:
            await store.delete_ledger(ledger_id)
        assert await tree(raw, where.root) == before
    finally:
        await store.close()


@pytest.mark.parametrize("manager", layout.FACTORIES)
async def test_a_cluster_is_initialised_with_the_chosen_manager(
    where: MetadataURI, manager: str
) -> None:
    """The URI or the caller names the manager. They must not contradict each other."""
    factory = layout.FACTORIES[manager]
    for number, (in_uri, asked) in enumerate(
        [(factory, None), (None, manager), (factory, manager)]
    ):
        store = await connect(replace(where, root=f"{where.root}-{number}", factory=in_uri))
        try:
            await store.initialise(asked)
            await store.bookies()
            assert store._root.manager.name == manager
        finally:
            await store.close()
    store = await connect(replace(where, root=f"{where.root}-4", factory=factory))
    try:
        for other in {*layout.FACTORIES, "legacyhierarchical", "ms"} - {manager}:
            with pytest.raises(UsageError, match=other):
                await store.initialise(other)
        assert not await store.is_initialised()
    finally:
        await store.close()


async def test_cluster_init_accepts_a_manager(where: MetadataURI, raw: ZooKeeperConnection) -> None:
    root = f"{where.root}-5"
    uri = f"zk://{where.servers[0]}{root}"

    def init(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "quire", "cluster", "init", "--metadata", uri, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    run = await asyncio.to_thread(init, "--ledger-manager", "flat")
    assert (run.returncode, run.stderr) == (0, "")
    assert (await raw.get(f"{root}/LAYOUT"))[0] == layout.encode(layout.Layout(layout.FLAT))
    uri = uri.replace("zk:", "zk+hierarchical:")
    run = await asyncio.to_thread(init, "--ledger-manager", "flat")
    assert run.returncode == 2
    assert "names another" in run.stderr


# -- ids --------------------------------------------------------------------------------------


async def test_long_ids_follow_apaches_generator(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    assert (await store.create_ledger(METADATA))[0] == 0
    await raw.create(f"{where.root}/idgen-long")  # as an administrator does
    ids = [(await store.create_ledger(METADATA))[0] for _ in range(2)]
    assert ids == [2**32, 2**32 + 1]
    await raw.create(f"{where.root}/idgen-long/HOB-0000000007")
    assert (await store.create_ledger(METADATA))[0] == 30064771072


async def test_ids_continue_after_each_counter_overflows(
    where: MetadataURI,
    raw: ZooKeeperConnection,
    store: ZooKeeperStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are three short ids, and three below each high half. Each step to the next is tried."""
    monkeypatch.setattr(zookeeper_ids, "SHORT_ID_END", 3)
    ids = [(await store.create_ledger(METADATA))[0] for _ in range(3 + 3 * 5)]
    wanted = [0, 1, 2, *(high << 32 | low for high in range(1, 6) for low in range(3))]
    assert ids == wanted
    # Old ones are cleared away in the background.
    names = await until(
        lambda: raw.children(f"{where.root}/idgen-long"), right=lambda found: len(found) == 3
    )
    assert sorted(names) == [f"HOB-000000000{high}" for high in (3, 4, 5)]


@pytest.mark.parametrize("factory", [layout.FLAT, layout.LEGACY_HIERARCHICAL])
async def test_a_manager_without_long_ids_ends_with_the_short_ids(
    where: MetadataURI, raw: ZooKeeperConnection, monkeypatch: pytest.MonkeyPatch, factory: str
) -> None:
    """They end with the short ids, and `idgen-long` means nothing.

    The flat manager's numbers count everything that is created below the root.
    """
    monkeypatch.setattr(zookeeper_ids, "SHORT_ID_END", 10)
    await raw.set(f"{where.root}/LAYOUT", layout.encode(layout.Layout(factory)), 0)
    await raw.create(f"{where.root}/idgen-long")
    store = await connect(replace(where, factory=None))
    try:
        ids = [(await store.create_ledger(METADATA))[0] for _ in range(3)]
        assert ids == sorted(set(ids))
        left = 10 if factory == layout.LEGACY_HIERARCHICAL else 1
        for _ in range(left - 3):
            await store.create_ledger(METADATA)
        with pytest.raises(MetadataError, match="are used up"):
            await store.create_ledger(METADATA)
    finally:
        await store.close()


async def test_an_id_taken_by_a_caller_is_skipped(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """The generator runs into it, and takes the next."""
    for ledger_id in (1, 2, 2**32):
        await store.create_ledger(METADATA, ledger_id)
    assert [(await store.create_ledger(METADATA))[0] for _ in range(2)] == [0, 3]
    await raw.create(f"{where.root}/idgen-long")
    assert (await store.create_ledger(METADATA))[0] == 2**32 + 1


async def test_ids_are_never_assigned_twice_beside_apaches_clients(
    where: MetadataURI, raw: ZooKeeperConnection, store: ZooKeeperStore
) -> None:
    """All clients share one counter, so no id of another client is assigned again."""
    prefix = f"{where.root}/idgen/ID-"
    await store.create_ledger(METADATA)
    path, _ = await raw.create(prefix, ephemeral=True, sequence=True)
    assert path.endswith("ID-0000000001")
    assert (await store.create_ledger(METADATA))[0] == 2
    # Ours are deleted behind our back.
    await until(
        lambda: raw.children(f"{where.root}/idgen"), right=lambda found: found == ["ID-0000000001"]
    )
