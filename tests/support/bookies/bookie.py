"""A bookie in the event loop of a test, with real directories and metadata in memory."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from quire._runtime.clock import SystemClock
from quire._runtime.event_log import EventLog
from quire.bookie.server import Address, Bookie
from quire.config import BookieConfig
from quire.metadata.interface import MetadataStore
from quire.net.network import AsyncioNetwork
from quire.storage.directories import DataDirectory
from quire.storage.disk import RealDisk
from quire.storage.worker import ThreadReader, ThreadWorker
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore

ANSWER_S = 20.0
SMALL = BookieConfig(segment_bytes=8 * 1024 * 1024, min_free_bytes=0)


class Unguarded:
    """A substitute for the collection guard that allows every pass of garbage collection.

    `test_collection_guard` tests the real one.
    """

    async def check(self) -> None:
        pass

    async def check_store(self) -> None:
        pass


def memory_metadata() -> MemoryStore:
    return MemoryStore(MemoryCluster("test", clock=SystemClock(), rng=random.Random(0)))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@asynccontextmanager
async def running_bookie(
    directory: Path,
    config: BookieConfig = SMALL,
    metadata: MetadataStore | None = None,
    port: int = 0,
    bookie_id: str = "",
    more: Sequence[RealDisk] = (),
    log: EventLog = lambda event, **fields: None,
) -> AsyncIterator[Bookie]:
    """Run a bookie in the block, on loopback and with real directories.

    Pass `metadata` if the bookie is to be started again. `more` are data directories besides the
    first.
    """
    loop = asyncio.get_running_loop()
    metadata = metadata or memory_metadata()
    if not await metadata.is_initialised():
        await metadata.initialise()
    reader = ThreadReader(loop)
    bookie = Bookie(
        disk=RealDisk(str(directory)),
        log_worker=ThreadWorker(loop, "log"),
        maintenance_worker=ThreadWorker(loop, "maintenance"),
        metadata=metadata,
        network=AsyncioNetwork(),
        clock=SystemClock(),
        address=Address("127.0.0.1", port, "127.0.0.1", bookie_id),
        config=config,
        log=log,
        random_bytes=secrets.token_bytes,
        reader=reader,
        more_directories=[
            DataDirectory(
                disk, ThreadWorker(loop, "log"), ThreadWorker(loop, "maintenance"), reader
            )
            for disk in more
        ],
    )
    try:
        await bookie.start()
        yield bookie
    finally:
        await bookie.stop()
        reader.close()


class Peer:
    """A raw connection to a bookie."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> bytes:
        """Return one frame with its length, or b"" if the connection was closed."""
        async with asyncio.timeout(ANSWER_S):
            try:
                head = await self.reader.readexactly(4)
                return head + await self.reader.readexactly(int.from_bytes(head, "big"))
            except (asyncio.IncompleteReadError, ConnectionError):
                return b""

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.receive()


@asynccontextmanager
async def peer_of(bookie: Bookie) -> AsyncIterator[Peer]:
    address = (await bookie.metadata.bookies()).find(bookie.bookie_id)
    assert address is not None
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def polls_wait(bookie: Bookie, count: int) -> None:
    """Wait until `count` long polls of readers wait on this bookie for new entries."""
    async with asyncio.timeout(ANSWER_S):
        while bookie.service.long_polls.count != count:
            await asyncio.sleep(0.001)
