"""Topics: several streams that are written and read as one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from quire._runtime.tasks import each
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES
from quire.errors import (
    ArgumentTypeError,
    LaterMetadataError,
    MetadataError,
    NoSuchStreamError,
    RecordTooLargeError,
    StreamClosedError,
    StreamExistsError,
    StreamFencedError,
    StreamGapError,
    StreamQuotaError,
    UnreadableMetadataError,
    UsageError,
)
from quire.metadata.tree import Delete, Operation, Put, Result
from quire.streams import EARLIEST, LATEST, AtSequence
from quire.streams.namespace import namespace as namespace_module
from quire.streams.namespace import removal
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.tree_search import streams_page
from quire.streams.read.records import Gap
from quire.streams.topics.partitioner import murmur2, partition_of
from quire.streams.topics.topic_metadata import (
    PARTITIONS_MAX,
    StoredTopic,
    TopicMetadata,
    partition_number,
)
from quire.streams.topics.writer import STICKY_BYTES, TopicAppended
from quire.streams.write.pending_entry import Appended, PendingEntry
from tests.support.streams import Bench, run

NODE = "/acme/test/.quire/topics/"

KAFKAS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""The golden values of Kafka's own test of the hash (`UtilsTest.testMurmur2`), as Java's int."""

PARTITIONS_OF_1000 = {
    b"": 681, b"a": 524, b"ab": 434, b"abc": 107, b"123456789": 566, b"\x00 ": 742,
}  # fmt: skip
"""The partitions that clients of Kafka give to keys in a topic of 1,000, as kafka-python tests."""


# -- the partitioner --------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "value"), KAFKAS.items())
def test_the_key_hash_equals_kafkas(key: bytes, value: int) -> None:
    assert murmur2(key) == value % 2**32


def test_a_topic_is_one_in_all_namespaces_that_its_streams_are_in() -> None:
    """Through a namespace further up, a partition could be deleted, or a record be written that no
    reader of the topic reads.
    """

    async def scene(b: Bench) -> None:
        near = await open_namespace(b.client, "/acme/test/near", create=True)
        await near.create_topic("t", 2)
        await b.streams.create_topic("near/u", 2)
        for streams, above in ((b.streams, "near/t"), (near, "u")):
            with pytest.raises(UsageError, match=f"a partition of topic {above}"):
                await streams.delete_stream(f"{above}/0")
            with pytest.raises(UsageError, match=f"a partition of topic {above}"):
                await streams.rename_stream(f"{above}/0", "elsewhere")
            with pytest.raises(UsageError, match="has the partitions 0 to 1"):
                await streams.create_stream(f"{above}/2")
            with pytest.raises(StreamExistsError, match=f"topic {above} already exists"):
                await streams.create_stream(above)
            await streams.create_stream("s")
            for taken in (above, f"{above}/2"):
                with pytest.raises((StreamExistsError, UsageError)):
                    await streams.rename_stream("s", taken)
        assert await near.streams() == ["s", "t/0", "t/1", "u/0", "u/1"]
        await near.close()

    run(scene)


def test_the_partition_of_a_key_equals_kafkas() -> None:
    found = {key: partition_of(key, 1_000) for key in PARTITIONS_OF_1000}
    assert found == PARTITIONS_OF_1000
    # Kafka drops the sign bit. The absolute value would give other partitions.
    assert partition_of(b"21", 1_000) == (-973932308 & 0x7FFFFFFF) % 1_000 != 973932308 % 1_000


def test_keys_use_all_partitions_about_equally() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[partition_of(b"key-%d" % number, 8)] += 1
    assert min(counts) > 850
    assert max(counts) < 1_150


def test_partition_names_are_built_and_parsed() -> None:
    assert partition_number("a/b/12") == ("a/b", 12)
    for name in ("a", "a/b", "a/01", "a/", "/1", "a/-1", "a/1x", "a/²", "a/12345", "1"):
        assert partition_number(name) is None, name


# -- creating and deleting --------------------------------------------------------------------


def test_a_topic_is_created_with_its_partitions() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("eu/clicks", 3, settings={"compression": "lz4"})
        assert await b.streams.topics() == ["eu/clicks"]
        assert await b.streams.topics("us") == []
        assert await b.streams.streams() == ["eu/clicks/0", "eu/clicks/1", "eu/clicks/2"]
        assert (await b.streams.stream_settings("eu/clicks/2")).compression == "lz4"
        topic = await b.streams.topic("eu/clicks")
        assert (topic.name, topic.partitions, topic.stream(2)) == ("eu/clicks", 3, "eu/clicks/2")
        assert topic.partition_of("abc") == topic.partition_of(b"abc")
        node = await b.client.metadata.tree.read(f"{NODE}eu%2Fclicks")
        stored = json.loads(node.value)
        assert stored.pop("id")
        assert stored == {"format": 1, "partitions": 3, "partitioner": "murmur2"}

    run(scene)


def test_the_largest_topic_fits_into_one_transaction() -> None:
    async def scene(b: Bench) -> None:
        name = "a-name-of-a-topic-that-is-rather-long/" * 3 + "clicks"
        await b.streams.create_topic(name, PARTITIONS_MAX, settings={"retention_s": 60})
        assert len(await b.streams.streams()) == PARTITIONS_MAX
        long = "long" * 400
        with pytest.raises(UsageError, match="a name of 1,600 characters 64 of them do not fit"):
            await b.streams.create_topic(long, PARTITIONS_MAX)
        assert len(await b.streams.streams()) == PARTITIONS_MAX
        with pytest.raises(UsageError, match=f"has 1 to {PARTITIONS_MAX} partitions, not"):
            await b.streams.create_topic("more", PARTITIONS_MAX + 1)
        with pytest.raises(UsageError, match="partitions, not 0"):
            await b.streams.create_topic("none", 0)
        with pytest.raises(ArgumentTypeError):
            await b.streams.create_topic("text", "4")  # type: ignore[arg-type]

    run(scene)


@pytest.mark.parametrize("taken", ["clicks", "clicks/1"])
def test_a_topic_never_takes_the_name_of_a_stream(taken: str) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream(taken)
        with pytest.raises(StreamExistsError, match=f"stream {taken} exists already") as raised:
            await b.streams.create_topic("clicks", 2)
        assert ("--adopt" in str(raised.value)) == (taken == "clicks/1")
        assert await b.streams.streams() == [taken]
        assert await b.streams.topics() == []
        await b.streams.delete_stream(taken)
        await b.streams.create_topic("clicks", 2)

    run(scene)


def test_a_stream_and_a_topic_that_are_created_at_the_same_time_never_share_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("source")
        whole = TopicMetadata.find

        async def stale(self: TopicMetadata, name: str) -> StoredTopic | None:
            """Answer as the store did, and then let another client create the topic."""
            found = await whole(self, name)
            monkeypatch.undo()
            await b.streams.create_topic(name, 2)
            return found

        makers: list[tuple[str, Callable[[str], Awaitable[None]]]] = [
            ("first", b.streams.create_stream),  # the namespace has no topic yet
            ("second", b.streams.create_stream),
            ("third", lambda name: b.streams.rename_stream("source", name)),
        ]
        for name, make in makers:
            monkeypatch.setattr(TopicMetadata, "find", stale)
            with pytest.raises(StreamExistsError, match=f"topic.*{name}|{name}.*topic"):
                await make(name)
            assert not await b.streams.exists(name)
        assert await b.streams.exists("source")

        await b.streams.delete_topic("first")
        await b.streams.create_stream("first")

    run(scene)


def test_a_partition_never_takes_the_name_of_another_topic() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks/1", 2)
        with pytest.raises(StreamExistsError, match="its partition clicks/1 would have the name"):
            await b.streams.create_topic("clicks", 2)
        assert await b.streams.topics() == ["clicks/1"]
        assert await b.streams.streams() == ["clicks/1/0", "clicks/1/1"]
        await b.streams.create_topic("clicks", 1)

    run(scene)


def test_a_stream_never_takes_the_name_of_a_topic() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 2)
        await b.streams.create_stream("other")
        attempts: list[Callable[[], Awaitable[None]]] = [
            lambda: b.streams.create_topic("clicks", 2),
            lambda: b.streams.create_topic("clicks", 5),
            lambda: b.streams.create_stream("clicks"),
            lambda: b.streams.rename_stream("other", "clicks"),
        ]
        for attempt in attempts:
            with pytest.raises(StreamExistsError, match="topic clicks already exists, with 2"):
                await attempt()
        assert await b.streams.streams() == ["clicks/0", "clicks/1", "other"]

    run(scene)


@pytest.mark.parametrize("name", ["eu/clicks/2", "eu/clicks/02", "eu/clicks/12345"])
def test_no_stream_is_created_beside_the_partitions_of_a_topic(name: str) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("other")
        await b.streams.create_topic("eu/clicks", 2)
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: b.streams.create_stream(name),
            lambda: b.streams.open_writer(name, create=True),
            lambda: b.streams.rename_stream("other", name),
        ]
        for attempt in attempts:
            with pytest.raises(UsageError, match="topic eu/clicks has the partitions 0 to 1"):
                await attempt()
        assert await b.streams.streams() == ["eu/clicks/0", "eu/clicks/1", "other"]
        # Neither these names nor a partition that exists are in the way of the topic.
        for beside in ("eu/2", "eu/clicks/x", "eu/clicks/0/2"):
            await b.streams.create_stream(beside)
        with pytest.raises(StreamExistsError, match="stream eu/clicks/1 already exists"):
            await b.streams.create_stream("eu/clicks/1")
        async with b.streams.open_writer("eu/clicks/1", create=True) as writer:
            await writer.append(b"x")

    run(scene)


@pytest.mark.parametrize("first", [False, True])
def test_no_stream_is_created_beside_a_topic_that_is_created_at_the_same_time(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let another client create the topic after the check, also the first of the namespace."""

    async def scene(b: Bench) -> None:
        if not first:
            await b.streams.create_topic("another", 1)
        whole = StreamMetadata.creation

        async def late(self: StreamMetadata, more: Any = None) -> list[Operation]:
            operations = await whole(self, more)
            monkeypatch.undo()
            await b.streams.create_topic("clicks", 2)
            return operations

        monkeypatch.setattr(StreamMetadata, "creation", late)
        with pytest.raises(UsageError, match="topic clicks has the partitions 0 to 1"):
            await b.streams.create_stream("clicks/2")
        assert not await b.streams.exists("clicks/2")

    run(scene)


def test_no_stream_is_created_beside_a_topic_that_took_the_name_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would have been a partition of the former topic, whose node had the same version."""

    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 4)
        await removal.delete_stream(b.client, b.streams.metadata("clicks/3"), b"")
        whole = StreamMetadata.creation

        async def late(self: StreamMetadata, more: Any = None) -> list[Operation]:
            operations = await whole(self, more)
            monkeypatch.undo()
            await b.streams.delete_topic("clicks")
            await b.streams.create_topic("clicks", 2)
            await whole(self, more)  # Another client creates the nodes above the stream again.
            return operations

        monkeypatch.setattr(StreamMetadata, "creation", late)
        with pytest.raises(UsageError, match="topic clicks has the partitions 0 to 1"):
            await b.streams.create_stream("clicks/3")
        assert not await b.streams.exists("clicks/3")

    run(scene)


def test_a_topic_can_adopt_existing_streams() -> None:
    async def scene(b: Bench) -> None:
        async def adopt(partitions: int, **more: Any) -> None:
            await b.streams.create_topic("eu/clicks", partitions, adopt=True, **more)

        await b.streams.configure({"streams_max": 3})  # adoption creates no stream
        with pytest.raises(NoSuchStreamError, match="stream eu/clicks/0, which would be its part"):
            await adopt(2)
        for number in range(3):
            await b.streams.create_stream(f"eu/clicks/{number}", settings={"retention_s": 60})
        async with b.streams.open_writer("eu/clicks/1") as one:
            await one.append(b"before")
        with pytest.raises(UsageError, match="with 2 partitions: stream eu/clicks/2 exists as"):
            await adopt(2)
        with pytest.raises(NoSuchStreamError, match="stream eu/clicks/3, which would be its part"):
            await adopt(4)
        with pytest.raises(UsageError, match="are adopted keep their settings"):
            await adopt(3, settings={"retention_s": 1})
        for wrong in (0, PARTITIONS_MAX + 1):
            with pytest.raises(UsageError, match="partitions, not"):
                await adopt(wrong)
        assert await b.streams.topics() == []
        await adopt(3)
        topic = await b.streams.topic("eu/clicks")
        async with topic.open_writer() as writer:
            await writer.append(b"after", partition=1)
        assert [r.value async for r in topic.open_reader()] == [b"before", b"after"]
        assert (await b.streams.own_stream_settings("eu/clicks/2"))["retention_s"] == 60
        with pytest.raises(StreamExistsError, match="topic eu/clicks already exists, with 3"):
            await adopt(3)
        await b.streams.delete_topic("eu/clicks")
        assert await b.streams.streams() == []

        await b.streams.create_stream("orders")
        await b.streams.create_stream("orders/0")
        with pytest.raises(StreamExistsError, match="stream orders exists already"):
            await b.streams.create_topic("orders", 1, adopt=True)

    run(scene)


def test_streams_and_topics_are_not_mistaken_for_each_other() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 2)
        await b.streams.create_stream("orders")
        with pytest.raises(NoSuchStreamError, match=r"orders is a stream in .* and not a topic"):
            await b.streams.topic("orders")
        with pytest.raises(NoSuchStreamError, match=r"is a partition of topic clicks.*Open topic"):
            await b.streams.topic("clicks/1")
        with pytest.raises(UsageError, match="nothing was deleted: orders is a stream"):
            await b.streams.delete_topic("orders")
        with pytest.raises(UsageError, match="nothing was deleted: clicks is a topic"):
            await b.streams.delete_stream("clicks")
        assert await b.streams.streams() == ["clicks/0", "clicks/1", "orders"]
        for delete in (b.streams.delete_stream, b.streams.delete_topic):
            await delete("neither")

    run(scene)


async def _calls_of_a_stream(b: Bench, name: str) -> list[Awaitable[Any]]:
    subscription = b.streams.subscription(name, "billing")
    return [
        b.streams.open_reader(name),
        b.streams.open_writer(name),
        b.streams.find(name, LATEST),
        b.streams.segments(name),
        b.streams.truncate(name, DLSN(1, 0, 0)),
        b.streams.retain(name),
        b.streams.configure_stream(name, {"compression": "lz4"}),
        b.streams.subscriptions(name),
        subscription.position(),
        subscription.commit(DLSN(1, 0, 0)),
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("clicks", "clicks is a topic in namespace .*Name a partition, such as clicks/0"),
        ("clicks/2", "topic clicks of namespace .* has no partition 2.*stream show clicks"),
        ("clicks/02", "has no partition 02"),
        ("clicks/x", "stream clicks/x does not exist"),
        ("click", "stream click does not exist"),
    ],
)
def test_every_call_explains_a_name_that_is_not_a_stream(name: str, said: str) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 2)
        for call in await _calls_of_a_stream(b, name):
            with pytest.raises(NoSuchStreamError, match=said):
                await call

    run(scene)


def test_partitions_are_deleted_and_renamed_only_with_their_topic() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("clicks/2")  # a stream beside the partitions
        await b.streams.create_topic("clicks", 2)
        with pytest.raises(UsageError, match="was not deleted: it is a partition of topic clicks"):
            await b.streams.delete_stream("clicks/1")
        with pytest.raises(
            UsageError, match=r"topic clicks was not renamed: a topic keeps its name\."
        ):
            await b.streams.rename_stream("clicks", "x")
        with pytest.raises(NoSuchStreamError, match="has no partition 3"):
            await b.streams.rename_stream("clicks/3", "x")
        with pytest.raises(UsageError, match="was not renamed: it is a partition of topic clicks"):
            await b.streams.rename_stream("/clicks/0", "x")
        await b.streams.rename_stream("clicks/2", "x")
        await b.streams.delete_topic("clicks")
        assert await b.streams.streams() == ["x"]
        assert await b.streams.topics() == []
        await b.streams.delete_topic("clicks")
        with pytest.raises(NoSuchStreamError, match="no topic clicks"):
            await b.streams.topic("clicks")

    run(scene)


def test_two_clients_create_the_same_topic_and_one_of_them_succeeds() -> None:
    async def scene(b: Bench) -> None:
        outcomes = await asyncio.gather(
            *(b.streams.create_topic("clicks", count) for count in (2, 3)), return_exceptions=True
        )
        failed = [error for error in outcomes if error is not None]
        assert len(failed) == 1
        assert isinstance(failed[0], StreamExistsError)
        count = (await b.streams.topic("clicks")).partitions
        assert len(await b.streams.streams()) == count

    run(scene)


def test_a_deletion_that_was_interrupted_is_completed_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 3)
        whole = removal.delete_stream
        deleted: list[str] = []

        async def dies(client: Any, metadata: Any, password: bytes, **how: Any) -> None:
            if deleted:
                raise KeyboardInterrupt
            deleted.append(metadata.paths.name)
            await whole(client, metadata, password, **how)

        monkeypatch.setattr(namespace_module, "delete_stream", dies)
        with pytest.raises(KeyboardInterrupt):
            await b.streams.delete_topic("clicks")
        monkeypatch.undo()
        assert deleted == ["clicks/0"]
        assert await b.streams.topics() == ["clicks"]
        with pytest.raises(NoSuchStreamError, match="its deletion was interrupted"):
            await b.streams.topic("clicks")
        creations: list[Callable[[], Awaitable[None]]] = [
            lambda: b.streams.create_topic("clicks", 3),
            lambda: b.streams.create_stream("clicks"),
            lambda: b.streams.create_stream("clicks/0"),  # it would be deleted with the rest
        ]
        for creation in creations:
            with pytest.raises(StreamExistsError, match=r"interrupted.*quire stream delete clicks"):
                await creation()
        await b.streams.delete_topic("clicks")
        assert await b.streams.streams() == []
        await b.streams.create_topic("clicks", 1)

    run(scene)


def test_a_late_deletion_spares_a_topic_that_was_created_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 1)
        whole = removal.delete_stream

        async def slow(client: Any, metadata: Any, password: bytes, **how: Any) -> None:
            await whole(client, metadata, password, **how)
            monkeypatch.undo()
            await b.streams.delete_topic("clicks")  # another client completes the deletion
            await b.streams.create_topic("clicks", 2)

        monkeypatch.setattr(namespace_module, "delete_stream", slow)
        await b.streams.delete_topic("clicks")
        assert (await b.streams.topic("clicks")).partitions == 2
        assert await b.streams.streams() == ["clicks/0", "clicks/1"]

    run(scene)


async def _nearer(b: Bench) -> None:
    async with await open_namespace(
        b.client, "/acme/test/orders", settings={"streams_max": 2}, create=True
    ) as nearer:
        await nearer.create_stream("eu")


def test_the_quota_of_a_nearer_namespace_applies() -> None:
    """A stream that was created through a parent namespace was not counted."""

    async def scene(b: Bench) -> None:
        await _nearer(b)
        with pytest.raises(StreamQuotaError, match="/acme/test/orders would, with 2 more, have"):
            await b.streams.create_topic("orders/clicks", 2)
        await b.streams.create_stream("orders/us")
        with pytest.raises(StreamQuotaError, match="/acme/test/orders already has the 2 streams"):
            await b.streams.create_stream("orders/asia")
        await b.streams.create_stream("others/asia")
        assert await b.streams.streams() == ["orders/eu", "orders/us", "others/asia"]

    run(scene)


def test_the_quota_of_a_parent_namespace_applies() -> None:
    """A stream that was created through a nearer namespace was not counted."""

    async def scene(b: Bench) -> None:
        await b.streams.configure({"streams_max": 2})
        nearer = await open_namespace(
            b.client, "/acme/test/orders", settings={"streams_max": 0}, create=True
        )
        await b.streams.create_stream("s")
        with pytest.raises(StreamQuotaError, match="/acme/test would, with 2 more, have more"):
            await nearer.create_topic("clicks", 2)
        await nearer.create_stream("eu")
        with pytest.raises(StreamQuotaError, match="/acme/test already has the 2 streams"):
            await nearer.create_stream("us")
        await nearer.rename_stream("eu", "us")
        assert await b.streams.streams() == ["orders/us", "s"]

    run(scene)


def test_a_rename_into_another_namespace_keeps_its_quota() -> None:
    async def scene(b: Bench) -> None:
        await _nearer(b)
        for name in ("s", "t"):
            await b.streams.create_stream(name)
        await b.streams.configure({"streams_max": 3})
        await b.streams.rename_stream("s", "orders/s")
        with pytest.raises(StreamQuotaError, match="/acme/test/orders already has the 2 streams"):
            await b.streams.rename_stream("t", "orders/t")
        await b.streams.rename_stream("orders/s", "orders/us")
        assert await b.streams.streams() == ["orders/eu", "orders/us", "t"]

    run(scene)


def test_a_name_does_not_lead_into_the_nodes_of_another_namespace() -> None:
    """The deletion of such a stream deleted the node that makes a path a namespace."""

    async def scene(b: Bench) -> None:
        nearer = await open_namespace(b.client, "/acme/test/near", create=True)
        for name in ("near/.quire", "near/.quire/topics/clicks"):
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: b.streams.delete_stream(name),  # noqa: B023
                lambda: b.streams.create_stream(name),  # noqa: B023
                lambda: b.streams.create_topic(name, 1),  # noqa: B023
                lambda: b.streams.rename_stream("s", name),  # noqa: B023
            ]
            for call in calls:
                with pytest.raises(UsageError, match=r"'\.quire', which is reserved"):
                    await call()
        await nearer.close()
        await open_namespace(b.client, "/acme/test/near")

    run(scene)


def test_a_name_does_not_lead_into_the_ledgers_of_the_cluster() -> None:
    """They may be below the path of a namespace."""

    async def scene(b: Bench) -> None:
        b.client.metadata.uri = "zk://localhost:2181/acme/test/ledgers"
        tree = b.client.metadata.tree
        await tree.make_path("/acme/test/ledgers/available/readonly")
        await tree.make_path("/acme/test/ledgers/inside/<default>/ledgers")
        for name in ("ledgers", "ledgers/available/readonly"):
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: b.streams.delete_stream(name),  # noqa: B023
                lambda: b.streams.create_stream(name),  # noqa: B023
                lambda: b.streams.create_topic(name, 1),  # noqa: B023
                lambda: b.streams.rename_stream("s", name),  # noqa: B023
            ]
            for call in calls:
                with pytest.raises(UsageError, match="/acme/test/ledgers is used for other data"):
                    await call()
        assert await tree.exists("/acme/test/ledgers/available/readonly")
        await b.streams.create_stream("ledgers-of-ours")
        assert await b.streams.streams() == ["ledgers-of-ours"]
        assert (await streams_page(b.streams, limit=10)).names == ["ledgers-of-ours"]
        # Another program may have created the namespace in spite of that.
        b.client.metadata.uri = "zk://localhost:2181/acme"
        async with b.streams.open_writer("ledgers-of-ours") as writer:
            await writer.append(b"0")
        assert "ledgers-of-ours" in await b.streams.streams()

    run(scene)


@pytest.mark.parametrize("moment", ["before the mark", "after the mark", "before the end"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_deletion_spares_a_topic_created_just_before_its_commit(
    monkeypatch: pytest.MonkeyPatch, moment: str, marked: bool
) -> None:
    """The node of the next topic of this name has the same versions, and other partitions."""

    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 2)
        tree = b.client.metadata.tree
        whole = tree.commit
        kind = Delete if moment == "before the end" else Put

        async def slow(*operations: Operation) -> Sequence[Result]:
            if not any(isinstance(one, kind) and one.path == NODE + "clicks" for one in operations):
                return await whole(*operations)
            monkeypatch.setattr(tree, "commit", whole)
            if moment == "after the mark":
                await whole(*operations)  # Its answer is lost.
            await b.streams.delete_topic("clicks")  # Another client is faster.
            await b.streams.create_topic("clicks", 3)
            if marked:  # The deletion of the next topic has begun.
                topics = TopicMetadata(b.client, b.streams.path)
                found = await topics.find("clicks")
                assert found is not None
                await whole(Put(NODE + "clicks", replace(found, deleting=True).value()))
            return await whole(*operations)

        monkeypatch.setattr(tree, "commit", slow)
        await b.streams.delete_topic("clicks")
        assert tree.commit == whole
        found = await TopicMetadata(b.client, b.streams.path).find("clicks")
        assert found is not None
        assert (found.partitions, found.deleting) == (3, marked)
        assert await b.streams.streams() == ["clicks/0", "clicks/1", "clicks/2"]
        await b.streams.delete_topic("clicks")
        assert await b.streams.topics() == await b.streams.streams() == []

    run(scene)


@pytest.mark.parametrize("done", [0, 1])
def test_a_late_deletion_spares_the_partitions_of_a_topic_that_was_created_meanwhile(
    monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 3)
        whole = removal.delete_stream
        deleted: list[str] = []

        async def slow(client: Any, metadata: Any, password: bytes, **how: Any) -> None:
            if len(deleted) == done:
                monkeypatch.undo()
                await b.streams.delete_topic("clicks")  # another client completes the deletion
                await b.streams.create_topic("clicks", 3)
                topic = await b.streams.topic("clicks")
                async with topic.open_writer() as writer:
                    for partition in range(3):
                        await writer.append(b"new", partition=partition)
            deleted.append(metadata.paths.name)
            await whole(client, metadata, password, **how)

        monkeypatch.setattr(namespace_module, "delete_stream", slow)
        await b.streams.delete_topic("clicks")
        topic = await b.streams.topic("clicks")
        found = [(one.partition, one.payload) async for one in topic.open_reader()]
        assert sorted(found) == [(0, b"new"), (1, b"new"), (2, b"new")]

    run(scene)


def test_partitions_count_in_the_quota_of_streams() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.configure({"streams_max": 3})
        with pytest.raises(StreamQuotaError, match="with 4 more, have more than the 3 streams"):
            await b.streams.create_topic("clicks", 4)
        await b.streams.create_topic("clicks", 3)
        with pytest.raises(StreamQuotaError, match="already has the 3 streams"):
            await b.streams.create_stream("one")

    run(scene)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"format": 2}, LaterMetadataError),
        ({"more": 1}, LaterMetadataError),
        ({"partitioner": "xxhash"}, LaterMetadataError),
        ({"partitions": "2"}, MetadataError),
        ({"partitions": 0}, MetadataError),
        ({"partitions": None}, MetadataError),
        ({"ending": 1}, MetadataError),
    ],
)
def test_a_topic_node_that_cannot_be_decoded_is_named(
    value: dict[str, Any], error: type[Exception]
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("clicks", 2)
        tree = b.client.metadata.tree
        node = await tree.read(f"{NODE}clicks")
        stored = {**json.loads(node.value), **value}
        await tree.commit(Put(f"{NODE}clicks", json.dumps(stored).encode(), node.version))
        with pytest.raises(error) as raised:
            await b.streams.topic("clicks")
        assert f"{NODE}clicks" in str(raised.value)
        await tree.commit(Put(f"{NODE}clicks", b"[]", node.version + 1))
        with pytest.raises(MetadataError, match="cannot be decoded"):
            await b.streams.topic("clicks")

    run(scene)


# -- writing ----------------------------------------------------------------------------------


def with_topic(scene: Callable[[Bench, Any], Awaitable[None]], partitions: int = 3) -> None:
    async def main(b: Bench) -> None:
        await b.streams.create_topic("clicks", partitions)
        await scene(b, await b.streams.topic("clicks"))

    run(main)


def test_each_record_is_in_the_partition_of_its_key_and_in_order() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        keys = [f"k{number % 7}" for number in range(100)]
        values = [b"%d" % number for number in range(100)]
        async with topic.open_writer() as writer:
            assert writer.assigned == [0, 1, 2]
            one = await writer.append(b"first", key="k1", headers={"h": "1"})
            places = await writer.append_many(values, keys=keys)
            assert one.partition == topic.partition_of("k1")
            assert [place.partition for place in places] == [topic.partition_of(k) for k in keys]
        found = [record async for record in topic.open_reader()]
        assert len(found) == 101
        where = {(record.partition, record.position): record for record in found}
        assert [where[place].value for place in places] == values
        assert dict(where[one].headers) == {"h": b"1"}
        assert (where[one].key, where[one].payload) == (b"k1", b"first")
        assert where[one].event_time is None
        for key in set(keys):
            mine = [r.value for r in found if r.key == key.encode() and r.value != b"first"]
            assert mine == [value for value, k in zip(values, keys) if k == key]
        for partition in range(3):
            plain = await b.read(topic.stream(partition))
            assert plain == [r.record for r in found if r.partition == partition]

    with_topic(scene)


def test_records_without_a_key_fill_one_partition_after_the_other() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        async with topic.open_writer(assign=[2, 0]) as writer:
            value = b"x" * (STICKY_BYTES // 2)
            places = await writer.append_many([value] * 5)
            assert [place.partition for place in places] == [0, 0, 2, 2, 0]
            assert (await writer.append(b"", partition=2)).partition == 2
            assert (await writer.append(b"small")).partition == 0

    with_topic(scene)


def test_an_empty_key_is_a_key() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        async with topic.open_writer() as writer:
            place = await writer.append(b"v", key="")
        assert place.partition == partition_of(b"", 3)
        assert [record.key async for record in topic.open_reader()] == [b""]

    with_topic(scene)


def test_writers_share_a_topic_by_its_partitions() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        key = next(f"k{n}" for n in range(99) if topic.partition_of(f"k{n}") == 2)
        async with topic.open_writer(assign=[0, 1]) as one, topic.open_writer(assign=[2]) as two:
            await two.append(b"ours", key=key)
            with pytest.raises(UsageError, match=f"partition 2, the partition of key b'{key}',"):
                await one.append_many([b"a", b"b"], keys=[None, key])
            with pytest.raises(UsageError, match="partition 2 of topic clicks is not assigned"):
                await one.append(b"a", partition=2)
            with pytest.raises(UsageError, match="has no partition 3"):
                await one.append(b"a", partition=3)
            await one.append(b"theirs", partition=0)
        found = {(record.partition, record.value) async for record in topic.open_reader()}
        assert found == {(2, b"ours"), (0, b"theirs")}

    with_topic(scene)


def test_a_partition_that_is_taken_over_leaves_the_others_working() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        one = await topic.open_writer()
        two = await topic.open_writer(assign=[1])
        with pytest.raises(StreamFencedError):
            await one.append(b"late", partition=1)
        await one.append(b"fine", partition=0)
        await two.append(b"new", partition=1)
        with pytest.raises(StreamFencedError):
            await one.flush()
        with pytest.raises(StreamFencedError):
            await one.close()
        await two.close()
        # The other partitions were closed all the same.
        assert not (await b.streams.segments(topic.stream(0)))[-1].in_progress
        found = {(record.partition, record.value) async for record in topic.open_reader()}
        assert found == {(0, b"fine"), (1, b"new")}

    with_topic(scene)


def test_the_outcome_is_unknown_if_another_partition_may_have_got_its_records() -> None:
    """The error of one partition said that nothing was appended. Whoever repeated the call then
    appended the records of the other partitions twice.
    """

    async def scene(b: Bench, topic: Any) -> None:
        keys = [
            next(f"k{n}" for n in range(99) if topic.partition_of(f"k{n}") == p) for p in (1, 2)
        ]
        values = [b"fine", bytes(MAX_PAYLOAD_BYTES + 1)]
        async with topic.open_writer() as writer:
            with pytest.raises(RecordTooLargeError) as caught:
                await writer.append_many(values, keys=keys)
            assert not caught.value.outcome_known
            assert str(caught.value).startswith(
                "partition 2 of topic clicks got none of its records, but partition 1 may have got "
                "theirs. The reason: a record for stream clicks/2 has"
            )
            with pytest.raises(RecordTooLargeError) as nothing:
                await writer.append_many(values[::-1], keys=keys[::-1])
            assert nothing.value.outcome_known
            assert str(nothing.value).startswith("a record for stream clicks/2 has")
        assert [record.value async for record in topic.open_reader()] == [b"fine"]

    with_topic(scene)


async def test_the_outcome_of_all_partitions_is_unknown_if_one_of_them_fails() -> None:
    entries = [PendingEntry(0), PendingEntry(0)]
    entries[0].settle(UnreadableMetadataError("the metadata is damaged"))
    entries[1].settle()
    parts = {at: Appended([(entry, 0, 1)]) for at, entry in enumerate(entries)}
    with pytest.raises(UnreadableMetadataError) as alone:
        await TopicAppended([0], {0: parts[0]}).wait()
    assert alone.value.outcome_known
    with pytest.raises(UnreadableMetadataError) as caught:
        await TopicAppended([0, 1], parts).wait()
    assert not caught.value.outcome_known


def test_a_topic_writer_refuses_invalid_arguments() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        for wrong in ([3], [-1], []):
            with pytest.raises(UsageError):
                await topic.open_writer(assign=wrong)
        with pytest.raises(ArgumentTypeError):
            await topic.open_writer(assign=1)
        with pytest.raises(ArgumentTypeError):
            await topic.open_writer(assign="1")
        with pytest.raises(ArgumentTypeError):
            await topic.open_writer(assign=["1"])
        with pytest.raises(UsageError):
            topic.stream(3)
        async with topic.open_writer() as writer:
            with pytest.raises(UsageError, match="keys needs one item for each record"):
                await writer.append_many([b"a", b"b"], keys=["a"])
            with pytest.raises(ArgumentTypeError):
                await writer.append(b"a", key=7)
            with pytest.raises(ArgumentTypeError):
                await writer.append(b"a", partition="0")
        with pytest.raises(StreamClosedError, match="writer of topic clicks is closed") as caught:
            await writer.append(b"a")
        assert caught.value.outcome_known
        assert writer.closed
        await writer.close()
        assert [record async for record in topic.open_reader()] == []

    with_topic(scene)


def test_a_writer_that_ends_with_an_error_is_abandoned() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        writer = await topic.open_writer()

        async def fail() -> None:
            async with writer:
                await writer.append(b"kept", partition=1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert writer.closed
        again = await topic.open_writer()
        submitted = await again.submit_many([b"a", b"b"], partition=1)
        assert [place.partition for place in await submitted.wait()] == [1, 1]
        await again.flush()
        await again.roll()
        again.abandon()
        assert [r.value async for r in topic.open_reader()] == [b"kept", b"a", b"b"]

    with_topic(scene)


@pytest.mark.parametrize("moved", [False, True], ids=["read", "commit"])
def test_a_topic_replaced_right_after_the_last_look_at_it_is_neither_read_nor_moved(
    monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    require_same = TopicMetadata.require_same

    async def scene(b: Bench, topic: Any) -> None:
        async def then_replaced(metadata: TopicMetadata, known: StoredTopic) -> None:
            await require_same(metadata, known)
            monkeypatch.undo()
            await b.streams.delete_topic("clicks")
            await b.streams.create_topic("clicks", 2)
            async with (await b.streams.topic("clicks")).open_writer() as writer:
                await writer.append(b"of the other topic", key="a")

        monkeypatch.setattr(TopicMetadata, "require_same", then_replaced)
        positions = dict.fromkeys(range(2), DLSN(1, 0, 0))
        if moved:
            with pytest.raises(NoSuchStreamError):
                await topic.commit("mail", positions)
        else:
            with pytest.raises(NoSuchStreamError):
                [record async for record in topic.open_reader(start=positions)]
        assert await (await b.streams.topic("clicks")).positions("mail") == {}

    with_topic(scene, 2)


def test_a_writer_notices_that_the_topic_was_replaced() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        await b.streams.delete_topic("clicks")
        await b.streams.create_topic("clicks", 5)
        with pytest.raises(NoSuchStreamError, match="replaced by another topic"):
            await topic.open_writer()
        async with (await b.streams.topic("clicks")).open_writer() as writer:
            assert writer.partitions == 5
            assert writer.assigned == [0, 1, 2, 3, 4]
        await b.streams.delete_topic("clicks")
        with pytest.raises(NoSuchStreamError):
            await topic.open_writer()

    with_topic(scene)


# -- reading ----------------------------------------------------------------------------------


async def filled(topic: Any, count: int = 30) -> None:
    async with topic.open_writer() as writer:
        for number in range(count):
            await writer.append(b"%d" % number, key=f"k{number}")


def test_a_reader_can_select_partitions_and_start_positions() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        await filled(topic)
        everything = [record async for record in topic.open_reader()]
        assert sorted(int(record.value) for record in everything) == list(range(30))
        reader = topic.open_reader(assign=[1])
        assert [r async for r in reader] == [r for r in everything if r.partition == 1]
        assert (reader.assigned, list(reader.positions)) == ([1], [1])
        late = [record async for record in topic.open_reader(start=AtSequence(3))]
        assert sorted(late) == sorted(r for r in everything if r.record.sequence >= 3)
        some = await b.streams.find(topic.stream(2), AtSequence(2))
        mixed = [r async for r in topic.open_reader(start={0: LATEST, 2: some})]
        assert sorted(mixed) == sorted(
            r for r in everything
            if r.partition == 1 or (r.partition == 2 and r.record.sequence >= 2)
        )  # fmt: skip

    with_topic(scene)


def test_a_reader_resumes_at_its_positions() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        await filled(topic)
        assert await topic.positions("billing") == {}
        reader = topic.open_reader()
        seen = []
        async with aclosing(aiter(reader)) as records:
            async for record in records:
                seen.append(record)
                if len(seen) == 11:
                    break
        await topic.commit("billing", reader.positions)
        stored = await topic.positions("billing")
        assert stored == reader.positions
        rest = [record async for record in topic.open_reader(start=stored)]
        assert sorted(int(record.value) for record in seen + rest) == list(range(30))
        # The same reader continues there as well.
        assert sorted([record async for record in reader]) == sorted(rest)
        with pytest.raises(UsageError):
            await topic.commit("billing", {9: stored[0]})
        for wrong in (stored[0], [stored[0]]):  # a position is a tuple of numbers
            with pytest.raises(ArgumentTypeError, match="must be a dictionary with the position"):
                await topic.commit("billing", wrong)
        await topic.commit("billing", {})

    with_topic(scene)


def test_a_topic_that_was_replaced_is_not_read_and_gets_no_positions() -> None:
    """Its positions were applied to the records of the other topic, of which it read a part."""

    async def scene(b: Bench, topic: Any) -> None:
        await filled(topic)
        used, unused = topic.open_reader(), topic.open_reader()
        assert len([record async for record in used]) == 30
        await b.streams.delete_topic("clicks")
        await b.streams.create_topic("clicks", 5)
        other = await b.streams.topic("clicks")
        await filled(other)
        for reader in (used, unused, topic.open_reader(start=LATEST)):
            async with aclosing(reader.batches()) as batches:
                with pytest.raises(NoSuchStreamError, match="replaced by another topic"):
                    await anext(batches)
        with pytest.raises(NoSuchStreamError, match="replaced by another topic"):
            await topic.commit("billing", used.positions)
        assert await other.positions("billing") == {}
        await other.commit("billing", {0: DLSN(1, 0, 0)})
        with pytest.raises(NoSuchStreamError, match="replaced by another topic"):
            await topic.positions("billing")

    with_topic(scene)


def test_a_following_reader_loses_no_record_when_it_is_cancelled() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        reader = topic.open_reader(start=LATEST, follow=True)
        seen: list[int] = []

        async def follow() -> None:
            async for record in reader:
                seen.append(int(record.value))

        async with topic.open_writer() as writer:
            task = asyncio.ensure_future(follow())
            for number in range(60):
                if number == 0:
                    while len(reader.positions) != 3:
                        await asyncio.sleep(0.01)
                await writer.append(b"%d" % number, key=f"k{number}")
                if number % 10 == 9:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    task = asyncio.ensure_future(follow())
            while len(seen) < 60:
                await asyncio.sleep(0.1)
            assert sorted(seen) == list(range(60))
        await each(
            range(3), lambda at: end(b, topic.stream(at))
        )  # the reader ends after all partitions have
        await task
        reader.close()
        with pytest.raises(UsageError, match="reader of topic clicks is closed"):
            await follow()

    async def end(b: Bench, name: str) -> None:
        async with b.streams.open_writer(name) as writer:
            await writer.end_stream()

    with_topic(scene)


def test_closing_a_reader_ends_an_iteration_that_waits() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        reader = topic.open_reader(follow=True)

        async def follow() -> None:
            async for _ in reader:
                pass

        task = asyncio.ensure_future(follow())
        await asyncio.sleep(1)
        reader.close()
        with pytest.raises(UsageError, match="is closed"):
            await task

    with_topic(scene)


@pytest.mark.parametrize("what", ["empty stream", "stream", "topic"])
def test_closing_a_reader_ends_an_iteration_that_is_just_starting(what: str) -> None:
    """It waited for ever if the list of segments was being read, or a ledger being opened."""

    async def scene(b: Bench, topic: Any) -> None:
        writer = await b.streams.open_writer("s", create=True)
        if what == "stream":
            await writer.append(b"1")
            await asyncio.sleep(1)
        for iterations in range(60):
            if what == "topic":
                reader = topic.open_reader(start=LATEST, follow=True)
            else:
                reader = await b.streams.open_reader("s", start=LATEST, follow=True)
            async with aclosing(reader.batches()) as batches:
                task = asyncio.ensure_future(anext(batches))
                for _ in range(iterations):
                    await asyncio.sleep(0)
                reader.close()
                async with asyncio.timeout(60):  # simulated
                    with pytest.raises(UsageError, match="is closed"):
                        await task

    with_topic(scene)


def test_gaps_are_reported_with_their_partition() -> None:
    async def scene(b: Bench, topic: Any) -> None:
        async with topic.open_writer() as writer:
            for number in range(20):
                await writer.append(b"%d" % number, partition=number % 2)
        before = await b.streams.find(topic.stream(1), AtSequence(4))
        await b.streams.truncate(topic.stream(1), before)
        start = {1: (await b.streams.segments(topic.stream(1)))[0].first_dlsn}
        reader = topic.open_reader(start=start)
        with pytest.raises(StreamGapError, match="stream clicks/1"):
            [record async for record in reader]
        assert reader.positions[1] == before
        delivered = topic.open_reader(start=start, on_gap="deliver")
        gaps = []
        async with aclosing(delivered.batches()) as batches:
            async for partition, batch in batches:
                if isinstance(batch, Gap):
                    gaps.append((partition, batch.behind))
        assert gaps == [(1, before)]
        for choice in ("skip", "deliver"):
            left = [int(r.value) async for r in topic.open_reader(start=start, on_gap=choice)]
            assert sorted(left) == [0, 2, 4, 6, 8, *range(9, 20)]
        for wrong in ({"on_gap": "no"}, {"assign": [7]}, {"start": {7: EARLIEST}}):
            with pytest.raises(UsageError):
                topic.open_reader(**wrong)
        with pytest.raises(
            UsageError, match=r"a position belongs to one partition.*such as clicks/0"
        ):
            topic.open_reader(start=before)

    with_topic(scene)
