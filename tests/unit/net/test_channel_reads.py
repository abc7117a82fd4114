"""Answers to fencing reads and to plain reads of one entry over one connection.

The two look alike, but only the answer to a fencing read says that the fence is durable (rule 33).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from quire.codec.entry.digest import master_key
from quire.codec.wire.v2 import LAST_ENTRY, Code, Flag, frame_bounds, read_response, split_word
from quire.errors import BookieUnavailableError, UnauthorizedError
from quire.net.channel import BookieChannel
from quire.net.network import AsyncioNetwork

PATIENCE_S = 30
LEDGER = 7
KEY = master_key(b"secret")
WRONG_KEY = master_key(b"wrong")

Read = Callable[[BookieChannel], Awaitable[object]]


@dataclass
class SlowBookie:
    """A bookie that answers no read before the test says so."""

    writer: asyncio.StreamWriter | None = None
    asked: list[tuple[int, bool]] = field(default_factory=list)
    """(entry id, whether the read fences) of each read, in the order of arrival."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        received = b""
        while data := await reader.read(1 << 16):
            received += data
            whole = frame_bounds(received)
            for start, stop in whole:
                frame = received[start:stop]
                flags = split_word(int.from_bytes(frame[4:8], "big"))[2]
                entry = int.from_bytes(frame[16:24], "big", signed=True)
                self.asked.append((entry, bool(flags & Flag.DO_FENCING)))
            received = received[whole[-1][1] :] if whole else received
        writer.close()
        self.ended.set()

    def answer(self, entry_id: int, data: bytes, code: int = 0) -> None:
        assert self.writer is not None
        self.writer.write(read_response(code, LEDGER, entry_id, data))

    async def has_been_asked(self, *reads: tuple[int, bool]) -> None:
        while len(self.asked) < len(reads):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # for a read that should not be there
        assert self.asked == list(reads)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SlowBookie, BookieChannel]]:
    bookie = SlowBookie()
    server = await asyncio.start_server(bookie.serve, "127.0.0.1", 0)
    channel = BookieChannel("b:1")
    async with server, asyncio.timeout(PATIENCE_S):
        port = server.sockets[0].getsockname()[1]
        await AsyncioNetwork().connect("127.0.0.1", port, lambda: channel)
        try:
            yield bookie, channel
        finally:
            channel.close()
            await bookie.ended.wait()


def one(entry_id: int, key: bytes | None = None) -> Read:
    if key is None:
        return lambda channel: channel.read(LEDGER, entry_id)
    return lambda channel: channel.read(LEDGER, entry_id, Flag.DO_FENCING, key)


def many(entry_ids: list[int], key: bytes | None = None) -> Read:
    if key is None:
        return lambda channel: channel.read_many(LEDGER, entry_ids)
    return lambda channel: channel.read_many(LEDGER, entry_ids, Flag.DO_FENCING, key)


async def begin(channel: BookieChannel, read: Read) -> asyncio.Task[object]:
    task = asyncio.ensure_future(read(channel))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("plain", [one(LAST_ENTRY), many([LAST_ENTRY])], ids=["one", "many"])
@pytest.mark.parametrize("fence", [one(LAST_ENTRY, KEY), many([LAST_ENTRY], KEY)])
async def test_rule_33_the_answer_to_a_plain_read_does_not_complete_a_fencing_read(
    plain: Read, fence: Read
) -> None:
    async with connected() as (bookie, channel):
        fencing = await begin(channel, fence)
        reading = await begin(channel, plain)
        await bookie.has_been_asked((LAST_ENTRY, True))
        assert not fencing.done()

        bookie.answer(LAST_ENTRY, b"fenced")
        assert await fencing in (b"fenced", [b"fenced"])
        await bookie.has_been_asked((LAST_ENTRY, True), (LAST_ENTRY, False))
        assert not reading.done()
        bookie.answer(LAST_ENTRY, b"plain")
        assert await reading in (b"plain", [b"plain"])


async def test_a_fencing_read_waits_for_earlier_plain_reads_and_later_ones_wait_for_it() -> None:
    """The bookie may have looked for the older one before it took the last entry."""
    async with connected() as (bookie, channel):
        first = await begin(channel, one(3))
        fencing = await begin(channel, many([2, 3, 4], KEY))
        later = await begin(channel, one(3))
        other = await begin(channel, one(5))
        await bookie.has_been_asked((3, False), (5, False))

        bookie.answer(3, b"first")
        assert await first == b"first"
        await bookie.has_been_asked((3, False), (5, False), (2, True), (3, True), (4, True))
        for entry_id in (5, 2, 3, 4):
            bookie.answer(entry_id, b"%d" % entry_id)
        assert await fencing == [b"2", b"3", b"4"]
        assert await other == b"5"
        assert not later.done()
        await bookie.has_been_asked(*bookie.asked[:5], (3, False))
        bookie.answer(3, b"later")
        assert await later == b"later"


async def test_reads_of_one_kind_are_in_flight_together() -> None:
    for key in (None, KEY):
        async with connected() as (bookie, channel):
            reads = [await begin(channel, one(LAST_ENTRY, key)) for _ in range(3)]
            await bookie.has_been_asked(*[(LAST_ENTRY, key is not None)] * 3)
            for _ in reads:
                bookie.answer(LAST_ENTRY, b"last")
            assert await asyncio.gather(*reads) == [b"last"] * 3


async def test_a_refused_password_does_not_fail_a_read_with_the_right_one() -> None:
    async with connected() as (bookie, channel):
        right = await begin(channel, one(LAST_ENTRY, KEY))
        wrong = await begin(channel, one(LAST_ENTRY, WRONG_KEY))
        await bookie.has_been_asked((LAST_ENTRY, True))
        bookie.answer(LAST_ENTRY, b"last")
        assert await right == b"last"
        await bookie.has_been_asked((LAST_ENTRY, True), (LAST_ENTRY, True))
        bookie.answer(LAST_ENTRY, b"", Code.UNAUTHORIZED)
        with pytest.raises(UnauthorizedError):
            await wrong


async def test_a_waiting_read_fails_with_the_connection() -> None:
    async with connected() as (bookie, channel):
        reads = [await begin(channel, one(LAST_ENTRY, key)) for key in (KEY, None, WRONG_KEY, None)]
        await bookie.has_been_asked((LAST_ENTRY, True))
        assert bookie.writer is not None
        bookie.writer.transport.abort()
        for error in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(error, BookieUnavailableError)


async def test_a_cancelled_read_still_consumes_its_answer() -> None:
    async with connected() as (bookie, channel):
        plain = await begin(channel, one(LAST_ENTRY))
        given_up = await begin(channel, one(LAST_ENTRY, WRONG_KEY))
        fencing = await begin(channel, one(LAST_ENTRY, KEY))
        await bookie.has_been_asked((LAST_ENTRY, False))
        for task in (plain, given_up):
            task.cancel()
        await asyncio.sleep(0.02)
        await bookie.has_been_asked((LAST_ENTRY, False))
        bookie.answer(LAST_ENTRY, b"plain")
        await bookie.has_been_asked((LAST_ENTRY, False), (LAST_ENTRY, True))
        assert not fencing.done()
        bookie.answer(LAST_ENTRY, b"fenced")
        assert await fencing == b"fenced"
