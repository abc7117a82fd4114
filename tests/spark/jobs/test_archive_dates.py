"""Archives with a directory for each date: what is in them, and which files a filter reads."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from quire.blocking import Namespace
from quire.errors import LaterHistoryError, UsageError
from quire.spark.jobs import ClusterOptions, history, offload
from quire.spark.jobs.archive import manifest as manifests
from quire.spark.jobs.archive.manifest import DATA, HistoryFile, Manifest, OffloadHistory
from quire.spark.jobs.history import check_history
from quire.streams import DLSN
from quire.streams.read.arrow import ALL_COLUMNS, COLUMNS
from quire.streams.read.positions import TIME_MAX_MS
from quire.testing.cluster import LocalCluster
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
from tests.support.spark.streams import numbered

pytestmark = pytest.mark.spark

DAY_MS = 24 * 60 * 60 * 1_000
FIRST = datetime.date(2026, 11, 1)
FIRST_MS = (FIRST - datetime.date(1970, 1, 1)).days * DAY_MS
MIDNIGHT = (DAY_MS - 1, DAY_MS)
"""The last and the first millisecond of two days."""

Read = Callable[..., DataFrame]


def day(number: int) -> str:
    return (FIRST + datetime.timedelta(days=number)).isoformat()


def write(streams: Namespace, name: str, *segments: list[int]) -> None:
    """Append records with these times, in milliseconds after the first day's begin."""
    if not streams.exists(name):
        streams.create_stream(name, settings={"entry_bytes": 1024})
    with streams.open_writer(name) as writer:
        for times in segments:
            for at, group in groupby(times):
                writer.aio._clock = At(FIRST_MS + at)
                writer.append_many(numbered(0, len(list(group))))
            writer.roll()


class At:
    """A clock that stands still."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a [b] {c}*"


@pytest.fixture
def run(spark: SparkSession, cluster: LocalCluster, name: str, target: Path) -> Run:
    return offloader(spark, cluster.uri, name, target)


@pytest.fixture
def read(spark: SparkSession, cluster: LocalCluster, name: str, target: Path) -> Read:
    def made(**options: Any) -> DataFrame:
        return history(spark, ClusterOptions(cluster.uri), NAMESPACE, name, str(target), **options)

    return made


def dates(target: Path, name: str) -> list[str | None]:
    manifest = OffloadHistory(str(target), name).newest()
    assert manifest is not None
    return [file.date for file in manifest.files]


def spoil(target: Path, name: str, *kept: str) -> None:
    """Replace the content of all files but those of some dates. Their sizes stay."""
    manifest = OffloadHistory(str(target), name).newest()
    assert manifest is not None
    for file in manifest.files:
        if file.date not in kept:
            path = Path(OffloadHistory(str(target), name).store.path(f"{DATA}/{file.name}"))
            path.write_bytes(b"x" * file.size_bytes)


def test_each_file_has_one_date(
    spark: SparkSession, streams: Namespace, name: str, target: Path, run: Run, read: Read
) -> None:
    """Segments and entries with several dates are divided at midnight in UTC, and the archive has
    the stream's records in their order."""
    write(streams, name, [0, 1, *MIDNIGHT, DAY_MS + 5], [DAY_MS + 6], [3 * DAY_MS] * 200)
    everything = facts(streams, name)
    assert run(partition_by="date").records == len(everything)
    assert offloaded(target, name) == everything
    assert dates(target, name) == [day(0), day(1), day(3)]
    assert {one.partition("/")[0] for one in counted_files(target, name)} == {
        f"date={day(number)}" for number in (0, 1, 3)
    }
    assert check_history(spark, name, str(target)) == []
    write(streams, name, [3 * DAY_MS + 1, 4 * DAY_MS])
    everything = facts(streams, name)
    assert run(truncate=True).files == 2, "later runs do the same"
    assert data_files(target, name) == counted_files(target, name)
    rows = read(columns=[*ALL_COLUMNS, "date"]).orderBy("sequence").collect()
    assert facts_of_rows(row.asDict() for row in rows) == everything
    assert all(row.date == row.time.astimezone(datetime.UTC).date() for row in rows)


def test_a_filter_on_the_date_reads_the_files_of_the_date(
    spark: SparkSession, streams: Namespace, name: str, target: Path, run: Run, read: Read
) -> None:
    """The plan has the filter as a partition filter, and other files are not even opened."""
    write(streams, name, *[[number * DAY_MS + at for at in range(50)] for number in range(4)])
    run(partition_by="date", truncate=True)
    spoil(target, name, day(1), day(2))
    frame = read(columns=[*COLUMNS, "date"]).where(f"date between '{day(1)}' and '{day(2)}'")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    [filters] = re.findall(r"PartitionFilters: \[(.*?)\]", plan)
    assert f"<= {day(2)}" in filters
    assert frame.count() == 100
    assert {row.date.isoformat() for row in frame.select("date").distinct().collect()} == {
        day(1), day(2),
    }  # fmt: skip
    assert read(start=f"time:{day(1)}", end=f"time:{day(3)}").count() == 100
    with pytest.raises(Exception, match="not a Parquet file"):
        read().count()


@pytest.mark.long
def test_a_filter_on_the_stream_omits_other_streams(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, target: Path
) -> None:
    """The plan has no files and no live records of the other stream."""
    options, names = ClusterOptions(cluster.uri), [f"{name}/a", f"{name}/b"]
    for one in names:
        write(streams, one, [0, DAY_MS])
    offload(spark, options, NAMESPACE, names, str(target), partition_by="date")
    for one in names:
        write(streams, one, [2 * DAY_MS])
    read = history(spark, options, NAMESPACE, names, str(target), columns=[*COLUMNS, "date"])
    found = {(row.stream, row.sequence) for row in read.select("stream", "sequence").collect()}
    assert found == {(one, number) for one in names for number in range(3)}
    spoil(target, names[1])
    frame = read.where(f"stream = '{names[0]}'")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert (plan.count("FileScan parquet"), plan.count("MapInArrow")) == (1, 1)
    assert frame.count() == 3
    with pytest.raises(UsageError, match="reads 1 to 100 streams at once, not 0"):
        history(spark, options, NAMESPACE, [], str(target))


@pytest.mark.long
def test_an_archive_can_get_date_directories_later(
    streams: Namespace, name: str, run: Run, read: Read
) -> None:
    """Files without a date, files with one, and live records have the same column `date`."""
    write(streams, name, [0, DAY_MS])
    run()
    write(streams, name, [DAY_MS + 1, 2 * DAY_MS])
    run(partition_by="date", truncate=True)
    write(streams, name, [2 * DAY_MS + 1, 3 * DAY_MS])
    found = read(columns=["sequence", "date"]).orderBy("sequence").collect()
    assert [row.date.isoformat() for row in found] == [day(n) for n in (0, 1, 1, 2, 2, 3)]
    assert read(columns=["date"]).where(f"date = '{day(1)}'").count() == 2


def test_records_without_a_time_are_archived(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    streams.create_stream(name, settings={"txids": "given"})
    with streams.open_writer(name) as writer:
        writer.aio._clock = At(TIME_MAX_MS + 1)  # read as no time
        writer.append_many(numbered(0, 10), txids=list(range(10)))
    run(partition_by="date")
    assert dates(target, name) == [manifests.NO_DATE]
    assert offloaded(target, name) == facts(streams, name)


def test_earlier_versions_refuse_files_with_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not look into directories, and would report such a file as missing."""
    place = DLSN(1, 0, 0)
    file = HistoryFile("date=2026-11-01/x", 1, 1, place, place, (0, 0), (0, 0), None)
    empty = Manifest("c", "/n", "s", "life", place, place)
    made = manifests.with_files(empty, [file], [], DLSN(2, 0, 0), 1, 1)
    assert Manifest.from_bytes(made.to_bytes(), "m") == made
    before = tuple(one for one in manifests._FILE_NAMES if one != "date")
    monkeypatch.setattr(manifests, "_FILE_NAMES", before)
    assert Manifest.from_bytes(made.to_bytes(), "m") == made, "files without a date stay readable"
    [dated] = made.files
    object.__setattr__(dated, "date", "2026-11-01")
    with pytest.raises(LaterHistoryError):
        Manifest.from_bytes(made.to_bytes(), "m")


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
def test_delta_tables_are_partitioned_by_date(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    from deltalake import DeltaTable

    write(streams, name, [0, 1, DAY_MS], [DAY_MS + 1, 2 * DAY_MS])
    everything = facts(streams, name)
    assert run(partition_by="date", format="delta", truncate=True).records == 5
    write(streams, name, [3 * DAY_MS])
    assert run(format="delta").records == 1
    table = DeltaTable(OffloadHistory(str(target), name).store.uri)
    assert table.metadata().partition_columns == ["date"]
    assert len(table.file_uris([("date", "=", day(1))])) == 1
    found = table.to_pyarrow_table(partitions=[("date", "=", day(1))])
    assert facts_of_rows(found.sort_by("sequence").to_pylist()) == everything[2:4]
    assert table.to_pyarrow_table().num_rows == 6


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
def test_a_delta_table_keeps_its_partitioning(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    """Files with a date are added to a table without partitions as any other file."""
    from deltalake import DeltaTable

    write(streams, name, [0, DAY_MS])
    run(format="delta")
    write(streams, name, [DAY_MS + 1, 2 * DAY_MS])
    assert run(format="delta", partition_by="date").files == 2
    table = DeltaTable(OffloadHistory(str(target), name).store.uri)
    assert table.metadata().partition_columns == []
    rows = table.to_pyarrow_table().sort_by("sequence").to_pylist()
    assert facts_of_rows(rows) == facts(streams, name)


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
def test_iceberg_tables_are_partitioned_by_date(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, tmp_path: Path,
    target: Path, run: Run,
) -> None:  # fmt: skip
    from pyiceberg.catalog import load_catalog

    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    options: dict[str, Any] = {"format": "iceberg", "table": "h.records", "catalog": catalog}
    write(streams, name, [0, 1, DAY_MS], [DAY_MS + 1, 2 * DAY_MS])
    assert run(partition_by="date", **options).records == 5
    table = load_catalog(None, **catalog).load_table("h.records")
    scan = table.scan(f"time >= '{day(1)}T00:00:00+00:00' and time < '{day(2)}T00:00:00+00:00'")
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow().num_rows == 2
    write(streams, f"{name}-other", [0, DAY_MS])
    with pytest.raises(UsageError, match=r"is partitioned, and the archive of stream .*-other is "):
        offload(
            spark, ClusterOptions(cluster.uri), NAMESPACE, f"{name}-other", str(target), **options
        )
    assert counted_files(target, f"{name}-other") == set(), "nothing was copied"
