"""The translation of Spark's errors into one error without stack traces.

Spark's errors combine the stacks of the JVM, of its Python, and of Quire. They do not say whether
the job has published anything. A job that knows marks the errors of its steps, with
`before_publishing` and `publishing_one_stream`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire import errors
from quire._runtime.uris import text_without_credentials
from quire.errors import JobError, JobRefusedError, QuireError, UsageError

OURS = re.compile(r"^\s*(?:[\w.]+: )*quire\.errors\.(\w+): (.+)$", re.MULTILINE)
"""The form of one of Quire's errors in a traceback, including tracebacks that the JVM repeats."""
THROWN = re.compile(r"^: (?:[\w.$]+: )*(.+)$", re.MULTILINE)
"""The form of a JVM error in the text of an error of Py4J, Spark's bridge to the JVM."""
CAUSE = re.compile(
    r"^Caused by: (?:[\w.$]+: )*+(?!\[FAILED_READ_FILE)(.+(?:\n(?!\s|Caused by: ).+)*)",
    re.MULTILINE,
)
"""The form of the cause of a JVM error about a file. The same error may be repeated before it."""
UNREAD = "FAILED_READ_FILE"
"""The part of Spark's error for a file that says only which file it could not read."""
STATE = re.compile(r"\s*SQLSTATE: \w+|\[USER_RAISED_EXCEPTION\] ")
STACK = re.compile(r"^\s*(?:at [\w.$]+\(|JVM stacktrace|Traceback \()", re.MULTILINE)
DOUBTFUL = re.compile(r"quire\.errors\.(?:MetadataUnavailableError|ClientClosedError)\b")
"""The names of the errors after which a publication may have succeeded."""
PUBLISHED_NOTHING = "quire_published_nothing"
"""The attribute of errors after which it is certain that the job has published nothing."""
TEXT = "quire_text"
"""The attribute of errors whose text was taken while the session still existed."""
ENDED = "stopped SparkContext"
ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The names of the loggers to which PySpark writes an error of a SQL expression."""
TEXT_MAX = 500
"""The largest number of characters of Spark's text that an error repeats."""


@contextmanager
def before_publishing() -> Iterator[None]:
    """Mark errors of the block as errors of a job that has published nothing yet."""
    try:
        yield
    except Exception as error:
        setattr(error, PUBLISHED_NOTHING, True)
        raise


@contextmanager
def publishing_one_stream() -> Iterator[None]:
    """Mark the errors of a batch write to one stream after which certainly nothing was published.

    The last step of such a write publishes all rows in one transaction. After most of Quire's
    errors, it is certain that this did not happen (`quire.streams.publish.publishing.publish`).
    """
    try:
        yield
    except Exception as error:
        text = _text_of(error)
        if ours(text) is not None and not DOUBTFUL.search(text):
            setattr(error, PUBLISHED_NOTHING, True)
        raise


@contextmanager
def text_kept() -> Iterator[None]:
    """Take the text of Spark's errors of the block, so that `one_error` can use it later.

    An error of Java's asks Java for its text each time. Enter this inside the session: Java may end
    with it.
    """
    try:
        yield
    except Exception as error:
        if _is_of_spark(error):
            text = _text_of(error)
            setattr(error, TEXT, text)
            error.add_note(text)  # A traceback that is printed later cannot ask Java either.
        raise


@contextmanager
def messages_in(log: Path) -> Iterator[None]:
    """Append PySpark's own log messages about errors to the file `log`, not to standard error.

    PySpark logs an error of a SQL expression as JSON with the whole traceback when it is raised.
    """
    from pyspark.logger import PySparkLogger

    file = logging.FileHandler(log, delay=True)
    former = {}
    for name in ERROR_LOGGERS:
        logger = PySparkLogger.getLogger(name)
        former[logger] = logger.handlers[:]
        logger.handlers.clear()
        logger.addHandler(file)
    try:
        yield
    finally:
        for logger, handlers in former.items():
            logger.handlers[:] = handlers
        file.close()


@contextmanager
def py4j_messages_in(log: Path) -> Iterator[None]:
    """Append what Py4J logs about lost connections to Java to the file `log`.

    Py4J uses its own loggers and the root logger. After Ctrl-C, Java ends, and every call that
    waits for it fails. The command itself says what happened, and what to do.
    """
    file = logging.FileHandler(log, delay=True)
    root, own = logging.getLogger(), logging.getLogger("py4j")

    def is_shown(record: logging.LogRecord) -> bool:
        if Path(record.pathname).parent.name != "py4j":
            return True
        file.handle(record)
        return False

    root.addFilter(is_shown)  # It sees only what is logged with the root logger itself.
    own.addHandler(file)
    former, own.propagate = own.propagate, False
    try:
        yield
    finally:
        root.removeFilter(is_shown)
        own.removeHandler(file)
        own.propagate = former
        file.close()


def one_error(
    error: Exception, doing: str, kept_log: Callable[[], Path | None] = lambda: None
) -> Exception:
    """Return the error of Quire's that an error of Spark contains.

    If there is none, return a JobError with Spark's first line. It begins with `doing`, the name of
    the work, and names the file that `kept_log` returns, if any, as the place of Spark's output. An
    error that does not come from Spark is returned unchanged. The outcome is known if the job has
    marked the error.
    """
    if not _is_of_spark(error):
        return error
    text = _text_of(error)
    told = ours(text) or _of_spark(error, text, doing, kept_log)
    if getattr(error, PUBLISHED_NOTHING, False):
        told.outcome_known = True
    return told


def _is_of_spark(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "grpc")


def _text_of(error: Exception) -> str:
    """Return the text that `text_kept` took, or the one of now.

    If Java has ended by itself, only the message remains, without the stacks.
    """
    kept: str | None = getattr(error, TEXT, None)
    if kept is not None:
        return kept
    try:
        return str(error)
    except Exception:  # noqa: BLE001  It is an AssertionError, or an error of the connection.
        # The attributes are those of PySpark's CapturedException and of Py4J's Py4JJavaError.
        return getattr(error, "_desc", "") or getattr(error, "errmsg", "") or type(error).__name__


def _of_spark(
    error: Exception, text: str, doing: str, kept_log: Callable[[], Path | None]
) -> JobError:
    """Return the error for text of Spark that contains none of Quire's errors."""
    thrown = THROWN.search(text)
    first = _first(thrown[1] if thrown else text) or type(error).__name__
    cause = CAUSE.search(text) if UNREAD in first else None
    if cause is not None:
        first = f"{first}: {_first(cause[1])}"
    if ENDED in first:
        first = "Spark's session ended, or could not start: check that its master can be reached"
    log = kept_log()
    remedy = f"Spark's complete output is in {log}" if log is not None else ""
    return JobError(f"{doing} failed: {text_without_credentials(first)}", remedy=remedy)


def ours(text: str) -> QuireError | None:
    """Return the last of Quire's errors in a traceback, because Python prints causes first.

    It has the same message, but its type is UsageError, JobRefusedError or JobError. The outcome is
    known only for the first two, which are raised before anything is done. Returns None if there is
    no error of Quire's.
    """
    found = OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    message = text_without_credentials(message)
    kind: Any = getattr(errors, name, JobError)
    # The message already contains causes and remedy.
    for refusal in (UsageError, JobRefusedError):
        if issubclass(kind, refusal):
            return refusal(message.strip(), remedy="")
    return JobError(message.strip(), remedy="")


def _first(text: str) -> str:
    text = " ".join(STACK.split(text, maxsplit=1)[0].split())
    return STATE.sub("", text)[:TEXT_MAX].rstrip(" .;")
