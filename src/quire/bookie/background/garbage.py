"""Detection of ledgers that were deleted in the metadata store.

A metadata store that is empty, belongs to another cluster, is older or does not answer must never
lead to "delete everything". So a pass works as follows (rules 30 and 45 of
docs/internals/replication-rules.md):

- It notes which ledgers are here before it lists the ledgers of the cluster.
- Before and after listing, it compares the cluster's identity and asks the guard
  (`collection_guard`) whether collection is switched off or the store went back in time.
- It requires a complete list without a gap, and reads every ledger that is not listed once more.
- It skips a range of ledgers that has not changed since an earlier pass found that all of this
  bookie's ledgers in it exist (`UnchangedRanges`). Nothing is dropped in a skipped range.
- It drops no ledger to which anything was added since the pass asked for it. If the id of a deleted
  ledger is used again, entries of the new ledger may arrive before the pass ends.
- It aborts on any error, with nothing dropped. Only a ledger whose own metadata cannot be read
  does not end it, and counts as existing.
- If it would drop most of the bookie's ledgers at once, a pass one interval later must find the
  same. An operator who sees the event `garbage_waits` in the log has that time to stop the bookie,
  even if passes are requested meanwhile.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b

from quire._runtime.event_log import EventLog
from quire.bookie.background.collection_guard import CollectionGuard, check_cluster
from quire.bookie.background.copies import Copies, copies_of
from quire.errors import MetadataError, NoSuchLedgerError
from quire.metadata.interface import KnownRanges, LedgerRange, MetadataStore, RangeStamp
from quire.metadata.ledgers.unreadable import UNREADABLE
from quire.storage.directories import Store

MASS_LEDGERS_MIN = 1_000
MASS_SHARE = 0.5
"""The share of the ledgers on a bookie above which a deletion needs two passes. A pass that would
drop a larger share, and at least `MASS_LEDGERS_MIN` ledgers, needs the agreement of a second
pass."""


FULL_LIST_PASSES = 144
"""The number of passes from one full list to the next, about a day with the default interval.

A full list skips no range, so it also finds names that cannot be decoded in unchanged ranges.
"""


class MassDeletionCheck:
    """The check that two passes agree before most of a bookie's ledgers are dropped."""

    def __init__(self, interval_s: float, monotonic: Callable[[], float]) -> None:
        """Create a check that lets at least `interval_s` seconds pass between the two passes."""
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._gone: frozenset[int] = frozenset()
        self._since_s = 0.0

    def forget(self) -> None:
        """Forget what the last pass has found, so that the next pass counts as the first."""
        self._gone = frozenset()

    def confirmed(self, dead: list[int], local: int, log: EventLog) -> list[int]:
        """Return the ids of those ledgers in `dead` that may be dropped now.

        `dead` has the ids of the ledgers that a pass has found deleted, ascending. `local` is the
        number of ledgers on this bookie. `log` receives the event `garbage_waits` if ledgers must
        wait for the second pass.
        """
        before, now_s = self._gone, self._monotonic()
        if len(dead) < MASS_LEDGERS_MIN or len(dead) <= MASS_SHARE * local:
            self.forget()
            return dead
        still = before.intersection(dead)
        if still and now_s < self._since_s + self._interval_s:
            self._gone = still  # Too early. New ledgers must be found by two later passes.
            return []
        self._gone, self._since_s = frozenset(dead), now_s
        waiting = len(dead) - len(still)
        if waiting:
            log("garbage_waits", count=waiting, of=local, first=dead[0], last=dead[-1])
        return [ledger_id for ledger_id in dead if ledger_id in still]


class UnchangedRanges:
    """The ranges of ledgers in which a pass found that all ledgers of this bookie exist.

    Each bookie lists all ledgers of the cluster, so the load of the lists grows with bookies ×
    ledgers. Most ranges have only old ledgers, and do not change between two passes. The store
    then answers with the stamp of the range, instead of up to 10,000 names. A bookie that has the
    same ledgers in such a range as before can have no deleted ones there.
    """

    def __init__(self) -> None:
        self._stamps: dict[tuple[int, int], tuple[RangeStamp, bytes]] = {}
        """The stamp of each range, and the digest of the ledgers that this bookie had in it."""
        self._noted: dict[tuple[int, int], tuple[RangeStamp, bytes]] = {}
        self._passes = 0

    def known(self, local: Sequence[int]) -> KnownRanges:
        """Begin a pass, and return the ranges that need not be listed if they have not changed.

        `local` has the ids of this bookie's ledgers, ascending. The result is empty in every
        `FULL_LIST_PASSES`th pass.
        """
        self._noted = {}
        self._passes += 1
        if self._passes % FULL_LIST_PASSES == 0:
            return {}
        return {
            ids: stamp
            for ids, (stamp, digest) in self._stamps.items()
            if _digest(within(local, *ids)) == digest
        }

    def note(self, span: LedgerRange, here: Sequence[int]) -> None:
        """Note a range in which all ledgers of this bookie exist. `here` has their ids."""
        if span.stamp is not None:
            self._noted[span.first, span.last] = span.stamp, _digest(here)

    def complete(self) -> None:
        """Complete a pass: the ranges that the pass has recorded replace the remembered ones."""
        self._stamps = self._noted


def within(local: Sequence[int], first: int, last: int) -> Sequence[int]:
    """Return the ids from `first` to `last`, both included. `local` must be ascending."""
    return local[bisect_left(local, first) : bisect_right(local, last)]


def _digest(ids: Sequence[int]) -> bytes:
    return blake2b(array("q", ids).tobytes(), digest_size=16).digest()


async def collect_garbage(
    store: Store,
    metadata: MetadataStore,
    instance_id: str,
    log: EventLog,
    guard: CollectionGuard,
    mass_deletion: MassDeletionCheck | None = None,
    unchanged: UnchangedRanges | None = None,
) -> list[int]:
    """Make one pass of garbage collection, and return the ids of the ledgers that were dropped.

    A dropped ledger is gone at once, and its deletion is durable soon after
    (`LedgerStore.drop_ledgers`). If `mass_deletion` is given, many ledgers are dropped at once only
    if two passes have found them. If `unchanged` is given, a pass skips the ranges that have not
    changed since the pass before. Both objects keep their state from pass to pass.

    Raises CollectionOffError while collection is switched off, and MetadataError or CookieError if
    the metadata store cannot be trusted. Nothing is dropped in these cases. Run one pass at a time.
    Safe to cancel.
    """
    await guard.check()
    local = store.ledger_ids()
    found = await _find_unnamed(store, metadata, instance_id, unchanged)
    dead = list(found)
    if not dead:
        if mass_deletion is not None:
            mass_deletion.forget()
        return []
    # The store may have been replaced, or have gone back, while it was listed.
    await check_cluster(metadata, instance_id, "nothing was deleted", named=True)
    await guard.check()
    if mass_deletion is not None:
        dead = mass_deletion.confirmed(dead, len(local), log)
    dead = [ledger for ledger in dead if copies_of(store, ledger) == found[ledger]]
    if dead:
        store.drop_ledgers(dead)
        log("ledgers_dropped", count=len(dead), first=dead[0], last=dead[-1])
    return dead


async def unnamed_ledgers(
    store: Store,
    metadata: MetadataStore,
    instance_id: str,
    unchanged: UnchangedRanges | None = None,
) -> list[int]:
    """Return the ids of the ledgers that are here but not in the metadata store, ascending.

    With `unchanged`, ranges of ledgers that have not changed since the pass before are skipped.
    This does not decide whether the ledgers may be dropped. Raises MetadataError if the metadata
    store does not answer or its list is not complete, and CookieError if the store belongs to
    another cluster.
    """
    return list(await _find_unnamed(store, metadata, instance_id, unchanged))


async def _find_unnamed(
    store: Store, metadata: MetadataStore, instance_id: str, unchanged: UnchangedRanges | None
) -> dict[int, Copies | None]:
    """Do the same as `unnamed_ledgers`, and return the state of each ledger's copies by its id.

    The state is that from before the metadata store was asked for the ledger.
    """
    # Take this list before the metadata is read, so that no newer ledger is in it.
    local = sorted(store.ledger_ids())
    if not local:
        return {}
    await check_cluster(metadata, instance_id, "nothing was deleted", named=True)
    gone: list[int] = []
    known = None if unchanged is None else unchanged.known(local)
    upcoming = 0
    async for span in metadata.list_ledgers(complete=True, known=known):
        if span.first != upcoming:
            raise MetadataError(
                "the list of ledgers from the metadata store has a gap before ledger "
                f"{span.first}, so nothing was deleted",
                remedy="This is a bug in Quire: please report it",
            )
        here = within(local, span.first, span.last)
        before = len(gone)
        if here and not span.unchanged:
            alive = set(span.ledger_ids)
            gone.extend(ledger for ledger in here if ledger not in alive)
        if unchanged is not None and len(gone) == before:
            unchanged.note(span, here)
        upcoming = span.last + 1
    if upcoming != 2**63:
        raise MetadataError(
            f"the list of ledgers from the metadata store ends at ledger {upcoming - 1} and is "
            "not complete, so nothing was deleted",
            remedy="This is a bug in Quire: please report it",
        )
    if unchanged is not None:
        unchanged.complete()
    found: dict[int, Copies | None] = {}
    shared: dict[Copies | None, Copies | None] = {}  # There may be a million equal ones.
    for ledger in gone:
        copies = copies_of(store, ledger)
        if await _is_gone(metadata, ledger):
            found[ledger] = shared.setdefault(copies, copies)
    return found


async def _is_gone(metadata: MetadataStore, ledger_id: int) -> bool:
    try:
        await metadata.read_ledger(ledger_id)
    except NoSuchLedgerError:
        return True
    except UNREADABLE:
        pass  # The ledger exists, even if its metadata cannot be read.
    return False
