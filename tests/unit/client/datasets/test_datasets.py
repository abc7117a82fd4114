"""Datasets on an in-process metadata store whose hook models lost requests and answers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire._runtime.retry import Backoff
from quire.client import compare_and_swap
from quire.client.datasets import format as dataset_format
from quire.client.datasets import unpublished
from quire.client.datasets.datasets import Datasets
from quire.client.datasets.format import (
    CHUNK_BYTES_MAX,
    INLINE_BYTES_MAX,
    TRANSACTIONS_MAX,
    VALUE_BYTES_MAX,
    Chunk,
    DatasetLedger,
    Head,
)
from quire.client.datasets.unpublished import JOB_KEY, OWNER_KEY
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import (
    CollectionOffError,
    LaterMetadataError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    UsageError,
)
from quire.metadata.bookies.collection import Switch, switch_off
from quire.metadata.common import conflict
from quire.metadata.interface import Versioned
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore
from tests.support.metadata.lagging import LaggingServer


class ManualClock:
    """A calendar that the test turns."""

    def __init__(self) -> None:
        self.ms = 1_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Bench:
    """A cluster, its datasets, and ledgers that exist in the metadata only."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster("test", clock=self.clock, rng=random.Random(7))
        self.cluster.initialise()
        self.store = MemoryStore(self.cluster)
        self.datasets = Datasets(self.store, clock=self.clock)
        self.unreadable: set[int] = set()
        """Ledgers whose metadata cannot be understood."""
        read = self.store.read_ledger

        async def read_ledger(ledger_id: int) -> Versioned[LedgerMetadata]:
            if ledger_id in self.unreadable:
                raise MetadataError(f"the metadata of ledger {ledger_id} cannot be understood")
            return await read(ledger_id)

        self.store.read_ledger = read_ledger  # type: ignore[method-assign]

    async def ledger(self, owner: str | None = "d", job: str = "j", rows: int = 10) -> int:
        custom = {} if owner is None else {OWNER_KEY: owner.encode(), JOB_KEY: job.encode()}
        metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),), custom=custom)
        metadata = metadata.with_close(1_000_000, 1)
        return (await self.store.create_ledger(metadata))[0]

    async def some(self, count: int, owner: str | None = "d") -> list[DatasetLedger]:
        return [part(await self.ledger(owner)) for _ in range(count)]

    async def ids(self, name: str = "d") -> list[int]:
        return [ledger.ledger_id for ledger in (await self.datasets.read(name)).ledgers]

    def stored(self) -> list[int]:
        return list(self.cluster.ledger_ids)

    def chunks(self) -> list[tuple[str, ...]]:
        return [key for key in self.cluster.values if key[0] == "dataset_chunks"]

    def other_session(self) -> Datasets:
        return Datasets(MemoryStore(self.cluster), clock=self.clock)


def part(ledger_id: int, rows: int = 10) -> DatasetLedger:
    return DatasetLedger(ledger_id, 0, rows - 1, rows, rows * 100)


def ids(ledgers: Iterable[DatasetLedger]) -> list[int]:
    return [ledger.ledger_id for ledger in ledgers]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- publish and read -------------------------------------------------------------------------


async def test_reading_a_dataset_that_never_existed_is_refused(bench: Bench) -> None:
    with pytest.raises(NoSuchKeyError, match="dataset 'd' does not exist"):
        await bench.datasets.read("d")
    assert await bench.datasets.list_datasets() == []


async def test_a_dataset_is_read_as_it_is_although_a_server_lags(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of the metadata store may lag behind the process that has published."""
    [first, second] = await bench.some(2)
    await bench.datasets.publish("d", [first])
    read, names = bench.store.read_value, bench.store.list_values
    before = {("datasets", "d"): await read(("datasets", "d"))}
    await bench.other_session().publish("d", [second], txn="t")
    await bench.other_session().publish("e", await bench.some(1, "e"))
    caught_up = False

    async def read_from_server(key: Sequence[str]) -> Versioned[bytes]:
        return await read(key) if caught_up else before[tuple(key)]

    async def list_from_server(key: Sequence[str]) -> list[str]:
        return await names(key) if caught_up else ["d"]

    async def catch_up() -> None:
        nonlocal caught_up
        caught_up = True

    monkeypatch.setattr(bench.store, "read_value", read_from_server)
    monkeypatch.setattr(bench.store, "list_values", list_from_server)
    monkeypatch.setattr(bench.store.tree, "sync", catch_up)
    assert await bench.ids() == ids([first, second])
    caught_up = False
    assert await bench.datasets.find_transaction("d", "t") == 2
    caught_up = False
    assert await bench.datasets.list_datasets() == ["d", "e"]
    caught_up = False
    assert await bench.datasets.read_schema("e") is None
    caught_up = False
    assert await bench.datasets.drop("e") is not None


async def test_append_adds_and_overwrite_replaces(bench: Bench) -> None:
    a, b, c = await bench.some(3)
    first = await bench.datasets.publish("d", [a])
    second = await bench.datasets.publish("d", [b])
    assert (first.sequence, second.sequence) == (1, 2)
    assert await bench.ids() == ids([a, b])
    third = await bench.datasets.publish("d", [c], overwrite=True)
    assert third.replaced == (a, b)
    assert not third.repeated
    read = await bench.datasets.read("d")
    assert read.ledgers == (c,)
    assert (read.rows, read.bytes, read.sequence) == (10, 1000, 3)
    assert await bench.datasets.list_datasets() == ["d"]
    assert bench.stored() == ids([a, b, c])  # publishing deletes nothing


async def test_an_empty_publication_creates_the_dataset(bench: Bench) -> None:
    await bench.datasets.publish("d", [])
    assert await bench.ids() == []
    assert await bench.datasets.list_datasets() == ["d"]


async def test_invalid_dataset_names_are_refused(bench: Bench) -> None:
    for name in ("a/b", "", ".", "..", "a\nb", "x" * 5_000):
        with pytest.raises(UsageError, match="name of a dataset"):
            await bench.datasets.publish(name, [])
        with pytest.raises(UsageError, match="name of a dataset"):
            await bench.datasets.discard(name, [])
        with pytest.raises(UsageError, match="name of a dataset"):
            await bench.datasets.sweep(0, name=name)


async def test_publishing_a_ledger_twice_in_one_call_is_refused(bench: Bench) -> None:
    (a,) = await bench.some(1)
    with pytest.raises(UsageError, match="overlap"):
        await bench.datasets.publish("d", [a, a])


@pytest.mark.parametrize("other", [(0, 9), (0, 3), (5, 5), (9, 20), (3, 30)])
async def test_ranges_that_overlap_are_refused(bench: Bench, other: tuple[int, int]) -> None:
    [whole, another] = await bench.some(2)
    first, last = other
    overlapping = DatasetLedger(whole.ledger_id, first, last, 1, 1)
    with pytest.raises(UsageError, match="overlap"):
        await bench.datasets.publish("d", [overlapping, another, whole])
    assert await bench.datasets.list_datasets() == []


async def test_adjacent_ranges_are_published(bench: Bench) -> None:
    [whole, another] = await bench.some(2)
    after = DatasetLedger(whole.ledger_id, 10, 19, 10, 10)
    same_entries = DatasetLedger(another.ledger_id, 0, 9, 10, 10)
    await bench.datasets.publish("d", [after, same_entries, whole])
    found = (await bench.datasets.read("d")).ledgers
    assert [(one.ledger_id, one.first) for one in found] == [
        (whole.ledger_id, 10), (another.ledger_id, 0), (whole.ledger_id, 0)
    ]  # fmt: skip


async def test_a_deleted_ledger_cannot_be_published(bench: Bench) -> None:
    a, b = await bench.some(2)
    await bench.store.delete_ledger(b.ledger_id)
    with pytest.raises(NoSuchLedgerError, match=f"ledger {b.ledger_id} does not exist"):
        await bench.datasets.publish("d", [a, b])
    assert await bench.datasets.list_datasets() == []


async def test_the_error_for_an_unknown_ledger_does_not_claim_it_was_deleted(bench: Bench) -> None:
    with pytest.raises(NoSuchLedgerError, match="it was never created, or it was deleted"):
        await bench.datasets.publish("d", [part(10_000)])


async def test_concurrent_publishers_all_succeed(bench: Bench) -> None:
    ledgers = await bench.some(20)
    async with asyncio.TaskGroup() as group:
        for ledger in ledgers:
            group.create_task(bench.other_session().publish("d", [ledger]))
    read = await bench.datasets.read("d")
    assert sorted(ids(read.ledgers)) == ids(ledgers)
    assert read.sequence == 20


# -- transactions -----------------------------------------------------------------------------


async def test_a_transaction_is_published_once(bench: Bench) -> None:
    a, b = await bench.some(2)
    first = await bench.datasets.publish("d", [a], txn="t1")
    again = await bench.datasets.publish("d", [b], txn="t1")
    assert (first.sequence, first.repeated) == (1, False)
    assert (again.sequence, again.repeated) == (1, True)
    assert await bench.ids() == ids([a])
    assert await bench.datasets.find_transaction("d", "t1") == 1
    assert await bench.datasets.find_transaction("d", "t2") is None


async def test_a_transaction_is_remembered_across_an_overwrite(bench: Bench) -> None:
    a, b, c = await bench.some(3)
    await bench.datasets.publish("d", [a], txn="t1")
    await bench.datasets.publish("d", [b], txn="t2", overwrite=True)
    assert (await bench.datasets.publish("d", [c], txn="t1")).repeated
    assert await bench.ids() == ids([b])


async def test_concurrent_publishers_with_one_transaction_key_publish_once(bench: Bench) -> None:
    ledgers = await bench.some(8)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(bench.other_session().publish("d", [ledger], txn="t"))
            for ledger in ledgers
        ]
    assert [task.result().repeated for task in tasks].count(False) == 1
    assert len(await bench.ids()) == 1


async def test_the_memory_of_transactions_is_bounded(bench: Bench) -> None:
    head = Head()
    for number in range(TRANSACTIONS_MAX + 2):
        head = head.published((), (), f"t{number}")
    assert len(head.transactions) == TRANSACTIONS_MAX
    assert "t1" not in head.transactions
    assert head.transactions["t2"] == 3


async def test_a_transaction_key_has_a_limit(bench: Bench) -> None:
    for key in ("", "x" * 257, "half \ud800"):
        with pytest.raises(UsageError, match="transaction key"):
            await bench.datasets.publish("d", [], txn=key)


class LostAnswers:
    """Loses the request or the answer of the first writes of a head."""

    def __init__(self, losses: int, after: bool) -> None:
        self.losses = losses
        self.after = after

    async def __call__(self, name: str, done: bool) -> None:
        if name == "write" and done is self.after and self.losses:
            self.losses -= 1
            raise MetadataUnavailableError("lost")


@pytest.mark.parametrize("after", [False, True])
async def test_an_unknown_outcome_is_resolved_by_reading_again(
    bench: Bench, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_and_swap, "UNKNOWN_BACKOFF", Backoff(0.0))
    a, b = await bench.some(2)
    await bench.datasets.publish("d", [a])
    lossy = Datasets(MemoryStore(bench.cluster, hook=LostAnswers(1, after)))
    done = await lossy.publish("d", [b], txn="t", overwrite=True)
    assert done.repeated is after
    assert done.replaced == (a,)
    assert await bench.ids() == ids([b])
    assert (await bench.datasets.read("d")).sequence == 2


async def test_without_a_key_an_unknown_outcome_is_reported(bench: Bench) -> None:
    (a,) = await bench.some(1)
    lossy = Datasets(MemoryStore(bench.cluster, hook=LostAnswers(1, True)))
    with pytest.raises(MetadataUnavailableError):
        await lossy.publish("d", [a])


def changed_after_a_lost_answer(bench: Bench, change: Callable[[], Awaitable[object]]) -> Datasets:
    """Return datasets whose first write of a head is done, but reported as an unknown conflict.

    `change` is what another client does to the head before the driver of the store asks for the
    outcome.
    """
    store = MemoryStore(bench.cluster)
    write_value = store.write_value

    async def write(key: Sequence[str], value: bytes, version: int | None, **more: Any) -> int:
        store.write_value = write_value  # type: ignore[method-assign]
        done = await write_value(key, value, version, **more)
        await change()
        raise conflict("the head", version or 0, done + 1, unknown=True)

    store.write_value = write  # type: ignore[method-assign]
    return Datasets(store, clock=bench.clock)


async def test_without_a_key_nothing_is_published_twice(bench: Bench) -> None:
    a, b, c = await bench.some(3)
    await bench.datasets.publish("d", [a])
    lossy = changed_after_a_lost_answer(bench, lambda: bench.datasets.publish("d", [c]))
    with pytest.raises(MetadataUnavailableError, match="unknown whether dataset 'd' was changed"):
        await lossy.publish("d", [b])
    assert await bench.ids() == ids([a, b, c])


async def test_with_a_key_the_outcome_is_found_out(bench: Bench) -> None:
    a, b, c = await bench.some(3)
    await bench.datasets.publish("d", [a])
    lossy = changed_after_a_lost_answer(bench, lambda: bench.datasets.publish("d", [c]))
    assert (await lossy.publish("d", [b], txn="t")).repeated
    assert await bench.ids() == ids([a, b, c])


async def test_a_dataset_that_was_published_after_a_drop_is_not_dropped(bench: Bench) -> None:
    """The drop was done, and its answer was lost."""
    a, b = await bench.some(2)
    await bench.datasets.publish("d", [a])
    lossy = changed_after_a_lost_answer(bench, lambda: bench.datasets.publish("d", [b]))
    with pytest.raises(MetadataUnavailableError, match="unknown whether dataset 'd' was changed"):
        await lossy.drop("d", delete_ledgers=True)
    assert await bench.ids() == ids([b])
    assert b.ledger_id in bench.stored()


async def test_a_store_that_stays_away_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_and_swap, "UNKNOWN_BACKOFF", Backoff(0.0))
    lossy = LostAnswers(1_000, False)
    with pytest.raises(MetadataUnavailableError):
        await Datasets(MemoryStore(bench.cluster, hook=lossy)).publish("d", [], txn="t")
    assert lossy.losses == 1_000 - compare_and_swap.UNKNOWN_ATTEMPTS_MAX


# -- drop -------------------------------------------------------------------------------------


async def test_dropping_a_dataset_deletes_its_ledgers_and_forgets_its_transactions(
    bench: Bench,
) -> None:
    a, b = await bench.some(2)
    (foreign,) = await bench.some(1, owner=None)
    await bench.datasets.publish("d", [a, b, foreign], txn="t")
    dropped = await bench.datasets.drop("d", delete_ledgers=True)
    assert dropped is not None
    assert dropped.ledgers == (a, b, foreign)
    assert bench.stored() == [foreign.ledger_id]  # it was not written for this dataset
    assert await bench.datasets.list_datasets() == []
    assert await bench.datasets.drop("d") is None
    with pytest.raises(NoSuchKeyError):
        await bench.datasets.read("d")
    assert not (await bench.datasets.publish("d", [foreign], txn="t")).repeated


async def test_a_publisher_delayed_past_a_drop_does_not_restore_the_dropped_entries(
    bench: Bench,
) -> None:
    a, b, c = await bench.some(3)
    await bench.datasets.publish("d", [a])
    awake = asyncio.Event()
    asleep = asyncio.Event()

    async def hook(name: str, done: bool) -> None:
        if name == "write" and not done and not awake.is_set():
            asleep.set()
            await awake.wait()

    sleeper = Datasets(MemoryStore(bench.cluster, hook=hook))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sleeper.publish("d", [b]))
        await asleep.wait()
        await bench.datasets.drop("d")
        await bench.datasets.publish("d", [c])
        awake.set()
    assert task.result().sequence == 3
    assert await bench.ids() == ids([c, b])  # nothing of the life before the drop


# -- large datasets ---------------------------------------------------------------------------


async def publish_unchecked(bench: Bench, count: int, first: int, **how: bool) -> None:
    """Publish this number of ledgers, which need not exist."""
    ledgers = [part(ledger_id) for ledger_id in range(first, first + count)]

    async def no_check(*_: object) -> None: ...

    publisher = bench.other_session()
    publisher._check_publishable = no_check  # type: ignore[method-assign]
    await publisher.publish("d", ledgers, **how)


async def test_large_datasets_are_stored_in_chunks(bench: Bench) -> None:
    await publish_unchecked(bench, 10_000, 0)
    await publish_unchecked(bench, 5_000, 10_000)
    await publish_unchecked(bench, 3, 15_000)
    assert await bench.ids() == list(range(15_003))
    assert len(bench.chunks()) > 2
    largest = max(len(node.data) for node in bench.cluster.values.values())
    assert largest <= CHUNK_BYTES_MAX + 100
    head = bench.cluster.values["datasets", "d"].data
    assert len(head) < INLINE_BYTES_MAX


async def test_an_overwrite_removes_the_old_chunks(bench: Bench) -> None:
    await publish_unchecked(bench, 10_000, 0)
    old = bench.chunks()
    await publish_unchecked(bench, 10_000, 20_000, overwrite=True)
    assert not set(old) & set(bench.chunks())
    await publish_unchecked(bench, 1, 50_000, overwrite=True)
    assert bench.chunks() == []
    assert await bench.ids() == [50_000]


async def test_many_small_appends_stay_in_order(bench: Bench) -> None:
    for at in range(0, 4_000, 100):
        await publish_unchecked(bench, 100, at)
    assert await bench.ids() == list(range(4_000))


async def test_chunks_of_a_lost_compare_and_swap_are_removed_later(bench: Bench) -> None:
    """Two large appends conflict: the loser stores its chunks again for the newer head."""
    async with asyncio.TaskGroup() as group:
        for first in (0, 10_000, 20_000):
            group.create_task(publish_unchecked(bench, 3_000, first))
    assert sorted(await bench.ids()) == [
        i for first in (0, 10_000, 20_000) for i in range(first, first + 3_000)
    ]
    await publish_unchecked(bench, 1, 50_000)
    head = dataset_format.decode_head("d", bench.cluster.values["datasets", "d"].data)
    assert {key[2] for key in bench.chunks()} == {chunk.chunk_id for chunk in head.chunks}


async def test_a_read_during_an_overwrite_starts_again(bench: Bench) -> None:
    """The chunks disappear after the head was read, so the reader starts again."""
    await publish_unchecked(bench, 10_000, 0)
    overwritten = False

    async def hook(name: str, done: bool) -> None:
        nonlocal overwritten
        if name == "read" and done and not overwritten:
            overwritten = True
            await publish_unchecked(bench, 1, 20_000, overwrite=True)

    reader = Datasets(MemoryStore(bench.cluster, hook=hook))
    assert ids((await reader.read("d")).ledgers) == [20_000]


async def test_a_lost_chunk_is_damage_and_not_absence(bench: Bench) -> None:
    await publish_unchecked(bench, 10_000, 0)
    del bench.cluster.values[bench.chunks()[0]]
    with pytest.raises(MetadataError, match="damaged"):
        await bench.datasets.read("d")


async def test_a_changed_chunk_is_damage(bench: Bench) -> None:
    await publish_unchecked(bench, 10_000, 0)
    node = bench.cluster.values[bench.chunks()[0]]
    node.data = node.data.replace(b'"rows":10', b'"rows":11', 1)
    with pytest.raises(MetadataError, match="damaged"):
        await bench.datasets.read("d")


def lose_chunk(bench: Bench) -> None:
    del bench.cluster.values[bench.chunks()[0]]


def damage_chunk(bench: Bench) -> None:
    node = bench.cluster.values[bench.chunks()[0]]
    node.data = node.data.replace(b'"rows":10', b'"rows":11', 1)


def cut_chunk(bench: Bench) -> None:
    node = bench.cluster.values[bench.chunks()[0]]
    node.data = node.data[:1_000]


DAMAGES = pytest.mark.parametrize("damage", [lose_chunk, damage_chunk, cut_chunk])


@DAMAGES
@pytest.mark.parametrize("txn", [None, "t"])
async def test_an_overwrite_replaces_a_list_with_a_lost_chunk(
    bench: Bench,
    damage: Callable[[Bench], None],
    txn: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The remedy of `read` works: the dataset can be published again."""
    await publish_unchecked(bench, 10_000, 20_000)
    damage(bench)
    with pytest.raises(MetadataError, match="Publish the dataset again"):
        await bench.datasets.read("d")
    (new,) = await bench.some(1)
    published = await bench.datasets.publish("d", [new], overwrite=True, txn=txn)
    assert 0 < len(published.replaced) < 10_000
    assert await bench.ids() == ids([new])
    assert bench.chunks() == []
    assert "1 parts of the list of ledgers that was removed could not be read" in caplog.text


@DAMAGES
async def test_a_dataset_with_a_lost_chunk_can_be_dropped(
    bench: Bench, damage: Callable[[Bench], None], caplog: pytest.LogCaptureFixture
) -> None:
    await publish_unchecked(bench, 10_000, 20_000)
    damage(bench)
    dropped = await bench.datasets.drop("d", delete_ledgers=True)
    assert dropped is not None
    assert 0 < len(dropped.ledgers) < 10_000
    assert await bench.datasets.list_datasets() == []
    assert bench.chunks() == []
    assert "1 parts of the list of ledgers that was removed could not be read" in caplog.text


async def test_a_chunk_that_another_publication_removed_is_not_reported_as_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await publish_unchecked(bench, 10_000, 0)
    a, b = await bench.some(2)
    overwritten = False

    async def hook(name: str, done: bool) -> None:
        nonlocal overwritten
        if name == "read" and done and not overwritten:
            overwritten = True
            await bench.datasets.publish("d", [a], overwrite=True)

    slow = Datasets(MemoryStore(bench.cluster, hook=hook))
    published = await slow.publish("d", [b], overwrite=True)
    assert overwritten
    assert published.replaced == (a,)
    assert "could not be read" not in caplog.text


async def test_a_chunk_of_a_later_version_is_neither_overwritten_nor_dropped(bench: Bench) -> None:
    await publish_unchecked(bench, 10_000, 0)
    node = bench.cluster.values[bench.chunks()[0]]
    node.data = node.data.replace(b'"format":1', b'"format":3', 1)
    with pytest.raises(LaterMetadataError):
        await bench.datasets.publish("d", [], overwrite=True)
    with pytest.raises(LaterMetadataError):
        await bench.datasets.drop("d")


async def test_ledgers_are_kept_while_a_chunk_of_their_dataset_is_lost(bench: Bench) -> None:
    """The lost chunk may name them. The error says so, and blames no other clients."""
    orphan = await bench.ledger("d")
    await publish_unchecked(bench, 10_000, 20_000)
    lose_chunk(bench)
    with pytest.raises(MetadataError, match="damaged"):
        await bench.datasets.discard("d", [orphan])
    (skipped,) = (await bench.datasets.sweep(0)).skipped
    assert "is missing in the metadata store" in skipped.why
    assert bench.stored() == [orphan]
    await bench.datasets.publish("d", [], overwrite=True)
    assert await bench.datasets.sweep_orphans(0) == [orphan]


async def test_the_remedy_for_a_damaged_head_is_not_to_publish_again(bench: Bench) -> None:
    """Publishing again would fail too, because the head names the ledgers to delete."""
    await bench.datasets.publish("d", [])
    version = (await bench.store.read_value(("datasets", "d"))).version
    await bench.store.write_value(("datasets", "d"), b"{", version)
    with pytest.raises(MetadataError) as caught:
        await bench.datasets.publish("d", [], overwrite=True)
    assert "publish" not in str(caught.value)


def test_the_size_of_a_dataset_head_is_limited() -> None:
    chunks = tuple(Chunk(f"{i}-{'0' * 32}", 700) for i in range(20_000))
    with pytest.raises(UsageError, match="too large") as caught:
        dataset_format.encode_head("d", Head(exists=True, chunks=chunks), VALUE_BYTES_MAX)
    assert f"{VALUE_BYTES_MAX:,} bytes" in str(caught.value)


async def test_a_dataset_whose_head_is_full_is_still_swept_and_dropped(bench: Bench) -> None:
    head = Head(exists=True, sequence=1, ledgers=(part(await bench.ledger()),))
    keys = iter(range(10**6))
    while True:
        more = {**head.transactions, f"{next(keys):0900}": 1}
        larger = replace(head, transactions=more)
        if len(dataset_format.encode_head("d", larger)) > VALUE_BYTES_MAX:
            break
        head = larger
    await bench.store.write_value(("datasets", "d"), dataset_format.encode_head("d", head), None)
    orphans = [await bench.ledger() for _ in range(2 * dataset_format.CONDEMNED_MAX)]
    with pytest.raises(UsageError, match="Nothing was changed"):
        await bench.datasets.publish("d", [part(orphans[0])], txn="t" * 256)
    bench.clock.ms += 10**6
    assert await bench.datasets.sweep_orphans(1.0) == orphans
    assert await bench.datasets.drop("d")


def test_a_transaction_key_that_grows_too_much_by_escaping_is_refused() -> None:
    dataset_format.check_transaction_key('"' * 64 + "x" * 192)
    with pytest.raises(UsageError, match="control character"):
        dataset_format.check_transaction_key("\x01" * 256)


def test_every_head_within_the_limits_fits_beside_its_chunks() -> None:
    """A head within its limits leaves room for 4,000 chunks, which is millions of ledgers."""
    head = Head(
        exists=True,
        chunks=tuple(Chunk(f"{10**6 + i}-{'0' * 32}", 1000) for i in range(4_000)),
        transactions={f"{i:0256}": 10**6 for i in range(TRANSACTIONS_MAX)},
        condemned=tuple(2**62 + i for i in range(2 * dataset_format.CONDEMNED_MAX)),
    )
    assert len(dataset_format.encode_head("d", head)) + INLINE_BYTES_MAX < VALUE_BYTES_MAX


numbers = st.integers(0, 2**63 - 1)
parts = st.builds(
    lambda i, a, b, rows, size: DatasetLedger(i, min(a, b), max(a, b), rows, size),
    numbers, numbers, numbers, numbers, numbers,
)  # fmt: skip
heads = st.builds(
    Head,
    exists=st.booleans(),
    sequence=numbers,
    chunks=st.lists(st.builds(Chunk, st.text("0123456789abc-"), numbers)).map(tuple),
    ledgers=st.lists(parts).map(tuple),
    transactions=st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), numbers),
    condemned=st.lists(numbers).map(tuple),
)


@given(heads)
def test_dataset_heads_round_trip(head: Head) -> None:
    assert dataset_format.decode_head("d", dataset_format.encode_head("d", head)) == head


@settings(max_examples=30)
@given(st.lists(parts, max_size=60), st.integers(1, 4_000), st.integers(0, 9))
def test_splitting_into_chunks_keeps_all_entries_in_order(
    some: list[DatasetLedger], times: int, version: int
) -> None:
    ledgers = (some * times)[:20_000]
    chunks, inline = dataset_format.split(ledgers, version)
    back = [
        ledger for chunk, data in chunks for ledger in dataset_format.decode_chunk("d", chunk, data)
    ]
    assert [*back, *inline] == ledgers
    assert all(len(data) <= CHUNK_BYTES_MAX + 100 for _, data in chunks)
    assert all(dataset_format.chunk_base_version(c.chunk_id) == version for c, _ in chunks)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"\xff", "cannot be decoded"),
        (b"[]", "not a JSON object"),
        (b'{"format":1}', "cannot be decoded"),
        (b'{"format":2}', "cannot be decoded"),
        (b'{"format":3}', "format 3"),
        (
            b'{"format":1,"exists":true,"sequence":1,"chunks":[],"transactions":{},"condemned":[],'
            b'"ledgers":[{"id":1,"first":5,"last":2,"rows":1,"bytes":1}]}',
            "cannot be decoded",
        ),
        (
            b'{"format":1,"exists":true,"sequence":1,"chunks":[],"transactions":{},"condemned":[],'
            b'"ledgers":[{"id":1,"first":0,"last":2,"rows":-1,"bytes":1}]}',
            "cannot be decoded",
        ),
        (
            b'{"format":1,"exists":true,"sequence":1,"chunks":[],"transactions":{},"condemned":[],'
            b'"ledgers":[{"id":1,"first":0,"last":2,"rows":1,"bytes":-1}]}',
            "cannot be decoded",
        ),
        (
            b'{"format":1,"exists":true,"sequence":1e999,"chunks":[],"ledgers":[],'
            b'"transactions":{},"condemned":[]}',
            "cannot be decoded",
        ),
        (
            b'{"format":2,"exists":true,"sequence":1,"chunks":[],"ledgers":[],"transactions":{},'
            b'"condemned":[],"schema":{"version":1,"encoding":"arrow","partition_by":[],'
            b'"columns":[{"name":"a","type":{"type":"array"}}]}}',
            "cannot be decoded",
        ),
        (b"[" * 100_000, "cannot be decoded"),
    ],
)
async def test_invalid_stored_heads_give_one_clear_error(
    bench: Bench, stored: bytes, message: str
) -> None:
    await bench.store.write_value(("datasets", "d"), stored, None)
    with pytest.raises(MetadataError, match=message):
        await bench.datasets.read("d")
    assert await bench.datasets.list_datasets() == ["d"]


@pytest.mark.parametrize("damage", [b'"partition":[]', b'"partition":null', b'"rows":1e999'])
def test_an_invalid_chunk_gives_one_clear_error(damage: bytes) -> None:
    data = b'{"format":2,"ledgers":[{"id":1,"first":0,"last":2,"rows":1,"bytes":1,%s}]}' % damage
    chunk = dataset_format.Chunk(f"new-{dataset_format.chunk_id_digest(data)}", 1)
    with pytest.raises(MetadataError, match="cannot be decoded"):
        dataset_format.decode_chunk("d", chunk, data)


# -- orphans ----------------------------------------------------------------------------------


async def test_the_sweep_deletes_only_old_unpublished_ledgers(bench: Bench) -> None:
    published, orphan = await bench.some(2)
    (foreign,) = await bench.some(1, owner=None)
    (other,) = await bench.some(1, owner="e")
    await bench.datasets.publish("d", [published])
    bench.clock.ms += 3_600_000
    (young,) = await bench.some(1)
    swept = await bench.datasets.sweep_orphans(1800)
    assert swept == ids([orphan, other])
    assert bench.stored() == ids([published, foreign, young])
    assert await bench.ids() == ids([published])


async def test_the_scope_of_a_sweep_can_be_limited(bench: Bench) -> None:
    a = await bench.ledger("d", "j1")
    b = await bench.ledger("d", "j2")
    c = await bench.ledger("e", "j1")
    assert await bench.datasets.sweep_orphans(0, name="d", job="j1") == [a]
    assert await bench.datasets.sweep_orphans(0, job="j1", first=c) == [c]
    assert await bench.datasets.sweep_orphans(0, keep=[b]) == []
    d = await bench.ledger("d", "j1")
    assert await bench.datasets.sweep_orphans(0, look_at_most=1) == [b]
    assert bench.stored() == [d]


async def test_the_sweep_skips_what_it_cannot_read_and_continues(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that no dataset can have, a damaged head, a lost piece, a damaged ledger: each is
    named, what it may own is kept, and the orphans of all others go."""
    poisoned = await bench.ledger("a/b")
    held = await bench.ledger("damaged")
    await bench.datasets.publish("damaged", [part(held)])
    also_held = await bench.ledger("holed")
    await bench.datasets.publish("holed", [part(also_held)])
    orphan_of_damaged = await bench.ledger("damaged")
    orphan_of_holed = await bench.ledger("holed")
    orphan, later = await bench.ledger("c"), await bench.ledger("z")
    version = (await bench.store.read_value(("datasets", "damaged"))).version
    await bench.store.write_value(("datasets", "damaged"), b"{", version)
    head = dataset_format.decode_head(
        "holed", (await bench.store.read_value(("datasets", "holed"))).value
    )
    head = replace(head, ledgers=(), chunks=(Chunk("0-gone", 1),))
    version = (await bench.store.read_value(("datasets", "holed"))).version
    await bench.store.write_value(
        ("datasets", "holed"), dataset_format.encode_head("holed", head), version
    )
    unreadable = await bench.ledger("d")
    bench.unreadable.add(unreadable)

    swept = await bench.datasets.sweep(0)
    assert swept.deleted == [orphan, later]
    assert bench.stored() == sorted(
        [poisoned, held, also_held, orphan_of_damaged, orphan_of_holed, unreadable]
    )
    told = {skipped.what: skipped.why for skipped in swept.skipped}
    assert list(told) == [
        f"ledger {unreadable}", "dataset 'a/b'", "dataset 'damaged'", "dataset 'holed'"
    ]  # fmt: skip
    assert "cannot be the name of a dataset" in told["dataset 'a/b'"]
    assert f"are kept: {poisoned}" in told["dataset 'a/b'"]
    assert f"are kept: {held}, {orphan_of_damaged}" in told["dataset 'damaged'"]
    with caplog.at_level(logging.WARNING, "quire.datasets"):
        assert await bench.datasets.sweep_orphans(0) == []
    assert "skipped what it could not read (4)" in caplog.text
    assert "dataset 'a/b'" in caplog.text


async def test_a_search_for_orphans_deletes_nothing(bench: Bench) -> None:
    published, orphan = await bench.some(2)
    other = await bench.ledger("e", "j2")
    await bench.datasets.publish("d", [published])
    bench.clock.ms += 3_600_000
    young = await bench.ledger("d")
    found = await bench.datasets.look_for_orphans(1800)
    assert [(one.ledger_id, one.dataset, one.job) for one in found.orphans] == [
        (orphan.ledger_id, "d", "j"), (other, "e", "j2")
    ]  # fmt: skip
    assert found.skipped == []
    assert bench.stored() == sorted([published.ledger_id, orphan.ledger_id, other, young])
    narrowed = await bench.datasets.look_for_orphans(1800, name="e")
    assert [one.ledger_id for one in narrowed.orphans] == [other]
    assert (await bench.datasets.look_for_orphans(1800, first=other + 1)).orphans == []


async def test_an_orphan_that_was_published_after_the_search_is_kept(bench: Bench) -> None:
    late, orphan = await bench.some(2)
    found = await bench.datasets.look_for_orphans(0)
    await bench.datasets.publish("d", [late])
    assert (await bench.datasets.delete_orphans(found.orphans)).deleted == [orphan.ledger_id]
    assert bench.stored() == [late.ledger_id]


async def test_the_search_for_orphans_skips_what_it_cannot_read(bench: Bench) -> None:
    poisoned, held = await bench.ledger("a/b"), await bench.ledger("damaged")
    await bench.datasets.publish("damaged", [part(held)])
    orphan = await bench.ledger("c")
    found = await bench.datasets.look_for_orphans(0)
    version = (await bench.store.read_value(("datasets", "damaged"))).version
    await bench.store.write_value(("datasets", "damaged"), b"{", version)
    again = await bench.datasets.look_for_orphans(0)
    assert [one.ledger_id for one in found.orphans] == [orphan]
    assert [one.ledger_id for one in again.orphans] == [orphan]
    assert [skipped.what for skipped in found.skipped] == ["dataset 'a/b'"]
    assert [skipped.what for skipped in again.skipped] == ["dataset 'a/b'", "dataset 'damaged'"]
    assert f"are kept: {held}" in again.skipped[1].why
    made_up = [replace(found.orphans[0], ledger_id=held, dataset="damaged")]
    swept = await bench.datasets.delete_orphans([*found.orphans, *made_up])
    assert (swept.deleted, [one.what for one in swept.skipped]) == ([orphan], ["dataset 'damaged'"])
    assert bench.stored() == sorted([poisoned, held])


async def test_orphans_are_kept_while_collection_is_off(bench: Bench) -> None:
    orphan = await bench.ledger("d")
    found = await bench.datasets.look_for_orphans(0)
    assert await switch_off(bench.store, Switch())
    with pytest.raises(CollectionOffError):
        await bench.datasets.delete_orphans(found.orphans)
    assert bench.stored() == [orphan]


async def test_the_listing_of_datasets_names_those_it_cannot_read(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        await bench.datasets.publish(name, [])
    version = (await bench.store.read_value(("datasets", "b"))).version
    await bench.store.write_value(("datasets", "b"), b"{", version)
    with caplog.at_level(logging.WARNING, "quire.datasets"):
        assert await bench.datasets.list_datasets() == ["a", "b", "c"]
    assert "skipped what it could not read (1)" in caplog.text
    assert "dataset 'b'" in caplog.text


async def test_a_ledger_that_was_written_for_another_dataset_is_not_published(
    bench: Bench,
) -> None:
    """It was deleted with the other dataset, or by a sweep, while this one named it."""
    (shared,) = await bench.some(1)
    await bench.datasets.publish("d", [shared])
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="ledger 0 was written for dataset 'd'"):
            await bench.datasets.publish("copy", [shared], overwrite=overwrite)
    assert await bench.datasets.list_datasets() == ["d"]
    await bench.datasets.drop("d", delete_ledgers=True)
    assert bench.stored() == []


async def test_discard_keeps_published_and_foreign_ledgers(bench: Bench) -> None:
    a, b = await bench.some(2)
    (foreign,) = await bench.some(1, owner=None)
    (other,) = await bench.some(1, owner="e")
    await bench.datasets.publish("d", [a])
    everything = ids([a, b, foreign, other])
    assert await bench.datasets.discard("d", [*everything, 999]) == [b.ledger_id]
    assert bench.stored() == ids([a, foreign, other])


async def test_discarding_a_failed_first_write_leaves_no_dataset(bench: Bench) -> None:
    (a,) = await bench.some(1)
    assert await bench.datasets.discard("d", [a.ledger_id]) == [a.ledger_id]
    assert await bench.datasets.list_datasets() == []
    with pytest.raises(NoSuchKeyError):
        await bench.datasets.read("d")


async def test_a_condemned_ledger_is_not_published(bench: Bench) -> None:
    """A slow job publishes a ledger that the sweep has condemned and not deleted yet."""
    (a,) = await bench.some(1)
    deleting = asyncio.Event()
    go_on = asyncio.Event()

    async def hook(name: str, done: bool) -> None:
        if name == "delete_ledger" and not done:
            deleting.set()
            await go_on.wait()

    sweeper = Datasets(MemoryStore(bench.cluster, hook=hook), clock=bench.clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(sweeper.sweep_orphans(0))
        await deleting.wait()
        with pytest.raises(NoSuchLedgerError, match="is being deleted"):
            await bench.datasets.publish("d", [a])
        go_on.set()
    assert bench.stored() == []


@pytest.mark.parametrize("change", ["publish", "overwrite", "drop", "discard", "drop twice"])
async def test_no_change_of_a_dataset_forgets_that_a_ledger_is_being_deleted(
    bench: Bench, change: str
) -> None:
    """A slow job publishes a condemned ledger after another client has changed the dataset."""
    a, b, c = await bench.some(3)
    await bench.datasets.publish("d", [b])
    deleting = asyncio.Event()
    go_on = asyncio.Event()

    async def hook(name: str, done: bool) -> None:
        if name == "delete_ledger" and not done:
            deleting.set()
            await go_on.wait()

    sweeper = Datasets(MemoryStore(bench.cluster, hook=hook), clock=bench.clock)
    other = bench.other_session()
    async with asyncio.TaskGroup() as group:
        group.create_task(sweeper.discard("d", [a.ledger_id]))
        await deleting.wait()
        match change:
            case "publish" | "overwrite":
                await other.publish("d", [c], overwrite=change == "overwrite")
            case "drop":
                await other.drop("d")
            case "drop twice":
                await other.drop("d")
                await other.publish("d", [c])
                await other.drop("d")
            case _:
                assert await other.discard("d", [c.ledger_id]) == [c.ledger_id]
        with pytest.raises(NoSuchLedgerError):
            await bench.datasets.publish("d", [a])
        go_on.set()
    assert a.ledger_id not in bench.stored()


def test_concurrent_sweeps_never_delete_published_ledgers() -> None:
    """Published ledgers exist, whatever the order of the steps, even if a sweeper dies."""

    async def run(rng: random.Random) -> None:
        bench = Bench()

        async def hook(name: str, done: bool) -> None:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

        def session() -> Datasets:
            return Datasets(MemoryStore(bench.cluster, hook=hook), clock=bench.clock)

        ledgers = await bench.some(6)

        async def publish(some: list[DatasetLedger], overwrite: bool) -> None:
            try:
                await session().publish("d", some, overwrite=overwrite, txn=f"{some[0]}")
            except NoSuchLedgerError:
                pass

        async def sweep(patience: int) -> None:
            task = asyncio.ensure_future(session().sweep_orphans(0))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async with asyncio.TaskGroup() as group:
            for at in range(0, 6, 2):
                group.create_task(publish(ledgers[at : at + 2], rng.random() < 0.3))
                group.create_task(sweep(rng.randrange(200)))
        try:
            held = await bench.ids()
        except NoSuchKeyError:
            held = []
        assert set(held) <= set(bench.stored())
        await bench.datasets.sweep_orphans(0)
        assert bench.stored() == sorted(held)

    with asyncio.Runner() as runner:
        for seed in range(300):
            runner.run(run(random.Random(seed)))


def test_a_dataset_in_chunks_survives_every_order_of_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Publications, drops, sweeps and removals of old chunks interrupt each other at every step.

    Readers never see a damaged dataset, every ledger in the dataset exists, and nothing of what
    was published after the last drop or overwrite is missing.
    """
    monkeypatch.setattr(dataset_format, "INLINE_BYTES_MAX", 60)
    monkeypatch.setattr(dataset_format, "CHUNK_BYTES_MAX", 120)

    async def run(rng: random.Random) -> None:
        bench = Bench()

        async def hook(name: str, done: bool) -> None:
            for _ in range(rng.choice((0, 0, 1, 3, 30))):
                await asyncio.sleep(0)

        def session() -> Datasets:
            return Datasets(MemoryStore(bench.cluster, hook=hook), clock=bench.clock)

        async def publish(some: list[DatasetLedger], overwrite: bool) -> None:
            try:
                done = await session().publish("d", some, overwrite=overwrite)
            except NoSuchLedgerError:
                return
            if overwrite:
                kept_from[0] = max(kept_from[0], done.sequence)
            published[done.sequence] = ids(some)

        async def drop() -> None:
            dropped = await session().drop("d")
            if dropped is not None:
                kept_from[0] = max(kept_from[0], dropped.sequence + 1)

        async def read() -> None:
            try:
                await session().read("d")
            except NoSuchKeyError:
                pass

        ledgers = await bench.some(12)
        published: dict[int, list[int]] = {}
        kept_from = [0]
        async with asyncio.TaskGroup() as group:
            for at in range(0, 12, 3):
                group.create_task(publish(ledgers[at : at + 3], rng.random() < 0.2))
                group.create_task(read())
                if rng.random() < 0.4:
                    group.create_task(session().sweep_orphans(0))
            if rng.random() < 0.4:
                group.create_task(drop())
        try:
            held = await bench.ids()
        except NoSuchKeyError:
            held = []
        assert set(held) <= set(bench.stored())
        wanted = [one for number in sorted(published) for one in published[number]
                  if number >= kept_from[0]]  # fmt: skip
        assert held == wanted
        if held:
            await bench.datasets.publish("d", await bench.some(3))
            head = dataset_format.decode_head("d", bench.cluster.values["datasets", "d"].data)
            assert {key[2] for key in bench.chunks()} == {one.chunk_id for one in head.chunks}

    with asyncio.Runner() as runner:
        for seed in range(100):
            runner.run(run(random.Random(seed)))


async def test_the_next_sweep_finishes_the_work_of_one_that_died(bench: Bench) -> None:
    a, b = await bench.some(2)

    async def hook(name: str, done: bool) -> None:
        if name == "delete_ledger":
            raise MetadataUnavailableError("gone")

    with pytest.raises(MetadataUnavailableError):
        await Datasets(MemoryStore(bench.cluster, hook=hook)).discard("d", [a.ledger_id])
    assert await bench.datasets.discard("d", [b.ledger_id]) == [b.ledger_id]
    assert bench.stored() == []
    head = dataset_format.decode_head("d", bench.cluster.values["datasets", "d"].data)
    assert head.condemned == ()


async def test_the_next_sweep_spares_a_new_ledger_with_the_id_of_a_condemned_one(
    bench: Bench,
) -> None:
    """A sweep died after the deletion. Another client has created a ledger with the id since."""
    a, b = await bench.some(2)

    async def hook(name: str, done: bool) -> None:
        if name == "delete_ledger" and done:
            raise MetadataUnavailableError("gone")

    with pytest.raises(MetadataUnavailableError):
        await Datasets(MemoryStore(bench.cluster, hook=hook)).discard("d", [a.ledger_id])
    assert a.ledger_id not in bench.stored()
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),))
    await bench.store.create_ledger(metadata, a.ledger_id)
    assert await bench.datasets.discard("d", [b.ledger_id]) == [b.ledger_id]
    assert bench.stored() == [a.ledger_id]
    head = dataset_format.decode_head("d", bench.cluster.values["datasets", "d"].data)
    assert head.condemned == ()


async def test_many_orphans_are_deleted_in_batches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpublished, "CONDEMNED_MAX", 3)
    ledgers = await bench.some(10)
    assert await bench.datasets.sweep_orphans(0) == ids(ledgers)
    assert bench.stored() == []


async def test_only_entries_of_closed_ledgers_are_published() -> None:
    bench = Bench()
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),))
    ledger_id, stored = await bench.store.create_ledger(metadata)
    with pytest.raises(UsageError, match=f"ledger {ledger_id} is not closed. Close it first"):
        await bench.datasets.publish("d", [DatasetLedger(ledger_id, 0, 4, 5, 5)])
    await bench.store.write_ledger(ledger_id, metadata.with_close(4, 5), stored.version)
    for first, last in ((0, 5), (5, 5), (0, 1_000)):
        with pytest.raises(UsageError, match=f"has no entry {last}: .* ends at entry 4"):
            await bench.datasets.publish("d", [DatasetLedger(ledger_id, first, last, 5, 5)])
    assert await bench.datasets.list_datasets() == []
    await bench.datasets.publish("d", [DatasetLedger(ledger_id, 0, 4, 5, 5)])


async def test_a_ledger_that_a_lagging_server_shows_open_is_published() -> None:
    bench = Bench()
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),))
    ledger_id, stored = await bench.store.create_ledger(metadata)
    server = LaggingServer(bench.store)
    server.fall_behind()
    other = MemoryStore(bench.cluster)
    await other.write_ledger(ledger_id, metadata.with_close(4, 5), stored.version)
    await bench.datasets.publish("d", [DatasetLedger(ledger_id, 0, 4, 5, 5)])
    assert await bench.ids() == [ledger_id]
