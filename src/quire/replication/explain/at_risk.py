"""The number of ledgers that lost bookies affect, according to the metadata alone.

It counts the ledgers that should have copies on lost bookies, those with entries of which one copy
is left, and those with entries of which none is left. A bookie is lost if it is not registered.
Nothing is read from bookies, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass

from quire._runtime.tasks import each, pages
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.append.quorum import covered, write_set
from quire.metadata.ledgers.unreadable import Unread, read_or_skip

PAGE_LEDGERS = 256
"""The number of ledgers whose metadata is in memory at the same time."""
LEDGERS_MAX = 100_000
"""The number of ledgers after which the examination stops. The counts are then lower bounds."""


@dataclass(frozen=True, slots=True)
class AtRisk:
    """Counts of ledgers."""

    ledgers: int = 0
    """The number of ledgers that were examined."""
    whole: bool = False
    """Whether all ledgers were examined. If not, the counts are lower bounds."""
    lacking: int = 0
    """The number of ledgers that lack copies: some of their entries should have a copy on a bookie
    that is not registered."""
    last_copy: int = 0
    """The number of ledgers with entries of which only one of several copies is left."""
    unreadable: int = 0
    """The number of ledgers with entries of which no registered bookie has a copy."""
    by_group: Mapping[str, int] | None = None
    """The number of ledgers that lack copies on the lost bookies of a group, by the name of the
    group."""
    skipped: int = 0
    """The number of ledgers whose metadata cannot be read. Their risk is unknown."""
    skipped_first: tuple[tuple[int, str], ...] = ()
    """Some of the ledgers whose metadata cannot be read, each with the reason."""
    without_spare: int = 0
    """The number of ledgers that lack copies and have too few writable bookies outside of their
    ensembles to take them."""
    without_quorum: int = 0
    """The number of ledgers that are not closed, and of whose newest bookies too few are left to
    recover them."""


async def at_risk(
    client: Client,
    registered: Collection[str],
    groups: Mapping[str, Collection[str]],
    writable: Collection[str] | None = None,
) -> AsyncIterator[AtRisk]:
    """Yield the counts so far after each page of ledgers.

    The last counts have `whole` set, unless the examination stopped after `LEDGERS_MAX` ledgers.
    `groups` has the lost bookies under names that the caller chooses. `writable` has the bookies
    that can take copies; None means all that are registered. Raises MetadataError. Cancel-safe.
    """
    there = frozenset(registered)
    able = there if writable is None else frozenset(writable)
    without_spare = without_quorum = 0
    ledgers = lacking = last_copy = unreadable = 0
    by_group = dict.fromkeys(groups, 0)

    unread = Unread()

    async def look(ledger_id: int) -> LedgerMetadata | None:
        found = await read_or_skip(client.metadata, ledger_id, unread)
        return None if found is None else found.value

    def so_far(whole: bool) -> AtRisk:
        skipped, first = len(unread), tuple(unread.named.items())
        groups = dict(by_group)
        return AtRisk(
            ledgers, whole, lacking, last_copy, unreadable, groups, skipped, first, without_spare,
            without_quorum,
        )  # fmt: skip

    async for page in pages(client.list_ledgers(), PAGE_LEDGERS):
        for metadata in await each(page, look):
            if metadata is None:
                continue
            ledgers += 1
            absent, copies = lost_copies(metadata, there)
            if not absent:
                continue
            lacking += 1
            without_spare += not _has_spare(metadata, absent, able)
            without_quorum += not metadata.closed and not can_recover(
                metadata.last_segment.ensemble, metadata.write_quorum, metadata.ack_quorum, absent
            )
            unreadable += copies == 0
            last_copy += copies == 1 < metadata.write_quorum
            for name, bookies in groups.items():
                by_group[name] += not absent.isdisjoint(bookies)
        yield so_far(whole=False)
        if ledgers >= LEDGERS_MAX:
            return
    yield so_far(whole=True)


def can_recover(
    ensemble: Sequence[str], write_quorum: int, ack_quorum: int, absent: Collection[str]
) -> bool:
    """Return whether a ledger with this last ensemble can be recovered without these bookies."""
    answering = [at for at, bookie in enumerate(ensemble) if bookie not in absent]
    return covered(answering, len(ensemble), write_quorum, ack_quorum)


def lost_copies(metadata: LedgerMetadata, there: frozenset[str]) -> tuple[set[str], int]:
    """Return the bookies with lost copies, and the number of copies left of the worst entries.

    These bookies should have entries and are not among the registered ones (`there`).
    """
    absent: set[str] = set()
    copies = metadata.write_quorum
    size = metadata.ensemble_size
    for segment, following in zip(metadata.segments, (*metadata.segments[1:], None)):
        first = segment.first_entry_id
        if following is not None:
            last = following.first_entry_id - 1
        else:
            # The end of an open segment is not known: every member may have entries.
            last = metadata.last_entry_id if metadata.closed else first + size - 1
        if last < first or there.issuperset(segment.ensemble):
            continue
        # Entries with the same write set have the same copies: one of each is examined.
        for entry in range(first, min(last + 1, first + size)):
            members = {segment.ensemble[at] for at in write_set(entry, size, metadata.write_quorum)}
            gone = members - there
            absent |= gone
            copies = min(copies, len(members) - len(gone))
    return absent, copies


def _has_spare(metadata: LedgerMetadata, absent: Collection[str], able: frozenset[str]) -> bool:
    """Return whether each segment can get a writable bookie in place of each that is absent."""
    return all(
        sum(one in absent for one in segment.ensemble) <= len(able.difference(segment.ensemble))
        for segment in metadata.segments
    )
