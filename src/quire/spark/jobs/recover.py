"""What a lost bookie held, replicated again by Spark's tasks: under the same locks and rules as
autorecovery's workers (`quire.replication.ledger`), who may be at it at the same time.

Done twice it does nothing the second time; interrupted it goes on where it was, for the metadata of
each ledger says what is left.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.client import Client
from quire.client.blocking import call
from quire.errors import UsageError
from quire.replication import Budget, LedgerWork, Move, Seen, Work, move_of, take_out
from quire.spark.jobs.repair import task_locks
from quire.spark.jobs.tasks import ClusterOptions, Piece, Progress, run_pieces, silent
from quire.tasks import each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPEN_GRACE_S = 30.0
"""As Java's workers: so long a writer has to replace the bookie by itself."""
LOCKED_ROUNDS = 3
"""How often ledgers that others work on are looked at again."""
LEDGERS_PER_LOOK = 2_000
"""Whose metadata one task reads."""
PIECE_BYTES = 64 * 1024 * 1024
"""Payload that one task copies, about."""
PIECE_LEDGERS_MAX = 200
LEDGERS_AT_ONCE = 4
"""Of one task."""


@dataclass(frozen=True, slots=True)
class Left:
    ledger: int
    why: str


@dataclass(frozen=True, slots=True)
class RecoverResult:
    bookie: str
    dry_run: bool
    moves: tuple[Move, ...]
    """What there was to do when the job began."""
    ledgers: int = 0
    """That do not name the bookie any more (or are gone)."""
    fragments: int = 0
    """Segments in which it was replaced by this run."""
    entries: int = 0
    bytes: int = 0
    """Payload that was copied."""
    recovered: tuple[int, ...] = ()
    """Ledgers whose writers were gone: they were fenced and closed."""
    open: tuple[int, ...] = ()
    """Ledgers that are still written, with the bookie in their last segment. Run it again later."""
    locked: tuple[int, ...] = ()
    """Ledgers that somebody else replicates."""
    failed: tuple[Left, ...] = ()

    @property
    def complete(self) -> bool:
        """No ledger names the bookie any more."""
        return not (self.open or self.locked or self.failed) and (
            not self.dry_run or not self.moves
        )

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "to_move": {
                "ledgers": len(self.moves),
                "entries": sum(one.entries for one in self.moves),
                "bytes": sum(one.bytes for one in self.moves),
            },
            "complete": self.complete,
        }


def recover(
    spark: SparkSession,
    cluster: ClusterOptions,
    bookie: str,
    *,
    dry_run: bool = False,
    even_if_alive: bool = False,
    open_grace_s: float = OPEN_GRACE_S,
    fence_open: bool = True,
    bytes_per_second: float | None = None,
    progress: Progress = silent,
    wait: Callable[[float], None] = time.sleep,
) -> RecoverResult:
    """Replace a bookie in every segment of every ledger that names it, copying what its place
    should hold from the other replicas. On return what `fragments` counts is durable on the new
    bookies and named in the metadata.

    A ledger that is open with the bookie in its last segment is given `open_grace_s` for its writer
    to replace the bookie; if nothing happens to it in that time its writer is taken for dead, and
    the ledger is fenced, closed and copied (not with `fence_open` false: then it is left). One
    that is written meanwhile is left, and named in the result.

    `dry_run` changes nothing and says what would move. `bytes_per_second` bounds the writes of each
    task. Safe to repeat, and to run beside autorecovery. Raises UsageError for a bookie that is not
    known, or that is alive (its data is better copied by decommissioning it; `even_if_alive` does
    it nevertheless), JobError, MetadataUnavailableError.
    """
    with cluster.client() as client:
        call(_check_bookie(client.aio, bookie, even_if_alive))
        ids = client.list_ledgers()
    moves = _moves(spark, cluster, bookie, ids, progress)
    if dry_run:
        return RecoverResult(bookie, True, tuple(moves))
    work = {one.ledger: _todo(one.ledger) for one in moves}
    rate = bytes_per_second

    def go(todo: Sequence[int], seen: Mapping[int, Seen], what: str) -> None:
        sizes = {one.ledger: one.bytes for one in moves}
        work_pieces = _pieces(bookie, todo, sizes, seen, rate)
        for answer in _run(spark, cluster, work_pieces, _take_out, what, progress):
            for found in answer["ledgers"]:
                one = _work(found)
                work[one.ledger] = _added(work[one.ledger], one)

    go(list(work), {}, "replicating")
    for _ in range(LOCKED_ROUNDS):
        opened = {one.ledger: one.seen for one in work.values() if one.work is Work.OPEN}
        if not fence_open:
            opened.clear()
        locked = [one.ledger for one in work.values() if one.work is Work.LOCKED]
        if not opened and not locked:
            break
        wait(open_grace_s)
        seen = {ledger: one for ledger, one in opened.items() if one is not None}
        go([*opened, *locked], seen, "replicating what was open")
    return _result(bookie, moves, list(work.values()))


def _moves(
    spark: SparkSession,
    cluster: ClusterOptions,
    bookie: str,
    ids: Sequence[int],
    progress: Progress,
) -> list[Move]:
    pieces: list[Piece] = [
        {"bookie": bookie, "ledgers": ids[at : at + LEDGERS_PER_LOOK]}
        for at in range(0, len(ids), LEDGERS_PER_LOOK)
    ]
    return [
        Move(**one)
        for answer in _run(spark, cluster, pieces, _look, "looking at ledgers", progress)
        for one in answer["moves"]
    ]


async def _check_bookie(client: Client, bookie: str, even_if_alive: bool) -> None:
    bookies = await client.bookies()
    if bookies.find(bookie) is not None:
        if not even_if_alive:
            raise UsageError(
                f"bookie {bookie} is alive: nothing of it is lost",
                remedy="Stop it first, if it is not to come back",
            )
        return
    cookies = await client.metadata.list_cookies()
    known = sorted({*cookies, *bookies.writable, *bookies.readonly})
    if bookie not in known and (near := difflib.get_close_matches(bookie, known, 1)):
        raise UsageError(f"no bookie {bookie} is known", remedy=f"Did you mean {near[0]}?")


def _run(
    spark: SparkSession,
    cluster: ClusterOptions,
    pieces: Sequence[Piece],
    do: Callable[[ClusterOptions, Piece], Piece],
    what: str,
    progress: Progress,
) -> list[Piece]:
    if not pieces:
        return []
    return run_pieces(spark, pieces, functools.partial(do, cluster), what=what, progress=progress)


def _pieces(
    bookie: str,
    todo: Sequence[int],
    sizes: Mapping[int, int],
    seen: Mapping[int, Seen],
    rate: float | None,
) -> list[Piece]:
    pieces: list[Piece] = []
    chosen: list[list[Any]] = []
    size = 0
    for ledger in todo:
        if chosen and (size + sizes[ledger] > PIECE_BYTES or len(chosen) == PIECE_LEDGERS_MAX):
            pieces.append({"bookie": bookie, "rate": rate, "ledgers": chosen})
            chosen, size = [], 0
        before = seen.get(ledger)
        chosen.append([ledger, None if before is None else asdict(before)])
        size += sizes[ledger]
    if chosen:
        pieces.append({"bookie": bookie, "rate": rate, "ledgers": chosen})
    return pieces


# -- in tasks ---------------------------------------------------------------------------------


def _look(cluster: ClusterOptions, piece: Piece) -> Piece:
    """Which of these ledgers name the bookie, and for how much."""
    bookie, password = piece["bookie"], cluster.password
    with cluster.client() as client:
        aio = client.aio
        found = call(
            each(piece["ledgers"], lambda ledger: move_of(aio, ledger, bookie, password=password))
        )
    return {"moves": [asdict(one) for one in found if one is not None]}


def _take_out(cluster: ClusterOptions, piece: Piece) -> Piece:
    async def work(client: Client) -> list[LedgerWork]:
        locks, budget = task_locks(client), Budget(piece["rate"])
        some = asyncio.Semaphore(LEDGERS_AT_ONCE)

        async def one(todo: Sequence[Any]) -> LedgerWork:
            ledger_id, before = todo
            async with some:
                return await take_out(
                    client,
                    locks,
                    ledger_id,
                    (piece["bookie"],),
                    password=cluster.password,
                    before=None if before is None else Seen(**before),
                    budget=budget,
                )

        return await each(piece["ledgers"], one)

    with cluster.client() as client:
        return {"ledgers": [asdict(one) for one in call(work(client.aio))]}


# -- the result -------------------------------------------------------------------------------


def _todo(ledger_id: int) -> LedgerWork:
    return LedgerWork(ledger_id, Work.FAILED, reason="not tried")


def _work(found: Mapping[str, Any]) -> LedgerWork:
    seen = found["seen"]
    return LedgerWork(
        **{
            **found,
            "work": Work(found["work"]),
            "seen": None if seen is None else Seen(**seen),
        }
    )


def _added(before: LedgerWork, now: LedgerWork) -> LedgerWork:
    """`now`, with what was done before."""
    return replace(
        now,
        fragments=before.fragments + now.fragments,
        entries=before.entries + now.entries,
        size_bytes=before.size_bytes + now.size_bytes,
        recovered=before.recovered or now.recovered,
    )


def _result(bookie: str, moves: Sequence[Move], work: Sequence[LedgerWork]) -> RecoverResult:
    def which(*kinds: Work) -> tuple[int, ...]:
        return tuple(one.ledger for one in work if one.work in kinds)

    return RecoverResult(
        bookie,
        False,
        tuple(moves),
        ledgers=len(which(Work.DONE, Work.GONE)),
        fragments=sum(one.fragments for one in work),
        entries=sum(one.entries for one in work),
        bytes=sum(one.size_bytes for one in work),
        recovered=tuple(one.ledger for one in work if one.recovered),
        open=which(Work.OPEN),
        locked=which(Work.LOCKED),
        failed=tuple(Left(one.ledger, one.reason) for one in work if one.work is Work.FAILED),
    )
