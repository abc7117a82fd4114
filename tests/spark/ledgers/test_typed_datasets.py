"""Datasets with typed rows: what is written is read back equal, and partitions are pruned."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.testing import assertDataFrameEqual

from quire import blocking
from quire.blocking import Datasets
from quire.client.datasets.heads import HEADS
from quire.client.datasets.rows import VERSION_KEY
from quire.errors import UsageError
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.streams import message_of

pytestmark = pytest.mark.spark

Read = Callable[..., DataFrameReader]
Save = Callable[..., None]

EVERY_TYPE = """
    id bigint, flag boolean, tiny tinyint, small smallint, whole int, half float, exact double,
    money decimal(38,18), small_money decimal(10,2), name string, blob binary, day date,
    moment timestamp, wall timestamp_ntz, took interval day to second,
    tags array<string>, matrix array<array<int>>,
    place struct<lat: double, lon: double, names: array<string>>,
    prices map<string, decimal(10,2)>,
    deep array<struct<a: int, m: map<string, struct<b: binary, t: timestamp>>>>
"""


def every_type(spark: SparkSession) -> DataFrame:
    moment = datetime.datetime(2026, 11, 3, 12, 30, 15, 123456)
    rows: list[tuple[Any, ...]] = [
        (
            1, True, -128, 32767, -(2**31), 1.5, 2.25, Decimal("12345678901234567890.123456789"),
            Decimal("-0.01"), "grüße 𝄞", b"\0\xff", datetime.date(1583, 1, 1), moment, moment,
            datetime.timedelta(days=-3, microseconds=7), ["a", None, ""], [[1, 2], None, []],
            (1.0, None, ["x", None]), {"a": Decimal("1.10"), "b": None},
            [(1, {"k": (b"z", moment)}), (None, {}), None],
        ),
        (2, *[None] * 19),
        (
            3, False, 0, 0, 0, float("inf"), float("-inf"), Decimal(0), Decimal("99999999.99"),
            "", b"", datetime.date(9999, 12, 31), datetime.datetime(1970, 1, 1),
            datetime.datetime(1, 1, 1), datetime.timedelta(0), [], [], (None, None, None), {}, [],
        ),
    ]  # fmt: skip
    return spark.createDataFrame(rows, EVERY_TYPE)


def types(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def test_every_type_is_read_back_equal(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str
) -> None:
    frame = every_type(spark)
    zone = spark.conf.get("spark.sql.session.timeZone")
    save(frame.repartition(2))
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        save(frame, compression="zstd")  # Another zone is not another type.
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = read(dataset=name).load()
    assert found.schema.simpleString() == frame.schema.simpleString()
    assertDataFrameEqual(found, frame.union(frame), checkRowOrder=False)
    dataset = datasets.read(name)
    assert dataset.rows == 6
    assert dataset.schema is not None
    assert dataset.schema.columns["money"] == "decimal(38,18)"
    some = read(dataset=name, columns="DAY, place").load()
    assert [field for field, _ in types(some)] == ["day", "place"]
    assertDataFrameEqual(some, frame.union(frame).select("day", "place"))
    asked = (
        read(dataset=name)
        .schema(
            "deep array<struct<a: int, m: map<string, struct<b: binary, t: timestamp>>>>, id bigint"
        )
        .load()
    )
    assertDataFrameEqual(asked, frame.union(frame).select("deep", "id"))


@pytest.mark.long
def test_rarer_types_are_read_back_equal(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    frame = spark.range(3).selectExpr(
        "id", "null AS nothing", "cast('x' AS varchar(10)) AS short",
        "'Ü' COLLATE UNICODE_CI AS collated", "named_struct('a', id, 'b', array('x')) AS place",
    )  # fmt: skip
    save(frame, partitionColumns="short")
    found = read(dataset=name).load()
    assert found.schema.simpleString() == frame.schema.simpleString()
    assertDataFrameEqual(found, frame)
    assert found.where("collated = 'ü'").count() == 3


def test_partitions_of_a_collated_column_are_not_pruned(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    """Its values are equal to others, too."""
    save(spark.range(3).selectExpr("id", "'Ü' COLLATE UNICODE_CI AS p"), partitionColumns="p")
    loaded = read(dataset=name, pushdown=True).load()
    assert loaded.where("p = 'ü'").count() == 3


def test_partition_by_names_the_option_to_use(spark: SparkSession, cluster: LocalCluster) -> None:
    writer = spark.range(3).selectExpr("id", "1 AS p").write.format("quire").mode("append")
    given = {"metadata": cluster.uri, "dataset": "by"}
    with pytest.raises(UsageError, match="option 'partitionColumns'"):
        writer.options(**given).save(partitionBy="p")
    with pytest.raises(UsageError, match="option 'partitionColumns'"):
        writer.options(**given).partitionBy("p").save()


def test_the_rows_of_a_partition_keep_their_order(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str
) -> None:
    frame = spark.range(0, 200_000, 1, 1).selectExpr("id", "repeat('x', int(id % 50)) AS text")
    save(frame, compression="none")
    found = read(dataset=name, minPartitions=3).load()
    assert found.rdd.getNumPartitions() == 3
    assert [row.id for row in found.select("id").collect()] == list(range(200_000))
    (part,) = datasets.read(name).ledgers
    assert part.rows == 200_000
    assert 5 <= part.last + 1 <= 20  # entries of about 1 MiB, and not one for each row


def test_an_empty_dataset_has_its_columns(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    save(spark.range(0).selectExpr("id", "date(null) AS day"), partitionColumns="day")
    assert types(read(dataset=name).load()) == [("id", "bigint"), ("day", "date")]
    assert read(dataset=name).load().count() == 0


def test_a_frame_with_a_column_value_is_typed_only_if_asked(
    spark: SparkSession, read: Read, save: Save, name: str, datasets: Datasets
) -> None:
    """Such a frame is written with the same bytes as before datasets had schemas."""
    frame = spark.range(10).selectExpr("id", "string(id) AS value")
    with pytest.raises(PySparkException) as caught:
        save(frame)
    assert "no option says what to do with column 'id'" in message_of(caught.value)
    save(frame, valueColumn="value")
    assert datasets.read(name).schema is None
    head = stored_head(datasets, name)
    assert (head["format"], "schema" in head) == (1, False)
    assert sorted(bytes(r.value) for r in read(dataset=name).load().collect()) == [
        b"%d" % number for number in range(10)
    ]
    with pytest.raises(PySparkException) as caught:
        save(frame, typed=True)
    assert "has no schema, because each of its entries is a row" in message_of(caught.value)
    save(frame, "overwrite", typed=True)
    assertDataFrameEqual(read(dataset=name).load(), frame)
    save(read(dataset=name).load(), "overwrite")  # It stays typed, though it has a column `value`.
    assertDataFrameEqual(read(dataset=name).load(), frame)
    save(frame, "overwrite", typed=False)
    assert [c for c, _ in types(read(dataset=name).load())][-1] == "value"
    assert datasets.read(name).schema is None


def stored_head(datasets: Datasets, name: str) -> dict[str, Any]:
    from quire.blocking.background import call

    found = call(datasets.aio._store.read_value((HEADS, name)))
    decoded: dict[str, Any] = json.loads(found.value)
    return decoded


# -- append -----------------------------------------------------------------------------------


def test_columns_are_appended_by_name(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    first = spark.range(3).selectExpr("id", "string(id) AS text")
    save(first)
    save(first.select("text", "id"))
    assertDataFrameEqual(read(dataset=name).load(), first.union(first))


@pytest.mark.parametrize(
    ("select", "options"),
    [
        (["id"], {}),
        (["id", "text", "1 AS more"], {}),
        (["int(id) AS id", "text"], {}),
        (["id", "text"], {"partitionColumns": "text"}),
        (["string(id) AS value"], {"typed": False}),
        (["string(id) AS value"], {"valueColumn": "value"}),
        (["string(id) AS value"], {}),
    ],
)
def test_other_columns_are_refused_before_any_task(
    spark: SparkSession, save: Save, name: str, datasets: Datasets, select: list[str],
    options: dict[str, Any],
) -> None:  # fmt: skip
    frame = spark.range(3).selectExpr("id", "string(id) AS text")
    save(frame)
    with pytest.raises(PySparkException) as caught:
        save(frame.selectExpr(*select), **options)
    message = message_of(caught.value)
    assert "which has the columns id bigint, text string, partitioned by nothing" in message
    assert "Nothing was published" in message
    assert datasets.read(name).rows == 3


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        (["interval 1 month AS m", "id"], {}, "column 'm' has type interval month"),
        (["array(parse_json('1')) AS v", "id"], {}, "column 'v.element' has type variant"),
        (["array() AS nothing", "id"], {}, "column 'nothing.element' has type void"),
        (["id", "1.5 AS p"], {"partitionColumns": "p"}, "which a partition column cannot have"),
        (["id", "1 AS p"], {"partitionColumns": "q"}, "partition column 'q' does not exist"),
        (["id", "1 AS p"], {"partitionColumns": "p,P"}, "a name occurs twice"),
        (["id", "1 AS p"], {"compression": "gzip"}, "'gzip' is not a compression"),
        (["id", "1 AS ID"], {}, "must have names that differ"),
        (["id", "'x' AS p"], {"valueColumn": "p", "typed": True}, "exclude each other"),
    ],
)
def test_one_clear_message(
    spark: SparkSession, save: Save, select: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(spark.range(3).selectExpr(*select), **options)
    assert message in message_of(caught.value)


# -- partitions -------------------------------------------------------------------------------

DAYS = ["2026-11-01", "2026-11-02", "2026-11-03"]


def partitioned(spark: SparkSession) -> DataFrame:
    """Rows of three days, a null among them, and of two shops."""
    return spark.range(0, 4_000, 1, 2).selectExpr(
        "id",
        "if(id % 4 = 3, null, date_add(date'2026-11-01', int(id % 4))) AS day",
        "if(id % 2 = 0, 'a', 'b-ü') AS shop",
    )


def tasks(frame: DataFrame) -> int:
    return int(frame.rdd.getNumPartitions())


@pytest.mark.parametrize(
    ("where", "parts"),
    long_after(
        4,
        [
            ("day = date'2026-11-02'", 2),
            ("day > date'2026-11-01'", 4),
            ("day <= date'2026-11-01'", 2),
            ("day IN (date'2026-11-01', date'2026-11-03')", 4),
            ("day IS NULL", 2),
            ("day IS NOT NULL", 6),
            ("day <=> NULL", 2),
            ("day IS NOT NULL AND shop = 'b-ü'", 2),
            ("day = date'2026-11-02' AND id < 100", 2),
            ("shop > 'a'", 4),
            ("id < 100", 8),
        ],
    ),
)
def test_filters_on_partition_columns_read_fewer_parts(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str, where: str,
    parts: int,
) -> None:  # fmt: skip
    frame = partitioned(spark)
    save(frame, partitionColumns="day,shop")
    assert len(datasets.read(name).ledgers) == 8  # 4 combinations in each of 2 tasks
    assert len(datasets.read(name).ledger_ids) == 2
    pruned = read(dataset=name, pushdown=True, partitionEntries=1).load().where(where)
    assert tasks(pruned) == parts
    assertDataFrameEqual(pruned, frame.where(where))
    assertDataFrameEqual(read(dataset=name).load().where(where), frame.where(where))


def test_a_query_for_no_partition_runs_no_task_that_reads(
    spark: SparkSession, read: Read, save: Save, name: str, client: blocking.Client,
    datasets: Datasets,
) -> None:  # fmt: skip
    save(partitioned(spark), partitionColumns="day")
    loaded = read(dataset=name, pushdown=True, partitionEntries=1).load()
    none = loaded.where("day = date'1999-01-01'")
    for ledger_id in datasets.read(name).ledger_ids:
        client.delete_ledger(ledger_id)  # Whoever reads one of them fails.
    assert none.collect() == []


def test_a_later_job_appends_to_the_same_partitions(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str
) -> None:
    frame = partitioned(spark)
    save(frame, partitionColumns="Shop")
    save(frame)
    schema = datasets.read(name).schema
    assert schema is not None
    assert schema.partition_by == ("shop",)
    pruned = read(dataset=name, pushdown=True, partitionEntries=1).load().where("shop = 'a'")
    assert tasks(pruned) == 4
    assertDataFrameEqual(pruned, frame.union(frame).where("shop = 'a'"))


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["task raises", "worker dies"])
def test_a_task_fails_once(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str, fault: str
) -> None:
    frame = partitioned(spark)
    save(frame, format="quire_faulty", fault=fault, partitionColumns="day,shop")
    assertDataFrameEqual(read(dataset=name).load(), frame)
    assert datasets.read(name).rows == 4_000


def test_a_row_that_is_larger_than_an_entry_is_refused(
    spark: SparkSession, save: Save, name: str, datasets: Datasets
) -> None:
    frame = spark.sql("SELECT 1 AS id, repeat('x', 6000000) AS text")
    with pytest.raises(PySparkException, match=r"an entry of .* bytes for ledger .* is too large"):
        save(frame, compression="none")
    assert name not in datasets.list_datasets()
    save(frame)  # It is small once it is compressed.
    assert datasets.read(name).bytes < 100_000


def test_a_job_with_a_published_id_writes_nothing(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str
) -> None:
    save(spark.range(5), txnId="once")
    save(spark.range(5).selectExpr("id", "1 AS more"), txnId="once")
    assert read(dataset=name).load().count() == 5
    assert datasets.read(name).sequence == 1


def test_two_first_jobs_with_other_columns_do_not_mix(
    spark: SparkSession, cluster: LocalCluster, read: Read, save: Save, name: str
) -> None:
    """Both find no dataset when they begin. The commit of the second one is refused."""
    from tests.support.spark.streams import data_source

    given = {"metadata": cluster.uri, "dataset": name}
    late = data_source(given).writer(spark.range(1).selectExpr("id", "1 AS b").schema, False)
    save(spark.range(5))
    with pytest.raises(UsageError, match="which has the columns id bigint"):
        late.commit([])
    assert read(dataset=name).load().count() == 5


# -- later versions and damage ----------------------------------------------------------------


def rows_of_version(version: bytes | None) -> bytes:
    schema = pa.schema([("id", pa.int64())], metadata=version and {VERSION_KEY: version})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays([pa.array([1])], schema=schema))
    written: bytes = sink.getvalue().to_pybytes()
    return written


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (rows_of_version(b"2"), "LaterRowsError: entry 0 of ledger"),
        (rows_of_version(None), "does not say that it has rows"),
        (b"not of Arrow", "cannot be decoded as rows of a dataset"),
        (rows_of_version(b"1")[:-60], "cannot be decoded as rows of a dataset"),
    ],
)
def test_an_entry_without_rows_is_never_read_as_rows(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client, name: str, entry: bytes,
    message: str,
) -> None:  # fmt: skip
    from quire import DatasetLedger

    save(spark.range(3))
    schema = client.datasets.read(name).schema
    with client.create_ledger(custom={"quire.dataset": name.encode()}) as writer:
        writer.append(entry)
    part = DatasetLedger(writer.ledger_id, 0, 0, 1, len(entry))
    client.datasets.publish(name, [part], schema=schema)
    with pytest.raises(PySparkException, match=message):
        read(dataset=name).load().collect()


def test_a_schema_of_a_later_version_is_refused(
    spark: SparkSession, read: Read, save: Save, cluster: LocalCluster, datasets: Datasets,
    name: str,
) -> None:  # fmt: skip
    from quire.blocking.background import call

    save(spark.range(3))
    head = stored_head(datasets, name)
    store = datasets.aio._store

    def store_as(schema_version: int) -> None:
        head["schema"]["version"] = schema_version
        version = call(store.read_value((HEADS, name))).version
        call(store.write_value((HEADS, name), json.dumps(head).encode(), version))

    store_as(2)
    try:
        for use in (lambda: read(dataset=name).load(), lambda: save(spark.range(3))):
            with pytest.raises(PySparkException) as caught:
                use()
            assert "was written by a later version of Quire" in message_of(caught.value)
    finally:
        # No ledger that it may name would count as an orphan in the tests after this one.
        store_as(1)
