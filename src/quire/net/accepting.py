"""A listening socket that accepts connections, and pauses while no file descriptor is left.

The event loops of Python do not cope with a process that has no descriptor left. That of asyncio
writes thousands of errors a second, and each of them begins to accept once more. That of
uvloop closes the connections, and says nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from quire._runtime.shortages import limit, reason_of
from quire._runtime.tasks import TaskSet
from quire._runtime.units import host_port

ACCEPTED_AT_ONCE = 64
"""The most connections that are accepted in one event-loop iteration. The next iteration can then
close those for which there is no place, before more descriptors are used."""
ACCEPTED_DIVISOR = 32
"""The divisor of the limit of descriptors that gives the connections accepted in one iteration, if
that is less. Otherwise a storm of connections takes the descriptors of a log that begins a file."""
PAUSE_S = 0.5
"""Seconds to wait if a connection could not be accepted. Clients wait in the system's queue."""
TOLD_EVERY_S = 60.0
"""The least number of seconds between two log lines of a listener that cannot accept."""

logger = logging.getLogger("quire.net")


class Listener:
    """A socket that listens. It accepts connections until it is closed."""

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        *,
        backlog: int,
        tls: ssl.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
    ) -> None:
        """Listen on a bound socket, which the listener closes at its end.

        Args:
            sock: The socket, which does not block.
            factory: A function that returns the protocol of a new connection.
            backlog: The number of connections that may wait in the queue of the system.
            tls: The context of TLS connections. None means connections without TLS.
            handshake_timeout_s: Seconds that a TLS handshake may take.

        Raises:
            OSError: The socket cannot listen.
        """
        self._socket = sock
        self._factory = factory
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet()
        descriptors = limit()
        self._at_once = ACCEPTED_AT_ONCE
        if descriptors is not None:
            self._at_once = max(1, min(ACCEPTED_AT_ONCE, descriptors // ACCEPTED_DIVISOR))
        self._resuming: asyncio.TimerHandle | None = None
        self._told_s: float | None = None
        host, port = sock.getsockname()[:2]
        self._where = host_port(host, port)
        sock.listen(backlog)
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting connections. Those that were accepted stay open. Safe to call twice."""
        if self._socket.fileno() < 0:
            return
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                accepted, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # the client has gone while it waited
            except OSError as error:
                self._pause(error)
                return
            accepted.setblocking(False)
            self._tasks.start(self._serve(accepted))

    def _pause(self, error: OSError) -> None:
        now_s = self._loop.time()
        if self._told_s is None or now_s >= self._told_s + TOLD_EVERY_S:
            self._told_s = now_s
            logger.warning(
                "connections to %s wait, because none can be accepted: %s",
                self._where,
                reason_of(error),
            )
        self._loop.remove_reader(self._socket.fileno())
        self._resuming = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._factory,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout_s if self._tls else None,
            )
        except OSError:
            # The client has gone, or its handshake failed. `ssl.SSLError` and TimeoutError are
            # OSErrors. The socket is closed when it is closed already, too.
            accepted.close()
