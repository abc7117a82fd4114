"""The job `history`: what was offloaded of a stream, and what was not yet, as one DataFrame.

Where the one ends and the other begins says the manifest. The live part is read by tasks from the
bookies; if a segment is offloaded and truncated while they read it, they go on in its file.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.blocking.background import call
from quire.client import Client
from quire.errors import NoSuchLedgerError, ReadError, StreamGapError, UsageError
from quire.spark.jobs.archive.manifest import DATA, HistoryFile, Manifest, OffloadHistory
from quire.spark.jobs.archive.parquet_files import read_file, verify_piece
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent
from quire.streams import DLSN, EARLIEST, LATEST, AtSequence, AtTime, AtTxid, Gap, Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.read.arrow import COLUMNS, RecordColumns
from quire.streams.read.positions import Start, parse_start

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from quire import blocking
    from quire.spark.streams.plan import StreamPartition, StreamSplit

LIVE_PARTITION_BYTES = 64 * 1024 * 1024
LOOKS_MAX = 5
"""How often manifest and segments are read until they fit together."""


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """Where the parts of a stream are."""

    stream: str
    directory: str
    start: DLSN | None
    """Of the files; None: nothing was offloaded."""
    boundary: DLSN
    """Everything before it is in the files."""
    records: int
    """In the files."""
    size_bytes: int
    files: int
    gaps: tuple[Gap, ...]
    """That were lost before they could be offloaded."""
    live_start: DLSN
    """The oldest record that the bookies have."""
    live_segments: int
    """That are read from the bookies, from the boundary on."""

    def as_json(self) -> dict[str, Any]:
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
    stream: str,
    directory: str,
    *,
    start: Start | str = EARLIEST,
    end: Start | str | None = None,
    columns: Sequence[str] = COLUMNS,
    fail_on_data_loss: bool = True,
    partition_bytes: int = LIVE_PARTITION_BYTES,
) -> DataFrame:
    """The records of a stream from `start` on, to before `end` (None: what is acknowledged now),
    from the files that `offload` made in `directory` and from the bookies: each once. Columns as of
    the format `quire`.

    What is read is settled by this call, however often and whenever the DataFrame is used; segments
    may be offloaded and truncated meanwhile. Rows have no order of their own: sort by `sequence`,
    or by `segment`, `entry` and `slot`.

    StreamGapError for records that are neither here nor there (False for `fail_on_data_loss`
    passes over them), HistoryDamagedError for a file that is missing or was changed, UsageError for
    the history of another stream."""
    from quire.spark.streams.reader import spark_schema

    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        raise UsageError(f"there is no column {unknown}, only {', '.join(COLUMNS)}")
    found = OffloadHistory(directory, stream)
    with cluster.client() as client:
        plan = call(
            _planned(
                client.aio, cluster, namespace, found,
                _place(start) or EARLIEST, _place(end), fail_on_data_loss,
            )
        )  # fmt: skip
    frames = []
    if plan.files:
        whole = spark.read.schema(spark_schema(COLUMNS)).parquet(
            *[found.store.spark_path(f"{DATA}/{file.name}") for file in plan.files]
        )
        if plan.start is not None:
            whole = whole.where(not_before(plan.start))
        if plan.end is not None:
            whole = whole.where(~not_before(plan.end))
        frames.append(whole.select(*columns))
    if plan.live or not frames:
        tail = LiveTail(cluster, found.directory, tuple(columns))
        frames.append(_live(spark, tail, plan.live, partition_bytes))
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


def history_facts(
    cluster: ClusterOptions, namespace: str, stream: str, directory: str
) -> HistoryFacts:
    """Where the parts of a stream are; no Spark is needed. Raises as `history`, but for gaps."""
    found = OffloadHistory(directory, stream)
    with cluster.client() as client:
        return call(_facts(client.aio, cluster, namespace, found))


def check_history(
    spark: SparkSession, stream: str, directory: str, *, progress: ProgressCallback = silent
) -> list[str]:
    """Read all files of a stream's history, and compare each record with the digests that were
    taken when it was read from its ledger; what is wrong. HistoryDamagedError for what is
    missing."""
    found = OffloadHistory(directory, stream)
    manifest = found.newest()
    if manifest is None:
        raise UsageError(f"nothing of stream {stream} was offloaded to {directory}")
    found.check_files(manifest)
    pieces: list[Piece] = [
        {"directory": found.directory, "stream": stream, "file": file.as_json()}
        for file in manifest.files
    ]
    answers = run_pieces(spark, pieces, verify_piece, what=f"check {stream}", progress=progress)
    return [str(answer["wrong"]) for answer in answers if answer["wrong"] is not None]


def _place(place: Start | str | None) -> Start | None:
    return parse_start(place) if isinstance(place, str) else place


# -- what is to be read -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    files: tuple[HistoryFile, ...]
    start: DLSN | None
    """Where the files have more before it."""
    end: DLSN | None
    live: tuple[StreamSplit, ...]


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

    async with await open_namespace(client, namespace, password=cluster.password) as streams:
        view = StreamView(streams, found.stream)
        try:
            for look in range(LOOKS_MAX):
                # Segments go only after a manifest has what they held: it is read behind them.
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
        raise lost(found.stream, gaps)
    if manifest is None:
        return _Plan((), None, None, tuple(pieces))
    found.check_files(manifest)
    files = tuple(
        file
        for file in manifest.files
        if file.last >= first and (last is None or file.first < last)
    )
    cut_first = any(file.first < first for file in files)
    cut_last = last is not None and any(file.last >= last for file in files)
    return _Plan(files, first if cut_first else None, last if cut_last else None, tuple(pieces))


async def _manifest(client: Client, streams: Namespace, found: OffloadHistory) -> Manifest | None:
    manifest = found.newest()
    if manifest is not None:
        life = await streams.metadata(found.stream).life()
        cluster = await client.metadata.instance_id()
        manifest.check(cluster, streams.path, found.stream, life.path)
    return manifest


def _gaps(manifest: Manifest | None, first: DLSN, last: DLSN | None) -> list[Gap]:
    """What the history itself lacks of what is wanted."""
    if manifest is None:
        return []
    gaps = list(manifest.gaps)
    if first < manifest.start:
        gaps.append(Gap("truncated", first, manifest.start))
    return [gap for gap in gaps if gap.behind > first and (last is None or gap.first < last)]


async def _bounds(
    view: Any, found: OffloadHistory, manifest: Manifest | None, start: Start, end: Start | None
) -> tuple[DLSN, DLSN | None]:
    """The positions that are meant."""

    async def position(place: Start) -> DLSN:
        if isinstance(place, DLSN) or manifest is None or place == LATEST:
            at: DLSN = await view.find(place)
            return at
        if place == EARLIEST:
            return manifest.start
        return in_files(found, manifest.files, place) or max(
            await view.find(place), manifest.behind
        )

    return await position(start), None if end is None else await position(end)


def in_files(history: OffloadHistory, files: Iterable[HistoryFile], place: Start) -> DLSN | None:
    """The first record in the files that is not before the place; None: none is."""
    import pyarrow.compute as pc

    for file in files:
        if isinstance(place, AtTxid):
            column, wanted, greatest = "txid", place.txid, file.txids[1]
        elif isinstance(place, AtSequence):
            column, wanted, greatest = "sequence", place.sequence, file.sequences[1]
        elif isinstance(place, AtTime):
            # Where no time is known, the txid counts, as for live streams.
            column, wanted = "time", place.time_ms
            greatest = max(file.times_us[1] // 1_000 if file.times_us else wanted, file.txids[1])
        else:
            raise UsageError(f"{place!r} is no place in a stream")
        if greatest < wanted:
            continue
        names = ["segment", "entry", "slot", "txid", "sequence", "time"]
        for batch in read_file(history, file.name, names):
            values = batch.column("txid" if column == "time" else column)
            if column == "time":
                times = pc.divide(batch.column("time").cast("int64"), 1_000)
                values = pc.coalesce(times, values)
            at = pc.index(pc.greater_equal(values, wanted), True).as_py()
            if at >= 0:
                row = batch.slice(at, 1).to_pylist()[0]
                return DLSN(row["segment"], row["entry"], row["slot"])
    return None


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
        found.store.uri,
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
    """Rows at the position or behind it."""
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


# -- what tasks do ----------------------------------------------------------------------------


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
    """Reads what was live when it was planned. A value that tasks are given."""

    cluster: ClusterOptions
    directory: str
    columns: tuple[str, ...]
    parts: tuple[StreamPartition, ...] = ()

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records of the parts with these numbers."""
        from quire.spark.worker import prepare

        prepare()
        with self.cluster.client() as client:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for piece in self.parts[number].splits:
                        yield from self.of_piece(client, piece)

    def of_piece(self, client: blocking.Client, piece: StreamSplit) -> Iterator[pa.RecordBatch]:
        from quire.spark.streams.reader import BATCH_BYTES, BATCH_ROWS

        gathered, upcoming = RecordColumns(self.columns), piece.first
        try:
            for run in self._runs(client, piece):
                gathered.add(piece.origin, run, piece.start, piece.end)
                upcoming = run.last + 1
                if gathered.rows >= BATCH_ROWS or gathered.size_bytes >= BATCH_BYTES:
                    yield gathered.batch()
        except (NoSuchLedgerError, ReadError) as error:
            if isinstance(error, ReadError) and _exists(client, piece):
                raise
        if gathered.rows:
            yield gathered.batch()
        if upcoming <= piece.last:
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
        """What is left of a piece whose ledger is gone. StreamGapError: it is nowhere."""
        import pyarrow.compute as pc

        origin, first = piece.origin, DLSN(piece.origin.segment.lssn, piece.first, 0)
        start = first if piece.start is None else max(first, piece.start)
        end = DLSN(first.lssn, piece.last + 1, 0) if piece.end is None else piece.end
        found = OffloadHistory(self.directory, origin.stream)
        manifest = found.newest()
        if manifest is None or manifest.behind <= first:
            raise StreamGapError(
                f"stream {origin.stream}: entries {piece.first} to {piece.last} of segment "
                f"{first.lssn} (ledger {origin.segment.ledger_id}) were truncated while they were "
                "read, and were not offloaded",
                remedy="Ask for the history again",
            )
        segment, entry, slot = pc.field("segment"), pc.field("entry"), pc.field("slot")

        def behind(place: DLSN) -> Any:
            return (entry > place.entry_id) | ((entry == place.entry_id) & (slot >= place.slot_id))

        wanted = (segment == first.lssn) & behind(start) & ~behind(end)
        for file in manifest.files:
            if file.last >= start and file.first < end:
                yield from read_file(found, file.name, self.columns, wanted)


def _exists(client: blocking.Client, piece: StreamSplit) -> bool:
    """Bookies may forget the entries of a deleted ledger before whoever reads it learns why."""
    try:
        client.ledger_metadata(piece.origin.segment.ledger_id)
    except NoSuchLedgerError:
        return False
    return True
