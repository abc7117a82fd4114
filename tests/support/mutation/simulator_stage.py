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
LEFT_OUT_MAX = 3
"""The most seeds of one mutant that may fail without it. With more, the tree is not fit to be
tested."""
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
    """Run the seeds in a mutated copy until one fails that does not fail in the unmutated copy.

    A seed that fails in both copies, or is so slow in the unmutated one that a time-out of the
    mutant does not count, says nothing about the mutant. It is left out, and the next one runs.

    Raises:
        VoidError: More than `LEFT_OUT_MAX` seeds fail in the unmutated copy.
    """
    left_out: list[str] = []
    begun, seconds = 0, 0.0
    while begun < len(runs):
        outcome = run_seeds(mutated, runs[begun:])
        begun += outcome.tried
        seconds += outcome.seconds
        if not outcome.found:
            break
        again = run_seeds(unmutated, [runs[begun - 1]])
        if not (again.found or again.by):
            return Outcome(True, outcome.by, begun, seconds)
        left_out.append(again.by)
        if len(left_out) > LEFT_OUT_MAX:
            raise VoidError("These also happen without the mutant: " + "; ".join(left_out))
    by = "left out, because they fail without the mutant: " + "; ".join(left_out)
    return Outcome(False, by if left_out else "", begun, seconds)
