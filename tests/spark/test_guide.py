"""The examples of the guide, in their order, on a shop with two streams."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from streams import append, numbered

from quire.client import blocking
from quire.streams.blocking import Namespace
from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.spark

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"
SECTIONS = ("Reading streams", "Streaming queries", "Metadata as tables")


def examples() -> list[str]:
    found: list[str] = []
    for section in re.split(r"^## ", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if section.startswith(SECTIONS):
            found += re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    return found


def test_the_examples_of_the_guide(
    cluster: LocalCluster,
    client: blocking.Client,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Namespace.create(client, "/shop") as streams:
        append(streams, "orders", numbered(0, 100), segments=2)
        append(streams, "returns", numbered(0, 30))
    names: dict[str, object] = {"spark": spark, "checkpoint": str(tmp_path)}
    code = examples()
    assert len(code) == 6
    for example in code:
        # The guide leaves the cluster to the environment of the driver.
        given = example.replace(
            'format("quire")', f'format("quire").option("metadata", "{cluster.uri}")'
        )
        given = given.replace("OPTIONS (", f"OPTIONS (metadata '{cluster.uri}', ")
        exec(given, names)
    counts = {row.stream: row["count"] for row in names["count"].collect()}  # type: ignore[attr-defined]
    assert counts == {"orders": 100, "returns": 30}
    assert [row.sequence for row in names["recent"].collect()] == list(range(90, 100))  # type: ignore[attr-defined]
    progress = names["query"].recentProgress  # type: ignore[attr-defined]
    assert sum(one["numInputRows"] for one in progress) == 130
    assert max(one["numInputRows"] for one in progress) == 50
    assert names["ledgers"].count() >= 3  # type: ignore[attr-defined]
    shown = capsys.readouterr().out
    assert "max(sequence)" in shown
    assert "sum(records)" in shown
    spark.streams.removeListener(names["listener"])  # type: ignore[arg-type]
