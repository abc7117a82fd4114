"""Results of simulator runs, which several tests share."""

from __future__ import annotations

from functools import lru_cache

from quire_simulator import RunResult, simulate

KEPT_MAX = 256
"""The largest number of results that are kept. Each takes a few hundred bytes and its plan."""


@lru_cache(maxsize=KEPT_MAX)
def plain_run(seed: int, workload: str) -> RunResult:
    """Run `simulate` without a trace, or return its earlier result.

    Tests that have patched code must not use this.
    """
    return simulate(seed, workload)
