"""Processes that import a copy of the source tree, with limits for what a mutant may do."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

MEMORY_MAX_BYTES = 6 << 30
"""The largest address space of one process in bytes. A mutant may allocate without end."""
PR_SET_PDEATHSIG = 1
LOOK_S = 0.5
"""Seconds between two checks whether the sample was interrupted."""
OUTPUT_KEPT = 4000
"""The number of characters that are kept from the end of a process's output."""


stopping = threading.Event()
"""An event that is set when the sample is interrupted.

It ends all processes, whichever threads run them.
"""


class StoppedError(Exception):
    """The error of a run that ended because the sample was interrupted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process: its output, and its status, or None if it was out of time."""

    status: int | None
    output: str


def run(command: list[str], cwd: Path, environment: dict[str, str], timeout_s: float) -> Ended:
    """Run a command in a session of its own, and end the whole session afterwards."""
    # A file and not a pipe: a server that a test left running would keep a pipe open.
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            status = _wait(process, timeout_s)
        finally:
            end_session(process)
        output.seek(0)
        return Ended(status, output.read().decode(errors="replace")[-OUTPUT_KEPT:])


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if stopping.is_set():
            raise StoppedError
        try:
            return process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            pass
    return None


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all processes of its session, such as a bookie of a unit test."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def restrain(seconds: int) -> None:
    """Limit the memory and the run time of this process, and let it die with its parent.

    A mutant that hangs must end even if the process that watches it has been killed.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    signal.alarm(max(1, seconds))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def check_imports_from(root: str) -> None:
    """Raise SystemExit if this process imports Quire from outside of `root`."""
    import quire
    import quire_simulator

    for package in (quire, quire_simulator):
        if not str(package.__file__).startswith(f"{root}{os.sep}"):
            raise SystemExit(f"{package.__name__} was imported from {package.__file__}")
