"""A network in memory with delays, arbitrary splits, partitions and deaths.

Hosts have the names of their nodes. What one end writes arrives at the other in order, after seeded
delays, joined or split anywhere. Up to `WINDOW_BYTES` are in flight in each direction, like the
buffers of both kernels. The rest waits in the writer's transport, which pauses its protocol at
asyncio's water marks. So a receiver that is stopped, paused or cut off holds a bounded number of
bytes, and its senders are slowed down.

The callbacks of protocols run in the node of their host. Those of a stopped node wait, and those of
a dead node never run. A stopped host still accepts connections, as its kernel would. A dead host
refuses them.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Never

from quire.net.network import DEAD_PEER_S, ProtocolFactory
from quire_simulator.machine.loop import Node, SimulatedLoop
from quire_simulator.machine.trace import Field, Trace
from quire_simulator.machine.transport import (
    MAX_READ_BYTES,
    Pipe,
    Reordering,
    Route,
    SimTransport,
    Tap,
    Traffic,
)

LATENCY_S = (0.000_05, 0.010)
CUT_PROBABILITY = 0.1
"""The probability that received data is delivered in two pieces."""
RECYCLED = 0.0
"""The probability that a new connection breaks soon."""
RECYCLED_AFTER_S = 0.1
CUT_NEAR_START_BYTES = 24
"""Half of the splits are within this distance of the start, where headers are."""
FIRST_EPHEMERAL_PORT = 40_000
OWN_HOST = frozenset(("", "localhost", "127.0.0.1", "0.0.0.0", "::", "::1"))


class SimPort:
    """An implementation of `quire.net.network.Port`."""

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
    """An implementation of `quire.net.network.Network` for one node."""

    def __init__(self, network: SimNetwork, node: Node) -> None:
        self.network = network
        self.node = node
        self.name = node.name

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        opened: asyncio.Future[asyncio.Protocol] = self.network.loop.create_future()
        target = self.name if host in OWN_HOST else self.network.host_at(host)
        if target is not None:
            self.network.carry(
                (self.name, target),
                partial(self.network.accept, self, target, port, factory, opened),
            )
        return await opened

    async def start_tls(self, transport: asyncio.Transport, context: object, **_: object) -> Never:
        raise NotImplementedError("TLS is not simulated")

    def bind(self, host: str, port: int) -> SimPort:
        """Listen on all addresses, whatever `host` is."""
        return self.network.bind(self, port)


class SimNetwork:
    """All hosts and the connections between them."""

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, *, trace: Trace | None = None
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.tap: Tap | None = None
        """Called with all data that arrives. It must not change the run."""
        self.written: Tap | None = None
        """Called with all data as soon as it is written."""
        self.latency_s = LATENCY_S
        """The shortest and longest delay of whatever is sent from now on."""
        self.route_latency_s: dict[Route, tuple[float, float]] = {}
        """The shortest and longest delay of single routes."""
        self.cut_probability = CUT_PROBABILITY
        self.traffic: dict[str, Traffic] = {}
        """The traffic of the nodes that are measured."""
        self.quiet = False
        """Whether no connection is made to break (`RECYCLED`)."""
        self.dead_peer_s = DEAD_PEER_S
        """Seconds until a kernel ends a connection that was silenced (TCP keepalive)."""
        self.addresses: dict[str, str | None] = {}
        """The node at each address that is not the name of its node. None is an address without a
        host, from which no packet comes back.
        """
        self.blocked: set[Route] = set()
        self.accepted: Callable[[Route], None] = lambda route: None
        """Called for each connection, with the route from the client to the server."""
        self.mangle: Callable[[Route, bytes], bytes] | None = None
        """Returns the bytes that are sent in place of the given ones."""
        self.measures_backlog = False
        """Whether the peaks below are kept."""
        self.backlog_peak: dict[str, int] = {}
        """The most bytes that the processes of each host held to be sent, since this was read."""
        self.single_backlog_peak: dict[str, int] = {}
        """The largest part of these bytes that was held for one connection."""
        self.disorder: Reordering | None = None
        """Changes the order of what bookies write."""
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
        """Return the network interface of the living node with this name, or of a new one."""
        host = self._hosts.get(name)
        if host is None or host.node.dead:
            host = self._hosts[name] = SimHost(self, self.loop.node(name))
        return host

    def knows(self, name: str) -> bool:
        """Return whether a node with this name exists or existed."""
        return name in self._hosts

    def others(self, name: str) -> list[str]:
        """Return all other nodes that exist or existed."""
        return [other for other in self._hosts if other != name]

    def host_at(self, address: str) -> str | None:
        """Return the node at this address, or None if nothing answers there."""
        return self.addresses.get(address, address)

    def known(self, beginning: str) -> list[str]:
        """Return the nodes that exist or existed and whose names begin with `beginning`."""
        return [name for name in self._hosts if name.startswith(beginning)]

    def latency_of(self, name: str, other: str) -> tuple[float, float]:
        """Return the shortest and longest delay from `name` to `other`."""
        return self.route_latency_s.get((name, other), self.latency_s)

    def kill(self, name: str) -> None:
        """End the node at once.

        Its peers receive some of the bytes in flight and then a reset. If there is a partition,
        they learn nothing until it is healed.
        """
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
        """Cut `name` off from the others (`one_way`: only what `name` sends is held).

        Bytes wait for `heal`. With `reset`, connections between them break at once at both ends.
        """
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

    def silence(
        self, name: str, *others: str, sent: bool = True, received: bool = True, share: float = 1.0
    ) -> int:
        """Let existing connections between `name` and the others die silently.

        They lose all data that `name` sends, that it receives, or both, without an error. New
        connections are not affected. Each kernel ends its side after `dead_peer_s`. With a `share`
        below 1, a part of the connections dies, and at least one. Returns the number of
        connections that had not lost both directions before.
        """
        ends = [
            end
            for end in self._ends
            if end.out.route[0] == name and end.out.route[1] in others and end.out.route[1] != name
        ]
        ends = ends[: max(1, int(share * len(ends)))]
        died = 0
        for end in ends:
            other = end.out.reader
            died += not (end.out.swallows and other.out.swallows)
            for side, lost in ((end, sent), (other, received)):
                if lost:
                    side.out.swallow()
                # Acknowledgements travel against the data, so both kernels miss something.
                self.loop.call_later(
                    self.dead_peer_s, side.timed_out, context=side.host.node.context
                )
        self.record((name, ",".join(others)), "silenced", connections=died)
        return died

    def silenced(self) -> Iterator[SimTransport]:
        """Yield the open ends of connections that have lost data without an error."""
        return (end for end in self._ends if end.out.swallowed or end.back.swallowed)

    def heal(self, *names: str) -> None:
        """End the partitions that involve any of these hosts, or all without names."""
        self.record(("network", "network"), "healed", names=",".join(names))
        self.heal_routes({r for r in self.blocked if not names or set(names).intersection(r)})

    def heal_routes(self, routes: Collection[Route]) -> None:
        """End the partitions of these (from, to) routes."""
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
        low, high = self.latency_s if route is None else self.latency_of(*route)
        # The cube makes most delays short and some long, as in real networks.
        return float(low + (high - low) * self._draw() ** 3)

    def cut(self, size: int) -> int:
        """Return how many of the received bytes are delivered at once."""
        if size > MAX_READ_BYTES:
            return MAX_READ_BYTES
        if size < 2 or self._draw() >= self.cut_probability:
            return size
        near = self._draw() < 0.5
        return 1 + int(self._draw() * min(size - 1, CUT_NEAR_START_BYTES if near else size))

    def hold(self, route: Route, resume: Callable[[], None]) -> None:
        self._held.append((route, resume))

    def carry(self, route: Route, deliver: Callable[[], object]) -> None:
        """Call `deliver` at the other side, in its kernel, after a delay."""
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
        """Answer a connection request. The kernel answers even for a stopped process."""
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
        ours.out = theirs.back = Pipe(self, ours, theirs)
        theirs.out = ours.back = Pipe(self, theirs, ours)
        self._ends[ours] = self._ends[theirs] = None
        self.record((client.name, target), "accepted", port=port)
        self.accepted((client.name, target))
        if RECYCLED and not self.quiet and self._draw() < RECYCLED:
            self.record((client.name, target), "recycled")
            self.loop.call_later(
                RECYCLED_AFTER_S * self._draw(), self._recycle, ours, context=self._kernel.context
            )
        bound.host.node.call_soon(ours.open, bound.factory)
        self.carry(back, lambda: client.node.call_soon(theirs.open, factory, opened))

    def _recycle(self, end: SimTransport) -> None:
        if end in self._ends and end.out.reader in self._ends:
            for side in (end, end.out.reader):
                side.out.lose()
                side.broken("recycled")

    def backlogged(self, end: SimTransport) -> None:
        """Note that a process has written more than its kernel takes."""
        name = end.host.name
        whole = sum(e.get_write_buffer_size() for e in self._ends if e.host.name == name)
        self.backlog_peak[name] = max(self.backlog_peak.get(name, 0), whole)
        single = max(self.single_backlog_peak.get(name, 0), end.get_write_buffer_size())
        self.single_backlog_peak[name] = single

    def forget(self, end: SimTransport) -> None:
        self._ends.pop(end, None)

    def _next_port(self) -> int:
        self._last_port += 1
        return self._last_port


def _fail(future: asyncio.Future[asyncio.Protocol], error: OSError) -> None:
    if not future.done():
        future.set_exception(error)
