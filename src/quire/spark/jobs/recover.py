"""The job `recover`: the recovery of a lost bookie by Spark's tasks.

It uses the same locks and rules as autorecovery. Autorecovery's workers
(`quire.replication.repair.bookie_removal`) may do the same work meanwhile. A run after a complete
one finds nothing to do. A run after an interrupted one continues, because the metadata of each
ledger says what is left.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from quire._runtime.batches import batches
from quire._runtime.tasks import each
from quire.blocking.background import call
from quire.client import Client
from quire.errors import MetadataError, MetadataUnavailableError
from quire.replication import (
    Budget,
    LedgerMove,
    LedgerOutcome,
    LedgerResult,
    OpenLedgerState,
    move_of,
    take_out,
)
from quire.replication.autorecovery.settings import OPEN_GRACE_S
from quire.replication.moves.recover import (
    LEDGERS_PER_LOOK,
    LOCKED_ROUNDS,
    RecoverResult,
    RemainingLedger,
    added,
    check_bookie,
    not_tried,
    refuse_unknown,
    result_of,
)
from quire.spark.jobs.repair import task_locks
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RecoverResult", "RemainingLedger", "recover"]

PIECE_BYTES = 64 * 1024 * 1024
"""The approximate number of payload bytes that one task copies."""
PIECE_LEDGERS_MAX = 200
LEDGERS_AT_ONCE = 4
"""The largest number of ledgers that one task copies at the same time."""


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
    progress: ProgressCallback = silent,
    wait: Callable[[float], None] = time.sleep,
) -> RecoverResult:
    """Replace a bookie in every segment of every ledger that names it.

    The entries that the bookie should hold are copied from the other replicas. On return everything
    that the result counts as `fragments` is durable on the new bookies and named in the metadata.
    Repeating the call is safe, also beside autorecovery. If it is interrupted, the next run
    continues.

    A ledger may be open and have the bookie in its last segment. Its writer then gets
    `open_grace_s` seconds to replace the bookie. If nothing happens to the ledger in that time, its
    writer is assumed dead, and the ledger is fenced, closed and copied. A ledger that is written
    meanwhile is left, and named in the result.

    Args:
        spark: The session that runs the tasks.
        cluster: The cluster.
        bookie: The id of the bookie.
        dry_run: Whether to change nothing, and return what would be moved.
        even_if_alive: Whether to replace a bookie that is alive. Decommissioning it is the better
            way.
        open_grace_s: Seconds to wait for the writers of open ledgers, and for other jobs that have
            locked a ledger.
        fence_open: Whether to fence open ledgers after that time. Otherwise they are left.
        bytes_per_second: A limit on what each task writes, in bytes per second. The default is no
            limit.
        progress: A function that receives the progress.
        wait: The function that waits, for tests.

    Returns:
        What was replaced and what is left.

    Raises:
        UsageError: The cluster does not know the bookie, or it is running and `even_if_alive` is
            not set.
        MetadataUnavailableError: The metadata store does not answer the driver.
        Exception: An error of Spark, which contains the error of a task, for example because the
            metadata store does not answer the task.
    """
    with cluster.client() as client:
        call(check_bookie(client.aio, bookie, even_if_alive))
        ids = client.list_ledgers()
    moves, unread = _moves(spark, cluster, bookie, ids, progress)
    if not moves:
        with cluster.client() as client:
            call(refuse_unknown(client.aio, bookie, len(unread)))
    if dry_run:
        return RecoverResult(bookie, True, tuple(moves), failed=unread)
    work = {one.ledger: not_tried(one.ledger) for one in moves}
    rate = bytes_per_second

    def go(todo: Sequence[int], seen: Mapping[int, OpenLedgerState], what: str) -> None:
        sizes = {one.ledger: one.bytes for one in moves}
        work_pieces = _pieces(bookie, todo, sizes, seen, rate)
        for answer in _run(spark, cluster, work_pieces, _take_out, what, progress):
            for found in answer["ledgers"]:
                one = _work(found)
                work[one.ledger] = added(work[one.ledger], one)

    go(list(work), {}, "replicating")
    for _ in range(LOCKED_ROUNDS):
        opened = {one.ledger: one.seen for one in work.values() if one.work is LedgerOutcome.OPEN}
        if not fence_open:
            opened.clear()
        locked = [one.ledger for one in work.values() if one.work is LedgerOutcome.LOCKED]
        if not opened and not locked:
            break
        wait(open_grace_s)
        seen = {ledger: one for ledger, one in opened.items() if one is not None}
        go([*opened, *locked], seen, "replicating what was open")
    result = result_of(bookie, moves, list(work.values()))
    return replace(result, failed=(*result.failed, *unread))


def _moves(
    spark: SparkSession,
    cluster: ClusterOptions,
    bookie: str,
    ids: Sequence[int],
    progress: ProgressCallback,
) -> tuple[list[LedgerMove], tuple[RemainingLedger, ...]]:
    """Return the ledgers that name the bookie, and those that could not be read and may name it."""
    pieces: list[Piece] = [
        {"bookie": bookie, "ledgers": ids[at : at + LEDGERS_PER_LOOK]}
        for at in range(0, len(ids), LEDGERS_PER_LOOK)
    ]
    answers = _run(spark, cluster, pieces, _look, "looking at ledgers", progress)
    moves = [LedgerMove(**one) for answer in answers for one in answer["moves"]]
    return moves, tuple(RemainingLedger(*one) for answer in answers for one in answer["unreadable"])


def _run(
    spark: SparkSession,
    cluster: ClusterOptions,
    pieces: Sequence[Piece],
    do: Callable[[ClusterOptions, Piece], Piece],
    what: str,
    progress: ProgressCallback,
) -> list[Piece]:
    if not pieces:
        return []
    return run_pieces(spark, pieces, functools.partial(do, cluster), what=what, progress=progress)


def _pieces(
    bookie: str,
    todo: Sequence[int],
    sizes: Mapping[int, int],
    seen: Mapping[int, OpenLedgerState],
    rate: float | None,
) -> list[Piece]:
    known = {ledger: asdict(before) for ledger, before in seen.items()}
    return [
        {"bookie": bookie, "rate": rate, "ledgers": [[one, known.get(one)] for one in some]}
        for some in batches(todo, sizes.__getitem__, PIECE_BYTES, PIECE_LEDGERS_MAX)
    ]


# -- in tasks ---------------------------------------------------------------------------------


def _look(cluster: ClusterOptions, piece: Piece) -> Piece:
    """Return which ledgers of a piece name the bookie, and for how many entries.

    This runs in a task. Ledgers that cannot be read are returned as `unreadable`, each with the
    reason.
    """
    bookie, password = piece["bookie"], cluster.password
    unread: list[tuple[int, str]] = []
    with cluster.client() as client:
        aio = client.aio

        async def look(ledger: int) -> LedgerMove | None:
            try:
                return await move_of(aio, ledger, bookie, password=password)
            except MetadataUnavailableError:
                raise
            except MetadataError as error:
                unread.append((ledger, str(error)))
                return None

        found = call(each(piece["ledgers"], look))
    return {"moves": [asdict(one) for one in found if one is not None], "unreadable": unread}


def _take_out(cluster: ClusterOptions, piece: Piece) -> Piece:
    async def work(client: Client) -> list[LedgerResult]:
        locks, budget = task_locks(client), Budget(piece["rate"])
        some = asyncio.Semaphore(LEDGERS_AT_ONCE)

        async def one(todo: Sequence[Any]) -> LedgerResult:
            ledger_id, before = todo
            async with some:
                return await take_out(
                    client,
                    locks,
                    ledger_id,
                    (piece["bookie"],),
                    password=cluster.password,
                    before=None if before is None else OpenLedgerState(**before),
                    budget=budget,
                )

        return await each(piece["ledgers"], one)

    with cluster.client() as client:
        return {"ledgers": [asdict(one) for one in call(work(client.aio))]}


def _work(found: Mapping[str, Any]) -> LedgerResult:
    seen = found["seen"]
    return LedgerResult(
        **{
            **found,
            "work": LedgerOutcome(found["work"]),
            "seen": None if seen is None else OpenLedgerState(**seen),
        }
    )
