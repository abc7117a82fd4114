"""A whole run of a real cluster, with faults, made of one integer and checked against the laws.

    result = simulate(4711)
    assert result.failure is None, result

The same seed on the same commit and Python gives the same `trace_digest`, on any PYTHONHASHSEED.
"""

from __future__ import annotations

from quire.testing.simulation.diagram import as_mermaid
from quire.testing.simulation.faults import Fault
from quire.testing.simulation.plan_file import describe_plan, dump_plan, load_plan, plan_as_data
from quire.testing.simulation.plans import LedgerPlan, Plan
from quire.testing.simulation.run import Failure, Result, run_plan, simulate
from quire.testing.simulation.shrink import Shrunk, shrink
from quire.testing.simulation.story import Moment, as_text
from quire.testing.simulation.workloads import WORKLOADS

__all__ = [
    "WORKLOADS", "Failure", "Fault", "LedgerPlan", "Moment", "Plan", "Result", "Shrunk",
    "as_mermaid", "as_text", "describe_plan", "dump_plan", "load_plan", "plan_as_data",
    "run_plan", "shrink", "simulate",
]  # fmt: skip
