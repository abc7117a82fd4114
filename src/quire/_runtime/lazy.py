"""Names of a package that are imported when they are first used: a bookie never loads the client,
nor does a command load what its neighbours need.

    if TYPE_CHECKING:
        from package.module import Name
    else:
        __getattr__, __dir__ = lazily(__name__, {"Name": "package.module:Name"})
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package. A home is MODULE:NAME, or a MODULE itself."""

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = home.partition(":")
        found: object = import_module(module)
        if attribute:
            found = getattr(found, attribute)
        setattr(sys.modules[package], name, found)  # the next use does not come here
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names


def moved(
    module: str, homes: Mapping[str, str], instead: str
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module whose names moved, and are kept for one release.

    Homes are those of `lazily`. Each use warns, and names what to use `instead`.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module} is deprecated and will be removed in the next release. Use {instead} "
            "instead",
            DeprecationWarning,
            stacklevel=2,
        )
        home, _, attribute = homes[name].partition(":")
        found: object = getattr(import_module(home), attribute)
        return found

    return get, lambda: sorted(homes)
