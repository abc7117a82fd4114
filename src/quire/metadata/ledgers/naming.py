"""Which ledgers name a bookie: what is asked before something is taken away from it."""

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
NAMED_MAX = 10
"""Ledgers that a line names."""
KEPT_MAX = 1_000
"""Ledgers that are remembered; of more there is the count."""


@dataclass(slots=True)
class SomeLedgers:
    """How many, and the first of them."""

    count: int = 0
    ledger_ids: list[int] = field(default_factory=list)

    def add(self, ledger_id: int) -> None:
        self.count += 1
        if len(self.ledger_ids) < KEPT_MAX:
            self.ledger_ids.append(ledger_id)

    def __str__(self) -> str:
        named = ", ".join(map(str, self.ledger_ids[:NAMED_MAX]))
        return named + (", ..." if self.count > NAMED_MAX else "")


async def is_named(metadata: MetadataStore, bookie_id: str, *, unreadable: bool) -> bool:
    """Return whether the metadata of any ledger names the bookie.

    With `unreadable`, metadata that cannot be read counts as naming it, and only a complete list
    proves that none does. Stops at the first ledger that names it; otherwise reads the metadata of
    every ledger. Raises MetadataError.
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
    """Yield the ledgers whose metadata names the bookie, from pages of `LEDGERS_PER_LOOK` ledgers.

    Ledgers whose metadata cannot be read are recorded in `unread`: any of them may name the bookie.

    Args:
        metadata: The store of the cluster.
        bookie_id: The bookie that ledgers may name.
        looked_at: Called after each page with the number of ledgers in it.
        unread: Receives the ledgers that could not be read.

    Raises:
        MetadataError: The store does not answer.
        MetadataWentBackError: The store is older than it was.
    """
    await check_not_back(metadata)

    async def names_it(ledger_id: int) -> tuple[int, LedgerMetadata] | None:
        found = await read_or_skip(metadata, ledger_id, unread)
        if found is None:
            return None
        named = any(bookie_id in segment.ensemble for segment in found.value.segments)
        return (ledger_id, found.value) if named else None

    async def ids() -> AsyncIterator[int]:
        # If nothing names the bookie, the caller gives up its copies or its id.
        async for found in metadata.list_ledgers(complete=True):
            for ledger_id in found.ledger_ids:
                yield ledger_id

    async for page in pages(ids(), LEDGERS_PER_LOOK):
        yield [one for one in await each(page, names_it) if one is not None]
        looked_at(len(page))
