"""Giving up the beginning of a stream: by position, by age, by size; and freeing what was given up.

Truncating changes metadata only (DistributedLog spec, 4.8): whole segments before the position are
marked, the one that holds it gets the point before which nothing is delivered. Freeing deletes the
ledgers of marked segments, then their nodes, but for the node of the newest of them. The newest
completed segment stays, marked or not: the sequence ids of the next one build on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import (
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchStreamError,
    VersionConflictError,
)
from quire.metadata.tree import Delete
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import StreamMetadata

ATTEMPTS_MAX = 20
SEGMENTS_PER_COMMIT = 200


async def truncate(
    metadata: StreamMetadata, before: DLSN, *, life: str | None = None
) -> list[StreamSegment]:
    """Mark everything before the position; the segments that changed. The segment in progress and
    what follows are left alone. Never goes back. Durable on return; no space is freed yet (`free`).

    `life`: the stream that is meant (`StreamLife.path`), where another one may have got its name.
    NoSuchStreamError, UsageError where the position lies behind the last record of its segment."""
    for _ in range(ATTEMPTS_MAX):
        known = await metadata.life()
        if life is not None and known.path != life:
            raise NoSuchStreamError(
                f"stream {metadata.paths.name} was deleted, and another one has its name"
            )
        changed = []
        for segment in await metadata.segments():
            if segment.in_progress:
                break
            marked = _marked(segment, before)
            if marked != segment:
                changed.append(marked)
        try:
            for at in range(0, len(changed), SEGMENTS_PER_COMMIT):
                part = changed[at : at + SEGMENTS_PER_COMMIT]
                known = await metadata.mark_truncated(known, part)
            return changed
        except (NoSuchKeyError, VersionConflictError):
            continue
    raise MetadataUnavailableError(
        f"the segments of stream {metadata.paths.name} change faster than they can be truncated"
    )


def _marked(segment: StreamSegment, before: DLSN) -> StreamSegment:
    if segment.last_dlsn < before:
        return segment if segment.truncation is Truncation.TRUNCATED else segment.truncated()
    if segment.first_dlsn < before:
        return segment.partially_truncated(before)
    return segment


async def would_free(
    client: Client, metadata: StreamMetadata, before: DLSN | None
) -> list[StreamSegment]:
    """The segments that `free` would free now, or behind `truncate` to this position. Nothing is
    changed."""
    segments = [s for s in await metadata.segments() if not s.in_progress]
    if before is not None:
        segments = [_marked(segment, before) for segment in segments]
    there = []
    for segment in _truncated(segments):
        try:
            await client.ledger_metadata(segment.ledger_id)
        except NoSuchLedgerError:
            continue  # it was freed before
        there.append(segment)
    return there


def _truncated(completed: Sequence[StreamSegment]) -> list[StreamSegment]:
    """Those that may go."""
    return list(takewhile(lambda s: s.truncation is Truncation.TRUNCATED, completed[:-1]))


async def free(client: Client, metadata: StreamMetadata) -> list[StreamSegment]:
    """Delete the ledgers of truncated segments, oldest first, and the nodes of all of these but the
    newest; the segments that were freed. After an error some are left: call it again.

    A reader that has read the newest to its end sees by its node that it has missed nothing."""
    segments = [s for s in await metadata.segments() if not s.in_progress]
    truncated = _truncated(segments)
    for segment in truncated[:-1]:
        await remove(client, metadata, segment)
    freed = truncated[:-1]
    for segment in truncated[-1:]:
        try:
            await client.ledger_metadata(segment.ledger_id)
        except NoSuchLedgerError:
            continue  # it was freed before
        await client.delete_ledger(segment.ledger_id)
        freed.append(segment)
    return freed


async def remove(client: Client, metadata: StreamMetadata, segment: StreamSegment) -> None:
    """The ledger first: a crash between the two leaves a node, which is found again, and not a
    ledger that nobody knows."""
    await client.delete_ledger(segment.ledger_id)
    try:
        node = metadata.node(segment.lssn, in_progress=segment.in_progress)
        await metadata.tree.commit(Delete(node))
    except NoSuchKeyError:
        pass


async def retain(
    client: Client, metadata: StreamMetadata, settings: StreamSettings
) -> list[StreamSegment]:
    """Delete what the settings do not want kept: completed segments that are too old or too much,
    oldest first, and what was truncated. With `explicit_truncation` only the latter."""
    if not settings.explicit_truncation:
        expired = await _expired(client, metadata, settings)
        if expired is not None:
            await truncate(metadata, expired)
    return await free(client, metadata)


async def would_retain(
    client: Client, metadata: StreamMetadata, settings: StreamSettings
) -> list[StreamSegment]:
    """The segments that `retain` would delete now. Nothing is changed."""
    expired = None
    if not settings.explicit_truncation:
        expired = await _expired(client, metadata, settings)
    return await would_free(client, metadata, expired)


async def _expired(
    client: Client, metadata: StreamMetadata, settings: StreamSettings
) -> DLSN | None:
    """Before this position nothing has to be kept; None: all has."""
    segments = [s for s in await metadata.segments() if not s.in_progress]
    expired = 0
    if settings.retention_s:
        oldest_ms = client.clock.now_ms() - round(1000 * settings.retention_s)
        while expired < len(segments) and segments[expired].completion_time_ms < oldest_ms:
            expired += 1
    if settings.retention_bytes:
        sizes = [await stored_bytes(client, [segment]) for segment in segments]
        left = sum(sizes[expired:])
        while expired < len(segments) and left - sizes[expired] >= settings.retention_bytes:
            left -= sizes[expired]
            expired += 1
    return segments[expired - 1].last_dlsn.next_slot() if expired else None


async def stored_bytes(client: Client, segments: Sequence[StreamSegment]) -> int:
    """Payload bytes of the ledgers of these segments; those that are gone have none."""

    async def length(segment: StreamSegment) -> int:
        try:
            return (await client.ledger_metadata(segment.ledger_id)).length
        except NoSuchLedgerError:
            return 0

    return sum(await each(segments, length))
