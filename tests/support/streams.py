"""A namespace on simulated bookies, for tests of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quire.client import Client
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.read.records import Record
from quire_simulator.world.world import World

SEED = 7


@dataclass
class Bench:
    world: World
    client: Client
    streams: Namespace

    async def read(self, name: str, **how: object) -> list[Record]:
        reader = await self.streams.open_reader(name, **how)  # type: ignore[arg-type]
        return [record async for record in reader]

    async def numbers(self, name: str) -> list[int]:
        """Return the numbers of the segments in order, negative for a segment in progress."""
        segments = await self.streams.segments(name)
        return [-s.lssn if s.in_progress else s.lssn for s in segments]

    async def ledgers(self) -> list[int]:
        return [ledger_id async for ledger_id in self.client.list_ledgers()]


@asynccontextmanager
async def bench(world: World) -> AsyncIterator[Bench]:
    for name in world.disks:
        await world.start(name)
    async with world.client("client") as client:
        streams = await open_namespace(client, "/acme/test", create=True)
        async with streams:
            yield Bench(world, client, streams)
    for name in list(world.bookies):
        await world.stop(name)


def run(scene: Callable[[Bench], Awaitable[None]], seed: int = SEED, bookies: int = 3) -> None:
    world = World.make(seed, bookies)

    async def main() -> None:
        async with bench(world) as made:
            await scene(made)

    world.loop.run(main())
