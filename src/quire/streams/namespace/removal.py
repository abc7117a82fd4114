"""Deleting a stream with all that belongs to it."""

from __future__ import annotations

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


async def delete_stream(client: Client, metadata: StreamMetadata, password: bytes) -> None:
    """See `Namespace.delete_stream`."""
    for _ in range(ATTEMPTS_MAX):
        try:
            await _delete(client, metadata, password)
        except (NoSuchStreamError, NoSuchKeyError):
            pass  # it is not there, or another deletion has got so far
        except (StreamFencedError, VersionConflictError, NotEmptyError):
            continue  # somebody has become its writer meanwhile
        break
    else:
        raise MetadataUnavailableError(
            f"stream {metadata.paths.name} gets writers faster than it can be deleted"
        )
    if not await metadata.exists():
        await metadata.tree.delete_tree(metadata.paths.root)
        await metadata.remove_markers()
        await metadata.lives.clear()


async def _delete(client: Client, metadata: StreamMetadata, password: bytes) -> None:
    """Up to the node without which there is no stream: it goes under the claim, so that no writer
    is left behind that goes on."""
    await metadata.ensure_writable()
    claim = await metadata.claim()
    for segment in await metadata.segments():
        if segment.in_progress:
            await _fence(client, segment, password)
        await remove(client, metadata, segment)
    await free_allocated(client, metadata, claim)
    path = metadata.paths.segments
    others = [name for name in await metadata.tree.children(path) if not parse_segment_name(name)]
    await metadata.tree.commit(
        *[Delete(f"{path}/{name}") for name in others],
        Delete(claim.life),
        Delete(path, claim.ledgers_version),
    )


async def _fence(client: Client, segment: StreamSegment, password: bytes) -> None:
    """Bookies take entries of a deleted ledger: its writer would go on acknowledging."""
    try:
        (await client.open_ledger(segment.ledger_id, password=password, recover=True)).close()
    except (LedgerError, NoSuchLedgerError):
        pass  # it is to be deleted, whatever state it is in
