"""The answers of a real bookie over real sockets in protocol v3.

The tests cover recorded exchanges that need a bookie in a special state, long polls, deferred adds,
and explicit LACs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.server import Bookie
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.availability import decode_availability
from quire.codec.wire.messages_pb2 import Response
from quire.codec.wire.v2 import Code
from quire.config import BookieConfig
from tests.support.bookies.bookie import (
    SMALL,
    Peer,
    free_port,
    memory_metadata,
    peer_of,
    polls_wait,
    running_bookie,
)
from tests.support.bookies.v3 import KEY, entry

LIVE: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in json.loads((Path(__file__).parents[3] / "golden" / "wire-live.json").read_text())
}
PIGGYBACK_BYTES = 11


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    async with running_bookie(tmp_path / "bookie") as bookie:
        yield bookie


@pytest.fixture
async def peer(bookie: Bookie) -> AsyncIterator[Peer]:
    async with peer_of(bookie) as peer:
        yield peer


def add(txn: int, ledger: int, entry_id: int, lac: int = -1, **options: bool) -> bytes:
    return v3.add_request(txn, KEY, entry(ledger, entry_id, lac), ledger, entry_id, **options)


async def ask(peer: Peer, request: bytes) -> Response:
    answer = await peer.ask(request)
    assert answer, "the connection was closed"
    return v3.parse_response(answer[4:])


def code(answer: Response) -> int:
    return v3.status_of(answer, 0)


async def replay(peer: Peer, name: str) -> tuple[bytes, bytes]:
    """Return the answers of Apache's bookie and of ours."""
    vector = LIVE[name]
    return bytes.fromhex(vector["hex"] or ""), await peer.ask(
        bytes.fromhex(vector["inputs"]["request_hex"])
    )


# -- recorded from bookies in a special state -------------------------------------------------


async def test_a_read_only_bookie_answers_like_that_of_apache(bookie: Bookie, peer: Peer) -> None:
    await peer.ask(add(1, 2000, 0, -1))
    await peer.ask(add(2, 2000, 1, 0))
    await peer.ask(add(3, 3002, 0))
    bookie.service.writable = False
    async with peer_of(bookie) as v2:
        for name in (n for n in LIVE if n.startswith("live_ro_")):
            if name == "live_ro_add_prio":
                continue  # refused for want of room; here there is some: live_ro_hp_add_prio
            theirs, ours = await replay(v2 if "_v2_" in name else peer, name)
            if name == "live_ro_fence":
                fenced = v3.parse_response(ours[4:])
                assert fenced.readResponse.body == entry(2000, 1, 0)
                assert not fenced.readResponse.HasField("maxLAC")
            else:
                assert ours.hex() == theirs.hex(), name


async def test_a_bookie_with_a_loss_answers_like_that_of_apache_in_limbo(
    bookie: Bookie, peer: Peer
) -> None:
    """Our answers may differ from Apache's limbo by more entries, but never by a denial."""
    for name in ("live_db_add0", "live_db_add1"):
        theirs, ours = await replay(peer, name)
        assert ours == theirs
    bookie.store._catalogue.lossy.add(1)
    bookie.store._space_changed()
    assert bookie.store.negatives_unknown
    assert not bookie.service.writable
    async with peer_of(bookie) as v2:
        for name in ("live_db_limbo_v2_read_existing", "live_db_limbo_v2_read_missing"):
            theirs, ours = await replay(v2, name)
            assert ours == theirs, name
    theirs, ours = await replay(peer, "live_db_limbo_read_missing")
    assert ours == theirs
    found = v3.parse_response((await replay(peer, "live_db_limbo_read_existing"))[1][4:])
    assert code(found) == Code.OK
    assert found.readResponse.body == entry(1, 0)
    lac = v3.parse_response((await replay(peer, "live_db_limbo_readlac"))[1][4:])
    assert code(lac) == Code.OK
    assert lac.readLacResponse.lastEntryBody == entry(1, 1, 0)
    unknown = await ask(peer, v3.read_lac_request(20, 77))
    assert code(unknown) == Code.UNKNOWN_LEDGER_STATE
    added = v3.parse_response((await replay(peer, "live_db_limbo_add"))[1][4:])
    assert code(added) == Code.READ_ONLY
    fenced = v3.parse_response((await replay(peer, "live_db_limbo_fence"))[1][4:])
    assert code(fenced) == Code.OK
    assert bookie.store.ledgers[1].fenced


async def test_a_client_key_is_not_refused_if_the_stored_key_was_lost(
    bookie: Bookie, peer: Peer
) -> None:
    """One such bookie kept every client from recovering the ledger (found by the simulator)."""
    assert code(await ask(peer, add(1, 5, 0))) == Code.OK
    bookie.store.ledgers[5].master_key = b""
    assert code(await ask(peer, add(2, 5, 1))) == Code.IO_ERROR
    answers: list[int] = []
    assert bookie.service.fence(5, KEY, answers.append) == Code.UNKNOWN_LEDGER_STATE
    assert bookie.service.write_lac(5, 0, KEY, b"packet", answers.append) == Code.IO_ERROR
    assert answers == []
    assert not bookie.store.ledgers[5].fenced


async def test_the_newest_copy_of_an_entry_is_read(peer: Peer) -> None:
    """The read behaves like that of Apache's DbLedgerStorage, which answers no list requests."""
    for name in ("live_db_add0", "live_db_add1", "live_db_dup", "live_db_dup_read"):
        theirs, ours = await replay(peer, name)
        assert ours.hex() == theirs.hex(), name
    listed = v3.parse_response((await replay(peer, "live_db_list"))[1][4:])
    own = listed.getListOfEntriesOfLedgerResponse
    assert decode_availability(own.availabilityOfEntriesOfLedger) == [(0, 1)]


# -- adds -------------------------------------------------------------------------------------


async def test_many_adds_in_one_chunk_are_answered_in_order(bookie: Bookie, peer: Peer) -> None:
    count = 500
    peer.send(b"".join(add(txn, 5, txn, txn - 1) for txn in range(count)))
    for txn in range(count):
        answer = v3.parse_response((await peer.receive())[4:])
        assert code(answer) == Code.OK
        assert (answer.header.txnId, answer.addResponse.entryId) == (txn, txn)
    assert bookie.store.ledgers[5].last_entry_id == count - 1
    listed = await ask(peer, v3.list_entries_request(900, 5))
    own = listed.getListOfEntriesOfLedgerResponse
    assert decode_availability(own.availabilityOfEntriesOfLedger) == [(0, count - 1)]


async def test_both_protocols_share_a_ledger(bookie: Bookie, peer: Peer) -> None:
    async with peer_of(bookie) as v2:
        await v2.ask(frames.add_request(KEY, entry(6, 0)))
        await peer.ask(add(1, 6, 1, 0))
        answer = await v2.ask(frames.read_request(6, 1))
        assert answer == frames.read_response(0, 6, 1, entry(6, 1, 0))
        found = await ask(peer, v3.read_request(2, 6, 0))
        assert found.readResponse.body == entry(6, 0)
        assert found.readResponse.maxLAC == 0


async def test_a_deferred_add_is_answered_before_the_sync_and_forced_later(peer: Peer) -> None:
    """Answers of deferred adds do not wait, so they come first; the force comes last."""
    peer.send(
        add(1, 7, 0)
        + add(2, 7, 1, deferred_sync=True)
        + add(3, 7, 2, deferred_sync=True)
        + v3.force_request(4, 7)
    )
    order = [v3.parse_response((await peer.receive())[4:]).header.txnId for _ in range(4)]
    assert order == [2, 3, 1, 4]


async def test_a_read_only_bookie_refuses_deferred_adds(bookie: Bookie, peer: Peer) -> None:
    bookie.service.writable = False
    peer.send(b"".join(add(txn, 8, txn, deferred_sync=True) for txn in range(10)))
    for txn in range(10):
        answer = v3.parse_response((await peer.receive())[4:])
        assert (answer.header.txnId, code(answer)) == (txn, Code.READ_ONLY)


async def test_deferred_adds_are_answered_before_waiting_adds(peer: Peer) -> None:
    count = 50
    synced = [add(txn, 16, txn) for txn in range(count)]
    deferred = [add(count + txn, 16, count + txn, deferred_sync=True) for txn in range(count)]
    peer.send(b"".join(synced + deferred))
    order = [v3.parse_response((await peer.receive())[4:]).header.txnId for _ in range(2 * count)]
    assert order == [*range(count, 2 * count), *range(count)]


@pytest.mark.parametrize("count", [1, 50], ids=["single", "run"])
async def test_a_recovery_add_is_durable_when_it_is_answered_whatever_its_flags(
    peer: Peer, count: int
) -> None:
    """A recovery closes the ledger with it. Nobody forces it afterwards."""
    flags = {"deferred_sync": True, "recovery": True}
    adds = [add(txn, 17, txn, **flags) for txn in range(count)]
    peer.send(b"".join(adds) + add(count, 17, count, deferred_sync=True))
    order = [v3.parse_response((await peer.receive())[4:]).header.txnId for _ in range(count + 1)]
    assert order == [count, *range(count)]


async def test_a_force_after_a_disk_failure_is_answered_with_an_error(
    bookie: Bookie, peer: Peer
) -> None:
    await peer.ask(add(1, 9, 0, deferred_sync=True))
    bookie.store._disk_failed(OSError("gone"))
    async with asyncio.timeout(20):
        await bookie.failed
    answer = await ask(peer, v3.force_request(2, 9))
    assert code(answer) == Code.IO_ERROR
    answer = await ask(peer, add(3, 9, 1, deferred_sync=True))
    assert code(answer) == Code.IO_ERROR


@pytest.mark.parametrize("key", [b"", b"short", KEY + b"x"])
async def test_a_key_of_wrong_length_is_refused(peer: Peer, key: bytes) -> None:
    body = entry(10, 0)
    assert code(await ask(peer, v3.add_request(1, key, body, 10, 0))) == Code.UNAUTHORIZED
    packet = EntryCodec(10, DigestType.CRC32C, b"").pack_lac(0)
    assert code(await ask(peer, v3.write_lac_request(2, 10, 0, key, packet))) == Code.UNAUTHORIZED
    fence = v3.read_request(3, 10, -1, fence_with=key)
    assert code(await ask(peer, fence)) == Code.UNAUTHORIZED
    assert code(await ask(peer, v3.read_request(4, 10, 0))) == Code.NO_LEDGER


@pytest.mark.parametrize("size", [0, 15, 16, 23])
async def test_a_body_too_short_to_be_an_entry_is_refused(peer: Peer, size: int) -> None:
    answer = await ask(peer, v3.add_request(1, KEY, entry(11, 0)[:size], 11, 0))
    assert code(answer) == Code.BAD_REQUEST


async def test_negative_entry_ids_are_refused(peer: Peer) -> None:
    for entry_id in (-1, -5, -0x1000):
        answer = await ask(peer, v3.add_request(1, KEY, entry(12, entry_id), 12, entry_id))
        assert code(answer) == Code.BAD_REQUEST
    answer = await ask(peer, v3.read_request(2, 12, -2))
    assert code(answer) == Code.BAD_REQUEST


async def test_negative_ledger_ids_are_refused(bookie: Bookie, peer: Peer) -> None:
    """No list of ledgers contains a negative id, so it would never be collected."""
    for ledger_id in (-1, -5, -(2**63)):
        packet = EntryCodec(ledger_id, DigestType.CRC32C, b"").pack_lac(0)
        for request in (
            v3.add_request(1, KEY, entry(ledger_id, 0), ledger_id, 0),
            v3.read_request(2, ledger_id, -1, fence_with=KEY),
            v3.write_lac_request(3, ledger_id, 0, KEY, packet),
        ):
            assert code(await ask(peer, request)) == Code.BAD_REQUEST
    await bookie.collect_garbage()
    assert bookie.store.ledger_ids() == []


# -- last add confirmed -----------------------------------------------------------------------


async def test_an_explicit_lac_is_kept_over_a_restart(tmp_path: Path) -> None:
    codec = EntryCodec(13, DigestType.CRC32C, b"testPasswd")
    metadata = memory_metadata()
    port = free_port()
    async with (
        running_bookie(tmp_path / "bookie", metadata=metadata, port=port) as bookie,
        peer_of(bookie) as peer,
    ):
        for entry_id in range(3):
            await peer.ask(add(entry_id, 13, entry_id, entry_id - 1))
        for lac in (2, 1):  # also a lower one replaces the packet, as in Apache's
            packet = codec.pack_lac(lac)
            assert code(await ask(peer, v3.write_lac_request(9, 13, lac, KEY, packet))) == Code.OK
    async with (
        running_bookie(tmp_path / "bookie", metadata=metadata, port=port) as bookie,
        peer_of(bookie) as peer,
    ):
        known = await ask(peer, v3.read_lac_request(1, 13))
        assert codec.unpack_lac(known.readLacResponse.lacBody) == 1
        assert known.readLacResponse.lastEntryBody == entry(13, 2, 1)
        found = await ask(peer, v3.read_request(2, 13, 0))
        assert found.readResponse.maxLAC == 2


async def test_an_invalid_lac_packet_is_refused(peer: Peer) -> None:
    assert code(await ask(peer, v3.write_lac_request(1, 14, 0, KEY, b"short"))) == Code.BAD_REQUEST


async def test_a_lac_packet_that_is_much_too_long_is_refused(peer: Peer) -> None:
    """A bookie keeps the newest packet of each ledger in memory, so its size has a bound."""
    await peer.ask(add(1, 14, 0))
    packet = EntryCodec(14, DigestType.HMAC, b"").pack_lac(0)
    for txn, size in ((2, 1025), (3, 1_000_000)):
        answer = await ask(peer, v3.write_lac_request(txn, 14, 0, KEY, packet.ljust(size)))
        assert code(answer) == Code.BAD_REQUEST
    known = await ask(peer, v3.read_lac_request(4, 14))
    assert not known.readLacResponse.HasField("lacBody")
    for txn, size in ((5, 1024), (6, len(packet))):
        answer = await ask(peer, v3.write_lac_request(txn, 14, 0, KEY, packet.ljust(size)))
        assert code(answer) == Code.OK


async def test_the_wrong_key_writes_no_lac(peer: Peer) -> None:
    await peer.ask(add(1, 15, 0))
    packet = EntryCodec(15, DigestType.CRC32C, b"").pack_lac(0)
    answer = await ask(peer, v3.write_lac_request(2, 15, 0, master_key(b"other"), packet))
    assert code(answer) == Code.UNAUTHORIZED
    known = await ask(peer, v3.read_lac_request(3, 15))
    assert not known.readLacResponse.HasField("lacBody")


# -- long polls -------------------------------------------------------------------------------


async def test_an_add_that_moves_the_lac_wakes_the_reader(bookie: Bookie, peer: Peer) -> None:
    async with peer_of(bookie) as tail:
        await peer.ask(add(1, 20, 0))
        tail.send(v3.long_poll_request(1, 20, -1, 30_000))
        await polls_wait(bookie, 1)
        await peer.ask(add(2, 20, 1))  # with LAC -1: nothing new is acknowledged
        assert bookie.service.long_polls.count == 1
        await peer.ask(add(3, 20, 2, lac=1))
        woken = v3.parse_response((await tail.receive())[4:])
        assert woken.readResponse.entryId == 0
        assert woken.readResponse.body == entry(20, 0)
        assert woken.readResponse.maxLAC == 1
        assert woken.readResponse.lacUpdateTimestamp > 1_600_000_000_000
        again = await ask(tail, v3.long_poll_request(2, 20, 0, 30_000))
        assert again.readResponse.entryId == 1  # known already: no wait, no time stamp
        assert not again.readResponse.HasField("lacUpdateTimestamp")


async def test_a_lac_that_the_reader_already_knows_does_not_wake_it(
    bookie: Bookie, peer: Peer
) -> None:
    """The reader learned the LAC from another bookie. An answer would make it poll in a loop."""
    async with peer_of(bookie) as tail:
        await peer.ask(add(1, 30, 0))
        tail.send(v3.long_poll_request(1, 30, 1, 30_000))
        await polls_wait(bookie, 1)
        for entry_id, lac in ((1, 0), (2, 1), (3, 1)):
            await peer.ask(add(entry_id + 1, 30, entry_id, lac=lac))
            assert bookie.service.long_polls.count == 1
        await peer.ask(add(5, 30, 4, lac=2))
        woken = v3.parse_response((await tail.receive())[4:])
        assert woken.readResponse.maxLAC == 2


async def test_an_explicit_lac_wakes_the_reader(bookie: Bookie, peer: Peer) -> None:
    codec = EntryCodec(21, DigestType.CRC32C, b"testPasswd")
    async with peer_of(bookie) as tail:
        await peer.ask(add(1, 21, 0))
        tail.send(v3.long_poll_request(1, 21, -1, 30_000))
        await polls_wait(bookie, 1)
        await peer.ask(v3.write_lac_request(2, 21, 0, KEY, codec.pack_lac(0)))
        woken = v3.parse_response((await tail.receive())[4:])
        assert woken.readResponse.entryId == 0
        assert woken.readResponse.explicitLac == codec.pack_lac(0)
        await peer.ask(add(3, 21, 1, lac=0))
        await peer.ask(add(4, 21, 2, lac=1))
        later = await ask(tail, v3.long_poll_request(2, 21, 0, 30_000))
        assert later.readResponse.maxLAC == 1
        assert not later.readResponse.HasField("explicitLac")  # it proves less
        await peer.ask(v3.write_lac_request(5, 21, 1, KEY, codec.pack_lac(1)))
        plain = await ask(peer, v3.read_request(6, 21, 1))
        assert not plain.readResponse.HasField("explicitLac")


async def test_a_reader_waiting_for_the_last_entry_receives_the_one_that_wakes_it(
    bookie: Bookie, peer: Peer
) -> None:
    """The entry carries the LAC and proves it."""
    async with peer_of(bookie) as tail:
        await peer.ask(add(1, 29, 0))
        tail.send(v3.long_poll_request(1, 29, -1, 30_000, last_entry=True))
        await polls_wait(bookie, 1)
        await peer.ask(add(2, 29, 1, lac=0))
        woken = v3.parse_response((await tail.receive())[4:])
        assert woken.readResponse.body == entry(29, 1, lac=0)


async def test_a_long_poll_returns_no_entry_that_is_not_known_to_be_acknowledged(
    peer: Peer,
) -> None:
    await peer.ask(add(1, 22, 0))
    answer = await ask(peer, v3.long_poll_request(2, 22, -1, 20))
    assert code(answer) == Code.OK
    assert answer.readResponse.entryId == -1
    assert answer.readResponse.maxLAC == -1
    assert not answer.readResponse.HasField("body")


async def test_a_long_poll_returns_only_the_lac_if_another_bookie_has_the_entry(peer: Peer) -> None:
    """In a striped ledger, the LAC moved past an entry that this bookie does not store."""
    await peer.ask(add(1, 23, 1, lac=0))
    answer = await ask(peer, v3.long_poll_request(2, 23, -1, 30_000))
    assert code(answer) == Code.OK
    assert answer.readResponse.entryId == -1
    assert answer.readResponse.maxLAC == 0


async def test_a_fence_ends_a_long_poll(bookie: Bookie, peer: Peer) -> None:
    async with peer_of(bookie) as tail:
        await peer.ask(add(1, 24, 0))
        tail.send(v3.long_poll_request(1, 24, -1, 30_000))
        await polls_wait(bookie, 1)
        await peer.ask(v3.read_request(2, 24, -1, fence_with=KEY))
        woken = v3.parse_response((await tail.receive())[4:])
        assert woken.readResponse.entryId == -1


async def test_the_deletion_of_its_ledger_ends_a_long_poll(bookie: Bookie, peer: Peer) -> None:
    async with peer_of(bookie) as tail:
        await peer.ask(add(1, 25, 0))
        tail.send(v3.long_poll_request(1, 25, -1, 30_000))
        await polls_wait(bookie, 1)
        await bookie.collect_garbage()  # The metadata store never knew it.
        woken = v3.parse_response((await tail.receive())[4:])
        assert code(woken) == Code.NO_LEDGER


async def test_the_long_polls_of_a_closed_connection_are_forgotten(
    bookie: Bookie, peer: Peer
) -> None:
    await peer.ask(add(1, 26, 0))
    async with peer_of(bookie) as tail:
        for txn in range(10):
            tail.send(v3.long_poll_request(txn, 26, -1, 30_000))
        await polls_wait(bookie, 10)
    await polls_wait(bookie, 0)
    assert 26 not in bookie.service.long_polls


async def test_a_stopping_bookie_answers_its_long_polls(tmp_path: Path) -> None:
    async with (
        running_bookie(tmp_path / "bookie") as bookie,
        peer_of(bookie) as peer,
        peer_of(bookie) as tail,
    ):
        await peer.ask(add(1, 27, 0))
        tail.send(v3.long_poll_request(1, 27, -1, 30_000))
        await polls_wait(bookie, 1)
        await bookie.stop()
        woken = v3.parse_response((await tail.receive())[4:])
        assert woken.readResponse.entryId == -1


async def test_long_polls_over_the_limit_are_refused(tmp_path: Path) -> None:
    limit = BookieConfig(max_long_polls=3, segment_bytes=SMALL.segment_bytes, min_free_bytes=0)
    async with running_bookie(tmp_path / "bookie", limit) as bookie, peer_of(bookie) as peer:
        await peer.ask(add(1, 28, 0))
        for txn in range(3):
            peer.send(v3.long_poll_request(txn, 28, -1, 30_000))
        answer = await ask(peer, v3.long_poll_request(4, 28, -1, 30_000))
        assert code(answer) == Code.TOO_MANY_REQUESTS


# -- the rest ---------------------------------------------------------------------------------


async def test_operations_that_v3_does_not_have_are_refused(peer: Peer) -> None:
    for operation in (3, 4, 12):
        header = b"\x0a\x06\x08\x03\x10" + bytes((operation,)) + b"\x18\x05"
        answer = await ask(peer, frames.LENGTH.pack(len(header)) + header)
        assert code(answer) == Code.BAD_REQUEST
        assert [field.number for field, _ in answer.ListFields()] == [1, 2]


async def test_another_version_is_refused_for_every_operation(peer: Peer) -> None:
    for build in (
        v3.read_lac_request, v3.force_request, v3.list_entries_request, v3.bookie_info_request,
    ):  # fmt: skip
        request = bytearray(build(7, 1))
        assert request[6:8] == b"\x08\x03"
        request[7] = 2
        answer = await ask(peer, bytes(request))
        assert code(answer) == Code.BAD_VERSION
        inner = answer.ListFields()[2][1]
        assert inner.status == answer.status


async def test_a_fence_needs_its_whole_key_in_its_own_frame(bookie: Bookie, peer: Peer) -> None:
    """The parser once read the key on into the next frame."""
    async with peer_of(bookie) as v2:
        short = frames.read_request(30, -1, frames.Flag.DO_FENCING, KEY)[4:-10]
        v2.send(frames.LENGTH.pack(len(short)) + short + frames.read_request(30, 0))
        assert await v2.receive() == b""
    assert 30 not in bookie.store.ledgers


async def test_an_entry_larger_than_a_segment_is_refused_with_an_event(tmp_path: Path) -> None:
    """The writer learns only that there is an I/O error, so the log says what to change."""
    events: list[tuple[str, dict[str, object]]] = []
    small = BookieConfig(segment_bytes=64 * 1024, min_free_bytes=0)
    async with running_bookie(
        tmp_path / "bookie", small, log=lambda event, **fields: events.append((event, fields))
    ) as bookie, peer_of(bookie) as peer:  # fmt: skip
        large = v3.add_request(1, KEY, entry(7, 0, payload=bytes(100_000)), 7, 0)
        assert code(await ask(peer, large)) == Code.IO_ERROR
    [said] = [str(fields["error"]) for event, fields in events if event == "entry_refused"]
    assert re.fullmatch(
        r"entries that take 1\d\d,\d{3} bytes of the log together do not fit into a segment of "
        r"65,536 bytes\. Raise segment_bytes of the bookie",
        said,
    )


async def test_a_bookie_on_a_full_disk_never_registers_as_writable(tmp_path: Path) -> None:
    """A bookie once registered as writable, and moved to the read-only bookies after a disk check.

    Clients chose it meanwhile, and Apache's clients lost its address when it moved.
    """
    metadata = memory_metadata()
    seen: list[bool] = []
    watch = metadata.watch_bookies(lambda bookies: seen.append(bool(bookies.writable)))
    full = BookieConfig(segment_bytes=SMALL.segment_bytes, min_free_bytes=2**60)
    events: list[tuple[str, dict[str, object]]] = []
    async with running_bookie(
        tmp_path / "bookie",
        full,
        metadata,
        log=lambda event, **fields: events.append((event, fields)),
    ) as bookie:
        [why] = [str(fields["why"]) for event, fields in events if event == "read_only"]
        assert re.fullmatch(rf"{tmp_path}/bookie: \d+ bytes are free, less than {2**60}", why)
        bookie.hold_readonly(True)
        assert str(events[-1][1]["why"]) == f"an operator has made it read-only; {why}"
        [told] = [str(fields["report"]) for event, fields in events if event == "recovered"]
        assert told == "1 segment, 0 ledgers; new, or not stopped cleanly: 0 groups scanned"
        assert not bookie.service.writable
        assert bookie.bookie_id in (await metadata.bookies()).readonly
    watch.close()
    assert not any(seen)
