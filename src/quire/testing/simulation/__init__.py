"""A whole run of a real cluster, with faults, made of one integer and checked against the laws.

    result = simulate(4711)
    assert result.failure is None, result

The same seed on the same commit and Python gives the same `trace_digest`, on any PYTHONHASHSEED.
"""

from __future__ import annotations

from quire.testing.simulation.run import Failure, Result, simulate
from quire.testing.simulation.workloads import WORKLOADS, Plan

__all__ = ["WORKLOADS", "Failure", "Plan", "Result", "simulate"]
