"""Requirements for every metadata store about cookies, and values with keys."""

from __future__ import annotations

import asyncio

import pytest

from quire.errors import KeyExistsError, NoSuchKeyError, UsageError, VersionConflictError
from quire.metadata.interface import BookieAddress, MetadataStore, Versioned
from tests.support.metadata.backends import Backend

ONE = BookieAddress("bookie-1", "10.0.0.1", 3181, {"zone": "a"})
TWO = BookieAddress("10.0.0.2:3181", "10.0.0.2", 3181)


async def test_cookies_are_created_changed_and_deleted_by_version(backend: Backend) -> None:
    one, two = await backend.store(), await backend.store()
    assert await one.list_cookies() == []
    with pytest.raises(NoSuchKeyError, match="b:1"):
        await one.read_cookie("b:1")
    with pytest.raises(NoSuchKeyError):
        await one.write_cookie("b:1", b"x", 0)
    version = await one.write_cookie("b:1", b"5\n", None)
    assert await two.read_cookie("b:1") == Versioned(b"5\n", version)
    with pytest.raises(KeyExistsError):
        await two.write_cookie("b:1", b"5\n", None)
    newer = await two.write_cookie("b:1", b"new", version)
    assert newer > version
    with pytest.raises(VersionConflictError):
        await one.write_cookie("b:1", b"lost", version)
    with pytest.raises(VersionConflictError):
        await one.delete_cookie("b:1", version)
    assert await one.read_cookie("b:1") == Versioned(b"new", newer)
    await one.write_cookie("a:1", b"", None)
    assert await two.list_cookies() == ["a:1", "b:1"]
    await one.delete_cookie("b:1", newer)
    await one.delete_cookie("b:1")
    await one.delete_cookie("a:1")
    assert await two.list_cookies() == []


async def test_values_are_created_changed_and_deleted_by_version(backend: Backend) -> None:
    one, two = await backend.store(), await backend.store()
    key = ("datasets", "flights")
    assert await one.list_values(()) == []
    assert await one.list_values(("datasets",)) == []
    with pytest.raises(NoSuchKeyError, match="datasets/flights"):
        await one.read_value(key)
    with pytest.raises(NoSuchKeyError):
        await one.write_value(key, b"", 0)
    assert not await one.delete_value(key)
    version = await one.write_value(key, b"", None)
    assert await two.read_value(key) == Versioned(b"", version)
    with pytest.raises(KeyExistsError):
        await two.write_value(key, b"", None)
    newer = await two.write_value(key, b"{}", version)
    with pytest.raises(VersionConflictError):
        await one.write_value(key, b"lost", version)
    with pytest.raises(VersionConflictError):
        await one.delete_value(key, version)
    assert await one.read_value(key) == Versioned(b"{}", newer)
    assert await one.delete_value(key, newer)
    assert not await one.delete_value(key)
    with pytest.raises(NoSuchKeyError):
        await two.read_value(key)
    assert await one.list_values(()) == []
    assert await two.write_value(key, b"again", None) >= 0


async def test_a_recreated_value_is_distinguished_by_its_content(backend: Backend) -> None:
    """Its version is that of the deleted one, so only the value tells them apart."""
    one, two = await backend.store(), await backend.store()
    key = ("objects", "o")
    version = await one.write_value(key, b"old", None)
    await two.delete_value(key, version, known=b"old")
    assert await two.write_value(key, b"new", None) == version
    with pytest.raises(VersionConflictError, match="created again") as written:
        await one.write_value(key, b"lost", version, known=b"old")
    with pytest.raises(VersionConflictError, match="created again") as deleted:
        await one.delete_value(key, version, known=b"old")
    assert written.value.outcome_known
    assert deleted.value.outcome_known
    assert await two.read_value(key) == Versioned(b"new", version)

    newer = await one.write_value(key, b"newer", version, known=b"new")
    with pytest.raises(VersionConflictError):
        await one.delete_value(key, version, known=b"new")
    with pytest.raises(VersionConflictError):
        await one.write_value(key, b"lost", version, known=b"new")
    await one.delete_value(key, newer, known=b"newer")
    await one.delete_value(key, newer, known=b"newer")
    with pytest.raises(NoSuchKeyError):
        await one.write_value(key, b"lost", newer, known=b"newer")


async def test_a_deleted_value_with_children_can_be_created_again(backend: Backend) -> None:
    """ZooKeeper keeps its node, whose version goes on."""
    store = await backend.store()
    await store.write_value(("a", "b"), b"1", None)
    version = await store.write_value(("a",), b"2", None)
    await store.delete_value(("a",), version)
    for newer in (version, version + 1):
        with pytest.raises(NoSuchKeyError):
            await store.write_value(("a",), b"3", newer, known=b"2")
    await store.delete_value(("a",), version, known=b"2")
    assert await store.list_values(("a",)) == ["b"]


async def test_a_value_can_be_the_parent_of_others(store: MetadataStore) -> None:
    """A name can be a value and the parent of others; parents alone are no values."""
    await store.write_value(("a", "b", "c"), b"1", None)
    await store.write_value(("a", "b-c"), b"2", None)
    await store.write_value(("ab",), b"3", None)
    assert await store.list_values(()) == ["a", "ab"]
    assert await store.list_values(("a",)) == ["b", "b-c"]
    assert await store.list_values(("a", "b")) == ["c"]
    for missing in (("a",), ("a", "b")):
        with pytest.raises(NoSuchKeyError):
            await store.read_value(missing)
        with pytest.raises(NoSuchKeyError):
            await store.write_value(missing, b"", 0)
    version = await store.write_value(("a", "b"), b"4", None)
    assert await store.read_value(("a", "b")) == Versioned(b"4", version)
    await store.delete_value(("a", "b"))
    with pytest.raises(NoSuchKeyError):
        await store.read_value(("a", "b"))
    assert (await store.read_value(("a", "b", "c"))).value == b"1"
    await store.delete_value(("a", "b", "c"))
    assert await store.list_values(("a",)) == ["b-c"]
    await store.delete_value(("a", "b-c"))
    assert await store.list_values(()) == ["ab"]


async def test_concurrent_updates_of_a_value_lose_nothing(backend: Backend) -> None:
    stores = [await backend.store(), await backend.store()]
    key, rounds = ("counters", "c"), 20
    await stores[0].write_value(key, b"0", None)

    async def count(store: MetadataStore) -> None:
        for _ in range(rounds):
            while True:
                now = await store.read_value(key)
                try:
                    await store.write_value(key, b"%d" % (int(now.value) + 1), now.version)
                    break
                except VersionConflictError:
                    continue

    await asyncio.gather(*(count(store) for store in stores))
    assert (await stores[0].read_value(key)).value == b"%d" % (2 * rounds)


async def test_only_one_of_two_concurrent_creations_succeeds(backend: Backend) -> None:
    stores = [await backend.store(), await backend.store()]

    async def create(store: MetadataStore, name: str) -> bool:
        try:
            await store.write_value((name, "x"), b"", None)
        except KeyExistsError:
            return False
        return True

    for number in range(10):
        made = await asyncio.gather(*(create(store, f"n{number}") for store in stores))
        assert sorted(made) == [False, True]


async def test_keys_are_checked(store: MetadataStore) -> None:
    for bad in ((), ("",), ("a/b",), (".",), ("a", ".."), ("a\0b",), "text"):
        with pytest.raises(UsageError):
            await store.read_value(bad)
    with pytest.raises(UsageError):
        await store.list_values("text")
