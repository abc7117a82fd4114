"""The end of all processes in a session, including everything that its command left.

Spark's drivers are started in sessions of their own. Their workers join process groups of their
own, so killing one process group would not reach them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

LIMIT_S = 30.0


def kill_session(session: int, spared: int = 0) -> None:
    """Kill the session's processes with SIGKILL, except for the process `spared`.

    They must not see each other die. PySpark's daemon sends SIGHUP to all its workers when its JVM
    has gone, including the spared one, so children are killed before their parents. A driver fails
    when its workers have gone, so its own process group is stopped first. No other group is
    stopped, because the kernel sends SIGHUP to a group with stopped processes that loses its
    parent.
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
    """Return the ids of the session's processes that have not ended, the youngest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        if int(rest[3]) == session and rest[0] != "Z":
            found.append((int(rest[19]), int(path.parent.name)))
    return [pid for _, pid in sorted(found, reverse=True)]
