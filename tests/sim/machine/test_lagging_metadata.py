"""Servers of the simulated metadata store that lag behind the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import NoSuchKeyError, NoSuchLedgerError, VersionConflictError
from quire.metadata.interface import BookieAddress, Bookies, Versioned
from quire.metadata.tree import Create, Delete, Put
from quire_simulator.metadata.store import MemoryStore
from quire_simulator.world.world import World

OPEN = LedgerMetadata(1, 1, 1, (Segment(0, ("b",)),), ctoken=5)
LAG_S = 3.0


class Servers:
    """Two sessions. The server of `late` is `LAG_S` behind, and `now` sees everything."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now = world.metadata_store("now")
        self.late = world.metadata_store("late")
        self.late.view.lag(LAG_S)
        world.cluster.history.kept = True

    def later_session(self) -> MemoryStore:
        store = self.world.metadata_store("later")
        store.view.lag(LAG_S, begins=True)
        return store


def run(work: Callable[[Servers], Awaitable[None]]) -> None:
    world = World.make(1)

    async def main() -> None:
        await work(Servers(world))

    world.loop.run(main())


async def ledger(servers: Servers) -> tuple[int, Versioned[LedgerMetadata]]:
    """Create a ledger that both sessions have seen."""
    ledger_id, stored = await servers.now.create_ledger(OPEN)
    await servers.late.tree.sync()
    return ledger_id, stored


def test_a_change_is_shown_when_the_server_learns_of_it() -> None:
    async def work(servers: Servers) -> None:
        ledger_id, stored = await ledger(servers)
        await servers.now.write_ledger(ledger_id, OPEN.with_close(0, 5), 0, stored)
        assert (await servers.now.read_ledger(ledger_id)).version == 1
        assert (await servers.late.read_ledger(ledger_id)).version == 0
        await asyncio.sleep(LAG_S + 0.1)
        assert (await servers.late.read_ledger(ledger_id)).version == 1

    run(work)


def test_states_in_between_are_shown_in_their_order() -> None:
    async def work(servers: Servers) -> None:
        await servers.now.tree.commit(Create("/a", b"0"))
        await servers.late.tree.sync()
        seen = []
        for number in range(1, 20):
            await servers.now.tree.commit(Put("/a", b"%d" % number))
            await asyncio.sleep(0.5)
            seen.append(int((await servers.late.tree.read("/a")).value))
        assert seen == sorted(seen)
        assert seen[-1] == 14  # the change that was made 3 s before

    run(work)


@pytest.mark.parametrize("change", ["commit", "refused", "sync", "list"])
def test_a_server_catches_up_with_what_its_session_asks_for(change: str) -> None:
    async def work(servers: Servers) -> None:
        await servers.now.tree.commit(Create("/a", b"0"))
        await servers.late.tree.sync()
        await servers.now.tree.commit(Put("/a", b"1"))
        tree = servers.late.tree
        assert (await tree.read("/a")).value == b"0"
        match change:
            case "commit":
                await tree.commit(Create("/b"))
            case "refused":
                with pytest.raises(VersionConflictError):
                    await tree.commit(Put("/a", b"2", 0))  # compared with the newest version
            case "sync":
                await tree.sync()
            case "list":
                assert [one async for one in servers.late.list_ledgers()]
        assert (await tree.read("/a")).value == b"1"

    run(work)


def test_nothing_is_missing_that_the_newest_state_has() -> None:
    async def work(servers: Servers) -> None:
        ledger_id, _ = await servers.now.create_ledger(OPEN)
        assert (await servers.late.read_ledger(ledger_id)).version == 0
        await servers.now.tree.commit(Create("/a", b"0"))
        assert await servers.late.tree.exists("/a")
        await servers.now.write_value(("one",), b"1", None)
        assert (await servers.late.read_value(("one",))).value == b"1"
        with pytest.raises(NoSuchKeyError):
            await servers.late.tree.read("/b")

    run(work)


def test_what_was_deleted_is_shown_for_a_while() -> None:
    async def work(servers: Servers) -> None:
        ledger_id, _ = await ledger(servers)
        await servers.now.tree.commit(Create("/a", b"0"))
        await servers.late.tree.sync()
        await servers.now.delete_ledger(ledger_id)
        await servers.now.tree.commit(Delete("/a"))
        assert (await servers.late.read_ledger(ledger_id)).version == 0
        assert await servers.late.tree.children("/") == ["a"]
        await asyncio.sleep(LAG_S + 0.1)
        assert await servers.late.tree.children("/") == []
        with pytest.raises(NoSuchLedgerError):
            await servers.late.read_ledger(ledger_id)

    run(work)


def test_watches_deliver_what_the_server_shows() -> None:
    async def work(servers: Servers) -> None:
        ledger_id, stored = await ledger(servers)
        loop, begin_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        told: list[tuple[int, str]] = []

        def note(what: str) -> None:
            told.append((round(loop.time() - begin_s), what))

        def on_ledger(found: Versioned[LedgerMetadata] | None) -> None:
            note("gone" if found is None else f"version {found.version}")

        def on_bookies(found: Bookies) -> None:
            note(f"bookies {len(found.writable)}")

        servers.late.watch_ledger(ledger_id, on_ledger)
        servers.late.watch_bookies(on_bookies)
        servers.late.tree.watch_value("/a", lambda found: note(f"value {found and found.value!r}"))
        await asyncio.sleep(10.0)
        assert sorted(told) == [(0, "bookies 0"), (0, "value None"), (0, "version 0")]
        told.clear()
        await servers.now.write_ledger(ledger_id, OPEN.with_close(0, 5), 0, stored)
        await servers.now.register_bookie(BookieAddress("b", "b", 1))
        await servers.now.tree.commit(Create("/a", b"0"))
        await asyncio.sleep(10.0)
        assert sorted(told) == [(13, "bookies 1"), (13, "value b'0'"), (13, "version 1")]
        told.clear()
        await servers.now.delete_ledger(ledger_id)
        await servers.now.tree.commit(Put("/a", b"1"))
        await servers.late.tree.sync()
        await asyncio.sleep(0.1)
        assert sorted(told) == [(20, "gone"), (20, "value b'1'")]

    run(work)


def test_a_new_session_may_not_see_what_its_process_did_before() -> None:
    async def work(servers: Servers) -> None:
        await servers.now.tree.commit(Create("/a", b"0"))
        await asyncio.sleep(LAG_S + 1.0)
        await servers.now.tree.commit(Put("/a", b"1"))
        later = servers.later_session()
        assert (await later.tree.read("/a")).value == b"0"
        later.view.lag(0.0)
        assert (await later.tree.read("/a")).value == b"1"

    run(work)


def test_a_fault_lets_some_servers_lag_until_it_ends() -> None:
    world = World.make(1)

    async def main() -> None:
        stores = {f"client-{n}": world.metadata_store(f"client-{n}") for n in range(20)}
        end = world.lags.begin("fault")
        lagging = {name for name, store in stores.items() if store.view.lag_s}
        assert 0 < len(lagging) < len(stores)
        assert {name for name in stores if world.lags.of(name)} == lagging
        again = world.metadata_store(min(lagging))
        assert again.view.lag_s == stores[min(lagging)].view.lag_s
        end()
        assert not any(store.view.lag_s for store in (*stores.values(), again))
        assert not world.cluster.history.kept

    world.loop.run(main())
