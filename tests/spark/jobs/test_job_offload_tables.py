"""Offloaded files as Delta and Iceberg tables, or the error if the libraries are missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire.blocking import Namespace
from quire.errors import HistoryError, UsageError
from quire.spark.jobs import ClusterOptions, offload
from quire.spark.jobs.archive import tables as parquet_tables
from quire.spark.jobs.archive.manifest import DATA, HistoryFile, OffloadHistory
from quire.streams import DLSN
from quire.testing.cluster import LocalCluster
from tests.support.spark.offloads import NAMESPACE, facts, facts_of_rows
from tests.support.spark.streams import append, numbered

pytestmark = pytest.mark.spark

LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg.catalog"}


def rows(kind: str, directory: Path, name: str, catalog: dict[str, str]) -> list[dict[str, Any]]:
    if kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(OffloadHistory(str(directory), name).store.uri)
        found = table.to_pyarrow_dataset().to_table()
    else:
        from pyiceberg.catalog import load_catalog

        found = load_catalog(None, **catalog).load_table("history.records").scan().to_arrow()
    order = [("segment", "ascending"), ("entry", "ascending"), ("slot", "ascending")]
    return list(found.sort_by(order).to_pylist())


def commits(kind: str, directory: Path, name: str, catalog: dict[str, str]) -> list[list[str]]:
    """Return the stream and the positions that each commit with files names, oldest first."""
    if kind == "delta":
        from deltalake import DeltaTable

        said = DeltaTable(OffloadHistory(str(directory), name).store.uri).history()[::-1]
    else:
        from pyiceberg.catalog import load_catalog

        table = load_catalog(None, **catalog).load_table("history.records")
        said = [
            {} if snapshot.summary is None else snapshot.summary.additional_properties
            for snapshot in table.snapshots()
        ]
    fields = ("quire.stream", "quire.first", "quire.last")
    return [[one[field] for field in fields] for one in said if fields[0] in one]


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
@pytest.mark.parametrize("kind", LIBRARIES)
def test_offloaded_records_are_in_the_table_once(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, kind: str,
) -> None:  # fmt: skip
    """Offloaded data is in the table once, also after jobs that ended before or after adding it."""
    target = tmp_path / "history"
    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    options: dict[str, Any] = {"format": kind, "wait_s": 0.0, "truncate": True}
    if kind == "iceberg":
        options |= {"table": "history.records", "catalog": catalog}

    def run() -> int:
        cluster_options = ClusterOptions(cluster.uri)
        return offload(spark, cluster_options, NAMESPACE, name, str(target), **options).records

    append(streams, name, numbered(0, 200), segments=2)
    everything = facts(streams, name)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, LIBRARIES[kind], None)
        with pytest.raises(
            UsageError, match=rf"needs the Python package {LIBRARIES[kind]}.*pip install"
        ):
            run()
    assert facts(streams, name) == everything, "nothing is truncated"
    assert run() == 200
    append(streams, name, numbered(200, 300))
    everything += facts(streams, name, start=DLSN(3, 0, 0))
    publish = f"to_{kind}"
    original = getattr(parquet_tables, publish)
    calls: list[int] = []

    def fails(*arguments: Any) -> int:
        calls.append(1)
        if len(calls) == 2:  # After the manifest.
            raise HistoryError("the store is gone")
        return int(original(*arguments))

    monkeypatch.setattr(parquet_tables, publish, fails)
    with pytest.raises(HistoryError, match="the store is gone"):
        run()
    monkeypatch.undo()
    assert run() == 0
    assert facts_of_rows(rows(kind, target, name, catalog)) == everything

    def lost(*arguments: Any) -> int:
        original(*arguments)
        raise HistoryError("the answer was lost")

    append(streams, name, numbered(300, 310))
    everything += facts(streams, name, start=DLSN(4, 0, 0))
    calls.clear()
    monkeypatch.setattr(parquet_tables, publish, lambda *a: lost(*a) if calls else calls.append(1))
    with pytest.raises(HistoryError, match="the answer was lost"):
        run()
    monkeypatch.undo()
    assert run() == 0
    assert facts_of_rows(rows(kind, target, name, catalog)) == everything
    bounds = [(0, 199), (200, 299), (300, 309)]
    assert commits(kind, target, name, catalog) == [
        [name, str(everything[first][0]), str(everything[last][0])] for first, last in bounds
    ]


def test_table_commits_are_atomic() -> None:
    place = DLSN(1, 0, 0)
    files = [
        HistoryFile(str(at), 1, 1, place, place, (0, 0), (0, 0), None, commit=at // 700)
        for at in range(2_500)
    ]
    turns = parquet_tables._in_turns(files)
    assert [file for turn in turns for file in turn] == files
    assert [(turn[0].commit, turn[-1].commit) for turn in turns] == [(0, 1), (2, 3)]


def test_iceberg_paths_have_no_query() -> None:
    """The query of a URI is for pyarrow only, and is not part of the path of a file."""
    history = OffloadHistory("s3://bucket/archive?region=us-east-1", "orders")
    place = DLSN(1, 0, 0)
    file = HistoryFile("1.parquet", 1, 1, place, place, (0, 0), (0, 0), None)
    path = parquet_tables._iceberg_path(history, file)
    assert path == f"s3://bucket/archive/orders/{DATA}/1.parquet"
