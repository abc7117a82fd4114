"""The preview of a run of the job `replicate`. It needs no Spark, and changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quire import blocking
from quire._runtime.names.in_commands import command_with
from quire.blocking.background import call
from quire.errors import NoSuchNamespaceError, QuireError, StreamGapError
from quire.spark.jobs.replicate import (
    ReplicateEnd,
    check_ends,
    check_gap_choice,
    matching,
    none_matches,
)
from quire.spark.jobs.tasks import ClusterOptions
from quire.streams import Namespace, StreamSegment
from quire.streams.mirror.check import (
    check_gap,
    check_origin,
    lacking,
    last_shown,
    look_at_copy,
    origin_of,
)
from quire.streams.mirror.topics import TopicCopies
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.truncation import would_free
from quire.streams.read.positions import oldest_position
from quire.streams.read.statistics import SegmentStatistics, segment_statistics


@dataclass(frozen=True, slots=True)
class ReplicaPreview:
    """The work that a run would do for one stream."""

    stream: str
    """The name of the stream."""
    new: bool = False
    """Whether the copy does not exist yet, and would be created."""
    segments: int = 0
    """The number of segments that would be completed in the copy."""
    in_progress: bool = False
    """Whether acknowledged entries of the segment in progress would be copied, too."""
    records: int = 0
    """The number of records that would be copied."""
    bytes: int = 0
    """The payload bytes that would be copied."""
    freed_ledgers: tuple[int, ...] = ()
    """The ledgers of the copy that would be deleted because the source was truncated."""
    error: str = ""
    """The reason why the stream would be given up, or "".

    If there is one, all values but `stream` have no meaning.
    """


@dataclass(frozen=True, slots=True)
class ReplicatePreview:
    """The work that a run of `replicate` would do."""

    namespace: str
    """The namespace in the source."""
    target_namespace: str
    """The namespace in the target."""
    streams: tuple[ReplicaPreview, ...]
    """The preview for each stream whose name matches."""
    topics: tuple[str, ...] = ()
    """The topics that would be created in the target."""

    @property
    def failed(self) -> tuple[ReplicaPreview, ...]:
        """The streams that cannot be replicated."""
        return tuple(one for one in self.streams if one.error)

    def total(self, name: str) -> int:
        """Return the sum of a number over all streams.

        Args:
            name: The name of the number, such as "bytes".
        """
        return sum(getattr(one, name) for one in self.streams)

    def as_json(self) -> dict[str, Any]:
        """Return the preview as the command prints it."""
        return {
            "dry_run": True,
            "namespace": self.namespace,
            "target_namespace": self.target_namespace,
            **{name: self.total(name) for name in ("segments", "records", "bytes")},
            "topics": list(self.topics),
            "streams": [asdict(one) for one in self.streams],
        }


def preview_replicate(
    source: ClusterOptions,
    target: ClusterOptions,
    namespace: str,
    *,
    streams: str = "*",
    target_namespace: str | None = None,
    truncation: bool = True,
    on_gap: str = "raise",
) -> ReplicatePreview:
    """Return what `replicate` would copy now with these arguments, without using Spark.

    Nothing is changed in either cluster, and no copy is claimed, so a run that is in progress
    continues.

    Args:
        source: The cluster to copy from.
        target: The cluster to copy to.
        namespace: The namespace of the streams.
        streams: A shell pattern of the names of the streams, in which `*` also matches `/`.
        target_namespace: The namespace in the target. By default it has the same path.
        truncation: Whether the copy would be truncated like the source.
        on_gap: What would be done about segments that were truncated before they were copied.

    Returns:
        What would be copied. A stream that cannot be replicated has an `error`.

    Raises:
        UsageError: An argument is not valid.
        NoSuchNamespaceError: The source has no such namespace.
        NoSuchStreamError: No stream matches.
        MetadataUnavailableError: A metadata store does not answer.
    """
    check_gap_choice(on_gap)
    path, to_path = namespace_path(namespace), namespace_path(target_namespace or namespace)
    with (
        source.client() as read,
        blocking.connect(target.metadata, config=target.config()) as other,
    ):
        ends = (
            ReplicateEnd(read.aio, source.password, path),
            ReplicateEnd(other.aio, target.password, to_path),
        )
        call(check_ends(*ends))
        found: ReplicatePreview = call(_previews(*ends, streams, truncation, on_gap))
    return found


async def _previews(
    source: ReplicateEnd, target: ReplicateEnd, pattern: str, truncation: bool, on_gap: str
) -> ReplicatePreview:
    opened = await source.open()
    try:
        try:
            copies = await target.open()
        except NoSuchNamespaceError:
            copies = None
        try:
            names = await matching(opened, pattern)
            if not names:
                raise none_matches(source.path, pattern)
            topics = TopicCopies(opened, copies)
            refused = await topics.look(names)
            found = [
                ReplicaPreview(name, error=str(refused[name]))
                if name in refused
                else await _told(opened, copies, name, truncation, on_gap)
                for name in names
            ]
            good = [one.stream for one in found if not one.error]
            upcoming = tuple(await topics.upcoming(good))
            return ReplicatePreview(source.path, target.path, tuple(found), upcoming)
        finally:
            if copies is not None:
                await copies.close()
    finally:
        await opened.close()


async def _told(
    source: Namespace, copies: Namespace | None, name: str, truncation: bool, on_gap: str
) -> ReplicaPreview:
    try:
        return await _preview(source, copies, name, truncation, on_gap)
    except QuireError as error:
        return ReplicaPreview(name, error=str(error))


async def _preview(
    source: Namespace, copies: Namespace | None, name: str, truncation: bool, on_gap: str
) -> ReplicaPreview:
    last, freed, end = 0, [], -1
    partial: StreamSegment | None = None
    origin = await origin_of(source, name)
    new = copies is None or not await copies.metadata(name).exists()
    if copies is not None and not new:
        await check_origin(copies.metadata(name), origin)
        last, partial = await look_at_copy(source, copies, name)
    segments = await source.segments(name)
    if not truncation and on_gap != "skip":
        check_gap(name, segments, last, partial)
    todo = lacking(segments, last)
    if copies is not None and last and truncation and segments:
        oldest = min(oldest_position(segments), segments[-1].first_dlsn)
        freed = await would_free(copies.client, copies.metadata(name), oldest)
    if copies is not None and todo and todo[-1].in_progress:
        end = await last_shown(copies, partial, todo[-1])
    facts = await segment_statistics(source.client, todo, source.password)
    for fact in facts:
        if fact.lost:
            before = f"--before {fact.segment.lssn + 1}:0:0"
            raise StreamGapError(
                f"stream {name} cannot be replicated: ledger {fact.segment.ledger_id} of its "
                f"segment {fact.segment.lssn} is lost in the source",
                remedy="Restore the ledger. If that is impossible, give up this segment and all "
                f"before it in the source: "
                f"`{command_with('quire stream truncate', name, before)}`",
            )
    copied = [fact for fact in facts if await _grew(source, fact, end)]
    read = [fact for fact in copied if not fact.truncated]  # truncated segments are copied empty
    return ReplicaPreview(
        name,
        new,
        sum(not fact.segment.in_progress for fact in copied),
        any(fact.segment.in_progress for fact in copied),
        sum(fact.records for fact in read),
        sum(fact.size_bytes for fact in read),
        tuple(segment.ledger_id for segment in freed),
    )


async def _grew(source: Namespace, fact: SegmentStatistics, end: int) -> bool:
    """Return whether a segment of the source has entries after entry `end`, the last in the copy.

    This is always True for a completed segment.
    """
    if not fact.segment.in_progress:
        return True
    async with await source.client.open_ledger(
        fact.segment.ledger_id, password=source.password
    ) as reader:
        return reader.last_add_confirmed > end
