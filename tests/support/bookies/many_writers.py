"""A client with many writers, on bookies that answer when the test says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quire._runtime.clock import SystemClock
from quire.client import Client, LedgerWriter
from quire.codec.wire.v2 import ADD_HEAD, Code, add_response, frame_bounds
from quire.config import ClientConfig
from quire.metadata.interface import BookieAddress
from quire.net.channel import BookieChannel
from quire.net.network import AsyncioNetwork
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore


class FarEnd:
    """The transport of a connection to a bookie that stores entries.

    The bookie acknowledges them when the test calls `answer`.
    """

    def __init__(self, link: BookieChannel) -> None:
        self.link = link
        self.writes: list[bytes] = []
        self.stored: dict[int, list[int]] = {}
        """The ids of the entries that arrived, by ledger and in the order of their arrival."""
        self._unanswered: list[tuple[int, int]] = []

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        for start, _ in frame_bounds(data):
            _, _, _, ledger, entry = ADD_HEAD.unpack_from(data, start)
            self.stored.setdefault(ledger, []).append(entry)
            self._unanswered.append((ledger, entry))

    def answer(self) -> None:
        """Acknowledge all entries that were not acknowledged yet, in one chunk."""
        unanswered, self._unanswered = self._unanswered, []
        chunk = b"".join(add_response(Code.OK, *ids) for ids in unanswered)
        if chunk:
            self.link.data_received(chunk)

    def lose(self) -> None:
        self.link.connection_lost(None)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return None

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.lose)


class FarEnds(AsyncioNetwork):
    """A network whose connections end at a `FarEnd`, by port number.

    Connections to the ports in `refuses` fail.
    """

    def __init__(self) -> None:
        self.ends: dict[int, FarEnd] = {}
        self.refuses: set[int] = set()

    async def connect(self, host: str, port: int, factory: Any) -> Any:
        if port in self.refuses:
            raise ConnectionRefusedError("nobody listens")
        link = factory()
        self.ends[port] = FarEnd(link)
        link.connection_made(self.ends[port])
        return link

    def answer(self) -> None:
        for end in self.ends.values():
            end.answer()

    def forget(self) -> None:
        for end in self.ends.values():
            end.writes.clear()


@asynccontextmanager
async def many_writers(count: int, bookies: int = 3) -> AsyncIterator[tuple[FarEnds, Any, Any]]:
    """Yield the network, the client, and `count` writers with one acknowledged entry each."""
    network = FarEnds()
    cluster = MemoryCluster("test", clock=SystemClock(), rng=random.Random(1))
    cluster.initialise()
    registered = [
        await MemoryStore(cluster).register_bookie(BookieAddress(f"b:{n}", "b", n))
        for n in range(1, bookies + 1)
    ]
    config = ClientConfig(connect_timeout_s=5.0, add_timeout_s=5.0)
    async with Client(
        MemoryStore(cluster), network=network, config=config, rng=random.Random(1)
    ) as client:
        writers = [await client.create_ledger() for _ in range(count)]
        for writer in writers:
            assert isinstance(writer, LedgerWriter)
            writer.submit(b"first")
        await drained(network, writers, 0)
        network.forget()
        yield network, client, writers
        for writer in writers:
            writer.abandon()
    del registered


async def drained(network: FarEnds, writers: list[LedgerWriter], last: int) -> None:
    """Answer and wait until all connected bookies have acknowledged entry `last` of all writers."""
    async with asyncio.timeout(10):
        while not all(w.last_add_confirmed >= last and w._session.pipeline.idle for w in writers):
            await asyncio.sleep(0)
            network.answer()
