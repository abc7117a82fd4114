"""`quire pipeline` among the running jobs, without Spark."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import quire
from quire._runtime.retry import Backoff
from quire.cli.common.progress import StepBar
from quire.cli.main import cli
from quire.cli.pipeline import job as pipeline_job
from quire.cli.pipeline.job import PipelineJob, told
from quire.config import ClientConfig
from quire.errors import QuireError
from quire.replication.marks import job_announcements
from quire.replication.marks.job_announcements import RunningJob, running_jobs
from quire.spark import session
from quire.spark.jobs import ClusterOptions

LIMIT_S = 30


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_announcements, "SAY_INTERVAL_S", 0.02)
    monkeypatch.setattr(pipeline_job, "RETRY_BACKOFF", Backoff(0.05, 0.05))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/meta.db"


def make(uri: str) -> None:
    done = CliRunner().invoke(cli, ["cluster", "init", "--metadata", uri])
    assert done.exit_code == 0, done.output


def jobs(uri: str, wanted: Callable[[list[RunningJob]], bool]) -> list[RunningJob]:
    async def look() -> list[RunningJob]:
        async with quire.connect(uri) as client:
            return await running_jobs(client.metadata)

    end_s = time.monotonic() + LIMIT_S
    while not wanted(found := asyncio.run(look())):
        assert time.monotonic() < end_s, found
    return found


def test_a_job_is_listed_while_it_runs(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(uri)

    @contextmanager
    def no_session(*name: str, **how: Any) -> Iterator[str]:
        yield "spark"

    monkeypatch.setattr(session, "job_session", no_session)
    job = PipelineJob("ingest", ClusterOptions(uri), None, {}, None, as_json=True)

    with job.session("/streams/orders") as (spark, progress):
        [found] = jobs(uri, bool)
        assert (found.kind, found.target) == ("pipeline ingest", "/streams/orders")
        assert found.sentence().endswith(": begins")
        assert found.as_json()["pausable"] is False
        progress("records written", 1_000, None)
        [found] = jobs(uri, lambda them: "1,000" in them[0].far.step)
        said = f"pipeline ingest /streams/orders, by {found.by}: records written: 1,000"
        assert found.sentence() == said
        progress("segments copied", 3, 10)
        jobs(uri, lambda them: them[0].far.step == "segments copied: 3 of 10")
        done = CliRunner().invoke(cli, ["explain", "--metadata", uri])
        assert "running: pipeline ingest /streams/orders" in done.output
        assert spark == "spark"
    assert jobs(uri, lambda them: not them) == []


def test_a_failed_job_is_no_longer_listed(uri: str) -> None:
    make(uri)

    def fail() -> None:
        with told(uri, ClientConfig(), "pipeline x", "y", StepBar().far):
            jobs(uri, bool)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert jobs(uri, lambda them: not them) == []


def test_an_unreachable_store_is_tried_again_while_the_job_runs(uri: str) -> None:
    """The job continues while the store is unreachable."""
    with told(uri, ClientConfig(), "pipeline x", "y", StepBar().far):
        with pytest.raises(QuireError):
            jobs(uri, bool)
        make(uri)
        [found] = jobs(uri, bool)
        assert found.kind == "pipeline x"


def test_a_short_job_does_not_wait_for_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the job ends with it at any step."""
    monkeypatch.setattr(pipeline_job, "END_TIMEOUT_S", LIMIT_S)
    begun_s = time.monotonic()
    for _ in range(20):
        with told("sqlite:////nowhere/at/all.db", ClientConfig(), "pipeline x", "y", StepBar().far):
            pass
    assert time.monotonic() - begun_s < LIMIT_S
