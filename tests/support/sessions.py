"""The processes of a session: all that a command left which was started in a session of its own,
as Spark's drivers are, whose workers put themselves into process groups of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

LIMIT_S = 30.0


def kill_session(session: int, spared: int = 0) -> None:
    """Kill them with -9, but for the process `spared`.

    They must not see each other die. PySpark's daemon hangs up all its workers when the JVM above
    it has gone, the spared one too, so children are killed before their parents; and a driver
    fails when its workers have gone, so its own process group is stopped before. (No other group:
    the kernel hangs up one that has stopped processes when it loses its parent.)
    """
    try:
        os.killpg(session, signal.SIGSTOP)
    except ProcessLookupError:
        pass
    deadline_s = time.monotonic() + LIMIT_S
    while left := [pid for pid in in_session(session) if pid != spared]:
        assert time.monotonic() < deadline_s, left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def in_session(session: int) -> list[int]:
    """Those that have not ended, the youngest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(rest[3]) == session and rest[0] != "Z":
            found.append((int(rest[19]), int(path.parent.name)))
    return [pid for _, pid in sorted(found, reverse=True)]
