#!/usr/bin/env python3
"""Measure what a bookie's disk costs: index, starts, cold reads, and adds beside a cold reader.

    bench/disk.py                       every row (about ten minutes, 8 GB of disk for a while)
    bench/disk.py --quick               a fifth of everything
    bench/disk.py --rows cold-read --rounds 5 --dir /mnt/fast
    bench/disk.py --list                the rows

Prints one line of JSON for each figure, with every sample. Everything is removed at the end. Rows:

- index: the memory of the index and the time to build it at a start, per ledger and per place (a
  ledger in a segment). It is measured for ledgers in long runs and for ledgers that take entries
  in turn, with an index built from the footers of the segments and from the index cache.
- restart: the time from the start of a bookie's process with 5 GB of log to the first entry that
  it serves, after a clean stop and after a kill.
- many-ledgers: a bookie with many ledgers of one entry is killed, and starts again. The row has the
  times to the first answers to reads of four ledgers, three in the index cache and one that is
  newer, the latency of reads from the first answer until the bookie is writable, the time until
  then, and the resident memory. `--ledgers 10000000` takes about ten minutes to prepare, 6 GB of
  disk and 4 GB of memory.
- cold-read: reads of ledgers from the device in alternating rounds, beside a plain copy of the
  same files (as by dd), and beside the rate of the kernel's own readahead of announced ranges. The
  ledgers are one that was written alone, and ledgers written in turn after compaction, short and
  long ones, in segments of the size for this disk and for a small disk. Ledgers written in turn
  are also read before compaction, with entries of one size and of mixed sizes.
- beside: the latency of adds at a fixed rate, alone and beside a reader that reads a cold ledger
  of the same bookie at full speed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import quire
from harness import many_ledgers
from harness.filling import (
    Layout,
    copy_rate_mb_per_s,
    drop_caches,
    fill,
    opened,
    read_all,
    segments,
    told_rate_mb_per_s,
)
from quire._runtime.heap import collect_on_demand, keep_heap
from quire.bookie.main import SWITCH_INTERVAL_S
from quire.cli.bench import core as bench_core
from quire.cli.bench.core import Load, Shape
from quire.storage.config import MIB, SEGMENT_BYTES_LEAST, StorageConfig, segment_bytes_of
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.segment import sealed_rows
from quire.testing.cluster import LocalCluster

QUICK_DIVISOR = 5
SIZE_BYTES = 1024
READ_BYTES = 4 * 1024 * 1024
"""The number of bytes that a read requests at once, as a client does."""
LAST_LOOKUPS = 100_000
ALONE = Shape(1, 1, 1)
PACE_PER_S = 5_000.0
SCATTERED_LEDGERS = 100, 1_000
SCATTERED_ENTRIES = 4_000
"""The number of entries that are read in a round."""
COMPACTION_LIMIT_S = 300.0
COMPACTION_BEGINS_S = 30.0
DROP_INTERVAL_S = 0.5
QUIRE = sys.executable, "-c", "from quire.cli.main import main; main()"
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Compacted:
    """Ledgers that took entries in turn, of which every second one is then deleted."""

    ledgers: int
    each: int
    """The number of entries in each ledger."""
    segment_bytes: int
    """The segment size, or 0 for the default on this disk."""


@dataclass(frozen=True, slots=True)
class Options:
    directory: Path
    rounds: int
    divisor: int
    ledgers: int
    """The number of ledgers in the row `many-ledgers`."""


COMPACTED = (
    Compacted(50, 40_000, 0),
    Compacted(10, 200_000, 0),
    Compacted(10, 40_000, SEGMENT_BYTES_LEAST),
)
"""Long and short ledgers, and small segments.

At the beginning and end of a ledger the device is idle for a while, and the smaller the segments
are, the less of a ledger is contiguous.
"""


def show(row: str, what: str, unit: str, samples: list[float], **more: object) -> None:
    median = statistics.median(samples)
    line = {"row": row, "what": what, "median": round(median, 4), "unit": unit}
    line |= {"samples": [round(one, 4) for one in samples], **more}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


# -- index ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexCost:
    ledgers: int
    places: int
    seconds: float
    cpu_s: float
    cached_s: float
    """The start time with the index cache."""
    cached_cpu_s: float
    cache_bytes: int
    memory_bytes: int
    last_us: float


def index(options: Options) -> None:
    ledgers, each = 10_000 // options.divisor, 100
    costs: dict[Layout, list[IndexCost]] = {"long": [], "turn": []}
    for layout, found in costs.items():
        directory = options.directory / f"index-{layout}"
        rate = asyncio.run(_fill(directory, layout, ledgers, each))
        show("index", f"adds to {ledgers:,} ledgers, {layout}", "/s", [rate])
        for _ in range(options.rounds):
            # Each start gets its own process, so that memory is not reused.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found.append(pool.apply(_start_cost, (directory,)))
        shutil.rmtree(directory)
    long, turn = costs["long"], costs["turn"]
    per_ledger = [one.memory_bytes / one.ledgers for one in long]
    more = turn[0].places - long[0].places
    show("index", "memory of a ledger, with one place", "B", per_ledger, ledgers=ledgers)
    show(
        "index", "memory of a further place", "B",
        [(a.memory_bytes - b.memory_bytes) / more for a, b in zip(turn, long)], places=more,
    )  # fmt: skip
    entries = ledgers * each
    for layout, found in costs.items():
        memory = [one.memory_bytes / entries for one in found]
        show("index", f"memory by entries, {layout}", "B", memory)
        show("index", f"start, {layout}", "s", [one.seconds for one in found])
        by_place = [one.seconds * 1e6 / one.places for one in found]
        show("index", f"start by places, {layout}", "us", by_place, places=found[0].places)
        cpu = [one.cpu_s * 1e6 / one.places for one in found]
        show("index", f"start by places, {layout}, processor", "us", cpu)
        show("index", f"start from the cache, {layout}", "s", [one.cached_s for one in found])
        cpu = [one.cached_cpu_s * 1e6 / one.places for one in found]
        show("index", f"start from the cache by places, {layout}, processor", "us", cpu)
        size = [one.cache_bytes / one.places for one in found]
        show("index", f"index cache by places, {layout}", "B", size)
        show("index", f"last entry of a ledger, {layout}", "us", [one.last_us for one in found])


async def _fill(
    directory: Path, layout: Layout, ledgers: int, each: int, config: StorageConfig | None = None
) -> float:
    async with opened(directory, config) as store:
        return await fill(store, layout, ledgers, each, SIZE_BYTES)


def _start_cost(directory: Path) -> IndexCost:
    cache = directory / CACHE_NAME

    async def start(*, traced: bool, cached: bool) -> IndexCost:
        if not cached:
            cache.unlink(missing_ok=True)
        cache_bytes = cache.stat().st_size if cached else 0
        gc.collect()
        if traced:
            tracemalloc.start()
        began, cpu_began = time.perf_counter(), time.process_time()
        async with opened(directory) as store:
            seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
            gc.collect()
            memory = tracemalloc.get_traced_memory()[0] if traced else 0
            ledger_ids = store.ledger_ids()
            places = sum(sealed_rows.count(one.sealed) for one in store.ledgers.values())
            wanted = random.Random(1).choices(ledger_ids, k=LAST_LOOKUPS)
            began = time.perf_counter()
            for ledger_id in wanted:
                store.last_entry_id(ledger_id)
            last_us = (time.perf_counter() - began) * 1e6 / LAST_LOOKUPS
            return IndexCost(
                len(ledger_ids), places, seconds, cpu_s, seconds, cpu_s, cache_bytes, memory,
                last_us,
            )  # fmt: skip

    plain = asyncio.run(start(traced=False, cached=False))
    cached = asyncio.run(start(traced=False, cached=True))
    memory_bytes = asyncio.run(start(traced=True, cached=False)).memory_bytes
    return replace(
        plain,
        cached_s=cached.seconds,
        cached_cpu_s=cached.cpu_s,
        cache_bytes=cached.cache_bytes,
        memory_bytes=memory_bytes,
    )


# -- restart ----------------------------------------------------------------------------------


def restart(options: Options) -> None:
    asyncio.run(_restart(options))


async def _restart(options: Options) -> None:
    entries = 5_000_000_000 // (SIZE_BYTES + 64) // options.divisor
    ledgers = 10_000 // options.divisor
    directory = options.directory / "restart"
    with LocalCluster(1, directory) as cluster:
        [bookie] = cluster.bookies
        async with quire.connect(cluster.uri) as client:
            async with bench_core.ledgers(client, ALONE, ledgers, keep=True) as writers:
                await bench_core.add_in_turn(writers, Load(entries, SIZE_BYTES, 4_000))
            ledger_ids = [writer.ledger_id for writer in writers]
        log = sum(path.stat().st_size for path in bookie.directory.rglob("*.seg"))
        for how, end in (("stopped", bookie.stop), ("killed", bookie.kill)):
            samples = []
            for _ in range(options.rounds):
                await asyncio.to_thread(end)
                drop_caches(bookie.directory)
                began = time.perf_counter()
                await asyncio.to_thread(bookie.start)
                # Use a new client, because one that knew the bookie before would wait for its
                # retry.
                async with quire.connect(cluster.uri) as client:
                    reader = await client.open_ledger(random.choice(ledger_ids))
                    await reader.read_entry(0)
                    samples.append(time.perf_counter() - began)
            show("restart", f"{how}, to the first entry", "s", samples, log_mb=log // 10**6)


# -- many ledgers -----------------------------------------------------------------------------


def many(options: Options) -> None:
    ledgers = options.ledgers // options.divisor
    directory = options.directory / "many"
    # The ledgers are not in the metadata store, so there must be no garbage collection.
    arguments = ["--set", "segment_bytes=0", "--set", "gc_interval_s=86400"]
    with LocalCluster(1, directory, bookie_args=arguments) as cluster:
        [bookie] = cluster.bookies
        bookie.stop()
        context = multiprocessing.get_context("spawn")
        writing = context.Process(target=many_ledgers.write, args=(bookie.directory, ledgers))
        writing.start()
        writing.join()
        if writing.exitcode:
            raise SystemExit(f"The writing process ended with status {writing.exitcode}.")
        found = []
        for _ in range(options.rounds):
            found.append(many_ledgers.start(bookie, ledgers))
            bookie.kill()
    shutil.rmtree(directory)
    for at, place in enumerate(many_ledgers.PLACES):
        cached = "in the index cache" if at < many_ledgers.CACHED else "newer than the cache"
        what = f"killed, to the first entry of the ledger at {place:.0%}, {cached}"
        samples = [one.first_s[at] for one in found]
        show("many-ledgers", what, "s", samples, ledgers=ledgers)
        show("many-ledgers", f"{what}, processor", "s", [one.first_cpu_s[at] for one in found])
    for percent in (50, 99):
        samples = [many_ledgers.percentile(one.early_ms, percent) for one in found]
        show("many-ledgers", f"read while it loads, p{percent}", "ms", samples)
    show("many-ledgers", "killed, to writable", "s", [one.writable_s for one in found])
    cpu = [one.writable_cpu_s for one in found]
    show("many-ledgers", "killed, to writable, processor", "s", cpu)
    show("many-ledgers", "resident memory", "GB", [one.resident_gb for one in found])


# -- cold reads -------------------------------------------------------------------------------


def cold_read(options: Options) -> None:
    asyncio.run(_cold_read_alone(options))
    for layout in COMPACTED:
        asyncio.run(_cold_read_compacted(options, layout))
    asyncio.run(_cold_read_mixed(options))
    asyncio.run(_cold_read_scattered(options))


async def _cold_read_alone(options: Options) -> None:
    directory = options.directory / "alone"
    await _fill(directory, "long", 1, 2_000_000 // options.divisor)
    await _compare(options, directory, [1], "written alone")
    shutil.rmtree(directory)


async def _cold_read_compacted(options: Options, layout: Compacted) -> None:
    """Read one of the ledgers as it was written, then delete every second ledger and compact."""
    directory, ledgers = options.directory / "compacted", layout.ledgers
    entries = layout.each // options.divisor
    segment_bytes = layout.segment_bytes or segment_bytes_of(
        shutil.disk_usage(options.directory).total
    )
    config = StorageConfig(segment_bytes=segment_bytes)
    await _fill(directory, "turn", ledgers, entries, config)
    title = f"{entries:,} entries each, segments of {segment_bytes // MIB} MB"
    await _cold_read_in_turn(options, directory, f"{ledgers} ledgers in turn, {title}")
    eager = replace(
        config, compact_minor_interval_s=0.0, compact_major_interval_s=0.0, compact_bytes_per_s=0
    )
    async with opened(directory, eager) as store:
        store.drop_ledgers(range(1, ledgers + 1, 2))
        begin_by = time.monotonic() + COMPACTION_BEGINS_S
        deadline = time.monotonic() + COMPACTION_LIMIT_S
        while True:
            store.check_space()
            await asyncio.sleep(0.2)
            # A busy machine takes a while to begin, and for each segment.
            begun = store.stats().compactions > 0 or time.monotonic() > begin_by
            if begun and not any(one.reclaimable for one in store.usage()):
                break
            if time.monotonic() > deadline:
                raise SystemExit("The compaction did not finish in time.")
        if not store.stats().compactions:
            raise SystemExit("Nothing was compacted, because there are too few entries.")
    survivors = list(range(2, ledgers + 1, 2))
    await _compare(options, directory, survivors, f"after compaction, {title}")
    shutil.rmtree(directory)


async def _cold_read_mixed(options: Options) -> None:
    directory, ledgers = options.directory / "mixed", 10
    await _fill(directory, "mixed", ledgers, 400_000 // options.divisor // ledgers)
    await _cold_read_in_turn(options, directory, "ten ledgers in turn, of any size")
    shutil.rmtree(directory)


async def _cold_read_scattered(options: Options) -> None:
    """Read with many ledgers in turn, so that entries of other ledgers in between are skipped."""
    directory = options.directory / "scattered"
    for ledgers in SCATTERED_LEDGERS:
        each = 200_000 // options.divisor // ledgers
        await _fill(directory, "turn", ledgers, each)
        title = f"{ledgers:,} ledgers in turn, {each:,} entries each"
        some = SCATTERED_ENTRIES // each
        shares = [range(first, first + some) for first in range(1, ledgers, some)]
        await _cold_read_in_turn(options, directory, title, shares)
        shutil.rmtree(directory)


async def _cold_read_in_turn(
    options: Options, directory: Path, title: str, shares: Sequence[Sequence[int]] = ((1,),)
) -> None:
    """Read ledgers that are not compacted: runs of a few entries, separated by other ledgers'
    entries.

    The ledgers of one share are read in each round. After the last share follows the first one.
    """
    cold: list[float] = []
    cached: list[float] = []
    async with opened(directory) as store:
        for ledger_ids in islice(cycle(shares), options.rounds):
            drop_caches(directory)
            for rates in (cold, cached):
                size, seconds = await read_all(store, ledger_ids, READ_BYTES)
                rates.append(size / 1e6 / seconds)
    show("cold-read", f"cold read, {title}", "MB/s", cold)
    show("cold-read", f"the same once more, cached, {title}", "MB/s", cached)


async def _compare(options: Options, directory: Path, ledger_ids: list[int], title: str) -> None:
    cold, copies = [], []
    async with opened(directory) as store:
        for number in range(options.rounds + 1):
            drop_caches(directory)
            # Preallocated space contains nothing to read, and dead segments are about to be
            # deleted.
            alive = {
                one.number for one in store.usage() if one.state == "sealed" and one.live_bytes
            }
            full = [path for path in segments(directory) if int(path.stem, 16) in alive]
            copy = await asyncio.to_thread(copy_rate_mb_per_s, full)
            drop_caches(directory)
            size, seconds = await read_all(store, ledger_ids, READ_BYTES)
            if number:  # The first round does not count.
                cold.append(size / 1e6 / seconds)
                copies.append(copy)
        size, seconds = await read_all(store, ledger_ids, READ_BYTES)
        told = []
        # This comes last, because it slows down a copy that follows.
        for _ in range(options.rounds):
            drop_caches(directory)
            told.append(await asyncio.to_thread(told_rate_mb_per_s, full))
    show("cold-read", f"plain copy, {title}", "MB/s", copies)
    show("cold-read", f"brought where told, {title}", "MB/s", told)
    show("cold-read", f"cold read, {title}", "MB/s", cold)
    show("cold-read", f"the same once more, cached, {title}", "MB/s", [size / 1e6 / seconds])
    share = [a / b for a, b in zip(cold, copies)]
    show("cold-read", f"share of the copy, {title}", "", share, target="at least 0.7")


# -- adds beside a cold reader ----------------------------------------------------------------


def beside(options: Options) -> None:
    asyncio.run(_beside(options))


async def _beside(options: Options) -> None:
    rounds, entries = options.rounds, 1_500_000 // options.divisor
    paced = Load(max(10_000, 50_000 // options.divisor), SIZE_BYTES, 1)
    with LocalCluster(1, options.directory / "beside") as cluster:
        [bookie] = cluster.bookies
        async with quire.connect(cluster.uri) as client:
            cold = await bench_core.create(client, ALONE)
            await bench_core.add_many(cold, Load(entries, SIZE_BYTES, 4_000))
            await cold.close()
            alone: list[bench_core.RoundResult] = []
            busy: list[bench_core.RoundResult] = []
            for number in range(rounds + 1):
                for results in (alone, busy):
                    await asyncio.sleep(SETTLE_S)
                    reader = None
                    if results is busy:
                        reader = asyncio.create_task(
                            _read_for_ever(cluster.uri, cold.ledger_id, bookie.directory)
                        )
                        await asyncio.sleep(SETTLE_S)
                    async with bench_core.ledgers(client, ALONE) as [writer]:
                        result = await bench_core.measure(
                            paced, lambda: bench_core.add_paced(writer, paced, PACE_PER_S)
                        )
                    if reader is not None:
                        reader.cancel()
                        with suppress(asyncio.CancelledError):
                            await reader
                    if number:
                        results.append(result)
    for percent in (50, 99):
        for what, results in (("alone", alone), ("beside a cold reader", busy)):
            samples = [one.percentile_ms(percent) or 0.0 for one in results]
            show("beside", f"add, p{percent}, {what}", "ms", samples, rate_per_s=PACE_PER_S)


async def _read_for_ever(uri: str, ledger_id: int, directory: Path) -> None:
    """Read the ledger forever in a separate process, which finds nothing cached."""
    process = await asyncio.create_subprocess_exec(
        *QUIRE, "bench", "read", "--metadata", uri,
        "--ledger", str(ledger_id), "--rounds", "1000000", stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while process.returncode is None:
            await asyncio.to_thread(drop_caches, directory)
            await asyncio.sleep(DROP_INTERVAL_S)
        raise SystemExit(f"The reader ended unexpectedly with status {process.returncode}.")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


# -- the command ------------------------------------------------------------------------------

ROWS: dict[str, Callable[[Options], None]] = {
    "index": index,
    "restart": restart,
    "many-ledgers": many,
    "cold-read": cold_read,
    "beside": beside,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3, help="the number of samples per figure")
    parser.add_argument("--quick", action="store_true", help="use a fifth of the entries")
    parser.add_argument(
        "--ledgers", type=int, default=1_000_000, help="the ledgers of many-ledgers (1,000,000)"
    )
    parser.add_argument("--dir", type=Path, help="the directory in which data is written")
    parser.add_argument("--list", action="store_true", help="print the rows and exit")
    given = parser.parse_args()
    if given.list:
        print("\n".join(ROWS))
        return
    # Use the same settings as `quire bookie`.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_heap()
    collect_on_demand()
    if given.dir is not None:
        given.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quire-disk-", dir=given.dir) as directory:
        divisor = QUICK_DIVISOR if given.quick else 1
        options = Options(Path(directory), max(1, given.rounds), divisor, given.ledgers)
        for name in given.rows:
            ROWS[name](options)


if __name__ == "__main__":
    main()
