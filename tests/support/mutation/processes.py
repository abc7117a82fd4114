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
"""The address space of one process. A mutant may well allocate without an end."""
PR_SET_PDEATHSIG = 1
LOOK_S = 0.5
"""Seconds between two checks whether the sample was interrupted."""
OUTPUT_KEPT = 4000
"""The number of characters of a process' output that are kept, from its end."""


stopping = threading.Event()
"""Set when the sample is interrupted. It ends all processes, in whichever thread they are run."""


class StoppedError(Exception):
    """The sample was interrupted while a process ran."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended. The status is None if its time was over."""

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
    """Kill the process and all that it started, such as a bookie of a unit test."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def restrain(seconds: int) -> None:
    """Limit the memory and the life of this process. It also dies with its parent.

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
