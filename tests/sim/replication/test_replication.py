"""Replicas checked and copied on simulated bookies.

Client, network and disks are those of the simulator, with crashes and other replicators in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from dataclasses import replace
from typing import Any

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.core.append.quorum import write_set
from quire.core.fragments import stored_by
from quire.core.replicas import Bad, Copies
from quire.errors import LedgerClosedError, LedgerFencedError, QuireError
from quire.replication import (
    Kind,
    LedgerOutcome,
    move_of,
    repair_ledger,
    take_out,
)
from quire.replication.budget import Budget
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.repair import fragment as fragment_module
from quire.replication.repair.bookie_removal import OpenLedgerState
from quire.replication.repair.fragment import part_of
from quire.replication.repair.opened_ledger import open_for_repair
from quire.replication.repair.recovery_adds import RecoveryAdds
from quire.replication.repair.replica_reader import ReplicaReader
from quire.replication.repair.replica_source import ReplicaSource
from quire_simulator.world.world import CLIENT_CONFIG, World, bookie_id
from tests.support.long import long_after
from tests.support.sim.replication import (
    PLAIN,
    STRIPED,
    audited,
    has,
    locks_of,
    name_of,
    payload,
    read_all,
    simulated,
    start,
    write,
)

SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "5"))
DAMAGED_SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "4"))
"""Four ledgers each, looked at twice and repaired: seconds for some."""


@pytest.mark.parametrize("quorums", [PLAIN, STRIPED], ids=["plain", "striped"])
def test_a_replacement_gets_exactly_the_entries_of_its_position(
    quorums: tuple[int, int, int],
) -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        writer = await write(client, 700, quorums)
        ledger_id = writer.ledger_id
        metadata = await client.ledger_metadata(ledger_id)
        lost = metadata.segments[0].ensemble[1]
        world.crash(name_of(lost))
        move = await move_of(client, ledger_id, lost)
        assert move is not None
        assert (move.fragments, move.open) == (1, False)
        locks = locks_of(world, client)
        await locks.mark(ledger_id, [lost])
        done = await take_out(client, locks, ledger_id, [lost])
        assert (done.work, done.fragments, done.reason) == (LedgerOutcome.DONE, 1, "")
        ensemble = (await client.ledger_metadata(ledger_id)).segments[0].ensemble
        assert lost not in ensemble
        expected = list(stored_by(metadata, 1, 0, 699))
        assert done.entries == move.entries == len(expected)
        assert await has(client, ledger_id, ensemble[1]) == expected
        assert await locks.marked(ledger_id) is None
        assert await audited(client, [ledger_id]) == []
        assert await read_all(client, ledger_id) == [payload(n) for n in range(700)]
        again = await take_out(client, locks, ledger_id, [lost])
        assert (again.work, again.fragments, again.entries) == (LedgerOutcome.DONE, 0, 0)
        await client.close()

    simulated(scenario)


@pytest.mark.parametrize("slow_target", [False, True])
@pytest.mark.parametrize("rate", [None, 1 << 20, 4 << 20])
def test_a_copy_under_a_budget_is_sent_in_slices(
    monkeypatch: pytest.MonkeyPatch, rate: int | None, slow_target: bool
) -> None:
    """A concurrent writer waits for at most one slice on the source and on the target's disk."""
    slices: list[int] = []
    unanswered: list[int] = []
    real = RecoveryAdds.write

    async def write_slice(self: RecoveryAdds, copies: Copies) -> None:
        slices.append(copies.size_bytes)
        await real(self, copies)
        unanswered.append(self._unacked_bytes)

    monkeypatch.setattr(RecoveryAdds, "write", write_slice)

    async def scenario(world: World) -> None:
        ids = await start(world, 4)
        client = world.client("client")
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for _ in range(16):
            await writer.append_many([bytes(1_000)] * 200)
        await writer.close()
        ensemble = writer.metadata.last_segment.ensemble
        world.crash(name_of(ensemble[0]))
        [target] = set(ids) - set(ensemble)
        if slow_target:
            for disk in world.disks_of(name_of(target)):
                disk.slowness = 25.0
        began, budget = world.loop.time(), Budget(rate)
        done = await take_out(
            client, locks_of(world, client), writer.ledger_id, [ensemble[0]], budget=budget
        )
        assert (done.work, done.entries) == (LedgerOutcome.DONE, 3_200)
        took_s = world.loop.time() - began
        if rate is not None:
            assert max(slices) <= budget.slice_bytes(1 << 20) <= rate / 60
            assert max(unanswered) <= 4.2 * budget.slice_bytes(1 << 20)
            assert took_s >= 0.9 * sum(slices) / rate  # in full
        else:
            assert max(slices) > 500_000
        if rate is not None and not slow_target:
            assert took_s <= 1.2 * sum(slices) / rate  # not much slower than it may be

    simulated(scenario)


def test_a_lost_bookie_of_an_empty_segment_is_replaced() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        writer = await write(client, 0)
        lost = (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble[0]
        world.crash(name_of(lost))
        done = await take_out(client, locks_of(world, client), writer.ledger_id, [lost])
        assert (done.work, done.fragments, done.entries) == (LedgerOutcome.DONE, 1, 0)
        assert lost not in (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble
        await client.close()

    simulated(scenario)


def test_an_open_ledger_without_progress_is_recovered_after_the_grace_period() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 50, close=False)
        ledger_id = writer.ledger_id
        lost = (await other.ledger_metadata(ledger_id)).segments[0].ensemble[2]
        locks = locks_of(world, other)
        world.crash(name_of(lost))
        left = await take_out(other, locks, ledger_id, [lost])
        assert left.work is LedgerOutcome.OPEN
        await writer.append(payload(50))  # it lives: the bookie is replaced from here on
        written = await take_out(other, locks, ledger_id, [lost], before=left.seen)
        # The complete part was copied, and the rest belongs to the writer.
        assert written.work is LedgerOutcome.DONE
        assert not written.recovered
        metadata = await other.ledger_metadata(ledger_id)
        assert metadata.state is LedgerState.OPEN
        assert not any(lost in segment.ensemble for segment in metadata.segments)
        await writer.append(payload(51))
        await client.close()
        await other.close()

    simulated(scenario)


def test_the_dead_writer_of_an_open_ledger_is_fenced_after_the_grace_period() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 50, close=False)
        ledger_id = writer.ledger_id
        lost = (await other.ledger_metadata(ledger_id)).segments[0].ensemble[2]
        locks = locks_of(world, other)
        world.crash(name_of(lost))
        await client.close()
        left = await take_out(other, locks, ledger_id, [lost])
        assert left.work is LedgerOutcome.OPEN
        done = await take_out(other, locks, ledger_id, [lost], before=left.seen)
        assert (done.work, done.recovered) == (LedgerOutcome.DONE, True)
        metadata = await other.ledger_metadata(ledger_id)
        assert metadata.closed
        assert metadata.last_entry_id == 49
        assert not any(lost in segment.ensemble for segment in metadata.segments)
        assert await read_all(other, ledger_id) == [payload(n) for n in range(50)]
        await other.close()

    simulated(scenario)


def test_an_idle_writer_is_not_fenced_while_no_bookie_can_replace_the_lost_one() -> None:
    """It once lost its ledger, although the ledger had no more copies afterwards than before."""

    async def scenario(world: World) -> None:
        ids = await start(world, 3)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 50, close=False)
        ledger_id = writer.ledger_id
        lost = ids[2]
        locks = locks_of(world, other)
        world.kill(name_of(lost))
        seen = OpenLedgerState.of(await open_for_repair(other, ledger_id))
        for before in (None, seen):
            left = await take_out(other, locks, ledger_id, [lost], before=before)
            assert left.work is LedgerOutcome.FAILED
            assert "every writable bookie is in the ensemble already" in left.reason
            assert "The ledger is open, and stays open" in left.reason
        assert (await other.ledger_metadata(ledger_id)).state is LedgerState.OPEN
        await writer.append(payload(50))
        await world.start("bookie-3")
        await writer.append(payload(51))  # the writer now replaces the bookie itself
        done = await take_out(other, locks, ledger_id, [lost], before=seen)
        assert (done.work, done.fragments, done.recovered) == (LedgerOutcome.DONE, 1, False)
        assert (await other.ledger_metadata(ledger_id)).state is LedgerState.OPEN
        await client.close()
        await other.close()

    simulated(scenario)


@pytest.mark.parametrize(
    "spare", [True, False], ids=["a spare bookie", "a bookie that comes later"]
)
def test_an_idle_writer_replaces_a_lost_bookie_unless_it_never_appended(spare: bool) -> None:
    """The second writer has no connection yet, so it does not see that the bookie is gone."""

    async def scenario(world: World) -> None:
        ids = await start(world, 4 if spare else 3)
        client, other = world.client("client"), world.client("other")
        idle = await write(client, 50, close=False)
        silent = await write(client, 0, close=False)
        ensembles = [
            (await other.ledger_metadata(one.ledger_id)).segments[0].ensemble
            for one in (idle, silent)
        ]
        lost = next(one for one in ids if all(one in ensemble for ensemble in ensembles))
        world.kill(name_of(lost))
        await asyncio.sleep(20)
        if not spare:
            await world.start("bookie-3")
            await asyncio.sleep(20)
        locks = locks_of(world, other)
        kept = await take_out(other, locks, idle.ledger_id, [lost])
        assert (kept.work, kept.recovered) == (LedgerOutcome.DONE, False)
        left = await take_out(other, locks, silent.ledger_id, [lost])
        assert left.work is LedgerOutcome.OPEN
        done = await take_out(other, locks, silent.ledger_id, [lost], before=left.seen)
        assert (done.work, done.recovered) == (LedgerOutcome.DONE, True)
        await idle.append(payload(50))
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await silent.append(payload(0))
        assert not any(
            lost in segment.ensemble
            for segment in (await other.ledger_metadata(idle.ledger_id)).segments
        )
        await client.close()
        await other.close()

    simulated(scenario)


def test_the_attempt_after_a_failed_recovery_recovers_at_once() -> None:
    """The state after the failure once lacked the ledger's creation, so it never was the same."""

    async def scenario(world: World) -> None:
        await start(world, 4)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 50, close=False)
        ledger_id = writer.ledger_id
        first, second, _ = (await other.ledger_metadata(ledger_id)).segments[0].ensemble
        locks = locks_of(world, other)
        for lost in (first, second):
            world.crash(name_of(lost))
        await client.close()
        left = await take_out(other, locks, ledger_id, [first])
        assert left.work is LedgerOutcome.OPEN
        for _ in range(2):
            left = await take_out(other, locks, ledger_id, [first], before=left.seen)
            assert left.work is LedgerOutcome.FAILED, "the writer is fenced: it needs no time"
            assert left.seen is not None
        await other.close()

    simulated(scenario)


def test_a_ledger_locked_by_another_process_is_skipped() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 50)
        lost = (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble[0]
        world.crash(name_of(lost))
        async with locks_of(world, other, "host-2").hold(writer.ledger_id):
            done = await take_out(client, locks_of(world, client), writer.ledger_id, [lost])
        assert done.work is LedgerOutcome.LOCKED
        assert "host-2" in done.reason
        assert lost in (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble
        done = await take_out(client, locks_of(world, client), writer.ledger_id, [lost])
        assert done.work is LedgerOutcome.DONE
        await client.close()
        await other.close()

    simulated(scenario)


def test_a_lock_is_released_if_its_holder_is_cancelled_at_any_point() -> None:
    """Cancelled while the store created the lock, it once stayed as long as the session."""
    seen: set[bool] = set()

    async def scenario(world: World) -> None:
        world.metadata_delay_s = 0.01
        client = world.client("client")

        async def hold(locks: ReplicationLocks) -> None:
            async with locks.hold(7):
                await asyncio.Event().wait()

        for milliseconds in range(60):
            holding = asyncio.ensure_future(hold(locks_of(world, client)))
            await asyncio.sleep(milliseconds / 1_000)
            seen.add(await locks_of(world, client).held_by(7) is not None)
            holding.cancel()
            await asyncio.wait([holding])
            async with locks_of(world, client).hold(7) as lock:
                assert lock.ledger_id == 7
        await client.close()

    simulated(scenario)
    assert seen == {False, True}


def test_a_mark_that_was_set_again_meanwhile_is_kept() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        locks = locks_of(world, client)
        await locks.mark(7, ["a:1"])
        async with locks.hold(7) as lock:
            await locks.mark(7, ["b:1"])
            await locks.replicated(lock)
        marked = await locks.marked(7)
        assert marked is not None
        assert marked.value.replicas == ("a:1", "b:1")
        await locks.mark(7, ["a:1"])  # it may have been lost once more, so the version is new
        again = await locks.marked(7)
        assert again is not None
        assert (again.value, again.version) == (marked.value, marked.version + 1)
        async with locks.hold(7) as lock:
            await locks.replicated(lock)
        assert await locks.marked(7) is None
        await client.close()

    simulated(scenario)


def test_an_entry_without_a_good_replica_fails_the_repair_of_its_ledger() -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        writer = await write(client, 50)
        before = await client.ledger_metadata(writer.ledger_id)
        for lost in before.segments[0].ensemble:
            world.crash(name_of(lost))
        lost = before.segments[0].ensemble[0]
        done = await take_out(client, locks_of(world, client), writer.ledger_id, [lost])
        assert done.work is LedgerOutcome.FAILED
        assert "no replica of entry 0" in done.reason
        assert await client.ledger_metadata(writer.ledger_id) == before
        await client.close()

    simulated(scenario)


@pytest.mark.parametrize("quorums", [PLAIN, STRIPED], ids=["plain", "striped"])
@pytest.mark.parametrize("seed", long_after(2, range(SEEDS)))
def test_concurrent_crashing_replicators_lose_no_entry(
    seed: int, quorums: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicators that do not respect each other's locks, one of which dies at any moment, also
    between the copy and the compare-and-swap; and power is lost where a copy was just named."""

    async def scenario(world: World) -> None:
        chance: random.Random = world.loop.derive("scenario")
        await start(world, 6)
        client = world.client("writer")
        ids = [(await write(client, chance.randrange(1, 400), quorums)).ledger_id for _ in "abc"]
        contents = {ledger: await read_all(client, ledger) for ledger in ids}
        lost = (await client.ledger_metadata(ids[0])).segments[0].ensemble[0]
        world.crash(name_of(lost))

        async def replicate(name: str) -> None:
            own = world.client(name)
            # Locks that do not hold: two sessions, each of which believes that it is alone.
            locks = locks_of(world, own)
            locks.root += f"-{name}"
            try:
                for ledger in ids:
                    await take_out(own, locks, ledger, [lost])
            finally:
                await own.close()

        before = {
            ledger: set((await client.ledger_metadata(ledger)).segments[0].ensemble)
            for ledger in ids
        }
        swap = fragment_module._name
        victim = ""

        async def swap_and_crash(*arguments: Any) -> bool:
            nonlocal victim
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.05)
            done = await swap(*arguments)
            if done and not victim and chance.random() < 0.5:
                # Power loss on a new bookie in the moment in which it is named.
                _, ledger_id, _, named = arguments
                new = {bookie for s in named.segments for bookie in s.ensemble} - before[ledger_id]
                victim = name_of(chance.choice(sorted(new)))
                world.crash(victim)
            return done

        monkeypatch.setattr(fragment_module, "_name", swap_and_crash)
        tasks = [asyncio.ensure_future(replicate(name)) for name in ("one", "two")]
        await asyncio.sleep(chance.random() * 0.2)
        tasks[chance.randrange(2)].cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, QuireError):
                await task
        if victim:
            await world.start(victim)
        locks = locks_of(world, client)
        for ledger in ids:
            # A replicator that met the power loss has given up some ledgers.
            done = await take_out(client, locks, ledger, [lost])
            assert done.work is LedgerOutcome.DONE, done
            metadata = await client.ledger_metadata(ledger)
            for segment in metadata.segments:
                assert lost not in segment.ensemble
                assert len(set(segment.ensemble)) == len(segment.ensemble)
        assert await audited(client, ids) == []
        for ledger in ids:
            assert await read_all(client, ledger) == contents[ledger]
        await client.close()

    simulated(scenario, seed, 6)


def test_a_repair_fixes_the_problems_that_an_audit_names() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        whole = (await write(client, 300)).ledger_id
        writer = await write(client, 100, close=False)
        short = writer.ledger_id
        late = await client.create_ledger(password=b"pw")
        hollow = late.ledger_id
        world.kill("bookie-2")
        for one, entries in ((writer, range(100, 160)), (late, range(40))):
            await one.append_many([payload(entry) for entry in entries])
            await one.close()
        down = bookie_id("bookie-2")
        found = await audited(client, [whole, short, hollow])
        assert {(one.ledger, one.bookie, one.kind) for one in found} == {
            (ledger, down, Kind.UNREACHABLE) for ledger in (whole, short, hollow)
        }
        await world.start("bookie-2")
        found = await audited(client, [whole, short, hollow])
        assert [(one.ledger, one.first, one.last, one.bookie, one.kind) for one in found] == [
            (short, 100, 159, down, Kind.SHORT),
            (hollow, 0, 39, down, Kind.MISSING),
        ]
        locks = locks_of(world, client)
        for ledger in (short, hollow):
            mine = [one for one in found if one.ledger == ledger]
            repaired = await repair_ledger(client, locks, ledger, mine)
            assert repaired.left == []
            assert repaired.moved == 0
        assert await audited(client, [whole, short, hollow]) == []
        assert await has(client, short, down) == list(range(160))
        await client.close()

    simulated(scenario, bookies=3)


def test_replicas_that_differ_are_named_and_the_majority_wins() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        for quorums in (PLAIN, STRIPED):
            ledger_id = (await write(client, 5_000, quorums)).ledger_id
            ledger = await open_for_repair(client, ledger_id)
            ensemble = ledger.metadata.segments[0].ensemble
            # Entry 4,500 is the first of a write set that begins with this member.
            liar = ensemble[4_500 % len(ensemble)]
            length = sum(len(payload(n)) for n in range(4_501))
            lie = Copies([4_500], [b"?" * len(payload(4_500))], [length])
            async with RecoveryAdds(client, ledger, liar) as adds:
                await adds.write(lie)
            found = await audited(client, [ledger_id])
            assert [(one.first, one.last, one.bookie, one.kind) for one in found] == [
                (4_500, 4_500, liar, Kind.DIFFERENT)
            ]
            repaired = await repair_ledger(client, locks_of(world, client), ledger_id, found)
            assert (repaired.written_back, repaired.moved, repaired.left) == (1, 0, [])
            assert await audited(client, [ledger_id]) == []
        await client.close()

    simulated(scenario)


class Damaged:
    """Ledgers whose damage is chosen at random, and what is then true of each entry on each member:
    worked out from the rules, entry by entry."""

    def __init__(self, world: World, client: Client) -> None:
        self._chance: random.Random = world.loop.derive("damage")
        self._client = client
        self.expected: dict[tuple[int, int, str], Kind] = {}
        self.lost: set[tuple[int, int]] = set()
        """(ledger, entry) pairs whose right contents are unknown."""

    async def make(self, quorums: tuple[int, int, int]) -> int:
        entries = self._chance.choice((1, 7, 300, 5_000))
        ledger_id: int = (await write(self._client, entries, quorums)).ledger_id
        ledger = await open_for_repair(self._client, ledger_id)
        metadata = ledger.metadata
        copies = await ReplicaSource(self._client, ledger).read(
            metadata.segments[0].ensemble, range(entries)
        )
        ensemble = list(metadata.segments[0].ensemble)
        # Replace one member by a bookie that lacks entries, or has different ones.
        index = self._chance.randrange(len(ensemble))
        bookies = await self._client.bookies()
        ensemble[index] = self._chance.choice(sorted({*bookies.writable} - {*ensemble}))
        mine = list(stored_by(metadata, index, 0, entries - 1))
        gone = self._some(mine)
        kept = [entry for entry in mine if entry not in gone]
        lies = set(self._chance.sample(kept, min(len(kept), self._chance.randrange(3))))
        honest = part_of(copies, kept)
        told = [b"?" + one if entry in lies else one for entry, one in zip(kept, honest.payloads)]
        async with RecoveryAdds(self._client, ledger, ensemble[index]) as adds:
            await adds.write(Copies(kept, told, honest.lengths))
        segment = replace(metadata.segments[0], ensemble=tuple(ensemble))
        await self._client.metadata.write_ledger(
            ledger_id, replace(metadata, segments=(segment,)), ledger.stored.version
        )
        for entry in gone:
            # Only this member lacks something, and all other copies exist.
            short = metadata.write_quorum - 1 >= metadata.ack_quorum
            short = short and bool(kept) and entry > kept[-1]
            self.expected[ledger_id, entry, ensemble[index]] = Kind.SHORT if short else Kind.MISSING
        for entry in lies:
            members = write_set(entry, metadata.ensemble_size, metadata.write_quorum)
            undecided = len(members) == 2
            for member in members if undecided else (index,):
                self.expected[ledger_id, entry, ensemble[member]] = Kind.DIFFERENT
            if undecided:
                self.lost.add((ledger_id, entry))
        return ledger_id

    def _some(self, mine: list[int]) -> set[int]:
        """Return all entries, a tail, entries with holes, or none."""
        cut = self._chance.randrange(len(mine) + 1)
        return {
            0: set(mine),
            1: set(mine[cut:]),
            2: set(mine[cut : cut + self._chance.randrange(1, 200)]),
            3: set(self._chance.sample(mine, min(len(mine), 5))),
            4: set[int](),
        }[self._chance.randrange(5)]


@pytest.mark.parametrize("seed", long_after(2, range(DAMAGED_SEEDS)))
def test_random_damage_is_named_entry_by_entry_and_repaired(seed: int) -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        damaged = Damaged(world, client)
        shapes = (PLAIN, STRIPED, (4, 2, 2), (3, 3, 3))
        ids = [await damaged.make(quorums) for quorums in shapes]
        found = await audited(client, ids)
        named = {}
        for one in found:
            metadata = await client.ledger_metadata(one.ledger)
            index = metadata.segments[0].ensemble.index(one.bookie)
            for entry in stored_by(metadata, index, one.first, one.last):
                named[one.ledger, entry, one.bookie] = one.kind
        assert named == damaged.expected
        locks = locks_of(world, client)
        left = []
        for ledger in ids:
            mine = [one for one in found if one.ledger == ledger]
            left += (await repair_ledger(client, locks, ledger, mine)).left
        assert {(one.ledger, one.first) for one in left} == damaged.lost
        again = await audited(client, ids)
        assert {(one.ledger, one.first) for one in again} == damaged.lost
        await client.close()

    simulated(scenario, seed)


def test_other_lacs_and_digests_are_no_difference() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ledger_id = (await write(client, 200)).ledger_id
        ledger = await open_for_repair(client, ledger_id)
        bookie = ledger.metadata.segments[0].ensemble[0]
        copies = await ReplicaSource(client, ledger).read(
            ledger.metadata.segments[0].ensemble, range(50)
        )
        async with RecoveryAdds(client, ledger, bookie) as adds:  # with the LAC of the whole ledger
            await adds.write(copies)
        assert await audited(client, [ledger_id]) == []
        await client.close()

    simulated(scenario)


def test_a_bookie_that_dies_during_a_read_is_unreachable_from_there_on() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        writer = await write(client, 20_000)
        ledger = await open_for_repair(client, writer.ledger_id)
        bookie = ledger.metadata.segments[0].ensemble[0]
        reader = ReplicaReader(client, writer.ledger_id, ledger.metadata, ledger.codec, bookie)
        read = 0
        parts = []
        async for part in reader.parts(0, 0, 19_999):
            parts.append(part)
            if isinstance(part, Copies):
                read += len(part.ids)
            if len(parts) == 3:
                world.crash(name_of(bookie))
        last = parts[-1]
        assert isinstance(last, Bad)
        assert 0 < read < 20_000
        assert (last.first, last.last, last.kind) == (read, 19_999, Kind.UNREACHABLE)
        await client.close()

    simulated(scenario)


def test_a_frozen_bookie_times_out_once_not_for_every_ledger() -> None:
    """Its connections stay open, and it sends nothing."""

    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        ids = [(await write(client, 40)).ledger_id for _ in range(20)]
        ensembles = [(await client.ledger_metadata(n)).segments[0].ensemble for n in ids]
        lost, frozen = ensembles[0][:2]
        world.crash(name_of(lost))
        world.network.stop(name_of(frozen))
        began = world.loop.time()
        found = await audited(client, ids)
        assert {one.bookie for one in found} == {lost, frozen}
        assert {one.kind for one in found} == {Kind.UNREACHABLE}
        locks = locks_of(world, client)
        for ledger in ids:
            # A copy that was sent to the frozen bookie is abandoned, and another bookie gets it.
            done = await take_out(client, locks, ledger, [lost])
            assert done.work is LedgerOutcome.DONE, done
        assert world.loop.time() - began < 20 * CLIENT_CONFIG.read_timeout_s
        world.network.cont(name_of(frozen))
        for ledger in ids:
            assert (await take_out(client, locks, ledger, [lost])).work is LedgerOutcome.DONE
        assert await audited(client, ids) == []
        await client.close()

    simulated(scenario)


def test_a_reader_of_one_replica_returns_each_entry_once_in_order() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        for quorums in (PLAIN, STRIPED):
            writer = await write(client, 3_000, quorums)
            ledger = await open_for_repair(client, writer.ledger_id)
            ensemble = ledger.metadata.segments[0].ensemble
            for index, bookie in enumerate(ensemble):
                reader = ReplicaReader(
                    client, writer.ledger_id, ledger.metadata, ledger.codec, bookie
                )
                ids, payloads = [], []
                async for part in reader.parts(index, 5, 2_990):
                    ids += part.ids
                    payloads += part.payloads
                assert ids == list(stored_by(ledger.metadata, index, 5, 2_990))
                assert payloads == [payload(n) for n in ids]
        await client.close()

    simulated(scenario)
