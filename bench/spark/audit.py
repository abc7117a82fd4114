#!/usr/bin/env python3
"""Measure how fast an audit reads, beside the client's own reads, in rounds of one run.

    .venv/bin/python bench/spark/audit.py
    .venv/bin/python bench/spark/audit.py --mib 256 --entry-bytes 100 --tasks 1 2 4

Prints a table in Markdown with medians, and the lowest and highest round in parentheses. "client"
is one process that reads all ledgers once, each entry from one replica. "audit" is the whole job
with this number of parallel tasks. It reads every entry from three replicas, and its MB/s and
entries count replicas. A first round warms everything up and does not count.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from pyspark.sql import SparkSession
from rates import measured

from quire import blocking, connect
from quire.spark import local_session
from quire.spark.jobs import ClusterOptions, audit
from quire.testing.cluster import LocalCluster

LEDGERS = 4
APPEND_BYTES = 1024 * 1024


def write(uri: str, size_bytes: int, entry_bytes: int) -> int:
    """Write the ledgers and return the number of entries."""
    payloads = [b"x" * entry_bytes] * max(1, APPEND_BYTES // entry_bytes)
    each = max(1, size_bytes // LEDGERS // entry_bytes // len(payloads))
    with blocking.connect(uri) as client:
        for _ in range(LEDGERS):
            with client.create_ledger() as writer:
                for _ in range(each):
                    writer.append_many(payloads)
    return LEDGERS * each * len(payloads)


async def read_all(uri: str) -> int:
    entries = 0
    async with connect(uri) as client:
        async for ledger_id in client.list_ledgers():
            async with await client.open_ledger(ledger_id) as reader:
                async for run in reader.read_runs():
                    entries += len(run)
    return entries


def client_reads(uri: str) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(read_all(uri))


def audits(spark: SparkSession, uri: str, expected: int) -> int:
    result = audit(spark, ClusterOptions(uri))
    # The end of a ledger may have fewer replicas if a bookie was slow when it was closed.
    assert result.entries >= 2 * expected, result
    return result.entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=512, help="MiB of payload to write")
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with LocalCluster(bookies=3) as cluster:
        entries = write(cluster.uri, given.mib << 20, given.entry_bytes)
        print(f"{entries:,} entries of {given.entry_bytes} bytes in {LEDGERS} ledgers, E=W=3\n")
        print("| read by | MB/s (low-high) | entries/s |\n|---|---|---|")
        row = measured(lambda: client_reads(cluster.uri), given.entry_bytes, given.rounds)
        print(f"| client, 1 process | {row}", flush=True)
        for tasks in given.tasks:
            spark = local_session("audit", master=f"local[{tasks}]")
            try:
                row = measured(
                    partial(audits, spark, cluster.uri, entries),
                    given.entry_bytes,
                    given.rounds,
                )
                print(f"| audit, {tasks} tasks at once | {row}", flush=True)
            finally:
                spark.stop()


if __name__ == "__main__":
    main()
