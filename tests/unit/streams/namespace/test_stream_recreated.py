"""Readers and subscriptions of a stream that is deleted and created again under its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import MetadataUnavailableError, NoSuchStreamError, StreamFencedError
from quire.metadata.tree import Create, Delete, Operation, Put, Result
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.removal import delete_stream
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import free, truncate
from quire.streams.read.positions import EARLIEST
from quire.streams.read.segment_list import SegmentList
from tests.support.streams import Bench, run

REPLACED = "stream s was deleted or renamed, and another stream has its name now"


async def fill(b: Bench, *numbers: int) -> None:
    async with await b.streams.open_writer("s", create=True) as writer:
        await writer.append_many([b"%d" % number for number in numbers])


async def create_again(b: Bench, *numbers: int) -> None:
    await b.streams.delete_stream("s")
    await fill(b, *numbers)


def test_a_following_reader_does_not_continue_in_a_recreated_stream() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        reader = await b.streams.open_reader("s", follow=True)
        got = []

        async def read() -> None:
            async for record in reader:
                got.append(record.payload)
                if len(got) == 2:
                    await create_again(b, 3, 4, 5)

        with pytest.raises(NoSuchStreamError, match=REPLACED):
            await read()
        assert got == [b"1", b"2"]

    run(scene)


@pytest.mark.parametrize("deep", [False, True])
def test_a_former_writer_cannot_change_a_stream_recreated_through_another_namespace(
    deep: bool,
) -> None:
    """The stream was one of two namespaces, and each of them had a life for it.

    The former writer then found its own life, and versions like those that it knew: it replaced
    the segment of the present writer with its own lost one.
    """

    async def scene(b: Bench) -> None:
        near = await open_namespace(b.client, "/acme/test/near", create=True)
        former, later = (near, b.streams) if deep else (b.streams, near)
        names = {near: "s", b.streams: "near/s"}
        old = await former.open_writer(names[former], create=True)
        await old.append(b"old")
        reader = await former.open_reader(names[former], follow=True)
        async with aclosing(aiter(reader)) as records:
            await anext(records)
            upcoming = asyncio.ensure_future(anext(records))
            await asyncio.sleep(1)
            await later.delete_stream(names[later])
            new = await later.open_writer(names[later], create=True)
            await new.append(b"new")
            with pytest.raises(StreamFencedError):
                await old.append(b"late")
            await new.append(b"more")
            await new.close()
            for streams in (near, b.streams):
                found = [r.payload async for r in streams.open_reader(names[streams])]
                assert found == [b"new", b"more"]
                assert await streams.metadata(names[streams]).life_id() == new._claim.life_id
            with pytest.raises(NoSuchStreamError, match="another stream has its name now"):
                await upcoming
        await near.close()

    run(scene)


def test_a_stream_keeps_its_life_when_a_nearer_namespace_is_created() -> None:
    async def scene(b: Bench) -> None:
        tree = b.client.metadata.tree
        far = b.streams.metadata("near/s")
        await b.streams.create_stream("near/s")
        life = await far.life_id()
        near = await open_namespace(b.client, "/acme/test/near", create=True)
        for _ in range(2):
            assert await near.metadata("s").life_id() == life
            async with near.open_writer("s") as writer:
                await writer.append(b"0")
            assert await far.life_id() == await b.streams.metadata("near/s").life_id() == life
        # Through either namespace, the life ends with the stream, and another one begins.
        await near.rename_stream("s", "t")
        renamed = await b.streams.metadata("near/t").life_id()
        assert await near.metadata("t").life_id() == renamed != life
        await b.streams.delete_stream("near/t")
        for namespace in ("/acme/test", "/acme/test/near"):
            assert await tree.children(f"{namespace}/.quire/lives") == []
        await near.create_stream("s")
        assert await far.life_id() == await near.metadata("s").life_id() not in (life, renamed)
        await near.close()

    run(scene)


def test_a_reader_that_is_iterated_again_does_not_continue_in_a_recreated_stream() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        reader = await b.streams.open_reader("s")
        assert [record.payload async for record in reader] == [b"1", b"2"]
        await create_again(b, 3, 4, 5)
        await fill(b, 6)
        async with aclosing(reader.batches()) as batches:
            with pytest.raises(NoSuchStreamError, match=REPLACED):
                await anext(batches)

    run(scene)


def test_a_segment_list_belongs_to_one_life_of_the_stream() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        async with SegmentList(b.streams.metadata("s")) as listed:
            await create_again(b, 3)
            with pytest.raises(NoSuchStreamError, match=REPLACED):
                await listed.look()

    run(scene)


def test_a_position_of_the_former_stream_is_not_stored_in_the_new_one() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        mine = b.streams.subscription("s", "mine")
        assert await mine.commit(DLSN(1, 0, 1))
        await create_again(b, 3, 4, 5)
        with pytest.raises(NoSuchStreamError, match=REPLACED):
            await mine.commit(DLSN(2, 0, 0))
        with pytest.raises(NoSuchStreamError, match=REPLACED):
            await mine.position()
        again = b.streams.subscription("s", "mine")
        assert await again.position() is None
        assert await again.commit(DLSN(1, 0, 1))
        with pytest.raises(NoSuchStreamError, match=REPLACED):
            await mine.delete()
        assert await again.position() == DLSN(1, 0, 1)
        assert await b.read("s", start=await again.position() or EARLIEST)

    run(scene)


def test_a_subscription_is_deleted_once_and_with_its_stream() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        mine = b.streams.subscription("s", "mine")
        await mine.delete()  # there is none
        assert await mine.commit(DLSN(1, 0, 1))
        await mine.delete()
        assert await mine.position() is None
        await mine.delete()
        await b.streams.delete_stream("s")
        await mine.delete()

    run(scene)


def test_concurrent_lookups_of_a_life_find_the_same_one() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1)
        metadata = b.streams.metadata("s")
        await metadata.tree.commit(
            Delete((await metadata.life()).path)
        )  # as in a stream that Java made
        async with b.world.client("other") as other:
            second = StreamMetadata(other, metadata.paths)
            for each in (metadata, second):
                assert await each.tree.exists(metadata.paths.segments)
            first = second_known = second.lives._paths_known

            async def slow() -> list[str]:
                """Let the first one begin a life after the second has found none."""
                found = await first()
                if slow.once:
                    slow.once = False
                    slow.begun = (await metadata.life()).id
                return found

            slow.once, slow.begun = True, ""  # type: ignore[attr-defined]
            second.lives._paths_known = slow  # type: ignore[method-assign]
            assert (await second.life()).id == slow.begun  # type: ignore[attr-defined]
            assert len(await second_known()) == 1

    run(scene)


def test_two_that_look_for_a_life_through_two_namespaces_find_the_same() -> None:
    """Each of them would have begun a life in the directory of its own namespace."""

    async def scene(b: Bench) -> None:
        far = b.streams.metadata("near/s")
        await b.streams.create_stream("near/s")
        async with b.world.client("other") as other:
            tree, real = other.metadata.tree, other.metadata.tree.commit
            streams = await open_namespace(other, "/acme/test")
            await tree.commit(Delete((await far.life()).path))  # as if Java had created the stream
            begun = ""

            async def commit(*operations: Operation) -> list[Result]:
                nonlocal begun
                if any(isinstance(one, Create) and "lives/near" in one.path for one in operations):
                    tree.commit = real  # type: ignore[method-assign]
                    near = await open_namespace(b.client, "/acme/test/near", create=True)
                    begun = await near.metadata("s").life_id()
                return await real(*operations)

            tree.commit = commit  # type: ignore[method-assign]
            found = await streams.metadata("near/s").life_id()
        assert found == begun != ""
        assert await far.life_id() == begun

    run(scene)


def before_it_deletes(
    metadata: StreamMetadata, path: str, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    """Run `meanwhile` just before the next transaction that deletes this node."""
    tree, real = metadata.tree, metadata.tree.commit

    async def commit(*operations: Operation) -> list[Result]:
        if any(isinstance(one, Delete) and one.path == path for one in operations):
            tree.commit = real  # type: ignore[method-assign]
            await meanwhile()
        return await real(*operations)

    tree.commit = commit  # type: ignore[method-assign]


def test_a_late_truncation_deletes_no_segment_of_the_recreated_stream() -> None:
    """It deletes the ledgers and nodes of its segments, whose names are those of others by then."""

    async def scene(b: Bench) -> None:
        for number in range(4):
            await fill(b, number)
        async with b.world.client("other") as other:
            metadata = StreamMetadata(other, b.streams.metadata("s").paths)
            segments = await metadata.segments()
            await truncate(metadata, segments[2].first_dlsn)

            async def meanwhile() -> None:
                await create_again(b, 4, 5)
                await fill(b, 6)

            before_it_deletes(metadata, metadata.paths.segment(segments[0].name), meanwhile)
            await free(other, metadata)
        assert [r.payload for r in await b.read("s")] == [b"4", b"5", b"6"]
        assert len(await b.streams.segments("s")) == 2

    run(scene)


@pytest.mark.parametrize("what", ["a segment", "the root", "the lives"])
def test_a_late_deletion_deletes_nothing_of_the_recreated_stream(what: str) -> None:
    """Another client has deleted the stream by then, and a third one has created it again."""

    async def scene(b: Bench) -> None:
        await fill(b, 0)
        writer = None
        async with b.world.client("other") as other:
            metadata = StreamMetadata(other, b.streams.metadata("s").paths)
            segment = (await metadata.segments())[0]
            life = await metadata.life()
            paths = {
                "a segment": metadata.paths.segment(segment.name),
                "the root": metadata.paths.root,
                "the lives": life.path.rpartition("/")[0],
            }

            async def meanwhile() -> None:
                nonlocal writer
                await create_again(b, 1, 2)
                writer = await b.streams.open_writer("s")

            before_it_deletes(metadata, paths[what], meanwhile)
            await delete_stream(other, metadata, b"")
        assert writer is not None
        await writer.append(b"3")  # its claim holds
        await writer.close()
        assert [r.payload for r in await b.read("s")] == [b"1", b"2", b"3"]

    run(scene)


def test_a_late_deletion_is_not_retried_on_the_recreated_stream() -> None:
    """The ledger that the former writer had created ahead is not this claim's any more."""

    async def scene(b: Bench) -> None:
        await fill(b, 0)
        former = await b.streams.open_writer("s")
        allocation = b.streams.metadata("s").paths.allocation
        async with asyncio.timeout(10):  # simulated
            while not (await b.client.metadata.tree.read(allocation)).value:
                await asyncio.sleep(0.1)
        async with b.world.client("other") as other:
            metadata = StreamMetadata(other, b.streams.metadata("s").paths)

            async def meanwhile() -> None:
                await create_again(b, 1, 2)

            segment = (await metadata.segments())[0]
            before_it_deletes(metadata, metadata.paths.segment(segment.name), meanwhile)
            await delete_stream(other, metadata, b"")
        former.abandon()
        assert [r.payload for r in await b.read("s")] == [b"1", b"2"]

    run(scene)


@pytest.mark.parametrize("call", ["create", "rename", "topic", "partition"])
def test_remains_of_a_deleted_stream_do_not_prevent_its_creation(call: str) -> None:
    """Its deletion was interrupted after the stream did not exist any more."""

    async def scene(b: Bench) -> None:
        name = "s/0" if call == "partition" else "s"
        async with b.streams.open_writer(name, create=True) as writer:
            await writer.append(b"0")
        assert await b.streams.subscription(name, "mine").commit(DLSN(1, 0, 0))
        with pytest.MonkeyPatch.context() as patch:

            async def interrupted(self: StreamMetadata) -> None:
                raise MetadataUnavailableError("interrupted")

            patch.setattr(StreamMetadata, "remove_rest", interrupted)
            with pytest.raises(MetadataUnavailableError):
                await b.streams.delete_stream(name)
        if call == "create":
            await b.streams.create_stream("s")
        elif call == "rename":
            await b.streams.create_stream("t")
            former = await b.streams.open_writer("t")
            await b.streams.rename_stream("t", "s")
            former.abandon()
        else:
            await b.streams.create_topic("s", 1)
            name = "s/0"
        assert await b.streams.streams() == [name]
        assert await b.streams.subscriptions(name) == []

    run(scene)


def test_settings_are_not_applied_to_a_stream_that_took_the_name_meanwhile() -> None:
    """Its node with settings had the version that the node of the former stream had."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_s": 60})
        async with b.world.client("other") as other:
            streams = await open_namespace(other, "/acme/test")
            tree, real = other.metadata.tree, other.metadata.tree.commit

            async def commit(*operations: Operation) -> list[Result]:
                if any(isinstance(one, Put) for one in operations):
                    tree.commit = real  # type: ignore[method-assign]
                    await b.streams.delete_stream("s")
                    await b.streams.create_stream("s", settings={"bytes_max": 10})
                return await real(*operations)

            tree.commit = commit  # type: ignore[method-assign]
            with pytest.raises(NoSuchStreamError, match="another stream has its name now"):
                await streams.configure_stream("s", {"retention_bytes": 1})
        assert await b.streams.own_stream_settings("s") == {"bytes_max": 10}
        await b.streams.delete_stream("s")
        with pytest.raises(NoSuchStreamError, match="stream s does not exist"):
            await b.streams.configure_stream("s", {"retention_bytes": 1})

    run(scene)


def test_a_deletion_deletes_no_ledger_of_a_stream_that_is_renamed_meanwhile() -> None:
    """Until the deletion has begun, whatever it has read by then."""

    async def scene(b: Bench) -> None:
        for number in range(3):
            await fill(b, number)
        async with b.world.client("other") as other:
            metadata = StreamMetadata(other, b.streams.metadata("s").paths)
            tree, real = other.metadata.tree, other.metadata.tree.commit

            async def commit(*operations: Operation) -> list[Result]:
                if any(isinstance(one, Create) for one in operations):
                    tree.commit = real  # type: ignore[method-assign]
                    await b.streams.rename_stream("s", "kept")
                return await real(*operations)

            tree.commit = commit  # type: ignore[method-assign]
            await delete_stream(other, metadata, b"")
        assert [record.payload for record in await b.read("kept")] == [b"0", b"1", b"2"]
        assert await b.streams.streams() == ["kept"]

    run(scene)


def test_a_stream_that_is_being_deleted_cannot_be_renamed() -> None:
    """The stream with the new name would lack what was deleted by then."""

    async def scene(b: Bench) -> None:
        for number in range(3):
            await fill(b, number)
        async with b.world.client("other") as other:
            metadata = StreamMetadata(other, b.streams.metadata("s").paths)
            segment = (await metadata.segments())[0]

            async def meanwhile() -> None:
                with pytest.raises(NoSuchStreamError, match="is being deleted"):
                    await b.streams.rename_stream("s", "kept")

            before_it_deletes(metadata, metadata.paths.segment(segment.name), meanwhile)
            await delete_stream(other, metadata, b"")
        assert await b.streams.streams() == []
        await create_again(b, 3)
        await b.streams.rename_stream("s", "kept")
        assert [record.payload for record in await b.read("kept")] == [b"3"]

    run(scene)


@pytest.mark.parametrize("node", ["quire-marks", "quire-deletion"])
def test_a_rename_is_retried_if_the_stream_gets_a_node_meanwhile(node: str) -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 0)
        async with b.world.client("other") as other:
            streams = await open_namespace(other, "/acme/test")
            metadata = streams.metadata("s")

            async def meanwhile() -> None:
                await b.client.metadata.tree.commit(Create(f"{metadata.paths.root}/{node}"))

            before_it_deletes(metadata, metadata.paths.root, meanwhile)
            if node == "quire-marks":
                await streams.rename_stream("s", "t")
            else:
                with pytest.raises(NoSuchStreamError, match="is being deleted"):
                    await streams.rename_stream("s", "t")
        name = "t" if node == "quire-marks" else "s"
        assert [record.payload for record in await b.read(name)] == [b"0"]

    run(scene)


def test_a_deletion_leaves_no_nodes() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 0)
        assert await b.streams.subscription("s", "mine").commit(DLSN(1, 0, 0))
        metadata = b.streams.metadata("s")
        life = (await metadata.life()).path
        await b.streams.delete_stream("s")
        assert not await metadata.tree.exists(metadata.paths.stream)
        assert not await metadata.tree.exists(life.rpartition("/")[0])

    run(scene)


@pytest.mark.parametrize("call", ["delete", "delete what never was", "rename"])
def test_a_node_with_a_value_survives_the_streams_at_and_below_its_path(call: str) -> None:
    """Such a node binds a namespace of Java's, or belongs to another program."""

    async def scene(b: Bench) -> None:
        tree = b.client.metadata.tree
        await tree.make_path("/acme/test/near", b"a binding")
        if call != "delete what never was":
            await b.streams.create_stream("near")
            await b.streams.create_stream("near/deep/s")
        if call == "rename":
            await b.streams.rename_stream("near/deep/s", "s")
            await b.streams.rename_stream("near", "t")
        else:
            await b.streams.delete_stream("near/deep/s")
            await b.streams.delete_stream("near")
        assert (await tree.read("/acme/test/near")).value == b"a binding"
        assert await tree.children("/acme/test/near") == []

    run(scene)
