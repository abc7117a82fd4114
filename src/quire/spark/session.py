"""Sessions that suit the data source. PySpark is imported when a call needs it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from quire.blocking.background import call
from quire.client import Client
from quire.errors import UsageError
from quire.streams.ownership.orphans import delete_orphans, find_orphans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quire import blocking
    from quire.spark.streams.lag import LagListener

S = TypeVar("S")

SOCKETS = "spark.python.unix.domain.socket.enabled"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

OF_THIS_MACHINE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Nothing listens to the outside, nothing is shown."""
LOCAL = {
    **OF_THIS_MACHINE,
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Of `local_session`: also small shuffles, and a JVM that starts quickly."""


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
    itself (package `pyspark_quire`), and then warns that it was replaced: call this only where
    the Python of the driver's session is not the one that its JVM starts."""
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


SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the program that it starts: there is a JVM already."""


@contextmanager
def job_session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    scratch: str | None = None,
    starting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[SparkSession]:
    """The session in which a program runs a job: the active one; that of the spark-submit which
    started the program; one of Spark Connect, where `master` is sc://...; or a new one (`master`
    None: all cores of this machine), stopped behind the job. `scratch` is a directory for its
    files. `starting` is entered while a JVM starts.

    UsageError: Spark, or Java, is not installed, or `master` contradicts what runs already.
    """
    _import("source")
    from pyspark.sql import SparkSession

    active = None if (master or "").startswith("sc://") else SparkSession.getActiveSession()
    if (active is not None or SUBMITTED in os.environ) and master is not None:
        raise UsageError(
            "a session of Spark is there already, and another master cannot be chosen in it",
            remedy="Leave out the master, or give it to spark-submit",
        )
    if active is not None:
        for key, value in (settings or {}).items():
            active.conf.set(key, value)
        yield active
        return
    with starting():
        session = _new_session(name, master, dict(settings or {}), scratch)
    try:
        yield session
    finally:
        session.stop()


def _new_session(
    name: str, master: str | None, settings: dict[str, str], scratch: str | None
) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None and master.startswith("sc://"):
        for key, value in settings.items():
            builder = builder.config(key, value)
        return register(builder.remote(master).getOrCreate())
    given: dict[str, str] = {"spark.ui.showConsoleProgress": "false"}
    if SUBMITTED not in os.environ:
        need_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        master = master or "local[*]"
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            given |= OF_THIS_MACHINE
            given["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
        if scratch is not None:
            given["spark.local.dir"] = scratch
            given["spark.sql.warehouse.dir"] = os.path.join(scratch, "warehouse")
    for key, value in {**given, **settings}.items():
        builder = builder.config(key, value)
    session = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return register(session)


def need_spark() -> None:
    """UsageError: something is not installed. Nothing is imported for this."""
    for module in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(module) is None:
            raise _without(f"No module named {module!r}")


def need_java() -> None:
    """UsageError: there is none."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise UsageError(
            "Spark needs Java 17 or later, and there is no java on the PATH",
            remedy="Install it, for example with: apt-get install openjdk-17-jre-headless",
        )


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
    `quire.client.datasets.datasets.Datasets.sweep_orphans` and `quire.streams.ownership.orphans`.
    """
    if dataset is not None and stream is not None:
        raise UsageError("a ledger is of a dataset or of a stream: name one of them")
    deleted: list[int] = []
    if stream is None:
        deleted += client.datasets.sweep_orphans(older_than_s, name=dataset)
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
    listener: LagListener = _import("streams.lag").lag_listener(spark)
    return listener


def _import(module: str) -> Any:
    try:
        return importlib.import_module(f"quire.spark.{module}")
    except ImportError as error:
        raise _without(str(error)) from None


def _without(why: str) -> UsageError:
    return UsageError(
        f"Spark cannot be used: {why}", remedy='Install it with: pip install "quire-log[spark]"'
    )
