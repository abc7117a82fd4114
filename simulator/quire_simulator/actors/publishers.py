"""Publish, read and sweep datasets, and check their invariants.

Each publication consists of new ledgers that are written before it. A publication overwrites a
dataset whose name begins with "whole", so such a dataset is exactly one publication at any time. A
publication adds its ledgers to any other dataset.
"""

from __future__ import annotations

import asyncio

from quire.client import Client
from quire.client.datasets.datasets import Dataset
from quire.client.datasets.format import DatasetLedger
from quire.client.datasets.unpublished import OWNER_KEY
from quire.errors import NoSuchKeyError, NoSuchLedgerError, QuireError
from quire_simulator.plans.plans import PublisherPlan
from quire_simulator.world.stage import DatasetRecord, Stage

SWEPT_AFTER_S = 1.5
"""Shorter than the slowest job, so the sweep sometimes removes what was about to be published."""
ENTRIES = 3


async def publish(stage: Stage, name: str, client: Client, plan: PublisherPlan) -> None:
    chance = stage.world.loop.derive(f"actor {name}")
    record = stage.datasets.setdefault(plan.dataset, DatasetRecord())
    for number in range(plan.rounds):
        txn = f"{name}/{number}"
        try:
            ledgers = [await _ledger(stage, client, plan) for _ in range(chance.randint(1, 3))]
            record.tried[txn] = frozenset(ledger.ledger_id for ledger in ledgers)
            await asyncio.sleep(chance.random() * plan.pause_s)
            for _ in range(2 if chance.random() < 0.3 else 1):  # Some jobs publish twice.
                published = await client.datasets.publish(
                    plan.dataset, ledgers, overwrite=_whole(plan.dataset), txn=txn
                )
                sequence = record.done.setdefault(txn, published.sequence)
                if sequence != published.sequence:
                    what = f"{txn} was published as {sequence} and as {published.sequence}"
                    stage.checker.fail("a_publication_happens_once", f"{plan.dataset}: {what}")
            gone = [ledger.ledger_id for ledger in published.replaced]
            await client.datasets.discard(plan.dataset, gone)
        except QuireError as error:
            stage.history.add(name, "failed", note=f"{txn}: {type(error).__name__}")
            stage.not_blamed(name, error)


async def _ledger(stage: Stage, client: Client, plan: PublisherPlan) -> DatasetLedger:
    custom = {OWNER_KEY: plan.dataset.encode()}
    writer = await client.create_ledger(
        ensemble_size=1, write_quorum=1, ack_quorum=1, custom=custom
    )
    # The invariants of datasets decide whether the ledger may be deleted.
    stage.checker.facts(writer.ledger_id).deleted = True
    await writer.append_many([stage.payload(writer.ledger_id, entry) for entry in range(ENTRIES)])
    await writer.close()
    return DatasetLedger(writer.ledger_id, 0, ENTRIES - 1, ENTRIES, writer.length)


async def follow(stage: Stage, name: str, client: Client, plan: PublisherPlan) -> None:
    """Read the dataset repeatedly, and sweep ledgers that nobody published in between.

    With slow metadata it reads less often: a quiet cluster has a limited time to end all work.
    """
    newest = -1
    loop = asyncio.get_running_loop()
    until = loop.time() + plan.rounds * 4 * plan.pause_s
    for number in range(plan.rounds * 4):
        await asyncio.sleep(plan.pause_s / 2)
        if loop.time() > until:
            return
        try:
            if number % 4 == 3:
                await client.datasets.sweep_orphans(SWEPT_AFTER_S, name=plan.dataset)
            dataset = await client.datasets.read(plan.dataset)
        except QuireError as error:
            stage.history.add(name, "failed", note=type(error).__name__)
            continue
        if dataset.sequence < newest:
            what = f"{plan.dataset}: publication {dataset.sequence} was read after {newest}"
            stage.checker.fail("a_dataset_never_goes_back", what)
        newest = dataset.sequence
        _all_or_none(stage, dataset)


def _all_or_none(stage: Stage, dataset: Dataset) -> None:
    """Check that a reader sees all ledgers of a publication or none, and each ledger once."""
    found = [ledger.ledger_id for ledger in dataset.ledgers]
    parts = [part for part in stage.datasets[dataset.name].tried.values() if part & set(found)]
    whole = frozenset().union(*parts)
    if len(found) != len(whole) or set(found) != whole or (_whole(dataset.name) and len(parts) > 1):
        what = f"{dataset.name} has ledgers {sorted(found)}; published were {sorted(whole)}"
        stage.checker.fail("a_publication_is_seen_whole", what)


async def judge(stage: Stage, client: Client) -> None:
    """Check that everything that was published and not replaced is present and readable."""
    for name, record in stage.datasets.items():
        try:
            dataset = await client.datasets.read(name)
        except NoSuchKeyError:
            found: set[int] = set()
        else:
            _all_or_none(stage, dataset)
            found = {ledger.ledger_id for ledger in dataset.ledgers}
        for txn in [] if _whole(name) else record.done:
            if not record.tried[txn] <= found:
                what = (
                    f"{name}: {txn} published {sorted(record.tried[txn])}, "
                    f"but the dataset has {sorted(found)}"
                )
                stage.checker.fail("what_was_published_stays", what)
        if _whole(name) and record.done and not found:
            stage.checker.fail("what_was_published_stays", f"{name} is empty after a publication")
        for ledger_id in sorted(found):
            await _readable(stage, client, name, ledger_id)


async def _readable(stage: Stage, client: Client, name: str, ledger_id: int) -> None:
    try:
        reader = await client.open_ledger(ledger_id)
    except NoSuchLedgerError:
        stage.checker.fail("a_published_ledger_is_kept", f"{name}: ledger {ledger_id} is gone")
        return
    payloads = [entry.payload async for entry in reader.read()]
    if payloads != [stage.payload(ledger_id, entry) for entry in range(ENTRIES)]:
        stage.checker.fail("a_published_ledger_is_kept", f"{name}: ledger {ledger_id} has changed")


def _whole(dataset: str) -> bool:
    return dataset.startswith("whole")
