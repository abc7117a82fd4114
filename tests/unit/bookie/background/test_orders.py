"""The orders that a bookie follows, on a simulated metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire._runtime.tasks import TaskSet
from quire.bookie.background.orders import COOKIE_POLL_S, Orders
from quire.errors import CookieError
from quire.metadata.bookies.orders import Order, What, give_order, order_path, withdraw_order
from quire.metadata.interface import MetadataStore
from quire_simulator.world.world import World
from tests.support.sim.replication import simulated

ME = "b:1"
DRAIN, RETIRED = (Order(what, 7, "operator") for what in (What.DRAIN, What.RETIRED))


class Bookie:
    """What a bookie would see of its orders."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.changes: list[bool] = []
        self.ended: list[CookieError] = []
        self.events: list[str] = []
        self.tasks = TaskSet()

    async def follow(self) -> None:
        self.orders = await Orders.follow(
            self.store, ME, lambda: self.changes.append(self.orders.draining),
            self.ended.append, lambda event, **_: self.events.append(event), self.tasks,
        )  # fmt: skip

    async def soon(self) -> None:
        await asyncio.sleep(3 * COOKIE_POLL_S)


def following(scene: Callable[[Bookie], Awaitable[None]]) -> None:
    async def scenario(world: World) -> None:
        client = world.client("bookie")
        await client.metadata.write_cookie(ME, b"cookie", None)
        there = Bookie(client.metadata)
        await there.follow()
        await scene(there)
        there.orders.close()
        await there.tasks.close()
        await client.close()

    simulated(scenario, bookies=0)


def test_an_order_to_drain_is_followed_until_it_is_withdrawn() -> None:
    async def scene(there: Bookie) -> None:
        assert not there.orders.draining
        await give_order(there.store, ME, DRAIN, None)
        await there.soon()
        assert there.changes == [True]
        assert there.orders.sentence() == "it is being decommissioned, as operator ordered"
        await withdraw_order(there.store, ME)
        await there.soon()
        assert there.changes == [True, False]
        assert there.ended == []

    following(scene)


def test_a_decommissioned_bookie_ends_once_its_cookie_is_gone() -> None:
    async def scene(there: Bookie) -> None:
        await give_order(there.store, ME, RETIRED, None)
        await there.soon()
        assert there.ended == []
        assert there.orders.draining
        assert there.orders.sentence() == "it was decommissioned, as operator ordered"
        await there.store.delete_cookie(ME)
        await there.soon()
        [error] = there.ended
        assert "was decommissioned: no ledger names it" in str(error)
        assert there.orders.draining

    following(scene)


def test_a_withdrawn_decommissioning_can_be_ordered_again() -> None:
    """After the first one the bookie must be writable, and must follow the second one."""

    async def scene(there: Bookie) -> None:
        await give_order(there.store, ME, RETIRED, None)
        await there.soon()
        await withdraw_order(there.store, ME)
        await there.soon()
        assert there.changes == [True, False]
        await give_order(there.store, ME, RETIRED, None)
        await there.store.delete_cookie(ME)
        await there.soon()
        assert there.changes == [True, False, True]
        assert len(there.ended) == 1

    following(scene)


def test_an_order_that_cannot_be_decoded_changes_nothing() -> None:
    async def scene(there: Bookie) -> None:
        path = order_path(there.store.uri, ME)
        await there.store.tree.make_path(path, b"?")
        await there.soon()
        assert there.events == ["order_not_understood"]
        assert there.changes == []

    following(scene)


def test_a_cookie_that_cannot_be_read_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(there: Bookie) -> None:
        async def fails(bookie: str) -> object:
            raise CookieError("no")

        monkeypatch.setattr(there.store, "read_cookie", fails)
        await give_order(there.store, ME, RETIRED, None)
        await there.soon()
        assert set(there.events) == {"cookie_not_checked"}
        assert there.ended == []
        assert there.orders.draining

    following(scene)
