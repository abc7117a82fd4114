"""The rate of a piece of work, as cells of a table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

MB = 1_000_000


def measured(
    work: Callable[[], int], each_bytes: int, rounds: int, *, expected: int | None = None
) -> str:
    """Return the rate of `work`, which returns how many items of `each_bytes` it processed.

    It must process `expected` items, if given. The first round does not count.
    """
    rates = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        done = work()
        assert expected in (None, done)
        if number:
            rates.append(done / (time.perf_counter() - began))
    middle = statistics.median(rates)
    low, high = min(rates) * each_bytes / MB, max(rates) * each_bytes / MB
    return f"{middle * each_bytes / MB:.0f} ({low:.0f}-{high:.0f}) | {middle:,.0f} |"
