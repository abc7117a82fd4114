"""Simulate a whole cluster with faults from one integer seed, and check the invariants.

    result = simulate(4711)
    assert result.failure is None, result

The same seed on the same commit and Python gives the same `trace_digest`, with any PYTHONHASHSEED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire._runtime.names.lazy import lazily

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Fault": "quire_simulator.plans.faults:Fault",
            "LedgerPlan": "quire_simulator.plans.plans:LedgerPlan",
            "RunFailure": "quire_simulator.report.result:RunFailure",
            "RunPlan": "quire_simulator.plans.plans:RunPlan",
            "RunResult": "quire_simulator.report.result:RunResult",
            "Shrunk": "quire_simulator.report.shrink:Shrunk",
            "TraceStep": "quire_simulator.report.steps:TraceStep",
            "WORKLOADS": "quire_simulator.plans.workloads:WORKLOADS",
            "as_mermaid": "quire_simulator.report.diagram:as_mermaid",
            "as_text": "quire_simulator.report.text:as_text",
            "describe_plan": "quire_simulator.plans.file:describe_plan",
            "dump_plan": "quire_simulator.plans.file:dump_plan",
            "load_plan": "quire_simulator.plans.file:load_plan",
            "plan_as_data": "quire_simulator.plans.file:plan_as_data",
            "run_plan": "quire_simulator.run:run_plan",
            "shrink": "quire_simulator.report.shrink:shrink",
            "simulate": "quire_simulator.run:simulate",
        },
    )

__all__ = [
    "WORKLOADS", "Fault", "LedgerPlan", "RunFailure", "RunPlan", "RunResult", "Shrunk", "TraceStep",
    "as_mermaid", "as_text", "describe_plan", "dump_plan", "load_plan", "plan_as_data",
    "run_plan", "shrink", "simulate",
]  # fmt: skip
