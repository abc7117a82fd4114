"""A program that runs Spark in a typical setup: `python where.py '{"mode": "connect", ...}'`.

The last line on standard output is the result as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from quire.errors import QuireError
from quire.spark import configure, local_session, ship
from quire.spark.failures import one_error
from quire.spark.jobs import ClusterOptions, compact, ingest
from quire.spark.jobs.compact import RecordKey, compacted
from quire.spark.jobs.ingest import IngestTarget
from quire.spark.jobs.tasks import run_pieces

RECORDS = 300
KEYS = 7
WAIT_S = 120.0
"""The longest time that executors may take to go."""


def main(arguments: dict[str, Any]) -> None:
    mode = {"connect": connect, "executors": executors, "dynamic": dynamic}[arguments["mode"]]
    print(json.dumps(mode(arguments)), flush=True)


def connect(arguments: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    spark = configure(SparkSession.builder.remote("local[2]").getOrCreate())
    found = everything(spark, arguments)
    found["session"] = type(spark).__module__
    spark.stop()
    return found


def executors(arguments: dict[str, Any]) -> dict[str, Any]:
    """Run Spark with executor processes whose Python does not have Quire, so that it is shipped."""
    events = Path(arguments["scratch"], "events")
    events.mkdir()
    spark = local_session(
        "where",
        master="local-cluster[2,1,1024]",
        settings={
            "spark.local.dir": arguments["scratch"],
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": "",  # The driver has one.
            "spark.sql.warehouse.dir": arguments["scratch"],
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        },
    )
    before = pythons_with_quire(spark)
    ship(spark)
    found = everything(spark, arguments)
    found["before"], found["after"] = before, pythons_with_quire(spark)
    spark.stop()
    found["events"] = [str(path) for path in events.rglob("*") if path.is_file()]
    return found


def dynamic(arguments: dict[str, Any]) -> dict[str, Any]:
    """Write and follow a stream while executors come when they are needed, and go when idle."""
    spark = local_session(
        "where",
        master="local-cluster[2,1,1024]",
        settings={
            "spark.local.dir": arguments["scratch"],
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.warehouse.dir": arguments["scratch"],
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.maxExecutors": "2",
            "spark.dynamicAllocation.executorIdleTimeout": "1s",
        },
    )
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    counts: list[int] = []

    def executors_now() -> int:
        return len(tracker.getExecutorInfos()) - 1  # One of them is the driver.

    def wait_until_idle() -> None:
        counts.append(executors_now())
        limit_s = time.monotonic() + WAIT_S
        while executors_now() and time.monotonic() < limit_s:
            time.sleep(0.1)
        counts.append(executors_now())

    cluster = ClusterOptions(arguments["metadata"], arguments["password"].encode())
    options = cluster.options()
    target = IngestTarget("where", create=True, order_by="number")
    for first in (0, RECORDS):
        frame = spark.range(first, first + RECORDS, 1, 3).selectExpr("id AS number")
        ingest(spark, cluster, frame, target)
        wait_until_idle()
        source = spark.readStream.format("quire").options(**options, stream="where").load()
        query = (
            source.select("value").writeStream.format("quire")
            .options(**options, stream="copy", createStream="true", writerId="where",
                     checkpointLocation=str(Path(arguments["scratch"], "checkpoint")))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(WAIT_S)
        wait_until_idle()
    copied = spark.read.format("quire").options(**options, stream="copy").load()
    values = [bytes(row.value).decode() for row in copied.select("value").collect()]
    spark.stop()
    return {"counts": counts, "numbers": [json.loads(value)["number"] for value in values]}


def pythons_with_quire(spark: Any) -> list[str]:
    """Return the places from which the tasks' Pythons import Quire, each "" if it is not found."""

    def look(batches: Any) -> Any:
        import importlib.util

        import pyarrow as pa

        for batch in batches:
            spec = importlib.util.find_spec("quire")
            where = "" if spec is None else str(spec.origin)
            yield pa.RecordBatch.from_pydict({"found": [where] * batch.num_rows})

    rows = spark.range(4, numPartitions=4).mapInArrow(look, "found string").distinct().collect()
    return sorted(row.found for row in rows)


def everything(spark: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Use most features in one session, and return what they gave.

    These are reads, writes, a streaming query, a table of metadata, jobs, and an error.
    """
    cluster = ClusterOptions(arguments["metadata"], arguments["password"].encode())
    options = {**cluster.options(), "stream": "where"}
    frame = spark.range(0, RECORDS, 1, 3).selectExpr(f"id % {KEYS} AS key", "id AS number")
    written = ingest(spark, cluster, frame, IngestTarget("where", create=True, order_by="number"))
    rows = spark.read.format("quire").options(**options).load()
    table = spark.read.format("quire").options(**cluster.options(), table="streams").load()
    found = {
        "written": written.records,
        "values": [bytes(row.value).decode() for row in rows.select("value").collect()],
        "table": [row.stream for row in table.collect()],
        "pieces": run_pieces(spark, [{"a": n} for n in range(3)], doubled, what="pieces"),
    }
    target = str(Path(arguments["scratch"], "table"))
    compact(spark, cluster, "where", RecordKey("key"), to=target)
    latest = compacted(spark, target).selectExpr(
        "key", "get_json_object(string(value), '$.number')"
    )
    found["latest"] = {row[0]: int(row[1]) for row in latest.collect()}
    source = spark.readStream.format("quire").options(**options, maxRecordsPerTrigger=100).load()
    writer = source.select("value").writeStream.format("quire")
    writer = writer.options(
        **{**options, "stream": "copy"}, createStream="true", writerId="where"
    ).option("checkpointLocation", str(Path(arguments["scratch"], "checkpoint")))
    query = writer.trigger(availableNow=True).start()
    found["ended"] = query.awaitTermination(60)
    found["progress"] = json.dumps([json.loads(one.json) for one in query.recentProgress])
    copied = spark.read.format("quire").options(**{**options, "stream": "copy"}).load()
    found["copied"] = [bytes(row.value).decode() for row in copied.select("value").collect()]
    try:
        spark.read.format("quire").options(**{**options, "stream": "wheer"}).load().count()
    except Exception as error:  # noqa: BLE001 - of whatever kind of session this is
        told = one_error(error, "reading")
        found["told"] = f"{isinstance(told, QuireError)} {told}"
    return found


def doubled(piece: Any) -> Any:
    return {"b": piece["a"] * 2}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
