"""Topics on real bookies, with the metadata in SQLite or in ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import quire
from quire.errors import NoSuchStreamError, StreamExistsError, StreamFencedError, UsageError
from quire.streams.namespace import namespace as namespace_module
from quire.streams.namespace import removal
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.topics.topic_metadata import PARTITIONS_MAX
from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow

LONG_NAME = "/".join(["a-level-of-the-name-of-a-topic-that-is-long"] * 24)
"""The name of a topic whose creation is nearly as large as a transaction can be."""
SETTINGS = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "retention_s": 86_400}


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]
)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=1, zookeeper=request.param == "zookeeper") as running:
        yield running


async def opened(client: quire.Client, path: str) -> Namespace:
    return await open_namespace(client, path, create=True, settings=SETTINGS)


async def test_a_topic_is_created_used_and_deleted(cluster: LocalCluster) -> None:
    async with await quire.connect(cluster.uri) as client, await opened(client, "/whole") as team:
        await team.create_topic("eu/clicks", 3, settings={"compression": "lz4"})
        topic = await team.topic("eu/clicks")
        keys = [f"visitor-{number % 7}" for number in range(60)]
        async with topic.open_writer() as writer:
            places = await writer.append_many([b"%d" % n for n in range(60)], keys=keys)
        assert [place.partition for place in places] == [topic.partition_of(k) for k in keys]
        reader = topic.open_reader()
        found = [record async for record in reader]
        assert sorted(int(record.value) for record in found) == list(range(60))
        for key in set(keys):
            mine = [int(record.value) for record in found if record.key == key.encode()]
            assert mine == [number for number in range(60) if keys[number] == key]

        await topic.commit("billing", reader.positions)
        stored = await topic.positions("billing")
        assert stored == reader.positions
        assert [r async for r in topic.open_reader(start=stored)] == []

        old = await topic.open_writer()
        async with topic.open_writer(assign=[1]) as new:
            with pytest.raises(StreamFencedError):
                await old.append(b"late", partition=1)
            await new.append(b"new", partition=1)
            await old.append(b"other", partition=0)
            with pytest.raises(StreamFencedError):
                await old.close()
        again = {record.value async for record in topic.open_reader(start=stored)}
        assert again == {b"new", b"other"}

        await team.delete_topic("eu/clicks")
        assert (await team.topics(), await team.streams()) == ([], [])
        with pytest.raises(NoSuchStreamError):
            await topic.open_writer()


@pytest.mark.long
async def test_the_largest_topic_with_a_long_name_is_created(cluster: LocalCluster) -> None:
    async with await quire.connect(cluster.uri) as client, await opened(client, "/large") as team:
        await team.create_topic(LONG_NAME, PARTITIONS_MAX, settings=SETTINGS)
        topic = await team.topic(LONG_NAME)
        async with topic.open_writer() as writer:
            for partition in range(PARTITIONS_MAX):
                await writer.append(b"%d" % partition, partition=partition)
        found = {record.partition: record.value async for record in topic.open_reader()}
        assert found == {partition: b"%d" % partition for partition in range(PARTITIONS_MAX)}
        await team.delete_topic(LONG_NAME)
        assert await team.streams() == []


async def test_a_deletion_that_was_interrupted_is_completed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = removal.delete_stream
    deleted: list[str] = []

    async def dies(client: Any, metadata: Any, password: bytes, **how: Any) -> None:
        if deleted:
            raise asyncio.CancelledError
        deleted.append(metadata.paths.name)
        await whole(client, metadata, password, **how)

    async with await quire.connect(cluster.uri) as client, await opened(client, "/halves") as team:
        await team.create_topic("clicks", 3)
        monkeypatch.setattr(namespace_module, "delete_stream", dies)
        with pytest.raises(asyncio.CancelledError):
            await team.delete_topic("clicks")
        monkeypatch.undo()
        assert await team.streams() == ["clicks/1", "clicks/2"]
        async with await quire.connect(cluster.uri) as other:
            there = await opened(other, "/halves")
            with pytest.raises(NoSuchStreamError, match="its deletion was interrupted"):
                await there.topic("clicks")
            with pytest.raises(StreamExistsError):
                await there.create_topic("clicks", 2)
            await there.delete_topic("clicks")
            await there.create_topic("clicks", 2)
            await there.close()
        assert (await team.topic("clicks")).partitions == 2


async def test_existing_streams_become_a_topic(cluster: LocalCluster) -> None:
    async with await quire.connect(cluster.uri) as client, await opened(client, "/adopted") as team:
        for number in range(2):
            await team.create_stream(f"clicks/{number}")
        async with team.open_writer("clicks/1") as one:
            await one.append(b"before")
        with pytest.raises(NoSuchStreamError, match="stream clicks/2, which would be its"):
            await team.create_topic("clicks", 3, adopt=True)
        await team.create_topic("clicks", 2, adopt=True)
        topic = await team.topic("clicks")
        assert [(r.partition, r.value) async for r in topic.open_reader()] == [(1, b"before")]
        with pytest.raises(StreamExistsError, match="topic clicks already exists"):
            await team.create_topic("clicks", 2, adopt=True)


async def test_a_topic_and_a_stream_created_concurrently_never_share_a_name(
    cluster: LocalCluster,
) -> None:
    async with (
        await quire.connect(cluster.uri) as client,
        await quire.connect(cluster.uri) as other,
        await opened(client, "/races") as team,
        await opened(other, "/races") as there,
    ):
        await team.create_stream("source")
        for number in range(12):
            name = f"race-{number}"
            outcomes = await asyncio.gather(
                team.create_topic(name, 2), there.create_stream(name), return_exceptions=True
            )
            assert sum(isinstance(one, StreamExistsError) for one in outcomes) == 1, outcomes
            assert outcomes.count(None) == 1
            assert (name in await team.topics()) != await team.exists(name)


async def test_no_stream_is_created_beside_a_topic_that_is_created_at_the_same_time(
    cluster: LocalCluster,
) -> None:
    async with (
        await quire.connect(cluster.uri) as client,
        await quire.connect(cluster.uri) as other,
        await opened(client, "/beside") as team,
        await opened(other, "/beside") as there,
    ):
        for number in range(12):
            name, beside = f"race-{number}", f"race-{number}/2"
            outcomes = await asyncio.gather(
                team.create_topic(name, 2), there.create_stream(beside), return_exceptions=True
            )
            assert outcomes[0] is None, outcomes
            # The stream was there before the topic, or it was refused.
            assert isinstance(outcomes[1], UsageError) != await team.exists(beside), outcomes
            with pytest.raises(UsageError, match=f"topic {name} has the partitions 0 to 1"):
                await there.create_stream(f"{name}/3")
            await there.delete_stream(beside)
            with pytest.raises(UsageError, match=f"topic {name} has the partitions 0 to 1"):
                await there.open_writer(beside, create=True)
            assert not await there.exists(beside)
