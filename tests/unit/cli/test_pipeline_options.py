"""Options of `quire pipeline` that would have no effect are refused."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from quire.cli.pipeline import ingest as command
from quire.errors import UsageError
from quire.spark.jobs.offload import OffloadOptions

pytest.importorskip("pyspark")


@pytest.mark.parametrize("given", [{"table": "a.b"}, {"catalog": {"type": "sql"}}])
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_table_of_iceberg_needs_the_format(form: str, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"Iceberg table, but the format is {form}"):
        OffloadOptions(format=form, **given)
    OffloadOptions(format="iceberg", **{"table": "a.b", **given})


def test_an_interval_needs_a_run_that_continues() -> None:
    how: dict[str, Any] = {"available_now": True, "interval_s": 1.0}
    nothing: Any = None
    with pytest.raises(click.UsageError, match="--interval requires --follow"):
        command._follow(nothing, nothing, nothing, txn_id=None, again=False, **how)


def test_a_run_continues_or_ends() -> None:
    given = ["/in", "--stream", "s", "--follow", "--available-now", "--checkpoint", "/c"]
    found = CliRunner().invoke(command.ingest, [*given, "--metadata", "sqlite:///nowhere.db"])
    assert found.exit_code == 2
    assert "--follow and --available-now exclude each other" in found.output
