"""A close that is cancelled, at whatever point, ends everything nevertheless."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest

from quire.client import Client
from quire.client.client import end_with_client
from quire.errors import ClientClosedError, MetadataError, QuireError
from quire.statemachine import Dictionary
from quire.streams.namespace.namespace import open_namespace
from quire.streams.statemachine.state_machine import follow, lead
from tests.support.streams import Bench, run

POINTS_MAX = 200
"""A number of event-loop iterations that no close needs."""


async def cancelled_after(iterations: int, closing: Awaitable[Any]) -> bool:
    """Cancel a close after a number of event-loop iterations. Return whether it had ended."""
    task = asyncio.ensure_future(closing)
    for _ in range(iterations):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return ended


async def assert_ended(client: Client, waiting: list[asyncio.Task[Any]]) -> None:
    async with asyncio.timeout(30):
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, QuireError), error
    assert client.metadata._closed  # type: ignore[attr-defined]
    for _ in range(10):
        await asyncio.sleep(0)  # tasks that were cancelled end
    assert not client._tasks._tasks


@pytest.mark.parametrize("what", ["client", "state machine"])
def test_a_cancelled_close_leaves_no_handle_open(what: str) -> None:
    """A cancelled close once skipped its later steps, and a second close did nothing."""

    async def scene(b: Bench) -> None:
        for iterations in range(1, POINTS_MAX):
            client = b.world.client("another")
            streams = await open_namespace(client, "/acme/test")
            leader = await lead(await open_namespace(client, "/acme/test"), "d", Dictionary())
            leader.owns_streams = True
            follower = await follow(streams, "d", Dictionary())
            await streams.open_writer("locked", create=True, lock=10.0)
            ledger = await client.create_ledger()
            await ledger.append(b"connects")
            waiting = [asyncio.create_task(follower.wait_applied(10**6))]
            await asyncio.sleep(0.1)
            closing = leader.close() if what == "state machine" else client.close()
            ended = await cancelled_after(iterations, closing)
            if what == "state machine":
                assert leader.closed
                assert leader._streams._closed
            await client.close()
            await assert_ended(client, waiting)
            if ended:
                return
        raise AssertionError("no close ended")

    run(scene)


def test_a_handle_that_fails_to_close_does_not_keep_others_open() -> None:
    class Handle:
        def __init__(self, error: Exception | None) -> None:
            self.error = error
            self.told: ClientClosedError | None = None

        async def _client_closed(self, error: ClientClosedError) -> None:
            self.told = error
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error

    async def scene(b: Bench) -> None:
        client = b.world.client("another")
        handles = [Handle(None), Handle(MetadataError("no answer")), Handle(None)]
        for handle in handles:
            end_with_client(client, handle)
        with pytest.raises(MetadataError, match="no answer"):
            await client.close()
        assert all(handle.told for handle in handles)
        await assert_ended(client, [])

    run(scene)
