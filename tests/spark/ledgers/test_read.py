"""Reading ledgers and datasets in Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, Row, SparkSession

from quire import blocking
from quire.errors import QuireError
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.streams import data_source, message_of

pytestmark = pytest.mark.spark

Read = Callable[..., DataFrameReader]

PAYLOADS = [b"x" * (n % 50) + str(n).encode() for n in range(1000)]


def new_ledger(client: blocking.Client, payloads: list[bytes] = PAYLOADS, **options: Any) -> int:
    with client.create_ledger(**options) as ledger:
        ledger.append_many(payloads)
    return ledger.ledger_id


def rows(ledger_id: int, payloads: list[bytes] = PAYLOADS) -> list[tuple[int, int, int, bytes]]:
    return [(ledger_id, at, len(payload), payload) for at, payload in enumerate(payloads)]


# -- what is read -----------------------------------------------------------------------------


def test_a_ledger_is_read_as_rows(client: blocking.Client, read: Read) -> None:
    ledger_id = new_ledger(client)
    frame = read(ledger=ledger_id).load()
    assert frame.schema.simpleString() == (
        "struct<ledger_id:bigint,entry_id:bigint,length:bigint,value:binary>"
    )
    assert not any(field.nullable for field in frame.schema)
    assert [tuple(row) for row in frame.collect()] == [
        (*ids, bytearray(value)) for *ids, value in rows(ledger_id)
    ]


@pytest.mark.parametrize("digest", long_after(2, ["hmac", "crc32", "crc32c", "dummy"]))
@pytest.mark.parametrize(("ensemble", "quorum"), [(3, 3), (3, 2), (1, 1)])
def test_every_kind_of_ledger_is_read(
    client: blocking.Client, read: Read, digest: str, ensemble: int, quorum: int
) -> None:
    ledger_id = new_ledger(
        client, PAYLOADS, digest=digest, password=b"secret",
        ensemble_size=ensemble, write_quorum=quorum, ack_quorum=quorum,
    )  # fmt: skip
    frame = read(ledger=ledger_id, password="secret", minPartitions=3).load()
    assert sorted(map(tuple, frame.collect())) == rows(ledger_id)


def test_several_ledgers_are_read_in_several_tasks(client: blocking.Client, read: Read) -> None:
    ids = [new_ledger(client), new_ledger(client, []), new_ledger(client, [b"one"])]
    named = ",".join(map(str, ids))
    expected = [*rows(ids[0]), *rows(ids[2], [b"one"])]
    for options, tasks in (
        ({}, 1),
        ({"minPartitions": 4}, 4),
        ({"partitionEntries": 100}, 11),
        ({"partitionBytes": "20k"}, None),
    ):
        frame = read(ledgers=named, **options).load()
        assert sorted(map(tuple, frame.collect())) == expected
        if tasks is not None:
            assert frame.rdd.getNumPartitions() == tasks


def test_entries_of_all_sizes_are_read(client: blocking.Client, read: Read) -> None:
    payloads = [b"", b"\x00", bytes(range(256)) * 16_000, b"", b"x" * 1_000_000, b"tail"] * 2
    ledger_id = new_ledger(client, payloads)
    assert [bytes(r.value) for r in read(ledger=ledger_id).load().collect()] == payloads


def test_an_empty_ledger_has_no_rows(client: blocking.Client, read: Read) -> None:
    frame = read(ledger=new_ledger(client, [])).load()
    assert frame.count() == 0
    assert frame.collect() == []


def test_an_open_ledger_is_read_up_to_its_lac(client: blocking.Client, read: Read) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many(PAYLOADS)
        ledger.append(b"tells that all before it is acknowledged")
        got = read(ledger=ledger.ledger_id, minPartitions=2).load().collect()
        assert sorted(map(tuple, got))[: len(PAYLOADS)] == rows(ledger.ledger_id)
        ledger.append(b"goes on")  # It was not fenced.
    assert read(ledger=ledger.ledger_id).load().count() == len(PAYLOADS) + 2


def test_recover_fences_and_reads_all(client: blocking.Client, read: Read) -> None:
    ledger = client.create_ledger()
    ledger.append_many(PAYLOADS)
    got = read(ledger=ledger.ledger_id, recover=True).load().collect()
    assert sorted(map(tuple, got)) == rows(ledger.ledger_id)
    assert client.ledger_metadata(ledger.ledger_id).closed
    ledger.abandon()


def test_sql_reads_a_view(
    client: blocking.Client, cluster: LocalCluster, spark: SparkSession
) -> None:
    ledger_id = new_ledger(client)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW entries USING quire "
        f"OPTIONS (metadata '{cluster.uri}', ledger '{ledger_id}')"
    )
    total = spark.sql("SELECT sum(length) AS total FROM entries").collect()
    assert total == [Row(total=sum(map(len, PAYLOADS)))]


def test_spark_finds_the_format_by_itself(
    client: blocking.Client, cluster: LocalCluster, spark: SparkSession
) -> None:
    ledger_id = new_ledger(client)
    fresh = spark.newSession()  # nothing was registered here
    frame = fresh.read.format("quire").options(metadata=cluster.uri, ledger=ledger_id).load()
    assert frame.count() == len(PAYLOADS)


# -- columns ----------------------------------------------------------------------------------


def test_the_value_column_can_be_omitted(client: blocking.Client, read: Read) -> None:
    ledger_id = new_ledger(client)
    frame = read(ledger=ledger_id, value=False).load()
    assert frame.columns == ["ledger_id", "entry_id", "length"]
    assert sorted(map(tuple, frame.collect())) == [row[:3] for row in rows(ledger_id)]


def test_columns_of_a_ledger_can_be_selected(client: blocking.Client, read: Read) -> None:
    ledger_id = new_ledger(client)
    frame = read(ledger=ledger_id, columns="value,entry_id").load()
    assert [tuple(row) for row in frame.collect()] == [
        (value, entry_id) for _, entry_id, _, value in rows(ledger_id)
    ]


def test_a_schema_of_the_user_is_honoured(client: blocking.Client, read: Read) -> None:
    ledger_id = new_ledger(client)
    frame = read(ledger=ledger_id).schema("value binary, Length long").load()
    assert frame.columns == ["value", "Length"]
    assert [tuple(row) for row in frame.collect()] == [
        (value, length) for _, _, length, value in rows(ledger_id)
    ]


def test_reading_only_ids_needs_no_bookie(tmp_path: Path, read: Read) -> None:
    with LocalCluster(bookies=1, directory=tmp_path) as cluster:
        with blocking.connect(cluster.uri) as client:
            ledger_id = new_ledger(
                client, [b"x"] * 40_000, ensemble_size=1, write_quorum=1, ack_quorum=1
            )
        cluster.bookies[0].kill()
        frame = read(metadata=cluster.uri, ledger=ledger_id, columns="ledger_id,entry_id").load()
        assert frame.count() == 40_000
        assert sorted(row.entry_id for row in frame.collect()) == list(range(40_000))


# -- filters ----------------------------------------------------------------------------------


def test_filters_select_the_entries_that_are_read(client: blocking.Client, read: Read) -> None:
    ids = [new_ledger(client) for _ in range(4)]
    named = ",".join(map(str, ids))
    everything = [row for ledger_id in ids for row in rows(ledger_id)]
    frame = read(ledgers=named, partitionEntries=100).load()
    assert frame.rdd.getNumPartitions() == 40
    for condition, keep, tasks in (
        (f"ledger_id = {ids[1]}", lambda r: r[0] == ids[1], 10),
        (f"ledger_id IN ({ids[1]}, {ids[3]}, 999999)", lambda r: r[0] in (ids[1], ids[3]), 20),
        ("entry_id >= 850", lambda r: r[1] >= 850, 6),
        (f"entry_id < 5 AND ledger_id > {ids[2]}", lambda r: r[1] < 5 and r[0] > ids[2], 1),
        ("entry_id = 7 AND length = 8", lambda r: r[1] == 7 and r[2] == 8, 1),
        ("entry_id IN (1, 999)", lambda r: r[1] in (1, 999), 40),
        ("entry_id < 3 OR entry_id > 997", lambda r: not 3 <= r[1] <= 997, 40),
        ("ledger_id = -1", lambda r: False, None),
    ):
        frame = read(ledgers=named, partitionEntries=100, pushdown=True).load()
        filtered = frame.filter(condition)
        got = sorted(map(tuple, filtered.collect()))
        assert got == [row for row in everything if keep(row)], condition
        if tasks is not None:
            assert filtered.rdd.getNumPartitions() == tasks, condition


@pytest.mark.long
def test_spark_applies_filters_without_pushdown(client: blocking.Client, read: Read) -> None:
    """A DataFrame serves many queries: Spark would give the filters of one to the next."""
    ledger_id = new_ledger(client)
    frame = read(ledger=ledger_id, partitionEntries=100).load()
    filtered = frame.filter("entry_id >= 850")
    assert filtered.rdd.getNumPartitions() == 10
    assert filtered.count() == 150
    assert frame.count() == len(PAYLOADS)
    low, high = frame.filter("entry_id < 100"), frame.filter("entry_id >= 50")
    assert low.join(high, "entry_id").count() == 50


def test_the_format_works_without_the_pushdown_setting(
    client: blocking.Client, cluster: LocalCluster, spark: SparkSession
) -> None:
    """The format as Spark finds it does not need the setting."""
    ledger_id = new_ledger(client)
    fresh = spark.newSession()
    assert fresh.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    fresh.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    frame = fresh.read.format("quire").options(metadata=cluster.uri, ledger=ledger_id).load()
    assert frame.filter("entry_id < 10").count() == 10


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ledger": 999_999}, "ledger 999999 does not exist"),
        ({"dataset": "nowhere"}, "dataset 'nowhere' does not exist"),
        ({"ledger": 1, "metadata": "sqlite:////nowhere/at/all.db"}, "/nowhere/at/all.db"),
        ({"ledger": 1, "metadata": "ftp://x"}, "ftp"),
        ({"legder": 1}, "unknown option 'legder' for reading. Did you mean 'ledger'?"),
        ({}, "no option selects what to read"),
    ],
)
def test_one_clear_message(cluster: LocalCluster, options: dict[str, Any], message: str) -> None:
    """The test calls schema, reader and partitions without Spark, and checks the error."""
    made = data_source({"metadata": cluster.uri, **options})
    with pytest.raises(QuireError) as caught:
        made.reader(made.schema()).partitions()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    long_after(
        1,
        [
            ({"ledger": 999_999}, "ledger 999999 does not exist"),
            ({"legder": 1}, "unknown option 'legder' for reading. Did you mean 'ledger'?"),
        ],
    ),
)
def test_spark_shows_the_message(read: Read, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PySparkException) as caught:
        read(**options).load().collect()
    assert message in message_of(caught.value)


def test_a_wrong_password_is_not_shown(client: blocking.Client, read: Read) -> None:
    ledger_id = new_ledger(client, password=b"right-one")
    with pytest.raises(PySparkException) as caught:
        read(ledger=ledger_id, password="wrong-one").load().collect()
    assert f"the password for ledger {ledger_id} is wrong" in message_of(caught.value)
    assert "wrong-one" not in str(caught.value)


def test_passwords_are_in_no_plan(
    client: blocking.Client, read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger_id = new_ledger(client, password=b"hunter2")
    frame = read(ledger=ledger_id, password="hunter2").load().filter("length > 3")
    frame.explain(True)
    frame.explain("formatted")
    shown = capsys.readouterr().out + frame._jdf.queryExecution().toString()
    assert "quire" in shown
    assert "hunter2" not in shown
    assert frame.count() > 0


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_read_survives_the_death_of_a_bookie(
    tmp_path: Path, read: Read, flag: Callable[[str], Path]
) -> None:
    payloads = [n.to_bytes(4, "big") * 1000 for n in range(20_000)]  # 80 MB: not all in buffers
    reading, killed = str(flag("reading")), str(flag("killed"))

    def pause_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for at, batch in enumerate(batches):
            if at == 0:
                Path(reading).touch()
                deadline = time.monotonic() + 60
                while not Path(killed).exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            heads = pa.compute.binary_slice(batch.column(0), 0, 4)
            yield pa.RecordBatch.from_arrays([heads], ["head"])

    with LocalCluster(bookies=3, directory=tmp_path / "cluster") as cluster:
        with blocking.connect(cluster.uri) as client:
            ledger_id = new_ledger(client, payloads)

        def kill() -> None:
            while not Path(reading).exists() and thread_may_wait.is_set():
                time.sleep(0.01)
            cluster.bookies[0].kill()
            Path(killed).touch()

        thread_may_wait = threading.Event()
        thread_may_wait.set()
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            options = {"metadata": cluster.uri, "ledger": ledger_id, "partitionBytes": "1g"}
            frame = read(**options, columns="value").load()
            assert frame.rdd.getNumPartitions() == 1
            got = frame.mapInArrow(pause_once, "head binary").collect()
        finally:
            thread_may_wait.clear()
            thread.join()
        assert not cluster.bookies[0].alive
    assert [int.from_bytes(row.head, "big") for row in got] == list(range(20_000))


def test_reading_without_any_bookie_is_one_clear_error(tmp_path: Path, read: Read) -> None:
    with LocalCluster(bookies=1, directory=tmp_path) as cluster:
        with blocking.connect(cluster.uri) as client:
            ledger_id = new_ledger(client, ensemble_size=1, write_quorum=1, ack_quorum=1)
        cluster.bookies[0].kill()
        with pytest.raises(PySparkException) as caught:
            read(metadata=cluster.uri, ledger=ledger_id).load().collect()
    assert f"entry 0 of ledger {ledger_id} could not be read from any replica" in str(caught.value)
