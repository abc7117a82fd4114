"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass

from quire_simulator.plans.faults import Fault
from quire_simulator.report.steps import TraceStep


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The first invariant that did not hold."""

    invariant: str
    """The name of the invariant that did not hold."""
    what: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one run.

    `trace` has the steps of clients, bookies, metadata and faults, if it was requested. `as_text`
    and `as_mermaid` make it readable.
    """

    seed: int
    workload: str
    trace_digest: str
    simulated_s: float
    events: int
    checks: int
    failure: RunFailure | None
    schedule: tuple[Fault, ...]
    trace: tuple[TraceStep, ...] = ()
