"""The check whether a bookie that has lost something holds all of a ledger once more.

Once every ledger of the cluster is complete here, absence counts again
(`LedgerStore.mark_repaired`). A ledger is complete if it does not name this bookie, or if

- nobody is between fencing it and closing it, and no more entries of it may be acknowledged here:
  it is closed, or open with another last ensemble. What a recovery that is under way was told by
  this bookie may be lost, and an entry that nobody has confirmed yet may be missed by nobody; and
- every entry that its metadata wants here is in the index, and is not known to be damaged; and
- if it is closed, it is fenced here: its fence may have been lost, and whoever wrote it may not
  know that it is closed. An open one was fenced by nobody, for a recovery says so in the metadata
  first.

A fence of a ledger that was deleted since, or moved to other bookies, is not restored: its bookies
refuse it, and so they do where a data directory is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.codec.entry.digest import master_key
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.fragments import fragments, members, stored_count
from quire.core.ranges import Range, merged, without
from quire.errors import StorageError
from quire.storage.directories import Store
from quire.storage.log.appender import Done
from quire.storage.read.outcomes import NoLedger


async def is_complete(store: Store, ledger_id: int, metadata: LedgerMetadata, bookie: str) -> bool:
    """Return whether the ledger is complete here; see the module. If it is closed and complete,
    its fence is durable on return. Reads the index from the disk. Cancel-safe."""
    if not any(bookie in segment.ensemble for segment in metadata.segments):
        return True
    if metadata.state is LedgerState.IN_RECOVERY:
        return False
    if not metadata.closed and bookie in metadata.last_segment.ensemble:
        return False
    here: Sequence[Range] = ()
    try:
        damaged = merged(store.lacking([ledger_id]).get(ledger_id, ()))
        here = without(await store.entry_ranges(ledger_id), damaged)
    except NoLedger:
        pass
    except StorageError:
        return False
    if not has_its_entries(metadata, bookie, here):
        return False
    return not metadata.closed or await _fence(store, ledger_id, metadata)


def has_its_entries(metadata: LedgerMetadata, bookie: str, here: Sequence[Range]) -> bool:
    """Whether these ranges have all entries of closed segments that the bookie should hold."""
    return not any(
        stored_count(metadata, index, first, last)
        for fragment in fragments(metadata, -1)
        for index in members(fragment, (bookie,))
        for first, last in without([(fragment.first, fragment.last)], here)
    )


async def _fence(store: Store, ledger_id: int, metadata: LedgerMetadata) -> bool:
    if ledger_id not in store.ledgers:
        if store.is_lost(ledger_id):
            return False
        # No entry of it should be here. One without a key is refused whatever key it is given.
        key = b"" if metadata.password is None else master_key(metadata.password)
        store.create_ledger(ledger_id, key, again=True)
    try:
        await durable(lambda done: store.fence(ledger_id, done))
    except StorageError:
        return False
    return True


async def durable(begin: Callable[[Done], None]) -> None:
    """Until what `begin` hands to a store has been written, and synced. StorageError: it may not
    be. Cancel-safe."""
    ended: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()

    def done(error: StorageError | None) -> None:
        if not ended.done():
            ended.set_result(error)

    begin(done)
    if (error := await ended) is not None:
        raise error
