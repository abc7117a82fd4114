"""A listener whose process has no file descriptor left waits, and says so once.

The event loop of asyncio wrote 60,000 lines in eight seconds, and used a third of a processor.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import Any, cast

import pytest
import uvloop

from quire.net import accepting
from quire.net.accepting import Listener
from tests.support.waiting import until


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own class

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Without:
    """A listening socket whose `accept` fails while no descriptor is left."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.short = True
        self.attempts = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.attempts += 1
        if self.short:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def bound() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


async def echoed(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.readexactly(len(data))
    finally:
        writer.close()


LOOPS = pytest.mark.parametrize(
    "loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@LOOPS
def test_a_listener_waits_for_a_file_descriptor_and_logs_it_once(
    loop: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 0.01)
    errors: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        sock = Without(bound())
        port = sock.getsockname()[1]
        listener = Listener(sock, Echo, backlog=8)  # type: ignore[arg-type]
        answers = [asyncio.ensure_future(echoed(port, b"%d" % number)) for number in range(5)]
        await until(lambda: sock.attempts >= 5)
        before = sock.attempts
        await asyncio.sleep(0.1)
        assert sock.attempts - before <= 20  # one each time
        sock.short = False
        assert await asyncio.gather(*answers) == [b"%d" % number for number in range(5)]
        listener.close()
        listener.close()
        with pytest.raises(ConnectionError):
            await echoed(port, b"x")

    with caplog.at_level(logging.INFO), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert errors == []
    [line] = [one.getMessage() for one in caplog.records if one.name == "quire.net"]
    assert "wait, because none can be accepted: no file descriptor is left: the limit" in line
    assert "ulimit -n 65536" in line
    assert "LimitNOFILE" in line


@LOOPS
def test_a_burst_of_connections_is_accepted_in_batches(loop: Any) -> None:
    """The protocols of earlier connections run before the next ones take more descriptors."""
    made_at: list[int] = []

    async def main() -> None:
        class Counted(Echo):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                made_at.append(sock.attempts)

        sock = Without(bound())
        sock.short = False
        listener = Listener(sock, Counted, backlog=1_024)  # type: ignore[arg-type]
        clients = []
        for _ in range(300):
            client = socket.create_connection(sock.getsockname())
            clients.append(client)
        await until(lambda: len(made_at) == len(clients))
        listener.close()
        for client in clients:
            client.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert made_at[0] <= 2 * accepting.ACCEPTED_AT_ONCE
