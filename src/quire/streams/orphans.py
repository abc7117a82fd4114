"""Ledgers that were made for streams and that no stream names any more.

A writer that dies seldom leaves one (the ledger made ahead stands in a node), and Quire deletes
ledgers before their segments. What is found here comes from a crash between making a ledger and
noting it, from nodes that other tools deleted, and from Apache's deletion of streams.

A stream that was renamed has ledgers that bear its old name. Hence not the stream in the ledger's
metadata is asked, but every stream below the same first part of its path: a rename stays within its
namespace.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from quire.client import Client
from quire.codec.ledger_metadata import LedgerMetadata
from quire.codec.stream_name import PARTITION
from quire.errors import (
    LedgerError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from quire.metadata.collection import check_collectable
from quire.metadata.tree import Tree
from quire.streams.named_ledgers import Owner, ledgers_of
from quire.streams.segment_builder import JOB_KEY
from quire.streams.segments import APPLICATION
from quire.streams.walk import walk
from quire.tasks import each

STREAM_KEY = "stream"
"""In a ledger's custom metadata: the path of the stream that it was made for."""
OLDER_THAN_S = 24 * 3600.0
"""Younger ledgers are left alone: their writer may be about to note them."""
LEDGERS_LOOKED_AT = 256
"""At a time."""


@dataclass(frozen=True, slots=True)
class StreamOrphan:
    ledger_id: int
    stream: str
    """The path of the stream that it was made for."""
    ctime_ms: int
    size_bytes: int
    """0 where it was never closed."""
    job: str = ""
    """The batch or job that it was built for (`published.BatchKey.job`), if any."""


@dataclass(frozen=True, slots=True)
class Left:
    """An orphan that was not deleted."""

    orphan: StreamOrphan
    why: str


async def find_orphans(
    client: Client, older_than_s: float = OLDER_THAN_S, *, first: int = 0
) -> list[StreamOrphan]:
    """The ledgers from `first` on that were made for streams, more than `older_than_s` ago, and
    that no segment and no allocation names. Reads the metadata of every ledger, and the segments of
    all streams twice. Nothing is changed. Cancel-safe.

    MetadataDeniedError where a stream may not be looked at: its ledgers could look like orphans.
    """
    before_ms = client.clock.now_ms() - round(older_than_s * 1_000)
    named: set[int] = set()
    tops: set[str] = set()
    found: list[StreamOrphan] = []
    async with aclosing(_made_for_streams(client, before_ms, first)) as candidates:
        async for orphan in candidates:
            if (top := _top(orphan)) not in tops:
                tops.add(top)
                named |= await _named(client.metadata.tree, [top])
            if orphan.ledger_id not in named:
                found.append(orphan)
    return await _still_unnamed(client, found)


async def delete_orphans(client: Client, orphans: Iterable[StreamOrphan]) -> list[Left]:
    """Delete those that are orphans still; those that are left, and why.

    Each is fenced first: a writer that made it, and has slept ever since, cannot add to it any more
    and goes on with another. After an error or a cancellation some are left; call it again.
    CollectionOffError, MetadataWentBackError: nothing may be deleted by this metadata store."""
    await check_collectable(client.metadata)
    left: list[Left] = []
    fenced: list[StreamOrphan] = []
    for orphan in orphans:
        try:
            await _fence(client, orphan.ledger_id)
        except NoSuchLedgerError:
            continue
        except LedgerError as error:
            left.append(Left(orphan, str(error)))
        else:
            fenced.append(orphan)
    certain = {orphan.ledger_id for orphan in await _still_unnamed(client, fenced)}
    for orphan in fenced:
        if orphan.ledger_id in certain:
            await client.delete_ledger(orphan.ledger_id)
        else:
            left.append(Left(orphan, "a stream names it now"))
    return left


async def _fence(client: Client, ledger_id: int) -> None:
    metadata = await client.ledger_metadata(ledger_id)
    if metadata.closed:
        return
    password = metadata.password or b""
    (await client.open_ledger(ledger_id, password=password, recover=True)).close()


# -- ledgers ----------------------------------------------------------------------------------


async def _made_for_streams(
    client: Client, before_ms: int, first: int
) -> AsyncGenerator[StreamOrphan, None]:
    async def look(ledger_id: int) -> StreamOrphan | None:
        try:
            metadata = await client.ledger_metadata(ledger_id)
        except MetadataUnavailableError:
            raise
        except MetadataError:
            return None  # gone, or not of a form that we know
        return _candidate(ledger_id, metadata, before_ms)

    async with aclosing(_pieces(client, first)) as pieces:
        async for piece in pieces:
            for candidate in await each(piece, look):
                if candidate is not None:
                    yield candidate


async def _pieces(client: Client, first: int) -> AsyncGenerator[list[int], None]:
    piece: list[int] = []
    async for ledger_id in client.list_ledgers(first):
        piece.append(ledger_id)
        if len(piece) == LEDGERS_LOOKED_AT:
            yield piece
            piece = []
    if piece:
        yield piece


def _candidate(ledger_id: int, metadata: LedgerMetadata, before_ms: int) -> StreamOrphan | None:
    custom = metadata.custom
    if any(custom.get(key) != value for key, value in APPLICATION.items()):
        return None
    stream = custom.get(STREAM_KEY, b"").decode(errors="replace")
    if not stream.startswith("/") or not 0 <= metadata.ctime_ms <= before_ms:
        return None
    job = custom.get(JOB_KEY, b"").decode(errors="replace")
    return StreamOrphan(ledger_id, stream, metadata.ctime_ms, max(metadata.length, 0), job)


# -- names ------------------------------------------------------------------------------------


def _top(orphan: StreamOrphan) -> str:
    return "/" + orphan.stream.split("/")[1]


async def _still_unnamed(client: Client, orphans: list[StreamOrphan]) -> list[StreamOrphan]:
    """A second look at all streams: one that was renamed during the first may have been missed."""
    if not orphans:
        return []
    await client.metadata.tree.sync()
    named = await _named(client.metadata.tree, sorted({_top(orphan) for orphan in orphans}))
    return [orphan for orphan in orphans if orphan.ledger_id not in named]


async def _named(tree: Tree, tops: Iterable[str]) -> set[int]:
    """The ledgers that segments and allocations name, of all streams below these paths."""
    named: set[int] = set()
    async with aclosing(walk(tree, tops)) as places:
        async for path, names in places:
            if PARTITION in names:
                owner = Owner("stream", path)
                named |= {one.ledger_id for one in await ledgers_of(tree, path, owner)}
    return named
