"""Telling the cluster what is damaged here: ledgers of which this bookie lost entries are marked as
lacking replicas, as an auditor marks them, and workers bring the entries back.

A mark says that the ledger lacks something on this bookie, not what: a worker reads all that the
bookie should hold, and writes back what is wrong. Nothing is marked in a store that is not the
bookie's own, nor of a ledger that is gone or does not name this bookie for what is damaged. Marks
may be repeated, and are, for a mark may be taken away by who could not know.

Where the log lost something and nobody knows what (`negatives_unknown`), or a data directory does
not serve, every ledger that names this bookie and may have been there is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from quire.bookie.service import EventLog
from quire.clock import Clock
from quire.codec.ledger_metadata import LedgerMetadata
from quire.codec.ledger_path import LEDGER_ID_MAX
from quire.core.ranges import Range
from quire.errors import CookieError, NoSuchLedgerError
from quire.metadata.base import MetadataStore
from quire.metadata.underreplicated import mark_ledger
from quire.storage.ledger_directories import Store
from quire.tasks import each

LEDGERS_PER_PASS = 200
AGAIN_S = 600.0
"""What lacks still is marked again after so long."""
EVERYTHING_AGAIN_S = 86_400.0
"""The same where nobody knows what lacks."""
ANY: tuple[Range, ...] = ((0, 2**63 - 1),)


class DamageReports:
    """What the passes of one bookie remember of each other."""

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        clock: Clock,
        bookie_id: str,
        instance_id: str,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._bookie_id = bookie_id
        self._instance_id = instance_id
        self._told_s: dict[int, float] = {}
        """When a ledger was marked last, or found to need none."""
        self._upcoming: int | None = None
        """The next of all ledgers of the cluster to be looked at where nobody knows what lacks."""
        self._everything_s: float | None = None
        self.marked = 0
        """Since the start."""

    async def report(self, log: EventLog) -> int:
        """One pass: how many ledgers were marked. `LEDGERS_PER_PASS` are looked at; the next pass
        goes on. MetadataError or CookieError where the store does not answer or is another one;
        what was marked by then stays marked. Cancel-safe."""
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
            self._upcoming = self._everything_s = None
        if not due and not unknown:
            return 0
        await self._match()
        before = self.marked
        try:
            ranges = self._store.lacking(due)
            await each(due, lambda ledger_id: self._tell(ledger_id, ranges.get(ledger_id, ())))
            if unknown:
                await self._tell_everything(now_s)
        finally:
            if count := self.marked - before:
                log("damage_reported", ledgers=count, lacking=len(lacking), unknown=unknown)
        return self.marked - before

    async def _match(self) -> None:
        found = await self._metadata.instance_id()
        if found != self._instance_id:
            raise CookieError(
                f"the metadata store holds cluster {found or '(none)'}, this bookie belongs to "
                f"{self._instance_id or '(none)'}: nothing was marked",
                remedy="Check the metadata URI",
            )

    async def _tell(self, ledger_id: int, ranges: Sequence[Range]) -> None:
        await self._mark(ledger_id, ranges)
        self._told_s.pop(ledger_id, None)  # it stands behind all others now
        self._told_s[ledger_id] = self._clock.monotonic()

    async def _tell_everything(self, now_s: float) -> None:
        if self._everything_s is None or now_s - self._everything_s >= EVERYTHING_AGAIN_S:
            self._upcoming, self._everything_s = 0, now_s
        if self._upcoming is None:
            return
        room = LEDGERS_PER_PASS
        async for span in self._metadata.list_ledgers(self._upcoming):
            some = span.ledger_ids[:room]
            unsure = [one for one in some if self._store.absence_unknown(one)]
            await each(unsure, lambda ledger_id: self._mark(ledger_id, ANY))
            room -= len(some)
            # Only now: what failed is looked at again.
            if len(some) < len(span.ledger_ids):
                self._upcoming = some[-1] + 1 if some else span.first
            else:
                self._upcoming = span.last + 1 if span.last < LEDGER_ID_MAX else None
            if room <= 0:
                break

    async def _mark(self, ledger_id: int, ranges: Iterable[Range]) -> None:
        try:
            stored = await self._metadata.read_ledger(ledger_id)
        except NoSuchLedgerError:
            return
        if names(stored.value, self._bookie_id, ranges):
            now_ms = self._clock.now_ms()
            replicas = (self._bookie_id,)
            marked = await mark_ledger(self._metadata, ledger_id, replicas, now_ms)
            self.marked += marked  # only now: others count meanwhile


def names(metadata: LedgerMetadata, bookie: str, ranges: Iterable[Range]) -> bool:
    """Whether the bookie is in the ensemble of any of these entries."""
    segments = metadata.segments
    ends = [one.first_entry_id - 1 for one in segments[1:]]
    return any(
        bookie in segment.ensemble and segment.first_entry_id <= last and first <= end
        for segment, end in zip(segments, (*ends, 2**63 - 1), strict=True)
        for first, last in ranges
    )
