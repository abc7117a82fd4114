"""A ledger with many segments is replicated in linear time.

The metadata grows with the segments and is written once for many. What it names is durable,
whichever process dies in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.core.replicas import Finding, Kind
from quire.errors import QuireError
from quire.replication.moves.rebalance import RebalanceOptions, carry_out
from quire.replication.moves.rebalance_plan import PlannedMove, RebalancePlan
from quire.replication.moves.recover import NoProgress
from quire.replication.repair import bookie_removal as ledger_module
from quire.replication.repair import fragment as fragment_module
from quire.replication.repair.bookie_removal import LedgerOutcome, take_out
from quire.replication.repair.fragment import CopyBatch, CopyOutcome
from quire.replication.repair.opened_ledger import open_for_repair
from quire.replication.repair.repair_findings import repair_ledger
from quire_simulator.world.world import World, bookie_id
from tests.support.long import long_after
from tests.support.sim.replication import (
    audited,
    locks_of,
    name_of,
    payload,
    read_all,
    simulated,
    start,
    write,
)

SEGMENTS, AT_ONCE, BATCHES = 60, 25, 3


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fragment_module, ledger_module):
        monkeypatch.setattr(module, "BATCH_SEGMENTS_MAX", AT_ONCE)


async def in_pieces(client: Client, segments: int = SEGMENTS) -> int:
    """A closed ledger with a segment for each entry, all of them on the same bookies."""
    ledger_id: int = (await write(client, segments)).ledger_id
    stored = await client.metadata.read_ledger(ledger_id)
    ensemble = stored.value.segments[0].ensemble
    pieces = tuple(Segment(first, ensemble) for first in range(segments))
    await client.metadata.write_ledger(
        ledger_id, replace(stored.value, segments=pieces), stored.version
    )
    return ledger_id


async def looked_at(client: Client, ledger_id: int) -> tuple[LedgerMetadata, int]:
    stored = await client.metadata.read_ledger(ledger_id)
    return stored.value, stored.version


def test_one_metadata_write_records_the_copies_of_many_segments() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = await in_pieces(client)
        before, version = await looked_at(client, ledger_id)
        lost = before.segments[0].ensemble[1]
        world.crash(name_of(lost))
        done = await take_out(client, locks_of(world, client), ledger_id, [lost])
        assert (done.work, done.fragments, done.entries) == (LedgerOutcome.DONE, SEGMENTS, SEGMENTS)
        after, now = await looked_at(client, ledger_id)
        assert now - version == BATCHES
        assert not any(lost in one.ensemble for one in after.segments)
        assert await audited(client, [ledger_id]) == []
        assert await read_all(client, ledger_id) == [payload(n) for n in range(SEGMENTS)]
        await client.close()

    simulated(scenario, bookies=4)


def test_repairs_and_moves_are_recorded_in_batches() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = await in_pieces(client)
        before, version = await looked_at(client, ledger_id)
        ensemble = before.segments[0].ensemble
        [spare] = {bookie_id(name) for name in world.disks} - set(ensemble)
        locks = locks_of(world, client)
        moves = tuple(
            PlannedMove(ledger_id, first, 1, ensemble[1], spare, 10, 1) for first in range(SEGMENTS)
        )
        options = RebalanceOptions()
        plan = RebalancePlan(moves, {}, {})
        done = await carry_out(client, locks, plan, options=options, progress=NoProgress())
        assert (done.moved, done.left) == (SEGMENTS, ())
        _, now = await looked_at(client, ledger_id)
        assert now - version == BATCHES
        gone = [Finding(ledger_id, 0, SEGMENTS - 1, spare, Kind.UNREACHABLE, "x")]
        world.crash(name_of(spare))
        repaired = await repair_ledger(client, locks, ledger_id, gone)
        assert (repaired.moved, repaired.left) == (SEGMENTS, [])
        after, last = await looked_at(client, ledger_id)
        assert last - now == BATCHES
        assert not any(spare in one.ensemble for one in after.segments)
        assert await audited(client, [ledger_id]) == []
        await client.close()

    simulated(scenario, bookies=4)


DEATHS = ("process before", "process after", "bookie after", "process at any time")
"""The process that dies, before or after the metadata names a batch."""


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("seed", long_after(1, range(4)))
def test_a_crashing_repair_has_recorded_only_durable_copies(
    death: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        chance = world.loop.derive("chance")
        await start(world, 6)
        client, other = world.client("client"), world.client("other")
        ledger_id = await in_pieces(client)
        before, _ = await looked_at(client, ledger_id)
        ensemble = before.segments[0].ensemble
        world.crash(name_of(ensemble[1]))
        name, victim, batch, number = fragment_module._name, "", 1 + seed % BATCHES, 0

        async def name_and_die(*arguments: Any) -> bool:
            nonlocal victim, number
            number += 1
            if number == batch and death == "process before":
                task.cancel()
                await asyncio.sleep(1)
            done = await name(*arguments)
            if number == batch and death == "process after":
                task.cancel()
            if number == batch and death == "bookie after":
                new = {one for s in arguments[3].segments for one in s.ensemble} - set(ensemble)
                victim = name_of(chance.choice(sorted(new)))
                world.crash(victim)
            return done

        with monkeypatch.context() as patch:
            patch.setattr(fragment_module, "_name", name_and_die)
            locks = locks_of(world, other)
            task = asyncio.ensure_future(take_out(other, locks, ledger_id, [ensemble[1]]))
            if death == "process at any time":
                await asyncio.sleep(chance.random() * 0.2)
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuireError):
                await task
        await other.close()
        if death == "bookie after":
            assert victim
            await world.start(victim)
        else:
            assert task.cancelled()
        after, _ = await looked_at(client, ledger_id)
        named = sum(ensemble[1] not in one.ensemble for one in after.segments)
        if death == "process before":
            assert named == (batch - 1) * AT_ONCE
        assert not [one for one in await audited(client, [ledger_id])
                    if one.kind is not Kind.UNREACHABLE]  # fmt: skip
        done = await take_out(client, locks_of(world, client), ledger_id, [ensemble[1]])
        assert done.work is LedgerOutcome.DONE, done
        assert await audited(client, [ledger_id]) == []
        await client.close()

    simulated(scenario, seed, bookies=6)


def test_only_copies_on_bookies_that_did_not_fail_are_recorded() -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        ledger_id = await in_pieces(client, 40)
        opened = await open_for_repair(client, ledger_id)
        ensemble = opened.metadata.segments[0].ensemble
        good, bad = sorted({bookie_id(name) for name in world.disks} - set(ensemble))
        async with CopyBatch(client, opened) as batch:
            for number, fragment in enumerate(opened.fragments()):
                assert await batch.copy(fragment, {0: (good, bad)[number % 2]})
            world.crash(name_of(bad))
            done = await batch.name()
        assert done.outcome is CopyOutcome.DONE
        assert list(done.broken) == [bad]
        assert sorted(done.named) == list(range(0, 40, 2))
        after, _ = await looked_at(client, ledger_id)
        assert [one.ensemble[0] for one in after.segments] == [good, ensemble[0]] * 20
        await client.close()

    simulated(scenario)


def test_a_conflicting_change_records_no_copy_and_shrinks_the_next_batches() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = await in_pieces(client, 90)
        opened = await open_for_repair(client, ledger_id)
        ensemble = opened.metadata.segments[0].ensemble
        [spare] = {bookie_id(name) for name in world.disks} - set(ensemble)
        first, second, *_ = opened.fragments()
        async with CopyBatch(client, opened, segments_max=2) as batch:
            assert await batch.copy(first, {0: spare})
            assert not await batch.copy(first, {1: spare}), "a segment is once in a batch"
            stored = await client.metadata.read_ledger(ledger_id)
            changed = replace(stored.value, custom={"by": b"somebody"})
            await client.metadata.write_ledger(ledger_id, changed, stored.version)
            assert await batch.copy(second, {0: spare})
            assert batch.full
            conflict = await batch.name()
            assert (conflict.outcome, conflict.named) == (CopyOutcome.CONFLICT, frozenset())
            # The next batch follows the current state.
            assert await batch.copy(second, {0: spare})
            assert (await batch.name()).named == {second.first}
        # A client that changes the metadata all the time does not prevent the copies from being
        # named.
        stop = asyncio.Event()

        async def meddle() -> None:
            while not stop.is_set():
                await asyncio.sleep(0.02)
                with contextlib.suppress(QuireError):
                    there = await client.metadata.read_ledger(ledger_id)
                    await client.metadata.write_ledger(ledger_id, there.value, there.version)

        meddling = asyncio.ensure_future(meddle())
        world.crash(name_of(ensemble[1]))
        locks = locks_of(world, client)
        for _ in range(20):
            done = await take_out(client, locks, ledger_id, [ensemble[1]])
            if done.work is LedgerOutcome.DONE:
                break
        stop.set()
        await meddling
        assert done.work is LedgerOutcome.DONE
        assert await audited(client, [ledger_id]) == []
        await client.close()

    simulated(scenario, bookies=4)
