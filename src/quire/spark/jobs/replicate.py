"""The job `replicate`: streams copied to another cluster, once or continuously.

A copy has the same segments with the same entries, byte for byte, at the same positions.

    result = replicate(spark, ClusterOptions(here), ClusterOptions(there), "/team")
    replicate(spark, ClusterOptions(here), ClusterOptions(there), "/team", continuous=True,
              stop=threading.Event())

The bytes of completed segments pass through Spark's tasks. Those of segments in progress pass
through the driver, and in a continuous run those of small completed segments as well. None pass
through the JVM. Every record is in the copy once, whatever is killed: run the job again, and it
continues. `docs/guides/spark/pipelines-replicate.md` defines what "the same" means.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from quire import blocking
from quire._runtime.names.process_name import process_name
from quire._runtime.tasks import TaskGroup, each
from quire._runtime.units import counted
from quire.blocking.background import call
from quire.client import Client
from quire.errors import (
    NoSuchKeyError,
    NoSuchNamespaceError,
    NoSuchStreamError,
    QuireError,
    UsageError,
)
from quire.replication.marks.copy_notes import TEXT_MAX, CopyNote, StreamLag, shown_uri
from quire.spark.jobs.replicate_copy import SegmentCopier, copy_piece
from quire.spark.jobs.replicate_note import noted
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent
from quire.streams import Namespace
from quire.streams.mirror.lag import Lag
from quire.streams.mirror.leftovers import Leftovers
from quire.streams.mirror.mirror import PASSING, Mirror
from quire.streams.mirror.topics import TopicCopies
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import current_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


GAP_CHOICES = ("raise", "skip")
PATIENCE_S = 60.0
REPORT_S = 1.0
KEEP_S = 5.0
"""Seconds between two checks for what the source truncated, and for new streams."""
EXPLICIT_LAC_S = 0.2
"""Seconds after which bookies of the copy learn at the latest that its last entry is acknowledged.

Readers of the copy can then see the entry.
"""
MEASURE_TIMEOUT_S = 10.0
"""Seconds to measure how far the copies are behind, for the note of a continuous run."""
END_S = 10.0
"""Seconds that a run which is interrupted may take to end."""
STREAMS_AT_ONCE = 64
"""The number of streams that a run that ends copies at the same time.

A continuous run follows all streams at once.
"""


@dataclass(frozen=True, slots=True)
class StreamReplica:
    """The work that a run has done for one stream, and the lag that is left."""

    stream: str
    """The name of the stream."""
    segments: int = 0
    """The number of segments that were completed in the copy."""
    entries: int = 0
    """The number of entries that were copied."""
    bytes: int = 0
    """The payload bytes of the entries that were copied."""
    lag_records: int | None = None
    """The number of records that are acknowledged in the source and not in the copy, or None if it
    is unknown."""
    lag_bytes: int | None = None
    """The stored bytes of the records that the copy lacks, or None if unknown."""
    lag_seconds: float | None = None
    """Seconds since this run first saw the oldest record that the copy lacks, or None if it is
    unknown."""
    error: str = ""
    """The reason why the stream was given up, or ""."""


@dataclass(frozen=True, slots=True)
class ReplicateResult:
    """The result of a run of `replicate`."""

    namespace: str
    """The namespace in the source."""
    target_namespace: str
    """The namespace in the target."""
    streams: tuple[StreamReplica, ...]
    """The result for each stream whose name matches."""
    seconds: float
    """The duration of the run in seconds."""
    topics: tuple[str, ...] = ()
    """The topics that the run has created in the target, because all partitions are there."""

    @property
    def failed(self) -> tuple[StreamReplica, ...]:
        """The streams that were given up."""
        return tuple(one for one in self.streams if one.error)

    def total(self, name: str) -> int:
        """Return the sum of a number over all streams.

        Args:
            name: The name of the number, such as "bytes" or "lag_records".
        """
        return sum(getattr(one, name) or 0 for one in self.streams)

    @property
    def lag_seconds(self) -> float:
        """The largest lag of a stream in seconds."""
        return max((one.lag_seconds or 0.0 for one in self.streams), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        names = ("segments", "entries", "bytes", "lag_records", "lag_bytes")
        return {
            "namespace": self.namespace,
            "target_namespace": self.target_namespace,
            "seconds": round(self.seconds, 3),
            **{name: self.total(name) for name in names},
            "lag_seconds": round(self.lag_seconds, 3),
            "topics": list(self.topics),
            "streams": [asdict(one) for one in self.streams],
        }


def check_gap_choice(on_gap: str) -> None:
    """Raise UsageError if `on_gap` is no choice of what to do about records that were lost."""
    if on_gap not in GAP_CHOICES:
        raise UsageError(
            f"the argument on_gap must be one of {', '.join(GAP_CHOICES)}, not {on_gap!r}"
        )


def replicate(
    spark: SparkSession,
    source: ClusterOptions,
    target: ClusterOptions,
    namespace: str,
    *,
    streams: str = "*",
    target_namespace: str | None = None,
    continuous: bool = False,
    stop: threading.Event | None = None,
    for_s: float | None = None,
    truncation: bool = True,
    on_gap: str = "raise",
    settings: Mapping[str, Any] | None = None,
    patience_s: float = PATIENCE_S,
    report: Callable[[ReplicateResult], object] | None = None,
    progress: ProgressCallback = silent,
) -> ReplicateResult:
    """Copy streams of a namespace to another cluster.

    A run copies what is acknowledged when it begins. With `continuous` it continues until `stop` is
    set or `for_s` seconds have passed, and includes new streams. On return everything that is
    counted is durable in the target. What was not copied yet is the lag. After any failure, run the
    job again: it continues.

    If the target has no such namespace, it is created with the settings of the source. Each copy
    gets the own settings of its source stream. The copies of a topic's partitions become a topic as
    soon as all of them exist. Streams fail independently: the others continue, and the result
    reports the failures. No partition of a topic is copied if the target has a stream of that name,
    or a topic with another number of partitions.

    Args:
        spark: The session that runs the tasks.
        source: The cluster to copy from.
        target: The cluster to copy to.
        namespace: The namespace of the streams.
        streams: A shell pattern of the names of the streams, in which `*` also matches `/`.
        target_namespace: The namespace in the target. By default it has the same path.
        continuous: Whether to continue with what is appended later.
        stop: An event that ends a continuous run.
        for_s: Seconds after which a continuous run ends.
        truncation: Whether to truncate the copy like the source. Otherwise the copy keeps what it
            has.
        on_gap: Without `truncation`, what to do about segments that the source truncated before
            they were copied: "raise" or "skip".
        settings: Settings that override those of the source, such as smaller quorums for a smaller
            cluster.
        patience_s: Seconds without progress after which an error of ledgers or the metadata store
            is final.
        report: A function that receives the result so far, about each second.
        progress: A function that receives the progress.

    Returns:
        What was copied, and what is left.

    Raises:
        UsageError: An argument is not valid.
        NoSuchNamespaceError: The source has no such namespace.
        NoSuchStreamError: No stream matches, and `continuous` is not set.
        MetadataUnavailableError: A metadata store does not answer, other than for the copy of one
            stream.
        StreamDivergedError: All streams failed, and the target's stream is not a copy, or its topic
            has another number of partitions.
        StreamExistsError: All streams failed, and the target has a stream with the name of a topic.
        StreamFencedError: All streams failed, and another writer opened the target's stream.
        StreamGapError: All streams failed, and the source lacks records that the copy was to have.
        QuireError: All streams failed, and this is the error of the first.
        Exception: An error of Spark, such as one of a session that has ended.
    """
    check_gap_choice(on_gap)
    if for_s is not None and not continuous:
        raise UsageError(
            "the argument for_s requires continuous=True, because other runs end by themselves"
        )
    path = namespace_path(namespace)
    to_path = namespace_path(target_namespace or namespace)

    def run(pieces: Sequence[Piece]) -> list[Piece]:
        do = functools.partial(copy_piece, source, target)
        return run_pieces(spark, pieces, do, what="copying segments")

    config = replace(target.config(), explicit_lac_interval_s=EXPLICIT_LAC_S)
    with source.client() as read, blocking.connect(target.metadata, config=config) as written:
        ends = (
            ReplicateEnd(read.aio, source.password, path),
            ReplicateEnd(written.aio, target.password, to_path),
        )
        job = _Job(
            *ends, streams, truncation, on_gap, current_names(settings or {}), patience_s,
            stop or threading.Event(), for_s, report, progress, Leftovers(written.aio),
        )  # fmt: skip
        call(check_ends(*ends))
        try:
            result: ReplicateResult = call(job.run(run, continuous=continuous))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        except KeyboardInterrupt:
            # The job is cancelled, and removes its note and its ledgers with these clients.
            job.ended.wait(END_S)
            raise
    return result


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


@dataclass(frozen=True, slots=True)
class ReplicateEnd:
    """One end of a replication: a namespace in a cluster."""

    client: Client
    password: bytes
    path: str

    async def open(self) -> Namespace:
        """Open the namespace. Raises NoSuchNamespaceError if it does not exist."""
        return await open_namespace(self.client, self.path, password=self.password)


async def check_ends(source: ReplicateEnd, target: ReplicateEnd) -> None:
    """Raise UsageError if a stream would be copied onto itself. Raises MetadataError."""
    ids = [await end.client.metadata.instance_id() for end in (source, target)]
    if ids[0] == ids[1] and source.path == target.path:
        raise UsageError(
            f"namespace {source.path} would be replicated onto itself: source and target are the "
            "same namespace of the same cluster",
            remedy="Name another cluster, or another namespace for the target",
        )


async def matching(source: Namespace, pattern: str) -> list[str]:
    """Return the names of the streams that match a shell pattern, in which `*` also matches `/`."""
    # A server that lags behind would leave out a stream that was created just before this call.
    await source.client.metadata.tree.sync()
    return [name for name in await source.streams() if fnmatchcase(name, pattern)]


def none_matches(path: str, pattern: str) -> NoSuchStreamError:
    """Return the error for a pattern that no stream matches."""
    return NoSuchStreamError(
        f"namespace {path} of the source has no stream that matches {pattern!r}",
        remedy="`quire stream list` shows the streams",
    )


@dataclass(slots=True)
class _Job:
    """The state and the steps of one run of `replicate`."""

    source: ReplicateEnd
    target: ReplicateEnd
    pattern: str
    truncation: bool
    on_gap: str
    settings: dict[str, Any]
    patience_s: float
    stop: threading.Event
    for_s: float | None
    report: Callable[[ReplicateResult], object] | None
    progress: ProgressCallback
    leftovers: Leftovers
    topics: TopicCopies = field(init=False)
    began: float = field(default_factory=time.monotonic)
    mirrors: dict[str, Mirror] = field(default_factory=dict)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    failed: dict[str, QuireError] = field(default_factory=dict)
    lags: dict[str, Lag] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when `run` has ended, also if it was cancelled."""

    async def run(
        self, run: Callable[[Sequence[Piece]], list[Piece]], *, continuous: bool
    ) -> ReplicateResult:
        try:
            source = await self.source.open()
            target = await self._open_target(source)
            async with await self._noted() if continuous else nullcontext():
                return await self._run(run, source, target, continuous=continuous)
        finally:
            self.ended.set()

    async def _noted(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the cluster has a note of this continuous run."""
        ends = self.source.client, self.target.client
        ids = [await one.metadata.instance_id() for one in ends]
        note = CopyNote(
            shown_uri(ends[0].metadata.uri), ids[0], self.source.path,
            shown_uri(ends[1].metadata.uri), ids[1], self.target.path,
            self.pattern, process_name(), ends[1].clock.now_ms(),
            truncation=self.truncation, skip_gaps=self.on_gap == "skip", settings=self.settings,
        )  # fmt: skip

        return noted(*ends, note, self._measure)

    async def _measure(self) -> list[StreamLag]:
        """Return how far the copy of each stream is, or why it failed.

        The lag of a stream that cannot be measured within `MEASURE_TIMEOUT_S` is unknown.
        """
        found = {name: StreamLag(name, error=self._why_failed(name)) for name in self.mirrors}

        async def look(name: str) -> None:
            one = await self._replica(name)
            found[name] = StreamLag(name, one.lag_records, one.lag_seconds, one.error[:TEXT_MAX])

        with suppress(TimeoutError):
            async with asyncio.timeout(MEASURE_TIMEOUT_S):
                await each(list(found), look)
        return list(found.values())

    def _why_failed(self, name: str) -> str:
        error = self.failed.get(name)
        return "" if error is None else str(error)[:TEXT_MAX]

    async def _run(
        self,
        run: Callable[[Sequence[Piece]], list[Piece]],
        source: Namespace,
        target: Namespace,
        *,
        continuous: bool,
    ) -> ReplicateResult:
        self.topics = TopicCopies(source, target)
        copier, ending = SegmentCopier(run), asyncio.Event()
        if not continuous:
            ending.set()
        try:
            async with TaskGroup() as group:
                serving = group.create_task(copier.serve())
                if continuous:
                    await self._continuously(group, source, target, copier, ending)
                else:
                    await self._once(group, source, target, copier, ending)
                await asyncio.gather(*self.running.values(), return_exceptions=True)
                serving.cancel()
            await self.topics.make()
            result = await self._result()
        finally:
            await target.close()
            await source.close()
        if self.failed and len(self.failed) == len(self.mirrors):
            raise next(iter(self.failed.values()))
        return result

    async def _open_target(self, source: Namespace) -> Namespace:
        """Open the target namespace, and create it if it does not exist.

        A new one gets the settings that were given to the source.
        """
        try:
            return await self.target.open()
        except NoSuchNamespaceError:
            given = {**source.given_settings, **self.settings}
            return await open_namespace(
                self.target.client, self.target.path, settings=given,
                password=self.target.password, create=True)  # fmt: skip

    # -- streams ------------------------------------------------------------------------------

    async def _once(
        self, group: TaskGroup, source: Namespace, target: Namespace, copier: SegmentCopier,
        ending: asyncio.Event,
    ) -> None:  # fmt: skip
        names = await matching(source, self.pattern)
        if not names:
            raise none_matches(self.source.path, self.pattern)
        turns = asyncio.Semaphore(STREAMS_AT_ONCE)
        mirror = functools.partial(self._mirror, source, target, copier, ending)
        await self._begin(group, names, mirror, turns)
        await self._watch(ending, lambda: None)

    async def _continuously(
        self, group: TaskGroup, source: Namespace, target: Namespace, copier: SegmentCopier,
        ending: asyncio.Event,
    ) -> None:  # fmt: skip
        mirror = functools.partial(self._mirror, source, target, copier, ending)

        async def look() -> None:
            await self._begin(group, await matching(source, self.pattern), mirror, None)
            try:
                await self.topics.make()
            except QuireError:
                pass  # the end of the run tries again, and reports the error if it fails

        await look()
        await self._watch(ending, look)

    def _mirror(
        self,
        source: Namespace,
        target: Namespace,
        copier: SegmentCopier,
        ending: asyncio.Event,
        name: str,
    ) -> Mirror:
        return Mirror(
            source, target, name, copier.copy, self.leftovers,
            overrides=self.settings, truncation=self.truncation, on_gap=self.on_gap,
            stop=ending, patience_s=self.patience_s,
        )  # fmt: skip

    async def _begin(
        self,
        group: TaskGroup,
        names: Sequence[str],
        mirror_of: Callable[[str], Mirror],
        turns: asyncio.Semaphore | None,
    ) -> None:
        """Start to copy the streams that are new, or record why their topics prevent it."""
        refused = await self.topics.look(names)
        for name in names:
            if name in self.mirrors:
                continue
            mirror = mirror_of(name)
            if name in refused:
                self.mirrors[name], self.failed[name] = mirror, refused[name]
            else:
                self._start(group, mirror, turns)

    def _start(self, group: TaskGroup, mirror: Mirror, turns: asyncio.Semaphore | None) -> None:
        async def run() -> None:
            if turns is not None:
                async with turns:
                    await self._guarded(mirror, mirror.run())
            else:
                await self._guarded(mirror, mirror.run())
            await mirror.close()

        self.mirrors[mirror.name] = mirror
        self.lags[mirror.name] = Lag(mirror)
        self.running[mirror.name] = group.create_task(run())

    async def _guarded(self, mirror: Mirror, work: Any) -> None:
        """Do the work on one stream, and record its error, so that the other streams continue."""
        try:
            await work
        except QuireError as error:
            self.failed.setdefault(mirror.name, error)

    # -- while it runs ------------------------------------------------------------------------

    async def _watch(self, ending: asyncio.Event, look: Callable[[], Any]) -> None:
        """Wait until all streams are done, and do meanwhile what is due at regular times.

        This ends the run when `stop` or `for_s` demands it, truncates the copies like their
        sources, calls `look` for new streams, and reports the progress.
        """
        keep_at = time.monotonic() + KEEP_S
        while any(not task.done() for task in self.running.values()) or not ending.is_set():
            await self._rest(ending)
            over = self.for_s is not None and time.monotonic() - self.began >= self.for_s
            if self.stop.is_set() or over:
                ending.set()
            if not ending.is_set() and self.mirrors and len(self.failed) == len(self.mirrors):
                ending.set()
            if not ending.is_set() and time.monotonic() >= keep_at:
                keep_at = time.monotonic() + KEEP_S
                await self._keep()
                try:
                    await look()
                except PASSING:
                    pass  # try again the next time
            if self.report is not None or self.progress is not silent:
                await self._tell()

    async def _rest(self, ending: asyncio.Event) -> None:
        """Wait until the next report is due, `stop` is set, or an ending run has ended."""
        until = time.monotonic() + REPORT_S
        while time.monotonic() < until and not (self.stop.is_set() and not ending.is_set()):
            tasks = [task for task in self.running.values() if not task.done()]
            if ending.is_set() and not tasks:
                return
            await asyncio.sleep(min(0.1, until - time.monotonic()))

    async def _keep(self) -> None:
        for name, mirror in self.mirrors.items():
            if name in self.failed:
                continue
            try:
                await mirror.keep()
            except PASSING:
                pass
            except (QuireError, NoSuchKeyError) as error:
                self.failed.setdefault(name, error)
                self.running[name].cancel()

    async def _tell(self) -> None:
        result = await self._result()
        if self.report is not None:
            self.report(result)
        what = f"replicating, {counted(result.total('lag_records'), 'record')} behind: entries"
        self.progress(what, result.total("entries"), None)

    async def _result(self) -> ReplicateResult:
        replicas = [await self._replica(name) for name in sorted(self.mirrors)]
        return ReplicateResult(
            self.source.path, self.target.path, tuple(replicas), time.monotonic() - self.began,
            tuple(self.topics.made),
        )  # fmt: skip

    async def _replica(self, name: str) -> StreamReplica:
        copied = self.mirrors[name].copied
        done = StreamReplica(name, copied.segments, copied.entries, copied.size_bytes)
        error = self.failed.get(name)
        if error is not None:
            return replace(done, error=str(error))
        try:
            records, size_bytes, seconds = await self.lags[name].measure()
        except QuireError:
            return done
        return replace(done, lag_records=records, lag_bytes=size_bytes, lag_seconds=seconds)
