"""What a dry run of `replicate` tells."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quire import blocking
from quire.blocking.background import call
from quire.config import ClientConfig
from quire.errors import NoSuchNamespaceError, QuireError, StreamGapError
from quire.spark.jobs.replicate import Ends, check_ends, matching, none_matches
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
from quire.streams.namespace.namespace import namespace_path
from quire.streams.namespace.truncation import would_free
from quire.streams.read.facts import SegmentFacts, segment_facts
from quire.streams.read.positions import oldest_position


@dataclass(frozen=True, slots=True)
class ReplicaPreview:
    """What a run would do for one stream."""

    stream: str
    new: bool = False
    """There is no copy yet."""
    segments: int = 0
    """That would be completed in the copy."""
    in_progress: bool = False
    """What is acknowledged of the segment that is being written would be copied, too."""
    records: int = 0
    """In what would be copied."""
    bytes: int = 0
    """Payload of it."""
    freed_ledgers: tuple[int, ...] = ()
    """Of the copy, that would be deleted because the source gave up what they hold."""
    error: str = ""
    """Why it would be given up; nothing else is known then."""


@dataclass(frozen=True, slots=True)
class ReplicatePreview:
    namespace: str
    target_namespace: str
    streams: tuple[ReplicaPreview, ...]

    @property
    def failed(self) -> tuple[ReplicaPreview, ...]:
        return tuple(one for one in self.streams if one.error)

    def total(self, name: str) -> int:
        """Of a number of the streams, such as "bytes"."""
        return sum(getattr(one, name) for one in self.streams)

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": True,
            "namespace": self.namespace,
            "target_namespace": self.target_namespace,
            **{name: self.total(name) for name in ("segments", "records", "bytes")},
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
    """What `replicate` would copy now with these arguments, without Spark. Nothing is changed in
    either cluster, and no copy is claimed: a run that goes on meanwhile goes on. A stream that
    cannot be replicated is told, with the reason; raises what `replicate` raises before it looks
    at streams."""
    path, to_path = namespace_path(namespace), namespace_path(target_namespace or namespace)
    config = ClientConfig(tls=target.tls)
    with source.client() as read, blocking.connect(target.metadata, config=config) as other:
        ends = Ends(read.aio, source.password, path), Ends(other.aio, target.password, to_path)
        call(check_ends(*ends))
        found: list[ReplicaPreview] = call(_previews(*ends, streams, truncation, on_gap))
    return ReplicatePreview(path, to_path, tuple(found))


async def _previews(
    source: Ends, target: Ends, pattern: str, truncation: bool, on_gap: str
) -> list[ReplicaPreview]:
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
            return [await _told(opened, copies, name, truncation, on_gap) for name in names]
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
        copy = copies.metadata(name)
        await check_origin(copy, origin)
        last, partial = await look_at_copy(copies.client, copy, source.metadata(name))
    segments = await source.segments(name)
    if not truncation and on_gap != "skip":
        check_gap(name, segments, last)
    todo = lacking(segments, last)
    if copies is not None and last and truncation and segments:
        oldest = min(oldest_position(segments), segments[-1].first_dlsn)
        freed = await would_free(copies.client, copies.metadata(name), oldest)
    if copies is not None and todo and todo[-1].in_progress:
        end = await last_shown(copies, name, partial, todo[-1])
    facts = await segment_facts(source.client, todo, source.password)
    for fact in facts:
        if fact.lost:
            raise StreamGapError(
                f"the ledger {fact.segment.ledger_id} of segment {fact.segment.lssn} of stream "
                f"{name} of the source is lost"
            )
    copied = [fact for fact in facts if await _grew(source, fact, end)]
    read = [fact for fact in copied if not fact.truncated]  # what was given up is copied empty
    return ReplicaPreview(
        name,
        new,
        sum(not fact.segment.in_progress for fact in copied),
        any(fact.segment.in_progress for fact in copied),
        sum(fact.records for fact in read),
        sum(fact.size_bytes for fact in read),
        tuple(segment.ledger_id for segment in freed),
    )


async def _grew(source: Namespace, fact: SegmentFacts, end: int) -> bool:
    """Whether there is more of it than the copy shows, which is up to entry `end`."""
    if not fact.segment.in_progress:
        return True
    async with await source.client.open_ledger(
        fact.segment.ledger_id, password=source.password
    ) as reader:
        return reader.last_add_confirmed > end
