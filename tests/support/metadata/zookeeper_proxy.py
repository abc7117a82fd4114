"""A proxy in front of ZooKeeper that loses connections at a chosen moment.

It splits the streams into ZooKeeper's frames. A test can therefore choose, for any request, that
the server executes it while the client does not know.

    client -> server   length, then the first frame: ConnectRequest; others: xid, type, body
    server -> client   length, then the first frame: ConnectResponse; others: xid, zxid, error, body
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

DELETE, SET, MULTI, CREATE_2 = 2, 5, 14, 15
PING, AUTH, CLOSE = 11, 100, -11

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">ii")
_CONNECT_RESPONSE = struct.Struct(">iiq")
_CLOSE_XID = 2**31 - 1


class Loss(enum.Enum):
    REQUEST = "request"
    """The server never receives the request."""
    ANSWER = "answer"
    """The server has executed the request, and the client does not receive the answer."""
    SESSION = "session"
    """The server has executed the request, the client gets no answer, and then the session ends."""


@dataclass(frozen=True, slots=True)
class Request:
    xid: int
    kind: int
    path: str
    """The path of the node, or '' if the request does not begin with a path."""


@dataclass(slots=True)
class _Pair:
    """The connection of one client, and the proxy's own connection to the server for it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    doomed: int | None = None
    """The xid of the request whose answer ends the connection, or None."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Proxy:
    """A running proxy: use `async with Proxy(host, port) as proxy`, and connect to `proxy.port`."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = host, port
        self._pairs: list[_Pair] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._wanted: Callable[[Request], bool] | None = None
        self._loss = Loss.ANSWER
        self.open = asyncio.Event()
        """An event. While it is cleared, new connections wait, and old ones pass nothing on."""
        self.open.set()
        self.lost: list[Request] = []
        """The requests that were lost so far."""
        self.seen: list[Request] = []
        """Every request that the proxy has received, except for pings."""
        self.sessions: set[int] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in list(self._accepting):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for pair in list(self._pairs):
            await self._end(pair)

    def lose(self, wanted: Callable[[Request], bool], loss: Loss, *, reopen: bool = True) -> None:
        """Lose the connection at the next request for which `wanted` returns True.

        Without `reopen`, new connections wait until the event `open` is set.
        """
        self._wanted, self._loss, self._reopen = wanted, loss, reopen

    @property
    def armed(self) -> bool:
        return self._wanted is not None

    @property
    def connections(self) -> int:
        return len(self._pairs)

    async def drop(self) -> None:
        """Lose all connections now."""
        for pair in list(self._pairs):
            await self._end(pair)

    # -- inside -------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._accepting.add(task)
        try:
            await self.open.wait()
            from_server, to_server = await asyncio.open_connection(*self._upstream)
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        finally:
            self._accepting.discard(task)
        pair = _Pair(writer, to_server)
        self._pairs.append(pair)
        pair.tasks = [
            asyncio.create_task(self._requests(pair, reader)),
            asyncio.create_task(self._answers(pair, from_server)),
        ]

    async def _requests(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        first = True
        try:
            while frame := await _frame(reader):
                await self.open.wait()
                if not first:
                    request = _request(frame)
                    if request.kind not in (PING, AUTH, CLOSE):
                        self.seen.append(request)
                        if self._wanted is not None and self._wanted(request):
                            self._wanted = None
                            self.lost.append(request)
                            if not self._reopen:
                                self.open.clear()
                            if self._loss is Loss.REQUEST:
                                break
                            pair.doomed = request.xid
                first = False
                pair.server.write(frame)
        except OSError:
            pass
        # Close only the client's side: the server must execute what it has received.
        if pair.doomed is None:
            await self._end(pair)

    async def _answers(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        first = True
        try:
            while frame := await _frame(reader):
                if first:
                    self.sessions.add(_CONNECT_RESPONSE.unpack_from(frame, _LENGTH.size)[2])
                    first = False
                elif pair.doomed == _LENGTH.unpack_from(frame, _LENGTH.size)[0]:
                    await self._end_session(pair, reader)
                    break
                if pair.doomed is None:
                    await self.open.wait()
                pair.client.write(frame)
        except OSError:
            pass
        await self._end(pair)

    async def _end_session(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        if self._loss is Loss.SESSION:
            pair.server.write(_LENGTH.pack(_REQUEST.size) + _REQUEST.pack(_CLOSE_XID, CLOSE))
            while await _frame(reader):
                pass

    async def _end(self, pair: _Pair) -> None:
        if pair in self._pairs:
            self._pairs.remove(pair)
            for writer in (pair.client, pair.server):
                writer.close()
            for task in pair.tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.gather(
                *(task for task in pair.tasks if task is not asyncio.current_task()),
                return_exceptions=True,
            )


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Return a frame that begins with its length, or b'' at the end of the stream."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        return head + await reader.readexactly(_LENGTH.unpack(head)[0])
    except (asyncio.IncompleteReadError, OSError):
        return b""


def _request(frame: bytes) -> Request:
    xid, kind = _REQUEST.unpack_from(frame, _LENGTH.size)
    at = _LENGTH.size + _REQUEST.size
    path = ""
    if kind != MULTI and len(frame) >= at + _LENGTH.size:
        size = _LENGTH.unpack_from(frame, at)[0]
        path = frame[at + _LENGTH.size : at + _LENGTH.size + max(size, 0)].decode(errors="replace")
    return Request(xid, kind, path)
