"""Takes samples: starts a benchmark command, reads its lines as they come, and notes at each line
what the bookies and the client have used since the one before."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from harness import disk, procfs
from harness.model import BenchmarkError, BookieUse, Measure, Sample
from harness.parse import parse_apache, parse_quire
from harness.sides import Cluster

COMMAND_LIMIT_S = 900
"""One command: its warm-up and its measured rounds."""


def take(measure: Measure, cluster: Cluster, rounds: int, logs: Path) -> list[Sample]:
    """`rounds` samples. The command runs one round more: the first warms its client up (a JVM that
    compiles, a Python that imports) and does not count, on either side."""
    wanted = _kind_wanted(measure)
    samples = [
        sample
        for sample in _run(measure, cluster, rounds + 1, logs)
        if sample.kind == wanted and sample.seconds is not None
    ]
    if len(samples) < rounds + 1:
        raise BenchmarkError(
            f"{measure.name}: {len(samples)} results instead of {rounds + 1}; see {logs}"
        )
    measured = samples[1:]
    failed = sum(sample.errors for sample in measured)
    if failed:
        raise BenchmarkError(f"{measure.name}: {failed} operations failed; see {logs}")
    return measured


def take_disk(directory: Path, total_bytes: int) -> Sample:
    """The better of appending and preallocated writing: what the disk allows at most."""
    rates = [
        disk.write_rate_mb_per_s(directory, total_bytes, preallocated=preallocated)
        for preallocated in (False, True)
    ]
    return Sample("disk", mb_per_s=max(rates))


def _kind_wanted(measure: Measure) -> str:
    """Apache's command prints an add and a read line per round; only one of them is asked for."""
    if measure.side == "quire":
        return measure.work.verb
    return {"latency": "add", "ledgers": "add"}.get(measure.work.verb, measure.work.verb)


def _parser(measure: Measure) -> Callable[[str], Sample | None]:
    if measure.side == "apache":
        return parse_apache
    return lambda line: parse_quire(line, measure.work.verb)


def _run(measure: Measure, cluster: Cluster, rounds: int, logs: Path) -> Iterator[Sample]:
    parse = _parser(measure)
    pids = cluster.bookie_pids()
    for pid in pids:
        procfs.reset_rss_peak(pid)
    with _started(cluster.command(measure, rounds), cluster.environment(), logs) as process:
        meter = _Meter(pids, process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            sample = parse(line)
            if sample is not None:
                yield meter.add_use(sample)
        status = process.wait()
    if status != 0:
        raise BenchmarkError(f"{measure.name}: {_last_words(logs, status)}")


class _Meter:
    """What was used between two lines of results."""

    def __init__(self, pids: list[int], client: int) -> None:
        self._pids = pids
        self._client = client
        self._before = self._now()

    def _now(self) -> tuple[float, float, list[procfs.Usage]]:
        return (
            time.monotonic(),
            procfs.tree_cpu_s(self._client),
            [procfs.usage(pid) for pid in self._pids],
        )

    def add_use(self, sample: Sample) -> Sample:
        moment, client, bookies = self._now()
        moment_before, client_before, bookies_before = self._before
        self._before = moment, client, bookies
        return replace(
            sample,
            seconds=moment - moment_before,
            client_cpu_s=client - client_before,
            bookies=tuple(
                BookieUse(
                    now.cpu_s - before.cpu_s,
                    now.written_bytes - before.written_bytes,
                    now.rss_peak_bytes,
                )
                for now, before in zip(bookies, bookies_before, strict=True)
            ),
        )


@contextmanager
def _started(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, ended with all its children if it takes too long or
    if the block is left early."""
    with log.open("w") as errors:
        errors.write(" ".join(command) + "\n")
        errors.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,
        )
        watchdog = threading.Timer(COMMAND_LIMIT_S, _kill_session, [process.pid])
        watchdog.start()
        try:
            with process:
                try:
                    yield process
                finally:
                    if process.poll() is None:
                        _kill_session(process.pid)
        finally:
            watchdog.cancel()


def _kill_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _last_words(log: Path, status: int) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines()[1:] if line.strip()]
    said = lines[-1].strip() if lines else "it said nothing"
    how = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    return f"{how}: {said} (all of it: {log})"
