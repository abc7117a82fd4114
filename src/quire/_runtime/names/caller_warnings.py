"""Warnings that name the line of the program that uses Quire, however deep in Quire they arise."""

from __future__ import annotations

import sys
import warnings
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple

_BETWEEN = {
    "quire", "asyncio", "concurrent", "contextlib", "dataclasses", "functools", "importlib",
    "threading", "uvloop",
}  # fmt: skip
"""The top-level packages that are never the caller: Quire, and those that only pass calls on."""


_passed_over: set[str] = set()
"""A cache of module names that `find_caller` has found to belong to a package in `_BETWEEN`."""


class CallerLine(NamedTuple):
    """A line of the program that uses Quire."""

    file: str
    line: int
    module: str
    namespace: dict[str, Any]
    """The globals of the module. They hold the registry of warnings that were shown already."""


blocking_caller: ContextVar[CallerLine | None] = ContextVar("blocking_caller", default=None)
"""The line of the program that made the current call of the blocking API, or None.

Another thread carries out the call, so the line is not on the stack."""


def find_caller() -> CallerLine | None:
    """Return the innermost line on the stack that is not Quire's, or None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        namespace = frame.f_globals
        module: str = namespace.get("__name__") or ""
        if module not in _passed_over:  # a set: the blocking API looks for its caller in each call
            if module.partition(".")[0] not in _BETWEEN:
                return CallerLine(frame.f_code.co_filename, frame.f_lineno, module, namespace)
            _passed_over.add(module)
        frame = frame.f_back
    return None


def caller_line() -> CallerLine | None:
    """Return the line of the program that made the current call, or None if it is not known.

    The line is found for calls of the blocking API too, which another thread carries out.
    """
    return find_caller() or blocking_caller.get()


def warn_caller(message: str, category: type[Warning], at: CallerLine | None = None) -> None:
    """Issue a warning that names a line of the program that uses Quire.

    Args:
        message: The text of the warning.
        category: The class of the warning.
        at: The line to name. The default is the line that made the current call.
    """
    at = at or caller_line()
    if at is None:
        warnings.warn(message, category, stacklevel=2)
        return
    registry = at.namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, at.file, at.line, at.module, registry)
