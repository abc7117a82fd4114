"""Changes of ledger metadata: change the value, compare and swap, and read again after a conflict.

Writers and recovery change ledger metadata through this module. Re-replication writes directly with
one compare-and-swap, because it must make its copies again after a conflict.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import MetadataError, VersionConflictError
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.creation import check_same_creation

MAX_ATTEMPTS = 100
"""The number of attempts for one update. Conflicts are rare: a writer, a recovery and a
re-replication of the same ledger can cause them."""


async def update_ledger(
    store: MetadataStore,
    ledger_id: int,
    current: Versioned[LedgerMetadata],
    change: Callable[[LedgerMetadata], LedgerMetadata | None],
) -> Versioned[LedgerMetadata]:
    """Apply `change` to the metadata of a ledger by compare-and-swap.

    See rule 18 of docs/internals/replication-rules.md. If the call is cancelled, the outcome is
    unknown.

    Args:
        store: The store of the cluster.
        ledger_id: The ledger.
        current: The newest value that the caller has read.
        change: Receives the newest known value and returns the new one, or None to write nothing.
            After a conflict it is called again with the value in the store.

    Returns:
        The stored value, even if `change` returned None.

    Raises:
        NoSuchLedgerError: The ledger was deleted.
        LedgerRecreatedError: The ledger was deleted and another one has its id. Nothing was written
            to the new one, unless the error's `outcome_known` is False
            (`MetadataStore.write_ledger`).
        MetadataTooLargeError: The new metadata is too large. It was not written.
        MetadataUnavailableError: The store does not answer. The outcome is unknown.
        MetadataError: Every attempt met a conflict, or the store fails or has metadata that cannot
            be read.
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
                return current  # this is our own write, whose response was lost
    raise MetadataError(
        f"the metadata of ledger {ledger_id} was not changed: others changed it {MAX_ATTEMPTS} "
        "times in a row",
        remedy="Try again",
    )
