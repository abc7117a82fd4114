"""The error that ends a sample, and what a stage found."""

from __future__ import annotations

from dataclasses import dataclass


class VoidError(Exception):
    """The unmutated copy fails in the same way, or was changed, so nothing can be concluded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one stage for one mutant."""

    found: bool
    by: str
    """The test or invariant that failed, or ''."""
    tried: int
    """The number of chosen tests, or of seeds that began."""
    seconds: float
