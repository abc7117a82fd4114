"""Batch reading of streams, and the tasks of batch and streaming queries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quire import blocking
from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import each
from quire._runtime.units import acknowledged_text
from quire.blocking.background import call
from quire.client import Client, LedgerReader
from quire.errors import (
    NoSuchLedgerError,
    NoSuchStreamError,
    ReadError,
    StreamGapError,
    UsageError,
)
from quire.spark import worker
from quire.spark.schema import our_column
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.plan import StreamPartition, StreamSplit, partitions
from quire.spark.streams.query import stream_names
from quire.spark.streams.view import StreamView, lost, warn_if_reversed
from quire.streams import DLSN, EARLIEST, AtSequence, AtTime, AtTxid, Namespace, StreamPaths
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.read.ahead import AHEAD_ENTRIES, AHEAD_LEDGERS, OpenedAhead, ReadAhead
from quire.streams.read.arrow import ALL_COLUMNS, NULLABLE, PARTITION_COLUMN, RecordColumns
from quire.streams.read.arrow import schema as arrow_schema
from quire.streams.read.positions import Start
from quire.streams.topics.topic_metadata import partition_number

BATCH_ROWS = 16_384
BATCH_BYTES = 1024 * 1024
"""The number of bytes at which records are passed to Spark. `BATCH_ROWS` is the limit in rows."""
FROM_METADATA = frozenset(("stream", PARTITION_COLUMN, "segment", "ledger", "sequence"))
"""The columns that can be made from the metadata of a completed segment, without a bookie."""
LEDGERS_MAX = 5
"""The largest number of ledgers in which a task looks for the entries of a copy, one after another.

Each run of `replicate` may replace the ledger of the copy's segment in progress.
"""
CATCH_UP_S = 20.0
"""Seconds that a task waits until bookies know that the entries the driver saw are acknowledged."""
CATCH_UP_BACKOFF = Backoff(0.05)
"""The pauses between two questions to bookies during `CATCH_UP_S`."""
INT64_MAX = 2**63 - 1

_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "time": TimestampType(),
    "value": BinaryType(),
    "key": BinaryType(),
    "headers": MapType(StringType(), BinaryType()),
    "event_time": TimestampType(),
}
TYPES: dict[str, DataType] = {
    name: _TYPES.get(name, LongType()) for name in (*ALL_COLUMNS, PARTITION_COLUMN)
}
"""The types of all columns by name. Numbers have the type long."""

logger = logging.getLogger("quire.spark")


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the schema of these columns."""
    return StructType([StructField(name, TYPES[name], name in NULLABLE) for name in columns])


# -- what tasks do ----------------------------------------------------------------------------


class StreamTasks:
    """The part of a reader that runs in tasks, and reads their splits.

    It has no state except its options, and Spark sends it to workers.
    """

    def __init__(self, options: StreamReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = tuple(our_column(field, TYPES, NULLABLE) for field in schema.fields)
        if PARTITION_COLUMN in self.columns and options.topic is None:
            raise UsageError(
                f"the schema names column {PARTITION_COLUMN!r}, which only the records of a topic "
                "have",
                remedy="Read a topic with the option 'topic', or leave the column out",
            )
        plain = arrow_schema(self.columns)
        self._schema = pa.schema(
            [
                pa.field(field.name, plain.field(at).type, field.nullable)
                for at, field in enumerate(schema.fields)
            ]
        )

    @property
    def counts(self) -> bool:
        """Whether all requested columns can be made from metadata, without bookies."""
        return set(self.columns) <= FROM_METADATA

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task.

        Raises StreamGapError if entries are gone, unless data loss is allowed, and ReadError if
        bookies do not answer, or if after 20 seconds they still do not know that the entries of the
        task are acknowledged.
        """
        if not isinstance(partition, StreamPartition):  # Spark's placeholder for "no partitions"
            return iter(())
        worker.prepare()
        return worker.plain_rows(self._batches(partition.splits))

    def _batches(self, splits: Sequence[StreamSplit]) -> Iterator[pa.RecordBatch]:
        gathered = RecordColumns(self.columns)
        with worker.client(self.options.metadata, self.options.tls) as client:
            ahead = ReadAhead()
            try:
                for at, split in enumerate(splits):
                    if split.records is not None:
                        yield from self._counted(split, split.records)
                        continue
                    upcoming = splits[at : at + AHEAD_LEDGERS]
                    for run in self._runs(client, split, upcoming, ahead):
                        gathered.add(split.origin, run, split.start, split.end)
                        if gathered.rows >= BATCH_ROWS or gathered.size_bytes >= BATCH_BYTES:
                            yield self._batch(gathered)
            finally:
                call(self._end(ahead))
        if gathered.rows:
            yield self._batch(gathered)

    def _batch(self, gathered: RecordColumns) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(gathered.batch().columns, schema=self._schema)

    def _runs(
        self,
        client: blocking.Client,
        split: StreamSplit,
        upcoming: Sequence[StreamSplit],
        ahead: ReadAhead,
    ) -> Iterator[Any]:
        """Yield the entries of a split. `upcoming` are this split and those to read after it."""
        first, last = split.first, split.last
        for _ in range(LEDGERS_MAX):
            try:
                for run in self._runs_in(client, split, upcoming, ahead):
                    yield run
                    first = run.last + 1
                return
            except NoSuchLedgerError:
                found = call(another_ledger(client.aio, self.options.namespace, split)) or split
            if found is split:
                break
            split = replace(found, first=first)
            upcoming = (split,)
            if first > last:
                return
        error = StreamGapError(
            f"entries {first} to {last} of segment {split.origin.segment.lssn} "
            f"of stream {split.origin.stream} (ledger {split.origin.segment.ledger_id}) are "
            "gone: the stream was truncated or deleted while they were read, or the ledger "
            "was deleted",
            remedy="Run the query again, or set the option failOnDataLoss to false to continue "
            "without them",
        )
        if self.options.fail_on_data_loss:
            raise error
        logger.warning("continuing without lost records: %s", error)

    def _runs_in(
        self,
        client: blocking.Client,
        split: StreamSplit,
        upcoming: Sequence[StreamSplit],
        ahead: ReadAhead,
    ) -> Iterator[Any]:
        """Yield the entries of a split. Raises NoSuchLedgerError if its ledger was deleted."""
        found = call(self._taken(client.aio, split, upcoming, ahead))
        if found is not None and found.runs is not None:
            yield from found.runs
            return
        opened = None if found is None else blocking.LedgerReader(found.reader)
        with opened or self.open(client, split) as ledger:
            yield from ledger.read_runs(split.first, split.last)

    async def _end(self, ahead: ReadAhead) -> None:
        ahead.close()  # on the event loop, to which it belongs

    async def _taken(
        self,
        client: Client,
        split: StreamSplit,
        upcoming: Sequence[StreamSplit],
        ahead: ReadAhead,
    ) -> OpenedAhead | None:
        """Begin to read the upcoming splits that are small, and return this one if it was read."""
        for one in upcoming:
            if one.last < AHEAD_ENTRIES and one.records is None:
                opened = partial(open_split, client, one, self.options.password)
                ahead.begin(one.origin.segment.ledger_id, opened, one.first, one.last)
        return await ahead.take(split.origin.segment.ledger_id)

    def open(self, client: blocking.Client, split: StreamSplit) -> blocking.LedgerReader:
        """Open the ledger of a split, as `open_split` does, and return its reader."""
        return blocking.LedgerReader(call(open_split(client.aio, split, self.options.password)))

    def _counted(self, split: StreamSplit, records: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a whole segment without asking a bookie."""
        segment = split.origin.segment
        for first in range(0, records, BATCH_ROWS):
            count = min(BATCH_ROWS, records - first)
            start = split.first_sequence + first
            made = {
                "stream": pa.scalar(split.origin.stream, pa.string()),
                "segment": pa.scalar(segment.lssn, pa.int64()),
                "ledger": pa.scalar(segment.ledger_id, pa.int64()),
            }
            if PARTITION_COLUMN in self.columns:
                made[PARTITION_COLUMN] = pa.scalar(split.origin.partition, pa.int64())
            columns = [
                pa.repeat(made[name], count)
                if name in made
                else pa.array(numpy.arange(start, start + count))
                for name in self.columns
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


async def another_ledger(client: Client, namespace: str, split: StreamSplit) -> StreamSplit | None:
    """Return a split whose ledger is gone in the ledger that has taken its place, or None.

    Only a copy that `replicate` made has such ledgers. The new one has the same entries. The result
    is None also if the stream was deleted, or if another stream has its name now.
    """
    if not split.life_of_copy:
        return None
    metadata = StreamMetadata(client, StreamPaths(namespace, split.origin.stream))
    try:
        segments = await metadata.segments()
        if await metadata.life_id() != split.life_of_copy:
            return None
    except NoSuchStreamError:
        return None
    former = split.origin.segment
    for segment in segments:
        if segment.lssn == former.lssn and segment.ledger_id != former.ledger_id:
            return replace(split, origin=replace(split.origin, segment=segment))
    return None


async def open_split(client: Client, split: StreamSplit, password: bytes) -> LedgerReader:
    """Open the ledger of a split, once bookies know that all its entries are acknowledged.

    If the segment is completed but the ledger is not closed, the ledger is recovered. Raises
    NoSuchLedgerError, UnauthorizedError if the password is wrong, and ReadError if bookies do not
    answer, or still do not know the entries after 20 seconds. The call runs on the event loop of
    the client.
    """
    segment = split.origin.segment
    ledger = await client.open_ledger(segment.ledger_id, password=password)
    if not ledger.ledger_closed and not segment.in_progress:
        # The writer that completed the segment died before it closed the ledger.
        ledger = await client.open_ledger(segment.ledger_id, password=password, recover=True)
    now = asyncio.get_running_loop().time
    retry = Retry(CATCH_UP_BACKOFF, client.rng, limit_s=CATCH_UP_S, now=now)
    while ledger.last_add_confirmed < split.last and not ledger.ledger_closed:
        if not retry.failed():
            raise ReadError(
                f"stream {split.origin.stream}: entry {split.last} of ledger "
                f"{segment.ledger_id} is acknowledged, but the bookies that answer say that "
                + acknowledged_text(ledger.last_add_confirmed),
                ledger_id=segment.ledger_id,
                entry_id=split.last,
                remedy="Start the other bookies of the ledger",
            )
        await ledger.refresh()
        if ledger.last_add_confirmed < split.last:
            await asyncio.sleep(retry.pause_s())
    return ledger


# -- filters ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """The streams and values that the filters of a query select. Ranges include both ends."""

    streams: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    """The partitions of a topic that a filter lists, or None for all of them."""
    partition: tuple[int, int] = (0, INT64_MAX)
    segment: tuple[int, int] = (0, INT64_MAX)
    txid: tuple[int, int] = (-INT64_MAX, INT64_MAX)
    sequence: tuple[int, int] = (-INT64_MAX, INT64_MAX)
    time_ms: tuple[int, int] = (-INT64_MAX, INT64_MAX)

    def among(self, streams: Iterable[str]) -> StreamBounds:
        """Return the bounds restricted to these streams."""
        both = frozenset(streams)
        return replace(self, streams=both if self.streams is None else both & self.streams)

    def among_partitions(self, partitions: Iterable[int]) -> StreamBounds:
        """Return the bounds restricted to a list of partitions of a topic."""
        both = frozenset(partitions)
        return replace(self, partitions=both if self.partitions is None else both & self.partitions)

    def within(self, column: str, first: int, last: int) -> StreamBounds:
        """Return the bounds with a column restricted to first..last, both included.

        `column` is the name of a field of this class that has a range.
        """
        low, high = getattr(self, column)
        narrower: dict[str, Any] = {column: (max(low, first), min(high, last))}
        return replace(self, **narrower)

    def has_stream(self, name: str) -> bool:
        """Return whether the bounds include a stream."""
        return self.streams is None or name in self.streams

    def has_partition(self, number: int) -> bool:
        """Return whether the bounds include a partition of a topic."""
        listed = self.partitions is None or number in self.partitions
        return listed and self.partition[0] <= number <= self.partition[1]


def column_of(condition: Filter) -> str:
    """Return the name of the column that a filter compares, or "" if it is not a plain column."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def is_exact(condition: Filter) -> bool:
    """Return whether `narrowed` applies a condition exactly, so that Spark need not apply it.

    That is true if the condition compares the column `partition` with integers, because whole
    partitions are read or left out. A list may also contain NULL, which selects nothing.
    """
    if column_of(condition) != PARTITION_COLUMN:
        return False
    value: Any = getattr(condition, "value", None)
    if isinstance(condition, In):
        return all(one is None or type(one) is int for one in value)
    compared = EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
    return isinstance(condition, compared) and type(value) is int


def narrowed(bounds: StreamBounds, condition: Filter) -> StreamBounds:
    """Return the bounds with one more condition.

    Unless the condition `is_exact`, they may include more than it does, so Spark has to apply the
    condition again.
    """
    column = column_of(condition)
    value: Any = getattr(condition, "value", None)
    if column == "stream":
        if isinstance(condition, EqualTo | EqualNullSafe) and isinstance(value, str):
            return bounds.among([value])
        if isinstance(condition, In):
            return bounds.among(v for v in value if isinstance(v, str))
        return bounds
    exact = is_exact(condition)
    if exact and isinstance(condition, In):
        return bounds.among_partitions(one for one in value if one is not None)
    if column == "time" and isinstance(value, datetime):
        # Use the whole milliseconds around the time.
        name, low = "time_ms", _floor_ms(value)
        high = low + 1
    elif column in ("segment", "txid", "sequence", PARTITION_COLUMN) and type(value) is int:
        name, low = column, value
        high = value
    else:
        return bounds
    if isinstance(condition, EqualTo | EqualNullSafe):
        return bounds.within(name, low, high)
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        low += exact and isinstance(condition, GreaterThan)
        return bounds.within(name, low, INT64_MAX)
    if isinstance(condition, LessThan | LessThanOrEqual):
        high -= exact and isinstance(condition, LessThan)
        return bounds.within(name, -INT64_MAX, high)
    return bounds


def _floor_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.astimezone()
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


# -- batches ----------------------------------------------------------------------------------


class QuireStreamBatchReader(DataSourceReader):  # type: ignore[misc]
    """Spark's reader of a batch query, which reads what is acknowledged when Spark plans it."""

    def __init__(self, options: StreamReadOptions, schema: StructType) -> None:
        self._tasks = StreamTasks(options, schema)
        self._options = options
        self._bounds = StreamBounds()

    @worker.plainly
    def partitions(self) -> list[StreamPartition]:
        """Return the tasks of the query.

        Raises NoSuchNamespaceError, NoSuchStreamError, UsageError if a start or an end does not fit
        its stream, StreamGapError if records are gone, unless data loss is allowed, and the errors
        of reading the streams.
        """
        options = self._options
        with worker.client(options.metadata, options.tls) as client:
            aio = client.aio
            laid = call(self._laid(aio))
        return partitions(
            laid, partition_bytes=options.partition_bytes, min_partitions=options.min_partitions
        )

    async def _laid(self, client: Any) -> list[list[StreamSplit]]:
        options = self._options
        # A server that lags behind would not show what was acknowledged just before the query.
        await client.metadata.tree.sync()
        async with await open_namespace(
            client, options.namespace, password=options.password
        ) as streams:
            names = [n for n in await stream_names(streams, options) if self._selects(n)]
            return await each(names, lambda name: self._of_stream(streams, name))

    def _selects(self, name: str) -> bool:
        """Return whether the filters select records of a stream."""
        if self._options.topic is not None:
            parts = partition_number(name)
            if parts is not None and not self._bounds.has_partition(parts[1]):
                return False
        return self._bounds.has_stream(name)

    async def _of_stream(self, streams: Namespace, name: str) -> list[StreamSplit]:
        options, view = self._options, StreamView(streams, name)
        await view.open()
        try:
            start = await view.find(options.start.of(name) or EARLIEST)
            wanted = options.end.of(name)
            end = None if wanted is None else await view.find_end(wanted)
            warn_if_reversed(name, start, end)
            start, end = await self._narrowed(view, start, end)
            if end is not None and end <= start:
                return []
            splits, gaps = await view.splits(start, end, counts=self._tasks.counts)
        finally:
            view.close()
        if gaps and options.fail_on_data_loss:
            raise lost(name, gaps)
        if gaps:
            logger.warning("continuing without lost records: %s", lost(name, gaps))
        return splits

    async def _narrowed(
        self, view: StreamView, start: DLSN, end: DLSN | None
    ) -> tuple[DLSN, DLSN | None]:
        """Return the part of start..end that can hold rows that the filters select.

        Txids and sequences do not decrease along a stream, and so do times that are txids. Other
        times come from the clocks of the writers, and may decrease, so they narrow nothing. A place
        is never narrowed to one that no longer exists.
        """
        bounds = self._bounds
        first, last = bounds.segment
        starts = [start, max(DLSN(first, 0, 0), view.oldest) if first > 0 else start]
        ends = [end] if end is not None else []
        if last < INT64_MAX:
            ends.append(DLSN(max(last, 0) + 1, 0, 0))
        # A time may be a txid or be stored separately, so take the wider of both ranges.
        ranges: list[tuple[list[Callable[[int], Start]], tuple[int, int]]]
        ranges = [([AtTxid], bounds.txid), ([AtSequence], bounds.sequence)]
        if view.txid_is_time:
            ranges.append(([AtTime, AtTxid], bounds.time_ms))
        for kinds, (low, high) in ranges:
            if low > -INT64_MAX:
                starts.append(min([await view.find(kind(low)) for kind in kinds]))
            if high < INT64_MAX:
                ends.append(max([await view.find_end(kind(high + 1)) for kind in kinds]))
        return max(starts), min(ends) if ends else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._tasks.read(partition)


class QuireStreamPushdownReader(QuireStreamBatchReader):
    """A batch reader that also uses the query's comparisons with constants to read less.

    It uses comparisons of the columns `stream`, `partition`, `segment`, `txid`, `time` and
    `sequence`. It is a separate class because Spark refuses a reader with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters, and yield those that Spark has to apply again to the records it gets.

        The plan of the query lists the filters that are not yielded as pushed filters.
        """
        for condition in filters:
            self._bounds = narrowed(self._bounds, condition)
            if not is_exact(condition):
                yield condition
