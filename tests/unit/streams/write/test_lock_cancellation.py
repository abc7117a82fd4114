"""Writers that wait for the lock of their stream in vain."""

from __future__ import annotations

import asyncio

import pytest

from quire.errors import NoSuchStreamError, UsageError
from quire.streams.namespace.namespace import Namespace
from tests.support.streams import Bench, run


async def _open(streams: Namespace) -> None:
    await streams.open_writer("s", lock=60)


def test_a_cancelled_wait_leaves_no_member() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        writer = await b.streams.open_writer("s", lock=1)
        waiting = asyncio.ensure_future(_open(b.streams))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await writer.close()
        second = await b.streams.open_writer("s", lock=1)  # The cancelled one is not in its way.
        await second.close()

    run(scene)


@pytest.mark.parametrize("again", [False, True])
def test_waiting_for_the_lock_of_a_deleted_stream_ends_with_an_error(again: bool) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        former = await b.streams.open_writer("s", lock=1)
        waiting = asyncio.ensure_future(_open(b.streams))
        await asyncio.sleep(1)
        await b.streams.delete_stream("s")
        if again:
            await b.streams.create_stream("s")
        with pytest.raises(
            NoSuchStreamError, match=r"s does not exist|another stream has its name"
        ):
            await waiting
        former.abandon()

    run(scene)


def test_a_lock_timeout_of_nan_is_refused() -> None:
    """A wait with a time of NaN once stopped the event loop."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        with pytest.raises(UsageError, match="must be a number of seconds, not NaN"):
            await b.streams.open_writer("s", lock=float("nan"))

    run(scene)
