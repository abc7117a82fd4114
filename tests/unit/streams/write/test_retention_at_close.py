"""Closing a writer waits for retention, so that closing the client at once does not cut it off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import MetadataUnavailableError
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.truncation import retain
from quire.streams.write import segments
from tests.support.streams import Bench, run


@pytest.mark.parametrize("rolls", [0, 1], ids=["idle", "while an earlier one is at work"])
def test_retention_has_seen_the_last_segment_when_the_writer_is_closed(
    rolls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that closed its client at once never applied retention."""

    async def retain_slowly(*args: Any, **more: Any) -> list[StreamSegment]:
        found = await retain(*args, **more)
        await asyncio.sleep(1)
        return found

    monkeypatch.setattr(segments, "retain", retain_slowly)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_bytes": 1})
        for _ in range(4):
            async with (
                await open_namespace(b.client, b.streams.path) as streams,
                await streams.open_writer("s") as writer,
            ):
                await writer.append(b"x" * 100)
                for _ in range(rolls):
                    await writer.roll()
                    await asyncio.sleep(0.1)
                    await writer.append(b"x" * 100)
            kept = [one.truncation for one in await b.streams.segments("s")]
            assert kept.count(Truncation.ACTIVE) == 1

    run(scene)


def test_a_retention_that_fails_does_not_fail_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: Any, **more: Any) -> None:
        raise MetadataUnavailableError("away")

    monkeypatch.setattr(segments, "retain", fails)

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"1")
        assert await b.numbers("s") == [1]

    run(scene)
