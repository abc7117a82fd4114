"""The nearest known name, for messages about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be, or None if none is near."""
    import difflib  # imported only for a misspelt name, so that commands start faster

    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, quote: bool = False
) -> str:
    """Return "Did you mean NAME?" for the nearest known name, or `otherwise` if none is near.

    Args:
        name: The name that was given and does not exist.
        known: The names that exist.
        otherwise: What to say if no known name is near.
        quote: Whether to put the name in quotes, as for columns and Spark's options.
    """
    near = nearest(name, known)
    if near is None:
        return otherwise
    return f"Did you mean {near!r}?" if quote else f"Did you mean {near}?"
