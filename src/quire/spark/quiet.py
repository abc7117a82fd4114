"""The suppression of those messages of Spark that nobody can act on.

Warnings and errors that mean something are printed as before.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_FILE = Path(__file__).with_name("log4j2.properties")
JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The environment variable whose options `spark-submit` adds to Java's options from the
configuration.
"""
WITH_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
PROGRESS = "spark.ui.showConsoleProgress"


def quiet_settings(given: Mapping[str, str], environ: MutableMapping[str, str]) -> dict[str, str]:
    """Choose Quire's log configuration, unless there is another one, and return settings to add.

    Java reads the choice from the environment when it starts. It has no effect on one that runs.

    Args:
        given: The settings of the session.
        environ: The environment in which Java will start.
    """
    options = " ".join(
        [environ.get(JAVA_OPTIONS, ""), *(given.get(k, "") for k in WITH_JAVA_OPTIONS)]
    )
    if "log4j" not in options and LOG_FILE.exists() and not _has_log_configuration(environ):
        added = f"-Dlog4j2.configurationFile={LOG_FILE.as_uri()}"
        environ[JAVA_OPTIONS] = f"{environ.get(JAVA_OPTIONS, '')} {added}".strip()
    if PROGRESS in given or sys.stderr.isatty():
        return {}
    return {PROGRESS: "false"}  # Its bar is for terminals. A file gets all of its states.


def _has_log_configuration(environ: Mapping[str, str]) -> bool:
    """Return whether Spark's configuration directory has a log configuration."""
    home = environ.get("SPARK_HOME")
    directory = environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    return bool(directory) and any(Path(str(directory)).glob("log4j2.*"))


def quiet_worker() -> None:
    """Suppress the traceback of Spark's daemon for a broken pipe in this Python worker.

    Spark closes the connection of a worker that waits for its next task. With Unix-domain sockets,
    the worker's answer to that fails, and the daemon would print a traceback for each worker.
    """
    daemon: Any = sys.modules.get("__main__")
    if hasattr(daemon, "manager") and getattr(daemon, "traceback", None) is traceback:
        daemon.traceback = _Traceback()


def quiet_driver(session: SparkSession) -> None:
    """Suppress the traceback that PySpark's server of accumulators prints when Java has ended.

    Java connects to the server after its first Python task. After Ctrl-C, Java ends without a word
    to the server, which reads the end of the connection as an error.
    """
    server: Any = getattr(getattr(session, "_sc", None), "_accumulatorServer", None)
    if server is None or "handle_error" in vars(server):  # Spark Connect, or an existing session
        return
    printing = server.handle_error

    def handle_error(request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            printing(request, client_address)

    server.handle_error = handle_error


class _Traceback:
    """The module `traceback` as Spark's daemon gets it, which does not print broken pipes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()
