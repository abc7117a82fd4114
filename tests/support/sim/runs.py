"""Runs that several tests look at, made once."""

from __future__ import annotations

from functools import lru_cache

from quire_simulator import RunResult, simulate

KEPT_MAX = 256
"""Results without a trace: a few hundred bytes and the plan's faults each."""


@lru_cache(maxsize=KEPT_MAX)
def plain_run(seed: int, workload: str) -> RunResult:
    """`simulate`, to which nobody listens. Not for tests of code that they have changed."""
    return simulate(seed, workload)
