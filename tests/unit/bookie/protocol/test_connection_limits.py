"""A bookie limits its connections, and the memory of incomplete requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quire.bookie.protocol import connection_limits
from quire.bookie.protocol.connection_limits import FREE_PARTIAL_BYTES, ConnectionLimits
from quire.bookie.server import Bookie
from quire.client import Client
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.config import BookieConfig, ClientConfig, TlsClientConfig
from quire.errors import BookieUnavailableError
from quire.net.channel import BookieChannel
from quire.net.control import ControlChannel
from quire.net.handshake import Dialer
from quire.net.network import AsyncioNetwork
from tests.support.bookies.bookie import SMALL, Peer, memory_metadata, peer_of, running_bookie
from tests.support.waiting import until

KEY = master_key(b"")
KIB = 1024


def add(entry_id: int, size: int = 100, ledger: int = 7) -> bytes:
    codec = EntryCodec(ledger, DigestType.CRC32C, b"")
    return frames.add_request(KEY, codec.pack(entry_id, entry_id - 1, 0, bytes(size)))


async def prove(peer: Peer) -> None:
    """Complete a request."""
    refusal = frames.read_response(frames.Code.NO_LEDGER, 1, 0)
    assert await peer.ask(frames.read_request(1, 0)) == refusal


@asynccontextmanager
async def silent_peers(bookie: Bookie, count: int) -> AsyncIterator[list[Peer]]:
    async with AsyncExitStack() as stack:
        before = bookie.service.counters.connections
        yield [await stack.enter_async_context(peer_of(bookie)) for _ in range(count)]
        assert bookie.service.counters.connections >= before + count


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "NEWCOMER_GRACE_S", 0.0)
    monkeypatch.setattr(connection_limits, "PARTIAL_GRACE_S", 0.0)


# -- places -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_grace")
async def test_silent_connections_do_not_lock_out_others(tmp_path: Path) -> None:
    config = replace(SMALL, max_connections=10)
    async with running_bookie(tmp_path, config) as bookie, peer_of(bookie) as honest:
        await prove(honest)
        async with silent_peers(bookie, 30):
            limits = bookie.service.limits
            await until(lambda: limits.counters.displaced == 25)
            assert len(limits.newcomers) == 5
            assert await honest.ask(add(0)) == frames.add_response(0, 7, 0)
            async with peer_of(bookie) as newcomer:
                assert await newcomer.ask(add(1)) == frames.add_response(0, 7, 1)
            assert limits.counters.refused == 0


async def test_idle_connections_are_closed_when_no_slot_is_free(tmp_path: Path) -> None:
    config = replace(SMALL, max_connections=3, idle_timeout_s=0.05)
    async with running_bookie(tmp_path, config) as bookie, AsyncExitStack() as stack:
        a, b, c = peers = [await stack.enter_async_context(peer_of(bookie)) for _ in range(3)]
        for peer in peers:
            await prove(peer)
        await asyncio.sleep(0.1)  # They are silent for longer than the time-out.
        await prove(b)
        await prove(c)
        async with peer_of(bookie) as d:
            await prove(d)
            assert await a.receive() == b""  # It was silent for the longest time.
        await prove(b)


class Proven:
    """A connection that has completed requests, as the limits of connections see it."""

    peer = "?"
    partial_bytes = 0
    partial_since_s = 0.0
    paused = excused = busy = closed = False

    def __init__(self, limits: ConnectionLimits, heard_s: float) -> None:
        self.opened_s = self.heard_s = heard_s
        self.admitted = limits.admit(self)
        limits.proven(self)

    def cut_off(self, event: str = "", why: str = "") -> None:
        self.closed = True

    def pause(self, reason: str) -> None:
        pass

    def resume(self, reason: str) -> None:
        pass

    def abort(self) -> None:
        pass


def limits_at(now_s: list[float]) -> ConnectionLimits:
    config = BookieConfig(max_connections=3, idle_timeout_s=5.0)
    return ConnectionLimits(config, lambda: now_s[0], lambda event, **fields: None)


def test_a_connection_that_was_used_again_is_not_the_longest_idle_one() -> None:
    """The order was once that of an earlier search, however long ago it was."""
    now_s = [0.0]
    limits = limits_at(now_s)
    first, second, third = [Proven(limits, heard_s) for heard_s in (1.0, 2.0, 3.0)]
    now_s[0] = 10.0
    Proven(limits, 10.0)
    assert first.closed
    second.heard_s = 11.0
    now_s[0] = 20.0
    assert Proven(limits, 20.0).admitted
    assert third.closed
    assert not second.closed


def test_idle_connections_are_searched_again_if_those_found_earlier_are_gone() -> None:
    """The new connection was once refused, although others were idle."""
    now_s = [0.0]
    limits = limits_at(now_s)
    _, second, third = [Proven(limits, heard_s) for heard_s in (1.0, 2.0, 3.0)]
    now_s[0] = 10.0
    idle = Proven(limits, 10.0)
    for gone in (second, third):
        limits.forget(gone)
    now_s[0] = 12.0
    others = [Proven(limits, 12.0) for _ in range(2)]
    now_s[0] = 20.0
    assert Proven(limits, 20.0).admitted
    assert idle.closed
    assert not any(one.closed for one in others)


async def test_a_bookie_without_a_free_slot_refuses_with_the_reason(tmp_path: Path) -> None:
    config = replace(SMALL, max_connections=2, idle_timeout_s=60.0)
    told: list[str] = []

    def log(event: str, **fields: object) -> None:
        told.append(event)

    async with running_bookie(tmp_path, config, log=log) as bookie, AsyncExitStack() as stack:
        for _ in range(2):
            await prove(await stack.enter_async_context(peer_of(bookie)))
        async with peer_of(bookie) as refused:
            assert await refused.receive() == frames.CONNECTION_REFUSED
            assert await refused.receive() == b""
        address = (await bookie.metadata.bookies()).find(bookie.bookie_id)
        assert address is not None
        where = (bookie.bookie_id, address.host, address.port)
        dialer = Dialer(AsyncioNetwork(), ClientConfig())
        words = "refuses the connection: it is at its limit of connections.*max_connections"
        channel = await dialer.connect(*where, BookieChannel(bookie.bookie_id))
        with pytest.raises(BookieUnavailableError, match=words):
            await channel.read(7, 0)
        control = await dialer.connect(*where, ControlChannel(bookie.bookie_id))
        with pytest.raises(BookieUnavailableError, match=words):
            await control.read_lac(7)
        secured = Dialer(AsyncioNetwork(), ClientConfig(tls=TlsClientConfig()))
        with pytest.raises(BookieUnavailableError, match=words):
            await secured.connect(*where, BookieChannel(bookie.bookie_id))
        assert bookie.service.limits.counters.refused == 4
        assert told.count("connections_refused") == 1  # A flood is one line a second.


async def test_a_connection_without_a_request_is_closed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, first_request_timeout_s=0.2)
    async with running_bookie(tmp_path, config) as bookie:
        async with peer_of(bookie) as honest, peer_of(bookie) as silent:
            await honest.ask(add(0))
            async with peer_of(bookie) as polling:
                polling.send(v3.long_poll_request(1, 7, 0, 60_000))  # It waits, and that is fine.
                assert await silent.receive() == b""
                assert await honest.ask(add(1)) == frames.add_response(0, 7, 1)
                assert len(bookie.service.connections) == 2
        assert bookie.service.limits.counters.silent == 1


async def test_a_writer_survives_the_closing_of_its_idle_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are closed to admit others, and the client connects again for the next append."""
    monkeypatch.setattr(connection_limits, "SWEEP_S", 0.0)
    metadata = memory_metadata()
    config = replace(SMALL, max_connections=2, idle_timeout_s=0.05)
    async with running_bookie(tmp_path, config, metadata) as bookie:
        client = Client(metadata=metadata)
        async with client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"a")
            for number in range(3):
                await asyncio.sleep(0.1)  # It is silent for longer than the time-out.
                async with peer_of(bookie) as one:
                    await prove(one)
                    async with peer_of(bookie) as two:
                        await prove(two)
                assert await writer.append(b"b") == number + 1
            await writer.close()
        assert bookie.service.limits.counters.displaced >= 1


# -- unfinished requests ----------------------------------------------------------------------

LARGE = add(0, 400 * KIB)
BOUND = replace(SMALL, max_partial_bytes=1024 * KIB)


@pytest.mark.usefixtures("no_grace")
async def test_the_memory_of_unfinished_requests_is_limited(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, BOUND) as bookie, peer_of(bookie) as honest:
        await prove(honest)
        limits = bookie.service.limits
        most = 0
        async with silent_peers(bookie, 20) as hostile:
            for peer in hostile:
                peer.send(LARGE[: 300 * KIB])
                most = max(most, limits.partial_bytes)
            await until(lambda: limits.counters.partial_cut >= 16)
            assert max(most, limits.partial_bytes) <= 2 * BOUND.max_partial_bytes
            assert await honest.ask(LARGE) == frames.add_response(0, 7, 0)
        await until(lambda: len(bookie.service.connections) == 1)
        assert limits.partial_bytes == 0


async def test_honest_large_requests_over_the_limit_are_completed(tmp_path: Path) -> None:
    """None is old enough to be closed: they are read one after the other."""
    async with running_bookie(tmp_path, BOUND) as bookie, silent_peers(bookie, 6) as peers:
        for number, peer in enumerate(peers):
            peer.send(add(0, 400 * KIB, ledger=number)[: 300 * KIB])
        await asyncio.sleep(0.05)
        for number, peer in enumerate(peers):
            peer.send(add(0, 400 * KIB, ledger=number)[300 * KIB :])
        for number, peer in enumerate(peers):
            assert await peer.receive() == frames.add_response(0, number, 0)
        assert bookie.service.limits.counters.partial_cut == 0
        assert bookie.service.limits.partial_bytes == 0


async def test_a_single_request_over_the_limit_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection was once closed each time, at once or after a second."""
    config = replace(SMALL, max_partial_bytes=100 * KIB)
    async with running_bookie(tmp_path, config) as bookie, peer_of(bookie) as peer:
        peer.send(LARGE[: 300 * KIB])
        await until(lambda: bookie.service.limits.partial_bytes == 300 * KIB)
        assert await peer.ask(LARGE[300 * KIB :]) == frames.add_response(0, 7, 0)
        monkeypatch.setattr(connection_limits, "PARTIAL_GRACE_S", 0.0)
        peer.send(add(1, 400 * KIB)[: 150 * KIB])
        await until(lambda: bookie.service.limits.partial_bytes == 150 * KIB)
        assert await peer.ask(add(1, 400 * KIB)[150 * KIB :]) == frames.add_response(0, 7, 1)
        assert bookie.service.limits.counters.partial_cut == 0


async def test_an_unfinished_request_is_cut_off_after_its_time_limit(tmp_path: Path) -> None:
    config = replace(SMALL, partial_frame_timeout_s=0.2)
    async with running_bookie(tmp_path, config) as bookie:
        async with peer_of(bookie) as honest, peer_of(bookie) as slow:
            await prove(slow)
            slow.send(LARGE[:100])
            assert await slow.receive() == b""
            for number in range(3):
                assert await honest.ask(add(number)) == frames.add_response(0, 7, number)
        assert bookie.service.limits.counters.partial_cut == 1


async def test_small_unfinished_requests_are_not_counted(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, BOUND) as bookie, peer_of(bookie) as peer:
        peer.send(LARGE[: FREE_PARTIAL_BYTES - 1])
        await until(lambda: bookie.service.received_s > 0)
        assert bookie.service.limits.partial_bytes == 0
        assert await peer.ask(LARGE[FREE_PARTIAL_BYTES - 1 :]) == frames.add_response(0, 7, 0)


async def test_a_bookie_refuses_frames_over_its_configured_size(tmp_path: Path) -> None:
    config = replace(SMALL, max_frame_bytes=100 * KIB)
    async with running_bookie(tmp_path, config) as bookie, peer_of(bookie) as peer:
        assert await peer.ask(add(0, 90 * KIB)) == frames.add_response(0, 7, 0)
        assert await peer.ask(LARGE) == b""


class Holder:
    """A connection of which only the bytes of an unfinished request matter."""

    peer, opened_s, heard_s, paused, excused, busy = "peer", 0.0, 0.0, False, False, False

    def __init__(self, since_s: float) -> None:
        self.partial_bytes, self.partial_since_s, self.cut = 0, since_s, False

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def cut_off(self, event: str = "", why: str = "") -> None:
        self.cut = True


def test_a_large_request_may_close_the_connections_of_many_small_ones() -> None:
    """Only the oldest was closed once, so the sum could grow beyond the limit."""
    config = replace(SMALL, max_partial_bytes=100 * KIB)
    limits = ConnectionLimits(config, lambda: 0.5, lambda event, **fields: None)
    small = [Holder(0.1 + number / 1000) for number in range(9)]
    for holder in small:
        limits.partial(holder, 20 * KIB)
    for number in range(4):
        limits.partial(Holder(0.2 + number / 10), 90 * KIB)
        assert limits.partial_bytes <= 2 * config.max_partial_bytes
    assert all(holder.cut for holder in small)


@pytest.mark.parametrize("began_s", [0.5, 90.0])
def test_a_single_request_is_read_however_large_it_is(began_s: float) -> None:
    """An entry of a legal size could not be written with a small `max_partial_bytes`."""
    config = replace(SMALL, max_partial_bytes=100 * KIB)
    limits = ConnectionLimits(config, lambda: 100.0, lambda event, **fields: None)
    lone = Holder(began_s)
    assert limits.admit(lone)
    for size in range(20 * KIB, 1000 * KIB, 16 * KIB):
        limits.partial(lone, size)
    assert not lone.cut
    second = Holder(99.9)
    assert limits.admit(second)
    limits.partial(second, 20 * KIB)
    assert (lone.cut, second.cut) == (True, False)


def test_a_request_that_the_bookie_has_paused_is_not_late() -> None:
    """Only its client can be late, and the time begins again when it may go on."""
    config = replace(SMALL, partial_frame_timeout_s=10.0, first_request_timeout_s=0.0)
    now_s = [100.0]
    limits = ConnectionLimits(config, lambda: now_s[0], lambda event, **fields: None)
    held, late = Holder(100.0), Holder(100.0)
    for one in (held, late):
        assert limits.admit(one)
        limits.partial(one, 20 * KIB)
    held.paused = True
    now_s[0] = 110.0
    limits.sweep()
    assert (held.cut, late.cut) == (False, False)
    now_s[0] = 110.5
    limits.sweep()
    assert (held.cut, late.cut) == (False, True)
    held.paused = False
    limits.sweep()
    assert held.cut


def test_a_connection_that_ends_releases_its_memory() -> None:
    config = replace(SMALL, max_partial_bytes=100 * KIB)
    limits = ConnectionLimits(config, lambda: 0.5, lambda event, **fields: None)
    for number in range(50):
        one = Holder(0.5)
        assert limits.admit(one)
        limits.partial(one, (20 + number) * KIB)
        limits.forget(one)
        assert (limits.partial_bytes, limits.connections, limits.newcomers) == (0, {}, {})
        assert not one.cut
