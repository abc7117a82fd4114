"""Nodes of a stream that a later version wrote, or that cannot be decoded: nothing changes."""

from __future__ import annotations

import pytest

from quire.errors import (
    LaterMetadataError,
    LaterStreamError,
    LaterVersionError,
    MetadataError,
)
from quire.metadata.tree import Put
from quire.streams.namespace.namespace import open_namespace
from tests.support.streams import Bench, run


async def change(b: Bench, path: str, value: bytes) -> None:
    tree = b.client.metadata.tree
    await tree.commit(Put(path, value, (await tree.read(path)).version))


def test_no_writer_opens_a_stream_of_another_layout() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"one")
        path = b.streams.metadata("s").paths.version
        await change(b, path, b"\x00\x00\x00\x02")
        with pytest.raises(LaterMetadataError, match="the layout version 00000002"):
            await b.streams.open_writer("s")
        assert (await b.client.metadata.tree.read(path)).value == b"\x00\x00\x00\x02"

    run(scene)


def test_a_subscription_of_a_later_version_is_neither_read_nor_moved() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            position = await writer.append(b"one")
        subscription = b.streams.subscription("s", "me")
        await subscription.commit(position.next_slot())
        path = b.streams.metadata("s").paths.subscriber("me")
        later = b"AgAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA=="
        await change(b, path, later)
        for call in (
            b.streams.subscription("s", "me").position,
            lambda: b.streams.subscription("s", "me").commit(position.next_slot()),
        ):
            with pytest.raises(LaterStreamError, match="version 2"):
                await call()
        assert (await b.client.metadata.tree.read(path)).value == later

    run(scene)


def test_settings_of_a_later_version_are_refused() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"roll_bytes": 1_000_000})
        path = f"{b.streams.metadata('s').paths.root}/quire"
        found = (await b.client.metadata.tree.read(path)).value
        await change(b, path, found.replace(b"{", b'{"tier": 2, ', 1))
        for call in (
            lambda: b.streams.open_writer("s"),
            lambda: b.streams.configure_stream("s", {"roll_bytes": 2_000_000}),
        ):
            with pytest.raises(LaterVersionError, match="the field 'tier'"):
                await call()

    run(scene)


def test_a_namespace_binding_of_a_later_version_is_refused() -> None:
    """The namespace exists, so it is not created again."""

    async def scene(b: Bench) -> None:
        tree = b.client.metadata.tree
        await tree.make_path("/acme/other", b"2\nBKDL\n{}")
        for create in (False, True):
            with pytest.raises(LaterMetadataError, match="version 2"):
                await open_namespace(b.client, "/acme/other", create=create)
        assert await tree.children("/acme/other") == []

    run(scene)


def test_a_segment_of_a_later_version_is_refused() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"one")
            await writer.roll()
        (segment,) = await b.streams.segments("s")
        path = f"{b.streams.metadata('s').paths.segments}/{segment.name}"
        found = (await b.client.metadata.tree.read(path)).value
        head, _, rest = found.partition(b";")
        await change(b, path, b"%d;%s" % (int(head) | 8 << 8, rest))
        for call in (
            lambda: b.read("s"),
            lambda: b.streams.open_writer("s"),
            lambda: b.streams.truncate("s", segment.first_dlsn),
        ):
            with pytest.raises(LaterMetadataError, match="the status 0x8"):
                await call()

    run(scene)


def test_a_segment_that_cannot_be_decoded_is_named() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"one")
        (segment,) = await b.streams.segments("s")
        path = f"{b.streams.metadata('s').paths.segments}/{segment.name}"
        await change(b, path, b"garbage")
        with pytest.raises(MetadataError, match=f"{path} of a segment of stream s cannot be dec"):
            await b.read("s")

    run(scene)
