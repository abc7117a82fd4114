"""The order in which a reader asks the replicas of an entry.

Correctness never depends on the order, because every replica is asked in the end.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence


class Standing(enum.IntEnum):
    """The standing of a bookie. Bookies with a smaller value are asked first."""

    GOOD = 0
    FAILED = 1
    """The bookie failed recently."""
    READONLY = 2
    SLOW = 3
    """A speculative read overtook the bookie recently."""
    QUARANTINED = 4
    UNAVAILABLE = 5
    """The bookie is not registered."""


def read_order(bookies: Sequence[str], standing: Callable[[str], Standing]) -> list[str]:
    """Return the bookies in the order in which to ask them.

    The order changes only if a bookie is slow, in quarantine or unavailable. Read-only bookies and
    single failures are no reason to put more load on the others.

    Args:
        bookies: The bookies, in their natural order.
        standing: A function that returns the standing of a bookie.
    """
    found = [standing(bookie) for bookie in bookies]
    if max(found, default=Standing.GOOD) < Standing.SLOW:
        return list(bookies)
    order = sorted(range(len(bookies)), key=lambda at: found[at])
    return [bookies[at] for at in order]
