"""The resource usage of processes, read from /proc (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")

_RESET_PEAK = "5"  # Written to clear_refs: VmHWM restarts at the present size (proc(5)).

QUIET_CORES = 0.05
"""The share of one core below which servers are idle."""
QUIET_WINDOW_S = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_s: float
    written_bytes: int
    rss_peak_bytes: int


def _stat_fields(pid: int) -> list[str]:
    """Return field 3 (state) and later. The name before them may contain spaces and parentheses."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process with all threads, or 0 if it is gone."""
    try:
        fields = _stat_fields(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def written_bytes(pid: int) -> int:
    """Return the bytes that the process sent to the disk, not those in the page cache."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "io").read_text().splitlines():
            name, _, value = line.partition(": ")
            if name == "write_bytes":
                return int(value)
    return 0


def rss_peak_bytes(pid: int) -> int:
    """Return the highest resident size since the start, or since `reset_rss_peak`."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def available() -> bool:
    return Path("/proc/self/io").exists()


def reset_rss_peak(pid: int) -> None:
    """Restart the measurement of the peak.

    If this is not permitted, the peak is that of the whole life: it may be too high, but not too
    low.
    """
    with suppress(OSError):
        (_PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK)


def usage(pid: int) -> Usage:
    return Usage(cpu_s(pid), written_bytes(pid), rss_peak_bytes(pid))


def command_line(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`, without itself."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                children.setdefault(int(_stat_fields(int(entry.name))[1]), []).append(
                    int(entry.name)
                )
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return sorted(found)


def tree_cpu_s(pid: int) -> float:
    return sum(cpu_s(p) for p in (pid, *descendants(pid)))


def wait_until_quiet(pids: Iterable[int], limit_s: float) -> bool:
    """Write back dirty pages, and wait until the processes are idle. Return False at the limit."""
    watched = tuple(pids)
    os.sync()
    deadline = time.monotonic() + limit_s
    while True:
        before = sum(cpu_s(pid) for pid in watched)
        time.sleep(QUIET_WINDOW_S)
        used = sum(cpu_s(pid) for pid in watched) - before
        if used <= QUIET_CORES * QUIET_WINDOW_S:
            return True
        if time.monotonic() > deadline:
            return False
