"""Writing datasets in Spark: all of a job or nothing, once, whatever fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from quire import blocking
from quire.blocking import Datasets
from quire.client.datasets.unpublished import JOB_KEY, OWNER_KEY
from quire.errors import NoSuchKeyError, NoSuchLedgerError, QuireError, UsageError
from quire.spark import sweep_orphans
from quire.spark.ledgers.writer import ATTEMPT_KEY, PARTITION_KEY, TXN_KEY
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import data_source, message_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

Read = Callable[..., DataFrameReader]
Save = Callable[..., None]


def frame_of(spark: SparkSession, rows: int, partitions: int, first: int = 0) -> DataFrame:
    """Return a frame with repetitions, because the result must be the same multiset."""
    return spark.range(first, first + rows, 1, partitions).selectExpr(
        "cast(concat('row ', id div 3, repeat('.', cast(id % 200 as int))) as binary) AS value"
    )


def multiset(frame: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row.value) for row in frame.select("value").collect())


def owned(client: blocking.Client, name: str) -> set[int]:
    """The ledgers that were written for a dataset and exist."""
    found = set()
    for ledger_id in client.list_ledgers():
        with suppress(NoSuchLedgerError):  # A task that fails deletes its own.
            if client.ledger_metadata(ledger_id).custom.get(OWNER_KEY) == name.encode():
                found.add(ledger_id)
    return found


def held(datasets: Datasets, name: str) -> set[int]:
    return {ledger.ledger_id for ledger in datasets.read(name).ledgers}


# -- what is written --------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 5])
def test_written_rows_are_read_back(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str,
    partitions: int,
) -> None:  # fmt: skip
    frame = frame_of(spark, 20_000, partitions)
    save(frame)
    assert multiset(read(dataset=name, minPartitions=3).load()) == multiset(frame)
    dataset = datasets.read(name)
    assert len(dataset.ledgers) == partitions
    assert dataset.rows == 20_000
    lengths = read(dataset=name, value=False).load().selectExpr("sum(length)").first()
    assert lengths is not None
    assert dataset.bytes == lengths[0]


def test_rows_of_a_partition_keep_their_order(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str
) -> None:
    """The dataset lists the ledgers in the order of the partitions; their ids come in the order in
    which the tasks happened to create them."""
    save(spark.range(0, 30_000, 1, 2).selectExpr("cast(id AS string) AS value"))
    rows = read(dataset=name).load().orderBy("entry_id").collect()
    found = [
        int(row.value)
        for ledger in datasets.read(name).ledgers
        for row in rows
        if row.ledger_id == ledger.ledger_id
    ]
    assert found == list(range(30_000))


def test_ledgers_name_their_dataset_and_job(
    spark: SparkSession, save: Save, client: blocking.Client, datasets: Datasets, name: str
) -> None:
    save(
        frame_of(spark, 100, 2), txnId="t1", ensemble=2, writeQuorum=2, ackQuorum=1, digest="hmac",
        password="secret",
    )  # fmt: skip
    customs = []
    for ledger in datasets.read(name).ledgers:
        metadata = client.ledger_metadata(ledger.ledger_id)
        assert metadata.closed
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (2, 2, 1)
        assert metadata.digest is not None
        assert metadata.digest.name == "HMAC"
        customs.append({key: value.decode() for key, value in metadata.custom.items()})
    assert [custom[PARTITION_KEY] for custom in customs] == ["0", "1"]
    for custom in customs:
        assert custom[OWNER_KEY] == name
        assert custom[TXN_KEY] == "t1"
        assert custom[ATTEMPT_KEY] == "0"
    assert len({custom[JOB_KEY] for custom in customs}) == 1


def test_empty_partitions_write_no_ledger(
    spark: SparkSession, read: Read, save: Save, datasets: Datasets, name: str
) -> None:
    save(spark.range(0, 40, 1, 4).filter("id < 10").selectExpr("cast(id AS string) AS value"))
    assert len(datasets.read(name).ledgers) == 1
    save(spark.range(0).selectExpr("cast(id AS string) AS value"), "overwrite")
    assert datasets.read(name).ledgers == ()
    assert read(dataset=name).load().count() == 0


@pytest.mark.parametrize(
    ("select", "options"),
    [
        ("cast(id AS string) AS value", {}),
        ("cast(cast(id AS string) AS binary) AS body", {}),
        ("cast(id AS string) AS a, cast(id AS string) AS b, id AS value", {"valueColumn": "B"}),
    ],
)
def test_the_value_column_is_selected(
    spark: SparkSession, read: Read, save: Save, name: str, select: str, options: dict[str, str]
) -> None:
    save(spark.range(100).selectExpr(*select.split(", ")), **options)
    assert multiset(read(dataset=name).load()) == Counter(b"%d" % n for n in range(100))


def test_values_of_all_sizes_are_written(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    sizes = [0, 1, 100, 1_000_000, 3_000_000, 0, 5]
    frame = spark.createDataFrame(
        [(bytes([n]) * size,) for n, size in enumerate(sizes)], "value binary"
    )
    save(frame)
    assert multiset(read(dataset=name).load()) == multiset(frame)


def test_datasets_are_appended_to_and_overwritten(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client,
    datasets: Datasets, name: str,
) -> None:  # fmt: skip
    a, b, c = (frame_of(spark, 500, 2, first) for first in (0, 10_000, 20_000))
    save(a)
    save(b)
    assert multiset(read(dataset=name).load()) == multiset(a) + multiset(b)
    assert len(owned(client, name)) == 4
    save(c, "overwrite")
    assert multiset(read(dataset=name).load()) == multiset(c)
    assert owned(client, name) == held(datasets, name)  # the replaced ones are gone
    assert datasets.read(name).sequence == 3


def test_a_dataset_can_be_overwritten_from_itself(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    frame = frame_of(spark, 300, 2)
    save(frame)
    expected = multiset(frame)
    save(read(dataset=name, columns="value").load(), "overwrite")
    assert multiset(read(dataset=name).load()) == expected


def test_a_query_overtaken_by_an_overwrite_reports_it(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    save(frame_of(spark, 300, 2))
    planned = read(dataset=name).load()
    assert planned.rdd.getNumPartitions() == 1  # planned, and kept by this frame
    save(frame_of(spark, 300, 2), "overwrite")
    with pytest.raises(PySparkException, match="was overwritten or dropped"):
        planned.collect()
    assert read(dataset=name).load().count() == 300


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ackquorom": 2}, "unknown option 'ackquorom' for writing. Did you mean 'ackQuorum'?"),
        ({"ledger": 2}, "option 'ledger' cannot be used for writing"),
        ({"valueColumn": "zzz"}, "no column 'zzz' to write"),
        ({"ensemble": 1}, "ensemble is 1, writeQuorum is 3"),
        ({"metadata": "sqlite:////nowhere/at/all.db"}, "/nowhere/at/all.db"),
    ],
)
def test_one_clear_message(
    cluster: LocalCluster, name: str, options: dict[str, object], message: str
) -> None:
    """The test asks for the writer without Spark, and checks the error."""
    given = {"metadata": cluster.uri, "dataset": name, **options}
    with pytest.raises(QuireError) as caught:
        data_source(given).writer(StructType().add("value", "string"), overwrite=False)
    assert message in str(caught.value)


def test_no_column_is_lost_silently(cluster: LocalCluster, name: str, datasets: Datasets) -> None:
    """The columns beside `value` were left out of the dataset without a word."""
    schema = StructType().add("id", "long").add("value", "string")
    given = {"metadata": cluster.uri, "dataset": name}
    lost = "no option says what to do with column 'id'. Nothing was written"

    def refusal(**options: str) -> str:
        with pytest.raises(UsageError) as caught:
            data_source({**given, **options}).writer(schema, overwrite=False)
        return str(caught.value)

    said = refusal()
    assert lost in said
    assert "'typed' to 'true'" in said
    assert "option 'valueColumn' to 'value'" in said
    for options in ({"valueColumn": "value"}, {"typed": "false"}, {"typed": "true"}):
        data_source({**given, **options}).writer(schema, overwrite=False)  # The user has chosen.
    datasets.publish(name, [])
    said = refusal()
    assert lost in said
    assert "'typed'" not in said, "the rows of the dataset are not typed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueColumn": "zzz"}, "no column 'zzz' to write"),
        ({"ensemble": 9}, "bookies"),  # found by the tasks
    ],
)
def test_spark_shows_the_message(
    spark: SparkSession, save: Save, options: dict[str, object], message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(frame_of(spark, 10, 1), **options)
    assert message in message_of(caught.value)


def test_a_null_is_refused(
    spark: SparkSession, save: Save, client: blocking.Client, datasets: Datasets, name: str
) -> None:
    frame = spark.range(1000).selectExpr("if(id = 700, null, cast(id AS string)) AS value")
    with pytest.raises(PySparkException, match="has a null, but an entry must have a value"):
        save(frame)
    assert_nothing_is_published(datasets, name)
    sweep(client, name, set())


def test_an_entry_that_is_too_large_is_refused(
    spark: SparkSession, save: Save, client: blocking.Client, datasets: Datasets, name: str
) -> None:
    frame = spark.sql("SELECT repeat('x', 6000000) AS value")
    with pytest.raises(PySparkException, match="an entry of 6000000 bytes"):
        save(frame)
    assert_nothing_is_left(client, datasets, name)


def sweep(client: blocking.Client, name: str, left: set[int]) -> None:
    """Sweep until nothing is found.

    Cancelled tasks leave their ledgers, and continue for a while after the job has failed. The next
    sweep finds what they begin after one.
    """

    def is_clean() -> bool:
        sweep_orphans(client, 0, dataset=name)
        return owned(client, name) == left

    wait_for(is_clean, "the sweep of what cancelled tasks left")


def assert_nothing_is_published(datasets: Datasets, name: str) -> None:
    with pytest.raises(NoSuchKeyError):
        datasets.read(name)
    assert name not in datasets.list_datasets()


def assert_nothing_is_left(client: blocking.Client, datasets: Datasets, name: str) -> None:
    assert_nothing_is_published(datasets, name)
    assert owned(client, name) == set()


# -- failures of tasks ------------------------------------------------------------------------


def test_a_task_whose_input_fails_once_publishes_its_rows_once(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client,
    datasets: Datasets, name: str,
) -> None:  # fmt: skip
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for at, batch in enumerate(batches):
            if at == 2 and context.partitionId() in (1, 3) and context.attemptNumber() == 0:
                raise RuntimeError("injected")
            yield batch

    frame = frame_of(spark, 60_000, 4)
    save(frame.mapInArrow(fail_once, frame.schema))
    assert multiset(read(dataset=name).load()) == multiset(frame)
    assert owned(client, name) == held(datasets, name)


@pytest.mark.parametrize("fault", ["task raises", "worker dies"])
def test_a_retried_task_writes_its_rows_once(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client,
    datasets: Datasets, name: str, fault: str,
) -> None:  # fmt: skip
    """The dataset has every row once; what the first attempts wrote is swept at the commit."""
    frame = frame_of(spark, 60_000, 4)
    save(frame, format="quire_faulty", fault=fault)
    assert multiset(read(dataset=name).load()) == multiset(frame)
    attempts = {
        client.ledger_metadata(ledger_id).custom[ATTEMPT_KEY] for ledger_id in held(datasets, name)
    }
    assert attempts == {b"0", b"1"}  # the fault did happen
    assert owned(client, name) == held(datasets, name)


def test_a_job_that_fails_publishes_nothing(
    spark: SparkSession, save: Save, client: blocking.Client, datasets: Datasets, name: str
) -> None:
    with pytest.raises(PySparkException, match="every attempt of the task raises"):
        save(frame_of(spark, 40_000, 4), format="quire_faulty", fault="all tasks raise")
    assert_nothing_is_published(datasets, name)
    sweep(client, name, set())


def test_a_failed_job_does_not_change_the_dataset(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client,
    datasets: Datasets, name: str,
) -> None:  # fmt: skip
    before = frame_of(spark, 500, 2)
    save(before)
    for fault in ("all tasks raise", "before publication"):
        with pytest.raises(PySparkException, match="injected"):
            save(frame_of(spark, 40_000, 4), "overwrite", format="quire_faulty", fault=fault)
        assert multiset(read(dataset=name).load()) == multiset(before)
    sweep(client, name, held(datasets, name))


# -- failures of the commit -------------------------------------------------------------------


def test_a_commit_that_fails_before_publication_leaves_nothing(
    spark: SparkSession, save: Save, client: blocking.Client, datasets: Datasets, name: str
) -> None:
    with pytest.raises(PySparkException, match="injected: before publication"):
        save(frame_of(spark, 1000, 3), format="quire_faulty", fault="before publication")
    assert_nothing_is_left(client, datasets, name)  # by `abort` alone


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_commit_that_fails_after_publication_keeps_the_rows(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client,
    datasets: Datasets, name: str, mode: str,
) -> None:  # fmt: skip
    """Spark calls `abort` with the same messages: it must not take away what is published."""
    old, new = frame_of(spark, 200, 2), frame_of(spark, 1000, 3, 5000)
    save(old)
    with pytest.raises(PySparkException, match="injected: after publication"):
        save(new, mode, format="quire_faulty", fault="after publication", txnId="t")
    expected = multiset(new) if mode == "overwrite" else multiset(old) + multiset(new)
    assert multiset(read(dataset=name).load()) == expected
    save(new, mode, txnId="t")  # the user tries again
    assert multiset(read(dataset=name).load()) == expected
    sweep_orphans(client, 0, dataset=name)
    assert owned(client, name) == held(datasets, name)


def test_a_publication_with_a_lost_reply_counts_once(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client,
    datasets: Datasets, name: str,
) -> None:  # fmt: skip
    frame = frame_of(spark, 1000, 3)
    save(frame, format="quire_faulty", fault="lost answer")
    assert multiset(read(dataset=name).load()) == multiset(frame)
    assert owned(client, name) == held(datasets, name)


# -- transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_dataset_transaction_is_written_once(
    spark: SparkSession, read: Read, save: Save, client: blocking.Client,
    datasets: Datasets, name: str, mode: str,
) -> None:  # fmt: skip
    first, other = frame_of(spark, 500, 2), frame_of(spark, 500, 2, 10_000)
    save(first, mode, txnId="2026-11-03")
    save(other, mode, txnId="2026-11-03")
    assert multiset(read(dataset=name).load()) == multiset(first)
    assert owned(client, name) == held(datasets, name)
    save(other, mode, txnId="2026-11-04")
    expected = multiset(other) if mode == "overwrite" else multiset(first) + multiset(other)
    assert multiset(read(dataset=name).load()) == expected


def test_writes_without_a_transaction_id_are_independent(
    spark: SparkSession, read: Read, save: Save, name: str
) -> None:
    frame = frame_of(spark, 500, 2)
    save(frame)
    save(frame)
    assert read(dataset=name).load().count() == 1000
