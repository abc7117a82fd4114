"""What `quire bench tail` measures: one writer at a given rate, and readers that follow it.

The time of an entry is that from just before it is appended until a reader has it, digest verified.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from quire.admin.bench_core import PACE_S, Load, Result
from quire.client import Client, LedgerReader, LedgerWriter
from quire.errors import ReadError

LAG_LIMIT_S = 60.0
"""Behind the last append; a reader that has not seen everything by then has failed."""


async def tail_paced(
    writer: LedgerWriter, readers: list[LedgerReader], load: Load, rate_per_s: float
) -> Result:
    """`load.entries` appends at the given rate, seen by every reader. The ledger is closed."""
    sent: list[float] = []
    latencies: list[tuple[float, int]] = []

    async def follow(reader: LedgerReader) -> None:
        note, now = latencies.append, time.perf_counter
        async with aclosing(reader.tail_runs(1)) as runs:
            async for run in runs:
                seen = now()
                for began in sent[run.first - 1 : run.last]:
                    note((seen - began, 1))

    # Known to every bookie before the clock runs: else a reader cannot wait for the first entry.
    await writer.append(load.payload())
    cpu, start = time.process_time(), time.perf_counter()
    async with (
        asyncio.timeout(load.entries / rate_per_s + LAG_LIMIT_S),
        asyncio.TaskGroup() as group,
    ):
        for reader in readers:
            group.create_task(follow(reader))
        await _append_paced(writer, load, rate_per_s, sent)
        await writer.close()
    if len(latencies) != load.entries * len(readers):
        raise ReadError(
            f"ledger {writer.ledger_id}: the readers saw {len(latencies)} entries instead of "
            f"{load.entries * len(readers)}",
            ledger_id=writer.ledger_id,
        )
    seconds = time.perf_counter() - start
    used = time.process_time() - cpu
    return Result(load.entries, load.entries * load.size_bytes, seconds, used, latencies)


async def _append_paced(
    writer: LedgerWriter, load: Load, rate_per_s: float, sent: list[float]
) -> None:
    payload, entries = load.payload(), load.entries
    now = time.perf_counter
    start = now()
    while len(sent) < entries:
        due = min(int((now() - start) * rate_per_s) + 1, entries) - len(sent)
        for _ in range(due):
            sent.append(now())
            writer.submit(payload)
        await writer.room()
        await asyncio.sleep(PACE_S)


async def open_all(clients: list[Client], ledger_id: int) -> list[LedgerReader]:
    return [await client.open_ledger(ledger_id) for client in clients]
