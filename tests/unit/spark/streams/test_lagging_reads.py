"""Batches and histories that are planned through a server of the metadata store that lags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.spark.jobs.archive.manifest import OffloadHistory
from quire.spark.jobs.history import _planned
from quire.spark.jobs.tasks import ClusterOptions
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.reader import QuireStreamBatchReader, spark_schema
from quire.streams import EARLIEST
from tests.support.metadata.lagging import LaggingServer
from tests.support.streams import Bench, run


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
        found, cluster = OffloadHistory(str(tmp_path), "s"), ClusterOptions("sqlite:////nowhere")
        async with b.world.client("late") as late:
            LaggingServer(late.metadata).fall_behind()
            await append(b)
            plan = await _planned(late, cluster, b.streams.path, found, EARLIEST, None, True)
        assert [split.origin.segment.lssn for split in plan.live] == [1, 2]

    run(scene)
