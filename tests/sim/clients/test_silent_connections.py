"""Connections die silently: a flow loses everything in both directions without notice.

New connections work (apache/bookkeeper 2482, 2382, 4683, 3268).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire.client import Client
from quire.client.client import pool_of
from quire.config import ClientConfig
from quire.replication import ReplicationLocks
from quire.replication.repair.replica_reader import answers
from quire_simulator.faults.hostile import Deaf
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.history import RunHistory
from quire_simulator.invariants.silent_connections import LEFT_WITHIN_S, SilentConnections
from quire_simulator.machine.clock import SimClock
from quire_simulator.world.world import PORT, World, bookie_id
from tests.support.long import long_after
from tests.support.sim.autorecovery import Scene
from tests.support.waiting import until

BOOKIES = 5
CONTINUE_S = 10.0
"""Everybody continues within this time after the connections died."""
IDLE_S = 20.0
"""Longer than `idle_link_s`, and shorter than the system takes to notice by itself."""
LATER_S = 60.0
SHAPE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
SEEDS = range(3)

Scenario = Callable[[World, Client], Awaitable[None]]


def run(seed: int, scenario: Scenario, **config: Any) -> World:
    """A cluster of five bookies, and a client whose connections are silenced."""
    world = World.make(seed, bookies=BOOKIES)

    async def whole() -> None:
        for name in world.disks:
            await world.start(name)
        client = world.client("client", ClientConfig(**config))
        await scenario(world, client)
        await client.close()
        for bookie in list(world.bookies.values()):
            await bookie.stop()

    world.loop.run(whole())
    return world


def silence(world: World, name: str = "client") -> None:
    assert world.network.silence(name, *world.disks), "there is no connection to silence"


async def in_time(work: Awaitable[Any], limit_s: float = CONTINUE_S) -> Any:
    async with asyncio.timeout(limit_s):
        return await work


# -- writers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("deferred", [False, True], ids=["plain", "deferred"])
@pytest.mark.parametrize("seed", long_after(1, SEEDS))
def test_a_writer_continues_with_the_same_bookies(seed: int, deferred: bool) -> None:
    async def scenario(world: World, client: Client) -> None:
        writer = await client.create_ledger(**SHAPE, deferred_sync=deferred)
        for entry in range(3):
            await asyncio.sleep(1.0)
            await writer.append(b"before %d" % entry)
        silence(world)
        begun = world.loop.time()
        await in_time(writer.append(b"after"))
        if deferred:
            await in_time(writer.force())
        assert world.loop.time() - begun < 6.0
        await writer.close()
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert len(metadata.segments) == 1, "no bookie had to be replaced"
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.payload async for entry in reader.read()][-1] == b"after"
        assert pool_of(client).counters.links_silent >= 2
        assert pool_of(client).counters.bookie_failures == 0

    run(seed, scenario)


@pytest.mark.parametrize("seed", long_after(1, SEEDS))
def test_the_first_append_of_a_new_ledger_does_not_wait_for_dead_connections(seed: int) -> None:
    async def scenario(world: World, client: Client) -> None:
        for _ in range(4):
            writer = await client.create_ledger(**SHAPE)
            await writer.append(b"warm")
            await writer.close()
        await asyncio.sleep(IDLE_S)
        silence(world)
        writer = await client.create_ledger(**SHAPE)
        await in_time(writer.append(b"first"), 1.5)
        await writer.close()
        assert len((await client.ledger_metadata(writer.ledger_id)).segments) == 1

    run(seed, scenario)


@pytest.mark.parametrize("deferred", [False, True], ids=["plain", "deferred"])
def test_an_idle_writer_keeps_its_bookies(deferred: bool) -> None:
    """Its connections end while it is idle: the system notices that they are dead, or a bookie
    closes them."""

    async def scenario(world: World, client: Client) -> None:
        writer = await client.create_ledger(**SHAPE, deferred_sync=deferred)
        await writer.append(b"before")
        if deferred:
            await writer.force()
        silence(world)
        await asyncio.sleep(LATER_S)
        await in_time(writer.append(b"after"), 1.0)
        await asyncio.sleep(LATER_S)
        for bookie in world.bookies.values():
            for connection in list(bookie.service.connections):
                connection.close()
        await asyncio.sleep(1.0)
        await in_time(writer.append(b"in the end"), 1.0)
        await writer.close()
        assert len((await client.ledger_metadata(writer.ledger_id)).segments) == 1
        assert pool_of(client).counters.bookie_failures == 0

    run(1, scenario)


def test_a_member_that_stays_silent_on_its_new_connection_is_replaced() -> None:
    async def scenario(world: World, client: Client) -> None:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await writer.append(b"before")
        member = (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble[0]
        name = member.partition(":")[0]

        def again(route: tuple[str, str]) -> None:
            """Each new connection to it answers for a while, and then dies, too."""
            if route == ("client", name):
                world.loop.call_later(0.3, lambda: world.network.silence("client", name))

        world.network.accepted = again
        world.network.silence("client", name)
        await in_time(writer.append(b"after"), 20.0)
        await asyncio.sleep(1.0)
        appended = asyncio.ensure_future(writer.append(b"and again"))
        await in_time(appended, 20.0)
        world.network.accepted = lambda route: None
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert member not in metadata.segments[-1].ensemble
        await writer.close()

    run(1, scenario)


# -- readers ----------------------------------------------------------------------------------


async def written(client: Client, entries: int = 100, *, close: bool = True) -> Any:
    writer = await client.create_ledger(**SHAPE)
    await writer.append_many([b"%d" % entry for entry in range(entries)])
    if close:
        await writer.close()
    return writer


@pytest.mark.parametrize("idle_s", [0.5, IDLE_S], ids=["busy", "idle"])
@pytest.mark.parametrize("seed", long_after(1, SEEDS))
def test_a_closed_ledger_is_read_over_new_connections(seed: int, idle_s: float) -> None:
    async def scenario(world: World, client: Client) -> None:
        ledger_id = (await written(client)).ledger_id
        await asyncio.sleep(idle_s)
        silence(world)

        async def read() -> int:
            reader = await client.open_ledger(ledger_id)
            return len([entry async for entry in reader.read()])

        assert await in_time(read()) == 100
        assert pool_of(client).counters.bookie_failures == 0

    run(seed, scenario)


@pytest.mark.parametrize("idle_s", [0.5, IDLE_S], ids=["busy", "idle"])
@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2)], ids=["plain", "striped"])
@pytest.mark.parametrize("seed", long_after(1, SEEDS))
def test_a_ledger_is_recovered_over_new_connections(
    seed: int, shape: tuple[int, int, int], idle_s: float
) -> None:
    async def scenario(world: World, client: Client) -> None:
        other = world.client("other", ClientConfig())
        size, write, ack = shape
        writer = await other.create_ledger(ensemble_size=size, write_quorum=write, ack_quorum=ack)
        await writer.append_many([b"%d" % entry for entry in range(50)])
        for _ in range(3):  # connections to all
            await client.open_ledger((await written(client)).ledger_id)
        await client.open_ledger(writer.ledger_id)
        await asyncio.sleep(idle_s)
        silence(world)
        reader = await in_time(client.open_ledger(writer.ledger_id, recover=True))
        assert reader.last_add_confirmed == 49
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert metadata.closed
        assert len(metadata.segments) == 1
        await other.close()

    run(seed, scenario)


@pytest.mark.parametrize("seed", long_after(1, SEEDS))
def test_a_tailing_reader_continues_over_new_connections(seed: int) -> None:
    async def scenario(world: World, client: Client) -> None:
        other = world.client("other", ClientConfig(explicit_lac_interval_s=0.05))
        writer = await other.create_ledger(**SHAPE)
        seen = -1

        async def follow() -> None:
            nonlocal seen
            reader = await client.open_ledger(writer.ledger_id)
            async for entry in reader.tail(0):
                seen = entry.entry_id

        await writer.append(b"0")
        following = asyncio.ensure_future(follow())
        for entry in range(1, 30):
            await writer.append(b"%d" % entry)
            await asyncio.sleep(0.1)
        silence(world)
        await writer.append(b"news")
        await until(lambda: seen, right=lambda now: now >= 30, limit_s=CONTINUE_S, poll_s=0.05)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await other.close()

    run(seed, scenario)


@pytest.mark.parametrize("seed", long_after(1, SEEDS))
def test_dead_connections_are_not_taken_for_dead_bookies(seed: int) -> None:
    async def scenario(world: World, client: Client) -> None:
        ledger_id = (await written(client)).ledger_id
        for _ in range(3):
            await asyncio.sleep(1.0)
            silence(world)
            reader = await in_time(client.open_ledger(ledger_id))
            assert len([entry async for entry in reader.read()]) == 100
            writer = await client.create_ledger(**SHAPE)
            await in_time(writer.append(b"new"))
            await writer.close()
            assert len((await client.ledger_metadata(writer.ledger_id)).segments) == 1
        assert not pool_of(client).health.in_quarantine()

    run(seed, scenario, read_timeout_s=1.0, add_timeout_s=1.0, quarantine_errors=1)


# -- autorecovery -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", long_after(1, SEEDS))
def test_no_ledger_is_copied_away_from_bookies_that_live(seed: int) -> None:
    async def scenario(world: World, client: Client) -> None:
        scene = Scene(world)
        ids = [(await written(client)).ledger_id for _ in range(10)]
        before = {ledger: await client.ledger_metadata(ledger) for ledger in ids}
        job = scene.begin("auto", ledger_check_interval_s=5.0, bookie_check_interval_s=5.0)
        await until(lambda: job.stats.ledger_checks, right=lambda n: n >= 2, limit_s=LATER_S)
        locks = ReplicationLocks(client.metadata, "tester", SimClock(world.loop))
        for _ in range(3):
            silence(world, "auto")
            for ledger in ids:  # work for the worker, in vain
                await locks.mark(ledger, [before[ledger].segments[0].ensemble[0]])
            checks, begun = job.stats.ledger_checks, world.loop.time()
            for ledger in ids:
                await scene.unmarked(ledger)
            assert world.loop.time() - begun < 2 * CONTINUE_S
            await until(
                lambda: job.stats.ledger_checks,
                right=lambda now, checks=checks: now > checks,
                limit_s=LATER_S,
            )
        assert job.stats.entries_copied == 0
        assert before == {ledger: await client.ledger_metadata(ledger) for ledger in ids}
        await scene.end()

    run(seed, scenario)


def test_a_copy_continues_over_new_connections() -> None:
    """The worker's connections die in the middle of a copy. Only what is lost is copied."""

    async def scenario(world: World, client: Client) -> None:
        scene = Scene(world)
        ids = [(await written(client, 2_000)).ledger_id for _ in range(3)]
        before = {ledger: await client.ledger_metadata(ledger) for ledger in ids}
        job = scene.begin("auto", backoff_s=5.0, bytes_per_s=10_000)
        lost = before[ids[0]].segments[0].ensemble[0]
        theirs = [one for one in ids if lost in before[one].segments[0].ensemble]
        world.kill(lost.partition(":")[0])
        await until(scene.marks.locked, right=bool, limit_s=LATER_S)
        await asyncio.sleep(1.0)
        assert not job.stats.fragments, "the repair has already finished"
        silence(world, "auto")
        begun = world.loop.time()
        for ledger in theirs:
            await scene.whole(ledger, lost)
        assert world.loop.time() - begun < LATER_S
        assert job.stats.ledgers_failed == 0
        for ledger in set(ids).difference(theirs):
            assert await client.ledger_metadata(ledger) == before[ledger]
        await scene.end()

    run(1, scenario)


def test_a_bookie_answers_over_a_new_connection() -> None:
    async def scenario(world: World, client: Client) -> None:
        name = next(iter(world.disks))
        assert await answers(client, bookie_id(name)) == ""
        silence(world)
        assert await in_time(answers(client, bookie_id(name))) == ""
        world.network.stop(name)
        assert "did not answer" in await answers(client, bookie_id(name))
        world.network.cont(name)

    run(1, scenario)


# -- bookies ----------------------------------------------------------------------------------


def test_a_bookie_does_not_keep_dead_clients() -> None:
    async def scenario(world: World, client: Client) -> None:
        other = world.client("other", ClientConfig())
        await written(other)
        services = [bookie.service for bookie in world.bookies.values()]
        assert sum(len(service.connections) for service in services) >= 3
        silence(world, "other")
        world.network.kill("other")
        await asyncio.sleep(LATER_S)
        assert not any(service.connections for service in services)

    run(1, scenario)


# -- what must not be taken for a dead connection ---------------------------------------------


def test_a_bookie_that_hangs_keeps_its_connection() -> None:
    """A stopped process accepts connections, and answers on none of them."""

    async def scenario(world: World, client: Client) -> None:
        writer = await client.create_ledger(**SHAPE)
        await writer.append(b"before")
        member = (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble[0]
        name = member.partition(":")[0]
        world.network.stop(name)
        await writer.append(b"meanwhile")
        await asyncio.sleep(4.5)
        world.network.cont(name)
        await asyncio.sleep(3.0)
        assert pool_of(client).counters.links_silent == 0
        assert pool_of(client).counters.links_examined > 0
        await writer.close()
        assert len((await client.ledger_metadata(writer.ledger_id)).segments) == 1

    run(1, scenario)


def test_an_idle_connection_is_probed_once() -> None:
    async def scenario(world: World, client: Client) -> None:
        await written(client)
        await asyncio.sleep(5.0)
        examined = pool_of(client).counters.links_examined
        await asyncio.sleep(LATER_S)
        assert pool_of(client).counters.links_examined == examined <= 3
        assert pool_of(client).counters.links_silent == 0

    run(1, scenario)


@pytest.mark.parametrize(
    ("name", "broken"), [("client", "a_silent_connection_is_left"), ("hostile-0", None)]
)
def test_only_hostile_clients_may_keep_a_dead_connection(name: str, broken: str | None) -> None:
    """Seed 880000535 of `all`: a hostile client never reads, so it cannot notice, and it is no
    client of Quire."""
    world = World.make(1, bookies=1)
    checker = Checker(world, RunHistory(world.loop.time, world.trace), lambda: None)
    SilentConnections(world, checker)

    async def whole() -> None:
        await world.start("bookie-0")
        host = world.network.node(name)
        made = await host.connect("bookie-0", PORT, lambda: Deaf(b""))
        assert isinstance(made, Deaf)
        assert made.transport is not None
        world.network.silence("bookie-0", name)
        made.transport.write(bytes(4))
        sampling = asyncio.ensure_future(checker.sample())
        await asyncio.sleep(2 * LEFT_WITHIN_S)
        assert list(world.network.silenced())
        sampling.cancel()
        await world.stop("bookie-0")

    world.loop.run(whole())
    assert (checker.broken.invariant if checker.broken else None) == broken
