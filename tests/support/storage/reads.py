"""Stores with sealed segments, and a recorder of the disk reads that a store requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.storage.read import cold_reads
from tests.support.storage.storage import SMALL, StoreOnDisk, run, sim_disk

LARGE = replace(
    SMALL, segment_bytes=16 << 20, max_queued_bytes=32 << 20, max_group_bytes=1 << 20,
    footer_cache_bytes=1 << 20,
)  # fmt: skip


class Recorder:
    """A `blocking.BlockingReader` that executes requests at once and records them."""

    def __init__(self) -> None:
        self.calls = 0
        self.reads: list[tuple[int, int]] = []
        self.waited = 0
        self.aheads: list[tuple[int, int]] = []
        self.waiting: list[Callable[[], None]] = []

    async def run(self, call: Any) -> Any:
        return call()

    def read(self, call: Any, done: Callable[[Any], None]) -> None:
        _, *where = call.args
        self.calls += 1
        found = call()
        if call.func is cold_reads.fetch_each:
            self.reads += where[0]
        else:
            self.reads.append((where[0], where[1]))
            self.waited += found.waited
        done(found)

    def ahead(self, call: Any, done: Callable[[], None]) -> None:
        self.aheads.append(call.args)
        self.waiting.append(done)

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()


def opened(config: Any = SMALL, cold: float = 0.0) -> tuple[StoreOnDisk, Recorder]:
    box = StoreOnDisk(sim_disk(1, cold_read_probability=cold), config)
    box.open()
    box.idle()
    recorder = Recorder()
    box.store._cold._blocking = box.store._ahead._blocking = recorder
    return box, recorder


def sealed(cold: float, entries: int, size: int, ledgers: int = 1) -> tuple[StoreOnDisk, Recorder]:
    """Write entries of `ledgers` ledgers in turn into one sealed segment, and return the store.

    `cold` is the probability that a read has to wait for the disk.
    """
    box, recorder = opened(LARGE, cold)
    for at in range(0, entries, 20):
        places = range(at, min(entries, at + 20))
        box.append([(1 + n % ledgers, n // ledgers, bytes([n % 251]) * size) for n in places])
        box.pump()
    run(box.store.close())
    box.open()
    box.pump()
    box.store._cold._blocking = box.store._ahead._blocking = recorder
    return box, recorder


def only_sealed(box: StoreOnDisk) -> Any:
    [segment] = [s for s in box.store._catalogue.segments.values() if s.trailer is not None]
    return segment


def written_of(box: StoreOnDisk, ledger_id: int) -> list[bytes]:
    return [data for (ledger, _), data in box.written.items() if ledger == ledger_id]


def answer(box: StoreOnDisk, ledger_id: int, first: int, max_bytes: int) -> list[bytes]:
    return [bytes(e) for e in run(box.store.read_blocking(ledger_id, first, 1_000, max_bytes))]
