"""Sessions that suit the data source. PySpark is imported when a call needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from quire.client import Client
from quire.client.blocking import call
from quire.client.blocking_datasets import BlockingDatasets
from quire.errors import UsageError
from quire.streams.orphans import delete_orphans, find_orphans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quire import blocking
    from quire.spark.stream_lag import LagListener

S = TypeVar("S")

SOCKETS = "spark.python.unix.domain.socket.enabled"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Of `local_session`: nothing listens to the outside, nothing is shown, small shuffles, and a JVM
that starts quickly."""


def configure(spark: S, *, pushdown: bool = True) -> S:
    """Set what the data source profits from, on a builder (best) or on a session; returns it.

    On a builder: Unix-domain sockets between the JVM and Python (a Python task costs 9 ms instead
    of 56), and leave for the option `pushdown`, which remains false by default (see "Limits of
    Spark" in `quire.spark`). Sockets cannot be changed in a session that runs already.
    """
    target: Any = spark
    if hasattr(target, "getOrCreate"):
        target.config(SOCKETS, "true").config(PUSHDOWN, str(pushdown).lower())
    else:
        target.conf.set(PUSHDOWN, str(pushdown).lower())
    return spark


def register(spark: SparkSession) -> SparkSession:
    """Make `format("quire")` known to this session; returns it. Spark also finds the format by
    itself (package `pyspark_quire`)."""
    spark.dataSource.register(_import("source").QuireDataSource)
    return spark


def local_session(
    name: str = "quire",
    *,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A small, quiet session on this machine, configured and registered; its workers run this
    Python, unless PYSPARK_PYTHON names another."""
    _import("source")
    from pyspark.sql import SparkSession

    # Read when the JVM starts. Without the first, its workers are whatever `python3` is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**LOCAL, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return register(session)


def sweep_orphans(
    client: blocking.Client,
    older_than_s: float,
    *,
    dataset: str | None = None,
    stream: str | None = None,
) -> list[int]:
    """Delete the ledgers that Spark tasks wrote for datasets and streams (for `dataset`, for the
    stream with the path `stream`, such as "/team/orders", or for any), that are older than the
    limit and not published; their ids.

    Such ledgers are left by tasks and drivers that were killed. The limit must be longer than the
    longest job: the ledgers of one that still runs are unpublished too, and it would fail. See
    `quire.client.datasets.Datasets.sweep_orphans` and `quire.streams.orphans`.
    """
    if dataset is not None and stream is not None:
        raise UsageError("a ledger is of a dataset or of a stream: name one of them")
    deleted: list[int] = []
    if stream is None:
        deleted += BlockingDatasets(client).sweep_orphans(older_than_s, name=dataset)
    if dataset is None:
        deleted += call(_sweep_streams(client.aio, older_than_s, stream))
    return sorted(deleted)


async def _sweep_streams(client: Client, older_than_s: float, stream: str | None) -> list[int]:
    orphans = [
        orphan
        for orphan in await find_orphans(client, older_than_s)
        if orphan.job and stream in (None, orphan.stream)
    ]
    left = {one.orphan.ledger_id for one in await delete_orphans(client, orphans)}
    return [orphan.ledger_id for orphan in orphans if orphan.ledger_id not in left]


def lag_listener(spark: SparkSession) -> LagListener:
    """Attach a listener that keeps (`lags()`) and logs how far the session's streaming queries are
    behind the streams they read, in records, bytes and seconds; returns it."""
    listener: LagListener = _import("stream_lag").lag_listener(spark)
    return listener


def _import(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"quire.spark.{module}")
    except ImportError as error:
        raise UsageError(
            f"Spark cannot be used: {error}", remedy='Install it with: pip install "quire[spark]"'
        ) from None
