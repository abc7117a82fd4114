"""The write lock of a stream on every driver: one owner, in order, and no leftovers."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator

import pytest

from quire._runtime.tasks import TaskSet
from quire.codec.distributedlog.lock import LockMember
from quire.errors import StreamLockedError
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create, Delete, Tree
from quire.streams.write.lock import StreamLock
from tests.support.metadata.backends import PATIENCE_S, Backend
from tests.support.metadata.tree import lose_session
from tests.support.waiting import until

_paths = itertools.count()


@pytest.fixture
async def tasks() -> AsyncIterator[TaskSet]:
    tasks = TaskSet()
    yield tasks
    await tasks.close()


@pytest.fixture
async def path(store: MetadataStore) -> str:
    path = f"/lock-{os.getpid()}-{next(_paths)}"
    await store.tree.make_path(path)
    return path


async def waiting(tree: Tree, path: str, count: int) -> list[str]:
    """Wait for this number of members, and return them."""
    return await until(lambda: tree.children(path), right=lambda names: len(names) == count)


async def test_a_stream_lock_has_one_owner_at_a_time(
    store: MetadataStore, path: str, tasks: TaskSet
) -> None:
    first = StreamLock(store.tree, path, tasks)
    await first.acquire(0)
    [name] = await store.tree.children(path)
    data = (await store.tree.read(f"{path}/{name}")).value
    member = LockMember.parse(name, data, 0)
    assert member.session_id == store.tree.session_id
    assert member.client_id == data.decode()
    second = StreamLock(store.tree, path, tasks)
    with pytest.raises(StreamLockedError, match=member.client_id):
        await second.acquire(0)
    with pytest.raises(StreamLockedError):
        await StreamLock(store.tree, path, tasks).acquire(0.05)
    assert await store.tree.children(path) == [name]
    assert not first.lost.done()
    await first.release()
    await first.release()
    assert await store.tree.children(path) == []
    third = StreamLock(store.tree, path, tasks)
    await third.acquire(0)
    await third.release()


async def test_a_stream_lock_is_granted_in_order(
    backend: Backend, store: MetadataStore, path: str, tasks: TaskSet
) -> None:
    """The owners are two sessions. A member in the middle gives up, which affects no other."""
    other = await backend.store()
    owned: list[int] = []
    locks = [StreamLock((store, other)[n % 2].tree, path, tasks) for n in range(5)]
    await locks[0].acquire(0)

    async def acquire(number: int) -> None:
        await locks[number].acquire(PATIENCE_S)
        owned.append(number)

    begun = []
    for number in range(1, 5):
        begun.append(asyncio.create_task(acquire(number)))
        await waiting(store.tree, path, number + 1)
    begun[1].cancel()
    assert isinstance((await asyncio.gather(begun[1], return_exceptions=True))[0], BaseException)
    await waiting(store.tree, path, 4)
    assert owned == []
    await locks[0].release()
    for number in (1, 3, 4):
        async with asyncio.timeout(PATIENCE_S):
            await begun[number - 1]
        assert owned[-1] == number
        assert not locks[number].lost.done()
        await locks[number].release()
    assert owned == [1, 3, 4]
    assert await store.tree.children(path) == []


async def test_lock_members_are_ordered_by_number(
    store: MetadataStore, path: str, tasks: TaskSet
) -> None:
    """Members are ordered by number, whatever their names are, and those without a number come
    last.
    """
    [old] = await store.tree.commit(Create(f"{path}/member_", b"old", sequential=True))
    await store.tree.commit(Create(f"{path}/member_none", b"no number"))
    lock = StreamLock(store.tree, path, tasks)
    with pytest.raises(StreamLockedError):
        await lock.acquire(0)
    lock = StreamLock(store.tree, path, tasks)
    begun = asyncio.create_task(lock.acquire(PATIENCE_S))
    await waiting(store.tree, path, 3)
    await store.tree.commit(Delete(str(old)))
    async with asyncio.timeout(PATIENCE_S):
        await begun
    await lock.release()
    assert await store.tree.children(path) == ["member_none"]


async def test_a_cancelled_wait_leaves_no_lock_member(
    store: MetadataStore, path: str, tasks: TaskSet
) -> None:
    """At any step, a member that joined unnoticed would hold up all the others."""
    owner = StreamLock(store.tree, path, tasks)
    await owner.acquire(0)
    for turns in range(30):
        begun = asyncio.create_task(StreamLock(store.tree, path, tasks).acquire(PATIENCE_S))
        for _ in range(turns):
            await asyncio.sleep(0)
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        assert len(await store.tree.children(path)) == 1
    await owner.release()


async def test_the_loss_of_a_session_ends_the_lock(
    backend: Backend, store: MetadataStore, path: str, tasks: TaskSet
) -> None:
    other = await backend.store()
    lock = StreamLock(store.tree, path, tasks)
    await lock.acquire(0)
    next_one = StreamLock(other.tree, path, tasks)
    begun = asyncio.create_task(next_one.acquire(PATIENCE_S))
    await waiting(other.tree, path, 2)
    await lose_session(backend, store)
    async with asyncio.timeout(PATIENCE_S):
        await begun
        await lock.lost
    assert not next_one.lost.done()
    await lock.release()
    assert len(await other.tree.children(path)) == 1
    await next_one.release()


async def test_a_waiting_lock_continues_in_a_new_session(
    backend: Backend, store: MetadataStore, path: str, tasks: TaskSet
) -> None:
    other = await backend.store()
    owner = StreamLock(other.tree, path, tasks)
    await owner.acquire(0)
    lock = StreamLock(store.tree, path, tasks)
    begun = asyncio.create_task(lock.acquire(PATIENCE_S))
    before = await waiting(other.tree, path, 2)
    await lose_session(backend, store)
    await owner.release()
    async with asyncio.timeout(PATIENCE_S):
        await begun
    [name] = await waiting(other.tree, path, 1)
    assert name not in before
    await lock.release()


async def test_waiting_for_the_lock_of_a_deleted_stream_fails(
    store: MetadataStore, path: str, tasks: TaskSet
) -> None:
    lock = StreamLock(store.tree, path, tasks)
    await lock.acquire(0)
    await store.tree.delete_tree(path)
    async with asyncio.timeout(PATIENCE_S):
        await lock.lost
    await lock.release()
