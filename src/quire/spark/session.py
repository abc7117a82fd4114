"""Sessions that suit the data source. PySpark is imported when a call needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from quire.client.blocking_datasets import BlockingDatasets
from quire.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quire import blocking

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
    of 56) and the pushdown of filters. Sockets cannot be changed in a session that runs already.
    """
    target: Any = spark
    if hasattr(target, "getOrCreate"):
        target.config(SOCKETS, "true").config(PUSHDOWN, str(pushdown).lower())
    else:
        target.conf.set(PUSHDOWN, str(pushdown).lower())
    return spark


def register(spark: SparkSession) -> SparkSession:
    """Make `format("quire")` known to this session; returns it. Where filter pushdown is on in the
    session, the option `pushdown` becomes true by default: do this after `configure`.

    Spark also finds the format by itself (package `pyspark_quire`); then the option is false.
    """
    source = _import("source")
    enabled = str(spark.conf.get(PUSHDOWN, "false")).lower() == "true"
    spark.dataSource.register(source.QuirePushdownDataSource if enabled else source.QuireDataSource)
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
    client: blocking.Client, older_than_s: float, *, dataset: str | None = None
) -> list[int]:
    """Delete the ledgers that Spark tasks wrote for a dataset (for `dataset`, or for any), that are
    older than the limit and not published; their ids.

    Such ledgers are left by tasks and drivers that were killed. The limit must be longer than the
    longest job: the ledgers of one that still runs are unpublished too, and it would fail. See
    `quire.client.datasets.Datasets.sweep_orphans`.
    """
    return BlockingDatasets(client).sweep_orphans(older_than_s, name=dataset)


def _import(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"quire.spark.{module}")
    except ImportError as error:
        raise UsageError(
            f"Spark cannot be used: {error}", remedy='Install it with: pip install "quire[spark]"'
        ) from None
