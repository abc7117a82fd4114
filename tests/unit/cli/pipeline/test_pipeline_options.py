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
def test_an_iceberg_table_needs_the_format_option(form: str, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"Iceberg table, but the format is {form}"):
        OffloadOptions(format=form, **given)
    OffloadOptions(format="iceberg", **{"table": "a.b", **given})


def test_an_interval_requires_follow() -> None:
    how: dict[str, Any] = {"available_now": True, "interval_s": 1.0}
    nothing: Any = None
    with pytest.raises(click.UsageError, match="--interval requires --follow"):
        command._follow(nothing, nothing, nothing, txn_id=None, again=False, **how)


def test_follow_and_available_now_exclude_each_other() -> None:
    given = ["/in", "--stream", "s", "--follow", "--available-now", "--checkpoint", "/c"]
    found = CliRunner().invoke(command.ingest, [*given, "--metadata", "sqlite:///nowhere.db"])
    assert found.exit_code == 2
    assert "--follow and --available-now exclude each other" in found.output
