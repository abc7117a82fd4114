"""The job `compact`: from a keyed stream to the latest record of each key, as a table or a stream.

A table is a directory of versions (`versions`). Each version holds the whole table, and the
position up to which the table includes the stream. A run reads the former version and the records
since then, and adds the next version. A target stream gets, with each run, the latest records of
the keys that changed, in one transaction. The id of the transaction names the positions from which
and to which the run has read, so the target stream itself says how far it is.

Records are compared by position (segment, entry, slot), which is the order of the stream.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from quire import blocking
from quire._runtime.names.former_names import former_names
from quire._runtime.uris import without_credentials
from quire.blocking.background import call
from quire.client import Client
from quire.errors import MetadataError, QuireError, StreamGapError, UsageError
from quire.spark.failures import before_publishing, publishing_one_stream
from quire.spark.jobs.archive.store import VERIFYING
from quire.spark.jobs.archive.versions import Version, Versions
from quire.spark.jobs.locking import WAIT_S, locked
from quire.spark.jobs.tasks import ClusterOptions, ProgressCallback, silent, watched
from quire.spark.options import PARTITION_BYTES
from quire.spark.streams.offsets import StreamOffset
from quire.spark.streams.plan import StreamPartition, StreamSplit, lay_out, partitions
from quire.spark.streams.view import StreamView, lost
from quire.streams import DLSN
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.namespace import open_namespace
from quire.streams.publish.published import COMPACTION, read_published
from quire.streams.publish.publishing import BatchKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from quire.spark.streams.reader import StreamTasks


NAMESPACE = "/streams"
LOCKS = ".quire/compactions"
"""The path of the locks of target streams below a namespace."""
COLUMNS = ("segment", "entry", "slot", "sequence", "txid", "time", "value")
ENVELOPE = {"key": "own_key", "headers": "headers", "event_time": "event_time"}
"""The columns with keys, headers and event times, and their names in the result of `latest`.

The result has a column `key` already, so a record's own key becomes `own_key`.
"""
POSITION = COLUMNS[:3]
WHOLE_AGAIN = (
    "Compact the whole stream again (--full, or in Python full=True): that begins at the oldest "
    "record that is left"
)


# -- arguments and results --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordKey:
    """The definition of a record's key, and of the records that remove a key (tombstones).

    The key is one of `field`, `prefix`, `sql` and `own`.

    Raises:
        UsageError: Not exactly one of them is given, or both tombstone options are.
    """

    field: str | None = None
    """A field of a JSON object: "id", "customer.id" or a path "$['a b']"."""
    prefix: str | None = None
    """A text up to which the value is the key."""
    sql: str | None = None
    """An SQL expression of the stream's columns: "txid", "get_json_object(string(value), ...)".

    `key`, `headers` and `event_time` are those with which the record was appended.
    """
    tombstone_field: str | None = None
    """A field. A record in which it is missing or null removes its key."""
    tombstone_sql: str | None = None
    """An SQL expression. A record for which it is true removes its key.

    With `prefix` and no tombstone option, a record that has nothing after the prefix removes its
    key. With `own` and no tombstone option, a record with an empty value removes its key.
    """
    own: bool | None = None
    """True for the key with which a record was appended (`StreamWriter.append`, `key`)."""

    def __post_init__(self) -> None:
        given = [one for one in (self.field, self.prefix, self.sql, self.own) if one]
        if len(given) != 1:
            choices = "a field, a prefix, an SQL expression"
            raise UsageError(
                f"nothing selects the key of a record: give {choices}, or the key with which "
                "records were appended"
                if not given
                else f"the key of a record must be only one of: {choices}, the key with which "
                "records were appended"
            )
        if self.tombstone_field is not None and self.tombstone_sql is not None:
            raise UsageError(
                "the tombstone must be either a field or an SQL expression, but both are given"
            )

    def column(self) -> Column:
        """Return the key of a record of the stream, which is null if it has none."""
        from pyspark.sql import functions as f

        text = f.col("value").cast("string")
        if self.own:
            return f.col("key")
        if self.field is not None:
            return f.get_json_object(text, _path(self.field))
        if self.prefix is not None:
            return f.when(f.instr(text, self.prefix) > 0, f.substring_index(text, self.prefix, 1))
        return f.expr(self.sql or "").cast("string")

    def tombstone(self) -> Column | None:
        """Return the condition under which a record removes its key.

        The result is None if these settings have no such condition: no record removes its key.
        """
        from pyspark.sql import functions as f

        text = f.col("value").cast("string")
        if self.tombstone_field is not None:
            return f.get_json_object(text, _path(self.tombstone_field)).isNull()
        if self.tombstone_sql is not None:
            return f.coalesce(f.expr(self.tombstone_sql), f.lit(False))
        if self.own:
            return f.length("value") == 0
        if self.prefix is not None:
            return f.length(text) == f.length(f.col("key")) + len(self.prefix)
        return None


def _path(field: str) -> str:
    return field if field.startswith("$") else f"$.{field}"


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The result of a run of `compact`."""

    stream: str
    """The name of the stream."""
    target: str
    """The directory or the stream that holds the latest records. A URI has no credentials."""
    start: str
    """The position from which this run has read."""
    end: str
    """The position after the last record that the target includes."""
    records: int
    """The number of records of the stream that were read."""
    rows: int
    """The number of rows of the table now, or of records appended to the target stream."""
    version: str | None = None
    """The name of the table's version, or None for a stream."""
    changed: bool = True
    """Whether the run changed the target. It did not if the stream had nothing new."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return asdict(self)


# -- the operator -----------------------------------------------------------------------------


def latest(frame: DataFrame, key: RecordKey, *, skip_keyless: bool = False) -> DataFrame:
    """Return the latest record of each key among rows of one stream.

    Tombstones count as records; `living` removes them.

    Args:
        frame: Rows of the stream source, of one stream. With `key.own` they were read with the
            option `envelope`.
        key: The key of a record.
        skip_keyless: Whether to skip records without a key. Otherwise such a record fails the
            query.

    Returns:
        The column `key`, followed by the columns of the record. If the rows have headers and event
        times, the columns `headers`, `event_time` and `own_key`, the record's own key, follow.
    """
    from pyspark.sql import functions as f

    keyed = frame.withColumn("key of the record", key.column())
    keyed = keyed.withColumnsRenamed({"key": ENVELOPE["key"], "key of the record": "key"})
    if skip_keyless:
        keyed = keyed.where("key IS NOT NULL")
    else:
        named = f.concat_ws(":", *POSITION)
        told = f.concat(f.lit("record "), named, f.lit(" has no key"))
        kind = "binary" if key.own else "string"
        keyed = keyed.withColumn("key", f.coalesce("key", f.raise_error(told).cast(kind)))
    return _newest(keyed)


def _newest(keyed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    more = [name for name in ENVELOPE.values() if name in keyed.columns]
    newest = f.max_by(f.struct(*COLUMNS, *more), f.struct(*POSITION)).alias("newest")
    return keyed.groupBy("key").agg(newest).select("key", "newest.*")


def living(frame: DataFrame, key: RecordKey) -> DataFrame:
    """Remove the keys whose latest record is a tombstone.

    Args:
        frame: The result of `latest`.
        key: The key of a record.

    Returns:
        The remaining rows.
    """
    gone = key.tombstone()
    return frame if gone is None else frame.where(~gone)


def compacted(spark: SparkSession, directory: str) -> DataFrame:
    """Return the present table that `compact` keeps in a directory.

    The files of this version are kept until two later runs of `compact` have ended.

    Args:
        spark: The session that reads the table.
        directory: The directory.

    Returns:
        The column `key`, followed by the columns of the record.

    Raises:
        UsageError: The directory holds no table.
        HistoryError: The directory cannot be read.
        HistoryDamagedError: The record of its newest version was changed.
    """
    current = Versions(directory).newest()
    if current is None or current.name is None:
        raise UsageError(
            f"the directory {without_credentials(directory)} holds no compacted stream",
            remedy="Correct the path, or run `quire pipeline compact` first",
        )
    return _read(spark, Versions(directory).spark_path(current))


def _read(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows of a version. A page that differs from its checksum fails the query."""
    return spark.read.options(**VERIFYING).parquet(path)


# -- the job ----------------------------------------------------------------------------------


def compact(
    spark: SparkSession,
    cluster: ClusterOptions,
    stream: str,
    key: RecordKey,
    *,
    to: str | None = None,
    to_stream: str | None = None,
    namespace: str = NAMESPACE,
    full: bool = False,
    skip_keyless: bool = False,
    progress: ProgressCallback = silent,
) -> CompactResult:
    """Bring a table or a stream of latest records up to date with a stream.

    The run includes everything that is acknowledged now. Records that were read before are not read
    again, unless `full` is set. On return the new version is durable. A reader of the table sees
    either the former version or the new one. A run that is killed leaves the former version, and
    the next run continues.

    Args:
        spark: The session that runs the job.
        cluster: The cluster.
        stream: The name of the stream.
        key: The key of a record.
        to: The directory of the table, as a path or the URI of a store.
        to_stream: Instead of `to`, a stream of the namespace, which must exist.
        namespace: The namespace.
        full: Whether to read the whole stream again.
        skip_keyless: Whether to skip records without a key. Otherwise such a record fails the job.
        progress: A function that receives the progress.

    Returns:
        What was read and written.

    Raises:
        UsageError: Not exactly one of `to` and `to_stream` is given. Or the target belongs to
            something else, or was made with another key or another definition of tombstones. Or
            another run has compacted to the same directory meanwhile: then this run has added no
            version.
        NoSuchNamespaceError: The namespace does not exist.
        NoSuchStreamError: The stream or the target stream does not exist.
        StreamGapError: Records after the last run were truncated before they were read, or another
            stream has the name. A first run, and one with `full`, begins at the oldest record that
            is left, without this error.
        HistoryError: The directory cannot be used, or another run has begun to write to it.
        HistoryDamagedError: The record of the table's newest version was changed.
        MetadataUnavailableError: The metadata store does not answer. If the target is a stream,
            the records may have been appended: run the job again.
        LedgerError: Too few bookies of a segment answer the driver.
        StreamLockedError: Another run that appends to the target stream did not end within 30 s.
        Exception: An error of Spark, which contains the error of the source or the sink. If it
            contains a StreamConditionError, another run, which has read further, has appended
            meanwhile, and this run has appended nothing.
    """
    made = source_of(cluster, stream, key, to, to_stream, namespace)
    if to is not None:
        return _to_table(spark, made, to, full, skip_keyless, progress)
    assert to_stream is not None
    # Of two runs at once, the later one could append older records after newer ones.
    with cluster.client() as client, locked(
        client.aio, f"{namespace_path(namespace)}/{LOCKS}", to_stream, WAIT_S,
        f"compacting to stream {to_stream}", "Nothing was appended by this job",
    ):  # fmt: skip
        # The stream may have been replaced by another one while this run waited.
        made = source_of(cluster, stream, key, to, to_stream, namespace)
        return _to_stream(spark, made, to_stream, full, skip_keyless, progress)


def source_of(
    cluster: ClusterOptions,
    stream: str,
    key: RecordKey,
    to: str | None,
    to_stream: str | None,
    namespace: str,
) -> CompactSource:
    """Return the stream to be compacted, after reading its identity from the cluster.

    Raises UsageError unless exactly one of `to` and `to_stream` is given, and if `to_stream` is the
    stream itself. Raises NoSuchNamespaceError, NoSuchStreamError if the stream does not exist, and
    MetadataError.
    """
    if (to is None) == (to_stream is None):
        raise UsageError(
            "the target of the compaction must be either a directory or another stream: give "
            "exactly one"
        )
    if to_stream == stream:
        raise UsageError(
            f"stream {stream} cannot be compacted into itself", remedy="Name another target stream"
        )
    with cluster.client() as client:
        return CompactSource(client, cluster, namespace, stream, key)


class CompactSource:
    """The stream that a compaction reads, with the record key and the stream's identity.

    A run uses the identity to check that an existing target was made from the same stream.
    """

    def __init__(
        self,
        client: blocking.Client,
        cluster: ClusterOptions,
        namespace: str,
        stream: str,
        key: RecordKey,
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.stream = stream
        self.key = key
        self.made_of = {
            "cluster": call(client.aio.metadata.instance_id()),
            "namespace": namespace,
            "stream": stream,
            "key": {name: value for name, value in asdict(key).items() if value is not None},
        }
        """The properties that a target must have in common with this run."""
        self.life = call(self._life(client.aio))
        """The path of the node that identifies the stream among all that ever had its name."""

    async def _life(self, aio: Client) -> str:
        async with await open_namespace(
            aio, self.namespace, password=self.cluster.password
        ) as streams:
            metadata = streams.metadata(self.stream)
            await metadata.require()
            return (await metadata.life()).path

    @property
    def life_id(self) -> str:
        """The id of the stream's life.

        It decides whether a copy that `replicate` made is still the same stream. Ledgers do not,
        because each run may replace the ledger of the copy's segment in progress.
        """
        return self.life.rpartition("/")[2]

    @property
    def id(self) -> str:
        """The id of this source in transaction ids.

        It is 16 hex digits of a hash over the stream, its life and the key of its records.
        """
        text = json.dumps([self.made_of, self.life], sort_keys=True).encode()
        return hashlib.sha256(text).hexdigest()[:16]

    def span(self, since: StreamOffset | None, least: StreamOffset | None = None) -> CompactSpan:
        """Return the part of the stream that a run reads: from `since`, or from the oldest record.

        It ends at `least` or further on. Raises StreamGapError if records after `since` no longer
        exist, or if another stream has the name. Raises also NoSuchStreamError, and the errors of
        reading the stream.
        """
        with self.cluster.client() as client:
            return call(self._span(client.aio, since, least))

    async def _span(
        self, aio: Client, since: StreamOffset | None, least: StreamOffset | None
    ) -> CompactSpan:
        # A server that lags behind would not show what was acknowledged just before this call.
        await aio.metadata.tree.sync()
        async with await open_namespace(
            aio, self.namespace, password=self.cluster.password
        ) as streams:
            view = StreamView(streams, self.stream)
            try:
                await view.open()
                return await _span(view, since, least)
            finally:
                view.close()

    def rows(self, spark: SparkSession, span: CompactSpan, *, envelope: bool) -> DataFrame:
        """Return the records of a span, with `envelope` also their keys, headers and times.

        The tasks are planned here, and not by the data source. The data source could learn from
        other bookies that less is acknowledged, and leave out records at the end of the span, which
        the next run would not read either. Raises StreamGapError if records of the span no longer
        exist.
        """
        from quire.spark.streams.options import StreamReadOptions
        from quire.spark.streams.reader import StreamTasks, spark_schema

        with self.cluster.client() as client:
            splits = call(self._splits(client.aio, span))
        options = StreamReadOptions(
            self.cluster.metadata,
            namespace_path(self.namespace),
            password=self.cluster.password,
            tls=self.cluster.tls,
        )
        schema = spark_schema((*COLUMNS, *ENVELOPE) if envelope else COLUMNS)
        parts = partitions([splits], partition_bytes=PARTITION_BYTES)
        reading = _SpanTasks(StreamTasks(options, schema), tuple(parts))
        numbers = spark.range(0, len(parts), 1, numPartitions=max(len(parts), 1))
        return numbers.mapInArrow(reading.read, schema)

    async def _splits(self, aio: Client, span: CompactSpan) -> list[StreamSplit]:
        """Return all entries of a span. Tasks wait until bookies know that these are acknowledged.

        Raises StreamGapError as `span` does.
        """
        async with await open_namespace(
            aio, self.namespace, password=self.cluster.password
        ) as streams:
            view = StreamView(streams, self.stream)
            try:
                await view.open()
                if not view.same_stream(span.end):
                    raise remade(self.stream)
                splits, gaps = await view.splits(span.start, span.end.position, reached=True)
            finally:
                view.close()
        if gaps:
            raise lost(self.stream, gaps, WHOLE_AGAIN)
        return splits


@dataclass(frozen=True, slots=True)
class _SpanTasks:
    """The tasks that read a span, as plain values that Spark can send to them."""

    tasks: StreamTasks
    parts: tuple[StreamPartition, ...]

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of those parts whose numbers are in the first column of `batches`."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.tasks.read(self.parts[number])


@dataclass(frozen=True, slots=True)
class CompactSpan:
    """The positions in the stream between which a run reads, and the number of records there."""

    start: DLSN
    end: StreamOffset
    records: int

    @property
    def empty(self) -> bool:
        """Whether the stream has nothing new for this run to read."""
        return self.end.position <= self.start


async def _span(
    view: StreamView, since: StreamOffset | None, least: StreamOffset | None = None
) -> CompactSpan:
    start = view.oldest
    if since is not None:
        start = since.position
        if not view.same_stream(since):
            raise remade(view.name)
    frontier = await view.frontier(start)
    if least is not None and max(frontier.position, start) < least.position:
        # An earlier run learned from other bookies that more is acknowledged.
        if not view.same_stream(least):
            raise remade(view.name)
        known = max(await view.mark(start), frontier, key=lambda mark: mark.position)
        records = view.records_between(await view.mark(start), known)
        sequence = view.reached(known).sequence
        if least.sequence is not None and sequence is not None:
            records += least.sequence - sequence
        return CompactSpan(start, least, records)
    if frontier.position <= start:
        return CompactSpan(start, since or view.reached(frontier), 0)
    if since is not None:
        gaps = lay_out(view.segments, start, frontier.position, since.sequence, reached=True)[1]
        if gaps:
            raise lost(view.name, gaps, WHOLE_AGAIN)
        start = max(start, view.oldest)
    records = view.records_between(await view.mark(start), frontier)
    return CompactSpan(start, view.reached(frontier), records)


def remade(stream: str) -> StreamGapError:
    """Return the error for a stream that was deleted and created again."""
    return StreamGapError(
        f"stream {stream} is not the one that was compacted before: that one was deleted or "
        "renamed, and another stream has its name now",
        remedy="Compact the whole stream again (--full, or in Python full=True), or to another "
        "target",
    )


# -- to a table -------------------------------------------------------------------------------


def _to_table(
    spark: SparkSession,
    source: CompactSource,
    directory: str,
    full: bool,
    skip_keyless: bool,
    progress: ProgressCallback,
) -> CompactResult:
    versions = Versions(directory)
    former, since = table_reached(source, versions, directory, full)
    span = source.span(since)
    if since is not None and span.empty:
        assert former is not None
        return _result(source, directory, span, former.state["rows"], former.name, changed=False)
    claim = versions.claim()
    if not full and claim.former != former:
        raise UsageError(
            f"another run has compacted to {without_credentials(directory)} in the meantime, so "
            "this one stopped without a new version",
            remedy="Run the job again: it continues after the other run",
        )
    # The columns of tables with another kind of key never change.
    left_out = [ENVELOPE["key"]] if source.key.own else list(ENVELOPE.values())
    rows = source.rows(spark, span, envelope=bool(source.key.own or source.key.sql))
    frame = latest(rows, source.key, skip_keyless=skip_keyless).drop(*left_out)
    if since is not None:
        assert former is not None
        frame = _newest(_read(spark, versions.spark_path(former)).unionByName(frame))
    frame = living(frame, source.key).sortWithinPartitions("key")
    with before_publishing(), watched(spark, f"compacting {source.stream}", progress):
        frame.write.parquet(claim.output)
        count = _read(spark, claim.input).count()
    reached = _as_json(span.end)
    state = {"of": source.made_of, "life": source.life, "reached": reached, "rows": count}
    return _result(source, directory, span, count, claim.commit(state).name)


def table_reached(
    source: CompactSource, versions: Versions, directory: str, full: bool
) -> tuple[Version | None, StreamOffset | None]:
    """Return the newest version of the table, and the end of what it includes of the stream.

    Both are None with `full`, or if there is no table. Raises UsageError if the table was made of
    another stream or with another key, StreamGapError if another stream has the name now, and
    HistoryError if the directory cannot be read.
    """
    former = None if full else versions.newest()
    if former is None or former.name is None:
        return former, None
    _check_made_of(directory, former.state["of"], source.made_of)
    if former.state["life"] != source.life:
        raise remade(source.stream)
    return former, _reached(former.state["reached"], source.life_id)


def _result(
    source: CompactSource,
    target: str,
    span: CompactSpan,
    rows: int,
    version: str | None = None,
    *,
    changed: bool = True,
) -> CompactResult:
    start, end = str(span.start), str(span.end.position)
    shown = without_credentials(target)
    return CompactResult(source.stream, shown, start, end, span.records, rows, version, changed)


def _check_made_of(target: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for what, value in wanted.items():
        if found.get(what) != value:
            raise UsageError(
                f"the target {without_credentials(target)} was compacted with {what} "
                f"{found.get(what)}, but this run has {what} {value}. Nothing was changed",
                remedy="Choose another target, or compact the whole stream again "
                "(--full, or in Python full=True)",
            )


def _as_json(reached: StreamOffset) -> dict[str, Any]:
    return {
        "position": str(reached.position),
        "ledger": reached.ledger_id,
        "sequence": reached.sequence,
    }


def _reached(value: Mapping[str, Any], life: str) -> StreamOffset:
    return StreamOffset(DLSN.parse(value["position"]), value["ledger"], value["sequence"], life)


# -- to a stream ------------------------------------------------------------------------------


def _to_stream(
    spark: SparkSession,
    source: CompactSource,
    target: str,
    full: bool,
    skip_keyless: bool,
    progress: ProgressCallback,
) -> CompactResult:
    # A run that ended before what the target includes would append older records after newer ones.
    known = published(source, target)
    span = source.span(None if full else known, known)
    if span.empty:
        return _result(source, target, span, 0, changed=False)
    frame = latest(source.rows(spark, span, envelope=True), source.key, skip_keyless=skip_keyless)
    sequence = "" if span.end.sequence is None else str(span.end.sequence)
    ledger = "" if span.end.ledger_id is None else str(span.end.ledger_id)
    read = f"{span.start}>{span.end.position}:{ledger},{sequence}"
    txn = _transaction(source, target, read, full)
    columns = ("value", *ENVELOPE.values())
    writer = frame.orderBy(*POSITION).select(*columns).write.format("quire").mode("append")
    with publishing_one_stream(), watched(spark, f"compacting {source.stream}", progress):
        writer.options(
            **source.cluster.options(writing=True),
            namespace=source.namespace,
            stream=target,
            keyColumn=ENVELOPE["key"],
            headersColumn=ENVELOPE["headers"],
            timeColumn=ENVELOPE["event_time"],
            txnId=txn,
        ).save()
    rows = _records(source, target, txn)
    return _result(source, target, span, rows)


def _transaction(source: CompactSource, target: str, read: str, full: bool) -> str:
    """Return the name of the transaction of a run that reads these positions.

    With `full`, it is a name that the target does not remember, because it would not append
    anything under a known name.
    """
    txn, number = f"compact:{source.id}:{read}", 1
    known = {name for name, _, _ in _jobs(source, target)} if full else set()
    while txn in known:
        number += 1
        txn = f"compact:{source.id}:{number}:{read}"
    return txn


def published(source: CompactSource, target: str) -> StreamOffset | None:
    """Return the end of what the target stream includes, according to the jobs that it remembers.

    Returns None if it remembers no run with this source and key. Raises MetadataError.
    """
    found = None
    for name, _, _ in _jobs(source, target):
        told = COMPACTION.fullmatch(name)
        if told is None or told[1] != source.id:
            continue
        ledger, _, sequence = told[4].partition(",")
        reached = StreamOffset(
            DLSN.parse(told[3]),
            int(ledger) if ledger else None,
            int(sequence) if sequence else None,
            source.life_id,  # The id of the source in the name depends on its life.
        )
        if found is None or reached.position > found.position:
            found = reached
    return found


def _records(source: CompactSource, target: str, txn: str) -> int:
    segments = next(((first, n) for name, first, n in _jobs(source, target) if name == txn), (0, 0))
    with source.cluster.client() as client:
        return call(_count(client.aio, source, target, *segments))


async def _count(aio: Client, source: CompactSource, target: str, first: int, count: int) -> int:
    """Return the number of records in `count` segments of the target, from number `first` on."""
    # Another client has published them, and the server of this one may lag behind it.
    await aio.metadata.tree.sync()
    async with await open_namespace(
        aio, source.namespace, password=source.cluster.password
    ) as streams:
        return sum(
            one.known_records
            for one in await streams.segments(target)
            if first <= one.lssn < first + count
        )


def _jobs(source: CompactSource, target: str) -> list[tuple[str, int, int]]:
    async def look(aio: Client) -> list[tuple[str, int, int]]:
        async with await open_namespace(
            aio, source.namespace, password=source.cluster.password
        ) as streams:
            metadata = streams.metadata(target)
            await metadata.require()
            await metadata.tree.sync()
            found = await read_published(metadata, BatchKey.of_job("any"))
            return [(name, first, count) for name, first, count in found.values.get("jobs", ())]

    with source.cluster.client() as client:
        try:
            return call(look(client.aio))
        except QuireError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MetadataError(
                f"the list of jobs that were published to stream {target} cannot be decoded: "
                f"{error!r}",
                remedy="If a later version of Quire wrote it, use that version. Otherwise restore "
                "the nodes of the stream from a backup of the metadata store",
            ) from None


# -- what a dry run reports --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactPreview:
    """The part of the stream that a run would read."""

    stream: str
    """The name of the stream."""
    target: str
    """The directory or the stream that holds the latest records. A URI has no credentials."""
    start: str
    """The position from which it would read."""
    end: str
    """The position up to which it would read: the end of what is acknowledged now."""
    records: int
    """The number of records that it would read."""

    def as_json(self) -> dict[str, Any]:
        """Return the preview as the command prints it."""
        return {"dry_run": True, **asdict(self)}


def preview_compact(
    cluster: ClusterOptions,
    stream: str,
    key: RecordKey,
    *,
    to: str | None = None,
    to_stream: str | None = None,
    namespace: str = NAMESPACE,
    full: bool = False,
) -> CompactPreview:
    """Return what `compact` would read with these arguments, without using Spark.

    The number of keys is known only after reading. Nothing is changed.

    Args:
        cluster: The cluster.
        stream: The name of the stream.
        key: The key of a record.
        to: The directory of the table.
        to_stream: Instead of `to`, a stream of the namespace.
        namespace: The namespace.
        full: Whether the whole stream would be read again.

    Returns:
        What would be read.

    Raises:
        QuireError: See `compact`, as far as that is known before reading.
    """
    made = source_of(cluster, stream, key, to, to_stream, namespace)
    known = None
    if to is not None:
        _, since = table_reached(made, Versions(to), to, full)
    else:
        assert to_stream is not None
        known = published(made, to_stream)
        since = None if full else known
    span = made.span(since, known)
    target = without_credentials(to or str(to_stream))
    return CompactPreview(stream, target, str(span.start), str(span.end.position), span.records)


__getattr__ = former_names(__name__, {"Key": "RecordKey"})
