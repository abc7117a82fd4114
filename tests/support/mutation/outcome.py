"""The result of one stage for one mutant, and the error that ends a sample."""

from __future__ import annotations

from dataclasses import dataclass


class VoidError(Exception):
    """The unmutated copy fails in the same way, or was changed, so no conclusion is possible."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one stage for one mutant."""

    found: bool
    by: str
    """The name of the test or invariant that failed, or '' if none did."""
    tried: int
    """The number of tests that were chosen, or of seeds that began."""
    seconds: float
