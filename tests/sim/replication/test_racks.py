"""A whole rack is lost during writes, and every acknowledged entry is read without it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.codec.metadata.ledger_metadata import DigestType, LedgerMetadata, Segment
from quire.config import PlacementConfig
from quire.core.placement import RackAware
from quire.errors import NotEnoughBookiesError, ReadError
from quire.replication import Autorecovery, AutorecoverySettings
from quire.replication.autorecovery.settings import AutorecoveryStats
from quire.replication.explain.status import overview
from quire.replication.marks.locks import ReplicationLocks
from quire_simulator.actors.racks import LATE_S, RackInvariants
from quire_simulator.world.world import CLIENT_CONFIG, World, bookie_id
from tests.sim.mutants.mutant import edit

RACKS = {"/a": (0, 1), "/b": (2, 3), "/c": (4, 5), "/d": (6, 7)}
BOOKIES = 8
PATIENCE_S = 600
"""Simulated."""
ENTRIES = 60
SEEDS = range(3)
MUTANT_SEEDS = range(12)

Shape = tuple[int, int, int, int]
SHAPES: list[Shape] = [(2, 2, 2, 2), (3, 3, 2, 3), (4, 3, 2, 3)]
"""Ensemble, write quorum, ack quorum, racks: no rack has an ack quorum of any entry."""


def names(rack: str) -> list[str]:
    return [f"bookie-{number}" for number in RACKS[rack]]


async def lose_and_read(world: World, shape: Shape, seed: int) -> int:
    """Write while one bookie and then a whole rack are lost, then read without each rack in turn.

    Return the number of ensemble changes.
    """
    for name in world.disks:
        await world.start(name)
    table = {bookie_id(name): rack for rack in RACKS for name in names(rack)}
    placement = PlacementConfig(locations=table, min_racks=shape[3], enforce_racks=True)
    config = replace(CLIENT_CONFIG, placement=placement)
    client = world.client("writer", config)
    chance = world.loop.derive(f"racks {seed}")
    lost = chance.choice(sorted(RACKS))
    alone = chance.choice([name for rack in RACKS if rack != lost for name in names(rack)])
    writer = await client.create_ledger(
        ensemble_size=shape[0], write_quorum=shape[1], ack_quorum=shape[2]
    )
    faults = {
        ENTRIES // 4: lambda: world.kill(alone, session_left_s=1.0),
        ENTRIES // 2: lambda: [world.kill(name, session_left_s=2.0) for name in names(lost)],
    }
    acknowledged = []
    async with asyncio.timeout(PATIENCE_S):
        for number in range(ENTRIES):
            if number in faults:
                faults[number]()
            if number == ENTRIES * 3 // 8:
                await world.start(alone)
            acknowledged.append(await writer.append(b"%d" % number))
        last = await writer.close()
        assert acknowledged == list(range(last + 1)) == list(range(ENTRIES))
        for name in names(lost):
            await world.start(name)
        for rack in RACKS:
            for name in names(rack):
                world.kill(name)
            reader = await client.open_ledger(writer.ledger_id)
            read = [entry.payload async for entry in reader.read(0, last)]
            assert read == [b"%d" % number for number in range(ENTRIES)], f"without {rack}"
            for name in names(rack):
                await world.start(name)
    changes = len(writer.metadata.segments)
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()
    return changes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_entry_is_lost_with_a_rack(shape: Shape) -> None:
    changes = 0
    for seed in SEEDS:
        world = World.make(seed, bookies=BOOKIES)
        changes += world.loop.run(lose_and_read(world, shape, seed)) - 1
    assert changes, "no bookie was replaced, so the test proved nothing"


def test_a_placement_that_ignores_racks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A placement that ignores racks is a defect that this test must find."""
    edit(monkeypatch, RackAware, "rules", ("least = self._racks(wanted.write_quorum)", "least = 1"))
    edit(monkeypatch, RackAware, "rank", ("uses)", ")"))
    for seed in MUTANT_SEEDS:
        world = World.make(seed, bookies=BOOKIES)
        try:
            world.loop.run(lose_and_read(world, SHAPES[0], seed))
        except ReadError:
            return
    pytest.fail(f"nothing was noticed in {len(MUTANT_SEEDS)} seeds")


async def acknowledged_without_a_rack(world: World, spread: bool) -> bool:
    """Whether an append returns while the only member of one rack is silent; and it returns when
    that one speaks again."""
    racks = {"bookie-0": "/a", "bookie-1": "/a", "bookie-2": "/b"}
    for name in racks:
        await world.start(name)
    placement = PlacementConfig(locations=racks, spread_acks=spread)
    client = world.client("writer", replace(CLIENT_CONFIG, add_timeout_s=60, placement=placement))
    async with asyncio.timeout(PATIENCE_S):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"first")
        world.network.stop("bookie-2")
        append = asyncio.ensure_future(writer.append(b"second"))
        await asyncio.sleep(5)
        done = append.done()
        world.network.cont("bookie-2")
        assert await append == 1
        await writer.close()
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()
    return done


@pytest.mark.parametrize("spread", [False, True])
def test_an_append_waits_for_two_racks_if_configured(spread: bool) -> None:
    world = World.make(1)
    assert world.loop.run(acknowledged_without_a_rack(world, spread)) is not spread


async def acknowledged_after_a_change(world: World) -> bool:
    """Do the same after a replacement has moved a member to another rack."""
    racks = {"bookie-0": "/a", "bookie-1": "/a", "bookie-2": "/b", "bookie-3": "/b"}
    for name in sorted(racks)[:3]:
        await world.start(name)
    placement = PlacementConfig(locations=racks, spread_acks=True)
    client = world.client("writer", replace(CLIENT_CONFIG, add_timeout_s=60, placement=placement))
    async with asyncio.timeout(PATIENCE_S):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"first")
        await world.start("bookie-3")
        world.kill("bookie-0")
        await writer.append(b"second")
        while bookie_id("bookie-3") not in writer.metadata.last_segment.ensemble:
            await asyncio.sleep(0.1)
        await writer.append(b"third")
        world.network.stop("bookie-1")
        append = asyncio.ensure_future(writer.append(b"fourth"))
        await asyncio.sleep(5)
        done = append.done()
        world.network.cont("bookie-1")
        assert await append == 3
        await writer.close()
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()
    return done


def test_the_racks_of_members_are_looked_up_again_after_a_change() -> None:
    world = World.make(3, bookies=4)
    assert not world.loop.run(acknowledged_after_a_change(world))


async def a_rack_is_missing(world: World) -> None:
    """If no bookie of a second rack is left, the writer fails instead of acknowledging."""
    racks = {"bookie-0": "/a", "bookie-1": "/a", "bookie-2": "/b"}
    for name in racks:
        await world.start(name)
    placement = PlacementConfig(locations=racks, spread_acks=True)
    client = world.client("writer", replace(CLIENT_CONFIG, placement=placement))
    async with asyncio.timeout(PATIENCE_S):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"first")
        world.kill("bookie-2")
        with pytest.raises(NotEnoughBookiesError, match="instead of bookie-2:3181"):
            await writer.append(b"second")
        # Recovery uses the available bookies, because it acknowledges nothing.
        reader = await client.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed in (0, 1)
    await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


def test_a_writer_fails_without_a_second_rack_if_racks_are_enforced() -> None:
    world = World.make(2)
    world.loop.run(a_rack_is_missing(world))


async def moved_when_it_is_wrong(world: World, movable: bool) -> None:
    """A bookie comes to stand in the rack of another. It is counted; with `repair_placement` one of
    the two is replaced, if there is a bookie that helps."""
    racks = {f"bookie-{n}": rack for n, rack in enumerate(("/a", "/b", "/c", "/d"))}
    for name in racks:
        await world.start(name)
    placement = PlacementConfig(locations=racks, min_racks=3, enforce_racks=True)
    clients = [world.client(n, replace(CLIENT_CONFIG, placement=placement)) for n in ("one", "two")]
    writer = await clients[0].create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append_many([b"%d" % number for number in range(ENTRIES)])
    await writer.close()
    before = (await clients[0].ledger_metadata(writer.ledger_id)).segments[0].ensemble
    named = [bookie.partition(":")[0] for bookie in before]
    [spare] = set(racks) - set(named)
    elsewhere = {**racks, named[0]: racks[named[1]]}
    if not movable:
        elsewhere[spare] = racks[named[2]]
    for client in clients:
        client.placement.relocate(elsewhere)
    store = clients[0].metadata

    async def checked(repair: bool) -> AutorecoveryStats:
        """Return what a process reports that has done some checks."""
        settings = AutorecoverySettings(
            placement_check_interval_s=5, repair_placement=repair, ledger_check_interval_s=0,
            poll_s=1, backoff_s=1,
        )  # fmt: skip
        healer = Autorecovery(
            clients[1], "healer", settings=settings, clock=clients[1].clock,
            rng=world.loop.derive("healer"),
        )  # fmt: skip
        running = asyncio.ensure_future(healer.run())
        await asyncio.sleep(60)
        reported = replace(healer.stats)  # a process that has ended reports no check
        running.cancel()
        await asyncio.wait([running])
        return reported

    async with asyncio.timeout(PATIENCE_S):
        counted = await checked(repair=False)
        assert (counted.ledgers_misplaced, counted.ledgers_marked) == (1, 0)
        told = (await overview(store)).placement
        assert told is not None
        assert (told.ledgers, told.misplaced, told.first) == (1, 1, (writer.ledger_id,))
        # A worker without the setting removes the mark and moves nothing, so all must have it.
        locks = ReplicationLocks(store, "auditor", clients[0].clock)
        await locks.mark(writer.ledger_id, [before[0]])
        unmoved = await checked(repair=False)
        assert (await locks.marked(writer.ledger_id), unmoved.fragments_moved) == (None, 0)
        now = (await clients[0].ledger_metadata(writer.ledger_id)).segments[0].ensemble
        assert now == before
        repaired = await checked(repair=True)
    after = (await clients[0].ledger_metadata(writer.ledger_id)).segments[0].ensemble
    told = (await overview(store)).placement
    assert told is not None
    if movable:
        assert repaired.fragments_moved == 1
        assert {racks[named[2]], elsewhere[spare]} < {elsewhere[b.partition(":")[0]] for b in after}
        assert sum(old != new for old, new in zip(before, after)) == 1
        assert repaired.entries_copied == ENTRIES
        assert repaired.replicas_read == 0  # the bookie that was named is no member any more
        assert told.misplaced == 0
    else:
        assert (repaired.ledgers_marked, repaired.entries_copied) == (0, 0)
        assert after == before
        assert told.misplaced == 1
    reader = await clients[0].open_ledger(writer.ledger_id)
    read = [entry.payload async for entry in reader.read(0, ENTRIES - 1)]
    assert read == [b"%d" % number for number in range(ENTRIES)]
    for client in clients:
        await client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


@pytest.mark.parametrize("movable", [True, False])
def test_a_misplaced_ledger_is_counted_and_moved_if_configured(movable: bool) -> None:
    world = World.make(4, bookies=4)
    world.loop.run(moved_when_it_is_wrong(world, movable))


class Judged:
    """The invariants of racks, of ledger 0 alone: bookies "a1" and "a2" are in rack a, and so
    on."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.now_s = 10.0
        self.cluster: Any = SimpleNamespace(
            observer=lambda ledger_id: None,
            read_observer=lambda ledger_id, metadata: None,
            ledger=self._ledger,
        )
        racks = {f"{rack}{number}": rack for rack in "abc" for number in (1, 2)}
        self.world = SimpleNamespace(
            cluster=self.cluster, racks=racks, loop=SimpleNamespace(time=lambda: self.now_s),
            relocated=lambda: None, rack_lost=lambda rack: None,
        )  # fmt: skip
        self._segments: tuple[Segment, ...] = ()
        checker = SimpleNamespace(fail=lambda invariant, what: self.failed.append(invariant))
        stage: Any = SimpleNamespace(world=self.world, checker=checker)
        RackInvariants(stage)

    def _ledger(self, ledger_id: int) -> Any:
        metadata = LedgerMetadata(
            ensemble_size=2, write_quorum=2, ack_quorum=2, segments=self._segments,
            digest=DigestType.CRC32C, password=b"",
        )  # fmt: skip
        return SimpleNamespace(value=metadata)

    def relocate(self, bookie: str, rack: str) -> None:
        self.world.racks = {**self.world.racks, bookie: rack}
        self.world.relocated()

    def stored(self, *ensembles: tuple[str, ...]) -> list[str]:
        self._segments = tuple(Segment(10 * at, one) for at, one in enumerate(ensembles))
        self.cluster.observer(0)
        return self.failed


def test_a_ledger_in_one_rack_may_continue_there() -> None:
    """If its creation was not observed, the first that is known of it is the change."""
    judged = Judged()
    judged.relocate("b1", "a")
    assert judged.stored(("a1", "b1"), ("a1", "a2")) == []
    judged = Judged()
    judged.stored(("a1", "b1"))
    judged.relocate("b1", "a")
    assert judged.stored(("a1", "b1"), ("a1", "a2")) == []


def test_an_ensemble_in_one_rack_is_found() -> None:
    invariant = "an_ensemble_is_in_different_racks"
    assert Judged().stored(("a1", "a2")) == [invariant]
    assert Judged().stored(("a1", "b1"), ("a1", "a2")) == [invariant]
    judged = Judged()
    assert judged.stored(("a1", "b1")) == []
    assert judged.stored(("a1", "b1"), ("c1", "c2")) == [invariant]


@pytest.mark.parametrize("late", [False, True])
def test_a_recently_misplaced_ledger_may_have_changed_in_that_time(late: bool) -> None:
    judged = Judged()
    judged.stored(("a1", "b1"))
    judged.relocate("b1", "a")
    judged.relocate("a1", "c")
    judged.now_s += 2 * LATE_S if late else LATE_S / 2
    found = judged.stored(("a1", "b1"), ("c1", "c2"))
    assert found == (["an_ensemble_is_in_different_racks"] if late else [])
