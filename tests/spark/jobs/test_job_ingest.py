"""`quire pipeline ingest` and its functions, on a real cluster."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quire import blocking
from quire.errors import JobError, NoSuchStreamError, UsageError
from quire.spark.failures import one_error
from quire.spark.jobs import ClusterOptions, follow, ingest
from quire.spark.jobs.ingest import (
    Files,
    IngestTarget,
    Listing,
    _options,
    content_id,
    format_of,
    list_files,
    read_files,
    read_listed,
    shaped,
)
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.streams import values as values_of

pytestmark = pytest.mark.spark

NAMESPACE = "/spark/ingest"
MODULE = import_module("quire.spark.jobs.ingest")  # The package has a function of this name.
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def options(cluster: LocalCluster, client: blocking.Client) -> ClusterOptions:
    client.namespace(NAMESPACE, create=True).close()
    return ClusterOptions(cluster.uri)


def target(stream: str, **more: Any) -> IngestTarget:
    return IngestTarget(stream, NAMESPACE, create=True, **more)


def write_csv(path: Path, first: int, last: int) -> None:
    """Put there as a whole, as a directory that is followed wants it."""
    rows = "".join(f"{n},n{n}\n" for n in range(first, last))
    part = path.parent.parent / f"{path.name}.part"
    part.write_text("id,name\n" + rows)
    part.rename(path)


def values(uri: str, stream: str) -> list[bytes]:
    return values_of(uri, namespace=NAMESPACE, stream=stream)


def records(cluster: LocalCluster, stream: str) -> list[Any]:
    return [json.loads(value) for value in values(cluster.uri, stream=stream)]


# -- the command ------------------------------------------------------------------------------


def test_the_command_ingests_files_once(
    pipeline: Command, cluster: LocalCluster, options: ClusterOptions, tmp_path: Path
) -> None:
    write_csv(tmp_path / "a.csv", 0, 100)
    given = ["ingest", str(tmp_path / "a.csv"), "--stream", "files", "-n", NAMESPACE, "--create"]
    status, out, err = pipeline(*given, "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["records"] == 100
    assert not result["repeated"]
    assert result["txn_id"].startswith("files:")
    assert records(cluster, "files") == [{"id": str(n), "name": f"n{n}"} for n in range(100)]

    status, out, _ = pipeline(*given)
    assert status == 0
    assert out.startswith("nothing appended: files has this batch already")
    assert len(values(cluster.uri, stream="files")) == 100

    status, out, _ = pipeline(*given, "--again")
    assert out.startswith("100 records appended to files")
    write_csv(tmp_path / "a.csv", 0, 3)  # another file of this name
    status, out, _ = pipeline(*given)
    assert out.startswith("3 records appended to files")
    assert len(values(cluster.uri, stream="files")) == 203


def test_the_command_reads_tables(
    pipeline: Command, spark: SparkSession, cluster: LocalCluster, options: ClusterOptions
) -> None:
    spark.range(5).selectExpr("id", "concat('s', id) AS text").createOrReplaceTempView("some_rows")
    given = ["ingest", "--table", "some_rows", "--stream", "table", "-n", NAMESPACE, "--create"]
    status, out, _ = pipeline(*given, "--value-column", "text", "--order-by", "id", "--txn-id", "x")
    assert status == 0, out
    assert values(cluster.uri, stream="table") == [b"s0", b"s1", b"s2", b"s3", b"s4"]
    spark.catalog.dropTempView("some_rows")


WRONG = {
    "no stream": (["a.csv"], 2, "nothing selects the stream to write"),
    "no file": (["no.csv", "--stream", "s"], 1, "PATH_NOT_FOUND"),
    "no source": (["--stream", "s"], 2, "give exactly one source: PATH"),
    "no such stream": (["a.csv", "--stream", "filles"], 1, "stream filles does not exist"),
    "no such column": (["a.csv", "--stream", "s", "--value-column", "nam"], 2, "mean 'name'"),
    "no format": (["a.dat", "--stream", "s"], 2, "cannot be determined from their names"),
    "a checkpoint for nothing": (["a.csv", "--stream", "s", "--checkpoint", "c"], 2, "--follow"),
    "two masters": (
        ["a.csv", "--stream", "s", "--master", "local[1]"],
        2,
        "the master of Spark cannot be set",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_arguments_are_a_one_line_error(
    case: str, pipeline: Command, options: ClusterOptions, tmp_path: Path
) -> None:
    write_csv(tmp_path / "a.csv", 0, 3)
    write_csv(tmp_path / "a.dat", 0, 3)
    arguments, wanted, told = WRONG[case]
    given = [
        str(tmp_path / one) if one in ("a.csv", "a.dat", "no.csv") else one for one in arguments
    ]
    status, out, err = pipeline("ingest", *given, "-n", NAMESPACE)
    assert (status, out) == (wanted, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_a_dead_cluster_is_a_one_line_error(pipeline: Command, tmp_path: Path) -> None:
    """The command fails with one line, and does not wait forever for bookies that are gone."""
    write_csv(tmp_path / "a.csv", 0, 3)
    given = ["ingest", str(tmp_path / "a.csv"), "--stream", "s", "--create", "--again"]
    with LocalCluster(bookies=3, zookeeper=False, directory=tmp_path / "cluster") as dying:
        assert pipeline(*given, uri=dying.uri)[0] == 0
        for bookie in dying.bookies:
            bookie.kill()
        status, out, err = pipeline(*given, uri=dying.uri)
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "bookie" in err


# -- the functions ----------------------------------------------------------------------------


def test_an_ingested_transaction_is_published_once(
    spark: SparkSession, cluster: LocalCluster, options: ClusterOptions
) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 3 AS shop")
    first = ingest(spark, options, frame, target("once", order_by="id"), txn_id="night 1")
    again = ingest(spark, options, frame, target("once", order_by="id"), txn_id="night 1")
    assert (first.records, first.repeated) == (1000, False)
    assert (again.records, again.repeated) == (0, True)
    assert again.streams[0].records == 1000
    # Sorted over all partitions: the stream has the rows in this order.
    assert [one["id"] for one in records(cluster, "once")] == list(range(1000))


@pytest.mark.parametrize("several", [False, True])
def test_an_error_states_whether_anything_was_published(
    spark: SparkSession, client: blocking.Client, cluster: LocalCluster, options: ClusterOptions,
    several: bool,
) -> None:  # fmt: skip
    """Only one stream of two has a quota, so the other one is published before the error."""
    first, full = f"free-{several}", f"full-{several}"
    with client.namespace(NAMESPACE) as streams:
        streams.create_stream(first)
        streams.create_stream(full, settings={"bytes_max": 10})
    frame = spark.sql(f"SELECT 'too much for it' AS text, explode(array('{first}', '{full}')) AS s")
    to = IngestTarget(None, NAMESPACE, stream_column="s", value_column="text")
    if not several:
        frame, to = frame.where(f"s = '{full}'").drop("s"), IngestTarget(full, NAMESPACE)
    with pytest.raises(PySparkException) as caught:
        ingest(spark, options, frame, to)
    error = one_error(caught.value, "ingest")
    assert isinstance(error, JobError)
    assert "bytes_max" in str(error)
    assert error.outcome_known is not several
    assert len(values(cluster.uri, first)) == several
    assert values(cluster.uri, full) == []


def test_a_column_selects_the_stream_of_a_row(
    spark: SparkSession, cluster: LocalCluster, options: ClusterOptions
) -> None:
    frame = spark.range(90).selectExpr("string(id) AS text", "concat('shop-', id % 3) AS shop")
    given = IngestTarget(
        None, NAMESPACE, stream_column="shop", value_column="text", order_by="text", create=True
    )
    result = ingest(spark, options, frame, given)
    assert [(one.stream, one.records) for one in result.streams] == [
        ("shop-0", 30), ("shop-1", 30), ("shop-2", 30),
    ]  # fmt: skip
    found = values(cluster.uri, stream="shop-1")
    assert found == sorted(b"%d" % n for n in range(1, 90, 3))

    with pytest.raises(UsageError, match="null in some rows"):
        ingest(spark, options, frame.selectExpr("text", "nullif(shop, 'shop-2') AS shop"), given)
    many = spark.range(200).selectExpr("string(id) AS text", "concat('many-', id) AS shop")
    with pytest.raises(UsageError, match="more than the 100 streams"):
        ingest(spark, options, many, given)


def test_the_value_column_or_the_whole_row_becomes_the_record(
    spark: SparkSession, cluster: LocalCluster, options: ClusterOptions
) -> None:
    frame = spark.sql(
        "SELECT 7 AS n, CAST(NULL AS STRING) AS gone, named_struct('a', 1) AS s, "
        "X'00FF' AS b, DATE'2013-01-01' AS `a day.`"
    )
    for column, expected in (
        ("n", b"7"), ("s", b'{"a":1}'), ("b", b"\x00\xff"), ("a day.", b"2013-01-01"),
        (None, b'{"n":7,"s":{"a":1},"b":"AP8=","a day.":"2013-01-01"}'),
    ):  # fmt: skip
        name = f"record-{str(column).split()[0]}"
        ingest(spark, options, frame, target(name, value_column=column))
        assert values(cluster.uri, stream=name) == [expected]
    ingest(spark, options, spark.sql("SELECT 'as it is' AS line"), target("record-line"))
    assert values(cluster.uri, stream="record-line") == [b"as it is"]


def test_the_identity_of_an_ingest_depends_on_files_schema_and_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_csv(tmp_path / "a.csv", 0, 3)
    files = Files([str(tmp_path)])
    listing = list_files(spark, files)
    here = content_id(files, listing, target("s"))
    assert content_id(files, list_files(spark, files), target("t")) == here
    assert content_id(files, listing, target("s", value_column="name")) != here
    assert content_id(Files([str(tmp_path)], schema="id INT"), listing, target("s")) != here
    write_csv(tmp_path / "b.csv", 0, 3)
    assert content_id(files, list_files(spark, files), target("s")) != here
    assert read_files(spark, files, listing).columns == ["id", "name"]


def test_the_identity_of_files_does_not_depend_on_the_time_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_csv(tmp_path / "a.csv", 0, 3)
    os.utime(tmp_path / "a.csv", (1_795_805_692.25, 1_795_805_692.25))
    listing = list_files(spark, Files([str(tmp_path)]))
    assert listing.files[0][2] == "2026-11-27 18:54:52.25"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert list_files(spark, Files([str(tmp_path)])) == listing
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


@pytest.mark.long
def test_options_that_select_files_apply_to_their_identity(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in" / "below").mkdir(parents=True)
    write_csv(tmp_path / "in" / "a.csv", 0, 3)
    write_csv(tmp_path / "in" / "b.csv", 0, 3)
    write_csv(tmp_path / "in" / "below" / "c.csv", 0, 3)

    def names(**given: str) -> list[str]:
        _, listing = read_listed(spark, Files([str(tmp_path / "in")], options=given))
        return [path.rpartition("/")[2] for path, _, _ in listing.files]

    assert names() == ["a.csv", "b.csv"]
    assert names(pathGlobFilter="a*") == ["a.csv"]
    assert names(RecursiveFileLookup="true") == ["a.csv", "b.csv", "c.csv"]


@pytest.mark.long
def test_a_file_that_arrives_after_the_listing_belongs_to_the_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "a.csv", 0, 3)
    files, more = Files([str(tmp_path)]), iter(["b.csv"])

    def late(*given: Any) -> Any:
        for name in more:
            write_csv(tmp_path / name, 3, 5)
        return read_files(*given)

    monkeypatch.setattr(MODULE, "read_files", late)
    frame, listing = read_listed(spark, files)
    assert frame.count() == 5
    assert listing == list_files(spark, files)
    more = iter([f"{n}.csv" for n in range(100)])

    def never(*given: Any) -> Any:
        write_csv(tmp_path / next(more), 0, 1)
        return read_files(*given)

    monkeypatch.setattr(MODULE, "read_files", never)
    with pytest.raises(UsageError, match="appeared or changed while they were listed"):
        read_listed(spark, files)


@pytest.mark.parametrize("header", long_after(1, ["b,a", "a,b,c", "a,other"]))
def test_csv_files_with_other_column_names_are_refused(
    header: str, spark: SparkSession, options: ClusterOptions, tmp_path: Path
) -> None:
    """Spark takes the names from one file, and applies them to the places in all others."""
    (tmp_path / "1.csv").write_text("a,b\n1,2\n" * 20)  # Spark reads the larger one first.
    (tmp_path / "2.csv").write_text(f"{header}\n3,4{',5' * (header.count(',') - 1)}\n")
    files = Files([str(tmp_path)])
    frame, _ = read_listed(spark, files)
    with pytest.raises(Exception, match="CSV header") as caught:
        ingest(spark, options, frame, target("headers"))
    told = str(one_error(caught.value, "ingest"))
    assert re.search(r"\d\.csv: (CSV header does not conform|Number of column in CSV header)", told)
    frame, _ = read_listed(spark, Files([str(tmp_path)], options={"enforceSchema": "true"}))
    assert frame.count() == 40


@pytest.mark.parametrize("form", long_after(1, ["parquet", "orc"]))
def test_columns_that_only_some_files_have_are_in_the_records(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Spark took the columns from one of the files, and left out those that it lacked."""
    write = {"parquet": parquet.write_table, "orc": orc.write_table}[form]
    for number, more in enumerate(("a", "b", "c")):
        write(pa.table({"id": [number], more: [number]}), tmp_path / f"{number}.{form}")
    files = Files([str(tmp_path)])
    listing = list_files(spark, files)

    def read(files: Files) -> list[dict[str, int]]:
        rows = shaped(read_files(spark, files, listing), target("s")).collect()
        return sorted((json.loads(row.value) for row in rows), key=lambda one: one["id"])

    assert read(files) == [{"id": 0, "a": 0}, {"id": 1, "b": 1}, {"id": 2, "c": 2}]
    # What the caller says about the columns applies, and the id of the batch is as before.
    assert read(replace(files, schema="id BIGINT, b BIGINT"))[1:] == [{"id": 1, "b": 1}, {"id": 2}]
    assert len(read(replace(files, options={"mergeSchema": "false"}))) == 3
    assert _options(files, listing) == {}


@pytest.mark.parametrize("header", long_after(1, ["a,b", "A,b", ",b", "a,a"]))
def test_generated_csv_column_names_are_not_compared(
    header: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "1.csv").write_text(f"{header}\n1,2\n")
    (tmp_path / "2.csv").write_text(f"{header.lower()}\n3,4\n")
    frame, _ = read_listed(spark, Files([str(tmp_path)]))
    assert sorted(tuple(row) for row in frame.collect()) == [("1", "2"), ("3", "4")]


@pytest.mark.parametrize(
    ("name", "text"),
    long_after(
        1,
        [
            ("a.json", '{"id": 1, "v": "x"}\n{"id": "one", "v": "y"}\n'),
            ("a.json", '{"id": 1, "v": "x"}\n{"id": 2, "v": \n'),
            ("a.csv", "id,v\n1,x\none,y\n"),
        ],
    ),
)
def test_a_row_that_does_not_fit_the_schema_is_refused(
    name: str, text: str, spark: SparkSession, cluster: LocalCluster, options: ClusterOptions,
    tmp_path: Path,
) -> None:  # fmt: skip
    directory, checkpoint = tmp_path / "in", str(tmp_path / "checkpoint")
    directory.mkdir()
    (directory / name).write_text(text)
    files = Files([str(directory)], schema="id BIGINT, v STRING")
    stream = f"strict-{tmp_path.name}"
    with pytest.raises(Exception, match="MALFORMED_RECORD") as caught:
        ingest(spark, options, read_listed(spark, files)[0], target(stream))
    assert "Malformed records are detected" in str(one_error(caught.value, "ingest"))
    with pytest.raises(Exception, match=f"reading file .*{name}"):
        follow(spark, options, files, target(stream), checkpoint=checkpoint, available_now=True)
    assert records(cluster, stream) == []
    kept = Files([str(directory)], schema="id BIGINT, v STRING, _corrupt_record STRING")
    ingest(spark, options, read_listed(spark, kept)[0], target(stream))
    assert records(cluster, stream)[0] == {"id": 1, "v": "x"}
    assert "_corrupt_record" in records(cluster, stream)[1]
    loose = Files([str(directory)], options={"mode": "PERMISSIVE"}, schema=files.schema)
    assert read_listed(spark, loose)[0].count() == 2


@pytest.mark.parametrize("row", ["1,x,more", "1"])
def test_a_csv_row_with_another_number_of_values_than_the_header_is_refused(
    row: str, spark: SparkSession, cluster: LocalCluster, options: ClusterOptions, tmp_path: Path
) -> None:
    """Without a schema, too: the value for which there is no column was left out."""
    (tmp_path / "a.csv").write_text(f"id,v\n0,w\n{row}\n")
    files, stream = Files([str(tmp_path / "a.csv")]), f"ragged-{tmp_path.name}"
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        ingest(spark, options, read_listed(spark, files)[0], target(stream))
    assert records(cluster, stream) == []
    loose = Files(files.paths, options={"mode": "PERMISSIVE"})
    assert read_listed(spark, loose)[0].count() == 2


def test_timestamps_keep_their_microseconds(
    spark: SparkSession, cluster: LocalCluster, options: ClusterOptions
) -> None:
    zone = "TIMESTAMP'2026-11-03 01:02:03.123456Z' AS a"
    frame = spark.sql(f"SELECT {zone}, TIMESTAMP_NTZ'2026-11-03 01:02:03.123456' AS b")
    ingest(spark, options, frame, target("micros"))
    ingest(spark, options, frame.selectExpr("struct(a) AS s"), target("micros", value_column="s"))
    [both, one] = records(cluster, "micros")
    assert both["b"] == "2026-11-03T01:02:03.123456"
    assert ".123456" in both["a"]
    assert ".123456" in one["a"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "csv"), ("a.csv.gz", "csv"), ("a.tsv", "csv"), ("a.b.JSONL", "json"),
        ("part-0.snappy.parquet", "parquet"), ("x.log", "text"), ("x.orc", "orc"),
    ],
)  # fmt: skip
def test_the_format_follows_from_the_suffix(name: str, expected: str) -> None:
    listing = Listing(((f"file:/d.ir/{name}", 1, "now"),))
    assert format_of(Files(["/d.ir"]), listing) == expected
    with pytest.raises(UsageError, match="cannot be determined"):
        format_of(Files(["/d.ir"]), Listing((*listing.files, ("file:/d.ir/none", 1, "now"))))


def test_passwords_are_not_shown(options: ClusterOptions) -> None:
    secret = ClusterOptions(options.metadata, b"hunter2")
    assert "hunter2" not in repr(secret) + repr(target("s", token="hunter2"))
    assert secret.options()["password"] == "hunter2"


# -- files that come --------------------------------------------------------------------------


def test_available_files_are_appended_once(
    pipeline: Command, cluster: LocalCluster, options: ClusterOptions, tmp_path: Path
) -> None:
    directory, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    directory.mkdir()
    write_csv(directory / "1.csv", 0, 50)
    given = [
        "ingest", str(directory), "--stream", "incoming", "-n", NAMESPACE, "--create",
        "--available-now", "--checkpoint", str(checkpoint), "--format", "csv",
        "--writer-id", "incoming", "--json",
    ]  # fmt: skip
    status, out, err = pipeline(*given)
    assert status == 0, err
    assert json.loads(out)["records"] == 50
    write_csv(directory / "2.csv", 50, 80)
    assert json.loads(pipeline(*given)[1])["records"] == 30
    write_csv(directory / "3.csv", 80, 90)
    month_ago_s = time.time() - 30 * 86_400
    os.utime(directory / "3.csv", (month_ago_s, month_ago_s))  # Spark leaves out such files.
    assert json.loads(pipeline(*given)[1])["records"] == 10
    assert json.loads(pipeline(*given)[1])["records"] == 0
    assert sorted(int(one["id"]) for one in records(cluster, "incoming")) == list(range(90))

    # A checkpoint that was lost does not append everything again by accident.
    again = [str(tmp_path / "other") if one == str(checkpoint) else one for one in given]
    status, out, err = pipeline(*again)
    assert (status, out) == (2, "")
    assert "cannot publish to stream incoming: writer 'incoming' belongs to query" in err
    assert len(err.splitlines()) == 1
    assert len(records(cluster, "incoming")) == 90


def test_a_directory_is_followed_until_it_is_interrupted(
    spark: SparkSession, cluster: LocalCluster, options: ClusterOptions, tmp_path: Path
) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    write_csv(directory / "1.csv", 0, 10)
    seen = 0

    def interrupt(what: str, done: int, total: int | None) -> None:
        nonlocal seen
        if done == 10 and seen < 10:
            write_csv(directory / "2.csv", 10, 30)
        seen = done
        if done == 30:
            raise KeyboardInterrupt

    deadline = threading.Timer(120, lambda: [query.stop() for query in spark.streams.active])
    deadline.start()
    started_s = time.monotonic()
    try:
        result = follow(
            spark,
            options,
            Files([str(directory)], "csv", schema="id INT, name STRING"),
            target("followed", order_by="id"),
            checkpoint=str(tmp_path / "checkpoint"),
            progress=interrupt,
        )
    finally:
        deadline.cancel()
    assert time.monotonic() - started_s < 120, "it was not interrupted"
    assert (result.records, result.ended) == (30, "stopped")
    assert spark.streams.active == []
    assert records(cluster, "followed") == [{"id": n, "name": f"n{n}"} for n in range(30)]


@pytest.mark.long
def test_the_names_of_later_files_determine_the_separator(
    spark: SparkSession, cluster: LocalCluster, options: ClusterOptions, tmp_path: Path
) -> None:
    """They did so only if the format or the schema was not given."""
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "1.tsv").write_text("id\tname\n1\ta,b\n")

    def run() -> int:
        files = Files([str(directory)], "csv", schema="id INT, name STRING")
        where = {"checkpoint": str(tmp_path / "checkpoint"), "available_now": True}
        return follow(spark, options, files, target("tabs"), **where).records

    assert run() == 1
    (directory / "2.tsv").write_text("id\tname\n2\tc\n")
    assert run() == 1
    assert records(cluster, "tabs") == [{"id": 1, "name": "a,b"}, {"id": 2, "name": "c"}]


@pytest.mark.parametrize(
    ("paths", "names", "given", "expected"),
    [
        ("/in", "1.tsv 2.TSV.gz", {}, "\t"),
        ("/in", "1.tsv 2.csv", {}, None),
        ("/in.tsv", "1.csv", {}, None),
        ("/in/*.tsv", "", {}, "\t"),
        ("/in", "", {}, None),
        ("/in", "1.tsv", {"sep": ";"}, ";"),
        ("/in", "1.tsv", {"Delimiter": "|"}, None),
    ],
)
def test_the_separator_follows_from_the_file_names(
    paths: str, names: str, given: dict[str, str], expected: str | None
) -> None:
    listing = Listing(tuple((f"file:{paths}/{name}", 1, "") for name in names.split()))
    found = _options(Files([paths], "csv", given), listing)
    assert found.get("sep") == expected
    assert given.items() <= found.items()


@pytest.mark.parametrize("name", ["header", "Header", "HEADER"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_an_option_of_the_caller_replaces_the_default_in_any_case_of_letters(
    name: str, value: str
) -> None:
    """Spark does not distinguish the case of options, and would choose one of both."""
    listing = Listing((("file:/in/1.csv", 1, ""),))
    assert _options(Files(["/in"], "csv", {name: value}), listing) == {name: value}


def test_a_stream_that_is_missing_fails_a_query(
    spark: SparkSession, options: ClusterOptions, tmp_path: Path
) -> None:
    with pytest.raises(NoSuchStreamError, match="stream nowhere does not exist"):
        follow(
            spark,
            options,
            Files([str(tmp_path)], "csv", schema="id INT"),
            IngestTarget("nowhere", NAMESPACE),
            checkpoint=str(tmp_path / "checkpoint"),
            available_now=True,
        )
