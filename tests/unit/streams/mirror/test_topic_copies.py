"""The copies of a topic's partitions become a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from quire.errors import (
    MetadataError,
    NoSuchStreamError,
    StreamDivergedError,
    StreamExistsError,
)
from quire.metadata.tree import Put
from quire.streams.mirror.check import MARKER
from quire.streams.mirror.copy import Piece, copy_ledger
from quire.streams.mirror.leftovers import Leftovers
from quire.streams.mirror.mirror import Mirror
from quire.streams.mirror.topics import TopicCopies
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.namespace.topic_nodes import topic_path
from quire.streams.topics.topic_metadata import TopicMetadata
from quire_simulator.world.world import CLIENT_CONFIG
from tests.support.streams import Bench, run

PARTITIONS = ["clicks/0", "clicks/1", "clicks/2"]


@dataclass
class Scene:
    """A namespace with a topic of three partitions, and another one for its copy."""

    source: Namespace
    target: Namespace

    async def copy(self, *names: str) -> None:
        """Copy what these streams have now."""
        client = self.target.client

        async def copied(pieces: Sequence[Piece]) -> list[Piece]:
            return [await copy_ledger(client, client, piece, b"", b"") for piece in pieces]

        stop = asyncio.Event()
        stop.set()
        for name in names:
            mirror = Mirror(
                self.source, self.target, name, copied, Leftovers(client),
                overrides={}, truncation=True, on_gap="raise", stop=stop, patience_s=30.0,
            )  # fmt: skip
            await mirror.run()
            await mirror.close()

    async def topics(self, *names: str) -> TopicCopies:
        """Look at the topics of these streams. No stream may be refused."""
        topics = TopicCopies(self.source, self.target)
        assert await topics.look(names or PARTITIONS) == {}
        return topics


def scene(play: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(b: Bench) -> None:
        config = replace(CLIENT_CONFIG, explicit_lac_interval_s=0.1)
        async with (
            b.world.client("driver", config) as client,
            await open_namespace(client, "/acme/test") as source,
            await open_namespace(client, "/acme/copy", create=True) as target,
        ):
            await source.create_topic("clicks", 3)
            await play(Scene(source, target))

    run(main)


def test_the_copies_of_all_partitions_become_a_topic_with_the_same_records() -> None:
    async def play(s: Scene) -> None:
        topic = await s.source.topic("clicks")
        async with topic.open_writer() as writer:
            await writer.append_many(
                [b"%d" % n for n in range(30)], keys=[str(n) for n in range(30)]
            )
        topics = await s.topics()
        assert await topics.upcoming(PARTITIONS) == ["clicks"]
        await s.copy("clicks/0", "clicks/1")
        assert await topics.upcoming(["clicks/1"]) == []
        await topics.make()
        assert (topics.made, await s.target.topics()) == ([], [])
        await s.copy("clicks/2")
        await topics.make()
        assert (topics.made, await s.target.topics()) == (["clicks"], ["clicks"])
        copy = await s.target.topic("clicks")
        found = {r.value: (r.partition, r.key, r.position) async for r in copy.open_reader()}
        assert found == {
            r.value: (r.partition, r.key, r.position) async for r in topic.open_reader()
        }
        assert len(found) == 30

        # Whatever follows changes nothing: neither this run, nor the next one.
        await topics.make()
        again = await s.topics()
        await again.make()
        assert (topics.made, again.made) == (["clicks"], [])
        await s.copy(*PARTITIONS)

    scene(play)


def test_a_run_completes_a_topic_that_earlier_runs_partly_copied() -> None:
    async def play(s: Scene) -> None:
        await s.copy("clicks/0", "clicks/2")
        topics = await s.topics("clicks/1")
        assert await topics.upcoming(["clicks/1"]) == ["clicks"]
        await s.copy("clicks/1")
        await topics.make()
        assert await s.target.topics() == ["clicks"]

    scene(play)


def test_streams_that_are_no_copies_do_not_become_a_topic() -> None:
    async def play(s: Scene) -> None:
        await s.copy("clicks/0", "clicks/1")
        await s.target.create_stream("clicks/2")
        topics = await s.topics("clicks/0", "clicks/1")
        assert await topics.upcoming(["clicks/0", "clicks/1"]) == []
        await topics.make()
        assert await s.target.topics() == []

    scene(play)


def test_a_stream_beside_the_partitions_does_not_prevent_the_topic() -> None:
    async def play(s: Scene) -> None:
        await s.source.create_stream("orders/2")  # it was there before the topic
        await s.source.create_topic("orders", 2)
        names = ["orders/0", "orders/1", "orders/2"]
        topics = await s.topics(*names)
        await s.copy(*names)
        await topics.make()
        assert topics.made == ["orders"]
        assert (await s.target.topic("orders")).partitions == 2

    scene(play)


def test_a_topic_with_another_number_of_partitions_is_refused_before_anything_is_copied() -> None:
    async def play(s: Scene) -> None:
        await s.target.create_topic("clicks", 2)
        await s.source.create_stream("other")
        refused = await TopicCopies(s.source, s.target).look([*PARTITIONS, "other"])
        assert list(refused) == PARTITIONS
        (error,) = set(refused.values())
        assert isinstance(error, StreamDivergedError)
        assert "has 3 partitions, and the topic of this name in the target" in str(error)
        assert await s.target.streams() == ["clicks/0", "clicks/1"]

    scene(play)


def test_a_topic_is_not_copied_to_the_name_of_a_stream() -> None:
    async def play(s: Scene) -> None:
        await s.target.create_stream("clicks")
        refused = await TopicCopies(s.source, s.target).look(["clicks/1"])
        assert list(refused) == ["clicks/1"]
        assert isinstance(refused["clicks/1"], StreamExistsError)
        assert "the target namespace has a stream of this name" in str(refused["clicks/1"])

    scene(play)


def test_a_topic_that_is_being_deleted_in_the_target_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(s: Scene) -> None:
        async def dies(metadata: object, _: object) -> None:
            raise InterruptedError

        await s.target.create_topic("clicks", 3)
        with pytest.raises(InterruptedError):
            await TopicMetadata(s.target.client, s.target.path).delete("clicks", dies)
        refused = await TopicCopies(s.source, s.target).look(PARTITIONS)
        assert "its deletion was interrupted" in str(refused["clicks/0"])

    scene(play)


def test_a_topic_that_cannot_be_read_is_an_error_after_everything_is_copied() -> None:
    async def play(s: Scene) -> None:
        tree = s.source.client.metadata.tree
        path = topic_path(s.source.path, "clicks")
        node = await tree.read(path)
        await tree.commit(Put(path, b"{}", node.version))
        await s.source.create_topic("good", 1)
        topics = await s.topics(*PARTITIONS, "good/0")
        assert await topics.look([*PARTITIONS, "good/0"]) == {}  # not looked at again
        await s.copy(*PARTITIONS, "good/0")
        with pytest.raises(MetadataError, match="of topic clicks cannot be decoded"):
            await topics.make()
        assert topics.made == ["good"]

    scene(play)


def test_an_unreadable_topic_of_the_target_is_not_changed() -> None:
    async def play(s: Scene) -> None:
        await s.target.create_topic("clicks", 3)
        tree, path = s.target.client.metadata.tree, topic_path(s.target.path, "clicks")
        await tree.commit(Put(path, b"{}", (await tree.read(path)).version))
        refused = await TopicCopies(s.source, s.target).look(PARTITIONS)
        assert isinstance(refused["clicks/0"], MetadataError)

    scene(play)


@pytest.mark.parametrize("value", [b"no json", b'{"format": 9}'])
def test_a_copy_whose_marker_cannot_be_read_does_not_become_a_topic(value: bytes) -> None:
    async def play(s: Scene) -> None:
        topics = await s.topics()
        await s.copy(*PARTITIONS)
        metadata = s.target.metadata("clicks/1")
        path = f"{metadata.paths.root}/{MARKER}"
        await metadata.tree.commit(Put(path, value, (await metadata.tree.read(path)).version))
        await topics.make()
        assert topics.made == []

    scene(play)


def test_topics_without_a_stream_in_the_run_are_not_changed() -> None:
    async def play(s: Scene) -> None:
        await s.target.create_topic("clicks", 2)
        await s.source.create_stream("clicks/x")
        topics = await s.topics("clicks/x", "other")
        await topics.make()
        assert topics.made == []

    scene(play)


def test_topics_created_during_a_run_are_found() -> None:
    async def play(s: Scene) -> None:
        topics = await s.topics()
        await s.copy(*PARTITIONS)
        await topics.make()
        await s.source.create_topic("late", 1)
        assert await topics.look([*PARTITIONS, "late/0"]) == {}
        await s.copy("late/0")
        await topics.make()
        assert topics.made == ["clicks", "late"]

    scene(play)


@pytest.mark.parametrize("partitions", [3, 2])
def test_a_topic_that_is_created_concurrently_is_accepted_or_refused(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(s: Scene) -> None:
        topics = await s.topics()
        await s.copy(*PARTITIONS)
        whole = TopicMetadata.adopt

        async def late(self: TopicMetadata, name: str, count: int, **more: bool) -> None:
            monkeypatch.undo()
            await self.adopt(name, partitions, any_number=True)
            await whole(self, name, count, **more)

        monkeypatch.setattr(TopicMetadata, "adopt", late)
        if partitions == 3:
            await topics.make()
        else:
            with pytest.raises(StreamDivergedError, match="in the target namespace has 2"):
                await topics.make()
        assert topics.made == []
        assert (await s.target.topic("clicks")).partitions == partitions

    scene(play)


def test_the_topic_waits_for_a_copy_that_was_deleted_at_the_last_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(s: Scene) -> None:
        topics = await s.topics()
        await s.copy(*PARTITIONS)
        whole = TopicMetadata.adopt

        async def late(self: TopicMetadata, name: str, count: int, **more: bool) -> None:
            monkeypatch.undo()
            await s.target.delete_stream("clicks/1")
            with pytest.raises(NoSuchStreamError):
                await whole(self, name, count, **more)
            raise NoSuchStreamError("as the call says")

        monkeypatch.setattr(TopicMetadata, "adopt", late)
        await topics.make()
        assert await s.target.topics() == []
        await s.copy("clicks/1")
        await topics.make()
        assert topics.made == ["clicks"]

    scene(play)
