"""The command `python -m quire_simulator`: run whole clusters from seeds, in several processes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli.common.groups import EXIT_ERROR, Program, say
from quire.cli.common.options import Duration, json_option
from quire.cli.common.progress import ProgressBar
from quire_simulator.command.results import FORMATS, Report, Smaller, build_line, tell

if TYPE_CHECKING:
    from quire_simulator import RunPlan, RunResult

SEEDS_DEFAULT = "0..100"
EVERY = "every"
ON_TRIAL = ("full metadata", "returning")
"""Workloads that `every` leaves out. Some of their seeds fail for an unknown reason, or few of them
were tried."""
WAITING_PER_PROCESS = 4
"""The number of seeds queued for each process in advance."""
FAILURES_MAX = 20
"""The number of failures after which no further seed is started."""
SHRINK_DEFAULT_S = 60.0
FRESH_BYTES = 4
"""The number of random bytes of the first seed of `--fresh`."""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Job = tuple[str, int]
"""Workload and seed."""


class SeedRange(click.ParamType[range]):
    """The parameter type of A..B: the seeds from A up to, but not including, B."""

    name = "A..B"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> range:
        found = re.fullmatch(r"(\d+)\.\.(\d+)", str(value))
        if found is None or int(found[1]) >= int(found[2]):
            self.fail(
                f"{value!r} is not a range of seeds. Give A..B, for instance 0..100.",
                param, ctx,
            )  # fmt: skip
        return range(int(found[1]), int(found[2]))


class _Simulate(Program, click.Command):
    """A separate program with the error output and exit statuses of `quire`."""


@click.command("python -m quire_simulator", cls=_Simulate, context_settings=SETTINGS)
@click.option(
    "--seeds", type=SeedRange(),
    help=f"Run the seeds from A up to, but not including, B.  [default: {SEEDS_DEFAULT}]",
)  # fmt: skip
@click.option(
    "--fresh", type=click.IntRange(1), metavar="N", help="Run N seeds, starting at a random one."
)
@click.option(
    "--workload", default="all", show_default=True, metavar="W[,W...]",
    help=f"Run these workloads, separated by commas, or '{EVERY}' for all that are not on trial.",
)  # fmt: skip
@click.option(
    "--trace", type=click.IntRange(0), metavar="SEED", help="Run one seed and show its trace."
)
@click.option(
    "--plan", type=click.Path(dir_okay=False, path_type=Path),
    help="Run a plan that --save has written, and show its trace.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True,
    help="The format of a trace. 'full' shows every single step.",
)  # fmt: skip
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan of a failure, made small, to this file.",
)  # fmt: skip
@click.option(
    "--shrink/--no-shrink", default=True,
    help="Search for smaller plans that fail in the same way.  [default: shrink]",
)  # fmt: skip
@click.option(
    "--shrink-seconds", type=Duration(), default=SHRINK_DEFAULT_S, show_default=True,
    help="The longest time to spend on making plans small.",
)  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(1),
    help="The number of processes.  [default: one for each processor]",
)  # fmt: skip
@json_option("Print one JSON object with all results.")
def simulate(
    seeds: range | None,
    fresh: int | None,
    workload: str,
    trace: int | None,
    plan: Path | None,
    form: str,
    save: Path | None,
    shrink: bool,
    shrink_seconds: float,
    processes: int | None,
    as_json: bool,
) -> int:
    """Run simulated clusters with faults, and check that every invariant holds.

    One seed determines a run. The same seed gives the same run with the same version of Quire and
    Python. The exit status is 1 if an invariant did not hold.
    """
    from quire.errors import UsageError

    asked = [name for name, given in _ways(seeds, fresh, trace, plan) if given]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} cannot be used together. Use only one of them.")
    workloads = _workloads(workload)
    if save is not None and not save.absolute().parent.is_dir():
        raise UsageError(f"--save {save}: the directory {save.absolute().parent} does not exist.")
    smaller = Smaller(shrink_seconds if shrink else 0.0)
    if trace is not None or plan is not None:
        return tell(_one_plan(trace, plan, workloads), form, save, smaller, as_json=as_json)
    if fresh is not None:
        first = int.from_bytes(os.urandom(FRESH_BYTES))
        seeds = range(first, first + fresh)
    if seeds is None:
        seeds = SeedRange().convert(SEEDS_DEFAULT, None, None)
    return _run_all(seeds, workloads, processes or os.cpu_count() or 1, smaller, save, as_json)


def _ways(
    seeds: range | None, fresh: int | None, trace: int | None, plan: Path | None
) -> list[tuple[str, bool]]:
    """Return the options that select runs. Only one of them may be given."""
    return [
        ("--seeds", seeds is not None),
        ("--fresh", fresh is not None),
        ("--trace", trace is not None),
        ("--plan", plan is not None),
    ]


def _workloads(text: str) -> list[str]:
    from quire.errors import UsageError
    from quire_simulator import WORKLOADS

    names = (
        [one for one in WORKLOADS if one not in ON_TRIAL]
        if text == EVERY
        else list(dict.fromkeys(text.split(",")))
    )
    for name in names:
        if name not in WORKLOADS:
            raise UsageError(
                f"There is no workload {name!r}. Use '{EVERY}', or one of: {', '.join(WORKLOADS)}."
            )
    return names


def _one_plan(trace: int | None, file: Path | None, workloads: list[str]) -> RunPlan:
    from quire.errors import UsageError
    from quire_simulator import RunPlan, load_plan

    if file is not None:
        return load_plan(file.read_text(encoding="utf-8"))
    assert trace is not None
    if len(workloads) != 1:
        raise UsageError("--trace shows one run. Name exactly one workload.")
    return RunPlan.make(trace, workloads[0])


def _run_all(
    seeds: range,
    workloads: list[str],
    processes: int,
    smaller: Smaller,
    save: Path | None,
    as_json: bool,
) -> int:
    begin, report = time.monotonic(), Report(seeds, workloads)
    say(f"{build_line()}: seeds {seeds.start}..{seeds.stop} of {report.what()}")
    jobs = [(workload, seed) for seed in seeds for workload in workloads]
    with ProgressBar("simulate", total=len(jobs), counted="runs") as progress:
        for result in _results(jobs, processes, report.failures):
            report.add(result)
            progress.advance(1, 0)
            if result.failure is not None:
                say(
                    f"seed {result.seed} of {result.workload!r}: "
                    f"{result.failure.invariant}: {result.failure.what}"
                )
                say(f"  replay: {report.replay(result)}")
    report.seconds = max(time.monotonic() - begin, 1e-9)
    report.shrink(smaller, save)
    report.print(as_json=as_json)
    return EXIT_ERROR if report.failures else 0


def _results(jobs: list[Job], processes: int, failures: list[RunResult]) -> Iterator[RunResult]:
    """Yield results as they arrive, with some jobs always queued in advance."""
    # A forked process would inherit everything that this process has opened.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        upcoming = iter(jobs)
        first = islice(upcoming, processes * WAITING_PER_PROCESS)
        pending = {pool.submit(_simulate, job) for job in first}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                more = 0 if len(failures) >= FAILURES_MAX else len(finished)
                pending |= {pool.submit(_simulate, job) for job in islice(upcoming, more)}
                for future in finished:
                    yield future.result()
        finally:
            for future in pending:
                future.cancel()


def _simulate(job: Job) -> RunResult:
    import logging

    from quire_simulator import simulate as run

    # The trace contains what simulated programs would log.
    logging.getLogger("quire").addHandler(logging.NullHandler())
    workload, seed = job
    return run(seed, workload)
