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

`docs/guides/spark.md` is the guide for streams and tables. What follows is about ledgers and
datasets.

The option `metadata` names the cluster; its default is QUIRE_METADATA in the environment of the
driver when Spark starts. Passwords (`password`; default: QUIRE_PASSWORD of the driver, which no
statement of SQL and no script shows) are not shown in plans, messages or logs. `tlsCa`,
`tlsCert` and `tlsKey` (files on every machine that runs tasks; defaults: QUIRE_TLS_CA,
QUIRE_TLS_CERT, QUIRE_TLS_KEY of the driver) secure the connections to bookies.

**Reading.** Columns `ledger_id`, `entry_id`, `length` (payload bytes of the entry) and `value`.
`dataset`, `ledger` or `ledgers` says what to read. A dataset is read as it is when the query is
planned. Reading by ledger id goes past publication: it also shows what failed attempts left. Of a
ledger that is still open, what is acknowledged now is read; with `recover` (false) it is fenced and
closed first.

Spark does not tell a Python source which columns a query needs. Say it with `columns`
("ledger_id,entry_id"), with `value` = false, or with `.schema("entry_id long")`. What that saves:
without `value` the payloads still come from the bookies (the protocol has no other read) and are
checked, they only do not go on to the JVM; without `length` as well no bookie is asked, the rows
are made from the metadata.

Tasks: at most `partitionBytes` (64m) and `partitionEntries`, at least `minPartitions`; several
tasks share a large ledger, small ledgers share a task. With `pushdown` (false) comparisons of
`ledger_id` and `entry_id` with constants choose what is read.

**Writing.** One entry per row: the column `value` (binary or string), or the only column, or
`valueColumn`; of several columns none is left out silently. Each task writes one ledger (`ensemble`
3, `writeQuorum` 3, `ackQuorum` 2, `digest` crc32c, `placement` as `--placement` of the commands has
it); rows of a partition keep their order. The commit publishes all of them at once as `dataset`:
mode `append` adds; mode `overwrite` replaces the set and then deletes the ledgers that were in it
(queries that still read them fail and say so). A job that fails publishes nothing.

With `txnId` a write is idempotent, across restarts of the driver too: a dataset remembers its
newest 1,000 ids. Without it a job publishes at most once. `sweep_orphans` deletes what killed tasks
and drivers leave behind.

**Limits of Spark 4.3.** It plans a DataFrame (or view) of a Python source once, for its first
query: load it again to see what came later. With `pushdown` that plan has only what the query's
filters leave, and the next query on the same DataFrame, or the other side of a self-join, gets no
more: set it only on a DataFrame that serves one query. A table (`CREATE TABLE ... USING quire`)
does not hand its options to a Python source: use `CREATE TEMPORARY VIEW`. Writing finds a Python
format only in a thread in which the session is active, such as the one that made it; other threads
get DATA_SOURCE_NOT_FOUND unless they call
`spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)` first.
"""

from quire.spark.session import configure, lag_listener, local_session, register, sweep_orphans
from quire.spark.ship import package_zip, ship

__all__ = [
    "configure",
    "lag_listener",
    "local_session",
    "package_zip",
    "register",
    "ship",
    "sweep_orphans",
]
