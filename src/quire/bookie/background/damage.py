"""Telling the cluster what is damaged here: ledgers of which this bookie lost entries are marked as
lacking replicas, as an auditor marks them, and workers bring the entries back.

A mark says that the ledger lacks something on this bookie, not what: a worker reads all that the
bookie should hold, and writes back what is wrong. Nothing is marked in a store that is not the
bookie's own, nor of a ledger that is gone or does not name this bookie for what is damaged. Marks
may be repeated, and are, for a mark may be taken away by who could not know.

Where the log lost something and nobody knows what (`negatives_unknown`), or a data directory does
not serve, every ledger that may have been there is looked at, and marked where it is not complete
(`complete_ledger`). Rounds over the cluster follow each other until one finds nothing: then nothing
that the log has lost lacks any more, and absence counts again.

A ledger whose metadata makes no sense is named in the log, and holds up no other: nobody knows
whether it wants anything of this bookie, so while there is one of these the rounds go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.tasks import each
from quire.bookie.background.collection_guard import CollectionGuard, check_cluster
from quire.bookie.background.complete_ledger import durable, is_complete
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.core.ranges import Range
from quire.errors import MetadataError, NoSuchLedgerError
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.underreplicated import mark_ledger
from quire.metadata.ledgers.unreadable import UNREADABLE, reason_of
from quire.storage.directories import Store

LEDGERS_PER_PASS = 200
AGAIN_S = 600.0
"""What lacks still is marked again after so long."""
NAMED_PER_PASS = 10
"""Ledgers whose metadata makes no sense that one line of the log names."""


class DamageReports:
    """What the passes of one bookie remember of each other."""

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
        self._told_s: dict[int, float] = {}
        """When a ledger was marked last, or found to need none."""
        self._upcoming: int | None = None
        """The next of all ledgers of the cluster to be looked at where nobody knows what lacks;
        None: between two rounds."""
        self._round_ended_s: float | None = None
        self._wanting = 0
        """Ledgers of this round that were not complete, or of which nobody knows."""
        self._unreadable: dict[int, str] = {}
        """Ledgers of this pass whose metadata makes no sense, and why."""
        self.wanting: int | None = None
        """The same of the last round that came to its end; None: there was none."""
        self.marked = 0
        """Since the start."""
        self.unreadable = 0
        """Since the start: how often a ledger's metadata made no sense."""
        self.losses_repaired = 0
        """Since the start: how often all that the log had lost was there once more."""

    async def report(self, log: EventLog) -> int:
        """One pass: how many ledgers were marked. `LEDGERS_PER_PASS` are looked at; the next pass
        goes on. MetadataError or CookieError where the store does not answer or is another one;
        what was marked by then stays marked. StorageError: the end of a loss could not be logged,
        and counts until the next start only. Cancel-safe."""
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
        room = LEDGERS_PER_PASS
        async for span in self._metadata.list_ledgers(self._upcoming):
            if span.first != self._upcoming:
                raise MetadataError(f"the list of ledgers has a gap before {span.first}")
            some = span.ledger_ids[:room]
            unsure = [one for one in some if self._store.absence_unknown(one)]
            await each(unsure, self._mark_unless_whole)
            room -= len(some)
            # Only now: what failed is looked at again.
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
            await durable(self._store.barrier)  # copies may be in another directory's log
            await durable(self._store.mark_repaired)
            self.losses_repaired += 1
            log("loss_healed", bookie=self._bookie_id)
        self._upcoming, self._round_ended_s = None, self._clock.monotonic()
        self.wanting = self._wanting

    async def _check_complete(self) -> None:
        """Raise an error unless the store names every ledger of the cluster.

        From then on this bookie answers "no such entry" for every ledger that was not in the
        list.
        """
        await self._guard.check_store()
        async for _ in self._metadata.list_ledgers(complete=True):
            pass

    async def _mark_unless_whole(self, ledger_id: int) -> None:
        async def lacks(metadata: LedgerMetadata) -> bool:
            return not await is_complete(self._store, ledger_id, metadata, self._bookie_id)

        if await self._mark_where(ledger_id, lacks):
            self._wanting += 1  # only now: others count meanwhile

    async def _tell(self, ledger_id: int, ranges: Sequence[Range]) -> None:
        async def lacks(metadata: LedgerMetadata) -> bool:
            return names(metadata, self._bookie_id, ranges)

        await self._mark_where(ledger_id, lacks)
        self._told_s.pop(ledger_id, None)  # it stands behind all others now
        self._told_s[ledger_id] = self._clock.monotonic()

    async def _mark_where(
        self, ledger_id: int, lacks: Callable[[LedgerMetadata], Awaitable[bool]]
    ) -> bool:
        """Whether it lacks something, as far as anybody knows. One that is gone does not."""
        try:
            stored = await self._metadata.read_ledger(ledger_id)
            if not await lacks(stored.value):
                return False
            now_ms = self._clock.now_ms()
            replicas = (self._bookie_id,)
            marked = await mark_ledger(self._metadata, ledger_id, replicas, now_ms)
            self.marked += marked  # only now: others count meanwhile
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
            what="it is not known whether they want entries of this bookie; the others went on",
        )


def names(metadata: LedgerMetadata, bookie: str, ranges: Iterable[Range]) -> bool:
    """Whether the bookie is in the ensemble of any of these entries."""
    segments = metadata.segments
    ends = [one.first_entry_id - 1 for one in segments[1:]]
    return any(
        bookie in segment.ensemble and segment.first_entry_id <= last and first <= end
        for segment, end in zip(segments, (*ends, 2**63 - 1), strict=True)
        for first, last in ranges
    )
