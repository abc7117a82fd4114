"""The memory that answers take for one connection, for the bookie, and after connections end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quire.bookie.protocol import answer_budget, connection
from quire.bookie.server import Bookie
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.v2 import Code
from quire.config import BookieConfig
from quire.storage.store import LedgerStore
from tests.support.bookies.bookie import Peer, peer_of, running_bookie
from tests.support.waiting import until

KEY = master_key(b"")
LEDGER = 7
MIB = 1024 * 1024
ENTRY_BYTES = 64 * 1024
COUNT = 64
LIMITS = BookieConfig(
    segment_bytes=64 * MIB,
    min_free_bytes=0,
    max_unsent_bytes=8 * MIB,
    max_answer_bytes=16 * MIB,
)
ALL = frames.batch_read_request(LEDGER, 0, 1, COUNT, 5 * MIB)
"""A batch read of all entries, 4 MiB."""
ALL_BYTES = COUNT * (ENTRY_BYTES + 4)


def entry(entry_id: int, size: int = ENTRY_BYTES) -> bytes:
    codec = EntryCodec(LEDGER, DigestType.CRC32C, b"")
    return codec.pack(entry_id, entry_id - 1, 0, bytes([entry_id % 251]) * (size - 36))


async def fill(peer: Peer) -> None:
    for entry_id in range(COUNT):
        answer = await peer.ask(frames.add_request(KEY, entry(entry_id)))
        assert answer == frames.add_response(0, LEDGER, entry_id)


@asynccontextmanager
async def filled(tmp_path: Path, config: BookieConfig = LIMITS) -> AsyncIterator[Bookie]:
    async with running_bookie(tmp_path, config) as bookie:
        async with peer_of(bookie) as peer:
            await fill(peer)
        yield bookie


@asynccontextmanager
async def deaf_peer(bookie: Bookie, buffer_bytes: int = 4096) -> AsyncIterator[socket.socket]:
    """A client that takes next to nothing of its answers, but what its socket's buffer holds."""
    address = (await bookie.metadata.bookies()).find(bookie.bookie_id)
    assert address is not None
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
        yield sock


def spy_on_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The entries that reads of the disk began with."""
    begun: list[int] = []
    real = LedgerStore.read_blocking

    async def read_blocking(self: LedgerStore, ledger: int, first: int, *more: int) -> object:
        begun.append(first)
        return await real(self, ledger, first, *more)

    monkeypatch.setattr(LedgerStore, "read_blocking", read_blocking)
    return begun


async def test_a_read_that_ends_with_an_unexpected_error_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waited for its answer until the connection ended, and so did fencing reads."""

    async def fails(self: LedgerStore, *asked: int) -> object:
        raise MemoryError("no memory for the answer")

    reported: list[object] = []
    loop = asyncio.get_running_loop()
    async with filled(tmp_path) as bookie, peer_of(bookie) as peer:
        monkeypatch.setattr(LedgerStore, "read_blocking", fails)
        monkeypatch.setattr(LedgerStore, "entry_ranges", fails)
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        answer = await peer.ask(ALL)
        assert answer == frames.batch_read_response(Code.IO_ERROR, LEDGER, 0, 1)
        async with peer_of(bookie) as other:
            listed = v3.parse_response((await other.ask(v3.list_entries_request(5, LEDGER)))[4:])
        assert v3.status_of(listed, 0) == Code.IO_ERROR
        assert listed.header.txnId == 5
        assert [type(error) for error in reported] == [MemoryError, MemoryError]
        await until(lambda: bookie.service.answers.held_bytes == 0)


async def test_pipelined_batch_reads_stay_within_the_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """11 KB of requests once produced a gigabyte of answers."""
    begun = spy_on_reads(monkeypatch)
    async with filled(tmp_path) as bookie, peer_of(bookie) as peer:
        answers = bookie.service.answers
        answers.peak_bytes = 0
        peer.send(ALL * 60)
        for _ in range(60):
            assert len(await peer.receive()) > ALL_BYTES
        assert len(begun) == 60
        assert answers.peak_bytes <= LIMITS.max_unsent_bytes + ALL_BYTES + 4096
        assert answers.counters.waited >= 50
        await until(lambda: answers.held_bytes == 0)
        assert answers.requests_waiting == answers.accounts_waiting == 0


async def test_pipelined_single_reads_of_cached_entries_stay_within_the_share(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as bookie, deaf_peer(bookie) as sock:
        answers = bookie.service.answers
        answers.peak_bytes = 0
        loop = asyncio.get_running_loop()
        requests = b"".join(frames.read_request(LEDGER, n % COUNT) for n in range(1_000))
        await loop.sock_sendall(sock, requests)
        await until(lambda: answers.requests_waiting > 0)
        await until(lambda: answers.held_bytes >= LIMITS.max_unsent_bytes)
        assert answers.peak_bytes <= LIMITS.max_unsent_bytes + ENTRY_BYTES + 4096
        assert len(bookie.service.connections) == 1


async def test_reads_of_a_closed_connection_are_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = spy_on_reads(monkeypatch)
    async with filled(tmp_path) as bookie:
        service = bookie.service
        async with deaf_peer(bookie) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, ALL * 250)
            await until(lambda: service.answers.requests_waiting > 200)
        await until(lambda: not service.connections)
        executed = len(begun)
        assert executed < 10
        await until(lambda: service.answers.held_bytes == 0)
        assert service.answers.requests_waiting == 0
        async with peer_of(bookie) as peer:
            await peer.ask(ALL)
        assert len(begun) == executed + 1
        assert service.answers.counters.dropped > 200


async def test_a_fence_or_poll_of_a_closed_connection_reads_nothing(tmp_path: Path) -> None:
    async with filled(tmp_path) as bookie:
        async with peer_of(bookie) as peer:
            peer.send(v3.long_poll_request(1, LEDGER, COUNT - 2, 60_000))
            await until(lambda: bookie.service.long_polls.count == 1)
            [connection] = bookie.service.connections
            [request] = connection.polls
        await until(lambda: not bookie.service.connections)
        reads = bookie.service.counters.reads
        request.ready(True)
        assert bookie.service.counters.reads == reads


async def test_answers_have_a_total_limit_that_connections_share_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that receive nothing use up the limit. They are closed, and others are served."""
    monkeypatch.setattr(answer_budget, "PRESSED_STALL_S", 0.2)
    async with filled(tmp_path) as bookie:
        answers = bookie.service.answers
        answers.peak_bytes = 0
        async with deaf_peer(bookie) as a, deaf_peer(bookie) as b, deaf_peer(bookie) as c:
            loop = asyncio.get_running_loop()
            for sock in (a, b, c):
                await loop.sock_sendall(sock, ALL * 400)
            await until(lambda: answers.held_bytes > 2 * ALL_BYTES)
            async with peer_of(bookie) as peer:
                for _ in range(3):
                    assert len(await peer.ask(ALL)) > ALL_BYTES
                # Adds do not wait for any of this.
                added = await peer.ask(frames.add_request(KEY, entry(COUNT, 100)))
                assert added == frames.add_response(0, LEDGER, COUNT)
                await until(lambda: answers.counters.stalled >= 1)
        assert answers.peak_bytes <= LIMITS.max_answer_bytes + ALL_BYTES + 4096


async def test_small_reads_do_not_wait_for_clients_that_receive_nothing(tmp_path: Path) -> None:
    """Neither do large reads of a client that has received its earlier answers."""
    async with filled(tmp_path) as bookie, peer_of(bookie) as known:
        answers = bookie.service.answers
        assert await known.ask(frames.read_request(LEDGER, 0))
        async with deaf_peer(bookie) as a, deaf_peer(bookie) as b, deaf_peer(bookie) as c:
            loop = asyncio.get_running_loop()
            for sock in (a, b, c):
                await loop.sock_sendall(sock, ALL * 400)
            await until(lambda: answers.held_bytes > 2 * ALL_BYTES)
            await until(lambda: len(answers._late) > 0)
            async with peer_of(bookie) as new:
                for entry_id in range(20):
                    found = await new.ask(frames.read_request(LEDGER, entry_id))
                    assert found == frames.read_response(0, LEDGER, entry_id, entry(entry_id))
            for _ in range(3):
                assert len(await known.ask(ALL)) > ALL_BYTES
            assert answers.counters.stalled == 0


async def test_adds_after_waiting_reads_are_accepted(tmp_path: Path) -> None:
    """The connection has no budget left for answers to its reads."""
    async with filled(tmp_path) as bookie, deaf_peer(bookie) as sock:
        loop = asyncio.get_running_loop()
        before = bookie.service.counters.adds
        await loop.sock_sendall(sock, ALL * 100 + frames.add_request(KEY, entry(COUNT, 100)))
        await until(lambda: bookie.service.counters.adds == before + 1)
        assert bookie.service.answers.requests_waiting > 0


async def test_an_answer_larger_than_every_limit_is_sent_alone(tmp_path: Path) -> None:
    tiny = replace(LIMITS, max_unsent_bytes=1, max_answer_bytes=1)
    async with filled(tmp_path, tiny) as bookie, peer_of(bookie) as peer:
        peer.send(ALL * 3 + frames.read_request(LEDGER, 5) * 3)
        found = sorted([len(await peer.receive()) for _ in range(6)])
        assert found[2] == ENTRY_BYTES + 28
        assert found[3] > ALL_BYTES
        peer.send(v3.list_entries_request(9, LEDGER) * 2)
        assert len(await peer.receive()) < 1024
        assert len(await peer.receive()) < 1024


async def test_too_many_requests_stop_the_connection_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_budget, "MAX_WAITING_REQUESTS", 10)
    async with filled(tmp_path) as bookie, peer_of(bookie) as peer:
        wanted = 100
        requests = [frames.batch_read_request(LEDGER, 0, n, COUNT, 5 * MIB) for n in range(wanted)]
        peer.send(b"".join(requests) + frames.read_request(LEDGER, 3))
        await until(lambda: bookie.service.answers.counters.waited > 0)
        got = []
        for _ in range(wanted + 1):
            assert bookie.service.answers.requests_waiting <= 11
            got.append(await peer.receive())
        assert sum(len(one) > ALL_BYTES for one in got) == wanted
        ids = {frames.BATCH_RESPONSE.unpack_from(one)[5] for one in got if len(one) > ALL_BYTES}
        assert ids == set(range(wanted))
        assert frames.read_response(0, LEDGER, 3, entry(3)) in got


async def test_the_connection_of_a_client_that_receives_nothing_is_closed(tmp_path: Path) -> None:
    config = replace(LIMITS, unsent_timeout_s=0.3)
    async with filled(tmp_path, config) as bookie, deaf_peer(bookie) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, ALL)
        await until(lambda: bookie.service.answers.held_bytes > 0)
        await until(lambda: not bookie.service.connections)
        assert bookie.service.answers.held_bytes == 0
        assert bookie.service.answers.counters.stalled == 1


async def test_the_connection_of_a_slow_client_is_kept(tmp_path: Path) -> None:
    config = replace(LIMITS, unsent_timeout_s=0.5)
    async with filled(tmp_path, config) as bookie, deaf_peer(bookie, 128 * 1024) as sock:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, ALL)
        left, began = ALL_BYTES, loop.time()
        while left > 0:
            left -= len(await loop.sock_recv(sock, 64 * 1024))
            await asyncio.sleep(0.02)
        assert loop.time() - began > 2 * config.unsent_timeout_s
        assert bookie.service.answers.counters.stalled == 0


async def test_one_connection_has_a_share_of_the_long_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_POLLS", 3)
    async with filled(tmp_path) as bookie, peer_of(bookie) as peer, peer_of(bookie) as other:
        polls = [v3.long_poll_request(txn, LEDGER, COUNT, 60_000) for txn in range(1, 5)]
        answer = v3.parse_response((await peer.ask(b"".join(polls)))[4:])
        assert answer.header.txnId == 4
        assert v3.status_of(answer, answer.readResponse.status) == Code.TOO_MANY_REQUESTS
        other.send(polls[0])
        await until(lambda: bookie.service.long_polls.count == 4)


async def test_answers_about_missing_entries_need_no_budget(tmp_path: Path) -> None:
    async with filled(tmp_path) as bookie, peer_of(bookie) as peer:
        answer = await peer.ask(frames.read_request(LEDGER, 10**6))
        assert answer == frames.read_response(Code.NO_ENTRY, LEDGER, 10**6)
        await peer.ask(frames.read_request(10**6, 0))
        await until(lambda: bookie.service.answers.held_bytes == 0)
