"""Damage on one bookie's disk, from the rotten page to the rewritten segment.

The scrub finds it, the bookie marks it, and autorecovery repairs it. Nobody reads it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.bookie.background.damage import DamageReports
from quire.replication import Autorecovery, AutorecoverySettings
from quire.storage.background import quarantine, salvage
from quire.storage.background.quarantine import Quarantine
from quire.storage.background.quarantine_record import SUFFIX
from quire.storage.background.salvage import Newer
from quire.storage.background.scrub import Findings
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.read.reader import Reader
from quire.storage.segment.segment import LOG_DIRECTORY, LogSegment
from quire_simulator import simulate
from quire_simulator.faults.bit_rot import BitRot, turned
from quire_simulator.world.world import World, bookie_id
from tests.sim.mutants.mutant import edit
from tests.sim.mutants.storage.scrub import (
    damage_is_not_written_down,
    the_scrub_skips_the_last_block,
)
from tests.support.long import long_after
from tests.support.sim.damage import SCRUBBING, Scene
from tests.support.storage.storage import lacks


async def scenario(world: World, *, restart: bool, patience_s: float) -> None:
    chance = world.loop.derive("scenario")
    there = Scene(world, patience_s)
    for name in world.disks:
        await world.start(name, SCRUBBING)
    await there.write()
    metadata = await there.client.ledger_metadata(there.ledgers[0])
    there.victim = metadata.segments[0].ensemble[0].partition(":")[0]
    number, rotten = there.rot(chance)
    await there.until(lambda: lacks(there.store), "the scrub finds it")
    lacking = lacks(there.store)
    assert set(lacking) <= set(there.ledgers)
    assert there.store.stats().damaged_reads == 0  # Only the scrub has read it.
    found = there.store._maintenance.quarantine.records[number].blocks
    assert [n for first, last in found for n in range(first, last + 1)] == rotten
    there.refuses(lacking)
    if restart:
        # The finding is not forgotten. It is not found again, because no round is due.
        await asyncio.sleep(30.0)
        world.crash(there.victim)
        patient = replace(SCRUBBING, scrub_interval_s=0.0)
        await world.start(there.victim, patient)
        await there.until(lambda: lacks(there.store) == lacking, "it is remembered")
        there.refuses(lacking)
    client = world.client("healer")
    settings = AutorecoverySettings(backoff_s=1.0, poll_s=1.0)
    healer = Autorecovery(
        client, "healer", settings=settings, clock=client.clock, rng=world.loop.derive("healer")
    )
    healing = world.network.node("healer").node.create_task(healer.run())
    marked = []
    async with asyncio.timeout(patience_s):
        while not marked:
            marked = [n for n in lacking if await there.locks.marked(n) is not None]
            await asyncio.sleep(0.2)
        mark = await there.locks.marked(marked[0])
    assert mark is None or mark.value.replicas == (bookie_id(there.victim),)
    await there.until(lambda: not lacks(there.store), "all is there once more")
    there.check()
    await there.until(lambda: not there.store.stats().damaged_segments, "it is written anew")
    names = there.world.disks[there.victim].list(LOG_DIRECTORY)
    assert not [name for name in names if name.endswith(SUFFIX)]
    there.check()
    await there.unmarked()
    assert healer.stats.replicas_repaired >= sum(
        last - first + 1 for ranges in lacking.values() for first, last in ranges
    )
    assert there.victim in {b.partition(":")[0] for b in metadata.segments[0].ensemble}
    # Omitted entries exist nowhere else, and a start finds all of them.
    world.crash(there.victim)
    await world.start(there.victim, SCRUBBING)
    assert there.store.usage()[0].number <= number
    there.check()
    healing.cancel()
    await asyncio.wait([healing])
    await client.close()
    await there.client.close()
    for bookie in list(world.bookies.values()):
        await bookie.stop()


def play(seed: int, *, restart: bool, patience_s: float = 900.0) -> None:
    world = World.make(seed, 3)
    world.loop.run(scenario(world, restart=restart, patience_s=patience_s))


@pytest.mark.parametrize("seed", long_after(2, range(4)))
def test_damage_is_found_reported_repaired_and_removed(seed: int) -> None:
    play(seed, restart=bool(seed % 2))


def test_a_bit_that_flips_back_is_not_damage() -> None:
    befell = [
        BitRot("a", {5: (48, 52), 9: (0, 1)}),
        BitRot("a", {5: (52, 48), 7: (3, 2)}),
        BitRot("b", {5: (52, 48)}),
        BitRot("a", {9: (1, 3)}),
    ]

    assert turned(befell[:1]) == {"a": {5: 52, 9: 1}}
    assert turned(befell) == {"a": {7: 2, 9: 3}, "b": {5: 48}}


def test_simulated_bookies_scrub_and_find_bit_rot(monkeypatch: pytest.MonkeyPatch) -> None:
    """They also find what rots, in a run of a general workload that keeps every invariant."""
    found: list[Findings] = []
    take = Quarantine.take

    def noted(self: Quarantine, segment: LogSegment, findings: Findings) -> None:
        found.append(findings)
        take(self, segment, findings)

    monkeypatch.setattr(Quarantine, "take", noted)
    assert simulate(0, "amnesia").failure is None
    assert any(one.clean for one in found)
    assert any(one.blocks for one in found)


# -- defects that the scenario must notice ------------------------------------------------------


def damage_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    edit(patch, DamageReports, "_tell", ("return names(", "return False and names("))


def damage_is_forgotten_on_restart(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Quarantine, "load", ("self._put(segment, record)", "pass"))


def what_is_damaged_counts_as_absent(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Reader, "_some", ("raise problem", "return []"))


def a_segment_is_written_anew_too_early(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Quarantine, "ready", ("not self._alive(record)", "True"))
    edit(patch, salvage, "healthy_extents", ("if left:", "if False:"))


def what_is_healed_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quarantine, "newer_copies", lambda *_: Newer((), ()))


def what_is_healed_stays_in_quarantine(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Quarantine, "ready", ("yield segment", "yield from ()"))


@pytest.mark.parametrize(
    "defect",
    long_after(
        2,
        [
            the_scrub_skips_the_last_block,
            damage_is_not_reported,
            damage_is_forgotten_on_restart,
            damage_is_not_written_down,
            what_is_damaged_counts_as_absent,
            a_segment_is_written_anew_too_early,
            what_is_healed_is_not_noticed,
            what_is_healed_stays_in_quarantine,
        ],
    ),
)
def test_a_defect_is_noticed(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError, NoEntry, pytest.fail.Exception)) as noticed:
        play(1, restart=True, patience_s=120.0)
    print(f"{defect.__name__}: {noticed.value!r:.200}")
