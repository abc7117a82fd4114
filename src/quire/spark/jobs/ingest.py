"""The job `ingest`: files, tables and DataFrames into streams.

A batch (`ingest`) is published once for each transaction id, so a rerun with the same id adds
nothing. For files the id can be derived (`content_id`): the same unchanged files, read in the same
way, are the same batch. New files of a directory (`follow`) pass through Spark's file source and
the sink. The checkpoint of the source records which files were read, and the sink publishes each
micro-batch once.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from quire import blocking
from quire._runtime.names.former_names import former_names
from quire._runtime.names.suggest import did_you_mean
from quire._runtime.tasks import each
from quire._runtime.uris import text_without_credentials, without_credentials
from quire.blocking.background import call
from quire.client import Client
from quire.errors import UsageError
from quire.spark.failures import before_publishing, publishing_one_stream
from quire.spark.jobs.tasks import ClusterOptions, ProgressCallback, silent, watched
from quire.spark.streams.write_options import WILDCARDS
from quire.streams.namespace.namespace import open_namespace
from quire.streams.publish import publishing
from quire.streams.publish.publishing import BatchKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NAMESPACE = "/streams"
VALUE, STREAM, ORDER = "value", "stream", "__order"
STREAMS_MAX = 100
"""The largest number of streams of one ingest, which is the limit of the sink."""
FORMATS = ("csv", "json", "orc", "parquet", "text")
SUFFIXES = {
    "csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "orc": "orc",
    "parquet": "parquet", "pq": "parquet", "txt": "text", "text": "text", "log": "text",
}  # fmt: skip
COMPRESSED = frozenset(("bz2", "deflate", "gz", "lz4", "snappy", "xz", "zst"))
FORMAT_OPTIONS = {"csv": {"header": "true"}}
"""The options of Spark's reader by file format, which apply unless the caller sets them."""
SEPARATORS = frozenset(("sep", "delimiter"))
"""The names of the option of Spark's CSV reader for the text between two values. The first wins."""
WATCH_S = 0.5
"""Seconds between two checks of a running query."""
FILE_AGE_MAX = "36500d"
"""The age, relative to the newest file, above which Spark leaves out a file and says nothing. Its
default is seven days, so a file that is copied with its old modification time would be lost."""
STOPPED_BY = "stopped"
CHOOSING = frozenset(
    ("pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "timezone")
)
"""The options of Spark's reader that decide which files it reads, in lower case."""
LISTINGS_MAX = 5
"""The largest number of attempts to list and load files that do not change meanwhile."""
EPOCH = datetime(1970, 1, 1)
MERGED = ("orc", "parquet")
"""The formats whose files have schemas of their own, which may differ."""
MERGE = "mergeSchema"
"""The option of Spark's reader that merges the schemas of Parquet files, or of ORC files."""
PARSED = ("csv", "json")
"""The formats whose rows may not fit a schema."""
CORRUPT = "_corrupt_record"
"""The column in which Spark keeps a row that it cannot parse, if the schema has it."""
MADE_UP = re.compile(r"_c\d+")
"""The form of the names that Spark gives to CSV columns without a name."""
JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
"""The options of `to_json`. By default, Spark leaves out the microseconds of a timestamp."""


# -- arguments and results --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IngestTarget:
    """The streams to write, and how rows become their records.

    Raises:
        UsageError: Neither `stream` nor `stream_column` is given, or both are. Or `streams` is
            given without `stream_column`.
    """

    stream: str | None = None
    """The name of the stream."""
    namespace: str = NAMESPACE
    """The namespace of the streams."""
    stream_column: str | None = None
    """Instead of `stream`, the column with the name of the stream of each row."""
    streams: Sequence[str] = ()
    """With `stream_column`, the names or patterns of the streams that may be written.

    By default these are the streams that occur in the column.
    """
    value_column: str | None = None
    """The column that becomes the record.

    By default it is the only column, if that is text or binary. Otherwise all columns become one
    JSON object, without those that are null.
    """
    order_by: str | None = None
    """The column by which rows are sorted."""
    create: bool = False
    """Whether to create streams that do not exist, and the namespace "/streams" if it does not.
    Any other namespace must exist."""
    token: str = field(default="", repr=False)
    """The fencing token of the streams."""

    def __post_init__(self) -> None:
        if (self.stream is None) == (self.stream_column is None):
            raise UsageError(
                "nothing selects the stream to write"
                if self.stream is None
                else f"stream {self.stream} and column {self.stream_column!r} exclude each other",
                remedy="Name either a stream, or a column that has the stream of each row",
            )
        if self.streams and self.stream_column is None:
            raise UsageError(
                "several streams can be written only with a column that has the stream of each row",
                remedy="Name that column too",
            )


@dataclass(frozen=True, slots=True)
class Files:
    """The files that an ingest reads, and how Spark reads them."""

    paths: Sequence[str]
    """The paths in the form that Spark accepts."""
    format: str | None = None
    """The format. By default the suffixes of the files determine it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options for Spark's reader."""
    schema: str | None = None
    """The schema in the form of CREATE TABLE. By default Spark infers it."""


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """The number of records and bytes that one stream got from an ingest."""

    stream: str
    """The name of the stream."""
    records: int
    """The number of records."""
    bytes: int
    """The number of bytes that the records of the batch take in the stream."""
    repeated: bool
    """Whether the batch was published before, so that nothing was added now."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of an ingest."""

    namespace: str
    """The namespace of the streams."""
    txn_id: str
    """The transaction id of the batch."""
    streams: tuple[IngestBatch, ...]
    """The streams that have the batch."""

    @property
    def records(self) -> int:
        """The number of records that this run has added."""
        return sum(one.records for one in self.streams if not one.repeated)

    @property
    def repeated(self) -> bool:
        """Whether nothing was added, because every stream had the batch already."""
        return bool(self.streams) and all(one.repeated for one in self.streams)

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return {**asdict(self), "records": self.records, "repeated": self.repeated}


@dataclass(frozen=True, slots=True)
class FollowResult:
    """The result of following a directory."""

    namespace: str
    """The namespace of the streams."""
    checkpoint: str
    """The directory of the checkpoint. A URI has no credentials."""
    records: int
    """The number of records that this run has written."""
    batches: int
    """The number of micro-batches that this run has written."""
    ended: str
    """"available" if everything that existed is written, or "stopped" if the run was ended."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return asdict(self)


# -- a batch ----------------------------------------------------------------------------------


def ingest(
    spark: SparkSession,
    cluster: ClusterOptions,
    frame: DataFrame,
    target: IngestTarget,
    *,
    txn_id: str | None = None,
    progress: ProgressCallback = silent,
) -> IngestResult:
    """Append the rows of a DataFrame to streams.

    On return all rows are durable, and each stream got its rows in one step. A job that is killed
    publishes either nothing or everything for each stream.

    Args:
        spark: The session that runs the job.
        cluster: The cluster.
        frame: The rows.
        target: The streams, and how rows become their records. Its `order_by` sorts all rows.
            Otherwise they come in the order in which Spark reads them, which is not guaranteed for
            several files.
        txn_id: An id with which a stream accepts the batch only once, as long as the batch is among
            the last 1,000 jobs of the stream, such as `content_id` for files. Without it, every run
            appends the rows again.
        progress: A function that receives the progress.

    Returns:
        The records that each stream got.

    Raises:
        UsageError: The target or a column is not valid.
        NoSuchNamespaceError: The namespace does not exist.
        MetadataUnavailableError: The metadata store does not answer. The rows may have been
            appended: run the job again with the same `txn_id`.
        Exception: An error of Spark, which contains the error of the sink, for example because a
            stream does not exist, or because bookies do not answer.
    """
    txn_id = txn_id or f"ingest:{uuid.uuid4().hex}"
    with before_publishing():
        wanted = _streams(frame, target, progress)
    with cluster.client() as client:
        _make_namespace(client, cluster, target)
        before = _published(client, cluster, target, wanted, txn_id)
    if frame_order := target.order_by:
        frame = frame.orderBy(_column(frame, frame_order))
    writer = shaped(frame, target).write.format("quire").mode("append")
    options = {**sink_options(cluster, target, wanted), "txnId": txn_id}
    one = len(wanted) == 1 and not set(wanted[0]) & WILDCARDS
    with publishing_one_stream() if one else nullcontext(), watched(spark, "writing", progress):
        writer.options(**options).save()
    with cluster.client() as client:
        after = _published(client, cluster, target, wanted, txn_id)
    written = [
        IngestBatch(name, *after[name], repeated=name in before) for name in sorted(after)
    ]  # fmt: skip
    return IngestResult(target.namespace, txn_id, tuple(written))


def _published(
    client: blocking.Client,
    cluster: ClusterOptions,
    target: IngestTarget,
    names: Sequence[str],
    txn_id: str,
) -> dict[str, tuple[int, int]]:
    """Return the number of records and of bytes of the batch in each stream that has it."""
    return call(_look(client.aio, cluster, target, names, txn_id))


async def _look(
    aio: Client, cluster: ClusterOptions, target: IngestTarget, names: Sequence[str], txn_id: str
) -> dict[str, tuple[int, int]]:
    # Another client publishes the batch, and the server of this one may lag behind it.
    await aio.metadata.tree.sync()
    found: dict[str, tuple[int, int]] = {}
    async with await open_namespace(aio, target.namespace, password=cluster.password) as streams:
        there = set(await streams.streams())
        names_of = [name for name in _named(names, there) if name in there]

        async def of(name: str) -> None:
            metadata = streams.metadata(name)
            segments = await publishing.published_segments(metadata, BatchKey.of_job(txn_id))
            if segments is not None:
                sizes = await each(segments, lambda one: aio.ledger_metadata(one.ledger_id))
                records = sum(one.record_count for one in segments)
                found[name] = (records, sum(size.length for size in sizes))

        await each(names_of, of)
    return found


def _named(names: Sequence[str], there: set[str]) -> list[str]:
    from fnmatch import fnmatchcase

    found: list[str] = []
    for given in names:
        if any(sign in given for sign in WILDCARDS):
            found += sorted(name for name in there if fnmatchcase(name, given))
        else:
            found.append(given)
    return list(dict.fromkeys(found))


def _streams(frame: DataFrame, target: IngestTarget, progress: ProgressCallback) -> list[str]:
    """Return the streams that the target names, or those that occur in its column.

    Raises UsageError if the column names no stream, or too many.
    """
    if target.stream is not None:
        return [target.stream]
    if target.streams:
        return list(target.streams)
    assert target.stream_column is not None
    if frame.isStreaming:
        raise UsageError(
            "the streams are not named, and rows of files that are followed may belong to any "
            "stream",
            remedy="Name the streams that may be written, or patterns of them (--streams; in "
            "Python IngestTarget.streams)",
        )
    column = _column(frame, target.stream_column)
    with watched(frame.sparkSession, "looking for streams", progress):
        rows = frame.select(column.cast("string")).distinct().limit(STREAMS_MAX + 1).collect()
    names = [row[0] for row in rows]
    if None in names:
        raise UsageError(
            f"column {target.stream_column!r} is null in some rows, which therefore belong to no "
            "stream",
            remedy="Filter such rows, or replace the nulls",
        )
    if len(names) > STREAMS_MAX:
        raise UsageError(
            f"column {target.stream_column!r} names more than the {STREAMS_MAX} streams that can "
            "be written at once",
            remedy="Choose another column, or ingest in several parts",
        )
    if not names:
        raise UsageError(
            "nothing was written: the input has no rows, so it names no stream",
            remedy="Check the input",
        )
    return sorted(names)


def _make_namespace(client: blocking.Client, cluster: ClusterOptions, target: IngestTarget) -> None:
    """Create the namespace if `create` is set and it is the default one.

    Any other namespace must exist, because its name may be a typing error.
    """
    if target.create and target.namespace == NAMESPACE:

        async def make(aio: Client) -> None:
            async with await open_namespace(aio, NAMESPACE, password=cluster.password, create=True):
                pass

        call(make(client.aio))


async def _make_sure(
    aio: Client, cluster: ClusterOptions, target: IngestTarget, names: Sequence[str]
) -> None:
    """Raise NoSuchStreamError if a stream does not exist, or create it if `create` is set.

    A query that waits for files would not report a stream that is missing.
    """
    from quire.spark.streams.sink import make_sure

    async with await open_namespace(aio, target.namespace, password=cluster.password) as streams:
        for name in names:
            if not any(sign in name for sign in WILDCARDS):
                await make_sure(streams, name, target.create)


# -- rows to records --------------------------------------------------------------------------


def shaped(frame: DataFrame, target: IngestTarget) -> DataFrame:
    """Return the columns that the sink accepts: `value`, and those for stream and order.

    Raises UsageError if the rows lack a column that the target names.
    """
    columns = [_value(frame, target).alias(VALUE)]
    if target.stream_column is not None:
        columns.append(_column(frame, target.stream_column).cast("string").alias(STREAM))
    if target.order_by is not None and frame.isStreaming:
        columns.append(_column(frame, target.order_by).alias(ORDER))
    return frame.select(*columns)


def _value(frame: DataFrame, target: IngestTarget) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    fields = {field.name: field.dataType for field in frame.schema.fields}
    name = target.value_column
    if name is None and len(fields) == 1:
        (only,) = fields
        name = only if isinstance(fields[only], BinaryType | StringType) else None
    if name is None:
        every = f.struct(*(frame[f"`{column}`"] for column in fields))
        return f.to_json(every, JSON_OPTIONS)
    column = _column(frame, name)
    kind = frame.select(column).schema.fields[0].dataType
    if isinstance(kind, BinaryType | StringType):
        return column
    if isinstance(kind, ArrayType | MapType | StructType):
        return f.to_json(column, JSON_OPTIONS)
    return column.cast("string")


def _column(frame: DataFrame, name: str) -> Column:
    known = {column.lower(): column for column in frame.columns}
    if name in frame.columns:  # With spark.sql.caseSensitive, another one may differ by case only.
        return frame[f"`{name}`"]
    if name.lower() not in known:
        there = f"There are: {', '.join(frame.columns)}"
        raise UsageError(
            f"the input has no column {name!r}",
            remedy=did_you_mean(name, frame.columns, there, quote=True),
        )
    return frame[f"`{known[name.lower()]}`"]


def sink_options(
    cluster: ClusterOptions, target: IngestTarget, streams: Sequence[str]
) -> dict[str, Any]:
    """Return the options of the sink, by name, that write to these streams."""
    options: dict[str, Any] = {
        **cluster.options(writing=True), "namespace": target.namespace, "valueColumn": VALUE,
        "createStream": str(target.create).lower(),
    }  # fmt: skip
    if target.token:
        options["token"] = target.token
    if target.stream is not None:
        return {**options, "stream": target.stream}
    return {**options, "streams": ",".join(streams), "streamColumn": STREAM}


# -- files ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that match some paths, at one moment."""

    files: tuple[tuple[str, int, str], ...]
    """The path, size in bytes and modification time of each file. The time is in UTC."""

    @property
    def bytes(self) -> int:
        """The size of all files in bytes."""
        return sum(size for _, size, _ in self.files)


def list_files(spark: SparkSession, files: Files) -> Listing:
    """Return the files that Spark would read, without reading their content.

    Raises UsageError if there are none, and the errors of Spark's reader, for example because a
    path does not exist.
    """
    listing = _listing(spark, files)
    if not listing.files:
        paths = ", ".join(map(text_without_credentials, files.paths))
        raise UsageError(f"no file matches {paths}", remedy="Correct the path")
    return listing


def _listing(spark: SparkSession, files: Files) -> Listing:
    """Return the files that Spark would read, which may be none."""
    choosing = {name: text for name, text in files.options.items() if name.lower() in CHOOSING}
    frame = spark.read.format("binaryFile").options(**choosing).load(list(files.paths))
    rows = frame.selectExpr("path", "length", "unix_micros(modificationTime)").collect()
    return Listing(tuple(sorted((row[0], row[1], _time_text(row[2])) for row in rows)))


def _time_text(micros: int) -> str:
    """Return a time as Spark writes it in a session whose time zone is UTC.

    The text of Spark itself depends on the zone of the session, and with it the transaction id.
    """
    text = str(EPOCH + timedelta(microseconds=micros))
    return text.rstrip("0") if "." in text else text


def format_of(files: Files, listing: Listing) -> str:
    """Return the format of the files. Raises UsageError if their suffixes do not determine one."""
    if files.format is not None:
        return files.format
    found = {_by_suffix(path) for path, _, _ in listing.files}
    if len(found) != 1 or None in found:
        paths = ", ".join(path.rpartition("/")[2] for path, _, _ in listing.files[:3])
        raise UsageError(
            f"the format of the input files cannot be determined from their names: {paths}",
            remedy=f"Set --format (in Python: format) to one of {', '.join(FORMATS)}",
        )
    (name,) = found
    assert name is not None
    return name


def _by_suffix(path: str) -> str | None:
    parts = [part.lstrip(".").lower() for part in PurePosixPath(path).suffixes]
    while parts and parts[-1] in COMPRESSED:
        parts.pop()
    return SUFFIXES.get(parts[-1]) if parts else None


def read_files(spark: SparkSession, files: Files, listing: Listing) -> DataFrame:
    """Return the content of the files as a DataFrame.

    The DataFrame reads the files that exist now, even if `listing` is older. `read_listed` makes
    sure that both are the same. Raises UsageError if the suffixes of the files do not determine one
    format, and the errors of Spark's reader.
    """
    given = {**_merging(files, listing), **_options(files, listing)}
    reader = spark.read.format(format_of(files, listing)).options(**given)
    if files.schema is not None:
        reader = reader.schema(files.schema)
        frame = reader.load(list(files.paths))
        if strict := _strict(files, listing, frame.columns):
            frame = reader.options(**strict).load(list(files.paths))
        return frame
    frame = reader.load(list(files.paths))
    checked = {**_checked(files, listing, frame.columns), **_strict(files, listing, frame.columns)}
    if checked:
        # Only files with these columns, in this order, have their values under the right names,
        # and values of a row for which there is no column would be left out.
        frame = reader.options(**checked).schema(frame.schema).load(list(files.paths))
    return frame


def _merging(files: Files, listing: Listing) -> dict[str, str]:
    """Return the options with which Spark takes the columns from all files, not from one.

    By default, it leaves out the columns of other files that the one lacks, and says nothing.
    """
    given = {key.lower() for key in files.options}
    if (
        format_of(files, listing) not in MERGED
        or files.schema is not None
        or MERGE.lower() in given
    ):
        return {}
    return {MERGE: "true"}


def _checked(files: Files, listing: Listing, columns: Sequence[str]) -> dict[str, str]:
    """Return the options with which Spark checks the header of each CSV file, if it can do so.

    It takes the names of the columns from one file, and by default applies them to the columns of
    all others by their places. It cannot check names that it has made up or numbered, because
    columns have no name or the same.
    """
    options = {key.lower(): text for key, text in _options(files, listing).items()}
    if (
        format_of(files, listing) != "csv"
        or options.get("header", "").lower() != "true"
        or "enforceschema" in options
    ):
        return {}
    numbered = [
        name.lower().removesuffix(str(at))
        for at, name in enumerate(columns)
        if name.endswith(str(at))
    ]
    if any(map(MADE_UP.fullmatch, columns)) or len(set(numbered)) < len(numbered):
        return {}
    return {"enforceSchema": "false"}


def _strict(files: Files, listing: Listing, columns: Sequence[str]) -> dict[str, str]:
    """Return the options with which a row that does not fit the schema is an error.

    By default, Spark makes null of what it cannot parse, and nulls are left out of records. It also
    leaves out values of a CSV row that has more of them than there are columns. If the schema has
    the column for such rows, nothing is lost.
    """
    given = {key.lower(): text for key, text in _options(files, listing).items()}
    corrupt = given.get("columnnameofcorruptrecord", CORRUPT)
    if format_of(files, listing) not in PARSED or "mode" in given or corrupt in columns:
        return {}
    return {"mode": "FAILFAST"}


def read_listed(spark: SparkSession, files: Files) -> tuple[DataFrame, Listing]:
    """Return the content of the files as a DataFrame, and the files that it reads.

    If a file appears or changes between the listing and the load, both are done again. Otherwise
    the file would be read, but its transaction id (`content_id`) would not depend on it, and the
    next run would read it again. With Spark Connect the server lists the files once more when the
    DataFrame is used, so files that appear until then are still read too early.

    Raises UsageError if there are no files, or if they change during each of `LISTINGS_MAX`
    attempts. Raises also the errors of `list_files` and `read_files`.
    """
    listing = list_files(spark, files)
    for _ in range(LISTINGS_MAX):
        frame = read_files(spark, files, listing)
        former, listing = listing, list_files(spark, files)
        if listing == former:
            return frame, listing
    paths = ", ".join(map(text_without_credentials, files.paths))
    raise UsageError(
        f"files of {paths} appeared or changed while they were listed, in each of {LISTINGS_MAX} "
        "attempts. Nothing was appended",
        remedy="Wait until they are complete, or ingest them as they arrive (--follow)",
    )


def _options(files: Files, listing: Listing) -> dict[str, str]:
    name = format_of(files, listing)
    options = dict(FORMAT_OPTIONS.get(name, {}))
    given = {key.lower() for key in files.options}
    if name == "csv" and given.isdisjoint(SEPARATORS) and _has_tabs(files, listing):
        options["sep"] = "\t"
    return {**{k: v for k, v in options.items() if k not in given}, **files.options}


def _has_tabs(files: Files, listing: Listing) -> bool:
    """Return whether all files are named .tsv. If there are none, the names of the paths count."""
    paths = [path for path, _, _ in listing.files] or files.paths
    return all(".tsv" in path.rpartition("/")[2].lower() for path in paths)


def content_id(files: Files, listing: Listing, target: IngestTarget) -> str:
    """Return a transaction id for these files, read and written in this way.

    It depends on the path, size and modification time of each file. Their content is not read.
    Raises UsageError if the suffixes of the files do not determine one format.
    """
    how = {
        "files": listing.files,
        "format": format_of(files, listing),
        "options": sorted(_options(files, listing).items()),
        "schema": files.schema,
        "value": target.value_column,
        "stream": target.stream_column,
    }
    text = json.dumps(how, sort_keys=True).encode()
    return f"files:{hashlib.sha256(text).hexdigest()[:40]}"


# -- files that come --------------------------------------------------------------------------


def follow(
    spark: SparkSession,
    cluster: ClusterOptions,
    files: Files,
    target: IngestTarget,
    *,
    checkpoint: str,
    writer_id: str | None = None,
    takeover: bool = False,
    available_now: bool = False,
    interval_s: float | None = None,
    stop: threading.Event | None = None,
    progress: ProgressCallback = silent,
) -> FollowResult:
    """Append the rows of the files in a directory, each file once, also of files added later.

    With `available_now` the call returns when everything that exists is written. Otherwise it
    continues until `stop` is set. An interrupt (KeyboardInterrupt) also makes the call return. The
    micro-batch of that moment may be incomplete; the next run writes it again, once.

    A file must be complete when it appears, so write it elsewhere and move it there. A file that
    changes later is not read again. A run with the same checkpoint continues. With a new checkpoint
    all files are new.

    Args:
        spark: The session that runs the query.
        cluster: The cluster.
        files: The directory and the format of its files.
        target: The streams, and how rows become their records. Its `order_by` sorts the rows of
            each task.
        checkpoint: The directory in which Spark records which files were read.
        writer_id: The name under which the streams remember the batches.
        takeover: Whether a new checkpoint may continue after what `writer_id` has published before.
            Otherwise the sink refuses it.
        available_now: Whether to stop when everything that exists is written.
        interval_s: Seconds between the starts of two micro-batches. By default they follow each
            other at once. With `available_now` it has no effect.
        stop: An event that ends the run.
        progress: A function that receives the progress.

    Returns:
        What this run has written.

    Raises:
        UsageError: An argument is not valid.
        NoSuchNamespaceError: The namespace does not exist.
        NoSuchStreamError: A stream that is named does not exist, and `target.create` is not set.
        MetadataUnavailableError: The metadata store does not answer.
        Exception: The query failed. The error of Spark contains the error of the sink. A run with
            the same checkpoint continues where it ended, and writes nothing twice.
    """
    if len(files.paths) != 1:
        raise UsageError(
            f"only one directory can be followed at a time, but {len(files.paths)} paths were "
            "given",
            remedy="Name one directory, or run one command for each",
        )
    source = _source(spark, files)
    wanted = _streams(source, target, progress)
    with cluster.client() as client:
        _make_namespace(client, cluster, target)
        call(_make_sure(client.aio, cluster, target, wanted))
    writer = shaped(source, target).writeStream.format("quire")
    writer = writer.options(**sink_options(cluster, target, wanted))
    writer = writer.option("checkpointLocation", checkpoint).option("takeover", takeover)
    if target.order_by is not None:
        writer = writer.option("orderBy", ORDER)
    if writer_id is not None:
        writer = writer.option("writerId", writer_id)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif interval_s is not None:
        writer = writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")
    return _watch(
        writer.start(), target, checkpoint, stop or threading.Event(), progress,
        available_now=available_now,
    )  # fmt: skip


def _source(spark: SparkSession, files: Files) -> DataFrame:
    from pyspark.errors import AnalysisException

    listing = Listing(())
    schema: Any = files.schema
    if files.format is None or schema is None:
        listing = list_files(spark, files)
    elif files.format == "csv":
        with suppress(AnalysisException):  # The directory may not exist yet.
            listing = _listing(spark, files)  # The names of files decide the separator.
    checked: dict[str, str] = {}
    if schema is None:
        schema = read_files(spark, files, listing).schema
        checked = _checked(files, listing, schema.names)
    else:
        schema = spark.createDataFrame([], schema).schema
    checked |= _strict(files, listing, schema.names)
    options = {"maxFileAge": FILE_AGE_MAX, **_options(files, listing), **checked}
    reader = spark.readStream.format(format_of(files, listing)).options(**options)
    return reader.schema(schema).load(files.paths[0])


def _watch(
    query: StreamingQuery,
    target: IngestTarget,
    checkpoint: str,
    stop: threading.Event,
    progress: ProgressCallback,
    *,
    available_now: bool,
) -> FollowResult:
    records = batches = 0
    last = -1  # the number of the last micro-batch that was counted

    def count() -> None:
        nonlocal records, batches, last
        for one in query.recentProgress:
            if one["numInputRows"] and one["batchId"] > last:
                last = one["batchId"]
                records, batches = records + one["numInputRows"], batches + 1

    over = False
    try:
        while not over and not stop.is_set():
            over = query.awaitTermination(WATCH_S)  # raises the error of the query
            count()
            progress("records written", records, None)
    except KeyboardInterrupt:
        over = False

    def end() -> None:
        query.stop()
        count()

    if not over:
        # An interrupted call may still wait for its answer on the connection of this thread.
        with ThreadPoolExecutor(1) as other:
            other.submit(end).result()
    ended = "available" if over and available_now else STOPPED_BY
    where = without_credentials(checkpoint)
    return FollowResult(target.namespace, where, records, batches, ended)


__getattr__ = former_names(__name__, {"Target": "IngestTarget"})
