"""Streams on simulated bookies: what writers and readers see, and what remains in the metadata."""

from __future__ import annotations

import asyncio
import warnings
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from quire.bookie.protocol.service import BookieService
from quire.client import Client, LedgerReader
from quire.codec.distributedlog import compression
from quire.codec.distributedlog.control_record import CreationTime, encode_control
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import (
    MAX_PAYLOAD_BYTES,
    control_record,
    decode_entry,
    encode_record,
)
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.codec.wire.v2 import Code
from quire.errors import (
    ClientClosedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchNamespaceError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    QuireError,
    RecordTooLargeError,
    RecoveryError,
    StreamClosedError,
    StreamConditionError,
    StreamEndedError,
    StreamExistsError,
    StreamFencedError,
    StreamGapError,
    StreamQuotaError,
    TxidOrderError,
    UnreadableMetadataError,
    UsageError,
)
from quire.metadata.tree import Create, Operation, Put, Result
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import check_value
from quire.streams.read import positions
from quire.streams.read.positions import (
    LATEST,
    AtSequence,
    AtTime,
    AtTxid,
    creation_time_ms,
    find,
)
from quire.streams.read.reader import StreamReader
from quire.streams.read.records import Gap
from quire.streams.read.segment_list import LIST_AGAIN_S
from quire.streams.write.pending_entry import Appended, PendingEntry
from quire.streams.write.segments import Segments, SegmentWriter
from quire.streams.write.writer import StreamWriter
from quire.streams.write.writer_task import GIVE_UP_S
from tests.support.metadata.lagging import LaggingServer
from tests.support.streams import Bench, run


def test_appended_records_are_read() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            first = await writer.append(b"one")
            more = await writer.append_many([b"two", b"", b"four"])
            assert first == DLSN(1, 0, 0)
            assert list(more) == [DLSN(1, 1, 0), DLSN(1, 1, 1), DLSN(1, 1, 2)]
            assert writer.next_sequence == 4
        found = await b.read("s")
        assert [r.payload for r in found] == [b"one", b"two", b"", b"four"]
        assert [r.position for r in found] == [first, *more]
        assert [r.sequence for r in found] == [0, 1, 2, 3]
        assert await b.numbers("s") == [1]

    run(scene)


def test_a_lone_record_reaches_a_following_reader_at_once() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"before")
        await asyncio.sleep(0.5)  # A later entry shows the bookies that it is acknowledged.
        seen: list[tuple[bytes, float]] = []

        async def follow() -> None:
            reader = await b.streams.open_reader("s", start=LATEST, follow=True)
            async for record in reader:
                seen.append((record.payload, b.world.loop.time()))

        async with asyncio.TaskGroup() as group:
            task = group.create_task(follow())
            await asyncio.sleep(1.0)
            for number in range(3):
                await writer.append(b"%d" % number)
                done = b.world.loop.time()
                await asyncio.sleep(0.5)
                payload, at = seen[-1]
                assert payload == b"%d" % number
                assert at - done < 0.2
            task.cancel()
        assert len(seen) == 3
        await writer.close()

    run(scene)


def test_segments_roll_by_size_without_a_gap() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"roll_bytes": 3_000, "entry_bytes": 1_024})
        payloads = [b"%d." % k * 20 for k in range(400)]
        async with await b.streams.open_writer("s") as writer:
            for at in range(0, 400, 40):
                await writer.append_many(payloads[at : at + 40])
        segments = await b.streams.segments("s")
        assert len(segments) >= 5
        assert [s.lssn for s in segments] == list(range(1, len(segments) + 1))
        assert [s.start_sequence_id for s in segments[1:]] == [
            s.following_sequence_id for s in segments[:-1]
        ]
        found = await b.read("s")
        assert [r.payload for r in found] == payloads
        assert [r.sequence for r in found] == list(range(400))
        # The ledger that was allocated ahead is gone, and so is its name.
        assert sorted(await b.ledgers()) == sorted(s.ledger_id for s in segments)

    run(scene)


def test_an_idle_segment_is_completed_in_time() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"roll_interval_s": 60})
        writer = await b.streams.open_writer("s")
        await writer.append(b"x")
        assert await b.numbers("s") == [-1]
        await asyncio.sleep(61)
        assert await b.numbers("s") == [1]
        await writer.append(b"y")
        assert await b.numbers("s") == [1, -2]
        await writer.close()

    run(scene)


def test_a_new_writer_fences_the_former_one() -> None:
    async def scene(b: Bench) -> None:
        old = await b.streams.open_writer("s", create=True)
        await old.append_many([b"a", b"b"])
        new = await b.streams.open_writer("s")
        assert await b.numbers("s") == [1]
        with pytest.raises(StreamFencedError):
            await old.append(b"zombie")
        with pytest.raises(StreamFencedError):
            await old.append(b"zombie again")
        await new.append(b"c")
        await new.close()
        assert [r.payload for r in await b.read("s")] == [b"a", b"b", b"c"]
        assert sorted(await b.ledgers()) == [s.ledger_id for s in await b.streams.segments("s")]

    run(scene)


def test_an_idle_writer_that_was_replaced_cannot_begin_a_segment() -> None:
    async def scene(b: Bench) -> None:
        old = await b.streams.open_writer("s", create=True)
        new = await b.streams.open_writer("s")
        await new.append(b"new")
        with pytest.raises(StreamFencedError):
            await old.append(b"old")
        await new.close()
        assert [r.payload for r in await b.read("s")] == [b"new"]

    run(scene)


def test_a_new_writer_recovers_the_records_of_an_abandoned_one() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append_many([b"%d" % k for k in range(50)])
        writer.abandon()
        assert await b.numbers("s") == [-1]
        async with await b.streams.open_writer("s") as writer:
            assert writer.next_sequence == 50
            await writer.append(b"50")
        found = await b.read("s")
        assert [r.payload for r in found] == [b"%d" % k for k in range(51)]
        assert [r.sequence for r in found] == list(range(51))

    run(scene)


def test_a_writer_continues_in_a_new_segment_when_its_ledger_is_fenced() -> None:
    """Another client opened the ledger with recovery, but nobody took over the stream."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"0")
        [segment] = await b.streams.segments("s")
        await b.client.open_ledger(segment.ledger_id, recover=True)
        await writer.append_many([b"1", b"2"])
        await writer.close()
        assert await b.numbers("s") == [1, 2]
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2"]

    run(scene)


def test_entries_that_are_appended_again_keep_their_order() -> None:
    """Several entries were under way when the ledger was found to be fenced."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"entry_bytes": 1_024})
        writer = await b.streams.open_writer("s")
        payloads = [b"%d" % number * 600 for number in range(8)]
        positions = [await writer.append(payloads[0])]
        [segment] = await b.streams.segments("s")
        await b.client.open_ledger(segment.ledger_id, recover=True)
        positions += await asyncio.gather(*(writer.append(one) for one in payloads[1:]))
        await writer.close()
        found = await b.read("s")
        assert [r.payload for r in found] == payloads
        assert [r.sequence for r in found] == list(range(8))
        assert [r.position for r in found] == positions

    run(scene)


def test_the_slot_of_a_record_includes_the_control_records_before_it() -> None:
    """Appends of several producers, which share an entry."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        producers = [await writer.producer(name) for name in "pqr"]
        appends: list[Any] = [writer.append(b"plain")]
        for sequence in range(3):
            for number, producer in enumerate(producers):
                appends.append(producer.append(b"%d-%d" % (number, sequence), sequence))
            appends.append(writer.append(b"plain"))
        positions = await asyncio.gather(*appends)
        more = await producers[0].append_many([b"x", b"y"], 3)
        await writer.close()
        found = [record.position for record in await b.read("s")]
        assert found == [*positions, *more]
        assert len({position.entry_id for position in found}) < len(found) / 2

    run(scene)


def test_a_writer_survives_the_death_of_bookies() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"write_quorum": 2, "ack_quorum": 2})
        writer = await b.streams.open_writer("s")
        sent = 0
        for name in ("bookie-0", "bookie-1", "bookie-2"):
            for _ in range(5):
                await writer.append_many([b"%d" % k for k in range(sent, sent + 20)])
                sent += 20
            b.world.kill(name)
            await writer.append_many([b"%d" % k for k in range(sent, sent + 20)])
            sent += 20
            await b.world.start(name)
        await writer.close()
        assert [r.payload for r in await b.read("s")] == [b"%d" % k for k in range(sent)]

    run(scene, bookies=4)


async def written_without_a_third_bookie(b: Bench, settings: dict[str, Any], pause_s: float) -> int:
    """Append while no ledger can be created, and after that. Return the segments meanwhile."""
    await b.streams.create_stream("s", settings=settings)
    async with b.streams.open_writer("s") as writer:
        await writer.append(b"%d" % 0)
        b.world.kill("bookie-1")
        for number in range(1, 21):
            await asyncio.sleep(pause_s)  # its registration ends meanwhile
            await writer.append(b"%d" % number + bytes(400))
        meanwhile = len(await b.numbers("s"))
        await b.world.start("bookie-1")
        for number in range(21, 31):
            await asyncio.sleep(pause_s)
            await writer.append(b"%d" % number + bytes(400))
        assert len(await b.numbers("s")) > meanwhile
    found = [int(record.payload.rstrip(bytes(1))) for record in await b.read("s")]
    assert found == list(range(31))
    return meanwhile


@pytest.mark.parametrize("settings", [{"roll_bytes": 2_000}, {"roll_interval_s": 30.0}])
def test_a_segment_due_for_rolling_stays_open_until_there_is_a_next_ledger(
    settings: dict[str, Any],
) -> None:
    """The writer gave up the segment, which an ack quorum could still store, and failed."""

    async def scene(b: Bench) -> None:
        # Three bookies are needed for a new ledger, and two for an append.
        meanwhile = await written_without_a_third_bookie(b, settings, GIVE_UP_S / 5)
        assert meanwhile <= 2  # the next ledger may have been made before the bookie died

    run(scene)


def test_a_segment_is_kept_during_an_outage_of_the_metadata_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        async def away(*how: object, **more: object) -> Any:
            raise MetadataUnavailableError("no answer")

        await b.streams.create_stream("s", settings={"roll_bytes": 2_000})
        async with b.streams.open_writer("s") as writer:
            await writer.append(b"%d" % 0 + bytes(2_000))
            await writer.append(b"%d" % 1)  # in the segment whose ledger was made at the beginning
            with monkeypatch.context() as outage:
                for call in ("create_ledger", "write_ledger", "read_ledger", "bookies"):
                    outage.setattr(b.client.metadata, call, away)
                outage.setattr(b.client.metadata.tree, "commit", away)
                for number in range(2, 21):
                    await asyncio.sleep(GIVE_UP_S / 5)
                    await writer.append(b"%d" % number + bytes(400))
        found = [int(record.payload.rstrip(bytes(1))) for record in await b.read("s")]
        assert found == list(range(21))

    run(scene)


async def appended_while(b: Bench, writer: StreamWriter, rolling: asyncio.Task[None]) -> int:
    """Append every 5 s until the task has ended, and return the number of records."""
    sent = 0
    while not rolling.done():
        async with asyncio.timeout(3):
            await writer.append(b"meanwhile")
        sent += 1
        await asyncio.wait([rolling], timeout=5)
    return sent


def test_a_roll_that_cannot_begin_a_segment_keeps_the_open_one() -> None:
    """The call ended the segment. The writer then failed after 60 s, although it could write."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"first")
        b.world.kill("bookie-1")
        await asyncio.sleep(30)  # its registration ends
        began_s = b.world.loop.time()
        rolling = asyncio.ensure_future(writer.roll())
        meanwhile = await appended_while(b, writer, rolling)
        assert meanwhile >= GIVE_UP_S / 10
        with pytest.raises(NotEnoughBookiesError) as kept:
            await rolling
        assert GIVE_UP_S / 2 < b.world.loop.time() - began_s < GIVE_UP_S + 10
        assert str(kept.value).startswith(
            "the open segment of stream s was not completed in 60 s, because no next segment can "
            "be begun. It takes further records: "
        )
        assert kept.value.outcome_known
        await writer.append(b"last")
        assert len(await b.numbers("s")) == 1
        await b.world.start("bookie-1")
        await writer.roll()
        await writer.append(b"next")
        await writer.close()
        found = [record.payload for record in await b.read("s")]
        assert found == [b"first", *[b"meanwhile"] * meanwhile, b"last", b"next"]
        assert await b.numbers("s") == [1, 2]

    run(scene)


def test_a_roll_waits_until_a_segment_can_be_begun() -> None:
    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"first")
            b.world.kill("bookie-1")
            await asyncio.sleep(30)
            rolling = asyncio.ensure_future(writer.roll())
            await asyncio.sleep(GIVE_UP_S / 3)
            assert not rolling.done()
            await b.world.start("bookie-1")
            await rolling
            await writer.append(b"next")
        assert await b.numbers("s") == [1, 2]

    run(scene)


def test_a_roll_during_an_outage_of_the_metadata_store_keeps_the_open_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        async def away(*how: object, **more: object) -> Any:
            raise MetadataUnavailableError("no answer")

        async with b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"first")
            with monkeypatch.context() as outage:
                for call in ("create_ledger", "write_ledger", "read_ledger", "bookies"):
                    outage.setattr(b.client.metadata, call, away)
                outage.setattr(b.client.metadata.tree, "commit", away)
                rolling = asyncio.ensure_future(writer.roll())
                await appended_while(b, writer, rolling)
                with pytest.raises(MetadataUnavailableError, match="It takes further records"):
                    await rolling
            await writer.append(b"last")
        assert await b.numbers("s") == [1]

    run(scene)


def test_records_that_wait_for_a_roll_go_to_the_open_segment_if_no_ledger_can_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bookies look writable, but the placement policy finds none for the next ledger."""

    async def scene(b: Bench) -> None:
        attempts = 0

        async def refused(*how: object, **more: object) -> Any:
            nonlocal attempts
            attempts += 1
            await asyncio.sleep(1)
            raise NotEnoughBookiesError("no bookie fits")

        await b.streams.create_stream("s", settings={"entries_in_flight": 1})
        async with b.streams.open_writer("s") as writer:
            await writer.append(b"first")
            with monkeypatch.context() as outage:
                outage.setattr(b.client, "create_ledger", refused)
                rolling = asyncio.ensure_future(writer.roll())
                appends = []
                while not attempts and not rolling.done():
                    appends.append(asyncio.ensure_future(writer.append(b"more")))
                    await asyncio.sleep(0.0001)
                assert attempts
                await asyncio.gather(*appends)  # while the segment stays open
                await rolling
            await writer.append(b"last")
        assert len(await b.read("s")) == len(appends) + 2

    run(scene)


def test_a_roll_ends_if_the_writer_ends_between_its_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for ever if there was no segment when it began."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.set_fencing_token("former")
        await writer.roll()
        segments, begun = writer._segments, asyncio.Event()
        begin = segments.begin

        async def beginning(entry: PendingEntry) -> None:
            begun.set()
            await begin(entry)

        async def refused(*, at_once: bool) -> None:
            b.world.loop.call_later(0.001, writer.abandon)
            raise NotEnoughBookiesError("no bookie fits")

        monkeypatch.setattr(segments, "begin", beginning)
        monkeypatch.setattr(segments, "check_next", refused)
        waiting = asyncio.ensure_future(writer.set_fencing_token("t", expect="former"))
        await begun.wait()
        async with asyncio.timeout(GIVE_UP_S):  # simulated
            with pytest.raises(StreamClosedError, match="was abandoned"):
                await writer.roll()
        await asyncio.gather(waiting, return_exceptions=True)

    run(scene)


def test_an_append_without_a_quorum_fails_in_the_documented_time() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"1")
        for name in ("bookie-0", "bookie-1"):
            b.world.kill(name)
        began_s = b.world.loop.time()
        with pytest.raises(RecoveryError) as failed:
            await writer.append(b"2")
        assert GIVE_UP_S <= b.world.loop.time() - began_s < 100.0
        message = str(failed.value.args[0])
        assert message.startswith(f"stream s could not be written for {GIVE_UP_S:g} s: ledger ")
        assert message.count("ledger ") == 1
        for name in ("bookie-0", "bookie-1"):
            await b.world.start(name)

    run(scene)


@pytest.mark.parametrize("code", [Code.READ_ONLY, Code.IO_ERROR])
def test_an_append_that_all_bookies_refuse_fails_in_about_the_documented_time(
    monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    """The writer took one ledger after the other, and the append never ended.

    The bookies are registered and answer, and a ledger can be created and recovered.
    """

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"1")
        await writer.roll()  # they take further entries of a ledger that they have
        with monkeypatch.context() as patched:
            patched.setattr(BookieService, "may_add", lambda *_: code)
            for _ in range(2):
                last = asyncio.ensure_future(writer.append(b"2"))
                await asyncio.sleep(GIVE_UP_S)
                assert not last.done()
                async with asyncio.timeout(GIVE_UP_S):  # simulated
                    with pytest.raises(QuireError, match="s could not be written for 60 s: "):
                        await last
                writer = await b.streams.open_writer("s")
        await writer.append(b"3")
        await writer.close()
        assert [record.payload for record in await b.read("s")] == [b"1", b"3"]

    run(scene)


@pytest.mark.parametrize("seconds", [45, 75])
def test_a_writer_outlives_bookies_that_refuse_for_a_while(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        for number in range(3):
            with monkeypatch.context() as patched:
                patched.setattr(BookieService, "may_add", lambda *_: Code.READ_ONLY)
                append = asyncio.ensure_future(writer.append(b"%d" % number))
                await asyncio.sleep(seconds)
            await append
            await writer.roll()
        await writer.close()
        assert [record.payload for record in await b.read("s")] == [b"0", b"1", b"2"]

    run(scene)


def test_an_ended_stream_refuses_appends_and_ends_readers() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"last")
        await writer.end_stream()
        reader = await b.streams.open_reader("s", follow=True)
        assert [r.payload async for r in reader] == [b"last"]
        assert reader.ended
        with pytest.raises(StreamEndedError):
            await b.streams.open_writer("s")
        with pytest.raises(StreamEndedError):
            await writer.append(b"more")

        empty = await b.streams.open_writer("empty", create=True)
        await empty.end_stream()
        assert await b.read("empty", follow=True) == []

    run(scene)


def test_readers_start_at_the_requested_place() -> None:
    async def scene(b: Bench) -> None:
        settings = {"txids": "given", "entry_bytes": 1_024, "roll_bytes": 4_000}
        await b.streams.create_stream("s", settings=settings)
        times = []
        async with await b.streams.open_writer("s") as writer:
            for number in range(100):
                times.append(b.client.clock.now_ms())
                await writer.append(b"%d" % number * 50, txid=number // 2 * 10)
                await asyncio.sleep(0.01)
        assert len(await b.numbers("s")) > 1

        async def first(start: object) -> int:
            reader = await b.streams.open_reader("s", start=start)  # type: ignore[arg-type]
            async for record in reader:
                return record.sequence
            return -1

        for number in range(0, 100, 7):
            assert await first(AtSequence(number)) == number
            assert await first(AtTxid(number // 2 * 10)) == number // 2 * 2
            assert await first(AtTxid(number // 2 * 10 - 1)) == number // 2 * 2
            assert await first(AtTime(times[number])) == number
        assert await first(AtSequence(100)) == -1
        assert await first(AtTxid(10**6)) == -1
        assert await first(LATEST) == -1
        whole = await b.read("s")
        for record in whole[::9]:
            assert await first(record.position) == record.sequence
            assert await first(record.position.next_slot()) in (record.sequence + 1, -1)

    run(scene)


def test_the_time_of_a_record_comes_from_the_last_control_record_before_it() -> None:
    def control(time_ms: int, position: int) -> bytes:
        return control_record(position, 0, encode_control(CreationTime(time_ms)))

    body = b"".join([
        encode_record(0, 0, b"a"), control(5, 1), encode_record(1, 0, b"b"),
        control(9, 2), encode_record(2, 0, b"c"),
    ])  # fmt: skip
    records = decode_entry(body, enveloped=False)
    times_ms = [creation_time_ms(StreamSegment(1, 7, 0), 0, records, at) for at in range(5)]
    assert times_ms == [None, None, 5, 5, 9]


@pytest.mark.parametrize("ended", [False, True])
def test_records_that_are_later_than_the_completion_of_their_segment_are_found(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """The clock was set back, or the segment was completed by a machine whose clock is behind."""

    async def scene(b: Bench) -> None:
        now_ms, behind_ms = b.client.clock.now_ms, 0
        monkeypatch.setattr(b.client.clock, "now_ms", lambda: now_ms() - behind_ms)
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"0")
        await asyncio.sleep(10)
        position = await writer.append(b"1")
        wanted_ms = writer.last_txid
        behind_ms = 5_000
        if ended:
            await writer.end_stream()
        else:
            await writer.roll()
            await writer.append(b"2")
            await writer.close()
        for time_ms in (wanted_ms - 1_000, wanted_ms):
            assert await b.streams.find("s", AtTime(time_ms)) == position
        after = await b.streams.find("s", AtTime(wanted_ms + 1))
        assert after > position

    run(scene)


def test_a_bounded_read_ends_at_its_end() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append_many([b"%d" % k for k in range(10)])
            await writer.append_many([b"%d" % k for k in range(10, 20)])
        whole = await b.read("s")
        for first, last in ((0, 20), (3, 7), (5, 15), (12, 12), (19, 20)):
            end = whole[last].position if last < 20 else None
            found = await b.read("s", start=whole[first].position, end=end)
            assert found == whole[first:last]

    run(scene)


def test_truncation_frees_ledgers_and_raises_a_gap_error_in_readers() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"roll_bytes": 1_000, "entry_bytes": 1_024})
        async with await b.streams.open_writer("s") as writer:
            for number in range(60):
                await writer.append(b"%d" % number * 100)
        whole = await b.read("s")
        before = whole[31].position
        ledgers = await b.ledgers()
        await b.streams.truncate("s", before)
        assert len(await b.ledgers()) < len(ledgers)
        assert [r.sequence for r in await b.read("s")] == list(range(31, 60))
        with pytest.raises(StreamGapError, match="truncated") as raised:
            await b.read("s", start=whole[0].position)
        assert raised.value.kind == "truncated"
        reader = await b.streams.open_reader("s", start=whole[2].position, on_gap="deliver")
        async with aclosing(reader.batches()) as batches:
            got = [batch async for batch in batches]
        assert got[0] == Gap("truncated", whole[2].position, before)
        skipped = await b.read("s", start=whole[2].position, on_gap="skip")
        assert [r.sequence for r in skipped] == list(range(31, 60))
        await b.streams.truncate("s", whole[5].position)  # It never goes back.
        assert [r.sequence for r in await b.read("s")] == list(range(31, 60))

    run(scene)


def test_a_missing_segment_is_reported_as_a_gap() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        for number in range(3):
            async with await b.streams.open_writer("s") as writer:
                await writer.append(b"%d" % number)
        segments = await b.streams.segments("s")
        await b.client.delete_ledger(segments[1].ledger_id)
        with pytest.raises(StreamGapError, match="lost"):
            await b.read("s")
        assert [r.payload for r in await b.read("s", on_gap="skip")] == [b"0", b"2"]
        metadata = b.streams.metadata("s")
        await metadata.tree.delete_tree(metadata.paths.segment(segments[1].name))
        with pytest.raises(StreamGapError, match="lost"):
            await b.read("s")

    run(scene)


@pytest.mark.parametrize("gap", [False, True])
def test_an_abandoned_segment_without_records_ends_a_read_but_no_following_reader(
    gap: bool,
) -> None:
    """Its ledger was closed by a recovery. Its number is assigned again.

    Before a gap is reported, the list of segments is read again, so no change of it is waiting.
    """

    async def scene(b: Bench) -> None:
        for payload in (b"0", b"lost", b"1") if gap else (b"0",):
            async with await b.streams.open_writer("s", create=True) as writer:
                await writer.append(payload)
        writer = await b.streams.open_writer("s")
        sent = asyncio.Event()

        def nothing(self: SegmentWriter, entry: Any) -> None:
            sent.set()
            raise RecoveryError("the writer dies before its first entry")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentWriter, "send", nothing)
            appending = asyncio.ensure_future(writer.append(b"lost"))
            await sent.wait()
            writer.abandon()
            await asyncio.gather(appending, return_exceptions=True)
        *written, empty = await b.streams.segments("s")
        assert empty.in_progress
        assert not any(segment.in_progress for segment in written)
        (await b.client.open_ledger(empty.ledger_id, recover=True)).close()
        if gap:
            metadata = b.streams.metadata("s")
            await metadata.tree.delete_tree(metadata.paths.segment(written[1].name))
        async with asyncio.timeout(LIST_AGAIN_S / 2):
            found = [r.payload for r in await b.read("s", on_gap="skip" if gap else "raise")]
        assert found == ([b"0", b"1"] if gap else [b"0"])
        reader = await b.streams.open_reader("s", start=written[-1].first_dlsn, follow=True)
        async with aclosing(aiter(reader)) as records:
            assert (await anext(records)).payload == found[-1]
            upcoming = asyncio.ensure_future(anext(records))
            await asyncio.sleep(10)
            assert not upcoming.done()
            async with await b.streams.open_writer("s") as writer:
                await writer.append(b"2")
            assert (await upcoming).payload == b"2"

    run(scene)


def test_a_read_includes_records_acknowledged_after_it_began() -> None:
    """The read once ended at the last segment of its list, although the writer had begun others."""

    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            for number in range(2):
                await writer.append(b"%d" % number)
                await writer.roll()
            for number in range(2, 6):  # the segment in progress, and completed ones
                reader = await b.streams.open_reader("s")
                async with aclosing(aiter(reader)) as records:
                    found = [(await anext(records)).payload]
                    if number % 2:
                        await writer.append(b"%d" % number)
                        await writer.roll()
                    else:
                        await writer.roll()
                        await writer.append(b"%d" % number)
                    await asyncio.sleep(1)  # the bookies know that it is acknowledged
                    found += [record.payload async for record in records]
                assert found == [b"%d" % one for one in range(number + 1)]
                assert not reader.ended
            await writer.end_stream()
        reader = await b.streams.open_reader("s")
        assert len([record async for record in reader]) == 6
        assert reader.ended

    run(scene)


def test_a_ledger_that_is_closed_during_a_read_is_read_to_its_last_record() -> None:
    """A read whose replicas have moved reads the metadata again, and so learns of the close.

    The reader had asked only for the entries up to the LAC at its beginning. It took the ledger for
    read to its end, and continued with the next segment.
    """

    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            for number in range(2):
                await writer.append(b"%d" % number)
            await asyncio.sleep(1)  # the bookies know that it is acknowledged
            reader = await b.streams.open_reader("s")
            async with aclosing(aiter(reader)) as records:
                found = [(await anext(records)).payload]
                for number in range(2, 5):
                    await writer.append(b"%d" % number)
                await writer.roll()
                await writer.append(b"5")
                await writer.roll()
                for ledger in reader._ledgers:
                    await ledger._view.refresh()
                found += [record.payload async for record in records]
            found += [record.payload async for record in reader]
        assert found == [b"%d" % number for number in range(6)]

    run(scene)


def test_a_search_skips_no_record_of_a_ledger_that_is_closed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The result was the end of the closed ledger, although the search had not seen its end."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"txids": "given"})
        async with b.streams.open_writer("s") as writer:
            await writer.append(b"0", txid=1)
            await writer.append(b"1", txid=2)
            await asyncio.sleep(1)  # the bookies know that it is acknowledged
            read, closed = positions.read_entries, False

            async def read_and_close(reader: LedgerReader, *which: Any) -> Any:
                nonlocal closed
                if not closed:
                    closed = True
                    await writer.append(b"2", txid=10)
                    await writer.roll()
                    await reader._view.refresh()
                return await read(reader, *which)

            monkeypatch.setattr(positions, "read_entries", read_and_close)
            found = await b.streams.find("s", AtTxid(10))
            assert closed
        assert [record.payload for record in await b.read("s", start=found)] == [b"2"]

    run(scene)


def _change_at_open(
    b: Bench, ledger_id: int, change: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch
) -> None:
    """Let `change` happen when a reader opens the ledger, after it has listed the segments."""
    open_ledger, changed = b.client.open_ledger, False

    async def opened(wanted: int, **options: Any) -> Any:
        nonlocal changed
        if wanted == ledger_id and not changed:
            changed = True
            await change()
        return await open_ledger(wanted, **options)

    patch.setattr(b.client, "open_ledger", opened)


def test_a_ledger_deleted_by_truncation_is_not_reported_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        for number in range(2):
            async with await b.streams.open_writer("s", create=True) as writer:
                await writer.append(b"%d" % number)
        first, second = await b.streams.segments("s")
        start, upcoming = first.first_dlsn, second.first_dlsn

        async def truncated() -> None:
            await b.streams.truncate("s", upcoming)

        _change_at_open(b, first.ledger_id, truncated, monkeypatch)
        reader = await b.streams.open_reader("s", start=start, on_gap="deliver")
        async with aclosing(reader.batches()) as batches:
            got = [batch async for batch in batches]
        assert got[0] == Gap("truncated", start, upcoming)
        assert len(got) == 2

    run(scene)


def test_a_ledger_of_a_reassigned_segment_number_is_not_reported_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was written to the segment, and its number now has another ledger."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"s")
        writer.abandon()
        async with await b.streams.open_writer("t", create=True) as writer:
            await writer.append(b"t")
        [first], [other] = await b.streams.segments("s"), await b.streams.segments("t")
        again = replace(first, ledger_id=other.ledger_id)
        metadata = b.streams.metadata("s")

        async def assigned() -> None:
            path = metadata.paths.segment(first.name)
            await metadata.tree.commit(Put(path, again.to_bytes()))
            await b.client.delete_ledger(first.ledger_id)

        _change_at_open(b, first.ledger_id, assigned, monkeypatch)
        reader = await b.streams.open_reader("s", follow=True)
        async with aclosing(aiter(reader)) as records:
            assert (await anext(records)).payload == b"t"

    run(scene)


def test_retention_deletes_segments_by_age_and_size() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        for number in range(6):
            async with await b.streams.open_writer("s") as writer:
                await writer.append(b"%d" % number * 1_000)
            await asyncio.sleep(100)
        await b.streams.configure_stream("s", {"retention_s": 350})
        await b.streams.retain("s")
        assert [r.payload[:1] for r in await b.read("s")] == [b"3", b"4", b"5"]
        await b.streams.configure_stream("s", {"retention_s": 0, "retention_bytes": 1_500})
        await b.streams.retain("s")
        assert [r.payload[:1] for r in await b.read("s")] == [b"4", b"5"]
        await b.streams.configure_stream("s", {"retention_bytes": 1, "explicit_truncation": True})
        await b.streams.retain("s")
        assert [r.payload[:1] for r in await b.read("s")] == [b"4", b"5"]

    run(scene)


def test_retention_ignores_a_completion_time_far_in_the_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next retention deleted records of seconds ago, because they seemed to be of 1970."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_s": 100.0})
        for number in range(3):
            writer = await b.streams.open_writer("s")
            await writer.append(b"%d" % number)
            writer.abandon()
            with monkeypatch.context() as behind:  # of the machine that takes over
                behind.setattr(b.client.clock, "now_ms", lambda: 7_000)
                await (await b.streams.open_writer("s")).close()
        found = await b.streams.segments("s")
        assert [segment.completion_time_ms for segment in found] == [7_000] * 3
        assert await b.streams.retain("s") == []
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2"]
        await asyncio.sleep(50)
        assert await b.streams.retain("s") == []
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2"]
        await asyncio.sleep(60)
        assert len(await b.streams.retain("s")) == 2
        assert await b.read("s") == []

    run(scene)


def test_retention_hides_the_newest_completed_segment_and_deletes_it_later() -> None:
    """Its old records are gone for readers, and its ledger when another segment is completed."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_s": 50})
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"old")
        await asyncio.sleep(100)
        [newest] = await b.streams.segments("s")
        assert await b.streams.retain("s") == []
        assert await b.read("s") == []
        await b.client.ledger_metadata(newest.ledger_id)

        writer = await b.streams.open_writer("s")
        await writer.append(b"new")
        await b.client.ledger_metadata(newest.ledger_id)  # a segment was begun, none was completed
        await writer.close()
        await asyncio.sleep(1)  # the writer applies retention in the background
        with pytest.raises(NoSuchLedgerError):
            await b.client.ledger_metadata(newest.ledger_id)
        assert [r.payload for r in await b.read("s")] == [b"new"]

        # By size, the newest completed segment keeps its records, however large it is.
        await b.streams.configure_stream("s", {"retention_s": 0, "retention_bytes": 1})
        assert await b.streams.retain("s") == []
        assert [r.payload for r in await b.read("s")] == [b"new"]

    run(scene)


def test_producers_may_retry_appends_without_duplicates() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        producer = await writer.producer("p")
        assert producer.last_sequence == -1
        await producer.append_many([b"0", b"1", b"2"], 0)
        assert await producer.append(b"2", 2) is None
        appended = await producer.append_many([b"1", b"2", b"3", b"4"], 1)
        assert len(appended) == 2
        await writer.append(b"plain")
        writer.abandon()

        writer = await b.streams.open_writer("s")
        producer = await writer.producer("p")
        assert producer.last_sequence == 4
        assert await producer.append(b"4", 4) is None
        await producer.append(b"5", 5)
        await writer.close()
        # A segment without its records, then another one: the state continues.
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"other")
        async with await b.streams.open_writer("s") as writer:
            assert (await writer.producer("p")).last_sequence == 5
        found = [r.payload for r in await b.read("s")]
        assert found == [b"0", b"1", b"2", b"3", b"4", b"plain", b"5", b"other"]

    run(scene)


def test_retried_records_of_producers_are_not_checked_again() -> None:
    """The stream has these records, although they are late, and although it is full now."""

    async def scene(b: Bench) -> None:
        settings = {"txids": "given", "bytes_max": 1_000}
        await b.streams.create_stream("s", settings=settings)
        writer = await b.streams.open_writer("s")
        producer = await writer.producer("p")
        await producer.append_many([b"0", b"1", b"2"], 0, txids=[10, 11, 12])
        await writer.append(b"plain", txid=20)
        assert await producer.append(b"1", 1, txid=11) is None
        writer.abandon()

        writer = await b.streams.open_writer("s")
        producer = await writer.producer("p")
        assert len(await producer.append_many([b"1", b"2"], 1, txids=[11, 12])) == 0
        with pytest.raises(TxidOrderError, match=r"txid 13 .* from 20, "):
            await producer.append_many([b"2", b"3"], 2, txids=[12, 13])
        assert len(await producer.append_many([b"2", b"3"], 2, txids=[12, 20])) == 1
        with pytest.raises(UsageError, match="one txid for each record"):
            await producer.append_many([b"2", b"3"], 2, txids=[12])
        with pytest.raises(UsageError, match="a txid must be"):
            await producer.append(b"2", 2, txid="12")  # type: ignore[arg-type]
        while True:
            try:
                await writer.append(b"x" * 100, txid=30)
            except StreamQuotaError:
                break
        assert await producer.append(b"3", 3, txid=20) is None
        with pytest.raises(StreamQuotaError):
            await producer.append_many([b"3", b"4" * 100], 3, txids=[20, 30])
        await writer.close()
        found = [r.payload for r in await b.read("s") if len(r.payload) < 100]
        assert found == [b"0", b"1", b"2", b"plain", b"3"]

    run(scene)


def test_appends_without_the_fencing_token_are_refused() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"0")
        await writer.set_fencing_token("mine")
        with pytest.raises(StreamConditionError):
            await writer.append(b"no")
        await writer.append(b"1", token="mine")
        with pytest.raises(StreamConditionError):
            await writer.set_fencing_token("theirs")
        writer.abandon()
        writer = await b.streams.open_writer("s")
        with pytest.raises(StreamConditionError):
            await writer.append(b"no")
        await writer.set_fencing_token("", expect="mine")
        await writer.append(b"2")
        await writer.close()
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2"]

    run(scene)


def test_appends_with_an_unmet_expectation_are_refused() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0", expect=0)
            with pytest.raises(StreamConditionError):
                await writer.append(b"no", expect=0)
            await writer.append_many([b"1", b"2"], expect=1)
            await writer.append(b"3", expect=3)
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2", b"3"]

    run(scene)


def test_an_append_of_no_records_writes_no_entry() -> None:
    """It once left an entry without records, which was sent later in a separate segment."""

    async def scene(b: Bench) -> None:
        given = {"txids": "given"}
        await b.streams.create_stream("s", settings=given)
        async with b.streams.open_writer("s") as writer:
            assert len(await writer.append_many([], txids=[])) == 0
            long = await writer.producer("p" * 65)
            for sequence in (0, 2**63 - 1):
                with pytest.raises(UsageError):
                    await long.append(b"refused", sequence, txid=1)
            with pytest.raises(UsageError, match="too long"):
                await writer.set_fencing_token("t" * 65)
        assert await b.streams.segments("s") == []
        async with b.streams.open_writer("s") as writer:
            producer = await writer.producer("p")
            assert await producer.append(b"0", 0, txid=1)
            assert await producer.append(b"0", 0, txid=1) is None
            many = [b"x" * 60_000] * 3  # several entries, of which the last has too high a number
            with pytest.raises(UsageError, match="numbers are from 0"):
                await producer.append_many(many, 2**63 - 2, txids=[1, 1, 1])
            await writer.roll()
            assert await producer.append(b"0", 0, txid=1) is None
        assert await b.numbers("s") == [1]
        assert [record.payload for record in await b.read("s")] == [b"0"]

    run(scene)


def test_the_number_of_a_segment_with_entries_is_not_assigned_again() -> None:
    """Former writers could send an entry without records. A reader went on after it, and missed
    what a later writer wrote under the same number.
    """

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"0")
        await writer.roll()
        reader = await b.streams.open_reader("s", follow=True)
        async with aclosing(aiter(reader)) as records:
            assert (await anext(records)).payload == b"0"
            upcoming = asyncio.ensure_future(anext(records))
            await asyncio.sleep(1)
            writer._writer_task.new_entry(1)
            writer._writer_task._work.set()
            while (segment := writer._segments.open) is None or not segment.in_flight:
                await asyncio.sleep(0)
            await segment.ledger.wait(0)
            writer.abandon()
            [*_, begun] = await b.streams.segments("s")
            (await b.client.open_ledger(begun.ledger_id, recover=True)).close()
            await asyncio.sleep(10)
            for number in (1, 2):
                async with b.streams.open_writer("s") as writer:
                    await writer.append(b"%d" % number)
            assert (await upcoming).payload == b"1"
        assert await b.numbers("s") == [1, 2, 3, 4]
        assert [record.payload for record in await b.read("s")] == [b"0", b"1", b"2"]

    run(scene)


def test_a_flush_after_the_end_returns_the_last_record() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        last = (await writer.append_many([b"0", b"1"])).last
        assert await writer.flush() == last
        await writer.end_stream()
        assert await writer.flush() == last
        assert [record.position for record in await b.read("s")][-1] == last
        empty = await b.streams.open_writer("t", create=True)
        await empty.end_stream()
        with pytest.raises(StreamEndedError):
            await empty.flush()

    run(scene)


def test_appends_that_violate_the_settings_are_refused() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"txids": "given", "bytes_max": 200})
        writer = await b.streams.open_writer("s")
        with pytest.raises(UsageError):
            await writer.append(b"x")
        await writer.append(b"x", txid=5)
        with pytest.raises(TxidOrderError):
            await writer.append(b"x", txid=4)
        with pytest.raises(TxidOrderError):
            await writer.append_many([b"x", b"y"], txids=[6, 5])
        with pytest.raises(RecordTooLargeError):
            await writer.append(bytes(1_040_365), txid=9)
        with pytest.raises(StreamQuotaError):
            await writer.append(bytes(300), txid=9)
        await writer.append(b"y", txid=5)
        await writer.close()
        assert [r.txid for r in await b.read("s")] == [5, 5]

    run(scene)


@pytest.mark.parametrize("who", ["writer", "namespace", "defect"])
def test_a_close_reports_that_the_writer_was_abandoned_meanwhile(who: str) -> None:
    """The close once returned as if everything was acknowledged."""

    async def scene(b: Bench) -> None:
        b.world.loop.set_exception_handler(lambda loop, context: None)
        streams = await open_namespace(b.client, "/acme/test")
        writer = await streams.open_writer("s", create=True)
        ending = await streams.open_writer("t", create=True)
        for one in (writer, ending):
            await one.append(b"0")
        for name in list(b.world.bookies):
            await b.world.stop(name)
        appended = [await one.submit_many([b"1"]) for one in (writer, ending)]
        closing = [
            asyncio.ensure_future(writer.close()),
            asyncio.ensure_future(ending.end_stream()),
        ]
        await asyncio.sleep(1)
        assert not any(task.done() for task in closing)
        if who == "namespace":
            await streams.close()
        for one in (writer, ending):
            if who == "writer":
                one.abandon()
            elif who == "defect":
                one._writer_task._fail_unexpectedly(ValueError("a defect"))
        async with asyncio.timeout(30):
            for task in (*closing, *(asyncio.ensure_future(one.wait()) for one in appended)):
                with pytest.raises(StreamClosedError, match="may or may not"):
                    await task
            for one in (writer, ending):
                if who == "defect":
                    with pytest.raises(StreamClosedError, match="because of a bug"):
                        await one.close()
                else:
                    await one.close()  # it is closed already, as the caller knows
            assert writer._writer_task._task.done()
        assert writer.buffered_bytes == 0
        await streams.close()
        for name in list(b.world.disks):
            await b.world.start(name)

    run(scene)


def test_a_record_accepts_any_bytes_like_object_and_copies_it() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        mine = bytearray(b"before")
        appended = await writer.submit_many([mine, memoryview(array("I", [7]))])
        mine[:] = b"after!"
        await appended.wait()
        for wrong in ("text", [1, 2], None):
            with pytest.raises(UsageError, match="a record must be bytes"):
                await writer.append(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            await writer.append_many([b"not alone", "text"])  # type: ignore[list-item]
        await writer.append(b"the last")
        await writer.close()
        found = [r.payload for r in await b.read("s")]
        assert found == [b"before", array("I", [7]).tobytes(), b"the last"]

    run(scene)


def test_closing_the_client_ends_its_writers_without_waiting() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"x")
        ledger = await b.client.create_ledger()
        await ledger.append(b"x")
        await b.client.close()
        began_s = b.world.loop.time()
        for call in (writer.append(b"y"), writer.close(), ledger.append(b"y"), ledger.close()):
            with pytest.raises(ClientClosedError):
                await call
        assert b.world.loop.time() - began_s < 1.0

    run(scene)


def test_a_listing_includes_streams_however_deeply_they_are_nested() -> None:
    """Names of more than 16 parts were silently left out."""

    async def scene(b: Bench) -> None:
        deep = "/".join(f"p{n}" for n in range(40))
        await b.streams.create_stream("a")
        async with b.streams.open_writer(deep, create=True) as writer:
            await writer.append(b"one")
        assert await b.streams.streams() == ["a", deep]
        assert await b.streams.streams("p0/p1/") == [deep]
        await b.streams.delete_stream(deep)
        assert await b.streams.streams() == ["a"]

    run(scene)


def test_a_listing_skips_nodes_that_cannot_be_streams() -> None:
    """Such a node, of another program, made every listing of the namespace fail."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("a")
        for foreign in ("my node", "a/b c"):
            await b.client.metadata.tree.commit(Create(f"{b.streams.path}/{foreign}"))
        assert await b.streams.streams() == ["a"]

    run(scene)


def test_streams_are_created_listed_and_deleted_by_name() -> None:
    async def scene(b: Bench) -> None:
        for name in ("b", "a/1", "a/2", "a"):
            await b.streams.create_stream(name)
        with pytest.raises(StreamExistsError):
            await b.streams.create_stream("a/1")
        assert await b.streams.streams() == ["a", "a/1", "a/2", "b"]
        assert await b.streams.streams("a/") == ["a/1", "a/2"]
        async with await b.streams.open_writer("a/1") as writer:
            await writer.append(b"x")
        await b.streams.configure_stream("a/1", {"retention_s": 0.077})
        await b.streams.subscription("a/1", "me").commit(DLSN(1, 0, 1))
        await b.streams.rename_stream("a/1", "c/d")
        assert await b.streams.streams() == ["a", "a/2", "b", "c/d"]
        assert [r.payload for r in await b.read("c/d")] == [b"x"]
        assert (await b.streams.stream_settings("c/d")).retention_s == 0.077
        assert await b.streams.subscription("c/d", "me").position() == DLSN(1, 0, 1)
        for name in ("c/d", "a", "never"):
            await b.streams.delete_stream(name)
        assert await b.streams.streams() == ["a/2", "b"]
        assert await b.ledgers() == []
        with pytest.raises(NoSuchStreamError):
            await b.streams.open_reader("c/d")
        with pytest.raises(NoSuchStreamError):
            await b.streams.open_writer("c/d")
        with pytest.raises(NoSuchNamespaceError):
            await open_namespace(b.client, "/nobody")

    run(scene)


def test_settings_are_inherited() -> None:
    async def scene(b: Bench) -> None:
        tenant = await open_namespace(b.client, "/acme", settings={"ack_quorum": 3}, create=True)
        await tenant.close()
        again = await open_namespace(
            b.client, "/acme/test", settings={"streams_max": 1}, create=True
        )
        await again.create_stream("s", settings={"compression": "lz4"})
        found = await again.stream_settings("s")
        assert (found.ack_quorum, found.streams_max, found.compression) == (3, 1, "lz4")
        with pytest.raises(StreamQuotaError):
            await again.create_stream("t")
        with pytest.raises(UsageError, match="Did you mean compression"):
            await again.configure({"compresion": "lz4"})
        async with await again.open_writer("s") as writer:
            await writer.append_many([b"same " * 100] * 50)
        [segment] = await again.segments("s")
        metadata = await b.client.ledger_metadata(segment.ledger_id)
        assert metadata.ack_quorum == 3
        assert metadata.length < 5_000
        assert [r.payload for r in await b.read("s")] == [b"same " * 100] * 50
        await again.close()

    run(scene)


def test_settings_changed_by_another_client_apply_to_an_open_namespace() -> None:
    """A namespace that was open kept what it had read: retention deleted what was to be kept."""

    async def scene(b: Bench) -> None:
        await b.streams.configure({"retention_s": 60.0, "streams_max": 1})
        for number in range(3):
            async with b.streams.open_writer("s", create=True) as writer:
                await writer.append(b"%d" % number)
        async with await open_namespace(b.client, "/acme/test") as other:
            changed = {"retention_s": 3600.0, "streams_max": 2, "ack_quorum": 3}
            await other.configure(changed)
        await asyncio.sleep(600)
        assert await b.streams.retain("s", dry_run=True) == []
        assert await b.streams.retain("s") == []
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2"]
        async with b.streams.open_writer("s") as writer:
            assert writer.settings.ack_quorum == 3
        await b.streams.create_stream("t")
        assert b.streams.given_settings == changed
        with pytest.raises(UsageError, match="write_quorum >= ack_quorum"):
            await b.streams.configure_stream("t", {"write_quorum": 2})
        with pytest.raises(StreamQuotaError):
            await b.streams.create_topic("u", 1)

    run(scene)


def test_a_stream_has_the_settings_of_its_nearest_namespace_through_any_parent() -> None:
    """Through a namespace further up, the retention of that one deleted its records."""

    async def scene(b: Bench) -> None:
        await b.streams.configure({"retention_s": 60.0, "compression": "lz4"})
        near = await open_namespace(
            b.client, "/acme/test/near", create=True,
            settings={"retention_s": 0.0, "write_quorum": 2},
        )  # fmt: skip
        for number in range(3):
            async with near.open_writer("a/s", create=True) as writer:
                await writer.append(b"%d" % number)
        await asyncio.sleep(600)
        assert await b.streams.retain("near/a/s", dry_run=True) == []
        assert await b.streams.retain("near/a/s") == []
        assert len(await b.read("near/a/s")) == 3
        for streams, name in ((near, "a/s"), (b.streams, "near/a/s")):
            found = await streams.stream_settings(name)
            assert (found.retention_s, found.write_quorum, found.compression) == (0, 2, "lz4")
        async with b.streams.open_writer("near/a/s") as writer:
            assert writer.settings.write_quorum == 2
        with pytest.raises(UsageError, match="write_quorum >= ack_quorum"):
            await b.streams.configure_stream("near/a/s", {"ack_quorum": 3})
        with pytest.raises(UsageError, match="write_quorum >= ack_quorum"):
            await b.streams.create_stream("near/t", settings={"ack_quorum": 3})
        with pytest.raises(UsageError, match="write_quorum >= ack_quorum"):
            await b.streams.create_topic("near/t", 2, settings={"ack_quorum": 3})
        await near.close()

    run(scene)


def test_subscriptions_only_move_forward() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        mine = b.streams.subscription("s", "mine")
        assert await mine.position() is None
        assert await mine.commit(DLSN(1, 5, 0))
        assert not await mine.commit(DLSN(1, 4, 9))
        assert await mine.position() == DLSN(1, 5, 0)
        await mine.delete()
        assert await mine.position() is None

    run(scene)


def test_a_subscription_begins_where_another_process_ended_although_the_server_lags() -> None:
    """The records since an earlier commit were processed twice."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        await b.streams.subscription("s", "mine").commit(DLSN(1, 0, 1))
        async with b.world.client("lagging") as client:
            streams = await open_namespace(client, "/acme/test")
            LaggingServer(client.metadata).fall_behind()
            await b.streams.subscription("s", "mine").commit(DLSN(1, 5, 0))
            assert await streams.subscription("s", "mine").position() == DLSN(1, 5, 0)

    run(scene)


def test_a_slower_process_does_not_move_a_subscription_back() -> None:
    """It has read the former position, and stores its own after a faster one."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        mine = b.streams.subscription("s", "mine")
        assert await mine.commit(DLSN(1, 0, 0))
        for faster, moved in ((DLSN(1, 9, 0), False), (DLSN(1, 12, 0), True)):
            slower = DLSN(1, 5, 0) if not moved else DLSN(1, 20, 0)
            tree = b.streams.metadata("s").tree
            commit = tree.commit

            async def later(
                *operations: Operation, to: DLSN = faster, real: Any = commit, tree: Any = tree
            ) -> list[Result]:
                tree.commit = real
                assert await b.streams.subscription("s", "mine").commit(to)
                return await real(*operations)

            tree.commit = later  # type: ignore[method-assign]
            assert await mine.commit(slower) == moved
            assert await mine.position() == max(faster, slower)

    run(scene)


def test_a_reader_continues_at_its_position() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append_many([b"%d" % k for k in range(30)])
        got: list[int] = []
        reader: StreamReader | None = await b.streams.open_reader("s")
        while len(got) < 30:
            assert reader is not None
            async for record in reader:
                got.append(record.sequence)
                if len(got) % 7 == 0:
                    break
            position = reader.position
            assert position is not None
            reader = await b.streams.open_reader("s", start=position)
        assert got == list(range(30))

    run(scene)


def test_writers_apply_retention_and_quotas_when_they_roll() -> None:
    async def scene(b: Bench) -> None:
        settings = {"roll_bytes": 2_000, "entry_bytes": 1_024, "retention_bytes": 6_000}
        await b.streams.create_stream("s", settings=settings)
        async with await b.streams.open_writer("s") as writer:
            for number in range(100):
                await writer.append(b"%d" % number * 200)
                await asyncio.sleep(0.1)
        found = await b.read("s")
        assert 6_000 <= sum(len(r.payload) for r in found) + 40 * len(found) < 12_000
        assert found[-1].payload == b"99" * 200
        # The node of the newest truncated segment stays, so a reader at its end knows that it
        # missed nothing.
        gone, *kept = await b.streams.segments("s")
        assert gone.truncation is Truncation.TRUNCATED
        assert await b.ledgers() == [segment.ledger_id for segment in kept]

        await b.streams.create_stream("q", settings={"roll_bytes": 2_000, "bytes_max": 8_000})
        async with await b.streams.open_writer("q") as writer:
            for _ in range(15):
                await writer.append(bytes(500))
            with pytest.raises(StreamQuotaError):
                await writer.append(bytes(500))
            before = (await b.read("q"))[10].position
            await b.streams.truncate("q", before)
            with pytest.raises(StreamQuotaError):  # it does not know yet
                await writer.append(bytes(500))
            await asyncio.sleep(1)
            await writer.append(b"again")

    run(scene)


def test_the_quota_includes_segments_completed_during_the_count() -> None:
    async def scene(b: Bench) -> None:
        real, counting, goes_on = b.client.ledger_metadata, asyncio.Event(), asyncio.Event()

        async def ledger_metadata(ledger_id: int) -> Any:
            counting.set()
            await goes_on.wait()
            return await real(ledger_id)

        b.client.ledger_metadata = ledger_metadata  # type: ignore[method-assign]
        await b.streams.create_stream("q", settings={"roll_bytes": 2_000, "bytes_max": 8_000})
        async with await b.streams.open_writer("q") as writer:
            for number in range(15):
                await writer.append(bytes(500))
                if number == 5:
                    await counting.wait()
            assert len(await b.streams.segments("q")) > 2
            goes_on.set()
            await asyncio.sleep(1)
            with pytest.raises(StreamQuotaError):
                await writer.append(bytes(500))

    run(scene)


def test_a_fencing_token_may_be_set_before_the_first_record() -> None:
    """The segment was begun as if the stream ended with it."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.set_fencing_token("mine")
        await writer.close()
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"x", token="mine")
        assert [r.payload for r in await b.read("s")] == [b"x"]

    run(scene)


def test_memory_of_many_writers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.streams.namespace import namespace
    from quire.streams.write import writer_task

    monkeypatch.setattr(namespace, "ALL_BUFFERED_BYTES_MAX", 20_000)
    monkeypatch.setattr(writer_task, "BUFFERED_BYTES_MAX", 5_000)

    async def scene(b: Bench) -> None:
        streams = await open_namespace(b.client, "/acme/test")
        writers = [await streams.open_writer(f"s{k}", create=True) for k in range(10)]
        most = 0

        async def fill(writer: StreamWriter) -> None:
            nonlocal most
            for _ in range(20):
                await writer.submit_many([bytes(80)] * 10)
                most = max(most, sum(w.buffered_bytes for w in writers))
                assert writer.buffered_bytes <= 5_000 + 1_000
            await writer.flush()

        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(fill(writer))
        assert 5_000 < most <= 20_000 + 10 * 1_000
        assert all(writer.buffered_bytes == 0 for writer in writers)
        writers[0].abandon()
        for writer in writers[1:]:
            await writer.close()
        assert streams._budget.used_bytes == 0
        await streams.close()

    run(scene)


async def test_an_append_is_in_doubt_if_its_first_records_are_in_the_stream() -> None:
    """An entry that was never sent fails with an error whose outcome is known."""
    entries = [PendingEntry(0), PendingEntry(1), PendingEntry(2)]
    entries[0].settle()
    for entry in entries[1:]:
        entry.settle(UnreadableMetadataError("the metadata is damaged"))
    with pytest.raises(UnreadableMetadataError) as in_part:
        await Appended([(entry, 0, 1) for entry in entries]).wait()
    assert not in_part.value.outcome_known
    with pytest.raises(UnreadableMetadataError) as nothing:
        await Appended([(entry, 0, 1) for entry in entries[1:]]).wait()
    assert nothing.value.outcome_known


def test_an_append_in_flight_is_in_doubt_after_any_error_of_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error that ends the writer may be one whose outcome is known by itself."""

    async def unreadable(self: Segments, settle: object) -> list[object]:
        raise UnreadableMetadataError("the metadata is damaged")

    async def scene(b: Bench) -> None:
        assert UnreadableMetadataError.outcome_known
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"1")
        for name in ("bookie-0", "bookie-1"):
            b.world.kill(name)
        monkeypatch.setattr(Segments, "mend", unreadable)
        with pytest.raises(UnreadableMetadataError, match="could not be written") as in_flight:
            await writer.append(b"2")
        assert not in_flight.value.outcome_known
        with pytest.raises(UnreadableMetadataError) as later:
            await writer.append(b"3")
        assert later.value.outcome_known  # it was never sent
        for end in (writer.flush, writer.close):
            with pytest.raises(UnreadableMetadataError) as ended:
                await end()
            assert not ended.value.outcome_known  # of the records before
        for name in ("bookie-0", "bookie-1"):
            await b.world.start(name)

    run(scene)


@pytest.mark.parametrize("once", [False, True])
def test_a_defect_in_the_writer_fails_its_appends(
    monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    """Appends must not wait forever for a task that has ended.

    A task that continued would send entries whose appends have failed.
    """
    real, sent = SegmentWriter.send, list[int]()

    def defective(self: SegmentWriter, entry: Any) -> None:
        sent.append(1)
        if once and len(sent) > 1:
            real(self, entry)
            return
        raise RuntimeError("a defect")

    async def scene(b: Bench) -> None:
        reported: list[dict[str, object]] = []
        monkeypatch.setattr(b.world.loop, "call_exception_handler", reported.append)
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"before")
        monkeypatch.setattr(SegmentWriter, "send", defective)
        for _ in range(2):
            with pytest.raises(StreamClosedError, match=r"failed because of a bug.*a defect"):
                await writer.append(b"never")
        assert [str(one["exception"]) for one in reported] == ["a defect"]
        await asyncio.wait([writer._writer_task._task], timeout=1)  # simulated
        assert writer._writer_task._task.done(), "the task of the writer continued"
        assert len(sent) == 1
        with pytest.raises(StreamClosedError, match="because of a bug"):
            await writer.close()

    run(scene)


@pytest.mark.parametrize("name", ["roll_interval_s", "retention_s", "retention_ms"])
@pytest.mark.parametrize("value", [1e308, 10**400])
def test_a_time_that_does_not_fit_in_milliseconds_is_refused(name: str, value: float) -> None:
    """It once raised OverflowError, and a roll interval of that length ended the writer."""

    async def scene(b: Bench) -> None:
        given = 1_000 * int(value) if name.endswith("_ms") else value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with pytest.raises(UsageError, match=f"setting {name} is too large"):
                await b.streams.create_stream("s", settings={name: given})

    run(scene)


@pytest.mark.parametrize("interval", [0, -1, 0.0001])
def test_a_roll_interval_of_zero_is_refused(interval: float) -> None:
    """The other limits of time accept 0. This one must not offer it."""
    with pytest.raises(UsageError, match=r"roll_interval_s must be at least 0.001 seconds"):
        check_value("roll_interval_s", interval)


def test_a_search_past_the_end_of_an_empty_segment_skips_no_record() -> None:
    """The reader reported that records had been truncated."""

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"one")
            await writer.roll()
            await writer.append(b"two")
        *written, last = await b.streams.segments("s")
        empty = replace(last, last_entry_id=-1, last_slot_id=-1, record_count=0, last_txid=-1)
        for start in (
            AtSequence(9),
            AtTxid(last.last_txid + 1),
            AtTime(last.completion_time_ms + 1),
        ):
            found = await find(b.client, [*written, empty], start, b"")
            assert found == last.first_dlsn

    run(scene)


@pytest.mark.parametrize("gone", ["before", "meanwhile", "before a snapshot"])
def test_a_stream_whose_compression_is_not_installed_is_not_written(
    monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """The writer created and dropped one segment after the other, and the append never ended."""
    missing = UsageError("the Python package lz4 is not installed")

    def no_lz4() -> NoReturn:
        raise missing

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"compression": "lz4"})
        former = await b.streams.open_writer("s")
        await former.append(b"0" * 100)
        if gone == "before":
            with monkeypatch.context() as patched:
                patched.setattr(compression, "_lz4", no_lz4)
                with pytest.raises(UsageError, match="not installed"):
                    await b.streams.open_writer("s")
            await former.append(b"1")  # it was not fenced
        if gone == "before a snapshot":
            await (await former.producer("p")).append(b"1", 0)
        await former.close()
        writer = await b.streams.open_writer("s")
        with monkeypatch.context() as patched:
            patched.setattr(compression, "_lz4", no_lz4)
            async with asyncio.timeout(5):  # simulated
                with pytest.raises(UsageError, match="not installed"):
                    await writer.append(b"2")
                with pytest.raises(UsageError, match="not installed"):
                    await writer.close()
        assert len(await b.ledgers()) <= 3
        async with b.streams.open_writer("s") as writer:
            await writer.append(b"3")
        read = [record.payload for record in await b.read("s")]
        assert read == [b"0" * 100, *([] if gone == "meanwhile" else [b"1"]), b"3"]

    run(scene)


async def test_many_tokens_in_one_entry_do_not_make_it_too_large(client: Client) -> None:
    """The largest record leaves room for only about 40 of them."""
    streams = await open_namespace(client, "/team", create=True)
    await streams.create_stream("s", settings={"entries_in_flight": 1})
    writer = await streams.open_writer("s")
    await writer.set_fencing_token("first")
    await writer.submit_many([bytes(MAX_PAYLOAD_BYTES)] * 2, token="first")
    tokens = [f"{number:064}" for number in range(60)]
    await asyncio.gather(
        *(
            writer.set_fencing_token(token, expect=former)
            for former, token in zip(["first", *tokens], tokens)
        )
    )
    await writer.append(b"1", token=tokens[-1])
    await writer.close()
    assert (await streams.segments("s"))[-1].record_count == 3


def test_a_damaged_allocation_is_named() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        metadata = b.streams.metadata("s")
        await metadata.tree.commit(Put(metadata.paths.allocation, b"L7"))
        for call in (b.streams.open_writer, b.streams.delete_stream):
            with pytest.raises(MetadataError, match=r"allocation .* does not contain a number"):
                await call("s")

    run(scene)
