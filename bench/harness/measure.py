"""Take samples: run a benchmark command and read its lines as they arrive.

At each line, record what the bookies and the client have used since the previous line.
"""

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
"""The time limit of one command, with its warm-up and its measured rounds."""


def take(measure: Measure, cluster: Cluster, rounds: int, logs: Path) -> list[Sample]:
    """Return `rounds` samples.

    The command runs one more round at the beginning, which does not count on either side. It warms
    up the client: a JVM compiles, and Python imports modules.
    """
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
    """Measure the disk's limit: the better of appending and preallocated writing."""
    rates = [
        disk.write_rate_mb_per_s(directory, total_bytes, preallocated=preallocated)
        for preallocated in (False, True)
    ]
    return Sample("disk", mb_per_s=max(rates))


def _kind_wanted(measure: Measure) -> str:
    """Return the kind of lines to use, because Apache's command prints an add and a read line per
    round.
    """
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
    """Measures the resources that are used between two result lines."""

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
    """Run the command in its own session, and end it with all its children afterwards.

    It is killed if it takes too long or if the block is left early.
    """
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
    said = lines[-1].strip() if lines else "it printed nothing"
    how = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    return f"{how}: {said} (complete output: {log})"
