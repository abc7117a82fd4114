"""A bookie on loopback that gives the answers of a test: to protocol v3, and to reads of v2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self, cast

from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.messages_pb2 import Request, Response
from quire.codec.wire.v2 import Code, Opcode

Answer = bytes | None
"""The frame of an answer, or None if the bookie does not answer."""


class ScriptedBookie:
    """A bookie whose `script` returns the answer to each v3 request.

    Requests of v2 are answered from `entries`, for any ledger. Use it as `async with`.
    """

    def __init__(self, script: Callable[[Request], Answer] | None = None) -> None:
        self.script = script or (lambda request: None)
        self.entries: dict[int, bytes] = {}
        self.requests: list[Request] = []
        self.reads: list[int] = []
        """The first entry id of each v2 read, in order."""
        self.batch_bytes: list[int] = []
        """The size limit in bytes of each batch read, in order."""
        self.kept_back: list[tuple[_Connection, bytes]] | None = None
        """The v2 answers that were not sent, for the test to send, or None to send each at once."""
        self.speaks_v3 = True
        self.connections: set[_Connection] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()

    def drop(self) -> None:
        """Close all connections."""
        for connection in list(self.connections):
            connection.transport.abort()

    def send(self, data: bytes) -> None:
        for connection in self.connections:
            connection.transport.write(data)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, bookie: ScriptedBookie) -> None:
        self.bookie = bookie
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.bookie.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.bookie.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.data += data
        for start, stop in frames.frame_bounds(self.data):
            self.handle(self.data[start:stop])
        whole = frames.frame_bounds(self.data)
        self.data = self.data[whole[-1][1] :] if whole else self.data

    def handle(self, frame: bytes) -> None:
        answer: Answer
        if frame[4] == v3.FIRST_BYTE:
            if not self.bookie.speaks_v3:
                self.transport.abort()
                return
            request = v3.parse_request(frame[4:])
            self.bookie.requests.append(request)
            answer = self.bookie.script(request)
        else:
            answer = self.read_v2(frame)
            if self.bookie.kept_back is not None:
                self.bookie.kept_back.append((self, answer))
                return
        if answer is not None:
            self.transport.write(answer)

    def read_v2(self, frame: bytes) -> bytes:
        _, opcode, _ = frames.split_word(int.from_bytes(frame[4:8], "big"))
        ledger, entry = (int.from_bytes(frame[at : at + 8], "big", signed=True) for at in (8, 16))
        entries = self.bookie.entries
        self.bookie.reads.append(entry)
        if opcode == Opcode.READ:
            if entry == frames.LAST_ENTRY and entries:
                return frames.read_response(Code.OK, ledger, entry, entries[max(entries)])
            if entry not in entries:
                return frames.read_response(Code.NO_ENTRY, ledger, entry)
            return frames.read_response(Code.OK, ledger, entry, entries[entry])
        request_id = int.from_bytes(frame[24:32], "big")
        count = int.from_bytes(frame[32:36], "big")
        self.bookie.batch_bytes.append(int.from_bytes(frame[36:44], "big"))
        found = []
        while entry + len(found) in entries and len(found) < count:
            found.append(entries[entry + len(found)])
        code = Code.OK if found else Code.NO_ENTRY
        return frames.batch_read_response(code, ledger, entry, request_id, found)


# -- answers ----------------------------------------------------------------------------------


def answer_to(request: Request, code: int = Code.OK) -> Response:
    """Return an answer to a request, to which the caller adds the operation's part."""
    return v3.response(request.header.operation, request.header.txnId, code)


def lac_answer(
    request: Request, *, packet: bytes = b"", last_entry: bytes = b"", code: int = Code.OK
) -> bytes:
    answer = answer_to(request, code)
    own = answer.readLacResponse
    own.status, own.ledgerId = answer.status, request.readLacRequest.ledgerId
    if packet:
        own.lacBody = packet
    if last_entry:
        own.lastEntryBody = last_entry
    return v3.frame(answer)


def poll_answer(
    request: Request,
    *,
    max_lac: int,
    entry: bytes = b"",
    packet: bytes = b"",
    code: int = Code.OK,
) -> bytes:
    answer = answer_to(request, code)
    own = answer.readResponse
    own.status, own.ledgerId = answer.status, request.readRequest.ledgerId
    own.entryId, own.maxLAC = -1, max_lac
    if entry:
        own.entryId, own.body = request.readRequest.previousLAC + 1, entry
    if packet:
        own.explicitLac = packet
    return v3.frame(answer)
