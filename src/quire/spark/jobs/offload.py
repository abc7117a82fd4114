"""The job `offload`: closed segments of streams to Parquet, and the bookies freed of them.

For each stream, under a claim (`parquet_manifest`): segments that are old enough are laid out as
pieces, each of which a task copies into one file and verifies (`parquet_files`); what the tasks
found is compared with the stream's metadata; a manifest names the files; only then the stream is
truncated up to where the manifest goes. Whatever ends the job in between, the next one removes what
does not count and goes on.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from quire._runtime.tasks import TaskSet, each
from quire.blocking.background import call
from quire.client import Client
from quire.errors import (
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchStreamError,
    QuireError,
    StreamGapError,
    StreamLockedError,
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
from quire.spark.jobs.archive.offload_plan import (
    OffloadPlan,
    OffloadStep,
    check_answers,
    check_same_stream,
    eligible,
    together,
    turns_of,
)
from quire.spark.jobs.archive.parquet_files import COMPRESSIONS, SegmentPart, write_piece
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent
from quire.spark.streams.plan import lay_out
from quire.streams import DLSN, Gap, StreamSegment
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import free, truncate, would_free
from quire.streams.read.positions import oldest_position
from quire.streams.write.lock import StreamLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 * 1024 * 1024
"""Of a file, in bytes of the ledgers, about."""
TURN_BYTES = 4 * 1024 * 1024 * 1024
"""So much is copied, about, before a manifest counts it: what a job that is killed does again."""
WAIT_S = 30.0
"""For another job on the same stream: the session of one that was killed ends within this time."""
FAILED_IN_A_ROW_MAX = 3
"""Streams: then it is the cluster that fails, or the directory."""
FORMATS = ("parquet", "delta", "iceberg")
PATTERN_SIGNS = "*?["
LOCKS = ".quire/offloads"
"""Below a namespace."""


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """What `offload` does with each stream."""

    older_than_s: float = 0.0
    larger_than: int | None = None
    truncate: bool = False
    format: str = "parquet"
    table: str | None = None
    catalog: Mapping[str, str] = field(default_factory=dict)
    compression: str = "zstd"
    file_bytes: int = FILE_BYTES
    turn_bytes: int = TURN_BYTES
    fail_on_data_loss: bool = True
    wait_s: float = WAIT_S

    def __post_init__(self) -> None:
        for name, value, known in (
            ("format", self.format, FORMATS),
            ("compression", self.compression, COMPRESSIONS),
        ):
            if value not in known:
                raise UsageError(f"there is no {name} {value!r}, only {', '.join(known)}")
        if min(self.file_bytes, self.turn_bytes) < 1 or (self.larger_than or 0) < 0:
            raise UsageError("a size is negative, or nothing")
        if min(self.older_than_s, self.wait_s) < 0:
            raise UsageError("a time is negative")
        if self.format == "iceberg" and not self.table:
            raise UsageError("format iceberg needs a table", remedy="Such as NAMESPACE.NAME")


@dataclass(frozen=True, slots=True)
class StreamPreview:
    stream: str
    start: str
    """The position from which on it would be offloaded."""
    behind: str
    """The position up to before which it would be."""
    segments: int
    """That would be copied, whole or from `start` on."""
    files: int
    """That would be written, at most: what holds no records has none."""
    ledger_bytes: int
    """What is copied takes in ledgers (each replica)."""
    freed_ledgers: tuple[int, ...]
    """That would be deleted: with `truncate` what was offloaded before and what would be now."""
    error: str = ""
    """The reason why the stream cannot be offloaded; then the rest is empty."""

    @classmethod
    def of_failure(cls, stream: str, error: Exception) -> StreamPreview:
        return cls(stream, "", "", 0, 0, 0, (), str(error))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "freed_ledgers": list(self.freed_ledgers)}


def preview_of(
    stream: str, plan: OffloadPlan, file_bytes: int, freed: Sequence[StreamSegment]
) -> StreamPreview:
    return StreamPreview(
        stream,
        str(plan.start),
        str(plan.behind),
        len({part.segment.lssn for turn in plan.turns for part in turn.parts}),
        sum(len(list(together(turn.parts, file_bytes))) for turn in plan.turns),
        plan.ledger_bytes,
        tuple(segment.ledger_id for segment in freed),
    )


@dataclass(frozen=True, slots=True)
class StreamOffload:
    """What was done for one stream."""

    stream: str
    behind: str
    """The position up to before which it is offloaded now."""
    records: int
    files: int
    size_bytes: int
    """Of these files."""
    ledger_bytes: int
    """What these records take in ledgers (each replica)."""
    freed_ledgers: tuple[int, ...]
    total_records: int
    """Offloaded now and before."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "behind": self.behind,
            "records": self.records,
            "files": self.files,
            "bytes": self.size_bytes,
            "ledger_bytes": self.ledger_bytes,
            "freed_ledgers": list(self.freed_ledgers),
            "total_records": self.total_records,
        }


@dataclass(frozen=True, slots=True)
class OffloadResult:
    streams: tuple[StreamOffload, ...]
    failed: Mapping[str, QuireError] = field(default_factory=dict)
    """By stream. What they had before, they have still."""
    seconds: float = 0.0

    @property
    def records(self) -> int:
        return sum(one.records for one in self.streams)

    @property
    def files(self) -> int:
        return sum(one.files for one in self.streams)

    @property
    def freed_ledgers(self) -> int:
        return sum(len(one.freed_ledgers) for one in self.streams)

    @property
    def ledger_bytes(self) -> int:
        return sum(one.ledger_bytes for one in self.streams)

    def as_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "files": self.files,
            "ledger_bytes": self.ledger_bytes,
            "freed_ledgers": self.freed_ledgers,
            "seconds": round(self.seconds, 3),
            "streams": [one.as_json() for one in self.streams],
            "failed": {name: str(error) for name, error in self.failed.items()},
        }


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
    """Copy the closed segments of streams (names, and patterns as in a shell) to Parquet files in
    `directory`, which every machine that runs tasks reaches under this name: a path, or a URI.

    `options` are the fields of `OffloadOptions`:
    - `older_than_s`: only segments that were closed so long ago; `larger_than`: only while the
      stream has more bytes than this on its bookies. Where both are given, either is enough.
    - `truncate`: behind what is verified and named by a durable manifest, truncate the stream and
      free its ledgers, in this run and for what former runs have offloaded.
    - `format`: "parquet"; "delta" also adds the files to a Delta table (DIRECTORY/STREAM),
      "iceberg" to the table `table` of a catalog (`catalog`: properties of pyiceberg).
    - `compression`, `file_bytes`, `turn_bytes` (after how much a manifest is written).
    - `fail_on_data_loss`: False notes records that are gone, and goes on behind them.
    - `wait_s`: for another job that offloads the same stream.

    On return everything that is told is durable. Run again after any failure, also of the driver:
    no record is twice or missing. A stream that cannot be offloaded is told in `failed`; where only
    one was named, or several fail in a row, the error is raised.
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

    Nothing changes in the cluster or in `directory`. No lock is taken, so a job that runs meanwhile
    may do part of it. A stream that cannot be offloaded has an `error`; if it is the only one that
    was named, the error is raised.
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
    """The streams that are meant; whether it is one that was named."""
    texts = [wanted] if isinstance(wanted, str) else list(wanted)
    async with await open_namespace(client, namespace, password=cluster.password) as opened:
        # A name may look like a pattern, and then it is the name.
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
            f"namespace {namespace} has no stream that matches {', '.join(patterns)}"
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
    """`locked`: nobody else offloads the stream meanwhile."""
    stack, tasks = AsyncExitStack(), TaskSet()

    async def opened() -> _Run:
        streams = await stack.enter_async_context(
            await open_namespace(client, namespace, password=cluster.password)
        )
        stack.push_async_callback(tasks.close)
        if locked:
            lock = await _lock(client, streams.path, name, tasks, options.wait_s)
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


async def _lock(
    client: Client, namespace: str, name: str, tasks: TaskSet, wait_s: float
) -> StreamLock:
    """Keeps jobs from interrupting each other; that nothing is lost does not depend on it."""
    path = f"{namespace}/{LOCKS}/{quote(name, safe='')}"
    await client.metadata.tree.make_path(path)
    lock = StreamLock(client.metadata.tree, path, tasks)
    try:
        await lock.acquire(wait_s)
    except StreamLockedError:
        raise StreamLockedError(
            f"another job is offloading stream {name}, and has not ended within {wait_s:g} s",
            remedy="Wait for it; one that was killed lets go when its session ends",
        ) from None
    return lock


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
        history = OffloadHistory(self.store, self.name)
        found = history.newest()
        if found is not None:
            self._check(found)
        claim = history.claim()
        if claim.manifest is not None:
            self._check(claim.manifest)
            history.check_files(claim.manifest)
        before = claim.manifest
        plan = call(self._planned(before))
        claim.settle(before or self._empty(plan.start))
        self._publish(claim)
        self._truncate(claim)
        for turn in plan.turns:
            self._turn(spark, claim, plan.gaps, turn, progress)
        claim.check()
        claim.sweep()
        return self._told(claim, before, plan)

    def preview(self) -> StreamPreview:
        """What `all` would do now; nothing is changed."""
        before = OffloadHistory(self.store, self.name).newest()
        if before is not None:
            self._check(before)
        plan = call(self._planned(before))
        freed = call(self._would_free(plan)) if self.options.truncate else []
        return preview_of(self.name, plan, self.options.file_bytes, freed)

    async def _would_free(self, plan: OffloadPlan) -> list[StreamSegment]:
        return await would_free(self.client, self.metadata, plan.behind)

    def _empty(self, start: DLSN) -> Manifest:
        namespace = self.metadata.paths.namespace
        return Manifest(self.cluster_id, namespace, self.name, self.life, start, start)

    def _check(self, manifest: Manifest) -> None:
        manifest.check(self.cluster_id, self.metadata.paths.namespace, self.name, self.life)

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
            sum(file.rows for file in files),
        )

    # -- what -----------------------------------------------------------------------------

    async def _planned(self, manifest: Manifest | None) -> OffloadPlan:
        """StreamGapError for what is gone."""
        options = self.options
        segments = await self.metadata.segments()
        completed = list(takewhile(lambda segment: not segment.in_progress, segments))
        start = manifest.behind if manifest else oldest_position(segments)
        check_same_stream(self.name, manifest, completed)
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
                f"stream {self.name}: {'; '.join(map(str, gaps))}, and were not offloaded",
                remedy="Go on behind them with --skip-lost (fail_on_data_loss=False)",
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
        """None if its ledger was deleted, so that its records are lost."""
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
        check_answers(self.name, turn.parts, answers)
        files = [HistoryFile.from_json(a["file"]) for a in answers if a["file"] is not None]
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
            "parts": [part.as_json() for part in parts],
        }

    def _task(self) -> Callable[[Piece], Piece]:
        cluster = self.cluster
        return lambda piece: write_piece(cluster, piece)

    # -- what depends on a manifest ----------------------------------------------------------

    def _publish(self, claim: OffloadClaim) -> None:
        """To the table, what it has not yet."""
        if self.options.format == "parquet" or claim.manifest is None:
            return
        from quire.spark.jobs.archive import tables as parquet_tables

        if self.options.format == "delta":
            parquet_tables.to_delta(claim.history, claim.manifest)
        else:
            assert self.options.table is not None
            parquet_tables.to_iceberg(
                claim.history, claim.manifest, self.options.table, self.options.catalog
            )

    def _truncate(self, claim: OffloadClaim) -> None:
        """Behind what counts; never what is not in a durable manifest."""
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
