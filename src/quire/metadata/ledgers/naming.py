"""The search for the ledgers whose metadata names a bookie.

It comes before a bookie loses its cookie, its id or its copies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from quire._runtime.tasks import each, pages
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import NoSuchLedgerError, UnreadableMetadataError
from quire.metadata.bookies.collection import check_not_back
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.unreadable import Unread, read_or_skip

LEDGERS_PER_LOOK = 256
"""The number of ledgers whose metadata is read concurrently."""
NAMED_MAX = 10
"""The largest number of ledgers that a message names."""
KEPT_MAX = 1_000
"""The largest number of ledger ids that one `SomeLedgers` keeps. Further ledgers are only
counted."""


@dataclass(slots=True)
class SomeLedgers:
    """A count of ledgers, with the ids of the first `KEPT_MAX` of them."""

    count: int = 0
    ledger_ids: list[int] = field(default_factory=list)

    def add(self, ledger_id: int) -> None:
        self.count += 1
        if len(self.ledger_ids) < KEPT_MAX:
            self.ledger_ids.append(ledger_id)

    def __str__(self) -> str:
        named = ", ".join(map(str, self.ledger_ids[:NAMED_MAX]))
        return named + (", ..." if self.count > NAMED_MAX else "")


async def check_all_listed(metadata: MetadataStore) -> None:
    """Raise MetadataError if the store may have ledgers that its list of ledgers does not contain.

    Call this before you remove something because no listed ledger needs it, if the list was made
    without this check.
    """
    async for _ in metadata.list_ledgers(complete=True):
        pass


async def is_named(metadata: MetadataStore, bookie_id: str, *, unreadable: bool) -> bool:
    """Return whether the metadata of any ledger names the bookie.

    The search stops at the first ledger that names it. Otherwise it reads the metadata of every
    ledger.

    Args:
        metadata: The store of the cluster.
        bookie_id: The bookie.
        unreadable: Whether metadata that cannot be read counts as naming the bookie. If it does,
            the result False proves that no ledger names the bookie. The proof needs a complete
            list of the ledgers, so a list that may be incomplete is an error.

    Raises:
        MetadataError: The store does not answer, or its list is not complete.
    """

    async def names_it(ledger_id: int) -> bool:
        try:
            found = (await metadata.read_ledger(ledger_id)).value
        except NoSuchLedgerError:
            return False
        except UnreadableMetadataError:
            return unreadable
        return any(bookie_id in segment.ensemble for segment in found.segments)

    async for span in metadata.list_ledgers(complete=unreadable):
        for at in range(0, len(span.ledger_ids), LEDGERS_PER_LOOK):
            if any(await each(span.ledger_ids[at : at + LEDGERS_PER_LOOK], names_it)):
                return True
    return False


async def pages_naming(
    metadata: MetadataStore,
    bookie_id: str,
    looked_at: Callable[[int], object],
    unread: Unread,
) -> AsyncIterator[list[tuple[int, LedgerMetadata]]]:
    """Search all ledgers, and yield those whose metadata names the bookie, as lists.

    One list has the ids and the metadata of the ledgers that were found among `LEDGERS_PER_LOOK`
    examined ones, and may be empty. Ledgers whose metadata cannot be read are recorded in `unread`,
    because any of them may name the bookie.

    Args:
        metadata: The store of the cluster.
        bookie_id: The bookie.
        looked_at: Called after each list with the number of ledgers that were examined for it.
        unread: Receives the ledgers that could not be read.

    Raises:
        MetadataError: The store does not answer, or its list of ledgers is not complete.
        MetadataWentBackError: The store went back to an older state.
    """
    await check_not_back(metadata)

    async def names_it(ledger_id: int) -> tuple[int, LedgerMetadata] | None:
        found = await read_or_skip(metadata, ledger_id, unread)
        if found is None:
            return None
        named = any(bookie_id in segment.ensemble for segment in found.value.segments)
        return (ledger_id, found.value) if named else None

    async def ids() -> AsyncIterator[int]:
        # The list must be complete: if no ledger names the bookie, the caller gives up its copies
        # or its id.
        async for found in metadata.list_ledgers(complete=True):
            for ledger_id in found.ledger_ids:
                yield ledger_id

    async for page in pages(ids(), LEDGERS_PER_LOOK):
        yield [one for one in await each(page, names_it) if one is not None]
        looked_at(len(page))
