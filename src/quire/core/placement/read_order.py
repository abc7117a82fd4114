"""The order in which a reader asks the replicas of an entry.

Correctness never depends on the order, because every replica is asked in the end.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence


class Standing(enum.IntEnum):
    """The state of a bookie that decides when a reader asks it. Smaller values are asked first."""

    GOOD = 0
    FAILED = 1
    """The bookie failed recently."""
    READONLY = 2
    """The bookie is registered as read-only."""
    SLOW = 3
    """Another bookie, which was asked later, recently answered a read sooner."""
    QUARANTINED = 4
    """The bookie is in quarantine because of errors or wrong answers."""
    UNAVAILABLE = 5
    """The bookie is not registered."""


def read_order(bookies: Sequence[str], standing: Callable[[str], Standing]) -> list[str]:
    """Return the bookies in the order in which a reader should ask them.

    If a bookie is slow, in quarantine or unavailable, all are sorted by standing. Otherwise the
    order stays: read-only bookies and failures are no reason to put more load on the others.

    Args:
        bookies: The ids of the bookies, in the order to use if all have a good standing.
        standing: A function that returns the standing of a bookie.
    """
    found = [standing(bookie) for bookie in bookies]
    if max(found, default=Standing.GOOD) < Standing.SLOW:
        return list(bookies)
    order = sorted(range(len(bookies)), key=lambda at: found[at])
    return [bookies[at] for at in order]
