"""The evidence that a tailing reader trusts, and its next requests, with given answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from operator import contains

import pytest

from quire.client.read.follow import Feed
from quire.client.read.tail import LedgerTail
from quire.codec.entry.entry import Entry, EntryRun
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.codec.wire import v3
from quire.codec.wire.messages_pb2 import Request
from quire.errors import ClientClosedError, NoSuchLedgerError, ReadError, UsageError
from quire.storage.read.reader import SLICE_BYTES
from tests.support.bookies.scripted_bookie import ScriptedBookie, poll_answer
from tests.support.bookies.tail import (
    LEDGER,
    PATIENT,
    GivesTheLast,
    Honest,
    World,
    polling,
    soon,
    world,
)


class WakesOnce(Honest):
    """As Apache's bookie: the next move of the LAC ends the waiting of every poll, and one whose
    LAC is not passed by it hears nothing until its time is up."""

    def has(self, world: World, *entries: tuple[int, int]) -> None:
        waiting, self.waiting = self.waiting, []
        before = self.lac
        super().has(world, *entries)
        for request in waiting:
            answer = self.honest(request)
            if answer is not None:
                self.send(answer)
        if self.lac > before:
            for request in self.waiting:
                asyncio.get_running_loop().call_later(
                    request.readRequest.timeOut / 1000, self.time_is_up, request
                )
            self.waiting.clear()

    def time_is_up(self, request: Request) -> None:
        self.send(poll_answer(request, max_lac=self.lac))


async def take(entries: AsyncIterator[Entry], count: int) -> list[int]:
    found = []
    async with asyncio.timeout(10):
        while len(found) < count:
            entry = await anext(entries)
            assert entry.payload == b"%02d" % entry.entry_id
            found.append(entry.entry_id)
    return found


@asynccontextmanager
async def has_had_the_first(bookie: GivesTheLast, w: World) -> AsyncIterator[AsyncIterator[Entry]]:
    """A tail that has delivered entry 0; the bookie has entry 1 too."""
    bookie.has(w, (0, -1), (1, 0))
    reader = await w.open()
    async with aclosing(reader.tail(0)) as tail:
        assert await take(tail, 1) == [0]
        yield tail


async def hear_the_first(tail: AsyncIterator[Entry], w: World, *bookies: GivesTheLast) -> None:
    """Return a tail that has waited for the first entry, so it knows the interval of news."""
    coming = asyncio.ensure_future(take(tail, 1))
    for bookie in bookies:
        bookie.has(w, (0, -1), (1, 0))
    assert await coming == [0]


async def nothing_comes(entries: AsyncIterator[Entry], bookie: ScriptedBookie, polls: int) -> None:
    """Check that nothing arrives while the bookie answers this number of further requests."""
    wanted = len(bookie.requests) + polls
    more = asyncio.ensure_future(anext(entries))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        while len(bookie.requests) < wanted:
            await asyncio.sleep(0.001)
    assert not more.done()
    more.cancel()
    await asyncio.gather(more, return_exceptions=True)


async def test_the_entry_that_came_with_a_poll_is_not_read_again() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            coming = asyncio.ensure_future(take(tail, 1))
            bookie.has(w, (0, -1), (1, 0))
            assert await coming == [0]
        assert 0 not in bookie.reads
        assert reader.last_add_confirmed == 0


async def test_entries_that_arrive_singly_need_no_request_beyond_the_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each entry proves the previous one, which has already arrived."""
    monkeypatch.setattr("quire.client.read.tail.OVERDUE_MIN_S", math.inf)
    bookie = GivesTheLast()
    async with world(bookie, config=PATIENT) as w, has_had_the_first(bookie, w) as tail:
        for entry_id in range(2, 12):
            coming = asyncio.ensure_future(take(tail, 1))
            await polling(bookie)
            asked, read = len(bookie.requests), len(bookie.reads)
            bookie.has(w, (entry_id, entry_id - 1))
            assert await coming == [entry_id - 1]
            if entry_id > 2:  # entry 1 was there before
                assert (len(bookie.requests), len(bookie.reads)) == (asked, read)


@pytest.mark.parametrize("proves", [False, True], ids=["apache", "quire"])
async def test_an_explicit_lac_of_the_last_entry_is_proven_at_once(
    monkeypatch: pytest.MonkeyPatch, proves: bool
) -> None:
    """The packet proves it, because no entry can. If the poll's answer has it, nothing else is
    asked.
    """
    monkeypatch.setattr("quire.client.read.tail.OVERDUE_MIN_S", math.inf)
    bookie = GivesTheLast()
    bookie.proves = proves
    async with world(bookie, config=PATIENT) as w, has_had_the_first(bookie, w) as tail:
        for entry_id in range(1, 6):
            coming = asyncio.ensure_future(take(tail, 1))
            await polling(bookie)
            asked, read = len(bookie.requests), len(bookie.reads)
            bookie.lac, bookie.packet = entry_id, w.codec.pack_lac(entry_id)
            bookie.has(w)
            assert await coming == [entry_id]
            assert len(bookie.reads) == read
            if proves:
                assert len(bookie.requests) == asked
            else:
                assert bookie.requests[-1].header.operation == v3.Op.READ_LAC
            bookie.entries[entry_id + 1] = w.entry(entry_id + 1, entry_id)


async def test_a_packet_with_a_wrong_digest_proves_nothing() -> None:
    bookie = GivesTheLast()
    async with world(bookie) as w, has_had_the_first(bookie, w) as tail:
        bookie.proves = True
        bookie.packet = w.codec.pack_lac(0)[:-1] + b"?"
        bookie.lac = 1
        await nothing_comes(tail, bookie, 4)


async def test_a_bookie_that_proves_the_lac_and_has_no_entry_is_honest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(LedgerTail, "_misbehaved", lambda self, bookie, error: seen.append(bookie))
    bookie = GivesTheLast()
    async with world(bookie) as w, has_had_the_first(bookie, w) as tail:
        coming = asyncio.ensure_future(take(tail, 1))
        await polling(bookie)
        [waits], bookie.waiting = bookie.waiting, []
        bookie.send(poll_answer(waits, max_lac=1, packet=w.codec.pack_lac(1)))
        assert await coming == [1]
        assert not seen


async def test_entries_that_arrived_meanwhile_are_read_in_batches() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, *((entry, entry - 1) for entry in range(40)))
        reader = await w.open()
        assert reader.last_add_confirmed == 38
        async with aclosing(reader.tail(5)) as tail:
            assert await take(tail, 34) == list(range(5, 39))
        assert bookie.reads[0] == 5
        assert all(first >= 39 for first in bookie.reads[1:])


async def test_a_claimed_lac_is_not_accepted_without_proof() -> None:
    """The bookie claims that the LAC is 9, but its entries prove 3."""
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, *((entry, entry - 1) for entry in range(5)))
        bookie.claims = 9
        reader = await w.open()
        tail = reader.tail(0)
        assert await take(tail, 4) == [0, 1, 2, 3]
        await nothing_comes(tail, bookie, 10)
        tail = reader.tail(4)
        bookie.has(w, (5, 4))
        assert await take(tail, 1) == [4]
        await tail.aclose()


async def test_an_entry_and_a_packet_must_match_their_digests() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1), (1, 0))
        good = bookie.entries[1]
        bookie.entries[1] = good[:20] + b"\x01" + good[21:]  # Another LAC.
        bookie.packet = w.codec.pack_lac(5)[:-1] + b"?"
        with pytest.raises(ReadError, match="too few bookies"):
            await w.open()
        bookie.entries[1], damaged = good, bookie.entries[1]
        reader = await w.open()
        assert reader.last_add_confirmed == 0
        bookie.entries[1], bookie.claims = damaged, 5
        await nothing_comes(reader.tail(1), bookie, 6)


async def test_an_explicit_lac_shows_the_last_entry_of_a_writer_that_pauses() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1))
        reader = await w.open()
        assert reader.last_add_confirmed == -1
        bookie.packet, bookie.lac = w.codec.pack_lac(0), 0
        assert await reader.refresh() == 0
        async with aclosing(reader.tail(0)) as tail:
            assert await take(tail, 1) == [0]


async def test_the_next_bookie_is_asked_if_one_has_no_answer() -> None:
    """One bookie is lost at each request, one has no new entries, and one has them."""
    lost, silent, good = ScriptedBookie(), Honest(), Honest()
    lost.script = lambda request: lost.drop()
    async with world(lost, silent, good) as w:
        good.has(w, (0, -1), (1, 0), (2, 1))
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            assert await take(tail, 2) == [0, 1]
            coming = asyncio.ensure_future(take(tail, 1))
            good.has(w, (3, 2))
            assert await coming == [2]


async def test_the_only_bookie_with_new_entries_is_eventually_asked() -> None:
    """Two bookies are asked at a time. The others have no news and say so."""
    bookies = [Honest() for _ in range(6)]
    for bookie in bookies[:-1]:
        bookie.script = lambda request: poll_answer(request, max_lac=-1)
    async with world(*bookies) as w:
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            coming = asyncio.ensure_future(take(tail, 1))
            await polling(bookies[-1])
            bookies[-1].has(w, (0, -1), (1, 0))
            assert await coming == [0]


async def test_a_bookie_without_v3_is_asked_for_its_last_entry() -> None:
    bookie = Honest()
    bookie.speaks_v3 = False
    async with world(bookie) as w:
        bookie.has(w, (0, -1), (1, 0))
        reader = await w.open()
        assert reader.last_add_confirmed == 0


async def test_closing_a_ledger_ends_its_tails() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1), (1, 0))
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            assert await take(tail, 1) == [0]
            rest = asyncio.ensure_future(take(tail, 1))
            stored = await w.store.read_ledger(LEDGER)
            await w.store.write_ledger(LEDGER, stored.value.with_close(1, 4), stored.version)
            assert await rest == [1]
            with pytest.raises(StopAsyncIteration):
                await anext(tail)
        assert reader.ledger_closed


async def test_a_tail_ends_with_an_error_that_gives_the_reason() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1))
        reader = await w.open()
        deleted, closed = reader.tail(), await w.open()
        first = asyncio.ensure_future(anext(closed.tail()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        closed.close()
        with pytest.raises(UsageError, match="reader of ledger 7 is closed"):
            await first
        with pytest.raises(UsageError, match="begin at 0"):
            await anext(reader.tail(-2))
        waiting = asyncio.ensure_future(anext(deleted))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await w.store.delete_ledger(LEDGER)
        with pytest.raises(
            NoSuchLedgerError, match="ledger 7 was deleted while it was being followed"
        ):
            await waiting


async def test_closing_a_client_ends_its_tails() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1))
        reader = await w.open()
        waiting = asyncio.ensure_future(anext(reader.tail()))  # type: ignore[arg-type]
        await soon(lambda: bookie.waiting)
        await w.client.close()
        with pytest.raises(ClientClosedError):
            await waiting


async def test_a_tail_returns_nothing_new_during_a_recovery() -> None:
    """Entries that are written back may carry a LAC that a concurrent recovery cuts off."""
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1), (1, 0))
        reader = await w.open()
        stored = await w.store.read_ledger(LEDGER)
        recovering = stored.value.with_state(LedgerState.IN_RECOVERY)
        stored = await w.store.write_ledger(LEDGER, recovering, stored.version)
        async with aclosing(reader.tail(0)) as tail:
            assert await take(tail, 1) == [0]
            bookie.has(w, (2, 1))
            coming = asyncio.ensure_future(take(tail, 1))
            asked = len(bookie.requests)
            assert await reader.refresh() == 0
            assert len(bookie.requests) <= asked + 2
            assert not coming.done()
            await w.store.write_ledger(LEDGER, stored.value.with_close(1, 4), stored.version)
            assert await coming == [1]


async def test_overdue_entries_are_requested_from_another_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other bookie is asked from then on, as long as it has the entries."""
    monkeypatch.setattr("quire.client.read.tail.OVERDUE_GAPS", 0)
    one, other = GivesTheLast(), GivesTheLast()
    async with world(one, other, config=PATIENT) as w:
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            await hear_the_first(tail, w, one, other)
            coming = asyncio.ensure_future(take(tail, 1))
            await soon(lambda: bool(one.waiting or other.waiting))
            stuck, quick = (one, other) if one.waiting else (other, one)
            await soon(lambda: bool(quick.waiting))
            quick.has(w, (2, 1))
            assert await coming == [1]
            asked = len(stuck.requests)
            coming = asyncio.ensure_future(take(tail, 1))
            await soon(lambda: bool(quick.waiting))
            assert len(stuck.requests) == asked
            quick.has(w, (3, 2))
            assert await coming == [2]


async def test_no_other_bookie_is_asked_before_entries_are_overdue() -> None:
    """The first entries of a tail are never overdue: the tail does not know their rate yet."""
    one, other = GivesTheLast(), GivesTheLast()
    async with world(one, other, config=PATIENT) as w:
        one.has(w, (0, -1), (1, 0))
        other.has(w, (0, -1), (1, 0))
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            assert await take(tail, 1) == [0]
            coming = asyncio.ensure_future(anext(tail))
            await soon(lambda: bool(one.waiting or other.waiting))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(coming), 0.05)
            assert not (one.waiting and other.waiting)
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def test_entries_are_read_ahead_before_they_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All entries have arrived when a poll proves them."""
    monkeypatch.setattr("quire.client.read.tail.OVERDUE_GAPS", 0)
    bookie = GivesTheLast()
    async with world(bookie, config=PATIENT) as w, has_had_the_first(bookie, w) as tail:
        coming = asyncio.ensure_future(take(tail, 1))
        await polling(bookie)
        bookie.has(w, (2, 1))
        assert await coming == [1]
        bookie.has(w, *((entry, 1) for entry in range(3, 10)))
        coming = asyncio.ensure_future(take(tail, 8))
        await soon(lambda: 10 in bookie.reads)  # Nothing comes after the last one.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(coming), 0.05)
        assert bookie.reads.count(10) == 1
        read = len(bookie.reads)
        bookie.has(w, (10, 9))
        assert await coming == list(range(2, 10))
        assert len(bookie.reads) == read


async def test_read_ahead_of_unacknowledged_entries_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.client.read.tail.OVERDUE_GAPS", 0)
    config = replace(PATIENT, read_windows=2, read_window_bytes=200)
    bookie = GivesTheLast()
    async with world(bookie, config=config) as w, has_had_the_first(bookie, w) as tail:
        coming = asyncio.ensure_future(take(tail, 1))
        await polling(bookie)
        bookie.has(w, (2, 1))
        assert await coming == [1]
        bookie.has(w, *((entry, 1) for entry in range(3, 40)))
        coming = asyncio.ensure_future(take(tail, 38))
        await soon(lambda: max(bookie.reads) > 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(coming), 0.1)  # Nothing is acknowledged.
        assert 40 not in bookie.reads, "one answer exceeded the limit"
        bookie.has(w, (40, 39))
        assert await coming == list(range(2, 40))


@pytest.mark.parametrize("more_comes_first", [False, True])
async def test_entries_received_from_two_bookies_are_kept_once(
    monkeypatch: pytest.MonkeyPatch, more_comes_first: bool
) -> None:
    kept: list[int] = []
    keep = Feed._keep

    def noted(feed: Feed, run: EntryRun) -> None:
        kept.extend(range(run.first, run.last + 1))
        keep(feed, run)

    monkeypatch.setattr(Feed, "_keep", noted)
    monkeypatch.setattr("quire.client.read.tail.OVERDUE_GAPS", 0)
    monkeypatch.setattr("quire.client.read.tail.OVERDUE_MIN_S", 0.1)
    one, other = GivesTheLast(), GivesTheLast()
    async with world(one, other, config=PATIENT) as w:
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            await hear_the_first(tail, w, one, other)
            for bookie, stop in (one, 6), (other, 10):
                bookie.has(w, *((entry, 0) for entry in range(2, stop)))
                bookie.kept_back = []
            coming = asyncio.ensure_future(take(tail, 9))
            await soon(lambda: bool(one.kept_back and other.kept_back))
            for bookie, then in ((one, 6), (other, 10))[:: -1 if more_comes_first else 1]:
                assert bookie.kept_back
                [(connection, answer)] = bookie.kept_back
                bookie.kept_back = None
                connection.transport.write(answer)
                if then == 10 or not more_comes_first:
                    await soon(partial(contains, bookie.reads, then))
            one.has(w, *((entry, 0) for entry in range(6, 10)))
            for bookie in one, other:
                bookie.has(w, (10, 9))
            assert await coming == list(range(1, 10))
            coming = asyncio.ensure_future(take(tail, 1))
            for bookie in one, other:
                bookie.has(w, (11, 10))
            assert await coming == [10]
        assert kept == list(range(11))


async def test_a_tail_requests_no_more_than_one_answer_can_hold() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1))
        reader = await w.open()
        async with aclosing(reader.tail(0)) as tail:
            coming = asyncio.ensure_future(take(tail, 39))
            await polling(bookie)
            bookie.has(w, *((entry, entry - 1) for entry in range(1, 40)))
            assert await coming == list(range(39))
        assert bookie.batch_bytes
        assert max(bookie.batch_bytes) <= SLICE_BYTES


async def test_waiting_for_an_entry_reads_no_entries() -> None:
    bookie = GivesTheLast()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        reader = await w.open()
        coming = asyncio.ensure_future(reader.wait_confirmed(20))
        await polling(bookie)
        bookie.has(w, *((entry, entry - 1) for entry in range(2, 22)))
        async with asyncio.timeout(10):
            await coming
        assert bookie.reads == []


async def test_waiting_for_a_far_entry_polls_step_by_step() -> None:
    """One poll would be wasted by a smaller advance of the LAC."""
    bookie = WakesOnce()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1))
        reader = await w.open()
        async with aclosing(reader.tail(3)) as tail:
            coming = asyncio.ensure_future(take(tail, 1))
            for entry_id in range(1, 5):
                await polling(bookie)
                bookie.has(w, (entry_id, entry_id - 1))
            assert await coming == [3]


async def test_a_lagging_bookie_is_asked_again_soon() -> None:
    """The reader knows a LAC from a bookie that is lost then; the other one moves, but not past
    it."""
    ahead, behind = WakesOnce(), WakesOnce()
    async with world(ahead, behind, config=PATIENT) as w:
        behind.has(w, *((entry, entry - 1) for entry in range(3)))
        ahead.has(w, *((entry, entry - 1) for entry in range(6)))
        reader = await w.open()
        ahead.has(w, (6, 5))
        assert await reader.refresh() == 5
        ahead.script = lambda request: ahead.drop()
        async with aclosing(reader.tail(6)) as tail:
            coming = asyncio.ensure_future(take(tail, 1))
            await polling(behind)
            behind.has(w, (3, 2), (4, 3))
            behind.has(w, (5, 4), (6, 5), (7, 6))
            assert await coming == [6]
