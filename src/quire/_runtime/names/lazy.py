"""Names of a package that are imported when they are first used.

A bookie then never loads the client, and a command does not load what other commands need.

    if TYPE_CHECKING:
        from package.module import Name
    else:
        __getattr__, __dir__ = lazily(__name__, {"Name": "package.module:Name"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package that imports its names at their first use.

    Args:
        package: The name of the package.
        homes: The place of each name: MODULE:NAME, or MODULE if the name is a module itself.
    """

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = home.partition(":")
        found: object = import_module(module)
        if attribute:
            found = getattr(found, attribute)
        setattr(sys.modules[package], name, found)  # later uses do not reach this function
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
