"""A ZooKeeper whose nodes belong to an identity: who gets access, and the errors of others."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quire
from quire import blocking
from quire._runtime.clock import SystemClock
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import ClusterNotInitialisedError, MetadataDeniedError, UsageError
from quire.metadata import ZooKeeperOptions, open_metadata
from quire.metadata.interface import BookieAddress, MetadataStore
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper import kazoo_adapter
from quire.metadata.zookeeper.kazoo_adapter import ZooKeeperConnection
from quire.metadata.zookeeper.options import ACL_VARIABLE, AUTH_FILE_VARIABLE, AUTH_VARIABLE
from quire.metadata.zookeeper.server import ZooKeeperServer
from quire.metadata.zookeeper.store import ZooKeeperStore
from tests.support.metadata.backends import PATIENCE_S, SESSION_TIMEOUT_MS, next_root
from tests.support.metadata.zookeeper_proxy import Proxy

METADATA = LedgerMetadata(3, 2, 2, (Segment(0, ("a:1", "b:1", "c:1")),))
ONE = BookieAddress("bookie-1", "10.0.0.1", 3181)
OWNER = ZooKeeperOptions("quire:se:cret")
STRANGER = ZooKeeperOptions("mallory:secret")

zookeeper = pytest.mark.zookeeper


@pytest.fixture
def uri(zookeeper_server: ZooKeeperServer) -> str:
    return zookeeper_server.uri(next_root())


@pytest.fixture
async def owned(uri: str) -> AsyncIterator[MetadataStore]:
    """A cluster that belongs to OWNER."""
    store = await open_metadata(uri, zookeeper=OWNER)
    await store.initialise()
    yield store
    await store.close()


async def all_kinds(store: MetadataStore) -> None:
    await store.create_ledger(METADATA)
    await store.create_ledger(METADATA, 2**40)
    await store.write_cookie("b:1", b"5\n", None)
    await store.write_value(("datasets", "x"), b"1", None)
    await store.register_bookie(ONE)


async def acl_of(connection: ZooKeeperConnection, path: str) -> set[tuple[str, str, int]]:
    found, _ = await connection._ask(path, lambda client: client.get_acls_async(path))
    return {(acl.id.scheme, acl.id.id.partition(":")[0], acl.perms) for acl in found}


async def acls(connection: ZooKeeperConnection, top: str) -> dict[str, set[tuple[str, str, int]]]:
    found = {}
    todo = [top]
    while todo:
        path = todo.pop()
        found[path.removeprefix(top)] = await acl_of(connection, path)
        todo += [f"{path}/{name}" for name in await connection.children(path)]
    return found


ALL, READ_AND_CREATE = 31, 5
OURS, EVERYONES = {("digest", "quire", ALL)}, {("world", "anyone", ALL)}


@zookeeper
async def test_created_nodes_have_the_documented_permissions(
    owned: MetadataStore, uri: str
) -> None:
    """Everything is ours, except for what Apache leaves open, and nodes above other clusters."""
    assert isinstance(owned, ZooKeeperStore)
    await all_kinds(owned)
    root, zk = parse_uri(uri).root, owned._zk
    assert set(map(frozenset, (await acls(zk, root)).values())) == {frozenset(OURS)}
    assert await acl_of(zk, f"/quire{root}/datasets/x") == OURS
    shared = OURS | {("world", "anyone", READ_AND_CREATE)}
    parent = root.rpartition("/")[0]
    assert await acl_of(zk, parent) == await acl_of(zk, f"/quire{parent}") == shared
    assert await acl_of(zk, f"/quire{root}") == OURS
    await zk.create(f"{root}/idgen-long")  # as an administrator does
    await zk.create(f"{root}/idgen-long/HOB-0000000001")
    await zk.delete(f"{root}/idgen-long/HOB-0000000001")
    await zk.delete(f"{root}/idgen-long")


@zookeeper
async def test_long_ids_are_open_to_all(
    owned: MetadataStore, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(owned, ZooKeeperStore)
    monkeypatch.setattr("quire.metadata.zookeeper.ids.SHORT_ID_END", 1)
    assert [(await owned.create_ledger(METADATA))[0] for _ in range(2)] == [0, 2**32]
    found = await acls(owned._zk, f"{parse_uri(uri).root}/idgen-long")
    assert found["/HOB-0000000001"] == found[""] == EVERYONES


@zookeeper
async def test_a_client_without_permission_gets_a_remedy(owned: MetadataStore, uri: str) -> None:
    await all_kinds(owned)
    for options, named in ((ZooKeeperOptions(), AUTH_FILE_VARIABLE), (STRANGER, "'mallory'")):
        store = await open_metadata(uri, zookeeper=options)
        try:
            for call in (
                store.instance_id(),
                store.bookies(),
                store.read_ledger(0),
                store.create_ledger(METADATA),
                store.delete_ledger(0),
                store.write_cookie("c:1", b"", None),
                store.register_bookie(BookieAddress("c:1", "c", 1)),
                store.write_value(("y",), b"", None),
            ):
                with pytest.raises(MetadataDeniedError, match="denies access") as raised:
                    await call
                assert named in str(raised.value)
                assert "secret" not in str(raised.value)
            with pytest.raises(MetadataDeniedError):
                [found async for found in store.list_ledgers()]
        finally:
            await store.close()
    with pytest.raises(MetadataDeniedError, match=AUTH_FILE_VARIABLE):
        await quire.connect(uri)


@zookeeper
async def test_a_denied_subtree_is_not_treated_as_empty(owned: MetadataStore, uri: str) -> None:
    """A listing that left it out would make bookies delete its ledgers."""
    root = parse_uri(uri).root
    opened = ZooKeeperOptions(OWNER.digest, "open")
    store = await open_metadata(uri.replace("/ledgers", "/open"), zookeeper=opened)
    stranger = await open_metadata(uri.replace("/ledgers", "/open"), zookeeper=STRANGER)
    try:
        await store.initialise()
        await store.create_ledger(METADATA, 10_000)
        assert [r async for r in stranger.list_ledgers()]
        root = root.replace("/ledgers", "/open")
        assert isinstance(owned, ZooKeeperStore)
        await owned._zk.create(f"{root}/00/0000")  # ours alone
        with pytest.raises(MetadataDeniedError, match="/00/0000"):
            [r async for r in stranger.list_ledgers()]
    finally:
        await store.close()
        await stranger.close()


@zookeeper
async def test_an_identity_with_open_access_creates_open_nodes(uri: str) -> None:
    """acl="open": known to the server, but what we create is everyone's."""
    store = await open_metadata(uri, zookeeper=ZooKeeperOptions("quire:secret", acl="open"))
    other = await open_metadata(uri, zookeeper=ZooKeeperOptions())
    try:
        await store.initialise()
        await all_kinds(store)
        assert (await other.read_ledger(0)).version == 0
        assert isinstance(store, ZooKeeperStore)
        found = await acls(store._zk, parse_uri(uri).root)
        assert set(map(frozenset, found.values())) == {frozenset(EVERYONES)}
    finally:
        await store.close()
        await other.close()


@zookeeper
async def test_two_identities_can_have_clusters_side_by_side(
    owned: MetadataStore, uri: str
) -> None:
    """The nodes that the first created above both permit the second to create its own."""
    await owned.write_value(("a",), b"1", None)
    store = await open_metadata(uri.replace("/ledgers", "/others"), zookeeper=STRANGER)
    try:
        await store.initialise()
        await store.write_value(("a",), b"2", None)
        assert (await owned.read_value(("a",))).value == b"1"
        assert (await store.read_value(("a",))).value == b"2"
    finally:
        await store.close()


@zookeeper
async def test_an_identity_survives_reconnects_and_new_sessions(
    owned: MetadataStore, uri: str, zookeeper_server: ZooKeeperServer
) -> None:
    async with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        behind = uri.replace(f":{zookeeper_server.port}/", f":{proxy.port}/")
        store = await open_metadata(
            behind, zookeeper=OWNER, session_timeout_s=SESSION_TIMEOUT_MS / 1000
        )
        try:
            for _ in range(3):
                await store.create_ledger(METADATA)
                await proxy.drop()
        finally:
            await store.close()
    assert [i for r in [r async for r in owned.list_ledgers()] for i in r.ledger_ids] == [0, 1, 2]


@zookeeper
async def test_a_server_that_refuses_the_identity_is_reported(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kazoo_adapter, "_AUTH_SCHEME", "nonsense")

    async def use() -> None:
        store = await ZooKeeperStore.connect(
            parse_uri(uri), clock=SystemClock(), rng=random.Random(), options=OWNER
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:  # until it is told
                    await store.is_initialised()
        finally:
            await store.close()

    with pytest.raises(MetadataDeniedError, match="nonsense"):
        await use()


def quire_command(
    arguments: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# -- where the identity comes from ------------------------------------------------------------


@zookeeper
async def test_the_identity_can_come_from_the_environment(
    owned: MetadataStore, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The identity applies to the client, its blocking twin and the commands."""
    file = tmp_path / "identity"
    file.write_text(f"{OWNER.digest}\n")
    file.chmod(0o600)
    monkeypatch.setenv(AUTH_FILE_VARIABLE, str(file))
    async with quire.connect(uri) as client:
        assert [i async for i in client.list_ledgers()] == []
    command = ["cluster", "bookies", "--metadata", uri]
    run = await asyncio.to_thread(quire_command, command)
    assert (run.returncode, run.stderr) == (0, "no bookies are registered\n")
    monkeypatch.delenv(AUTH_FILE_VARIABLE)
    run = await asyncio.to_thread(quire_command, command)
    assert run.returncode == 1
    assert run.stderr.startswith("error: ZooKeeper at ")
    assert AUTH_FILE_VARIABLE in run.stderr


@zookeeper
def test_the_identity_can_be_given_in_python(uri: str) -> None:
    with pytest.raises(ClusterNotInitialisedError):
        blocking.connect(uri, zookeeper=OWNER)
    run = quire_command(["cluster", "init", "--metadata", uri], {AUTH_VARIABLE: str(OWNER.digest)})
    assert len(run.stdout.strip()) == 36, run.stderr
    with blocking.connect(uri, zookeeper=OWNER) as client:
        assert list(client.list_ledgers()) == []
    with pytest.raises(MetadataDeniedError):
        blocking.connect(uri, zookeeper=STRANGER)


def test_invalid_zookeeper_options_are_refused() -> None:
    assert not ZooKeeperOptions().private
    assert ZooKeeperOptions("u:p").private
    assert ZooKeeperOptions("u:p", "creator").private
    assert not ZooKeeperOptions("u:p", "open").private
    assert ZooKeeperOptions("u:p:q").user == "u"
    assert "geheim" not in repr(ZooKeeperOptions("u:geheim"))
    for digest, acl in (
        ("u", None),
        (":p", None),
        ("u:", None),
        ("u:p\n", None),
        ("u:p", "mine"),
        (None, "creator"),
    ):
        with pytest.raises(UsageError) as raised:
            ZooKeeperOptions(digest, acl)
        assert "u:p" not in str(raised.value)


def test_zookeeper_options_are_read_from_the_environment(tmp_path: Path) -> None:
    good, bad, long = (tmp_path / name for name in ("good", "bad", "long"))
    good.write_bytes(b"u:p p\r\n")
    bad.write_bytes(b"u:geheim\nv:q\n")
    long.write_bytes(b"u:" + b"p" * 5_000)
    for file in (good, bad, long):
        file.chmod(0o600)
    exposed = tmp_path / f"{AUTH_FILE_VARIABLE} that everybody can read"
    exposed.write_bytes(b"u:p")
    exposed.chmod(0o644)
    read = ZooKeeperOptions.from_environment
    assert read({}) == ZooKeeperOptions()
    assert read({AUTH_VARIABLE: "u:p", ACL_VARIABLE: "open"}) == ZooKeeperOptions("u:p", "open")
    assert read({AUTH_FILE_VARIABLE: str(good)}) == ZooKeeperOptions("u:p p")
    for wrong in (
        {AUTH_FILE_VARIABLE: str(bad)},
        {AUTH_FILE_VARIABLE: str(long)},
        {AUTH_FILE_VARIABLE: str(tmp_path / "missing")},
        {AUTH_FILE_VARIABLE: str(exposed)},
        {AUTH_FILE_VARIABLE: str(tmp_path)},
        {AUTH_FILE_VARIABLE: str(good), AUTH_VARIABLE: "u:p"},
        {ACL_VARIABLE: "creator"},
    ):
        with pytest.raises(UsageError) as raised:
            read(wrong)
        assert "geheim" not in str(raised.value)
        if AUTH_FILE_VARIABLE in wrong:
            assert AUTH_FILE_VARIABLE in str(raised.value)
