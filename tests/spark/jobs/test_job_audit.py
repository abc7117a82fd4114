"""An audit reports exactly the known damage of a cluster, and a repair fixes it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire import blocking
from quire.blocking.background import call
from quire.errors import NoSuchLedgerError, NoSuchStreamError, UsageError
from quire.replication import Finding, Kind
from quire.spark import worker
from quire.spark.jobs import ClusterOptions, audit
from quire.testing.cluster import LocalCluster
from tests.support.spark.damage import (
    BOOKIE_ARGS,
    PASSWORD,
    ensemble,
    flip,
    payload,
    process_of,
    swap_for_empty,
    write,
)

pytestmark = pytest.mark.spark

LARGE, SMALL = 40_000, 600
Found = set[tuple[int, int, int, str, str]]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Bookies that a test may damage."""
    with LocalCluster(bookies=4, bookie_args=BOOKIE_ARGS) as made:
        yield made
        worker.close_clients()


@pytest.fixture
def options(cluster: LocalCluster) -> ClusterOptions:
    return ClusterOptions(cluster.uri)


def found_by(findings: tuple[Finding, ...]) -> Found:
    return {(one.ledger, one.first, one.last, one.bookie, one.kind.value) for one in findings}


def check(
    spark: SparkSession, options: ClusterOptions, expected: Found, **more: Any
) -> tuple[Finding, ...]:
    result = audit(spark, options, **more)
    assert found_by(result.findings) == expected
    return result.findings


@pytest.mark.long
def test_an_audit_reports_exactly_the_damage(
    spark: SparkSession,
    cluster: LocalCluster,
    client: blocking.Client,
    options: ClusterOptions,
    pipeline: Callable[..., tuple[int, str, str]],
) -> None:
    large = write(client, 100, LARGE).ledger_id
    striped = write(client, 2_000, SMALL, quorums=(4, 3, 2), digest="hmac").ledger_id
    holes = write(client, 6_000, SMALL).ledger_id
    empty = write(client, 0, 0).ledger_id
    still = write(client, 500, SMALL, digest="crc32", close=False)
    still.append(payload(still.ledger_id, 500, SMALL))  # It shows that 499 is acknowledged.
    total = 100 + 2_000 + 6_000 + 500
    result = audit(spark, options)
    assert result.clean
    assert (result.ledgers, result.entries) == (5, 3 * total)
    assert result.frame(spark).count() == 0
    expected: Found = set()

    # Entries 100 to 149 and 5,000 of a replica are dropped.
    there = set(range(6_000)) - set(range(100, 150)) - {5_000}
    (spare,) = {one.id for one in cluster.bookies} - set(ensemble(client, holes))
    swap_for_empty(client, holes, 1, spare, sorted(there))
    expected |= {(holes, 100, 149, spare, "missing"), (holes, 5_000, 5_000, spare, "missing")}

    # One bit of entry 7 of another is flipped.
    victim = process_of(cluster, ensemble(client, large)[0])
    assert victim.stop()
    flip(victim, payload(large, 7, LARGE))
    victim.start()
    expected |= {(large, 7, 7, victim.id, "damaged")}
    check(spark, options, expected)

    # A writer continues without one of its bookies and dies. Recovery finds two copies.
    short = write(client, 200, SMALL, quorums=(4, 4, 2), close=False)
    away = process_of(cluster, ensemble(client, short.ledger_id)[3])
    assert away.stop()
    short.append_many([payload(short.ledger_id, n, SMALL) for n in range(200, 260)])
    client.open_ledger(short.ledger_id, password=PASSWORD, recover=True).close()
    away.start()
    ledgers = [large, striped, holes, empty, short.ledger_id, still.ledger_id]
    expected |= {(short.ledger_id, 200, 259, away.id, "short")}
    found = check(spark, options, expected, ledgers=ledgers)
    assert {one.kind for one in found} == {Kind.MISSING, Kind.DAMAGED, Kind.SHORT}

    # The command reports the same, and repairs it.
    status, out, err = pipeline("audit", "--json")
    assert (status, err) == (1, "")
    told = json.loads(out)
    assert {tuple(list(one.values())[:5]) for one in told["findings"]} == expected
    assert told["kinds"] == {"damaged": 1, "missing": 2, "short": 1}
    status, out, _ = pipeline("audit", "--repair", "--rate", "500m")
    assert status == 0
    assert f"ledger {large}, 7-7, {victim.id}: damaged" in out
    assert "112 entries written back, 0 segments moved" in out
    check(spark, options, set())
    assert still.append(payload(still.ledger_id, 501, SMALL)) == 501


def test_an_audit_reports_a_lost_ledger_directory(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, options: ClusterOptions
) -> None:
    ledgers = [write(client, 300, SMALL, quorums=q).ledger_id for q in ((4, 4, 2), (4, 2, 2))]
    victim = cluster.bookies[2]
    assert victim.stop()
    shutil.rmtree(victim.directory)
    found = audit(spark, options).findings
    assert {(one.ledger, one.bookie, one.kind) for one in found} == {
        (ledger, victim.id, Kind.UNREACHABLE) for ledger in ledgers
    }
    # Its cookie is removed. It comes back empty, and denies nothing: ledgers name it, so that it
    # may have had entries.
    call(client.aio.metadata.delete_cookie(victim.id))
    victim.start()
    found = audit(spark, options).findings
    assert {(one.ledger, one.bookie, one.kind) for one in found} == {
        (ledger, victim.id, Kind.DAMAGED) for ledger in ledgers
    }
    mended = audit(spark, options, repair=True)
    assert mended.repair is not None
    assert mended.repair.left == ()
    assert mended.repair.written_back == 300 + 150
    check(spark, options, set())


def test_a_bookie_that_does_not_answer_is_replaced_by_a_repair(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, options: ClusterOptions
) -> None:
    ledger = write(client, 300, SMALL).ledger_id
    victim = process_of(cluster, ensemble(client, ledger)[1])
    assert victim.stop()
    mended = audit(spark, options, repair=True)
    assert found_by(mended.findings) == {(ledger, 0, 299, victim.id, "unreachable")}
    assert mended.repair is not None
    assert (mended.repair.moved, mended.repair.left) == (1, ())
    assert victim.id not in ensemble(client, ledger)
    check(spark, options, set())


def test_an_audit_can_be_limited_to_streams(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, options: ClusterOptions
) -> None:
    write(client, 50, SMALL)
    with client.namespace("/team", create=True) as streams:
        for name in ("orders", "orders/eu", "users"):
            streams.create_stream(name)
            with streams.open_writer(name) as writer:
                writer.append(b"one")
    result = audit(spark, options, streams="orders*", namespace="/team")
    assert (result.ledgers, result.clean) == (2, True)
    assert result.entries > 0
    with pytest.raises(NoSuchLedgerError, match="ledger 4711 does not exist"):
        audit(spark, options, ledgers=[4711])
    with pytest.raises(NoSuchStreamError, match="has no stream that matches 'x\\*'"):
        audit(spark, options, streams="x*", namespace="/team")
    with pytest.raises(UsageError, match="exclude each other"):
        audit(spark, options, ledgers=[1], streams="*")
    with pytest.raises(UsageError, match="forever"):
        audit(spark, options, bytes_per_second_per_bookie=0)


def test_ledgers_deleted_during_an_audit_are_not_damage(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, options: ClusterOptions
) -> None:
    ledgers = [write(client, 50, SMALL).ledger_id for _ in range(6)]
    kept = ledgers[3:]
    gone = threading.Event()

    def delete(what: str, done: int, total: int | None) -> None:
        if not gone.is_set() and (what, done) == ("looking at ledgers", total):
            for ledger in ledgers[:3]:
                client.delete_ledger(ledger)
            gone.set()

    result = audit(spark, options, progress=delete)
    assert gone.is_set()
    assert result.clean
    assert client.list_ledgers() == kept
