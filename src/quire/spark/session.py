"""Spark sessions for the data source. PySpark is imported only when a call needs it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from quire._runtime.names.extras import install_extra
from quire.blocking.background import call
from quire.client import Client
from quire.errors import UsageError
from quire.spark.java import END_LIMIT_S, JavaProcesses
from quire.spark.options import INSTEAD_OF_TABLES, TABLE, check_written_names
from quire.spark.quiet import quiet_driver, quiet_settings
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
"""The settings of a local session: it accepts no connections from outside, and shows nothing."""
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which a program knows that spark-submit has started it, with a JVM.
"""
LOCAL = {
    **OF_THIS_MACHINE,
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""The settings of `local_session`, which also make shuffles small and let the JVM start quickly."""


def configure(spark: S, *, pushdown: bool = True) -> S:
    """Set what the data source needs on a session builder (best) or on a session.

    On a builder this enables Unix-domain sockets between the JVM and Python, which reduces the cost
    of each Python task. It also leaves out messages of Spark that nobody can act on, unless the
    program has a log configuration of its own: its Java options name one, or Spark's configuration
    directory has a log4j2 file. On a session that is running, sockets and messages stay as they
    are.

    Args:
        spark: The builder or the session.
        pushdown: Whether to permit the option `pushdown`. The option itself remains false by
            default (see "Limits of Spark" in `docs/reference/spark-options.md`).

    Returns:
        The same builder or session.
    """
    _write_in_every_thread()
    _check_before_tasks()
    target: Any = spark
    if hasattr(target, "getOrCreate"):
        given = dict(getattr(target, "_options", {}))
        for key, value in quiet_settings(given, os.environ).items():
            target.config(key, value)
        target.config(SOCKETS, "true").config(PUSHDOWN, str(pushdown).lower())
    else:
        target.conf.set(PUSHDOWN, str(pushdown).lower())
    return spark


def _write_in_every_thread() -> None:
    """Let `write.format("quire")` find the format in every thread.

    Spark looks for a Python format in the active session of Java's thread. A thread has none unless
    it made the session, or a DataFrame from Python's data. Other writes get DATA_SOURCE_NOT_FOUND.
    """
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for writer in (DataFrameWriter, DataStreamWriter):
        kind: Any = writer
        if not hasattr(kind.format, "__wrapped__"):
            kind.format = _in_active_session(kind.format)


def _in_active_session(choose: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(choose)
    def format(self: Any, source: str) -> Any:
        if source.lower() == "quire":
            session = self._spark
            session._jvm.SparkSession.setActiveSession(session._jsparkSession)
        return choose(self, source)

    return format


def _check_before_tasks() -> None:
    """Check what `save()` and `saveAsTable()` are to write before Spark runs any task.

    Spark makes the writer of a Python format only after the stages before the last one, and cannot
    pass the options of a table to it later.
    """
    from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2

    kind: Any = DataFrameWriter
    if not hasattr(kind.saveAsTable, "__wrapped__"):
        kind.save, kind.saveAsTable = _checked_save(kind.save), _no_table(kind.saveAsTable)
        tables: Any = DataFrameWriterV2
        tables.using = _no_provider(tables.using)


def _checked_save(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def checked(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> Any:
        given = _given_options(self, format)
        if given is not None:
            if partitionBy or self._jwrite.partitioningColumns().isDefined():
                raise UsageError(
                    "Spark does not pass the columns of partitionBy to Python data sources",
                    remedy="Name them with the option 'partitionColumns', separated by commas",
                )
            check_written_names({**given, **{name: str(text) for name, text in options.items()}})
        return save(self, path, format, mode, partitionBy, **options)

    return checked


def _no_table(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def refused(
        self: Any,
        name: str,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> Any:
        if _given_options(self, format) is not None:
            raise UsageError(f"table {name!r} was not written: {TABLE}", remedy=INSTEAD_OF_TABLES)
        return save(self, name, format, mode, partitionBy, **options)

    return refused


def _no_provider(choose: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(choose)
    def using(self: Any, provider: str) -> Any:
        if provider.lower() == "quire":
            raise UsageError(f"no table was made: {TABLE}", remedy=INSTEAD_OF_TABLES)
        return choose(self, provider)

    return using


def _given_options(writer: Any, format: str | None) -> dict[str, str] | None:
    """Return the options of a `DataFrameWriter`, or None if its format is another one.

    They are in Spark's JVM. Spark Connect has a class of its own, which is left as it is. The
    result is also None if a later Spark keeps them elsewhere, because no write of another format
    may fail in this check.
    """
    from py4j.protocol import Py4JError

    java = writer._jwrite
    try:
        if (format or java.source()).lower() != "quire":
            return None
        pairs = java.extraOptions().iterator()
        found: dict[str, str] = {}
        while pairs.hasNext():
            pair = pairs.next()
            found[str(pair._1())] = str(pair._2())
    except Py4JError:
        return None
    return found


def register(spark: SparkSession) -> SparkSession:
    """Make `format("quire")` known to a session.

    Spark also finds the format by itself, through the package `pyspark_quire`, and then warns that
    it was replaced. Call this only if the Python of the driver's session differs from the one that
    its JVM starts.

    Args:
        spark: The session.

    Returns:
        The same session.

    Raises:
        UsageError: PySpark, or a package that it needs, is not installed.
    """
    spark.dataSource.register(_import("source").QuireDataSource)
    return spark


def local_session(
    name: str = "quire",
    *,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a small, quiet session on this machine, configured and registered.

    If a session is active already, that session is returned, with the new settings that can still
    be changed. The workers run this Python, unless PYSPARK_PYTHON names another one.

    Args:
        name: The name of the application.
        master: The master URL, which determines the number of cores.
        settings: Further settings of Spark.

    Returns:
        The session. Stop it when it is no longer needed.

    Raises:
        UsageError: PySpark, a package that it needs, or Java is not installed.
    """
    _import("source")
    from pyspark.sql import SparkSession

    if SUBMITTED not in os.environ and SparkSession.getActiveSession() is None:
        need_java()
    # The JVM reads these when it starts. Without the first, its workers run whatever `python3` is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**LOCAL, **(settings or {})}.items():
        builder = builder.config(key, value)
    with JavaProcesses().started():
        session = configure(builder).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        quiet_driver(session)
        return register(session)


@contextmanager
def job_session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    scratch: str | None = None,
    starting: Callable[[], AbstractContextManager[None]] = nullcontext,
    java: JavaProcesses | None = None,
) -> Iterator[SparkSession]:
    """Yield the session in which a program runs a job.

    It is the active session if there is one. Otherwise a session is created, and stopped at the end
    of the block: a session of Spark Connect if `master` is sc://..., the session of the
    spark-submit that started the program, or a new one. A new session has this `name` and these
    `settings` of Spark, uses all cores of this machine unless `master` says otherwise, and keeps
    its files in `scratch`. `starting` is entered
    while the session is created. A Java process that is started for it, which `java` records, has
    ended when the block is left, and SIGINT still has the handler that it had before.

    Raises UsageError if Spark or Java is not installed, or if `master` contradicts an existing
    session.
    """
    _import("source")
    from pyspark.sql import SparkSession

    active = None if (master or "").startswith("sc://") else SparkSession.getActiveSession()
    if (active is not None or SUBMITTED in os.environ) and master is not None:
        raise UsageError(
            f"the master of Spark cannot be set to {master}: a Spark session exists already, or "
            "spark-submit started this process",
            remedy="Leave out the master, or pass it to spark-submit",
        )
    if active is not None:
        for key, value in (settings or {}).items():
            active.conf.set(key, value)
        yield active
        return
    java = JavaProcesses() if java is None else java
    with starting(), _same_interrupt_handler(), java.started():
        session = _new_session(name, master, dict(settings or {}), scratch)
    try:
        yield session
        session.stop()
    except Exception:
        with warnings.catch_warnings(), suppress(Exception):  # Java may have ended by itself.
            warnings.simplefilter("ignore")
            session.stop()
        raise
    except BaseException:
        if java:
            java.terminate()
        else:
            _interrupt(session)
        raise
    finally:
        java.end()


def _interrupt(session: SparkSession) -> None:
    """Cancel all jobs of a session whose JVM this program did not start, and stop the session.

    The calls are made in another thread, because an interrupted call of this thread may still wait
    for its answer on the thread's connection to Java.
    """

    def cancel() -> None:
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            if hasattr(session, "_jsc"):
                session.sparkContext.cancelAllJobs()
            else:  # Spark Connect
                session.interruptAll()
            session.stop()

    thread = threading.Thread(target=cancel, name="quire-interrupt", daemon=True)
    thread.start()
    thread.join(END_LIMIT_S)


@contextmanager
def _same_interrupt_handler() -> Iterator[None]:
    """Restore the handler of SIGINT, which Spark replaces.

    Spark's handler asks Java to cancel all jobs. Here Java ends with the job instead, and the
    caller has a handler that knows what to say.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if former is not None:
            signal.signal(signal.SIGINT, former)


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
    quiet_driver(session)
    return register(session)


def need_spark() -> None:
    """Raise UsageError if a package that Spark needs is not installed. Nothing is imported."""
    for module in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(module) is None:
            raise _without(f"No module named {module!r}")


def need_java() -> None:
    """Raise UsageError if there is no Java."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise UsageError(
            "Spark needs Java 17 or later, but there is no `java` on the PATH, and JAVA_HOME is "
            "not set",
            remedy="Install it, for example with: apt-get install openjdk-17-jre-headless",
        )


def sweep_orphans(
    client: blocking.Client,
    older_than_s: float,
    *,
    dataset: str | None = None,
    stream: str | None = None,
) -> list[int]:
    """Delete the unpublished ledgers that Spark tasks wrote for datasets and streams.

    Tasks and drivers that were killed leave such ledgers. See
    `quire.client.datasets.datasets.Datasets.sweep_orphans` and `quire.streams.ownership.orphans`.
    Calling this again is safe; if the call is interrupted, some ledgers may be left.

    Args:
        client: A blocking client of the cluster.
        older_than_s: The age in seconds from which ledgers are deleted. It must exceed the duration
            of the longest job: the ledgers of a job that is running are unpublished too, and the
            job would fail.
        dataset: Delete only ledgers that were written for this dataset.
        stream: Delete only ledgers that were written for the stream with this path, such as
            "/team/orders".

    Returns:
        The ids of the deleted ledgers, ascending. A ledger, dataset or stream that cannot be read
        is skipped, and named in a warning in the log.

    Raises:
        UsageError: Both a dataset and a stream were named, or another argument is not valid.
        CollectionOffError: Garbage collection is switched off. Nothing was deleted.
        MetadataWentBackError: The metadata store is in an older state than before. Nothing was
            deleted.
        MetadataError: The metadata store does not answer, or did not list all ledgers. Some ledgers
            may have been deleted.
    """
    if dataset is not None and stream is not None:
        raise UsageError("the arguments dataset and stream exclude each other: name one of them")
    if stream is not None and not stream.startswith("/"):
        raise UsageError(
            f"the argument stream must be the path of a stream, which begins with its namespace, "
            f"such as '/team/orders', not {stream!r}"
        )
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
    """Attach a listener that observes how far streaming queries are behind their streams.

    Args:
        spark: The session whose queries are observed.

    Returns:
        The listener. Its `lags()` returns the newest lags in records, bytes and seconds, and it
        logs them.

    Raises:
        UsageError: PySpark, or a package that it needs, is not installed.
    """
    listener: LagListener = _import("streams.lag").lag_listener(spark)
    return listener


def _import(module: str) -> Any:
    try:
        return importlib.import_module(f"quire.spark.{module}")
    except ImportError as error:
        raise _without(str(error)) from None


def _without(why: str) -> UsageError:
    return UsageError(f"Spark cannot be used: {why}", remedy=install_extra("spark"))
