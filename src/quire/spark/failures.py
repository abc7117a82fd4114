"""What went wrong, out of what Spark says about it: one error, without the stacks of the JVM, of
Spark's Python and of ours that Spark strings together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire import errors
from quire.errors import JobError, QuireError, UsageError

OURS = re.compile(r"^\s*(?:[\w.]+: )*quire\.errors\.(\w+): (.+)$", re.MULTILINE)
"""How one of our errors stands in a traceback, also in one that the JVM repeats."""
THROWN = re.compile(r"^: (?:[\w.$]+: )*(.+)$", re.MULTILINE)
"""How an error of the JVM stands in one of the bridge to it."""
STATE = re.compile(r"\s*SQLSTATE: \w+|\[USER_RAISED_EXCEPTION\] ")
STACK = re.compile(r"^\s*(?:at [\w.$]+\(|JVM stacktrace|Traceback \()", re.MULTILINE)
ENDED = "stopped SparkContext"
TEXT_MAX = 500
"""Characters of what Spark says that are repeated."""


def one_error(
    error: Exception, doing: str, kept_log: Callable[[], Path | None] = lambda: None
) -> Exception:
    """The error of ours behind what Spark raised, if there is one; else a JobError with what Spark
    says first, and where the rest is. What does not come from Spark is given back as it is."""
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j", "grpc"):
        return error
    text = str(error)
    found = ours(text)
    if found is not None:
        return found
    thrown = THROWN.search(text)
    first = _first(thrown[1] if thrown else text) or type(error).__name__
    if ENDED in first:
        first = "Spark's session ended, or could not begin: is the master reached at its URL?"
    log = kept_log()
    remedy = f"What Spark said is in {log}" if log is not None else ""
    return JobError(f"{doing} failed: {first}", remedy=remedy)


def ours(text: str) -> QuireError | None:
    """The last error of ours in a traceback: Python tells causes first."""
    found = OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind: Any = getattr(errors, name, JobError)
    # Causes and remedy are in the message already.
    return (UsageError if issubclass(kind, UsageError) else JobError)(message.strip(), remedy="")


def _first(text: str) -> str:
    text = " ".join(STACK.split(text, maxsplit=1)[0].split())
    return STATE.sub("", text)[:TEXT_MAX].rstrip(" .;")
