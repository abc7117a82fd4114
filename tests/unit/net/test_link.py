"""The end of a client's connection to a bookie."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from quire.codec.wire.v2 import ADD_RESPONSE_BYTES
from quire.errors import BookieUnavailableError, QuireError
from quire.net.channel import BookieChannel
from quire.net.link import SPENT_KEPT_S
from quire.net.network import AsyncioNetwork
from tests.support.network.certificates import Authority

PATIENCE_S = 30
MUCH = bytes(64 << 20)
"""More than the kernel holds for one connection."""


async def test_a_closed_connection_ends_even_if_its_bookie_reads_nothing() -> None:
    """It would otherwise stay until the kernel gives up sending the written bytes."""
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()  # and read nothing
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(PATIENCE_S):
        link = BookieChannel("a:1")
        await AsyncioNetwork().connect("127.0.0.1", port, lambda: link)
        link.send(MUCH)
        await asyncio.sleep(0)
        link.end()
        await link.drained(asyncio.get_running_loop().time() + 0.01)
        assert link.lost is not None
        ended.set()


@pytest.mark.parametrize("data", [b"the last words", MUCH], ids=["little", "much"])
async def test_data_handed_over_before_the_end_is_still_sent(data: bytes) -> None:
    received = bytearray()
    ended = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()
        ended.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(PATIENCE_S):
        link = BookieChannel("a:1")
        await AsyncioNetwork().connect("127.0.0.1", port, lambda: link)
        link.send(data)
        await asyncio.sleep(0)
        link.send(b".")
        link.end()
        await link.drained(asyncio.get_running_loop().time() + PATIENCE_S)
        await ended.wait()
    assert received == data + b"."


@dataclass
class Unanswered:
    """Adds that were sent and have no answer."""

    answers: bytes = bytes(ADD_RESPONSE_BYTES)
    over: bool = False
    detached_rows: tuple[int, ...] = ()
    ledger_ids: Sequence[int] = (1,)
    entry_ids: Sequence[int] = (0,)

    def acked(self, place: int, count: int) -> None:
        pass

    def end_in_disorder(self) -> None:
        pass


class Sink:
    """A receiver of answers that is not interested."""

    def on_acked_run(self, first: int, last: int) -> None:
        pass

    def on_acked(self, entries: Sequence[int]) -> None:
        pass

    def on_add_error(self, entry_id: int, error: QuireError) -> None:
        pass

    def on_lost(self, error: BookieUnavailableError) -> None:
        pass


async def test_a_slow_bookie_receives_all_adds_even_if_it_answers_after_the_end() -> None:
    """A closed socket answers the late answer with a reset, and drops what it has not sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link = BookieChannel("a:1")
        await AsyncioNetwork().connect("127.0.0.1", listener.getsockname()[1], lambda: link)
        bookie, _ = listener.accept()
        bookie.settimeout(PATIENCE_S)
        with bookie:
            sent = bytes(64 * 1024)  # more than the bookie's kernel takes, less than the client's
            link.send(sent)
            link.expect(Unanswered(), 0)
            await asyncio.sleep(0)
            link.end()
            await asyncio.sleep(0)  # A socket that is closed now is closed in this iteration.
            bookie.sendall(bytes(8))  # the beginning of an answer, after the client's end
            received = bytearray()
            while data := await asyncio.to_thread(bookie.recv, 1 << 20):
                received.extend(data)
        assert received == sent
        await link.drained(asyncio.get_running_loop().time() + PATIENCE_S)
        assert link.lost is not None


@pytest.mark.parametrize("reset_is_known", [True, False])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_dead_connection_ends_without_an_error(
    new_loop: Callable[[], asyncio.AbstractEventLoop], reset_is_known: bool
) -> None:
    """`write_eof` raises on it: in uvloop if it is closed, in asyncio if the loop is behind."""
    problems: list[object] = []

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            link = BookieChannel("a:1")
            await AsyncioNetwork().connect("127.0.0.1", listener.getsockname()[1], lambda: link)
            bookie, _ = listener.accept()
            sink = Sink()
            link.attach(1, sink)
            link.send(b"first")
            link.expect(Unanswered(), 0)
            await asyncio.sleep(0)
            link.detach(1, sink, unanswered=True)
            bookie.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            bookie.close()  # with a reset
            if reset_is_known:
                async with asyncio.timeout(PATIENCE_S):
                    await link._ended.wait()
            link.send(b"second")
            link.end()
            await link.drained(asyncio.get_running_loop().time() + PATIENCE_S)
            assert link.lost is not None
            assert not link.usable

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.get_loop().set_exception_handler(lambda _, what: problems.append(what))
        runner.run(scenario())
    assert problems == []


async def test_ending_a_connection_does_not_wait_for_a_silent_bookie() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = BookieChannel("a:1")
        await AsyncioNetwork().connect("127.0.0.1", listener.getsockname()[1], lambda: link)
        link.send(b"first")
        link.expect(Unanswered(), 0)
        await asyncio.sleep(0)
        link.end()
        await link.drained(asyncio.get_running_loop().time() + 0.01)
        assert link.lost is not None


async def test_a_bookie_receives_all_adds_of_a_closed_tls_connection(tmp_path: Path) -> None:
    """More than the socket takes is still within TLS when the client ends."""
    authority = Authority(tmp_path)
    own = authority.issue("bookie")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.certificate, own.private_key)
    received = bytearray()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await begun.wait()
        received.extend(await reader.read())
        writer.close()
        ended.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
    async with server, asyncio.timeout(PATIENCE_S):
        link = BookieChannel("a:1")
        client = ssl.create_default_context(cafile=authority.ca)
        client.check_hostname = False
        await asyncio.get_running_loop().create_connection(
            lambda: link, "127.0.0.1", server.sockets[0].getsockname()[1], ssl=client
        )
        link.send(MUCH)
        link.expect(Unanswered(), 0)
        await asyncio.sleep(0)
        link.end()
        begun.set()
        await link.drained(asyncio.get_running_loop().time() + PATIENCE_S)
        await ended.wait()
    assert len(received) == len(MUCH)


async def test_a_connection_forgets_ledgers_with_old_unanswered_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection once remembered each ledger with an unanswered add for its whole life."""
    link = BookieChannel("b")
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now_s)

    def left(*ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            sink = Sink()
            link.attach(ledger_id, sink)
            link.detach(ledger_id, sink, unanswered=True)

    left(1, 2)
    now_s += SPENT_KEPT_S / 2
    left(1, 3)
    assert not any(map(link.takes_adds_of, (1, 2, 3)))
    now_s += SPENT_KEPT_S / 2
    left(4)
    assert [one for one in range(1, 5) if link.takes_adds_of(one)] == [2]
    now_s += SPENT_KEPT_S
    left(5)
    assert [one for one in range(1, 6) if not link.takes_adds_of(one)] == [5]
