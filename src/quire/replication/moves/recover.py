"""Recovery of a lost bookie: its entries are copied from the other replicas, ledger by ledger.

`quire bookie recover` and `quire bookie decommission` do this in one process, and Spark tasks
(`quire.spark.jobs.recover`) in many, with the same result. The metadata of each ledger records what
is done, so an interrupted job is continued by running it again. Two jobs share the work, because
each ledger is copied under its lock in the under-replication tree, as autorecovery does.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from quire._runtime.names.suggest import did_you_mean
from quire._runtime.tasks import each, pages
from quire._runtime.units import counted
from quire.client import Client
from quire.core.fragments import members
from quire.errors import NoSuchLedgerError, QuireError, UsageError
from quire.metadata.ledgers.unreadable import UNREADABLE, Unread
from quire.replication.autorecovery.settings import OPEN_GRACE_S, PARALLEL
from quire.replication.budget import Budget
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.moves.preflight import Shapes, check_removal
from quire.replication.repair.bookie_removal import (
    REASON_CHARS_MAX,
    LedgerMove,
    LedgerOutcome,
    LedgerResult,
    OpenLedgerState,
    fence_and_close,
    move_of,
    take_out,
)
from quire.replication.repair.opened_ledger import open_for_repair

LOCKED_ROUNDS = 3
"""The number of times that a job retries ledgers that are open or locked by other processes."""
LEDGERS_PER_LOOK = 2_000
"""The number of ledgers whose metadata is read at the same time."""
LOCKED_PAUSE_S = 5.0
"""Seconds before ledgers that other processes have locked are retried. If open ledgers are retried
too, the job waits for their writers instead."""


class OpenLedgers(enum.StrEnum):
    """The treatment of an open ledger whose last segment names the bookie to be replaced."""

    WAIT = "wait"
    """Its writer gets a grace period to replace the bookie. If the writer is inactive in that time,
    the ledger is fenced, closed and copied (rule 25)."""
    FENCE = "fence"
    """The ledger is fenced and closed at once, even if it is being written."""
    SKIP = "skip"
    """The ledger is left as it is."""


class JobProgress(Protocol):
    """The interface through which a job reports its progress, and is paused."""

    def begin(self, what: str, ledgers: int, size_bytes: int) -> None:
        """Begin a part of the job, which `what` names.

        `ledgers` and `size_bytes` are the numbers of ledgers and bytes in this part, or 0 if they
        are not known. A rebalancing counts moves instead of ledgers.
        """
        ...

    def done(self, ledgers: int, size_bytes: int) -> None:
        """Add to the numbers of completed ledgers (or moves) and bytes of the current part."""
        ...

    async def may_go_on(self) -> None:
        """Wait while the job is paused. This is awaited before each ledger, and raises nothing."""
        ...


class NoProgress:
    """A `JobProgress` that ignores everything."""

    def begin(self, what: str, ledgers: int, size_bytes: int) -> None:
        pass

    def done(self, ledgers: int, size_bytes: int) -> None:
        pass

    async def may_go_on(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """The options of a job that copies the ledgers of a bookie."""

    open_ledgers: OpenLedgers = OpenLedgers.WAIT
    """The treatment of open ledgers."""
    open_grace_s: float = OPEN_GRACE_S
    """Seconds that the writer of an open ledger has to replace the bookie, with `WAIT`."""
    parallel: int = PARALLEL
    """The number of ledgers that are copied at the same time."""
    bytes_per_s: float | None = None
    """The rate at which the whole job writes, in bytes per second, or None for no limit."""
    password: bytes = b""
    """The password of ledgers whose metadata does not contain one."""
    check: bool = True
    """Whether to refuse the job if it cannot succeed, before anything is changed."""


DEFAULT_OPTIONS = MoveOptions()


class MeteredBudget(Budget):
    """A budget that reports the bytes taken from it as progress."""

    def __init__(self, bytes_per_s: float | None, progress: JobProgress) -> None:
        super().__init__(bytes_per_s)
        self._progress = progress

    async def take(self, size_bytes: int) -> None:
        await super().take(size_bytes)
        self._progress.done(0, size_bytes)


@dataclass(frozen=True, slots=True)
class RemainingLedger:
    """A ledger that a job did not handle, and the reason."""

    ledger: int
    """The id of the ledger."""
    why: str
    """The reason, as text."""


@dataclass(frozen=True, slots=True)
class RecoverResult:
    """The result of a job that copies the ledgers of a bookie."""

    bookie: str
    """The id of the bookie whose ledgers were to be copied."""
    dry_run: bool
    """Whether nothing was to be changed."""
    moves: tuple[LedgerMove, ...]
    """The part of each ledger that the bookie should have, according to the metadata when the job
    began."""
    ledgers: int = 0
    """The number of ledgers in `moves` that no longer name the bookie, or were deleted."""
    fragments: int = 0
    """The number of segments in which this run replaced the bookie."""
    entries: int = 0
    """The number of entries that were copied."""
    bytes: int = 0
    """The bytes of payload that were copied."""
    recovered: tuple[int, ...] = ()
    """The ledgers that were fenced and closed after the grace period, because their writers were
    gone."""
    open: tuple[int, ...] = ()
    """The ledgers that are still open and name the bookie in their last segment. They are being
    written, or `MoveOptions.open_ledgers` is SKIP. Run the job again later."""
    locked: tuple[int, ...] = ()
    """The ledgers that another process is repairing."""
    failed: tuple[RemainingLedger, ...] = ()
    """The ledgers that could not be copied, with the reasons."""
    unreadable: tuple[RemainingLedger, ...] = ()
    """Some of the ledgers whose metadata cannot be read. They may name the bookie."""
    unreadable_count: int = 0
    """The number of ledgers whose metadata cannot be read."""
    fenced: tuple[int, ...] = ()
    """The ledgers that were fenced and closed without a grace period, as `OpenLedgers.FENCE`
    demands. Their writers may have been active."""

    @property
    def complete(self) -> bool:
        """Whether it is certain that no ledger names the bookie any more."""
        return not (self.open or self.locked or self.failed or self.unreadable_count) and (
            not self.dry_run or not self.moves
        )

    def as_json(self, limit: int | None = None) -> dict[str, Any]:
        """Return the result as JSON, with at most `limit` ledgers in each list (None: all).

        `to_move` and `left` count all ledgers, also those that the lists leave out.
        """
        described = asdict(self)
        for name in ("moves", "recovered", "fenced", "open", "locked", "failed", "unreadable"):
            described[name] = described[name][:limit]
        unreadable = described.pop("unreadable_count")
        return {
            **described,
            "to_move": {
                "ledgers": len(self.moves),
                "entries": sum(one.entries for one in self.moves),
                "bytes": sum(one.bytes for one in self.moves),
            },
            "left": {
                "open": len(self.open),
                "locked": len(self.locked),
                "failed": len(self.failed),
                "unreadable": unreadable,
            },
            "complete": self.complete,
        }


async def check_bookie(client: Client, bookie: str, even_if_alive: bool) -> None:
    """Raise UsageError if the bookie is running, unless `even_if_alive`."""
    if not even_if_alive and (await client.bookies()).find(bookie) is not None:
        raise UsageError(
            f"bookie {bookie} is running, so its data is not lost and was not copied",
            remedy=f"To take the bookie away, run `quire bookie decommission {bookie}` while the "
            "bookie is running. To recover it as a lost bookie, stop it first",
        )


async def check_known(client: Client, bookie: str) -> None:
    """Raise UsageError if the cluster does not know the bookie id, but knows a similar one."""
    known = await _known(client)
    if bookie not in known and (hint := did_you_mean(bookie, known)):
        raise UsageError(
            f"the cluster knows no bookie {bookie}: it is not registered and has no cookie",
            remedy=hint,
        )


async def refuse_gone(client: Client, bookie: str) -> None:
    """Raise UsageError if a bookie is not registered and has no cookie.

    Such a bookie was decommissioned completely, or never existed. Raises MetadataError.
    """
    known = await _known(client)
    if bookie not in known:
        raise UsageError(
            f"the cluster knows no bookie {bookie}: it is not registered and has no cookie. If it "
            "was decommissioned, that cannot be cancelled any more",
            remedy=did_you_mean(bookie, known, "Start a new bookie on an empty directory"),
        )


async def _known(client: Client) -> list[str]:
    """Return the ids of the bookies that are registered or have a cookie, sorted."""
    bookies = await client.bookies()
    return sorted({*await client.metadata.list_cookies(), *bookies.writable, *bookies.readonly})


async def refuse_unknown(
    client: Client, bookie: str, unread: int, ledger_id: int | None = None
) -> None:
    """Raise UsageError if the cluster does not know a bookie that no examined ledger names.

    The cluster knows a bookie that is registered or has a cookie. The message names `unread`, the
    number of ledgers whose metadata cannot be read. If `ledger_id` is given, the message says that
    only this ledger was examined. Raises MetadataError.
    """
    known = await _known(client)
    if bookie in known:
        return
    but = f" (the metadata of {counted(unread, 'ledger')} cannot be read)" if unread else ""
    unnamed = "no ledger names it" if ledger_id is None else f"ledger {ledger_id} does not name it"
    raise UsageError(
        f"the cluster knows no bookie {bookie}: {unnamed}{but}, and it has no cookie",
        remedy=did_you_mean(bookie, known, "`quire cluster bookies` lists the registered bookies"),
    )


def not_tried(ledger_id: int) -> LedgerResult:
    return LedgerResult(ledger_id, LedgerOutcome.FAILED, reason="not tried")


def added(before: LedgerResult, now: LedgerResult) -> LedgerResult:
    """Return the result `now`, with the counts of an earlier attempt added."""
    return replace(
        now,
        fragments=before.fragments + now.fragments,
        entries=before.entries + now.entries,
        size_bytes=before.size_bytes + now.size_bytes,
        recovered=before.recovered or now.recovered,
    )


def with_unread(result: RecoverResult, unread: Unread) -> RecoverResult:
    """Return the result with `unread`, the ledgers whose metadata the search could not read."""
    named = tuple(RemainingLedger(ledger, why) for ledger, why in unread.named.items())
    return replace(result, unreadable=named, unreadable_count=len(unread))


def result_of(
    bookie: str, moves: Iterable[LedgerMove], work: Sequence[LedgerResult]
) -> RecoverResult:
    def which(*kinds: LedgerOutcome) -> tuple[int, ...]:
        return tuple(one.ledger for one in work if one.work in kinds)

    return RecoverResult(
        bookie,
        False,
        tuple(moves),
        ledgers=len(which(LedgerOutcome.DONE, LedgerOutcome.GONE)),
        fragments=sum(one.fragments for one in work),
        entries=sum(one.entries for one in work),
        bytes=sum(one.size_bytes for one in work),
        recovered=tuple(one.ledger for one in work if one.recovered),
        open=which(LedgerOutcome.OPEN),
        locked=which(LedgerOutcome.LOCKED),
        failed=tuple(
            RemainingLedger(one.ledger, one.reason)
            for one in work
            if one.work is LedgerOutcome.FAILED
        ),
    )


async def moves_of(
    client: Client,
    bookie: str,
    unread: Unread,
    *,
    password: bytes = b"",
    progress: JobProgress | None = None,
    shapes: Shapes | None = None,
) -> list[LedgerMove]:
    """Return the parts of all ledgers that the bookie should have according to the metadata.

    Ledgers whose metadata cannot be read are recorded in `unread`, because any of them may name the
    bookie. The different ensembles that include the bookie are added to `shapes`. `password` is
    used for ledgers whose metadata does not contain one. `progress` receives the progress. Both
    `shapes` and `progress` may be None. Raises MetadataError if the store does not answer.
    """
    progress = progress or NoProgress()
    progress.begin("examining ledgers", 0, 0)
    found: list[LedgerMove] = []

    async def look(ledger_id: int) -> LedgerMove | None:
        try:
            saw = None if shapes is None else shapes.add
            return await move_of(client, ledger_id, bookie, password=password, saw=saw)
        except UNREADABLE as error:
            unread.add(ledger_id, error)
            return None

    async for ids in pages(client.list_ledgers(), LEDGERS_PER_LOOK):
        moves = await each(ids, look)
        found += [one for one in moves if one is not None]
        progress.done(len(ids), 0)
    return found


async def recover_bookie(
    client: Client,
    locks: ReplicationLocks,
    bookie: str,
    *,
    dry_run: bool = False,
    options: MoveOptions = DEFAULT_OPTIONS,
    progress: JobProgress | None = None,
) -> RecoverResult:
    """Re-replicate the entries of a lost bookie to other bookies.

    On return, the fragments that `fragments` counts are durable on the new bookies and named in the
    metadata. The result also has the remaining ledgers with the reasons, and the ledgers whose
    metadata cannot be read, because they may name the bookie. `dry_run` changes nothing. `progress`
    receives the progress of the job, unless it is None.

    The job may be repeated, cancelled, and run several times at once. Raises UsageError if the
    bookie is running or not known, and MetadataError. With `options.check`, also of a dry run,
    raises JobRefusedError if none of its ledgers can be moved now, or if the other bookies have too
    little space.
    """
    await check_bookie(client, bookie, even_if_alive=False)
    unread, shapes = Unread(), Shapes(bookie)
    moves = await moves_of(
        client, bookie, unread, password=options.password, progress=progress, shapes=shapes
    )
    if not moves:
        await refuse_unknown(client, bookie, len(unread))
    if moves and options.check:
        what = f"bookie {bookie} cannot be recovered"
        size = sum(one.bytes for one in moves)
        await check_removal(client, shapes, size, len(moves), partly=True, what=what)
    if dry_run:
        return with_unread(RecoverResult(bookie, True, tuple(moves)), unread)
    done = await take_out_of(client, locks, bookie, moves, options=options, progress=progress)
    return with_unread(done, unread)


async def take_out_of(
    client: Client,
    locks: ReplicationLocks,
    bookie: str,
    moves: Sequence[LedgerMove],
    *,
    options: MoveOptions,
    progress: JobProgress | None = None,
) -> RecoverResult:
    """Replace the bookie in these ledgers, as `recover_bookie` does. The bookie may be running.

    `progress` receives the progress, unless it is None. Raises MetadataError. Other errors are in
    the result.
    """
    progress = progress or NoProgress()
    budget = MeteredBudget(options.bytes_per_s, progress)
    job = _Job(client, locks, bookie, options, progress, budget)
    await job.run(moves)
    return replace(result_of(bookie, moves, list(job.work.values())), fenced=tuple(job.fenced))


@dataclass(slots=True)
class _Job:
    client: Client
    locks: ReplicationLocks
    bookie: str
    options: MoveOptions
    progress: JobProgress
    budget: MeteredBudget
    work: dict[int, LedgerResult] = field(default_factory=dict)
    not_closed: dict[int, str] = field(default_factory=dict)
    """The reasons why open ledgers could not be fenced and closed, by ledger id."""
    fenced: list[int] = field(default_factory=list)
    """The open ledgers that were fenced and closed without a grace period."""

    async def run(self, moves: Sequence[LedgerMove]) -> None:
        self.work = {one.ledger: not_tried(one.ledger) for one in moves}
        self.progress.begin("replicating", len(moves), sum(one.bytes for one in moves))
        await self._rounds()
        for ledger_id in self._which(LedgerOutcome.OPEN):
            if why := self.not_closed.get(ledger_id):
                left = self.work[ledger_id]
                self.work[ledger_id] = replace(left, work=LedgerOutcome.FAILED, reason=why)

    async def _rounds(self) -> None:
        await self._turn(list(self.work), {})
        for _ in range(LOCKED_ROUNDS):
            opened = self._which(LedgerOutcome.OPEN)
            locked = self._which(LedgerOutcome.LOCKED)
            mode = self.options.open_ledgers
            if mode is OpenLedgers.SKIP:
                opened = []
            if not opened and not locked:
                return
            seen = {}
            if mode is OpenLedgers.FENCE and opened:
                await each(opened, self._fence, self.options.parallel)
            elif opened:
                await asyncio.sleep(self.options.open_grace_s)
                seen = {one: at for one in opened if (at := self.work[one].seen) is not None}
            else:
                await asyncio.sleep(LOCKED_PAUSE_S)
            await self._turn([*opened, *locked], seen)

    def _which(self, kind: LedgerOutcome) -> list[int]:
        return [one.ledger for one in self.work.values() if one.work is kind]

    async def _turn(self, ledgers: Sequence[int], seen: Mapping[int, OpenLedgerState]) -> None:
        async def one(ledger_id: int) -> None:
            await self.progress.may_go_on()
            found = await take_out(
                self.client,
                self.locks,
                ledger_id,
                (self.bookie,),
                password=self.options.password,
                before=seen.get(ledger_id),
                budget=self.budget,
            )
            self.work[ledger_id] = added(self.work[ledger_id], found)
            self.progress.done(found.work in (LedgerOutcome.DONE, LedgerOutcome.GONE), 0)

        await each(ledgers, one, self.options.parallel)

    async def _fence(self, ledger_id: int) -> None:
        """Fence and close a ledger, if its last segment still names the bookie.

        The earlier attempt may have been hours ago. If the writer has replaced the bookie since, or
        another ledger has the id, nothing is fenced. An error is recorded in `not_closed`, and is
        reported if the ledger stays open.
        """
        await self.progress.may_go_on()
        self.not_closed.pop(ledger_id, None)
        try:
            ledger = await open_for_repair(
                self.client, ledger_id, password=self.options.password, ask=False
            )
            newest = ledger.fragments()[-1]
            if newest.closed or not members(newest, (self.bookie,)):
                return  # its writer has closed it meanwhile, or does not use the bookie any more
            await fence_and_close(self.client, ledger)
            self.fenced.append(ledger_id)
        except NoSuchLedgerError:
            return  # the next attempt finds that it was deleted
        except QuireError as error:
            why = f"the ledger could not be fenced and closed: {error}"
            self.not_closed[ledger_id] = why[:REASON_CHARS_MAX]
