"""Streams and ledgers in Spark: the data source `quire`.

    from pyspark.sql import SparkSession
    from quire.spark import configure

    spark = configure(SparkSession.builder).getOrCreate()
    frame.write.format("quire").option("dataset", "flights").mode("append").save()
    spark.read.format("quire").option("dataset", "flights").load()
    spark.read.format("quire").option("ledgers", "7,8,9").load()
    spark.read.format("quire").option("stream", "orders").load()
    spark.readStream.format("quire").option("streamPattern", "orders/*").load()
    frame.write.format("quire").option("stream", "orders").mode("append").save()
    frame.writeStream.format("quire").option("stream", "orders").option("writerId", "me").start()
    spark.read.format("quire").option("table", "segments").load()

The guides `docs/guides/spark/spark.md`, `spark-streaming.md` and `datasets.md` show how to use it.
`docs/reference/spark-options.md` lists every option and column, and the limits of Spark.
"""

from quire.spark.package_shipping import package_zip, ship
from quire.spark.session import configure, lag_listener, local_session, register, sweep_orphans

__all__ = [
    "configure",
    "lag_listener",
    "local_session",
    "package_zip",
    "register",
    "ship",
    "sweep_orphans",
]
