"""Requirements for every metadata store about bookies that register."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.codec.metadata.registration import Endpoint
from quire.errors import ClientClosedError, KeyExistsError, UsageError
from quire.metadata.interface import BookieAddress, Bookies, MetadataStore
from tests.support.metadata.backends import PATIENCE_S, SESSION_TIMEOUT_MS, Backend
from tests.support.waiting import until

ONE = BookieAddress("bookie-1", "10.0.0.1", 3181, {"zone": "a"})
TWO = BookieAddress("10.0.0.2:3181", "10.0.0.2", 3181)


async def test_registered_bookies_are_listed(backend: Backend) -> None:
    one, two = await backend.store(), await backend.store()
    assert await one.bookies() == Bookies({}, {})
    first = await one.register_bookie(ONE)
    second = await two.register_bookie(TWO, readonly=True)
    for store in (one, two):
        found = await store.bookies()
        assert found == Bookies({ONE.bookie_id: ONE}, {TWO.bookie_id: TWO})
        assert found.find(ONE.bookie_id) == ONE
    await first.close()
    await first.close()
    assert await two.bookies() == Bookies({}, {TWO.bookie_id: TWO})
    await two.close()
    assert await one.bookies() == Bookies({}, {})
    with pytest.raises(ClientClosedError):
        await first.set_readonly(True)
    await second.close()
    # The id is free again, in either list.
    await one.register_bookie(TWO)
    assert await one.bookies() == Bookies({TWO.bookie_id: TWO}, {})


async def test_a_close_that_is_cancelled_withdraws_the_bookie(backend: Backend) -> None:
    owner, other = await backend.store(), await backend.store()
    registration = await owner.register_bookie(ONE)
    closing = asyncio.ensure_future(registration.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])

    async def gone() -> bool:
        return await other.bookies() == Bookies({}, {})

    await until(gone)


async def test_a_bookie_moves_between_the_writable_and_the_read_only_list(backend: Backend) -> None:
    owner, other = await backend.store(), await backend.store()
    registration = await owner.register_bookie(ONE)
    for readonly in (True, True, False, False, True):
        await registration.set_readonly(readonly)
        found = await other.bookies()
        assert ONE.bookie_id in (found.readonly if readonly else found.writable)
        assert ONE.bookie_id not in (found.writable if readonly else found.readonly)
    await registration.close()
    assert await other.bookies() == Bookies({}, {})


async def test_properties_of_a_bookie_can_change_with_or_without_its_list(backend: Backend) -> None:
    owner, other = await backend.store(), await backend.store()
    registration = await owner.register_bookie(replace(ONE, properties={"a": "0"}))
    steps: list[tuple[bool, dict[str, str] | None, dict[str, str]]] = [
        (True, {"a": "1"}, {"a": "1"}),
        (True, {"a": "2", "b": "3"}, {"a": "2", "b": "3"}),
        (True, None, {"a": "2", "b": "3"}),
        (False, None, {"a": "2", "b": "3"}),
        (False, {}, {}),
    ]
    for readonly, properties, expected in steps:
        await registration.set_readonly(readonly, properties)
        found = await other.bookies()
        wanted = {ONE.bookie_id: replace(ONE, properties=expected)}
        assert found == (Bookies({}, wanted) if readonly else Bookies(wanted, {}))


async def test_a_bookie_watch_reports_every_change(backend: Backend) -> None:
    owner, other = await backend.store(), await backend.store()
    seen: list[Bookies] = []
    watch = other.watch_bookies(seen.append)
    await until(lambda: seen == [Bookies({}, {})])
    registration = await owner.register_bookie(ONE)
    await until(lambda: seen[-1] == Bookies({ONE.bookie_id: ONE}, {}))
    await registration.set_readonly(True)
    await until(lambda: seen[-1] == Bookies({}, {ONE.bookie_id: ONE}))
    own: list[Bookies] = []
    owner.watch_bookies(own.append)
    await until(lambda: own[-1:] == seen[-1:])
    await owner.close()
    await until(lambda: seen[-1] == Bookies({}, {}))
    watch.close()
    count = len(seen)
    await other.register_bookie(TWO)
    assert await other.bookies() == Bookies({TWO.bookie_id: TWO}, {})
    assert len(seen) == count


async def test_the_ids_of_registered_bookies_are_listed(backend: Backend) -> None:
    owner, other = await backend.store(), await backend.store()
    assert await other.registered() == frozenset()
    first = await owner.register_bookie(ONE)
    await owner.register_bookie(TWO, readonly=True)
    assert await other.registered() == {ONE.bookie_id, TWO.bookie_id}
    await first.close()
    assert await other.registered() == {TWO.bookie_id}


async def test_a_watch_reports_a_bookie_that_came_back_with_another_address(
    backend: Backend,
) -> None:
    owner, other = await backend.store(), await backend.store()
    await owner.register_bookie(TWO)
    seen: list[Bookies] = []
    other.watch_bookies(seen.append)
    for port in range(1, 20):
        moved = replace(ONE, port=port)
        registration = await owner.register_bookie(moved)
        there = Bookies({ONE.bookie_id: moved, TWO.bookie_id: TWO}, {})
        await until(lambda there=there: seen[-1:] == [there])
        await registration.close()


async def test_a_watch_without_addresses_reads_them_on_demand(backend: Backend) -> None:
    owner, other = await backend.store(), await backend.store()
    first = await owner.register_bookie(replace(ONE, bookie_id="former:3181"))
    await owner.register_bookie(replace(ONE, bookie_id="no-address"), readonly=True)
    seen: list[Bookies] = []
    other.watch_bookies(seen.append, addresses=False)
    await until(lambda: len(seen) > 0 and seen[-1].writable.keys() == {"former:3181"})
    assert seen[-1].find("no-address") == replace(ONE, bookie_id="no-address")
    there = await other.learn_bookies(["former:3181", "no-address", "nowhere:1"])
    assert there == {id_: replace(ONE, bookie_id=id_) for id_ in ("former:3181", "no-address")}
    # From now on the watch reads this address, also after the bookie has moved.
    await first.close()
    await until(lambda: not seen[-1].writable)
    assert "former:3181" not in await other.learn_bookies(["former:3181"])
    moved = replace(ONE, bookie_id="former:3181", host="127.0.0.9")
    await owner.register_bookie(moved)
    await until(lambda: seen[-1].writable == {"former:3181": moved})
    assert await other.learn_bookies(["former:3181"]) == {"former:3181": moved}


async def test_an_id_in_use_cannot_be_registered(backend: Backend) -> None:
    holder, second = await backend.store(), await backend.store(session_timeout_ms=500)
    await holder.register_bookie(ONE)
    for readonly in (False, True):
        with pytest.raises(KeyExistsError, match="bookie-1"):
            await second.register_bookie(ONE, readonly)
    with pytest.raises(KeyExistsError, match="by this process"):
        await holder.register_bookie(ONE)
    assert (await second.bookies()).writable == {ONE.bookie_id: ONE}
    # A failed attempt leaves nothing that a later one would trip over.
    await second.register_bookie(TWO)
    await holder.close()
    await second.register_bookie(ONE)


async def test_a_registration_can_wait_for_an_id(backend: Backend) -> None:
    holder, waiter = await backend.store(), await backend.store(SESSION_TIMEOUT_MS)
    registration = await holder.register_bookie(ONE)
    moved = BookieAddress(ONE.bookie_id, "10.9.9.9", 1)
    waiting = asyncio.ensure_future(waiter.register_bookie(moved))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    await registration.close()
    await waiting
    assert (await holder.bookies()).writable == {ONE.bookie_id: moved}


async def test_all_registered_properties_reach_the_clients(backend: Backend) -> None:
    """TLS, other endpoints and any id reach the clients; an id need not be HOST:PORT."""
    one, two = await backend.store(), await backend.store()
    web = Endpoint("httpserver", "10.0.0.3", 8080, "http")
    other = Endpoint("x", "h", 1, "something-new", ("a",), ("b", "c"))
    for bookie_id in ("bookie-3", "rack:1;bookie=3", "[::1]:3181", "Read.Only_3"):
        address = BookieAddress(bookie_id, "::1", 3181, {"k": ""}, tls=True, others=(web, other))
        registration = await one.register_bookie(address)
        assert (await two.bookies()).find(bookie_id) == address
        await registration.close()
    bad = replace(address, others=(Endpoint("second", "h", 1),))
    with pytest.raises(UsageError, match="second endpoint"):
        await one.register_bookie(bad)


async def test_losing_an_id_to_another_process_is_reported(backend: Backend) -> None:
    """After a lost session, the loss is reported after a while, and registration is not retried."""
    loser, winner = await backend.store(session_timeout_ms=500), await backend.store()
    registration = await loser.register_bookie(ONE)
    assert not registration.lost.done()
    moved = replace(ONE, port=99)
    await backend.take_id(loser, winner, moved)
    async with asyncio.timeout(PATIENCE_S):
        error = await registration.lost
    assert isinstance(error, KeyExistsError)
    assert ONE.bookie_id in str(error)
    with pytest.raises(KeyExistsError):
        await registration.set_readonly(True)
    await registration.close()
    await registration.close()
    assert (await loser.bookies()).writable[ONE.bookie_id] == moved
    await winner.close()
    again = await loser.register_bookie(ONE)
    assert (await loser.bookies()).writable[ONE.bookie_id] == ONE
    await again.close()
    assert not again.lost.done()


async def test_bookie_ids_are_checked(store: MetadataStore) -> None:
    for bad in ("readonly", "a/b", "", ".", ".."):
        with pytest.raises(UsageError):
            await store.register_bookie(BookieAddress(bad, "h", 1))
        with pytest.raises(UsageError):
            await store.read_cookie(bad)
    with pytest.raises(UsageError):
        await store.register_bookie(BookieAddress("b", "", 0))
