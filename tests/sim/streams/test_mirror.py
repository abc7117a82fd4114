"""Mirrors copy a stream while they are killed, paused and overtaken.

Writers change and a bookie crashes. The copy equals the source record by record, and its reader
sees each record once, in order, at any moment. Spark's tasks are a function here, and all else is
the code of `quire pipeline replicate`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence

import pytest

from quire.client import Client
from quire.errors import MetadataUnavailableError, QuireError, StreamFencedError
from quire.streams import DLSN, Record
from quire.streams.mirror.copy import Piece, copy_ledger
from quire.streams.mirror.leftovers import Leftovers
from quire.streams.mirror.mirror import Mirror
from quire.streams.namespace.namespace import open_namespace
from quire.streams.ownership.orphans import find_orphans
from quire_simulator.world.world import World
from tests.support.long import long_after
from tests.support.sim.cluster import BOOKIES

SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "5"))
SOURCE, COPY, NAME = "/from", "/to", "events"
SETTINGS = {"entry_bytes": 1024, "txids": "given"}
WRITERS, MIRRORS = 4, 8
BATCHES = 20
METADATA_FAILURES = 0.004
PATIENCE_S = 60.0


class Scene:
    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.written = asyncio.Event()
        """All writers are done."""
        self.copied = asyncio.Event()
        self.seen: list[Record] = []

    # -- the source ---------------------------------------------------------------------------

    async def write(self) -> None:
        txid = 0
        for number in range(WRITERS):
            client = self.world.client(f"writer-{number}")
            txid = await self._generation(client, txid)
            await client.close()
        async with self.world.client("writer-last") as client:
            await insist(lambda: self._complete(client))
        self.written.set()

    async def _complete(self, client: Client) -> None:
        """Complete what a writer left that did not close the stream."""
        async with await open_namespace(client, SOURCE) as streams:
            await (await streams.open_writer(NAME)).close()

    async def _generation(self, client: Client, txid: int) -> int:
        """One writer of the stream; the next txid that may be used."""
        chance = self.chance
        streams = await insist(lambda: open_namespace(client, SOURCE))
        try:
            writer = await insist(lambda: streams.open_writer(NAME))
            for _ in range(chance.randrange(BATCHES)):
                many = range(txid, txid + chance.randrange(1, 9))
                txid = many.stop
                await writer.append_many(
                    [b"%d." % n * chance.randrange(1, 200) for n in many], txids=list(many)
                )
                if chance.random() < 0.15:
                    await writer.roll()
                await asyncio.sleep(chance.random() ** 3)
            if chance.random() < 0.7:
                await writer.close()
        except QuireError as error:
            if error.outcome_known and not isinstance(error, StreamFencedError):
                self.world.trace.record("writer", "failed", error=str(error))
        finally:
            await streams.close()
        return txid

    # -- the copies ---------------------------------------------------------------------------

    async def mirror(self, name: str, stop: asyncio.Event) -> None:
        """One driver: on its own node, until it has copied what there is, or is overtaken."""
        client = self.world.client(name)
        source = await insist(lambda: open_namespace(client, SOURCE))
        target = await insist(lambda: open_namespace(client, COPY))

        async def copy(pieces: Sequence[Piece]) -> list[Piece]:
            return [await copy_ledger(client, client, piece, b"", b"") for piece in pieces]

        mirror = Mirror(
            source, target, NAME, copy, Leftovers(client), overrides={}, truncation=False,
            on_gap="raise", stop=stop, patience_s=PATIENCE_S,
        )  # fmt: skip
        try:
            await mirror.run()
            await mirror.close()
        except StreamFencedError:
            self.world.trace.record(name, "overtaken")
        await source.close()
        await target.close()
        await client.close()

    async def mirrors(self) -> None:
        chance, network = self.chance, self.world.network
        for number in range(MIRRORS):
            name = f"mirror-{number}"
            node = network.node(name).node
            work = node.create_task(self.mirror(name, asyncio.Event()))
            await asyncio.wait([work], timeout=3 * chance.random())
            if work.done():
                work.result()
            elif chance.random() < 0.3:
                network.stop(name)  # It comes back after its successor.
                self.world.loop.call_later(1 + chance.random(), network.cont, name)
                await asyncio.sleep(0.5)
            else:
                network.kill(name)
        await self.written.wait()
        await asyncio.sleep(2)  # until those that were paused have found out
        self.world.metadata_failures = 0.0
        stop = asyncio.Event()
        stop.set()
        await self.mirror("mirror-last", stop)
        self.copied.set()

    async def follow(self) -> None:
        """A reader of the copy, while it is made."""
        client = self.world.client("reader")
        streams = await insist(lambda: open_namespace(client, COPY))
        while not await insist(lambda: streams.exists(NAME)):
            await asyncio.sleep(0.1)
        start: DLSN | str = "earliest"
        while True:
            try:
                async for record in await streams.open_reader(NAME, start=start, follow=True):
                    self.seen.append(record)
                    start = record.position.next_slot()
                raise AssertionError("a reader that follows has ended")
            except MetadataUnavailableError:
                await asyncio.sleep(0.05)

    async def crash(self) -> None:
        for _ in range(2):
            await asyncio.sleep(3 * self.chance.random())
            victim = self.chance.choice(BOOKIES)
            self.world.crash(victim)
            await asyncio.sleep(self.chance.random())
            await insist(lambda name=victim: self.world.start(name))


async def insist(ask):
    """Again, while requests of the metadata store are lost."""
    for _ in range(100):
        try:
            return await ask()
        except QuireError as error:
            last = error
            await asyncio.sleep(0.05)
    raise last


async def records_of(client: Client, path: str) -> list[Record]:
    async with await open_namespace(client, path) as streams:
        return [record async for record in await streams.open_reader(NAME)]


async def scenario(world: World, chance: random.Random) -> None:
    for name in BOOKIES:
        await world.start(name)
    client = world.client("last")
    source = await open_namespace(client, SOURCE, settings=SETTINGS, create=True)
    await source.create_stream(NAME)
    await open_namespace(client, COPY, settings=SETTINGS, create=True)
    scene = Scene(world, chance)
    world.metadata_failures = METADATA_FAILURES
    reading = asyncio.ensure_future(scene.follow())
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.write())
        group.create_task(scene.crash())
        group.create_task(scene.mirrors())
    wanted, found = await records_of(client, SOURCE), await records_of(client, COPY)
    assert found == wanted
    newest = wanted[-1:]
    async with asyncio.timeout(60):
        while scene.seen[-1:] != newest:
            await asyncio.sleep(0.1)
            if reading.done():
                break
    if reading.done():
        reading.result()
    assert scene.seen == wanted
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    left = [one for one in await find_orphans(client, 0) if one.stream.startswith(COPY)]
    assert left == []
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


@pytest.mark.parametrize("seed", long_after(2, range(SEEDS)))
def test_the_mirrored_copy_equals_the_source(seed: int) -> None:
    world = World.make(seed)
    world.loop.run(scenario(world, world.loop.derive("scenario")))
