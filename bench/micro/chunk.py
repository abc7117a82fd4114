"""Measure what a received chunk of adds costs a bookie, and what part of that are its metrics.

    python bench/micro/chunk.py

The result is microseconds of CPU time from the bytes to the answers, without disk and network. The
same bookie alternates between blocks with and without its clock and histograms. The ratio compares
medians, so other load on the machine affects it little.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from storage import KEY, InlineWorker, NoTimer, NullDisk, frame

from quire._runtime.clock import SystemClock
from quire._runtime.metrics import Histogram
from quire.bookie.protocol.connection import Connection
from quire.bookie.protocol.service import BookieService
from quire.config import BookieConfig
from quire.net.network import AsyncioNetwork
from quire.storage.config import StorageConfig
from quire.storage.directory import ensure_directory
from quire.storage.store import LedgerStore

SHAPES = {
    "1 add of 100 B, alone": (1, 1, 100, 1),
    "1 add of 100 B, 16 together": (1, 1, 100, 16),
    "64 adds of 1 KB, alone": (64, 1, 1024, 1),
    "64 adds of 1 KB, 4 together": (64, 1, 1024, 4),
    "64 adds to 64 ledgers, alone": (64, 64, 100, 1),
}
"""Adds in a chunk, ledgers that they go to, payload bytes, and chunks in a group of the log.

A busy bookie has more than one chunk in a group, because the next group gathers while one is
synced.
"""
BLOCK = 48
"""The number of chunks in a block."""
BLOCKS = 300


class Transport:
    def __init__(self) -> None:
        self.answered_bytes = 0

    def write(self, data: bytes) -> None:
        self.answered_bytes += len(data)

    def get_extra_info(self, name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...


class Inline:
    """A started bookie with one connection. The benchmark runs its log and maintenance workers."""

    def __init__(self, disk: Any, config: StorageConfig, schedule: Callable[..., Any]) -> None:
        ensure_directory(disk, os.urandom)
        self.log, self.maintenance = InlineWorker(), InlineWorker()
        clock = SystemClock()
        self.store = LedgerStore(disk, self.log, self.maintenance, config, clock, schedule=schedule)
        self.store.recover()
        self.store.start()
        self.maintenance.run()
        service = BookieService(
            self.store, BookieConfig(), clock, AsyncioNetwork(), lambda event, **fields: None
        )
        self.peer, self.transport = Connection(service), Transport()
        self.peer.connection_made(self.transport)  # type: ignore[arg-type]


def stopped() -> float:
    return 0.0


def without_observing(self: Histogram, seconds: float, count: int = 1) -> None: ...


async def measure(
    adds: int, ledgers: int, payload_bytes: int, together: int
) -> tuple[float, float]:
    """Return the microseconds per chunk without metrics, and the additional ones with metrics."""
    with tempfile.TemporaryDirectory() as path:
        disk = NullDisk(path)
        config = StorageConfig(max_runs_per_segment=10**9)
        one = Inline(disk, config, lambda delay, callback: NoTimer())
        store, peer, log, maintenance = one.store, one.peer, one.log, one.maintenance
        for ledger_id in range(1, ledgers + 1):
            store.create_ledger(ledger_id, KEY)
        results: tuple[list[float], list[float]] = [], []
        for block in range(BLOCKS):
            chunks = [
                b"".join(
                    frame(1 + k % ledgers, n * (adds // ledgers) + k // ledgers, payload_bytes)
                    for k in range(adds)
                )
                for n in range(block * BLOCK, (block + 1) * BLOCK)
            ]
            gc.collect()
            gc.disable()
            if block % 2:
                with (
                    mock.patch.object(Histogram, "observe", without_observing),
                    mock.patch.object(SystemClock, "monotonic", staticmethod(stopped)),
                ):
                    took_s = run(chunks, peer, log, together)
            else:
                took_s = run(chunks, peer, log, together)
            gc.enable()
            results[block % 2].append(took_s * 1e6 / BLOCK)
            maintenance.run()
        assert one.transport.answered_bytes == BLOCKS * BLOCK * adds * 28
        # Compare neighbouring blocks, because other load on the machine affects both.
        more = [measured - without for measured, without in zip(*results)]
        return statistics.median(results[1]), statistics.median(more)


def run(chunks: list[bytes], peer: Connection, log: InlineWorker, together: int) -> float:
    started = time.thread_time()
    for at in range(0, len(chunks), together):
        for chunk in chunks[at : at + together]:
            peer.data_received(chunk)
        log.run()
        peer._send_out()
    return time.thread_time() - started


def main() -> None:
    for name, shape in SHAPES.items():
        without, more = asyncio.run(measure(*shape))
        print(
            f"{name:28} {without:8.2f} us a chunk, metrics add {more:6.2f} us "
            f"({more / without * 100:.2f} %)",
            flush=True,
        )


if __name__ == "__main__":
    main()
