"""The last lines of the logs of a test's servers, for the report of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

LINES_MAX = 25
"""The number of lines that are shown from the end of each log."""
LOGS_MAX = 12
"""The largest number of logs that are shown for one test."""
TAIL_BYTES = 16 * 1024


def server_logs(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Yield a title and the last lines of each log below the directories of the test's fixtures."""
    arguments = getattr(item, "funcargs", {})
    for path in sorted(set(_logs(arguments)))[:LOGS_MAX]:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-LINES_MAX:]
        if lines:
            yield f"last lines of {path.name}", "\n".join(lines)


def _logs(arguments: dict[str, object]) -> Iterator[Path]:
    for value in arguments.values():
        # A cluster has its logs in its directory, and so has a fixture that holds one.
        for held in (value, getattr(value, "cluster", None)):
            directory = held if isinstance(held, Path) else getattr(held, "directory", None)
            if isinstance(directory, Path) and directory.is_dir():
                yield from directory.glob("*.log")
                yield from directory.glob("*/*.log")
