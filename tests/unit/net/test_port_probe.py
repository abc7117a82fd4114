"""What an address answers to a new connection."""

from __future__ import annotations

import asyncio
import socket

from quire.net.network import AsyncioNetwork, ProtocolFactory
from quire.net.port_probe import ProbeResult, probe_port

LIMIT_S = 20.0


class Failing(AsyncioNetwork):
    """A network whose connections fail in a given way."""

    def __init__(self, error: OSError | None) -> None:
        self._error = error

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_a_probe_distinguishes_a_listening_port_from_a_closed_one() -> None:
    ended = asyncio.Event()

    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise AssertionError("nothing is sent")

        def connection_lost(self, exc: Exception | None) -> None:
            ended.set()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await probe_port(AsyncioNetwork(), "127.0.0.1", port, LIMIT_S) is ProbeResult.ACCEPTED
    async with asyncio.timeout(LIMIT_S):
        await ended.wait()
    server.close()
    await server.wait_closed()
    assert await probe_port(AsyncioNetwork(), "127.0.0.1", port, LIMIT_S) is ProbeResult.REFUSED


async def test_a_probe_reports_the_reasons_of_several_addresses() -> None:
    refused = "[Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call failed"
    both = OSError(f"Multiple exceptions: {refused}")
    assert await probe_port(Failing(both), "host", 1, LIMIT_S) is ProbeResult.REFUSED
    one = OSError(f"Multiple exceptions: {refused}, [Errno 113] No route to host")
    assert await probe_port(Failing(one), "host", 1, LIMIT_S) is ProbeResult.SILENT


async def test_a_probe_distinguishes_a_silent_address_from_an_unknown_name() -> None:
    assert await probe_port(Failing(None), "10.0.0.1", 1, 0.01) is ProbeResult.SILENT
    assert (
        await probe_port(Failing(OSError(113, "No route")), "10.0.0.1", 1, LIMIT_S)
        is ProbeResult.SILENT
    )
    assert await probe_port(Failing(socket.gaierror(-2, "unknown")), "b", 1, LIMIT_S) is None
