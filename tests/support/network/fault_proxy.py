"""TCP proxies in their own thread that pass bytes on late, in bursts, or not at all.

    with FaultProxy((host, port), (server_host, server_port)) as proxy:
        proxy.fault = Fault(delay_s=(0.0, 0.2), stall_share=0.05)

A kernel without netem cannot lose packets. A program sees a lost packet only as TCP presents it:
nothing arrives for a retransmission timeout, then everything does. If this happens repeatedly, the
connection ends. `stall_share` and `reset_share` have these effects on chunks, which are the pieces
of up to 64 KiB that the proxy reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

CHUNK_BYTES = 64 * 1024
STALL_S = 0.2
"""Seconds by which a stalled chunk is late: the smallest retransmission timeout of Linux."""
END_LIMIT_S = 10.0
WAITING_CHUNKS_MAX = 1_024
"""The largest number of chunks that wait in one direction of a connection."""

Address = tuple[str, int]
Way = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Fault:
    """The delays and losses of all chunks in both directions. Chunks never overtake each other."""

    delay_s: tuple[float, float] = (0.0, 0.0)
    """The smallest and the largest delay of a chunk in seconds, evenly distributed."""
    stall_share: float = 0.0
    """The share of chunks, from 0 to 1, that come `STALL_S` later, with all chunks after them."""
    reset_share: float = 0.0
    """The share of chunks, from 0 to 1, that end their connection instead of being passed on."""


NONE = Fault()


class ProxyThread:
    """A proxy that accepts connections at one address, and opens one to the server for each.

    Subclasses decide what happens to the data (`_pass_on`).
    """

    def __init__(self, listen: Address, server: Address) -> None:
        self.listen = listen
        self.server = server
        self.connections = 0
        """The number of connections accepted so far."""
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._ending = asyncio.Event()
        self._pairs: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(END_LIMIT_S)
        assert not self._thread.is_alive(), "the proxy does not end"

    def drop_all(self) -> None:
        """End all existing connections."""

        async def drop() -> None:
            for task in list(self._pairs):
                task.cancel()

        asyncio.run_coroutine_threadsafe(drop(), self._loop).result(END_LIMIT_S)

    # -- inside -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._started.set_exception(error)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, *self.listen)
        self._started.set_result(asyncio.get_running_loop())
        await self._ending.wait()
        server.close()
        for task in list(self._pairs):
            task.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                from_server, to_server = await asyncio.open_connection(*self.server)
                try:
                    for end in (writer, to_server):
                        sock = end.get_extra_info("socket")
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await self._both_ways((reader, writer), (from_server, to_server))
                finally:
                    to_server.transport.abort()
        finally:
            writer.transport.abort()
            self._pairs.discard(task)

    async def _both_ways(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass data on in both directions until one side ends, and then end both connections."""
        ways = [asyncio.ensure_future(way) for way in self._pass_on(*client, *server)]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def _pass_on(
        self,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> tuple[Way, Way]:
        """Return two coroutines that pass data on: from the client to the server, and back.

        Each runs until its reader ends.
        """
        raise NotImplementedError


class FaultProxy(ProxyThread):
    def __init__(self, listen: Address, server: Address, *, seed: int = 0) -> None:
        super().__init__(listen, server)
        self.fault = NONE
        """The current fault. A change affects only chunks that arrive from then on."""
        self.stalled = self.resets = 0
        self._chance = random.Random(seed)

    def _pass_on(
        self,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> tuple[Way, Way]:
        return self._late(from_client, to_server), self._late(from_server, to_client)

    async def _late(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass chunks on, each after its delay, until the reader ends or the connection is reset.

        The next chunk is read while others wait, so the delay does not limit the rate.
        """
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING_CHUNKS_MAX)
        both = [
            asyncio.ensure_future(self._receive(reader, waiting)),
            asyncio.ensure_future(self._send(writer, waiting)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if both[0].done() and not both[0].cancelled() and both[0].result():
                await both[1]
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _receive(
        self, reader: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]]
    ) -> bool:
        """Queue chunks with the times at which they are due, until the reader ends.

        Returns whether the connection ended normally, and not by a reset.
        """
        now = self._loop.time
        latest = 0.0
        while chunk := await reader.read(CHUNK_BYTES):
            fault = self.fault
            if self._chance.random() < fault.reset_share:
                self.resets += 1
                return False
            due = now() + self._chance.uniform(*fault.delay_s)
            if self._chance.random() < fault.stall_share:
                self.stalled += 1
                due += STALL_S
            latest = max(latest, due)
            await waiting.put((latest, chunk))
        await waiting.put((latest, b""))
        return True

    async def _send(
        self, writer: asyncio.StreamWriter, waiting: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while True:
            due, chunk = await waiting.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if not chunk:
                return
            writer.write(chunk)
            await writer.drain()
