"""The run of one mutant against the tests that execute the mutated function."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from tests.support.mutation.baseline import PYTEST
from tests.support.mutation.outcome import Outcome, VoidError
from tests.support.mutation.processes import Ended, run
from tests.support.mutation.tree import Tree

CPU_MIN_S, CLOCK_MIN_S = 30.0, 300.0
FACTOR = 10.0
"""The factor on the measured time of the chosen tests that both of their limits allow.

The limits are `CPU_MIN_S` and `CLOCK_MIN_S` seconds, and this many times the measured time. The
limit by the clock ends tests that wait for each other. It is large, because the machine may do
other work.
"""
TIME_OUT = "time-out"
FAR_FROM_IT = 1 / 3
"""The share of the limits within which the unmutated copy must end for a time-out to count."""
SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::\S.*?)?)(?: - .*)?$", re.MULTILINE)
NO_TEST_RAN = 5


def run_tests(
    mutated: Tree, unmutated: Tree, tests: Sequence[str], seconds: Mapping[str, float]
) -> Outcome:
    """Run the tests against a mutated copy until one fails.

    A failure is then repeated with the unmutated copy, where it must not happen.

    Raises:
        VoidError: The test also fails in the unmutated copy.
    """
    if not tests:
        return Outcome(found=False, by="", tried=0, seconds=0.0)
    begin = time.monotonic()
    ended = _pytest(mutated, tests, seconds)
    took_s = time.monotonic() - begin
    if ended.status == 0:
        return Outcome(found=False, by="", tried=len(tests), seconds=took_s)
    if ended.status == NO_TEST_RAN:
        raise VoidError(f"No test ran: {ended.output}")
    late = ended.status in (None, -signal.SIGXCPU, -signal.SIGKILL)
    by = TIME_OUT if late else _failed_test(ended)
    suspects = [by] if by in seconds else tests
    again = _pytest(unmutated, suspects, seconds, FAR_FROM_IT)
    if again.status != 0:
        raise VoidError(f"{by} also fails without the mutant:\n{again.output}")
    return Outcome(found=True, by=by, tried=len(tests), seconds=took_s)


def _failed_test(ended: Ended) -> str:
    """Return the name of the test or file that pytest reports as failed."""
    found = SUMMARY.search(ended.output)
    return found[1] if found else f"pytest ended with status {ended.status}"


def _pytest(
    tree: Tree, tests: Sequence[str], seconds: Mapping[str, float], share: float = 1.0
) -> Ended:
    """Run the tests in the copy, within `share` of the limits that their measured time gives."""
    measured_s = FACTOR * sum(seconds[name] for name in tests)
    clock_s, cpu_s = share * (CLOCK_MIN_S + measured_s), share * (CPU_MIN_S + measured_s)
    cost_s: dict[str, float] = defaultdict(float)
    for name in tests:
        cost_s[name.partition("::")[0]] += seconds[name]
    files = sorted(cost_s, key=lambda file: (cost_s[file], file))  # The quick ones come first.
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".tests") as chosen:
        chosen.write("\n".join(tests))
        chosen.flush()
        environment = tree.environment | {
            "QUIRE_MUTATION_CHOSEN": str(Path(chosen.name)),
            "QUIRE_MUTATION_CLOCK_S": str(int(clock_s) + 60),
            "QUIRE_MUTATION_CPU_S": str(int(cpu_s)),
        }
        return run([sys.executable, *PYTEST, *files], tree.root, environment, clock_s)
