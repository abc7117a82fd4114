"""Marks and locks of under-replicated ledgers on each store, in ZooKeeper at Apache's places."""

from __future__ import annotations

import asyncio

import pytest

from quire._runtime.clock import SystemClock
from quire.errors import MetadataUnavailableError
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Operation, Result
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire.replication import LockHeldError, ReplicationLocks
from quire.replication.marks.locks import ReplicationLock
from tests.support.metadata.backends import Backend, tree
from tests.support.metadata.tree import lose_session
from tests.support.waiting import until

LEDGER = 12_345


def locks_of(store: MetadataStore, owner: str) -> ReplicationLocks:
    return ReplicationLocks(store, owner, SystemClock())


async def test_only_one_process_holds_the_lock(backend: Backend, store: MetadataStore) -> None:
    one, other = locks_of(store, "host-1"), locks_of(await backend.store(), "host-2")
    async with one.hold(LEDGER):
        with pytest.raises(
            LockHeldError, match="ledger 12345 was left as it is, because host-1 is copying"
        ):
            async with other.hold(LEDGER):
                pass
        async with other.hold(LEDGER + 1):
            pass
        with pytest.raises(LockHeldError):  # nor twice by the same session
            async with one.hold(LEDGER):
                pass
    async with other.hold(LEDGER):
        pass


async def test_a_lock_ends_with_the_session(backend: Backend, store: MetadataStore) -> None:
    mortal = await backend.store()
    held = locks_of(mortal, "host-1").hold(LEDGER)
    await held.__aenter__()
    await mortal.close()

    async def can_be_held() -> bool:
        try:
            async with locks_of(store, "host-2").hold(LEDGER):
                return True
        except LockHeldError:
            return False

    await until(can_be_held)


async def test_a_lock_names_its_holder_and_time(store: MetadataStore) -> None:
    locks = locks_of(store, "host-1")
    assert await locks.held_by(LEDGER) is None
    before_ms = SystemClock().now_ms()
    async with locks.hold(LEDGER):
        holder = await locks.held_by(LEDGER)
    assert holder is not None
    assert holder.owner == "host-1"
    assert holder.since_ms is not None
    assert before_ms <= holder.since_ms <= SystemClock().now_ms()
    assert await locks.held_by(LEDGER) is None


async def test_a_lock_that_could_not_be_released_is_released_later(
    backend: Backend, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, other = locks_of(store, "host-1"), locks_of(await backend.store(), "host-2")
    commit = store.tree.commit

    async def fails(*operations: Operation) -> list[Result]:
        raise MetadataUnavailableError("it does not answer")

    async with locks.hold(LEDGER):
        monkeypatch.setattr(store.tree, "commit", fails)
    monkeypatch.setattr(store.tree, "commit", commit)
    with pytest.raises(LockHeldError):
        async with other.hold(LEDGER):
            pass
    await locks.tidy()
    async with other.hold(LEDGER):
        await locks.tidy()  # it is not ours any more
        assert await other.held_by(LEDGER) is not None


async def test_a_lock_is_released_even_if_the_release_is_cancelled(
    backend: Backend, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, other = locks_of(store, "host-1"), locks_of(await backend.store(), "host-2")
    commit, releasing = store.tree.commit, asyncio.Event()

    async def hangs(*operations: Operation) -> list[Result]:
        monkeypatch.setattr(store.tree, "commit", commit)
        releasing.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def work() -> None:
        async with locks.hold(LEDGER):
            monkeypatch.setattr(store.tree, "commit", hangs)

    holding = asyncio.ensure_future(work())
    await releasing.wait()
    holding.cancel()
    await asyncio.wait([holding])
    assert holding.cancelled()
    async with other.hold(LEDGER):
        pass


async def test_a_lock_acquired_by_a_new_session_is_released(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was away when the lock was taken, and the session ended meanwhile."""
    store, other = await backend.store(1_000), locks_of(await backend.store(), "host-2")
    locks, make_path = locks_of(store, "host-1"), store.tree.make_path

    async def losing(path: str, value: bytes = b"") -> None:
        await make_path(path, value)
        await lose_session(backend, store)

    async with locks.hold(LEDGER + 1):
        pass  # it begins a session in a SQLite store
    monkeypatch.setattr(store.tree, "make_path", losing)
    before = store.tree.session_id
    async with locks.hold(LEDGER):
        assert store.tree.session_id != before
        assert await other.held_by(LEDGER) is not None
    assert await other.held_by(LEDGER) is None
    async with other.hold(LEDGER):
        pass
    await store.close()


async def test_a_lock_of_another_process_is_not_released(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ended, and with it the lock."""
    store, other = await backend.store(1_000), locks_of(await backend.store(), "host-2")
    before = store.tree.session_id
    async with locks_of(store, "host-1").hold(LEDGER):
        await lose_session(backend, store)
        await until(lambda: store.tree.session_id != before)
        theirs = other.hold(LEDGER)
        await theirs.__aenter__()
    assert await other.held_by(LEDGER) is not None
    await theirs.__aexit__(None, None, None)
    assert await other.held_by(LEDGER) is None
    await store.close()


async def test_a_mark_is_removed_unless_it_was_set_again(store: MetadataStore) -> None:
    locks = locks_of(store, "host-1")
    async with locks.hold(LEDGER) as lock:
        assert lock.mark is None
        await locks.replicated(lock)
    await locks.mark(LEDGER, ["a:1"])
    async with locks.hold(LEDGER) as lock:
        await locks.mark(LEDGER, ["b:1"])
        await locks.replicated(lock)
    marked = await locks.marked(LEDGER)
    assert marked is not None
    assert marked.value.replicas == ("a:1", "b:1")
    async with locks.hold(LEDGER) as lock:
        await locks.replicated(lock)
    assert await locks.marked(LEDGER) is None
    await locks.mark(LEDGER, ["c:1"])  # its parents are made again
    assert await locks.marked(LEDGER) is not None


async def test_a_mark_set_after_a_removal_is_kept(store: MetadataStore) -> None:
    """Its version is that of the former one."""
    locks = locks_of(store, "host-1")
    await locks.mark(LEDGER, ["a:1"])
    async with locks.hold(LEDGER) as lock:
        await locks.replicated(lock)
        await locks.mark(LEDGER, ["b:1"])
        await locks.replicated(lock)
    marked = await locks.marked(LEDGER)
    assert marked is not None
    assert marked.value.replicas == ("b:1",)


async def test_a_mark_set_while_the_lock_was_lost_is_kept(store: MetadataStore) -> None:
    """Another process has removed the mark meanwhile, and the versions have begun again."""
    locks, other = locks_of(store, "host-1"), locks_of(store, "host-2")
    await locks.mark(LEDGER, ["a:1"])
    async with locks.hold(LEDGER) as lock:
        assert await other.replicated(ReplicationLock(LEDGER, await other.marked(LEDGER)))
        await other.mark(LEDGER, ["b:1"])
        assert not await locks.replicated(lock)
    marked = await locks.marked(LEDGER)
    assert marked is not None
    assert marked.value.replicas == ("b:1",)


async def test_marks_and_locks_have_apaches_paths(backend: Backend, store: MetadataStore) -> None:
    if not isinstance(store, ZooKeeperStore):
        assert not locks_of(store, "x").root.startswith("/ledgers")
        return
    locks = locks_of(store, "host-1")
    await locks.mark(LEDGER, ["10.0.0.2:3181"])
    async with locks.hold(LEDGER):
        root = parse_uri(backend.uri).root
        nodes = await tree(store._root.zk, f"{root}/underreplication")
    # What follows is a comment in that format: Java's readers skip it.
    assert nodes["/locks/urL0000012345"].startswith(b'bookieId: "host-1"\n# since_ms=')
    mark = nodes["/ledgers/0000/0000/0000/3039/urL0000012345"]
    assert mark.startswith(b'replica: "10.0.0.2:3181"\nctime: ')
