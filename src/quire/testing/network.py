"""A network in memory: connections with delays, arbitrary cuts, partitions and deaths.

Hosts are named by their node. What one end writes arrives at the other in order, after seeded
delays, joined or cut anywhere. At most `WINDOW_BYTES` of a direction are under way (what the
kernels of both sides would hold); the rest waits in the writer's transport, which pauses its
protocol by asyncio's water marks. So a receiver that is stopped, paused or cut off holds a bounded
number of bytes and its senders feel it.

Callbacks of protocols run in the node of their host: those of a stopped node wait, those of a dead
one never come. A stopped host still accepts connections, as its kernel would; a dead one refuses.
"""

from __future__ import annotations

import asyncio
import errno
import random
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import partial
from typing import Literal, Never

from quire.net.network import ProtocolFactory
from quire.testing.loop import Node, SimulatedLoop
from quire.testing.trace import Field, Trace

WINDOW_BYTES = 256 * 1024
MAX_READ_BYTES = 256 * 1024
"""What asyncio reads at once."""
HIGH_WATER_BYTES = 64 * 1024
"""asyncio's default; the low mark is a quarter of it."""
LATENCY_S = (0.000_05, 0.010)
CUT_PROBABILITY = 0.1
"""How often what has arrived is handed over in two pieces."""
CUT_NEAR_START_BYTES = 24
"""Half of the cuts fall so close to the start: that is where headers are."""
FIRST_EPHEMERAL_PORT = 40_000
OWN_HOST = frozenset(("", "localhost", "127.0.0.1", "0.0.0.0", "::", "::1"))

Route = tuple[str, str]
"""From host, to host."""
End = tuple[str, int]
"""Host and port. A port that was not asked for is given once: two ends name a connection."""
Tap = Callable[[End, End, bytes], None]
"""Is told what has arrived: from where, to where, and the bytes."""


class _Signal(Enum):
    """Sent in line with the bytes."""

    FIN = "fin"
    RST = "rst"


class _Pipe:
    """One direction of a connection."""

    def __init__(self, network: SimNetwork, writer: SimTransport, reader: SimTransport) -> None:
        self._network = network
        self._flight: deque[tuple[float, bytes | _Signal]] = deque()
        self._size = 0
        self._scheduled = False
        self.writer = writer
        self.reader = reader
        self.route: Route = (writer.host.name, reader.host.name)

    def room(self) -> int:
        return WINDOW_BYTES - self._size

    def send(self, item: bytes | _Signal) -> None:
        # One that would overtake those before it arrives with them, in one piece.
        arrival = self._network.loop.time() + self._network.delay(self.route)
        self._flight.append((arrival, item))
        if isinstance(item, bytes):
            self._size += len(item)
        if not self._scheduled:
            self.resume()

    def lose(self, rng: random.Random | None = None) -> None:
        """Drop what is under way: all of it, or from a seeded place on."""
        for _ in range(len(self._flight) if rng is None else rng.randint(0, len(self._flight))):
            _, item = self._flight.pop()
            if isinstance(item, bytes):
                self._size -= len(item)

    def resume(self) -> None:
        """Go on, after the reader or a partition held this up."""
        if self._flight and not self._scheduled:
            self._scheduled = True
            self._network.loop.call_at(
                self._flight[0][0], self._arrive, context=self.reader.host.node.context
            )

    def _arrive(self) -> None:
        self._scheduled = False
        reader, flight, network = self.reader, self._flight, self._network
        if self.route in network.blocked:
            network.hold(self.route, self.resume)
            return
        if reader.holds or not flight:
            return
        now = network.loop.time()
        chunks: list[bytes] = []
        signal: _Signal | None = None
        while flight and flight[0][0] <= now and signal is None:
            item = flight[0][1]
            if isinstance(item, bytes):
                chunks.append(item)
            elif chunks:
                break
            else:
                signal = item
            flight.popleft()
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        cut = network.cut(len(data))
        if cut < len(data):
            flight.appendleft((now + network.delay(), data[cut:]))
            data = data[:cut]
        self._size -= len(data)
        self.resume()
        if data:
            self.writer.drained()
            if network.trace is not None:
                network.record(self.route, "received", size=len(data), crc=zlib.crc32(data))
            if network.tap is not None:
                network.tap(self.writer.local, self.writer.remote, data)
            reader.receive(data)
        elif signal is not None:
            network.record(self.route, signal.value)
            reader.signalled(signal)


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    out: _Pipe
    back: _Pipe

    def __init__(self, host: SimHost, local: End, remote: End) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.host = host
        self.local = local
        self.remote = remote
        self.holds = True
        """Takes nothing now: not open yet, or paused."""
        self._protocol: asyncio.BaseProtocol | None = None
        self._closing = False
        self._closed = False
        self._backlog: deque[bytes] = deque()
        self._backlog_size = 0
        self._flushing = False
        self._writer_paused = False
        self.set_write_buffer_limits()

    # -- for protocols ------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        if not self._closing:
            self.holds = True

    def resume_reading(self) -> None:
        self.holds = False
        self.back.resume()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return self._backlog_size

    def can_write_eof(self) -> Literal[False]:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        data = bytes(data)
        if self._closing or not data:
            return
        if self.host.network.mangle is not None:
            data = self.host.network.mangle(self.out.route, data)
        if not self._backlog and len(data) <= self.out.room():
            self.out.send(data)
            return
        self._backlog.append(data)
        self._backlog_size += len(data)
        self._flush()
        if self._backlog_size > self._high and not self._writer_paused:
            self._writer_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """What was written still goes out, what arrives is dropped."""
        if not self._closing:
            self._closing = True
            self._close_if_flushed()

    def abort(self) -> None:
        if not self._closed:
            self.out.send(_Signal.RST)
            self._lost(None)

    # -- for the network ----------------------------------------------------------------------

    def open(
        self, factory: ProtocolFactory, opened: asyncio.Future[asyncio.Protocol] | None = None
    ) -> None:
        if opened is not None and opened.done():
            self.abort()  # whoever connected has given up meanwhile
        elif self._closed:
            if opened is not None:
                opened.set_exception(_reset("broken while it was made"))
        else:
            protocol = factory()
            self._protocol = protocol
            self.holds = False
            protocol.connection_made(self)
            self.back.resume()
            if opened is not None:
                opened.set_result(protocol)

    def receive(self, data: bytes) -> None:
        if self._closed:
            self.out.send(_Signal.RST)  # nobody will ever read this: the kernel says so
        elif not self._closing:
            assert isinstance(self._protocol, asyncio.Protocol)
            try:
                self._protocol.data_received(data)
            except Exception as error:
                self._lost(error)
                raise

    def signalled(self, signal: _Signal) -> None:
        if signal is _Signal.RST:
            self.broken("reset by peer")
        elif not self._closing:
            assert isinstance(self._protocol, asyncio.Protocol)
            if not self._protocol.eof_received():
                self.close()

    def broken(self, why: str) -> None:
        self._lost(_reset(why))

    def drained(self) -> None:
        """The network has room again; the writer learns of it later, as by a window update."""
        if self._backlog and not self._flushing:
            self._flushing = True
            network = self.host.network
            network.loop.call_later(
                network.delay(), self._flush_more, context=self.host.node.context
            )

    def _flush_more(self) -> None:
        self._flushing = False
        self._flush()
        if self._writer_paused and self._backlog_size <= self._low and not self._closed:
            self._writer_paused = False
            self.get_protocol().resume_writing()
        if self._closing:
            self._close_if_flushed()

    def _flush(self) -> None:
        backlog = self._backlog
        while backlog and (room := self.out.room()) > 0:
            data = backlog.popleft()
            if len(data) > room:
                backlog.appendleft(data[room:])
                data = data[:room]
            self._backlog_size -= len(data)
            self.out.send(data)

    def _close_if_flushed(self) -> None:
        if not self._backlog and not self._closed:
            self.out.send(_Signal.FIN)
            self._lost(None)

    def _lost(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closing = self._closed = True
        self.holds = False  # what still arrives is to be answered, or dropped
        self.back.resume()
        self._backlog.clear()
        self._backlog_size = 0
        self.host.network.forget(self)
        if self._protocol is not None:
            self.host.node.call_soon(self._protocol.connection_lost, error)


class SimPort:
    """`quire.net.network.Port`."""

    def __init__(self, host: SimHost, number: int) -> None:
        self.host = host
        self.number = number
        self.factory: ProtocolFactory | None = None

    async def listen(self, factory: ProtocolFactory) -> None:
        self.factory = factory

    def close(self) -> None:
        self.factory = None
        self.host.network.unbind(self)


class SimHost:
    """`quire.net.network.Network` as one node sees it."""

    def __init__(self, network: SimNetwork, node: Node) -> None:
        self.network = network
        self.node = node
        self.name = node.name

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        opened: asyncio.Future[asyncio.Protocol] = self.network.loop.create_future()
        target = self.name if host in OWN_HOST else host
        self.network.carry(
            (self.name, target), partial(self.network.accept, self, target, port, factory, opened)
        )
        return await opened

    async def start_tls(self, transport: asyncio.Transport, context: object, **_: object) -> Never:
        raise NotImplementedError("TLS is not simulated")

    def bind(self, host: str, port: int) -> SimPort:
        """On all addresses, whatever `host` says."""
        return self.network.bind(self, port)


class SimNetwork:
    """All hosts and what lies between them."""

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, *, trace: Trace | None = None
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.tap: Tap | None = None
        """Who listens; nothing that it hears changes the run."""
        self.latency_s = LATENCY_S
        """Shortest and longest delay of whatever is sent from now on."""
        self.route_latency_s: dict[Route, tuple[float, float]] = {}
        """The same for single routes."""
        self.cut_probability = CUT_PROBABILITY
        self.blocked: set[Route] = set()
        self.mangle: Callable[[Route, bytes], bytes] | None = None
        """Given what is written somewhere, says what is sent instead."""
        self._rng = rng
        self._draw = rng.random
        self._kernel = loop.node("network")
        self._hosts: dict[str, SimHost] = {}
        self._ports: dict[tuple[str, int], SimPort] = {}
        self._ends: dict[SimTransport, None] = {}
        self._held: list[tuple[Route, Callable[[], None]]] = []
        self._last_port = FIRST_EPHEMERAL_PORT

    # -- the world ----------------------------------------------------------------------------

    def node(self, name: str) -> SimHost:
        """The network as this node sees it: of the node that lives, or of a new one."""
        host = self._hosts.get(name)
        if host is None or host.node.dead:
            host = self._hosts[name] = SimHost(self, self.loop.node(name))
        return host

    def knows(self, name: str) -> bool:
        """Whether there is, or was, a node of this name."""
        return name in self._hosts

    def kill(self, name: str) -> None:
        """End the node at once. Its peers learn of it by a reset, behind what they get of the
        bytes under way (not before a partition in between is healed)."""
        node = self._hosts[name].node
        self.record((name, name), "killed")
        for end in [end for end in self._ends if end.host.node is node]:
            end.out.lose(self._rng)
            end.abort()
        for port in [port for port in self._ports.values() if port.host.node is node]:
            port.close()
        node.kill()

    def stop(self, name: str) -> None:
        self.record((name, name), "stopped")
        self._hosts[name].node.stop()

    def cont(self, name: str) -> None:
        self.record((name, name), "continued")
        self._hosts[name].node.cont()

    def partition(
        self, name: str, *others: str, one_way: bool = False, reset: bool = False
    ) -> None:
        """Cut `name` off from the others (one_way: only what `name` sends is held). Bytes wait for
        `heal`; with reset, connections between them break at once at both ends."""
        for other in others:
            self.blocked.add((name, other))
            self.record((name, other), "cut", reset=reset)
            if not one_way:
                self.blocked.add((other, name))
                self.record((other, name), "cut", reset=reset)
        if reset:
            for end in [
                e for e in self._ends if e.out.route[0] == name and e.out.route[1] in others
            ]:
                for side in (end, end.out.reader):
                    side.out.lose()
                    side.broken("reset by a partition")

    def heal(self, *names: str) -> None:
        """Let pass what touches any of these hosts; without names, everything."""
        self.record(("network", "network"), "healed", names=",".join(names))
        self.heal_routes({r for r in self.blocked if not names or set(names).intersection(r)})

    def heal_routes(self, routes: Collection[Route]) -> None:
        """Let pass what takes one of these (from, to) pairs."""
        self.blocked = {route for route in self.blocked if route not in routes}
        held, self._held = self._held, []
        for route, resume in held:
            if route in self.blocked:
                self._held.append((route, resume))
            else:
                resume()

    # -- for hosts, transports and pipes ------------------------------------------------------

    def record(self, route: Route, event: str, **fields: Field) -> None:
        if self.trace is not None:
            self.trace.record(route[1], event, peer=route[0], **fields)

    def delay(self, route: Route | None = None) -> float:
        low, high = self.latency_s
        if route in self.route_latency_s:
            low, high = self.route_latency_s[route]
        # The cube makes most delays short and some long, as networks are.
        return float(low + (high - low) * self._draw() ** 3)

    def cut(self, size: int) -> int:
        """How many of the bytes that have arrived are handed over at once."""
        if size > MAX_READ_BYTES:
            return MAX_READ_BYTES
        if size < 2 or self._draw() >= self.cut_probability:
            return size
        near = self._draw() < 0.5
        return 1 + int(self._draw() * min(size - 1, CUT_NEAR_START_BYTES if near else size))

    def hold(self, route: Route, resume: Callable[[], None]) -> None:
        self._held.append((route, resume))

    def carry(self, route: Route, deliver: Callable[[], object]) -> None:
        """Do something at the other side, in its kernel."""
        self.loop.call_later(
            self.delay(), self._deliver, route, deliver, context=self._kernel.context
        )

    def _deliver(self, route: Route, deliver: Callable[[], object]) -> None:
        if route in self.blocked:
            self.hold(route, partial(self.carry, route, deliver))
        else:
            deliver()

    def bind(self, host: SimHost, number: int) -> SimPort:
        port = SimPort(host, number or self._next_port())
        if self._ports.setdefault((host.name, port.number), port) is not port:
            raise OSError(errno.EADDRINUSE, f"port {number} of {host.name} is taken")
        return port

    def unbind(self, port: SimPort) -> None:
        key = (port.host.name, port.number)
        if self._ports.get(key) is port:
            del self._ports[key]

    def accept(
        self,
        client: SimHost,
        target: str,
        port: int,
        factory: ProtocolFactory,
        opened: asyncio.Future[asyncio.Protocol],
    ) -> None:
        """A connection was asked for. The kernel answers, even of a process that is stopped."""
        if client.node.dead:
            return
        back = (target, client.name)
        bound = self._ports.get((target, port))
        if bound is None or bound.factory is None:
            error: OSError = ConnectionRefusedError(errno.ECONNREFUSED, f"refused: {target}:{port}")
            if target not in self._hosts:
                error = OSError(errno.EHOSTUNREACH, f"no such host: {target}")
            self.record(back, "refused", port=port)
            self.carry(back, partial(_fail, opened, error))
            return
        here, there = (target, port), (client.name, self._next_port())
        ours = SimTransport(bound.host, here, there)
        theirs = SimTransport(client, there, here)
        ours.out = theirs.back = _Pipe(self, ours, theirs)
        theirs.out = ours.back = _Pipe(self, theirs, ours)
        self._ends[ours] = self._ends[theirs] = None
        self.record((client.name, target), "accepted", port=port)
        bound.host.node.call_soon(ours.open, bound.factory)
        self.carry(back, lambda: client.node.call_soon(theirs.open, factory, opened))

    def forget(self, end: SimTransport) -> None:
        self._ends.pop(end, None)

    def _next_port(self) -> int:
        self._last_port += 1
        return self._last_port


def _fail(future: asyncio.Future[asyncio.Protocol], error: OSError) -> None:
    if not future.done():
        future.set_exception(error)


def _reset(why: str) -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, f"connection {why}")
