"""The measurement of `quire bench rereplicate`.

One bookie is replaced in ledgers, as jobs and workers do it, without a limit of the rate.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import replace

from quire._runtime.tasks import TaskGroup
from quire.cli.bench.core import Load, Progress, RoundResult, Shape, add_many, ledgers
from quire.client import Client, LedgerWriter
from quire.errors import ReadError
from quire.replication import LedgerOutcome, ReplicationLocks, take_out

LEDGERS_AT_ONCE = 4
OWNER = "quire bench"


async def rereplicate(
    client: Client, other: Client, shape: Shape, load: Load, count: int, *, keep: bool = False
) -> RoundResult:
    """Measure the replacement of a bookie in `count` closed ledgers of `load.entries` entries each.

    Another client replaces the bookie that is in most of the ledgers. Only that is measured: the
    copied entries and the time. The bookie keeps running, and may be read from. Raises ReadError if
    a ledger cannot be re-replicated, and the errors of writing ledgers.
    """
    async with ledgers(client, shape, count, keep=keep) as writers:
        written = 0
        load.progress.begin("writing ledgers", count, lambda: written)
        each = replace(load, progress=Progress())
        for writer in writers:
            await add_many(writer, each)
            await writer.close()
            written += 1
        lost, held = _in_most(writers)
        locks = ReplicationLocks(other.metadata, OWNER, other.clock)
        result = RoundResult()
        waiting = deque(held)

        async def worker() -> None:
            while waiting:
                ledger_id = waiting.popleft()
                done = await take_out(other, locks, ledger_id, [lost])
                if done.work is LedgerOutcome.GONE:
                    raise ReadError(
                        f"the benchmark could not re-replicate ledger {ledger_id}, because another "
                        "client deleted it",
                        ledger_id=ledger_id,
                        remedy="Run the benchmark again",
                    )
                if done.work is not LedgerOutcome.DONE:
                    raise ReadError(
                        f"the benchmark could not re-replicate ledger {ledger_id}, which still "
                        f"names bookie {lost}: {done.reason}",
                        ledger_id=ledger_id,
                        remedy="Check that enough bookies are writable, and run the benchmark "
                        "again",
                    )
                result.operations += done.entries
                result.payload_bytes += done.entries * load.size_bytes

        load.progress.begin("copying", load.entries * len(held), lambda: result.operations)
        cpu, began = time.process_time(), time.perf_counter()
        async with TaskGroup() as group:
            for _ in range(LEDGERS_AT_ONCE):
                group.create_task(worker())
        result.seconds = time.perf_counter() - began
        result.cpu_seconds = time.process_time() - cpu
        return result


def _in_most(writers: list[LedgerWriter]) -> tuple[str, list[int]]:
    """Return the bookie that stores the most ledgers, and the ids of these ledgers."""
    ensembles = {w.ledger_id: w.metadata.last_segment.ensemble for w in writers}
    counted = Counter(bookie for ensemble in ensembles.values() for bookie in ensemble)
    (bookie, _), *_ = counted.most_common(1)
    return bookie, [ledger for ledger, ensemble in ensembles.items() if bookie in ensemble]
