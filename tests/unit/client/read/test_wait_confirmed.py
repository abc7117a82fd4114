"""Waiting for news of a ledger, and of a stream's segments, without reading them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire.client import Client
from quire.errors import NoSuchLedgerError, UsageError
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stream_metadata import NamedSegments, StreamMetadata
from quire.streams.read.segment_list import SegmentList
from quire_simulator.world.world import World

SEED = 11


def run(scene: Callable[[Client], Awaitable[None]]) -> None:
    world = World.make(SEED, 3)

    async def main() -> None:
        for name in world.disks:
            await world.start(name)
        async with world.client("client") as client:
            await scene(client)
        for name in list(world.bookies):
            await world.stop(name)

    world.loop.run(main())


def test_waiting_ends_when_the_entry_is_acknowledged() -> None:
    async def scene(client: Client) -> None:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 10)
        async with await client.open_ledger(writer.ledger_id) as reader:
            known = reader.last_add_confirmed
            assert await reader.wait_confirmed(known) == known  # it is, already
            waiting = asyncio.ensure_future(reader.wait_confirmed(known + 1))
            await asyncio.sleep(10)
            assert not waiting.done()
            await writer.append(b"y")
            await writer.append(b"tells")
            assert await waiting > known
            # And where the ledger ends before.
            waiting = asyncio.ensure_future(reader.wait_confirmed(1_000))
            await asyncio.sleep(10)
            last = await writer.close()
            assert await waiting == last
            assert reader.ledger_closed

    run(scene)


def test_waiting_fails_with_the_reason_if_it_cannot_continue() -> None:
    async def scene(client: Client) -> None:
        writer = await client.create_ledger()
        await writer.append(b"x")
        reader = await client.open_ledger(writer.ledger_id)
        waiting = asyncio.ensure_future(reader.wait_confirmed(1_000))
        await asyncio.sleep(1)
        await client.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await waiting
        other = await client.create_ledger()
        reader = await client.open_ledger(other.ledger_id)
        waiting = asyncio.ensure_future(reader.wait_confirmed(0))
        await asyncio.sleep(1)
        reader.close()
        with pytest.raises(UsageError, match="is closed"):
            await waiting
        writer.abandon()
        other.abandon()

    run(scene)


def test_a_cancelled_wait_for_segments_loses_no_change() -> None:
    """A caller that waits for the next change would otherwise wait until the next list."""

    async def scene(client: Client) -> None:
        async with await open_namespace(client, "/acme/test", create=True) as streams:
            writer = await streams.open_writer("orders", create=True)
            metadata = streams.metadata("orders")
            async with SegmentList(metadata) as listed:
                await asyncio.sleep(1)
                await listed.look()  # there is no news left
                reading, go_on = asyncio.Event(), asyncio.Event()

                async def slowly(known: NamedSegments) -> NamedSegments:
                    reading.set()
                    await go_on.wait()
                    return await StreamMetadata.named_segments(metadata, known)

                metadata.named_segments = slowly  # type: ignore[method-assign]
                waiting = asyncio.ensure_future(listed.changed())
                await writer.append(b"begins a segment")
                await reading.wait()
                await asyncio.sleep(1)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                go_on.set()
                before = asyncio.get_running_loop().time()
                assert [segment.lssn for segment in await listed.changed()] == [1]
                assert asyncio.get_running_loop().time() - before < 10  # of simulated time
            await writer.close()

    run(scene)
