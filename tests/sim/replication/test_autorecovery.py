"""Autorecovery on simulated bookies, from the death of a bookie to the last copy.

No command is used. The workload `autorecovery` does the same with faults of all kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire.codec.metadata.ledger_metadata import LedgerState
from quire.core.fragments import stored_by
from quire.metadata.ledgers.underreplicated import mark_ledger
from quire.replication import ReplicationLocks, why_not
from quire.replication.autorecovery import worker as worker_module
from quire.replication.autorecovery.autorecovery import SETTLE_S
from quire.replication.autorecovery.worker import ReplicationWorker
from quire.replication.explain.explain import explain_ledger
from quire.replication.explain.status import overview
from quire.replication.marks.notes import LastFailure, last_failure, note_failure
from quire.replication.repair import fragment as fragment_module
from quire.replication.repair.bookie_removal import LedgerOutcome, LedgerResult
from quire.replication.repair.replica_scan import ReplicaScan, scan
from quire_simulator.machine.clock import SimClock
from quire_simulator.world.world import World, bookie_id
from tests.support.sim.autorecovery import ENTRIES, PATIENCE_S, Scene, has_all
from tests.support.sim.cluster import payload
from tests.support.sim.replication import PLAIN, STRIPED, settled
from tests.support.waiting import until


def scene(play: Callable[[Scene], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    world = World.make(seed, 5)

    async def whole() -> None:
        for name in world.disks:
            await world.start(name)
        there = Scene(world)
        await play(there)
        await there.end()
        for bookie in list(world.bookies.values()):
            await bookie.stop()

    world.loop.run(whole())


def name_of(bookie: str) -> str:
    return bookie.partition(":")[0]


@pytest.mark.parametrize("shape", [PLAIN, STRIPED], ids=["plain", "striped"])
def test_only_the_entries_of_a_lost_bookie_are_copied_and_only_once(
    shape: tuple[int, int, int],
) -> None:
    async def play(there: Scene) -> None:
        ledgers = [(await there.ledger(shape)).ledger_id for _ in range(4)]
        empty = (await there.ledger(shape, entries=0)).ledger_id
        lost = (await there.ensemble(ledgers[0]))[1]
        expected = 0
        for ledger_id in ledgers:
            metadata = await there.client.ledger_metadata(ledger_id)
            for index, bookie in enumerate(metadata.segments[0].ensemble):
                if bookie == lost:
                    expected += sum(
                        len(payload(n)) for n in stored_by(metadata, index, 0, ENTRIES - 1)
                    )
        both = [there.begin("one"), there.begin("two")]
        there.world.crash(name_of(lost))
        for ledger_id in (*ledgers, empty):
            await there.whole(ledger_id, lost)
        assert sum(one.stats.bytes_copied for one in both) == expected
        assert sorted(one.stats.elections_won for one in both) == [0, 1]

    scene(play)


def test_a_bookie_that_returns_within_the_delay_causes_no_copies() -> None:
    async def play(there: Scene) -> None:
        ledger_id = (await there.ledger()).ledger_id
        away = (await there.ensemble(ledger_id))[0]
        healer = there.begin("one", lost_bookie_delay_s=60)
        await asyncio.sleep(5.0)
        there.world.kill(name_of(away))
        await asyncio.sleep(50.0)
        await there.world.start(name_of(away))
        await asyncio.sleep(200.0)
        assert healer.stats.ledgers_marked == healer.stats.bytes_copied == 0
        assert (healer.stats.bookies_waited_for, healer.stats.bookies_returned) == (1, 1)
        # Nor does a new auditor begin with it.
        there.world.kill(name_of(away))
        await asyncio.sleep(5.0)
        heir = there.begin("two", lost_bookie_delay_s=60)
        there.world.network.kill("one")
        there._running.pop("one")[0].metadata.expire_session(back=False)  # type: ignore[attr-defined]
        await asyncio.sleep(40.0)
        await there.world.start(name_of(away))
        await asyncio.sleep(100.0)
        assert heir.stats.elections_won == 1
        assert heir.stats.ledgers_marked == heir.stats.bytes_copied == 0

    scene(play)


def test_a_bookie_that_returns_during_the_copies_keeps_the_other_segments() -> None:
    """The bookie keeps its place in segments that were not copied yet."""

    async def play(there: Scene) -> None:
        writer = await there.ledger(close=False)
        first = (await there.ensemble(writer.ledger_id))[0]
        # Another member leaves: a second segment, with the first bookie in it again.
        other = (await there.ensemble(writer.ledger_id))[1]
        there.world.kill(name_of(other))
        await writer.append_many([payload(n) for n in range(ENTRIES, 2 * ENTRIES)])
        await settled(writer)
        await writer.close()
        await there.world.start(name_of(other))
        healer = there.begin("one")
        await asyncio.sleep(5.0)
        copied = asyncio.Event()
        copy = fragment_module._copy

        async def noticed(*arguments: Any) -> None:
            await copy(*arguments)
            if not copied.is_set():
                copied.set()
                await there.world.start(name_of(first))
                await asyncio.sleep(3.0)

        fragment_module._copy = noticed
        try:
            there.world.kill(name_of(first))
            await copied.wait()
            async with asyncio.timeout(PATIENCE_S):
                while not healer.stats.ledgers_done:
                    await asyncio.sleep(0.5)
                assert copied.is_set()
        finally:
            fragment_module._copy = copy
        segments = (await there.client.ledger_metadata(writer.ledger_id)).segments
        assert [first in segment.ensemble for segment in segments] == [False, True]
        assert await there.locks.marked(writer.ledger_id) is None

    scene(play)


def test_a_dead_writer_is_fenced_and_a_living_one_is_not() -> None:
    async def play(there: Scene) -> None:
        living = await there.ledger(close=False)
        lost = (await there.ensemble(living.ledger_id))[0]
        healer = there.begin("one")
        await asyncio.sleep(5.0)
        there.world.crash(name_of(lost))
        for n in range(ENTRIES, ENTRIES + 20):
            await living.append(payload(n))
            await asyncio.sleep(1.0)
        assert (await there.client.ledger_metadata(living.ledger_id)).state is LedgerState.OPEN
        assert healer.stats.ledgers_fenced == 0
        await living.close()
        await there.whole(living.ledger_id, lost)
        # One that does nothing for the whole grace is taken for dead.
        dying = there.world.client("dying")
        left = await dying.create_ledger(password=b"pw")
        await left.append_many([payload(n) for n in range(ENTRIES)])
        gone = (await there.ensemble(left.ledger_id))[0]
        await dying.close()
        there.world.crash(name_of(gone))
        await asyncio.sleep(8.0)
        why = await why_not(there.client.metadata, left.ledger_id)
        assert why is not None
        assert "its writer has 10 s" in why.sentence()
        await there.whole(left.ledger_id, gone)
        await asyncio.sleep(1.0)
        assert healer.stats.ledgers_fenced == 1
        reader = await there.client.open_ledger(left.ledger_id, password=b"pw")
        assert [entry.payload async for entry in reader.read()] == list(
            map(payload, range(ENTRIES))
        )

    scene(play)


def test_retries_of_a_failing_recovery_slow_down_with_one_explanation() -> None:
    """Each failed recovery once restarted the grace period of the writer, with no attempts counted.

    The explanation also changed each time.
    """

    async def play(there: Scene) -> None:
        writer = await there.ledger(close=False)
        ledger_id = writer.ledger_id
        first, second, _ = await there.ensemble(ledger_id)
        await there.client.close()  # the writer dies
        there.client = there.world.client("operator")
        there.locks = ReplicationLocks(there.client.metadata, "x", SimClock(there.world.loop))
        limits = {"backoff_s": 5.0, "backoff_max_s": 120.0, "ledger_check_interval_s": 0}
        workers = [there.begin(name, **limits) for name in ("one", "two")]
        for lost in (first, second):
            there.world.crash(name_of(lost))
        said: list[tuple[str, int, int]] = []
        for _ in range(1_500):
            await asyncio.sleep(1.0)
            why = await why_not(there.client.metadata, ledger_id, clock=there.client.clock)
            if why is not None and why.failure is not None and why.failure.attempts:
                said.append((why.failure.reason, why.failure.attempts, why.failure.at_ms))
        reasons = {reason.partition(" (")[0] for reason, _, _ in said}
        assert len(reasons) == 1, "one explanation, once it is known"
        assert "its writer has" not in reasons.pop()
        counts = [attempts for _, attempts, _ in said]
        assert counts == sorted(counts)
        failed = sum(one.stats.ledgers_failed for one in workers)
        # 5, 10, 20, 40, 80, and then 120 s at most, a quarter less by chance, for two workers.
        assert 8 <= failed <= 40
        times = sorted({at_ms for _, _, at_ms in said})
        # Among three attempts in a row two are of the same worker.
        assert times[-1] - times[-3] > 80_000, "finally each ledger is retried every two minutes"
        # Once the bookies are back nothing waits for the end of a pause.
        for lost in (first, second):
            await there.world.start(name_of(lost))
        await there.unmarked(ledger_id)
        reader = await there.client.open_ledger(ledger_id, password=b"pw", recover=True)
        assert reader.last_add_confirmed == ENTRIES - 1

    scene(play)


def test_another_loss_starts_a_new_grace_period() -> None:
    """A worker remembered a ledger from a loss that was over, and fenced its writer at once when it
    had lost another bookie (found by the simulator, seed 243 of that time)."""

    async def play(there: Scene) -> None:
        idle = there.world.client("idle")
        ledger_id = (await idle.create_ledger(password=b"pw")).ledger_id
        await idle.close()
        first, second, _ = await there.ensemble(ledger_id)
        healers = [there.begin("one", ledger_check_interval_s=0)]
        await asyncio.sleep(5.0)
        there.world.kill(name_of(first))
        await asyncio.sleep(5.0)  # The worker gives the writer its grace period.
        assert await why_not(there.client.metadata, ledger_id) is not None
        # Another worker sees that nothing is missing any more.
        async with there.locks.hold(ledger_id) as lock:
            await there.world.start(name_of(first))
            await asyncio.sleep(1.0)
            await there.locks.replicated(lock)
        await asyncio.sleep(20.0)
        assert healers[0].stats.ledgers_done == 0
        there.world.kill(name_of(second))
        await asyncio.sleep(8.0)
        assert (await there.client.ledger_metadata(ledger_id)).state is LedgerState.OPEN
        await there.whole(ledger_id, second)  # nothing happens to it: then it is fenced
        await asyncio.sleep(1.0)
        assert sum(one.stats.ledgers_fenced for one in healers) == 1

    scene(play)


def test_a_bookie_that_returns_ends_the_grace_period_of_a_writer() -> None:
    """The ledger stayed marked until the end of the grace period, although nothing was missing."""

    async def play(there: Scene) -> None:
        idle = there.world.client("idle")
        ledger_id = (await idle.create_ledger(password=b"pw")).ledger_id
        await idle.close()
        lost = (await there.ensemble(ledger_id))[0]
        healer = there.begin("one", ledger_check_interval_s=0)
        await asyncio.sleep(5.0)
        there.world.kill(name_of(lost))
        await asyncio.sleep(5.0)  # The worker gives the writer its grace period.
        assert await why_not(there.client.metadata, ledger_id) is not None
        await there.world.start(name_of(lost))
        await asyncio.sleep(2.0)
        assert await why_not(there.client.metadata, ledger_id) is None
        assert await last_failure(there.client.metadata, ledger_id) is None
        assert (healer.stats.ledgers_done, healer.stats.ledgers_fenced) == (1, 0)
        assert (await there.client.ledger_metadata(ledger_id)).state is LedgerState.OPEN

    scene(play)


def test_a_grace_period_continues_if_only_one_of_two_bookies_returns() -> None:
    """The writer keeps its time, and does not get more of it."""

    async def play(there: Scene) -> None:
        idle = there.world.client("idle")
        ledger_id = (await idle.create_ledger(password=b"pw")).ledger_id
        await idle.close()
        first, second, _ = await there.ensemble(ledger_id)
        grace_s = 30.0
        healer = there.begin("one", ledger_check_interval_s=0, open_grace_s=grace_s)
        await asyncio.sleep(5.0)
        for lost in (first, second):
            there.world.kill(name_of(lost))
        await asyncio.sleep(5.0)
        found = await why_not(there.client.metadata, ledger_id)
        assert found is not None
        assert set(found.replicas) == {first, second}
        await asyncio.sleep(15.0)
        await there.world.start(name_of(first))
        await asyncio.sleep(5.0)
        assert (await there.client.ledger_metadata(ledger_id)).state is LedgerState.OPEN
        await asyncio.sleep(15.0)
        assert healer.stats.ledgers_fenced == 1

    scene(play)


def test_a_bookie_that_joins_during_an_attempt_triggers_a_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attempt fails without the bookie. The ledger then rested for the whole pause."""

    async def play(there: Scene) -> None:
        began, goes_on = asyncio.Event(), asyncio.Event()
        attempt = ReplicationWorker._heal_or_say_why

        async def slow(self: Any, lock: Any, seen: Any) -> LedgerResult:
            if began.is_set():
                return await attempt(self, lock, seen)
            began.set()
            await goes_on.wait()
            return LedgerResult(lock.ledger_id, LedgerOutcome.FAILED, reason="too few bookies")

        monkeypatch.setattr(ReplicationWorker, "_heal_or_say_why", slow)
        ledger_id = (await there.ledger()).ledger_id
        there.begin("one", ledger_check_interval_s=0, backoff_s=600.0, backoff_max_s=600.0)
        await asyncio.sleep(5.0)
        lost = (await there.ensemble(ledger_id))[0]
        there.world.kill(name_of(lost))
        await began.wait()
        await there.world.start(name_of(lost))
        await asyncio.sleep(1.0)
        goes_on.set()
        await asyncio.sleep(3.0)
        assert await why_not(there.client.metadata, ledger_id) is None

    scene(play)


def test_remaining_parents_of_a_mark_are_removed() -> None:
    """The process that removed a mark died before it removed the mark's parents.

    Nobody noticed the lowest of them any more (found by the simulator, seed 238 at that time).
    """

    async def play(there: Scene) -> None:
        root = f"{there.marks.root}/ledgers"
        for left in ("0001/0002/0003/0004", "0001/0005/0006", "0001/0007", "0008"):
            await there.client.metadata.tree.make_path(f"{root}/{left}")
        ledger_id = (await there.ledger()).ledger_id
        lost = (await there.ensemble(ledger_id))[0]
        there.world.crash(name_of(lost))
        there.begin("one")
        await there.whole(ledger_id, lost)
        async with asyncio.timeout(PATIENCE_S):
            while await there.client.metadata.tree.children(root):
                await asyncio.sleep(0.5)

    scene(play)


def test_a_dead_worker_whose_clock_was_ahead_delays_a_repair_once() -> None:
    """Its note says when it wanted to try again, by its own clock.

    The others waited again and again until their clocks had passed that time (found by the
    simulator, seed 1994186983 of the workload `rolled_back`).
    """

    async def play(there: Scene) -> None:
        ledger_id = (await there.ledger()).ledger_id
        lost = (await there.ensemble(ledger_id))[0]
        ahead_ms = there.client.clock.now_ms() + 3_600_000
        await note_failure(
            there.client.metadata, ledger_id, LastFailure("no time", ahead_ms, 0, ahead_ms, "dead")
        )
        there.world.crash(name_of(lost))
        await mark_ledger(there.client.metadata, ledger_id, [lost], there.client.clock.now_ms())
        there.begin("one")
        await there.whole(ledger_id, lost)  # within PATIENCE_S, which is less than an hour

    scene(play)


def test_an_unrepairable_ledger_states_the_reason_and_is_repaired_later() -> None:
    async def play(there: Scene) -> None:
        ledger_id = (await there.ledger((4, 4, 2))).ledger_id
        ensemble = await there.ensemble(ledger_id)
        [spare] = {bookie_id(name) for name in there.world.disks} - set(ensemble)
        await there.world.stop(name_of(spare))
        there.world.crash(name_of(ensemble[0]))
        there.begin("one")
        await asyncio.sleep(300.0)
        why = await why_not(there.client.metadata, ledger_id)
        assert why is not None
        assert why.failure is not None
        assert why.failure.attempts > 3
        assert "writable" in why.sentence()
        assert why.failure.next_attempt_ms - why.failure.at_ms > 4_000  # it has doubled
        assert why.lock_owner is None
        status = await overview(there.client.metadata)
        assert (status.marked, status.failing) == (1, 1)
        assert status.failures[0].failure == why.failure
        told = await explain_ledger(there.client, ledger_id)
        assert f"{ensemble[0]} does not answer" in told.verdict.sentence
        assert "every writable bookie is in the ensemble already" in told.verdict.sentence
        assert told.mark is not None
        assert told.mark.failure == why.failure
        began_s = there.world.loop.time()
        await there.world.start(name_of(spare))
        await there.whole(ledger_id, ensemble[0])
        assert there.world.loop.time() - began_s < 30.0  # without waiting for the next attempt
        assert await why_not(there.client.metadata, ledger_id) is None

    scene(play)


def test_many_unrepairable_ledgers_are_tried_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker forgot one that should rest for each that it tried, and never paused."""
    monkeypatch.setattr(worker_module, "RESTING_MAX", 1)
    walks: list[float] = []
    pick = ReplicationWorker._pick

    async def counted(self: ReplicationWorker) -> int | None:
        walks.append(asyncio.get_running_loop().time())
        if len(walks) > 1_000:
            await asyncio.sleep(3_600.0)  # This is enough to fail.
        return await pick(self)

    monkeypatch.setattr(ReplicationWorker, "_pick", counted)

    async def play(there: Scene) -> None:
        store, now_ms = there.client.metadata, there.client.clock.now_ms()
        ledgers = [(await there.ledger()).ledger_id for _ in range(3)]
        for ledger_id in ledgers:
            # Another worker has failed, and said that it tries again in an hour.
            failure = LastFailure("no space", now_ms, 1, now_ms + 3_600_000, "another")
            await note_failure(store, ledger_id, failure)
            lost = (await there.ensemble(ledger_id))[0]
            await mark_ledger(store, ledger_id, [lost], now_ms)
        there.begin("one")
        await asyncio.sleep(60.0)
        assert 30 <= len(walks) <= 60 * 4, "two at a time, each after a pause of about a second"

    scene(play)


def test_reported_damage_is_repaired_on_the_same_bookie() -> None:
    """Entries are marked with a bookie that lives; it is read as a whole."""

    async def play(there: Scene) -> None:
        ledger_id = (await there.ledger()).ledger_id
        damaged = (await there.ensemble(ledger_id))[2]
        store = there.world.bookies[name_of(damaged)].store
        store.drop_ledgers([ledger_id])
        await there.locks.mark(ledger_id, [damaged])
        healer = there.begin("one")
        await there.unmarked(ledger_id)
        assert damaged in await there.ensemble(ledger_id)
        await there.whole(ledger_id, "nobody")
        assert healer.stats.replicas_repaired == ENTRIES

    scene(play)


def test_entries_completed_during_a_check_are_checked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mark was once removed although the ledger was closed after the entries that the worker
    read.

    The bookie lacked the end (found by the simulator in the workload `autorecovery`).
    """

    async def play(there: Scene) -> None:
        writer = await there.ledger(close=False)
        await writer.append(payload(ENTRIES))  # It carries the LAC of the others.
        await settled(writer)
        lacking = (await there.ensemble(writer.ledger_id))[2]
        closed = asyncio.Event()

        async def closed_meanwhile(*arguments: Any, **options: Any) -> ReplicaScan:
            result = await scan(*arguments, **options)
            if not closed.is_set():
                closed.set()
                there.world.network.partition("client", name_of(lacking))
                await writer.append(payload(ENTRIES + 1))
                await writer.close()
            return result

        monkeypatch.setattr(worker_module, "scan", closed_meanwhile)
        await there.locks.mark(writer.ledger_id, [lacking])
        there.begin("one")
        other = there.world.client("other")
        await there.unmarked(writer.ledger_id)
        assert closed.is_set()
        assert lacking in await there.ensemble(writer.ledger_id)
        await has_all(other, writer.ledger_id)
        there.world.network.heal()
        await other.close()

    scene(play)


def test_a_mark_is_kept_until_the_copies_are_durable() -> None:
    """A bookie reads what it has taken before it is synced: it was counted as a copy, the mark
    went, and so did the copy when the bookie died."""

    async def play(there: Scene) -> None:
        writer = await there.ledger(close=False)
        slow = (await there.ensemble(writer.ledger_id))[2]
        disk = there.world.disks[name_of(slow)]
        disk.slowness = 1e6
        for entry in range(ENTRIES, ENTRIES + 3):
            await writer.append(payload(entry))  # the others are an ack quorum
        await there.locks.mark(writer.ledger_id, [slow])
        healer = there.begin("one")
        await until(lambda: healer.stats.ledgers_failed, limit_s=PATIENCE_S)
        assert healer.stats.replicas_read >= ENTRIES + 1
        assert await there.locks.marked(writer.ledger_id) is not None
        disk.slowness = 1.0
        there.world.crash(name_of(slow))
        await writer.close()
        await there.world.start(name_of(slow))
        await there.unmarked(writer.ledger_id)
        await has_all(there.client, writer.ledger_id)

    scene(play)


def test_autorecovery_continues_after_a_lost_session() -> None:
    async def play(there: Scene) -> None:
        ledgers = [(await there.ledger()).ledger_id for _ in range(3)]
        healer = there.begin("one")
        await asyncio.sleep(5.0)
        there._running["one"][0].metadata.expire_session()  # type: ignore[attr-defined]
        await asyncio.sleep(5.0)
        assert (healer.stats.sessions_lost, healer.stats.elections_won) == (1, 2)
        lost = (await there.ensemble(ledgers[0]))[0]
        there.world.crash(name_of(lost))
        for ledger_id in ledgers:
            await there.whole(ledger_id, lost)

    scene(play)


def test_bookies_that_register_after_the_auditor_are_not_lost() -> None:
    """After an outage of the metadata store, every session is lost, and the auditor was first."""

    async def play(there: Scene) -> None:
        ledger_id = (await there.ledger()).ledger_id
        healer = there.begin("one")
        await asyncio.sleep(5.0)
        stores = [bookie.metadata for bookie in there.world.bookies.values()]
        for store in stores:
            store.expire_session(back=False)  # type: ignore[attr-defined]
        there._running["one"][0].metadata.expire_session()  # type: ignore[attr-defined]
        await asyncio.sleep(SETTLE_S / 2)
        for store in stores:
            store.restore_session()  # type: ignore[attr-defined]
        await asyncio.sleep(100.0)
        assert (healer.stats.sessions_lost, healer.stats.ledgers_marked) == (1, 0)
        # A bookie that is really lost is still noticed.
        lost = (await there.ensemble(ledger_id))[0]
        there.world.crash(name_of(lost))
        await there.whole(ledger_id, lost)

    scene(play)


def test_no_ledger_is_repaired_while_autorecovery_is_disabled() -> None:
    async def play(there: Scene) -> None:
        ledger_id = (await there.ledger()).ledger_id
        lost = (await there.ensemble(ledger_id))[0]
        await there.marks.disable()
        await there.locks.mark(ledger_id, [lost])
        there.world.crash(name_of(lost))
        there.begin("one")
        await asyncio.sleep(100.0)
        assert lost in await there.ensemble(ledger_id)
        await there.marks.enable()
        await there.whole(ledger_id, lost)

    scene(play)
