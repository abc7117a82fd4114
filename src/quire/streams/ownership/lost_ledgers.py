"""The search for ledgers that streams, objects and datasets name and that no longer exist.

The ids of all ledgers are listed once, which takes 8 bytes of memory for each, and no ledger's
metadata is read. Then the records of the owners are read one after the other. A ledger that is
named and was not listed is checked individually: it may have been created since, or its owner may
have released it meanwhile.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from quire._runtime.tasks import each
from quire.client import Client
from quire.errors import NoSuchLedgerError, UnreadableMetadataError
from quire.metadata.ledgers.deletions import deletion_of
from quire.streams.ownership.named_ledgers import (
    NamedLedger,
    Owner,
    OwnerRecord,
    UnreadableRecord,
    dataset_record,
    object_record,
    records,
    stream_record,
)

TOLD_MAX = 1_000
"""The largest number of lost ledgers, and of unreadable records, that a result lists.

The counts in the result include the others.
"""
LISTED_MAX = 20_000_000
"""The largest number of ledger ids held in memory (8 bytes each). Later ids are checked one by one.
"""


@dataclass(frozen=True, slots=True)
class LostLedgers:
    """The result so far of a search through the records of all owners."""

    lost: tuple[NamedLedger, ...] = ()
    """The first `TOLD_MAX` lost ledgers."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of lost ledgers by the kind of their owner."""
    unreadable: tuple[UnreadableRecord, ...] = ()
    """The first `TOLD_MAX` records that cannot be read."""
    unreadable_count: int = 0
    """The number of records that cannot be read."""
    records: int = 0
    """The number of records that were checked."""
    whole: bool = False
    """Whether all records were checked."""

    @property
    def count(self) -> int:
        """The number of lost ledgers."""
        return sum(self.counts.values())

    def by_owner(self) -> dict[Owner, list[NamedLedger]]:
        """Return the lost ledgers in `lost`, by owner."""
        found: dict[Owner, list[NamedLedger]] = {}
        for one in self.lost:
            found.setdefault(one.owner, []).append(one)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the result as commands and the HTTP API print it."""
        return {
            "count": self.count,
            "ledgers": [
                {
                    "ledger": one.ledger_id,
                    "kind": one.owner.kind,
                    "name": one.owner.name,
                    "place": one.owner.place,
                    "part": one.part,
                    "deletion": None if one.deletion is None else asdict(one.deletion),
                }
                for one in self.lost
            ],
            "unreadable": [{"owner": str(one.owner), "why": one.why} for one in self.unreadable],
            "unreadable_count": self.unreadable_count,
            "records": self.records,
            "whole": self.whole,
        }


async def lost_ledgers(
    client: Client, seen: Callable[[OwnerRecord], None] = lambda record: None
) -> AsyncGenerator[LostLedgers, None]:
    """Yield the result so far after each record. `whole` is set in the last one.

    `seen` receives each record as it was read. Raises MetadataError if the ledgers or the owners
    cannot be listed completely. Cancel-safe. Nothing is changed.
    """
    found = LostLedgers()
    listed = await _listed(client)
    async with aclosing(records(client)) as all_records:
        async for record in all_records:
            seen(record)
            found = await _with_record(
                client, replace(found, records=found.records + 1), record, listed
            )
            yield found
    yield replace(found, whole=True)


async def _with_record(
    client: Client, found: LostLedgers, record: OwnerRecord, listed: array[int]
) -> LostLedgers:
    """Return the result with one more record."""
    if not isinstance(record, UnreadableRecord):
        suspects = [one for one in record if one.needed and not _among(listed, one.ledger_id)]
        if not suspects:
            return found
        there = [one.ledger_id for one in record if _among(listed, one.ledger_id)]
        record = await _certainly_lost(client, suspects)
        if not isinstance(record, UnreadableRecord):
            deletions = await each(record, lambda one: deletion_of(client.metadata, one.ledger_id))
            record = [
                replace(one, like=_nearest(one, there), deletion=deletion)
                for one, deletion in zip(record, deletions)
            ]
    if isinstance(record, UnreadableRecord):
        return replace(
            found,
            unreadable=(*found.unreadable, record)[:TOLD_MAX],
            unreadable_count=found.unreadable_count + 1,
        )
    counts = dict(found.counts)
    for one in record:
        counts[one.owner.kind] = counts.get(one.owner.kind, 0) + 1
    return replace(found, lost=(*found.lost, *record)[:TOLD_MAX], counts=counts)


def _nearest(lost: NamedLedger, there: Sequence[int]) -> int | None:
    """Return the ledger of the same stream whose id is nearest, which was created about then."""
    if lost.owner.kind != "stream":
        return None  # Ledgers of one dataset or object may have different settings.
    return min(there, key=lambda one: abs(one - lost.ledger_id), default=None)


async def _listed(client: Client) -> array[int]:
    """Return the ids of the first `LISTED_MAX` ledgers or a few more, ascending."""
    found = array("q")
    ledgers = client.metadata.list_ledgers()
    try:
        async for some in ledgers:
            found.extend(some.ledger_ids)
            if len(found) >= LISTED_MAX:
                break
            await asyncio.sleep(0)
    finally:
        if isinstance(ledgers, AsyncGenerator):
            await ledgers.aclose()
    return found


def _among(listed: array[int], ledger_id: int) -> bool:
    at = bisect_left(listed, ledger_id)
    return at < len(listed) and listed[at] == ledger_id


async def _certainly_lost(client: Client, suspects: Sequence[NamedLedger]) -> OwnerRecord:
    """Return those of an owner's ledgers that do not exist although the owner still names them.

    The owner's record is read again after the check. If that fails, the result is UnreadableRecord.
    """
    gone = [
        one
        for one, there in zip(
            suspects, await each(suspects, lambda s: _exists(client, s.ledger_id))
        )
        if not there
    ]
    if not gone:
        return ()
    again = await _read_again(client, gone[0].owner)
    if isinstance(again, UnreadableRecord):
        return again
    needed = {one.ledger_id for one in again if one.needed}
    return [one for one in gone if one.ledger_id in needed]


async def _exists(client: Client, ledger_id: int) -> bool:
    try:
        await client.metadata.read_ledger(ledger_id)
    except NoSuchLedgerError:
        return False
    except UnreadableMetadataError:
        pass  # the ledger exists, and unreadable metadata is a different problem
    return True


async def _read_again(client: Client, owner: Owner) -> OwnerRecord:
    if owner.kind == "dataset":
        return await dataset_record(client, owner.name)
    if owner.kind == "stream":
        return await stream_record(client, f"{owner.place.rstrip('/')}/{owner.name}")
    return await object_record(client, owner.place, owner.name)
