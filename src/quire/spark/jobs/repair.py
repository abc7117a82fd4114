"""The repair of what an audit found, by Spark's tasks.

The rules are those of `quire.replication.repair.repair_findings`.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.blocking.background import call
from quire.client import Client
from quire.replication import Budget, Finding, Kind, Repaired, ReplicationLocks, repair_ledger
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FINDINGS_PER_PIECE = 1_000
"""The number of findings above which a piece gets no further ledger.

All findings of a ledger are in one piece.
"""
LEDGERS_PER_PIECE = 8


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of a repair."""

    ledgers: int
    """The number of ledgers with findings, whether or not all findings could be repaired."""
    written_back: int
    """The number of entries that were written again to the bookie that lacked them."""
    moved: int
    """The number of segments in which another bookie replaced one."""
    entries: int
    """The number of entries that were written in total."""
    bytes: int
    """The payload bytes of all entries that were written."""
    left: tuple[Finding, ...]
    """The findings that could not be repaired. Their `detail` is the reason."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return {**asdict(self), "left": [asdict(one) for one in self.left]}


def repair_findings(
    spark: SparkSession,
    cluster: ClusterOptions,
    found: Iterable[Finding],
    *,
    bytes_per_second: float | None = None,
    progress: ProgressCallback = silent,
) -> RepairResult:
    """Repair what `audit` found.

    A bookie that answers gets its entries again, from a replica whose digest is correct, and the
    entries are read back. If the bookie does not answer, another one replaces it in the segment.
    Each ledger is repaired under its lock in the under-replication tree. What was repaired is
    durable on return. Repeating the call is safe.

    Args:
        spark: The session that runs the tasks.
        cluster: The cluster.
        found: The findings.
        bytes_per_second: A limit on what each task writes, in bytes per second. The default is no
            limit.
        progress: A function that receives the progress.

    Returns:
        What was repaired and what is left. Findings that cannot be repaired are no error.

    Raises:
        Exception: An error of Spark, which contains the error of a task, for example because the
            metadata store does not answer.
    """
    by_ledger: dict[int, list[Finding]] = {}
    for one in found:
        by_ledger.setdefault(one.ledger, []).append(one)
    pieces: list[Piece] = []
    chosen: list[list[Finding]] = []
    for of_one in by_ledger.values():
        chosen.append(of_one)
        if len(chosen) == LEDGERS_PER_PIECE or sum(map(len, chosen)) > FINDINGS_PER_PIECE:
            pieces.append(_piece(chosen, bytes_per_second))
            chosen = []
    if chosen:
        pieces.append(_piece(chosen, bytes_per_second))
    work = functools.partial(_repair, cluster)
    done: list[Repaired] = []
    if pieces:
        for answer in run_pieces(spark, pieces, work, what="repairing", progress=progress):
            done += [_from_json(one) for one in answer["ledgers"]]
    return RepairResult(
        len(done),
        sum(one.written_back for one in done),
        sum(one.moved for one in done),
        sum(one.entries for one in done),
        sum(one.size_bytes for one in done),
        tuple(finding for one in done for finding in one.left),
    )


def _piece(ledgers: Sequence[Sequence[Finding]], rate: float | None) -> Piece:
    return {"rate": rate, "ledgers": [[asdict(one) for one in of_one] for of_one in ledgers]}


def _repair(cluster: ClusterOptions, piece: Piece) -> Piece:
    async def work(client: Client) -> list[Repaired]:
        locks = task_locks(client)
        budget = Budget(piece["rate"])
        return [
            await repair_ledger(
                client,
                locks,
                found[0]["ledger"],
                [_finding(one) for one in found],
                password=cluster.password,
                budget=budget,
            )
            for found in piece["ledgers"]
        ]

    with cluster.client() as client:
        return {"ledgers": [asdict(one) for one in call(work(client.aio))]}


def task_locks(client: Client) -> ReplicationLocks:
    """Return the under-replication locks for a task, with its host as the owner."""
    return ReplicationLocks(client.metadata, socket.gethostname(), client.clock)


def _finding(found: dict[str, Any]) -> Finding:
    return Finding(**{**found, "kind": Kind(found["kind"])})


def _from_json(found: dict[str, Any]) -> Repaired:
    return replace(Repaired(**found), left=[_finding(one) for one in found["left"]])
