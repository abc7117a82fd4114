"""A stream one of whose ledgers was deleted: the gap stays, and is reported."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from quire.client import LedgerReader
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import MAX_POSITION
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import (
    LedgerFencedError,
    NoSuchLedgerError,
    StreamFencedError,
    StreamGapError,
)
from quire.metadata.tree import Put
from quire.streams.namespace.namespace import open_namespace
from quire.streams.read.peek import UnreadableEntry, peek, position_before_end
from quire.streams.read.positions import LATEST, AtSequence, AtTxid, find_end
from quire.streams.read.records import Gap
from quire.streams.read.statistics import segment_statistics
from quire.streams.write.writer import StreamWriter
from tests.support.streams import Bench, run

LOST = "records from 2:0:0 to just before 3:0:0 are lost"


async def fill(b: Bench, *numbers: int, leave_open: bool = False) -> StreamWriter:
    """Append, in one segment more; its writer dies if it is to be left open."""
    writer = await b.streams.open_writer("s", create=True)
    await writer.append_many([b"%d" % number for number in numbers])
    if leave_open:
        writer.abandon()
    else:
        await writer.close()
    return writer


async def lose(b: Bench, lssn: int) -> StreamSegment:
    """Delete the ledger of a segment, like somebody who does not know its owner."""
    (segment,) = [each for each in await b.streams.segments("s") if each.lssn == lssn]
    await b.client.delete_ledger(segment.ledger_id)
    return segment


async def scene_lost(b: Bench) -> None:
    """Segment 2 was being written, with records 3 and 4, when its ledger was deleted."""
    await fill(b, 1, 2)
    await fill(b, 3, 4, leave_open=True)
    await lose(b, 2)


def test_a_takeover_keeps_the_gap(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(b: Bench) -> None:
        await scene_lost(b)
        before = await b.streams.segments("s")
        with caplog.at_level(logging.ERROR, "quire.streams"):
            await fill(b, 5, 6)
        assert await b.numbers("s") == [1, 2, 3]
        lost = (await b.streams.segments("s"))[1]
        assert lost.lost
        assert (lost.ledger_id, lost.first_txid) == (before[1].ledger_id, before[1].first_txid)
        assert f"ledger {lost.ledger_id} of segment 2 was deleted" in caplog.text
        got: list[bytes] = []
        reader = await b.streams.open_reader("s")

        async def read() -> None:
            async for record in reader:
                got.append(record.payload)

        with pytest.raises(StreamGapError, match=LOST):
            await read()
        assert got == [b"1", b"2"]
        records = await b.read("s", on_gap="skip")
        assert [record.payload for record in records] == [b"1", b"2", b"5", b"6"]
        assert [str(record.position) for record in records[2:]] == ["3:0:0", "3:0:1"]
        # Records 3 and 4 had the sequence ids 2 and 3, which no other records ever get.
        assert [record.sequence for record in records] == [0, 1, 2 + MAX_POSITION, 3 + MAX_POSITION]
        batches = (await b.streams.open_reader("s", on_gap="deliver")).batches()
        gaps = [batch async for batch in batches if isinstance(batch, Gap)]
        assert gaps == [Gap("lost", DLSN(2, 0, 0), DLSN(3, 0, 0))]

    run(scene)


def test_a_second_takeover_does_not_change_the_gap() -> None:
    async def scene(b: Bench) -> None:
        await scene_lost(b)
        await fill(b, 5)
        first = (await b.streams.segments("s"))[1]
        writer = await fill(b, 6)
        assert (await b.streams.segments("s"))[1] == first
        assert writer.next_sequence == 2 + MAX_POSITION + 2

    run(scene)


def test_a_lost_first_segment_is_a_gap() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2, leave_open=True)
        await lose(b, 1)
        await fill(b, 3)
        assert await b.numbers("s") == [1, 2]
        with pytest.raises(
            StreamGapError, match="from 1:0:0 to just before 2:0:0 are lost"
        ) as raised:
            await b.read("s")
        assert raised.value.kind == "lost"
        assert [r.payload for r in await b.read("s", on_gap="skip")] == [b"3"]

    run(scene)


def test_a_reader_that_starts_in_the_lost_segment_gets_a_gap_error() -> None:
    async def scene(b: Bench) -> None:
        await scene_lost(b)
        await fill(b, 5)
        with pytest.raises(StreamGapError, match="from 2:0:1 to just before 3:0:0 are lost"):
            await b.read("s", start=DLSN(2, 0, 1))
        assert [r.payload for r in await b.read("s", start=DLSN(3, 0, 0))] == [b"5"]

    run(scene)


def test_the_writer_itself_keeps_the_gap() -> None:
    """Its ledger is deleted while it writes: what it had acknowledged is lost, what it had not is
    in the next segment."""

    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        writer = await b.streams.open_writer("s")
        await writer.append_many([b"3", b"4"])
        await lose(b, 2)
        await writer.roll()
        assert await writer.append(b"5") == DLSN(3, 0, 0)
        await writer.close()
        assert await b.numbers("s") == [1, 2, 3]
        with pytest.raises(StreamGapError, match=LOST):
            await b.read("s")
        records = await b.read("s", on_gap="skip")
        assert [(r.payload, r.sequence) for r in records] == [
            (b"1", 0), (b"2", 1), (b"5", 4)
        ]  # fmt: skip

    run(scene)


def test_a_former_writer_that_watches_its_ledger_acknowledges_nothing_after_a_takeover() -> None:
    """Only the watch can tell the writer, because a ledger without metadata cannot be fenced."""

    async def scene(b: Bench) -> None:
        config = replace(b.client.config, watch_written_ledgers=True)
        async with b.world.client("former", config) as client:
            former = await (await open_namespace(client, "/acme/test")).open_writer(
                "s", create=True
            )
            await former.append(b"1")
            await lose(b, 1)
            async with b.streams.open_writer("s") as successor:
                await successor.append(b"2")
                await asyncio.sleep(1.0)  # simulated: the watch has been delivered
                with pytest.raises(StreamFencedError):
                    await former.append(b"3")
            assert [r.payload for r in await b.read("s", on_gap="skip")] == [b"2"]

    run(scene)


@pytest.mark.parametrize("end", ["recovered before", "close", "change of the ensemble"])
def test_the_writer_of_a_deleted_ledger_learns_of_the_deletion(end: str) -> None:
    """The client's reference says when. No bookie refuses the writer unless the ledger was
    fenced."""

    async def scene(b: Bench) -> None:
        writer = await b.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"1")
        if end == "recovered before":
            (await b.client.open_ledger(writer.ledger_id, recover=True)).close()
        await b.client.delete_ledger(writer.ledger_id)
        for bookie in b.world.bookies.values():
            assert await bookie.collect_garbage() == ""
            assert writer.ledger_id not in bookie.store.ledgers
        if end == "recovered before":
            with pytest.raises(LedgerFencedError):
                await writer.append(b"2")
            return
        assert await writer.append(b"2") == 1
        if end == "change of the ensemble":
            await b.world.stop(writer.metadata.last_segment.ensemble[0].partition(":")[0])
        with pytest.raises(NoSuchLedgerError):
            await (writer.close() if end == "close" else writer.append(b"3"))

    run(scene, bookies=4)


def test_positions_that_may_be_in_the_lost_segment_raise_a_gap_error() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"txids": "given"})
        for numbers in ((10, 20), (30, 40), (50, 60)):
            writer = await b.streams.open_writer("s")
            await writer.append_many([b"%d" % n for n in numbers], txids=numbers)
            if numbers[0] == 30:
                writer.abandon()
                await lose(b, 2)
            else:
                await writer.close()
        for place, found in (
            (AtTxid(20), "1:0:2"),
            (AtTxid(25), "2:0:0"),
            (AtTxid(35), "2:0:0"),
            (AtTxid(50), "2:0:0"),
            (AtTxid(55), "3:0:2"),
            (AtTxid(60), "3:0:2"),
            (AtSequence(1), "1:0:2"),
            (AtSequence(3), "2:0:0"),
            (AtSequence(3 + MAX_POSITION), "3:0:2"),
        ):
            assert str(await b.streams.find("s", place)) == found, place
        await lose(b, 3)
        assert str(await b.streams.find("s", LATEST)) == "4:0:0"
        assert str(await b.streams.find("s", AtTxid(55))) == "2:0:0"

    run(scene)


def test_a_lost_segment_can_be_truncated() -> None:
    async def scene(b: Bench) -> None:
        await scene_lost(b)
        await fill(b, 5)
        await fill(b, 6)
        freed = await b.streams.truncate("s", DLSN(3, 0, 0))
        assert [segment.lssn for segment in freed] == [1]
        assert (await b.streams.segments("s"))[0].truncation is Truncation.TRUNCATED
        assert [r.payload for r in await b.read("s")] == [b"5", b"6"]

    run(scene)


def test_producers_and_tokens_survive_a_lost_segment() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.set_fencing_token("t")
            producer = await writer.producer("p")
            await producer.append_many([b"1", b"2"], 0, token="t")
        writer = await b.streams.open_writer("s")
        producer = await writer.producer("p")
        await producer.append_many([b"3"], 2, token="t")
        writer.abandon()
        await lose(b, 2)
        async with await b.streams.open_writer("s") as writer:
            producer = await writer.producer("p")
            assert producer.last_sequence == 1  # number 2 is lost, and may be sent again
            await producer.append_many([b"2", b"3"], 1, token="t")
        records = await b.read("s", on_gap="skip")
        assert [r.payload for r in records] == [b"1", b"2", b"3"]

    run(scene)


def test_a_completed_segment_without_its_ledger_is_a_gap() -> None:
    """Nothing must be stored for it, because its node has the number of its records."""

    async def scene(b: Bench) -> None:
        for number in (1, 2, 3):
            await fill(b, number)
        await lose(b, 2)
        writer = await fill(b, 4)
        assert writer.next_sequence == 4
        with pytest.raises(StreamGapError, match=LOST):
            await b.read("s")
        assert [r.payload for r in await b.read("s", on_gap="skip")] == [b"1", b"3", b"4"]
        assert str(await b.streams.find("s", AtSequence(1))) == "2:0:0"

    run(scene)


def test_missing_last_entries_of_a_completed_segment_are_a_gap() -> None:
    """Bookies that had lost entries let a recovery close the ledger too early. Nothing told it."""

    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            places = [await writer.append(b"%d" % number) for number in range(4)]
        await fill(b, 4)
        async with b.streams.open_writer("t", create=True) as writer:
            for number in range(2):
                await writer.append(b"%d" % number)
        (whole, _), (short,) = await b.streams.segments("s"), await b.streams.segments("t")
        metadata = b.streams.metadata("s")
        cut = replace(whole, ledger_id=short.ledger_id)
        await metadata.tree.commit(Put(metadata.paths.segment(whole.name), cut.to_bytes()))
        end = (await b.client.ledger_metadata(short.ledger_id)).last_entry_id
        gap = Gap("lost", DLSN(1, end + 1, 0), DLSN(2, 0, 0))
        assert gap.first <= places[-1]
        with pytest.raises(StreamGapError, match=str(gap)):
            await b.read("s")
        assert [r.payload for r in await b.read("s", on_gap="skip")] == [b"0", b"1", b"4"]
        segments = await b.streams.segments("s")
        for start, count in ((DLSN(1, 0, 0), 2), (gap.first, 0), (places[-1], 0)):
            wanted = replace(gap, first=max(start, gap.first))
            reader = await b.streams.open_reader("s", start=start, on_gap="deliver")
            async with aclosing(reader.batches()) as batches:
                assert wanted in [batch async for batch in batches]
            async with aclosing(peek(b.client, segments, start)) as items:
                found = [item async for item, _ in items]
            assert found[count] == wanted
            assert len(found) == count + 2
        assert [r.payload for r in await b.read("s", start=whole.last_dlsn.next_slot())] == [b"4"]
        for number, place in enumerate((places[0], places[1], gap.first, gap.first, gap.behind)):
            assert await b.streams.find("s", AtSequence(number)) == place

    run(scene)


def test_a_search_in_an_unclosed_ledger_skips_no_record() -> None:
    """It began at the next segment if the record was in the last entry, which no LAC covers."""

    async def scene(b: Bench) -> None:
        await fill(b, 0, leave_open=True)
        async with b.streams.open_writer("s") as writer:
            await writer.append(b"1")
        writer = await b.streams.open_writer("t", create=True)
        for number in range(2):
            last = await writer.append(b"%d" % number)
        writer.abandon()
        (whole, _), (unclosed,) = await b.streams.segments("s"), await b.streams.segments("t")
        metadata = b.streams.metadata("s")
        segment = replace(
            whole, ledger_id=unclosed.ledger_id, last_entry_id=last.entry_id, record_count=2
        )
        await metadata.tree.commit(Put(metadata.paths.segment(whole.name), segment.to_bytes()))
        assert not (await b.client.ledger_metadata(unclosed.ledger_id)).closed
        assert await position_before_end(b.client, [segment], 1) == DLSN(1, last.entry_id, 0)
        assert await position_before_end(b.client, [segment], 2) == DLSN(1, 0, 0)
        found = await b.read("s", start=AtSequence(1))
        assert [r.payload for r in found] == [b"1", b"1"]

    run(scene)


def test_an_end_that_comes_while_records_are_looked_at_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger of a completed segment is recovered after its LAC was read."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        for number in range(3):
            last = await writer.append(b"%d" % number)
        writer.abandon()
        (segment,) = await b.streams.segments("s")
        completed = segment.completed(
            last_txid=1, record_count=3, last_entry_id=last.entry_id, last_slot_id=0,
            completion_time_ms=0, start_sequence_id=0,
        )  # fmt: skip
        opened, open_ledger = [], b.client.open_ledger

        async def noted(*which: Any, **how: Any) -> LedgerReader:
            opened.append(await open_ledger(*which, **how))
            return opened[-1]

        monkeypatch.setattr(b.client, "open_ledger", noted)
        async with aclosing(peek(b.client, [completed], DLSN(1, 0, 0))) as items:
            found = [(await anext(items))[0]]
            assert not opened[0].ledger_closed
            await open_ledger(segment.ledger_id, recover=True)
            await opened[0]._view.refresh()
            found += [item async for item, _ in items]
        assert isinstance(found[-1], UnreadableEntry)

    run(scene)


def test_a_writer_continues_after_a_lost_newest_segment() -> None:
    async def scene(b: Bench) -> None:
        for number in (1, 2):
            await fill(b, number)
        await lose(b, 2)
        writer = await b.streams.open_writer("s")
        assert await writer.append(b"3") == DLSN(3, 0, 0)
        await writer.close()
        assert [r.sequence for r in await b.read("s", on_gap="skip")] == [0, 2]

    run(scene)


def test_segment_statistics_report_a_lost_segment() -> None:
    async def scene(b: Bench) -> None:
        await scene_lost(b)
        await fill(b, 5)
        facts = await segment_statistics(b.client, await b.streams.segments("s"))
        assert [(fact.lost, fact.records) for fact in facts] == [(False, 2), (True, 0), (False, 1)]
        assert facts[1].last is None

    run(scene)


def test_a_lost_segment_is_stored_in_distributedlogs_format() -> None:
    """Every version of Quire and DistributedLog's programs read it as a completed segment."""
    segment = StreamSegment(2, 17, 100).completed_as_lost(
        last_txid=120, record_count=MAX_POSITION, completion_time_ms=1_000, start_sequence_id=7
    )
    data = segment.to_bytes()
    assert data == b"9223372032559809541;17;100;120;1000;2;4611686018427387904;0;0;0;7"
    again = StreamSegment.from_bytes(data)
    assert again == segment
    assert again.lost
    assert again.truncation is Truncation.ACTIVE
    assert again.known_records == 0
    assert again.following_sequence_id == 7 + MAX_POSITION
    assert again.name == "logrecs_000000000000000002"
    assert again.truncated().lost


def test_a_read_whose_end_may_be_in_a_lost_segment_includes_it() -> None:
    async def scene(b: Bench) -> None:
        for numbers in ((1, 2), (3, 4), (5, 6)):
            await fill(b, *numbers)
        await lose(b, 2)
        segments = await b.streams.segments("s")

        async def end(place: AtSequence | AtTxid | DLSN) -> DLSN:
            return await find_end(b.client, segments, place, b.streams.password)

        assert await b.streams.find("s", AtSequence(3)) == DLSN(2, 0, 0)
        assert await end(AtSequence(3)) == DLSN(3, 0, 0)
        assert await end(AtSequence(4)) == DLSN(3, 0, 0)
        assert await end(AtTxid(segments[1].last_txid)) == DLSN(3, 0, 0)
        assert await end(AtSequence(1)) == await b.streams.find("s", AtSequence(1))
        assert await end(DLSN(2, 0, 0)) == DLSN(2, 0, 0)
        reader = await b.streams.open_reader("s", end=await end(AtSequence(3)))
        with pytest.raises(StreamGapError, match=LOST):
            [record async for record in reader]

    run(scene)
