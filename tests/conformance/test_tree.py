"""Requirements for every tree of nodes. One suite runs with three drivers."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable

import pytest

from quire.errors import (
    ClientClosedError,
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    NotEmptyError,
    UsageError,
    VersionConflictError,
)
from quire.metadata import tree as limits
from quire.metadata.common import NODE_BYTES_MAX
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Tree
from tests.support.metadata.backends import NOT_A_FILE, Backend
from tests.support.metadata.tree import lose_session
from tests.support.waiting import until

_bases = itertools.count()


@pytest.fixture
async def tree(store: MetadataStore) -> Tree:
    return store.tree


@pytest.fixture
async def base(tree: Tree) -> str:
    """A node that no other test uses: all of them share one ZooKeeper."""
    path = f"/tree-{os.getpid()}-{next(_bases)}"
    await tree.make_path(path)
    return path


# -- nodes ------------------------------------------------------------------------------------


async def test_nodes_are_created_changed_and_deleted(tree: Tree, base: str) -> None:
    path = f"{base}/node"
    assert not await tree.exists(path)
    assert await tree.commit(Create(path, b"\x00one")) == [path]
    assert await tree.exists(path)
    assert await tree.read(path) == Versioned(b"\x00one", 0)
    assert await tree.children(path) == []
    assert await tree.commit(Put(path, b"", 0)) == [1]
    assert await tree.commit(Put(path, b"any")) == [2]
    assert await tree.read(path) == Versioned(b"any", 2)
    assert await tree.commit(Check(path, 2), Check(path, limits.ANY_VERSION)) == [None, None]
    assert await tree.commit(Delete(path, 2)) == [None]
    assert not await tree.exists(path)
    assert await tree.commit(Create(path)) == [path]
    assert await tree.read(path) == Versioned(b"", 0)  # anew
    assert await tree.commit() == []


async def test_children_are_sorted_names(tree: Tree, base: str) -> None:
    names = ["b", "a", "inprogress_2", "<default>", "ä", "z z", "a0", "a-", "."]
    await tree.commit(*(Create(f"{base}/{name}") for name in names[:-1]))
    await tree.commit(Create(f"{base}/a/below"), Create(f"{base}/a/below/that"))
    assert await tree.children(base) == sorted(names[:-1])
    assert await tree.children(f"{base}/a") == ["below"]


async def test_the_root_exists_and_cannot_be_deleted(tree: Tree, base: str) -> None:
    assert await tree.exists("/")
    assert (await tree.read("/")).version >= 0
    found = await tree.children("/")
    assert base[1:] in found
    assert "zookeeper" not in found
    await tree.make_path("/")
    assert await tree.commit(Check("/", limits.ANY_VERSION)) == [None]
    for refused in (Create("/"), Delete("/")):
        with pytest.raises(UsageError, match="node /"):
            await tree.commit(refused)
    with pytest.raises(UsageError):
        await tree.delete_tree("/")


@pytest.mark.parametrize("empty_backend", NOT_A_FILE, indirect=True)
async def test_a_tree_needs_no_cluster(empty_backend: Backend) -> None:
    store = await empty_backend.store()
    path = f"/tree-{os.getpid()}-{next(_bases)}/a/b"
    seen: list[Versioned[bytes] | None] = []
    store.tree.watch_value(path, seen.append)
    await store.tree.make_path(path, b"1")
    assert await store.tree.read(path) == Versioned(b"1", 0)
    await until(lambda: seen[-1:] == [Versioned(b"1", 0)])
    assert not await store.is_initialised()


# -- errors -----------------------------------------------------------------------------------


async def test_operations_on_missing_nodes_raise_no_such_key(tree: Tree, base: str) -> None:
    gone = f"{base}/gone"
    for call in (tree.read(gone), tree.children(gone)):
        with pytest.raises(NoSuchKeyError, match=gone):
            await call
    for operation in (Put(gone, b""), Put(gone, b"", 0), Delete(gone), Check(gone, 0)):
        with pytest.raises(NoSuchKeyError, match=f"{type(operation).__name__.lower()} {gone}"):
            await tree.commit(operation)
    with pytest.raises(NoSuchKeyError, match=f"create {gone}/below.*{gone} does not exist"):
        await tree.commit(Create(f"{gone}/below"))
    with pytest.raises(NoSuchKeyError):
        await tree.commit(Create(f"{gone}/below-", sequential=True))
    assert await tree.children(base) == []


async def test_creating_an_existing_node_raises_key_exists(tree: Tree, base: str) -> None:
    path = f"{base}/node"
    await tree.commit(Create(path, b"1"))
    with pytest.raises(KeyExistsError, match=f"create {path}") as raised:
        await tree.commit(Create(path, b"2"))
    assert raised.value.outcome_known
    assert await tree.read(path) == Versioned(b"1", 0)


@pytest.mark.parametrize("version", [0, 2])
async def test_operations_with_another_version_raise_a_conflict(
    tree: Tree, base: str, version: int
) -> None:
    path = f"{base}/node"
    await tree.commit(Create(path))
    await tree.commit(Put(path, b"1"))
    for operation in (Put(path, b"2", version), Delete(path, version), Check(path, version)):
        name = type(operation).__name__.lower()
        with pytest.raises(VersionConflictError, match=f"{name} {path}") as raised:
            await tree.commit(operation)
        assert raised.value.outcome_known
    assert await tree.read(path) == Versioned(b"1", 1)


async def test_a_node_with_children_is_not_deleted(tree: Tree, base: str) -> None:
    await tree.commit(Create(f"{base}/a"), Create(f"{base}/a/b"))
    with pytest.raises(NotEmptyError, match=f"delete {base}/a"):
        await tree.commit(Delete(f"{base}/a"))
    assert await tree.children(f"{base}/a") == ["b"]
    await tree.commit(Delete(f"{base}/a/b"), Delete(f"{base}/a"))
    assert await tree.children(base) == []


@pytest.mark.parametrize(
    "path",
    [
        *("", "a", "//", "/a/", "/a//b", "/a/./b", "/.."),
        *("/a\0", "/a\x1f", "/\x7f", "/\ue000", "/\U0001f600", "/\ufff0", "/\ud800"),
        *("/zookeeper", "/zookeeper/quota"),
    ],
)
async def test_paths_that_some_stores_cannot_have_are_refused(tree: Tree, path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: tree.watch_children(path, lambda names: None),
        lambda: tree.watch_value(path, lambda value: None),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()
    for refused in (
        tree.read(path),
        tree.exists(path),
        tree.children(path),
        tree.make_path(path),
        tree.delete_tree(path),
        *(tree.commit(o) for o in (Create(path), Put(path, b""), Delete(path), Check(path, 0))),
    ):
        with pytest.raises(UsageError):
            await refused


async def test_commits_over_the_limits_are_refused(tree: Tree, base: str) -> None:
    path = f"{base}/node"
    for refused in (
        (Create(path, b"x" * (NODE_BYTES_MAX + 1)),),
        (Put(base, b"x" * (NODE_BYTES_MAX + 1)),),
        (Create(path, b"x" * 600_000), Put(path, b"y" * 400_000)),
        (Check(base, 0),) * (limits.COMMIT_OPERATIONS_MAX + 1),
        (Put(base, b"", -2),),
        (Delete(base, -2),),
        (Check(base, -2),),
    ):
        with pytest.raises(UsageError):
            await tree.commit(*refused)
    with pytest.raises(UsageError):
        await tree.make_path(path, b"x" * (NODE_BYTES_MAX + 1))
    large = b"x" * (limits.COMMIT_BYTES_MAX - limits.OPERATION_BYTES - len(path))
    await tree.commit(Create(path, large))
    assert (await tree.read(path)).value == large
    await tree.commit(Delete(path))
    number = limits.COMMIT_OPERATIONS_MAX
    filler = limits.COMMIT_BYTES_MAX // number - limits.OPERATION_BYTES - len(path) - 4
    many = [Create(f"{path}{i:04d}", b"x" * filler) for i in range(number)]
    assert await tree.commit(*many) == [operation.path for operation in many]
    assert len(await tree.children(base)) == number
    await tree.delete_tree(base)
    assert not await tree.exists(base)


# -- commits ----------------------------------------------------------------------------------


async def test_a_commit_is_atomic(tree: Tree, base: str) -> None:
    kept = f"{base}/kept"
    await tree.commit(Create(kept, b"1"), Create(f"{kept}/child"))
    good: list[Operation] = [
        Put(kept, b"2", 0),
        Put(base, b"changed"),
        Delete(f"{kept}/child"),
        Create(f"{kept}/child", b"other"),
        Create(f"{base}/new"),
        Create(f"{base}/new/below"),
        Create(f"{base}/n-", sequential=True),
        Create(f"{base}/mine", ephemeral=True),
    ]
    bad: list[tuple[Operation, type[MetadataError]]] = [
        (Create(kept), KeyExistsError),
        (Create(f"{base}/no/parent"), NoSuchKeyError),
        (Put(kept, b"3", 0), VersionConflictError),
        (Delete(f"{base}/new"), NotEmptyError),
        (Check(f"{base}/none", 0), NoSuchKeyError),
    ]
    before = await tree.read(base)
    for operation, error in bad:
        for at in (len(good), 0):
            if at == 0 and operation in (bad[2][0], bad[3][0]):
                continue  # only wrong behind the others
            with pytest.raises(error):
                await tree.commit(*good[:at], operation, *good[at:])
        assert await tree.read(base) == before
        assert await tree.read(kept) == Versioned(b"1", 0)
        assert await tree.read(f"{kept}/child") == Versioned(b"", 0)
        assert await tree.children(base) == ["kept"]
    # No number was used up either.
    assert (await tree.commit(*good))[6] == f"{base}/n-0000000002"


async def test_operations_of_a_commit_see_the_earlier_ones(tree: Tree, base: str) -> None:
    path = f"{base}/logrecs_1"
    await tree.commit(Create(path, b"active"))
    await tree.commit(Put(path, b"later"))
    assert await tree.commit(Delete(path), Create(path, b"truncated"), Check(path, 0)) == [
        None,
        path,
        None,
    ]
    assert await tree.read(path) == Versioned(b"truncated", 0)
    results = await tree.commit(
        Put(path, b"1", 0),
        Put(path, b"2"),
        Create(f"{path}/below"),
        Put(path, b"3", 2),
        Delete(f"{path}/below"),
        Check(path, 3),
    )
    assert results == [1, 2, f"{path}/below", 3, None, None]
    assert await tree.read(path) == Versioned(b"3", 3)


async def test_concurrent_increments_are_counted_once(backend: Backend, base: str) -> None:
    trees = [(await backend.store()).tree for _ in range(3)]
    counter, places = f"{base}/counter", f"{base}/places"
    await trees[0].commit(Create(counter, b"0"), Create(places))

    async def count(tree: Tree, name: str) -> None:
        done = 0
        while done < 10:
            now = await tree.read(counter)
            after = b"%d" % (int(now.value) + 1)
            try:
                await tree.commit(
                    Put(counter, after, now.version),
                    Create(f"{places}/{after.decode()}", name.encode()),
                )
                done += 1
            except VersionConflictError:
                await tree.sync()

    async with asyncio.TaskGroup() as group:
        for number, tree in enumerate([*trees, *trees]):
            group.create_task(count(tree, f"{number}"))
    await trees[0].sync()
    assert await trees[0].read(counter) == Versioned(b"60", 60)
    assert len(await trees[0].children(places)) == 60


async def test_commits_of_others_are_visible_after_a_sync(backend: Backend, base: str) -> None:
    one, two = (await backend.store()).tree, (await backend.store()).tree
    for number in range(20):
        await one.commit(Put(base, b"%d" % number))
        await two.sync()
        assert (await two.read(base)).value == b"%d" % number


# -- sequential nodes -------------------------------------------------------------------------


async def test_sequence_numbers_count_all_creations_below_the_parent(tree: Tree, base: str) -> None:
    def numbered(name: str) -> Create:
        return Create(f"{base}/{name}", sequential=True)

    assert await tree.commit(numbered("a-")) == [f"{base}/a-0000000000"]
    assert await tree.commit(Create(f"{base}/plain"), numbered("b"), numbered("a-")) == [
        f"{base}/plain",
        f"{base}/b0000000002",
        f"{base}/a-0000000003",
    ]
    assert await tree.children(base) == ["a-0000000000", "a-0000000003", "b0000000002", "plain"]
    await tree.commit(Delete(f"{base}/a-0000000003"), Delete(f"{base}/plain"))
    assert await tree.commit(numbered("a-")) == [f"{base}/a-0000000004"]
    await tree.delete_tree(base)
    await tree.make_path(base)
    assert await tree.commit(numbered("a-")) == [f"{base}/a-0000000000"]


async def test_a_sequence_number_in_use_raises_key_exists(tree: Tree, base: str) -> None:
    await tree.commit(Create(f"{base}/a-0000000001"))
    with pytest.raises(KeyExistsError):
        await tree.commit(Create(f"{base}/a-", sequential=True))


# -- ephemeral nodes --------------------------------------------------------------------------


async def test_ephemeral_nodes_disappear_with_their_store(backend: Backend, base: str) -> None:
    one, two = await backend.store(), await backend.store()
    member = Create(f"{base}/member_", b"one", ephemeral=True, sequential=True)
    (path,) = await one.tree.commit(member)
    assert path == f"{base}/member_0000000000"
    await one.tree.commit(Create(f"{base}/stays"), Create(f"{base}/mine", ephemeral=True))
    await two.tree.commit(Create(f"{base}/other", ephemeral=True))
    await two.tree.sync()
    assert await two.tree.children(base) == ["member_0000000000", "mine", "other", "stays"]
    assert await two.tree.read(f"{path}") == Versioned(b"one", 0)
    assert await two.tree.commit(Put(f"{base}/mine", b"theirs", 0)) == [1]
    with pytest.raises(UsageError, match="ephemeral"):
        await two.tree.commit(Create(f"{path}/below"))
    with pytest.raises(UsageError, match="ephemeral"):
        await two.tree.make_path(f"{path}/below")
    await one.close()
    await two.tree.sync()
    assert await two.tree.children(base) == ["other", "stays"]
    assert not await two.tree.exists(f"{path}")
    assert await two.tree.commit(Create(f"{base}/mine"), member) == [
        f"{base}/mine",
        f"{base}/member_0000000005",
    ]
    assert one.tree.session_id != two.tree.session_id


async def test_a_lost_session_removes_ephemeral_nodes_and_is_reported(
    backend: Backend, base: str
) -> None:
    """Ephemeral nodes are gone, and the store is notified and continues with another session."""
    one, two = await backend.store(1_000), await backend.store()
    path = f"{base}/lock"
    await one.tree.commit(Create(path, ephemeral=True), Create(f"{base}/stays"))
    before = one.tree.session_id
    told: list[int] = []
    closed: list[int] = []
    one.tree.on_session_lost(lambda: told.append(one.tree.session_id))
    one.tree.on_session_lost(lambda: closed.append(1)).close()
    seen: list[list[str] | None] = []
    two.tree.watch_children(base, seen.append)
    await until(lambda: seen == [["lock", "stays"]])
    await lose_session(backend, one)
    await until(lambda: seen[-1:] == [["stays"]])
    await until(lambda: len(told) == 1)
    assert told == [one.tree.session_id]
    assert told != [before]
    assert not await one.tree.exists(path)
    with pytest.raises(NoSuchKeyError):
        await one.tree.commit(Check(path, 0), Put(base, b"under the lock"))
    assert await one.tree.commit(Create(path, b"again", ephemeral=True)) == [path]
    await until(lambda: seen[-1:] == [["lock", "stays"]])
    await one.close()
    await until(lambda: seen[-1:] == [["stays"]])
    assert len(told) == 1
    assert closed == []


async def test_a_lock_taken_from_a_lost_session_stays_with_the_winner(
    backend: Backend, base: str
) -> None:
    """Before the loser knows: the place is free, and stays the winner's."""
    one, two = await backend.store(), await backend.store()
    lock = f"{base}/lock"
    await one.tree.commit(Create(lock, b"one", ephemeral=True))
    await lose_session(backend, one)
    await two.tree.sync()
    assert await two.tree.commit(Create(lock, b"two", ephemeral=True)) == [lock]
    with pytest.raises(KeyExistsError):
        await one.tree.commit(Create(lock, b"one", ephemeral=True))
    await one.close()
    assert await two.tree.read(lock) == Versioned(b"two", 0)


# -- paths and trees --------------------------------------------------------------------------


async def test_make_path_creates_missing_parents_and_changes_no_value(
    tree: Tree, base: str
) -> None:
    path = f"{base}/a/b/c"
    await tree.make_path(path, b"value")
    assert await tree.read(path) == Versioned(b"value", 0)
    assert await tree.read(f"{base}/a/b") == Versioned(b"", 0)
    await tree.make_path(path, b"other")
    await tree.make_path(f"{base}/a/b", b"other")
    assert await tree.read(path) == Versioned(b"value", 0)
    assert await tree.read(f"{base}/a/b") == Versioned(b"", 0)
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(tree.make_path(f"{base}/d/e/{number}"))
    assert len(await tree.children(f"{base}/d/e")) == 10


async def test_delete_tree_removes_only_the_subtree(tree: Tree, base: str) -> None:
    for path in ("a/b/c", "a/b/d", "a/e", "a-", "a0", "ab/c"):
        await tree.make_path(f"{base}/{path}")
    await tree.commit(Create(f"{base}/a/mine", ephemeral=True))
    await tree.delete_tree(f"{base}/a")
    assert await tree.children(base) == ["a-", "a0", "ab"]
    await tree.delete_tree(f"{base}/a")
    await tree.delete_tree(f"{base}/none/such")
    await tree.delete_tree(base)
    assert not await tree.exists(base)


async def test_two_clients_can_delete_the_same_tree(backend: Backend, base: str) -> None:
    trees = [(await backend.store()).tree for _ in range(2)]
    for start in range(0, 300, 100):
        await trees[0].commit(*(Create(f"{base}/{start + i}") for i in range(100)))
    await asyncio.gather(*(tree.delete_tree(base) for tree in trees))
    assert not await trees[0].exists(base)


# -- watches ----------------------------------------------------------------------------------


async def test_children_are_watched_over_deletion_and_creation(backend: Backend, base: str) -> None:
    one, two = (await backend.store()).tree, (await backend.store()).tree
    path = f"{base}/segments"
    seen: list[list[str] | None] = []
    watch = one.watch_children(path, seen.append)
    await until(lambda: seen == [None])
    await two.make_path(path)
    await until(lambda: seen == [None, []])
    await two.commit(Create(f"{path}/b"))
    await until(lambda: seen[2:] == [["b"]])
    await one.commit(Create(f"{path}/a"))  # its own changes as well
    await until(lambda: seen[3:] == [["a", "b"]])
    await two.commit(Put(path, b"no child"), Put(f"{path}/a", b"nor this"))
    await two.commit(Delete(f"{path}/a"), Create(f"{path}/c"))
    await until(lambda: seen[4:] == [["b", "c"]])
    await two.delete_tree(path)
    await until(lambda: seen[-1] is None)
    await two.make_path(f"{path}/d")
    await until(lambda: seen[-1] == ["d"])
    watch.close()
    watch.close()
    counted = len(seen)
    others: list[list[str] | None] = []
    one.watch_children(path, others.append)
    await until(lambda: others == [["d"]])
    await two.commit(Create(f"{path}/e"))
    await until(lambda: others == [["d"], ["d", "e"]])
    assert len(seen) == counted


async def test_values_are_watched_over_deletion_and_creation(backend: Backend, base: str) -> None:
    one, two = (await backend.store()).tree, (await backend.store()).tree
    path = f"{base}/value"
    seen: list[Versioned[bytes] | None] = []
    one.watch_value(path, seen.append)
    await until(lambda: seen == [None])
    await two.commit(Create(path, b"0"))
    await until(lambda: seen == [None, Versioned(b"0", 0)])
    await two.commit(Put(path, b"0"), Create(f"{path}/child"))
    await until(lambda: seen[2:] == [Versioned(b"0", 1)])
    await two.commit(Delete(f"{path}/child"), Delete(path), Create(path, b"anew"))
    await until(lambda: seen[-1] == Versioned(b"anew", 0))
    await two.commit(Delete(path))
    await until(lambda: seen[-1] is None)
    assert seen.count(Versioned(b"0", 1)) == 1


async def test_many_watches_report_every_change(backend: Backend, base: str) -> None:
    one, two = (await backend.store()).tree, (await backend.store()).tree
    paths = [f"{base}/{number}" for number in range(50)]
    await one.commit(*(Create(path) for path in paths))
    last: dict[str, list[str] | None] = {}

    def keep(path: str) -> Callable[[list[str] | None], None]:
        return lambda names: last.update({path: names})

    watches = [two.watch_children(path, keep(path)) for path in paths]
    await until(lambda: len(last) == 50)
    for path in paths:
        await one.commit(Create(f"{path}/x"))
    await until(lambda: all(names == ["x"] for names in last.values()))
    for watch in watches:
        watch.close()


# -- the end ----------------------------------------------------------------------------------


async def test_a_closed_tree_raises_client_closed(backend: Backend, base: str) -> None:
    store = await backend.store()
    await store.close()
    for call in (
        store.tree.read(base),
        store.tree.exists(base),
        store.tree.children(base),
        store.tree.commit(Put(base, b"")),
        store.tree.commit(Create(f"{base}/e", ephemeral=True)),
        store.tree.make_path(f"{base}/a"),
        store.tree.delete_tree(base),
        store.tree.sync(),
    ):
        with pytest.raises(ClientClosedError):
            await call
    for watch in (store.tree.watch_children, store.tree.watch_value):
        with pytest.raises(ClientClosedError):
            watch(base, lambda found: None)
    with pytest.raises(ClientClosedError):
        store.tree.on_session_lost(lambda: None)
    with pytest.raises(ClientClosedError):
        store.on_outage(lambda seconds: None)


async def test_a_node_created_and_deleted_in_one_commit_leaves_nothing(
    tree: Tree, base: str
) -> None:
    """Such a transaction succeeds exactly if the node does not exist, and leaves nothing."""
    await tree.make_path(f"{base}/a/b")
    absent = [Create(f"{base}/a/c"), Delete(f"{base}/a/c")]
    await tree.commit(*absent, Delete(f"{base}/a/b"))
    assert await tree.children(f"{base}/a") == []
    await tree.make_path(f"{base}/a/b")
    await tree.make_path(f"{base}/a/c")
    with pytest.raises(KeyExistsError):
        await tree.commit(*absent, Delete(f"{base}/a/b"))
    assert await tree.children(f"{base}/a") == ["b", "c"]
    await tree.delete_tree(f"{base}/a")
    with pytest.raises(NoSuchKeyError):
        await tree.commit(*absent)
