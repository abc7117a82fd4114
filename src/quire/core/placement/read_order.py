"""In which order a reader asks the replicas of an entry (metadata spec, 6.9).

Correctness never depends on it: every replica is asked in the end.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence


class Standing(enum.IntEnum):
    """Of one bookie, in the order in which they are asked."""

    GOOD = 0
    FAILED = 1
    """It failed lately."""
    READONLY = 2
    SLOW = 3
    """A speculative read overtook it lately."""
    QUARANTINED = 4
    UNAVAILABLE = 5
    """Not registered."""


def read_order(bookies: Sequence[str], standing: Callable[[str], Standing]) -> list[str]:
    """Those that are better off first, otherwise as they come. Only where one of them is slow or
    unavailable: read-only bookies and single failures are no reason to load the others more."""
    found = [standing(bookie) for bookie in bookies]
    if max(found, default=Standing.GOOD) < Standing.SLOW:
        return list(bookies)
    order = sorted(range(len(bookies)), key=lambda at: found[at])
    return [bookies[at] for at in order]
