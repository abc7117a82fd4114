"""Batches of many processes in one stream are stored once, despite repetitions and deaths."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace

import pytest

from quire.client import Client
from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import (
    StreamConditionError,
    StreamError,
    StreamFencedError,
    StreamQuotaError,
    TxidOrderError,
    UsageError,
)
from quire.metadata.interface import Versioned
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.publish.publishing import (
    BatchKey,
    BuiltSegment,
    SegmentBuilder,
    StreamBatch,
    abort,
    begin,
    publish,
    published_segments,
    sweep_job,
    take,
)
from quire.streams.read.positions import AtTime
from quire.streams.write.pending_entry import PendingEntry
from quire.streams.write.producers import read_marks
from tests.support.metadata.lagging import LaggingServer
from tests.support.streams import Bench, run

KEY = BatchKey("job", "query-1", 0)


async def build(b: Bench, batch: StreamBatch, payloads: list[bytes]) -> BuiltSegment:
    settings = StreamSettings(**batch.settings)
    builder = SegmentBuilder(
        b.client, f"{b.streams.path}/s", settings,
        job=batch.key.job, life=batch.life, snapshot=batch.snapshot,
    )  # fmt: skip
    half = len(payloads) // 2
    for part in (payloads[:half], payloads[half:]):
        await builder.append(part, [batch.txid] * len(part))
    built = await builder.close()
    assert built is not None
    return built


async def payloads(b: Bench) -> list[bytes]:
    found = await b.read("s")
    assert [r.sequence for r in found] == list(range(len(found)))
    return [r.payload for r in found]


async def only_its_ledgers(b: Bench) -> None:
    segments = await b.streams.segments("s")
    assert sorted(await b.ledgers()) == sorted(s.ledger_id for s in segments)


def test_a_batch_is_published_atomically_and_once() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"entry_bytes": 1_024})
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        batch = pickle.loads(pickle.dumps(batch))
        rows = [b"%d" % k * 30 for k in range(100)]
        built = [await build(b, batch, rows[:70]), await build(b, batch, rows[70:])]
        assert await payloads(b) == []
        segments = await publish(b.streams, "s", batch, built)
        assert len(segments) == 1  # small ones become one
        assert await payloads(b) == rows
        await only_its_ledgers(b)
        # Everything once more: the same driver, and a driver that died after its commit.
        again = await publish(b.streams, "s", batch, built)
        assert again == segments
        assert await begin(b.streams, "s", KEY) is None
        more = await build(b, batch, rows)
        assert await publish(b.streams, "s", batch, [more]) == segments
        kept = replace(more, ledger_id=segments[0].ledger_id)
        assert not await abort(b.streams, "s", batch, [kept])
        assert await payloads(b) == rows
        await only_its_ledgers(b)

    run(scene)


@pytest.mark.parametrize("producers", [2, 1_000])
async def test_a_batch_with_a_large_last_record_and_many_producers_is_published(
    client: Client, producers: int
) -> None:
    """Both did not fit into one entry, so that the batch could never be published."""
    async with open_namespace(client, "/acme/test", create=True) as streams:
        await streams.create_stream("s")
        async with streams.open_writer("s") as writer:
            for number in range(producers):
                producer = await writer.producer(f"{number:064d}")
                await producer._writer._append([b"p"], None, None, "", (producer.producer_id, 7))
        batch = await begin(streams, "s", KEY)
        assert batch is not None
        builder = SegmentBuilder(
            client, f"{streams.path}/s", StreamSettings(**batch.settings), snapshot=batch.snapshot
        )
        rows = [b"small", b"x" * MAX_PAYLOAD_BYTES]
        await builder.append(rows, [batch.txid] * 2)
        built = await builder.close()
        assert built is not None
        await publish(streams, "s", batch, [built])
        found = [record.payload async for record in streams.open_reader("s")]
        assert found[producers:] == rows
        marks = await read_marks(client, (await streams.segments("s"))[-1:], b"")
        assert len(marks.producers) == producers
        assert marks.last_sequence(f"{producers - 1:064d}") == 7


def test_large_ledgers_become_segments_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.streams.publish import publishing

    monkeypatch.setattr(publishing, "MERGE_BYTES", 100)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        for number in range(3):
            batch = await begin(b.streams, "s", replace(KEY, number=number))
            assert batch is not None
            built = [await build(b, batch, [b"%d.%d" % (number, k)] * 50) for k in range(2)]
            assert len(await publish(b.streams, "s", batch, built)) == 2
        expected = [b"%d.%d" % (n, k) for n in range(3) for k in range(2) for _ in range(50)]
        assert await payloads(b) == expected
        await only_its_ledgers(b)

    run(scene)


def test_writers_and_batches_alternate_on_one_stream() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"first")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        with pytest.raises(StreamFencedError):
            await writer.append(b"no")
        await publish(b.streams, "s", batch, [await build(b, batch, [b"x", b"y"])])
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"last")
        assert await payloads(b) == [b"first", b"x", b"y", b"last"]
        await only_its_ledgers(b)

    run(scene)


def test_a_replaced_driver_cannot_publish() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        zombie = await begin(b.streams, "s", KEY)
        assert zombie is not None
        old = [await build(b, zombie, [b"old"]), await build(b, zombie, [b"older"])]
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        with pytest.raises(StreamFencedError):
            await publish(b.streams, "s", zombie, old)
        assert await abort(b.streams, "s", zombie, old)
        await publish(b.streams, "s", batch, [await build(b, batch, [b"new"])])
        assert await payloads(b) == [b"new"]
        await only_its_ledgers(b)

    run(scene)


def test_another_query_of_the_same_writer_needs_the_takeover_option() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", replace(KEY, number=7))
        assert batch is not None
        await publish(b.streams, "s", batch, [await build(b, batch, [b"seven"])])
        other = BatchKey("job", "query-2", 0)
        with pytest.raises(
            UsageError, match="belongs to query query-1 there, which has published up to batch 7"
        ):
            await begin(b.streams, "s", other)
        batch = await begin(b.streams, "s", other, takeover=True)
        assert batch is not None
        await publish(b.streams, "s", batch, [await build(b, batch, [b"zero"])])
        assert await payloads(b) == [b"seven", b"zero"]
        beside = await begin(b.streams, "s", BatchKey("other", "query-9", 0))
        assert beside is not None

    run(scene)


def test_a_batch_without_records_is_recorded_as_published() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        assert await publish(b.streams, "s", batch, []) == []
        assert await begin(b.streams, "s", KEY) is None
        assert await payloads(b) == []

    run(scene)


# -- who comes late ---------------------------------------------------------------------------


async def published(
    b: Bench, key: BatchKey, rows: list[bytes]
) -> tuple[StreamBatch, list[BuiltSegment]]:
    batch = await begin(b.streams, "s", key)
    assert batch is not None
    built = [await build(b, batch, rows)]
    await publish(b.streams, "s", batch, built)
    return batch, built


def test_published_records_survive_a_late_publish_or_abort() -> None:
    """The batch after it is published too, so that the node does not name its segments any more."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch, built = await published(b, KEY, [b"a", b"b"])
        await published(b, replace(KEY, number=1), [b"c"])
        assert await publish(b.streams, "s", batch, built) == []
        assert not await abort(b.streams, "s", batch, built)
        assert await payloads(b) == [b"a", b"b", b"c"]
        await only_its_ledgers(b)

    run(scene)


def test_an_aborted_batch_cannot_be_published_afterwards() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        built = [await build(b, batch, [b"a"])]
        assert await abort(b.streams, "s", batch, built)
        with pytest.raises(StreamError, match="deleted before that"):
            await publish(b.streams, "s", batch, built)
        with pytest.raises(StreamFencedError):
            await publish(b.streams, "s", batch, [await build(b, batch, [b"a"])])
        assert await payloads(b) == []
        await published(b, KEY, [b"again"])
        assert await payloads(b) == [b"again"]

    run(scene)


def test_a_batch_of_another_driver_with_the_same_number_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the same numbers, and was published between the last check and the transaction."""
    from quire.streams.publish import publishing

    commit = publishing._commit

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        zombie = await begin(b.streams, "s", KEY)
        assert zombie is not None
        built = [await build(b, zombie, [b"a"]), await build(b, zombie, [b"b"])]

        async def late(*arguments: object) -> None:
            monkeypatch.setattr(publishing, "_commit", commit)
            await published(b, KEY, [b"a", b"b"])
            await commit(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(publishing, "_commit", late)
        segments = await publish(b.streams, "s", zombie, built)
        assert segments == await b.streams.segments("s")
        assert await payloads(b) == [b"a", b"b"]
        await only_its_ledgers(b)

    run(scene)


@pytest.mark.parametrize("made_again", [False, True])
def test_published_records_survive_a_rename(made_again: bool) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch, built = await published(b, KEY, [b"a"])
        await b.streams.rename_stream("s", "t")
        if made_again:
            await b.streams.create_stream("s")
        await abort(b.streams, "s", batch, built)
        if made_again:  # The same job runs for the new stream, and cleans up after itself.
            again, _ = await published(b, KEY, [b"b"])
            assert again.life != batch.life
            kept = [one.ledger_id for one in await b.streams.segments("s")]
            assert await sweep_job(b.streams, "s", KEY, kept, kept[0]) == []
        found = await b.read("t")
        assert [r.payload for r in found] == [b"a"]

    run(scene)


def test_an_abort_does_not_disturb_the_next_driver() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        zombie = await begin(b.streams, "s", KEY)
        assert zombie is not None
        old = [await build(b, zombie, [b"old"])]
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        assert await abort(b.streams, "s", zombie, old)
        await publish(b.streams, "s", batch, [await build(b, batch, [b"new"])])
        assert await payloads(b) == [b"new"]
        await only_its_ledgers(b)

    run(scene)


def test_a_replaced_query_cannot_publish_again() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        await published(b, replace(KEY, number=7), [b"seven"])
        new = BatchKey("job", "query-2", 0)
        batch = await begin(b.streams, "s", new, takeover=True)
        assert batch is not None
        await publish(b.streams, "s", batch, [await build(b, batch, [b"zero"])])
        with pytest.raises(UsageError, match="was replaced by query query-2"):
            await begin(b.streams, "s", replace(KEY, number=8), takeover=True)
        with pytest.raises(UsageError, match=r"has published up to batch 0 .* as writer 'job'"):
            await begin(b.streams, "s", BatchKey("moved", "query-2", 1))
        assert await payloads(b) == [b"seven", b"zero"]

    run(scene)


def test_another_query_is_refused_when_it_publishes() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        await published(b, KEY, [b"a"])
        planned = await take(b.streams, "s", BatchKey("job", "", 0))
        batch = replace(planned, key=replace(KEY, query="query-2", number=0))
        with pytest.raises(UsageError, match="set takeover"):
            await publish(b.streams, "s", batch, [await build(b, batch, [b"x"])])
        batch = replace(planned, key=replace(KEY, number=1))
        await publish(b.streams, "s", batch, [await build(b, batch, [b"b"])])
        assert await payloads(b) == [b"a", b"b"]

    run(scene)


# -- jobs -------------------------------------------------------------------------------------


def test_each_job_publishes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.streams.publish import published as nodes

    monkeypatch.setattr(nodes, "JOBS_MAX", 3)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        for name in ("1", "2", "3"):
            key = BatchKey.of_job(name)
            await published(b, key, [name.encode()])
            assert await begin(b.streams, "s", key) is None
            found = await published_segments(b.streams.metadata("s"), key)
            assert found is not None
            assert [s.lssn for s in found] == [int(name)]
        assert await begin(b.streams, "s", BatchKey.of_job("1")) is None
        await published(b, BatchKey.of_job("4"), [b"4"])
        assert await begin(b.streams, "s", BatchKey.of_job("1")) is not None  # forgotten
        assert await begin(b.streams, "s", BatchKey.of_job("2")) is None
        for name in ("", "x" * 201):
            with pytest.raises(UsageError, match="cannot be the name of a job"):
                await begin(b.streams, "s", BatchKey.of_job(name))
        assert await payloads(b) == [b"1", b"2", b"3", b"4"]

    run(scene)


@pytest.mark.parametrize("full", ["", "2:"])
def test_a_compaction_is_not_published_after_one_that_has_read_further(full: str) -> None:
    """A driver was stopped until its lock was gone, and then appended older values after newer."""
    source, other = "compact:0123456789abcdef", "compact:fedcba9876543210"

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        await published(b, BatchKey.of_job(f"{source}:1:0:0>2:0:0:7,20"), [b"a=1"])
        late = BatchKey.of_job(f"{source}:{full}2:0:0>9:0:0:8,30")
        batch = await begin(b.streams, "s", late)
        assert batch is not None
        built = [await build(b, batch, [b"a=2"])]
        further = BatchKey.of_job(f"{source}:2:0:0>10:0:0:9,40")
        await published(b, further, [b"a=3"])
        with pytest.raises(StreamConditionError, match="which has read up to 10:0:0") as caught:
            await publish(b.streams, "s", batch, built)
        assert caught.value.outcome_known
        assert await abort(b.streams, "s", batch, built)
        with pytest.raises(StreamConditionError, match="nothing was appended"):
            await begin(b.streams, "s", late)
        # Other sources are independent, and a job that is published already has nothing to do.
        await published(b, BatchKey.of_job(f"{other}:1:0:0>3:0:0:4,5"), [b"z=1"])
        assert await begin(b.streams, "s", BatchKey.of_job(f"{source}:1:0:0>2:0:0:7,20")) is None
        # A job that has read as far may be demanded again.
        await published(b, BatchKey.of_job(f"{source}:2:1:0:0>10:0:0:9,40"), [b"a=3"])
        assert await payloads(b) == [b"a=1", b"a=3", b"z=1", b"a=3"]
        await only_its_ledgers(b)

    run(scene)


def test_the_ledgers_of_failed_attempts_are_swept() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        lost = await build(b, batch, [b"a"])
        other = await build(b, replace(batch, key=replace(KEY, number=1)), [b"b"])
        good = await build(b, batch, [b"a"])
        segments = await publish(b.streams, "s", batch, [good])
        kept = [segment.ledger_id for segment in segments]
        swept = await sweep_job(b.streams, "s", KEY, kept, good.ledger_id)
        assert swept == [lost.ledger_id]
        assert sorted(await b.ledgers()) == sorted([other.ledger_id, *kept])

    run(scene)


# -- what the stream is told ------------------------------------------------------------------


def test_segments_are_numbered_without_gaps() -> None:
    """The number of an empty segment of a dead writer is used again."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        for round_ in range(2):
            metadata = b.streams.metadata("s")
            claim = await metadata.claim()
            ledger = await b.client.create_ledger()
            await metadata.allocate(claim, ledger.ledger_id)
            started = StreamSegment(claim.newest + 1, ledger.ledger_id, 0)
            await metadata.change(claim, begin=started)
            ledger.abandon()
            await published(b, replace(KEY, number=round_), [b"%d" % round_])
        assert await b.numbers("s") == [1, 2]
        assert await payloads(b) == [b"0", b"1"]  # a gap would raise
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"2")
        assert await b.numbers("s") == [1, 2, 3]

    run(scene)


def test_producers_and_tokens_survive_a_batch() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            producer = await writer.producer("till")
            await producer.append(b"sale", 41)
            await writer.set_fencing_token("t")
        with pytest.raises(StreamConditionError, match="does not have the fencing token ''"):
            await begin(b.streams, "s", KEY)
        for number in range(2):
            key = replace(KEY, number=number)
            batch = await begin(b.streams, "s", key, token="t")
            assert batch is not None
            built = [await build(b, batch, [b"x"]), await build(b, batch, [b"y"])]
            await publish(b.streams, "s", batch, built)
        assert await payloads(b) == [b"sale", b"x", b"y", b"x", b"y"]
        # The last segment has all facts, so no earlier one must be read.
        newest = (await b.streams.segments("s"))[-1:]
        marks = await read_marks(b.client, newest, b"")
        assert (marks.last_sequence("till"), marks.token) == (41, "t")
        async with await b.streams.open_writer("s") as writer:
            producer = await writer.producer("till")
            assert producer.last_sequence == 41
            assert await producer.append(b"sale", 41, token="t") is None

    run(scene)


@pytest.mark.parametrize("stored", [True, False], ids=["time stored", "no time stored"])
def test_a_batch_with_given_txids_is_found_by_its_time(
    monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    """All its records once counted as older than any time. Readers from a time skipped them, and
    a truncation to a time deleted them."""
    if not stored:  # as version 0.2 wrote it
        monkeypatch.setattr(PendingEntry, "mark", lambda self, payload: None)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"txids": "given"})
        moments = []
        for number in range(3):
            moments.append(b.client.clock.now_ms())
            await asyncio.sleep(100)
            batch = await begin(b.streams, "s", replace(KEY, number=number))
            assert batch is not None
            written = [b"%d%d" % (number, one) for one in range(2)]
            await publish(b.streams, "s", batch, [await build(b, batch, written)])
            await asyncio.sleep(100)
        moments.append(b.client.clock.now_ms())
        everything = [record.payload for record in await b.read("s")]
        for number, moment in enumerate(moments):
            found = [r.payload for r in await b.read("s", start=AtTime(moment))]
            assert found == everything[2 * number :]
        place = await b.streams.find("s", AtTime(moments[2]))
        await b.streams.truncate("s", place)
        assert [record.payload for record in await b.read("s")] == everything[4:]

    run(scene)


def test_a_batch_keeps_the_order_of_txids() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"txids": "given"})
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None

        async def numbered(*txids: int) -> BuiltSegment:
            builder = SegmentBuilder(b.client, "/acme/test/s", StreamSettings(**batch.settings))
            await builder.append([b"%d" % txid for txid in txids], txids)
            last = txids[-1]
            with pytest.raises(TxidOrderError, match=rf"order: {last + 1} follows {last + 8}\."):
                await builder.append([b""] * 3, [last, last + 8, last + 1])
            with pytest.raises(TxidOrderError, match=rf"order: {last - 1} follows {last}\."):
                await builder.append([b""], [last - 1])
            built = await builder.close()
            assert built is not None
            return built

        late, early = await numbered(7, 8), await numbered(1, 1, 6)
        with pytest.raises(TxidOrderError):
            await publish(b.streams, "s", batch, [late, early])
        await publish(b.streams, "s", batch, [early, late])
        assert await payloads(b) == [b"1", b"1", b"6", b"7", b"8"]
        batch = await begin(b.streams, "s", replace(KEY, number=1))
        assert batch is not None
        with pytest.raises(TxidOrderError, match="txid 7 is less than txid 8"):
            await publish(b.streams, "s", batch, [await numbered(7)])

    run(scene)


def test_copies_get_txids_after_the_end_of_the_stream_despite_clock_skew() -> None:
    """Another sink, whose clock is ahead, has published meanwhile."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        built = [await build(b, batch, [b"x", b"y"])]
        other = await begin(b.streams, "s", BatchKey("other", "query-2", 0))
        assert other is not None
        ahead = replace(other, txid=other.txid + 3_600_000)
        await publish(b.streams, "s", ahead, [await build(b, ahead, [b"ahead"])])
        await publish(b.streams, "s", batch, built)
        found = await b.read("s")
        assert [record.payload for record in found] == [b"ahead", b"x", b"y"]
        assert [record.txid for record in found] == [ahead.txid] * 3

    run(scene)


@pytest.mark.parametrize("lacks", ["nothing", "an entry", "its close"])
def test_a_ledger_that_lacks_built_records_is_not_published(
    lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.streams.publish import publishing

    monkeypatch.setattr(publishing, "MERGE_BYTES", 1)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        good, other = [await build(b, batch, [b"%d" % n, b"x"]) for n in range(2)]
        if lacks == "an entry":
            other = replace(other, last_entry_id=other.last_entry_id + 1)
        elif lacks == "its close":
            writer = await b.client.create_ledger()
            for _ in range(other.last_entry_id + 1):
                await writer.append(b"x")
            writer.abandon()
            other = replace(other, ledger_id=writer.ledger_id)
        if lacks == "nothing":
            assert len(await publish(b.streams, "s", batch, [good, other])) == 2
        else:
            with pytest.raises(StreamError, match=r"was not published .* has fewer entries"):
                await publish(b.streams, "s", batch, [good, other])
            assert await payloads(b) == []

    run(scene)


def test_a_batch_that_exceeds_the_quota_is_refused() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"bytes_max": 2_000})
        await published(b, KEY, [b"x" * 1_000])
        batch = await begin(b.streams, "s", replace(KEY, number=1))
        assert batch is not None
        built = [await build(b, batch, [b"y" * 500]), await build(b, batch, [b"y" * 500])]
        with pytest.raises(StreamQuotaError):
            await publish(b.streams, "s", batch, built)
        assert await abort(b.streams, "s", batch, built)
        assert await payloads(b) == [b"x" * 1_000]
        await only_its_ledgers(b)

    run(scene)


def test_a_batch_never_has_more_segments_than_fit_in_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quire.streams.publish import publishing

    monkeypatch.setattr(publishing, "MERGE_BYTES", 100)
    monkeypatch.setattr(publishing, "SEGMENTS_MAX", 3)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        built = [await build(b, batch, [b"%d" % k * 90]) for k in range(9)]
        segments = await publish(b.streams, "s", batch, built)
        assert 1 <= len(segments) <= 3
        assert await payloads(b) == [b"%d" % k * 90 for k in range(9)]
        await only_its_ledgers(b)

    run(scene)


@pytest.mark.parametrize("settings", [{}, {"bytes_max": 10**9}, {"retention_bytes": 10**9}])
def test_a_batch_costs_the_same_in_a_stream_of_many_segments(settings: dict[str, int]) -> None:
    """A query of Spark leaves a segment for each micro-batch, and a stream may keep very many."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings=settings)
        requests: list[str] = []
        tree, store = b.client.metadata.tree, b.client.metadata
        read, read_ledger = tree.read, store.read_ledger

        async def counted(path: str) -> Versioned[bytes]:
            requests.append(path)
            return await read(path)

        async def counted_ledger(ledger_id: int) -> Versioned[LedgerMetadata]:
            requests.append(f"ledger {ledger_id}")
            return await read_ledger(ledger_id)

        tree.read = counted  # type: ignore[method-assign]
        store.read_ledger = counted_ledger  # type: ignore[method-assign]
        costs: list[int] = []
        for number in range(60):
            requests.clear()
            await published(b, replace(KEY, number=number), [b"%d" % number])
            await b.streams.retain("s")
            costs.append(len(requests))
        assert max(costs[5:]) <= max(costs[:5]), costs
        assert await published_segments(b.streams.metadata("s"), replace(KEY, number=59))
        assert await payloads(b) == [b"%d" % number for number in range(60)]

    run(scene)


def test_an_empty_batch_does_not_change_the_end_of_the_stream() -> None:
    """A later record must not get a txid that is less than those before it."""

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0")
        metadata = b.streams.metadata("s")
        before = await metadata.shared_claim()
        assert before.max_txid > 0
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        assert await publish(b.streams, "s", batch, []) == []
        after = await metadata.shared_claim()
        assert (after.max_txid, after.newest) == (before.max_txid, before.newest)
        assert await payloads(b) == [b"0"]

    run(scene)


def test_a_sweep_does_not_touch_a_stream_that_was_renamed_meanwhile() -> None:
    """Its ledgers were built for the name that another stream has now."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        good = await build(b, batch, [b"0", b"1"])
        [segment] = await publish(b.streams, "s", batch, [good])
        real = b.client.ledger_metadata

        async def renamed(ledger_id: int) -> LedgerMetadata:
            b.client.ledger_metadata = real  # type: ignore[method-assign]
            found = await real(ledger_id)
            await b.streams.rename_stream("s", "t")
            await b.streams.create_stream("s")
            return found

        b.client.ledger_metadata = renamed  # type: ignore[method-assign]
        assert await sweep_job(b.streams, "s", KEY, (), segment.ledger_id) == []
        assert b.client.ledger_metadata == real
        assert [record.payload for record in await b.read("t")] == [b"0", b"1"]

    run(scene)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("action", ["publish", "abort"])
@pytest.mark.parametrize("since", ["the stream", "the other batch", "the plan", "the ledgers"])
@pytest.mark.parametrize("key", [KEY, BatchKey.of_job("nightly")], ids=["writer", "job"])
def test_a_session_whose_server_lags_publishes_and_aborts_like_others(
    key: BatchKey, since: str, action: str, published: bool
) -> None:
    """Spark plans a batch in one process, and commits or aborts it in another one."""

    async def scene(b: Bench) -> None:
        async with b.world.client("lagging") as lagging:
            streams = await open_namespace(lagging, "/acme/test")
            server = LaggingServer(lagging.metadata)

            def reached(moment: str) -> None:
                if moment == since:
                    server.fall_behind()

            reached("the stream")
            await b.streams.create_stream("s")
            reached("the other batch")
            other = await begin(b.streams, "s", BatchKey.of_job("other"))
            assert other is not None
            await publish(b.streams, "s", other, [await build(b, other, [b"0", b"1"])])
            reached("the plan")
            batch = await begin(b.streams, "s", key)
            assert batch is not None
            reached("the ledgers")
            built = await build(b, batch, [b"2", b"3"])
            wanted = [b"0", b"1"]
            if published:
                await publish(b.streams, "s", batch, [built])
                wanted += [b"2", b"3"]
            assert server.behind
            if action == "abort":
                assert await abort(streams, "s", batch, [built]) != published
                if not published:
                    with pytest.raises(StreamError):
                        await publish(b.streams, "s", batch, [built])
            else:
                segments = await publish(streams, "s", batch, [built])
                assert [one.lssn for one in segments] == [2]
                wanted = [b"0", b"1", b"2", b"3"]
            await streams.close()
        assert await payloads(b) == wanted
        await only_its_ledgers(b)

    run(scene)
