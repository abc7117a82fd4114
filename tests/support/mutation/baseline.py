"""The unmutated copy, which must pass everything, and shows which test executes which line.

Both are measured once for a tree and kept beside it. If the unmutated copy does not pass, no result
of a mutant would mean anything, so a `VoidError` ends the sample.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

from tests.support.mutation.outcome import VoidError
from tests.support.mutation.processes import run
from tests.support.mutation.rooms import PACKAGE, ROOMS, WORKLOADS, room_of
from tests.support.mutation.simulator_stage import run_seeds
from tests.support.mutation.sites import Mutant, body_of
from tests.support.mutation.tree import Tree

MEASURING_MAX_S = 3600
UNIT = "tests/unit"
PROPERTY = "tests/property/"
PYTEST = (
    "-m", "pytest", "-q", "-x", "--no-header", "--tb=line",
    "-p", "tests.support.mutation.pytest_plugin", "--hypothesis-seed=0",
)  # fmt: skip
"""The arguments of every run of pytest. Hypothesis draws the same examples each time."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The durations and the coverage of the tests, as measured with the unmutated copy."""

    tree: Tree
    seconds: dict[str, float]
    """The seconds that each test took, by its name. They include the cost of measuring."""
    contexts: CoverageData

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the names of the tests that execute anything in the mutated function.

        They are unit tests of the mutant's room, and property tests. Coverage loses the rest of a
        function in which an `await` raised, so the tests that are known to execute the mutated
        statement itself would be too few. Code that runs when its module
        is imported concerns each test. For a statement there, the result has all unit tests of the
        room, and the property tests that execute anything in the file.
        """
        source = self.tree.read(mutant.path)
        by_line = self._tests_by_line(mutant.path)
        unit = f"{UNIT}/{room_of(mutant.path)}/"
        lines = body_of(mutant, source)
        if lines is not None:
            names = {name for line in lines for name in by_line.get(line, ())}
        else:
            names = {name for found in by_line.values() for name in found}
            names |= {name for name in self.seconds if name.startswith(unit)}
        chosen = [name for name in names if name.startswith((unit, PROPERTY))]
        return sorted(name for name in chosen if name in self.seconds)

    def _tests_by_line(self, path: str) -> dict[int, list[str]]:
        # The measured names are absolute, and the directory may have been moved since.
        for file in self.contexts.measured_files():
            if file.endswith(f"/copy/{path}"):
                return self.contexts.contexts_by_lineno(file)
        return {}


def measure(tree: Tree, place: Path, *, with_tests: bool) -> Baseline | None:
    """Run the unmutated copy, unless that was done before, and return what was measured.

    Files in `place` keep the result. Without `with_tests`, only one seed of each workload is run,
    and the result is None.

    Raises:
        VoidError: A test or an invariant fails without any mutant.
    """
    simulated = place / "simulated.json"
    if not simulated.exists():
        _check_workloads(tree)
        simulated.write_text("true", encoding="utf-8")
    if not with_tests:
        return None
    seconds, contexts = place / "seconds.json", place / "contexts.sqlite"
    if not seconds.exists():
        _measure_tests(tree, seconds, contexts)
    data = CoverageData(basename=str(contexts))
    data.read()
    return Baseline(tree, json.loads(seconds.read_text(encoding="utf-8")), data)


def _check_workloads(tree: Tree) -> None:
    names = dict.fromkeys(name for row in WORKLOADS.values() for name in row)
    result = run_seeds(tree, [(name, 0) for name in names])
    if result.found:
        raise VoidError(f"The simulator fails without a mutant: {result.by}")


def _measure_tests(tree: Tree, seconds: Path, contexts: Path) -> None:
    unfinished = seconds.with_suffix(".unfinished")
    contexts.unlink(missing_ok=True)
    places = [f"{UNIT}/{room}" for room in ROOMS] + [PROPERTY]
    command = [
        sys.executable, "-m", "coverage", "run", "--rcfile=", f"--data-file={contexts}",
        f"--include={','.join(f'{tree.root}/{PACKAGE}/{room}/*' for room in ROOMS)}",
        *PYTEST, *(name for name in places if (tree.root / name).is_dir()),
    ]  # fmt: skip
    environment = tree.environment | {
        "QUIRE_MUTATION_SECONDS": str(unfinished),
        "QUIRE_MUTATION_CLOCK_S": str(MEASURING_MAX_S),
        "QUIRE_MUTATION_CPU_S": str(MEASURING_MAX_S),
        "COVERAGE_CORE": "ctrace",  # The other ones know no contexts.
    }
    ended = run(command, tree.root, environment, MEASURING_MAX_S)
    if ended.status != 0:
        raise VoidError(f"The unit tests fail without a mutant:\n{ended.output}")
    unfinished.rename(seconds)


def commit_of(working_tree: Path) -> str:
    """Return the commit of the working tree, with "-dirty" if it has changes."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=working_tree, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
