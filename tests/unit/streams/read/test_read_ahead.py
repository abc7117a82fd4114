"""Small ledgers are opened and read ahead. Each reader is taken once, or closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from quire.client import LedgerReader
from quire.errors import NoSuchLedgerError, ReadError
from quire.streams.read import ahead
from quire.streams.read.ahead import AHEAD_BYTES, OpenedAhead, ReadAhead
from tests.support.waiting import until


class FakeReader:
    """A ledger whose runs are the ranges that were asked for."""

    def __init__(self, *, last: int = 4, size_bytes: int = 100, closed: bool = True) -> None:
        self.ledger_closed = closed
        self.last_add_confirmed = last
        self.metadata = SimpleNamespace(length=size_bytes)
        self.failure: Exception | None = None
        self.wait: asyncio.Event | None = None
        self.asked = 0
        self.closed = 0

    async def read_runs(self, first: int, last: int) -> AsyncIterator[tuple[int, int]]:
        self.asked += 1
        if self.wait is not None:
            await self.wait.wait()
        if self.failure is not None:
            raise self.failure
        yield first, last

    def close(self) -> None:
        self.closed += 1


def opening(
    reader: FakeReader, wait: asyncio.Event | None = None
) -> Callable[[], Awaitable[LedgerReader]]:
    async def opened() -> LedgerReader:
        if wait is not None:
            await wait.wait()
        return cast(LedgerReader, reader)

    return opened


async def taken(read_ahead: ReadAhead, ledger_id: int) -> OpenedAhead:
    found = await read_ahead.take(ledger_id)
    assert found is not None
    return found


async def test_a_ledger_that_was_read_ahead_is_taken_once() -> None:
    read_ahead, reader = ReadAhead(), FakeReader()
    assert await read_ahead.take(7) is None
    read_ahead.begin(7, opening(reader))
    read_ahead.begin(7, opening(FakeReader()))  # Nothing happens: it has begun.
    found = await taken(read_ahead, 7)
    assert cast(FakeReader, found.reader) is reader
    assert await read_ahead.take(7) is None
    read_ahead.close()
    assert reader.closed == 0, "the caller closes what it has taken"


@pytest.mark.parametrize(
    ("first", "last", "runs"),
    [(0, None, [(0, 4)]), (2, None, [(2, 4)]), (1, 3, [(1, 3)]), (5, None, []), (3, 2, [])],
)
async def test_read_ahead_reads_the_first_entries(
    first: int, last: int | None, runs: list[tuple[int, int]]
) -> None:
    read_ahead, reader = ReadAhead(), FakeReader()
    read_ahead.begin(7, opening(reader), first, last)
    assert cast(object, (await taken(read_ahead, 7)).runs) == runs
    assert reader.asked == len(runs)


@pytest.mark.parametrize(
    ("reader", "read"),
    [
        (FakeReader(size_bytes=AHEAD_BYTES), True),
        (FakeReader(size_bytes=AHEAD_BYTES + 1), False),
        (FakeReader(closed=False), False),
    ],
    ids=["just small", "too large", "open"],
)
async def test_only_small_closed_ledgers_are_read(reader: FakeReader, read: bool) -> None:
    """The end of an open ledger is not known, and a large one reads its entries ahead itself."""
    read_ahead = ReadAhead()
    read_ahead.begin(7, opening(reader))
    found = await taken(read_ahead, 7)
    assert (found.runs is not None, reader.asked) == (read, int(read))


async def test_no_more_ledgers_are_opened_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "AHEAD_LEDGERS", 2)
    read_ahead, readers = ReadAhead(), [FakeReader() for _ in range(4)]
    for ledger_id in range(3):
        read_ahead.begin(ledger_id, opening(readers[ledger_id]))
    assert await read_ahead.take(2) is None
    await taken(read_ahead, 0)
    read_ahead.begin(3, opening(readers[3]))  # There is room again.
    await taken(read_ahead, 3)
    await taken(read_ahead, 1)


async def test_a_failed_read_ahead_is_treated_as_not_opened() -> None:
    async def fails() -> LedgerReader:
        raise NoSuchLedgerError("gone")

    read_ahead, reader = ReadAhead(), FakeReader()
    read_ahead.begin(7, fails)
    assert await read_ahead.take(7) is None
    reader.failure = ReadError("no bookie answers", ledger_id=7, entry_id=0)
    read_ahead.begin(7, opening(reader))
    assert await read_ahead.take(7) is None
    assert reader.closed == 1


async def test_an_unexpected_exception_is_not_hidden() -> None:
    read_ahead, reader = ReadAhead(), FakeReader()
    reader.failure = ZeroDivisionError()
    read_ahead.begin(7, opening(reader))
    with pytest.raises(ZeroDivisionError):
        await read_ahead.take(7)
    assert reader.closed == 1
    read_ahead.close()
    assert reader.closed == 1


@pytest.mark.parametrize("step", ["opening", "reading", "done"])
async def test_ledgers_that_nobody_takes_are_closed(step: str) -> None:
    read_ahead, reader, never = ReadAhead(), FakeReader(), asyncio.Event()
    reader.wait = never if step == "reading" else None
    read_ahead.begin(7, opening(reader, never if step == "opening" else None))
    [task] = read_ahead._tasks.values()
    if step == "reading":
        await until(lambda: reader.asked)
    elif step == "done":
        await until(task.done)
    read_ahead.close()
    await asyncio.wait([task])
    assert task.cancelled() is (step != "done")
    assert reader.closed == (step != "opening"), "a reader that was opened is closed once"
    assert await read_ahead.take(7) is None


async def test_a_ledger_that_opens_after_its_cancellation_is_closed() -> None:
    """A call that has its answer already may return it instead of being cancelled."""
    read_ahead, reader, begun = ReadAhead(), FakeReader(closed=False), asyncio.Event()

    async def stubborn() -> LedgerReader:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return cast(LedgerReader, reader)

    read_ahead.begin(7, stubborn)
    [task] = read_ahead._tasks.values()
    await begun.wait()
    read_ahead.close()
    await until(lambda: reader.closed)
    assert task.done()
    assert reader.closed == 1


async def test_a_reader_is_not_lost_if_its_caller_is_cancelled() -> None:
    read_ahead, reader = ReadAhead(), FakeReader()
    reader.wait = asyncio.Event()
    read_ahead.begin(7, opening(reader))
    waiting = asyncio.ensure_future(read_ahead.take(7))
    await until(lambda: reader.asked)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    read_ahead.close()
    await until(lambda: reader.closed)
    assert reader.closed == 1


async def test_a_reader_is_not_lost_if_its_caller_is_cancelled_as_it_opens() -> None:
    """The ledger is open, and the caller is cancelled before it sees that."""
    read_ahead, reader, opens = ReadAhead(), FakeReader(), asyncio.Event()
    read_ahead.begin(7, opening(reader, opens))
    [task] = read_ahead._tasks.values()
    task.add_done_callback(lambda _: waiting.cancel())
    waiting = asyncio.ensure_future(read_ahead.take(7))
    await asyncio.sleep(0)  # Both have begun, and wait.
    opens.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not task.cancelled()
    assert reader.closed == 0
    read_ahead.close()
    assert reader.closed == 1
