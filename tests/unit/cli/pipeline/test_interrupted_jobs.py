"""What a job says after Ctrl-C that comes before or after its Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import pytest

from quire.cli.common.groups import exit_status
from quire.cli.pipeline import job as jobs
from quire.cli.pipeline.job import PipelineJob, job_options

pytest.importorskip("pyspark")


@contextmanager
def nothing(*arguments: Any, **more: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("before", "interrupted: nothing was begun; run the same command again\n"),
        ("during", "interrupted: look at it\n"),
        ("after", "interrupted: the job was complete\n"),
    ],
)
def test_ctrl_c_says_what_to_do(
    when: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quire.spark.session.job_session", nothing)
    monkeypatch.setattr(jobs, "told", nothing)

    def interrupted(now: str) -> None:
        if now == when:
            raise KeyboardInterrupt

    @click.command()
    @job_options
    def command(job: PipelineJob) -> None:
        interrupted("before")
        with job.session("a target", "look at it"):
            interrupted("during")
        interrupted("after")

    context = command.make_context("a job", ["--metadata", "sqlite:///nowhere.db"])
    with context, pytest.raises(KeyboardInterrupt) as caught:
        command.invoke(context)
    assert (exit_status(caught.value), capsys.readouterr().err) == (130, said)
