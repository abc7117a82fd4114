"""A whole run of a real cluster, with faults, made of one integer and checked against the
invariants.

    result = simulate(4711)
    assert result.failure is None, result

The same seed on the same commit and Python gives the same `trace_digest`, on any PYTHONHASHSEED.
"""

from __future__ import annotations

from quire_simulator.plans.faults import Fault
from quire_simulator.plans.file import describe_plan, dump_plan, load_plan, plan_as_data
from quire_simulator.plans.plans import LedgerPlan, RunPlan
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.report.diagram import as_mermaid
from quire_simulator.report.result import RunFailure, RunResult
from quire_simulator.report.shrink import Shrunk, shrink
from quire_simulator.report.steps import TraceStep
from quire_simulator.report.text import as_text
from quire_simulator.run import run_plan, simulate

__all__ = [
    "WORKLOADS",
    "Fault",
    "LedgerPlan",
    "RunFailure",
    "RunPlan",
    "RunResult",
    "Shrunk",
    "TraceStep",
    "as_mermaid",
    "as_text",
    "describe_plan",
    "dump_plan",
    "load_plan",
    "plan_as_data",
    "run_plan",
    "shrink",
    "simulate",
]  # fmt: skip
