"""A client that reads the address of a bookie when it first uses the bookie."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from quire._runtime.tasks import TaskSet
from quire.client.cluster.placement import Placement
from quire.client.cluster.pool import BookiePool
from quire.config import ClientConfig, PlacementConfig
from quire.core.placement import Wanted
from quire.errors import BookieUnavailableError, MetadataUnavailableError, SilentConnectionError
from quire.metadata.interface import BookieAddress, Registration
from quire_simulator.machine import SimulatedLoop
from quire_simulator.machine.clock import SimClock
from quire_simulator.machine.network import SimNetwork
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore

HOSTS = ("h1", "h2", "h3", "h4")
RACKS = {"h1": "/a", "h2": "/a", "h3": "/b", "h4": "/b"}
PORT = 3181


class Scene:
    """Bookies that are registered and accept connections, and pools that read addresses late."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.network = SimNetwork(loop, random.Random(1))
        self.cluster = MemoryCluster("lazy", clock=SimClock(loop), rng=random.Random(1))
        self.cluster.initialise()
        self.store = MemoryStore(self.cluster)
        self.tasks = TaskSet()
        self.pools: list[BookiePool] = []
        self.reads = 0
        """The number of times that addresses were read."""
        self.away = False

    async def listen(self) -> None:
        for host in HOSTS:
            await self.network.node(host).bind(host, PORT).listen(asyncio.Protocol)

    async def add(self, bookie_id: str, host: str = "") -> Registration:
        host = host or bookie_id.partition(":")[0]
        return await self.store.register_bookie(BookieAddress(bookie_id, host, PORT))

    async def pool(
        self, locations: Mapping[str, str] | str = "", *, lazy: bool = True, **placement: Any
    ) -> BookiePool:
        async def hook(name: str, done: bool) -> None:
            if name == "learn_bookies" and not done:
                if self.away:
                    raise MetadataUnavailableError("the store is away")
                self.reads += 1

        config = ClientConfig(
            placement=PlacementConfig(locations=locations, **placement), bookies_wait_s=1.0
        )
        pool = BookiePool(
            MemoryStore(self.cluster, hook=hook), self.network.node("client"), config,
            random.Random(2), self.tasks, lazy_addresses=lazy,
        )  # fmt: skip
        self.pools.append(pool)
        await asyncio.sleep(0.1)
        return pool

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close()
        await self.tasks.close()


def simulated(main: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene(loop)
        await scene.listen()
        await main(scene)
        await scene.close()

    loop = SimulatedLoop(1)
    try:
        loop.run(run())
    finally:
        loop.close()


def assumed(pool: BookiePool) -> set[str]:
    return {one.bookie_id for one in pool.bookies.writable.values() if one.assumed}


def hosts(pool: BookiePool, chosen: Mapping[int, str]) -> list[str]:
    """The hosts of the chosen bookies, which must have been read."""
    found = [pool.bookies.writable[bookie] for bookie in chosen.values()]
    assert not any(one.assumed for one in found)
    return [one.host for one in found]


def test_an_address_is_read_when_a_bookie_is_first_used() -> None:
    async def main(scene: Scene) -> None:
        for host in HOSTS:
            await scene.add(f"{host}:{PORT}")
        await scene.add("no-address", "h1")
        pool = await scene.pool()
        assert len(pool.bookies.writable) == 5
        assert assumed(pool) == {f"{host}:{PORT}" for host in HOSTS}
        assert scene.reads == 0
        link = await pool.channel("h2:3181")
        assert (link.address, scene.reads) == (("h2", PORT), 1)
        assert assumed(pool) == {f"{host}:{PORT}" for host in HOSTS if host != "h2"}
        await pool.control("h2:3181")
        await pool.channel("no-address")
        assert scene.reads == 1

    simulated(main)


def test_a_bookie_is_contacted_at_its_registered_address_and_not_that_in_its_id() -> None:
    async def main(scene: Scene) -> None:
        first = await scene.add("h1:3181", "h2")
        pool = await scene.pool()
        link = await pool.channel("h1:3181")
        assert link.address == ("h2", PORT)
        asked = asyncio.ensure_future(link.read(7, 0))
        await asyncio.sleep(0.1)
        await first.close()
        await asyncio.sleep(0.1)
        await scene.add("h1:3181", "h3")
        with pytest.raises(SilentConnectionError, match="moved to h3:3181"):
            await asked
        assert (await pool.channel("h1:3181")).address == ("h3", PORT)

    simulated(main)


def test_a_bookie_is_not_contacted_while_its_address_is_unknown() -> None:
    """Another bookie may listen at the address in its id, and would answer for it."""

    async def main(scene: Scene) -> None:
        first = await scene.add("h1:3181")
        pool = await scene.pool()
        scene.away = True
        with pytest.raises(BookieUnavailableError, match="address could not be read: the store is"):
            await pool.channel("h1:3181")
        assert list((await pool.pick(Wanted.new(1))).values()) == ["h1:3181"]
        scene.away = False
        await first.close()
        with pytest.raises(BookieUnavailableError, match="h1:3181 is not registered"):
            await pool.channel("h1:3181")

    simulated(main)


def test_racks_are_those_of_the_registered_hosts() -> None:
    async def main(scene: Scene) -> None:
        await scene.add("h1:3181")
        await scene.add("h2:3181")
        await scene.add("h3:3181", "h2")  # its id has a host in the other rack
        await scene.add("h4:3181")
        for _ in range(20):
            pool = await scene.pool(RACKS, enforce_racks=True)
            chosen = await pool.pick(Wanted.new(2))
            assert {RACKS[host] for host in hosts(pool, chosen)} == {"/a", "/b"}
            kept = "h3:3181", "h1:3181"
            pool = await scene.pool(RACKS, enforce_racks=True)
            chosen = await pool.pick(Wanted.replacing(kept, {1: "h1:3181"}, 2, 2))
            assert chosen == {1: "h4:3181"}

    simulated(main)


def test_all_addresses_are_read_before_there_are_too_few_bookies() -> None:
    async def main(scene: Scene) -> None:
        await scene.add("h1:3181")
        await scene.add("h2:3181", "h4")  # only its registration says that it is in rack /b
        pool = await scene.pool(RACKS, enforce_racks=True)
        assert sorted(hosts(pool, await pool.pick(Wanted.new(2)))) == ["h1", "h4"]

    simulated(main)


def test_a_host_without_a_location_is_read_before_bookies_are_chosen() -> None:
    async def main(scene: Scene) -> None:
        for host in HOSTS:
            await scene.add(f"former-{host}:3181", host)
        pool = await scene.pool(RACKS, enforce_racks=True)
        assert scene.reads == 0
        chosen = await pool.pick(Wanted.new(2), wait=False)
        assert {RACKS[host] for host in hosts(pool, chosen)} == {"/a", "/b"}
        assert not assumed(pool)
        assert scene.reads == 1

    simulated(main)


def test_two_bookies_on_one_host_are_recognised() -> None:
    async def main(scene: Scene) -> None:
        await scene.add("h1:3181")
        await scene.add("h2:3181", "h1")
        await scene.add("h3:3181")
        for _ in range(20):
            pool = await scene.pool()
            assert set(hosts(pool, await pool.pick(Wanted.new(2)))) == {"h1", "h3"}

    simulated(main)


def test_the_placement_of_ledgers_is_judged_with_read_addresses() -> None:
    async def main(scene: Scene) -> None:
        await scene.add("h1:3181")
        await scene.add("h3:3181", "h2")
        pool = await scene.pool(RACKS)
        await pool.know_addresses()
        assert not assumed(pool)
        assert not pool.placement.adherence(("h1:3181", "h3:3181"), 2, 2)

    simulated(main)


def test_a_placement_that_needs_every_host_reads_all_addresses() -> None:
    async def main(scene: Scene) -> None:
        await scene.add("h1:3181", "h2")
        pool = await scene.pool(policy="local-first", own_host="h1")
        assert pool.bookies.writable["h1:3181"].host == "h2"

    simulated(main)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, False),
        ({"locations": RACKS, "policy": "zone-aware"}, False),
        ({"locations": "table:racks.txt"}, False),
        ({"locations": "script:racks.sh"}, True),
        ({"policy": "local-first"}, True),
        ({"spread_acks": True}, True),
        ({"own_location": "/a"}, True),
    ],
)
def test_placements_that_need_the_host_of_every_bookie_are_known(
    settings: dict[str, Any], needed: bool
) -> None:
    async def main(scene: Scene) -> None:
        async def free_bytes(bookie_id: str) -> int:
            return 0

        config = PlacementConfig(**settings)
        made = Placement(config, scene.store, random.Random(1), scene.tasks, free_bytes, dict)
        assert made.needs_addresses is needed

    simulated(main)


def test_a_late_answer_that_an_address_is_missing_does_not_remove_a_new_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bookie registers before the answer arrives, and the watch reports it."""

    async def main(scene: Scene) -> None:
        pool = await scene.pool()
        store: Any = pool._metadata
        learn, go_on = store.learn_bookies, asyncio.Event()

        async def slowly(bookie_ids: Any) -> Any:
            found = await learn(bookie_ids)
            await go_on.wait()
            return found

        monkeypatch.setattr(store, "learn_bookies", slowly)
        asked = asyncio.ensure_future(pool._address("no-address"))
        await asyncio.sleep(0.1)
        await scene.add("no-address", "h1")
        await asyncio.sleep(0.1)
        assert "no-address" in pool.bookies.writable
        go_on.set()
        assert (await asked).host == "h1"
        assert "no-address" in pool.bookies.writable

    simulated(main)


@pytest.mark.parametrize("joins", [True, False])
def test_a_list_read_for_one_address_does_not_replace_a_newer_list(
    joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch reported the newer list, and does not report it again."""

    async def main(scene: Scene) -> None:
        registered = [await scene.add(f"{host}:{PORT}") for host in HOSTS[:2]]
        pool = await scene.pool(lazy=False)
        store: Any = pool._metadata
        bookies, go_on = store.bookies, asyncio.Event()

        async def slowly() -> Any:
            found = await bookies()
            await go_on.wait()
            return found

        monkeypatch.setattr(store, "bookies", slowly)
        asked = asyncio.ensure_future(pool._address("unknown:1"))
        await asyncio.sleep(0.1)
        if joins:
            await scene.add(f"h3:{PORT}")
        else:
            await registered[0].close()
        await asyncio.sleep(0.1)
        now = pool.bookies
        assert (f"h3:{PORT}" in now.writable) is joins
        go_on.set()
        with pytest.raises(BookieUnavailableError, match="not registered"):
            await asked
        assert pool.bookies == now

    simulated(main)


def test_a_bookie_that_the_watch_has_not_reported_yet_is_found() -> None:
    async def main(scene: Scene) -> None:
        pool = await scene.pool(lazy=False)
        pool._watch.close()
        await scene.add(f"h1:{PORT}")
        assert (await pool._address(f"h1:{PORT}")).host == "h1"
        assert (await pool.channel(f"h1:{PORT}")).usable

    simulated(main)
