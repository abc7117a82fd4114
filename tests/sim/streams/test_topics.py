"""Programs that write a topic take partitions from each other while bookies stop and start.

Every record that was acknowledged is where its producer was told, no record is there twice, and the
records of one producer with one key keep their order.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from quire._runtime.tasks import TaskGroup
from quire.errors import QuireError, UsageError
from quire.streams import TopicPosition
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire_simulator.knobs.applied import applied
from quire_simulator.knobs.drawing import DrawnKnob
from quire_simulator.world.world import World
from tests.support.long import long_after

SEEDS = 6
PARTITIONS = 3
PRODUCERS = 3
ROUNDS = 8
KNOBS = (DrawnKnob("streams.topics.writer.STICKY_BYTES", 1.0),)


class Producer:
    """A program that opens some partitions, appends a few records, and opens others."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.acknowledged: dict[TopicPosition, bytes] = {}
        self.fenced = 0
        self._rng = rng
        self._next = 0

    def _records(self, count: int, keys: list[str]) -> tuple[list[bytes], list[str | None]]:
        chosen = [self._rng.choice([*keys, None]) for _ in range(count)]
        values = []
        for key in chosen:
            values.append(f"{self.name}:{key}:{self._next}".encode())
            self._next += 1
        return values, chosen

    async def run(self, streams: Namespace) -> None:
        topic = await streams.topic("clicks")
        for _ in range(ROUNDS):
            assign = self._rng.sample(range(PARTITIONS), self._rng.randint(1, PARTITIONS))
            keys = [f"k{n}" for n in range(20) if topic.partition_of(f"k{n}") in assign]
            try:
                async with topic.open_writer(assign=assign) as writer:
                    for _ in range(self._rng.randint(1, 5)):
                        values, chosen = self._records(self._rng.randint(1, 8), keys)
                        places = await writer.append_many(values, keys=chosen)
                        self.acknowledged.update(zip(places, values, strict=True))
                        await asyncio.sleep(self._rng.uniform(0, 0.05))
            except UsageError:
                raise
            except QuireError:
                self.fenced += 1  # the outcome of the last records is unknown


async def trouble(world: World, rng: random.Random) -> None:
    """Stop one bookie after the other for a moment. An ack quorum stays."""
    for _ in range(4):
        name = rng.choice(sorted(world.disks))
        await asyncio.sleep(rng.uniform(0.01, 0.2))
        await world.stop(name)
        await asyncio.sleep(rng.uniform(0.01, 0.2))
        await world.start(name)


@pytest.mark.parametrize("seed", long_after(2, range(SEEDS)))
def test_no_record_is_lost_or_reordered_when_partitions_change_owners(seed: int) -> None:
    world = World.make(seed, 5)
    rng = random.Random(seed)
    producers = [Producer(f"p{at}", random.Random(f"{seed}-{at}")) for at in range(PRODUCERS)]

    async def program(producer: Producer) -> None:
        async with (
            world.client(producer.name) as client,
            open_namespace(client, "/acme/test") as streams,
        ):
            await producer.run(streams)

    async def main() -> None:
        for name in world.disks:
            await world.start(name)
        async with (
            world.client("reader") as client,
            open_namespace(client, "/acme/test", create=True) as streams,
        ):
            await streams.create_topic("clicks", PARTITIONS)
            async with TaskGroup() as group:
                group.create_task(trouble(world, rng))
                for producer in producers:
                    group.create_task(program(producer))
            topic = await streams.topic("clicks")
            await (await topic.open_writer()).close()  # completes what a fenced writer has left
            found = [record async for record in topic.open_reader()]
        for name in list(world.bookies):
            await world.stop(name)

        where = {TopicPosition(one.partition, one.position): one.value for one in found}
        for producer in producers:
            for place, value in producer.acknowledged.items():
                assert where[place] == value
        assert max(Counter(one.value for one in found).values()) == 1
        last: dict[tuple[str, bytes], int] = {}
        for one in found:
            if one.key is None:
                continue
            assert one.partition == topic.partition_of(one.key)
            name, key, number = one.value.decode().split(":")
            assert one.key == key.encode()
            assert int(number) > last.get((name, one.key), -1)
            last[name, one.key] = int(number)

    with applied(KNOBS):
        world.loop.run(main())
    assert sum(producer.fenced for producer in producers) >= 3, "partitions changed hands"
    assert sum(len(producer.acknowledged) for producer in producers) >= 50
