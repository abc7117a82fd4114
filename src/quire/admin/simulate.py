"""`quire simulate`: whole clusters on seeds, in parallel processes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING

import click

from quire.admin.groups import EXIT_ERROR, say
from quire.admin.options import json_option
from quire.admin.output import print_json
from quire.admin.progress import Progress

if TYPE_CHECKING:
    from quire.testing.simulation import Result

SEEDS_DEFAULT = "0..100"
WAITING_PER_PROCESS = 4
"""Seeds that are handed out before they are asked for."""
FAILURES_MAX = 20
"""Behind so many no further seeds are begun."""


class SeedRange(click.ParamType[range]):
    """A..B: the seeds from A to before B."""

    name = "A..B"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> range:
        found = re.fullmatch(r"(\d+)\.\.(\d+)", str(value))
        if found is None or int(found[1]) >= int(found[2]):
            self.fail(f"{value!r} is no range of seeds: give A..B, from A to before B", param, ctx)
        return range(int(found[1]), int(found[2]))


@click.command()
@click.option(
    "--seeds", type=SeedRange(), default=SEEDS_DEFAULT, show_default=True,
    help="From A to before B.",
)  # fmt: skip
@click.option("--workload", default="all", show_default=True, help="What clients and faults do.")
@click.option("--trace", type=click.IntRange(0), metavar="SEED", help="Tell the story of one seed.")
@click.option(
    "--processes", type=click.IntRange(1), help="At once; as many as there are processors."
)
@json_option("Print one object with the totals and the failures.")
def simulate(
    seeds: range, workload: str, trace: int | None, processes: int | None, as_json: bool
) -> int:
    """Run whole clusters with faults, each made of one seed, and check that every law holds.

    The same seed gives the same run on the same version of Quire and Python. Exit status 1 if a
    law did not hold.
    """
    from quire.errors import UsageError
    from quire.testing.simulation import WORKLOADS

    if workload not in WORKLOADS:
        raise UsageError(f"no workload {workload!r}; there are: {', '.join(WORKLOADS)}")
    if trace is not None:
        return _tell(trace, workload)
    return _run_all(seeds, workload, processes or os.cpu_count() or 1, as_json)


def _tell(seed: int, workload: str) -> int:
    from quire.testing.simulation import simulate as run

    result = run(seed, workload, story=True)
    print(f"seed {seed}, workload {workload}; faults:")
    for fault in result.schedule:
        print(f"  {fault}")
    print("\n".join(result.story))
    print(f"trace {result.trace_digest}: {result.events} events, {result.simulated_s:.1f} s")
    if result.failure is None:
        print("every law holds")
        return 0
    print(f"{result.failure.law}: {result.failure.what}")
    return EXIT_ERROR


def _run_all(seeds: range, workload: str, processes: int, as_json: bool) -> int:
    begin, simulated_s, done = time.monotonic(), 0.0, 0
    failures: list[Result] = []
    with Progress("simulate", total=len(seeds), counted="seeds") as progress:
        for result in _results(seeds, workload, processes, failures):
            simulated_s += result.simulated_s
            done += 1
            progress.advance(1, 0)
            if result.failure is not None:
                failures.append(result)
                say(f"seed {result.seed}: {result.failure.law}: {result.failure.what}")
                say(f"  replay: quire simulate --workload {workload} --trace {result.seed}")
    seconds = max(time.monotonic() - begin, 1e-9)
    if as_json:
        failed = [
            {"seed": r.seed, "law": r.failure.law, "what": r.failure.what}
            for r in failures
            if r.failure is not None
        ]
        print_json(
            {
                "workload": workload, "seeds": done, "seconds": round(seconds, 3),
                "seeds_per_s": round(done / seconds, 2), "simulated_s": round(simulated_s, 1),
                "python": sys.version.split()[0], "failures": failed,
            }
        )  # fmt: skip
    else:
        print(
            f"{done} seeds of {workload!r} in {seconds:.1f} s: {done / seconds:.1f} seeds/s, "
            f"{simulated_s / 60 / seconds:.1f} simulated hours per real minute; "
            f"{len(failures)} failed"
        )
    return EXIT_ERROR if failures else 0


def _results(
    seeds: range, workload: str, processes: int, failures: list[Result]
) -> Iterator[Result]:
    """As they come; a few more than asked for are under way."""
    # A fork would take along what this process has opened.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        upcoming = iter(seeds)
        first = islice(upcoming, processes * WAITING_PER_PROCESS)
        pending = {pool.submit(_simulate, seed, workload) for seed in first}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                more = 0 if len(failures) >= FAILURES_MAX else len(finished)
                pending |= {
                    pool.submit(_simulate, seed, workload) for seed in islice(upcoming, more)
                }
                for future in finished:
                    yield future.result()
        finally:
            for future in pending:
                future.cancel()


def _simulate(seed: int, workload: str) -> Result:
    from quire.testing.simulation import simulate as run

    return run(seed, workload)
