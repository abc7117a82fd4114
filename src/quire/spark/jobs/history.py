"""The job `history`: the offloaded and the live records of a stream as one DataFrame.

The manifest says where the offloaded part ends. Tasks read the live part from the bookies. If a
segment is offloaded and truncated while they read it, they continue in its file.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire._runtime.uris import without_credentials
from quire.blocking.background import call
from quire.client import Client
from quire.errors import NoSuchLedgerError, ReadError, StreamGapError, UsageError
from quire.spark.jobs.archive.manifest import DATA, DATE, HistoryFile, Manifest, OffloadHistory
from quire.spark.jobs.archive.parquet_files import DAY_US, read_file, verify_piece
from quire.spark.jobs.archive.places import FoundPlace, in_files
from quire.spark.jobs.archive.store import VERIFYING, ArchiveDirectory
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent
from quire.streams import DLSN, EARLIEST, LATEST, Gap, Namespace
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.namespace import open_namespace
from quire.streams.read.arrow import ALL_COLUMNS, COLUMNS, RecordColumns
from quire.streams.read.positions import Start, check_order, parse_start

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from quire import blocking
    from quire.spark.streams.plan import StreamPartition, StreamSplit

logger = logging.getLogger("quire.spark")

LIVE_PARTITION_BYTES = 64 * 1024 * 1024
SKIP_LOST = (
    "To continue after them, start at a later place, or in Python set fail_on_data_loss=False"
)
STREAMS_MAX = 100
"""The largest number of streams in one DataFrame, because each adds to its plan."""
LOOKS_MAX = 5
"""The largest number of times to read the segments and the manifest until there is no gap between.

A gap may only mean that a segment was offloaded and freed between the two reads.
"""


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """The offloaded and the live part of a stream."""

    stream: str
    """The name of the stream."""
    directory: str
    """The directory of the offloaded part."""
    start: DLSN | None
    """The first position in the files, or None if nothing was offloaded."""
    boundary: DLSN
    """The position before which everything is in the files."""
    records: int
    """The number of records in the files."""
    size_bytes: int
    """The size of the files in bytes."""
    files: int
    """The number of files."""
    gaps: tuple[Gap, ...]
    """The records that were lost before they could be offloaded."""
    live_start: DLSN
    """The position of the oldest record that the bookies have."""
    live_segments: int
    """The number of segments that are read from the bookies, from the boundary on."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as the command prints them."""
        return {
            "stream": self.stream,
            "directory": self.directory,
            "start": None if self.start is None else str(self.start),
            "boundary": str(self.boundary),
            "records": self.records,
            "bytes": self.size_bytes,
            "files": self.files,
            "gaps": [str(gap) for gap in self.gaps],
            "live_start": str(self.live_start),
            "live_segments": self.live_segments,
        }


def history(
    spark: SparkSession,
    cluster: ClusterOptions,
    namespace: str,
    stream: str | Sequence[str],
    directory: str,
    *,
    start: Start | str = EARLIEST,
    end: Start | str | None = None,
    columns: Sequence[str] = COLUMNS,
    fail_on_data_loss: bool = True,
    partition_bytes: int = LIVE_PARTITION_BYTES,
) -> DataFrame:
    """Return the records of streams from their offloaded files and from the bookies, each once.

    This call determines what is read, however often and whenever the DataFrame is used. Segments
    may be offloaded and truncated meanwhile. The rows have no order: sort them by `sequence`, or by
    `segment`, `entry` and `slot`. An action on the DataFrame raises an error of Spark, which
    contains the error of a task, for example because bookies do not answer.

    Args:
        spark: The session that reads.
        cluster: The cluster.
        namespace: The namespace of the stream.
        stream: The name of the stream, or the names of up to 100 streams. A filter on the column
            `stream` leaves out the files and live records of the others.
        directory: The directory to which `offload` has written.
        start: The place at which to begin, in each stream.
        end: The place before which to end, in each stream. By default it is the end of what is
            acknowledged now.
        columns: The columns to return, as of the format `quire`, and `date`, which is the date of
            `time` in UTC. By default these are all but `key`, `headers`, `event_time` and `date`.
        fail_on_data_loss: Whether records that exist nowhere are an error. Otherwise they are
            skipped.
        partition_bytes: The approximate largest size of a task that reads from the bookies, in
            bytes.

    Returns:
        The records.

    Raises:
        StreamGapError: Records exist neither in the files nor on the bookies, and
            `fail_on_data_loss` is set.
        HistoryDamagedError: A file is missing or has another size, or the list of the files is
            damaged.
        HistoryError: The directory cannot be read.
        NoSuchNamespaceError: The namespace does not exist.
        NoSuchStreamError: A stream does not exist.
        UsageError: An argument is not valid, or the directory holds the history of another stream.
        MetadataUnavailableError: The metadata store does not answer.
        LedgerError: Too few bookies of a segment answer the driver.
    """
    known = (*ALL_COLUMNS, DATE)
    unknown = [name for name in columns if name not in known]
    if unknown or not columns:
        raise UsageError(
            f"{f'the columns {unknown} do not exist' if unknown else 'no column was named'}. The "
            f"columns are {', '.join(known)}"
        )
    names = [stream] if isinstance(stream, str) else list(dict.fromkeys(stream))
    if not 1 <= len(names) <= STREAMS_MAX:
        raise UsageError(f"history reads 1 to {STREAMS_MAX} streams at once, not {len(names)}")
    first, last = _place(start) or EARLIEST, _place(end, end=True)
    check_order(first, last)
    frames = []
    for name in names:
        found = OffloadHistory(directory, name)
        frame = _of_stream(
            spark, cluster, namespace, found, first, last,
            tuple(columns), fail_on_data_loss, partition_bytes,
        )  # fmt: skip
        frames.append(frame if len(names) == 1 else _named(frame, name))
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


def _named(frame: DataFrame, stream: str) -> DataFrame:
    """Return a frame of one stream with the stream's name as a constant.

    If a filter wants another name, the optimizer removes the frame from the plan.
    """
    from pyspark.sql import functions as F

    return frame.select(
        *[F.lit(stream).alias(name) if name == "stream" else F.col(name) for name in frame.columns]
    )


def _of_stream(
    spark: SparkSession,
    cluster: ClusterOptions,
    namespace: str,
    found: OffloadHistory,
    start: Start,
    end: Start | None,
    columns: Sequence[str],
    fail_on_data_loss: bool,
    partition_bytes: int,
) -> DataFrame:
    with cluster.client() as client:
        plan = call(_planned(client.aio, cluster, namespace, found, start, end, fail_on_data_loss))
    # Rows without a column for the date get it from the time.
    stored = tuple(dict.fromkeys("time" if name == DATE else name for name in columns))
    frames = []
    if plan.files and _spark_reads(spark, found.store):
        frames += _by_spark(spark, found, plan, columns)
    elif plan.files:
        frames.append(_select(_by_tasks(spark, found, plan, stored), columns))
    if plan.live or not frames:
        path = namespace_path(namespace)
        tail = LiveTail(
            cluster, found.directory, stored, plan.cluster_id, plan.life, path, fail_on_data_loss
        )  # fmt: skip
        frames.append(_select(_live(spark, tail, plan.live, partition_bytes), columns))
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


def _by_spark(
    spark: SparkSession, found: OffloadHistory, plan: _Plan, columns: Sequence[str]
) -> list[DataFrame]:
    """Return the records of the files, which Spark reads itself.

    Files in directories of dates are one frame, in which the date is a partition column, so that a
    filter on it leaves out files. Other files are another frame.
    """
    from pyspark.sql.types import DateType

    from quire.spark.streams.reader import spark_schema

    wanted = set(columns) - {DATE}
    schema = spark_schema(COLUMNS if wanted <= set(COLUMNS) else ALL_COLUMNS)
    partitioned = DATE in columns
    frames = []
    for dated in (True, False):
        files = [file for file in plan.files if (partitioned and file.date is not None) == dated]
        if not files:
            continue
        reader = spark.read.options(**VERIFYING).schema(schema)
        if dated:
            reader = reader.schema(spark_schema(schema.names).add(DATE, DateType()))
            reader = reader.option("basePath", found.store.spark_path(DATA, pattern=False))
        whole = reader.parquet(*[found.store.spark_path(f"{DATA}/{one.name}") for one in files])
        if plan.start is not None:
            whole = whole.where(not_before(plan.start))
        if plan.end is not None:
            whole = whole.where(~not_before(plan.end))
        frames.append(_select(whole, columns))
    return frames


def _select(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the columns of a frame. If it has no date, this is that of the time in UTC."""
    from pyspark.sql import functions as F

    if DATE in columns and DATE not in frame.columns:
        day = f"(unix_micros(time) - pmod(unix_micros(time), {DAY_US})) div {DAY_US}"
        frame = frame.withColumn(DATE, F.expr(f"date_from_unix_date(int({day}))"))
    return frame.select(*columns)


def history_facts(
    cluster: ClusterOptions, namespace: str, stream: str, directory: str
) -> HistoryFacts:
    """Return the offloaded and the live part of a stream, without using Spark.

    Args:
        cluster: The cluster.
        namespace: The namespace of the stream.
        stream: The name of the stream.
        directory: The directory to which `offload` has written.

    Returns:
        The facts.

    Raises:
        HistoryDamagedError: A file is missing or has another size, or the list of the files is
            damaged.
        HistoryError: The directory cannot be read.
        NoSuchNamespaceError: The namespace does not exist.
        NoSuchStreamError: The stream does not exist.
        UsageError: The directory holds the history of another stream.
        MetadataUnavailableError: The metadata store does not answer.
    """
    found = OffloadHistory(directory, stream)
    with cluster.client() as client:
        return call(_facts(client.aio, cluster, namespace, found))


def check_history(
    spark: SparkSession, stream: str, directory: str, *, progress: ProgressCallback = silent
) -> list[str]:
    """Read all files of a stream's history, and check them against their digests.

    The digests were taken when the records were read from their ledgers.

    Args:
        spark: The session that runs the tasks.
        stream: The name of the stream.
        directory: The directory to which `offload` has written.
        progress: A function that receives the progress.

    Returns:
        A description of each file that is damaged. Empty if all files are as they were written.

    Raises:
        UsageError: Nothing of the stream was offloaded to the directory.
        HistoryError: The directory cannot be read.
        HistoryDamagedError: A file is missing or has another size, so no file was read.
        Exception: A task failed. The error of Spark contains that of the task.
    """
    found = OffloadHistory(directory, stream)
    manifest = found.newest()
    if manifest is None:
        raise UsageError(
            f"no record of stream {stream} was offloaded to {without_credentials(directory)}",
            remedy="Check the names of the stream and of the directory",
        )
    found.check_files(manifest)
    pieces: list[Piece] = [
        {"directory": found.directory, "stream": stream, "file": file.as_json()}
        for file in manifest.files
    ]
    answers = run_pieces(spark, pieces, verify_piece, what=f"check {stream}", progress=progress)
    return [str(answer["wrong"]) for answer in answers if answer["wrong"] is not None]


def _place(place: Start | str | None, *, end: bool = False) -> Start | None:
    return parse_start(place, end=end) if isinstance(place, str) else place


# -- planning ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    files: tuple[HistoryFile, ...]
    start: DLSN | None
    """The first position to read from the files, or None if no file has records before it."""
    end: DLSN | None
    live: tuple[StreamSplit, ...]
    cluster_id: str = ""
    """The instance id of the cluster."""
    life: str = ""
    """The id of the life of the stream that is read, or "" if the client may not read it."""


async def _planned(
    client: Client,
    cluster: ClusterOptions,
    namespace: str,
    found: OffloadHistory,
    start: Start,
    end: Start | None,
    fail_on_data_loss: bool,
) -> _Plan:
    from quire.spark.streams.view import StreamView, lost

    # A server that lags behind would not show what was acknowledged just before this call.
    await client.metadata.tree.sync()
    async with await open_namespace(client, namespace, password=cluster.password) as streams:
        view = StreamView(streams, found.stream)
        try:
            for look in range(LOOKS_MAX):
                # Segments are freed only after a manifest has their records, so read the manifest
                # after the segments.
                await (view.look() if look else view.open())
                manifest = await _manifest(client, streams, found)
                first, last = await _bounds(view, found, manifest, start, end)
                boundary = view.oldest if manifest is None else manifest.behind
                at = max(first, boundary) if manifest else first
                pieces: list[StreamSplit] = []
                gaps: list[Gap] = []
                if last is None or last > at:
                    known = manifest.sequence if manifest and at == boundary else None
                    pieces, gaps = await view.splits(at, last, known)
                if not gaps or look == LOOKS_MAX - 1:
                    break
        finally:
            view.close()
    gaps = [*_gaps(manifest, first, last), *gaps]
    if gaps and fail_on_data_loss:
        raise lost(found.stream, gaps, SKIP_LOST)
    owner = await client.metadata.instance_id(), view.life or ""
    if manifest is None:
        return _Plan((), None, None, tuple(pieces), *owner)
    found.check_files(manifest)
    files = tuple(
        file
        for file in manifest.files
        if file.last >= first and (last is None or file.first < last)
    )
    cut_first = any(file.first < first for file in files)
    cut_last = last is not None and any(file.last >= last for file in files)
    return _Plan(
        files, first if cut_first else None, last if cut_last else None, tuple(pieces), *owner
    )


async def _manifest(client: Client, streams: Namespace, found: OffloadHistory) -> Manifest | None:
    manifest = found.newest()
    if manifest is not None:
        life = await streams.metadata(found.stream).life()
        cluster = await client.metadata.instance_id()
        where = found.store.location()
        manifest.check(cluster, streams.path, found.stream, life.path, where)
    return manifest


def _gaps(manifest: Manifest | None, first: DLSN, last: DLSN | None) -> list[Gap]:
    """Return the gaps in the offloaded part between `first` and `last`."""
    if manifest is None:
        return []
    gaps = list(manifest.gaps)
    if first < manifest.start:
        gaps.append(Gap("truncated", first, manifest.start))
    return [gap for gap in gaps if gap.behind > first and (last is None or gap.first < last)]


async def _bounds(
    view: Any, found: OffloadHistory, manifest: Manifest | None, start: Start, end: Start | None
) -> tuple[DLSN, DLSN | None]:
    """Return the positions of `start` and `end`. The position of `end` is None if `end` is None."""

    async def position(
        place: Start, find: Callable[[Start], Awaitable[DLSN]], *, is_start: bool
    ) -> DLSN:
        if isinstance(place, DLSN) or manifest is None or place == LATEST:
            return await find(place)
        if place == EARLIEST:
            return manifest.start
        filed = in_files(found, manifest.files, place)
        # Records that may be on both sides of the place are left out at neither end.
        if filed.unsure is not None and is_start:
            return await _first_unsure(view, filed, place)
        return filed.position or max(await find(place), manifest.behind)

    first = await position(start, view.find, is_start=True)
    if end is None:
        return first, None
    return first, await position(end, view.find_end, is_start=False)


async def _first_unsure(view: Any, filed: FoundPlace, start: Start) -> DLSN:
    """Return the position of a start if the files have records that may be before or after it.

    They are before it if there are later records before it, which bookies still have.
    """
    assert filed.unsure is not None
    if filed.position is None:
        live: DLSN = await view.find(start)
        if view.records_between(await view.mark(view.oldest), await view.mark(live)) > 0:
            return max(live, filed.unsure)
    return filed.unsure


async def _facts(
    client: Client, cluster: ClusterOptions, namespace: str, found: OffloadHistory
) -> HistoryFacts:
    from quire.streams.read.positions import oldest_position

    async with await open_namespace(client, namespace, password=cluster.password) as streams:
        segments = await streams.segments(found.stream)
        manifest = await _manifest(client, streams, found)
    oldest = oldest_position(segments)
    if manifest is not None:
        found.check_files(manifest)
    boundary = oldest if manifest is None else manifest.behind
    return HistoryFacts(
        found.stream,
        found.store.location(),
        None if manifest is None else manifest.start,
        boundary,
        0 if manifest is None else manifest.records,
        0 if manifest is None else manifest.size_bytes,
        0 if manifest is None else len(manifest.files),
        () if manifest is None else manifest.gaps,
        oldest,
        sum(1 for segment in segments if segment.lssn >= boundary.lssn),
    )


def not_before(position: DLSN) -> Column:
    """Return the condition for rows at the position or after it."""
    from pyspark.sql import functions as F

    segment, entry, slot = F.col("segment"), F.col("entry"), F.col("slot")
    same_segment, same_entry = segment == position.lssn, entry == position.entry_id
    return functools.reduce(
        operator.or_,
        [
            segment > position.lssn,
            same_segment & (entry > position.entry_id),
            same_segment & same_entry & (slot >= position.slot_id),
        ],
    )


def position_not_before(position: DLSN) -> Any:
    """Return the condition of `not_before` as an expression of pyarrow."""
    import pyarrow.compute as pc

    segment, entry, slot = pc.field("segment"), pc.field("entry"), pc.field("slot")
    same_segment, same_entry = segment == position.lssn, entry == position.entry_id
    return (
        (segment > position.lssn)
        | (same_segment & (entry > position.entry_id))
        | (same_segment & same_entry & (slot >= position.slot_id))
    )


def _spark_reads(spark: SparkSession, store: ArchiveDirectory) -> bool:
    """Return whether Spark has a Hadoop file system for the store.

    A session of Spark Connect cannot be asked. It is assumed to have one.
    """
    java = getattr(spark, "_jvm", None)
    if store.is_local or java is None:
        return True
    scheme = store.spark_path("").partition(":")[0]
    settings = spark._jsc.hadoopConfiguration()
    try:
        java.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
    except Exception:  # noqa: BLE001 - the scheme has no class, or its class cannot be loaded
        return False
    return True


# -- what tasks do ----------------------------------------------------------------------------


def _by_tasks(
    spark: SparkSession, found: OffloadHistory, plan: _Plan, columns: Sequence[str]
) -> DataFrame:
    """Return the records of the files. Python tasks read them through pyarrow, one file each."""
    from quire.spark.streams.reader import spark_schema

    names = tuple(file.name for file in plan.files)
    files = FileTasks(
        found.directory, found.stream, names, tuple(columns), plan.start, plan.end
    )  # fmt: skip
    numbers = spark.range(0, len(names), 1, numPartitions=len(names))
    return numbers.mapInArrow(files.read, spark_schema(columns))


@dataclass(frozen=True, slots=True)
class FileTasks:
    """The files of the offloaded part, in a store that tasks can read and Spark itself cannot."""

    directory: str
    stream: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    start: DLSN | None
    end: DLSN | None

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of those files whose numbers are in the first column of `batches`.

        Raises HistoryDamagedError if a file cannot be read.
        """
        from quire.spark.worker import prepare

        prepare()
        found = OffloadHistory(self.directory, self.stream)
        wanted = None if self.start is None else position_not_before(self.start)
        if self.end is not None:
            before = ~position_not_before(self.end)
            wanted = before if wanted is None else wanted & before
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_file(found, self.names[number], self.columns, wanted)


def _live(
    spark: SparkSession, tail: LiveTail, pieces: Sequence[StreamSplit], partition_bytes: int
) -> DataFrame:
    from quire.spark.streams.plan import partitions
    from quire.spark.streams.reader import spark_schema

    parts = partitions([list(pieces)], partition_bytes=partition_bytes)
    tail = replace(tail, parts=tuple(parts))
    numbers = spark.range(0, len(parts), 1, numPartitions=max(len(parts), 1))
    return numbers.mapInArrow(tail.read, spark_schema(tail.columns))


@dataclass(frozen=True, slots=True)
class LiveTail:
    """The part of a stream that was only on bookies when the read was planned, as tasks read it.

    All fields are plain values, so that Spark can send it to tasks.
    """

    cluster: ClusterOptions
    directory: str
    columns: tuple[str, ...]
    cluster_id: str = ""
    """The instance id of the cluster."""
    life: str = ""
    """The id of the life of the stream that is read, or "" if it is unknown."""
    namespace: str = ""
    """The namespace of the stream."""
    fail_on_data_loss: bool = True
    """Whether records that exist nowhere are an error. Otherwise they are skipped."""
    parts: tuple[StreamPartition, ...] = ()

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of those parts whose numbers are in the first column of `batches`."""
        from quire.spark.worker import prepare

        prepare()
        with self.cluster.client() as client:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for piece in self.parts[number].splits:
                        yield from self.of_piece(client, piece)

    def of_piece(self, client: blocking.Client, piece: StreamSplit) -> Iterator[pa.RecordBatch]:
        """Yield the records of one split, from its ledger or, if that is gone, from the files.

        A copy that `replicate` made may have another ledger with the same entries. Raises
        StreamGapError if the records are in neither and `fail_on_data_loss` is set,
        HistoryDamagedError if a file cannot be read, and the errors of reading a ledger.
        """
        from quire.spark.streams.reader import BATCH_BYTES, BATCH_ROWS, another_ledger

        gathered, upcoming = RecordColumns(self.columns), piece.first
        again: StreamSplit | None = None
        try:
            for run in self._runs(client, piece):
                gathered.add(piece.origin, run, piece.start, piece.end)
                upcoming = run.last + 1
                if gathered.rows >= BATCH_ROWS or gathered.size_bytes >= BATCH_BYTES:
                    yield gathered.batch()
        except (NoSuchLedgerError, ReadError) as error:
            if isinstance(error, ReadError) and _exists(client, piece):
                raise
            again = call(another_ledger(client.aio, self.namespace, piece))
        if gathered.rows:
            yield gathered.batch()
        if upcoming <= piece.last and again is not None:
            yield from self.of_piece(client, replace(again, first=upcoming))
        elif upcoming <= piece.last:
            yield from self._offloaded(replace(piece, first=upcoming))

    def _runs(self, client: blocking.Client, piece: StreamSplit) -> Iterator[Any]:
        from quire.spark.streams.options import StreamReadOptions
        from quire.spark.streams.reader import StreamTasks, spark_schema

        options = StreamReadOptions(
            self.cluster.metadata, password=self.cluster.password, tls=self.cluster.tls
        )
        tasks = StreamTasks(options, spark_schema(self.columns))
        with tasks.open(client, piece) as ledger:
            yield from ledger.read_runs(piece.first, piece.last)

    def _offloaded(self, piece: StreamSplit) -> Iterator[pa.RecordBatch]:
        """Yield the records of a split whose ledger is gone, from the files.

        Raises StreamGapError if the records are not in the files either, unless such records are to
        be skipped. That is also the case if the files are those of another stream, which got the
        name after this one was deleted.
        """
        origin, first = piece.origin, DLSN(piece.origin.segment.lssn, piece.first, 0)
        start = first if piece.start is None else max(first, piece.start)
        end = DLSN(first.lssn, piece.last + 1, 0) if piece.end is None else piece.end
        found = OffloadHistory(self.directory, origin.stream)
        manifest = found.newest()
        ours = manifest is not None and self._is_of_stream(manifest)
        # A stream that was truncated may have been offloaded from a later record on.
        if manifest is None or not ours or manifest.behind <= first or _gaps(manifest, start, end):
            error = StreamGapError(
                f"entries {piece.first} to {piece.last} of segment {first.lssn} of stream "
                f"{origin.stream} (ledger {origin.segment.ledger_id}) were truncated or deleted "
                "while they were read, and were not offloaded before",
                remedy="Read the history again: it begins with the records that still exist",
            )
            if self.fail_on_data_loss:
                raise error
            logger.warning("continuing without lost records: %s", error)
        if manifest is None or not ours:
            return
        wanted = position_not_before(start) & ~position_not_before(end)
        for file in manifest.files:
            if file.last >= start and file.first < end:
                yield from read_file(found, file.name, self.columns, wanted)

    def _is_of_stream(self, manifest: Manifest) -> bool:
        """Return whether the files are those of the stream that is read."""
        if not self.life:
            return True
        owner = manifest.cluster, manifest.life.rpartition("/")[2]
        return owner == (self.cluster_id, self.life)


def _exists(client: blocking.Client, piece: StreamSplit) -> bool:
    """Return whether the ledger of a split still exists.

    Bookies may forget the entries of a deleted ledger before its reader learns that it was deleted.
    """
    try:
        client.ledger_metadata(piece.origin.segment.ledger_id)
    except NoSuchLedgerError:
        return False
    return True
