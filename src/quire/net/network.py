"""The network, handed in: where connections come from. The simulator hands in its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Protocol, cast

BACKLOG = 1024

TLS_SHUTDOWN_TIMEOUT_S = 2.0
"""How long a closing connection waits for the other side to agree that nothing was cut off."""

DEAD_PEER_S = 30.0
"""The default number of seconds until a connection ends whose other side acknowledges nothing."""
KEEPALIVE_PROBES = 3
"""The number of probes that TCP sends to a silent peer in the second half of that time."""

TCP_INFO_BYTES, UNACKED_AT = 104, 24
"""The beginning of Linux' `struct tcp_info`, and where its `tcpi_unacked` is."""

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

    async def start_tls(
        self,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        timeout_s: float,
    ) -> asyncio.Transport:
        """Do the handshake on a connection of this network; the transport to use from now on.

        Its protocol gets `connection_made` once more, with that transport, before any data from
        inside. Nothing may be written meanwhile, and what the old transport still holds must be
        below its high-water mark. `OSError` (among them ssl.SSLError) if it fails or takes longer
        than `timeout_s`: the connection is gone then, and its protocol has had `connection_lost`.
        So it is when cancelled."""
        ...

    def bind(self, host: str, port: int) -> Port:
        """Take a port. `OSError` (EADDRINUSE, EADDRNOTAVAIL) if it cannot be had."""
        ...


def end_when_peer_is_dead(sock: socket.socket, dead_peer_s: float) -> None:
    """Let the system end a connection whose peer has acknowledged nothing for `dead_peer_s`.

    An idle connection is probed from half of that time on (SO_KEEPALIVE). A connection also ends if
    data that was sent is not acknowledged, or not taken by the peer at all (TCP_USER_TIMEOUT). A
    listening socket passes these options on to the connections that it accepts. Options that the
    platform does not have are left out. 0: nothing is changed.
    """
    if not dead_peer_s:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_s = max(1, round(dead_peer_s / 2))
    interval_s = max(1, round(dead_peer_s / 2 / KEEPALIVE_PROBES))
    options = {
        "TCP_KEEPIDLE": idle_s,
        "TCP_KEEPALIVE": idle_s,  # the same, on macOS
        "TCP_KEEPINTVL": interval_s,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": round(dead_peer_s * 1000),
    }
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def has_unacknowledged(transport: asyncio.Transport) -> bool:
    """Return whether the peer's system has not acknowledged everything that was sent to it.

    If it has, the connection is alive in both directions, whatever the peer's process does. The
    result is True if the platform does not provide this; Linux does (TCP_INFO).
    """
    sock = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_INFO", None)
    if sock is None or option is None or sys.platform != "linux":
        return True
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, TCP_INFO_BYTES)
    except OSError:
        return True
    return bool(int.from_bytes(info[UNACKED_AT : UNACKED_AT + 4], sys.byteorder))


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


class _Between(asyncio.Protocol):
    """The protocol until the task that waits for the handshake runs.

    The first decrypted bytes may arrive with the last bytes of the handshake, before anybody has
    the new transport. This protocol lives for one event-loop iteration, so it holds no more than
    one iteration reads.
    """

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self.lost = False
        self.successor: asyncio.Protocol | None = None

    def data_received(self, data: bytes) -> None:
        self.held.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.successor is not None:  # it was under way when the successor took over
            self.successor.connection_lost(exc)


class AsyncioNetwork:
    """TCP through the running event loop."""

    def __init__(self, dead_peer_s: float = DEAD_PEER_S) -> None:
        """Set the limits. `dead_peer_s` is that of `end_when_peer_is_dead`, and applies to both
        sides."""
        self._dead_peer_s = dead_peer_s

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(factory, host, port)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            end_when_peer_is_dead(sock, self._dead_peer_s)
        return protocol

    async def start_tls(
        self,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        timeout_s: float,
    ) -> asyncio.Transport:
        if transport.is_closing():
            raise ConnectionResetError("the connection was closed before the handshake")
        loop = asyncio.get_running_loop()
        protocol = cast(asyncio.Protocol, transport.get_protocol())
        between = _Between()
        # Below TLS little is held: else the bound of the protocol would count twice.
        transport.set_write_buffer_limits()
        try:
            secured = await loop.start_tls(
                transport,
                between,
                context,
                server_side=server_side,
                server_hostname=server_hostname,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S,
            )
            # The loops do not call every end an error: no handshake, no TLS object.
            if secured is None or between.lost or secured.get_extra_info("ssl_object") is None:
                raise ConnectionResetError("the connection was closed during the handshake")
        except BaseException as error:
            transport.abort()
            protocol.connection_lost(error if isinstance(error, OSError) else None)
            raise
        between.successor = protocol
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if between.held:
            protocol.data_received(b"".join(between.held))
        return secured

    def bind(self, host: str, port: int) -> Port:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end_when_peer_is_dead(sock, self._dead_peer_s)
            sock.setblocking(False)
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
        return _AsyncioPort(sock)


def close_client_side(transport: asyncio.Transport) -> None:
    """Close a connection whose requests are answered or given up.

    A secured one is not left to wait for the bookie's farewell, as `close` would: the event loop
    may end with the client, and frames have lengths, so that nobody takes a cut for an end."""
    if transport.get_extra_info("ssl_object") is not None:
        transport.abort()
    else:
        transport.close()
