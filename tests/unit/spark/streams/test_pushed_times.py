"""Pushed filters on `time`, which leave out no record of a stream whose times decrease."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from quire._runtime.clock import Clock
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.reader import QuireStreamPushdownReader, spark_schema
from quire.streams import Namespace
from quire.streams.namespace.namespace import open_namespace
from tests.support.streams import Bench, run

HOUR_MS = 3_600_000


class _Ahead:
    """The clock of a machine that is an hour ahead of the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms() + HOUR_MS

    def monotonic(self) -> float:
        return self._clock.monotonic()


@pytest.mark.parametrize(("txids", "read"), [("given", [1, 2]), ("time", [])])
def test_a_record_that_is_older_than_the_one_before_is_read(txids: str, read: list[int]) -> None:
    """A time that is a txid never decreases: the second record has the time of the first."""

    async def append(streams: Namespace, txid: int) -> None:
        async with streams.open_writer("s") as writer:
            await writer.append(b"record", txid=txid if txids == "given" else None)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"txids": txids})
        async with b.world.client("ahead") as other:
            other.clock = _Ahead(other.clock)
            async with await open_namespace(other, b.streams.path) as streams:
                await append(streams, 1)
        await append(b.streams, 2)
        now = datetime.fromtimestamp(b.client.clock.now_ms() / 1_000 + 60, UTC)
        options: Any = {"metadata": "sqlite:////nowhere", "namespace": b.streams.path}
        reader = QuireStreamPushdownReader(
            StreamReadOptions.parse({**options, "stream": "s"}, environ={}),
            spark_schema(("time", "value")),
        )
        assert list(reader.pushFilters([ds.LessThanOrEqual(("time",), now)]))
        splits = await reader._of_stream(b.streams, "s")
        assert [split.origin.segment.lssn for split in splits] == read

    run(scene)
