"""The network, handed in: where connections come from. The simulator hands in its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

BACKLOG = 1024

ProtocolFactory = Callable[[], asyncio.Protocol]


class Port(Protocol):
    """A port that is bound and does not listen yet: a server announces itself in between."""

    number: int
    """The port bound (of use when 0 was asked)."""

    async def listen(self, factory: ProtocolFactory) -> None:
        """Accept connections from now on. `OSError` (EADDRINUSE) if somebody else does."""
        ...

    def close(self) -> None:
        """Stop accepting; connections that exist are not touched. Safe to call twice."""
        ...


class Network(Protocol):
    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        """Connect and return the protocol made by `factory`, after its `connection_made`.
        `OSError` if refused or unreachable. No time-out of its own."""
        ...

    def bind(self, host: str, port: int) -> Port:
        """Take a port. `OSError` (EADDRINUSE, EADDRNOTAVAIL) if it cannot be had."""
        ...


class _AsyncioPort:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._server: asyncio.Server | None = None
        self.number: int = sock.getsockname()[1]

    async def listen(self, factory: ProtocolFactory) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(factory, sock=self._socket, backlog=BACKLOG)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()


class AsyncioNetwork:
    """TCP through the running event loop."""

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(factory, host, port)
        return protocol

    def bind(self, host: str, port: int) -> Port:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
        return _AsyncioPort(sock)
