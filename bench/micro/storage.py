"""Measure what storage costs per batch and per run, and how fast it syncs.

    python bench/micro/storage.py [directory]

The CPU parts run on one thread with a disk that discards everything, so their numbers are those of
Python alone. The last part uses the real disk with its threads.
"""

from __future__ import annotations

import asyncio
import gc
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from quire._runtime.clock import SystemClock
from quire.codec.wire.v2 import add_request
from quire.storage.config import StorageConfig
from quire.storage.directory import ensure_directory
from quire.storage.disk import RealDisk
from quire.storage.interfaces import Buffer
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.store import LedgerStore
from quire.storage.worker import ThreadReader, ThreadWorker

KEY = b"k" * 20
CHUNK_BYTES = 256 * 1024


def frame(ledger_id: int, entry_id: int, payload_bytes: int) -> bytes:
    head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, payload_bytes)
    return add_request(KEY, head + bytes(4 + payload_bytes))


class NullFile:
    def write(self, buffers: Sequence[Buffer], offset: int) -> None: ...
    def sync(self) -> None: ...
    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None:
        return b""

    def preallocate(self, size: int) -> None: ...
    def truncate(self, size: int) -> None: ...
    def size(self) -> int:
        return 0

    def close(self) -> None: ...


class NullDisk(RealDisk):
    """A disk with real small files but without real segments."""

    def create(self, name: str) -> Any:
        return NullFile() if name.endswith(".seg") else super().create(name)

    def remove(self, name: str) -> None:
        if not name.endswith(".seg"):
            super().remove(name)


class InlineWorker:
    """A worker that runs its step when `run` is called."""

    def __init__(self) -> None:
        self.step: Callable[[], None] = lambda: None
        self.posted: list[Callable[[], None]] = []

    def start(self, step: Callable[[], None]) -> None:
        self.step = step

    def wake(self) -> None: ...

    def post(self, callback: Callable[[], None]) -> None:
        self.posted.append(callback)

    def run(self) -> None:
        self.step()
        while self.posted:
            posted, self.posted = self.posted, []
            for callback in posted:
                callback()

    async def stop(self) -> None: ...


class NoTimer:
    def cancel(self) -> None: ...


def make_batches(ledgers: int, payload_bytes: int, total: int) -> list[tuple[bytes, list[tuple]]]:
    """Return chunks with the descriptions of their runs. Entries go to the ledgers in turn."""
    size = len(frame(0, 0, payload_bytes))
    per_chunk = max(1, CHUNK_BYTES // size)
    chunks = []
    at = 0
    while at < total:
        numbers = range(at, min(total, at + per_chunk))
        data = b"".join(frame(1 + n % ledgers, n // ledgers, payload_bytes) for n in numbers)
        if ledgers == 1:
            runs = [(1, numbers[0], len(numbers), 0, size)]
        else:
            runs = [
                (1 + n % ledgers, n // ledgers, 1, k * size, size) for k, n in enumerate(numbers)
            ]
        chunks.append((data, runs))
        at += per_chunk
    return chunks


def cpu(title: str, ledgers: int, payload_bytes: int, total: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        disk = NullDisk(path)
        ensure_directory(disk, os.urandom)
        log, maintenance = InlineWorker(), InlineWorker()
        store = LedgerStore(
            disk, log, maintenance, StorageConfig(max_runs_per_segment=10**9), SystemClock(),
            schedule=lambda delay, callback: NoTimer(),
        )  # fmt: skip
        store.recover()
        store.start()
        maintenance.run()
        for ledger_id in range(1, ledgers + 1):
            store.create_ledger(ledger_id, KEY)
        chunks = make_batches(ledgers, payload_bytes, total)
        runs_total = sum(len(runs) for _, runs in chunks)
        gc.collect()
        gc.freeze()
        started = time.perf_counter()
        batches = [LogBatch([data], [Run(*run) for run in runs]) for data, runs in chunks]
        made = time.perf_counter()
        for batch in batches:
            store.append(batch, lambda batch, error: None)
        appended = time.perf_counter()
        log.run()
        while store.queued_bytes:
            log.run()
        written = time.perf_counter()
        sealing = time.perf_counter()
        maintenance.run()
        sealed = time.perf_counter()
        gc.unfreeze()

        def us(seconds: float, count: int) -> str:
            return f"{seconds * 1e6 / count:8.3f}"

        print(f"{title}: {total} entries, {len(batches)} batches, {runs_total} runs")
        for name, seconds in (
            ("make Batch and Run", made - started),
            ("append: index", appended - made),
            ("compose, checksum, complete", written - appended),
            ("maintenance", sealed - sealing),
        ):
            print(
                f"  {name:30} {us(seconds, len(batches))} us/batch {us(seconds, runs_total)} us/run"
                f" {us(seconds, total)} us/entry"
            )


async def real(path: str, ledgers: int, payload_bytes: int, total: int) -> None:
    loop = asyncio.get_running_loop()
    disk = RealDisk(path)
    ensure_directory(disk, os.urandom)
    reader = ThreadReader(loop)
    store = LedgerStore(
        disk, ThreadWorker(loop, "log"), ThreadWorker(loop, "maintenance"), StorageConfig(),
        SystemClock(), schedule=loop.call_later, reader=reader,
    )  # fmt: skip
    store.recover()
    store.start()
    first = max(store.ledgers, default=0)
    assert first == 0, "use an empty directory"
    for ledger_id in range(1, ledgers + 1):
        store.create_ledger(ledger_id, KEY)
    chunks = make_batches(ledgers, payload_bytes, total)
    window = asyncio.Semaphore(16)
    cpu_started, started = time.process_time(), time.perf_counter()
    for data, runs in chunks:
        await window.acquire()
        batch = LogBatch([data], [Run(*run) for run in runs])
        store.append(batch, lambda batch, error: window.release())
    drained = loop.create_future()
    store.barrier(drained.set_result)
    await drained
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    groups = store.stats().groups
    print(
        f"real disk, {ledgers} ledgers: {total / seconds:,.0f} entries/s of {payload_bytes} B, "
        f"{groups / seconds:,.0f} syncs/s, {cpu_seconds / seconds:.0%} of one core, "
        f"{cpu_seconds * 1e6 / total:.2f} us CPU per entry"
    )
    per_read = 1024
    cpu_started, started = time.process_time(), time.perf_counter()
    got = 0
    for ledger_id in range(1, ledgers + 1):
        at = 0
        while at <= store.last_entry_id(ledger_id):
            entries = await store.read_blocking(ledger_id, at, per_read, 1024 * 1024)
            at += len(entries)
            got += len(entries)
    seconds = time.perf_counter() - started
    print(f"  sequential read: {got / seconds:,.0f} entries/s")
    await store.close()
    reader.close()
    started = time.perf_counter()
    store = LedgerStore(
        disk, ThreadWorker(loop, "log"), ThreadWorker(loop, "maintenance"), StorageConfig(),
        SystemClock(), schedule=loop.call_later,
    )  # fmt: skip
    report = store.recover()
    seconds = time.perf_counter() - started
    print(f"  clean restart: {seconds * 1e3:.1f} ms, {report.segments} segments")
    await store.close()
    disk.close()


def main() -> None:
    cpu("one ledger, 1 KB", 1, 1024, 50_000)
    cpu("one ledger, 100 B", 1, 100, 200_000)
    cpu("2,000 ledgers round robin, 1 KB", 2_000, 1024, 50_000)
    cpu("2,000 ledgers round robin, 100 B", 2_000, 100, 200_000)
    where = sys.argv[1] if len(sys.argv) > 1 else None
    sys.setswitchinterval(0.0005)
    for ledgers in (1, 2_000):
        with tempfile.TemporaryDirectory(dir=where) as path:
            asyncio.run(real(path, ledgers, 1024, 200_000))


if __name__ == "__main__":
    main()
