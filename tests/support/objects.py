"""A cluster of three bookies in this process, for tests of objects.

The metadata store has a hook that models lost requests, lost answers, and interleaved operations.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from quire._runtime.clock import SystemClock
from quire.client import Client
from quire.config import ClientConfig
from quire.streams.objects.objects import Objects
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import Hook, MemoryStore
from tests.support.bookies.bookie import running_bookie

BOOKIES = 3


class LateClock:
    """A clock that is one hour fast, so that all ledgers are old. A test may change `ahead_ms`."""

    def __init__(self) -> None:
        self.ahead_ms = 3_600_000

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return SystemClock().monotonic()


class Bench:
    """A cluster, with as many clients as a test needs."""

    def __init__(self, cluster: MemoryCluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self.clock = LateClock()
        self._stack = stack

    async def client(self, hook: Hook | None = None, config: ClientConfig | None = None) -> Client:
        store = MemoryStore(self.cluster) if hook is None else MemoryStore(self.cluster, hook=hook)
        return await self._stack.enter_async_context(Client(store, config=config))

    async def objects(self, hook: Hook | None = None, bucket: str = "default") -> Objects:
        return Objects(await self.client(hook), bucket, clock=self.clock)

    def ledgers(self) -> list[int]:
        return list(self.cluster.ledger_ids)

    def heads(self) -> list[tuple[str, ...]]:
        return [key for key in self.cluster.values if key[0] == "objects"]


@asynccontextmanager
async def object_bench(path: Path, bookies: int = BOOKIES) -> AsyncIterator[Bench]:
    """Run bookies with their data below `path`, and yield the cluster."""
    cluster = MemoryCluster("test", clock=SystemClock(), rng=random.Random(3))
    cluster.initialise()
    async with AsyncExitStack() as stack:
        for number in range(bookies):
            bookie = running_bookie(path / str(number), metadata=MemoryStore(cluster))
            await stack.enter_async_context(bookie)
        yield Bench(cluster, stack)


def some_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def content(objects: Objects, name: str) -> bytes:
    async with await objects.get(name) as found:
        return await found.read_all()


async def names(objects: Objects, prefix: str = "", after: str = "") -> list[str]:
    return [info.name async for info in objects.list(prefix, after=after)]


async def plain_ledger(client: Client, custom: dict[str, bytes] | None = None) -> int:
    """Create and close a ledger of ten entries without an owner, and return its id."""
    writer = await client.create_ledger(custom=custom)
    await writer.append_many([b"x"] * 10)
    await writer.close()
    return writer.ledger_id
