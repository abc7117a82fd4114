"""The simulated network: order, splits, back-pressure, partitions, and the ways in which a host
dies.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire_simulator.machine import (
    DeadlockError,
    SimHost,
    SimNetwork,
    SimTransport,
    SimulatedLoop,
    Trace,
    current_node,
)
from quire_simulator.machine.transport import WINDOW_BYTES

PORT = 3181


class Peer(asyncio.Protocol):
    """Writes down what happens to it."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.events: list[str] = []
        self.lost: list[Exception | None] = []
        self.changed = asyncio.Event()
        self.transport: SimTransport

    def note(self, event: str) -> None:
        self.events.append(f"{event} in {current_node.get().name}")
        self.changed.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport
        self.note("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data
        self.chunks.append(data)
        self.changed.set()

    def eof_received(self) -> bool | None:
        self.note("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.note("lost")

    def pause_writing(self) -> None:
        self.events.append("pause")  # Called by write, in the writer's node.

    def resume_writing(self) -> None:
        self.note("resume")

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class World:
    """A client and a server that are connected."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.trace = Trace(loop.time)
        self.network = SimNetwork(loop, loop.derive("network"), trace=self.trace)
        self.host = self.network.node("client")
        self.server_host = self.network.node("server")
        self.served: list[Peer] = []
        self.client: Peer
        self.server: Peer

    def accept(self) -> Peer:
        self.served.append(Peer())
        return self.served[-1]

    async def listen(self) -> None:
        await self.server_host.bind("", PORT).listen(self.accept)

    async def start(self) -> World:
        await self.listen()
        self.client = await connect(self.host)
        self.server = self.served[0]
        await self.server.until(lambda: bool(self.server.events))
        return self


async def connect(host: SimHost, target: str = "server", port: int = PORT) -> Peer:
    peer = await host.connect(target, port, Peer)
    assert isinstance(peer, Peer)
    return peer


def write_until_paused(peer: Peer, size: int) -> int:
    for count in range(1, 2000):
        peer.transport.write(b"x" * size)
        if "pause" in peer.events:
            return count * size
    raise AssertionError("the writer was never paused")


Test = Callable[[World], Awaitable[None]]


def simulated(test: Test) -> Callable[[], None]:
    """Run under several seeds: what is asserted must hold for each."""

    def run() -> None:
        for seed in range(25):
            loop = SimulatedLoop(seed, max_time_s=3600, max_steps=200_000)
            loop.run(test(World(loop)))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


# -- connections ------------------------------------------------------------------------------


@simulated
async def test_connections_open_exchange_bytes_and_close(world: World) -> None:
    await world.start()
    client, server = world.client, world.server
    assert client.transport.get_extra_info("peername") == ("server", PORT)
    assert server.transport.get_extra_info("sockname") == ("server", PORT)
    name = client.transport.get_extra_info("sockname")
    assert name == server.transport.get_extra_info("peername")
    assert name[0] == "client"
    assert client.transport.get_extra_info("socket", 5) == 5
    client.transport.write(b"question")
    await server.until(lambda: server.data == b"question")
    server.transport.write(bytearray(b"answer"))
    server.transport.writelines([b" in ", memoryview(b"parts")])
    server.transport.close()
    server.transport.write(b"ignored")
    await client.until(lambda: bool(client.lost))
    assert client.data == b"answer in parts"
    assert client.lost == server.lost == [None]
    assert client.events == ["made in client", "eof in client", "lost in client"]
    assert server.events == ["made in server", "lost in server"]
    assert client.transport.is_closing()
    with pytest.raises(TypeError):
        client.transport.write("text")  # type: ignore[arg-type]


@simulated
async def test_a_server_may_speak_first_and_close_at_once(world: World) -> None:
    class Hasty(Peer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.write(b"go away")
            self.transport.close()

    await world.server_host.bind("", PORT).listen(Hasty)
    client = await connect(world.host)
    await client.until(lambda: bool(client.lost))
    assert client.data == b"go away"
    assert client.lost == [None]


@simulated
async def test_a_connection_to_an_unused_port_is_refused(world: World) -> None:
    with pytest.raises(ConnectionRefusedError, match="server:3181"):
        await connect(world.host)
    port = world.server_host.bind("", PORT)
    with pytest.raises(ConnectionRefusedError):
        await connect(world.host)  # bound, not listening
    with pytest.raises(OSError, match="taken") as taken:
        world.server_host.bind("0.0.0.0", PORT)
    assert taken.value.errno == errno.EADDRINUSE
    await port.listen(Peer)
    kept = await connect(world.host)
    port.close()
    port.close()
    with pytest.raises(ConnectionRefusedError):
        await connect(world.host)
    assert not kept.lost
    with pytest.raises(OSError, match="nowhere") as unknown:
        await connect(world.host, "nowhere")
    assert unknown.value.errno == errno.EHOSTUNREACH
    world.network.kill("server")
    with pytest.raises(ConnectionRefusedError):
        await connect(world.host)


@simulated
async def test_free_ports_are_assigned_and_localhost_is_the_host_itself(world: World) -> None:
    ports = [world.host.bind("localhost", 0) for _ in range(3)]
    assert len({port.number for port in ports}) == 3
    await ports[1].listen(Peer)
    for name in ("127.0.0.1", "localhost", "client"):
        peer = await connect(world.host, name, ports[1].number)
        assert peer.transport.get_extra_info("peername") == ("client", ports[1].number)
    with pytest.raises(ConnectionRefusedError):
        await connect(world.server_host, "localhost", ports[1].number)


@simulated
async def test_connect_can_be_cancelled(world: World) -> None:
    await world.listen()
    for delay in (0.0, 0.0002, 0.001, 0.002, 0.004, 0.2):
        try:
            async with asyncio.timeout(delay):
                peer = await connect(world.host)
                peer.transport.abort()
        except TimeoutError:
            pass
    await asyncio.sleep(1)
    assert all(peer.events[-1] == "lost in server" for peer in world.served)
    assert not world.network._ends


@simulated
async def test_abort_resets_the_peer(world: World) -> None:
    await world.start()
    world.client.transport.abort()
    world.client.transport.abort()
    await world.server.until(lambda: bool(world.server.lost))
    assert world.client.lost == [None]
    assert isinstance(world.server.lost[0], ConnectionResetError)


@simulated
async def test_writing_to_a_closed_peer_ends_in_a_reset(world: World) -> None:
    await world.start()
    world.network.partition("client", "server", one_way=True)
    world.client.transport.close()
    world.server.transport.write(b"too late")
    await asyncio.sleep(1)
    world.network.heal()
    await world.server.until(lambda: bool(world.server.lost))
    assert world.client.data == b""


@simulated
async def test_writing_to_a_closed_paused_peer_ends_in_a_reset(world: World) -> None:
    class HalfOpen(Peer):
        def eof_received(self) -> bool:
            super().eof_received()
            return True

    await world.listen()
    client = await world.host.connect("server", PORT, HalfOpen)
    assert isinstance(client, HalfOpen)
    await asyncio.sleep(1)
    world.served[0].transport.pause_reading()
    client.transport.write(b"not read")
    world.served[0].transport.close()
    await client.until(lambda: bool(client.lost))
    assert isinstance(client.lost[0], ConnectionResetError)
    assert world.served[0].data == b""


@simulated
async def test_an_error_in_a_protocol_breaks_its_connection(world: World) -> None:
    failures: list[dict[str, Any]] = []
    world.loop.set_exception_handler(lambda _, context: failures.append(context))

    class Bad(Peer):
        def data_received(self, data: bytes) -> None:
            raise ValueError("cannot parse")

    await world.server_host.bind("", PORT).listen(Bad)
    client = await connect(world.host)
    client.transport.write(b"x")
    await asyncio.sleep(1)
    assert [repr(f["exception"]) for f in failures] == ["ValueError('cannot parse')"]
    client.transport.write(b"y")
    await client.until(lambda: bool(client.lost))


# -- bytes ------------------------------------------------------------------------------------


def test_bytes_keep_their_order_and_are_split_arbitrarily() -> None:
    shapes: set[str] = set()
    cuts: set[int] = set()

    async def main(world: World) -> None:
        await world.start()
        rng = world.loop.derive("test")
        sent = [rng.randbytes(rng.choice([1, 2, 30, 500, 70_000])) for _ in range(60)]
        for data in sent:
            world.client.transport.write(data)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.01)
        whole = b"".join(sent)
        await world.server.until(lambda: len(world.server.data) >= len(whole))
        assert world.server.data == whole
        edges, at = {0}, 0
        for data in sent:
            at += len(data)
            edges.add(at)
        at = 0
        for chunk in world.server.chunks:
            inside = {edge for edge in edges if at < edge < at + len(chunk)}
            shapes.add("joined" if inside else "whole" if at in edges else "cut")
            at += len(chunk)
            if at not in edges:
                cuts.add(at - max(edge for edge in edges if edge < at))

    for seed in range(30):
        loop = SimulatedLoop(seed)
        loop.run(main(World(loop)))
    assert shapes == {"joined", "whole", "cut"}
    assert {1, 2, 3, 4, 8}.issubset(cuts)
    assert max(cuts) > 1000


def test_no_byte_arrives_before_the_shortest_delay() -> None:
    delays: list[float] = []

    async def main(world: World) -> None:
        await world.start()
        world.network.latency_s = (0.5, 2.0)
        for _ in range(20):
            before, sent = world.loop.time(), world.server.data
            world.client.transport.write(b"x")
            await world.server.until(lambda sent=sent: world.server.data != sent)
            delays.append(world.loop.time() - before)

    for seed in range(10):
        loop = SimulatedLoop(seed)
        loop.run(main(World(loop)))
    assert 0.5 <= min(delays) < 0.6
    assert 1.5 < max(delays) <= 2.0


# -- back-pressure ----------------------------------------------------------------------------


@simulated
async def test_a_paused_reader_pauses_the_writer(world: World) -> None:
    await world.start()
    client, server = world.client, world.server
    server.transport.pause_reading()
    client.transport.set_write_buffer_limits(high=1000)
    total = write_until_paused(client, 700)
    assert WINDOW_BYTES < total <= WINDOW_BYTES + 2 * 1000
    assert client.transport.get_write_buffer_size() == total - WINDOW_BYTES
    await asyncio.sleep(10)
    assert server.chunks == []
    assert "resume in client" not in client.events
    server.transport.resume_reading()
    await client.until(lambda: "resume in client" in client.events)
    await server.until(lambda: len(server.data) == total)
    assert client.transport.get_write_buffer_size() == 0
    assert client.events == ["made in client", "pause", "resume in client"]


@simulated
async def test_close_sends_the_written_bytes_first(world: World) -> None:
    await world.start()
    data = bytes(range(256)) * 4096
    world.client.transport.write(data)
    assert world.client.transport.get_write_buffer_size() > 0
    world.client.transport.close()
    await world.server.until(lambda: bool(world.server.lost))
    assert world.server.data == data
    assert world.client.lost == world.server.lost == [None]
    assert "resume in client" in world.client.events


@simulated
async def test_abort_drops_the_written_bytes(world: World) -> None:
    await world.start()
    world.client.transport.write(b"x" * (WINDOW_BYTES * 3))
    world.client.transport.abort()
    assert world.client.transport.get_write_buffer_size() == 0
    await world.server.until(lambda: bool(world.server.lost))
    assert len(world.server.data) <= WINDOW_BYTES


# -- partitions -------------------------------------------------------------------------------


@simulated
async def test_a_partition_holds_bytes_until_it_is_healed(world: World) -> None:
    await world.start()
    client, server = world.client, world.server
    client.transport.write(b"under way, ")
    world.network.partition("client", "server")
    client.transport.write(b"held")
    server.transport.write(b"held too")
    await asyncio.sleep(60)
    assert client.data == server.data == b""
    world.network.heal("somebody else")
    await asyncio.sleep(60)
    assert client.data == server.data == b""
    world.network.heal("client")
    await server.until(lambda: server.data == b"under way, held")
    await client.until(lambda: client.data == b"held too")


@simulated
async def test_a_one_way_partition_lets_the_other_way_pass(world: World) -> None:
    await world.start()
    world.network.partition("client", "server", one_way=True)
    world.client.transport.write(b"held")
    world.server.transport.write(b"passes")
    await world.client.until(lambda: world.client.data == b"passes")
    await asyncio.sleep(60)
    assert world.server.data == b""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await connect(world.host)
    world.network.heal()
    await world.server.until(lambda: world.server.data == b"held")


@simulated
async def test_a_partition_can_reset_connections(world: World) -> None:
    await world.start()
    other = world.network.node("other")
    spared = await connect(other)
    back = await connect(world.server_host, "server")
    world.client.transport.write(b"lost")
    world.network.partition("server", "client", reset=True)
    for peer in (world.client, world.server):
        await peer.until(lambda peer=peer: bool(peer.lost))
        assert isinstance(peer.lost[0], ConnectionResetError)
    world.network.heal()
    await asyncio.sleep(10)
    assert world.server.data == b""
    assert spared.lost == back.lost == []


@simulated
async def test_connecting_waits_for_the_partition_to_heal(world: World) -> None:
    await world.listen()
    world.network.partition("client", "server")
    task = asyncio.create_task(connect(world.host))
    await asyncio.sleep(60)
    assert not task.done()
    assert world.served == []
    world.network.heal()
    assert (await task).events == ["made in client"]


@simulated
async def test_a_reset_during_the_connection_setup_fails_it(world: World) -> None:
    await world.listen()
    world.network.latency_s = (1.0, 1.0)
    task = asyncio.create_task(connect(world.host))
    await asyncio.sleep(1.5)
    world.network.partition("client", "server", reset=True)
    world.network.heal()
    with pytest.raises(ConnectionResetError):
        await task


# -- hosts that stop and die ------------------------------------------------------------------


@simulated
async def test_a_stopped_host_buffers_a_limited_number_of_bytes(world: World) -> None:
    await world.start()
    client, server = world.client, world.server
    world.network.stop("server")
    sent = write_until_paused(client, 10_000)
    assert sent < WINDOW_BYTES + 100_000
    second = await connect(world.host)  # its kernel accepts
    second.transport.write(b"hello")
    await asyncio.sleep(60)
    assert server.chunks == []
    assert len(world.served) == 1
    world.network.cont("server")
    await server.until(lambda: len(server.data) == sent)
    await client.until(lambda: "resume in client" in client.events)
    await asyncio.sleep(1)
    assert world.served[1].data == b"hello"


def test_a_killed_host_resets_its_peers_after_its_sent_bytes() -> None:
    got: set[int] = set()

    async def main(world: World) -> None:
        await world.start()
        client, server = world.client, world.server
        for _ in range(5):
            server.transport.write(b"0123456789")
        world.network.kill("server")
        events = list(server.events)
        client.transport.write(b"nobody reads this")
        await client.until(lambda: bool(client.lost))
        assert isinstance(client.lost[0], ConnectionResetError)
        assert (b"0123456789" * 5).startswith(client.data)
        got.add(len(client.data))
        await asyncio.sleep(5)
        assert server.events == events
        assert server.data == b""
        assert not world.network._ends

        again = world.network.node("server")
        assert again.node is not world.server_host.node
        assert again.node is world.loop.node("server")
        await again.bind("", PORT).listen(world.accept)
        client = await connect(world.host)
        client.transport.write(b"new")
        await world.served[-1].until(lambda: world.served[-1].data == b"new")

    for seed in range(40):
        loop = SimulatedLoop(seed)
        loop.run(main(World(loop)))
    assert {0, 50}.issubset(got)
    assert len(got) > 3


@simulated
async def test_the_death_of_a_partitioned_host_is_seen_when_the_partition_heals(
    world: World,
) -> None:
    await world.start()
    world.network.partition("server", "client")
    world.network.kill("server")
    world.client.transport.write(b"anybody there?")
    await asyncio.sleep(600)
    assert world.client.lost == []
    world.network.heal()
    await world.client.until(lambda: bool(world.client.lost))


@simulated
async def test_a_connection_that_is_silenced_twice_still_counts_as_silent(world: World) -> None:
    await world.start()
    world.network.silence("client", "server")
    world.client.transport.write(b"lost")
    silent = len(list(world.network.silenced()))
    assert silent
    world.network.silence("client", "server")
    assert len(list(world.network.silenced())) == silent


@simulated
async def test_a_client_that_dies_while_connecting_is_disconnected(world: World) -> None:
    await world.listen()
    for turn in range(5):
        task = world.network.node("client").node.create_task(connect(world.network.node("client")))
        await asyncio.sleep(turn * 0.003)
        world.network.kill("client")
        assert task is not None
    await asyncio.sleep(1)
    assert all(len(peer.lost) == 1 for peer in world.served)
    assert not world.network._ends


def test_waiting_for_a_dead_host_is_reported_as_a_deadlock() -> None:
    async def main(world: World) -> None:
        await world.start()
        world.network.partition("server", "client")
        world.network.kill("server")
        await world.client.until(lambda: bool(world.client.lost))

    loop = SimulatedLoop(3)
    with pytest.raises(DeadlockError, match=r"Peer\.until|Event\.wait"):
        loop.run(main(World(loop)))


def test_the_trace_has_the_network_events() -> None:
    loop = SimulatedLoop(3)
    world = World(loop)

    async def main() -> None:
        await world.start()
        world.network.cut_probability = 0.0
        world.client.transport.write(b"abc")
        await world.server.until(lambda: bool(world.server.chunks))
        world.network.partition("client", "server")
        world.network.heal()
        world.network.kill("server")
        await world.client.until(lambda: bool(world.client.lost))

    loop.run(main())
    lines = [line.split(" ", 1)[1] for line in world.trace.lines()]
    assert lines == [
        "server accepted peer='client' port=3181",
        "server received peer='client' size=3 crc=891568578",
        "server cut peer='client' reset=False",
        "client cut peer='server' reset=False",
        "network healed peer='network' names=''",
        "server killed peer='server'",
        "client rst peer='server'",
    ]


async def _streams(world: World) -> None:
    """asyncio's own stream protocols work on these transports."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    def accept() -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=1 << 16, loop=world.loop)
        return asyncio.StreamReaderProtocol(reader, serve, loop=world.loop)

    await world.server_host.bind("", PORT).listen(accept)
    reader = asyncio.StreamReader(limit=1 << 16, loop=world.loop)
    protocol = await world.host.connect(
        "server", PORT, lambda: asyncio.StreamReaderProtocol(reader, loop=world.loop)
    )
    assert isinstance(protocol, asyncio.StreamReaderProtocol)
    transport = protocol._transport  # type: ignore[attr-defined]
    writer = asyncio.StreamWriter(transport, protocol, reader, world.loop)
    for number in range(50):
        writer.write(b"line %d\n" % number)
        await writer.drain()
        assert await reader.readline() == b"LINE %d\n" % number
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(1)  # the server's task ends by itself


test_streams = simulated(_streams)
