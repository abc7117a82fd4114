"""The comparison of a report with what the run knows."""

from __future__ import annotations

from dataclasses import dataclass

from quire_simulator.invariants.checker import Checker

REST_S = 2.0
"""Seconds after which nothing is in flight between clients that rest and bookies."""
TEXT_MAX = 400
"""The largest number of characters of a value in the description of a violation."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of what one source reports. It fails the run under the name of an invariant."""

    checker: Checker
    invariant: str
    source: str
    """What reports, such as "the check of sim:/bookie-0"."""

    def equal(self, what: str, told: object, known: object) -> None:
        """Check that a reported value is what the run knows."""
        if isinstance(told, dict) and isinstance(known, dict):
            differ = [n for n in {**told, **known} if told.get(n) != known.get(n)]
            told, known = ({n: one.get(n) for n in differ[:2]} for one in (told, known))
        if told != known:
            self.fail(f"{what}: {shortened(told)} instead of {shortened(known)}")

    def within(self, what: str, least: float, told: float, most: float) -> None:
        """Check that a reported number is between two bounds that the run knows."""
        if not least <= told <= most:
            self.fail(f"{what}: {told} is not between {least} and {most}")

    def true(self, what: str, holds: object) -> None:
        """Check a statement about a report."""
        if not holds:
            self.fail(what)

    def fail(self, what: str) -> None:
        self.checker.fail(self.invariant, f"{self.source}: {what}")


def shortened(value: object) -> str:
    """Return a value as text for the description of a violation."""
    text = repr(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
