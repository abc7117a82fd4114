"""Two sinks publish to one stream on real bookies, with the metadata in SQLite or in ZooKeeper.

Each driver has a session of its own. One dies between its plan and its publication, and the other
sink goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import quire
from quire.errors import StreamFencedError
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.publish import publishing
from quire.streams.publish.plans import PLANS
from quire.streams.publish.publishing import (
    BatchKey,
    BuiltSegment,
    SegmentBuilder,
    StreamBatch,
    abort,
    begin,
    publish,
)
from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow

STREAM = "orders"
A = BatchKey("a", "query-a", 0)
B = BatchKey("b", "query-b", 0)


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]
)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, zookeeper=request.param == "zookeeper") as running:
        yield running


async def driver(client: quire.Client, path: str) -> Namespace:
    return await open_namespace(client, path, create=True)


async def planned(streams: Namespace, key: BatchKey, **how: Any) -> StreamBatch:
    batch = await begin(streams, STREAM, key, **how)
    assert batch is not None
    return batch


async def build(streams: Namespace, batch: StreamBatch, *rows: bytes) -> list[BuiltSegment]:
    builder = SegmentBuilder(
        streams.client, f"{streams.path}/{STREAM}", StreamSettings(**batch.settings),
        job=batch.key.job, life=batch.life, snapshot=batch.snapshot,
    )  # fmt: skip
    await builder.append(list(rows), [batch.txid] * len(rows))
    built = await builder.close()
    assert built is not None
    return [built]


async def published(streams: Namespace, key: BatchKey, *rows: bytes) -> None:
    batch = await planned(streams, key)
    await publish(streams, STREAM, batch, await build(streams, batch, *rows))


async def check(streams: Namespace, *rows: bytes) -> None:
    """Check the records and their order, and that no ledger is left over."""
    found = [record async for record in await streams.open_reader(STREAM)]
    assert [record.payload for record in found] == list(rows)
    assert [record.sequence for record in found] == list(range(len(rows)))
    assert [record.txid for record in found] == sorted(record.txid for record in found)
    path = f"{streams.path}/{STREAM}".encode()
    left = set()
    async for ledger_id in streams.client.list_ledgers():
        if (await streams.client.ledger_metadata(ledger_id)).custom.get("stream") == path:
            left.add(ledger_id)
    assert left == {segment.ledger_id for segment in await streams.segments(STREAM)}


async def plans_of(streams: Namespace) -> list[str]:
    metadata = streams.metadata(STREAM)
    return sorted(await metadata.tree.children(f"{metadata.paths.root}/{PLANS}"))


def before_the_next_transaction(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Do something before the next transaction that publishes a batch."""
    real = publishing._commit

    async def delayed(*arguments: Any) -> None:
        monkeypatch.setattr(publishing, "_commit", real)
        await action()
        await real(*arguments)

    monkeypatch.setattr(publishing, "_commit", delayed)


async def test_a_driver_killed_between_plan_and_publication_publishes_once(
    cluster: LocalCluster,
) -> None:
    path = "/dies"
    async with quire.connect(cluster.uri) as other, quire.connect(cluster.uri) as second:
        b, successor = await driver(other, path), await driver(second, path)
        await b.create_stream(STREAM)
        async with quire.connect(cluster.uri) as first:
            a = await driver(first, path)
            for number in range(2):
                await published(a, replace(A, number=number), b"a%d" % number)
                await published(b, replace(B, number=number), b"b%d" % number)
            lost = await planned(a, replace(A, number=2))
            built = await build(a, lost, b"a2")
        # The session of the driver has ended, and its plan has not.
        await published(b, replace(B, number=2), b"b2")
        await published(b, BatchKey.of_job("nightly"), b"job")
        assert await plans_of(b) == ["w-a", "w-b"]
        await published(successor, replace(A, number=2), b"a2")
        await published(b, replace(B, number=3), b"b3")
        assert await begin(successor, STREAM, replace(A, number=2)) is None
        # A driver that was only thought dead learns that its batch is published.
        segments = await publish(successor, STREAM, lost, built)
        assert len(segments) == 1
        assert segments[0].ledger_id != built[0].ledger_id
        await check(b, b"a0", b"b0", b"a1", b"b1", b"b2", b"job", b"a2", b"b3")


@pytest.mark.parametrize("key", [A, BatchKey.of_job("nightly")], ids=["query", "job"])
async def test_two_sinks_that_publish_concurrently_both_succeed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, key: BatchKey
) -> None:
    """The transaction of the first one is refused, and tried again behind the second one."""
    path = f"/same-time-{key.writer}"
    async with quire.connect(cluster.uri) as one, quire.connect(cluster.uri) as two:
        a, b = await driver(one, path), await driver(two, path)
        await a.create_stream(STREAM)
        batch = await planned(a, key)
        built = await build(a, batch, b"a0", b"a1")
        before_the_next_transaction(monkeypatch, lambda: published(b, B, b"b0"))
        await publish(a, STREAM, batch, built)
        assert one.counters.stream_commits_retried > 0
        await check(b, b"b0", b"a0", b"a1")
        assert await plans_of(b) == (["w-a", "w-b"] if key.writer else ["w-b"])


@pytest.mark.parametrize("key", [A, BatchKey.of_job("nightly")], ids=["query", "job"])
async def test_a_commit_whose_plan_was_withdrawn_is_refused(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, key: BatchKey
) -> None:
    """The check of the plan refuses the transaction, and nothing else in it happens."""
    path = f"/plan-ends-{key.writer}"
    async with quire.connect(cluster.uri) as one, quire.connect(cluster.uri) as two:
        a, b = await driver(one, path), await driver(two, path)
        await a.create_stream(STREAM)
        batch = await planned(a, key)
        built = await build(a, batch, b"a")

        async def aborts() -> None:
            assert await abort(b, STREAM, batch, [])

        before_the_next_transaction(monkeypatch, aborts)
        with pytest.raises(StreamFencedError, match="its plan has ended"):
            await publish(a, STREAM, batch, built)
        assert await b.segments(STREAM) == []
        assert await abort(a, STREAM, batch, built)
        await published(b, key, b"again")
        await check(a, b"again")


@pytest.mark.parametrize("fence_writers", [False, True])
async def test_a_commit_is_refused_if_a_writer_opens_the_stream(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, fence_writers: bool
) -> None:
    path = f"/writer-{fence_writers}"
    async with quire.connect(cluster.uri) as one, quire.connect(cluster.uri) as two:
        a, b = await driver(one, path), await driver(two, path)
        await a.create_stream(STREAM)
        batch = await planned(a, A, fence_writers=fence_writers)
        built = await build(a, batch, b"a")
        writers = []

        async def opens() -> None:
            writers.append(await b.open_writer(STREAM))
            await writers[0].append(b"w")

        before_the_next_transaction(monkeypatch, opens)
        if fence_writers:
            await publish(a, STREAM, batch, built)
            with pytest.raises(StreamFencedError):
                await writers[0].append(b"no")
            await published(a, B, b"b")
            await check(a, b"w", b"a", b"b")
        else:
            with pytest.raises(StreamFencedError, match=r"a writer \(session 0x.* took the str"):
                await publish(a, STREAM, batch, built)
            assert await abort(a, STREAM, batch, built)
            await writers[0].append(b"still")
            await writers[0].close()
            await check(a, b"w", b"still")


async def test_sinks_do_not_wait_for_each_other(cluster: LocalCluster) -> None:
    path, batches = "/race", 10
    async with quire.connect(cluster.uri) as one, quire.connect(cluster.uri) as two:
        a, b = await driver(one, path), await driver(two, path)
        await a.create_stream(STREAM)

        async def sink(streams: Namespace, key: BatchKey) -> None:
            for number in range(batches):
                await published(
                    streams, replace(key, number=number), f"{key.writer}{number}".encode()
                )

        await asyncio.gather(sink(a, A), sink(b, B))
        found = [record.payload async for record in await a.open_reader(STREAM)]
        for name in (b"a", b"b"):
            assert [row for row in found if row[:1] == name] == [
                b"%s%d" % (name, n) for n in range(batches)
            ]
        await check(a, *found)
        assert len(found) == 2 * batches
