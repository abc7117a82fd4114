"""The translation of Spark's errors into one error without stack traces.

Spark's errors combine the stacks of the JVM, of its Python, and of Quire.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire import errors
from quire.errors import JobError, QuireError, UsageError

OURS = re.compile(r"^\s*(?:[\w.]+: )*quire\.errors\.(\w+): (.+)$", re.MULTILINE)
"""The form of one of Quire's errors in a traceback, including tracebacks that the JVM repeats."""
THROWN = re.compile(r"^: (?:[\w.$]+: )*(.+)$", re.MULTILINE)
"""The form of a JVM error in the text of an error of Py4J, Spark's bridge to the JVM."""
STATE = re.compile(r"\s*SQLSTATE: \w+|\[USER_RAISED_EXCEPTION\] ")
STACK = re.compile(r"^\s*(?:at [\w.$]+\(|JVM stacktrace|Traceback \()", re.MULTILINE)
ENDED = "stopped SparkContext"
TEXT_MAX = 500
"""The largest number of characters of Spark's text that an error repeats."""


def one_error(
    error: Exception, doing: str, kept_log: Callable[[], Path | None] = lambda: None
) -> Exception:
    """Return the error of Quire's that an error of Spark contains.

    If there is none, return a JobError with Spark's first line. It begins with `doing`, the name of
    the work, and names the file that `kept_log` returns, if any, as the place of Spark's output. An
    error that does not come from Spark is returned unchanged.
    """
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j", "grpc"):
        return error
    text = str(error)
    found = ours(text)
    if found is not None:
        return found
    thrown = THROWN.search(text)
    first = _first(thrown[1] if thrown else text) or type(error).__name__
    if ENDED in first:
        first = "Spark's session ended, or could not start: check that its master can be reached"
    log = kept_log()
    remedy = f"Spark's complete output is in {log}" if log is not None else ""
    return JobError(f"{doing} failed: {first}", remedy=remedy)


def ours(text: str) -> QuireError | None:
    """Return the last of Quire's errors in a traceback, because Python prints causes first.

    It has the same message, but its type is UsageError or JobError. Returns None if there is none.
    """
    found = OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind: Any = getattr(errors, name, JobError)
    # The message already contains causes and remedy.
    return (UsageError if issubclass(kind, UsageError) else JobError)(message.strip(), remedy="")


def _first(text: str) -> str:
    text = " ".join(STACK.split(text, maxsplit=1)[0].split())
    return STATE.sub("", text)[:TEXT_MAX].rstrip(" .;")
