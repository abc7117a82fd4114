"""Tests may be started in the background or with nohup, and still send signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
LOOK = """
import signal
import tests.conftest

for number in (signal.SIGINT, signal.SIGHUP):
    print(signal.getsignal(number) is signal.SIG_IGN)
"""


def ignores() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_no_signal_that_tests_send_is_ignored() -> None:
    """A test of a rolling restart waited for ever, because bookies inherit it."""
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(
        command, cwd=ROOT, preexec_fn=ignores, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "False"]
