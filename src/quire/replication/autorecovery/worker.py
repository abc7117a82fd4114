"""Replication workers, which restore the replicas of marked ledgers and remove the marks.

docs/explanation/autorecovery.md is an overview.

The bookies that a mark names are handled as follows:

- Bookies that are not registered, or do not answer, are replaced
  (`bookie_removal.take_out_locked`). The worker checks before each copy whether they have returned.
- Bookies that answer are asked for every entry that they should have, and missing entries are
  written back to them (`repair_findings`). A bookie that has lost data cannot tell where an open
  ledger ends. Then the writer gets a grace period, as with a bookie that is gone; if the writer is
  inactive, the ledger is fenced and closed.

Bookies that the mark does not name are left alone, because only the auditor decides which bookies
are lost. If the mark names no bookie, all registered bookies are examined. The mark is removed when
everything it names is restored and durable. For that, the worker asks the bookies to sync the
ledger, because a bookie returns entries before they are synced, and may still crash.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from quire._runtime.clock import Clock
from quire._runtime.retry import Retry
from quire._runtime.tasks import TaskGroup, UnexpectedErrors, came
from quire.client import Client
from quire.client.client import pool_of
from quire.codec.metadata.underreplication import Underreplicated
from quire.core.fragments import Fragment, members, next_stored
from quire.core.replicas import Bad, Finding, Kind
from quire.errors import (
    ClientClosedError,
    MetadataError,
    NoSuchLedgerError,
    QuireError,
)
from quire.metadata.interface import Bookies
from quire.metadata.ledgers.creation import same_creation
from quire.metadata.ledgers.unreadable import UNREADABLE, reason_of
from quire.net.answer_codes import NoEntryAnswer
from quire.replication.autorecovery.auditor import Log
from quire.replication.autorecovery.misplaced import put_right
from quire.replication.autorecovery.outage_log import OutageLog
from quire.replication.autorecovery.recent_repairs import RecentRepairs
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.budget import Budget
from quire.replication.marks.locks import (
    LockHeldError,
    ReplicationLock,
    ReplicationLocks,
    misplaced_mark,
)
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import (
    LastFailure,
    failing_ledgers,
    forget_failure,
    last_failure,
    note_failure,
)
from quire.replication.repair.bookie_removal import (
    CONFLICTS_MAX,
    REASON_CHARS_MAX,
    LedgerOutcome,
    LedgerResult,
    OpenLedgerState,
    fence_if_abandoned,
    take_out_locked,
)
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair
from quire.replication.repair.repair_findings import repair_locked
from quire.replication.repair.replica_reader import ReplicaReader, Unreachable, answers
from quire.replication.repair.replica_scan import scan

RESTING_MAX = 100_000
"""The largest number of ledgers for which a worker remembers when to try them again. If there are
more, some are retried sooner."""
NEVER_WRITTEN = 2**62
"""An entry id that no ledger reaches."""
POLL_JITTER = 0.25
"""The largest share of `poll_s` that random jitter subtracts."""
FRESH_S = 1.0
"""Seconds for which a worker reuses the list of registered bookies, and the observation whether a
bookie answers."""


@dataclass(frozen=True, slots=True)
class _Grace:
    """The state of an open ledger when the grace period of its writer began."""

    mark: Underreplicated | None
    """The mark at that time. A different mark means another loss, so a new grace period begins. The
    same mark with a new version does not, because it may be repeated at any time."""
    seen: OpenLedgerState
    until_s: float = 0.0
    """The end of the grace period, by the loop's clock. 0 if there is none, because the recovery of
    the ledger failed and is only tried again."""


@dataclass(slots=True)
class _Rest:
    """A worker's record of a ledger between two attempts."""

    until_s: float
    """The time of the next attempt, by the loop's clock."""
    attempts: int = 0
    """The number of failed attempts in a row."""
    reason: str = ""
    """The reason why the last attempt failed; '' if none did."""
    grace: _Grace | None = None
    """The state of an open ledger when the grace period of its writer began, or when its recovery
    failed."""
    gracing: bool = False
    """Whether the grace period of the writer is running. If so, a bookie that joins makes the
    ledger due only if the mark names it."""
    waited_for: tuple[str, int] | None = None
    """The last failure of another worker for which this worker has waited: the name of that worker,
    and the time of the failure."""


class ReplicationWorker:
    """The replication workers of one process. `run` them until cancelled."""

    def __init__(
        self,
        client: Client,
        locks: ReplicationLocks,
        *,
        owner: str,
        settings: AutorecoverySettings,
        stats: AutorecoveryStats,
        clock: Clock,
        rng: random.Random,
        budget: Budget,
        log: Log,
    ) -> None:
        self._client = client
        self._store = client.metadata
        self._locks = locks
        self._marks = ReplicationMarks(client.metadata)
        self._owner = owner
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._rng = rng
        self._budget = budget
        self._log = log
        self._repairs = RecentRepairs(client.metadata, owner, clock)
        self._unexpected = UnexpectedErrors()
        self._busy: set[int] = set()
        self._resting: dict[int, _Rest] = {}
        self._forgot = False
        """Whether `_resting` was full, and a ledger is tried again before its time."""
        self._malformed: dict[str, str] = {}
        """The reasons why nodes in the tree of marks are not marks, by path."""
        self._picking = asyncio.Lock()
        self._news = asyncio.Event()
        self._polling = False
        """Whether one of the tasks waits for the time of the next search for marked ledgers."""
        self._found = asyncio.Event()
        """An event that wakes the other tasks, because a search has found a ledger."""
        self._enabled: bool | None = None
        """Whether autorecovery is enabled, or None before it is known."""
        self._present: set[tuple[str, bool]] | None = None
        """The registered bookies, each once for its registration and once more if it is writable.
        None before the first list."""
        self._joined_ms = 0
        """When a writable bookie last joined, in milliseconds since 1970. Failures of other workers
        before that time do not delay an attempt."""
        self._joins = 0
        """The number of times that bookies joined."""
        self._registered: tuple[float, frozenset[str]] | None = None
        self._asked: dict[str, tuple[float, bool]] = {}
        """When each bookie was last asked, on the clock of the event loop, and whether it did not
        answer, by bookie id."""

    async def run(self) -> None:
        """Run until cancelled.

        Cancellation is safe at any moment: copies that the metadata names are durable. Errors of
        the metadata store and of bookies are not raised: the operation is retried.
        """
        with ExitStack() as watches:
            for watch in (
                self._store.watch_bookies(self._on_bookies, addresses=False),
                self._marks.watch_ledgers(self._news.set),
                self._marks.watch_enabled(self._on_enabled),
            ):
                watches.callback(watch.close)
            async with TaskGroup() as group:
                for _ in range(self._settings.ledgers_at_once):
                    group.create_task(self._work())

    def _on_enabled(self, enabled: bool) -> None:
        self._enabled = enabled
        self._news.set()

    def _on_bookies(self, bookies: Bookies) -> None:
        """Retry at once if a bookie has joined, since repairs that lacked a bookie may succeed.

        An open ledger whose writer has a grace period is retried if its mark names the bookie. The
        bookie may have everything, and then there is nothing to wait for.
        """
        registered = {*bookies.writable, *bookies.readonly}
        present = {(one, False) for one in registered} | {(one, True) for one in bookies.writable}
        before, self._present = self._present, present
        if before is None or not present - before:
            return
        joined = {bookie for bookie, _ in present - before}
        self._joined_ms = self._clock.now_ms()
        self._joins += 1
        # What is remembered for a second would say that the bookie is still away.
        self._registered = None
        self._asked.clear()
        for rest in self._resting.values():
            if not rest.gracing or not joined.isdisjoint(_named_by(rest.grace)):
                rest.until_s = 0.0
        self._news.set()

    async def _work(self) -> None:
        retry = Retry(self._settings.backoff, self._rng)
        log = OutageLog(self._log)
        while True:
            try:
                ledger_id = await self._pick()
                log.worked()
                if ledger_id is None:
                    await self._repairs.note(idle=True)
                    await self._wait()
                    continue
                self._found.set()
                try:
                    await self._attempt(ledger_id)
                finally:
                    self._busy.discard(ledger_id)
                retry.reset()
                if self._forgot:
                    # A ledger that should rest is due again. Without a pause, the worker would go
                    # round and round the ledgers that it cannot repair.
                    self._forgot = False
                    await self._wait()
            except MetadataError as error:
                self._stats.store_errors += 1
                log.failed("worker_failed", error)
                await retry.pause()

    # -- which ledger -------------------------------------------------------------------------

    async def _pick(self) -> int | None:
        """Choose a marked ledger that is due and that nobody is repairing, and add it to `_busy`.

        Return None if there is none, or if autorecovery is disabled.
        """
        async with self._picking:
            if self._enabled is None:
                enabled = await self._marks.enabled()
                if self._enabled is None:  # an event that came meanwhile is newer
                    self._enabled = enabled
            if not self._enabled:
                return None
            await self._locks.tidy()
            locked: set[int] | None = None
            now_s = asyncio.get_running_loop().time()
            malformed: dict[str, str] = {}
            async for ledger_id in self._marks.walk(self._rng, prune=True, malformed=malformed):
                rest = self._resting.get(ledger_id)
                if rest is not None and rest.until_s > now_s:
                    continue
                if locked is None:
                    locked = await self._marks.locked()
                if ledger_id in self._busy or ledger_id in locked:
                    continue
                self._busy.add(ledger_id)
                return ledger_id
            self._tell_malformed(malformed)
            return None

    def _tell_malformed(self, malformed: dict[str, str]) -> None:
        """Report the nodes that a complete walk over the marks has skipped.

        A node is logged when a walk first finds it. The number of nodes becomes a metric.
        """
        for path in malformed.keys() - self._malformed.keys():
            self._log("mark_malformed", path=path, reason=malformed[path])
        self._malformed = malformed
        self._stats.marks_malformed = len(malformed)

    async def _wait(self) -> None:
        """Wait until it is worth while to search for a marked ledger again.

        One task of this process searches at intervals, and wakes the others when it finds a ledger.
        Jitter keeps the processes of a cluster from searching at the same moments, although the
        same event wakes them all.
        """
        if self._polling:
            self._found.clear()
            await self._found.wait()
            return
        self._polling = True
        self._news.clear()
        try:
            now_s = asyncio.get_running_loop().time()
            soon_s = [rest.until_s for rest in self._resting.values() if rest.until_s > now_s]
            poll_s = self._settings.poll_s * (1 - POLL_JITTER * self._rng.random())
            await came(self._news, asyncio.timeout_at(min([now_s + poll_s, *soon_s])))
        finally:
            self._polling = False

    def _rest(self, ledger_id: int, seconds: float, rest: _Rest) -> None:
        self._resting.pop(ledger_id, None)
        now_s = asyncio.get_running_loop().time()
        if len(self._resting) >= RESTING_MAX:
            forgotten = self._resting.pop(next(iter(self._resting)))
            self._forgot = self._forgot or forgotten.until_s > now_s
        rest.until_s = now_s + seconds
        self._resting[ledger_id] = rest

    # -- one ledger ---------------------------------------------------------------------------

    async def _attempt(self, ledger_id: int) -> None:
        rest = self._resting.get(ledger_id) or _Rest(0.0)
        if await self._others_failed(ledger_id, rest):
            return
        joins, now_s = self._joins, asyncio.get_running_loop().time
        try:
            async with self._locks.hold(ledger_id) as lock:
                mark = None if lock.mark is None else lock.mark.value
                grace = rest.grace
                if grace is not None and grace.mark != mark:
                    grace = None
                # A bookie may have joined during the grace period of the writer, which goes on.
                seen = grace.seen if grace is not None and now_s() >= grace.until_s else None
                done = await self._heal_or_say_why(lock, seen)
                self._count(done)
                if done.work in (LedgerOutcome.DONE, LedgerOutcome.GONE):
                    # Done under the lock, so that later failures of others are not forgotten.
                    await forget_failure(self._store, ledger_id)
        except LockHeldError:
            self._stats.locks_missed += 1
            rest.gracing = False
            self._rest(ledger_id, self._settings.backoff_s, rest)
            return
        except MetadataError as error:
            self._rest(ledger_id, self._pause_s(rest), rest)
            self._log("ledger_failed", ledger=ledger_id, reason=str(error))
            raise
        if done.work in (LedgerOutcome.DONE, LedgerOutcome.GONE):
            self._resting.pop(ledger_id, None)
            if done.work is LedgerOutcome.DONE:
                self._repairs.add(done, () if mark is None else mark.replicas)
                await self._repairs.note(idle=False)
            return
        rest.gracing = done.work is LedgerOutcome.OPEN
        if rest.gracing:
            pause_s = grace_s = self._settings.open_grace_s
            reason = f"the ledger is open: its writer has {grace_s:g} s to replace the bookie"
            if rest.attempts:
                # The ledger has changed since its recovery failed. The reason stays the same, and
                # the pauses continue to grow.
                pause_s, reason = max(pause_s, self._backoff_s(rest.attempts - 1)), rest.reason
            if grace is not None and seen is None and grace.seen == done.seen:
                pause_s = max(0.0, grace.until_s - now_s())  # the same grace period goes on
        else:
            self._log("ledger_failed", ledger=ledger_id, reason=done.reason)
            pause_s, reason = self._pause_s(rest), done.reason
            rest.reason = reason
        if done.seen is not None:
            until_s = now_s() + pause_s if rest.gracing else 0.0
            rest.grace = _Grace(mark, done.seen, until_s)
        if self._joins != joins:
            pause_s = 0.0  # a bookie joined during this attempt, which may not have noticed it
        self._rest(ledger_id, pause_s, rest)
        await self._note(ledger_id, reason, rest.attempts, pause_s)

    def _pause_s(self, rest: _Rest) -> float:
        """Count one more failed attempt, and return the seconds until the next one."""
        pause_s = self._backoff_s(rest.attempts)
        rest.attempts += 1
        rest.gracing = False
        return pause_s

    def _backoff_s(self, attempts: int) -> float:
        """Return the pause after this number of earlier failures.

        Jitter keeps ledgers that failed together, and workers of several processes, from retrying
        at the same time.
        """
        return self._settings.backoff.pause_s(attempts + 1, self._rng)

    async def _others_failed(self, ledger_id: int, rest: _Rest) -> bool:
        """Return whether another worker failed with this ledger lately, so that this one must wait.

        If so, the ledger rests until the next attempt that the other worker has announced. The
        number of attempts in the stored note is taken over into `rest`, so that attempts are
        counted across workers and their restarts.
        """
        failure = await last_failure(self._store, ledger_id)
        if failure is None or failure.at_ms < self._joined_ms:
            return False
        if failure.attempts > rest.attempts:
            rest.attempts, rest.reason = failure.attempts, failure.reason
        left_s = (failure.next_attempt_ms - self._clock.now_ms()) / 1000
        if failure.by == self._owner or left_s <= 0 or rest.gracing:
            return False  # the worker that gave the writer its time does not wait again
        # The clock of the other worker may be ahead by any amount, and that worker may be dead.
        # So one wait is bounded, and there is only one for the same failure.
        if rest.waited_for == (failure.by, failure.at_ms):
            return False
        rest.waited_for = (failure.by, failure.at_ms)
        self._rest(ledger_id, min(left_s, self._settings.backoff_max_s), rest)
        return True

    async def _note(self, ledger_id: int, reason: str, attempts: int, pause_s: float) -> None:
        now_ms = self._clock.now_ms()
        failure = LastFailure(reason, now_ms, attempts, now_ms + int(pause_s * 1000), self._owner)
        await note_failure(self._store, ledger_id, failure)

    def _count(self, done: LedgerResult) -> None:
        stats = self._stats
        stats.ledgers_done += done.work in (LedgerOutcome.DONE, LedgerOutcome.GONE)
        stats.ledgers_failed += done.work is LedgerOutcome.FAILED
        stats.ledgers_fenced += done.recovered
        stats.fragments += done.fragments
        stats.entries_copied += done.entries
        stats.bytes_copied += done.size_bytes
        if done.work is LedgerOutcome.DONE:
            self._log(
                "ledger_replicated",
                ledger=done.ledger,
                fragments=done.fragments,
                entries=done.entries,
                bytes=done.size_bytes,
                fenced=done.recovered,
            )

    async def _heal_or_say_why(
        self, lock: ReplicationLock, seen: OpenLedgerState | None
    ) -> LedgerResult:
        """Repair the ledger under its lock, and return the result.

        The result is FAILED if its metadata or its mark cannot be read, or after an error that is
        not expected here, and GONE if it has no mark.
        """
        failed = LedgerResult(lock.ledger_id, LedgerOutcome.FAILED)
        if lock.unreadable:
            return replace(failed, reason=f"its mark cannot be read: {lock.unreadable}")
        if lock.mark is None:  # removed by another worker, perhaps without the empty parents
            await self._locks.clear_path(lock.ledger_id)
            if strays := await self._locks.strays(lock.ledger_id):
                return replace(failed, reason=misplaced_mark(lock.ledger_id, strays))
            return replace(failed, work=LedgerOutcome.GONE)
        try:
            return await self._heal(lock, lock.mark.value, seen)
        except UNREADABLE as error:
            return replace(failed, reason=reason_of(error))
        except (MetadataError, ClientClosedError):
            raise
        except QuireError as error:  # one ledger must not end the repair of all others
            return replace(failed, reason=str(error)[:REASON_CHARS_MAX])
        except Exception as error:  # noqa: BLE001 - nor must a bug that one ledger uncovers
            self._unexpected.note("repair a marked ledger", error)
            return replace(failed, reason=f"unexpected error: {error!r}"[:REASON_CHARS_MAX])

    async def _heal(
        self, lock: ReplicationLock, mark: Underreplicated, seen: OpenLedgerState | None
    ) -> LedgerResult:
        """Repair a marked ledger under its lock, and return the result.

        `seen` is the state of an open ledger when the grace period of its writer began, if it did.
        DONE means that everything was restored, and that the mark was removed unless the ledger was
        marked again meanwhile.
        """
        result = LedgerResult(lock.ledger_id, LedgerOutcome.DONE)
        named = set(mark.replicas)
        lost = await self._still_lost(named)
        if lost:
            result = await take_out_locked(
                self._client,
                self._locks,
                lock,
                lost,
                before=seen,
                budget=self._budget,
                recheck=self._still_lost,
            )
            if result.work is not LedgerOutcome.DONE:
                return result
        if self._settings.repair_placement:
            result = await self._put_right(lock, result)
            if result.work is not LedgerOutcome.DONE:
                return result
        # A mark may name no bookie. Then all registered bookies are examined, and unregistered ones
        # are left to the auditor.
        looked_at = named or await self._now_registered()
        whole: set[tuple[Fragment, str]] = set()
        examined: OpenedLedger | None = None
        try:
            for _ in range(CONFLICTS_MAX):
                ledger = await open_for_repair(self._client, lock.ledger_id)
                if examined is not None and not same_creation(examined.stored, ledger.stored):
                    whole.clear()  # the new ledger may have the same segments
                examined = ledger
                result = await self._look_at(ledger, looked_at, whole, result)
                if result.work is not LedgerOutcome.DONE:
                    return result
                if await self._cannot_tell(ledger, looked_at):
                    result = await fence_if_abandoned(self._client, ledger, result, seen)
                    if result.work is not LedgerOutcome.DONE:
                        return result
                    continue
                if why := await self._make_durable(ledger, looked_at):
                    return replace(result, work=LedgerOutcome.FAILED, reason=why)
                await self._store.tree.sync()  # the server may lag behind the writer
                now = await self._store.read_ledger(lock.ledger_id)
                if now.version == ledger.stored.version and same_creation(ledger.stored, now):
                    await self._locks.replicated(lock)
                    return result
                # Segments that a writer or a recovery has completed meanwhile are not examined yet.
        except NoSuchLedgerError:
            await self._locks.replicated(lock)
            return replace(result, work=LedgerOutcome.GONE)
        reason = f"other clients changed the ledger {CONFLICTS_MAX} times while it was examined"
        return replace(result, work=LedgerOutcome.FAILED, reason=reason)

    async def _cannot_tell(self, ledger: OpenedLedger, bookies: Iterable[str]) -> bool:
        """Return whether one of these bookies stores entries of the open segment and has lost data.

        Such a bookie cannot say that an entry was never written. The entries that it had after the
        last known entry cannot be restored before it is known where the ledger ends.
        """
        newest = ledger.fragments()[-1]
        if newest.closed:
            return False
        for index in members(newest, bookies):
            reader = ReplicaReader(
                self._client, ledger.ledger_id, ledger.metadata, ledger.codec,
                newest.ensemble[index],
            )  # fmt: skip
            entry = next_stored(ledger.metadata, index, NEVER_WRITTEN)
            with suppress(Unreachable):
                if any(
                    isinstance(part, Bad) and part.kind is Kind.DAMAGED
                    for part in await reader.read((entry,))
                ):
                    return True
        return False

    async def _make_durable(self, ledger: OpenedLedger, bookies: Iterable[str]) -> str:
        """Ask these bookies to sync what they have of the ledger.

        Return '' when all have done so, or the reason why one of them has not.
        """
        limit_s = self._client.config.add_timeout_s
        named = {bookie for fragment in ledger.fragments() for bookie in fragment.ensemble}
        ledger_id = ledger.ledger_id
        for bookie in sorted(named.intersection(bookies)):
            try:
                async with asyncio.timeout(limit_s):
                    await pool_of(self._client).ask_control(
                        bookie, lambda channel: channel.force(ledger_id)
                    )
            except NoEntryAnswer:
                pass  # it has nothing of the ledger; missing entries would have been found before
            except QuireError as error:
                return f"bookie {bookie} did not sync the ledger: {error.args[0]}"
            except TimeoutError:
                return f"bookie {bookie} did not sync the ledger within {limit_s:g} s"
        return ""

    async def _put_right(self, lock: ReplicationLock, result: LedgerResult) -> LedgerResult:
        """Move the segments that violate the placement policy, if they can be placed better.

        Return `result` with the counts added, and with FAILED if a move failed.
        """
        try:
            ledger = await open_for_repair(self._client, lock.ledger_id, ask=False)
        except NoSuchLedgerError:
            return result  # the caller finds that out too
        registered = await self._now_registered()
        done = await put_right(self._client, ledger, registered, budget=self._budget)
        self._stats.fragments_moved += done.fragments
        return replace(
            result,
            work=LedgerOutcome.FAILED if done.why else result.work,
            reason=done.why[:REASON_CHARS_MAX],
            fragments=result.fragments + done.fragments,
            entries=result.entries + done.entries,
            size_bytes=result.size_bytes + done.size_bytes,
        )

    async def _still_lost(self, bookies: Collection[str]) -> Collection[str]:
        """Return the bookies that are not registered, or do not answer."""
        registered = await self._now_registered()
        lost = {bookie for bookie in bookies if bookie not in registered}
        for bookie in sorted(set(bookies) - lost):
            if await self._silent(bookie):
                lost.add(bookie)
        return lost

    async def _silent(self, bookie: str) -> bool:
        """Return whether a bookie does not answer.

        The result is reused for `FRESH_S`, because a ledger may have many segments.
        """
        now_s = asyncio.get_running_loop().time
        asked_s, silent = self._asked.get(bookie, (-FRESH_S, False))
        if asked_s <= now_s() - FRESH_S:
            silent = bool(await answers(self._client, bookie))
            self._asked[bookie] = (now_s(), silent)
        return silent

    async def _now_registered(self) -> frozenset[str]:
        now_s = asyncio.get_running_loop().time()
        if self._registered is None or self._registered[0] < now_s - FRESH_S:
            self._registered = (now_s, await self._store.registered())
        return self._registered[1]

    async def _look_at(
        self,
        ledger: OpenedLedger,
        bookies: Iterable[str],
        whole: set[tuple[Fragment, str]],
        result: LedgerResult,
    ) -> LedgerResult:
        """Read what these bookies should have, and write back what they lack.

        Replicas in `whole` are skipped. If all the others are good or were repaired, they are added
        to it. Otherwise the result is FAILED. Returns `result` with the counts added.
        """
        found: list[Finding] = []
        looked_at: set[tuple[Fragment, str]] = set()
        for bookie in sorted(bookies):
            for fragment in ledger.fragments():
                if fragment.empty or (fragment, bookie) in whole:
                    continue
                looked_at.add((fragment, bookie))
                for index in members(fragment, (bookie,)):
                    seen = await scan(
                        self._client, ledger, fragment, index, fragment.first, fragment.last,
                        budget=self._budget,
                    )  # fmt: skip
                    self._stats.replicas_read += seen.entries
                    if seen.silent:
                        # The bookie answered before. The next attempt finds out what is wrong.
                        why = f"bookie {bookie} stopped answering while it was read"
                        return replace(result, work=LedgerOutcome.FAILED, reason=why)
                    found += [
                        Finding(ledger.ledger_id, bad.first, bad.last, bookie, bad.kind, bad.detail)
                        for bad in seen.bad
                    ]
        if not found:
            whole |= looked_at
            return result
        done = await repair_locked(
            self._client, ledger.ledger_id, found, password=ledger.password, budget=self._budget
        )
        self._stats.replicas_repaired += done.written_back
        result = replace(
            result,
            fragments=result.fragments + done.moved,
            entries=result.entries + done.entries,
            size_bytes=result.size_bytes + done.size_bytes,
        )
        if done.left:
            one = done.left[0]
            reason = f"entries {one.first}..{one.last} of bookie {one.bookie}: {one.detail}"
            return replace(result, work=LedgerOutcome.FAILED, reason=reason)
        whole |= looked_at
        return result


def _named_by(grace: _Grace | None) -> tuple[str, ...]:
    """Return the bookies that the mark named when the grace period began."""
    return () if grace is None or grace.mark is None else tuple(grace.mark.replicas)


async def forget_old_failures(client: Client, locks: ReplicationLocks) -> None:
    """Delete the notes about ledgers that are no longer marked. Raises MetadataError.

    A mark that cannot be read is still a mark, so its note stays.
    """
    for ledger_id in await failing_ledgers(client.metadata):
        if not await locks.is_marked(ledger_id):
            await forget_failure(client.metadata, ledger_id)
