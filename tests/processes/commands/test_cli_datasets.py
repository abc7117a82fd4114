"""The contract of the commands that work on datasets, with real processes and the blocking API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire import DatasetLedger, blocking
from quire.client.datasets.schema import make_schema
from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Quire

pytestmark = pytest.mark.slow

PLAIN: dict[str, object] = {"columns": None, "partition_by": []}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as local:
        yield local


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.uri) as connected:
        yield connected


@pytest.fixture
def quire(cluster: LocalCluster, tmp_path: Path) -> Quire:
    return Quire(cluster.uri, tmp_path)


def written(client: blocking.Client, dataset: str | None, rows: int = 3) -> DatasetLedger:
    """Write a ledger for a dataset, which does not name it yet."""
    custom = {"quire.dataset": dataset.encode(), "quire.job": b"job-7"} if dataset else {}
    with client.create_ledger(custom=custom) as writer:
        writer.append_many([b"row"] * rows)
    return DatasetLedger(writer.ledger_id, 0, rows - 1, rows, 3 * rows)


def stored(client: blocking.Client) -> set[int]:
    return set(client.list_ledgers())


def test_datasets_are_listed_and_shown(quire: Quire, client: blocking.Client) -> None:
    first, second = written(client, "shop.orders", 3), written(client, "shop.orders", 5)
    client.datasets.publish("shop.orders", [first], txn="monday")
    client.datasets.publish("shop.orders", [second], txn="tuesday")
    client.datasets.publish("shop.returns", [])
    names = quire("dataset", "list").ok().decode().splitlines()
    assert names == sorted(names)
    assert {"shop.orders", "shop.returns"} <= set(names)
    assert quire("dataset", "list", "shop.o").ok() == b"shop.orders\n"
    listed = [
        json.loads(line) for line in quire("dataset", "list", "shop.", "--json").ok().splitlines()
    ]
    orders = {"name": "shop.orders", "sequence": 2, "ledgers": 2, "rows": 8, "bytes": 24} | PLAIN
    returns = {"name": "shop.returns", "sequence": 1, "ledgers": 0, "rows": 0, "bytes": 0} | PLAIN
    assert listed == [orders, returns]
    shown = json.loads(quire("dataset", "show", "shop.orders", "--json").ok())
    parts = shown.pop("parts")
    assert shown.pop("transactions") == {"monday": 1, "tuesday": 2}
    assert shown == orders
    assert parts == [
        {
            "ledger_id": one.ledger_id,
            "first": 0,
            "last": one.last,
            "rows": one.rows,
            "bytes": one.bytes,
        }
        for one in (first, second)
    ]
    text = quire("dataset", "show", "shop.orders").ok().decode()
    assert "rows         8\n" in text
    assert "transaction  tuesday in publication 2\n" in text
    assert f"part         ledger {second.ledger_id}, entries 0 to 4, 5 rows, 15 bytes\n" in text
    quire("dataset", "show", "shop.none").fails(1, "'shop.none' does not exist")
    for verb in ("show", "delete", "sweep"):
        quire("dataset", verb, "a/b").fails(2, "'a/b' cannot be the name of a dataset")


def test_show_has_the_columns(quire: Quire, client: blocking.Client) -> None:
    struct = {"type": "struct", "fields": [{"name": "a", "type": "integer"}]}
    fields = [
        {"name": "day", "type": "date", "nullable": True, "metadata": {}},
        {"name": "deep", "type": {"type": "array", "elementType": struct}, "nullable": True},
    ]
    one = replace(written(client, "columns"), partition=(("day", "2026-11-03"),))
    client.datasets.publish("columns", [one], schema=make_schema(fields, ("day",)))
    shown = json.loads(quire("dataset", "show", "columns", "--json").ok())
    assert shown["columns"] == {"day": "date", "deep": "array<struct<a:int>>"}
    assert shown["partition_by"] == ["day"]
    assert shown["parts"][0]["partition"] == {"day": "2026-11-03"}
    text = quire("dataset", "show", "columns").ok().decode()
    assert "column       deep array<struct<a:int>>\n" in text
    assert "3 rows, 9 bytes, day=2026-11-03\n" in text


def test_the_listing_continues_after_a_damaged_dataset(
    quire: Quire, client: blocking.Client
) -> None:
    for name in ("torn.a", "torn.b"):
        client.datasets.publish(name, [])
    damage(client, "torn.a")
    done = quire("dataset", "list", "torn.", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert done.status == 1
    assert [line["name"] for line in lines] == ["torn.a", "torn.b"]
    assert "dataset 'torn.a' cannot be decoded" in lines[0]["error"]
    assert "1 dataset could not be read" in done.err
    quire("dataset", "delete", "torn.a").fails(1, "dataset 'torn.a' cannot be decoded")
    planned = quire("dataset", "delete", "torn.a", "--dry-run")
    assert "which cannot be read" in planned.err


def damage(client: blocking.Client, name: str) -> None:
    from quire.blocking.background import call

    store = client.aio.metadata

    async def overwrite() -> None:
        version = (await store.read_value(("datasets", name))).version
        await store.write_value(("datasets", name), b"{", version)

    call(overwrite())


def test_a_dataset_is_deleted_with_its_own_ledgers(quire: Quire, client: blocking.Client) -> None:
    own, foreign = written(client, "gone"), written(client, None)
    client.datasets.publish("gone", [own, foreign])
    planned = quire("dataset", "delete", "gone", "--dry-run")
    assert (planned.ok(), planned.err) == (
        b"",
        "dataset gone (2 ledgers, 6 rows) would be deleted\n",
    )
    assert {own.ledger_id, foreign.ledger_id} <= stored(client)
    done = quire("dataset", "delete", "gone")
    assert (done.ok(), done.err) == (b"", "dataset gone deleted with 1 ledger; 1 ledger kept\n")
    assert own.ledger_id not in stored(client)
    assert foreign.ledger_id in stored(client)
    assert b"gone\n" not in quire("dataset", "list").ok()
    for more in ((), ("--dry-run",)):
        done = quire("dataset", "delete", "gone", *more)
        assert (done.ok(), done.err) == (b"", "dataset gone does not exist\n")


def test_a_sweep_deletes_the_orphans_of_a_dataset(quire: Quire, client: blocking.Client) -> None:
    held, orphan = written(client, "swept"), written(client, "swept")
    other, foreign = written(client, "swept.other"), written(client, None)
    client.datasets.publish("swept", [held])
    everything = {one.ledger_id for one in (held, orphan, other, foreign)}
    young = quire("dataset", "sweep", "swept")
    assert (young.ok(), young.err) == (b"", "0 unpublished ledgers of datasets\n")
    planned = quire("dataset", "sweep", "swept", "--older-than", "0", "--dry-run")
    assert planned.ok().decode() == f"{orphan.ledger_id} swept\n"
    assert planned.err == "1 unpublished ledger of datasets would be deleted\n"
    assert everything <= stored(client)
    (line,) = quire("dataset", "sweep", "swept", "--older-than", "0s", "--json").ok().splitlines()
    found = json.loads(line)
    assert found.pop("ctime").endswith("Z")
    assert found == {
        "ledger_id": orphan.ledger_id, "dataset": "swept", "job": "job-7", "bytes": 9,
        "deleted": True,
    }  # fmt: skip
    assert everything - stored(client) == {orphan.ledger_id}
    rest = quire("dataset", "sweep", "--older-than", "0", "--first", str(other.ledger_id))
    assert f"{other.ledger_id} swept.other\n" in rest.ok().decode()
    assert rest.err == "1 unpublished ledger of datasets, 1 deleted\n"
    assert everything & stored(client) == {held.ledger_id, foreign.ledger_id}


def test_a_sweep_keeps_the_ledgers_of_a_damaged_dataset(
    quire: Quire, client: blocking.Client
) -> None:
    one = written(client, "dark")
    client.datasets.publish("dark", [one])
    damage(client, "dark")
    done = quire("dataset", "sweep", "dark", "--older-than", "0")
    assert (done.status, done.out) == (1, b"")
    assert f"are kept: {one.ledger_id}" in done.err
    assert "0 unpublished ledgers of datasets; 1 could not be read\n" in done.err
    assert one.ledger_id in stored(client)
