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
"""Seconds after the answer "nothing to read" in which another call shows that the query is idle.

Spark asks an idle query every 10 ms, so such a call waits for new records. Any other call returns
at once, because a query with several sources may have work for the other sources.
"""


class QuireStreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's reader of a streaming query, which lives on the driver as long as the query.

    Workers use only `read`.
    """

    def __init__(self, options: StreamReadOptions, schema: StructType) -> None:
        self._tasks = StreamTasks(options, schema)
        self._options = options
        self._query: StreamQuery | None = None
        self._available_now = False
        self._idle_s = float("-inf")
        """The monotonic time at which Spark was last told that there is nothing to read."""

    # -- on the driver ------------------------------------------------------------------------

    @worker.plainly
    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets at which a new query begins. Raises as `StreamQuery.initial` does."""
        return self._ask(lambda query: query.initial()).to_json()

    @worker.plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options.

        Spark passes it back to `latestOffset`, which only looks whether it is a limit at all,
        because the options contain the numbers.
        """
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
        """Return where the next trigger ends, or `start` itself if there is nothing to read.

        Raises the errors of `StreamQuery.latest`.
        """
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
        """Return the newest offsets, with the lag of each stream in records, bytes and seconds.

        Returns None before the first `latestOffset`.
        """
        return None if self._query is None else self._query.report

    @worker.plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query stop where the streams end now.

        Raises the errors of `StreamQuery.prepare_available_now`.
        """
        self._available_now = True
        self._ask(lambda query: query.prepare_available_now())

    @worker.plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPartition]:
        """Return the tasks of a micro-batch.

        Raises StreamError if records are gone, unless data loss is allowed.
        """
        first, last = Offsets.from_json(start), Offsets.from_json(end)
        counts = self._tasks.counts
        laid = self._ask(lambda query: query.splits(first, last, counts=counts))
        options = self._options
        return partitions(
            laid, partition_bytes=options.partition_bytes, min_partitions=options.min_partitions
        )

    @worker.plainly
    def commit(self, end: dict[str, Any]) -> None:
        """Store the positions under the subscription, if the options name one.

        An error of a stream, or of the metadata store, is only logged.
        """
        if self._options.subscription is not None:
            offsets = Offsets.from_json(end)
            self._ask(lambda query: query.commit(offsets))

    def stop(self) -> None:
        """Close the query. An error is ignored, because nothing remains that must be released."""
        query, self._query = self._query, None
        if query is not None:
            try:
                call(query.close())
            except QuireError:
                pass  # nothing remains that must be released

    def _ask(self, work: Callable[[StreamQuery], Coroutine[Any, Any, T]]) -> T:
        with self._opened() as query:
            return call(work(query))

    @contextmanager
    def _opened(self) -> Iterator[StreamQuery]:
        """Yield the query on the client of this process, or on a new client if that was lost."""
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
        """Yield the rows of one task."""
        return self._tasks.read(partition)


class RefusedStreamSource(DataSourceStreamReader):  # type: ignore[misc]
    """A reader that raises an error at its first call.

    Spark 4.3 hides the error of a reader that cannot be created, but shows that of a call.
    """

    def __init__(self, error: QuireError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error
