"""A connection to a bookie that sends any bytes, and keeps the frames that come back."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from quire.codec.wire.v3 import BadMessageError, frame, parse_response
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.actors.walkthroughs.wire.driven_bookie import PORT

LENGTH = struct.Struct(">I")
POLL_S = 0.005


class RawClient(asyncio.Protocol):
    """One connection. Its answers are read frame by frame."""

    def __init__(self, walk: Walk, number: int) -> None:
        self.walk = walk
        self.number = number
        self.frames: list[tuple[float, bytes]] = []
        """The frames that were received and not taken, each with the time of its arrival."""
        self.lost = False
        """Whether the connection has ended."""
        self.lost_s = 0.0
        self.received_bytes = 0
        self.only_v2 = False
        """Whether a frame of protocol v2 was sent, so that no frame of v3 may follow."""
        self.transport: asyncio.Transport
        self._rest = b""

    @classmethod
    async def connect(cls, walk: Walk, number: int, bookie: str) -> RawClient:
        host = walk.stage.world.network.node(f"{walk.name}-{number}")
        made = await host.connect(bookie, PORT, lambda: cls(walk, number))
        assert isinstance(made, RawClient)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        rest = self._rest + data
        while len(rest) >= 4:
            stop = 4 + LENGTH.unpack_from(rest)[0]
            if len(rest) < stop:
                break
            self.frames.append((self.now_s, rest[:stop]))
            rest = rest[stop:]
        self._rest = rest

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.lost_s = True, self.now_s

    @property
    def now_s(self) -> float:
        return self.walk.stage.world.loop.time()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def write_pieces(self, data: bytes, cuts: list[int]) -> None:
        """Write the data in pieces that arrive one by one, cut at these offsets."""
        start = 0
        for stop in [*cuts, len(data)]:
            if stop > start:
                self.write(data[start:stop])
                start = stop
                if stop < len(data):
                    await asyncio.sleep(0.011)

    async def until(self, holds: Callable[[], Any], seconds: float) -> bool:
        """Wait until something holds, and return whether it does within this time."""
        end_s = self.now_s + seconds
        while not holds():
            if self.now_s >= end_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def ended(self, what: str, seconds: float = 2.0) -> None:
        """Check that the bookie closes the connection within this time."""
        if not await self.until(lambda: self.lost, seconds):
            self.walk.fail("reports_are_true", f"{what}: the bookie did not close the connection")


def without_timestamp(data: bytes) -> tuple[bytes, int]:
    """Return a frame of protocol v3 without the time when the LAC moved, and that time or 0."""
    try:
        answer = parse_response(data[4:])
    except BadMessageError:
        return data, 0
    if not answer.HasField("readResponse"):
        return data, 0
    moved_at_ms = answer.readResponse.lacUpdateTimestamp
    if not moved_at_ms:
        return data, 0
    answer.readResponse.ClearField("lacUpdateTimestamp")
    return frame(answer), moved_at_ms
