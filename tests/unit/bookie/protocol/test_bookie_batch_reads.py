"""Batch reads from a real bookie over a real connection.

They return megabytes, complete and in one piece, and some wait for later entries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.bookie.protocol import connection
from quire.bookie.protocol import v2 as protocol_v2
from quire.bookie.server import Bookie
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.config import BookieConfig
from tests.support.bookies.bookie import Peer, peer_of, polls_wait, running_bookie

KEY = master_key(b"")
LEDGER = 7
COUNT = 3_000
MOST_BYTES = 4_000_000


def entry(entry_id: int, sizes: tuple[int, ...]) -> bytes:
    codec = EntryCodec(LEDGER, DigestType.CRC32C, b"")
    payload = bytes([entry_id % 251]) * sizes[entry_id % len(sizes)]
    return codec.pack(entry_id, entry_id - 1, 0, payload)


async def add(peer: Peer, entries: list[bytes]) -> None:
    for entry_id, one in enumerate(entries):
        peer.send(frames.add_request(KEY, one))
        if entry_id % 100 == 99:
            for before in range(entry_id - 99, entry_id + 1):
                assert await peer.receive() == frames.add_response(0, LEDGER, before)


@pytest.mark.parametrize("sizes", [(1024,), (900, 1100, 17)], ids=["equal", "mixed"])
async def test_a_batch_of_megabytes_arrives_complete_between_other_answers(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    entries = [entry(entry_id, sizes) for entry_id in range(COUNT)]
    async with running_bookie(tmp_path, BookieConfig()) as bookie, peer_of(bookie) as peer:
        await add(peer, entries)
        at = 0
        while at < COUNT:
            peer.send(frames.batch_read_request(LEDGER, at, at, COUNT, MOST_BYTES))
            for number in range(5):
                peer.send(frames.read_request(LEDGER, number))
            answers = [await peer.receive() for _ in range(6)]
            singles = [frames.read_response(0, LEDGER, n, entries[n]) for n in range(5)]
            [batch] = [one for one in answers if one not in singles]
            assert [one for one in answers if one in singles] == singles
            size = frames.BATCH_READ_BASE_BYTES
            upto = at
            while upto < COUNT and size + len(entries[upto]) + 4 <= MOST_BYTES:
                size += len(entries[upto]) + 4
                upto += 1
            assert batch == frames.batch_read_response(0, LEDGER, at, at, entries[at:upto])
            assert len(batch) > connection.JOINED_MAX_BYTES or upto == COUNT
            at = upto
        assert bookie.service.counters.reads_from_disk > 0
        wanted = sum(map(len, entries))
        assert bookie.service.counters.read_bytes >= wanted
        assert await peer.ask(frames.batch_read_request(LEDGER, COUNT, 1, 10, MOST_BYTES)) == (
            frames.batch_read_response(frames.Code.NO_ENTRY, LEDGER, COUNT, 1)
        )


# -- waiting for what comes next --------------------------------------------------------------

WAIT = int(frames.Flag.WAIT)
SIZES = (10,)


def batch_from(first: int, flags: int = WAIT) -> bytes:
    return frames.batch_read_request(LEDGER, first, first, 100, MOST_BYTES, flags)


def answer_of(first: int, last: int) -> bytes:
    entries = [entry(entry_id, SIZES) for entry_id in range(first, last + 1)]
    return frames.batch_read_response(0, LEDGER, first, first, entries)


def nothing_from(first: int) -> bytes:
    return frames.batch_read_response(frames.Code.NO_ENTRY, LEDGER, first, first)


async def add_at_once(peer: Peer, first: int, last: int) -> None:
    wanted = range(first, last + 1)
    peer.send(b"".join(frames.add_request(KEY, entry(entry_id, SIZES)) for entry_id in wanted))
    for entry_id in wanted:
        assert await peer.receive() == frames.add_response(0, LEDGER, entry_id)


@pytest.fixture
async def bookie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bookie]:
    """Run a bookie that answers nobody because of a timeout."""
    monkeypatch.setattr(protocol_v2, "BATCH_WAIT_S", 60.0)
    async with running_bookie(tmp_path, BookieConfig()) as running:
        yield running


@pytest.fixture
async def peer(bookie: Bookie) -> AsyncIterator[Peer]:
    async with peer_of(bookie) as connected:
        yield connected


async def test_a_waiting_reader_receives_all_entries_added_next(bookie: Bookie, peer: Peer) -> None:
    async with peer_of(bookie) as tail:
        await add_at_once(peer, 0, 4)
        assert await tail.ask(batch_from(2)) == answer_of(2, 4)  # it is here
        assert await tail.ask(batch_from(5, flags=0)) == nothing_from(5)
        tail.send(batch_from(5))
        await polls_wait(bookie, 1)
        await add_at_once(peer, 5, 9)
        assert await tail.receive() == answer_of(5, 9)
        assert bookie.service.long_polls.count == 0


async def test_a_fence_ends_a_waiting_batch_read(bookie: Bookie, peer: Peer) -> None:
    async with peer_of(bookie) as tail:
        await add_at_once(peer, 0, 0)
        tail.send(batch_from(1))
        await polls_wait(bookie, 1)
        fencing = int(frames.Flag.DO_FENCING)
        await peer.ask(frames.read_request(LEDGER, 0, fencing, KEY))
        assert await tail.receive() == nothing_from(1)
        assert await tail.ask(batch_from(1)) == nothing_from(1)  # nothing will come


async def test_a_waiting_reader_that_disconnects_is_forgotten(bookie: Bookie, peer: Peer) -> None:
    await add_at_once(peer, 0, 0)
    async with peer_of(bookie) as tail:
        tail.send(batch_from(1))
        await polls_wait(bookie, 1)
    await polls_wait(bookie, 0)


async def test_a_batch_read_waits_only_within_its_limits(tmp_path: Path) -> None:
    limit = BookieConfig(max_long_polls=0)
    async with running_bookie(tmp_path / "a", BookieConfig()) as bookie, peer_of(bookie) as peer:
        assert await peer.ask(batch_from(0)) == frames.batch_read_response(
            frames.Code.NO_LEDGER, LEDGER, 0, 0
        )
        await add_at_once(peer, 0, 0)
        assert await peer.ask(batch_from(1)) == nothing_from(1)
    async with running_bookie(tmp_path / "b", limit) as bookie, peer_of(bookie) as peer:
        await add_at_once(peer, 0, 0)
        assert await peer.ask(batch_from(1)) == nothing_from(1)
