"""Select tests that need network namespaces or file systems only where the kernel permits them."""

from __future__ import annotations

import pytest

from tests.support.processes.wanted import WANTED

LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect these tests instead of skipping them.

    A skip would mean that something is missing that could be installed.
    """
    for marker, refused in WANTED.items():
        wanting = [item for item in items if item.get_closest_marker(marker)]
        why = refused() if wanting else ""
        if why:
            said = config.stash.setdefault(LEFT_OUT, [])
            said.append(f"{len(wanting)} tests were left out: {why}")
            config.hook.pytest_deselected(items=wanting)
            items[:] = [item for item in items if item not in wanting]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line)
