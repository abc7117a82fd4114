"""The measurement of `quire bench tail`: one writer at a given rate, and readers that follow it.

Each measured time ends when a reader has the entry with its digest verified. The first time begins
just before the append. The second one begins when the writer receives the acknowledgement, because
no reader may see the entry earlier.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from contextlib import aclosing

from quire._runtime.tasks import TaskGroup
from quire.cli.bench.core import PACE_S, Load, RoundResult
from quire.client import Client, LedgerReader, LedgerWriter
from quire.errors import ReadError

LAG_LIMIT_S = 60.0
"""Seconds within which each reader must have seen every entry, from the time at which the last
append is due."""


async def tail_paced(
    writer: LedgerWriter,
    readers: list[LedgerReader],
    load: Load,
    rate_per_s: float,
    *,
    lag_limit_s: float = LAG_LIMIT_S,
) -> RoundResult:
    """Append `load.entries` entries at the given rate, and measure their delivery to each reader.

    One more entry comes first and is not measured. The ledger is closed at the end. Raises
    TimeoutError if the readers do not have all entries `lag_limit_s` after the time that the
    appends take at this rate, ReadError if they received another number of entries, and the errors
    of writing and reading.
    """
    # Arrays of numbers, because the garbage collector would examine objects again and again.
    sent, acked, seen = array("d"), array("d"), Deliveries()
    pushed: asyncio.Queue[int] = asyncio.Queue()

    async def follow(reader: LedgerReader) -> None:
        note, now = seen.note, time.perf_counter
        async with aclosing(reader.tail_runs(1)) as runs:
            async for run in runs:
                note(now(), run.first, run.last)

    # Every bookie must know the ledger before the measurement, or readers cannot wait for entries.
    await writer.append(load.payload())
    load.progress.begin("appending", load.entries, lambda: len(sent))
    cpu, start = time.process_time(), time.perf_counter()
    async with (
        asyncio.timeout(load.entries / rate_per_s + lag_limit_s),
        TaskGroup() as group,
    ):
        for reader in readers:
            group.create_task(follow(reader))
        group.create_task(_note_acks(writer, load.entries, acked, pushed))
        await _append_paced(writer, load, rate_per_s, sent, pushed)
        await writer.close()
    seconds = time.perf_counter() - start
    used = time.process_time() - cpu
    delivered = sum(seen.last) - sum(seen.first) + len(seen.first)
    if delivered != load.entries * len(readers):
        raise ReadError(
            f"the readers of the benchmark received {delivered} entries of ledger "
            f"{writer.ledger_id} instead of {load.entries * len(readers)}",
            ledger_id=writer.ledger_id,
            remedy="Run the benchmark again. If the error returns, report it",
        )
    return RoundResult(
        load.entries, load.entries * load.size_bytes, seconds, used,
        latencies=_since(sent, seen), since_acked=_since(acked, seen), deliveries=delivered,
    )  # fmt: skip


class Deliveries:
    """The runs of entries that readers received: when, and the first and last entry of each."""

    def __init__(self) -> None:
        self.at, self.first, self.last = array("d"), array("q"), array("q")

    def note(self, at: float, first: int, last: int) -> None:
        self.at.append(at)
        self.first.append(first)
        self.last.append(last)


def _since(began: array[float], seen: Deliveries) -> list[tuple[float, int]]:
    """Return the time from `began` to each delivery of each entry, which is at least 0.

    A reader in this process may run before the writer in the same event-loop iteration.
    """
    return [
        (max(at - since, 0.0), 1)
        for at, first, last in zip(seen.at, seen.first, seen.last)
        for since in began[first - 1 : last]
    ]


async def _append_paced(
    writer: LedgerWriter,
    load: Load,
    rate_per_s: float,
    sent: array[float],
    pushed: asyncio.Queue[int],
) -> None:
    payload, entries = load.payload(), load.entries
    now = time.perf_counter
    start = now()
    while len(sent) < entries:
        due = min(int((now() - start) * rate_per_s) + 1, entries) - len(sent)
        for _ in range(due):
            sent.append(now())
            writer.submit(payload)
        pushed.put_nowait(len(sent))
        await writer.room()
        await asyncio.sleep(PACE_S)


async def _note_acks(
    writer: LedgerWriter, entries: int, acked: array[float], pushed: asyncio.Queue[int]
) -> None:
    """Add the time at which each entry was acknowledged to `acked`, from entry 1 on.

    `pushed` receives the number of submitted entries whenever more were submitted.
    """
    while len(acked) < entries:
        last = await pushed.get()
        while len(acked) < last:
            await writer.wait(len(acked) + 1)
            now = time.perf_counter()
            acked.extend([now] * (writer.last_add_confirmed - len(acked)))


async def open_all(clients: Sequence[Client], ledger_id: int, count: int) -> list[LedgerReader]:
    """Open `count` readers of the ledger, taking the clients in turn.

    Raises the errors of `Client.open_ledger`.
    """
    return [await clients[k % len(clients)].open_ledger(ledger_id) for k in range(count)]
