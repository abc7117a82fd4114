#!/usr/bin/env python3
"""Measure how fast a stream is offloaded, and how fast its files are read again.

    .venv/bin/python bench/spark/offload.py
    .venv/bin/python bench/spark/offload.py --mib 256 --record-bytes 100 --tasks 1 2 4

Prints a table in Markdown with medians, and the lowest and highest round in parentheses. "client"
is one process that reads the stream once, in batches. "offload" is the whole job with this number
of parallel tasks: records are read, written, synced, read back and compared. "history" counts the
values of the files. A first round warms everything up and does not count. Records are random bytes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rates import measured

from quire import blocking
from quire.blocking import Namespace
from quire.spark import local_session
from quire.spark.jobs import ClusterOptions, history, offload
from quire.streams import RecordBatch
from quire.testing.cluster import LocalCluster

NAMESPACE = "/bench/offload"
STREAM = "s"
SEGMENTS = 8
APPEND_BYTES = 1024 * 1024


def write(streams: Namespace, size_bytes: int, record_bytes: int) -> int:
    """Write the stream and return the number of records."""
    chance = random.Random(1)
    payloads = [chance.randbytes(record_bytes) for _ in range(APPEND_BYTES // record_bytes)]
    each = max(1, size_bytes // SEGMENTS // APPEND_BYTES)
    with streams.open_writer(STREAM, create=True) as writer:
        for _ in range(SEGMENTS):
            for _ in range(each):
                writer.append_many(payloads)
            writer.roll()
    return SEGMENTS * each * len(payloads)


def client_reads(streams: Namespace) -> int:
    rows = 0
    for batch in streams.open_reader(STREAM).batches():
        assert isinstance(batch, RecordBatch)  # Nothing of the stream was truncated.
        rows += len(batch)
    return rows


def offloads(spark: SparkSession, uri: str, directory: Path, file_bytes: int) -> int:
    with tempfile.TemporaryDirectory(dir=directory) as target:
        result = offload(
            spark, ClusterOptions(uri), NAMESPACE, STREAM, target, file_bytes=file_bytes
        )
    return result.records


def history_reads(spark: SparkSession, uri: str, target: str) -> int:
    frame = history(spark, ClusterOptions(uri), NAMESPACE, STREAM, target)
    row = frame.agg(F.count("value"), F.sum(F.crc32("value"))).collect()[0]
    return int(row[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=512, help="MiB of payload to write")
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--file-mib", type=int, default=64)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with (
        LocalCluster(bookies=3) as cluster,
        blocking.connect(cluster.uri) as client,
        client.namespace(NAMESPACE, create=True) as streams,
        tempfile.TemporaryDirectory() as scratch,
    ):
        records = write(streams, given.mib << 20, given.record_bytes)
        rate = partial(
            measured, each_bytes=given.record_bytes, rounds=given.rounds, expected=records
        )
        print(f"{records:,} records of {given.record_bytes} bytes in {SEGMENTS} segments, E=W=3\n")
        print("| | MB/s (low-high) | records/s |\n|---|---|---|")
        print(f"| client, 1 process | {rate(partial(client_reads, streams))}")
        for tasks in given.tasks:
            spark = local_session("offload", master=f"local[{tasks}]")
            try:
                job = partial(offloads, spark, cluster.uri, Path(scratch), given.file_mib << 20)
                row = rate(job)
                print(f"| offload, {tasks} tasks at once | {row}", flush=True)
                with tempfile.TemporaryDirectory(dir=scratch) as target:
                    offload(spark, ClusterOptions(cluster.uri), NAMESPACE, STREAM, target)
                    read = partial(history_reads, spark, cluster.uri, target)
                    row = rate(read)
                print(f"| history, {tasks} tasks at once | {row}", flush=True)
            finally:
                spark.stop()


if __name__ == "__main__":
    main()
