"""The interface that makes connections and ports, and its implementation with TCP.

The simulator passes an implementation of its own instead.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Protocol, cast

from quire._runtime.units import host_port
from quire.net.accepting import Listener

BACKLOG = 1024

TLS_HANDSHAKE_TIMEOUT_S = 86400.0
"""The event loop's own limit of a handshake in seconds, far above the limits of all callers.

If it were shorter than a caller's limit, a peer that is only slow would get the error of a failed
handshake, which blames its certificates.
"""

TLS_SHUTDOWN_TIMEOUT_S = 2.0
"""Seconds that a closing TLS connection waits for the peer's confirmation (close_notify)."""

DEAD_PEER_S = 30.0
"""The default for the seconds until a connection ends because its peer acknowledges nothing."""
KEEPALIVE_PROBES = 3
"""The number of keepalive probes that TCP sends to a silent peer before the connection ends. They
are sent in the second half of the time limit."""

TCP_INFO_BYTES, UNACKED_AT = 104, 24
"""The number of bytes to read of Linux' `struct tcp_info`, and the offset of `tcpi_unacked`."""

ProtocolFactory = Callable[[], asyncio.Protocol]


class Port(Protocol):
    """A bound port, which accepts connections only after `listen` was called.

    A server can register its address between binding and listening.
    """

    number: int
    """The number of the port, which the system chooses if 0 was given."""

    async def listen(self, factory: ProtocolFactory) -> None:
        """Accept connections from now on. `factory` makes the protocol object of each.

        Raises OSError (EADDRINUSE) if another process listens already.
        """
        ...

    def close(self) -> None:
        """Stop accepting connections. Existing connections stay open. Calling this twice is
        safe."""
        ...


class Network(Protocol):
    """A maker of connections to other hosts, and of ports that accept connections."""

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        """Connect to a host, and return the protocol object that `factory` made.

        Its `connection_made` has been called then.

        Raises OSError if the connection is refused or the host is unreachable. There is no
        time-out.
        """
        ...

    async def start_tls(
        self,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> asyncio.Transport:
        """Do the TLS handshake on a connection, and return the transport to use from now on.

        The protocol's `connection_made` is called once more, with the new transport, before it
        receives any decrypted data. Nothing may be written meanwhile, and the unsent data of the
        old transport must be below its high-water mark. `server_hostname` is the host name that the
        certificate of the server must have, if `context` checks it. A server gives None. If the
        handshake fails, this raises OSError (which includes ssl.SSLError). The connection is then
        closed, and the protocol's `connection_lost` has been called. The same holds if the call is
        cancelled. Callers limit the time of the handshake themselves.
        """
        ...

    def bind(self, host: str, port: int) -> Port:
        """Bind a port, which then has to be told to `listen`. Port 0 lets the system choose one.

        Raises OSError (EADDRINUSE, EADDRNOTAVAIL) if that is not possible.
        """
        ...


def end_when_peer_is_dead(sock: socket.socket, dead_peer_s: float) -> None:
    """Let the system end a connection whose peer has acknowledged nothing for `dead_peer_s`.

    An idle connection is probed from half of that time on (SO_KEEPALIVE). A connection also ends if
    data that was sent is not acknowledged, or not taken by the peer at all (TCP_USER_TIMEOUT). A
    listening socket passes these options on to the connections that it accepts. Options that the
    platform does not have are left out. If `dead_peer_s` is 0, nothing is changed.
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
    """Return whether sent data may still lack an acknowledgement of the peer's TCP stack.

    If everything was acknowledged, the connection is alive in both directions, whatever the peer's
    process does. The result is True if this cannot be found out. Only Linux provides it (TCP_INFO).
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
        self._listener: Listener | None = None
        self.number: int = sock.getsockname()[1]

    async def listen(self, factory: ProtocolFactory) -> None:
        self._listener = Listener(self._socket, factory, backlog=BACKLOG)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._socket.close()


class _Between(asyncio.Protocol):
    """A protocol that buffers data from the end of a TLS handshake until its waiting task runs.

    The first decrypted bytes may arrive with the last bytes of the handshake, before the task has
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
        if self.successor is not None:  # the call was on its way when the successor took over
            self.successor.connection_lost(exc)


class AsyncioNetwork:
    """A `Network` that makes TCP connections with the running event loop."""

    def __init__(self, dead_peer_s: float = DEAD_PEER_S) -> None:
        """Create a network whose connections end if the peer acknowledges nothing.

        `dead_peer_s` is the time limit in seconds, for outgoing and accepted connections (see
        `end_when_peer_is_dead`).
        """
        self._dead_peer_s = dead_peer_s

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.create_connection(factory, host, port)
        except (ValueError, OverflowError) as error:  # a UnicodeError is a ValueError
            # A bookie may have registered anything, and its name need not even be encodable.
            what = host_port(host, port)
            raise OSError(errno.EINVAL, f"{what!r} is not an address ({error})") from error
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
    ) -> asyncio.Transport:
        if transport.is_closing():
            raise ConnectionResetError("the connection was closed before the TLS handshake")
        loop = asyncio.get_running_loop()
        protocol = cast(asyncio.Protocol, transport.get_protocol())
        between = _Between()
        # Hold little below TLS. Otherwise the limit of the protocol would count twice.
        transport.set_write_buffer_limits()
        try:
            secured = await loop.start_tls(
                transport,
                between,
                context,
                server_side=server_side,
                server_hostname=server_hostname,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S,
            )
            # The event loops do not report every end as an error. Without a handshake there is
            # no TLS object.
            if secured is None or between.lost or secured.get_extra_info("ssl_object") is None:
                raise ConnectionResetError("the connection was closed during the TLS handshake")
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
    """Close a client's connection whose requests have been answered or given up.

    Without TLS, unsent data is still sent. A TLS connection is aborted, because `close` would wait
    until the bookie ends TLS as well, and the event loop may end before that. Frames have lengths,
    so the bookie does not mistake the cut for the end of data.
    """
    if transport.get_extra_info("ssl_object") is not None:
        transport.abort()
    else:
        transport.close()
