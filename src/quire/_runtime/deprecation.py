"""Old names that are kept for one release, with a DeprecationWarning."""

from __future__ import annotations

import warnings


def deprecated(old: str, new: str, *, depth: int = 3) -> None:
    """Warn that `old` is deprecated, at the line of whoever called the function that calls this.

    Args:
        old: The old spelling.
        new: What to write instead.
        depth: The number of frames from here to the line that the warning names.
    """
    warnings.warn(
        f"{old} is deprecated and will be removed in the next release. Use {new} instead",
        DeprecationWarning,
        stacklevel=depth,
    )
