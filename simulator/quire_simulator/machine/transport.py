"""The connections of the simulated network: two ends, and the data in flight between them."""

from __future__ import annotations

import asyncio
import errno
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

from quire.net.network import ProtocolFactory
from quire_simulator.machine.loop import Node, SimulatedLoop
from quire_simulator.machine.trace import Field, Trace

WINDOW_BYTES = 256 * 1024
MAX_READ_BYTES = 256 * 1024
"""The number of bytes that asyncio reads at once."""
READ_AGAIN_S = 0.000_01
"""The time between two reads of data that has arrived. The reader has handled the first one then,
so the trace does not depend on the number of iterations that this takes asyncio.
"""
HIGH_WATER_BYTES = 64 * 1024
"""asyncio's default. The low mark is a quarter of it."""

Route = tuple[str, str]
"""The sending and the receiving host."""
End = tuple[str, int]
"""A host and a port. Ephemeral ports are never reused, so two ends identify a connection."""

Tap = Callable[[End, End, bytes], None]
"""A function that is called with received data: the sender, the receiver, and the bytes."""


class Reordering(Protocol):
    """A fault that changes the order of what one end writes."""

    def sent(self, end: SimTransport, data: bytes) -> bytes:
        """Return the part of the written data that leaves now."""
        ...

    def rest(self, end: SimTransport) -> bytes:
        """Return what was held back, because the connection is being closed."""
        ...


@dataclass(slots=True)
class Traffic:
    """What one node has sent and received."""

    sent_bytes: int = 0
    writes: int = 0
    """The number of times that data was written to a connection."""
    received_bytes: int = 0
    """The number of bytes that were written to it by nodes that are not measured themselves."""

    def add(self, data: bytes) -> None:
        self.sent_bytes += len(data)
        self.writes += 1


class TransportNetwork(Protocol):
    """The network as the ends of a connection see it."""

    loop: SimulatedLoop
    trace: Trace | None
    tap: Tap | None
    written: Tap | None
    mangle: Callable[[Route, bytes], bytes] | None
    disorder: Reordering | None
    traffic: dict[str, Traffic]
    measures_backlog: bool
    blocked: set[Route]

    def record(self, route: Route, event: str, **fields: Field) -> None: ...

    def delay(self, route: Route | None = None) -> float: ...

    def cut(self, size: int) -> int: ...

    def hold(self, route: Route, resume: Callable[[], None]) -> None: ...

    def backlogged(self, end: SimTransport) -> None: ...

    def forget(self, end: SimTransport) -> None: ...


class TransportHost(Protocol):
    """The host at one end of a connection."""

    name: str
    node: Node

    @property
    def network(self) -> TransportNetwork: ...


class _Signal(Enum):
    """A signal that is sent in order with the bytes."""

    FIN = "fin"
    RST = "rst"


class Pipe:
    """One direction of a connection."""

    def __init__(
        self, network: TransportNetwork, writer: SimTransport, reader: SimTransport
    ) -> None:
        self._network = network
        self.swallows = False
        """Whether the flow died silently: all data that is sent is lost without an error."""
        self.swallowed = False
        """Whether any data was lost in this way."""
        self._flight: deque[tuple[float, bytes | _Signal]] = deque()
        self._size = 0
        self._scheduled = False
        self.writer = writer
        self.reader = reader
        self.route: Route = (writer.host.name, reader.host.name)

    def room(self) -> int:
        return WINDOW_BYTES - self._size

    def send(self, item: bytes | _Signal) -> None:
        # An item never overtakes earlier ones. It arrives together with them instead.
        if isinstance(item, bytes):
            self._size += len(item)
        if self.swallows:
            self.swallowed = True
            return  # The writer's kernel keeps sending the bytes without success.
        arrival = self._network.loop.time() + self._network.delay(self.route)
        self._flight.append((arrival, item))
        if not self._scheduled:
            self.resume()

    def swallow(self) -> None:
        """Lose the data in flight, and all data that is sent from now on, without an error."""
        self.swallows = True
        self.swallowed |= bool(self._flight)
        self._flight.clear()

    def lose(self, rng: random.Random | None = None) -> None:
        """Drop the data in flight: all of it, or from a seeded position on."""
        for _ in range(len(self._flight) if rng is None else rng.randint(0, len(self._flight))):
            _, item = self._flight.pop()
            if isinstance(item, bytes):
                self._size -= len(item)

    def resume(self) -> None:
        """Continue after the reader or a partition held this direction up."""
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
            # The rest has arrived already if the reader merely takes no more at once.
            delay_s = READ_AGAIN_S if cut == MAX_READ_BYTES else network.delay()
            flight.appendleft((now + delay_s, data[cut:]))
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

    out: Pipe
    back: Pipe

    def __init__(self, host: TransportHost, local: End, remote: End) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.host = host
        self.local = local
        self.remote = remote
        self.holds = True
        """Whether this end receives nothing now, because it is not open yet or is paused."""
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
        if self.host.network.disorder is not None:
            data = self.host.network.disorder.sent(self, data)
        self.write_now(data)

    def write_now(self, data: bytes) -> None:
        """Write data that no other data overtakes any more."""
        if self._closing or not data:
            return
        if self.host.network.mangle is not None:
            data = self.host.network.mangle(self.out.route, data)
        traffic = self.host.network.traffic
        node = self.local[0]
        if node in traffic:
            traffic[node].add(data)
        elif self.remote[0] in traffic:
            traffic[self.remote[0]].received_bytes += len(data)
        if self.host.network.written is not None:
            self.host.network.written(self.local, self.remote, data)
        if not self._backlog and len(data) <= self.out.room():
            self.out.send(data)
            return
        self._backlog.append(data)
        self._backlog_size += len(data)
        self._flush()
        if self.host.network.measures_backlog:
            self.host.network.backlogged(self)
        if self._backlog_size > self._high and not self._writer_paused:
            self._writer_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Close after everything written was sent, and drop what arrives."""
        if not self._closing:
            if self.host.network.disorder is not None:
                self.write_now(self.host.network.disorder.rest(self))
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
            self.abort()  # The client gave up while the connection was made.
        elif self._closed:
            if opened is not None:
                opened.set_exception(reset_error("broken while it was made"))
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
            # The connection is closed, so the kernel answers with a reset.
            self.out.send(_Signal.RST)
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
        self._lost(reset_error(why))

    def timed_out(self) -> None:
        """End the connection as a kernel does if the peer acknowledges nothing."""
        self._lost(timed_out())

    def drained(self) -> None:
        """Tell the writer, with a delay like that of a window update, that the network has room."""
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
        self.holds = False  # Whatever still arrives must be answered or dropped.
        self.back.resume()
        self._backlog.clear()
        self._backlog_size = 0
        self.host.network.forget(self)
        if self._protocol is not None:
            self.host.node.call_soon(self._protocol.connection_lost, error)


def timed_out() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "connection timed out")


def reset_error(why: str) -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, f"connection {why}")
