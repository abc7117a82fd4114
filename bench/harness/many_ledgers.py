"""A bookie with many ledgers of one entry, which starts after a kill: when it answers reads.

Creating ten million ledgers through a bookie takes an hour. `write` appends them to the bookie's
store directly, which takes some minutes and leaves the same files. The index cache covers the first
`COVERED` of them, and the process ends as with kill -9.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.filling import opened
from quire._runtime.heap import collect_on_demand, keep_heap
from quire.codec.entry.digest import crc32c, master_key
from quire.codec.wire.v2 import READ_RESPONSE_BYTES, Code, add_request, read_request
from quire.storage.config import StorageConfig, segment_bytes_of
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.store import LedgerStore
from quire.testing.cluster import BookieProcess

PAYLOAD = bytes(100)
COVERED = 0.8
"""The share of the ledgers that the index cache covers: 32 of 40 segments, as in a bookie with ten
million ledgers that was killed."""
AT_ONCE = 1_000
"""The number of ledgers that are appended as one batch."""
CHUNKS_IN_FLIGHT = 16
PLACES = 0.05, 0.5, 0.75, 0.99
"""The ledgers that are read first, as shares of all."""
CACHED = 3
"""How many of these are in the index cache. It may lack the last segment that was sealed."""
RETRY_S = 0.02
PAUSE_S = 0.01
"""Seconds between two reads of ledgers in the index cache while the bookie loads."""
START_LIMIT_S = 600.0


def write(directory: Path, ledgers: int) -> None:
    """Fill the data directory of a bookie that is stopped, and end this process without a stop."""
    keep_heap()
    collect_on_demand()
    covered = int(ledgers * COVERED)
    asyncio.run(_write(directory, range(1, covered + 1), die=False))
    asyncio.run(_write(directory, range(covered + 1, ledgers + 1), die=True))


async def _write(directory: Path, ledger_ids: range, *, die: bool) -> None:
    config = StorageConfig(segment_bytes=segment_bytes_of(shutil.disk_usage(directory).total))
    async with opened(directory, config) as store:
        await _append(store, ledger_ids)
        if die:
            os._exit(0)


async def _append(store: LedgerStore, ledger_ids: range) -> None:
    key = master_key(b"")
    window = asyncio.Semaphore(CHUNKS_IN_FLIGHT)
    errors: list[Exception] = []

    def done(batch: LogBatch, error: Exception | None) -> None:
        window.release()
        if error is not None:
            errors.append(error)

    for at in range(0, len(ledger_ids), AT_ONCE):
        some = ledger_ids[at : at + AT_ONCE]
        frames = [add_request(key, entry_of(ledger_id)) for ledger_id in some]
        size = len(frames[0])
        runs = [Run(one, 0, 1, index * size, size) for index, one in enumerate(some)]
        await window.acquire()
        while store.queue_full and not errors:
            await asyncio.sleep(RETRY_S)
        if errors:
            raise errors[0]
        for ledger_id in some:
            store.create_ledger(ledger_id, key)
        store.append(LogBatch([b"".join(frames)], runs), done)
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    store.barrier(lambda error: durable.set_exception(error) if error else durable.set_result(None))
    await durable
    while store.stats().segments_to_seal:
        await asyncio.sleep(RETRY_S)


def entry_of(ledger_id: int) -> bytes:
    head = struct.pack(">qqqq", ledger_id, 0, -1, len(PAYLOAD))
    return head + struct.pack(">I", crc32c(PAYLOAD, crc32c(head))) + PAYLOAD


@dataclass(slots=True)
class StartFigures:
    """The times of one start, in seconds from the start of the process."""

    first_s: list[float] = field(default_factory=list)
    """The times of the first answers to reads of the ledgers at `PLACES`."""
    first_cpu_s: list[float] = field(default_factory=list)
    """The processor time of the bookie until these answers."""
    writable_s: float = 0.0
    writable_cpu_s: float = 0.0
    early_ms: list[float] = field(default_factory=list)
    """The latencies of single reads of random ledgers of the index cache, one after the other, from
    the first answer until the bookie is writable. There is a pause after each."""
    resident_gb: float = 0.0


def start(bookie: BookieProcess, ledgers: int) -> StartFigures:
    """Start a bookie that was killed, and measure when it answers."""
    return asyncio.run(_start(bookie, ledgers))


async def _start(bookie: BookieProcess, ledgers: int) -> StartFigures:
    figures = StartFigures()
    began = time.monotonic()
    bookie.launch()
    ready = asyncio.ensure_future(asyncio.to_thread(bookie.wait_ready, began + START_LIMIT_S))
    wanted = [max(1, int(ledgers * place)) for place in PLACES]
    reads = [asyncio.ensure_future(_first(bookie, one, began)) for one in wanted]
    covered = range(1, wanted[CACHED - 1] + 1)
    await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    figures.early_ms = await _read_until(ready, bookie.port, covered)
    await ready
    figures.writable_s, figures.writable_cpu_s = time.monotonic() - began, bookie.cpu_seconds()
    for elapsed_s, cpu_s in await asyncio.gather(*reads):
        figures.first_s.append(elapsed_s)
        figures.first_cpu_s.append(cpu_s)
    figures.resident_gb = bookie.rss_bytes() / 1e9
    return figures


async def _first(bookie: BookieProcess, ledger_id: int, began: float) -> tuple[float, float]:
    while not await _answers(bookie.port, ledger_id):
        await asyncio.sleep(RETRY_S)
        if time.monotonic() - began > START_LIMIT_S:
            raise SystemExit(f"Ledger {ledger_id} was not read within {START_LIMIT_S:.0f} s.")
    return time.monotonic() - began, bookie.cpu_seconds()


async def _read_until(ready: asyncio.Future[None], port: int, covered: range) -> list[float]:
    took: list[float] = []
    chosen = random.Random(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while not ready.done():
            at = time.perf_counter()
            if await _ask(reader, writer, chosen.choice(covered)):
                took.append((time.perf_counter() - at) * 1e3)
            await asyncio.sleep(PAUSE_S)
    finally:
        writer.close()
    return took


async def _answers(port: int, ledger_id: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False  # The bookie does not listen yet.
    try:
        return await _ask(reader, writer, ledger_id)
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ledger_id: int) -> bool:
    """Read the entry of a ledger. Return False if the bookie says that it must be asked again."""
    writer.write(read_request(ledger_id, 0))
    length = await reader.readexactly(4)
    answer = length + await reader.readexactly(int.from_bytes(length, "big"))
    code = struct.unpack_from(">i", answer, 8)[0]
    if code == Code.TOO_MANY_REQUESTS:
        return False
    if code != Code.OK or answer[READ_RESPONSE_BYTES:] != entry_of(ledger_id):
        raise SystemExit(f"The read of ledger {ledger_id} was answered with code {code}.")
    return True


def percentile(took_ms: Sequence[float], percent: int) -> float:
    return sorted(took_ms)[len(took_ms) * percent // 100] if took_ms else 0.0
