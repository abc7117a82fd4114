#!/usr/bin/env python3
"""Measure how long a record takes from its append to the sink's `write`, per trigger interval.

    make bench-spark-latency
    make bench-spark-latency ARGS="--seconds 60 --rate 5000"

A trivial source that generates its rows is measured in the same run for comparison. Prints a table
in Markdown. The time of a record begins just before its append, or when it is due in the trivial
source. It ends when the record's batch arrives in `write`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import trivial
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from quire import blocking
from quire.blocking import Namespace
from quire.spark import local_session
from quire.testing.cluster import LocalCluster

NAMESPACE = "/bench/follow"
STREAM = "s"
INTERVALS_S = (0.0, 0.1, 0.5, 1.0, 5.0)
FIRST_LIMIT_S = 60.0
"""The longest wait for the first record of a query."""
WARM_UP_S = 5.0
"""Seconds after the first record that do not count."""
TRIGGERS_MIN = 6
"""The least number of triggers of the longest interval."""
NS_PER_MS = 1e6


class Writer:
    """Appends the current time at a steady rate."""

    def __init__(self, streams: Namespace, rate_per_s: int) -> None:
        self._streams, self._rate = streams, rate_per_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        # At most 500 appends per second, each with several records.
        each = max(1, self._rate // 500)
        began, written = time.monotonic(), 0
        with self._streams.open_writer(STREAM) as writer:
            while not self._stop.wait(max(0.0, began + written / self._rate - time.monotonic())):
                writer.append_many([b"%d" % time.time_ns()] * each)
                written += each

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def measure(rows: DataFrame, interval_s: float, seconds: float) -> list[float]:
    """Return the latencies in milliseconds, in ascending order."""
    with tempfile.TemporaryDirectory() as scratch:
        arrivals = Path(scratch, "arrivals")
        arrivals.mkdir()
        query = (
            rows.select("value")
            .writeStream.format("arrivals")
            .option("directory", str(arrivals))
            .option("checkpointLocation", str(Path(scratch, "checkpoint")))
            .trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")
            .start()
        )
        try:
            began = time.monotonic()
            while not any(arrivals.iterdir()) and time.monotonic() < began + FIRST_LIMIT_S:
                query.awaitTermination(1)
            query.awaitTermination(round(WARM_UP_S))
            after = time.time_ns()
            query.awaitTermination(round(max(seconds, interval_s * TRIGGERS_MIN)))
        finally:
            query.stop()
        took: list[int] = []
        for file in arrivals.iterdir():
            if int(file.name.split("-")[0]) > after:
                took += json.loads(file.read_text())
        return sorted(ns / NS_PER_MS for ns in took)


def cell(took: list[float]) -> str:
    if not took:
        return "no records | "
    p99 = took[min(len(took) - 1, round(len(took) * 0.99))]
    return f"{statistics.median(took):,.0f} ms | {p99:,.0f} ms"


def table(spark: SparkSession, uri: str, options: argparse.Namespace) -> None:
    def ours() -> DataFrame:
        reader: Any = spark.readStream.format("quire").option("metadata", uri)
        reader = reader.option("namespace", NAMESPACE).option("stream", STREAM)
        return reader.option("start", "latest").option("columns", "value").load()

    def theirs() -> DataFrame:
        return spark.readStream.format("trivial").option("rate", str(options.rate)).load()

    print("| trigger interval | Quire, p50 | p99 | trivial source, p50 | p99 |")
    print("| --- | --- | --- | --- | --- |")
    for interval_s in options.intervals:
        found = [measure(make(), interval_s, options.seconds) for make in (ours, theirs)]
        print(f"| {interval_s:g} s | {cell(found[0])} | {cell(found[1])} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="the length of a query (20)")
    parser.add_argument("--rate", type=int, default=500, help="records per second (500)")
    parser.add_argument("--intervals", type=float, nargs="+", default=INTERVALS_S, metavar="S")
    options = parser.parse_args()
    cloudpickle.register_pickle_by_value(trivial)  # The workers cannot import it.
    with LocalCluster(bookies=3) as cluster, tempfile.TemporaryDirectory() as scratch:
        spark = local_session("latency", settings={"spark.local.dir": scratch})
        spark.sparkContext.setLogLevel("OFF")  # Spark logs errors about tasks of a stopped query.
        try:
            for source in (trivial.TrivialSource, trivial.ArrivalSink):
                spark.dataSource.register(source)
            with (
                blocking.connect(cluster.uri) as client,
                client.namespace(NAMESPACE, create=True) as streams,
            ):
                streams.create_stream(STREAM)
                writer = Writer(streams, options.rate)
                try:
                    table(spark, cluster.uri, options)
                finally:
                    writer.close()
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
