"""What the operating system says of this process, under the names that Prometheus' own clients
use. Linux only; elsewhere there is less."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from quire._runtime.metrics import Metric, counter, gauge


def process_metrics() -> Iterator[Metric]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds_total", "Seconds of CPU, of user and system.",
                  used.ru_utime + used.ru_stime)  # fmt: skip
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        files = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return
    yield gauge("process_resident_memory_bytes", "Bytes of memory that are in use.",
                pages * os.sysconf("SC_PAGE_SIZE"))  # fmt: skip
    yield gauge("process_open_fds", "Files and sockets that are open.", files)
