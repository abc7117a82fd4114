"""The network, handed in: where connections come from. The simulator hands in its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

ProtocolFactory = Callable[[], asyncio.Protocol]


class Listener(Protocol):
    port: int
    """The port bound (of use when 0 was asked)."""

    async def close(self) -> None:
        """Stop accepting; connections that exist are not touched."""
        ...


class Network(Protocol):
    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        """Connect and return the protocol made by `factory`, after its `connection_made`.
        `OSError` if refused or unreachable. No time-out of its own."""
        ...

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        """Accept connections. `OSError` (EADDRINUSE) if the port is taken."""
        ...


class _AsyncioListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()


class AsyncioNetwork:
    """TCP through the running event loop."""

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(factory, host, port)
        return protocol

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host, port, backlog=1024)
        return _AsyncioListener(server)
