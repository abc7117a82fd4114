"""A writer that stops waiting for the lock of its stream leaves no member behind."""

from __future__ import annotations

import asyncio

import pytest

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
