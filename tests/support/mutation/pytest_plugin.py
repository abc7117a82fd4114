"""A pytest plugin for runs in a copy of the source tree.

It refuses to import Quire from elsewhere, limits what a mutant may use, and runs only the chosen
tests. When the unmutated copy is measured, it tells coverage which test runs, and how long it took.
These variables control it:

- QUIRE_MUTATION_ROOT: the directory of the copy.
- QUIRE_MUTATION_CLOCK_S, QUIRE_MUTATION_CPU_S: the seconds and processor seconds after which this
  process ends.
- QUIRE_MUTATION_CHOSEN: a file with the names of the chosen tests, one in each line. Without it,
  all tests run.
- QUIRE_MUTATION_SECONDS: the file to write with the seconds of each test that passed.
"""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.mutation.processes import check_imports_from, restrain

seconds: dict[str, float] = defaultdict(float)
failed: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    restrain(int(os.environ["QUIRE_MUTATION_CLOCK_S"]))
    cpu_s = int(os.environ["QUIRE_MUTATION_CPU_S"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    check_imports_from(os.environ["QUIRE_MUTATION_ROOT"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    file = os.environ.get("QUIRE_MUTATION_CHOSEN")
    if file:
        chosen = set(Path(file).read_text(encoding="utf-8").split("\n"))
        others = [item for item in items if item.nodeid not in chosen]
        items[:] = [item for item in items if item.nodeid in chosen]
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if "QUIRE_MUTATION_SECONDS" not in os.environ:
        return (yield)
    from coverage import Coverage

    measuring = Coverage.current()
    if measuring is None:
        return (yield)
    measuring.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        measuring.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] += report.duration
    if report.outcome != "passed":  # A skipped test finds nothing.
        failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    file = os.environ.get("QUIRE_MUTATION_SECONDS")
    if file:
        passed = {name: round(took, 4) for name, took in seconds.items() if name not in failed}
        Path(file).write_text(json.dumps(passed), encoding="utf-8")
