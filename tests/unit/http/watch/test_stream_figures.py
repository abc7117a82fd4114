"""The figures of streams in lists: size, rate, lag and last write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from quire.errors import ReadError
from quire.http.views import stream_statistics
from quire.http.watch import stream_figures
from quire.http.watch.stream_figures import (
    StreamFigures,
    StreamWatch,
    subscriptions_as_json,
    topic_as_json,
)
from quire.metadata.tree import Put
from quire.streams import DLSN
from tests.support.streams import Bench, run


async def figures(b: Bench, watch: StreamWatch, *names: str) -> dict[str, Any]:
    await watch.of(b.client, b.streams.path, names)
    await asyncio.sleep(stream_figures.FIGURES_INTERVAL_S / 2)
    return await watch.of(b.client, b.streams.path, names)


async def append(b: Bench, name: str, count: int) -> None:
    async with await b.streams.open_writer(name, create=True) as writer:
        await writer.append_many([b"0123456789"] * count)


def watched(b: Bench) -> StreamWatch:
    return StreamWatch(b.client.clock.monotonic)


def test_stream_figures_have_size_lag_and_last_write() -> None:
    async def scene(b: Bench) -> None:
        await append(b, "orders", 10)
        await append(b, "orders", 20)
        records = await b.read("orders")
        await b.streams.subscription("orders", "slow").commit(records[3].position.next_slot())
        await b.streams.subscription("orders", "quick").commit(records[-1].position.next_slot())
        await b.streams.create_stream("empty")
        watch = watched(b)
        try:
            found = await figures(b, watch, "orders", "empty", "missing")
            orders = found["orders"]
            assert (orders["records"], orders["segments"], orders["whole"]) == (30, 2, True)
            assert orders["bytes"] >= 300
            assert (orders["lag"], orders["slowest"], orders["subscriptions"]) == (26, "slow", 2)
            assert orders["last"] == str(records[-1].position)
            assert orders["last_time"] is not None
            assert (orders["records_per_s"], orders["error"]) == (None, "")
            empty = found["empty"]
            assert (empty["records"], empty["last"], empty["lag"]) == (0, None, None)
            assert found["missing"] is None
        finally:
            await watch.close()

    run(scene)


def test_stream_rates_are_computed_between_two_observations() -> None:
    async def scene(b: Bench) -> None:
        await append(b, "s", 10)
        watch = watched(b)
        try:
            await figures(b, watch, "s")
            before = b.client.clock.monotonic()
            await append(b, "s", 100)  # another segment
            await b.streams.truncate("s", (await b.read("s"))[-1].position)
            await asyncio.sleep(10)
            found = (await figures(b, watch, "s"))["s"]
            passed_s = b.client.clock.monotonic() - before
            assert 100 / (passed_s + 5) < found["records_per_s"] < 100 / (passed_s - 5)
            assert found["bytes_per_s"] > 10 * found["records_per_s"]
            assert found["records"] == 1
            await asyncio.sleep(10)
            assert (await figures(b, watch, "s"))["s"]["records_per_s"] == 0
            await asyncio.sleep(stream_figures.FIGURES_AGE_MAX_S)
            assert (await figures(b, watch, "s"))["s"]["records_per_s"] is None
            await b.streams.delete_stream("s")
            await append(b, "s", 5)
            await asyncio.sleep(10)
            assert (await figures(b, watch, "s"))["s"]["records_per_s"] is None
        finally:
            await watch.close()

    run(scene)


def test_an_unreadable_stream_states_the_reason() -> None:
    async def scene(b: Bench) -> None:
        await append(b, "good", 1)
        await append(b, "bad", 1)
        (segment,) = await b.streams.segments("bad")
        path = b.streams.metadata("bad").paths.segment(segment.name)
        await b.client.metadata.tree.commit(Put(path, b"garbage", 0))
        watch = watched(b)
        try:
            found = await figures(b, watch, "bad", "good")
            assert "cannot be decoded" in found["bad"]["error"]
            assert found["good"]["records"] == 1
        finally:
            await watch.close()

    run(scene)


def test_an_unreadable_subscription_hides_no_other_figure() -> None:
    """The figures of the whole stream were an error, and so was its page."""

    async def scene(b: Bench) -> None:
        await append(b, "orders", 10)
        records = await b.read("orders")
        for at, name in ((2, "good"), (3, "bad")):
            place = records[at].position.next_slot()
            await b.streams.subscription("orders", name).commit(place)
        counted = stream_statistics.records_from
        bad = records[3].position.next_slot()

        async def records_from(client: Any, facts: Any, position: DLSN, *rest: Any) -> int:
            if position == bad:
                raise ReadError("entry 0 of ledger 7 cannot be read")
            return await counted(client, facts, position, *rest)

        watch = watched(b)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stream_statistics, "records_from", records_from)
            try:
                orders = (await figures(b, watch, "orders"))["orders"]
                assert (orders["error"], orders["records"]) == ("", 10)
                assert (orders["lag"], orders["slowest"]) == (7, "good")
                told = {one["name"]: one for one in watch.subscriptions(b.streams.path, ["orders"])}
                assert told["good"]["whole"]
                assert not told["bad"]["whole"]
                [row] = told["bad"]["partitions"]
                assert (row["position"], row["records"]) == (str(bad), None)
                assert "entry 0 of ledger 7 cannot be read" in row["error"]
            finally:
                await watch.close()

    run(scene)


def test_only_the_newest_segments_of_a_long_stream_are_read() -> None:
    async def scene(b: Bench) -> None:
        stream_figures.SEGMENTS_LOOKED_AT_MAX, most = 3, stream_figures.SEGMENTS_LOOKED_AT_MAX
        watch = watched(b)
        try:
            for _ in range(5):
                await append(b, "s", 2)
            found = (await figures(b, watch, "s"))["s"]
            assert (found["segments"], found["records"], found["whole"]) == (3, 6, False)
        finally:
            stream_figures.SEGMENTS_LOOKED_AT_MAX = most
            await watch.close()

    run(scene)


# -- topics -----------------------------------------------------------------------------------


def test_the_figures_of_a_topic_are_sums_over_its_partitions() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("visits", 3)
        for at, count in enumerate((10, 20)):
            await append(b, f"visits/{at}", count)
        for stream, subscriber, read in (
            ("visits/0", "billing", 4), ("visits/1", "billing", 5), ("visits/1", "other", 1),
        ):  # fmt: skip
            records = await b.read(stream)
            position = records[read - 1].position.next_slot()
            await b.streams.subscription(stream, subscriber).commit(position)
        topics = {"visits": [f"visits/{at}" for at in range(3)]}
        watch = watched(b)
        try:
            assert watch.of_topics(b.streams.path, topics) == {"visits": None}
            found = await figures(b, watch, *topics["visits"])
            topic = watch.of_topics(b.streams.path, topics)["visits"]
            assert topic is not None
            for key in ("records", "bytes", "segments"):
                assert topic[key] == sum(found[name][key] for name in topics["visits"])
            assert (topic["records"], topic["last"], topic["records_per_s"]) == (30, None, None)
            assert topic["last_time"] == max(found[f"visits/{at}"]["last_time"] for at in (0, 1))
            # 6 in partition 0 and 15 in partition 1; the other subscription lags 19 in one.
            assert (topic["lag"], topic["slowest"], topic["subscriptions"]) == (21, "billing", 2)
            billing, other = watch.subscriptions(b.streams.path, topics["visits"])
            assert (billing["name"], billing["records"], billing["whole"]) == ("billing", 21, True)
            behind = [(one["partition"], one["records"]) for one in billing["partitions"]]
            assert behind == [(0, 6), (1, 15)]
            assert all(one["position"] for one in billing["partitions"])
            assert (other["name"], other["records"]) == ("other", 19)
            await append(b, "visits/2", 50)
            await asyncio.sleep(5)
            await figures(b, watch, *topics["visits"])
            topic = watch.of_topics(b.streams.path, topics)["visits"]
            assert topic is not None
            assert topic["records"] == 80
            assert topic["records_per_s"] > 0
        finally:
            await watch.close()

    run(scene)


def test_a_partition_that_cannot_be_read_is_named() -> None:
    good = StreamFigures(10.0, True, 1, 7, 70, written=7)
    bad = StreamFigures(8.0, error="its ledger is damaged")
    found = topic_as_json([(good, None), (bad, None)], 20.0)
    assert found["error"] == "partition 1: its ledger is damaged"
    assert (found["records"], found["whole"]) == (7, False)
    assert (found["records_per_s"], found["age_s"]) == (None, 12.0)
    assert (found["lag"], found["slowest"], found["subscriptions"]) == (None, None, 0)


def test_an_incomplete_sum_of_lags_is_marked() -> None:
    def looked_at(*progress: Mapping[str, object]) -> StreamFigures:
        return StreamFigures(10.0, progress=progress)

    good = {"name": "billing", "position": "1:0:0", "records": 7, "missed": False}
    broken = {**good, "position": None, "records": None, "error": "it is damaged"}
    (whole,) = subscriptions_as_json([looked_at(good), looked_at()])
    assert (whole["records"], whole["whole"]) == (7, True)
    for other in (None, StreamFigures(8.0, error="its ledger is damaged"), looked_at(broken)):
        (found,) = subscriptions_as_json([looked_at(good), other])
        assert (found["records"], found["whole"]) == (7, False)
    assert found["partitions"][1] == {
        "partition": 1, "position": None, "records": None, "missed": False,
        "error": "it is damaged",
    }  # fmt: skip


def test_a_subscription_of_a_topic_that_missed_records_is_marked() -> None:
    """Only the page of the partition said it."""
    kept = {"name": "billing", "position": "2:0:0", "records": 7, "missed": False}
    cut = StreamFigures(10.0, progress=({**kept, "position": "1:0:0", "missed": True},))
    (found,) = subscriptions_as_json([StreamFigures(10.0, progress=(kept,)), cut])
    assert (found["missed"], [one["missed"] for one in found["partitions"]]) == (
        True,
        [False, True],
    )
    (found,) = subscriptions_as_json([StreamFigures(10.0, progress=(kept,))])
    assert found["missed"] is False
