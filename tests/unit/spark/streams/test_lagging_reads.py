"""Jobs that look at streams through a server of the metadata store that lags."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.spark.jobs.archive.manifest import OffloadHistory
from quire.spark.jobs.history import _planned
from quire.spark.jobs.ingest import IngestTarget
from quire.spark.jobs.replicate import matching
from quire.spark.jobs.tasks import ClusterOptions
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.reader import QuireStreamBatchReader, spark_schema
from quire.streams import EARLIEST
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.publish.publishing import BatchKey, SegmentBuilder, begin, publish
from tests.support.metadata.lagging import LaggingServer
from tests.support.streams import Bench, run

# The package has functions of the same names.
compact = importlib.import_module("quire.spark.jobs.compact")
ingest = importlib.import_module("quire.spark.jobs.ingest")
CLUSTER = ClusterOptions("sqlite:////nowhere")


async def append(b: Bench) -> None:
    async with await b.streams.open_writer("s", create=True) as writer:
        await writer.append(b"record")


def test_a_batch_reads_what_was_acknowledged_before_it() -> None:
    async def scene(b: Bench) -> None:
        await append(b)
        options: Any = {"metadata": "sqlite:////nowhere", "namespace": b.streams.path}
        reader = QuireStreamBatchReader(
            StreamReadOptions.parse({**options, "stream": "s"}, environ={}),
            spark_schema(("value",)),
        )
        async with b.world.client("late") as late:
            LaggingServer(late.metadata).fall_behind()
            await append(b)
            [splits] = await reader._laid(late)
        assert [split.origin.segment.lssn for split in splits] == [1, 2]

    run(scene)


def test_a_history_has_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    async def scene(b: Bench) -> None:
        await append(b)
        found, cluster = OffloadHistory(str(tmp_path), "s"), CLUSTER
        async with b.world.client("late") as late:
            LaggingServer(late.metadata).fall_behind()
            await append(b)
            plan = await _planned(late, cluster, b.streams.path, found, EARLIEST, None, True)
        assert [split.origin.segment.lssn for split in plan.live] == [1, 2]

    run(scene)


async def publish_one(b: Bench, job: str) -> None:
    batch = await begin(b.streams, "s", BatchKey.of_job(job))
    assert batch is not None
    builder = SegmentBuilder(
        b.client, f"{b.streams.path}/s", StreamSettings(**batch.settings), job=batch.key.job,
        life=batch.life,
    )  # fmt: skip
    await builder.append([b"record"], [batch.txid])
    built = await builder.close()
    assert built is not None
    await publish(b.streams, "s", batch, [built])


def test_the_result_of_an_ingest_counts_what_its_sink_has_published() -> None:
    """The result said that no stream had got anything."""

    async def scene(b: Bench) -> None:
        await append(b)
        target = IngestTarget("s", b.streams.path)
        async with b.world.client("late") as late:
            server = LaggingServer(late.metadata)
            server.fall_behind()
            await publish_one(b, "nightly")
            found = await ingest._look(late, CLUSTER, target, ["s"], "nightly")
        assert [records for records, _ in found.values()] == [1]

    run(scene)


def test_the_result_of_a_compaction_counts_what_its_sink_has_published() -> None:
    async def scene(b: Bench) -> None:
        await append(b)
        source: Any = SimpleNamespace(cluster=CLUSTER, namespace=b.streams.path)
        async with b.world.client("late") as late:
            LaggingServer(late.metadata).fall_behind()
            await publish_one(b, "compact:1")
            assert await compact._count(late, source, "s", 2, 1) == 1

    run(scene)


def test_a_replication_copies_a_stream_that_was_created_just_before() -> None:
    async def scene(b: Bench) -> None:
        async with b.world.client("late") as late:
            late_streams = await open_namespace(late, b.streams.path)
            LaggingServer(late.metadata).fall_behind()
            await b.streams.create_stream("new")
            assert await matching(late_streams, "n*") == ["new"]
            await late_streams.close()

    run(scene)
