"""The state of a ledger's copies on this bookie, which shows whether anything was added.

A pass that deletes copies asks the metadata store whether they are needed, and waits for the
answer. What is added meanwhile may belong to a ledger that the answer does not consider.
"""

from __future__ import annotations

from quire.storage.directories import Store

Copies = tuple[int, int, int]
"""The state of a ledger's copies here. It has the number of runs in segments that are not sealed,
the number of sealed segments with entries, and the number of the newest of them, or 0."""


def copies_of(store: Store, ledger_id: int) -> Copies | None:
    """Return the state of a ledger's copies, or None if the bookie does not have the ledger."""
    info = store.ledgers.get(ledger_id)
    if info is None:
        return None
    runs = sum(len(part.runs) for part in info.open_parts)
    return runs, info.sealed_count, info.newest_sealed
