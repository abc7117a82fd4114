"""The one way in which ledger metadata changes: check, change, compare-and-swap, re-read."""

from __future__ import annotations

from collections.abc import Callable

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import MetadataError, VersionConflictError
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.creation import check_same_creation

MAX_ATTEMPTS = 100
"""Of one update. Conflicts are rare (a writer, a recovery, a re-replication of one ledger)."""


async def update_ledger(
    store: MetadataStore,
    ledger_id: int,
    current: Versioned[LedgerMetadata],
    change: Callable[[LedgerMetadata], LedgerMetadata | None],
) -> Versioned[LedgerMetadata]:
    """Apply `change` to the ledger's metadata (replication spec, 4.4).

    `change` receives the newest known value and returns the new one, or None if nothing is to be
    written. After a conflict it is called again with the value in the store. Returns the stored
    value, even if `change` declined to change it. Raises NoSuchLedgerError when the ledger was
    deleted, and LedgerRecreatedError when another one has its id by now (nothing was written to
    that). After a MetadataUnavailableError, or when cancelled, the outcome is unknown.
    """
    for _ in range(MAX_ATTEMPTS):
        wanted = change(current.value)
        if wanted is None:
            return current
        try:
            return await store.write_ledger(ledger_id, wanted, current.version, current)
        except VersionConflictError:
            found = await store.read_ledger(ledger_id)
            check_same_creation(ledger_id, current, found)
            current = found
            if current.value == wanted:
                return current  # our own write, whose answer was lost
    raise MetadataError(f"ledger {ledger_id}: {MAX_ATTEMPTS} updates in a row met a conflict")
