"""The lines that commands print on standard error at their start and when they are interrupted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quire.cli.ledger.write import _left_open
from quire.cli.pipeline.job import PipelineJob
from quire.client import LedgerWriter
from quire.spark.jobs import ClusterOptions


@pytest.mark.parametrize(("as_json", "said"), [(False, "starting Spark ...\n"), (True, "")])
def test_a_job_announces_that_spark_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], as_json: bool, said: str
) -> None:
    """Nothing was printed for a minute, and a new user killed the command."""
    job = PipelineJob("audit", ClusterOptions("memory://x"), None, {}, None, as_json)
    with job._starting(tmp_path / "spark.log"):
        pass
    assert capfd.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("last", "said"), [(-1, "no entry is acknowledged"), (7, "entries are acknowledged up to 7")]
)
def test_an_interrupted_writer_reports_the_last_acknowledged_entry(last: int, said: str) -> None:
    writer = SimpleNamespace(ledger_id=3, last_add_confirmed=last)
    assert _left_open(cast(LedgerWriter, writer)) == (
        f"Ledger 3 was left open; {said}. `quire ledger recover 3` closes it"
    )
