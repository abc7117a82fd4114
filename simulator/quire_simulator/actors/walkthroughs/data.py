"""Walkthroughs of what is built of ledgers and streams: datasets with rows, and dictionaries."""

from __future__ import annotations

import json
from typing import Any

from quire.client.datasets.format import DatasetLedger
from quire.client.datasets.rows import decode_rows, encode_rows
from quire.client.datasets.schema import make_schema
from quire.client.datasets.unpublished import JOB_KEY, OWNER_KEY
from quire.errors import NoSuchKeyError, UsageError
from quire.streams.namespace.namespace import open_namespace
from quire.streams.statemachine.durable_dict import DurableDict, open_dict
from quire_simulator.actors.walkthroughs.streams import PATH, settings_of
from quire_simulator.actors.walkthroughs.walk import Walk

NAME = "sales"
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long", "nullable": False, "metadata": {}},
    {"name": "day", "type": "string", "nullable": True, "metadata": {}},
    {"name": "tags", "type": {"type": "array", "elementType": "string", "containsNull": True},
     "nullable": True, "metadata": {}},
]  # fmt: skip
COLUMNS = {"id": "bigint", "day": "string", "tags": "array<string>"}
PUBLICATIONS = 4
CHANGES = 12
NESTING_MAX = 100
"""The largest number of lists and dictionaries in each other, according to the documents."""


async def walk_dataset(walk: Walk) -> None:
    """Publish rows as a dataset, read, replace and sweep them, and drop the dataset."""
    datasets, chance = walk.client.datasets, walk.chance
    walk.same("the list of no datasets", NAME in await datasets.list_datasets(), False)
    await walk.refused("a dataset that does not exist", datasets.read(NAME), NoSuchKeyError, NAME)
    partition_by = chance.choice([(), ("day",)])
    schema = make_schema(FIELDS, partition_by)
    walk.same("the columns of a schema", schema.columns, COLUMNS)
    kept: list[DatasetLedger] = []
    transactions: dict[str, int] = {}
    for number in range(1, PUBLICATIONS + 1):
        added = [await _rows(walk, number, partition_by) for _ in range(chance.randint(1, 3))]
        overwrite = number > 1 and chance.random() < 0.3
        txn = f"t{number}"
        found = await datasets.publish(NAME, added, overwrite=overwrite, txn=txn, schema=schema)
        walk.same("a publication", (found.sequence, found.repeated), (number, False))
        walk.same("what a publication replaced", list(found.replaced), kept if overwrite else [])
        kept = added if overwrite else kept + added
        transactions[txn] = number
        again = await datasets.publish(NAME, added, overwrite=overwrite, txn=txn, schema=schema)
        walk.same("a repeated publication", (again.sequence, again.repeated), (number, True))
        gone = [one.ledger_id for one in found.replaced]
        walk.same("discarded ledgers", await datasets.discard(NAME, gone), sorted(gone))
    dataset = await datasets.read(NAME)
    walk.same("the ledgers of a dataset", list(dataset.ledgers), kept)
    walk.same("the ids of a dataset", dataset.ledger_ids, [one.ledger_id for one in kept])
    walk.same("the rows of a dataset", dataset.rows, sum(one.rows for one in kept))
    walk.same("the bytes of a dataset", dataset.bytes, sum(one.bytes for one in kept))
    walk.same("the transactions of a dataset", dict(dataset.transactions), transactions)
    walk.same("the schema of a dataset", dataset.schema, schema)
    walk.same("the schema alone", await datasets.read_schema(NAME), schema)
    walk.same("the place of a transaction", await datasets.find_transaction(NAME, "t1"), 1)
    walk.same("no transaction", await datasets.find_transaction(NAME, "t0"), None)
    walk.same("the list of datasets", NAME in await datasets.list_datasets(), True)
    other = datasets.publish(NAME, [], schema=make_schema(FIELDS[:1]))
    await walk.refused("a publication with another schema", other, UsageError, NAME)
    for ledger in kept:
        await _check_rows(walk, ledger)
    await _sweep(walk, kept, partition_by)
    dropped = await datasets.drop(NAME, delete_ledgers=True)
    walk.same("a dropped dataset", dropped, dataset)
    left = [one for one in dataset.ledger_ids if one in walk.stage.world.cluster.ledgers]
    walk.same("the ledgers of a dropped dataset", left, [])
    walk.same("a second drop", await datasets.drop(NAME), None)
    await walk.refused("a dataset that was dropped", datasets.read(NAME), NoSuchKeyError, NAME)


def _table(first: int, count: int) -> dict[str, list[Any]]:
    numbers = range(first, first + count)
    return {
        "id": list(numbers),
        "day": [None if n % 5 == 0 else f"d{n % 3}" for n in numbers],
        "tags": [[f"t{n}"] * (n % 3) for n in numbers],
    }


async def _rows(walk: Walk, number: int, partition_by: tuple[str, ...]) -> DatasetLedger:
    """Write a ledger with some rows, in entries of a few rows each."""
    import pyarrow as pa

    custom = {OWNER_KEY: NAME.encode(), JOB_KEY: b"job-%d" % number}
    writer = await walk.client.create_ledger(
        ensemble_size=1, write_quorum=1, ack_quorum=1, custom=custom
    )
    facts = walk.stage.checker.facts(writer.ledger_id)
    facts.foreign = facts.deleted = True
    rows = size = 0
    for _ in range(walk.chance.randint(1, 3)):
        count = walk.chance.randint(1, 9)
        table = pa.table(_table(rows, count), schema=pa.schema(
            [("id", pa.int64()), ("day", pa.string()), ("tags", pa.list_(pa.string()))]
        ))  # fmt: skip
        for entry, held in encode_rows(table, walk.chance.choice(["lz4", "none"])):
            await writer.append(entry)
            rows, size = rows + held, size + len(entry)
    last = await writer.close()
    walk.same("the bytes of rows", writer.length, size)
    partition = tuple((name, "d1") for name in partition_by)
    return DatasetLedger(writer.ledger_id, 0, last, rows, size, partition)


async def _check_rows(walk: Walk, ledger: DatasetLedger) -> None:
    """Decode the rows of a ledger, all columns or some of them in any order."""
    columns = walk.chance.choice([["id", "day", "tags"], ["tags", "id"], ["day"]])
    found: dict[str, list[Any]] = {name: [] for name in columns}
    async with await walk.client.open_ledger(ledger.ledger_id) as reader:
        async for entry in reader.read(ledger.first, ledger.last):
            for batch in decode_rows(
                bytes(entry.payload), ledger.ledger_id, entry.entry_id, columns
            ):
                walk.same("the columns of rows", batch.schema.names, columns)
                for name, values in batch.to_pydict().items():
                    found[name] += values
    wanted = _table(0, ledger.rows)
    walk.same("the rows of a ledger", found, {name: wanted[name] for name in columns})


async def _sweep(walk: Walk, kept: list[DatasetLedger], partition_by: tuple[str, ...]) -> None:
    """Sweep ledgers that were never published, and no others."""
    datasets = walk.client.datasets
    orphans = [await _rows(walk, number, partition_by) for number in (8, 9)]
    ids = [one.ledger_id for one in orphans]
    long_ago = -3_600.0  # Everything is older than an hour from now.
    walk.same("a sweep of young ledgers", (await datasets.sweep(3_600.0, name=NAME)).deleted, [])
    found = await datasets.look_for_orphans(long_ago, name=NAME)
    walk.same("the orphans of a dataset",
              [(one.ledger_id, one.dataset, one.job, one.bytes) for one in found.orphans],
              [(one.ledger_id, NAME, f"job-{number}", one.bytes)
               for one, number in zip(orphans, (8, 9), strict=True)])  # fmt: skip
    walk.same("what was skipped", found.skipped, [])
    swept = await datasets.sweep(long_ago, job="job-9")
    walk.same("a sweep of one job", swept.deleted, ids[1:])
    if walk.chance.random() < 0.5:
        swept = await datasets.delete_orphans(found.orphans)
        walk.same("deleted orphans", [one for one in swept.deleted if one == ids[0]], ids[:1])
    else:
        walk.same("a sweep that keeps a ledger",
                  (await datasets.sweep(long_ago, name=NAME, keep=ids)).deleted, [])  # fmt: skip
        swept = await datasets.sweep(long_ago, name=NAME)
        walk.same("a sweep", swept.deleted, ids[:1])
    cluster = walk.stage.world.cluster
    there = [one.ledger_id for one in (*kept, *orphans) if one.ledger_id in cluster.ledgers]
    walk.same("the ledgers after a sweep", there, [one.ledger_id for one in kept])


# -- dictionaries ----------------------------------------------------------------------------------


async def walk_dictionary(walk: Walk) -> None:
    """Change a dictionary, open it again elsewhere, and let it take snapshots."""
    streams = await open_namespace(
        walk.client, PATH, create=True, settings=settings_of(walk) | {"txids": "time"}
    )
    model: dict[str, Any] = {}
    every = walk.chance.choice([0, 1, 3, 100])
    opened = await open_dict(streams, "state", snapshot_every=every)
    for _ in range(3):
        for _ in range(CHANGES):
            await _change(walk, opened, model)
        walk.same("a dictionary", dict(opened), model)
        walk.same("the keys of a dictionary", len(opened), len(model))
        if walk.chance.random() < 0.5:
            await opened.close()
        former, opened = opened, await open_dict(streams, "state", snapshot_every=every)
        walk.same("a dictionary that was opened again", dict(opened), model)
        walk.same("whether there are other records", opened._machine.has_other_records, False)
        del former
    await opened.close()
    await streams.close()


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


async def _change(walk: Walk, opened: DurableDict, model: dict[str, Any]) -> None:
    chance = walk.chance
    key = chance.choice("abc")
    value = chance.choice([None, 1, True, 1.0, "x", [1, [2, {}]], {"b": 1, "a": [None]}])
    match chance.choice(["set", "delete", "compare", "compare", "read", "deep"]):
        case "set":
            await opened.set(key, value)
            model[key] = value
        case "delete":
            walk.same("whether a key was deleted", await opened.delete(key), key in model)
            model.pop(key, None)
        case "compare":
            old = model.get(key) if chance.random() < 0.5 else value
            new = chance.randint(0, 99)
            text = [json.dumps(one, sort_keys=True) for one in (old, model.get(key))]
            done = await opened.compare_and_set(key, old, new)
            walk.same("whether a value was compared", done, text[0] == text[1])
            if done:
                model[key] = new
        case "deep":
            nested = _nested(chance.choice([NESTING_MAX, 50]))
            await walk.refused("a value that is nested too deeply",
                               opened.set(key, _nested(NESTING_MAX + 1)),
                               UsageError, repr(key))  # fmt: skip
            await opened.set(key, nested)
            walk.same("a nested value", opened[key], nested)
            await opened.set(key, 1)
            model[key] = 1
        case _:
            walk.same("a value", opened.get(key), model.get(key))
            found = opened.get(key)
            if isinstance(found, list):
                found.append("of the caller")  # Callers receive copies.
