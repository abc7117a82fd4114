"""The job `offload`: closed segments of streams to Parquet, with their space on bookies freed.

For each stream, the job takes a claim (`archive.manifest`) and divides the segments that are old
enough into pieces. A task copies each piece into one file and verifies it
(`archive.parquet_files`). The job compares what the tasks found with the stream's metadata, and
then a manifest names the files. Only after that the stream is truncated up to where the manifest
extends. If the job ends in between, the next one removes the files that no manifest names, and
continues.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from quire._runtime.batches import batches
from quire._runtime.tasks import TaskSet, each
from quire.blocking.background import call
from quire.client import Client
from quire.errors import (
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchStreamError,
    QuireError,
    StreamGapError,
    UsageError,
)
from quire.spark.failures import one_error
from quire.spark.jobs.archive.manifest import (
    HistoryFile,
    Manifest,
    OffloadClaim,
    OffloadHistory,
    with_files,
)
from quire.spark.jobs.archive.merge import (
    bytes_of,
    merge_piece,
    merges,
    require_no_table,
    with_merged,
    without_expired,
)
from quire.spark.jobs.archive.offload_plan import (
    OffloadPlan,
    OffloadStep,
    check_answers,
    check_same_stream,
    eligible,
    together,
    turns_of,
)
from quire.spark.jobs.archive.offload_results import (
    OffloadResult,
    StreamOffload,
    StreamPreview,
    preview_of,
)
from quire.spark.jobs.archive.parquet_files import COMPRESSIONS, SegmentPart, write_piece
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.spark.jobs.locking import WAIT_S, take_lock
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent
from quire.spark.streams.plan import lay_out
from quire.streams import DLSN, Gap, StreamSegment
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import free, truncate, would_free
from quire.streams.read.positions import oldest_position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 * 1024 * 1024
"""The approximate size of a file, in bytes of the ledgers."""
TURN_BYTES = 4 * 1024 * 1024 * 1024
"""The approximate number of bytes to copy before the next manifest is written.

A job that is killed repeats at most this much.
"""
FAILED_IN_A_ROW_MAX = 3
"""The number of consecutive streams that must fail for the job to give up the other streams.

The cluster or the directory has then probably failed.
"""
PARTITIONS = ("date",)
FORMATS = ("parquet", "delta", "iceberg")
PATTERN_SIGNS = "*?["
LOCKS = ".quire/offloads"
"""The path of the locks below a namespace."""


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """The options of `offload` for each stream.

    Raises:
        UsageError: A value is not valid, or values contradict each other.
    """

    older_than_s: float = 0.0
    """Offload only segments that were closed at least this many seconds ago."""
    larger_than: int | None = None
    """Offload the oldest segments until at most this many bytes are left that were not copied.

    The segment in progress does not count. None means no limit.

    If `older_than_s` is given too, one of the two conditions is enough.
    """
    truncate: bool = False
    """Whether to truncate the stream after what is offloaded, and free its ledgers.

    This applies only to what was verified and is named by a durable manifest, also of former runs.
    """
    format: str = "parquet"
    """The format: "parquet", "delta" or "iceberg".

    "delta" also adds the files to a Delta table (DIRECTORY/STREAM), and "iceberg" to the table
    `table` of a catalog.
    """
    table: str | None = None
    """The Iceberg table, such as NAMESPACE.NAME."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """The properties of the Iceberg catalog for pyiceberg."""
    partition_by: str | None = None
    """The partition of the files: "date" puts the records of each date in UTC into a directory.

    Later runs do the same, also without this option. Earlier files stay where they are.
    """
    merge_below: int | None = None
    """Merge neighbouring files that are smaller than this many bytes, or None to merge none."""
    compression: str = "zstd"
    """The compression of the files: "zstd", "lz4", "snappy", "gzip" or "none"."""
    file_bytes: int = FILE_BYTES
    """The approximate size of a file, in bytes of the ledgers."""
    turn_bytes: int = TURN_BYTES
    """The approximate number of bytes to copy before the next manifest is written."""
    fail_on_data_loss: bool = True
    """Whether records that no longer exist are an error. Otherwise they are noted and skipped."""
    wait_s: float = WAIT_S
    """Seconds to wait for another job that offloads the same stream."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("format", self.format, FORMATS),
            ("compression", self.compression, COMPRESSIONS),
            ("partition_by", self.partition_by or PARTITIONS[0], PARTITIONS),
        ):
            if value not in known:
                raise UsageError(
                    f"the offload option {name} must be one of {', '.join(known)}, not {value!r}"
                )
        sizes = (
            self.file_bytes,
            self.turn_bytes,
            1 if self.merge_below is None else self.merge_below,
        )
        if min(sizes) < 1 or (self.larger_than or 0) < 0:
            raise UsageError(
                "the offload options file_bytes, turn_bytes and merge_below must be at least 1, "
                "and larger_than must not be negative, but they are "
                f"{self.file_bytes}, {self.turn_bytes}, {self.merge_below} and {self.larger_than}"
            )
        if self.merge_below is not None and self.format != "parquet":
            raise UsageError(
                f"files of a table ({self.format}) cannot be merged with merge_below",
                remedy="Compact the table by its own means, such as OPTIMIZE or rewrite_data_files",
            )
        if min(self.older_than_s, self.wait_s) < 0:
            raise UsageError(
                "the offload options older_than_s and wait_s must not be negative, but they are "
                f"{self.older_than_s:g} and {self.wait_s:g}"
            )
        if self.format != "iceberg" and (self.table or self.catalog):
            raise UsageError(
                f"the offload options table and catalog are those of an Iceberg table, but the "
                f"format is {self.format}",
                remedy="Set the format to iceberg, or leave them out",
            )
        if self.format == "iceberg" and not self.table:
            raise UsageError(
                "the format iceberg needs the name of a table",
                remedy="Give it with --table NAMESPACE.NAME (table=...)",
            )


def offload(
    spark: SparkSession,
    cluster: ClusterOptions,
    namespace: str,
    streams: str | Sequence[str],
    directory: str,
    *,
    progress: ProgressCallback = silent,
    **options: Any,
) -> OffloadResult:
    """Copy the closed segments of streams to Parquet files.

    On return everything in the result is durable. After any failure, also of the driver, run the
    job again: no record is duplicated or missing. A stream that cannot be offloaded is reported in
    `failed`. If only one stream was named, or if 3 streams fail in a row, the error is raised.

    Args:
        spark: The session that runs the tasks.
        cluster: The cluster.
        namespace: The namespace of the streams.
        streams: The names of the streams, or shell patterns of them.
        directory: The directory for the files, as a path or a URI. Every machine that runs tasks
            must reach it under this name.
        progress: A function that receives the progress.
        **options: The fields of `OffloadOptions`.

    Returns:
        What was done with each stream.

    Raises:
        UsageError: An argument is not valid, or the directory holds the history of another stream.
        NoSuchNamespaceError: The namespace does not exist.
        NoSuchStreamError: A stream that was named does not exist, or no stream matches a pattern.
        StreamGapError: Records of the stream no longer exist, and `fail_on_data_loss` is set.
        StreamLockedError: Another job offloads the stream, and did not end within `wait_s`.
        StreamDamagedError: A segment has other records than its metadata says.
        HistoryError: The directory cannot be used, or another job has begun.
        HistoryDamagedError: A file is missing or has another size, or the list of the files is
            damaged.
        JobError: Spark or a task failed, for example because bookies do not answer.
        MetadataUnavailableError: The metadata store does not answer the driver. This error ends the
            job at once, however many streams were named.
    """
    wanted = OffloadOptions(**options)
    store = ArchiveDirectory(directory)
    began_s = time.monotonic()
    done: dict[str, StreamOffload] = {}
    failed: dict[str, QuireError] = {}
    in_a_row = 0
    with cluster.client() as client:
        names, alone = call(_names(client.aio, cluster, namespace, streams))
        for name in names:
            try:
                with _run_of(client.aio, cluster, namespace, name, store, wanted) as run:
                    done[name] = run.all(spark, progress)
                in_a_row = 0
            except Exception as error:
                told = one_error(error, f"offload {name}")
                in_a_row += 1
                if not isinstance(told, QuireError) or isinstance(told, MetadataUnavailableError):
                    raise
                if alone or in_a_row >= FAILED_IN_A_ROW_MAX:
                    raise told from error
                failed[name] = told
    return OffloadResult(tuple(done.values()), failed, time.monotonic() - began_s)


def preview_offload(
    cluster: ClusterOptions,
    namespace: str,
    streams: str | Sequence[str],
    directory: str,
    **options: Any,
) -> list[StreamPreview]:
    """Return what `offload` would do now with these arguments, without using Spark.

    Nothing changes in the cluster or in the directory. No lock is taken, so a job that runs
    meanwhile may do a part of what the preview lists.

    Args:
        cluster: The cluster.
        namespace: The namespace of the streams.
        streams: The names of the streams, or shell patterns of them.
        directory: The directory for the files.
        **options: The fields of `OffloadOptions`.

    Returns:
        The preview of each stream. A stream that cannot be offloaded has an `error`.

    Raises:
        UsageError: An argument is not valid.
        NoSuchNamespaceError: The namespace does not exist.
        NoSuchStreamError: A stream that was named does not exist, or no stream matches a pattern.
        MetadataUnavailableError: The metadata store does not answer.
        QuireError: The only stream that was named cannot be offloaded. See `offload`.
    """
    wanted, store = OffloadOptions(**options), ArchiveDirectory(directory)
    with cluster.client() as client:
        names, alone = call(_names(client.aio, cluster, namespace, streams))
        found = []
        for name in names:
            try:
                with _run_of(
                    client.aio, cluster, namespace, name, store, wanted, locked=False
                ) as run:
                    found.append(run.preview())
            except MetadataUnavailableError:
                raise
            except QuireError as error:
                if alone:
                    raise
                found.append(StreamPreview.of_failure(name, error))
        return found


async def _names(
    client: Client, cluster: ClusterOptions, namespace: str, wanted: str | Sequence[str]
) -> tuple[list[str], bool]:
    """Return the selected streams, and whether the caller named exactly one, without patterns."""
    texts = [wanted] if isinstance(wanted, str) else list(wanted)
    async with await open_namespace(client, namespace, password=cluster.password) as opened:
        # A stream whose name looks like a pattern is taken as a name.
        named = [
            text
            for text in texts
            if not set(text) & set(PATTERN_SIGNS) or await opened.exists(text)
        ]
        for name in named:
            await opened.metadata(name).require()
        patterns = [text for text in texts if text not in named]
        found = await opened.streams() if patterns else []
    chosen = set(named)
    for pattern in patterns:
        chosen.update(fnmatch.filter(found, pattern))
    if not chosen:
        raise NoSuchStreamError(
            f"namespace {namespace} has no stream that matches {', '.join(patterns)}",
            remedy=f"`quire stream list -n {namespace}` shows the streams",
        )
    return sorted(chosen), texts == named and len(named) == 1


# -- one stream -------------------------------------------------------------------------------


@contextmanager
def _run_of(
    client: Client,
    cluster: ClusterOptions,
    namespace: str,
    name: str,
    store: ArchiveDirectory,
    options: OffloadOptions,
    *,
    locked: bool = True,
) -> Iterator[_Run]:
    """Yield the run on one stream. With `locked` it first waits until no other job offloads it."""
    stack, tasks = AsyncExitStack(), TaskSet()

    async def opened() -> _Run:
        streams = await stack.enter_async_context(
            await open_namespace(client, namespace, password=cluster.password)
        )
        stack.push_async_callback(tasks.close)
        if locked:
            # Correctness does not depend on the lock.
            lock = await take_lock(
                client, f"{streams.path}/{LOCKS}", name, tasks, options.wait_s,
                f"offloading stream {name}", "Nothing was offloaded by this job",
            )  # fmt: skip
            stack.push_async_callback(lock.release)
        settings = await streams.stream_settings(name)
        return _Run(
            cluster,
            client,
            streams.metadata(name),
            store,
            options,
            await client.metadata.instance_id(),
            (await streams.metadata(name).life()).path,
            settings.txids == "time",
        )

    try:
        yield call(opened())
    finally:
        call(stack.aclose())


@dataclass(slots=True)
class _Run:
    cluster: ClusterOptions
    client: Client
    metadata: StreamMetadata
    store: ArchiveDirectory
    options: OffloadOptions
    cluster_id: str
    life: str
    txid_is_time: bool
    freed: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.metadata.paths.name

    def all(self, spark: SparkSession, progress: ProgressCallback) -> StreamOffload:
        """Offload the stream, and return what was done."""
        history = OffloadHistory(self.store, self.name)
        found = history.newest()
        if found is not None:
            self._check(found)
        if self.options.merge_below is not None:
            require_no_table(history)
        claim = history.claim()
        if claim.manifest is not None:
            self._check(claim.manifest)
            history.check_files(claim.manifest)
        before = claim.manifest
        plan = call(self._planned(before))
        now_ms = self.client.clock.now_ms()
        claim.settle(without_expired(before or self._empty(plan.start), now_ms))
        self._publish(claim)
        self._truncate(claim)
        for turn in plan.turns:
            self._turn(spark, claim, plan.gaps, turn, progress)
        told = self._told(claim, before, plan)
        merged = self._merge(spark, claim, progress)
        claim.check()
        claim.sweep()
        return replace(told, merged_files=merged)

    def preview(self) -> StreamPreview:
        """Return what `all` would do now. Nothing is changed."""
        before = OffloadHistory(self.store, self.name).newest()
        if before is not None:
            self._check(before)
        plan = call(self._planned(before))
        freed = call(self._would_free(plan)) if self.options.truncate else []
        preview = preview_of(self.name, plan, self.options.file_bytes, freed)
        below_bytes = self.options.merge_below
        if before is None or below_bytes is None:
            return preview
        require_no_table(OffloadHistory(self.store, self.name))
        groups = merges(before.files, below_bytes)
        return replace(preview, merged_files=sum(map(len, groups)))

    async def _would_free(self, plan: OffloadPlan) -> list[StreamSegment]:
        return await would_free(self.client, self.metadata, plan.behind)

    def _empty(self, start: DLSN) -> Manifest:
        namespace = self.metadata.paths.namespace
        return Manifest(self.cluster_id, namespace, self.name, self.life, start, start)

    def _check(self, manifest: Manifest) -> None:
        namespace, where = self.metadata.paths.namespace, self.store.location()
        manifest.check(self.cluster_id, namespace, self.name, self.life, where)

    def _told(
        self, claim: OffloadClaim, before: Manifest | None, plan: OffloadPlan
    ) -> StreamOffload:
        assert claim.manifest is not None
        files, known = claim.manifest.files, len(before.files) if before else 0
        return StreamOffload(
            self.name,
            str(claim.manifest.behind),
            sum(file.rows for file in files[known:]),
            len(files) - known,
            sum(file.size_bytes for file in files[known:]),
            plan.ledger_bytes,
            tuple(self.freed),
            0,
            sum(file.rows for file in files),
        )

    # -- planning -------------------------------------------------------------------------

    async def _planned(self, manifest: Manifest | None) -> OffloadPlan:
        """Return what is to be copied. Raises StreamGapError if records are gone."""
        options = self.options
        segments = await self.metadata.segments()
        completed = list(takewhile(lambda segment: not segment.in_progress, segments))
        start = manifest.behind if manifest else oldest_position(segments)
        check_same_stream(self.name, manifest, completed, self.store.location())
        sequence = manifest.sequence if manifest else None
        laid, gaps = lay_out(completed, start, None, sequence)
        found = await each([one.segment for one in laid], self._size)
        ranges = [one for one, size in zip(laid, found) if size is not None]
        gaps += [
            Gap("lost", one.start, one.segment.first_dlsn.next_segment())
            for one, size in zip(laid, found)
            if size is None
        ]
        gaps.sort(key=lambda gap: gap.first)
        if gaps and options.fail_on_data_loss:
            raise StreamGapError(
                f"stream {self.name} lacks records that were not offloaded before: "
                f"{'; '.join(map(str, gaps))}",
                remedy="Continue after them with --skip-lost (fail_on_data_loss=False)",
            )
        wanted = [one.segment for one in ranges]
        sizes = [size for size in found if size is not None]
        by_age = options.larger_than is None or options.older_than_s > 0
        newest_ms = self.client.clock.now_ms() - round(options.older_than_s * 1_000)
        count = eligible(
            wanted, sizes,
            closed_before_ms=newest_ms if by_age else None, larger_than=options.larger_than,
        )  # fmt: skip
        turns = turns_of(
            ranges[:count], sizes[:count],
            file_bytes=options.file_bytes, turn_bytes=options.turn_bytes,
        )  # fmt: skip
        return OffloadPlan(start, tuple(gaps), tuple(turns), sum(sizes[:count]))

    async def _size(self, segment: StreamSegment) -> int | None:
        """Return the payload bytes in a segment's ledger, or None if the ledger was deleted."""
        try:
            return max((await self.client.ledger_metadata(segment.ledger_id)).length, 0)
        except NoSuchLedgerError:
            return None

    # -- one turn -------------------------------------------------------------------------

    def _turn(
        self,
        spark: SparkSession,
        claim: OffloadClaim,
        gaps: Sequence[Gap],
        turn: OffloadStep,
        progress: ProgressCallback,
    ) -> None:
        parts = together(turn.parts, self.options.file_bytes)
        pieces = [self._piece(claim, part) for part in parts]
        answers = run_pieces(
            spark, pieces, self._task(), what=f"offload {self.name}", progress=progress
        )
        made = [one for answer in answers for one in answer["files"]]
        check_answers(self.name, turn.parts, made)
        files = [HistoryFile.from_json(one["file"]) for one in made]
        manifest = claim.manifest
        assert manifest is not None
        here = [gap for gap in gaps if manifest.behind <= gap.first < turn.behind]
        claim.commit(with_files(manifest, files, here, turn.behind, turn.sequence, turn.ledger_id))
        self._publish(claim)
        self._truncate(claim)

    def _piece(self, claim: OffloadClaim, parts: Sequence[SegmentPart]) -> Piece:
        return {
            "directory": self.store.uri,
            "stream": self.name,
            "label": claim.label,
            "txid_is_time": self.txid_is_time,
            "compression": self.options.compression,
            "by_date": self._by_date(claim.manifest),
            "parts": [part.as_json() for part in parts],
        }

    def _merge(self, spark: SparkSession, claim: OffloadClaim, progress: ProgressCallback) -> int:
        """Merge small files, if the options say so, and return the number of files replaced."""
        if self.options.merge_below is None or claim.manifest is None:
            return 0
        groups = merges(claim.manifest.files, self.options.merge_below)
        for turn in batches(groups, bytes_of, self.options.turn_bytes):
            pieces: list[Piece] = [
                {
                    "directory": self.store.uri,
                    "stream": self.name,
                    "label": claim.label,
                    "compression": self.options.compression,
                    "files": [file.as_json() for file in group],
                }
                for group in turn
            ]
            answers = run_pieces(
                spark, pieces, merge_piece, what=f"merge {self.name}", progress=progress
            )
            files = [HistoryFile.from_json(answer["file"]) for answer in answers]
            now_ms = self.client.clock.now_ms()
            claim.commit(with_merged(claim.manifest, turn, files, now_ms))
        return sum(map(len, groups))

    def _by_date(self, manifest: Manifest | None) -> bool:
        wanted = self.options.partition_by == "date"
        return wanted or (manifest is not None and manifest.by_date)

    def _task(self) -> Callable[[Piece], Piece]:
        cluster = self.cluster
        return lambda piece: write_piece(cluster, piece)

    # -- what depends on a manifest ----------------------------------------------------------

    def _publish(self, claim: OffloadClaim) -> None:
        """Add new files to the Delta or Iceberg table, if the options name such a format."""
        if self.options.format == "parquet" or claim.manifest is None:
            return
        from quire.spark.jobs.archive import tables as parquet_tables

        by_date = self._by_date(claim.manifest)
        if self.options.format == "delta":
            parquet_tables.to_delta(claim.history, claim.manifest, by_date)
        else:
            assert self.options.table is not None
            claim.history.mark_iceberg(self.options.table)
            parquet_tables.to_iceberg(
                claim.history, claim.manifest, self.options.table, self.options.catalog, by_date
            )

    def _truncate(self, claim: OffloadClaim) -> None:
        """Truncate the stream up to what a durable manifest names, and never beyond it."""
        manifest = claim.manifest
        if not self.options.truncate or manifest is None:
            return

        async def freed() -> list[StreamSegment]:
            await truncate(self.metadata, manifest.behind, life=self.life)
            return await free(self.client, self.metadata)

        self.freed += [segment.ledger_id for segment in call(freed())]


__all__ = [
    "FORMATS",
    "OffloadOptions",
    "OffloadResult",
    "StreamOffload",
    "StreamPreview",
    "offload",
    "preview_offload",
]
