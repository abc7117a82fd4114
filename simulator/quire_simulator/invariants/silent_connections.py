"""Check that clients leave connections that died silently.

The limit counts only while nothing else is wrong between the client and the bookie: time-outs of
requests decide about a bookie that is slow, paused or cut off. Hostile clients never read, and are
not held to it: bookies end their connections.
"""

from __future__ import annotations

from quire_simulator.faults import hostile
from quire_simulator.invariants.checker import SAMPLE_S, Checker
from quire_simulator.machine.network import LATENCY_S
from quire_simulator.machine.transport import SimTransport
from quire_simulator.world.world import PORT, World

LEFT_WITHIN_S = 3.0


class SilentConnections:
    """A measure of how long a client could have replaced each connection that died silently."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world = world
        self._checker = checker
        self._silent_s: dict[SimTransport, float] = {}
        checker.sampled.append(self._look)

    def _look(self) -> None:
        before, self._silent_s = self._silent_s, {}
        for end in self._world.network.silenced():
            if end.remote[1] != PORT or end.out.route[0].startswith(hostile.PREFIX):
                continue
            silent_s = before.get(end, 0.0) + SAMPLE_S if self._all_is_well(end) else 0.0
            self._silent_s[end] = silent_s
            if silent_s > LEFT_WITHIN_S:
                client, bookie = end.out.route
                what = f"{client} has kept a connection to {bookie} for {silent_s:.1f} s"
                self._checker.fail("a_silent_connection_is_left", what)

    def _all_is_well(self, end: SimTransport) -> bool:
        """Return whether the client could replace this connection now."""
        world, network = self._world, self._world.network
        client, name = end.out.route
        bookie = world.bookies.get(name)
        if (
            bookie is None
            or not bookie.recovered
            or bookie.bookie_id not in world.cluster.presences
        ):
            return False
        there = network.node(name).node
        usual = network.latency_s == LATENCY_S and (client, name) not in network.route_latency_s
        cut = {(client, name), (name, client)} & network.blocked
        metadata = world.metadata_failures or client in world.slow_metadata_s
        lags = world.lags.of(client) > 0.0  # it may not show where the bookie is now
        slow = any(disk.slowness > 1.0 for disk in world.disks_of(name))
        late = world.disorder is not None and world.disorder.disturbs(name)
        disturbed = cut or metadata or lags or world.cluster.notice_delay_s or slow or late
        return usual and not there.stopped and not end.host.node.stopped and not disturbed
