"""What lost bookies mean for ledgers, by the metadata alone: how many have copies there, and of how
many there is one copy left, or none. Nothing is read from bookies, and nothing is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass

from quire._runtime.tasks import each, pages
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.append.quorum import write_set
from quire.metadata.ledgers.unreadable import Unread, read_or_skip

PAGE_LEDGERS = 256
"""Whose metadata is in memory at a time."""
LEDGERS_MAX = 100_000
"""That are looked at; of more the numbers are lower bounds."""


@dataclass(frozen=True, slots=True)
class AtRisk:
    ledgers: int = 0
    """That were looked at."""
    whole: bool = False
    """These were all; else the numbers are lower bounds."""
    lacking: int = 0
    """With entries that should have a copy on a bookie that is not registered."""
    last_copy: int = 0
    """Of these: with entries of which one copy of several is left."""
    unreadable: int = 0
    """Of these: with entries of which no bookie that is registered has a copy."""
    by_group: Mapping[str, int] | None = None
    """Of those that lack copies: with one in this group of bookies."""
    skipped: int = 0
    """The number of ledgers whose metadata cannot be read. Their risk is unknown."""
    skipped_first: tuple[tuple[int, str], ...] = ()
    """Some of these ledgers, each with the reason."""


async def at_risk(
    client: Client, registered: Collection[str], groups: Mapping[str, Collection[str]]
) -> AsyncIterator[AtRisk]:
    """What is known so far, after each page of ledgers; the last one has `whole`, unless there are
    more than `LEDGERS_MAX`. `groups`: lost bookies by any names. MetadataError. Cancel-safe."""
    there = frozenset(registered)
    ledgers = lacking = last_copy = unreadable = 0
    by_group = dict.fromkeys(groups, 0)

    unread = Unread()

    async def look(ledger_id: int) -> LedgerMetadata | None:
        found = await read_or_skip(client.metadata, ledger_id, unread)
        return None if found is None else found.value

    def so_far(whole: bool) -> AtRisk:
        skipped, first = len(unread), tuple(unread.named.items())
        groups = dict(by_group)
        return AtRisk(ledgers, whole, lacking, last_copy, unreadable, groups, skipped, first)

    async for page in pages(client.list_ledgers(), PAGE_LEDGERS):
        for metadata in await each(page, look):
            if metadata is None:
                continue
            ledgers += 1
            absent, copies = _lacking(metadata, there)
            if not absent:
                continue
            lacking += 1
            unreadable += copies == 0
            last_copy += copies == 1 < metadata.write_quorum
            for name, bookies in groups.items():
                by_group[name] += not absent.isdisjoint(bookies)
        yield so_far(whole=False)
        if ledgers >= LEDGERS_MAX:
            return
    yield so_far(whole=True)


def _lacking(metadata: LedgerMetadata, there: frozenset[str]) -> tuple[set[str], int]:
    """Bookies that should have entries and are not there; and how many copies there are left of
    the entries that have the fewest."""
    absent: set[str] = set()
    copies = metadata.write_quorum
    size = metadata.ensemble_size
    for segment, following in zip(metadata.segments, (*metadata.segments[1:], None)):
        first = segment.first_entry_id
        if following is not None:
            last = following.first_entry_id - 1
        else:
            # Of an open segment nobody knows the end: it may have entries in each place.
            last = metadata.last_entry_id if metadata.closed else first + size - 1
        if last < first or there.issuperset(segment.ensemble):
            continue
        # One entry of each write set says it for all of them.
        for entry in range(first, min(last + 1, first + size)):
            members = {segment.ensemble[at] for at in write_set(entry, size, metadata.write_quorum)}
            gone = members - there
            absent |= gone
            copies = min(copies, len(members) - len(gone))
    return absent, copies
