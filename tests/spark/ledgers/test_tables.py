"""Metadata as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from quire import blocking
from quire.blocking import Namespace
from quire.blocking.background import call
from quire.errors import UsageError
from quire.metadata.tree import Put
from quire.spark import worker
from quire.spark.tables import SCHEMAS, TableOptions, TablePartition, TableReader, table_schema
from quire.streams import DLSN
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import Row, append, batches, message_of, numbered, source
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

Read = Callable[..., DataFrameReader]


@pytest.fixture
def streams(client: blocking.Client, name: str) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    with client.namespace(f"/tables/{name}", create=True) as opened:
        yield opened


def rows(uri: str, table: str, **options: Any) -> list[Row]:
    made = source(uri, {"table": table, **options})
    if "namespace" not in options:
        del made.options["namespace"]
    reader = made.reader(made.schema())
    return [row for batch in batches(reader, reader.partitions()) for row in batch.to_pylist()]


def test_the_ledger_table_lists_every_ledger(
    client: blocking.Client, cluster: LocalCluster
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    custom = {"owner": b"me", "odd": b"\xff"}
    with client.create_ledger(ensemble_size=3, write_quorum=2, digest="hmac", custom=custom) as one:
        one.append_many([b"x" * 10] * 7)
    with client.create_ledger() as other:
        found = {row["ledger"]: row for row in rows(cluster.uri, "ledgers")}
        fragments = {row["ledger"]: row for row in rows(cluster.uri, "fragments")}
        created = found[one.ledger_id].pop("created")
        assert before < created < datetime.now(UTC)
        assert found[one.ledger_id] == {
            "ledger": one.ledger_id, "state": "closed", "ensemble": 3, "write_quorum": 2,
            "ack_quorum": 2, "last_entry": 6, "bytes": 70, "digest": "hmac", "fragments": 1,
            "custom": [("owner", "me"), ("odd", "\ufffd")], "error": None,
        }  # fmt: skip
        assert fragments[one.ledger_id] == {
            "ledger": one.ledger_id, "fragment": 0, "first_entry": 0, "last_entry": 6,
            "bookies": list(one.metadata.segments[0].ensemble), "error": None,
        }  # fmt: skip
        open_one = found[other.ledger_id]
        assert (open_one["state"], open_one["last_entry"], open_one["bytes"]) == (
            "open", None, None,
        )  # fmt: skip
        assert fragments[other.ledger_id]["last_entry"] is None
    assert set(found) == set(fragments)


def test_ledgers_are_listed_in_many_tasks(
    client: blocking.Client, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []
    for _ in range(7):
        with client.create_ledger() as ledger:
            ids.append(ledger.ledger_id)
    monkeypatch.setattr("quire.spark.tables.LEDGERS_PER_TASK", 2)
    monkeypatch.setattr("quire.spark.tables.ROWS_AT_ONCE", 1)
    found = [row["ledger"] for row in rows(cluster.uri, "ledgers")]
    assert found == client.list_ledgers()
    assert set(ids) <= set(found)


def test_fragments_follow_changes_of_the_ensemble_and_bookies_that_are_gone(
    tmp_path: Path,
) -> None:
    with LocalCluster(bookies=4, directory=tmp_path) as cluster:
        with blocking.connect(cluster.uri) as client, client.create_ledger() as ledger:
            ledger.append_many([b"x"] * 10)
            killed = ledger.metadata.segments[0].ensemble[0]
            next(bookie for bookie in cluster.bookies if bookie.id == killed).kill()
            ledger.append_many([b"x"] * 10)
            ledger_id = ledger.ledger_id
        found = [row for row in rows(cluster.uri, "fragments") if row["ledger"] == ledger_id]
        first = found[1]["first_entry"]
        assert [(row["fragment"], row["first_entry"], row["last_entry"]) for row in found] == [
            (0, 0, first - 1),
            (1, first, 19),
        ]
        assert killed in found[0]["bookies"]
        assert killed not in found[1]["bookies"]
        by_id = {row["bookie"]: row for row in rows(cluster.uri, "bookies")}
        assert set(by_id) == {bookie.id for bookie in cluster.bookies}
        assert by_id[killed]["total_bytes"] is None
        for other in set(by_id) - {killed}:
            row = by_id[other]
            assert (row["state"], row["tls"]) == ("writable", False)
            assert f"{row['host']}:{row['port']}" == other
            assert 0 < row["free_bytes"] <= row["total_bytes"]
        worker.close_clients()


def test_the_tables_of_streams_and_segments_are_complete(
    streams: Namespace, client: blocking.Client, cluster: LocalCluster
) -> None:
    append(streams, "done", numbered(0, 90), segments=3)
    streams.truncate("done", DLSN(2, 0, 5))
    streams.create_stream("empty", settings={"txids": "given"})
    with streams.open_writer("empty") as writer:
        writer.end_stream()
    with streams.open_writer("team/open", create=True) as writer:
        writer.append_many(numbered(0, 10))

        def look() -> dict[str, Row]:
            made = rows(cluster.uri, "streams", namespace=streams.path)
            return {row["stream"]: row for row in made}

        # The entry that shows the bookies that these are acknowledged comes a little later.
        wait_for(lambda: look()["team/open"]["records"] > 0, "readers see the open segment")
        found = look()
        segments = rows(cluster.uri, "segments", namespace=streams.path)
    assert {name: (r["records"], r["ended"], r["txids"]) for name, r in found.items()} == {
        "done": (55, False, "time"),
        "empty": (0, True, "given"),
        "team/open": (10, False, "time"),
    }
    assert (found["done"]["first"], found["done"]["last"]) == ("2:0:5", "3:0:29")
    assert (found["empty"]["first"], found["empty"]["last"]) == (None, None)
    done = {row["segment"]: row for row in segments if row["stream"] == "done"}
    assert done[2]["state"] == done[3]["state"] == "completed"
    assert (done[3]["records"], done[3]["first_sequence"], done[3]["last"]) == (30, 60, "3:0:29")
    assert done[2]["first"] == "2:0:5"
    assert done[3]["bytes"] == client.ledger_metadata(done[3]["ledger"]).length
    assert done[3]["created"] <= done[3]["completed"]
    (opened,) = [row for row in segments if row["stream"] == "team/open"]
    assert (opened["state"], opened["records"], opened["completed"]) == ("in progress", 10, None)
    # Without the option: of all namespaces.
    everywhere = rows(cluster.uri, "streams")
    assert {row["stream"] for row in everywhere if row["namespace"] == streams.path} == set(found)


def test_an_unreadable_stream_stops_no_table(
    streams: Namespace, client: blocking.Client, cluster: LocalCluster
) -> None:
    for name in ("apple", "melon", "pear"):
        append(streams, name, numbered(0, 10))
        streams.subscription(name, "mine").commit(DLSN(1, 0, 5))
    tree = client.aio.metadata.tree
    root = f"{streams.path}/melon/<default>"
    (segment,) = call(tree.children(f"{root}/ledgers"))
    call(tree.commit(Put(f"{root}/ledgers/{segment}", b"rubbish")))
    call(tree.commit(Put(f"{streams.path}/pear/<default>/subscribers/mine", b"rubbish")))
    try:
        for table in ("streams", "segments", "subscriptions", "lag"):
            found = {
                row["stream"]: row["error"]
                for row in rows(cluster.uri, table, namespace=streams.path)
                if row["stream"] in ("apple", "melon", "pear")
            }
            assert list(found) == ["apple", "melon", "pear"]
            assert found["apple"] is None
            assert "stream melon " in found["melon"]
            assert f"{root}/ledgers/{segment}" in found["melon"]
            assert (found["pear"] is None) == (table in ("streams", "segments"))
    finally:
        call(tree.delete_tree(f"{streams.path}/melon"))


def test_the_subscription_table_has_the_lag(streams: Namespace, cluster: LocalCluster) -> None:
    append(streams, "orders", numbered(0, 90), segments=3)
    append(streams, "unread", numbered(0, 10))
    streams.subscription("orders", "done").commit(DLSN(4, 0, 0))
    streams.subscription("orders", "half").commit(DLSN(2, 0, 15))
    found = rows(cluster.uri, "subscriptions", namespace=streams.path)
    assert [(row["stream"], row["subscription"], row["position"]) for row in found] == [
        ("orders", "done", "4:0:0"),
        ("orders", "half", "2:0:15"),
    ]
    done, half = rows(cluster.uri, "lag", namespace=streams.path)
    assert (done["records"], done["bytes"], done["seconds"]) == (0, 0, 0.0)
    assert half["records"] == 45
    stored = {
        r["segment"]: r["bytes"] for r in rows(cluster.uri, "segments", namespace=streams.path)
    }
    assert half["bytes"] == stored[2] + stored[3]
    assert half["seconds"] > 0


def test_a_table_through_spark(
    streams: Namespace, cluster: LocalCluster, spark: SparkSession, read: Read
) -> None:
    append(streams, "orders", numbered(0, 90), segments=3)
    streams.subscription("orders", "spark").commit(DLSN(3, 0, 0))
    for table, names in SCHEMAS.items():
        options = {"table": table}
        if table not in ("ledgers", "fragments", "bookies"):
            options["namespace"] = streams.path
        frame = read(**options).load()
        assert frame.columns == list(names)
        assert frame.count() > 0, table
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW segments USING quire "
        f"OPTIONS (metadata '{cluster.uri}', table 'segments', namespace '{streams.path}')"
    )
    (total,) = spark.sql(
        "SELECT sum(records) AS records, max(completed) AS at FROM segments"
    ).collect()
    assert total.records == 90
    assert total.at is not None
    frame = read(table="ledgers").schema("ledger long, custom map<string,string>").load()
    assert frame.filter("custom['component'] = 'stream'").count() >= 3


def test_one_clear_error(read: Read) -> None:
    with pytest.raises(PySparkException) as caught:
        read(table="leders").load()
    assert "'leders' is not a table. The tables are ledgers" in message_of(caught.value)
    with pytest.raises(PySparkException) as caught:
        read(table="lag", namespace="/no/where").load().collect()
    assert "there is no namespace /no/where" in message_of(caught.value)


def test_a_table_schema_that_does_not_fit_is_refused() -> None:
    options = TableOptions("lag", "sqlite:////nowhere.db")
    for field in (StructField("offset", LongType()), StructField("stream", LongType())):
        with pytest.raises(
            UsageError, match=r"which table 'lag' does not have. Its columns are namespace string"
        ):
            TableReader(options, StructType([field]))
    assert TableReader(options, table_schema("lag")).partitions() == [TablePartition()]
