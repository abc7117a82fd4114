"""The search for ledgers that were created for streams and that no stream names any more.

A ledger that a dataset names is kept as well. A writer that dies rarely leaves an orphan, because a
node names the ledger that was created ahead, and Quire deletes ledgers before their segments.
Orphans come from a crash between creating a ledger and noting it, from nodes that other tools
deleted, and from Apache's deletion of streams.

The ledgers of a renamed stream still have its old name in their metadata. The search therefore
reads every stream below the same first part of the path, because a rename stays within its
namespace.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from quire._runtime.tasks import each, pages
from quire.client import Client
from quire.client.datasets.heads import HEADS as DATASETS
from quire.client.unreadable_items import Skipped, log_skipped, skipping
from quire.codec.distributedlog.name import HIDDEN, PARTITION
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import (
    LedgerError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UsageError,
    check_seconds,
)
from quire.metadata.bookies.collection import check_collectable
from quire.metadata.tree import Tree
from quire.streams.namespace.tree_search import walk
from quire.streams.ownership.named_ledgers import (
    OWNERS_AT_ONCE,
    Owner,
    UnreadableRecord,
    dataset_record,
    ledgers_of,
)
from quire.streams.publish.plans import end_old_plans
from quire.streams.publish.segment_builder import JOB_KEY
from quire.streams.write.segments import APPLICATION

STREAM_KEY = "stream"
"""The key in a ledger's custom metadata for the path of the stream that the ledger was created for.
"""
OLDER_THAN_S = 24 * 3600.0
"""The age in seconds from which a ledger can count as an orphan.

The writer of a younger ledger may be about to name it in the stream's metadata.
"""
CLOCK_SKEW_S = 3_600.0
"""The seconds by which the clocks of the processes of one batch or job may differ."""
LEDGERS_LOOKED_AT = 256
"""The number of ledgers whose metadata is read at the same time."""

logger = logging.getLogger("quire.streams")


@dataclass(frozen=True, slots=True)
class StreamOrphan:
    """A ledger that was created for a stream and that no stream names."""

    ledger_id: int
    stream: str
    """The path of the stream that the ledger was created for."""
    ctime_ms: int
    size_bytes: int
    """The number of bytes in the ledger, or 0 if it was never closed."""
    job: str = ""
    """The batch or job that the ledger was built for (`published.BatchKey.job`), or "" if for none.
    """


@dataclass(frozen=True, slots=True)
class RemainingOrphan:
    """A ledger that `delete_orphans` did not delete, and the reason.

    It may be no orphan: a stream may name it now.
    """

    orphan: StreamOrphan
    why: str


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """The result of a search for orphans."""

    orphans: list[StreamOrphan]
    skipped: list[Skipped]
    """The ledgers and streams that could not be read.

    No ledger that such a stream may name is among the orphans.
    """


async def find_orphans(
    client: Client, older_than_s: float = OLDER_THAN_S, *, first: int = 0
) -> list[StreamOrphan]:
    """Return the ledgers that were created for streams and that no stream names any more.

    Nothing is deleted. The ledgers and streams that could not be read are logged as a warning:
    `look_for_orphans` returns them.

    Args:
        client: The client.
        older_than_s: Seconds. Younger ledgers are not returned.
        first: Ledgers with smaller ids are ignored.

    Raises:
        UsageError: `older_than_s` is not a finite number.
        MetadataError: The list of ledgers could not be read completely.
    """
    found = await look_for_orphans(client, older_than_s, first=first)
    log_skipped(logger, "the search for orphans of streams", found.skipped)
    return found.orphans


async def look_for_orphans(
    client: Client, older_than_s: float = OLDER_THAN_S, *, first: int = 0
) -> OrphanReport:
    """Find the ledgers that were created for streams and that no stream names any more.

    Ledgers with ids below `first`, and ledgers younger than `older_than_s` seconds, are ignored.
    The search reads the metadata of every ledger. It also reads, twice, the segments of all streams
    that have the first part of their path in common with a candidate. Nothing is changed.
    Cancel-safe.

    A ledger or a stream that cannot be read is skipped. Such a stream could name any ledger that
    was created below the same first part of its path, so none of these counts as an orphan. A
    ledger that a dataset names is no orphan either, and a dataset that cannot be read could name
    any ledger. Raises MetadataError if the list of ledgers could not be read completely.
    """
    check_seconds("older_than_s", older_than_s)
    before_ms = client.clock.now_ms() - round(older_than_s * 1_000)
    places: dict[str, _Place] = {}
    found: list[StreamOrphan] = []
    skipped: list[Skipped] = []
    async with aclosing(_made_for_streams(client, before_ms, first, skipped)) as candidates:
        async for orphan in candidates:
            top = _top(orphan)
            if top not in places:
                places[top] = await _named(client.metadata.tree, top)
            if places[top].is_orphan(orphan):
                found.append(orphan)
    certain = await _still_unnamed(client, found, places)
    skipped += [one for place in places.values() for one in place.skipped]
    if certain:
        datasets = await _in_datasets(client)
        certain = [orphan for orphan in certain if datasets.is_orphan(orphan)]
        skipped += datasets.skipped
    return OrphanReport(certain, list(dict.fromkeys(skipped)))


async def delete_orphans(client: Client, orphans: Iterable[StreamOrphan]) -> list[RemainingOrphan]:
    """Delete the ledgers that are still orphans, and return the others with the reasons.

    Each ledger is fenced first. A writer that created it and has been asleep since then can no
    longer append to it, and continues with another one. The batch or job that a ledger was built
    for can no longer be published, because the plans of the stream are ended that are not younger
    than the ledger by more than `CLOCK_SKEW_S`. After an error or a cancellation some
    ledgers may be left: call this again. Raises CollectionOffError or MetadataWentBackError if the
    metadata store forbids deletions.
    """
    await check_collectable(client.metadata)
    left: list[RemainingOrphan] = []
    fenced: list[StreamOrphan] = []
    for orphan in orphans:
        try:
            await _fence(client, orphan.ledger_id)
        except NoSuchLedgerError:
            continue
        except MetadataUnavailableError:
            raise
        except (LedgerError, MetadataError) as error:
            left.append(RemainingOrphan(orphan, str(error)))
        else:
            fenced.append(orphan)
    not_ended = await _end_plans(client, fenced)
    places: dict[str, _Place] = {}
    certain = {orphan.ledger_id for orphan in await _still_unnamed(client, fenced, places)}
    datasets = await _in_datasets(client) if certain else _Place()
    for orphan in fenced:
        if orphan.job and orphan.stream in not_ended:
            left.append(RemainingOrphan(orphan, not_ended[orphan.stream]))
            continue
        if orphan.ledger_id in certain and not datasets.is_orphan(orphan):
            why = "a dataset names it"
            if datasets.skipped:
                why = f"a dataset that may name it cannot be read: {datasets.skipped[0]}"
            left.append(RemainingOrphan(orphan, why))
            continue
        if orphan.ledger_id in certain:
            await client.delete_ledger(orphan.ledger_id)
            continue
        skipped = places[_top(orphan)].skipped
        why = f"a stream that may name it cannot be read: {skipped[0]}" if skipped else ""
        left.append(RemainingOrphan(orphan, why or "a stream names it now"))
    return left


async def _end_plans(client: Client, orphans: Iterable[StreamOrphan]) -> dict[str, str]:
    """End the plans under which these ledgers could still be published.

    Otherwise a transaction could name a ledger between the last look at the stream and the
    deletion. A stream that was renamed needs nothing, because it has other plans then. Return the
    streams whose plans could not be ended, with the reasons.
    """
    until_ms: dict[str, int] = {}
    not_ended: dict[str, str] = {}
    for orphan in orphans:
        if orphan.job:
            until_ms[orphan.stream] = max(until_ms.get(orphan.stream, 0), orphan.ctime_ms)
    for stream, newest_ms in until_ms.items():
        until = newest_ms + round(1000 * CLOCK_SKEW_S)
        try:
            await end_old_plans(client.metadata.tree, f"{stream}/{PARTITION}", until)
        except UsageError:
            pass  # no stream can have this path, which is what the ledger's metadata says
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            not_ended[stream] = str(error)
    return not_ended


async def _fence(client: Client, ledger_id: int) -> None:
    metadata = await client.ledger_metadata(ledger_id)
    if metadata.closed:
        return
    password = metadata.password or b""
    (await client.open_ledger(ledger_id, password=password, recover=True)).close()


# -- ledgers ----------------------------------------------------------------------------------


async def _made_for_streams(
    client: Client, before_ms: int, first: int, skipped: list[Skipped]
) -> AsyncGenerator[StreamOrphan, None]:
    async def look(ledger_id: int) -> StreamOrphan | None:
        with skipping(f"ledger {ledger_id}", skipped):
            try:
                metadata = await client.ledger_metadata(ledger_id)
            except NoSuchLedgerError:
                return None
            return _candidate(ledger_id, metadata, before_ms)
        return None

    async with aclosing(pages(client.list_ledgers(first), LEDGERS_LOOKED_AT)) as pieces:
        async for piece in pieces:
            for candidate in await each(piece, look):
                if candidate is not None:
                    yield candidate


def _candidate(ledger_id: int, metadata: LedgerMetadata, before_ms: int) -> StreamOrphan | None:
    custom = metadata.custom
    if any(custom.get(key) != value for key, value in APPLICATION.items()):
        return None
    stream = custom.get(STREAM_KEY, b"").decode(errors="replace")
    if not stream.startswith("/") or not 0 <= metadata.ctime_ms <= before_ms:
        return None
    if f"/{HIDDEN}/" in f"{stream}/":
        return None  # earlier versions wrote such streams, which are not looked for
    job = custom.get(JOB_KEY, b"").decode(errors="replace")
    return StreamOrphan(ledger_id, stream, metadata.ctime_ms, max(metadata.length, 0), job)


# -- names ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """The ledgers that some owners name.

    The owners are all streams whose paths have the first part in common, or all datasets.
    """

    named: set[int] = field(default_factory=set)
    """The ledgers that segments and allocations, or the lists of datasets, name."""
    skipped: list[Skipped] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """The paths below which streams were not looked for, because they are roots of ledgers.

    Another program may have a namespace there.
    """

    def is_orphan(self, orphan: StreamOrphan) -> bool:
        if self.skipped or orphan.ledger_id in self.named:
            return False
        return not any(orphan.stream.startswith(f"{path}/") for path in self.left_out)


def _top(orphan: StreamOrphan) -> str:
    return "/" + orphan.stream.split("/")[1]


async def _still_unnamed(
    client: Client, orphans: list[StreamOrphan], places: dict[str, _Place]
) -> list[StreamOrphan]:
    """Return the ledgers that no stream names when all streams are read a second time.

    A stream that was renamed during the first pass may have been missed. The results of the second
    pass replace those in `places`, whose keys are the first parts of paths.
    """
    if not orphans:
        return []
    await client.metadata.tree.sync()
    for top in sorted({_top(orphan) for orphan in orphans}):
        places[top] = await _named(client.metadata.tree, top)
    return [orphan for orphan in orphans if places[_top(orphan)].is_orphan(orphan)]


async def _named(tree: Tree, top: str) -> _Place:
    """Return the ledgers that the streams below the path `top` name, and the unreadable streams."""
    found = _Place()
    with skipping(f"the streams below {top}", found.skipped, UsageError):
        async with aclosing(walk(tree, [top], left_out=found.left_out)) as nodes:
            async for path, names in nodes:
                if PARTITION not in names:
                    continue
                with skipping(f"stream {path}", found.skipped):
                    named = await ledgers_of(tree, path, Owner("stream", path))
                    found.named |= {one.ledger_id for one in named}
    return found


async def _in_datasets(client: Client) -> _Place:
    """Return the ledgers that datasets name, and the unreadable datasets.

    A dataset may have any ledger, also one that was created for a stream.
    """
    found = _Place()
    names = await client.metadata.list_values((DATASETS,))
    for at in range(0, len(names), OWNERS_AT_ONCE):
        some = names[at : at + OWNERS_AT_ONCE]
        for record in await each(some, lambda name: dataset_record(client, name)):
            if isinstance(record, UnreadableRecord):
                found.skipped.append(Skipped(str(record.owner), record.why))
            else:
                found.named |= {one.ledger_id for one in record}
    return found
