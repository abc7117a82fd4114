"""Tests that need network namespaces are chosen only where the kernel gives them."""

from __future__ import annotations

import pytest

from tests.support.netns import refused

LEFT_OUT = pytest.StashKey[str]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Left out, not skipped: a skip says that something is missing which could be installed."""
    wanting = [item for item in items if item.get_closest_marker("namespaces")]
    why = refused() if wanting else ""
    if why:
        config.stash[LEFT_OUT] = f"{len(wanting)} tests were left out: {why}"
        config.hook.pytest_deselected(items=wanting)
        items[:] = [item for item in items if item not in wanting]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = terminalreporter.config.stash.get(LEFT_OUT, "")
    if said:
        terminalreporter.write_line(said)
