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

`docs/guides/spark.md` is the guide for streams and tables. The rest of this text is about ledgers
and datasets.

The option `metadata` selects the cluster. Its default is QUIRE_METADATA in the environment of the
driver when Spark starts. The default of `password` is QUIRE_PASSWORD in the same environment, so
that no SQL statement and no script needs to contain it. Passwords do not appear in plans, messages
or logs. `tlsCa`, `tlsCert` and `tlsKey` secure the connections to bookies. They are files on every
machine that runs tasks, and their defaults are QUIRE_TLS_CA, QUIRE_TLS_CERT and QUIRE_TLS_KEY of
the driver.

**Reading.** The columns are `ledger_id`, `entry_id`, `length` (the payload bytes of the entry) and
`value`. The option `dataset`, `ledger` or `ledgers` selects what to read. A dataset is read as it
is when the query is planned. Reading by ledger id ignores publication, so it also shows what failed
attempts left. Of an open ledger, the query reads what is acknowledged now. With `recover` (default
false) the ledger is fenced and closed first.

Spark does not tell a Python source which columns a query needs. Select them with `columns`
("ledger_id,entry_id"), with `value` = false, or with `.schema("entry_id long")`. Without `value`
the payloads still come from the bookies, because the protocol has no other read, and are checked.
They only do not go to the JVM. Without `length` as well, no bookie is asked: the rows are made from
the metadata.

A task reads at most `partitionBytes` (default 64m) and `partitionEntries`, and there are at least
`minPartitions` tasks. Several tasks share a large ledger, and small ledgers share a task. With
`pushdown` (default false) comparisons of `ledger_id` and `entry_id` with constants reduce what is
read.

**Writing.** Each row becomes one entry. Its payload is the column `valueColumn`, else the column
`value` (binary or string), else the only column. No further column is dropped silently. Each task
writes one ledger (`ensemble` 3, `writeQuorum` 3, `ackQuorum` 2, `digest` crc32c, and `placement` in
the form of `--placement` of the commands). The rows of a partition keep their order. The commit
publishes all ledgers at once as `dataset`. Mode `append` adds them. Mode `overwrite` replaces the
dataset and then deletes its former ledgers, so that queries which still read them fail with an
error. A job that fails publishes nothing.

With `txnId` a write is idempotent, even if the driver restarts: a dataset remembers its newest
1,000 ids. Without it a job publishes at most once. `sweep_orphans` deletes the ledgers that killed
tasks and drivers leave behind.

**Limits of Spark 4.3.**

- Spark plans a DataFrame (or view) of a Python source once, for its first query. Load it again to
  see what came later. With `pushdown` that plan has only what the filters of the first query leave.
  The next query on the same DataFrame, or the other side of a self-join, gets no more. Set
  `pushdown` only on a DataFrame that serves one query.
- A table (`CREATE TABLE ... USING quire`) does not pass its options to a Python source. Use `CREATE
  TEMPORARY VIEW` instead.
- Writing finds a Python format only in a thread in which the session is active, such as the one
  that created it. Other threads get DATA_SOURCE_NOT_FOUND unless they call
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
