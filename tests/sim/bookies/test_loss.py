"""A bookie whose log has lost unknown data, from the first start to its full recovery.

Until then it reports absence as unknown, never as "no such entry".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.bookie.background import damage
from quire.bookie.background.damage import DamageReports
from quire.errors import LedgerFencedError
from quire.replication.autorecovery.worker import ReplicationWorker
from quire.storage.background.sealer import Sealer
from quire.storage.directory import read_identity
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.recovery.scan import read_segment_header, scan_groups
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.world import World
from tests.sim.mutants.mutant import edit
from tests.support.long import long_after
from tests.support.sim.damage import SCRUBBING, Scene
from tests.support.sim.loss import heal

PATIENT = replace(SCRUBBING, scrub_interval_s=0.0)


def lose_a_group(disk: SimDisk, number: int) -> None:
    """Damage the run table of a group that is not the last, so that its contents are unknown."""
    identity = read_identity(disk)
    assert identity is not None
    file = disk.open(segment_name(number))
    header = read_segment_header(file, identity.directory_id, number)
    assert header is not None
    scan = scan_groups(file, identity.directory_id, number, header.size_bytes)
    file.close()
    group = scan.groups[len(scan.groups) // 2]
    assert group is not scan.groups[-1]
    disk.flip_bit(segment_name(number), group.header.offset + 100)


async def scenario(world: World, *, whole_segment: bool, patience_s: float) -> None:
    there = Scene(world, patience_s)
    for name in world.disks:
        await world.start(name, PATIENT)
    there.victim = victim = "bookie-1"
    # A ledger that was closed while its writer lives, and one whose writer does nothing any more.
    writers = [
        await there.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for _ in range(2)
    ]
    for writer in writers:
        await writer.append_many([b"%d" % n for n in range(20)])
    recoverer = world.client("recoverer")
    await recoverer.open_ledger(writers[0].ledger_id, recover=True)
    await there.write()
    for n in range(6):  # groups of their own, in the segment that is not sealed
        await writers[1].append(b"late %d" % n)
    numbers = [one.number for one in there.store.usage()]
    world.crash(victim)
    if whole_segment:
        world.disks[victim].remove(segment_name(numbers[0]))
    else:
        lose_a_group(world.disks[victim], numbers[-1])
    await world.start(victim, PATIENT)
    store, reports = there.store, world.bookies[victim].damage_reports
    assert isinstance(reports, DamageReports)
    assert store.negatives_unknown
    assert not store.writable
    await there.until(lambda: reports.wanting, "a round over all ledgers has found what lacks")
    assert not reports.losses_repaired
    client = world.client("healer")
    healing = heal(world, client)
    await there.until(lambda: not store.negatives_unknown, "nothing lacks any more")
    assert store.writable
    assert reports.losses_repaired == 1
    there.check()
    for writer in writers:
        assert len(there.read(writer.ledger_id, 0)) > 0
        assert store.ledgers[writer.ledger_id].fence_durable
        with pytest.raises(LedgerFencedError):
            await writer.append(b"late")
    await there.until(
        lambda: not [one for one in store.usage() if one.state == "closed"],
        "what is left of the segment is sealed",
    )
    await takes_ledgers_again(world, there)
    # The remaining part of the segment is rewritten.
    await there.until(lambda: there.store.stats().scrub_rounds, "all was looked at")
    await there.until(lambda: not there.store.stats().damaged_segments, "nothing is damaged")
    there.check()
    healing.cancel()
    await asyncio.wait([healing])
    for one in (client, recoverer, there.client):
        await one.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


async def takes_ledgers_again(world: World, there: Scene) -> None:
    """Check that it accepts ledgers again, and that another start reports no loss."""
    for again in range(2):
        late = await there.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await late.append(b"%d" % again)
        await late.close()
        world.crash(there.victim)
        await world.start(there.victim, PATIENT if not again else SCRUBBING)
        assert not there.store.negatives_unknown
        there.check()


def play(seed: int, *, whole_segment: bool, patience_s: float = 3_000.0) -> None:
    world = World.make(seed, 3)
    work = scenario(world, whole_segment=whole_segment, patience_s=patience_s)
    world.loop.run(work)


@pytest.mark.parametrize("whole_segment", [True, False])
def test_lost_entries_are_restored_and_absence_is_proven_again(whole_segment: bool) -> None:
    play(0, whole_segment=whole_segment)


# -- a second loss ------------------------------------------------------------------------------


async def lose_again(world: World, *, restart: bool) -> None:
    """Lose a segment, repair the loss, and lose another segment that was there all the time."""
    there = Scene(world, 3_000.0)
    for name in world.disks:
        await world.start(name, PATIENT)
    there.victim = victim = "bookie-1"
    await there.write()
    numbers = [one.number for one in there.store.usage()]
    world.crash(victim)
    world.disks[victim].remove(segment_name(numbers[0]))
    await world.start(victim, PATIENT)
    assert there.store.negatives_unknown
    client = world.client("healer")
    healing = heal(world, client)
    await there.until(lambda: not there.store.negatives_unknown, "nothing lacks any more")
    healing.cancel()
    await asyncio.wait([healing])
    await asyncio.sleep(1.0)
    if restart:
        world.crash(victim)
        await world.start(victim, PATIENT)
        assert not there.store.negatives_unknown
    world.crash(victim)
    world.disks[victim].remove(segment_name(numbers[1]))
    await world.start(victim, PATIENT)
    assert there.store.negatives_unknown, "the second loss counts as repaired by the first repair"
    assert not there.store.writable
    healing = heal(world, client)
    await there.until(lambda: not there.store.negatives_unknown, "nothing lacks any more")
    there.check()
    healing.cancel()
    await asyncio.wait([healing])
    world.crash(victim)
    await world.start(victim, PATIENT)
    assert not there.store.negatives_unknown
    for one in (client, there.client):
        await one.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


@pytest.mark.parametrize("restart", [False, True])
def test_a_loss_after_a_repair_is_noticed(restart: bool) -> None:
    world = World.make(0, 3)
    world.loop.run(lose_again(world, restart=restart))


# -- defects that the scenario must notice ------------------------------------------------------


def what_lacks_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    edit(patch, damage, "is_complete", ("if not has_", "if False and not has_"))


def lost_fences_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        damage,
        "is_complete",
        ("not metadata.closed or await _fence", "True or await _fence"),
    )


def the_loss_never_ends(patch: pytest.MonkeyPatch) -> None:
    edit(patch, DamageReports, "_end_round", ("if not self._wanting", "if False"))


def open_ledgers_are_left_open(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ReplicationWorker, "_cannot_tell", ("if newest.closed", "if True"))


def what_is_left_of_a_lost_group_stays(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Sealer, "seal_repaired", ("self.seal(segment)", "pass"))


@pytest.mark.parametrize(
    "defect",
    long_after(
        2,
        [
            what_lacks_is_not_looked_for,
            lost_fences_are_not_restored,
            the_loss_never_ends,
            open_ledgers_are_left_open,
            what_is_left_of_a_lost_group_stays,
        ],
    ),
)
def test_a_defect_is_noticed(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    whole_segment = defect in (what_lacks_is_not_looked_for, lost_fences_are_not_restored)
    with pytest.raises((AssertionError, NoEntry, NoLedger, pytest.fail.Exception)) as noticed:
        play(0, whole_segment=whole_segment, patience_s=700.0)
    print(f"{defect.__name__}: {noticed.value!r:.200}")
