"""A client with thousands of writers does some work once for all, and each writer keeps little."""

from __future__ import annotations

import asyncio
import gc
import sys
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.client.observability.metrics import ClientCounters
from quire.client.write import add_session
from quire.client.write.add_session import AddSession
from quire.client.write.flush import Flush
from quire.codec.entry.entry import MAX_ENTRY_ID
from quire.codec.wire.v2 import ADD_WORD, RESPONSE, Code, add_response
from quire.config import ClientConfig
from quire.core.append.pipeline import AddPipeline, Block
from quire.errors import LedgerClosedError, NoSuchLedgerError, WriteError
from quire.net.channel import BookieChannel
from tests.support.bookies.fake_bookies import FakeCluster, payload, simulated
from tests.support.bookies.many_writers import drained, many_writers

LEDGERS = (1, 2, 3, 300)


# -- answers ----------------------------------------------------------------------------------


class Sink:
    """Records what it receives: a run, entries, or an error."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.failed: list[int] = []

    def on_acked_run(self, first: int, last: int) -> None:
        self.stored.extend(range(first, last + 1))

    def on_acked(self, entries: Any) -> None:
        self.stored.extend(entries)

    def on_add_error(self, entry_id: int, error: Exception) -> None:
        self.failed.append(entry_id)

    def on_lost(self, error: Exception) -> None: ...


answers = st.lists(
    st.tuples(
        st.sampled_from(LEDGERS),
        st.integers(0, 5),
        st.integers(1, 4),
        st.sampled_from([1, 1, 2]),
        st.sampled_from([Code.OK] * 9 + [Code.FENCED]),
    ),
    min_size=1,
    max_size=30,
)


@given(answers, st.data())
def test_every_mixture_of_answers_reaches_its_ledger_in_order(
    stretches: list[tuple[int, int, int, int, int]], data: st.DataObject
) -> None:
    """The answers are runs, ids with gaps (striping), descending ids, refusals, and old ledgers.

    They are cut anywhere.
    """
    link = BookieChannel("b:1")
    sinks = {ledger: Sink() for ledger in LEDGERS[:3]}
    for ledger, sink in sinks.items():
        link.attach(ledger, sink)
    stream = b""
    stored: dict[int, list[int]] = {ledger: [] for ledger in sinks}
    failed: dict[int, list[int]] = {ledger: [] for ledger in sinks}
    for ledger, first, count, step, code in stretches:
        for entry in range(first, first + count * step, step):
            stream += add_response(code, ledger, entry)
            if ledger in sinks:
                (failed if code else stored)[ledger].append(entry)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    for a, b in zip([0, *cuts], [*cuts, len(stream)]):
        if a < b:
            link.data_received(stream[a:b])
    assert {ledger: sink.stored for ledger, sink in sinks.items()} == stored
    assert {ledger: sink.failed for ledger, sink in sinks.items()} == failed


def test_the_answers_of_a_striped_ledger_reach_it_in_one_call() -> None:
    """A bookie has only some entries of a striped ledger.

    Counting the quorums for each pair of them would cost as much as the adds.
    """
    calls = []

    class Counting(Sink):
        def on_acked(self, entries: Any) -> None:
            calls.append(list(entries))

    link = BookieChannel("b:1")
    for ledger in (1, 2):
        link.attach(ledger, Counting())
    ids = [0, 1, 5, 6, 10, 11]
    chunk = b"".join(
        RESPONSE.pack(24, ADD_WORD, 0, ledger, entry) for ledger in (1, 2) for entry in ids
    )
    link.data_received(chunk)
    assert calls == [ids, ids]


# -- the flush --------------------------------------------------------------------------------


async def test_one_callback_serves_all_requests_of_an_event_loop_iteration() -> None:
    flush = Flush(ClientCounters())
    told: list[int] = []
    loop = asyncio.get_running_loop()
    with mock.patch.object(loop, "call_soon", wraps=loop.call_soon) as begun:
        for number in range(5):
            flush.at_end(partial(told.append, number))
    assert (told, begun.call_count) == ([], 1)
    await asyncio.sleep(0)
    assert told == [0, 1, 2, 3, 4]
    flush.at_end(lambda: told.append(5))
    await asyncio.sleep(0)
    assert told[-1] == 5


async def test_an_error_in_one_flush_does_not_prevent_the_others() -> None:
    flush = Flush(ClientCounters())
    told: list[int] = []
    reported: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def broken() -> None:
        raise ValueError("broken")

    flush.at_end(broken)
    flush.at_end(lambda: told.append(1))
    await asyncio.sleep(0)
    assert told == [1]
    assert [str(error) for error in reported] == ["broken"]


async def test_an_error_in_what_one_group_sends_does_not_keep_anything_else() -> None:
    """The group itself also sends what it gets next."""
    flush = Flush(ClientCounters())
    reported: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    links = [mock.Mock(bookie_id=f"b:{number}") for number in range(3)]
    groups = [flush.group((link,)) for link in links]
    links[0].send.side_effect = [MemoryError("too much"), None]
    for data in (b"first", b"second"):
        for group in groups:
            flush.at_end(partial(group.put, [data]))
        await asyncio.sleep(0)
    for link in links:
        assert [call.args[0] for call in link.send.mock_calls] == [b"first", b"second"]
    assert [str(error) for error in reported] == ["too much"]


async def test_a_group_whose_pieces_cannot_be_joined_sends_what_it_gets_next() -> None:
    flush = Flush(ClientCounters())
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    link = mock.Mock(bookie_id="b:1")
    group = flush.group((link,))
    flush.at_end(partial(group.put, [None]))  # type: ignore[list-item]
    await asyncio.sleep(0)
    flush.at_end(partial(group.put, [b"next"]))
    await asyncio.sleep(0)
    assert [call.args[0] for call in link.send.mock_calls] == [b"next"]


# -- sessions ---------------------------------------------------------------------------------


def test_a_full_ledger_fails_waiting_appends() -> None:
    """The error once went to the event loop's handler, and `append` waited forever."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger()
            writer._session.pipeline.last_pushed = MAX_ENTRY_ID
            with pytest.raises(WriteError, match="is full"):
                await writer.append(payload(0))

    simulated(main)


def test_the_error_of_a_ledger_that_fills_up_within_a_call_names_the_sent_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error once said that nothing of the call was sent, and the writer went on."""
    monkeypatch.setattr(add_session, "MAX_ENTRY_ID", 2)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(replace(cluster.config, max_turn_bytes=1)) as client:
            writer = await client.create_ledger()
            await writer.append(payload(0))
            with pytest.raises(WriteError, match="Nothing after entry 2 was sent") as caught:
                await writer.submit_many([payload(i) for i in range(1, 5)])
            assert not caught.value.outcome_known
            assert writer.closed
            with pytest.raises(WriteError, match="is full"):
                writer.submit(payload(3))
            stored = [
                sorted(cluster[name].entries) for name in writer.metadata.last_segment.ensemble
            ]
            assert stored == [[0, 1, 2]] * len(stored)

    simulated(main)


def test_a_ledger_filled_by_one_call_accepts_nothing_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entries of `submit` are sent at the end of the turn, or by the next call."""
    monkeypatch.setattr(add_session, "MAX_ENTRY_ID", 1)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger()
            for number in range(3):
                writer.submit(payload(number))
            with pytest.raises(WriteError, match="No entry was sent"):
                await writer.submit_many([payload(3)])
            assert writer.closed
            assert not any(bookie.entries for bookie in cluster.bookies.values())

    simulated(main)


def test_an_error_within_a_call_ends_the_writer() -> None:
    """A first part of the entries was sent, so that the next entries must not follow them."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(replace(cluster.config, max_turn_bytes=1)) as client:
            writer = await client.create_ledger()
            push = writer._session.push

            def broken(payloads: Any) -> int:
                if writer.last_add_pushed == 1:
                    raise ValueError("broken")
                return push(payloads)

            with (
                mock.patch.object(AddSession, "push", side_effect=broken),
                pytest.raises(ValueError, match="broken"),
            ):
                await writer.submit_many([payload(i) for i in range(5)])
            with pytest.raises(WriteError, match="from 2 on could not be sent"):
                await writer.append(payload(2))

    simulated(main)


def test_a_failed_writer_refuses_entries_of_every_call() -> None:
    """`submit_many` once returned an id for entries that no bookie was ever sent."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(payload(0))
            writer._session.fail(WriteError("over", ledger_id=writer.ledger_id))
            with pytest.raises(WriteError, match="over"):
                writer.submit(payload(1))
            with pytest.raises(WriteError, match="over"):
                await writer.submit_many([payload(1)])
            assert writer.last_add_pushed == 0

    simulated(main)


@pytest.mark.parametrize("caller_ids", [False, True])
def test_waiting_for_an_entry_acknowledged_before_a_failure_succeeds(caller_ids: bool) -> None:
    """`wait` once raised an error with a known outcome, as if nothing had been appended."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer: Any = await client.create_ledger(caller_ids=caller_ids)
            for number in range(3):
                if caller_ids:
                    writer.submit_at(number, payload(number))
                else:
                    writer.submit(payload(number))
            assert await writer.flush() == 2
            writer._session.fail(NoSuchLedgerError("deleted"))
            assert writer._session.failure.outcome_known
            assert await writer.wait(1) == 1
            assert await writer.wait(2) == await writer.flush() == 2
            with pytest.raises(NoSuchLedgerError, match="deleted"):
                await writer.wait(3)

    simulated(main)


@pytest.mark.parametrize("sent", ["with a failed session", "with an error"])
def test_a_flush_fails_if_submitted_entries_were_never_sent(sent: str) -> None:
    """Everything that was sent is acknowledged, but a submitted entry is missing."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(payload(0))
            assert writer.submit(payload(1)) == 1
            if sent == "with an error":
                with (
                    mock.patch.object(AddSession, "push", side_effect=ValueError("broken")),
                    pytest.raises(ValueError, match="broken"),
                ):
                    writer._send_batch()
            else:
                writer._session.fail(WriteError("over", ledger_id=writer.ledger_id))
            for _ in range(2):
                with pytest.raises(WriteError):
                    await writer.flush()
                with pytest.raises(WriteError):
                    await writer.wait(1)
            assert await writer.wait(0) == 0

    simulated(main)


def test_a_second_writer_joins_the_existing_connections() -> None:
    """A task for each member of each ledger once cost more than ten adds."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            first = await client.create_ledger()
            await first.append(payload(0))
            tasks = len(asyncio.all_tasks())
            second = await client.create_ledger(ledger_id=900)
            second.submit(payload(0))
            second._send_batch()
            assert len(asyncio.all_tasks()) == tasks
            members = second._session._members
            assert all(member.channel is not None for member in members)
            assert await second.wait(0) == 0
            first.abandon()
            second.abandon()

    simulated(main)


def test_a_member_of_an_ended_session_does_not_join_a_connection() -> None:
    """It would stay with the connection, and receive the answers for the ledger's next writer."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(payload(0))
            session, ledger = writer._session, writer.ledger_id
            session.fail(LedgerClosedError("over", ledger_id=ledger))
            session._join(0)
            link = session.connected(session.ensemble[0])
            assert link is not None
            assert link.takes_adds_of(ledger)

    simulated(main)


def test_quorums_are_counted_only_if_an_acknowledgement_can_complete_one() -> None:
    """The first and third of three acknowledgements cannot, unless a caller waits for space."""

    async def main() -> None:
        cluster = await FakeCluster.made(3, ClientConfig(max_unacked_bytes=1))
        async with cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(payload(0))
            await writer.room()
            session = writer._session
            for member in session._members:
                cluster[member.bookie_id].holds_acks = True
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await asyncio.sleep(1)
            first, second, third = session._members
            first.on_acked_run(1, 1)
            assert writer.last_add_confirmed == 0
            second.on_acked_run(1, 1)
            assert writer.last_add_confirmed == 1
            assert await appended == 1
            waiting = asyncio.ensure_future(writer.room())
            await asyncio.sleep(1)
            assert not waiting.done()
            third.on_acked_run(1, 1)
            await waiting
            writer.submit(payload(2))
            await asyncio.sleep(1)
            after_acks = AddSession.after_acks
            with mock.patch.object(
                AddSession, "after_acks", autospec=True, side_effect=after_acks
            ) as counted:
                for member in session._members:
                    member.on_acked_run(2, 2)
            assert (writer.last_add_confirmed, counted.call_count) == (2, 1)
            writer.abandon()

    simulated(main)


def test_an_acknowledgement_that_closes_a_gap_confirms_the_later_entries() -> None:
    """Its entry has an ack quorum already, and the later entries reach theirs."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger()
            session = writer._session
            for bookie in cluster.bookies.values():
                bookie.holds_acks = True
            appended = [asyncio.ensure_future(writer.append(payload(k))) for k in range(5)]
            await asyncio.sleep(1)
            first, second, third = session._members
            first.on_acked_run(0, 4)
            second.on_acked_run(1, 4)
            third.on_acked_run(0, 0)
            assert writer.last_add_confirmed == 0
            second.on_acked_run(0, 0)
            assert writer.last_add_confirmed == 4
            assert await asyncio.gather(*appended) == list(range(5))
            writer.abandon()

    simulated(main)


# -- what leaves together ---------------------------------------------------------------------


async def test_ledgers_with_the_same_members_are_sent_in_one_buffer() -> None:
    """The order of members in ensembles does not matter.

    Three copies of each frame, with a call for each, took a third of the time of an add.
    """
    async with many_writers(20) as (network, _, writers):
        ensembles = {writer.metadata.last_segment.ensemble for writer in writers}
        assert len(ensembles) > 1
        assert len({id(writer._session._group) for writer in writers}) == 1
        for writer in writers:
            writer.submit(b"second")
        writers[3].submit(b"third")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sent = [end.writes for end in network.ends.values()]
        assert [len(writes) for writes in sent] == [1, 1, 1]
        assert sent[0][0] is sent[1][0] is sent[2][0]
        await drained(network, writers, 1)
        assert writers[3].last_add_confirmed == 2
        for end in network.ends.values():
            assert end.stored == {w.ledger_id: [0, 1] for w in writers} | {
                writers[3].ledger_id: [0, 1, 2]
            }


async def test_the_first_entry_of_a_writer_is_sent_once() -> None:
    """It is sent on existing connections without waiting for anything."""
    async with many_writers(1) as (network, client, writers):
        another = await client.create_ledger()
        writers.append(another)
        another.submit(b"first")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [end.stored[another.ledger_id] for end in network.ends.values()] == [[0]] * 3
        await drained(network, [another], 0)


async def test_entries_flushed_while_a_member_is_lost_reach_the_others_and_its_replacement() -> (
    None
):
    """The ledgers leave the group of the lost connection, and join that of the replacement."""
    async with many_writers(20, bookies=4) as (network, _, writers):
        for writer in writers:
            writer.submit(b"second")
        await asyncio.sleep(0)  # on the routes
        network.refuses.add(1)
        network.ends.pop(1).lose()
        hit = [w for w in writers if "b:1" in w.metadata.last_segment.ensemble]
        assert hit
        assert len(hit) < len(writers)
        assert all((w._session._group is None) == (w in hit) for w in writers)
        for writer in writers:
            writer.submit(b"third")
        await drained(network, writers, 2)
        assert all(w._session._group is not None for w in writers)
        for writer in writers:
            ensemble = writer.metadata.last_segment.ensemble
            assert "b:1" not in ensemble
            for bookie in ensemble:
                stored = network.ends[int(bookie[2:])].stored[writer.ledger_id]
                assert stored[-2:] == [1, 2]
        for writer in writers:
            writer.submit(b"fourth")
        await drained(network, writers, 3)


async def test_writers_and_tasks_that_end_during_a_flush_do_not_affect_the_others() -> None:
    """Some callers among others in one event-loop iteration end: their writers or tasks stop.

    One writer is abandoned, one ledger is full, one caller waits alone, and one caller is
    cancelled.
    """
    async with many_writers(6) as (network, _, writers):
        given_up, full, early, cancelled, *others = writers
        appends = [asyncio.ensure_future(writer.append(b"second")) for writer in writers]
        full._session.pipeline.last_pushed = MAX_ENTRY_ID
        flushed = asyncio.ensure_future(early.flush())
        await asyncio.sleep(0)  # all have handed over theirs
        given_up.abandon()
        appends[3].cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in range(3):
            network.answer()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            done = await asyncio.gather(*appends, return_exceptions=True)
        assert isinstance(done[0], LedgerClosedError)
        assert isinstance(done[1], WriteError)
        assert isinstance(done[3], asyncio.CancelledError)
        assert [done[2], *done[4:]] == [1, 1, 1]
        assert await flushed == 1
        assert cancelled.last_add_confirmed == 1, "the submitted entry is kept"
        for end in network.ends.values():
            assert given_up.ledger_id not in end.stored or end.stored[given_up.ledger_id] == [0]
            for writer in (early, cancelled, *others):
                assert end.stored[writer.ledger_id] == [0, 1]
        await drained(network, others, 1)


async def test_entries_sent_at_the_flush_and_directly_stay_in_order() -> None:
    """`append_many` and `wait` do not wait for the end of the event-loop iteration."""
    async with many_writers(3) as (network, _, writers):
        for writer in writers:
            writer.submit(b"1")
        appended = asyncio.ensure_future(writers[1].append_many([b"2", b"3"]))
        writers[2].submit(b"2")
        waited = asyncio.ensure_future(writers[2].wait(1))
        await asyncio.sleep(0)
        for writer in writers:
            writer.submit(b"4")
        await drained(network, writers, 2)
        assert (await appended, await waited) == (3, 1)
        appended = asyncio.ensure_future(writers[0].append_many([b"alone"]))
        await drained(network, writers[:1], writers[0].last_add_pushed + 1)
        assert await appended == writers[0].last_add_confirmed
        for end in network.ends.values():
            for writer in writers:
                assert end.stored[writer.ledger_id] == list(range(writer.last_add_pushed + 1))


async def test_a_client_keeps_connection_groups_only_for_sessions_that_use_them() -> None:
    """Connection groups hold connections."""
    async with many_writers(5, bookies=5) as (_, client, writers):
        groups = client._shared.flush._groups
        assert len(groups) > 0
        for writer in writers:
            writer.abandon()
        gc.collect()
        assert len(groups) == 0


# -- what is kept -----------------------------------------------------------------------------


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_an_idle_writer_holds_no_payload(order: tuple[int, ...], parked: bool) -> None:
    """An idle writer once kept its last block, which is ten thousand payloads for ten thousand
    writers.
    """
    data = b"frame" * 1000
    pipeline = AddPipeline(3, 3, 2)
    count = sys.getrefcount(data)
    for first in (0, 1):
        pipeline.push(Block(first, first, (data,), first, first + 1, 0.0))
        last = order[-1]
        for index in order[:-1]:
            pipeline.acked_run(index, first, first)
            pipeline.confirm()
        assert pipeline.last_confirmed == first
        assert sys.getrefcount(data) > count, (
            "the payload may have to be sent to the third bookie again"
        )
        if parked:
            pipeline.park([last])
        else:
            pipeline.acked_run(last, first, first)
        assert sys.getrefcount(data) == count
        if parked:
            pipeline.restart([last], 0.0)
        assert pipeline.idle


def test_a_frozen_pipeline_keeps_unconfirmed_entries() -> None:
    pipeline = AddPipeline(3, 3, 2)
    pipeline.push(Block(0, 0, (b"first",), 0, 5, 0.0))
    pipeline.frozen = True
    for index in range(3):
        pipeline.acked_run(index, 0, 0)
    pipeline.confirm()
    pipeline.restart([1], 0.0)
    assert list(pipeline.frames_for(1, -1)) == [(0, b"first")]
    pipeline.push(Block(1, 1, (b"second",), 5, 11, 0.0))
    assert list(pipeline.frames_for(1, -1)) == [(0, b"first"), (1, b"second")]


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2)])
def test_an_acknowledgement_of_an_entry_that_was_not_sent_does_not_count(
    shape: tuple[int, int, int],
) -> None:
    """It was once counted in advance, which could confirm an entry with one copy too few."""
    pipeline = AddPipeline(*shape)
    pipeline.push(Block(0, 0, (b"0",), 0, 1, 0.0))
    for index in range(3):
        pipeline.acked(index, [0, 1, 2, 3])
        pipeline.acked_run(index, 1, 3)
    assert pipeline.confirm()
    for entry in (1, 2, 3):
        pipeline.push(Block(entry, entry, (b"%d" % entry,), entry, entry + 1, 0.0))
    assert not pipeline.confirm()
    assert pipeline.last_confirmed == 0
    assert pipeline.outstanding_since(0) == 0.0


def test_nothing_is_outstanding_on_an_absent_member() -> None:
    """This includes entries that are pushed while nothing is outstanding anywhere."""
    pipeline = AddPipeline(3, 3, 2)
    pipeline.park([1])
    pipeline.push(Block(0, 0, (b"0",), 0, 1, 5.0))
    assert [pipeline.outstanding_since(index) for index in range(3)] == [5.0, None, 5.0]
    for index in (0, 2):
        pipeline.acked_run(index, 0, 0)
    assert pipeline.confirm()
    assert pipeline.idle
