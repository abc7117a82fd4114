"""The merge of small files of an archive: what is merged, and runs that end at any step.

Archives whose files are those of a Delta table are compacted by Delta's own means instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire.blocking import Namespace
from quire.errors import JobError, QuireError, UsageError
from quire.spark.jobs import ClusterOptions, history, preview_offload
from quire.spark.jobs.archive import merge, tables
from quire.spark.jobs.archive.manifest import (
    DATA,
    HistoryFile,
    Manifest,
    OffloadClaim,
    OffloadHistory,
)
from quire.spark.jobs.archive.merge import FILES_MIN, KEEP_MERGED_MS, merges, without_expired
from quire.spark.jobs.history import check_history
from quire.streams import DLSN
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.offloads import (
    NAMESPACE,
    Run,
    counted_files,
    data_files,
    facts,
    facts_of_rows,
    offloaded,
    offloader,
)
from tests.support.spark.streams import append, numbered

pytestmark = pytest.mark.spark

BIG = 1024 * 1024


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
def run(spark: SparkSession, cluster: LocalCluster, name: str, target: Path) -> Run:
    return offloader(spark, cluster.uri, name, target, file_bytes=1_000)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge three small files at the end already."""
    monkeypatch.setattr(merge, "FILES_MIN", 3)


def manifest_of(target: Path, name: str) -> Manifest:
    found = OffloadHistory(str(target), name).newest()
    assert found is not None
    return found


# -- which files ------------------------------------------------------------------------------


def files(*sizes: int, dates: str = "") -> list[HistoryFile]:
    place = DLSN(1, 0, 0)
    return [
        HistoryFile(
            str(at), size, 1, place, place, (0, 0), (0, 0), None,
            date=dates[at] if dates else None,
        )
        for at, size in enumerate(sizes)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([5] * 31, []),  # waits for more
        ([5] * 32, [32]),
        ([70, *[2] * 31], [31]),  # the first is larger than the others together
        ([10] * 5 + [100], [5]),  # nothing can join them any more
        ([100, 10, 100, 10, 10, 100], [2]),
        ([100] * 40, []),
        ([99] * 9, [3, 3, 3]),  # groups that are full
        ([99, 99, 2, 99, 99], [3]),
        ([5] * 21 + [99], [22]),
    ],
)
def test_files_are_grouped_for_merging(sizes: list[int], groups: list[int]) -> None:
    assert [len(group) for group in merges(files(*sizes), 100)] == groups


def test_groups_have_one_date() -> None:
    found = merges(files(*[10] * 7, dates="aabcccd"), 100)
    assert [[file.date for file in group] for group in found] == [["a", "a"], ["c", "c", "c"]]


def test_the_cost_of_merging_is_limited() -> None:
    """A record is rewritten when its file doubles, not whenever some files have arrived."""
    archive: list[HistoryFile] = []
    written = arrived = 0
    for number in range(20_000):
        archive += [replace(files(7)[0], name=str(number))]
        arrived += 7
        for group in merges(archive, 100_000):
            size = merge.bytes_of(group)
            written += size
            at = archive.index(group[0])
            archive[at : at + len(group)] = [replace(group[0], size_bytes=size)]
    assert written < 16 * arrived  # log2(2 * 100,000 / 7)
    assert len(archive) < arrived / 100_000 + FILES_MIN


def test_merged_files_are_deleted_later(target: Path) -> None:
    place = DLSN(1, 0, 0)
    made = Manifest("c", "/n", "s", "l", place, place, merged=(("a", 1_000), ("b", 5_000)))
    assert Manifest.from_bytes(made.to_bytes(), "m") == made
    assert without_expired(made, 999 + KEEP_MERGED_MS) == made
    assert without_expired(made, 1_000 + KEEP_MERGED_MS).merged == (("b", 5_000),)


# -- runs -------------------------------------------------------------------------------------


def test_merged_files_have_the_same_records(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, target: Path,
    run: Run, few: None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Some records have keys, and some files therefore more columns. A DataFrame that was planned
    before still finds its files, until they are old."""
    options = ClusterOptions(cluster.uri)
    append(streams, name, numbered(0, 300, 50), segments=3)
    with streams.open_writer(name) as writer:
        writer.append_many(numbered(300, 400, 50), keys=[b"key"] * 100)
    everything = facts(streams, name)
    run(file_bytes=6_000)
    before = counted_files(target, name)
    assert len(before) >= 4
    planned = history(spark, options, NAMESPACE, name, str(target))
    [preview] = preview_offload(options, NAMESPACE, name, str(target), merge_below=BIG)
    assert preview.merged_files == len(before)
    result = run(merge_below=BIG, truncate=True)
    assert (result.merged_files, result.files, result.records) == (len(before), 0, 0)
    assert len(counted_files(target, name)) == 1
    assert offloaded(target, name) == everything
    assert check_history(spark, name, str(target)) == []
    assert planned.count() == 400
    found = history(spark, options, NAMESPACE, name, str(target), columns=["sequence", "key"])
    assert found.where("key is not null").count() == 100
    assert run(merge_below=BIG).merged_files == 0
    assert data_files(target, name) > before
    monkeypatch.setattr(merge, "KEEP_MERGED_MS", 0)
    run()
    assert data_files(target, name) == counted_files(target, name)
    assert manifest_of(target, name).merged == ()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", long_after(1, ["merged", "committed", "swept"]))
def test_a_merge_can_be_interrupted_at_any_step(
    streams: Namespace, name: str, target: Path, run: Run, few: None,
    monkeypatch: pytest.MonkeyPatch, step: str,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 300), segments=3)
    everything = facts(streams, name)
    run(truncate=True)
    before = counted_files(target, name)
    method = "sweep" if step == "swept" else "commit"
    original = getattr(OffloadClaim, method)
    calls: list[int] = []

    def ends(self: OffloadClaim, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) < 2:  # The first commit, and the first sweep, belong to the beginning.
            return original(self, *arguments)
        if step != "merged":
            original(self, *arguments)
        raise Killed

    monkeypatch.setattr(OffloadClaim, method, ends)
    with pytest.raises(Killed):
        run(merge_below=BIG)
    monkeypatch.undo()
    monkeypatch.setattr(merge, "FILES_MIN", 3)
    assert offloaded(target, name) == everything
    assert (counted_files(target, name) == before) == (step == "merged")
    assert run(merge_below=BIG).merged_files == (3 if step == "merged" else 0)
    assert offloaded(target, name) == everything
    assert len(counted_files(target, name)) == 1
    assert data_files(target, name) == counted_files(target, name) | before


def test_damaged_files_are_not_merged(
    streams: Namespace, name: str, target: Path, run: Run, few: None
) -> None:
    append(streams, name, numbered(0, 300, 50), segments=3)
    run(compression="none")
    before = manifest_of(target, name)
    path = Path(OffloadHistory(str(target), name).store.path(f"{DATA}/{before.files[1].name}"))
    data = path.read_bytes()
    at = data.index(b"150")  # a digit of a record
    path.write_bytes(data[:at] + b"7" + data[at + 1 :])
    with pytest.raises((JobError, QuireError), match=before.files[1].name):
        run(merge_below=BIG)
    assert manifest_of(target, name).files == before.files


# -- tables -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
def test_tables_are_compacted_by_their_own_tools(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, target: Path,
    run: Run, few: None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Delta's OPTIMIZE between two runs: the table and the archive have each record once, and
    commits still name their positions. Files of the archive are not merged under the table."""
    from deltalake import DeltaTable

    append(streams, name, numbered(0, 300), segments=3)
    with monkeypatch.context() as before:
        before.setattr(tables, "DELTA_KEEPS", {})  # The next run adds it to such a table.
        run(format="delta", truncate=True)
    assert run(format="delta").records == 0
    uri = OffloadHistory(str(target), name).store.uri
    table = DeltaTable(uri)
    done = table.optimize.compact()
    assert (done["numFilesAdded"], done["numFilesRemoved"]) == (1, 3)
    for root, _, files in os.walk(uri):
        for file in files:
            os.utime(Path(root) / file, (1, 1))  # older than anything that VACUUM spares
    assert DeltaTable(uri).vacuum(full=True, dry_run=False) == []
    append(streams, name, numbered(300, 400))
    assert run(format="delta").records == 100
    table = DeltaTable(uri)
    assert len(table.file_uris()) == 2
    rows = table.to_pyarrow_table().sort_by("sequence").to_pylist()
    assert facts_of_rows(rows) == offloaded(target, name)
    assert [bytes(row["value"]) for row in rows] == numbered(0, 400)
    said = [one for one in table.history() if "quire.stream" in one]
    assert [one["quire.first"] for one in said] == ["4:0:0", "1:0:0"]
    options = ClusterOptions(cluster.uri)
    assert history(spark, options, NAMESPACE, name, str(target)).count() == 400
    with pytest.raises(UsageError, match=r"also those of a table \(delta\)"):
        run(merge_below=BIG)
    with pytest.raises(UsageError, match=r"also those of a table \(delta\)"):
        preview_offload(options, NAMESPACE, name, str(target), merge_below=BIG)


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
def test_files_of_an_iceberg_table_are_not_merged(
    streams: Namespace, name: str, target: Path, tmp_path: Path, run: Run
) -> None:
    from pyiceberg.catalog import load_catalog

    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    append(streams, name, numbered(0, 10))
    run(format="iceberg", table="merged.records", catalog=catalog)
    table = load_catalog(None, **catalog).load_table("merged.records")
    assert table.properties["gc.enabled"] == "false", "expiring snapshots deletes no files"
    with pytest.raises(UsageError, match=r"also those of a table \(iceberg\)"):
        run(merge_below=BIG)
    with pytest.raises(UsageError, match="cannot be merged with merge_below"):
        run(format="iceberg", table="merged.records", catalog=catalog, merge_below=BIG)


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
@pytest.mark.parametrize("missed", long_after(1, [False, True]))
def test_an_iceberg_table_is_rewritten_and_its_snapshots_expire(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, target: Path,
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, missed: bool,
) -> None:  # fmt: skip
    """The maintenance of a table between two runs: no record is lost or doubled, in the table and
    in the archive. With `missed`, a job dies before it adds its files to the table.

    pyiceberg replaces all files at once, as `rewrite_data_files` of Spark does, whose libraries
    do not fit the Spark that Quire is tested with.
    """
    from pyiceberg.catalog import load_catalog

    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    given = {"format": "iceberg", "table": "kept.records", "catalog": catalog, "truncate": True}
    count = 300

    def table() -> Any:
        return load_catalog(None, **catalog).load_table("kept.records")

    append(streams, name, numbered(0, count), segments=3)
    run(**given)
    assert len(table().inspect.files()) == 3
    if missed:
        append(streams, name, numbered(count, count + 100))
        count += 100
        whole = tables.to_iceberg
        calls: list[int] = []

        def dies(*arguments: Any) -> int:
            calls.append(1)
            if len(calls) == 2:  # after the manifest
                raise InterruptedError
            return whole(*arguments)

        monkeypatch.setattr(tables, "to_iceberg", dies)
        with pytest.raises(InterruptedError):
            run(**given)
        monkeypatch.undo()

    archived = {file: file.read_bytes() for file in target.rglob("*.parquet")}
    before = table()
    before.overwrite(before.scan().to_arrow())
    assert len(table().inspect.files()) == 1
    table().maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    assert len(table().snapshots()) == 1
    assert {file: file.read_bytes() for file in target.rglob("*.parquet")} == archived

    options = ClusterOptions(cluster.uri)
    assert history(spark, options, NAMESPACE, name, str(target)).count() == count
    append(streams, name, numbered(count, count + 50))
    count += 50
    assert run(**given).records == 50
    assert run(**given).records == 0
    rows = table().scan().to_arrow().sort_by("sequence").to_pylist()
    assert facts_of_rows(rows) == offloaded(target, name)
    assert [bytes(row["value"]) for row in rows] == numbered(0, count)
    assert history(spark, options, NAMESPACE, name, str(target)).count() == count
    assert check_history(spark, name, str(target)) == []
    with pytest.raises(UsageError, match=r"also those of a table \(iceberg\)"):
        run(merge_below=BIG)


def test_the_command_reports_the_merged_files(
    pipeline: Callable[..., tuple[int, str, str]], streams: Namespace, name: str, target: Path,
    run: Run, few: None,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 300), segments=3)
    run()
    given = [name, "-n", NAMESPACE, "--directory", str(target), "--merge-below", "1m"]
    status, out, err = pipeline("offload", *given, "--dry-run")
    assert (status, err) == (0, "")
    assert "0 ledgers would be freed, 3 small files merged" in out
    status, out, err = pipeline("offload", *given)
    assert (status, err) == (0, "")
    assert out.endswith("0 ledgers freed, 3 small files merged\n")
    told = json.loads(pipeline("offload", *given, "--json")[1])
    assert (told["merged_files"], told["streams"][0]["merged_files"]) == (0, 0)
