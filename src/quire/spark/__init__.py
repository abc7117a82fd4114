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

The guides are `docs/guides/spark.md` (set up and read streams) and `docs/guides/spark-streaming.md`
(follow and write streams). `docs/reference/spark-options.md` lists every option and column. This
page describes ledgers and datasets. Values in parentheses are defaults.

The option `metadata` names the cluster. Its default is QUIRE_METADATA in the environment of the
driver when Spark starts. Passwords are given by `password` or by QUIRE_PASSWORD of the driver. They
are not shown in plans, messages or logs. `tlsCa`, `tlsCert` and `tlsKey` (or QUIRE_TLS_CA,
QUIRE_TLS_CERT, QUIRE_TLS_KEY of the driver) secure the connections to bookies. They name files,
which must exist on every machine that runs tasks.

**Reading.** The columns are `ledger_id`, `entry_id`, `length` (payload bytes of the entry) and
`value`. The option `dataset`, `ledger` or `ledgers` selects what is read. A dataset is read as it
is when the query is planned. Reading by ledger id also shows ledgers that failed attempts left and
never published. An open ledger is read up to what is acknowledged now. With `recover` (false) it is
fenced and closed first.

Spark does not tell a Python source which columns a query needs. Select them with `columns`
("ledger_id,entry_id"), with `value` = false, or with `.schema("entry_id long")`. Without `value`
the payloads are still read from the bookies and checked, because the protocol has no other read,
but they are not sent to the JVM. Without `length` as well no bookie is asked: the rows are made
from the metadata.

A task reads at most `partitionBytes` (64m) and `partitionEntries`, and there are at least
`minPartitions` tasks. Several tasks share a large ledger, and small ledgers share a task. With
`pushdown` (false) comparisons of `ledger_id` and `entry_id` with constants select what is read.

**Writing.** Each row becomes an entry: the column `value` (binary or string), the only column, or
the one that `valueColumn` names. If there are several other columns, the write is refused. Each
task writes one ledger, and rows of a partition keep their order. The options `ensemble` (3),
`writeQuorum` (3), `ackQuorum` (2), `digest` (crc32c) and `placement` have the same values as in
commands. The commit publishes all ledgers at once as `dataset`. The mode `append` adds to it. The
mode `overwrite` replaces it and then deletes its former ledgers; queries that still read them fail.
A job that fails publishes nothing.

With `txnId` a write is idempotent, also across restarts of the driver: a dataset remembers its
newest 1,000 ids. Without it a job publishes at most once. `sweep_orphans` deletes ledgers that
killed tasks and drivers left.

**Limits of Spark 4.3.** Spark plans a DataFrame or view of a Python source once, for its first
query. Load it again to see later entries. With `pushdown` that plan has only what the filters of
the first query select, and later queries on the same DataFrame get no more. Set it only on a
DataFrame that serves one query. A table (`CREATE TABLE ... USING quire`) does not pass its options
to a Python source: use `CREATE TEMPORARY VIEW`. Spark finds a Python format for writing only
in a thread in which the session is active. `configure` lets every thread of the driver write.
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
