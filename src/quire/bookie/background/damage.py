"""Reports of damage to the cluster.

A bookie that lost entries of a ledger marks the ledger as under-replicated, as an auditor does.
Autorecovery workers then restore the entries.

A mark says that the ledger lacks something on this bookie, but not what. A worker reads everything
that the bookie should hold, and writes back what is missing or wrong. A ledger is marked only in
the bookie's own cluster, and only if it exists and its metadata names this bookie for the damaged
entries. Marks are repeated, because another process may remove a mark too early.

If it is unknown what the log lost (`negatives_unknown`), or a data directory does not serve, the
bookie examines every ledger that may have been there, and marks each ledger that is not complete
(`complete_ledger`). It repeats this for all ledgers of the cluster until a round finds nothing to
mark. Then everything is restored, and the bookie may answer "no such entry" again. The next round
begins after `AGAIN_S`, or as soon as all marks of the last one are gone.

A ledger whose metadata cannot be decoded is named in the log, and does not delay the others. It is
unknown whether it has entries on this bookie, so the rounds continue while there is such a ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.tasks import each
from quire.bookie.background.collection_guard import CollectionGuard, check_cluster
from quire.bookie.background.complete_ledger import durable, is_complete, is_named
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.core.ranges import Range
from quire.errors import MetadataError, NoSuchLedgerError
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.underreplicated import is_marked, mark_ledger
from quire.metadata.ledgers.unreadable import UNREADABLE, reason_of
from quire.storage.directories import Store

LEDGERS_PER_PASS = 200
AGAIN_S = 600.0
"""Seconds until a ledger that still lacks entries is marked again."""
SOON_S = 30.0
"""Seconds between two rounds at least, although the marks of the first one are gone."""
AWAITED_MAX = 10_000
"""The number of ledgers marked in a round up to which the bookie notices that their marks are gone.
After a round that marked more, it waits for `AGAIN_S`."""
RECOVERIES_END_S = 600.0
"""Seconds after which no recovery is still running that began before this bookie started. Clients
give a recovery a minute by default (`ClientConfig.recovery_timeout_s`)."""
NAMED_PER_PASS = 10
"""The number of ledgers with unreadable metadata that one line of the log names."""


class DamageReports:
    """The damage reports of one bookie, with the state that is kept between its passes."""

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        clock: Clock,
        bookie_id: str,
        instance_id: str,
        guard: CollectionGuard,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._bookie_id = bookie_id
        self._instance_id = instance_id
        self._guard = guard
        self._began_s = clock.monotonic()
        self._told_s: dict[int, float] = {}
        """The monotonic time when each ledger was last examined, which has marked it if
        necessary."""
        self._upcoming: int | None = None
        """The id of the next ledger to examine in a round over the cluster, or None between two
        rounds."""
        self._round_ended_s: float | None = None
        self._awaited: dict[int, None] = {}
        """The ledgers that this round, or the last one, has marked and whose marks were not seen to
        be gone."""
        self._wanting = 0
        """The number of ledgers in this round that were not complete, or whose state is unknown."""
        self._unreadable: dict[int, str] = {}
        """The ledgers of this pass whose metadata cannot be read, with the reasons."""
        self.wanting: int | None = None
        """The number of incomplete or unknown ledgers in the last finished round, or None if no
        round has finished."""
        self.marked = 0
        """The number of ledgers that were marked since the start."""
        self.unreadable = 0
        """The number of times since the start that a ledger's metadata could not be read."""
        self.losses_repaired = 0
        """The number of times since the start that everything the log had lost was restored."""

    async def report(self, log: EventLog) -> int:
        """Mark ledgers that lack entries here, and return how many were marked.

        One call examines up to `LEDGERS_PER_PASS` ledgers with known damage. If it is unknown what
        was lost, it also examines as many ledgers of the cluster. The next call continues from
        there. Safe to cancel.

        Raises:
            MetadataError: The metadata store does not answer. Ledgers that were marked stay marked.
            MetadataWentBackError: A loss may be repaired, but the metadata store went back to an
                older state.
            CollectionOffError: A loss may be repaired, but garbage collection is switched off for
                the cluster. The loss counts as unrepaired until it is on again.
            CookieError: The metadata store belongs to another cluster.
            StorageError: The log failed, or could not record that a loss is repaired. The loss then
                counts as repaired until the next start only.
        """
        lacking = self._store.lacking_ledgers()
        for gone in self._told_s.keys() - lacking:
            del self._told_s[gone]
        now_s = self._clock.monotonic()
        due = list(islice(lacking - self._told_s.keys(), LEDGERS_PER_PASS))
        for ledger_id, told_s in self._told_s.items():  # the oldest first
            if len(due) >= LEDGERS_PER_PASS or now_s - told_s < AGAIN_S:
                break
            due.append(ledger_id)
        unknown = self._store.negatives_unknown
        if not unknown:
            self._upcoming = self._round_ended_s = self.wanting = None
        resting = self._round_ended_s is not None and now_s - self._round_ended_s < AGAIN_S
        may_end = resting and now_s - (self._round_ended_s or 0.0) >= SOON_S
        if may_end and await self._marks_are_gone():
            self._round_ended_s, resting = None, False
        if not due and (not unknown or resting):
            return 0
        await check_cluster(self._metadata, self._instance_id, "nothing was marked")
        before = self.marked
        self._unreadable = {}
        try:
            ranges = self._store.lacking(due)
            await each(due, lambda ledger_id: self._tell(ledger_id, ranges.get(ledger_id, ())))
            if unknown and not resting:
                await self._look_at_everything(log)
        finally:
            if count := self.marked - before:
                log("damage_reported", ledgers=count, lacking=len(lacking), unknown=unknown)
            self._name_unreadable(log)
        return self.marked - before

    async def _look_at_everything(self, log: EventLog) -> None:
        if self._upcoming is None:
            self._upcoming, self._wanting = 0, 0
            self._awaited.clear()
        room = LEDGERS_PER_PASS
        async for span in self._metadata.list_ledgers(self._upcoming):
            if span.first != self._upcoming:
                raise MetadataError(
                    "the list of ledgers from the metadata store has a gap before ledger "
                    f"{span.first}, so it cannot be used",
                    remedy="This is a bug in Quire: please report it",
                )
            some = span.ledger_ids[:room]
            unsure = [one for one in some if self._store.absence_unknown(one)]
            await each(unsure, self._mark_unless_whole)
            room -= len(some)
            # Advance only after success, so that a failed ledger is examined again.
            if len(some) < len(span.ledger_ids):
                self._upcoming = some[-1] + 1 if some else span.first
            elif span.last < LEDGER_ID_MAX:
                self._upcoming = span.last + 1
            else:
                await self._end_round(log)
                return
            if room <= 0:
                return

    async def _end_round(self, log: EventLog) -> None:
        if not self._wanting and self._store.log_lossy:
            # The store may have been replaced while it was listed.
            await check_cluster(self._metadata, self._instance_id, "nothing was marked")
            await self._check_complete()
            await durable(self._store.barrier)  # restored copies may be in another directory's log
            if self._store.deletions_logged:
                await durable(self._store.mark_repaired)
                self.losses_repaired += 1
                log("loss_healed", bookie=self._bookie_id)
            else:
                # The log has no space for the refusal of a ledger. After a crash its writer could
                # add to it again, and nobody would know that its fence had been lost.
                self._wanting += 1
        self._upcoming, self._round_ended_s = None, self._clock.monotonic()
        self.wanting = self._wanting

    async def _check_complete(self) -> None:
        """Raise an error unless the store has the metadata of every ledger of the cluster.

        After this check the bookie answers "no such entry" for every ledger that was not listed.
        """
        await self._guard.check_store()
        async for _ in self._metadata.list_ledgers(complete=True):
            pass

    async def _mark_unless_whole(self, ledger_id: int) -> None:
        over = self._clock.monotonic() - self._began_s >= RECOVERIES_END_S
        waits = False

        async def lacks(metadata: LedgerMetadata) -> bool:
            nonlocal waits
            whole = await is_complete(
                self._store, ledger_id, metadata, self._bookie_id, recoveries_over=over
            )
            waits = not whole and not is_named(metadata, self._bookie_id)
            return not whole and not waits

        if await self._mark_where(ledger_id, lacks):
            self._wanting += 1  # after the await, because other tasks also change it
            if ledger_id not in self._unreadable and len(self._awaited) <= AWAITED_MAX:
                self._awaited[ledger_id] = None
        elif waits:
            self._wanting += 1

    async def _marks_are_gone(self) -> bool:
        """Return whether autorecovery has removed all marks of the last round.

        One call asks for one mark that is still there, and up to `LEDGERS_PER_PASS` that are gone.
        """
        if not self._awaited or len(self._awaited) > AWAITED_MAX:
            return False
        for ledger_id in list(islice(self._awaited, LEDGERS_PER_PASS)):
            if await is_marked(self._metadata, ledger_id):
                return False
            del self._awaited[ledger_id]
        return not self._awaited

    async def _tell(self, ledger_id: int, ranges: Sequence[Range]) -> None:
        async def lacks(metadata: LedgerMetadata) -> bool:
            return names(metadata, self._bookie_id, ranges)

        await self._mark_where(ledger_id, lacks)
        self._told_s.pop(ledger_id, None)  # move it to the end of the dictionary
        self._told_s[ledger_id] = self._clock.monotonic()

    async def _mark_where(
        self, ledger_id: int, lacks: Callable[[LedgerMetadata], Awaitable[bool]]
    ) -> bool:
        """Mark the ledger if `lacks` returns True, and return whether it lacks something or may.

        A ledger that does not exist lacks nothing. A ledger with unreadable metadata may lack
        something, but is not marked.
        """
        try:
            stored = await self._metadata.read_ledger(ledger_id)
            if not await lacks(stored.value):
                return False
            now_ms = self._clock.now_ms()
            replicas = (self._bookie_id,)
            marked = await mark_ledger(self._metadata, ledger_id, replicas, now_ms)
            self.marked += marked  # after the await, because other tasks also change it
        except NoSuchLedgerError:
            return False
        except UNREADABLE as error:
            self._unreadable[ledger_id] = reason_of(error)
        return True

    def _name_unreadable(self, log: EventLog) -> None:
        found = sorted(self._unreadable)
        if not found:
            return
        self.unreadable += len(found)
        log(
            "metadata_unreadable",
            count=len(found),
            ledgers=found[:NAMED_PER_PASS],
            error=self._unreadable[found[0]],
            what="it is unknown whether these ledgers have entries on this bookie; all other "
            "ledgers were handled",
        )


def names(metadata: LedgerMetadata, bookie: str, ranges: Iterable[Range]) -> bool:
    """Return whether the bookie is in the ensemble of any entry in the ranges.

    A closed ledger has no entries after its last one, even if bookies have received some.
    """
    segments = metadata.segments
    last_entry_id = metadata.last_entry_id if metadata.closed else 2**63 - 1
    ends = [one.first_entry_id - 1 for one in segments[1:]]
    return any(
        bookie in segment.ensemble and segment.first_entry_id <= last and first <= end
        for segment, end in zip(segments, (*ends, last_entry_id), strict=True)
        for first, last in ranges
    )
