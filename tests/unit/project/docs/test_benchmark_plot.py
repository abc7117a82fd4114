"""The plot in the documentation shows the figures of the table beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_plot_matches_the_table() -> None:
    command = [sys.executable, ROOT / "bench" / "page_plot.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
