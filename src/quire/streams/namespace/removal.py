"""The deletion of a stream and of everything that belongs to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quire.client import Client
from quire.codec.distributedlog.segment import StreamSegment, parse_segment_name
from quire.errors import (
    LedgerError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotEmptyError,
    StreamFencedError,
    VersionConflictError,
)
from quire.metadata.tree import Delete
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import remove
from quire.streams.write.takeover import free_allocated

ATTEMPTS_MAX = 20


async def delete_stream(
    client: Client,
    metadata: StreamMetadata,
    password: bytes,
    *,
    wanted: Callable[[], Awaitable[bool]] | None = None,
) -> None:
    """Delete a stream and all its ledgers. Deleting a stream that does not exist succeeds.

    The stream is the one that has the name when the call begins. If another client deletes or
    renames it meanwhile, a stream that gets the name then is not changed. Once the stream is known,
    `wanted` is called. If `wanted` returns False, nothing is deleted.

    The writer of the stream is fenced. Raises MetadataUnavailableError if other clients open the
    stream for writing during every attempt: a part of the stream may be left then.
    """
    try:
        life = (await metadata.life()).path
    except NoSuchStreamError:
        life = ""
    if wanted is not None and not await wanted():
        return
    for _ in range(ATTEMPTS_MAX if life else 1):
        try:
            if life:
                await _delete(client, metadata, password, life)
        except (NoSuchStreamError, NoSuchKeyError):
            pass  # the stream does not exist, or another deletion has removed this part
        except (StreamFencedError, VersionConflictError, NotEmptyError):
            continue  # another client became its writer meanwhile
        break
    else:
        raise MetadataUnavailableError(
            f"stream {metadata.paths.name} was not deleted completely: other clients opened it "
            f"for writing during each of {ATTEMPTS_MAX} attempts",
            remedy="Stop its writers, and try again",
        )
    if not await metadata.exists():
        await metadata.remove_rest()


async def _delete(client: Client, metadata: StreamMetadata, password: bytes, life: str) -> None:
    """Claim the stream, delete its ledgers, and then delete the node `ledgers`.

    A stream without that node does not exist. It is deleted under the claim, so that no writer can
    continue afterwards. Nothing is deleted if the stream has another life than `life`, or is
    renamed before its first ledger is deleted. Later it cannot be renamed.
    """
    if (await metadata.life()).path != life:
        return
    await metadata.ensure_writable()
    claim = await metadata.claim()
    if claim.life != life:
        return
    await metadata.begin_deletion(life)
    for segment in await metadata.segments():
        if not await metadata.tree.exists(life):
            return  # the segments may be those of another stream, which needs its ledgers
        if segment.in_progress:
            await _fence(client, segment, password)
        await remove(client, metadata, segment, claim.life)
    await free_allocated(client, metadata, claim)
    path = metadata.paths.segments
    others = [name for name in await metadata.tree.children(path) if not parse_segment_name(name)]
    await metadata.tree.commit(
        *[Delete(f"{path}/{name}") for name in others],
        Delete(claim.life),
        Delete(path, claim.ledgers_version),
    )


async def _fence(client: Client, segment: StreamSegment, password: bytes) -> None:
    """Fence the ledger of a segment in progress.

    Bookies accept entries of a deleted ledger, so its writer would continue to acknowledge records.
    """
    try:
        (await client.open_ledger(segment.ledger_id, password=password, recover=True)).close()
    except (LedgerError, NoSuchLedgerError):
        pass  # the ledger is deleted next, in whatever state it is
