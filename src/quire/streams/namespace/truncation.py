"""Truncation and retention: a stream is cut by position, age or size, and ledgers are deleted.

Truncating changes only metadata. Whole segments before the position are marked as truncated, and
the segment that holds the position stores the point before which nothing is delivered. Freeing
deletes the ledgers of marked segments, and then their nodes, except the node of the newest of them.
The ledger and the node of the newest completed segment are always kept, because the sequence ids of
the next segment continue from it. Its records are not: if they are too old, readers no longer get
them.

Retention (`retain`) is a truncation to the position that the settings of the stream give, followed
by freeing. Writers apply it whenever they complete a segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Delete
from quire.streams.namespace.known_sizes import known_sizes
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
    another stream of the same name. Raises NoSuchStreamError, UsageError if the segment of the
    position has an old layout, which cannot store it, and MetadataUnavailableError if the segments
    change during each of `ATTEMPTS_MAX` attempts.
    """

    async def always(_: Sequence[StreamSegment]) -> DLSN | None:
        return before

    return (await _truncate(metadata, always, life)).changed


@dataclass(frozen=True, slots=True)
class _Truncated:
    """The result of a truncation: the segments that it changed, and the completed segments."""

    changed: list[StreamSegment]
    completed: list[StreamSegment]
    """The completed segments that were read, as they are after the truncation.

    A stream may have very many of them, so the caller need not read them again.
    """


async def _truncate(
    metadata: StreamMetadata,
    choose: Callable[[Sequence[StreamSegment]], Awaitable[DLSN | None]],
    life: str | None,
    until: int | None = None,
) -> _Truncated:
    """Truncate before the position that `choose` returns for the completed segments.

    With `until`, only the segments with numbers up to this one are read, and the one after them.
    Nothing is changed if it returns None. Raises NoSuchStreamError if the stream has another life
    than `life`, and MetadataUnavailableError if its segments change during every attempt.
    """
    done: dict[int, StreamSegment] = {}
    """The segments that were changed by now, in all attempts, by number."""
    for _ in range(ATTEMPTS_MAX):
        known = await metadata.life()
        if life is not None and known.path != life:
            raise NoSuchStreamError(
                f"stream {metadata.paths.name} was deleted or renamed, and another stream has "
                "its name now. The other stream was not truncated",
                remedy="Look at the present stream, and truncate it if you mean that one",
            )
        segments = await metadata.segments(until=until)
        completed = [segment for segment in segments if not segment.in_progress]
        before = await choose(completed)
        if before is None:
            return _Truncated(list(done.values()), completed)
        changed = []
        for segment in segments:
            if segment.in_progress:
                break
            marked = _marked(segment, before)
            if marked != segment:
                changed.append(marked)
        try:
            for at in range(0, len(changed), SEGMENTS_PER_COMMIT):
                part = changed[at : at + SEGMENTS_PER_COMMIT]
                known = await metadata.mark_truncated(known, part)
                done |= {segment.lssn: segment for segment in part}
        except (NoSuchKeyError, VersionConflictError):
            continue
        now = {segment.lssn: segment for segment in changed}
        left = [now.get(segment.lssn, segment) for segment in completed]
        return _Truncated(list(done.values()), left)
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
    """Return the segments that `free` would free now, or would after a truncation to `before`.

    Nothing is changed. Raises NoSuchStreamError, and the errors of `Client.ledger_metadata`.
    """
    segments = [s for s in await metadata.segments() if not s.in_progress]
    return await _would_free(client, segments, before)


async def _would_free(
    client: Client, completed: Sequence[StreamSegment], before: DLSN | None
) -> list[StreamSegment]:
    """Return the segments that `free` would free, or would after a truncation to `before`.

    `completed` are the completed segments, as they were just read.
    """
    if before is not None:
        completed = [_marked(segment, before) for segment in completed]
    return await _not_freed(client, _truncated(completed))


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
    """Return the truncated segments at the beginning, but never the newest completed segment."""
    return list(takewhile(lambda s: s.truncation is Truncation.TRUNCATED, completed[:-1]))


async def free(client: Client, metadata: StreamMetadata) -> list[StreamSegment]:
    """Delete the ledgers of truncated segments, oldest first.

    The nodes of truncated segments are deleted as well, except the node of the newest. A reader
    that has read that segment to its end then sees that it has missed nothing. After an error some
    segments may not be freed: call this again.

    Returns the segments whose ledgers existed before this call and were deleted. Raises
    NoSuchStreamError, and the errors of `Client.delete_ledger`.
    """
    life = (await metadata.life()).path  # read first, so that it is not newer than the segments
    segments = [s for s in await metadata.segments() if not s.in_progress]
    return await _free(client, metadata, segments, life)


async def _free(
    client: Client, metadata: StreamMetadata, completed: Sequence[StreamSegment], life: str
) -> list[StreamSegment]:
    """Delete the ledgers of truncated segments and then their nodes, as `free` does.

    `completed` are the completed segments of the stream with the life `life`, as they were just
    read.
    """
    truncated = _truncated(completed)
    there = await _not_freed(client, truncated)
    for segment in truncated[:-1]:
        await remove(client, metadata, segment, life)
    if truncated and truncated[-1] in there:
        await client.delete_ledger(truncated[-1].ledger_id)
    return there


async def remove(
    client: Client, metadata: StreamMetadata, segment: StreamSegment, life: str
) -> None:
    """Delete the ledger of a segment, and then its node.

    A crash in between leaves a node, which the next attempt finds. The other order would leave a
    ledger that nothing names. `life` is the path of the life that the segment belongs to
    (`StreamLife.path`): another stream of this name may have a segment with the same number. Raises
    the errors of `Client.delete_ledger`.
    """
    await client.delete_ledger(segment.ledger_id)
    try:
        node = metadata.node(segment.lssn, in_progress=segment.in_progress)
        await metadata.tree.commit(Check(life, ANY_VERSION), Delete(node))
    except NoSuchKeyError:
        pass


async def retain(
    client: Client, metadata: StreamMetadata, settings: StreamSettings, *, life: str
) -> list[StreamSegment]:
    """Delete what the stream's settings do not keep, and return the freed segments.

    These are truncated segments and, unless `explicit_truncation` is set, completed segments that
    are too old or too large together, oldest first.

    `life` is the path of the life that the settings belong to (`StreamLife.path`). Raises
    NoSuchStreamError if another stream has the name now, which may have other settings.
    """
    if settings.explicit_truncation:
        return await free(client, metadata)

    # A stream may have very many segments, so only those are read again that are to be deleted.
    known, segments = await known_sizes(metadata).segments()
    completed = [segment for segment in segments if not segment.in_progress]
    before = await _expired(client, metadata, completed, settings)
    gone = _truncated(completed)
    if before is None and len(gone) <= 1 and life.endswith(f"/{known}"):
        return await _free(client, metadata, completed, life)

    async def expired(_: Sequence[StreamSegment]) -> DLSN | None:
        return before

    until = max(0 if before is None else before.lssn, gone[-1].lssn if gone else 0)
    done = await _truncate(metadata, expired, life, until)
    return await _free(client, metadata, done.completed, life)


async def would_retain(
    client: Client, metadata: StreamMetadata, settings: StreamSettings
) -> list[StreamSegment]:
    """Return the segments whose ledgers `retain` would delete now. Nothing is changed."""
    segments = [s for s in await metadata.segments() if not s.in_progress]
    expired = None
    if not settings.explicit_truncation:
        expired = await _expired(client, metadata, segments, settings)
    return await _would_free(client, segments, expired)


async def _expired(
    client: Client,
    metadata: StreamMetadata,
    segments: Sequence[StreamSegment],
    settings: StreamSettings,
) -> DLSN | None:
    """Return the position before which retention keeps nothing, or None if it keeps everything.

    `segments` are the completed ones.
    """
    expired = 0
    if settings.retention_s:
        now_ms = client.clock.now_ms()
        oldest_ms = now_ms - round(1000 * settings.retention_s)
        while expired < len(segments) and _since_ms(segments[expired], now_ms) < oldest_ms:
            expired += 1
    if settings.retention_bytes:
        sizes = await known_sizes(metadata).of(segments)
        left = sum(sizes[expired:])
        while expired < len(segments) and left - sizes[expired] >= settings.retention_bytes:
            left -= sizes[expired]
            expired += 1
    return segments[expired - 1].last_dlsn.next_slot() if expired else None


def _since_ms(segment: StreamSegment, now_ms: int) -> int:
    """Return the time in milliseconds from which the age of a completed segment counts.

    It is the time of completion, or the last txid if that is a later time: a clock that was behind
    completed the segment, and its records are not as old as that clock says.
    """
    last = segment.last_txid
    return max(segment.completion_time_ms, last if last <= now_ms else 0)


async def stored_bytes(client: Client, segments: Sequence[StreamSegment]) -> int:
    """Return the payload bytes in the ledgers of these segments.

    A ledger that is open or gone counts as 0. Raises the other errors of `Client.ledger_metadata`.
    """

    async def length(segment: StreamSegment) -> int:
        try:
            return (await client.ledger_metadata(segment.ledger_id)).length
        except NoSuchLedgerError:
            return 0

    return sum(await each(segments, length))
