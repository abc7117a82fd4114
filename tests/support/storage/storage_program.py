"""A program that appends to a store as fast as the store acknowledges, until it is killed.

    python -m tests.support.storage.storage_program DIRECTORY

It prints `ready` when the fence of ledger FENCED is durable, and then a line `LEDGER ENTRY` for the
last entry of each acknowledged batch.
"""

from __future__ import annotations

import asyncio
import os
import sys

from quire._runtime.clock import SystemClock
from quire.errors import StorageError
from quire.storage.config import StorageConfig
from quire.storage.directory import ensure_directory
from quire.storage.disk import RealDisk
from quire.storage.segment.batch import LogBatch
from quire.storage.store import LedgerStore
from quire.storage.worker import ThreadReader, ThreadWorker
from tests.support.storage.storage import key_of, make_batch

CONFIG = StorageConfig(
    segment_bytes=512 * 1024, reserve_bytes=64 * 1024, min_free_bytes=0, seal_idle_s=0.02
)
LEDGERS = (1, 2, 3)
FENCED = 9
IN_FLIGHT = 8


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d;" % (ledger_id, entry_id) * (1 + entry_id % 150)


class Opened:
    """A store on a real directory, with its threads."""

    def __init__(self, path: str, config: StorageConfig = CONFIG) -> None:
        loop = asyncio.get_running_loop()
        self.disk = RealDisk(path)
        self.disk.lock()
        ensure_directory(self.disk, os.urandom)
        self.reader = ThreadReader(loop)
        self.store = LedgerStore(
            self.disk,
            ThreadWorker(loop, "log"),
            ThreadWorker(loop, "maintenance"),
            config,
            SystemClock(),
            schedule=loop.call_later,
            reader=self.reader,
        )
        self.report = self.store.recover()
        self.store.start()

    def next_entry(self, ledger_id: int) -> int:
        if ledger_id not in self.store.ledgers:
            self.store.create_ledger(ledger_id, key_of(ledger_id))
        return self.store.last_entry_id(ledger_id) + 1

    async def append(self, entries: list[tuple[int, int, bytes]]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def synced(batch: LogBatch, error: StorageError | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.store.append(make_batch(entries), synced)
        await done

    async def close(self) -> None:
        await self.store.close()
        self.reader.close()
        self.disk.close()


async def write_for_ever(opened: Opened, ledger_id: int) -> None:
    first = opened.next_entry(ledger_id)
    while True:
        entries = [(ledger_id, first + i, payload_of(ledger_id, first + i)) for i in range(7)]
        await opened.append(entries)
        first += 7
        print(ledger_id, first - 1, flush=True)


async def main(path: str) -> None:
    opened = Opened(path)
    opened.next_entry(FENCED)
    fenced = asyncio.Event()
    opened.store.fence(FENCED, lambda error: None if error else fenced.set())
    await fenced.wait()
    print("ready", flush=True)
    async with asyncio.TaskGroup() as tasks:
        for ledger_id in LEDGERS:
            tasks.create_task(write_for_ever(opened, ledger_id))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
