"""The client's side of protocol v3, with a bookie whose answers the test gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.availability import encode_availability
from quire.codec.wire.messages_pb2 import Request
from quire.codec.wire.v2 import MAX_FRAME_BYTES, Code
from quire.codec.wire.v3_adds import (
    MAX_HEAD_BYTES,
    DeferredAddEncoder,
    max_deferred_payload_bytes,
)
from quire.errors import (
    BookieBusyError,
    BookieIOError,
    BookieReadOnlyError,
    BookieUnavailableError,
    DataUnknownError,
    LedgerFencedError,
    ProtocolError,
    QuireError,
    UnauthorizedError,
)
from quire.net import control
from quire.net.answer_codes import NoEntryAnswer
from quire.net.control import BookieInfo, ControlChannel, LacAnswer, PollAnswer
from quire.net.network import AsyncioNetwork
from tests.support.bookies.scripted_bookie import (
    Answer,
    ScriptedBookie,
    answer_to,
    lac_answer,
    poll_answer,
)

KEY = master_key(b"")


@asynccontextmanager
async def connected(bookie: ScriptedBookie) -> AsyncIterator[ControlChannel]:
    async with bookie:
        channel = ControlChannel("b:1")
        await AsyncioNetwork().connect("127.0.0.1", bookie.port, lambda: channel)
        try:
            yield channel
        finally:
            channel.close()


class Sink:
    """Records what a writer hears about its adds."""

    def __init__(self) -> None:
        self.acked: list[list[int]] = []
        self.failed: list[tuple[int, QuireError]] = []
        self.lost: BookieUnavailableError | None = None
        self.heard = asyncio.Event()

    def on_acked_run(self, first: int, last: int) -> None:
        self.on_acked(list(range(first, last + 1)))

    def on_acked(self, entries: list[int]) -> None:
        self.acked.append(entries)
        self.heard.set()

    def on_add_error(self, entry_id: int, error: QuireError) -> None:
        self.failed.append((entry_id, error))
        self.heard.set()

    def on_lost(self, error: BookieUnavailableError) -> None:
        self.lost = error
        self.heard.set()


def add_answer(txn_id: int, code: int, ledger_id: int, entry_id: int) -> bytes:
    answer = v3.response(v3.Op.ADD, txn_id, code)
    answer.addResponse.status = answer.status
    answer.addResponse.ledgerId = ledger_id
    answer.addResponse.entryId = entry_id
    return v3.frame(answer)


async def test_each_call_sends_its_request_and_returns_the_answer() -> None:
    def script(request: Request) -> Answer:
        answer = answer_to(request)
        match request.header.operation:
            case v3.Op.READ_LAC:
                assert request.readLacRequest.ledgerId == 7
                return lac_answer(request, packet=b"packet", last_entry=b"entry")
            case v3.Op.READ:
                read = request.readRequest
                assert (read.ledgerId, read.entryId, read.previousLAC, read.timeOut) == (
                    7,
                    -1,
                    4,
                    9,
                )
                assert read.flag == v3.ReadFlag.PIGGYBACK
                return poll_answer(request, max_lac=6, entry=b"five", packet=b"packet")
            case v3.Op.WRITE_LAC:
                write = request.writeLacRequest
                assert (write.ledgerId, write.lac, write.masterKey) == (7, 3, KEY)
                assert write.body == b"packet"
            case v3.Op.FORCE:
                assert request.forceLedgerRequest.ledgerId == 7
            case v3.Op.BOOKIE_INFO:
                assert request.getBookieInfoRequest.requested == 3
                answer.getBookieInfoResponse.status = answer.status
                answer.getBookieInfoResponse.totalDiskCapacity = 10
                answer.getBookieInfoResponse.freeDiskSpace = 4
            case v3.Op.LIST_ENTRIES:
                own = answer.getListOfEntriesOfLedgerResponse
                own.status, own.ledgerId = answer.status, 7
                own.availabilityOfEntriesOfLedger = encode_availability([(0, 3), (4, 4), (9, 9)])
        return v3.frame(answer)

    async with connected(ScriptedBookie(script)) as channel:
        assert await channel.read_lac(7) == LacAnswer(b"packet", b"entry")
        assert await channel.long_poll(7, 4, 9) == PollAnswer(6, b"five", b"packet")
        await channel.write_lac(7, 3, KEY, b"packet")
        await channel.force(7)
        assert await channel.bookie_info() == BookieInfo(10, 4)
        assert await channel.list_entries(7) == [(0, 4), (9, 9)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.NO_LEDGER, NoEntryAnswer),
        (Code.NO_ENTRY, NoEntryAnswer),
        (Code.IO_ERROR, BookieIOError),
        (Code.UNAUTHORIZED, UnauthorizedError),
        (Code.FENCED, LedgerFencedError),
        (Code.READ_ONLY, BookieReadOnlyError),
        (Code.TOO_MANY_REQUESTS, BookieBusyError),
        (Code.UNKNOWN_LEDGER_STATE, DataUnknownError),
        (Code.BAD_VERSION, ProtocolError),
    ],
)
async def test_a_refusal_by_a_bookie_raises_an_error_for_every_call(
    code: Code, kind: type[QuireError]
) -> None:
    bookie = ScriptedBookie(lambda request: v3.frame(answer_to(request, code)))
    async with connected(bookie) as channel:
        for call in (
            channel.read_lac(7),
            channel.long_poll(7, 0, 1),
            channel.write_lac(7, 0, KEY, b"packet"),
            channel.force(7),
            channel.list_entries(7),
        ):
            with pytest.raises(kind, match="b:1, ledger 7: "):
                await call
        with pytest.raises(kind, match="bookie b:1: "):
            await channel.bookie_info()


async def test_an_explicit_lac_without_any_entry_is_not_a_failure() -> None:
    """The bookie returns an I/O error with the packet."""
    bookie = ScriptedBookie(lambda r: lac_answer(r, packet=b"packet", code=Code.IO_ERROR))
    async with connected(bookie) as channel:
        assert await channel.read_lac(7) == LacAnswer(b"packet", b"")


async def test_answers_in_any_order_reach_their_calls() -> None:
    waiting: list[Request] = []

    def script(request: Request) -> Answer:
        waiting.append(request)
        if len(waiting) < 3:
            return None
        return b"".join(poll_answer(r, max_lac=r.readRequest.ledgerId) for r in waiting[::-1])

    async with connected(ScriptedBookie(script)) as channel:
        calls = [channel.long_poll(ledger, 0, 1) for ledger in (11, 12, 13)]
        assert [answer.max_lac for answer in await asyncio.gather(*calls)] == [11, 12, 13]


async def test_a_cancelled_call_leaves_no_state() -> None:
    waiting: list[Request] = []
    bookie = ScriptedBookie(lambda request: waiting.append(request))
    async with connected(bookie) as channel:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await channel.long_poll(7, 0, 1)
        assert not channel._calls
        bookie.script = lambda request: (
            poll_answer(waiting[0], max_lac=99) + poll_answer(request, max_lac=1)
        )
        assert (await channel.long_poll(7, 0, 1)).max_lac == 1


async def test_a_lost_connection_fails_all_waiting_calls() -> None:
    asked = asyncio.Event()
    bookie = ScriptedBookie(lambda request: asked.set())
    async with connected(bookie) as channel:
        sink = Sink()
        channel.attach(7, sink)
        call = asyncio.ensure_future(channel.force(7))
        await asked.wait()
        bookie.drop()
        with pytest.raises(BookieUnavailableError, match="lost"):
            await call
        assert sink.lost is not None
        with pytest.raises(BookieUnavailableError):
            await channel.force(7)
        assert not channel.usable


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x08\x02\x01\x00\x00abcd", b"\xff\xff\xff\xff"], ids=["v2", "huge"]
)
async def test_invalid_answers_end_the_connection(garbage: bytes) -> None:
    async with connected(ScriptedBookie(lambda request: garbage)) as channel:
        with pytest.raises(BookieUnavailableError, match="protocol error") as refused:
            await channel.force(7)
    assert str(refused.value).endswith("Check that the address and the port are those of a bookie")


async def test_the_number_of_outstanding_calls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_OUTSTANDING_CALLS", 2)
    async with connected(ScriptedBookie()) as channel:
        calls = [asyncio.ensure_future(channel.long_poll(7, k, 1)) for k in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BookieBusyError, match="2 calls"):
            await channel.force(7)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_answers_to_adds_reach_their_ledgers_once_per_chunk() -> None:
    async with connected(ScriptedBookie()) as channel:
        one, other = Sink(), Sink()
        channel.attach(1, one)
        channel.attach(2, other)
        chunk = [add_answer(entry, Code.OK, 1, entry) for entry in range(50)]
        chunk.insert(3, add_answer(8, Code.OK, 2, 8))
        chunk.insert(9, add_answer(9, Code.FENCED, 2, 9))
        chunk.append(add_answer(1, Code.OK, 3, 1))  # Nobody waits for it.
        data = b"".join(chunk)
        channel.data_received(data[:-5])
        assert one.acked == [list(range(50))]
        assert other.acked == [[8]]
        [(entry, error)] = other.failed
        assert entry == 9
        assert isinstance(error, LedgerFencedError)
        channel.data_received(data[-5:])


# -- deferred-sync adds -----------------------------------------------------------------------


@given(
    ledger=st.integers(0, 2**63 - 1),
    first=st.integers(0, 2**31 - 20),
    lac=st.integers(-1, 2**31),
    digest=st.sampled_from(list(DigestType)),
    sizes=st.lists(st.sampled_from([0, 1, 60, 60, 100, 128, 20_000]), min_size=1, max_size=8),
)
def test_frames_are_those_of_the_generated_messages(
    ledger: int, first: int, lac: int, digest: DigestType, sizes: list[int]
) -> None:
    codec = EntryCodec(ledger, digest, b"secret")
    payloads = [bytes([k]) * size for k, size in enumerate(sizes)]
    pieces, length = DeferredAddEncoder(codec, KEY).parts(first, lac, 1_000, payloads)
    expected, total = [], 1_000
    for entry, payload in enumerate(payloads, start=first):
        total += len(payload)
        body = codec.pack(entry, lac, total, payload)
        expected.append(v3.add_request(entry, KEY, body, ledger, entry, deferred_sync=True))
    assert b"".join(pieces) == b"".join(expected)
    assert length == total
    for frame, payload in zip(expected, payloads):
        assert len(frame) - codec.head_bytes - len(payload) <= MAX_HEAD_BYTES


@pytest.mark.parametrize("digest", list(DigestType))
def test_the_largest_entry_fits_into_a_frame(digest: DigestType) -> None:
    codec = EntryCodec(2**63 - 1, digest, b"")
    payload = bytes(max_deferred_payload_bytes(digest))
    pieces, _ = DeferredAddEncoder(codec, KEY).parts(2**31 - 2, 0, 0, [payload])
    assert len(b"".join(pieces)) <= MAX_FRAME_BYTES
    assert len(frames.frame_bounds(b"".join(pieces))) == 1
