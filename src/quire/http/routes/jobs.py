"""Jobs: long work that one request begins and later requests look at.

A job ends with its process. Its results are in the cluster, so a client that sends the same request
again after a restart begins a job that continues where the old one ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire.client import Client
from quire.errors import JobError, JobRefusedError, QuireError, nothing_done
from quire.http.server.error_responses import NotFoundError, error_body
from quire.replication.marks.job_announcements import JobStatus, announced
from quire.replication.marks.pauses import Pause, PauseGate
from quire.replication.moves.remaining import Remaining

RUNNING_MAX = 4
"""The number of jobs that may run at once. Each of them copies entries."""
KEPT_MAX = 100
"""The number of ended jobs that are still listed."""


class HttpJob:
    """A job that an HTTP request began.

    It is also the `replication.moves.recover.JobProgress` to which its work reports progress.
    """

    def __init__(self, job_id: int, kind: str, target: str, now_ms: int) -> None:
        self.id = job_id
        self.kind = kind
        self.target = target
        self.state = "running"
        self.step = ""
        self.ledgers = self.ledgers_done = 0
        self.size_bytes = self.done_bytes = 0
        self.started_ms = now_ms
        self.ended_ms: int | None = None
        self.result: dict[str, Any] | None = None
        self.remaining: Remaining | None = None
        """The part of the job that was not done, or None. Its work sets it before it ends."""
        self.advice = ""
        """The advice on what remains to be done by hand after a complete job, or ''."""
        self.error: dict[str, Any] | None = None
        self.options: Mapping[str, Any] = {}
        """The options of the request that began the job."""
        self.task: asyncio.Task[None] | None = None
        self.gate: PauseGate | None = None
        """The gate at which the job waits while it is paused."""
        self.paused: Pause | None = None
        """The pause that applies to the job, or None. The job stops before its next ledger."""

    def begin(self, what: str, ledgers: int, size_bytes: int) -> None:
        self.step, self.ledgers, self.size_bytes = what, ledgers, size_bytes
        self.ledgers_done = self.done_bytes = 0

    def done(self, ledgers: int, size_bytes: int) -> None:
        self.ledgers_done += ledgers
        self.done_bytes += size_bytes

    async def may_go_on(self) -> None:
        if self.gate is not None:
            await self.gate.passes()

    def on_pause(self, found: Pause | None) -> None:
        self.paused = found

    def far(self) -> JobStatus:
        return JobStatus(
            self.step, self.ledgers, self.ledgers_done, self.size_bytes, self.done_bytes,
            self.paused is not None,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "target": self.target,
            "state": self.state,
            "paused": asdict(self.paused) if self.paused is not None else None,
            "step": self.step,
            "ledgers": self.ledgers,
            "ledgers_done": self.ledgers_done,
            "bytes": self.size_bytes,
            "bytes_done": self.done_bytes,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "result": self.result,
            "remaining": None if self.remaining is None else self.remaining.as_json(),
            "advice": self.advice,
            "error": self.error,
        }


@asynccontextmanager
async def attended(client: Client, job: HttpJob, owner: str) -> AsyncIterator[None]:
    """Make a job pausable, and announce it to other processes while it runs.

    `owner` is the name of this process in the announcement. This never raises an error of its own.
    """
    store = client.metadata
    job.gate = PauseGate(store, job.kind, job.target, job.on_pause)
    async with announced(store, job.kind, job.target, owner, client.clock.now_ms, job.far):
        yield


Work = Callable[[HttpJob], Awaitable[dict[str, Any]]]


class Jobs:
    """The jobs of this process.

    A job is `running`, `done` (see its `result`), `incomplete` (see its `result` and what is
    `remaining`), `failed` (see its `error`) or `cancelled`.
    """

    def __init__(self, clock: Clock, log: EventLog | None = None) -> None:
        """Create an empty list of jobs. `log` receives an event when a job has ended."""
        self._clock = clock
        self._log = log
        self.on_end: Callable[[], None] = lambda: None
        """A function that is called when a job has ended."""
        self._jobs: dict[int, HttpJob] = {}
        self._last_id = 0

    def start(
        self, kind: str, target: str, work: Work, options: Mapping[str, Any] | None = None
    ) -> HttpJob:
        """Start a job, or return the running job with the same kind, target and options.

        Raises JobRefusedError if `RUNNING_MAX` jobs are running, or if the same job is running with
        other options.
        """
        options = options or {}
        running = [job for job in self._jobs.values() if job.state == "running"]
        for job in running:
            if (job.kind, job.target) != (kind, target):
                continue
            if job.options == options:
                return job
            raise nothing_done(
                JobRefusedError(
                    f"the job was not started: job {job.id} ({kind} of {target}) is running with "
                    f"other options ({_told(job.options)})",
                    remedy="Wait for it to end, or cancel it, and send the request again",
                )
            )
        if len(running) >= RUNNING_MAX:
            raise nothing_done(
                JobRefusedError(
                    f"the job was not started: {RUNNING_MAX} jobs are running already, and no more "
                    "may run at once",
                    remedy="Wait for one to end, or cancel one",
                )
            )
        self._last_id += 1
        job = HttpJob(self._last_id, kind, target, self._clock.now_ms())
        job.options = options
        self._jobs[job.id] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, work))
        self._forget()
        return job

    def all(self) -> list[HttpJob]:
        """Return all jobs, the newest first."""
        return list(self._jobs.values())[::-1]

    def pausing(self, kind: str, target: str, pause: Pause | None) -> None:
        """Show that a running job is paused (`pause`) or resumed (None).

        The job itself notices that only before its next ledger.
        """
        for job in self._jobs.values():
            if job.state == "running" and (job.kind, job.target) == (kind, target):
                job.paused = pause

    def get(self, job_id: int) -> HttpJob:
        """Return the job with this id.

        Raises NotFoundError if the job does not exist, or is no longer listed.
        """
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(
                f"job {job_id} is not listed in this process, which lists the jobs that it runs, "
                f"and the last {KEPT_MAX} that have ended",
                remedy="GET /api/v1/quire/jobs lists the jobs",
            )
        return job

    async def cancel(self, job_id: int) -> HttpJob:
        """Cancel a job, and wait until it has ended. The work that it has done remains.

        A job that has ended already is not changed. Raises NotFoundError as `get` does.
        """
        job = self.get(job_id)
        if job.task is not None and not job.task.done():
            job.task.cancel()
            await asyncio.wait([job.task])
            if job.state == "running":  # its task had not begun, so nothing has said that it ended
                self._end(job)
        return job

    async def close(self) -> None:
        for job in self.all():
            await self.cancel(job.id)

    async def _run(self, job: HttpJob, work: Work) -> None:
        try:
            job.result = await work(job)
            job.state = "done" if job.remaining is None else "incomplete"
        except asyncio.CancelledError:
            job.state = "cancelled"
        except QuireError as error:
            job.state, job.error = "failed", error_body(error)["error"]
        except Exception as error:  # noqa: BLE001 - the job shows every error
            unexpected = JobError(
                f"the job failed because of a bug: {type(error).__name__}: {error}",
                remedy="Report this error. Running the job again is safe",
            )
            job.state, job.error = "failed", error_body(unexpected)["error"]
        finally:
            self._end(job)

    def _end(self, job: HttpJob) -> None:
        if job.state == "running":
            job.state = "cancelled"
        job.paused = None
        job.ended_ms = self._clock.now_ms()
        self.on_end()
        if self._log is not None:
            self._log("http_job_ended", id=job.id, kind=job.kind, target=job.target,
                      state=job.state, ledgers_done=job.ledgers_done, bytes_done=job.done_bytes,
                      left=0 if job.remaining is None else job.remaining.left,
                      error=_why(job))  # fmt: skip

    def _forget(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.state != "running"]
        for job_id in ended[: max(0, len(ended) - KEPT_MAX)]:
            del self._jobs[job_id]


def _why(job: HttpJob) -> str:
    """Return why a job is not done, or ''."""
    if job.error is not None:
        return str(job.error["what"])
    return "" if job.remaining is None else job.remaining.sentence()


def _told(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in options.items())
