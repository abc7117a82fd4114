"""The state of ledgers that lack replicas: when their marks were last changed, which process
repairs them, and why they are not repaired yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.units import counted, duration_text, utc_text
from quire.codec.metadata.underreplication import LockHolder, SwitchedOff, Underreplicated
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.unreadable import UNREADABLE, reason_of
from quire.replication.autorecovery.election import auditor_of
from quire.replication.marks.locks import ReplicationLocks, misplaced_mark
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import (
    AwaitedBookie,
    LastFailure,
    PlacementCheck,
    RepairedLedgers,
    UnreadableLedgers,
    failing_ledgers,
    last_failure,
    last_placement,
    last_unreadable,
    last_waiting,
    repaired_lately,
)

COUNTED_AT_ONCE = 1_000
"""The number of marks after which a count yields what it has so far."""
FAILURES_TOLD_MAX = 100
"""The largest number of failures in an overview."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The state of one marked ledger."""

    ledger: int
    """The id of the ledger."""
    replicas: tuple[str, ...]
    """The bookies that are believed to lack entries. This is only a hint."""
    marked_ms: int | None
    """When the mark was last changed, in milliseconds since 1970 by the clock of the marking
    process, or None if the mark does not say. Adding a bookie changes the mark, so the ledger may
    lack replicas for longer."""
    age_s: float | None
    """Seconds since the mark was last changed, or None."""
    lock_owner: str | None
    """The process that repairs the ledger now, or None."""
    lock_age_s: float | None
    """Seconds since that process took the ledger, or None. Java's processes do not say."""
    failure: LastFailure | None
    """The last failed attempt to repair the ledger, or None."""
    enabled: bool
    """Whether autorecovery is enabled in the cluster."""
    unreadable: str = ""
    """The reason why the mark cannot be read, or '' if it can."""
    unattended: bool = False
    """Whether nobody repairs the ledger, has tried to, or looks for lost bookies."""

    def sentence(self) -> str:
        """Return why the ledger is not repaired yet."""
        if not self.enabled:
            return "autorecovery is switched off (`quire autorecovery enable` switches it on)"
        if self.unreadable:
            return f"its mark cannot be read: {self.unreadable}"
        if self.lock_owner is not None:
            since = "" if self.lock_age_s is None else f" for {duration_text(self.lock_age_s)}"
            return f"{self.lock_owner} has been repairing it{since}"
        if self.failure is not None:
            attempts = counted(self.failure.attempts, "attempt")
            return f"{self.failure.reason} ({attempts}, {self.failure.by})"
        if self.unattended:
            return (
                "no worker has started on it yet, and no autorecovery process is running (`quire "
                "autorecovery start` runs one)"
            )
        return "no worker has started on it yet"


async def why_not(
    store: MetadataStore, ledger_id: int, *, clock: Clock | None = None
) -> WhyNot | None:
    """Return why the replicas of a ledger are not restored yet, or None if it is not marked.

    If the mark cannot be read, or another node is in its place, `unreadable` of the result says so.
    `clock` gives the time from which ages are computed; None means that of this machine. Changes
    nothing. Raises MetadataError if the store does not answer. Cancel-safe.
    """
    clock = clock or SystemClock()
    locks = ReplicationLocks(store, "", clock)
    mark, unreadable = Underreplicated(), ""
    try:
        found = await locks.marked(ledger_id)
    except UNREADABLE as error:
        unreadable = reason_of(error)
    else:
        if found is not None:
            mark = found.value
        elif strays := await locks.strays(ledger_id):
            unreadable = misplaced_mark(ledger_id, strays)
        else:
            return None
    holder = await locks.held_by(ledger_id)
    failure = await last_failure(store, ledger_id)
    idle = holder is None and failure is None
    now_ms = clock.now_ms()
    return WhyNot(
        ledger=ledger_id,
        replicas=mark.replicas,
        marked_ms=mark.ctime_ms,
        age_s=_age_s(mark.ctime_ms, now_ms),
        lock_owner=holder.owner if holder is not None else None,
        lock_age_s=_age_s(holder.since_ms, now_ms) if holder is not None else None,
        failure=failure,
        enabled=await ReplicationMarks(store).enabled(),
        unreadable=unreadable,
        unattended=idle and await auditor_of(store) is None,
    )


def _age_s(since_ms: int | None, now_ms: int) -> float | None:
    """Return the age in seconds. It is never negative, although clocks may differ a little."""
    return None if since_ms is None else max(0, now_ms - since_ms) / 1000


async def marked_ledgers(
    store: MetadataStore,
    *,
    clock: Clock | None = None,
    malformed: dict[str, str] | None = None,
) -> AsyncIterator[WhyNot]:
    """Yield all marked ledgers, ascending, as `why_not` describes them.

    Ledgers whose mark is removed meanwhile are left out. `malformed` receives the nodes that are
    not marks, as in `ReplicationMarks.walk`. `clock` is that of `why_not`. Raises MetadataError if
    the store does not answer.
    """
    async for ledger_id in ReplicationMarks(store).walk(malformed=malformed):
        found = await why_not(store, ledger_id, clock=clock)
        if found is not None:
            yield found


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a cluster's autorecovery."""

    enabled: bool
    delay_s: int
    """Seconds that the auditor waits for a lost bookie, or 0 if the stored delay cannot be read."""
    auditor: str | None
    auditor_age_s: float | None
    """Seconds since the auditor became a candidate, or None for an auditor of Java."""
    marked: int
    """The number of marked ledgers."""
    locked: int
    """The number of ledgers that are being repaired."""
    failing: int
    """The number of marked ledgers whose last repair attempt failed."""
    failures: tuple[WhyNot, ...] = ()
    """The failing ledgers whose last failure is known, at most `FAILURES_TOLD_MAX` of them."""
    placement: PlacementCheck | None = None
    """The last check of placement by a Quire auditor, or None if there was none."""
    waiting: AwaitedBookie | None = None
    """The lost bookie that a Quire auditor waits for. The bookie may have returned since."""
    marked_whole: bool = True
    """Whether all marks were counted. If not, `marked` and `failing` are lower bounds."""
    unreadable: UnreadableLedgers | None = None
    """The ledgers that the auditor's last pass could not read; None if it could read all of them,
    or if no Quire auditor has made a pass yet."""
    damaged: tuple[str, ...] = ()
    """Sentences about nodes of the under-replication tree that cannot be read, or are misplaced."""
    example: WhyNot | None = None
    """One of the marked ledgers, or None if none is marked."""
    switched_off: SwitchedOff | None = None
    """The process that switched autorecovery off, and the time, as far as they are known. None if
    it is enabled."""
    repaired: tuple[RepairedLedgers, ...] = ()
    """What each worker of Quire has repaired in the last day, the last repair first."""

    @property
    def unexamined(self) -> str:
        """The reason why ledgers may lack replicas without a mark, and what to do. Empty if
        lost bookies are looked for."""
        return unexamined(enabled=self.enabled, auditor=self.auditor)


def unexamined(*, enabled: bool, auditor: str | None) -> str:
    """Return why ledgers may lack replicas without a mark, or '' if lost bookies are looked for.

    `enabled` says whether autorecovery is switched on, and `auditor` is the id of the auditor, or
    None if there is none.
    """
    if not enabled:
        why, start = "autorecovery is switched off", "`quire autorecovery enable` switches it on"
    elif auditor is None:
        why = "no autorecovery process runs as auditor"
        start = "`quire autorecovery start` runs one"
    else:
        return ""
    return (
        f"no further ledger is being marked, because {why}: ledgers without a mark may lack "
        "replicas, too. "
        f"`quire explain` counts them, and {start}"
    )


def switched_off_text(found: SwitchedOff | None) -> str:
    """Return the words that follow "switched off": by whom and since when, as far as known.

    The text is empty for None, when autorecovery is not switched off.
    """
    if found is None:
        return ""
    by = f" by {found.by}" if found.by else ""
    return by if found.since_ms is None else f"{by} since {utc_text(found.since_ms)}"


@dataclass(frozen=True, slots=True)
class MarkCount:
    """A count of the marked ledgers."""

    marked: int = 0
    """The number of marked ledgers."""
    failing: int = 0
    """The number of marked ledgers whose last repair attempt failed."""
    failures: tuple[WhyNot, ...] = ()
    """The failing ledgers whose last failure is known, at most `FAILURES_TOLD_MAX` of them."""
    whole: bool = True
    """Whether all marks were counted. If not, the numbers are lower bounds."""
    malformed: tuple[str, ...] = ()
    """The paths of nodes in the tree of marks that are not marks."""
    example: WhyNot | None = None
    """The first of the marked ledgers, or None if none is marked."""


async def count_marks(
    store: MetadataStore, *, clock: Clock | None = None
) -> AsyncIterator[MarkCount]:
    """Yield the count so far after every `COUNTED_AT_ONCE` marks, and the whole count at the end.

    `clock` is that of `why_not`. Raises MetadataError. Cancel-safe.
    """
    failing = set(await failing_ledgers(store))
    marked = failed = 0
    told: list[WhyNot] = []
    example: WhyNot | None = None
    malformed: dict[str, str] = {}
    async for ledger_id in ReplicationMarks(store).walk(malformed=malformed):
        marked += 1
        if example is None:
            example = await why_not(store, ledger_id, clock=clock)
        if ledger_id in failing:
            failed += 1
            if len(told) < FAILURES_TOLD_MAX:
                why = await why_not(store, ledger_id, clock=clock)
                if why is None:
                    failed -= 1  # it was repaired meanwhile
                elif why.failure is not None:
                    told.append(why)
        if marked % COUNTED_AT_ONCE == 0:
            yield MarkCount(marked, failed, tuple(told), whole=False, example=example)
    yield MarkCount(marked, failed, tuple(told), malformed=tuple(malformed), example=example)


async def overview(
    store: MetadataStore, *, clock: Clock | None = None, counted: MarkCount | None = None
) -> Overview:
    """Return the state of a cluster's autorecovery.

    `counted` is an earlier count of the marks. If it is None, all marks are counted now. `clock` is
    that of `why_not`. Raises MetadataError. Cancel-safe.
    """
    clock = clock or SystemClock()
    marks = ReplicationMarks(store)
    auditor: LockHolder | None = await auditor_of(store)
    if counted is None:
        counted = [one async for one in count_marks(store, clock=clock)][-1]
    damaged = [
        f"{path} is not a valid mark of an under-replicated ledger, and is ignored"
        for path in counted.malformed
    ]
    delay_s = 0
    try:
        delay_s = await marks.delay_s()
    except UNREADABLE as error:
        damaged.append(str(error))
    off = await marks.switched_off()
    return Overview(
        enabled=off is None,
        delay_s=delay_s,
        auditor=auditor.owner if auditor is not None else None,
        auditor_age_s=_age_s(auditor.since_ms, clock.now_ms()) if auditor is not None else None,
        marked=counted.marked,
        locked=len(await marks.locked()),
        failing=counted.failing,
        failures=counted.failures,
        placement=await last_placement(store),
        waiting=await last_waiting(store, clock.now_ms()),
        marked_whole=counted.whole,
        unreadable=await last_unreadable(store),
        damaged=tuple(damaged),
        example=counted.example,
        switched_off=off,
        repaired=tuple(await repaired_lately(store, clock.now_ms())),
    )
