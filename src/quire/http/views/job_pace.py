"""How fast jobs and repairs are, and how long they still take.

The rate is that of the last minute in which somebody looked. Before there are two samples, it is
the mean since the job began. After a pause, or when another pass has begun, there is none then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.replication.marks.job_announcements import RunningJob

WINDOW_S = 60.0
"""The largest age, in seconds, of a sample from which a rate is computed."""
SAMPLE_INTERVAL_S = 1.0
"""The least number of seconds between two samples of one job."""
SPAN_LEAST_S = 2.0
"""The least number of seconds between the first and the last sample of which a rate is computed."""
KEPT_MAX = 256
"""The largest number of jobs whose samples are kept."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The progress of a job at one moment."""

    at_s: float
    bytes: int
    ledgers: int


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate of a job and the time that it still takes. A value is None if it is not known."""

    bytes_per_s: float | None = None
    ledgers_per_s: float | None = None
    left_s: float | None = None
    """Seconds until the job is done, if it continues at this rate."""

    def as_json(self) -> dict[str, float | None]:
        return {
            "bytes_per_s": self.bytes_per_s,
            "ledgers_per_s": self.ledgers_per_s,
            "left_s": self.left_s,
        }


class JobPaces:
    """The pace of each job that somebody looks at."""

    def __init__(self) -> None:
        self._samples: dict[Hashable, deque[Sample]] = {}
        self._interrupted: dict[Hashable, None] = {}
        """The jobs that were paused, or began another pass: their start tells nothing of a rate."""
        self._repair = _Repair()

    def of(self, key: Hashable, job: dict[str, Any], now_ms: int) -> Pace:
        """Take a sample of a running job, and return its pace.

        Args:
            key: The identity of the job and of its present step.
            job: The job as JSON: `bytes`, `bytes_done`, `ledgers`, `ledgers_done`, `started_ms`
                and `paused`.
            now_ms: When the job reported these numbers, in milliseconds since 1970.
        """
        samples = self._samples.pop(key, None) or deque()
        self._samples[key] = samples  # the last in the order is the one that was used last
        while len(self._samples) > KEPT_MAX:
            oldest = next(iter(self._samples))
            del self._samples[oldest]
            self._interrupted.pop(oldest, None)
        if job["paused"]:
            samples.clear()  # the time of the pause must not count when it goes on
            self._interrupted[key] = None
            return Pace()
        now = Sample(now_ms / 1000, job["bytes_done"], job["ledgers_done"])
        seen = bool(samples)
        rates = _rates(samples, now)
        if seen and not samples:
            self._interrupted[key] = None  # another pass has begun
        if rates is None and key not in self._interrupted:
            rates = _rates(deque([Sample(job["started_ms"] / 1000, 0, 0)]), now)
        _add(samples, now)
        return Pace() if rates is None else _pace(*rates, job)

    def repair(self, marked: int, now_ms: int) -> dict[str, Any] | None:
        """Return the progress of autorecovery as JSON, or None if no ledger is marked for repair.

        `marked` is the number of marked ledgers now. The progress is counted from the largest
        number that was seen since no ledger was marked.
        """
        return self._repair.progress(marked, now_ms)


@dataclass(slots=True)
class _Repair:
    most: int = 0
    since_ms: int = 0
    samples: deque[Sample] = field(default_factory=deque)

    def progress(self, marked: int, now_ms: int) -> dict[str, Any] | None:
        if not marked:
            self.most = 0
            self.samples.clear()
            return None
        if marked > self.most:
            self.most, self.since_ms = marked, now_ms
            self.samples.clear()
        job = {"ledgers": self.most, "ledgers_done": self.most - marked, "bytes": 0}
        now = Sample(now_ms / 1000, 0, self.most - marked)
        rates = _rates(self.samples, now)
        _add(self.samples, now)
        pace = Pace() if rates is None else _pace(*rates, {**job, "bytes_done": 0})
        return {**job, "bytes_done": 0, "since_ms": self.since_ms, **pace.as_json()}


class Job(Protocol):
    """A job of this process."""

    def as_json(self) -> dict[str, Any]: ...


def jobs_with_pace(jobs: Iterable[Job], paces: JobPaces, now_ms: int) -> list[dict[str, Any]]:
    """Return the jobs of this process as JSON, with the pace of those that are running.

    `now_ms` is the present time in milliseconds since 1970.
    """
    found = []
    for job in jobs:
        told = job.as_json()
        pace = Pace()
        if told["state"] == "running":
            pace = paces.of(("here", told["id"], told["step"]), told, now_ms)
        found.append({**told, **pace.as_json()})
    return found


def running_with_pace(
    running: Iterable[RunningJob], but_by: str, paces: JobPaces
) -> list[dict[str, Any]]:
    """Return announced jobs as JSON with their pace, except those of the process `but_by`."""
    found = []
    for one in running:
        if one.by != but_by:
            told = one.as_json()
            key = (one.by, one.kind, one.target, one.started_ms, one.far.step)
            found.append({**told, **paces.of(key, told, one.said_ms).as_json()})
    return found


def _add(samples: deque[Sample], now: Sample) -> None:
    if not samples or now.at_s - samples[-1].at_s >= SAMPLE_INTERVAL_S:
        samples.append(now)
    while len(samples) > 1 and now.at_s - samples[0].at_s > WINDOW_S:
        samples.popleft()


def _rates(samples: deque[Sample], now: Sample) -> tuple[float, float] | None:
    """Return the bytes and the ledgers per second up to `now`, or None if they are not known.

    Samples from before another pass of the job are removed.
    """
    while samples and (now.bytes < samples[-1].bytes or now.ledgers < samples[-1].ledgers):
        samples.clear()  # another pass of the job has begun
    # The oldest sample may be from before a long time in which nobody looked.
    first = next((one for one in samples if now.at_s - one.at_s <= WINDOW_S), None)
    first = first or (samples[-1] if samples else None)
    if first is None or (span_s := now.at_s - first.at_s) < SPAN_LEAST_S:
        return None
    return (now.bytes - first.bytes) / span_s, (now.ledgers - first.ledgers) / span_s


def _pace(bytes_per_s: float, ledgers_per_s: float, job: dict[str, Any]) -> Pace:
    left_s = None
    for total, done, rate in (
        (job["bytes"], job["bytes_done"], bytes_per_s),
        (job["ledgers"], job["ledgers_done"], ledgers_per_s),
    ):
        if total and rate > 0:
            left_s = max(0, total - done) / rate
            break
    return Pace(
        bytes_per_s if job["bytes"] else None, ledgers_per_s if job["ledgers"] else None, left_s
    )
