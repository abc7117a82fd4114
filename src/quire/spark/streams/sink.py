"""Writing streams from Spark: planning on the driver, writing in tasks, publishing on the driver.

Each task fills one ledger for each stream for which it has rows. The driver publishes the ledgers
as segments, once for each key (`quire.streams.publish.publishing`). The driver makes the plan
before the tasks run. The plan fences a writer of the stream, but not other sinks: the commit
publishes after what they have published since then. The plan travels with the messages of the
tasks to the commit, which runs in another process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from quire import blocking
from quire._runtime.names.suggest import did_you_mean
from quire.blocking.background import call
from quire.client import Client
from quire.errors import NoSuchStreamError, QuireError, StreamExistsError, UsageError
from quire.spark import worker
from quire.spark.ledgers.writer import (
    SOURCE_COLUMNS,
    check_none_is_lost,
    payloads,
    task,
    value_column,
)
from quire.spark.streams.keyed_rows import HEADERS_TYPES, check_headers_type, sealed_rows
from quire.spark.streams.row_partitions import row_partitions
from quire.spark.streams.write_options import StreamWriteOptions
from quire.streams import Namespace, StreamPaths, stream_name
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.publish import publishing
from quire.streams.publish.publishing import BuiltSegment, SegmentBuilder, StreamBatch
from quire.streams.topics.topic_metadata import partition_stream

STREAMS_MAX = 100
"""The number of streams that one job may write. Each task may have a ledger open for each."""
ORDERED_BYTES_MAX = 256 * 1024 * 1024
"""The largest size in bytes of a Spark partition that the sink sorts in memory."""
RETAIN_EVERY_BATCHES = 16
"""The number of batches after which a query applies the retention of a stream that it writes."""
TXID_COLUMN = "txid"

logger = logging.getLogger("quire.spark")


# -- columns ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The indexes of the columns that the sink uses, or None for those that it does not use."""

    value: int
    txid: int | None = None
    stream: int | None = None
    order: int | None = None
    key: int | None = None
    headers: int | None = None
    time: int | None = None
    unnamed_txid: str = ""
    """The name of the column with the txids if no option names it, and if its values would be lost
    in a stream that assigns txids by time. Otherwise empty."""

    @property
    def keyed(self) -> bool:
        """Whether the rows give keys, headers or event times."""
        return not self.key is self.headers is self.time is None

    @classmethod
    def of(cls, schema: StructType, options: StreamWriteOptions) -> SinkColumns:
        """Find the columns that the options name in a schema. Raises UsageError if one is wrong."""
        stream = _column(schema, "streamColumn", options.stream_column, StringType)
        txid = _column(schema, "txidColumn", options.txid_column, IntegralType)
        if txid is None and (at := _place(schema, "txidColumn", TXID_COLUMN)) is not None:
            txid = at if isinstance(schema.fields[at].dataType, IntegralType) else None
        order = _column(schema, "orderBy", options.order_by, (AtomicType, NullType))
        key = _column(schema, "keyColumn", options.key_column, (BinaryType, StringType))
        headers = _column(schema, "headersColumn", options.headers_column, (MapType, ArrayType))
        if headers is not None:
            check_headers_type(schema.fields[headers])
        time = _column(schema, "timeColumn", options.time_column, TimestampType)
        used = {at for at in (txid, order, key, headers, time) if at is not None}
        value = value_column(schema, options.value_column, stream=stream, used=used)
        unnamed = ""
        if options.value_column is None:
            check_none_is_lost(schema, value, {stream, *used}, _OTHERS)
            # A copy gets txids of its own, so those of rows that were read from Quire are not lost.
            if txid is not None and not SOURCE_COLUMNS.issubset(schema.names):
                unnamed = "" if options.txid_column else str(schema.names[txid])
        return cls(value, txid, stream, order, key, headers, time, unnamed)


def _place(schema: StructType, option: str, name: str) -> int | None:
    """Return the index of the column with this name, or None if there is none.

    The case of letters matters only if names differ in nothing else. Raises UsageError if several
    columns have the name.
    """
    names = [str(column.name) for column in schema.fields]
    found = [at for at, one in enumerate(names) if one == name]
    found = found or [at for at, one in enumerate(names) if one.lower() == name.lower()]
    if len(found) > 1:
        raise UsageError(
            f"option '{option}': the rows have {len(found)} columns with the name {name!r}",
            remedy="Rename or drop the others",
        )
    return found[0] if found else None


_OTHERS = (
    "To write all columns, combine them: df.selectExpr('to_json(struct(*)) AS value'). The options "
    "'keyColumn', 'headersColumn' and 'timeColumn' name columns for the other parts of a record. "
)
_WANTED: dict[object, str] = {
    StringType: "string",
    IntegralType: "a whole number",
    TimestampType: "timestamp",
    (BinaryType, StringType): "binary or string",
    (MapType, ArrayType): HEADERS_TYPES,
    (AtomicType, NullType): "a type without parts, such as a number, string or timestamp",
}


def _column(
    schema: StructType, option: str, name: str | None, kind: type | tuple[type, ...]
) -> int | None:
    if name is None:
        return None
    at = _place(schema, option, name)
    if at is None:
        there = f"There are: {', '.join(schema.names)}"
        hint = did_you_mean(name, schema.fieldNames(), there, quote=True)
        raise UsageError(f"option '{option}': the rows have no column {name!r}", remedy=hint)
    found = schema.fields[at].dataType
    if not isinstance(found, kind):
        raise UsageError(
            f"option '{option}': column {name!r} has type {found.simpleString()}, but it must be "
            f"{_WANTED[kind]}"
        )
    return at


# -- the plan ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The plan of one job or micro-batch, which the driver makes for its tasks.

    All fields are plain values, so that Spark can send the plan to tasks.
    """

    batches: dict[str, StreamBatch]
    """The batches by stream."""
    done: frozenset[str] = frozenset()
    """The streams that have this batch already. Rows for them are dropped."""
    sweep: bool = False
    """Whether an earlier attempt may have left ledgers, so that a sweep is needed."""


async def open_streams(client: Client, options: StreamWriteOptions) -> Namespace:
    """Open the namespace that the options select.

    Raises NoSuchNamespaceError if it does not exist.
    """
    return await open_namespace(client, options.namespace, password=options.password)


async def check_streams(
    streams: Namespace, options: StreamWriteOptions, columns: SinkColumns
) -> list[str]:
    """Return the names of the streams that may be written, and create them if the options say so.

    Raises NoSuchStreamError if a stream or the topic does not exist. Raises UsageError if the
    options select no stream or more than `STREAMS_MAX`, or if a stream's setting `txids` does not
    fit the columns.
    """
    names = await topic_streams(streams, options)
    for given in options.streams:
        if any(sign in given for sign in "*?["):
            names += [name for name in await streams.streams() if fnmatchcase(name, given)]
        else:
            names.append(stream_name(given))
            await make_sure(streams, names[-1], options.create_stream)
    names = list(dict.fromkeys(names))
    if not 1 <= len(names) <= STREAMS_MAX:
        raise UsageError(
            f"the options select {len(names)} streams of namespace {streams.path}, but one job "
            f"can write 1 to {STREAMS_MAX}",
            remedy="Correct the option 'streams' or 'topic', or divide the rows among several jobs",
        )
    for name in names:
        settings = await streams.stream_settings(name)
        if settings.txids == "given" and columns.txid is None:
            raise UsageError(
                f"stream {name} needs a txid for each record, but no column of the rows has txids",
                remedy="Name a column of whole numbers with the option 'txidColumn'",
            )
        if settings.txids == "time" and columns.unnamed_txid:
            raise UsageError(
                f"column {columns.unnamed_txid!r} would be lost, because stream {name} assigns "
                "txids by time. Nothing was written",
                remedy=f"{_OTHERS}To leave the column out, drop it, or set the option "
                "'valueColumn'. To keep it as the txids, use a stream with the setting txids = "
                "given",
            )
        if settings.txids == "time" and options.txid_column is not None:
            raise UsageError(
                f"stream {name} assigns txids by time, so column {options.txid_column!r} cannot "
                "give them",
                remedy=(
                    "Leave out the option 'txidColumn', or use a stream with the setting "
                    "txids = given"
                ),
            )
    return names


async def topic_streams(streams: Namespace, options: StreamWriteOptions) -> list[str]:
    """Return the names of the partitions of the topic that is written, or none without a topic.

    Raises NoSuchStreamError if the topic does not exist.
    """
    if options.topic is None:
        return []
    topic = await streams.topic(options.topic)
    return [topic.stream(partition) for partition in range(topic.partitions)]


async def check_topic(
    streams: Namespace, options: StreamWriteOptions, planned: Iterable[str]
) -> None:
    """Raise NoSuchStreamError if a topic no longer has the partitions that a plan was made for.

    Call this after the plan was made. If the topic is deleted later, the plan cannot be published.
    """
    if options.topic is not None and set(await topic_streams(streams, options)) != set(planned):
        raise NoSuchStreamError(
            f"topic {options.topic} was replaced by another topic of the same name, with another "
            "number of partitions. Nothing was published",
            remedy="Run the job, or start the query, again",
        )


async def make_sure(streams: Namespace, name: str, create: bool) -> None:
    """Create a stream if it does not exist and `create` is set.

    Raises NoSuchStreamError if it does not exist and `create` is not set.
    """
    if await streams.exists(name):
        return
    if not create:
        hint = did_you_mean(name, await streams.streams(), quote=True)
        raise NoSuchStreamError(
            f"stream {name} does not exist in namespace {streams.path}",
            remedy=f"{hint} The option 'createStream' creates it (for an ingest --create, or in "
            "Python IngestTarget.create)".lstrip(),
        )
    try:
        await streams.create_stream(name)
    except StreamExistsError:
        pass


# -- in the tasks -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamMessage(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports to the driver: the ledgers that it wrote."""

    partition: int
    """The number of the task's Spark partition."""
    attempt: int
    """The number of the attempt, from 0."""
    built: tuple[tuple[str, BuiltSegment], ...] = ()
    """The streams, and the ledger that was built for each."""
    batches: dict[str, StreamBatch] = field(default_factory=dict)
    """The batches of the streams in `built`, or of all streams in the message of partition 0."""
    sweep: bool = False
    """Whether an earlier attempt may have left ledgers, so that a sweep is needed."""


def write_partition(
    client: blocking.Client,
    options: StreamWriteOptions,
    columns: SinkColumns,
    plan: WritePlan,
    rows: Iterator[pa.RecordBatch],
) -> StreamMessage:
    """Write the rows of one partition. On return they are durable, in closed ledgers.

    Rows for streams that have the batch already are dropped. After an error the ledgers are
    deleted, or left for a sweep if that fails. Raises UsageError if a row cannot be written: its
    value or a txid that is needed is null, or its stream is not one of the plan. Raises also the
    errors of writing ledgers.
    """
    partition, attempt = task()
    output = StreamTaskOutput(client.aio, options, plan)
    try:
        for batch in _ordered(rows, columns.order):
            for name, part in _by_stream(batch, columns, options, plan):
                if name not in plan.done:
                    txids = None if columns.txid is None else part.column(columns.txid)
                    values: Sequence[bytes] = payloads(part, columns.value)
                    envelopes = b""
                    if columns.keyed:
                        values, envelopes = sealed_rows(
                            values, part, columns.key, columns.headers, columns.time
                        )
                    call(output.append(name, values, txids, envelopes))
        built = call(output.close())
    except BaseException:
        call(output.discard())
        raise
    return message_of(plan, partition, attempt, built)


def message_of(
    plan: WritePlan, partition: int, attempt: int, built: Sequence[tuple[str, BuiltSegment]]
) -> StreamMessage:
    """Return the message with which a task reports the ledgers that it built."""
    told = plan.batches if partition == 0 else {name: plan.batches[name] for name, _ in built}
    return StreamMessage(partition, attempt, tuple(built), told, plan.sweep or attempt > 0)


def _ordered(rows: Iterator[pa.RecordBatch], order: int | None) -> Iterable[pa.RecordBatch]:
    """Sort rows by the column with the index `order`, or return them unchanged if it is None.

    Nulls come first and NaN comes last, as in Spark. Rows with equal values keep their order.
    Raises UsageError if there are more than `ORDERED_BYTES_MAX` bytes.
    """
    if order is None:
        return rows
    batches: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in rows:
        batches.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > ORDERED_BYTES_MAX:
            raise UsageError(
                f"a Spark partition has more than the {ORDERED_BYTES_MAX} bytes that the sink "
                "can sort by the option 'orderBy'",
                remedy="Use more partitions, or sort in Spark (sortWithinPartitions) without "
                "the option 'orderBy'",
            )
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    column = table.column(order)
    keys = pa.table({"valid": column.is_valid(), "value": column})
    ascending = [(name, "ascending") for name in keys.column_names]
    indices = pc.sort_indices(keys, sort_keys=ascending)  # a stable sort
    sorted_batches: list[pa.RecordBatch] = table.take(indices).to_batches()
    return sorted_batches


def _by_stream(
    batch: pa.RecordBatch, columns: SinkColumns, options: StreamWriteOptions, plan: WritePlan
) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    if options.topic is not None:
        key = None if columns.key is None else batch.column(columns.key)
        count = len(plan.batches) + len(plan.done)
        numbers = row_partitions(key, batch.column(columns.value), count)
        for number in pc.unique(numbers).to_pylist():
            yield partition_stream(options.topic, number), batch.filter(pc.equal(numbers, number))
        return
    column = columns.stream
    if column is None:
        yield next(iter([*plan.batches, *plan.done])), batch
        return
    names = batch.column(column)
    for name in pc.unique(names).to_pylist():
        if name not in plan.batches and name not in plan.done:
            known = [*plan.batches, *plan.done]
            otherwise = "Add it there, or filter such rows"
            raise UsageError(
                f"a row is for stream {name!r}, which the option 'streams' does not include",
                remedy=did_you_mean(name or "", known, otherwise, quote=True),
            )
        yield name, batch.filter(pc.equal(names, name))


class StreamTaskOutput:
    """The ledgers that one task writes, each of which is created with its first rows.

    While one batch of rows is being written, the next one is taken from Spark.
    """

    def __init__(self, client: Client, options: StreamWriteOptions, plan: WritePlan) -> None:
        self._client = client
        self._options = options
        self._plan = plan
        self._builders: dict[str, SegmentBuilder] = {}
        self._pending: asyncio.Future[None] | None = None

    async def append(
        self, name: str, values: Sequence[bytes], txids: pa.Array | None, envelopes: bytes = b""
    ) -> None:
        """Append rows to the ledger of a stream.

        `envelopes` has one byte for each row, 1 if its value begins with an envelope, or is empty.
        The rows are not durable on return. Raises UsageError if a txid is needed and null, and the
        errors of earlier calls.
        """
        batch = self._plan.batches[name]
        if batch.settings["txids"] == "time" or txids is None:
            numbers: Sequence[int] = [batch.txid] * len(values)
        elif txids.null_count:
            raise UsageError(
                f"the txid of a row for stream {name} is null",
                remedy="Filter such rows, or replace the nulls",
            )
        else:
            numbers = txids.to_pylist()
        await self._settle()
        builder = self._builders.get(name)
        if builder is None:
            builder = self._builders[name] = self._builder(name)
        self._pending = asyncio.ensure_future(builder.append(values, numbers, envelopes))

    def _builder(self, name: str) -> SegmentBuilder:
        batch = self._plan.batches[name]
        return SegmentBuilder(
            self._client,
            StreamPaths(self._options.namespace, name).stream,
            StreamSettings(**batch.settings),
            password=self._options.password,
            job=batch.key.job,
            life=batch.life,
            snapshot=batch.snapshot,
        )

    async def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            await pending

    async def close(self) -> list[tuple[str, BuiltSegment]]:
        """Wait until all rows are durable, close the ledgers, and return them with their streams.

        Raises the errors of writing.
        """
        await self._settle()
        built = [(name, await builder.close()) for name, builder in self._builders.items()]
        return [(name, one) for name, one in built if one is not None]

    async def discard(self) -> None:
        """Delete the ledgers, which nothing names. If that fails, a sweep deletes them."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        for builder in self._builders.values():
            try:
                await builder.discard()
            except QuireError as error:
                logger.warning("the ledger of a failed task is left for a sweep: %s", error)


# -- on the driver ----------------------------------------------------------------------------

NONE_PLANNED: Mapping[str, StreamBatch] = MappingProxyType({})
"""No further batches besides those in the messages. A micro-batch has none: its writer keeps its
plan."""


class Committer:
    """The driver's part of a write, which publishes what tasks have written, or deletes it.

    Calls must not overlap.
    """

    def __init__(self, options: StreamWriteOptions) -> None:
        self._options = options

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        planned: Mapping[str, StreamBatch] = NONE_PLANNED,
    ) -> None:
        """Publish one stream after another. Each gets all of its rows, or none.

        What was published is durable. After an error the streams that follow are not published. A
        repeated commit publishes them. `planned` has the batches of a job. Their plans end here,
        even if no rows were written. Raises the errors of `publish`.
        """
        written = written_by(messages)
        with worker.writing(self._options) as client:
            call(self.commit_written(client.aio, written, planned))

    async def commit_written(
        self,
        client: Client,
        written: Sequence[StreamMessage],
        planned: Mapping[str, StreamBatch] = NONE_PLANNED,
    ) -> None:
        """Publish what the messages report, as `commit` does, on the event loop of the client."""
        streams = await open_streams(client, self._options)
        sweep = any(message.sweep for message in written)
        for name, batch in sorted({**planned, **batches_of(written)}.items()):
            built = built_for(name, written)
            if not built and self._options.divides_rows:
                await publishing.withdraw(streams, name, batch)
                continue
            await self.publish(streams, name, batch, built)
            try:
                await self.clean_up(streams, name, batch, built if sweep else [])
            except QuireError as error:
                logger.warning(
                    "%s was published to stream %s, but ledgers are left for a later sweep: %s",
                    batch.key, name, error,
                )  # fmt: skip

    async def publish(
        self, streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
    ) -> None:
        """Make the ledgers the next segments of one stream, in one step.

        If the batch was published before, this deletes the ledgers that the stream does not name.
        Raises the errors of `quire.streams.publish.publishing.publish`.
        """
        await publishing.publish(streams, name, batch, built)

    async def clean_up(
        self, streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
    ) -> None:
        """Delete the ledgers of failed attempts if `built` is not empty, and apply retention.

        The retention is applied after each batch job, and after every `RETAIN_EVERY_BATCHES`th
        micro-batch of a query. Raises QuireError; a later sweep or call does what is left.
        """
        metadata = streams.metadata(name)
        if built:
            segments = await publishing.published_segments(metadata, batch.key)
            if segments:
                first = min(one.ledger_id for one in built)
                kept = [segment.ledger_id for segment in segments]
                await publishing.sweep_job(streams, name, batch.key, kept, first)
        limited = batch.settings["retention_s"] or batch.settings["retention_bytes"]
        if limited and batch.key.number % RETAIN_EVERY_BATCHES == 0:
            await streams.retain(name)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        planned: Mapping[str, StreamBatch] = NONE_PLANNED,
    ) -> None:
        """Delete the ledgers that are not published. An error is only logged.

        Spark also calls this after a `commit` that raised, which may have published everything.
        """
        written = written_by(messages)
        try:
            with worker.writing(self._options) as client:
                call(self.abort_written(client.aio, written, planned))
        except QuireError as error:
            logger.warning("the ledgers of a failed job are left for a sweep: %s", error)

    async def abort_written(
        self,
        client: Client,
        written: Sequence[StreamMessage],
        planned: Mapping[str, StreamBatch] = NONE_PLANNED,
    ) -> None:
        """Do what `abort` does, on the event loop of the client, but raise errors.

        An error of one stream does not keep the others from being aborted. The first error is
        raised at the end.
        """
        streams = await open_streams(client, self._options)
        failure: QuireError | None = None
        for name, batch in sorted({**planned, **batches_of(written)}.items()):
            try:
                await publishing.abort(streams, name, batch, built_for(name, written))
            except QuireError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def written_by(messages: Sequence[WriterCommitMessage | None]) -> list[StreamMessage]:
    """Return the messages in the order of the partitions."""
    found = [message for message in messages if isinstance(message, StreamMessage)]
    return sorted(found, key=lambda message: message.partition)


def batches_of(written: Sequence[StreamMessage]) -> dict[str, StreamBatch]:
    """Return the batches in all messages by stream."""
    return {name: batch for message in written for name, batch in message.batches.items()}


def built_for(name: str, written: Sequence[StreamMessage]) -> list[BuiltSegment]:
    """Return the ledgers that were built for a stream, in the order of the messages."""
    return [one for message in written for stream, one in message.built if stream == name]


def metadata_of(client: Client, options: StreamWriteOptions, name: str) -> StreamMetadata:
    """Return an object that reads and changes the metadata nodes of a stream."""
    return StreamMetadata(client, StreamPaths(options.namespace, name))
