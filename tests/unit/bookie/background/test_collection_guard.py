"""Garbage is collected only with a current store, and not while collection is off."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.bookie.background.collection_guard import (
    MARK_NAME,
    CollectionGuard,
    Remembered,
    decode_mark,
    encode_mark,
    read_remembered,
)
from quire.bookie.background.over_replicated import OverReplicated
from quire.client.datasets.datasets import Datasets
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.config import BookieConfig
from quire.errors import CollectionOffError, MetadataUnavailableError, MetadataWentBackError
from quire.metadata.bookies.collection import (
    BookieMark,
    CollectionMark,
    CollectionRefusal,
    Switch,
    accept,
    check_collectable,
    check_not_back,
    mark_path,
    may_collect,
    read_mark,
    read_switch,
    refusals,
    switch_off,
    switch_on,
    write_mark,
)
from quire.metadata.ledgers.naming import pages_naming
from quire.metadata.ledgers.unreadable import Unread
from quire.metadata.tree import Delete, Put
from quire.storage.disk import RealDisk
from quire.streams.objects.objects import Objects
from quire.streams.ownership.orphans import delete_orphans
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import SMALL, free_port, memory_metadata, running_bookie
from tests.support.metadata.lagging import LaggingServer
from tests.support.storage.storage import StoreOnDisk, sim_disk
from tests.support.waiting import until

ME = "127.0.0.1:3181"
Events = list[tuple[str, dict[str, object]]]


@dataclass
class Scene:
    """A bookie's guard, its memory on the disk, and a store that can be restored."""

    metadata: MemoryStore = field(default_factory=memory_metadata)
    kept: bytes = b""
    events: Events = field(default_factory=list)

    async def keep(self, data: bytes) -> None:
        self.kept = data

    def log(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def start(self, *, enabled: bool = True, damaged: str = "") -> CollectionGuard:
        """The guard of a bookie that starts with what its directory remembers."""
        remembered = Remembered(decode_mark(self.kept)) if self.kept else Remembered()
        return CollectionGuard(
            self.metadata,
            ME,
            Remembered(damaged=damaged) if damaged else remembered,
            self.keep,
            enabled=enabled,
            clock=SystemClock(),
            random_bytes=random.Random(len(self.events)).randbytes,
            log=self.log,
        )

    def backup(self) -> object:
        return deepcopy(self.metadata.cluster.tree._nodes)

    def restore(self, backup: object) -> None:
        self.metadata.cluster.tree._nodes = deepcopy(backup)  # type: ignore[assignment]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.metadata.initialise()
    yield made
    await made.metadata.close()


async def test_a_store_that_moves_forward_is_trusted_across_restarts(scene: Scene) -> None:
    guard = scene.start()
    await guard.check()  # nothing is known yet, as after an upgrade
    for _ in range(3):
        await guard.raise_mark()
        await guard.check()
    assert decode_mark(scene.kept).count == 3
    guard = scene.start()
    await guard.check()
    await guard.raise_mark()
    assert decode_mark(scene.kept).count == 4
    assert scene.events == []
    assert guard.may_collect


async def test_a_server_that_lags_is_not_taken_for_a_store_that_went_back(scene: Scene) -> None:
    """A bookie that starts again may reach another server of the store than before."""
    await scene.start().raise_mark()
    server = LaggingServer(scene.metadata)
    server.fall_behind()
    before = Scene(MemoryStore(scene.metadata.cluster), scene.kept)
    await before.start().raise_mark()
    await before.metadata.close()
    scene.kept = before.kept
    guard = scene.start()
    await guard.check()
    await guard.raise_mark()
    assert decode_mark(scene.kept).count == 3
    assert scene.events == []
    assert guard.may_collect


async def test_a_restored_store_is_refused_until_an_operator_accepts_it(scene: Scene) -> None:
    guard = scene.start()
    await guard.raise_mark()
    backup = scene.backup()
    await guard.raise_mark()
    scene.restore(backup)
    for one in (guard, scene.start()):
        for _ in range(2):
            with pytest.raises(
                MetadataWentBackError, match=r"stored mark 2 in it, .* holds mark 1"
            ):
                await one.check()
            with pytest.raises(MetadataWentBackError):
                await one.raise_mark()
        assert not one.may_collect
    assert [name for name, _ in scene.events] == ["metadata_went_back"] * 2  # once each
    assert list(await refusals(scene.metadata)) == [ME]
    with pytest.raises(
        MetadataWentBackError, match=f"as noticed by bookies {ME}.* nothing was deleted"
    ):
        await check_collectable(scene.metadata)
    assert not await may_collect(scene.metadata)
    assert await accept(scene.metadata, ME)
    assert not await accept(scene.metadata, ME)
    await guard.check()
    await guard.raise_mark()
    assert decode_mark(scene.kept).count == 3
    assert scene.events[-1][0] == "metadata_accepted"
    assert await refusals(scene.metadata) == {}
    await check_collectable(scene.metadata)
    assert await may_collect(scene.metadata)
    # This was permitted only once. The store goes back again, to a state that was accepted.
    await guard.raise_mark()
    scene.restore(backup)
    with pytest.raises(MetadataWentBackError):
        await guard.check()


async def test_a_restored_acceptance_counts_only_for_its_own_refusal(scene: Scene) -> None:
    guard = scene.start()
    await guard.raise_mark()
    backup = scene.backup()
    await guard.raise_mark()
    scene.restore(backup)
    with pytest.raises(MetadataWentBackError):
        await guard.check()
    assert await accept(scene.metadata, ME)
    accepted = scene.backup()
    await guard.raise_mark()
    scene.restore(accepted)
    with pytest.raises(MetadataWentBackError):
        await guard.check()


async def test_another_history_of_the_same_length_is_refused(scene: Scene) -> None:
    """Two restores of one backup can reach the same count. Their tokens differ."""
    guard = scene.start()
    await guard.raise_mark()
    found = await read_mark(scene.metadata, ME)
    assert found is not None
    other = BookieMark(CollectionMark(found.value.mark.count, "other"))
    await write_mark(scene.metadata, ME, other, found.version)
    with pytest.raises(MetadataWentBackError, match="a mark that the bookie did not write"):
        await guard.check()
    await scene.metadata.tree.commit(Delete(mark_path(scene.metadata.uri, ME)))
    with pytest.raises(MetadataWentBackError, match="it holds no mark"):
        await guard.check()


async def test_a_bookie_that_died_before_it_stored_its_mark_continues(scene: Scene) -> None:
    guard = scene.start()
    await guard.raise_mark()
    older = scene.kept
    await guard.raise_mark()
    scene.kept = older
    guard = scene.start()
    await guard.check()
    await guard.raise_mark()
    assert decode_mark(scene.kept).count == 3


async def test_a_mark_is_in_the_store_before_a_directory_remembers_it(scene: Scene) -> None:
    """A bookie that dies between the two must remember the older mark, or it would refuse."""
    guard = scene.start()
    keep, orders = guard._keep, []

    async def kept_second(data: bytes) -> None:
        found = await read_mark(scene.metadata, ME)
        orders.append(found is not None and found.value.mark == decode_mark(data))
        await keep(data)

    guard._keep = kept_second
    for _ in range(3):
        await guard.raise_mark()
    assert orders == [True] * 3


@pytest.mark.parametrize("done", [False, True], ids=["request lost", "answer lost"])
@pytest.mark.parametrize("marks", range(3))
async def test_a_bookie_that_died_while_it_raised_its_mark_continues(
    scene: Scene, marks: int, *, done: bool
) -> None:
    guard = scene.start()
    for _ in range(marks):
        await guard.raise_mark()
    before = scene.kept

    async def lost(name: str, after: bool) -> None:
        if after is done and name == "tree_commit":
            raise MetadataUnavailableError("the connection was lost")

    hook, scene.metadata._hook = scene.metadata._hook, lost
    with pytest.raises(MetadataUnavailableError):
        await guard.raise_mark()
    scene.metadata._hook = hook
    assert scene.kept == before
    guard = scene.start()
    await guard.check()
    await guard.raise_mark()
    assert guard.may_collect
    assert not guard.went_back


async def test_a_mark_whose_answer_was_lost_causes_no_refusal(scene: Scene) -> None:
    guard = scene.start()
    await guard.raise_mark()

    async def lost(name: str, done: bool) -> None:
        if done and name == "tree_commit":
            raise MetadataUnavailableError("the answer was lost")

    hook, scene.metadata._hook = scene.metadata._hook, lost
    await guard.raise_in_turn()
    assert guard.not_raised
    scene.metadata._hook = hook
    await guard.raise_in_turn()
    await guard.check()
    assert guard.not_raised == ""


async def test_a_damaged_mark_is_not_treated_as_missing(scene: Scene) -> None:
    guard = scene.start()
    await guard.raise_mark()
    guard = scene.start(damaged="current/METADATA: its checksum does not match")
    with pytest.raises(MetadataWentBackError, match="cannot read its own copy"):
        await guard.check()
    assert await accept(scene.metadata, ME)
    await guard.check()
    await guard.raise_mark()
    await scene.start().check()


async def test_collection_can_be_switched_off_for_the_cluster_or_a_bookie(scene: Scene) -> None:
    guard = scene.start()
    assert await switch_off(scene.metadata, Switch(1, "host.1", "restore"))
    assert not await switch_off(scene.metadata, Switch(2, "host.2"))
    with pytest.raises(
        CollectionOffError, match=r"off for the whole cluster by host.1 \(restore\)"
    ):
        await guard.check()
    with pytest.raises(CollectionOffError, match="Nothing was deleted"):
        await check_collectable(scene.metadata)
    await check_not_back(scene.metadata)
    assert not guard.may_collect
    await guard.raise_mark()  # The proof continues.
    assert await switch_on(scene.metadata)
    assert not await switch_on(scene.metadata)
    assert await read_switch(scene.metadata) is None
    await guard.check()
    with pytest.raises(CollectionOffError, match="gc_enabled"):
        await scene.start(enabled=False).check()


def test_the_file_of_the_mark_round_trips_and_every_changed_bit_is_found() -> None:
    data = encode_mark(CollectionMark(12, "ab" * 16))
    assert decode_mark(data) == CollectionMark(12, "ab" * 16)
    for at in range(len(data)):
        for bit in (1, 16):
            changed = bytearray(data)
            changed[at] ^= bit
            with pytest.raises(ValueError):
                decode_mark(bytes(changed))


def test_the_values_of_the_collection_nodes_round_trip() -> None:
    one = BookieMark(
        CollectionMark(3, "x"), CollectionRefusal(CollectionMark(9, "y"), 1234, accepted=True)
    )
    assert BookieMark.decode(one.encode()) == one
    assert BookieMark.decode(BookieMark(CollectionMark(3, "x")).encode()) == BookieMark(
        CollectionMark(3, "x")
    )
    for wrong in (b"", b"7", b"{}", b'{"count": 1, "token": "x", "refused": 7}'):
        with pytest.raises(ValueError):
            BookieMark.decode(wrong)
    assert Switch.decode(b"anything") == Switch()


# -- a bookie ---------------------------------------------------------------------------------


async def _ledgers(metadata: MemoryStore, bookie_id: str, count: int) -> list[int]:
    made = LedgerMetadata(1, 1, 1, (Segment(0, (bookie_id,)),))
    return [(await metadata.create_ledger(made))[0] for _ in range(count)]


async def test_five_newer_ledgers_survive_a_restore_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was restored from a backup that lacks the newest ledgers.

    A disk below `min_free_bytes` checks for deleted ledgers every `gc_full_interval_s`, regardless
    of `gc_interval_s`.
    """
    metadata = memory_metadata()
    port = free_port()
    config = BookieConfig(
        segment_bytes=SMALL.segment_bytes,
        min_free_bytes=0,
        gc_interval_s=86_400.0,
        gc_full_interval_s=0.02,
        check_space_s=0.02,
        metadata_mark_interval_s=3600.0,
    )
    events: Events = []

    def log(event: str, **fields: object) -> None:
        events.append((event, fields))

    def count(event: str) -> int:
        return sum(name == event for name, _ in events)

    async with running_bookie(tmp_path, config, metadata, port=port) as bookie:
        guard = bookie.collection
        assert guard is not None
        await until(lambda: guard.raised_s is not None)
        old = await _ledgers(metadata, bookie.bookie_id, 2)
        cluster = metadata.cluster
        backup = deepcopy((cluster.ledgers, cluster.ledger_ids, cluster.tree._nodes))
        newer = await _ledgers(metadata, bookie.bookie_id, 5)
        for ledger_id in (*old, *newer):
            bookie.store.create_ledger(ledger_id, b"k" * 20)
        await guard.raise_mark()
    cluster.ledgers, cluster.ledger_ids, cluster.tree._nodes = backup
    monkeypatch.setattr(RealDisk, "free_bytes", lambda self: 0)
    full = BookieConfig(
        segment_bytes=config.segment_bytes,
        min_free_bytes=1,
        gc_interval_s=config.gc_interval_s,
        gc_full_interval_s=config.gc_full_interval_s,
        check_space_s=config.check_space_s,
        metadata_mark_interval_s=config.metadata_mark_interval_s,
    )
    async with running_bookie(tmp_path, full, metadata, port=port, log=log) as bookie:
        held = set(bookie.store.ledger_ids())
        assert held == {*old, *newer}
        await until(lambda: count("garbage_collection_skipped") >= 3)
        assert set(bookie.store.ledger_ids()) == held
        assert count("ledgers_dropped") == 0
        assert count("metadata_went_back") == 1
        # The switch is stronger than an operator's pass, and than an acceptance.
        assert await switch_off(metadata, Switch())
        assert await accept(metadata, bookie.bookie_id)
        assert "switched off" in await bookie.collect_garbage()
        await until(lambda: count("garbage_collection_off") == 1)
        assert set(bookie.store.ledger_ids()) == held
        # The operator has checked, and gives up the five ledgers.
        assert await switch_on(metadata)
        await until(lambda: set(bookie.store.ledger_ids()) == set(old))


async def test_a_bookie_stores_its_mark_in_each_directory(tmp_path: Path) -> None:
    metadata = memory_metadata()
    disks = [tmp_path / name for name in "abc"]
    async with running_bookie(
        disks[0], metadata=metadata, more=[RealDisk(str(one)) for one in disks[1:]]
    ) as bookie:
        guard = bookie.collection
        assert guard is not None
        await until(lambda: all((one / MARK_NAME).exists() for one in disks))
        await guard.raise_mark()
    (disks[0] / MARK_NAME).write_bytes(b"rotten")
    (disks[1] / MARK_NAME).unlink()
    read = read_remembered([RealDisk(str(one)) for one in disks])
    assert read.mark is not None
    assert read.mark.count >= 2
    (disks[2] / MARK_NAME).write_bytes(b"rotten")
    assert "METADATA" in read_remembered([RealDisk(str(one)) for one in disks]).damaged


async def test_superfluous_copies_stay_while_the_store_is_older(scene: Scene) -> None:
    """An older store names the bookies that have given their copies up since."""
    metadata = scene.metadata
    closed = LedgerMetadata(
        1, 1, 1, (Segment(0, ("other:1",)),), state=LedgerState.CLOSED, last_entry_id=0, length=1
    )
    ledger_id, _ = await metadata.create_ledger(closed)
    box = StoreOnDisk(sim_disk(3))
    box.open()
    box.append([(ledger_id, 0, b"x")])
    guard = scene.start()
    await guard.raise_mark()
    backup = scene.backup()
    await guard.raise_mark()
    scene.restore(backup)
    instance_id = await metadata.instance_id()
    copies = OverReplicated(box.store, metadata, box.clock, ME, instance_id, guard)
    for _ in range(2):
        with pytest.raises(MetadataWentBackError):
            await copies.collect(scene.log)
    assert await accept(metadata, ME)
    assert await switch_off(metadata, Switch())
    with pytest.raises(CollectionOffError):
        await copies.collect(scene.log)
    assert box.store.ledger_ids() == [ledger_id]
    assert await switch_on(metadata)
    assert await copies.collect(scene.log) == []
    assert await copies.collect(scene.log) == [ledger_id]


async def test_sweeps_refuse_while_the_store_is_older(scene: Scene) -> None:
    guard = scene.start()
    await guard.raise_mark()
    scene.restore(deepcopy(memory_metadata().cluster.tree._nodes))
    with pytest.raises(MetadataWentBackError):
        await guard.check()
    client = SimpleNamespace(metadata=scene.metadata, clock=SystemClock())
    datasets = Datasets(scene.metadata)
    objects = Objects(client, "bucket")  # type: ignore[arg-type]
    sweeps: tuple[Coroutine[Any, Any, object], ...] = (
        datasets.sweep_orphans(0.0),
        objects.sweep(0.0),
        delete_orphans(client, ()),  # type: ignore[arg-type]
        one_page(scene.metadata),
    )
    for sweep in sweeps:
        with pytest.raises(MetadataWentBackError):
            await sweep
    assert await datasets.sweep_orphans(0.0, job="j") == []  # It runs after a completed job.


async def one_page(metadata: MemoryStore) -> None:
    """A page of results on which decommissioning and the removal of cookies depend."""
    async for _ in pages_naming(metadata, ME, lambda count: None, Unread()):
        pass


@pytest.mark.parametrize("damage", [b"", b"\x00\xff{", b'{"count": 2'])
async def test_a_mark_that_cannot_be_read_is_a_refusal_that_can_be_accepted(
    scene: Scene, damage: bytes
) -> None:
    guard = scene.start()
    await guard.raise_mark()
    path = mark_path(scene.metadata.uri, ME)
    await scene.metadata.tree.commit(Put(path, damage))
    assert [one.unreadable != "" for one in (await refusals(scene.metadata)).values()] == [True]
    with pytest.raises(MetadataWentBackError, match=f"cannot be read .*{ME}"):
        await check_not_back(scene.metadata)
    for _ in range(2):
        with pytest.raises(MetadataWentBackError, match=f"mark of bookie {ME} .* cannot be read"):
            await guard.raise_mark()
    (waiting,) = (await refusals(scene.metadata)).values()
    assert waiting.unreadable
    assert waiting.remembered.count == 1
    assert await accept(scene.metadata, ME)
    await guard.raise_mark()
    assert guard.may_collect
    await check_not_back(scene.metadata)


async def test_the_unreadable_mark_of_a_removed_bookie_can_be_accepted(scene: Scene) -> None:
    await scene.start().raise_mark()
    await scene.metadata.tree.commit(Put(mark_path(scene.metadata.uri, ME), b"?"))
    assert await accept(scene.metadata, ME)
    await check_not_back(scene.metadata)
    with pytest.raises(MetadataWentBackError):  # it is asked for again once the bookie is back
        await scene.start().check()
