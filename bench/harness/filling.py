"""Fill a bookie's data directory without a bookie, by adding entries to its store."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from quire._runtime.clock import SystemClock
from quire.codec.entry.digest import master_key
from quire.codec.entry.frame_runs import entry_bytes
from quire.codec.wire.v2 import add_request
from quire.storage.config import StorageConfig
from quire.storage.directory import ensure_directory
from quire.storage.disk import RealDisk
from quire.storage.read.read_ahead import AHEAD_BYTES
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.store import LedgerStore
from quire.storage.worker import ThreadReader, ThreadWorker

Layout = Literal["long", "turn", "mixed"]
"""The order of entries.

long: one ledger after the other, in long runs. turn: all ledgers in turn, so that each entry is a
run. mixed: ledgers in random order, in runs of one to three entries of different sizes.
"""

CHUNK_BYTES = 256 * 1024
"""The number of bytes that are appended as one batch."""
CHUNKS_IN_FLIGHT = 16
MIXED_RUN_MAX = 3
TOLD_BYTES = 2 * 1024 * 1024
"""The number of bytes announced to the kernel in one call, of which only the last byte is read."""
COPY_BYTES = 1024 * 1024
"""The number of bytes per read of a plain copy, as by `dd bs=1M`."""
POLL_S = 0.05


@asynccontextmanager
async def opened(
    directory: Path, config: StorageConfig | None = None
) -> AsyncIterator[LedgerStore]:
    """Open the store in this directory, recovered and started, and close it cleanly at the end."""
    loop = asyncio.get_running_loop()
    disk = RealDisk(directory)
    ensure_directory(disk, os.urandom)
    reader = ThreadReader(loop)
    store = LedgerStore(
        disk, ThreadWorker(loop, "log"), ThreadWorker(loop, "maintenance"),
        config or StorageConfig(), SystemClock(), schedule=loop.call_later, reader=reader,
    )  # fmt: skip
    try:
        store.recover()
        store.start()
        yield store
    finally:
        await store.close()
        reader.close()
        disk.close()


def _chunks(layout: Layout, ledgers: int, each: int, size_bytes: int) -> Iterator[LogBatch]:
    """Yield batches of entries of this size (the mean for "mixed"), with ledger ids from 1 on."""
    key, payload = master_key(b""), bytes(2 * size_bytes)

    def frame(ledger_id: int, entry_id: int, size: int = size_bytes) -> bytes:
        # A store does not check the digest of an entry that it returns.
        head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, size_bytes * entry_id)
        return add_request(key, head + bytes(4) + payload[:size])

    frame_bytes = len(frame(1, 0))
    per_chunk = max(1, CHUNK_BYTES // frame_bytes)
    if layout == "long":
        for ledger_id in range(1, ledgers + 1):
            for first in range(0, each, per_chunk):
                ids = range(first, min(each, first + per_chunk))
                run = Run(ledger_id, first, len(ids), 0, frame_bytes)
                yield LogBatch([b"".join(frame(ledger_id, entry_id) for entry_id in ids)], [run])
        return
    if layout == "mixed":
        yield from _mixed(frame, ledgers, each, size_bytes)
        return
    for at in range(0, ledgers * each, per_chunk):
        places = range(at, min(ledgers * each, at + per_chunk))
        keys = [(1 + place % ledgers, place // ledgers) for place in places]
        runs = [
            Run(ledger_id, entry_id, 1, index * frame_bytes, frame_bytes)
            for index, (ledger_id, entry_id) in enumerate(keys)
        ]
        yield LogBatch([b"".join(frame(*one) for one in keys)], runs)


def _mixed(
    frame: Callable[[int, int, int], bytes], ledgers: int, each: int, size_bytes: int
) -> Iterator[LogBatch]:
    chance, upcoming = random.Random(1), [0] * ledgers
    left = ledgers * each
    while left > 0:
        frames: list[bytes] = []
        runs: list[Run] = []
        at = 0
        while at < CHUNK_BYTES and left > 0:
            number, count = chance.randrange(ledgers), chance.randint(1, MIXED_RUN_MAX)
            first = upcoming[number]
            ids = range(first, first + count)
            sizes = [chance.randint(size_bytes // 4, size_bytes * 7 // 4) for _ in ids]
            some = [frame(1 + number, *one) for one in zip(ids, sizes)]
            lengths = array("I", map(len, some))
            if count == 1:
                runs.append(Run(1 + number, first, 1, at, lengths[0]))
            else:
                runs.append(Run(1 + number, first, count, at, 0, lengths))
            frames += some
            at += sum(lengths)
            upcoming[number] += count
            left -= count
        yield LogBatch([b"".join(frames)], runs)


async def fill(store: LedgerStore, layout: Layout, ledgers: int, each: int, size: int) -> float:
    """Add entries and return the rate per second. All are durable, and full segments are sealed."""
    loop = asyncio.get_running_loop()
    key = master_key(b"")
    for ledger_id in range(1, ledgers + 1):
        store.create_ledger(ledger_id, key)
    window = asyncio.Semaphore(CHUNKS_IN_FLIGHT)
    errors: list[Exception] = []

    def done(batch: LogBatch, error: Exception | None) -> None:
        window.release()
        if error is not None:
            errors.append(error)

    began = time.perf_counter()
    for batch in _chunks(layout, ledgers, each, size):
        await window.acquire()
        while store.queue_full and not errors:
            await asyncio.sleep(POLL_S)
        if errors:
            raise errors[0]
        store.append(batch, done)
    durable: asyncio.Future[None] = loop.create_future()
    store.barrier(lambda error: durable.set_exception(error) if error else durable.set_result(None))
    await durable
    seconds = time.perf_counter() - began
    while store.stats().segments_to_seal:
        await asyncio.sleep(POLL_S)
    return ledgers * each / seconds


async def read_all(
    store: LedgerStore, ledger_ids: Iterable[int], max_bytes: int
) -> tuple[int, float]:
    """Read whole ledgers one after the other, and return the bytes of entries and the seconds."""
    size = 0
    began = time.perf_counter()
    for ledger_id in ledger_ids:
        at, last = 0, store.last_entry_id(ledger_id)
        while at <= last:
            entries = await store.read_blocking(ledger_id, at, last - at + 1, max_bytes)
            at += len(entries)
            size += entry_bytes(entries)
    return size, time.perf_counter() - began


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("*.seg"))


def drop_caches(directory: Path) -> None:
    """Drop the log's files from the page cache, so that later reads come from the device.

    This needs no privileges.
    """
    for path in segments(directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def copy_rate_mb_per_s(paths: list[Path]) -> float:
    """Return the rate at which `dd if=... of=/dev/null bs=1M` would read these files."""
    size = 0
    began = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(COPY_BYTES):
                size += len(piece)
    return size / 1e6 / (time.perf_counter() - began)


def told_rate_mb_per_s(paths: list[Path]) -> float:
    """Return the rate at which the kernel reads ranges that it was told to read.

    Ranges are announced as far ahead of the last byte read as a store announces them ahead of its
    reader, but not beyond the end of a file.
    """
    size = 0
    one_byte = bytearray(1)
    began = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            under_way: deque[int] = deque()
            file_bytes = path.stat().st_size
            for at in range(0, file_bytes, TOLD_BYTES):
                piece = min(TOLD_BYTES, file_bytes - at)
                os.posix_fadvise(file.fileno(), at, piece, os.POSIX_FADV_WILLNEED)
                under_way.append(at + piece - 1)
                if len(under_way) > AHEAD_BYTES // TOLD_BYTES:
                    os.preadv(file.fileno(), [one_byte], under_way.popleft())
            for last in under_way:
                os.preadv(file.fileno(), [one_byte], last)
            size += file_bytes
    return size / 1e6 / (time.perf_counter() - began)
