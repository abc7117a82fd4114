"""Truncation of a stream by position, age or size, and the deletion of truncated ledgers.

Truncating changes only metadata (DistributedLog spec, 4.8). Whole segments before the position are
marked as truncated, and the segment that holds the position stores the point before which nothing
is delivered. Freeing deletes the ledgers of marked segments, and then their nodes, except the node
of the newest of them. The newest completed segment is always kept, because the sequence ids of the
next segment continue from it.
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
    """Mark everything before a position as truncated, and return the segments that changed.

    The segment in progress and later ones are not changed, and an earlier truncation is never
    undone. The change is durable on return, but it frees no space: `free` does.

    `life` is the path of the expected life (`StreamLife.path`), for a caller that must not truncate
    another stream of the same name. Raises NoSuchStreamError, and UsageError if the position is
    after the last record of its segment.
    """
    for _ in range(ATTEMPTS_MAX):
        known = await metadata.life()
        if life is not None and known.path != life:
            raise NoSuchStreamError(
                f"stream {metadata.paths.name} was deleted or renamed, and another stream has "
                "its name now. The other stream was not truncated"
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
        f"stream {metadata.paths.name} was not truncated completely: its segments changed during "
        f"each of {ATTEMPTS_MAX} attempts",
        remedy="Truncate it again",
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
    """Return the segments that `free` would free now, or after `truncate` to this position.

    Nothing is changed.
    """
    segments = [s for s in await metadata.segments() if not s.in_progress]
    if before is not None:
        segments = [_marked(segment, before) for segment in segments]
    return await _not_freed(client, _truncated(segments))


async def _not_freed(client: Client, truncated: Sequence[StreamSegment]) -> list[StreamSegment]:
    """Return the segments whose ledgers still exist."""

    async def exists(segment: StreamSegment) -> bool:
        try:
            await client.ledger_metadata(segment.ledger_id)
        except NoSuchLedgerError:
            return False
        return True

    found = await each(truncated, exists)
    return [segment for segment, there in zip(truncated, found) if there]


def _truncated(completed: Sequence[StreamSegment]) -> list[StreamSegment]:
    """Return the truncated segments that may be freed."""
    return list(takewhile(lambda s: s.truncation is Truncation.TRUNCATED, completed[:-1]))


async def free(client: Client, metadata: StreamMetadata) -> list[StreamSegment]:
    """Delete the ledgers of truncated segments, oldest first.

    The nodes of truncated segments are deleted as well, except the node of the newest. A reader
    that has read that segment to its end then sees that it has missed nothing. After an error some
    segments may not be freed: call this again.

    Returns the segments whose ledgers existed before this call and were deleted.
    """
    segments = [s for s in await metadata.segments() if not s.in_progress]
    truncated = _truncated(segments)
    there = await _not_freed(client, truncated)
    for segment in truncated[:-1]:
        await remove(client, metadata, segment)
    freed = truncated[:-1]
    for segment in truncated[-1:]:
        if segment in there:
            await client.delete_ledger(segment.ledger_id)
            freed.append(segment)
    return [segment for segment in freed if segment in there]


async def remove(client: Client, metadata: StreamMetadata, segment: StreamSegment) -> None:
    """Delete the ledger of a segment, and then its node.

    A crash in between leaves a node, which the next attempt finds. The other order would leave a
    ledger that nothing names.
    """
    await client.delete_ledger(segment.ledger_id)
    try:
        node = metadata.node(segment.lssn, in_progress=segment.in_progress)
        await metadata.tree.commit(Delete(node))
    except NoSuchKeyError:
        pass


async def retain(
    client: Client, metadata: StreamMetadata, settings: StreamSettings
) -> list[StreamSegment]:
    """Delete what the stream's settings do not keep, and return the freed segments.

    These are truncated segments and, unless `explicit_truncation` is set, completed segments that
    are too old or too large together, oldest first.
    """
    if not settings.explicit_truncation:
        expired = await _expired(client, metadata, settings)
        if expired is not None:
            await truncate(metadata, expired)
    return await free(client, metadata)


async def would_retain(
    client: Client, metadata: StreamMetadata, settings: StreamSettings
) -> list[StreamSegment]:
    """Return the segments whose ledgers `retain` would delete now. Nothing is changed."""
    expired = None
    if not settings.explicit_truncation:
        expired = await _expired(client, metadata, settings)
    return await would_free(client, metadata, expired)


async def _expired(
    client: Client, metadata: StreamMetadata, settings: StreamSettings
) -> DLSN | None:
    """Return the position before which retention keeps nothing, or None if it keeps everything."""
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
    """Return the payload bytes in the ledgers of these segments.

    A ledger that is open or gone counts as 0.
    """

    async def length(segment: StreamSegment) -> int:
        try:
            return (await client.ledger_metadata(segment.ledger_id)).length
        except NoSuchLedgerError:
            return 0

    return sum(await each(segments, length))
