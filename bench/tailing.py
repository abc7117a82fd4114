#!/usr/bin/env python3
"""Measure where tailing reaches its limits, by the number of readers and the append rate.

    make bench-tailing
    make bench-tailing ARGS="--apart --readers 1,10,100"

One writer appends entries of 1 KB at a fixed rate to a cluster of three bookies, and sends its LAC
after a millisecond without an append. Prints a row in Markdown for each number of readers: the p50
and p99 from the acknowledgement to the reader, and the CPU time of the process for each delivered
entry. Rates above the first one at which the readers cannot keep up are skipped.
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
"""The most deliveries in one cell, each about 100 bytes. With many readers a cell is shorter."""
LAG_LIMIT_S = 3.0
"""The longest time that readers may take after the last append of a cell."""
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
    """Measure one cell, or return None if the readers do not keep up."""
    gc.collect()  # Free what the previous cell left.
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
        collect_on_demand()  # Otherwise every full collection shows as late entries.
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
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="the length of the appends in each cell"
    )
    parser.add_argument("--apart", action="store_true", help="use a client for each reader")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(bookies=3, directory=Path(directory)) as cluster,
    ):
        run_async(table(cluster.uri, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
