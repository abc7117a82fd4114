"""START_TLS on a bookie with well-behaved and misbehaving peers, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from quire._runtime.clock import SystemClock
from quire.bookie.protocol.security import Security
from quire.bookie.protocol.service import Counters
from quire.bookie.server import Bookie
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.v2 import Code
from quire.config import BookieConfig, TlsServerConfig
from quire.errors import TlsConfigError
from quire.metadata.bookies.tls_files import TlsFiles, from_properties
from quire.net.network import Network
from tests.support.bookies.bookie import SMALL, memory_metadata, running_bookie
from tests.support.bookies.tls import GRANTED, READ, REQUEST, UNAUTHORIZED, VECTORS
from tests.support.network.certificates import LOOPBACK, Authority, Files

TIMEOUT_S = 30.0
NOT_CONFIGURED = VECTORS["v3_starttls_rsp_not_configured"]
NO_LEDGER = frames.read_response(Code.NO_LEDGER, 77, 0)
READ_V3 = v3.read_request(5, 77, 0)

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

Scenario = Callable[[Bookie], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def own(authority: Authority) -> Files:
    return authority.issue("bookie")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a scenario with a bookie of a configuration."""

    async def work(scenario: Scenario, config: BookieConfig) -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
        async with asyncio.timeout(TIMEOUT_S):
            async with running_bookie(tmp_path / "bookie", config) as bookie:
                await scenario(bookie)
        assert problems == []

    def on_loop(scenario: Scenario, config: BookieConfig) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param], debug=True) as runner:
            runner.run(work(scenario, config))
        gc.collect()  # Unclosed resources cause warnings now.

    return on_loop


def offering(own: Files, **more: Any) -> BookieConfig:
    names = ("tls_required", "authorized_roles")
    outer = {name: more.pop(name) for name in names if name in more}
    return replace(SMALL, tls=TlsServerConfig(own.certificate, own.private_key, **more), **outer)


class Peer:
    """A blocking client whose calls run in a thread, so that the bookie continues."""

    def __init__(self, bookie: Bookie) -> None:
        self.socket = socket.create_connection((LOOPBACK, int(bookie.bookie_id.split(":")[1])))
        self.socket.settimeout(TIMEOUT_S)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close()

    async def ask(self, data: bytes) -> bytes:
        """One frame; b"" when the connection was closed."""
        return await asyncio.to_thread(self._ask, data)

    def _ask(self, data: bytes) -> bytes:
        try:
            self.socket.sendall(data)
            head = self._exactly(4)
            return head and head + self._exactly(int.from_bytes(head, "big"))
        except (ConnectionError, ssl.SSLError):
            return b""

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                return b""
            data += more
        return data

    async def secure(self, authority: Authority, shown: Files | None = None) -> None:
        """Do the handshake after START_TLS."""
        context = ssl.create_default_context(cafile=authority.ca)
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.private_key)
        self.socket = await asyncio.to_thread(
            context.wrap_socket, self.socket, server_hostname=LOOPBACK
        )

    async def rest(self) -> bytes:
        """Return everything until the connection is closed."""

        def read() -> bytes:
            found = b""
            try:
                while more := self.socket.recv(65536):
                    found += more
            except (ConnectionError, ssl.SSLError):
                pass
            return found

        return await asyncio.to_thread(read)


async def alive(bookie: Bookie) -> None:
    async with Peer(bookie) as peer:
        assert await peer.ask(READ) == NO_LEDGER


def test_both_protocols_work_inside_tls(run: Run, authority: Authority, own: Files) -> None:
    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            assert await peer.ask(READ_V3) != b""  # clear text is served before
            assert await peer.ask(REQUEST) == GRANTED
            await peer.secure(authority)
            assert v3.parse_response((await peer.ask(READ_V3))[4:]).status == v3.STATUS_OF[1]
            assert await peer.ask(v3.start_tls_request(16)) == NOT_CONFIGURED  # a second time
            assert await peer.ask(READ) == NO_LEDGER
        await alive(bookie)
        assert bookie.service.counters.tls_connections == 1
        assert bookie.service.counters.tls_failures == 0

    run(scenario, offering(own))


def test_without_tls_the_connection_stays_usable(run: Run) -> None:
    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            assert await peer.ask(REQUEST) == NOT_CONFIGURED
            assert await peer.ask(READ) == NO_LEDGER

    run(scenario, SMALL)


def test_requests_sent_before_start_tls_are_answered_inside_tls(
    run: Run, authority: Authority, own: Files
) -> None:
    """An add that is not synced yet when START_TLS comes: its answer may not stand in clear text
    in the middle of the handshake."""
    key = master_key(b"")
    entry = EntryCodec(5, DigestType.CRC32C, b"").pack(0, -1, 4, b"four")

    async def scenario(bookie: Bookie) -> None:
        synced: list[Callable[[], None]] = []
        append = bookie.store.append

        def late(batch: Any, done: Any, *, reserve: bool) -> None:
            held = lambda *result: synced.append(lambda: done(*result))  # noqa: E731
            append(batch, held, reserve=reserve)

        bookie.service.store.append = late  # type: ignore[method-assign]
        async with Peer(bookie) as peer:
            add = v3.add_request(9, key, entry, 5, 0)
            assert await peer.ask(add + REQUEST) == GRANTED
            while not synced:
                await asyncio.sleep(0)
            synced.pop()()
            await asyncio.sleep(0)
            await peer.secure(authority)
            answer = v3.parse_response((await peer.ask(b""))[4:])
            assert answer.header.txnId == 9
            assert answer.addResponse.status == 0

    run(scenario, offering(own))


@pytest.mark.parametrize(
    "behind", [b"\x00", READ, REQUEST, REQUEST * 8, READ_V3, b"\x16\x03\x01\x02\x00\x01"],
    ids=["a byte", "v2", "again", "eight times", "v3", "a handshake"],
)  # fmt: skip
@pytest.mark.parametrize("cut", [0, 3, len(REQUEST) - 1], ids=["whole", "in length", "in frame"])
def test_bytes_after_start_tls_end_the_connection(
    run: Run, own: Files, behind: bytes, cut: int
) -> None:
    """The bytes are neither served nor treated as encrypted data."""

    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            if cut:  # The rest of the request and the following bytes come as one chunk.
                peer.socket.sendall(REQUEST[:cut])
                while not any(c._frames.held_bytes for c in bookie.service.connections):
                    await asyncio.sleep(0.001)
            peer.socket.sendall(REQUEST[cut:] + behind)
            assert await peer.rest() == b""
        assert bookie.service.counters.reads == 0
        await alive(bookie)

    run(scenario, offering(own))


@pytest.mark.parametrize("garbage", [READ, b"\xff" * 512, b"GET / HTTP/1.1\r\n\r\n"])
def test_a_connection_without_a_valid_handshake_is_closed(
    run: Run, own: Files, garbage: bytes
) -> None:
    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            assert await peer.ask(REQUEST) == GRANTED
            peer.socket.sendall(garbage)
            await peer.rest()
        while bookie.service.connections:
            await asyncio.sleep(0.001)
        assert bookie.service.counters.tls_failures == 1
        assert bookie.service.counters.reads == 0
        await alive(bookie)

    run(scenario, offering(own))


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "stalled"])
def test_a_handshake_has_a_time_limit(run: Run, own: Files, sent: bytes) -> None:
    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            assert await peer.ask(REQUEST) == GRANTED
            peer.socket.sendall(sent)
            assert await peer.rest() == b""
        assert bookie.service.counters.tls_failures == 1
        assert not bookie.service.connections
        await alive(bookie)

    run(scenario, offering(own, handshake_timeout_s=0.2))


def test_handshakes_over_the_limit_wait_for_a_free_slot(
    run: Run, authority: Authority, own: Files
) -> None:
    """With one slot and a client that does not finish, the next one waits and then succeeds."""

    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as slow, Peer(bookie) as next_, Peer(bookie) as gone:
            assert await slow.ask(REQUEST) == GRANTED
            assert await next_.ask(REQUEST) == GRANTED
            assert await gone.ask(REQUEST) == GRANTED
            securing = asyncio.ensure_future(next_.secure(authority))
            gone.socket.close()
            await alive(bookie)
            assert not securing.done()
            slow.socket.close()
            await securing
            assert await next_.ask(READ) == NO_LEDGER
        while bookie.service.connections:
            await asyncio.sleep(0.001)

    run(scenario, offering(own, max_handshakes=1))


def test_stopping_does_not_wait_for_handshakes(run: Run, authority: Authority, own: Files) -> None:
    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as stalled, Peer(bookie) as waiting, Peer(bookie) as secured:
            assert await secured.ask(REQUEST) == GRANTED
            await secured.secure(authority)
            assert await stalled.ask(REQUEST) == GRANTED
            assert await waiting.ask(REQUEST) == GRANTED
            async with asyncio.timeout(10.0):  # the time limit of a handshake is far away
                await bookie.stop()
            for peer in (stalled, waiting, secured):
                assert await peer.rest() == b""
        while bookie.service.connections:  # asyncio tells the end of one in a later iteration
            await asyncio.sleep(0.001)

    run(scenario, offering(own, handshake_timeout_s=3600.0, max_handshakes=1))


def test_clear_text_can_be_refused(run: Run, authority: Authority, own: Files) -> None:
    key = master_key(b"")
    entry = EntryCodec(5, DigestType.CRC32C, b"").pack(3, -1, 4, b"four")

    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            for request in (READ_V3, v3.add_request(5, key, entry, 5, 3)):
                answer = v3.parse_response((await peer.ask(request))[4:])
                assert answer.status == v3.STATUS_OF[Code.UNAUTHORIZED]
                assert answer.header.txnId == 5
                assert not answer.HasField("readResponse")
                assert not answer.HasField("addResponse")
            authenticated = v3.parse_response((await peer.ask(v3.auth_request(6, "x", b"")))[4:])
            assert authenticated.authResponse.authPluginName == "AuthDisabledPlugin"
            assert await peer.ask(REQUEST) == GRANTED
            await peer.secure(authority)
            assert await peer.ask(READ) == NO_LEDGER
        async with Peer(bookie) as peer:
            assert await peer.ask(READ) == UNAUTHORIZED
            refused = frames.add_response(Code.UNAUTHORIZED, 5, 3)
            assert await peer.ask(frames.add_request(key, entry)) == refused
            auth = frames.auth_frame(frames.auth_message("x", b""))
            assert await peer.ask(auth) == frames.auth_frame(
                frames.auth_message("AuthDisabledPlugin", b"")
            )
            assert await peer.ask(frames.batch_read_request(5, 0, 1, 10, 1000)) == b""
        assert 5 not in bookie.store.ledgers
        assert bookie.service.counters.requests_refused == 2 + 2 + 1, (
            "START_TLS and AUTH are not counted"
        )
        assert bookie.service.counters.adds == 0

    run(scenario, offering(own, tls_required=True))


@pytest.mark.parametrize("word", [frames.ADD_WORD, frames.header_word(0), frames.BATCH_READ_WORD])
def test_clear_text_that_protocol_v2_cannot_refuse_ends_the_connection(
    run: Run, own: Files, word: int
) -> None:
    """The frame is long enough for a read. An add of this length has no ids to answer with."""
    request = frames.LENGTH.pack(20) + word.to_bytes(4, "big") + bytes(16)

    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            assert await peer.ask(request) == b""
        assert bookie.service.counters.requests_refused == 1

    run(scenario, offering(own, tls_required=True))


@pytest.mark.parametrize("wanted", ["required", "optional"])
def test_clients_are_authorized_by_the_roles_in_their_certificates(
    run: Run, authority: Authority, own: Files, wanted: str
) -> None:
    writer = authority.issue("writer", unit="0:writer,reader;1:east")
    reader = authority.issue("reader", unit="0:reader")
    nobody = authority.issue("nobody")

    async def ask(bookie: Bookie, shown: Files | None) -> tuple[bytes, int]:
        async with Peer(bookie) as peer:
            assert await peer.ask(REQUEST) == GRANTED
            await peer.secure(authority, shown)
            status = v3.parse_response((await peer.ask(READ_V3))[4:]).status
            return await peer.ask(READ), v3.CODE_OF[status]

    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            assert await peer.ask(READ) == UNAUTHORIZED  # in clear text
        assert await ask(bookie, writer) == (NO_LEDGER, Code.NO_LEDGER)
        for shown in [reader, nobody, *([None] if wanted == "optional" else [])]:
            assert await ask(bookie, shown) == (UNAUTHORIZED, Code.UNAUTHORIZED)
        assert bookie.service.counters.tls_refusals == (3 if wanted == "optional" else 2)

    config = offering(
        own, ca=authority.ca, client_certificates=wanted, authorized_roles=("admin", "writer")
    )
    run(scenario, config)


def test_a_client_without_a_required_certificate_is_refused(
    run: Run, authority: Authority, own: Files
) -> None:
    async def scenario(bookie: Bookie) -> None:
        async with Peer(bookie) as peer:
            assert await peer.ask(REQUEST) == GRANTED
            await peer.secure(authority)  # in TLS 1.3 the client does not know yet
            assert await peer.ask(READ) == b""
        assert bookie.service.counters.tls_failures == 1

    run(scenario, offering(own, ca=authority.ca, client_certificates="required"))


def test_a_bookie_registers_that_it_offers_tls(tmp_path: Path, own: Files) -> None:
    async def registered(config: BookieConfig, directory: str) -> tuple[bool, TlsFiles | None]:
        metadata = memory_metadata()
        async with running_bookie(tmp_path / directory, config, metadata) as bookie:
            address = (await metadata.bookies()).find(bookie.bookie_id)
            assert address is not None
            # Another change of the registration keeps the files.
            bookie.hold_readonly(True)
            async with asyncio.timeout(5.0):
                while bookie.bookie_id not in (await metadata.bookies()).readonly:
                    await asyncio.sleep(0)
            held = (await metadata.bookies()).readonly[bookie.bookie_id]
            files = from_properties(address.properties)
            assert from_properties(held.properties) == files
            return address.tls, files

    relative = replace(own, certificate=os.path.relpath(own.certificate))
    wanted = TlsFiles(os.path.abspath(own.certificate))
    assert asyncio.run(registered(offering(relative), "with")) == (True, wanted)
    assert asyncio.run(registered(SMALL, "without")) == (False, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls": None, "tls_required": True}, "no certificate is configured"),
        ({"tls": None, "authorized_roles": ("a",)}, "no certificate is configured"),
        ({"authorized_roles": ("a",)}, "does not ask clients for certificates"),
    ],
)
def test_contradictory_tls_settings_prevent_the_start(
    tmp_path: Path, own: Files, change: dict[str, Any], message: str
) -> None:
    async def start() -> None:
        async with running_bookie(tmp_path / "bookie", replace(offering(own), **change)):
            pass

    with pytest.raises(TlsConfigError, match=message):
        asyncio.run(start())
    assert list((tmp_path / "bookie").iterdir()) == []


@pytest.mark.parametrize("expired", [True, False])
def test_a_failed_handshake_names_the_bookies_own_certificate_if_it_expired(
    authority: Authority, expired: bool
) -> None:
    """A client that refuses the certificate only closes the connection."""
    own = authority.issue("own", expired=expired)
    logged: list[dict[str, Any]] = []

    class Closing:
        async def start_tls(self, *_: Any, **__: Any) -> None:
            raise ConnectionResetError

    async def scenario() -> None:
        security = Security(
            offering(own), cast(Network, Closing()), SystemClock(),
            lambda event, **fields: logged.append({"event": event, **fields}), Counters(),
        )  # fmt: skip
        security.secure("peer", cast(asyncio.Transport, SimpleNamespace(abort=lambda: None)))
        while not logged:
            await asyncio.sleep(0.001)
        await security.close()

    asyncio.run(scenario())
    (one,) = logged
    assert (one["event"], one["peer"]) == ("tls_handshake_failed", "peer")
    named = f"ConnectionResetError; the certificate of this bookie ({own.certificate}) expired at "
    assert one["reason"].startswith(named if expired else "ConnectionResetError")
    assert ("expired" in one["reason"]) == expired
