"""A stream is deleted or renamed while it has a writer.

The tests also cover the writer's lock, and nodes with Java's former names.
"""

from __future__ import annotations

import asyncio

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import NoSuchStreamError, QuireError, StreamFencedError, StreamLockedError
from quire.metadata.tree import Create, Delete
from quire.streams.namespace.stream_metadata import StreamMetadata
from tests.support.streams import Bench, run


def test_deleting_a_stream_fences_its_writer() -> None:
    """The writer gets an error. Otherwise bookies would accept its entries, and nobody would
    read them."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"one")
        await b.streams.delete_stream("s")
        with pytest.raises(StreamFencedError):
            await writer.append(b"lost")
        assert await b.ledgers() == []
        with pytest.raises(NoSuchStreamError):
            await b.streams.open_writer("s")

    run(scene)


def test_a_stream_is_deleted_while_bookies_are_down() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"one")
        writer.abandon()
        for name in list(b.world.bookies):
            await b.world.stop(name)
        await b.streams.delete_stream("s")
        assert await b.ledgers() == []
        assert await b.streams.streams() == []

    run(scene)


def test_renaming_a_stream_fences_its_writer() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True, lock=0)
        await writer.append(b"one")
        await b.streams.rename_stream("s", "t")
        with pytest.raises(StreamFencedError):
            await writer.append(b"lost")
        metadata = b.streams.metadata("t")
        assert await metadata.tree.children(metadata.paths.lock) == []
        assert await b.numbers("t") == [1]
        async with await b.streams.open_writer("t", lock=0) as other:
            await other.append(b"two")
        assert [record.payload for record in await b.read("t")] == [b"one", b"two"]

    run(scene)


def test_the_lock_is_held_until_the_writer_ends() -> None:
    async def scene(b: Bench) -> None:
        path = b.streams.metadata("s").paths.lock
        tree = b.client.metadata.tree
        writer = await b.streams.open_writer("s", create=True, lock=0)
        await writer.append(b"one")
        with pytest.raises(StreamLockedError, match=r"quire/.*within 5 s"):
            await b.streams.open_writer("s", lock=5)
        await writer.append(b"two")  # it was not disturbed
        waits = asyncio.create_task(b.streams.open_writer("s", lock=60))
        await asyncio.sleep(1)
        assert not waits.done()
        await writer.close()
        second = await waits
        await second.append(b"three")
        assert len(await tree.children(path)) == 1
        # Without the lock, nothing waits. The lock ends with the writer that was replaced.
        third = await b.streams.open_writer("s")
        with pytest.raises(StreamFencedError):
            await second.append(b"lost")
        await third.append(b"four")
        await third.close()
        fourth = await b.streams.open_writer("s", lock=1)
        fourth.abandon()
        fifth = await b.streams.open_writer("s", lock=1)
        await fifth.close()
        assert await tree.children(path) == []
        read = [record.payload for record in await b.read("s")]
        assert read == [b"one", b"two", b"three", b"four"]

    run(scene)


def test_a_writer_that_cannot_be_opened_gives_up_the_lock() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"one")
            await writer.end_stream()
        with pytest.raises(QuireError):
            await b.streams.open_writer("s", lock=0)
        metadata = b.streams.metadata("s")
        assert await metadata.tree.children(metadata.paths.lock) == []

    run(scene)


def test_former_segment_names_are_read() -> None:
    async def scene(b: Bench) -> None:
        for number in range(3):
            writer = await b.streams.open_writer("s", create=True)
            await writer.append_many([b"%d" % n for n in range(3 * number, 3 * number + 3)])
            if number < 2:
                await writer.close()
            else:
                writer.abandon()
        metadata = b.streams.metadata("s")
        for segment in await metadata.segments():
            await named_as_before(metadata, segment)
        former = await metadata.tree.children(metadata.paths.segments)
        assert [name.count("_") for name in former] == [1, 2, 2]
        writer = await b.streams.open_writer("s")
        await writer.append(b"9")
        await writer.close()
        await b.streams.truncate("s", DLSN(2, 0, 1))
        names = await metadata.tree.children(metadata.paths.segments)
        # The node of the newest one that was freed stays: readers see that they missed nothing.
        assert names == [f"logrecs_{n:018d}" for n in (1, 2, 3, 4)]
        read = [record.payload for record in await b.read("s")]
        assert read == [b"%d" % n for n in range(4, 10)]

    run(scene)


async def named_as_before(metadata: StreamMetadata, segment: StreamSegment) -> None:
    paths = metadata.paths
    await metadata.tree.commit(
        Delete(paths.segment(segment.name)),
        Create(paths.segment(segment.legacy_name), segment.to_bytes()),
    )
