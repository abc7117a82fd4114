"""The auditor, which finds ledgers that lack replicas and marks them.

docs/explanation/autorecovery.md is an overview.

- *Lost bookies*: The auditor looks for lost bookies when it starts, when the lists of registered
  bookies change, and once a day by default. It marks every ledger that names a lost bookie.
  `lost_bookies` describes the delay.
- *Checks*: At intervals, the auditor checks all ledgers: which entries bookies really have, and
  how replicas are placed. These checks leave out bookies that are not registered, because the
  search for lost bookies handles those, and segments that are still being written.

The auditor passes over all ledgers page by page. In the search for lost bookies, it reads first the
metadata of a page and then the list of registered bookies, so that a bookie that registers
meanwhile is not taken for lost.

A ledger whose metadata cannot be read does not stop a pass. It is skipped, and the end of the pass
reports all such ledgers (the event `ledgers_unreadable`, and `notes.UnreadableLedgers`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from quire._runtime.clock import Clock
from quire._runtime.retry import Retry
from quire._runtime.tasks import TaskGroup, UnexpectedErrors, came, each
from quire.client import Client
from quire.client.client import pool_of
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.underreplication import (
    CHECKED_LEDGERS,
    CHECKED_PLACEMENT,
    CHECKED_REPLICAS,
)
from quire.core.append.quorum import in_write_set
from quire.core.fragments import Fragment, last_stored, next_stored, stored_count, unlisted
from quire.core.ranges import Range
from quire.core.replicas import Bad
from quire.errors import (
    ClientClosedError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    UnreadableMetadataError,
)
from quire.metadata.interface import Bookies
from quire.metadata.ledgers.unreadable import UNREADABLE, Unread, read_or_skip
from quire.replication.autorecovery.lost_bookies import LostBookies
from quire.replication.autorecovery.misplaced import keeps_to_policy, to_move
from quire.replication.autorecovery.outage_log import OutageLog
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import (
    MISPLACED_TOLD_MAX,
    AwaitedBookie,
    PlacementCheck,
    forget_waiting,
    last_placement,
    note_placement,
    note_unreadable,
    note_waiting,
)
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair
from quire.replication.repair.replica_reader import LAG_S, ReplicaReader, Unreachable, answers

SAMPLES_MAX = 1_000
"""The largest number of entries of one replica of a fragment that a check reads besides its first
and last entry."""
PAGE_LEDGERS = 256
"""The number of ledgers whose metadata is in memory at the same time."""
GAPS_AT_ONCE = 10_000
"""The largest number of gaps in a bookie's list of entries that are counted in one event-loop
iteration."""

Adheres = Callable[[LedgerMetadata], bool | None]
"""A function that says whether a ledger follows the placement policy, or None if it cannot tell."""
Log = Callable[..., None]
"""A function that logs an event: its name, and its fields as keyword arguments."""


class _SwitchedOffError(Exception):
    """The error that ends a pass over all ledgers because autorecovery was disabled."""


@dataclass(frozen=True, slots=True)
class _Check:
    """One of the periodic checks of all ledgers."""

    name: str
    node: str
    interval_s: float
    run: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _PassResult:
    """The sums of a check of all ledgers."""

    missing: int
    """The number of missing entries, or 0 if the check does not count them."""
    uncompared: Mapping[str, int]
    """The number of replicas of each bookie that could not be compared."""


class Auditor:
    """The auditor during one term: `run` it until another process is elected."""

    def __init__(
        self,
        client: Client,
        locks: ReplicationLocks,
        *,
        settings: AutorecoverySettings,
        stats: AutorecoveryStats,
        clock: Clock,
        rng: random.Random,
        adheres: Adheres | None = None,
        settle_s: float = 0.0,
        log: Log,
    ) -> None:
        """Create an auditor.

        It waits `settle_s` seconds before it looks for lost bookies. `adheres` replaces the check
        whether a ledger follows the placement policy.
        """
        self._client = client
        self._store = client.metadata
        self._locks = locks
        self._marks = ReplicationMarks(client.metadata)
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._rng = rng
        self._adheres = adheres or partial(keeps_to_policy, client)
        self._log = log
        self._settle_s = settle_s
        self._unexpected = UnexpectedErrors()
        self._lost = LostBookies()
        self._delay_version: int | None = None
        self._enabled = True
        self._silent: set[str] = set()
        """The registered bookies that did not answer during a check. They are treated as missing
        until they answer."""
        self._ask_silent_s = 0.0
        """When silent bookies may be asked again, on the clock of the event loop. A bookie that
        hangs takes half a minute to ask, and a search looks once for each page of ledgers."""
        self._told: tuple[str, float] | None = None
        """The bookie in the last stored note about a wait, and when that wait ends, on the clock of
        the event loop."""
        self._noted = True
        """Whether the store may have a note about a wait. A former auditor may have left one."""
        self._news = asyncio.Event()
        """An event that wakes the search for lost bookies."""
        self._switched = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled.

        Cancellation is safe at any moment: the next auditor finds what was not marked. Errors of
        the metadata store are not raised: the operation is retried.
        """
        try:
            await self._search_and_check()
        finally:
            # The next auditor reports these numbers, perhaps in another process.
            stats = self._stats
            stats.ledgers_unreadable = stats.ledgers_misplaced = 0
            stats.replicas_missing = stats.replicas_uncompared = 0

    async def _search_and_check(self) -> None:
        await self._insist("prepare", self._prepare)
        with ExitStack() as watches:
            for watch in (
                self._store.watch_bookies(self._on_bookies, addresses=False),
                self._marks.watch_delay(self._on_delay),
                self._marks.watch_enabled(self._on_enabled),
            ):
                watches.callback(watch.close)
            async with TaskGroup() as group:
                group.create_task(self._look_for_lost_bookies())
                group.create_task(self._check_now_and_then())

    async def _prepare(self) -> None:
        await self._marks.prepare()
        await self._marks.begin_delay(self._settings.lost_bookie_delay_s)
        try:
            delay_s = await self._marks.delay_s()
        except UnreadableMetadataError as error:
            delay_s = self._settings.lost_bookie_delay_s
            self._log("delay_unreadable", error=str(error), seconds=delay_s)
        self._lost.set_delay(delay_s)
        self._lost.learn(await self._store.list_cookies())
        self._enabled = await self._marks.enabled()

    async def _insist(self, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Repeat `work` until it succeeds. Return False if autorecovery is disabled meanwhile."""
        retry = Retry(self._settings.backoff, self._rng)
        log = OutageLog(self._log)
        while True:
            try:
                await work()
                return True
            except _SwitchedOffError:
                return False
            except MetadataError as error:
                self._stats.store_errors += 1
                log.failed("auditor_failed", error, what=what)
            await retry.pause()

    # -- notifications ------------------------------------------------------------------------

    def _on_bookies(self, bookies: Bookies) -> None:
        self._news.set()

    def _on_delay(self, seconds: int, version: int) -> None:
        if self._delay_version not in (None, version):
            if seconds in (0, self._lost.delay_s):
                self._lost.overrule()  # setting the same value again requests a search
                self._asked = True
            self._log("delay_set", seconds=seconds)
        self._delay_version = version
        self._lost.set_delay(seconds)
        self._news.set()

    def _on_enabled(self, enabled: bool) -> None:
        self._enabled = enabled
        self._news.set()
        self._switched.set()

    async def _until_enabled(self) -> None:
        while not self._enabled:
            self._switched.clear()
            await self._switched.wait()

    # -- lost bookies -------------------------------------------------------------------------

    _asked = False
    """Whether an operator has requested a search for lost bookies."""

    async def _look_for_lost_bookies(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._settle_s)
        # The first audit is due now: a bookie that was lost before this term may be known only from
        # the ledgers that name it (rule 29).
        audit_at_s = loop.time()
        while True:
            await self._until_enabled()
            self._news.clear()
            await self._insist("look", self._look)
            now_s, due_s = loop.time(), self._lost.due_s()
            if self._asked or now_s >= min(audit_at_s, _never(due_s)):
                asked, self._asked = self._asked, False
                if await self._insist("audit", self._audit):
                    interval_s = self._settings.bookie_check_interval_s or float("inf")
                    audit_at_s = loop.time() + interval_s
                else:  # it was disabled before the end
                    self._asked = self._asked or asked
                continue
            until_s = min(audit_at_s, _never(due_s))
            if self._silent:
                until_s = min(until_s, now_s + self._settings.poll_s)
            await came(self._news, asyncio.timeout_at(_finite(until_s)))

    async def _look(self) -> None:
        waits, returns = self._lost.waits, self._lost.returns
        registered = await self._registered()
        self._silent &= registered
        now_s = asyncio.get_running_loop().time
        if self._silent and (began_s := now_s()) >= self._ask_silent_s:
            for bookie in sorted(self._silent):
                if not await answers(self._client, bookie):
                    self._silent.discard(bookie)
            self._ask_silent_s = 2 * now_s() - began_s  # at most half of the time
        present = registered - self._silent
        taken_away: set[str] = set()
        if self._lost.delay_s and (gone := self._lost.gone(present)):
            taken_away = gone.difference(await self._store.list_cookies())
        self._lost.look(present, asyncio.get_running_loop().time(), taken_away)
        self._stats.bookies_waited_for += self._lost.waits - waits
        self._stats.bookies_returned += self._lost.returns - returns
        await self._tell_waiting()

    async def _tell_waiting(self) -> None:
        """Store a note about the missing bookie that the auditor waits for.

        If there is no such bookie, the note about the last wait is deleted. The note is for people.
        Nothing is written if the store has the right note, or rightly has none.
        """
        now_s, until_s = asyncio.get_running_loop().time(), self._lost.wait_until_s()
        waited_for = self._lost.waited_for(now_s)  # at most one
        try:
            for bookie in waited_for:
                assert until_s is not None
                if self._told == (bookie, until_s):
                    return
                now_ms = self._clock.now_ms()
                since_ms = now_ms - int((now_s - self._lost.missing[bookie]) * 1000)
                until_ms = now_ms + int((until_s - now_s) * 1000)
                self._noted = True  # even if the outcome is an error
                await note_waiting(self._store, AwaitedBookie(bookie, since_ms, until_ms))
                self._told = (bookie, until_s)
            if not waited_for and self._noted:
                self._told = None
                await forget_waiting(self._store)
                self._noted = False
        except MetadataError:
            self._stats.store_errors += 1  # the next look tries again

    async def _registered(self) -> set[str]:
        return set(await self._store.registered())

    async def _audit(self) -> None:
        """Search all ledgers for lost bookies, and mark every ledger that names one."""
        loop, unread = asyncio.get_running_loop(), Unread()
        await self._look()
        doomed = set(self._lost.missing) - self._lost.waited_for(loop.time())
        marked = 0
        async for page in self._pages():
            by_ledger = await self._members(page, unread)
            everybody = {bookie for named in by_ledger.values() for bookie in named}
            new = everybody - self._lost.known
            self._lost.learn(everybody)
            await self._look()
            waited_for = self._lost.waited_for(loop.time())
            # Of a bookie that has returned, or is waited for again, this page marks nothing. If it
            # is lost at the end of this pass, the next pass searches for it from the beginning.
            doomed = (doomed | new) & (self._lost.missing.keys() - waited_for)
            gone = everybody - self._lost.registered - waited_for
            marked += await self._mark(
                {ledger: sorted(named & gone) for ledger, named in by_ledger.items()}, unread
            )
        await self._tell_unread(unread)
        given_up = doomed & self._lost.missing.keys()
        self._lost.give_up(given_up)
        self._stats.audits += 1
        if given_up or marked:
            self._log("bookies_lost", bookies=sorted(given_up), ledgers_marked=marked)

    async def _members(self, page: Collection[int], unread: Unread) -> dict[int, set[str]]:
        async def members(ledger_id: int) -> set[str]:
            found = await read_or_skip(self._store, ledger_id, unread)
            if found is None:
                return set()
            return {bookie for segment in found.value.segments for bookie in segment.ensemble}

        return dict(zip(page, await each(page, members)))

    async def _tell_unread(self, unread: Unread) -> None:
        """Report the ledgers that a complete pass over all ledgers could not read.

        They are reported as a metric, an event and a note. Without any, an earlier note is deleted.
        """
        self._stats.ledgers_unreadable = len(unread)
        if unread:
            self._log("ledgers_unreadable", count=len(unread), ledgers=dict(unread.named))
        try:
            await note_unreadable(self._store, unread, self._clock.now_ms())
        except MetadataError:
            self._stats.store_errors += 1  # the next pass records it

    async def _mark(self, lacking: dict[int, list[str]], unread: Unread) -> int:
        """Mark ledgers, and return how many marks were created or changed.

        `lacking` has the bookies that lack entries of each ledger. A ledger without any is not
        marked. An existing mark that cannot be read is not changed, and is recorded in `unread`.
        """

        async def mark(ledger_id: int) -> bool:
            try:
                return await self._locks.mark(ledger_id, lacking[ledger_id])
            except UnreadableMetadataError as error:
                unread.add(ledger_id, error)
                return False

        made = sum(await each([ledger for ledger, named in lacking.items() if named], mark))
        self._stats.ledgers_marked += made
        return made

    async def _pages(self) -> AsyncIterator[list[int]]:
        """Yield all ledgers in pages.

        Raises _SwitchedOffError before a page if autorecovery is disabled.
        """
        page: list[int] = []
        async for found in self._store.list_ledgers():
            for ledger_id in found.ledger_ids:
                page.append(ledger_id)
                if len(page) == PAGE_LEDGERS:
                    self._go_on()
                    yield page
                    page = []
        self._go_on()
        if page:
            yield page

    def _go_on(self) -> None:
        if not self._enabled:
            raise _SwitchedOffError

    # -- checks -------------------------------------------------------------------------------

    async def _check_now_and_then(self) -> None:
        settings = self._settings
        checks = [
            _Check("ledgers", CHECKED_LEDGERS, settings.ledger_check_interval_s, self._ends),
            _Check(
                "replicas", CHECKED_REPLICAS, settings.replicas_check_interval_s, self._replicas
            ),
            _Check(
                "placement",
                CHECKED_PLACEMENT,
                settings.placement_check_interval_s,
                self._placement,
            ),
        ]
        async with TaskGroup() as group:
            for check in checks:
                if check.interval_s:
                    group.create_task(self._repeat(check))
            if settings.placement_check_interval_s:
                group.create_task(self._take_over())

    async def _repeat(self, check: _Check) -> None:
        while True:
            last_ms: int | None = None

            async def read() -> None:
                nonlocal last_ms
                last_ms, now_ms = await self._marks.checked_ms(check.node), self._clock.now_ms()
                if last_ms is not None and last_ms > now_ms:
                    # The clock was ahead at the last check. It counts as done now, also for the
                    # next auditors, each of which would otherwise wait for its whole interval.
                    await self._marks.set_checked(check.node, now_ms)
                    last_ms = now_ms

            await self._insist(check.name, read)
            if last_ms is not None:
                age_s = max(0.0, (self._clock.now_ms() - last_ms) / 1000)
                if age_s < check.interval_s:
                    await asyncio.sleep(check.interval_s - age_s)
            await self._until_enabled()
            if not await self._insist(check.name, check.run):
                continue

            async def done() -> None:
                await self._marks.set_checked(check.node, self._clock.now_ms())

            await self._insist(check.name, done)

    async def _ends(self) -> None:
        percent = self._settings.ledger_check_percent

        async def look(ledger_id: int, registered: set[str]) -> LackingReplicas:
            return await check_ends(self._client, ledger_id, registered, self._rng, percent)

        await self._go_through(look)
        self._stats.ledger_checks += 1

    async def _replicas(self) -> None:
        async def look(ledger_id: int, registered: set[str]) -> LackingReplicas:
            return await check_replicas(self._client, ledger_id, registered)

        found = await self._go_through(look)
        self._stats.replicas_missing = found.missing
        self._stats.replicas_uncompared = sum(found.uncompared.values())
        if found.uncompared:
            self._log("replicas_not_compared", replicas=dict(sorted(found.uncompared.items())))
        self._stats.replicas_checks += 1

    async def _go_through(
        self, look: Callable[[int, set[str]], Awaitable[LackingReplicas]]
    ) -> _PassResult:
        """Check every ledger with `look`, and mark those that lack replicas.

        `look` receives the ledger id and the registered bookies. If it finds missing entries, it is
        called again after `LAG_S`, because the replicas may be complete by then.

        Returns the sums of the last results of `look`.
        """
        unread, missing, uncompared = Unread(), 0, Counter[str]()
        async for page in self._pages():
            registered = await self._registered()

            async def one(ledger_id: int, registered: set[str] = registered) -> LackingReplicas:
                try:
                    return await look(ledger_id, registered)
                except UNREADABLE as error:
                    unread.add(ledger_id, error)
                except (MetadataError, ClientClosedError):
                    raise
                except Exception as error:  # noqa: BLE001 - one ledger must not end all checks
                    self._unexpected.note("check a ledger", error)
                    unread.add(ledger_id, f"unexpected error: {error!r}")
                return LackingReplicas()

            found = dict(zip(page, await each(page, one)))
            if again := [ledger for ledger, lacking in found.items() if lacking.bookies]:
                # A replica of a ledger that was just closed may lag behind the others.
                await asyncio.sleep(LAG_S)
                seen = dict(zip(again, await each(again, one)))
                lagged = [ledger for ledger, lacking in seen.items() if not lacking.bookies]
                self._stats.replicas_lagged += len(lagged)
                found.update(seen)
            missing += sum(lacking.entries for lacking in found.values())
            uncompared.update(name for one in found.values() for name in one.uncompared)
            if silent := {bookie for lacking in found.values() for bookie in lacking.silent}:
                self._silent |= silent
                self._news.set()
            lacking = {ledger: list(one.bookies) for ledger, one in found.items()}
            marked = await self._mark(lacking, unread)
            if marked:
                self._log("replicas_lacking", ledgers_marked=marked)
        await self._tell_unread(unread)
        return _PassResult(missing, uncompared)

    async def _take_over(self) -> None:
        """Count the misplaced ledgers of the last check, which a former auditor may have made."""

        async def read() -> None:
            found = await last_placement(self._store)
            if found is not None and not self._stats.placement_checks:
                self._stats.ledgers_misplaced = found.misplaced

        await self._insist("placement", read)

    async def _placement(self) -> None:
        """Count the closed ledgers that violate the placement policy.

        With `repair_placement`, those that can be placed better are marked. Ledgers that name an
        unregistered bookie are left to the search for lost bookies.
        """
        looked_at = marked = 0
        found: list[int] = []
        unread = Unread()
        loop, wait_s = asyncio.get_running_loop(), self._client.config.bookies_wait_s

        async def read(ledger_id: int) -> LedgerMetadata | None:
            there = await read_or_skip(self._store, ledger_id, unread)
            return None if there is None else there.value

        async for page in self._pages():
            stored = dict(zip(page, await each(page, read)))
            registered = await self._registered()
            await self._client.placement.settle(loop.time() + wait_s)
            await pool_of(self._client).know_addresses()
            movable: dict[int, list[str]] = {}
            for ledger_id, metadata in stored.items():
                if metadata is None or not metadata.closed:
                    continue
                if any(not registered.issuperset(one.ensemble) for one in metadata.segments):
                    continue
                looked_at += 1
                if self._adheres(metadata) is False:
                    found.append(ledger_id)
                    if self._settings.repair_placement:
                        movable[ledger_id] = to_move(self._client, metadata)
                        await asyncio.sleep(0)  # `to_move` may take long
            marked += await self._mark(movable, unread)
        await self._tell_unread(unread)
        self._stats.ledgers_misplaced = len(found)
        self._stats.placement_checks += 1
        now_ms, told = self._clock.now_ms(), tuple(found[:MISPLACED_TOLD_MAX])
        try:
            await note_placement(self._store, PlacementCheck(now_ms, looked_at, len(found), told))
        except MetadataError:
            self._stats.store_errors += 1  # the next check records it
        if found:
            self._log("ledgers_misplaced", ledgers=len(found), ledgers_marked=marked)


def _never(at_s: float | None) -> float:
    return float("inf") if at_s is None else at_s


def _finite(at_s: float) -> float | None:
    return None if at_s == float("inf") else at_s


# -- checks of one ledger ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LackingReplicas:
    """The result of a check of one ledger."""

    bookies: tuple[str, ...] = ()
    """The bookies that lack entries of the ledger."""
    silent: tuple[str, ...] = ()
    """The registered bookies that did not answer. A check that reads no entries leaves it empty."""
    entries: int = 0
    """The number of missing entries, added up over `bookies`, or 0 if the check does not count."""
    uncompared: tuple[str, ...] = ()
    """The registered bookies that gave no list of their entries, so that nothing is known about
    their replicas. A check that compares no lists leaves it empty."""


async def _opened(client: Client, ledger_id: int) -> OpenedLedger | None:
    try:
        return await open_for_repair(client, ledger_id, ask=False)
    except NoSuchLedgerError:
        return None


def _parts(ledger: OpenedLedger, registered: Collection[str]) -> Iterator[tuple[Fragment, int]]:
    """Yield each closed fragment that has entries, with the index of each registered member."""
    for fragment in ledger.fragments():
        if fragment.closed and not fragment.empty:
            for index, bookie in enumerate(fragment.ensemble):
                if bookie in registered:
                    yield fragment, index


async def check_ends(
    client: Client,
    ledger_id: int,
    registered: Collection[str],
    rng: random.Random,
    percent: float = 0.0,
) -> LackingReplicas:
    """Read the first and the last entry that each registered member of each closed fragment stores.

    About `percent` of the other entries of each replica of a fragment are read as well, chosen at
    random, but not more than `SAMPLES_MAX`. Missing entries are not counted. The result is empty if
    the ledger was deleted. Raises MetadataError. Cancel-safe.
    """
    ledger = await _opened(client, ledger_id)
    if ledger is None:
        return LackingReplicas()
    wanted: dict[str, set[int]] = {}
    for fragment, index in _parts(ledger, registered):
        probes = _probes(ledger.metadata, fragment, index, rng, percent)
        wanted.setdefault(fragment.ensemble[index], set()).update(probes)
    bad, silent = [], []
    for bookie, entries in wanted.items():
        reader = ReplicaReader(client, ledger_id, ledger.metadata, ledger.codec, bookie)
        try:
            parts = await reader.read(sorted(entries)) if entries else []
        except Unreachable:
            silent.append(bookie)
            continue
        if any(isinstance(part, Bad) for part in parts):
            bad.append(bookie)
    return LackingReplicas(tuple(bad), tuple(silent))


def _probes(
    metadata: LedgerMetadata, fragment: Fragment, index: int, rng: random.Random, percent: float
) -> set[int]:
    first = next_stored(metadata, index, fragment.first)
    last = last_stored(metadata, index, fragment.last)
    if first > last:
        return set()
    probes = {first, last}
    if percent:
        count = min(int((last - first + 1) * percent / 100), SAMPLES_MAX)
        for entry in rng.sample(range(first, last + 1), count):
            if in_write_set(index, entry, metadata.ensemble_size, metadata.write_quorum):
                probes.add(entry)
    return probes


async def check_replicas(
    client: Client, ledger_id: int, registered: Collection[str]
) -> LackingReplicas:
    """Ask each registered member of each closed fragment for the list of entries that it has.

    The entries that a member should have, and does not list, are counted. A bookie that cannot list
    its entries, or does not answer, is in `uncompared`. The result is empty if the ledger was
    deleted. Raises MetadataError. Cancel-safe.
    """
    ledger = await _opened(client, ledger_id)
    if ledger is None:
        return LackingReplicas()
    lists: dict[str, Sequence[Range] | None] = {}
    missing: dict[str, int] = {}
    uncompared: set[str] = set()
    for fragment, index in _parts(ledger, registered):
        bookie = fragment.ensemble[index]
        if bookie not in lists:
            lists[bookie] = await _listed(client, bookie, ledger_id)
        found = lists[bookie]
        if found is None:
            uncompared.add(bookie)
            continue
        metadata, first, last = ledger.metadata, fragment.first, fragment.last
        gaps = unlisted(metadata, index, first, last, found)
        for number, (low, high) in enumerate(gaps, 1):
            missing[bookie] = missing.get(bookie, 0) + stored_count(metadata, index, low, high)
            if number % GAPS_AT_ONCE == 0:
                await asyncio.sleep(0)
    return LackingReplicas(
        tuple(missing), entries=sum(missing.values()), uncompared=tuple(sorted(uncompared))
    )


async def _listed(client: Client, bookie: str, ledger_id: int) -> Sequence[Range] | None:
    try:
        return await client.list_entries(bookie, ledger_id)
    except NoSuchEntryError:
        return []
    except QuireError:
        return None
