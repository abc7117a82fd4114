"""A Spark driver that tests kill: `python driver.py '{"mode": "query", ...}'`.

It exits with 0 when everything is written, and with 3 when the query or the job failed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import faults
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quire.spark import local_session

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.4",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
FAILED = 3


def main(arguments: dict[str, Any]) -> int:
    # The workers cannot import the modules of the tests.
    cloudpickle.register_pickle_by_value(faults)
    spark = local_session(
        "exactly once",
        master=arguments["master"],
        settings={**SPECULATION, "spark.local.dir": arguments["scratch"],
                  "spark.sql.warehouse.dir": arguments["scratch"]},
    )  # fmt: skip
    spark.dataSource.register(faults.FaultyStreams)
    spark.dataSource.register(faults.Numbers)
    try:
        {"query": run_query, "job": run_job, "numbers": run_numbers}[arguments["mode"]](
            spark, arguments
        )
    except PySparkException as error:
        print(f"failed: {error}", flush=True)
        return FAILED
    print("done", flush=True)
    return 0


def run_query(spark: SparkSession, arguments: dict[str, Any]) -> None:
    rows = spark.readStream.format("quire").options(**arguments["reading"]).load().select("value")
    writer = rows.writeStream.format("quire_faulty_streams").options(**arguments["writing"])
    query = writer.option("checkpointLocation", arguments["checkpoint"])
    query.trigger(availableNow=True).start().awaitTermination()


def run_numbers(spark: SparkSession, arguments: dict[str, Any]) -> None:
    """Write numbers until the file that stops them exists. A query that fails starts again."""
    name = arguments["writing"]["writerId"]
    rows = spark.readStream.format("quire_numbers").options(**arguments["reading"]).load()
    rows = rows.selectExpr(f"concat('{name}:', value) AS value")
    writer = rows.writeStream.format("quire_faulty_streams").options(**arguments["writing"])
    writer = writer.option("checkpointLocation", arguments["checkpoint"])
    while True:
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            return
        except PySparkException as error:
            print(f"starts again: {error}", flush=True)


def run_job(spark: SparkSession, arguments: dict[str, Any]) -> None:
    count, partitions = arguments["reading"]["total"], arguments["reading"]["partitions"]
    rows = spark.range(0, int(count), 1, int(partitions)).selectExpr("string(id) AS value")
    writer = rows.write.format("quire_faulty_streams").mode("append")
    writer.options(**arguments["writing"], txnId="the job").save()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
