"""The check whether a bookie that lost data has everything of a ledger that it should have.

When every ledger of the cluster is complete here, the bookie may again answer "no such entry" for
an entry that it does not have (`LedgerStore.mark_repaired`). If the metadata of a ledger names this
bookie, the ledger must meet three conditions to be complete.

- No recovery of the ledger is in progress, and no further entry of it can be acknowledged here. So
  the ledger is closed, or it is open and the bookie is not in its last ensemble. Otherwise the
  bookie may have lost entries that it has acknowledged to a recovery or to a writer, and the
  metadata does not show yet that these entries exist.
- Every entry that the metadata places here is in the index, and is not known to be damaged.
- If the ledger is closed, it is fenced here. The fence may have been lost, and the former writer
  may not know that the ledger is closed. An open ledger was never fenced, because a recovery
  changes the metadata first.

If the metadata does not name this bookie, it may have done so before, or may do so later:

- A recovery may have replaced this bookie when it closed the ledger, or autorecovery since. So a
  closed ledger is refused from now on, as if it had been fenced and dropped. Otherwise its former
  writer could complete an ack quorum here, with a member that nobody has fenced.
- The ensemble of a recovery is private until it closes the ledger. So a ledger in recovery is not
  complete while a recovery may be running that this bookie has acknowledged entries to.

The fence of a ledger that was deleted is not restored.

A ledger may have lost its key, and nothing else. Then nobody copies anything here, so the bookie
takes the key from the metadata. Otherwise it would refuse every fence and every writer for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.codec.entry.digest import master_key
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.fragments import fragments, members, stored_count
from quire.core.ranges import Range, merged, overlapping, without
from quire.errors import StorageError
from quire.storage.directories import Store
from quire.storage.log.appender import Done
from quire.storage.read.read_exceptions import NoLedger


async def is_complete(
    store: Store,
    ledger_id: int,
    metadata: LedgerMetadata,
    bookie: str,
    *,
    recoveries_over: bool = False,
) -> bool:
    """Return whether this bookie has everything of the ledger that it should have.

    The rules are in the module's docstring. The call also has these effects:

    - If the ledger is complete, closed and names this bookie, its fence is durable on return.
    - If it is closed and does not name this bookie, it is refused from now on. That is durable with
      the next barrier. Nothing is refused if a failed directory may have the ledger.
    - If it is here and has lost its key, it has the key of the metadata on return. That is durable
      with the next barrier.

    The index is read from the disk. Raises StorageError if every directory of the bookie has
    failed. Safe to cancel.

    `recoveries_over` says that no recovery is still running that began before this bookie started.
    """
    _restore_key(store, ledger_id, metadata)
    recovering = metadata.state is LedgerState.IN_RECOVERY
    if not is_named(metadata, bookie):
        if recovering:
            return recoveries_over
        return not metadata.closed or await _refuse(store, ledger_id, metadata)
    if recovering:
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


def is_named(metadata: LedgerMetadata, bookie: str) -> bool:
    """Return whether the ensemble of any segment in the metadata contains the bookie."""
    return any(bookie in segment.ensemble for segment in metadata.segments)


def has_its_entries(metadata: LedgerMetadata, bookie: str, here: Sequence[Range]) -> bool:
    """Return whether `here` contains all entries that the metadata places on the bookie.

    `here` has the ranges (first, last) of the entries that the bookie has. The entries of the last
    segment of an open ledger do not count.
    """
    return not any(
        stored_count(metadata, index, first, last)
        for fragment in fragments(metadata, -1)
        for index in members(fragment, (bookie,))
        for first, last in without(
            [(fragment.first, fragment.last)], overlapping(here, fragment.first, fragment.last)
        )
    )


def _restore_key(store: Store, ledger_id: int, metadata: LedgerMetadata) -> None:
    """Set the lost key of a ledger to the key in the metadata, if the metadata has one."""
    info = store.ledgers.get(ledger_id)
    if info is None or info.master_key or metadata.password is None:
        return
    try:
        store.adopt_key(ledger_id, master_key(metadata.password))
    except NoLedger:
        pass  # Several directories have the ledger.


async def _fence(store: Store, ledger_id: int, metadata: LedgerMetadata) -> bool:
    if ledger_id not in store.ledgers:
        if store.is_lost(ledger_id):
            return False
        # No entry of the ledger should be here. With an empty key, every ordinary add is refused.
        key = b"" if metadata.password is None else master_key(metadata.password)
        store.create_ledger(ledger_id, key, again=True)
    try:
        await durable(lambda done: store.fence(ledger_id, done))
    except StorageError:
        return False
    return True


async def _refuse(store: Store, ledger_id: int, metadata: LedgerMetadata) -> bool:
    """Refuse the former writer of a closed ledger that does not belong here.

    A ledger that is here is fenced, and dropped later as superfluous. For any other ledger, the
    store records that it was fenced and dropped. That is durable with the next barrier. Return
    False if the ledger may be in a directory that failed, or the fence cannot be made durable.
    """
    if ledger_id in store.ledgers:
        return await _fence(store, ledger_id, metadata)
    if store.is_lost(ledger_id):
        return False
    store.refuse_ledger(ledger_id)
    return True


async def durable(begin: Callable[[Done], None]) -> None:
    """Start a write with `begin`, and wait until it is durable.

    Raises StorageError if the write failed, so that it may not be durable. Safe to cancel.
    """
    ended: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()

    def done(error: StorageError | None) -> None:
        if not ended.done():
            ended.set_result(error)

    begin(done)
    if (error := await ended) is not None:
        raise error
