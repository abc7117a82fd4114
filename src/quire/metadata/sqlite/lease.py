"""Who is alive, for processes that share one SQLite file on one machine.

A session is alive while all of this holds:

- it was begun since the machine was started (the boot id is the same),
- its lease has not run out on the boot clock, which is one for all processes and goes on while the
  machine sleeps,
- its process still exists: a process that was killed is gone at once, not after its lease. A
  process is named by its id and its start time, since ids are used again, and is only looked for
  within one process namespace: others cannot be seen from here.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_NO_START = 0
"""The start time of a process is not known: there is no /proc. Only its lease tells."""
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SYSCTL_TIMEOUT_S = 5
_ZOMBIE_STATES = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class ProcessId:
    pid: int
    namespace: str
    start: int


class LeaseMachine(Protocol):
    """What a lease needs to know of the machine. Tests hand in their own. Calls may block."""

    def boot_id(self) -> str:
        """Changes with each start of the machine."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since the machine was started."""
        ...

    def this_process(self) -> ProcessId: ...

    def exists(self, process: ProcessId) -> bool:
        """False only if the process is certainly gone."""
        ...


class ThisMachine:
    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return _boot_id_of_sysctl()

    def now_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def this_process(self) -> ProcessId:
        pid = os.getpid()
        return ProcessId(pid, _namespace(), _start_of(pid) or _NO_START)

    def exists(self, process: ProcessId) -> bool:
        if process.start == _NO_START or process.namespace != _namespace():
            return True
        return _start_of(process.pid) == process.start


def _boot_id_of_sysctl() -> str:
    """macOS. Without it a lease from before a restart could look alive, until it runs out."""
    try:
        run = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            timeout=_SYSCTL_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return run.stdout.decode("ascii", "replace").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """When the process was started, in ticks since boot; None if there is no such process, or it
    has ended and only waits for its parent to notice."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may contain anything: fields count from behind it.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in _ZOMBIE_STATES:
        return None
    return int(fields[19])
