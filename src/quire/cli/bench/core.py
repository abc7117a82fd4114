"""The measurements of `quire bench`, without any printing: loads on a client, and their results.

The loops are short on purpose, because they run in the process of the client that they measure.
Time is taken once for each piece of entries where a piece is the unit of work, and once for each
append otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice

from quire._runtime.tasks import TaskGroup
from quire._runtime.units import end_text
from quire.client import Client, LedgerWriter
from quire.errors import QuireError, ReadError

PIECES = 6
"""The number of pieces that the outstanding entries are divided into. With fewer pieces, a bookie
has no work while it syncs. With more, each piece is smaller and costs more time for each entry."""
PACE_S = 0.001
"""Seconds between two times at which a paced load submits the entries that are due."""
METADATA_IN_FLIGHT = 32
"""The number of ledgers that are created or deleted at the same time."""
PATTERN = b"abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Shape:
    """The ensemble size, the quorums and the digest of the ledgers of a benchmark."""

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: str = "crc32c"


@dataclass(slots=True)
class Progress:
    """The present step of a benchmark.

    The display calls `count` when it is drawn, so the loop that is measured spends no time on it.
    """

    what: str = ""
    total: int = 0
    count: Callable[[], int] = lambda: 0
    """A function that returns the number of entries, of the `total`, that are done."""
    began_s: float = 0.0
    """When the step began, on the clock `time.perf_counter`."""

    def begin(self, what: str, total: int, count: Callable[[], int]) -> None:
        self.what, self.total, self.count = what, total, count
        self.began_s = time.perf_counter()

    def end(self) -> None:
        self.what, self.total, self.count = "", 0, lambda: 0


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one round: how many entries of which size, and how many of them outstanding."""

    entries: int
    size_bytes: int
    outstanding: int
    progress: Progress = field(default_factory=Progress, compare=False)
    """The present step of the measurement of this load."""

    def payload(self) -> bytes:
        return (PATTERN * (self.size_bytes // len(PATTERN) + 1))[: self.size_bytes]

    def pieces(self) -> list[int]:
        """Return the sizes of the pieces that `outstanding` is divided into."""
        count = min(PIECES, self.outstanding)
        size, more = divmod(self.outstanding, count)
        return [size + (index < more) for index in range(count)]


@dataclass(slots=True)
class RoundResult:
    """The results of one measured round."""

    operations: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """The CPU time, in seconds, that this process used, which is the client."""
    latencies: list[tuple[float, int]] = field(default_factory=list)
    """The measured latencies in seconds, each with the number of operations that had it."""
    since_acked: list[tuple[float, int]] = field(default_factory=list)
    """The latencies from the acknowledgement to the delivery, if they are measured, in the form of
    `latencies`."""
    deliveries: int = 0
    """The number of entries delivered to all readers together, if readers are measured."""

    @property
    def rate_per_s(self) -> float:
        return self.operations / self.seconds

    @property
    def mb_per_s(self) -> float:
        return self.payload_bytes / 1e6 / self.seconds

    def percentile_ms(self, percent: float, *, since_acked: bool = False) -> float | None:
        latencies = self.since_acked if since_acked else self.latencies
        if not latencies:
            return None
        wanted = sum(count for _, count in latencies) * percent / 100
        seen = 0
        for seconds, count in sorted(latencies):
            seen += count
            if seen > wanted:
                return seconds * 1e3
        return max(latencies)[0] * 1e3

    @property
    def delivery_cpu_us(self) -> float | None:
        """The CPU time of this process for each entry that a reader received, in microseconds.

        It is None if no readers are measured.
        """
        return self.cpu_seconds * 1e6 / self.deliveries if self.deliveries else None


Measured = Callable[[], Awaitable[list[tuple[float, int]]]]
"""Work to be measured. It returns latencies as in `RoundResult.latencies`."""


async def measure(load: Load, work: Measured) -> RoundResult:
    """Measure `work`, which appends `load.entries` entries and returns their latencies."""
    cpu, began = time.process_time(), time.perf_counter()
    latencies = await work()
    seconds = time.perf_counter() - began
    return RoundResult(
        load.entries, load.entries * load.size_bytes, seconds, time.process_time() - cpu, latencies
    )


# -- ledgers of a benchmark -------------------------------------------------------------------


@asynccontextmanager
async def ledgers(
    client: Client, shape: Shape, count: int = 1, *, keep: bool = False
) -> AsyncIterator[list[LedgerWriter]]:
    """Create `count` ledgers and yield their writers. Delete the ledgers at the end.

    They are deleted after an error as well. With `keep`, they are closed and not deleted; after an
    error they stay open.
    """
    writers: list[LedgerWriter] = []

    async def another() -> None:
        writers.append(await create(client, shape))

    try:
        for done in range(0, count, METADATA_IN_FLIGHT):
            async with TaskGroup() as group:
                for _ in range(min(METADATA_IN_FLIGHT, count - done)):
                    group.create_task(another())
        yield writers
        if keep:
            await _for_each(writers, _close)
    finally:
        if not keep:
            for writer in writers:
                writer.abandon()
            await _for_each(writers, lambda writer: delete(client, writer.ledger_id))


async def create(client: Client, shape: Shape) -> LedgerWriter:
    return await client.create_ledger(
        ensemble_size=shape.ensemble,
        write_quorum=shape.write_quorum,
        ack_quorum=shape.ack_quorum,
        digest=shape.digest,
    )


async def delete(client: Client, ledger_id: int) -> None:
    """Delete a ledger.

    Errors are ignored, so that they neither hide an earlier error nor invalidate a measurement.
    """
    try:
        await client.delete_ledger(ledger_id)
    except QuireError:
        pass


async def _close(writer: LedgerWriter) -> None:
    await writer.close()


async def _for_each(
    writers: Sequence[LedgerWriter], work: Callable[[LedgerWriter], Awaitable[None]]
) -> None:
    async def one(waiting: deque[LedgerWriter]) -> None:
        while waiting:
            await work(waiting.popleft())

    waiting = deque(writers)
    async with TaskGroup() as group:
        for _ in range(METADATA_IN_FLIGHT):
            group.create_task(one(waiting))


# -- adds -------------------------------------------------------------------------------------


async def add_many(writer: LedgerWriter, load: Load) -> list[tuple[float, int]]:
    """Append pieces with `append_many`, so that `outstanding` entries are unacknowledged.

    Return the latency of each piece in seconds, with its number of entries.
    """
    payload = load.payload()
    left = load.entries
    latencies: list[tuple[float, int]] = []

    load.progress.begin("appending", load.entries, lambda: load.entries - left)

    async def worker(size: int) -> None:
        nonlocal left
        whole = [payload] * size
        while left > 0:
            piece = whole if left >= size else whole[:left]
            left -= len(piece)
            began = time.perf_counter()
            await writer.append_many(piece)
            latencies.append((time.perf_counter() - began, len(piece)))

    async with TaskGroup() as group:
        for size in load.pieces():
            group.create_task(worker(size))
    return latencies


async def add_one_by_one(writers: Sequence[LedgerWriter], load: Load) -> list[tuple[float, int]]:
    """Append with `outstanding` tasks, each of which appends one entry after the other.

    The entries go to the ledgers in turn. Return the latency of each entry in seconds, with the
    number 1.
    """
    payload = load.payload()
    upcoming, entries, turns = 0, load.entries, len(writers)
    latencies: list[tuple[float, int]] = []
    note, now = latencies.append, time.perf_counter
    load.progress.begin("appending", entries, lambda: len(latencies))

    async def worker() -> None:
        nonlocal upcoming
        while upcoming < entries:
            writer = writers[upcoming % turns]
            upcoming += 1
            began = now()
            await writer.append(payload)
            note((now() - began, 1))

    async with TaskGroup() as group:
        for _ in range(min(load.outstanding, entries)):
            group.create_task(worker())
    return latencies


async def add_in_turn(writers: Sequence[LedgerWriter], load: Load) -> list[tuple[float, int]]:
    """Append single entries to the ledgers in turn, without a task for each entry.

    Entries are submitted in pieces and awaited piece by piece, with `outstanding` unacknowledged
    entries over all ledgers. Return the latency of each piece in seconds, with its number of
    entries.
    """
    payload = load.payload()
    sizes, in_turn = load.pieces(), cycle(writers)
    latencies: list[tuple[float, int]] = []
    under_way: deque[tuple[float, list[LedgerWriter], list[int]]] = deque()
    """The start time of each piece that is not acknowledged yet, the writers of its entries, and
    the entry ids."""
    sent = 0
    load.progress.begin("appending", load.entries, lambda: sent)

    async def wait_for_oldest() -> None:
        began, whose, entry_ids = under_way.popleft()
        for writer, entry_id in zip(whose, entry_ids):
            if writer.last_add_confirmed < entry_id:
                await writer.wait(entry_id)
        latencies.append((time.perf_counter() - began, len(entry_ids)))

    while sent < load.entries:
        if len(under_way) == len(sizes):
            await wait_for_oldest()
        size = min(sizes[len(latencies) % len(sizes)], load.entries - sent)
        began = time.perf_counter()
        whose = list(islice(in_turn, size))
        under_way.append((began, whose, [writer.submit(payload) for writer in whose]))
        sent += size
        await asyncio.sleep(0)  # entries are sent after this event-loop iteration
    while under_way:
        await wait_for_oldest()
    return latencies


async def add_paced(writer: LedgerWriter, load: Load, rate_per_s: float) -> list[tuple[float, int]]:
    """Append `rate_per_s` entries a second, however long the answers take.

    `load.outstanding` does not apply, only the client's own limit on unacknowledged bytes. Return
    latencies from the submission, in seconds, each with the number of entries that had it.
    """
    payload = load.payload()
    loop = asyncio.get_running_loop()
    latencies: list[tuple[float, int]] = []
    under_way: asyncio.Queue[tuple[float, int, int] | None] = asyncio.Queue()

    async def collect() -> None:
        while (item := await under_way.get()) is not None:
            began, count, last = item
            await writer.wait(last)
            latencies.append((time.perf_counter() - began, count))

    async with TaskGroup() as group:
        group.create_task(collect())
        start, sent = loop.time(), 0
        load.progress.begin("appending", load.entries, lambda: sent)
        while sent < load.entries:
            due = min(int((loop.time() - start) * rate_per_s) + 1, load.entries) - sent
            if due > 0:
                began = time.perf_counter()
                for _ in range(due):
                    last = writer.submit(payload)
                sent += due
                under_way.put_nowait((began, due, last))
                await writer.room()
            await asyncio.sleep(PACE_S)
        under_way.put_nowait(None)
    return latencies


# -- reads ------------------------------------------------------------------------------------


async def read_whole(
    client: Client, ledger_id: int, password: bytes = b"", *, progress: Progress | None = None
) -> RoundResult:
    """Measure reading all entries in order, with digests verified. Opening is not measured.

    The entries are those that are acknowledged when the ledger is opened. Raises the errors of
    `Client.open_ledger` and of reading.
    """
    async with await client.open_ledger(ledger_id, password=password) as reader:
        cpu, began = time.process_time(), time.perf_counter()
        entries = size = 0
        last = reader.last_add_confirmed  # it grows if the ledger is being written
        if progress is not None:
            progress.begin("reading", last + 1, lambda: entries)
        if last >= 0:
            async for run in reader.read_runs(0, last):
                entries += len(run)
                size = run.ledger_lengths[-1]
        seconds = time.perf_counter() - began
        if entries != last + 1:
            raise ReadError(
                f"the benchmark read {entries} entries of ledger {ledger_id} instead of {last + 1}",
                ledger_id=ledger_id,
                remedy="Run the benchmark again. If the error returns, report it",
            )
    return RoundResult(entries, size, seconds, time.process_time() - cpu)


# -- recovery ---------------------------------------------------------------------------------


async def recover_each(
    client: Client, other: Client, shape: Shape, load: Load, count: int, *, keep: bool = False
) -> RoundResult:
    """Measure the recovery of `count` ledgers by another client.

    All entries of a ledger are appended at once and acknowledged, and the writer leaves the ledger
    open. Only opening it with recovery is measured. Raises ReadError if a recovered ledger does not
    end at the last entry, and the errors of creating, writing and opening ledgers.
    """
    result = RoundResult()
    load.progress.begin("opening ledgers", count, lambda: result.operations)
    for _ in range(count):
        writer = await create(client, shape)
        try:
            await writer.append_many([load.payload()] * load.entries)
            writer.abandon()
            cpu, began = time.process_time(), time.perf_counter()
            reader = await other.open_ledger(writer.ledger_id, recover=True)
            seconds = time.perf_counter() - began
            result.cpu_seconds += time.process_time() - cpu
            result.seconds += seconds
            result.operations += 1
            result.latencies.append((seconds, 1))
            if reader.last_add_confirmed != load.entries - 1:
                raise ReadError(
                    f"ledger {writer.ledger_id} of the benchmark "
                    f"{end_text(reader.last_add_confirmed)} after its recovery, but entry "
                    f"{load.entries - 1} was acknowledged",
                    ledger_id=writer.ledger_id,
                    remedy="An acknowledged entry is lost: check the bookies, and report this "
                    "error",
                )
        finally:
            writer.abandon()
            if not keep:
                await delete(client, writer.ledger_id)
    return result
