"""The run of one mutant against seeds of the simulator."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence

from tests.support.mutation.outcome import Outcome, VoidError
from tests.support.mutation.processes import run
from tests.support.mutation.seeds_process import (
    BEGINS,
    BROKEN,
    CLOCK_MAX_S,
    CPU_MAX_S,
    PASSED,
)
from tests.support.mutation.tree import Tree

FAR_FROM_IT = 3
"""The factor by which the unmutated copy must stay below the limit for a time-out to count."""
TIME_OUTS = (-signal.SIGPROF, -signal.SIGALRM)

Runs = Sequence[tuple[str, int]]
"""The (workload, seed) pairs of some runs."""


def run_seeds(tree: Tree, runs: Runs) -> Outcome:
    """Run one seed after another in a copy of the source tree, until one fails."""
    command = [sys.executable, "-m", "tests.support.mutation.seeds_process", json.dumps(runs)]
    begin = time.monotonic()
    ended = run(command, tree.root, tree.environment, CLOCK_MAX_S * (len(runs) + 1))
    took_s = time.monotonic() - begin
    last, broken, passed = None, None, None
    for line in ended.output.splitlines():
        # The output holds its end only, which has the last run.
        for head in (BEGINS, BROKEN, PASSED):
            if line.startswith(head):
                value = json.loads(line.removeprefix(head))
                last = value if head == BEGINS else last
                broken = value if head == BROKEN else broken
                passed = value if head == PASSED else passed
    if passed is not None:
        by = f"slow: {passed:.1f} s" if passed > CPU_MAX_S / FAR_FROM_IT else ""
        return Outcome(found=False, by=by, tried=len(runs), seconds=took_s)
    workload, seed = last if last is not None else runs[0]
    tried = 1 + list(map(tuple, runs)).index((workload, seed))
    if broken is not None:
        what = broken[2]
    elif ended.status is None or ended.status in TIME_OUTS:
        what = "time-out"
    else:
        what = f"the process ended with status {ended.status}: {ended.output[-300:]}"
    return Outcome(True, f"seed {seed} of {workload!r}: {what}", tried, took_s)


def find_by_seeds(mutated: Tree, unmutated: Tree, runs: Runs) -> Outcome:
    """Run the seeds in a mutated copy until one fails, and that one in the unmutated copy as well.

    Raises:
        VoidError: The seed fails in the unmutated copy too, or is so slow there that a time-out of
            the mutant does not count.
    """
    outcome = run_seeds(mutated, runs)
    if outcome.found:
        again = run_seeds(unmutated, [runs[outcome.tried - 1]])
        if again.found or again.by:
            raise VoidError(f"This also happens without the mutant: {again.by}")
    return outcome
