#!/usr/bin/env python3
"""Where tailing bends: readers that follow one ledger, over their number and the rate of appends.

    make bench-tailing
    make bench-tailing ARGS="--apart --readers 1,10,100"

One writer appends 1 KB at a fixed rate to a cluster of three bookies, and tells its LAC after a
millisecond without an append. Prints a row in Markdown for each number of readers: from the
acknowledgement to the reader, p50 / p99, and the CPU of the process for each entry that a reader
got. Behind a rate that the readers do not keep up with, higher ones are left out.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import quire
from quire._runtime.heap import collect_on_demand
from quire.cli.bench.core import Load, RoundResult, Shape, add_many, ledgers
from quire.cli.bench.tail import open_all, tail_paced
from quire.cli.common.options import run_async
from quire.testing.cluster import LocalCluster

SHAPE = Shape()
ENTRY_BYTES = 1_024
WARM_UP_ENTRIES = 2_000
DELIVERIES_MAX = 2_000_000
"""In one cell, some 100 bytes each: with many readers it is shorter than `--seconds`."""
LAG_LIMIT_S = 3.0
"""Behind the last append of a cell."""
EXPLICIT_LAC_MS = 1


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


async def cell(
    writing: quire.Client,
    following: list[quire.Client],
    readers: int,
    rate: int,
    seconds: float,
) -> RoundResult | None:
    """None: they do not keep up."""
    gc.collect()  # what the one before has left
    entries = max(min(int(rate * seconds), DELIVERIES_MAX // readers), 1)
    async with ledgers(writing, SHAPE) as writers:
        opened = await open_all(following[:readers], writers[0].ledger_id, readers)
        load = Load(entries, ENTRY_BYTES, 1)
        try:
            return await tail_paced(writers[0], opened, load, rate, lag_limit_s=LAG_LIMIT_S)
        except TimeoutError:
            return None


def shown(result: RoundResult | None) -> str:
    if result is None:
        return f"more than {LAG_LIMIT_S:.0f} s"
    p50, p99 = (result.percentile_ms(percent, since_acked=True) or 0.0 for percent in (50, 99))
    return f"{p50:.1f} / {p99:.1f} ms, {result.delivery_cpu_us or 0.0:.1f} us"


async def table(uri: str, options: argparse.Namespace) -> None:
    config = quire.ClientConfig(explicit_lac_interval_s=EXPLICIT_LAC_MS / 1000)
    print("| readers | " + " | ".join(f"{rate:,}/s" for rate in options.rates) + " |")
    print("|---|" + "---|" * len(options.rates), flush=True)
    async with AsyncExitStack() as stack:
        writing = await stack.enter_async_context(quire.connect(uri, config=config))
        count = max(options.readers) if options.apart else 1
        following = [await stack.enter_async_context(quire.connect(uri)) for _ in range(count)]
        async with ledgers(writing, SHAPE) as writers:
            await add_many(writers[0], Load(WARM_UP_ENTRIES, ENTRY_BYTES, 100))
        collect_on_demand()  # else each look at all objects shows as late entries
        for readers in options.readers:
            cells: list[str] = []
            keep_up = True
            for rate in options.rates:
                if not keep_up:
                    cells.append("")
                    continue
                result = await cell(writing, following, readers, rate, options.seconds)
                keep_up = result is not None
                cells.append(shown(result))
            print(f"| {readers:,} | " + " | ".join(cells) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readers", type=numbers, default=[1, 10, 100, 300, 1000])
    parser.add_argument("--rates", type=numbers, default=[100, 300, 1000, 3000, 10_000])
    parser.add_argument("--seconds", type=float, default=4.0, help="of appends in each cell")
    parser.add_argument("--apart", action="store_true", help="a client for each reader")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(bookies=3, directory=Path(directory)) as cluster,
    ):
        run_async(table(cluster.uri, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
