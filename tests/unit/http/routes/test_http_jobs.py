"""Jobs that HTTP requests begin, and requests that name a job which is running."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.errors import JobRefusedError
from quire.http.routes.jobs import RUNNING_MAX, HttpJob, Jobs
from quire.http.server.error_responses import status_of
from quire.replication.moves.remaining import Remaining


async def endless(job: HttpJob) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def test_a_request_with_other_options_does_not_get_the_running_job() -> None:
    """It was answered like the first one, and its cookie was never removed."""
    jobs = Jobs(SystemClock())
    try:
        first = jobs.start("recover", "b:1", endless, {"delete_cookie": False})
        assert jobs.start("recover", "b:1", endless, {"delete_cookie": False}) is first
        with pytest.raises(JobRefusedError, match="delete_cookie: false") as refused:
            jobs.start("recover", "b:1", endless, {"delete_cookie": True})
        assert (status_of(refused.value), refused.value.outcome_known) == (409, True)
        assert jobs.start("decommission", "b:1", endless, {"check": True}) is not first
        assert len(jobs.all()) == 2
    finally:
        await jobs.close()


async def test_a_job_over_the_limit_is_refused_with_status_409() -> None:
    jobs = Jobs(SystemClock())
    try:
        for number in range(RUNNING_MAX):
            jobs.start("recover", f"b:{number}", endless)
        with pytest.raises(JobRefusedError, match="running already") as refused:
            jobs.start("recover", "another", endless)
        assert status_of(refused.value) == 409
    finally:
        await jobs.close()


async def test_a_job_that_is_cancelled_at_once_has_ended() -> None:
    """It counted as running for ever, and a request for it never started another one."""
    ended: list[str] = []

    def log(event: str, **fields: object) -> None:
        ended.append(f"{event} {fields['state']}")

    jobs = Jobs(SystemClock(), log)
    try:
        first = jobs.start("recover", "b:1", endless)
        assert (await jobs.cancel(first.id)).as_json()["state"] == "cancelled"
        assert first.ended_ms is not None
        assert ended == ["http_job_ended cancelled"]
        assert jobs.start("recover", "b:1", endless) is not first
    finally:
        await jobs.close()


async def test_a_job_that_left_ledgers_is_incomplete_and_not_done() -> None:
    """It was listed as done, with all of its ledgers, and the event said nothing of those left."""
    events: list[dict[str, object]] = []
    jobs = Jobs(SystemClock(), lambda event, **fields: events.append(fields))

    async def work(job: HttpJob) -> dict[str, Any]:
        job.remaining = Remaining("ledgers", 3, 2, ("ledgers 7, 8: no bookie",), "Add a bookie.")
        return {"complete": False}

    job = jobs.start("decommission", "b:1", work)
    assert job.task is not None
    await job.task
    found = job.as_json()
    assert (found["state"], found["result"]) == ("incomplete", {"complete": False})
    assert found["remaining"] == {
        "counts": "ledgers", "done": 3, "left": 2, "reasons": ["ledgers 7, 8: no bookie"],
        "remedy": "Add a bookie.",
    }  # fmt: skip
    (event,) = events
    assert (event["state"], event["left"]) == ("incomplete", 2)
    assert event["error"] == "2 ledgers are left: ledgers 7, 8: no bookie"
