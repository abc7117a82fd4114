"""Run a client, and read its results with what the servers used meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import procfs
from harness.model import MIB, BenchmarkError
from harness.peers.systems import System, end

COMMAND_LIMIT_S = 180.0
SETTLE_LIMIT_S = 3.0
"""Seconds to wait for idle servers. Some of the systems are never quite idle."""

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a client."""

    kind: str
    values: Values


def measure(
    system: System, log: Path, given: Mapping[str, object], *, limit_s: float = COMMAND_LIMIT_S
) -> list[Result]:
    """Run the client to its end and return its results."""
    procfs.wait_until_quiet(system.pids(), SETTLE_LIMIT_S)
    for pid in system.pids():
        procfs.reset_rss_peak(pid)
    with started(system, log, given, limit_s=limit_s) as process:
        return list(_results(process, system.pids()))


@contextmanager
def started(
    system: System, log: Path, given: Mapping[str, object], *, limit_s: float = COMMAND_LIMIT_S
) -> Iterator[subprocess.Popen[str]]:
    """Run the client, and end it with the block or at the limit. It must have succeeded."""
    command = system.client(**given)
    with log.open("a") as errors:
        errors.write(" ".join(command[-8:]) + "\n")
        errors.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    late = threading.Event()

    def stop() -> None:
        late.set()
        end([process.pid], signal.SIGKILL)

    timer = threading.Timer(limit_s, stop)
    timer.start()
    try:
        yield process
        status = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            end([process.pid], signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
    if late.is_set():
        raise BenchmarkError(f"not done after {limit_s:.0f} s")
    if status:
        last = (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise BenchmarkError(f"the client of {system.title} failed: {last[:200]} (see {log})")


def _results(process: subprocess.Popen[str], pids: list[int]) -> Iterator[Result]:
    assert process.stdout is not None
    before, began = [procfs.usage(pid) for pid in pids], time.monotonic()
    for line in process.stdout:
        result = read_line(line)
        if result is None:
            continue
        now, moment = [procfs.usage(pid) for pid in pids], time.monotonic()
        pairs = list(zip(now, before, strict=True))
        used = {
            "cpu_s": sum(later.cpu_s - earlier.cpu_s for later, earlier in pairs),
            "written_bytes": float(
                sum(later.written_bytes - earlier.written_bytes for later, earlier in pairs)
            ),
            "rss_mb": max((later.rss_peak_bytes / MIB for later in now), default=0.0),
            "seconds": moment - began,
        }
        before, began = now, moment
        yield Result(result.kind, {**result.values, **used})


def read_line(line: str) -> Result | None:
    """Return the result in a line, or None if it is another line. Failed records are an error."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
        kind = str(found.pop("kind"))
        values = {str(name): float(value) for name, value in found.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"a line of a client cannot be read: {line.strip()}") from error
    if values.get("errors"):
        raise BenchmarkError(f"{values['errors']:.0f} records of {kind} were not acknowledged")
    return Result(kind, values)
