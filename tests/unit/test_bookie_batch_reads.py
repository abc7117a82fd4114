"""Batch reads of megabytes, from a real bookie over a real connection: whole, and in one piece."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.bookie import connection
from quire.codec import frames
from quire.codec.digest import DigestType, master_key
from quire.codec.entry import EntryCodec
from quire.config import BookieConfig
from tests.support.bookie import Peer, peer_of, running_bookie

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
async def test_a_batch_of_megabytes_comes_whole_between_other_answers(
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
