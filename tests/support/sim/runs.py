"""Results of runs that several tests use."""

from __future__ import annotations

from functools import lru_cache

from quire_simulator import RunResult, simulate

KEPT_MAX = 256
"""Results without a trace have only a few hundred bytes and the plan's faults each."""


@lru_cache(maxsize=KEPT_MAX)
def plain_run(seed: int, workload: str) -> RunResult:
    """Run `simulate` without tracing. Not for tests that have patched code."""
    return simulate(seed, workload)
