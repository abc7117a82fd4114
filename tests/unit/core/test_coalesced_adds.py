"""Entries of many ledgers whose answers are expected as one.

The tests check answers in this order, in another one, and missing answers.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from unittest import mock

import pytest

from quire.client import LedgerWriter
from quire.client.client import pool_of
from quire.client.write.add_session import Member
from quire.client.write.flush import FLUSHES_ALONE
from quire.codec.wire.v2 import Code, add_response
from quire.errors import QuireError
from quire.net.channel import BookieChannel
from tests.support.bookies.many_writers import FarEnd, drained, many_writers


async def sent(writers: list[LedgerWriter], data: bytes = b"second") -> None:
    """Push one entry for each ledger in one event-loop iteration."""
    for writer in writers:
        writer.submit(data)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def answer(end: FarEnd, first: int, last: int) -> None:
    """The unanswered entries with these numbers, in one chunk."""
    chosen = end._unanswered[first:last]
    del end._unanswered[first:last]
    end.link.data_received(b"".join(add_response(Code.OK, *ids) for ids in chosen))


def confirmed(writers: list[LedgerWriter]) -> list[int]:
    return [writer.last_add_confirmed for writer in writers]


def told() -> Any:
    return mock.patch.object(Member, "on_acked_run", autospec=True, side_effect=Member.on_acked_run)


async def test_coalesced_adds_are_confirmed_without_a_call_per_ledger() -> None:
    """Rows are confirmed one by one where the answers of the ack quorum end, in any chunks."""
    async with many_writers(20) as (network, _, writers):
        await sent(writers)
        first, second, third = network.ends.values()
        with told() as calls:
            answer(third, 0, 20)
            assert confirmed(writers) == [0] * 20
            answer(first, 0, 7)
            assert confirmed(writers) == [1] * 7 + [0] * 13
            chunk = b"".join(add_response(Code.OK, *ids) for ids in second._unanswered)
            for cut in (slice(0, 30), slice(30, 300), slice(300, None)):
                second.link.data_received(chunk[cut])
            second._unanswered.clear()
            assert confirmed(writers) == [1] * 20
            assert not all(w._session.pipeline.coalesced.over for w in writers)
            answer(first, 0, 13)
            assert all(w._session.pipeline.coalesced.over for w in writers)
        assert calls.call_count == 0
        assert all(w._session.pipeline.idle for w in writers)


async def test_waiting_callers_return_once_their_row_is_confirmed() -> None:
    """This includes callers that begin to wait after the row was sent."""
    async with many_writers(5) as (network, _, writers):
        waiting = [asyncio.ensure_future(writer.append(b"second")) for writer in writers[:4]]

        async def late() -> int:
            writers[4].submit(b"second")
            for _ in range(3):
                await asyncio.sleep(0)
            return await writers[4].wait(1)

        waiting.append(asyncio.ensure_future(late()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert all(writer._session.pipeline.coalesced is not None for writer in writers)
        await asyncio.sleep(0)
        first, second, _ = network.ends.values()
        answer(first, 0, 5)
        answer(second, 0, 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [future.done() for future in waiting] == [True, True, False, False, False]
        answer(second, 0, 3)
        assert await asyncio.gather(*waiting) == [1] * 5
        await drained(network, writers, 1)


async def test_answers_of_other_ledgers_between_the_expected_ones_are_accepted() -> None:
    """A ledger that uses `append_many` beside coalesced adds does not disturb their order."""
    async with many_writers(10) as (network, _, writers):
        *in_turn, batch = writers
        appended = []
        with told() as calls:
            for number in range(4):
                appended.append(asyncio.ensure_future(batch.append_many([b"x"] * 3)))
                await sent(in_turn, b"%d" % number)
                network.answer()
            assert await asyncio.gather(*appended) == [3, 6, 9, 12]
        assert {call.args[0].session.ledger_id for call in calls.call_args_list} == {
            batch.ledger_id
        }
        assert confirmed(in_turn) == [4] * 9


@pytest.mark.parametrize("whole", [False, True])
async def test_ledgers_detached_before_the_flush_are_sent_once_and_in_order(whole: bool) -> None:
    """Code within an event-loop iteration may inspect one or all ledgers.

    Their frames are sent once and in order, and later adds are rows of other coalesced adds.
    """
    async with many_writers(9) as (network, client, writers):
        former, later = writers[:4], writers[4:]

        def look() -> None:
            for writer in former if whole else former[:1]:
                assert writer._session.pipeline.unacked_bytes(0) == len(b"second")

        for writer in former:
            writer.submit(b"second")
        client._shared.flush.at_end(look)
        adds = pool_of(client).counters.adds, pool_of(client).counters.add_bytes
        await sent(later)
        assert pool_of(client).counters.adds - adds[0] == len(writers)
        assert pool_of(client).counters.add_bytes - adds[1] == len(writers) * len(b"second")
        for end in network.ends.values():
            assert len(end.writes) == 1
            assert [ledger for ledger, _ in end._unanswered] == [w.ledger_id for w in writers]
        assert all(w._session.pipeline.coalesced is not None for w in later)
        await drained(network, writers, 1)


@pytest.mark.parametrize("detached", [1, 3])
async def test_the_time_of_an_entry_counts_once_if_its_row_was_detached(detached: int) -> None:
    """The time once counted with the row, and again with the detached ledger."""
    async with many_writers(6) as (network, client, writers):
        times = pool_of(client).counters.add_time
        before = times.count
        await sent(writers)
        for writer in writers[:detached]:
            assert writer._session.pipeline.unacked_bytes(0) == len(b"second")
        await drained(network, writers, 1)
        assert times.count - before == len(writers)


async def test_every_ledger_is_notified_of_a_lost_connection() -> None:
    """An error in one notification once stopped all others, which waited for a time-out."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
    async with many_writers(3) as (network, _, writers):
        end = next(iter(network.ends.values()))
        sinks = list(end.link._sinks.values())
        assert len(sinks) == len(writers)
        with mock.patch.object(Member, "on_lost", side_effect=RuntimeError("oops")) as lost:
            end.lose()
        assert lost.call_count == len(writers)
        assert [repr(one["exception"]) for one in reported] == ["RuntimeError('oops')"] * 3
        for sink in sinks:
            assert end.link.lost is not None
            sink.on_lost(end.link.lost)


async def test_a_separate_entry_among_coalesced_rows_is_confirmed() -> None:
    """The answers before and after it in the same buffer are expected in two parts."""
    async with many_writers(10) as (network, _, writers):
        writers_of_one = [*writers[:5], *writers[6:]]
        for writer in writers:
            writer.submit(b"second")
            if writer is writers[5]:
                writer.submit(b"third")
        with told() as calls:
            await drained(network, writers, 1)
        assert {call.args[0].session.ledger_id for call in calls.call_args_list} == {
            writers[5].ledger_id
        }
        assert confirmed(writers_of_one) == [1] * 9
        assert writers[5].last_add_confirmed == 2
        for end in network.ends.values():
            assert not end.link._expected


async def test_ledgers_with_other_ack_quorums_wait_for_their_own_quorum() -> None:
    async with many_writers(2) as (network, client, writers):
        for ack_quorum in (3, 3, 1):
            writer = await client.create_ledger(ack_quorum=ack_quorum)
            writer.submit(b"first")
            writers.append(writer)
        await drained(network, writers, 0)
        await sent(writers)
        seen = []
        for end in network.ends.values():
            answer(end, 0, 5)
            seen.append(confirmed(writers))
        assert seen == [[0, 0, 0, 0, 1], [1, 1, 0, 0, 1], [1, 1, 1, 1, 1]]


class Expecting:
    """Answers that only a test expects."""

    over = False
    detached_rows = ()
    ledger_ids = entry_ids = ()

    def __init__(self, answers: bytes) -> None:
        self.answers = answers
        self.told: list[tuple[int, int] | str] = []

    def acked(self, place: int, count: int) -> None:
        self.told.append((place, count))

    def end_in_disorder(self) -> None:
        self.told.append("disorder")
        self.over = True


def answers_to(*ids: tuple[int, int]) -> bytes:
    return b"".join(add_response(Code.OK, *each) for each in ids)


def test_an_expectation_ends_when_its_first_row_is_answered_out_of_order() -> None:
    link = BookieChannel("b:1")
    expecting = Expecting(answers_to((1, 0), (2, 0), (3, 0)))
    link.expect(expecting, 2)
    link.data_received(answers_to((1, 0)))
    link.data_received(answers_to((9, 0), (9, 1)))
    assert expecting.told == [(2, 1)], "other answers may arrive in between"
    link.data_received(answers_to((2, 0), (4, 0)))
    assert expecting.told == [(2, 1), "disorder"]


def test_an_expectation_is_not_met_between_two_answers() -> None:
    """The expected bytes do not match if they occur within other answers."""
    chunk = answers_to((1, 0), (2, 0), (3, 0))
    link = BookieChannel("b:1")
    expecting = Expecting(chunk[5:33])
    link.expect(expecting, 0)
    link.data_received(chunk)
    assert expecting.told == ["disorder"]


async def test_an_entry_after_an_unacknowledged_one_is_detached_from_its_row() -> None:
    """The ledger detaches its entry, and the late answer still counts for it."""
    async with many_writers(6) as (network, _, writers):
        await sent(writers)
        first, second, third = network.ends.values()
        answer(first, 0, 6)
        await sent(writers[:2], b"third")
        answer(second, 0, 6)
        assert confirmed(writers) == [1] * 6
        assert [w._session.pipeline.can_attach for w in writers[:2]] == [False, False]
        assert writers[0]._session.pipeline.coalesced is None
        answer(third, 0, 6)  # the entries before
        assert writers[5]._session.pipeline.coalesced.over
        answer(third, 0, 2)
        answer(second, 0, 2)
        assert confirmed(writers) == [2, 2, 1, 1, 1, 1]
        await drained(network, writers, 1)
        await sent(writers[:2], b"fourth")
        assert writers[0]._session.pipeline.coalesced is None, (
            "the writer usually has several entries in flight"
        )
        await drained(network, writers[:2], 3)


@pytest.mark.parametrize("order", ["backwards", "swapped", "one late"])
async def test_answers_in_another_order_detach_the_ledgers_for_a_while(order: str) -> None:
    """A bookie with several logs answers in any order. Ledgers are sent separately for a while."""
    async with many_writers(12) as (network, _, writers):
        await sent(writers)
        for end in network.ends.values():
            rows = end._unanswered
            if order == "backwards":
                rows.reverse()
            elif order == "swapped":
                rows[4], rows[5] = rows[5], rows[4]
            else:
                rows.append(rows.pop(0))
        for end in network.ends.values():
            answer(end, 0, 5)
        for end in network.ends.values():
            answer(end, 0, 7)
        assert confirmed(writers) == [1] * 12
        assert all(w._session.pipeline.idle for w in writers)
        for turn in range(2, FLUSHES_ALONE + 4):
            await sent(writers, b"next")
            alone = writers[0]._session.pipeline.coalesced is None
            assert alone == (turn < FLUSHES_ALONE + 2)
            await drained(network, writers, turn)


async def test_a_refusal_among_the_answers_affects_only_its_ledger() -> None:
    """Other ledgers keep their acknowledgements. The refused ledger counts none of this bookie."""
    async with many_writers(8, bookies=3) as (network, _, writers):
        await sent(writers)
        refused = writers[3]
        first, second, third = network.ends.values()
        rows = b"".join(
            add_response(Code.FENCED if ledger == refused.ledger_id else Code.OK, ledger, entry)
            for ledger, entry in first._unanswered
        )
        first._unanswered.clear()
        first.link.data_received(rows)
        answer(second, 0, 8)
        answer(third, 0, 8)
        assert confirmed(writers) == [1, 1, 1, 0, 1, 1, 1, 1]
        assert refused.closed
        others = [writer for writer in writers if writer is not refused]
        await drained(network, others, 1)
        await sent(others, b"third")
        await drained(network, others, 2)


async def test_a_lost_connection_does_not_discard_the_acknowledgements_of_others() -> None:
    """Only the acknowledgements of the replaced bookie stop counting."""
    async with many_writers(10, bookies=4) as (network, _, writers):
        await sent(writers)
        for end in network.ends.values():
            answer(end, 0, 2)
        before = confirmed(writers)
        assert sorted(set(before)) == [0, 1]
        network.refuses.add(1)
        network.ends.pop(1).lose()
        lost = [w for w in writers if "b:1" in w.metadata.last_segment.ensemble]
        assert lost
        assert all(w._session.pipeline.coalesced is None for w in lost)
        await drained(network, writers, 1)
        for writer in [w for w, last in zip(writers, before) if last == 0]:
            ensemble = writer.metadata.last_segment.ensemble
            assert "b:1" not in ensemble
            for bookie in ensemble:
                stored = network.ends[int(bookie[2:])].stored[writer.ledger_id]
                assert stored[-1] == 1


async def test_the_entry_of_a_writer_that_ends_is_detached() -> None:
    async with many_writers(6) as (network, _, writers):
        await sent(writers)
        first, second, third = network.ends.values()
        answer(first, 0, 6)
        writers[2].abandon()
        with pytest.raises(QuireError):
            await writers[2].wait(1)
        answer(second, 0, 6)
        answer(third, 0, 6)
        assert confirmed(writers) == [1, 1, 0, 1, 1, 1]


async def test_no_payload_is_kept_after_the_last_acknowledgement() -> None:
    async with many_writers(6) as (network, _, writers):
        data = b"payload" * 1000
        count = sys.getrefcount(data)
        await sent(writers, data)
        network.forget()
        first, second, third = network.ends.values()
        answer(first, 0, 6)
        answer(second, 0, 6)
        assert sys.getrefcount(data) > count, (
            "the payload may have to be sent to the third bookie again"
        )
        answer(third, 0, 6)
        assert sys.getrefcount(data) == count


async def test_a_bookie_that_never_answers_coalesced_adds_is_replaced_in_time() -> None:
    """The timer also checks coalesced entries."""
    async with many_writers(20, bookies=4) as (network, _, writers):
        await sent(writers)
        silent, *others = network.ends.values()
        for end in others:
            answer(end, 0, len(end._unanswered))
        loop = asyncio.get_running_loop()
        hit = [w for w in writers if silent.link.bookie_id in w.metadata.last_segment.ensemble]
        # Where chance gave bookies to one writer alone, that one shares nothing.
        assert any(writer._session.pipeline.coalesced is not None for writer in hit)
        for writer in hit:
            lent = writer._session.pipeline.coalesced
            writer._session.check_timeouts(loop.time() + 4.0)
            assert writer._session.pipeline.coalesced is lent, "it is too early for a closer check"
            writer._session.check_timeouts(loop.time() + 6.0)
        network.refuses.add(int(silent.link.bookie_id[2:]))
        async with asyncio.timeout(10):
            while any(silent.link.bookie_id in w.metadata.last_segment.ensemble for w in hit):
                await asyncio.sleep(0)
                for end in others:
                    end.answer()
        await drained(network, writers, 1)
