"""Batches of many processes in one stream: each once, whoever does what twice or dies between."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from quire.errors import StreamFencedError, UsageError
from quire.streams.publishing import (
    Batch,
    BatchKey,
    Built,
    SegmentBuilder,
    abort,
    begin,
    publish,
)
from quire.streams.settings import StreamSettings
from tests.unit.test_streams import Bench, run

KEY = BatchKey("job", "query-1", 0)


async def build(b: Bench, batch: Batch, payloads: list[bytes]) -> Built:
    settings = StreamSettings(**batch.settings)
    builder = SegmentBuilder(b.client, f"{b.streams.path}/s", settings, job="test")
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


def test_a_batch_is_seen_as_a_whole_and_once() -> None:
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
        assert not await abort(b.streams, "s", KEY, [replace(more, ledger_id=built[0].ledger_id)])
        assert await payloads(b) == rows
        await only_its_ledgers(b)

    run(scene)


def test_large_ledgers_are_segments_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.streams import publishing

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


def test_writers_and_batches_take_turns() -> None:
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


def test_a_driver_that_was_replaced_publishes_nothing() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        zombie = await begin(b.streams, "s", KEY)
        assert zombie is not None
        old = [await build(b, zombie, [b"old"]), await build(b, zombie, [b"older"])]
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        with pytest.raises(StreamFencedError):
            await publish(b.streams, "s", zombie, old)
        assert await abort(b.streams, "s", KEY, old)
        await publish(b.streams, "s", batch, [await build(b, batch, [b"new"])])
        assert await payloads(b) == [b"new"]
        await only_its_ledgers(b)

    run(scene)


def test_another_query_of_the_same_writer_must_say_so() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", replace(KEY, number=7))
        assert batch is not None
        await publish(b.streams, "s", batch, [await build(b, batch, [b"seven"])])
        other = BatchKey("job", "query-2", 0)
        with pytest.raises(UsageError, match="has published up to batch 7 of query query-1"):
            await begin(b.streams, "s", other)
        batch = await begin(b.streams, "s", other, takeover=True)
        assert batch is not None
        await publish(b.streams, "s", batch, [await build(b, batch, [b"zero"])])
        assert await payloads(b) == [b"seven", b"zero"]
        beside = await begin(b.streams, "s", BatchKey("other", "query-9", 0))
        assert beside is not None

    run(scene)


def test_a_batch_without_records() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await begin(b.streams, "s", KEY)
        assert batch is not None
        assert await publish(b.streams, "s", batch, []) == []
        assert await begin(b.streams, "s", KEY) is None
        assert await payloads(b) == []

    run(scene)
