"""What is known of a ledger that lacks replicas: since when, who works on it, and why it is not
repaired yet.

The last failure of a ledger is a value of ours, `autorecovery/failures/<id>`, outside of what
Apache's tools look at: its text format has no field for it. It is deleted with the mark by whoever
of ours repairs the ledger; where a Java worker did, it stays for a while and is not shown.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.units import counted
from quire.codec.metadata.underreplication import Holder, Underreplicated
from quire.errors import KeyExistsError, NoSuchKeyError, VersionConflictError
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.unreadable import UNREADABLE, Unread, named_ledgers, reason_of
from quire.replication.autorecovery.election import auditor_of
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks

MISPLACED_TOLD_MAX = 20
"""Of what a check of placement has found."""
COUNTED_AT_ONCE = 1_000
"""Marks between two parts of a count."""
FAILURES_TOLD_MAX = 100
"""In an overview."""
_KEY = ("autorecovery", "failures")
_PLACEMENT = ("autorecovery", "placement")
_UNREADABLE = ("autorecovery", "unreadable")
_WAITING = ("autorecovery", "waiting")
_ATTEMPTS = 5
"""Of noting one failure, against others that note theirs."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """Why a worker gave a ledger up, for now."""

    reason: str
    at_ms: int
    attempts: int
    """In a row."""
    next_attempt_ms: int
    by: str
    """The worker."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Of a ledger that is marked."""

    ledger: int
    replicas: tuple[str, ...]
    """Bookies that are believed to lack its entries: a hint."""
    marked_ms: int | None
    """When it was marked last, by the calendar of who did; None: that was not said."""
    age_s: float | None
    """The same as an age."""
    lock_owner: str | None
    """Who works on it now; None: nobody."""
    lock_age_s: float | None
    """None: nobody has it, or it is one of Java's, which do not say."""
    failure: LastFailure | None
    enabled: bool
    """Not: autorecovery is switched off for the whole cluster."""
    unreadable: str = ""
    """The reason why the mark cannot be read; '' if it can."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """Why it is not repaired yet."""
        if not self.enabled:
            return "autorecovery is disabled (quire autorecovery enable)"
        if self.unreadable:
            return f"its mark cannot be read: {self.unreadable}"
        if self.lock_owner is not None:
            since = "" if self.lock_age_s is None else f" for {self.lock_age_s:.0f} s"
            return f"{self.lock_owner} works on it{since}"
        if self.failure is not None:
            attempts = counted(self.failure.attempts, "attempt")
            return f"{self.failure.reason} ({attempts}, {self.failure.by})"
        return "no worker has taken it yet"


async def why_not(
    store: MetadataStore, ledger_id: int, *, clock: Clock | None = None
) -> WhyNot | None:
    """Return why the replicas of a ledger are not restored yet, or None if it is not marked.

    A mark that cannot be read, and another node in its place, are described too. Changes nothing.
    Raises MetadataError if the store does not answer. Cancel-safe.
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
    now_ms = clock.now_ms()
    return WhyNot(
        ledger=ledger_id,
        replicas=mark.replicas,
        marked_ms=mark.ctime_ms,
        age_s=_age_s(mark.ctime_ms, now_ms),
        lock_owner=holder.owner if holder is not None else None,
        lock_age_s=_age_s(holder.since_ms, now_ms) if holder is not None else None,
        failure=await last_failure(store, ledger_id),
        enabled=await ReplicationMarks(store).enabled(),
        unreadable=unreadable,
    )


def misplaced_mark(ledger_id: int, strays: Sequence[str]) -> str:
    """Return a sentence about nodes that are where the mark of a ledger belongs."""
    return f"{strays[0]} is where the mark of ledger {ledger_id} belongs, but is not its mark"


def _age_s(since_ms: int | None, now_ms: int) -> float | None:
    """Calendars differ a little: nothing is younger than now."""
    return None if since_ms is None else max(0, now_ms - since_ms) / 1000


async def marked_ledgers(
    store: MetadataStore,
    *,
    clock: Clock | None = None,
    malformed: dict[str, str] | None = None,
) -> AsyncIterator[WhyNot]:
    """Yield all marked ledgers, ascending, as `why_not` describes them.

    `malformed` receives the nodes that are not marks, as in `ReplicationMarks.walk`.
    """
    async for ledger_id in ReplicationMarks(store).walk(malformed=malformed):
        found = await why_not(store, ledger_id, clock=clock)
        if found is not None:
            yield found


@dataclass(frozen=True, slots=True)
class PlacementCheck:
    """What the last check of placement has found."""

    at_ms: int
    ledgers: int
    """That were looked at."""
    misplaced: int
    """Those that lie otherwise than the policy of the auditor wants."""
    first: tuple[int, ...]
    """Some of these."""


@dataclass(frozen=True, slots=True)
class AwaitedBookie:
    """A lost bookie that the auditor gives time to come back."""

    bookie: str
    since_ms: int
    """When it was missed."""
    until_ms: int
    """From then on its ledgers are copied."""


@dataclass(frozen=True, slots=True)
class UnreadableLedgers:
    """The ledgers that a pass of the auditor skipped."""

    at_ms: int
    """The time at which the pass ended."""
    ledgers: int
    first: tuple[tuple[int, str], ...]
    """Some of the ledgers, each with the reason."""

    def sentence(self) -> str:
        """Return the number of ledgers, the first of them, and the first reason."""
        why = self.first[0][1] if self.first else "no reason is noted"
        return f"{named_ledgers(dict(self.first), self.ledgers)}: {why}"


@dataclass(frozen=True, slots=True)
class Overview:
    """Of a cluster's autorecovery."""

    enabled: bool
    delay_s: int
    auditor: str | None
    auditor_age_s: float | None
    """Since when it stands for election; None for Java's."""
    marked: int
    """Ledgers."""
    locked: int
    failing: int
    """Of the marked ones: those whose last attempt failed."""
    failures: tuple[WhyNot, ...] = ()
    """The first of these."""
    placement: PlacementCheck | None = None
    """None: it was never checked by one of ours."""
    waiting: AwaitedBookie | None = None
    """Noted by an auditor of ours; the bookie may have come back since."""
    marked_whole: bool = True
    """Not: they are still being counted, and may be more; so may those that fail."""
    unreadable: UnreadableLedgers | None = None
    """The ledgers that the auditor's last pass could not read; None if it could read all of them,
    or if no Quire auditor has made a pass yet."""
    damaged: tuple[str, ...] = ()
    """Sentences about nodes of the under-replication tree that cannot be read, or are misplaced."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MarkCount:
    marked: int = 0
    failing: int = 0
    """Of the marked ones."""
    failures: tuple[WhyNot, ...] = ()
    """The first of these."""
    whole: bool = True
    """Not: so far."""
    malformed: tuple[str, ...] = ()
    """The paths of nodes in the tree of marks that are not marks."""


async def count_marks(
    store: MetadataStore, *, clock: Clock | None = None
) -> AsyncIterator[MarkCount]:
    """What was counted, after every `COUNTED_AT_ONCE` marks, and in the end all of it.
    MetadataError. Cancel-safe."""
    failing = set(await failing_ledgers(store))
    marked = failed = 0
    told: list[WhyNot] = []
    malformed: dict[str, str] = {}
    async for ledger_id in ReplicationMarks(store).walk(malformed=malformed):
        marked += 1
        if ledger_id in failing:
            failed += 1
            if len(told) < FAILURES_TOLD_MAX:
                why = await why_not(store, ledger_id, clock=clock)
                told += [why] if why is not None else []
        if marked % COUNTED_AT_ONCE == 0:
            yield MarkCount(marked, failed, tuple(told), whole=False)
    yield MarkCount(marked, failed, tuple(told), malformed=tuple(malformed))


async def overview(
    store: MetadataStore, *, clock: Clock | None = None, counted: MarkCount | None = None
) -> Overview:
    """`counted`: the marks as somebody has counted them; None: they are counted now, all of them.
    MetadataError. Cancel-safe."""
    clock = clock or SystemClock()
    marks = ReplicationMarks(store)
    auditor: Holder | None = await auditor_of(store)
    if counted is None:
        counted = [one async for one in count_marks(store, clock=clock)][-1]
    damaged = [f"{path} is in the tree of marks, but is not a mark" for path in counted.malformed]
    delay_s = 0
    try:
        delay_s = await marks.delay_s()
    except UNREADABLE as error:
        damaged.append(str(error))
    return Overview(
        enabled=await marks.enabled(),
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
    )


# -- notes, which are only told ---------------------------------------------------------------

Key = tuple[str, ...]
Note = LastFailure | PlacementCheck | UnreadableLedgers | AwaitedBookie
N = TypeVar("N", LastFailure, PlacementCheck, UnreadableLedgers, AwaitedBookie)


async def _read(store: MetadataStore, key: Key, make: Callable[..., N | None]) -> N | None:
    """None: nothing is noted there, or nothing that can be understood."""
    try:
        return make(**json.loads((await store.read_value(key)).value))
    except (NoSuchKeyError, ValueError, TypeError):
        return None


async def _write(store: MetadataStore, key: Key, note: Note) -> None:
    value = json.dumps(asdict(note)).encode()
    for _ in range(_ATTEMPTS):
        version: int | None = None
        try:
            version = (await store.read_value(key)).version
        except NoSuchKeyError:
            pass
        try:
            await store.write_value(key, value, version)
            return
        except (KeyExistsError, NoSuchKeyError, VersionConflictError):
            continue


# -- failures ---------------------------------------------------------------------------------


async def last_failure(store: MetadataStore, ledger_id: int) -> LastFailure | None:
    return await _read(store, (*_KEY, str(ledger_id)), LastFailure)


async def note_failure(store: MetadataStore, ledger_id: int, failure: LastFailure) -> None:
    """The last one counts. It is only told: no decision about data rests on it."""
    await _write(store, (*_KEY, str(ledger_id)), failure)


async def last_placement(store: MetadataStore) -> PlacementCheck | None:
    def made(first: list[int], **rest: Any) -> PlacementCheck:
        return PlacementCheck(first=tuple(first), **rest)

    return await _read(store, _PLACEMENT, made)


async def note_placement(store: MetadataStore, found: PlacementCheck) -> None:
    """The last one counts."""
    await _write(store, _PLACEMENT, found)


async def last_unreadable(store: MetadataStore) -> UnreadableLedgers | None:
    """Return the ledgers that the auditor's last pass skipped, or None if it skipped none."""

    def made(first: list[tuple[int, str]], **rest: Any) -> UnreadableLedgers:
        return UnreadableLedgers(first=tuple((ledger, why) for ledger, why in first), **rest)

    return await _read(store, _UNREADABLE, made)


async def note_unreadable(store: MetadataStore, unread: Unread, now_ms: int) -> None:
    """Store a note of the ledgers that a pass skipped. It replaces the last note, or removes it if
    none was skipped."""
    if not unread:
        await store.delete_value(_UNREADABLE)
        return
    found = UnreadableLedgers(now_ms, len(unread), tuple(unread.named.items()))
    await _write(store, _UNREADABLE, found)


async def last_waiting(store: MetadataStore, now_ms: int) -> AwaitedBookie | None:
    """None: no bookie is waited for any more, or none was."""

    def made(**note: Any) -> AwaitedBookie | None:
        found = AwaitedBookie(**note)
        return found if found.until_ms > now_ms else None

    return await _read(store, _WAITING, made)


async def note_waiting(store: MetadataStore, found: AwaitedBookie) -> None:
    """The last one counts, until it comes to its end by itself: nobody takes it back."""
    await _write(store, _WAITING, found)


async def forget_failure(store: MetadataStore, ledger_id: int) -> None:
    await store.delete_value((*_KEY, str(ledger_id)))


async def failing_ledgers(store: MetadataStore) -> list[int]:
    """Ledgers of which a failure is noted, marked or not."""
    return sorted(int(name) for name in await store.list_values(_KEY) if name.isdecimal())
