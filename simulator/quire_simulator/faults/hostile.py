"""Hostile clients: they ask for very much at once, never read, send half frames, or stay silent.

They have no key and need none. Bookies must bound the memory for them, and serve honest clients.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from quire.codec.wire.v2 import Flag, batch_read_request
from quire.config import BookieConfig
from quire_simulator.machine.network import SimHost
from quire_simulator.world.world import PORT, World

PREFIX = "hostile-"
"""The beginning of the names of hostile clients. No other client has such a name."""
REQUESTS = (100, 500)
CONNECTIONS = {
    "hostile reads": (1, 8),
    "hostile reads, gone": (1, 8),
    "hostile polls": (1, 4),
    "hostile half frames": (20, 60),
    "hostile silence": (60, 160),
}
"""For each kind, the smallest and largest number of connections."""
FRAME_BYTES = 4 << 20
HALF_FRAME_BYTES = (10, 200_000)
GONE_S = 0.05
ROUND_S = 0.5
"""The time after which a hostile client that lost its connections comes back."""
STAYS = 0.5
"""The probability that a hostile client stays until the end of the run, after all faults ended."""


def with_low_limits(config: BookieConfig) -> BookieConfig:
    """Return the configuration with limits that a few hostile clients can reach."""
    return replace(
        config,
        max_answer_bytes=1 << 20,
        max_unsent_bytes=1 << 18,
        max_batch_read_bytes=1 << 16,
        max_partial_bytes=1 << 19,
        max_connections=64,
        first_request_timeout_s=5.0,
        partial_frame_timeout_s=5.0,
        idle_timeout_s=10.0,
        unsent_timeout_s=10.0,
    )


class Deaf(asyncio.Protocol):
    """A client that sends bytes at once and never reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()
        transport.write(self.data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Hostiles:
    """The hostile clients of a run, each on a node of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes: list[str] = []

    def attack(self, kind: str, bookie: str, chance: random.Random) -> Callable[[], None]:
        """Start a hostile client, and return the function to call when the fault ends.

        The function does nothing if the client is to stay.
        """
        name = f"{PREFIX}{len(self._nodes)}"
        self._nodes.append(name)
        host = self._world.network.node(name)
        host.node.create_task(self._work(kind, host, bookie, chance), name=name)
        return (lambda: None) if chance.random() < STAYS else (lambda: self._end(name))

    def end(self) -> None:
        for name in self._nodes:
            self._end(name)

    # -- inside -------------------------------------------------------------------------------

    def _end(self, name: str) -> None:
        if not self._world.network.node(name).node.dead:
            self._world.network.kill(name)

    async def _work(self, kind: str, host: SimHost, bookie: str, chance: random.Random) -> None:
        count = chance.randint(*CONNECTIONS[kind])
        open_ones: list[Deaf] = []
        while True:
            open_ones = [one for one in open_ones if not one.lost]
            for _ in range(count - len(open_ones)):
                make = partial(Deaf, self._data(kind, chance))
                address = self._world.addresses.get(bookie, bookie)
                try:
                    async with asyncio.timeout(ROUND_S):
                        made = await host.connect(address, PORT, make)
                except (OSError, TimeoutError):
                    break
                assert isinstance(made, Deaf)
                open_ones.append(made)
                self._world.hostile_connections += 1
            if kind == "hostile reads, gone":
                await asyncio.sleep(chance.random() * GONE_S)
                for one in open_ones:
                    one.abort()
            await asyncio.sleep(ROUND_S)

    def _data(self, kind: str, chance: random.Random) -> bytes:
        if kind == "hostile silence":
            return b""
        if kind == "hostile half frames":
            size = chance.randint(*HALF_FRAME_BYTES)
            return FRAME_BYTES.to_bytes(4, "big") + bytes([2, 1, 0, 0]) + bytes(size)
        ids = list(self._world.ledger_ids.values()) or [0]
        polls = kind == "hostile polls"
        return b"".join(
            batch_read_request(
                chance.choice(ids), 1_000 if polls else 0, number, 0, FRAME_BYTES,
                Flag.WAIT if polls else Flag.NONE,
            )
            for number in range(chance.randint(*REQUESTS))
        )  # fmt: skip
