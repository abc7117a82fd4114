"""Measure what an add costs a bookie with 10,000 ledgers in turn, beside one ledger alone.

    python bench/micro/turns.py [--disk DIRECTORY] [--rounds N] [--profile]

The cost covers everything from a chunk's bytes to its answers, including groups of the log,
footers, and the first add of each ledger. There are no sockets, and no disk unless one is given.
The results are microseconds of CPU time per entry over all threads, by stage. Each round uses a new
bookie, and the shapes alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
import statistics
import tempfile
import time
from chunk import Inline
from collections.abc import Iterator
from contextlib import contextmanager

from storage import NoTimer, NullDisk, frame

from quire._runtime.heap import collect_on_demand, keep_heap
from quire.storage.config import StorageConfig
from quire.storage.disk import RealDisk

SHAPES = {
    "10,000 ledgers in turn, 20 entries each": (10_000, 200_000),
    "one ledger": (1, 200_000),
}
PAYLOAD_BYTES = 1024
CHUNK_ENTRIES = (10, 125)
"""The range of entries that a bookie receives at once from a writer with 1,000 outstanding adds."""
TOGETHER = 4
"""The number of chunks in a group of the log."""
STAGES = ("intake", "log", "completion", "maintenance")


def make_chunks(ledgers: int, entries: int) -> Iterator[bytes]:
    rng = random.Random(1)
    at = 0
    while at < entries:
        numbers = range(at, min(entries, at + rng.randint(*CHUNK_ENTRIES)))
        yield b"".join(frame(1 + n % ledgers, n // ledgers, PAYLOAD_BYTES) for n in numbers)
        at = numbers.stop


class Stages:
    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name] += time.process_time() - began


async def measure(
    ledgers: int, entries: int, where: str | None, profile: cProfile.Profile | None
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=where) as path:
        disk = RealDisk(path) if where else NullDisk(path)
        scheduled: list = []
        one = Inline(
            disk, StorageConfig(), lambda delay, callback: scheduled.append(callback) or NoTimer()
        )
        store, peer, log, maintenance = one.store, one.peer, one.log, one.maintenance
        stages = Stages()
        chunks = make_chunks(ledgers, entries)
        gc.collect()
        gc.freeze()
        more = True
        while more:
            # Make a few chunks at a time outside the measurement. Data from a socket is in the CPU
            # cache.
            together = [chunk for _, chunk in zip(range(TOGETHER), chunks)]
            more = bool(together)
            if profile:
                profile.enable()
            with stages("intake"):
                for chunk in together:
                    peer.data_received(chunk)
            with stages("log"):
                log.step()
            with stages("completion"):
                posted, log.posted = log.posted, []
                for callback in posted:
                    callback()
                peer._send_out()
            with stages("maintenance"):
                maintenance.run()
                while scheduled and (ready := scheduled.pop(0)):
                    if getattr(ready, "func", None) is not None:  # Only the sealer's slices.
                        ready()
            if profile:
                profile.disable()
            del together
        assert one.transport.answered_bytes == entries * 28
        assert store.ledgers[ledgers].last_entry_id == (entries - 1) // ledgers
        gc.unfreeze()
        disk.close()
        return {name: seconds * 1e6 / entries for name, seconds in stages.seconds.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--disk", help="write the log to this directory and sync it")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--profile", action="store_true")
    given = arguments.parse_args()
    keep_heap()
    collect_on_demand()
    profile = cProfile.Profile() if given.profile else None
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SHAPES}
    for _ in range(given.rounds):
        for name, (ledgers, entries) in SHAPES.items():
            found[name].append(asyncio.run(measure(ledgers, entries, given.disk, profile)))
        if profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    for name, rounds in found.items():
        totals = sorted(sum(one.values()) for one in rounds)
        stages = "  ".join(
            f"{stage} {statistics.median(one[stage] for one in rounds):.2f}" for stage in STAGES
        )
        print(
            f"{name}: {statistics.median(totals):.2f} us an entry "
            f"({totals[0]:.2f}-{totals[-1]:.2f}): {stages}"
        )


if __name__ == "__main__":
    main()
