"""A client that secures its connections, with well-behaved and misbehaving bookies.

All tests run on both event loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from quire.codec.wire import v3
from quire.codec.wire.v2 import LENGTH, Code
from quire.config import ClientConfig, TlsClientConfig, TlsServerConfig
from quire.errors import BookieUnavailableError, TlsError
from quire.net.handshake import MAX_ANSWER_BYTES, Dialer
from quire.net.network import AsyncioNetwork, close_client_side
from quire.net.tls import server_context
from tests.support.network.certificates import LOOPBACK, PAST, Authority, Files

TIMEOUT_S = 60.0
"""Reached only in a failing test, which then also reports unclosed resources."""
SETTLING_TURNS = 3
WHO = r"bookie b1 at 127\.0\.0\.1:\d+"

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param], debug=True) as runner:
            runner.run(bounded(work))

    return on_loop


async def bounded(work: Coroutine[Any, Any, None]) -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
    async with asyncio.timeout(TIMEOUT_S):
        await work
    assert problems == []


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Peer(asyncio.Protocol):
    """The bookie's side of a connection.

    The test decides how it handles START_TLS. Inside TLS it answers `welcome` to the first request
    and echoes all later ones.
    """

    def __init__(self, answer: Callable[[Peer], Awaitable[None]]) -> None:
        self.answer = answer
        self.received = b""
        self.secured = False
        self.lost = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.secured:
            self.transport.write(data)
        elif len(self.received) == LENGTH.size + LENGTH.unpack_from(self.received)[0]:
            if self.transport.get_extra_info("ssl_object") is None:
                self.request = self.received
            else:
                self.secured = True
            self.received = b""
            self.tasks.append(asyncio.ensure_future(self._handle()))

    async def _handle(self) -> None:
        if self.secured:
            self.transport.write(welcome(Code.OK))
        else:
            await self.answer(self)

    async def upgrade(self, context: ssl.SSLContext) -> None:
        self.transport.pause_reading()
        self.transport.write(offer(Code.OK))
        await AsyncioNetwork().start_tls(self.transport, context, server_side=True)


def offer(code: int) -> bytes:
    return v3.frame(v3.response(v3.Op.START_TLS, 1, code))


def welcome(code: int) -> bytes:
    return v3.frame(v3.response(v3.Op.BOOKIE_INFO, 2, code))


class Channel(asyncio.Protocol):
    """The channel that the dialer connects."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.more = asyncio.Event()
        self.writable = asyncio.Event()
        self.lost = asyncio.Event()
        self.made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=256 * 1024)
        self.made += 1
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.more.set()

    async def until(self, size: int) -> bytes:
        while len(self.received) < size:
            self.more.clear()
            await self.more.wait()
        return bytes(self.received)


@asynccontextmanager
async def bookie(
    answer: Callable[[Peer], Awaitable[None]],
    peers: list[Peer] | None = None,
    kind: type[Peer] = Peer,
) -> AsyncIterator[int]:
    """The port of a bookie that does this."""
    peers = [] if peers is None else peers

    def peer() -> Peer:
        peers.append(kind(answer))
        return peers[-1]

    port = AsyncioNetwork().bind(LOOPBACK, 0)
    await port.listen(peer)
    try:
        yield port.number
    finally:
        port.close()
        for _ in range(SETTLING_TURNS):  # A connection that was just accepted gets its transport.
            await asyncio.sleep(0)
        for each in peers:
            # asyncio before 3.11.4 raises it where one was closed twice.
            with contextlib.suppress(AttributeError):
                each.transport.abort()
            await asyncio.gather(*each.tasks, return_exceptions=True)
            await each.lost.wait()
        await asyncio.sleep(0)


def dialer(authority: Authority, timeout_s: float = TIMEOUT_S, **more: Any) -> Dialer:
    tls = TlsClientConfig(ca=authority.ca, **more)
    return Dialer(AsyncioNetwork(), ClientConfig(connect_timeout_s=timeout_s, tls=tls))


def secures(own: Files, **more: Any) -> Callable[[Peer], Awaitable[None]]:
    context = server_context(TlsServerConfig(own.certificate, own.private_key, **more))

    async def answer(peer: Peer) -> None:
        with contextlib.suppress(OSError):
            await peer.upgrade(context)

    return answer


def says(data: bytes, *, close: bool = False) -> Callable[[Peer], Awaitable[None]]:
    async def answer(peer: Peer) -> None:
        peer.transport.write(data)
        if close:
            peer.transport.close()

    return answer


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_a_secured_connection_transfers_data(run: Run, authority: Authority) -> None:
    own = authority.issue("bookie")

    async def scenario() -> None:
        peers: list[Peer] = []
        async with bookie(secures(own), peers) as port:
            channel = await dialer(authority).connect("b1", LOOPBACK, port, Channel())
            assert channel.made == 1
            assert peers[0].request == v3.start_tls_request(1)
            assert channel.transport.get_extra_info("cipher")[1] == "TLSv1.3"
            piece = bytes(range(256)) * 1024
            for _ in range(24):  # 6 MiB, more than all buffers: it must wait and go on
                channel.transport.write(piece)
                await channel.writable.wait()
            echoed = await channel.until(24 * len(piece))
            assert echoed == 24 * piece
            close_client_side(channel.transport)
            await channel.lost.wait()

    run(scenario())


def test_a_paused_secured_connection_reads_no_more(run: Run, authority: Authority) -> None:
    """Paused reading works inside TLS, and waiting data arrives after `resume_reading`."""
    own = authority.issue("bookie")

    async def scenario() -> None:
        async with bookie(secures(own)) as port:
            channel = await dialer(authority).connect("b1", LOOPBACK, port, Channel())
            channel.transport.pause_reading()
            channel.transport.write(b"x" * 100_000)
            other = await dialer(authority).connect("b1", LOOPBACK, port, Channel())
            other.transport.write(b"y")
            assert await other.until(1) == b"y"  # The bookie has run meanwhile.
            assert channel.received == b""
            channel.transport.resume_reading()
            assert await channel.until(100_000) == b"x" * 100_000
            for each in (channel, other):
                close_client_side(each.transport)
                await each.lost.wait()

    run(scenario())


CERTIFICATES = {
    "wrong name": (
        {"names": ("elsewhere.example",)},
        rf"the certificate of {WHO} is not for 127\.0\.0\.1.*verify_host_name",
    ),
    "expired": (
        {"expired": True},
        rf"the certificate of {WHO}.* has expired.*Renew the bookie.s certificate",
    ),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_certificates_that_do_not_verify_are_refused(
    run: Run, authority: Authority, case: str
) -> None:
    kinds, message = CERTIFICATES[case]
    names = cast(tuple[str, ...], kinds.get("names", ()))
    own = authority.issue("bookie", *names, expired="expired" in kinds)

    async def scenario() -> None:
        async with bookie(secures(own)) as port:
            with pytest.raises(TlsError, match=message) as failed:
                await dialer(authority).connect("b1", LOOPBACK, port, Channel())
            assert failed.value.outcome_known
            assert isinstance(failed.value, BookieUnavailableError)

    run(scenario())


def test_a_probe_returns_the_date_of_an_expired_certificate(run: Run, authority: Authority) -> None:
    """`quire explain` names it, although the handshake of a client fails without it."""
    own = authority.issue("bookie", expired=True)

    async def scenario() -> None:
        async with bookie(secures(own)) as port:
            found_ms = await dialer(authority).presented_until_ms("b1", LOOPBACK, port, TIMEOUT_S)
            ends = PAST + datetime.timedelta(days=1)
            assert found_ms == int(ends.timestamp() * 1000)
            plain = Dialer(AsyncioNetwork(), ClientConfig())
            assert await plain.presented_until_ms("b1", LOOPBACK, port, TIMEOUT_S) is None
        # Nothing listens there any more.
        assert await dialer(authority).presented_until_ms("b1", LOOPBACK, port, TIMEOUT_S) is None

    run(scenario())


def test_a_probe_of_a_bookie_without_a_certificate_returns_no_date(
    run: Run, authority: Authority
) -> None:
    async def refuses(peer: Peer) -> None:
        peer.transport.write(offer(Code.BAD_REQUEST))

    async def scenario() -> None:
        async with bookie(refuses) as port:
            found_ms = await dialer(authority).presented_until_ms("b1", LOOPBACK, port, TIMEOUT_S)
            assert found_ms is None

    run(scenario())


def test_a_certificate_of_an_unknown_authority_is_refused(
    run: Run, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    own = other.issue("bookie")

    async def scenario() -> None:
        message = f"the certificate of {WHO} is not signed by a trusted authority.*--tls-ca"
        for more in ({}, {"verify_host_name": False}):
            async with bookie(secures(own)) as port:
                with pytest.raises(TlsError, match=message):
                    await dialer(authority, **more).connect("b1", LOOPBACK, port, Channel())

    run(scenario())


def test_host_name_verification_can_be_disabled(run: Run, authority: Authority) -> None:
    own = authority.issue("bookie", "elsewhere.example")

    async def scenario() -> None:
        async with bookie(secures(own)) as port:
            plain = dialer(authority, verify_host_name=False)
            channel = await plain.connect("b1", LOOPBACK, port, Channel())
            close_client_side(channel.transport)
            await channel.lost.wait()

    run(scenario())


def test_a_required_client_certificate_is_presented_and_checked(
    run: Run, authority: Authority, tmp_path: Path
) -> None:
    own, client = authority.issue("bookie"), authority.issue("client")
    stranger = Authority(tmp_path, "other").issue("stranger")

    async def scenario() -> None:
        wants = secures(own, ca=authority.ca, client_certificates="required")
        refusal = f"{WHO} closed the connection right after the TLS handshake.*--tls-cert"
        async with bookie(wants) as port:
            shown = {"certificate": client.certificate, "private_key": client.private_key}
            channel = await dialer(authority, **shown).connect("b1", LOOPBACK, port, Channel())
            close_client_side(channel.transport)
            await channel.lost.wait()
            with pytest.raises(TlsError, match=refusal):
                await dialer(authority).connect("b1", LOOPBACK, port, Channel())
            shown = {"certificate": stranger.certificate, "private_key": stranger.private_key}
            with pytest.raises(TlsError, match=refusal):
                await dialer(authority, **shown).connect("b1", LOOPBACK, port, Channel())

    run(scenario())


MISBEHAVIOUR: dict[str, tuple[Callable[[Peer], Awaitable[None]], str]] = {
    "no TLS": (says(offer(Code.BAD_REQUEST)), f"{WHO} does not offer TLS.*--tls-cert"),
    "refused": (says(offer(Code.IO_ERROR)), f"{WHO} refused to start TLS"),
    "another answer": (says(welcome(Code.OK)), f"{WHO} answered the START_TLS request with"),
    "no message": (says(b"\x00\x00\x00\x04\xff\xff\xff\xff"), "not an answer to START_TLS"),
    "bytes behind": (says(offer(Code.OK) + b"\x00"), "sent data after its answer"),
    "an answer behind": (says(offer(Code.OK) + welcome(Code.OK)), "sent data after its answer"),
    "a long answer": (says(LENGTH.pack(MAX_ANSWER_BYTES)), "sent data after its answer"),
    "closed": (says(b"", close=True), f"{WHO} closed the connection when it was asked for TLS"),
    "closed behind": (says(offer(Code.OK), close=True), f"handshake with {WHO} failed|closed"),
    "half an answer": (says(offer(Code.OK)[:9], close=True), f"{WHO} closed the connection"),
}


@pytest.mark.parametrize("case", MISBEHAVIOUR)
def test_no_clear_text_is_sent_whatever_the_bookie_answers(
    run: Run, authority: Authority, case: str
) -> None:
    answer, message = MISBEHAVIOUR[case]

    async def scenario() -> None:
        peers: list[Peer] = []
        channel = Channel()
        async with bookie(answer, peers) as port:
            with pytest.raises(TlsError, match=message):
                await dialer(authority).connect("b1", LOOPBACK, port, channel)
            await peers[0].lost.wait()
        assert len(peers) == 1, "tried once"
        assert peers[0].request == v3.start_tls_request(1)
        assert peers[0].received[:2] == b"\x16\x03" or not peers[0].received
        assert channel.made == 0

    run(scenario())


def test_clear_text_instead_of_a_handshake_is_refused(run: Run, authority: Authority) -> None:
    """It is sent after the client's handshake began, so it does not follow the answer."""

    async def answer(peer: Peer) -> None:
        peer.transport.write(offer(Code.OK))
        while not peer.received:
            await asyncio.sleep(0)
        peer.transport.write(welcome(Code.OK))

    async def scenario() -> None:
        async with bookie(answer) as port:
            with pytest.raises(TlsError, match=f"TLS handshake with {WHO} failed: WRONG_VERSION"):
                await dialer(authority).connect("b1", LOOPBACK, port, Channel())

    run(scenario())


REFUSALS = {
    "ours": welcome(Code.UNAUTHORIZED),
    # START_TLS once more, unasked.
    "Apache's": offer(Code.IO_ERROR),
    "both of Apache's": offer(Code.IO_ERROR) + welcome(Code.UNAUTHORIZED),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refused_role_is_reported(run: Run, authority: Authority, kind: str) -> None:
    """Ours refuses the request inside. So does Apache's, which before answers START_TLS again: the
    two may arrive together."""
    own = authority.issue("bookie")
    context = server_context(TlsServerConfig(own.certificate, own.private_key))
    early = kind == "Apache's"

    class Strict(Peer):
        def data_received(self, data: bytes) -> None:
            if self.transport.get_extra_info("ssl_object") is None:
                self.tasks.append(asyncio.ensure_future(self._secure()))
            elif not early:
                self.transport.write(REFUSALS[kind])

        async def _secure(self) -> None:
            await self.upgrade(context)
            if early:
                self.transport.write(REFUSALS[kind])

    async def scenario() -> None:
        made: list[Peer] = []
        async with bookie(says(b""), made, Strict) as port:
            with pytest.raises(TlsError, match=f"{WHO} does not accept this client.*role"):
                await dialer(authority).connect("b1", LOOPBACK, port, Channel())
            await made[0].lost.wait()

    run(scenario())


def test_data_after_the_answer_to_start_tls_is_refused(run: Run, authority: Authority) -> None:
    own = authority.issue("bookie")

    class Talkative(Peer):
        async def _handle(self) -> None:
            if self.secured:
                self.transport.write(welcome(Code.OK) + welcome(Code.OK))
            else:
                await super()._handle()

    async def scenario() -> None:
        made: list[Peer] = []
        channel = Channel()
        async with bookie(secures(own), made, Talkative) as port:
            with pytest.raises(TlsError, match=f"{WHO} sent data after its answer"):
                await dialer(authority).connect("b1", LOOPBACK, port, channel)
            await made[0].lost.wait()
        assert channel.made == 0

    run(scenario())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_connection_that_ends_during_the_hand_over_notifies_its_owner(
    run: Run, authority: Authority, end: str
) -> None:
    """The current owner of the connection is notified."""
    own = authority.issue("bookie")

    class Brief(Peer):
        async def _handle(self) -> None:
            await super()._handle()
            if self.secured:
                getattr(self.transport, end)()

    async def scenario() -> None:
        async with bookie(secures(own), kind=Brief) as port:
            for _ in range(20):
                channel = Channel()
                try:
                    await dialer(authority).connect("b1", LOOPBACK, port, channel)
                except TlsError:
                    continue
                await channel.lost.wait()
                channel.transport.abort()

    run(scenario())


@pytest.mark.parametrize("where", ["answer", "handshake"])
def test_a_handshake_with_a_silent_bookie_times_out(
    run: Run, authority: Authority, where: str
) -> None:
    async def scenario() -> None:
        peers: list[Peer] = []
        silent = says(b"" if where == "answer" else offer(Code.OK))
        async with bookie(silent, peers) as port:
            with pytest.raises(BookieUnavailableError, match=r"within 0\.2 s"):
                await dialer(authority, timeout_s=0.2).connect("b1", LOOPBACK, port, Channel())
            while not peers:  # on a busy machine the client gave up before it was accepted
                await asyncio.sleep(0.001)
            await peers[0].lost.wait()

    run(scenario())


def test_a_pause_of_the_event_loop_during_the_handshake_is_no_silence_of_the_bookie(
    run: Run, authority: Authority
) -> None:
    """The event loop's own limit of a handshake would count the pause."""
    limit_s = 0.5
    own = authority.issue("bookie")
    context = server_context(TlsServerConfig(own.certificate, own.private_key))

    async def pauses(peer: Peer) -> None:
        peer.transport.pause_reading()
        peer.transport.write(offer(Code.OK))
        await asyncio.sleep(limit_s / 10)  # The client begins its handshake.
        time.sleep(2 * limit_s)  # noqa: ASYNC251 - it blocks the event loop on purpose
        await asyncio.sleep(0)  # A limit that has expired ends the handshake.
        await AsyncioNetwork().start_tls(peer.transport, context, server_side=True)

    async def scenario() -> None:
        async with bookie(pauses) as port:
            channel = Channel()
            await dialer(authority, timeout_s=limit_s).connect("b1", LOOPBACK, port, channel)
            channel.transport.abort()

    run(scenario())


def test_a_refused_connection_is_not_reported_as_a_tls_error(
    run: Run, authority: Authority
) -> None:
    async def scenario() -> None:
        port = AsyncioNetwork().bind(LOOPBACK, 0)
        with pytest.raises(BookieUnavailableError, match=f"{WHO} cannot be reached") as failed:
            await dialer(authority).connect("b1", LOOPBACK, port.number, Channel())
        assert not isinstance(failed.value, TlsError)
        port.close()

    run(scenario())
