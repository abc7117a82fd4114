"""Moving replicas from the fullest bookies to the emptiest, for example after adding a bookie.

A move copies entries to the new member, waits until they are durable there, and then changes the
metadata by one compare-and-swap. So an entry never has fewer copies than before. The former
member's copy becomes garbage, which that bookie collects by itself
(`quire.bookie.background.over_replicated`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from quire._runtime.tasks import each, pages
from quire._runtime.units import are, counted
from quire.client import Client
from quire.core.fragments import Fragment
from quire.errors import JobRefusedError, NoSuchLedgerError, QuireError
from quire.metadata.interface import Bookies
from quire.metadata.ledgers.unreadable import Unread, read_or_skip
from quire.replication.autorecovery.settings import PARALLEL, TARGET_SPREAD_PERCENT
from quire.replication.budget import Budget
from quire.replication.marks.locks import LockHeldError, ReplicationLocks
from quire.replication.moves.preflight import no_space
from quire.replication.moves.rebalance_plan import (
    Allowed,
    Blocked,
    BookieContents,
    PlannedMove,
    RebalancePlan,
    make_plan,
)
from quire.replication.moves.recover import (
    LEDGERS_PER_LOOK,
    JobProgress,
    MeteredBudget,
    NoProgress,
    RemainingLedger,
)
from quire.replication.repair.bookie_removal import REASON_CHARS_MAX
from quire.replication.repair.fragment import CopyBatch, CopyResult
from quire.replication.repair.opened_ledger import open_for_repair

LOCATIONS_WAIT_S = 5.0
"""The longest time, in seconds, to wait until the locations of all bookies are known."""
BOOKIES_MIN = 2
"""The least number of writable bookies between which replicas can be moved."""
_BLOCKED = {
    Blocked.MEMBER: "the emptier bookies have replicas of the same segments already",
    Blocked.HOST: "the replicas of a segment would be on fewer hosts",
    Blocked.PLACEMENT: "the placement policy forbids it",
}
STALE = "the segment has changed since the plan was made"


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """The options of a rebalancing."""

    target_spread_percent: float = TARGET_SPREAD_PERCENT
    max_bytes: int | None = None
    """The largest number of bytes to copy, or None for no limit."""
    parallel: int = PARALLEL
    bytes_per_s: float | None = None
    """The rate at which the whole job writes, in bytes per second, or None for no limit."""
    password: bytes = b""
    """The password of ledgers whose metadata does not contain one."""
    check: bool = True
    """Whether to refuse the job if it cannot succeed, before anything is changed."""


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The result of a rebalancing."""

    dry_run: bool
    plan: RebalancePlan
    moved: int = 0
    """The number of replicas that were moved."""
    entries: int = 0
    bytes: int = 0
    """The bytes of payload that were copied."""
    left: tuple[RemainingLedger, ...] = ()
    """One item for each move of the plan that was not done, with the ledger and the reason. The
    next run makes a new plan."""
    unreadable: tuple[RemainingLedger, ...] = ()
    """Some of the ledgers whose metadata cannot be read. They are not moved."""
    unreadable_count: int = 0
    """The number of ledgers whose metadata cannot be read."""

    def as_json(self, limit: int | None = None) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "moves": [asdict(one) for one in self.plan.moves[:limit]],
            "to_move": {
                "replicas": len(self.plan.moves),
                "entries": sum(one.entries for one in self.plan.moves),
                "bytes": self.plan.size_bytes,
            },
            "bookies": {
                bookie: {"before_bytes": size, "after_bytes": self.plan.after[bookie]}
                for bookie, size in self.plan.before.items()
            },
            "spread_before_percent": round(self.plan.spread_before, 1),
            "spread_after_percent": round(self.plan.spread_after, 1),
            "moved": self.moved,
            "entries": self.entries,
            "bytes": self.bytes,
            "left": len(self.left),
            "complete": self.dry_run or not self.left,
            "failed": [asdict(one) for one in self.left[:limit]],
            "unreadable": self.unreadable_count,
            "skipped": [asdict(one) for one in self.unreadable[:limit]],
        }


async def rebalance(
    client: Client,
    locks: ReplicationLocks,
    rng: random.Random,
    *,
    dry_run: bool = False,
    allowed: Allowed | None = None,
    options: RebalanceOptions = RebalanceOptions(),
    progress: JobProgress | None = None,
) -> Rebalanced:
    """Move replicas from the fullest bookies to the emptiest: make a plan and carry it out.

    On return, the moves that the result counts are durable and named in the metadata. `allowed`
    decides on which bookies a ledger may be; if it is None, the client's placement policy decides.
    Only closed ledgers are moved, from and to writable bookies. With `dry_run`, the plan is made
    and not carried out. `rng` chooses among equal moves. `progress` receives the progress of the
    job, unless it is None. The job may be repeated, cancelled, and run together with other jobs.
    Errors of single moves are in the result.

    Raises MetadataError. With `options.check`, a job that cannot succeed raises JobRefusedError, as
    does its dry run. It cannot succeed if there are fewer than two writable bookies, if no replica
    can be moved although the bookies are not balanced, or if a bookie has too little space for the
    plan.
    """
    progress, unread = progress or NoProgress(), Unread()
    plan = await plan_for(client, rng, unread, allowed=allowed, options=options, progress=progress)
    if options.check:
        await _check(client, plan, options)
    if dry_run:
        done = Rebalanced(True, plan)
    else:
        done = await carry_out(client, locks, plan, options=options, progress=progress)
    named = tuple(RemainingLedger(ledger, why) for ledger, why in unread.named.items())
    return replace(done, unreadable=named, unreadable_count=len(unread))


async def plan_for(
    client: Client,
    rng: random.Random,
    unread: Unread,
    *,
    allowed: Allowed | None = None,
    options: RebalanceOptions = RebalanceOptions(),
    progress: JobProgress | None = None,
) -> RebalancePlan:
    """Make a plan from the metadata of all ledgers, and the bookies that are writable now.

    Ledgers whose metadata cannot be read are recorded in `unread`, and are not in the plan.
    `allowed` decides on which bookies a ledger may be. If it is None, the client's placement policy
    decides. `rng` chooses among equal moves. `progress` receives the progress, unless it is None.
    Raises MetadataError.
    """
    progress = progress or NoProgress()
    progress.begin("examining ledgers", 0, 0)
    stock = BookieContents()

    async def count(ledger_id: int) -> None:
        found = await read_or_skip(client.metadata, ledger_id, unread)
        if found is not None:
            stock.add(ledger_id, found.value)

    async for ids in pages(client.list_ledgers(), LEDGERS_PER_LOOK):
        await each(ids, count)
        progress.done(len(ids), 0)
    if allowed is None:
        loop = asyncio.get_running_loop()
        await client.placement.settle(loop.time() + LOCATIONS_WAIT_S)
        allowed = _as_placed(client)
    bookies = await client.bookies()
    return make_plan(
        stock,
        bookies.writable,
        rng,
        hosts=_hosts(bookies),
        allowed=allowed,
        target_spread_percent=options.target_spread_percent,
        max_bytes=options.max_bytes,
    )


async def _check(client: Client, plan: RebalancePlan, options: RebalanceOptions) -> None:
    """Raise JobRefusedError if the plan shows that the job cannot succeed.

    It cannot with fewer than `BOOKIES_MIN` writable bookies, if rules forbid every move, or without
    space for the moves on their new bookies.
    """
    if len(plan.before) < BOOKIES_MIN:
        raise JobRefusedError(
            f"the bookies cannot be rebalanced: {counted(len(plan.before), 'bookie')} "
            f"{are(len(plan.before))} writable, and a move needs two. Nothing was changed",
            remedy="Start another bookie, or make a read-only one writable",
        )
    if plan.blocked and not plan.moves:
        raise JobRefusedError(
            f"the bookies cannot be rebalanced: their spread is {plan.spread_before:.1f} %, more "
            f"than {options.target_spread_percent:g} %, but {what_blocks(plan)}. Nothing was "
            "changed",
            remedy="Add a bookie"
            if Blocked.PLACEMENT not in plan.blocked
            else "Add a bookie in another place, or change the placement (--placement)",
        )
    needed: Counter[str] = Counter()
    for move in plan.moves:
        needed[move.target] += move.size_bytes
    if why := await no_space(client, needed):
        raise JobRefusedError(
            f"the bookies cannot be rebalanced: {why}. Nothing was changed",
            remedy="Copy less with --max-bytes, or free space there first",
        )


def what_blocks(plan: RebalancePlan) -> str:
    """Return a clause that says why there are no further moves, or '' if nothing hinders them.

    The reason is the rules that forbid them, or the size of the replicas.
    """
    if plan.too_large:
        return "no further move would make the spread smaller, because the replicas are too large"
    why = [words for kind, words in _BLOCKED.items() if plan.blocked.get(kind)]
    return f"no further replica can be moved, because {' or '.join(why)}" if why else ""


def _as_placed(client: Client) -> Allowed:
    def allowed(ensemble: tuple[str, ...], write_quorum: int, ack_quorum: int) -> bool:
        return bool(client.placement.adherence(ensemble, write_quorum, ack_quorum))

    return allowed


def _hosts(bookies: Bookies) -> Mapping[str, str]:
    return {
        one.bookie_id: one.host for one in (*bookies.readonly.values(), *bookies.writable.values())
    }


async def carry_out(
    client: Client,
    locks: ReplicationLocks,
    plan: RebalancePlan,
    *,
    options: RebalanceOptions,
    progress: JobProgress,
) -> Rebalanced:
    """Carry out a plan: several ledgers at a time, and each of them in batches.

    A batch has at most one move of each segment, and one change of the metadata names its moves.
    The moves that the result counts are durable on return. `progress` receives the progress. A move
    that fails is in `left` of the result, and raises nothing. Raises MetadataError if the lock of a
    ledger cannot be taken because the metadata store fails.
    """
    by_ledger: dict[int, list[PlannedMove]] = {}
    for move in plan.moves:
        by_ledger.setdefault(move.ledger, []).append(move)
    progress.begin("moving replicas", len(plan.moves), plan.size_bytes)
    job = _Moving(client, locks, options, MeteredBudget(options.bytes_per_s, progress), progress)
    await each(by_ledger.items(), job.ledger, options.parallel)
    return Rebalanced(False, plan, job.moved, job.entries, job.size_bytes, tuple(job.left))


@dataclass(slots=True)
class _Moving:
    client: Client
    locks: ReplicationLocks
    options: RebalanceOptions
    budget: Budget
    progress: JobProgress
    moved: int = 0
    entries: int = 0
    size_bytes: int = 0
    left: list[RemainingLedger] = field(default_factory=list)

    async def ledger(self, planned: tuple[int, list[PlannedMove]]) -> None:
        ledger_id, moves = planned
        await self.progress.may_go_on()
        try:
            async with self.locks.hold(ledger_id):
                for some in _rounds(moves):
                    await self._round(ledger_id, some)
        except LockHeldError as error:
            self.left += [RemainingLedger(ledger_id, str(error.args[0])) for _ in moves]

    async def _round(self, ledger_id: int, moves: Mapping[int, PlannedMove]) -> None:
        """Carry out moves of one ledger, of which each segment has at most one.

        The keys of `moves` are the first entry ids of the segments. The metadata is changed batch
        by batch. A move that fails is added to `left` with the reason.
        """
        waiting = dict(moves)
        try:
            ledger = await open_for_repair(
                self.client, ledger_id, password=self.options.password, ask=False
            )
            fragments = {one.segment_first: one for one in ledger.fragments()}
            batch = CopyBatch(self.client, ledger, budget=self.budget, living=True)
            async with batch:
                begun: list[PlannedMove] = []
                for move in moves.values():
                    if why := await self._copy(batch, fragments, move):
                        self._leave(waiting.pop(move.segment_first), why)
                        continue
                    begun.append(move)
                    if batch.full:
                        self._named(await batch.name(), begun, waiting)
                        begun = []
                self._named(await batch.name(), begun, waiting)
        except NoSuchLedgerError:
            return  # the ledger was deleted
        except QuireError as error:
            for move in waiting.values():
                self._leave(move, str(error))

    async def _copy(
        self, batch: CopyBatch, fragments: Mapping[int, Fragment], move: PlannedMove
    ) -> str:
        """Copy one replica to its new bookie. Returns '', or the reason why it was not copied."""
        fragment = _fragment(fragments, move)
        if fragment is None:
            return STALE
        try:
            return "" if await batch.copy(fragment, {move.index: move.target}) else STALE
        except NoSuchLedgerError:
            raise
        except QuireError as error:
            return str(error)

    def _named(
        self, done: CopyResult, begun: Sequence[PlannedMove], waiting: dict[int, PlannedMove]
    ) -> None:
        """Count the moves in `begun` that a batch has completed, and add the others to `left`.

        All of them are removed from `waiting`.
        """
        self.entries += done.entries
        self.size_bytes += done.size_bytes
        for move in begun:
            del waiting[move.segment_first]
            if move.segment_first in done.named:
                self.moved += 1
                self.progress.done(1, 0)
            else:
                self._leave(move, str(done.broken.get(move.target, STALE)))

    def _leave(self, move: PlannedMove, why: str) -> None:
        self.left.append(RemainingLedger(move.ledger, why[:REASON_CHARS_MAX]))


def _rounds(moves: Sequence[PlannedMove]) -> list[dict[int, PlannedMove]]:
    """Split the moves of one ledger so that each part has at most one move of each segment."""
    rounds: list[dict[int, PlannedMove]] = []
    for move in moves:
        free = next((one for one in rounds if move.segment_first not in one), None)
        if free is None:
            free = {}
            rounds.append(free)
        free[move.segment_first] = move
    return rounds


def _fragment(fragments: Mapping[int, Fragment], move: PlannedMove) -> Fragment | None:
    """Return the present state of the segment to move, or None if it has changed since the plan."""
    fragment = fragments.get(move.segment_first)
    if fragment is None:
        return None
    fits = (
        fragment.closed
        and fragment.ensemble[move.index] == move.source
        and move.target not in fragment.ensemble
    )
    return fragment if fits else None
