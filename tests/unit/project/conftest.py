"""Leave out tests of the Helm chart that need helm, where there is none.

A skip would mean that something is missing that `make test` could install.
"""

from __future__ import annotations

import shutil

import pytest

LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("helm")]
    if wanting and shutil.which("helm") is None:
        config.stash[LEFT_OUT] = [
            f"{len(wanting)} tests were left out: there is no helm "
            "(go install helm.sh/helm/v3/cmd/helm@v3.19.0)"
        ]
        config.hook.pytest_deselected(items=wanting)
        items[:] = [item for item in items if item not in wanting]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line)
