"""Public names under their former spelling, for one release.

__getattr__ = former_names(__name__, {"Old": "New"})
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping


def former_names(
    module: str,
    names: Mapping[str, str],
    otherwise: Callable[[str], object] | None = None,
) -> Callable[[str], object]:
    """Return the `__getattr__` of a module whose names have changed.

    `names` maps each former name to the present one. The former one is still found, with a
    DeprecationWarning. `otherwise` is a `__getattr__` that is asked for all other names.
    """

    def get(name: str) -> object:
        present = names.get(name)
        if present is not None:
            warnings.warn(
                f"{module}.{name} is now called {present}; the former name goes with the next "
                "release",
                DeprecationWarning,
                stacklevel=2,
            )
            found: object = getattr(sys.modules[module], present)
            return found
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get
