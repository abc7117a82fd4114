"""Connections that died silently: when they are given up, and when not.

The tests use loopback sockets and a simulated network. For whole clusters, see
`tests/sim/clients/test_silent_connections.py`.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quire._runtime.tasks import TaskSet
from quire.client.cluster.link_watch import Links, LinkWatch
from quire.client.cluster.pool import BookiePool
from quire.client.observability.metrics import ClientCounters
from quire.codec.wire.v2 import Code, read_response
from quire.config import ClientConfig
from quire.errors import BookieUnavailableError, SilentConnectionError
from quire.metadata.interface import BookieAddress
from quire.net.channel import BookieChannel
from quire.net.link import PROBE_LEDGER
from quire.net.network import AsyncioNetwork, end_when_peer_is_dead
from quire_simulator.machine import SimulatedLoop
from quire_simulator.machine.clock import SimClock
from quire_simulator.machine.network import SimNetwork
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore
from tests.support.waiting import until

LOOPBACK = "127.0.0.1"
QUICK = ClientConfig(read_timeout_s=1.0, add_timeout_s=1.0, silent_link_s=0.1, probe_timeout_s=0.1)
BOOKIE = "b:1"
ANSWER = read_response(Code.NO_LEDGER, PROBE_LEDGER, -1, b"")


class Server(asyncio.Protocol):
    """Answers each request with "no such ledger" while `answers` permits it."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self.answers = answers
        self.ended = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True

    def data_received(self, data: bytes) -> None:
        if self.answers():
            self.transport.write(ANSWER)


# -- the system's part ------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["client", "server"])
async def test_both_sides_end_a_connection_whose_peer_is_dead(side: str) -> None:
    made: list[Server] = []

    def server() -> Server:
        made.append(Server(lambda: True))
        return made[-1]

    network = AsyncioNetwork(dead_peer_s=24.0)
    port = network.bind(LOOPBACK, 0)
    await port.listen(server)
    link = BookieChannel(BOOKIE)
    await network.connect(LOOPBACK, port.number, lambda: link)
    await until(lambda: made)
    transport = link._transport if side == "client" else made[0].transport
    assert transport is not None
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    wanted = {
        "TCP_KEEPIDLE": 12,
        "TCP_KEEPINTVL": 4,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 24_000,
    }
    for name, value in wanted.items():
        if (option := getattr(socket, name, None)) is not None:
            assert sock.getsockopt(socket.IPPROTO_TCP, option) == value
    link.close()
    port.close()


def test_keepalive_can_be_disabled() -> None:
    with socket.socket() as sock:
        end_when_peer_is_dead(sock, 0)
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ETIMEDOUT, SilentConnectionError), (errno.ECONNRESET, BookieUnavailableError)],
)
async def test_a_tcp_timeout_counts_as_a_silent_connection(
    number: int, kind: type[Exception]
) -> None:
    link = BookieChannel(BOOKIE)
    link.connection_lost(OSError(number, "lost"))
    assert type(link.lost) is kind


# -- examinations -----------------------------------------------------------------------------


class Scene:
    """A watch, and one connection of it to a server on this machine."""

    def __init__(self, answers: Callable[[int], bool], config: ClientConfig = QUICK) -> None:
        """`answers` decides whether a connection is answered, by its number from 0 on."""
        self.answers = answers
        self.served: list[Server] = []
        self.tasks = TaskSet()
        self.counters = ClientCounters()
        self.links = Links(BookieChannel)
        self.watch = LinkWatch(config, self.connect, self.tasks, self.counters)  # type: ignore[arg-type]

    def serve(self) -> Server:
        number = len(self.served)
        self.served.append(Server(lambda: self.answers(number)))
        return self.served[-1]

    async def connect(self, bookie_id: str, make: Callable[[str], Any]) -> Any:
        link = make(bookie_id)
        await AsyncioNetwork().connect(LOOPBACK, self.port.number, lambda: link)
        return link

    async def __aenter__(self) -> BookieChannel:
        self.port = AsyncioNetwork().bind(LOOPBACK, 0)
        await self.port.listen(self.serve)
        link = await self.connect(BOOKIE, BookieChannel)
        self.watch.add(link, self.links)
        assert isinstance(link, BookieChannel)
        return link

    async def __aexit__(self, *error: object) -> None:
        self.watch.close()
        await self.tasks.close()
        self.links.close()
        self.port.close()


async def test_a_connection_that_tcp_keeps_alive_is_examined_twice() -> None:
    """A proxy accepts the bytes, but its server is gone. For a while this looks like a hanging
    disk.
    """
    scene = Scene(lambda number: number > 0)
    async with scene as link:
        asked = asyncio.ensure_future(link.read(7, 0))
        await asyncio.sleep(0.01)
        assert link.flows
        with pytest.raises(SilentConnectionError):
            await asyncio.wait_for(asked, 5)
        assert scene.counters.links_examined == 2
        assert scene.counters.links_silent == 1
        found = scene.links.find(BOOKIE, None)
        assert found is not None
        assert found is not link


async def test_a_connection_that_is_merely_slow_stays() -> None:
    """It is silent until it is examined. The probe may take long on a busy machine."""
    patient = replace(QUICK, read_timeout_s=60.0, add_timeout_s=60.0, probe_timeout_s=15.0)
    scene = Scene(lambda number: scene.counters.links_examined > 0, patient)
    async with scene as link:
        await until(lambda: link.received_bytes)
        assert scene.counters.links_examined
        assert scene.links.find(BOOKIE, None) is link
        await asyncio.sleep(0.5)
        assert link.lost is None
        assert scene.counters.links_silent == 0


async def test_a_bookie_that_answers_no_connection_keeps_its_connection() -> None:
    scene = Scene(lambda number: False)
    async with scene as link:
        await until(lambda: scene.counters.links_examined >= 4, limit_s=10)
        assert link.lost is None
        assert scene.counters.links_silent == 0
        await until(lambda: all(one.ended for one in scene.served[1:]))
        assert scene.links.of(BOOKIE) == [link]


async def test_a_closed_watch_stops_examining_connections() -> None:
    scene = Scene(lambda number: False)
    async with scene as link:
        scene.watch.examine(link)
        scene.watch.close()
        await asyncio.sleep(0)
        await scene.watch.examined(link)
        assert link.trusted


class Still:
    """A connection of which a test says what happened over it."""

    bookie_id = BOOKIE

    def __init__(self, adds_of: int | None = None) -> None:
        self.trusted = self.usable = True
        self.flows = False
        self.received_bytes = self.writes = 0
        self.adds_of = adds_of

    def takes_adds_of(self, ledger_id: int) -> bool:
        return self.adds_of == ledger_id

    async def probe(self) -> None:
        await asyncio.sleep(3600)

    def give_up(self, why: str) -> None:
        self.usable = False


def watched(config: ClientConfig, scenario: Callable[[Any, Any, Any], Any]) -> None:
    """Run `scenario` with a watch, one connection, and what the watch counts."""

    async def main(_: SimulatedLoop) -> None:
        async def connect(bookie_id: str, make: Callable[[str], Any]) -> Any:
            raise BookieUnavailableError("it is away")

        tasks, counters, link = TaskSet(), ClientCounters(), Still()
        links: Any = Links(Still)  # type: ignore[arg-type]
        watch = LinkWatch(config, connect, tasks, counters)
        watch.add(link, links)
        await scenario(watch, link, counters)
        watch.close()
        await tasks.close()

    simulated(main)


IDLE = ClientConfig(silent_link_s=1.0, probe_timeout_s=1.0, idle_link_s=10.0)


def test_data_makes_a_connection_trusted_again() -> None:
    async def scenario(watch: LinkWatch, link: Any, counters: ClientCounters) -> None:
        watch._seen[link].quiet_since = None  # Nothing is expected.
        await asyncio.sleep(9)
        assert link.trusted
        await asyncio.sleep(2)
        assert not link.trusted
        assert counters.links_examined == 0
        link.received_bytes += 1
        await asyncio.sleep(0.5)
        assert link.trusted
        # From now on it may be silent for a while. Then it is examined.
        await asyncio.sleep(2)
        assert counters.links_examined == 1

    watched(IDLE, scenario)


def test_the_silence_of_a_connection_is_measured_from_its_first_request() -> None:
    async def scenario(watch: LinkWatch, link: Any, counters: ClientCounters) -> None:
        seen = watch._seen[link]
        seen.quiet_since = None
        await asyncio.sleep(5)
        assert counters.links_examined == 0
        for _ in range(4):
            link.writes += 1  # More requests do not begin it again.
            await asyncio.sleep(0.5)
        assert counters.links_examined == 1
        assert not link.trusted

    watched(IDLE, scenario)


def test_connections_are_not_watched_if_the_silence_may_last_for_ever() -> None:
    async def scenario(watch: LinkWatch, link: Any, counters: ClientCounters) -> None:
        await asyncio.sleep(60)
        watch.examine(link)
        assert counters.links_examined == 0
        link.trusted = False
        await watch.examined(link)
        assert link.trusted

    watched(ClientConfig(silent_link_s=0), scenario)


def test_a_connection_that_ended_is_watched_no_more() -> None:
    async def scenario(watch: LinkWatch, link: Any, counters: ClientCounters) -> None:
        link.usable = False
        await asyncio.sleep(1)
        assert not watch._seen
        assert watch._timer is None

    watched(IDLE, scenario)


def test_the_lookup_returns_a_usable_trusted_connection() -> None:
    links: Any = Links(Still)  # type: ignore[arg-type]
    assert links.find(BOOKIE, None) is None
    ended, doubtful, good = Still(), Still(7), Still(8)
    ended.usable = doubtful.trusted = False
    for link in (ended, doubtful, good):
        links.add(link)
    assert links.find(BOOKIE, None) is good
    assert links.find_untrusted(BOOKIE, None) is doubtful
    assert links.find(BOOKIE, 8) is good
    assert links.find(BOOKIE, 7) is None
    assert links.find_untrusted(BOOKIE, 7) is doubtful
    assert links.find_untrusted(BOOKIE, 8) is None
    assert links.of(BOOKIE) == [doubtful, good]
    assert links.bookies() == [BOOKIE]
    good.trusted = False
    assert links.find(BOOKIE, None) is None


# -- what registrations say -------------------------------------------------------------------


def simulated(scenario: Callable[[SimulatedLoop], Any]) -> None:
    loop = SimulatedLoop(1)
    try:
        loop.run(scenario(loop))
    finally:
        loop.close()


async def placed(loop: SimulatedLoop) -> tuple[BookiePool, MemoryCluster, SimNetwork, TaskSet]:
    """A pool, and servers on the hosts `old` and `new`."""
    network = SimNetwork(loop, random.Random(1))
    cluster = MemoryCluster("test", clock=SimClock(loop), rng=random.Random(1))
    cluster.initialise()
    for host in ("old", "new"):
        port = network.node(host).bind(host, 3181)
        await port.listen(lambda: Server(lambda: True))
    tasks = TaskSet()
    pool = BookiePool(
        MemoryStore(cluster), network.node("client"), ClientConfig(), random.Random(1), tasks
    )
    return pool, cluster, network, tasks


def test_a_bookie_that_moved_is_reached_at_its_new_address_at_once() -> None:
    async def main(loop: SimulatedLoop) -> None:
        pool, cluster, network, tasks = await placed(loop)
        store = MemoryStore(cluster)
        first = await store.register_bookie(BookieAddress(BOOKIE, "old", 3181))
        link = await pool.channel(BOOKIE)
        network.silence("client", "old")
        asked = asyncio.ensure_future(link.read(7, 0))
        await first.close()
        begun = loop.time()
        await store.register_bookie(BookieAddress(BOOKIE, "new", 3181))
        with pytest.raises(SilentConnectionError, match="moved to new:3181"):
            await asked
        assert (await pool.channel(BOOKIE)).address == ("new", 3181)
        assert loop.time() - begun < 0.5
        await pool.close()
        await tasks.close()

    simulated(main)


def test_an_idle_connection_is_examined_and_used_again() -> None:
    """Without the examination, each use after a pause would make one more connection."""

    async def main(loop: SimulatedLoop) -> None:
        pool, cluster, _, tasks = await placed(loop)
        await MemoryStore(cluster).register_bookie(BookieAddress(BOOKIE, "old", 3181))
        link = await pool.channel(BOOKIE)
        for _ in range(3):
            await asyncio.sleep(ClientConfig().idle_link_s + 5.0)
            assert not link.trusted
            examined = pool.counters.links_examined
            assert await pool.channel(BOOKIE) is link
            assert pool.counters.links_examined == examined + 1
            assert link.trusted
        await pool.close()
        await tasks.close()

    simulated(main)


def test_a_bookie_that_registers_again_is_probed() -> None:
    async def main(loop: SimulatedLoop) -> None:
        pool, cluster, network, tasks = await placed(loop)
        store, address = MemoryStore(cluster), BookieAddress(BOOKIE, "old", 3181)
        for dead in (False, True):
            registration = await store.register_bookie(address)
            link = await pool.channel(BOOKIE)
            await asyncio.sleep(5.0)  # it was probed, and nothing is expected any more
            examined = pool.counters.links_examined
            if dead:
                network.silence("client", "old")
            await registration.close()
            await asyncio.sleep(0.5)
            registration = await store.register_bookie(address)
            await asyncio.sleep(0.5)
            assert pool.counters.links_examined == examined + 1
            assert (await pool.channel(BOOKIE) is link) is not dead
            await registration.close()
        await pool.close()
        await tasks.close()

    simulated(main)


def test_a_request_is_repeated_once_over_a_new_connection() -> None:
    async def main(loop: SimulatedLoop) -> None:
        pool, cluster, _, tasks = await placed(loop)
        await MemoryStore(cluster).register_bookie(BookieAddress(BOOKIE, "old", 3181))
        used: list[BookieChannel] = []

        async def ask(channel: BookieChannel) -> int:
            used.append(channel)
            if len(used) == 1:
                channel.give_up("a test says so")
                assert channel.lost is not None
                raise channel.lost
            return 5

        assert await pool.ask(BOOKIE, ask) == 5
        assert used[0] is not used[1]

        async def always(channel: BookieChannel) -> int:
            used.append(channel)
            raise SilentConnectionError("again")

        with pytest.raises(SilentConnectionError):
            await pool.ask(BOOKIE, always)
        assert len(used) == 4
        await pool.close()
        await tasks.close()

    simulated(main)
