"""Spark jobs continue where an earlier version of Quire stopped.

`tests/golden/make_golden.py` made the data. A streaming query had copied the first 60 records of
`events` to `copies`, `archived` was offloaded and `mirrored` was copied when more was appended.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.long import long_after
from tests.support.processes.golden import SETS, GoldenCluster, sets_with

pytestmark = pytest.mark.spark

NAMESPACE, MIRROR = "/golden", "/mirror"
EVENTS = [f"events {number}".encode() for number in range(100)]

Pipeline = Callable[..., tuple[int, str, str]]


NEWEST_FIRST = long_after(1, SETS[::-1])
"""`make test` tries the data of the newest version, and `make test-long` the older ones."""


@pytest.fixture(scope="module", params=NEWEST_FIRST, ids=lambda path: path.name)
def running(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    close_clients: Callable[[], None],
) -> Iterator[GoldenCluster]:
    """Run a cluster for tests that each change another stream."""
    with GoldenCluster(request.param, tmp_path_factory.mktemp("golden")) as cluster:
        yield cluster
        close_clients()


@pytest.fixture(params=NEWEST_FIRST, ids=lambda path: path.name)
def fresh(
    request: pytest.FixtureRequest, tmp_path: Path, close_clients: Callable[[], None]
) -> Iterator[GoldenCluster]:
    with GoldenCluster(request.param, tmp_path / "golden") as cluster:
        yield cluster
        close_clients()


def go_on(spark: SparkSession, cluster: GoldenCluster) -> int:
    """Run the query until it has read everything; return the number of records that it read."""
    query = (
        spark.readStream.format("quire")
        .options(metadata=cluster.uri, namespace=NAMESPACE, stream="events", subscription="query",
                 maxRecordsPerTrigger=20)
        .load()
        .select("value")
        .writeStream.format("quire")
        .options(metadata=cluster.uri, namespace=NAMESPACE, stream="copies", writerId="copier",
                 checkpointLocation=str(cluster.directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    return sum(one["numInputRows"] for one in query.recentProgress)


def values(spark: SparkSession, cluster: GoldenCluster, name: str) -> list[bytes]:
    """The records of a stream, which has all of them from its first one on."""
    rows = spark.read.format("quire").options(
        metadata=cluster.uri, namespace=NAMESPACE, stream=name
    )
    found = rows.load().select("sequence", "value").collect()
    assert [row.sequence for row in found] == list(range(len(found)))
    return [bytes(row.value) for row in found]


def test_a_query_continues_from_its_checkpoint(spark: SparkSession, running: GoldenCluster) -> None:
    assert values(spark, running, "copies") == EVENTS[:60]
    assert go_on(spark, running) == 40
    assert values(spark, running, "copies") == EVENTS
    assert go_on(spark, running) == 0
    assert values(spark, running, "copies") == EVENTS


def test_a_query_continues_after_a_driver_died_after_its_commit(
    spark: SparkSession, fresh: GoldenCluster
) -> None:
    """The checkpoint does not say that batch 2 was published, but the stream does."""
    commits = fresh.directory / "checkpoint" / "commits"
    (commits / "2").unlink()
    (commits / ".2.crc").unlink()
    assert go_on(spark, fresh) == 60
    assert values(spark, fresh, "copies") == EVENTS


@pytest.mark.long
def test_a_query_without_its_checkpoint_does_not_publish_again(
    spark: SparkSession, fresh: GoldenCluster
) -> None:
    """The stream knows its writer: the query is not taken for a new one."""
    shutil.rmtree(fresh.directory / "checkpoint")
    with pytest.raises(Exception, match="takeover"):
        go_on(spark, fresh)
    assert values(spark, fresh, "copies") == EVENTS[:60]


@pytest.mark.long
def test_a_checkpoint_of_a_later_version_is_refused(
    spark: SparkSession, fresh: GoldenCluster
) -> None:
    """The query ends with one clear error. Nothing is read, and the checkpoint stays."""
    offsets = fresh.directory / "checkpoint" / "offsets"
    changed = (offsets / "2").read_bytes().replace(b'"v": 1', b'"v": 2')
    (offsets / "2").write_bytes(changed)
    (offsets / ".2.crc").unlink()
    before = {path.name: path.read_bytes() for path in offsets.iterdir()}
    with pytest.raises(Exception, match=r"written by a later version of Quire: it has format 2"):
        go_on(spark, fresh)
    assert {path.name: path.read_bytes() for path in offsets.iterdir()} == before
    assert values(spark, fresh, "copies") == EVENTS[:60]


@pytest.mark.parametrize(
    "running",
    long_after(1, sets_with(lambda one: "once" in one["streams"][NAMESPACE])[::-1]),
    ids=lambda path: path.name,
    indirect=True,
)
def test_a_published_job_does_not_publish_again(
    spark: SparkSession, running: GoldenCluster
) -> None:
    for txn, count in (("job-once", 1), ("another", 2)):
        rows = spark.createDataFrame([(b"published again",)], "value binary")
        rows.write.format("quire").mode("append").options(
            metadata=running.uri, namespace=NAMESPACE, stream="once", txnId=txn
        ).save()
        assert len(values(spark, running, "once")) == count


@pytest.mark.long
def test_a_recreated_stream_is_noticed(spark: SparkSession, fresh: GoldenCluster) -> None:
    """The checkpoint knows which stream it belongs to, though the present one has as many
    records before the same position."""
    fresh.quire("stream", "delete", "events", "-n", NAMESPACE, "--yes")
    write = ("stream", "write", "events", "-n", NAMESPACE, "--create", "--roll-every", "60")
    fresh.quire(*write, stdin=b"".join(b"others %d\n" % number for number in range(100)))
    with pytest.raises(Exception, match=r"(?s)events.*(deleted|created|renamed)"):
        go_on(spark, fresh)
    assert values(spark, fresh, "copies") == EVENTS[:60]


def test_a_golden_dataset_is_read(spark: SparkSession, running: GoldenCluster) -> None:
    reader = spark.read.format("quire").options(metadata=running.uri, dataset="rows")
    found = sorted(bytes(row.value).decode() for row in reader.load().collect())
    assert found == sorted(running.expected["dataset"]["rows"])
    more = spark.createDataFrame([(b"row 30",)], "value binary").write.format("quire")
    for txn in (running.expected["transactions"][0], "another"):  # the first is published already
        more.mode("append").options(metadata=running.uri, dataset="rows", txnId=txn).save()
    assert reader.load().count() == len(found) + 1


def test_a_golden_archive_is_read_and_continued(
    spark: SparkSession, running: GoldenCluster, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Offloaded records and records still in the stream are one history."""
    place = ("archived", "-n", NAMESPACE, "--directory", str(running.directory / "archive"))
    for number in range(2):
        output = str(tmp_path / f"output-{number}")
        for options in (("--check",), ("--output", output)):
            status, _, error = pipeline("history", *place, *options, uri=running.uri)
            assert status == 0, error
        rows = spark.read.parquet(output).orderBy("sequence").collect()
        assert [bytes(row.value) for row in rows] == [b"archived %d" % n for n in range(19)]
        status, out, error = pipeline("offload", *place, "--json", "--truncate", uri=running.uri)
        assert status == 0, error
        assert json.loads(out)["records"] == (7, 0)[number]


def test_a_golden_mirror_is_continued(running: GoldenCluster, pipeline: Pipeline) -> None:
    """The copies continue at the same positions."""

    def positions(namespace: str) -> list[tuple[str, str]]:
        found = running.lines("stream", "read", "mirrored", "-n", namespace)
        return [(one["position"], one["value"]) for one in found]

    assert len(positions(MIRROR)) == 9
    command = ("replicate", "-n", NAMESPACE, "--to", running.uri, "--to-namespace", MIRROR)
    status, _, error = pipeline(*command, "--streams", "mirrored", uri=running.uri)
    assert status == 0, error
    assert len(positions(MIRROR)) == 14
    assert positions(MIRROR) == positions(NAMESPACE)
