"""Bookies that answer long polls as a test decides, and a client that tails a ledger on them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from quire._runtime.clock import SystemClock
from quire.client import Client, LedgerReader
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire import v3
from quire.codec.wire.messages_pb2 import Request
from quire.codec.wire.v2 import Code
from quire.config import ClientConfig
from quire.metadata.interface import BookieAddress
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.scripted_bookie import Answer, ScriptedBookie, lac_answer, poll_answer
from tests.support.waiting import until

CONFIG = ClientConfig(
    long_poll_s=0.1, speculative_read_s=1.0, read_timeout_s=5.0, connect_timeout_s=5.0
)


LEDGER = 7


PIGGYBACK = v3.ReadFlag.PIGGYBACK


soon = partial(until, limit_s=10.0)
"""Wait for a condition for at most 10 seconds, which is less than a long poll of `PATIENT` takes.
"""


@dataclass
class World:
    store: MemoryStore
    client: Client
    bookies: list[ScriptedBookie]
    codec: EntryCodec

    async def open(self) -> LedgerReader:
        return await self.client.open_ledger(LEDGER)

    def entry(self, entry_id: int, lac: int) -> bytes:
        return self.codec.pack(entry_id, lac, 2 * entry_id + 2, b"%02d" % entry_id)


@asynccontextmanager
async def world(*bookies: ScriptedBookie, config: ClientConfig = CONFIG) -> AsyncIterator[World]:
    """Yield a client and an open ledger on these bookies. Each bookie stores every entry."""
    cluster = MemoryCluster("test", clock=SystemClock(), rng=random.Random(1))
    cluster.initialise()
    store = MemoryStore(cluster)
    async with AsyncExitStack() as stack:
        names = [f"bookie-{k}:1" for k in range(len(bookies))]
        for name, bookie in zip(names, bookies):
            await stack.enter_async_context(bookie)
            address = BookieAddress(name, "127.0.0.1", bookie.port)
            registration = await store.register_bookie(address)
            stack.push_async_callback(registration.close)
        size = len(bookies)
        metadata = LedgerMetadata(
            ensemble_size=size,
            write_quorum=size,
            ack_quorum=1,
            segments=(Segment(0, tuple(names)),),
            digest=DigestType.CRC32C,
            password=b"",
        )
        await store.create_ledger(metadata, LEDGER)
        codec = EntryCodec(LEDGER, DigestType.CRC32C, b"")
        async with Client(MemoryStore(cluster), config=config) as client:
            yield World(store, client, list(bookies), codec)


class Honest(ScriptedBookie):
    """A bookie that answers from its `lac` and its entries as a real bookie does.

    A long poll stays open while the LAC does not advance.
    """

    def __init__(self) -> None:
        super().__init__(self.honest)
        self.lac = -1
        self.packet = b""
        self.claims: int | None = None
        self.waiting: list[Request] = []

    def honest(self, request: Request) -> Answer:
        if request.header.operation == v3.Op.READ_LAC:
            last = self.entries[max(self.entries)] if self.entries else b""
            code = Code.OK if last else Code.IO_ERROR if self.packet else Code.NO_ENTRY
            return lac_answer(request, packet=self.packet, last_entry=last, code=code)
        previous = request.readRequest.previousLAC
        known = self.lac if self.claims is None else self.claims
        if known <= previous:
            self.waiting.append(request)
            return None
        return poll_answer(request, max_lac=known, entry=self.entries.get(previous + 1, b""))

    def has(self, world: World, *entries: tuple[int, int]) -> None:
        """Store entries, each given as its id and the LAC that it carries."""
        for entry_id, lac in entries:
            self.entries[entry_id] = world.entry(entry_id, lac)
            self.lac = max(self.lac, lac)
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            answer = self.honest(request)
            if answer is not None:
                self.send(answer)


class GivesTheLast(Honest):
    """A bookie that answers a poll for no particular entry with its last entry, as bookies do.

    With `proves`, the answer also has the explicit LAC, as from Quire's bookies.
    """

    proves = False

    def honest(self, request: Request) -> Answer:
        answer = super().honest(request)
        read = request.readRequest
        if answer and request.header.operation == v3.Op.READ and read.flag != PIGGYBACK:
            packet = self.packet if self.proves else b""
            last = self.entries[max(self.entries)]
            return poll_answer(request, max_lac=self.lac, entry=last, packet=packet)
        return answer


PATIENT = ClientConfig(long_poll_s=60.0, read_timeout_s=70.0)


async def polling(bookie: Honest) -> None:
    await soon(lambda: bookie.waiting)
