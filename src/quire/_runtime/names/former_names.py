"""Public names under their former spelling or in their former place, for one more release.

For a name of a module use `__getattr__ = former_names(__name__, {"Old": "New"})`. For a field of a
dataclass that was in milliseconds use `@was_in_milliseconds("retention")`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from quire._runtime.names.caller_warnings import warn_caller

T = TypeVar("T")


def former_names(
    module: str,
    names: Mapping[str, str],
    otherwise: Callable[[str], object] | None = None,
) -> Callable[[str], object]:
    """Return the `__getattr__` of a module whose names have changed.

    A former name can still be used, with a DeprecationWarning.

    Args:
        module: The name of the module.
        names: The present name for each former name.
        otherwise: A `__getattr__` for all other names.
    """

    def get(name: str) -> object:
        present = names.get(name)
        if present is not None:
            deprecated(f"{module}.{name}", present)
            found: object = getattr(sys.modules[module], present)
            return found
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get


def moved(
    module: str, homes: Mapping[str, str], instead: str
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module whose names have moved to other modules.

    Each use of a name through the former module warns with a DeprecationWarning.

    Args:
        module: The name of the former module.
        homes: The present place of each name, as MODULE:NAME.
        instead: The replacement that the warning recommends.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        deprecated(module, instead)
        home, _, attribute = homes[name].partition(":")
        found: object = getattr(import_module(home), attribute)
        return found

    return get, lambda: sorted(homes)


def deprecated(old: str, new: str) -> None:
    """Warn that `old` is deprecated, naming the line of the program that used it.

    Args:
        old: The deprecated name.
        new: The name or call to use instead.
    """
    warn_caller(
        f"{old} is deprecated and will be removed in the next release. Use {new} instead",
        DeprecationWarning,
    )


def in_seconds_now(old: str, new: str) -> None:
    """Warn that `old`, in milliseconds, is replaced by `new`, in seconds."""
    deprecated(old, f"{new} (seconds)")


def was_in_milliseconds(*names: str) -> Callable[[type[T]], type[T]]:
    """Let a dataclass accept and provide each field `NAME_s` as `NAME_ms` too, with a warning.

    The field is a number of seconds. The former name is a whole number of milliseconds.
    """
    former = {f"{name}_ms": f"{name}_s" for name in names}

    def decorate(kind: type[T]) -> type[T]:
        made = kind.__init__

        @functools.wraps(made)
        def __init__(self: T, *values: Any, **named: Any) -> None:
            for old in former.keys() & named.keys():
                in_seconds_now(old, former[old])
                named[former[old]] = named.pop(old) / 1000
            made(self, *values, **named)

        kind.__init__ = __init__  # type: ignore[method-assign, assignment]
        for old, new in former.items():
            setattr(kind, old, _in_milliseconds(old, new))
        return kind

    return decorate


def _in_milliseconds(old: str, new: str) -> property:
    def value(self: object) -> int:
        in_seconds_now(old, new)
        seconds: float = getattr(self, new)
        return round(1000 * seconds)

    value.__doc__ = f"Deprecated: use `{new}`."
    return property(value)
