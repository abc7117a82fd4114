"""Print totals, failures with their small plans, and traces."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.output import print_json
from quire.cli.common.progress import ProgressBar

if TYPE_CHECKING:
    from quire_simulator import RunPlan, RunResult, Shrunk

FORMATS = ("text", "full", "mermaid")
SHRUNK_MAX = 3
"""The number of broken invariants for which one failing plan is made small."""
GIT_TIMEOUT_S = 10.0


@cache
def build() -> dict[str, str]:
    """Return the versions to which a seed belongs.

    `commit` is the commit of the source tree, or the package's version if there is none.
    """
    import quire

    return {
        "quire": quire.__version__,
        "commit": _commit() or quire.__version__,
        "python": sys.version.split()[0],
    }


def build_line() -> str:
    known = build()
    return f"quire {known['quire']}, commit {known['commit']}, Python {known['python']}"


def _commit() -> str | None:
    import quire

    package = Path(quire.__file__)
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        # If the package is installed inside another repository, that repository's commit is not
        # ours.
        for command in (["git", "ls-files", "--error-unmatch", package.name], describe):
            done = subprocess.run(
                command, cwd=package.parent, capture_output=True, text=True, check=True,
                timeout=GIT_TIMEOUT_S,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


@dataclass
class Smaller:
    """A maker of small plans, until the time budget is used up."""

    left_s: float

    def of(self, plan: RunPlan) -> Shrunk | None:
        """Make this plan small, or return None if no time is left."""
        from quire_simulator import shrink

        begin = time.monotonic()
        if self.left_s <= 0:
            return None
        with ProgressBar("shrink", counted="runs") as progress:
            found = shrink(
                plan,
                budget_s=self.left_s,
                clock=time.monotonic,
                on_run=lambda: progress.advance(1, 0),
            )
        self.left_s -= time.monotonic() - begin
        return found


@dataclass
class Report:
    """The results of a range of seeds."""

    seeds: range
    workloads: list[str]
    failures: list[RunResult] = field(default_factory=list)
    runs: int = 0
    simulated_s: float = 0.0
    seconds: float = 0.0
    shrunk: list[Shrunk] = field(default_factory=list)
    saved: Path | None = None

    def add(self, result: RunResult) -> None:
        self.runs += 1
        self.simulated_s += result.simulated_s
        if result.failure is not None:
            self.failures.append(result)

    def what(self) -> str:
        from quire_simulator import WORKLOADS

        every = len(self.workloads) > 1 and set(self.workloads) == set(WORKLOADS)
        return "every workload" if every else ", ".join(self.workloads)

    @staticmethod
    def replay(result: RunResult) -> str:
        workload = shlex.quote(result.workload)
        return f"python -m quire_simulator --workload {workload} --trace {result.seed}"

    def shrink(self, smaller: Smaller, save: Path | None) -> None:
        """For each broken invariant, make the failing plan with the smallest seed small."""
        from quire_simulator import RunPlan

        first: dict[str, RunResult] = {}
        # Sort by seed, because processes finish in any order.
        for result in sorted(self.failures, key=lambda r: (r.seed, r.workload)):
            assert result.failure is not None
            first.setdefault(result.failure.invariant, result)
        for result in list(first.values())[:SHRUNK_MAX]:
            plan = RunPlan.make(result.seed, result.workload)
            found = smaller.of(plan)
            if found is not None:
                self.shrunk.append(found)
            if save is not None and self.saved is None:
                assert result.failure is not None
                keep(save, found.plan if found is not None else plan, result.failure.invariant)
                self.saved = save

    def print(self, *, as_json: bool) -> None:
        if as_json:
            print_json(self._as_data())
            return
        for found in self.shrunk:
            print("\n".join(shrunk_lines(found)))
        if self.saved is not None:
            print(f"replay: python -m quire_simulator --plan {shlex.quote(str(self.saved))}")
        unit = "seeds" if len(self.workloads) == 1 else "runs"
        rate, hours = self.runs / self.seconds, self.simulated_s / 60 / self.seconds
        print(
            f"{self.runs} {unit} of {self.what()} ({self.seeds.start}.."
            f"{self.seeds.stop}) in {self.seconds:.1f} s: {rate:.1f} {unit}/s, "
            f"{hours:.1f} simulated hours per real minute; {len(self.failures)} failed"
        )
        print(build_line())

    def _as_data(self) -> dict[str, Any]:
        return {
            **build(),
            "workloads": self.workloads,
            "first_seed": self.seeds.start,
            "seeds": len(self.seeds),
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "runs_per_s": round(self.runs / self.seconds, 2),
            "simulated_s": round(self.simulated_s, 1),
            "failures": [
                {
                    "seed": r.seed, "workload": r.workload, "law": r.failure.invariant,
                    "what": r.failure.what, "replay": self.replay(r),
                }
                for r in self.failures
                if r.failure is not None
            ],
            "shrunk": [_shrunk_data(found) for found in self.shrunk],
            "saved": None if self.saved is None else str(self.saved),
        }  # fmt: skip


def keep(file: Path, plan: RunPlan, invariant: str = "") -> None:
    from quire_simulator import dump_plan

    file.write_text(dump_plan(plan, **build(), law=invariant), encoding="utf-8")


def shrunk_lines(found: Shrunk) -> Iterator[str]:
    from quire_simulator import describe_plan

    runs = counted(found.runs, "run")
    yield (
        f"made small in {runs}{'' if found.finished else ' (stopped by the time limit)'}: "
        f"{found.failure.invariant}: {found.failure.what}"
    )
    yield from (f"  {line}" for line in describe_plan(found.plan))


def _shrunk_data(found: Shrunk) -> dict[str, Any]:
    from quire_simulator import plan_as_data

    return {
        "law": found.failure.invariant,
        "what": found.failure.what,
        "runs": found.runs,
        "finished": found.finished,
        "schedule": [str(fault).strip() for fault in found.plan.schedule],
        "plan": plan_as_data(found.plan),
    }


# -- one run ----------------------------------------------------------------------------------


def tell(plan: RunPlan, form: str, save: Path | None, smaller: Smaller, *, as_json: bool) -> int:
    """Run the plan and print its trace.

    In Mermaid format, standard output has only the diagram, so it can be saved as a file. `save`
    stores the plan: made small if an invariant broke, unchanged otherwise.
    """
    from quire_simulator import as_mermaid, as_text, run_plan

    result = run_plan(plan, trace=True)
    found = smaller.of(plan) if save is not None and result.failure is not None else None
    if save is not None:
        invariant = result.failure.invariant if result.failure is not None else ""
        keep(save, plan if found is None else found.plan, invariant)
    lines = as_text(result, every_step=form == "full") if form != "mermaid" else []
    if as_json:
        trace = [as_mermaid(result)] if form == "mermaid" else lines
        print_json(_told_data(plan, result, found, trace))
    elif form == "mermaid":
        for line in _verdict(result):
            say(line)
        print(as_mermaid(result), end="")
    else:
        print("\n".join([*_heading(plan), *lines, *_verdict(result)]))
    if found is not None and not as_json:
        for line in shrunk_lines(found):
            say(line)
    return 0 if result.failure is None else EXIT_ERROR


def _heading(plan: RunPlan) -> Iterator[str]:
    from quire_simulator import describe_plan

    yield f"seed {plan.seed}, workload {plan.workload}; {build_line()}"
    yield from describe_plan(plan)


def _verdict(result: RunResult) -> Iterator[str]:
    yield f"trace {result.trace_digest}: {result.events} events, {result.simulated_s:.1f} s"
    if result.failure is None:
        yield "every invariant holds"
    else:
        yield f"{result.failure.invariant}: {result.failure.what}"


def _told_data(
    plan: RunPlan, result: RunResult, found: Shrunk | None, trace: list[str]
) -> dict[str, Any]:
    from quire_simulator import plan_as_data

    failure = result.failure
    return {
        **build(),
        "seed": result.seed,
        "workload": result.workload,
        "trace_digest": result.trace_digest,
        "events": result.events,
        "simulated_s": round(result.simulated_s, 6),
        "failure": None if failure is None else {"law": failure.invariant, "what": failure.what},
        "plan": plan_as_data(plan),
        "shrunk": None if found is None else _shrunk_data(found),
        "story": trace,
    }
