"""Replacing bookies in all segments of one ledger.

Workers do this with marked ledgers, and commands and Spark tasks with the ledgers of a lost bookie.
A lock keeps two processes from repairing the same ledger. Safety does not depend on the lock, but
on the version of the metadata.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.core.fragments import Fragment, entry_bytes, members, stored_count
from quire.errors import (
    BookieError,
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    QuireError,
)
from quire.metadata.interface import UNKNOWN_CREATION
from quire.metadata.ledgers.unreadable import UNREADABLE
from quire.replication.budget import UNBOUNDED, Budget
from quire.replication.marks.locks import LockHeldError, ReplicationLock, ReplicationLocks
from quire.replication.repair.fragment import (
    BATCH_SEGMENTS_MAX,
    CopyBatch,
    CopyOutcome,
    CopyResult,
    choose_replacements,
)
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair

CONFLICTS_MAX = 10
"""The number of attempts to repair a ledger whose metadata other clients change meanwhile."""
TARGET_ATTEMPTS = 3
"""The number of new bookies that may fail, one after the other, before the repair of a ledger
fails."""
CONFLICT_SHRINKS = 8
"""The factor by which the number of segments in a batch of copies shrinks after another client has
changed the metadata. A batch has at least one segment."""
REASON_CHARS_MAX = 500


Recheck = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""A function that receives bookies to be replaced, and returns those that still are to be replaced.
It is called before each copy."""


async def _as_they_are(lost: Collection[str]) -> Collection[str]:
    return lost


class LedgerOutcome(enum.StrEnum):
    """The outcome of a repair of one ledger."""

    DONE = "done"
    """The repair is complete: no segment names the bookies that were to be replaced."""
    LOCKED = "locked"
    """Another process is repairing the ledger."""
    OPEN = "open"
    """The last segment is open and names a bookie to be replaced. The ledger is being written, or
    its writer died. `LedgerResult.seen` has the state of the ledger."""
    GONE = "gone"
    """The ledger was deleted, or a worker found that the ledger is not marked any more."""
    FAILED = "failed"
    """The repair is incomplete, and `LedgerResult.reason` says why."""


@dataclass(frozen=True, slots=True)
class OpenLedgerState:
    """The state of an open ledger. If it is the same a while later, nobody is writing it."""

    version: int
    """The version of the ledger's metadata."""
    last_add_confirmed: int
    """The last entry that bookies know to be acknowledged."""
    created: int = UNKNOWN_CREATION
    """The number by which the store identifies the creation of the ledger. It differs for a ledger
    that was deleted and created again, which therefore counts as still being written."""

    @classmethod
    def of(cls, ledger: OpenedLedger) -> OpenLedgerState:
        return cls(ledger.stored.version, ledger.last_add_confirmed, ledger.stored.created)


@dataclass(frozen=True, slots=True)
class LedgerResult:
    """The result of a repair of one ledger."""

    ledger: int
    """The id of the ledger."""
    work: LedgerOutcome
    """The outcome of the repair."""
    fragments: int = 0
    """The number of segments in which this call replaced members."""
    entries: int = 0
    """The number of entries that were copied."""
    size_bytes: int = 0
    """The number of payload bytes that were copied."""
    recovered: bool = False
    """Whether the ledger was fenced and closed for the repair."""
    reason: str = ""
    """The reason of the outcome FAILED or LOCKED, as text. Otherwise it is empty."""
    seen: OpenLedgerState | None = None
    """The state of the ledger if the outcome is OPEN, or FAILED because its recovery failed or
    could not be tried."""


@dataclass(frozen=True, slots=True)
class LedgerMove:
    """The entries of a ledger that a bookie should have, and that are to be moved."""

    ledger: int
    """The id of the ledger."""
    fragments: int
    """The number of segments that name the bookie."""
    entries: int
    """The number of entries that the bookie should have."""
    bytes: int
    """The size of the entries in bytes, estimated from the ledger's length, or 0 if that is not
    known."""
    open: bool
    """Whether the ledger's last segment names the bookie and is not closed."""


Saw = Callable[[OpenedLedger, Sequence[Fragment]], None]
"""A function that receives a ledger, and the segments of it that name the bookie to be replaced."""


async def move_of(
    client: Client, ledger_id: int, bookie: str, *, password: bytes = b"", saw: Saw | None = None
) -> LedgerMove | None:
    """Return what would be moved if the bookie were replaced in the ledger. Nothing is changed.

    The result is None if no segment names the bookie, or if the ledger does not exist. `password`
    is used if the metadata does not contain one. `saw` receives the ledger and the segments that
    name the bookie, unless there are none. Raises MetadataError. Cancel-safe.
    """
    try:
        ledger = await open_for_repair(client, ledger_id, password=password, ask=False)
    except NoSuchLedgerError:
        return None
    metadata = ledger.metadata
    found = [one for one in ledger.fragments() if members(one, (bookie,))]
    if not found:
        return None
    if saw is not None:
        saw(ledger, found)
    entries = sum(
        stored_count(metadata, index, fragment.first, fragment.last)
        for fragment in found
        for index in members(fragment, (bookie,))
    )
    size = int(entries * entry_bytes(metadata))
    return LedgerMove(ledger_id, len(found), entries, size, not found[-1].closed)


async def take_out(
    client: Client,
    locks: ReplicationLocks,
    ledger_id: int,
    lost: Collection[str],
    *,
    password: bytes = b"",
    before: OpenLedgerState | None = None,
    budget: Budget = UNBOUNDED,
) -> LedgerResult:
    """Replace these bookies in every segment of the ledger, and remove its mark.

    The mark stays if it names other bookies that are members of the ledger. Complete segments are
    copied. If the ledger is open and its last segment names one of the bookies, the outcome is
    OPEN: the writer replaces the bookie itself, if it is alive. `before` is the `seen` that an
    earlier call with this outcome returned a grace period ago. If the state is the same now, the
    writer is taken for dead, and the ledger is fenced, recovered and copied (rule 25). With None,
    no writer is taken for dead. If no bookie can replace the lost one, or too few bookies answer to
    recover the ledger, the writer is not fenced, and the outcome is FAILED.

    `password` is used if the metadata does not contain one, and `budget` limits the rate of the
    copies. The call may be repeated, and run by several processes at once. Cancel-safe: copies that
    the metadata names are durable at any moment. Raises only MetadataError; other errors are in the
    result.
    """
    try:
        async with locks.hold(ledger_id) as lock:
            return await take_out_locked(
                client, locks, lock, lost, password=password, before=before, budget=budget
            )
    except LockHeldError as error:
        return LedgerResult(ledger_id, LedgerOutcome.LOCKED, reason=str(error.args[0]))


async def take_out_locked(
    client: Client,
    locks: ReplicationLocks,
    lock: ReplicationLock,
    lost: Collection[str],
    *,
    password: bytes = b"",
    before: OpenLedgerState | None = None,
    budget: Budget = UNBOUNDED,
    recheck: Recheck = _as_they_are,
) -> LedgerResult:
    """Do the same as `take_out`, with its arguments, for a ledger whose lock the caller holds.

    A bookie that `recheck` no longer returns is not replaced, and a mark that names it stays. As
    with `take_out`, copies that the metadata names are durable, and only MetadataError is raised.
    """
    result = LedgerResult(lock.ledger_id, LedgerOutcome.DONE)
    failures, segments_max = 0, BATCH_SEGMENTS_MAX
    for _ in range(CONFLICTS_MAX):
        try:
            ledger = await open_for_repair(client, lock.ledger_id, password=password)
        except NoSuchLedgerError:
            await locks.replicated(lock)
            return replace(result, work=LedgerOutcome.GONE)
        except UNREADABLE as error:
            return _failed(result, str(error))
        one_pass = _Pass(client, ledger, lost, recheck, failures)
        result = await one_pass.replace(result, budget, segments_max)
        lost, failures = one_pass.lost, one_pass.failures
        if one_pass.reasons:
            return _failed(result, "; ".join(one_pass.reasons))
        if one_pass.conflict:
            # A writer or another worker changes it: make the next swap smaller.
            segments_max = max(segments_max // CONFLICT_SHRINKS, 1)
        if one_pass.changed:
            continue  # read the metadata again to see whether anything is left
        newest = ledger.fragments()[-1]
        if not newest.closed and members(newest, lost := await recheck(lost)):
            if why := await _fenced_for_nothing(client, ledger, newest, lost):
                return _failed(result, why)
            try:
                result = await fence_if_abandoned(client, ledger, result, before)
            except NoSuchLedgerError:
                continue
            if result.work is not LedgerOutcome.DONE:
                return result
            continue
        await _unmark(locks, lock, ledger)
        return replace(result, work=LedgerOutcome.DONE)
    return _failed(result, f"other clients changed the ledger {CONFLICTS_MAX} times meanwhile")


def _failed(result: LedgerResult, reason: str) -> LedgerResult:
    return replace(result, work=LedgerOutcome.FAILED, reason=reason[:REASON_CHARS_MAX])


@dataclass(slots=True)
class _Pass:
    """One pass over the segments of a ledger, in which lost members are replaced."""

    client: Client
    ledger: OpenedLedger
    lost: Collection[str]
    recheck: Recheck
    failures: int
    """The number of new bookies that failed in this pass and earlier ones of the same repair."""
    reasons: list[str] = field(default_factory=list)
    """The reasons why segments could not be copied."""
    changed: bool = False
    """Whether the metadata may have changed, so that the ledger has to be read again."""
    conflict: bool = False
    """Whether another client changed the ledger."""
    counted: set[str] = field(default_factory=set)
    """The new bookies that failed in this pass and are counted in `failures`."""

    async def replace(
        self, result: LedgerResult, budget: Budget, segments_max: int
    ) -> LedgerResult:
        """Copy the segments with lost members, and name the copies in the metadata batch by batch.

        A batch has at most `segments_max` segments. Returns `result` with the counts added. The
        attributes of this object record failures and conflicts.
        """
        batch = CopyBatch(self.client, self.ledger, budget=budget, segments_max=segments_max)
        async with batch:
            try:
                for fragment in self.ledger.fragments():
                    if not fragment.closed or not members(fragment, self.lost):
                        continue
                    self.lost = await self.recheck(self.lost)
                    if members(fragment, self.lost):
                        await self._copy(batch, fragment)
                    if batch.full:
                        result = self._named(result, await batch.name())
                result = self._named(result, await batch.name())
            except NoSuchLedgerError:
                self.changed = True
        return result

    async def _copy(self, batch: CopyBatch, fragment: Fragment) -> None:
        lost = {*self.lost, *batch.broken}
        known = {*batch.broken}
        try:
            replacements = await choose_replacements(
                self.client, self.ledger, fragment, members(fragment, self.lost), lost
            )
            if not await batch.copy(fragment, replacements):
                self.changed = self.conflict = True
        except NoSuchLedgerError:
            raise
        except BookieError as error:
            if broken := batch.broken.keys() - known:
                self._failed({bookie: batch.broken[bookie] for bookie in broken})
            else:
                self.reasons.append(str(error))
        except QuireError as error:
            self.reasons.append(str(error))

    def _named(self, result: LedgerResult, done: CopyResult) -> LedgerResult:
        self._failed(done.broken)
        self.changed = self.changed or bool(done.named)
        if done.outcome is CopyOutcome.CONFLICT:
            self.changed = self.conflict = True
        return replace(
            result,
            fragments=result.fragments + len(done.named),
            entries=result.entries + done.entries,
            size_bytes=result.size_bytes + done.size_bytes,
        )

    def _failed(self, broken: Mapping[str, QuireError]) -> None:
        """Count new bookies that failed, each once: a copy and its naming may both report it.

        The next pass uses other bookies. When `TARGET_ATTEMPTS` bookies have failed, their errors
        become reasons for which the repair fails.
        """
        for bookie, error in broken.items():
            if bookie in self.counted:
                continue
            self.counted.add(bookie)
            self.failures += 1
            if self.failures < TARGET_ATTEMPTS:
                self.changed = True
            else:
                self.reasons.append(str(error))


async def _fenced_for_nothing(
    client: Client, ledger: OpenedLedger, newest: Fragment, lost: Collection[str]
) -> str:
    """Return why it would restore no copy to fence the writer of an open ledger, or ''.

    Without a bookie that can replace the lost one, a fenced ledger would lack the same copies, and
    its writer would be lost as well. A ledger in recovery has no writer left to spare.
    """
    if ledger.metadata.state is not LedgerState.OPEN:
        return ""
    try:
        await choose_replacements(client, ledger, newest, members(newest, lost), lost)
    except NotEnoughBookiesError as error:
        return f"{error}. The ledger is open, and stays open because nothing can be copied"
    return ""


async def fence_if_abandoned(
    client: Client, ledger: OpenedLedger, result: LedgerResult, before: OpenLedgerState | None
) -> LedgerResult:
    """Fence and close an open ledger if its state is the same as `before`, a grace period ago.

    Returns `result` with the outcome. OPEN means that the writer gets its grace period, which
    begins with `seen`. FAILED has the reason why the ledger cannot be recovered now. DONE means
    that the ledger was closed. Raises NoSuchLedgerError if it was deleted meanwhile.
    """
    seen = OpenLedgerState.of(ledger)
    if seen != before:
        return replace(result, work=LedgerOutcome.OPEN, seen=seen)
    if why := _not_recoverable(ledger):
        return replace(_failed(result, why), seen=seen)
    try:
        await fence_and_close(client, ledger)
    except NoSuchLedgerError:
        raise
    except QuireError as error:
        return await _not_recovered(client, ledger, result, error)
    return replace(result, recovered=True)


def _not_recoverable(ledger: OpenedLedger) -> str:
    """Return why an open ledger cannot be recovered now, or ''.

    If too few bookies answer, its state seems to stay the same although the writer appends, and a
    recovery cannot find the end of the ledger. So the writer is not fenced. A ledger in recovery
    has no writer left to spare.
    """
    if ledger.metadata.state is not LedgerState.OPEN or not ledger.not_told:
        return ""
    return (
        f"the ledger is open, and stays open because it cannot be recovered now: {ledger.not_told}"
    )


async def fence_and_close(client: Client, ledger: OpenedLedger) -> None:
    """Fence the writer and close the ledger with everything that was acknowledged.

    If the metadata stores no password, and a bookie that knows the ledger refuses the one in
    `ledger`, nothing is changed. A ledger without entries is closed, although nothing on its
    bookies shows whether the password is right. Raises the errors of `Client.open_ledger`.
    """
    reader = await client.open_ledger(
        ledger.ledger_id, password=ledger.password, recover=True, unverified_password=True
    )
    reader.close()


async def _not_recovered(
    client: Client, ledger: OpenedLedger, result: LedgerResult, error: QuireError
) -> LedgerResult:
    """Return `result` as FAILED, because the ledger could not be fenced and closed.

    If the ledger is in recovery now, `seen` is its current state. No writer can add to such a
    ledger any more, so the next attempt need not give the writer time again.
    """
    failed = _failed(result, str(error))
    try:
        now = await open_for_repair(client, ledger.ledger_id, password=ledger.password)
    except MetadataError:
        return failed
    if now.metadata.state is not LedgerState.IN_RECOVERY:
        return failed
    return replace(failed, seen=OpenLedgerState.of(now))


async def _unmark(locks: ReplicationLocks, lock: ReplicationLock, ledger: OpenedLedger) -> None:
    """Remove the mark, unless a bookie that it names is still a member and may lack entries."""
    if lock.mark is None:
        return
    named = set(lock.mark.value.replicas)
    if not any(named.intersection(s.ensemble) for s in ledger.metadata.segments):
        await locks.replicated(lock)
