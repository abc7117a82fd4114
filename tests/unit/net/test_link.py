"""The end of a client's connection to a bookie."""

from __future__ import annotations

import asyncio

import pytest

from quire.net.channel import BookieChannel
from quire.net.network import AsyncioNetwork

PATIENCE_S = 30
MUCH = bytes(64 << 20)
"""More than the kernel holds for one connection."""


async def test_a_closed_connection_whose_bookie_takes_nothing_ends() -> None:
    """It would otherwise stay until the kernel gives up sending the written bytes."""
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()  # and read nothing
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(PATIENCE_S):
        link = BookieChannel("a:1")
        await AsyncioNetwork().connect("127.0.0.1", port, lambda: link)
        link.send(MUCH)
        await asyncio.sleep(0)
        link.close()
        await link.drained(asyncio.get_running_loop().time() + 0.01)
        assert link.lost is not None
        ended.set()


@pytest.mark.parametrize("data", [b"the last words", MUCH], ids=["little", "much"])
async def test_what_was_handed_over_still_leaves(data: bytes) -> None:
    received = bytearray()
    ended = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()
        ended.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(PATIENCE_S):
        link = BookieChannel("a:1")
        await AsyncioNetwork().connect("127.0.0.1", port, lambda: link)
        link.send(data)
        await asyncio.sleep(0)
        link.send(b".")
        link.close()
        await link.drained(asyncio.get_running_loop().time() + PATIENCE_S)
        await ended.wait()
    assert received == data + b"."
