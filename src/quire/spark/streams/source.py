"""Streaming queries on streams: `spark.readStream.format("quire").option("stream", ...)`."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quire import QuireError
from quire.blocking.background import call
from quire.spark import worker
from quire.spark.streams.offsets import Offsets
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.plan import StreamPartition, partitions
from quire.spark.streams.query import StreamQuery
from quire.spark.streams.reader import StreamTasks

T = TypeVar("T")

IDLE_GAP_S = 0.05
"""Spark asks an idle query for news every 10 ms. Only then it is made to wait for them: a query
with several sources may have work for the others."""


class QuireStreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The long-lived reader of a query, on the driver; on workers only `read` is used."""

    def __init__(self, options: StreamReadOptions, schema: StructType) -> None:
        self._tasks = StreamTasks(options, schema)
        self._options = options
        self._query: StreamQuery | None = None
        self._available_now = False
        self._idle_s = float("-inf")
        """When Spark was told last that there is nothing."""

    # -- on the driver ------------------------------------------------------------------------

    @worker.plainly
    def initialOffset(self) -> dict[str, Any]:
        return self._ask(lambda query: query.initial()).to_json()

    @worker.plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark only hands it back: all the limits stand in the options."""
        options = self._options
        if options.records_max is not None:
            return ReadMaxRows(options.records_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        if options.records_min:
            return ReadMinRows(options.records_min)
        return ReadAllAvailable()

    @worker.plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next trigger ends; `start` itself where there is nothing to read."""
        offsets = Offsets.from_json(start)
        wait = time.monotonic() - self._idle_s < IDLE_GAP_S
        limited = not isinstance(limit, ReadAllAvailable)
        found = self._ask(lambda query: query.latest(offsets, limited=limited, wait=wait))
        if found is None:
            self._idle_s = time.monotonic()
            return start
        return found.to_json()

    @worker.plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """As an offset, with the lag of each stream: records, bytes and seconds."""
        return None if self._query is None else self._query.report

    @worker.plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True
        self._ask(lambda query: query.prepare_available_now())

    @worker.plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPartition]:
        first, last = Offsets.from_json(start), Offsets.from_json(end)
        counts = self._tasks.counts
        laid = self._ask(lambda query: query.splits(first, last, counts=counts))
        options = self._options
        return partitions(
            laid, partition_bytes=options.partition_bytes, min_partitions=options.min_partitions
        )

    @worker.plainly
    def commit(self, end: dict[str, Any]) -> None:
        if self._options.subscription is not None:
            offsets = Offsets.from_json(end)
            self._ask(lambda query: query.commit(offsets))

    def stop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            try:
                call(query.close())
            except QuireError:
                pass  # nothing is kept that would have to be let go

    def _ask(self, work: Callable[[StreamQuery], Coroutine[Any, Any, T]]) -> T:
        with self._opened() as query:
            return call(work(query))

    @contextmanager
    def _opened(self) -> Iterator[StreamQuery]:
        """The query, on the client of this process: on a new one if that was lost."""
        with worker.client(self._options.metadata, self._options.tls) as client:
            aio = client.aio
            query = self._query
            if query is None or query.client is not aio:
                self.stop()
                query = StreamQuery(aio, self._options)
                call(query.open())
                self._query = query
                if self._available_now:
                    call(query.prepare_available_now())
            yield query

    # -- on the workers -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._tasks.read(partition)


class RefusedStreamSource(DataSourceStreamReader):  # type: ignore[misc]
    """Stands for a reader that cannot be: Spark 4.3 hides the error of a reader that cannot be
    made, and shows that of one whose first call fails."""

    def __init__(self, error: QuireError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
