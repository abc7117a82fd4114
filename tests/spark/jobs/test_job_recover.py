"""Spark's tasks replicate a lost bookie's ledgers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from quire import blocking
from quire.blocking.background import call
from quire.errors import UsageError
from quire.replication import ReplicationLocks
from quire.spark import worker
from quire.spark.jobs import ClusterOptions, audit, recover
from quire.testing.cluster import LocalCluster
from tests.support.spark.damage import BOOKIE_ARGS, PASSWORD, ensemble, payload, process_of, write
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

SIZE = 900
GRACE_S = 0.5


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Bookies that a test may kill."""
    with LocalCluster(bookies=5, bookie_args=BOOKIE_ARGS) as made:
        yield made
        worker.close_clients()


@pytest.fixture
def options(cluster: LocalCluster) -> ClusterOptions:
    return ClusterOptions(cluster.uri)


def kill_for_good(cluster: LocalCluster, client: blocking.Client, bookie: str) -> None:
    process_of(cluster, bookie).kill()
    wait_for(lambda: client.bookies().find(bookie) is None, f"{bookie} is known to be dead")


def names(client: blocking.Client, ledger: int, bookie: str) -> bool:
    return any(bookie in one.ensemble for one in client.ledger_metadata(ledger).segments)


def check_entries(client: blocking.Client, ledger: int, entries: int) -> None:
    with client.open_ledger(ledger, password=PASSWORD) as reader:
        read = [entry.payload for entry in reader.read()]
    assert read == [payload(ledger, entry, SIZE) for entry in range(entries)]


def test_a_lost_bookie_is_recovered_with_spark(
    spark: SparkSession,
    cluster: LocalCluster,
    client: blocking.Client,
    options: ClusterOptions,
    pipeline: Callable[..., tuple[int, str, str]],
) -> None:
    shapes = [(3, 3, 2), (4, 2, 2), (4, 3, 2), (3, 3, 2)]
    entries = {write(client, 400, SIZE, quorums=one).ledger_id: 400 for one in shapes}
    entries[write(client, 0, 0).ledger_id] = 0
    with blocking.connect(cluster.uri) as mortal:
        writer = write(mortal, 120, SIZE, close=False)  # which is gone after this
        orphan = writer.ledger_id
        # It shows that the entries before it are acknowledged.
        writer.append(payload(orphan, 120, SIZE))
    entries[orphan] = 121
    lost = ensemble(client, orphan)[1]
    with pytest.raises(UsageError, match="is running"):
        recover(spark, options, lost)
    kill_for_good(cluster, client, lost)
    concerned = [ledger for ledger in entries if names(client, ledger, lost)]
    before = {ledger: client.ledger_metadata(ledger) for ledger in entries}

    status, out, err = pipeline("recover", lost, "--dry-run", "--json")
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert [one["ledger"] for one in told["moves"]] == concerned
    assert {ledger: client.ledger_metadata(ledger) for ledger in entries} == before

    # Another process has one of the ledgers, so it is left and named.
    held = concerned[0]
    locks = ReplicationLocks(client.aio.metadata, "another-host", client.aio.clock)
    hold = locks.hold(held)
    call(hold.__aenter__())
    result = recover(spark, options, lost, open_grace_s=GRACE_S)
    call(hold.__aexit__(None, None, None))
    assert (result.locked, result.open, result.failed) == ((held,), (), ())
    assert result.recovered == (orphan,)
    assert result.ledgers == len(concerned) - 1
    assert not result.complete
    copied = {one.ledger: one for one in result.moves if one.ledger != held}
    # Exactly the entries of the lost bookie are copied. Recovery itself has written the end of the
    # open ledger to another bookie, unless it found that the end was confirmed.
    orphans = result.entries - sum(one.entries for one in copied.values() if not one.open)
    assert orphans in (120, 121)

    status, out, _ = pipeline("recover", lost, "--grace", "0.5", "--json")
    assert status == 0
    told = json.loads(out)
    assert (told["complete"], told["ledgers"], told["locked"]) == (True, 1, [])
    again = recover(spark, options, lost)
    assert (again.complete, again.moves, again.fragments) == (True, (), 0)

    assert not any(names(client, ledger, lost) for ledger in entries)
    assert audit(spark, options).clean
    # One of those that are left may die as well.
    next(one for one in cluster.bookies if one.id != lost).kill()
    for ledger, count in entries.items():
        check_entries(client, ledger, count)


@pytest.mark.long
def test_a_ledger_with_an_active_writer_is_not_recovered(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, options: ClusterOptions
) -> None:
    writer = write(client, 100, SIZE, quorums=(5, 5, 3), close=False)
    lost = ensemble(client, writer.ledger_id)[2]
    kill_for_good(cluster, client, lost)

    def wait(seconds: float) -> None:
        pytest.fail("no bookie can replace the lost one, so there is nothing to wait for")

    result = recover(spark, options, lost, open_grace_s=GRACE_S, wait=wait)
    assert (result.recovered, result.complete) == ((), False)
    assert [one.ledger for one in result.failed] == [writer.ledger_id]
    assert writer.append(payload(writer.ledger_id, 100, SIZE)) == 100
    writer.close()
    # The ledger is closed, but no bookie is left to copy to. This is reported, and nothing changes.
    result = recover(spark, options, lost, open_grace_s=GRACE_S, wait=lambda seconds: None)
    assert [one.ledger for one in result.failed] == [writer.ledger_id]
    assert "Start more bookies" in result.failed[0].why
    cluster.add_bookie()
    result = recover(spark, options, lost)
    assert result.complete
    assert result.entries == 101
    assert audit(spark, options).clean


def test_an_unknown_bookie_is_refused(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, options: ClusterOptions
) -> None:
    bookie = cluster.bookies[0].id
    with pytest.raises(UsageError, match=f"Did you mean {bookie}"):
        recover(spark, options, bookie + "9")
