"""What an audit found, written back by Spark's tasks. The rules are those of
`quire.replication.repair.repair_findings`."""

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
"""Of small ledgers; all of one ledger are in one piece."""
LEDGERS_PER_PIECE = 8


@dataclass(frozen=True, slots=True)
class RepairResult:
    ledgers: int
    written_back: int
    """Entries written again to the bookie that lacked them."""
    moved: int
    """Segments in which another bookie took the place of one."""
    entries: int
    bytes: int
    """Payload written, both ways together."""
    left: tuple[Finding, ...]
    """What could not be repaired; the detail says why."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "left": [asdict(one) for one in self.left]}


def repair_findings(
    spark: SparkSession,
    cluster: ClusterOptions,
    found: Iterable[Finding],
    *,
    bytes_per_second: float | None = None,
    progress: ProgressCallback = silent,
) -> RepairResult:
    """Write back what `audit` found: to the bookie itself where it answers, from a replica whose
    digest is right, and read again; else to another bookie that takes its place in the segment.
    Each ledger is repaired under its lock of the under-replication tree.

    `bytes_per_second` bounds each task. Safe to repeat; what was repaired is durable. Raises
    JobError, MetadataUnavailableError.
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
    """The locks of a task; others see the host that runs it."""
    return ReplicationLocks(client.metadata, socket.gethostname(), client.clock)


def _finding(found: dict[str, Any]) -> Finding:
    return Finding(**{**found, "kind": Kind(found["kind"])})


def _from_json(found: dict[str, Any]) -> Repaired:
    return replace(Repaired(**found), left=[_finding(one) for one in found["left"]])
