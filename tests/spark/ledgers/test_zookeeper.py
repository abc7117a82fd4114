"""Datasets with metadata in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from quire import blocking
from quire.blocking import Datasets
from quire.client.datasets.format import DatasetLedger
from quire.errors import NoSuchKeyError
from quire.testing.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("zookeeper")
    with LocalCluster(bookies=3, directory=directory, zookeeper=True) as running:
        yield running


def test_datasets_work_with_zookeeper(
    spark: SparkSession, read: Callable[..., DataFrameReader], save: Callable[..., None],
    client: blocking.Client, name: str,
) -> None:  # fmt: skip
    frame = spark.range(0, 5000, 1, 3).selectExpr("cast(id AS string) AS value")
    save(frame, txnId="t")
    save(frame, txnId="t")
    assert read(dataset=name, minPartitions=4).load().count() == 5000
    before = set(client.list_ledgers())
    save(frame.limit(10), "overwrite")
    rows = read(dataset=name).load().collect()
    assert sorted(int(row.value) for row in rows) == list(range(10))
    assert not before & set(client.list_ledgers())


def test_large_datasets_fit_into_zookeeper(client: blocking.Client, datasets: Datasets) -> None:
    """More than ZooKeeper takes in one value: 1 MB."""
    ids = []
    for _ in range(3):
        with client.create_ledger() as ledger:
            ledger.append_many([b"0123456789"] * 10_000)
            ids.append(ledger.ledger_id)
    parts = [DatasetLedger(i, at, at, 1, 10) for i in ids for at in range(10_000)]
    datasets.publish("large", parts, txn="t")
    assert datasets.publish("large", parts, txn="t").repeated
    assert datasets.read("large").ledgers == tuple(parts)
    small = [DatasetLedger(ids[0], 0, 9, 10, 100)]
    assert datasets.publish("large", small, overwrite=True).replaced == tuple(parts)
    assert datasets.read("large").ledgers == tuple(small)
    assert "large" in datasets.list_datasets()
    datasets.drop("large")
    assert "large" not in datasets.list_datasets()
    with pytest.raises(NoSuchKeyError):
        datasets.read("large")
