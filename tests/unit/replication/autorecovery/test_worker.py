"""Replication workers, and the elected auditor beside them, on simulated bookies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from quire._runtime.clock import Clock
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.codec.metadata.underreplication import LEDGERS
from quire.codec.wire.v2 import Code
from quire.errors import MetadataUnavailableError, UsageError
from quire.metadata.interface import BookieAddress, Bookies, Watch
from quire.metadata.tree import Delete, Operation, Result
from quire.net.answer_codes import error_of
from quire.net.control import ControlChannel
from quire.replication import Autorecovery, AutorecoverySettings
from quire.replication.autorecovery import worker
from quire.replication.autorecovery.recent_repairs import NOTE_INTERVAL_MS, PAUSE_MS, RecentRepairs
from quire.replication.autorecovery.settings import AutorecoveryStats
from quire.replication.autorecovery.worker import FRESH_S, POLL_JITTER, ReplicationWorker
from quire.replication.budget import UNBOUNDED
from quire.replication.explain.status import overview
from quire.replication.marks.marks import MALFORMED_MAX, ReplicationMarks
from quire.replication.marks.notes import (
    REPAIRED_KEPT_MS,
    LastFailure,
    RepairedLedgers,
    last_failure,
    note_failure,
    note_repaired,
    repaired_lately,
)
from quire.replication.repair.bookie_removal import (
    LedgerOutcome,
    LedgerResult,
    take_out,
    take_out_locked,
)
from quire_simulator.world.world import World
from tests.support.metadata.lagging import LaggingServer
from tests.support.sim.autorecovery import Scene, has_all
from tests.support.sim.replication import audited, name_of, simulated, start, write
from tests.support.waiting import until

ENTRIES = 10


def scene(work: Callable[[Scene], Awaitable[None]], bookies: int = 4) -> None:
    async def scenario(world: World) -> None:
        await start(world, bookies)
        there = Scene(world)
        try:
            await work(there)
        finally:
            await there.end()

    simulated(scenario, bookies=bookies)


def test_the_ledgers_of_a_lost_bookie_are_copied_and_counted() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        lost = (await there.ensemble(ledger_id))[0]
        running = there.begin("worker")
        await asyncio.sleep(1)
        there.world.crash(name_of(lost))
        await there.whole(ledger_id, lost)
        stats = running.stats
        assert (stats.ledgers_done, stats.ledgers_failed, stats.ledgers_fenced) == (1, 0, 0)
        assert (stats.fragments, stats.entries_copied) == (1, ENTRIES)
        assert await audited(there.client, [ledger_id]) == []
        assert await last_failure(there.client.metadata, ledger_id) is None
        now_ms = there.client.clock.now_ms()
        (lately,) = await repaired_lately(there.client.metadata, now_ms)
        assert (lately.by, lately.ledgers, lately.entries) == ("worker", 1, ENTRIES)
        assert (lately.last, lately.replicas) == ((ledger_id,), (lost,))
        assert f"1 ledger ({ledger_id}) that lacked copies on {lost}, with" in lately.sentence()
        status = await overview(there.client.metadata, clock=there.client.clock)
        assert status.repaired == (lately,)
        assert await repaired_lately(there.client.metadata, now_ms + 2 * REPAIRED_KEPT_MS) == []

    scene(work)


def test_a_worker_notes_what_it_repairs_when_it_is_idle_and_at_intervals() -> None:
    async def work(there: Scene) -> None:
        store, now_ms = there.client.metadata, 1_000

        class HandClock:
            def now_ms(self) -> int:
                return now_ms

        repairs = RecentRepairs(store, "w/1", cast(Clock, HandClock()))

        async def done(ledger_id: int, *replicas: str) -> list[RepairedLedgers]:
            repairs.add(LedgerResult(ledger_id, LedgerOutcome.DONE, entries=2), replicas)
            await repairs.note(idle=False)
            return await repaired_lately(store, now_ms)

        old = RepairedLedgers("old", 0, 0, 1, 1, 1, (1,), ())
        await note_repaired(store, old)
        now_ms += REPAIRED_KEPT_MS
        (first,) = await done(7, "a")
        assert (first.last, first.replicas) == ((7,), ("a",))
        (same,) = await done(8, "a", "b")
        assert same == first, "not at every ledger"
        await repairs.note(idle=True)
        (found,) = await repaired_lately(store, now_ms)
        assert (found.ledgers, found.last, found.replicas) == (2, (7, 8), ("a", "b"))
        now_ms += NOTE_INTERVAL_MS
        for ledger_id in range(9, 14):
            (found,) = await done(ledger_id)
        assert (found.ledgers, found.entries) == (3, 6)
        await repairs.note(idle=True)
        (found,) = await repaired_lately(store, now_ms)
        assert "7 ledgers (the last: 9, 10, 11, 12, 13) that lacked" in found.sentence()
        now_ms += PAUSE_MS + 1
        (found,) = await done(14)
        assert (found.ledgers, found.since_ms, found.replicas) == (1, now_ms, ())

    scene(work)


def test_entries_that_a_running_bookie_lacks_are_written_back() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        bookie = (await there.ensemble(ledger_id))[2]
        there.world.bookies[name_of(bookie)].store.drop_ledgers([ledger_id])
        await there.locks.mark(ledger_id, [bookie])
        running = there.begin("worker")
        await there.unmarked(ledger_id)
        await has_all(there.client, ledger_id)
        assert bookie in await there.ensemble(ledger_id)
        assert running.stats.replicas_repaired == ENTRIES

    scene(work)


def test_the_writer_of_an_open_ledger_gets_a_grace_period_before_fencing() -> None:
    async def work(there: Scene) -> None:
        dead = there.world.client("dead")
        ledger_id = (await write(dead, ENTRIES, close=False)).ledger_id
        await dead.close()
        lost = (await there.ensemble(ledger_id))[0]
        there.world.crash(name_of(lost))
        running = there.begin("worker", open_grace_s=30.0)
        await there.locks.mark(ledger_id, [lost])
        await asyncio.sleep(20)
        assert not (await there.client.ledger_metadata(ledger_id)).closed
        note = await last_failure(there.client.metadata, ledger_id)
        assert note is not None
        assert note.reason.startswith("the ledger is open: its writer has 30 s")
        assert note.next_attempt_ms == note.at_ms + 30_000
        assert (note.attempts, note.by) == (0, "worker")
        await there.whole(ledger_id, lost)
        assert (await there.client.ledger_metadata(ledger_id)).last_entry_id == ENTRIES - 1
        assert running.stats.ledgers_fenced == 1

    scene(work)


def test_a_writer_is_not_fenced_with_a_password_that_its_bookies_refuse() -> None:
    """The metadata stores none (format 1), and a bookie without entries would keep a wrong one."""

    async def work(there: Scene) -> None:
        writer = await there.client.create_ledger(
            ensemble_size=3, write_quorum=2, ack_quorum=2, password=b"pw", digest="crc32"
        )
        await writer.append(b"x")
        writer.abandon()
        ledger_id, store = writer.ledger_id, there.client.metadata
        stored = (await store.read_ledger(ledger_id)).value
        await store.delete_ledger(ledger_id)
        old = replace(stored, digest=None, password=None, format_version=1, ctoken=0)
        await store.create_ledger(old, ledger_id)
        lost = (await there.ensemble(ledger_id))[0]
        there.world.crash(name_of(lost))
        await there.locks.mark(ledger_id, [lost])
        running = there.begin("worker")
        await until(
            lambda: last_failure(store, ledger_id),
            right=lambda note: note is not None and "password" in note.reason,
            limit_s=300.0,
        )
        assert (await store.read_ledger(ledger_id)).value.state is LedgerState.OPEN
        assert running.stats.ledgers_fenced == 0
        reader = await there.client.open_ledger(ledger_id, password=b"pw", recover=True)
        assert reader.last_add_confirmed == 0
        reader.close()

    scene(work)


def test_no_copy_of_an_open_ledger_is_made_with_a_password_that_its_bookies_refuse() -> None:
    """The new bookie would keep the wrong key, and refuse the writer and the recovery later."""

    async def work(there: Scene) -> None:
        writer = await there.client.create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=3, password=b"pw", digest="crc32"
        )
        for number in range(ENTRIES):
            await writer.append(b"%d" % number)
        lost = (await there.ensemble(writer.ledger_id))[0]
        there.world.crash(name_of(lost))
        for number in range(ENTRIES):
            await writer.append(b"%d" % number)
        writer.abandon()
        ledger_id, store = writer.ledger_id, there.client.metadata
        stored = (await store.read_ledger(ledger_id)).value
        complete, newest = stored.segments
        assert lost in complete.ensemble
        assert lost not in newest.ensemble
        await store.delete_ledger(ledger_id)
        old = replace(stored, digest=None, password=None, format_version=1, ctoken=0)
        await store.create_ledger(old, ledger_id)
        await there.locks.mark(ledger_id, [lost])
        running = there.begin("worker")
        await until(
            lambda: last_failure(store, ledger_id),
            right=lambda note: note is not None and "refuses the one" in note.reason,
            limit_s=300.0,
        )
        now = (await store.read_ledger(ledger_id)).value
        assert (now.state, now.segments) == (LedgerState.OPEN, old.segments)
        assert running.stats.entries_copied == 0
        done = await until(
            lambda: take_out(there.client, there.locks, ledger_id, [lost], password=b"pw"),
            right=lambda done: done.work is not LedgerOutcome.LOCKED,
        )
        assert (done.work, done.fragments, done.entries) == (LedgerOutcome.DONE, 1, ENTRIES)
        reader = await there.client.open_ledger(ledger_id, password=b"pw", recover=True)
        assert reader.last_add_confirmed == 2 * ENTRIES - 1
        reader.close()

    scene(work, bookies=5)


def test_a_new_mark_starts_the_grace_period_again() -> None:
    """The grace period of an earlier mark says nothing about a writer that went on since."""

    async def work(there: Scene) -> None:
        dead = there.world.client("dead")
        ledger_id = (await write(dead, ENTRIES, close=False)).ledger_id
        await dead.close()
        lost = (await there.ensemble(ledger_id))[0]
        there.world.crash(name_of(lost))
        there.begin("worker", open_grace_s=30.0)
        await there.locks.mark(ledger_id, [lost])
        await asyncio.sleep(20)
        assert await last_failure(there.client.metadata, ledger_id) is not None
        async with there.locks.hold(ledger_id) as lock:
            assert await there.locks.replicated(lock)
        await there.locks.mark(ledger_id, [lost])
        await asyncio.sleep(20)
        assert not (await there.client.ledger_metadata(ledger_id)).closed
        await there.whole(ledger_id, lost)
        assert (await there.client.ledger_metadata(ledger_id)).closed

    scene(work)


@pytest.mark.parametrize("fault", ["refused", "silent"])
def test_a_mark_is_kept_until_its_bookies_have_synced_the_ledger(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that a bookie returned may be lost in a power failure, and nobody would check
    again."""
    force, faulty = ControlChannel.force, True

    async def forced(self: ControlChannel, ledger_id: int) -> None:
        if faulty and fault == "refused":
            raise error_of(Code.IO_ERROR, ledger_id, 0, self.bookie_id)
        if faulty:
            await asyncio.Event().wait()
        await force(self, ledger_id)

    monkeypatch.setattr(ControlChannel, "force", forced)

    async def work(there: Scene) -> None:
        nonlocal faulty
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        bookie = (await there.ensemble(ledger_id))[2]
        await there.locks.mark(ledger_id, [bookie])
        there.begin("worker", backoff_s=1.0, backoff_max_s=1.0)
        await asyncio.sleep(30)
        assert await there.locks.marked(ledger_id) is not None
        note = await last_failure(there.client.metadata, ledger_id)
        assert note is not None
        assert f"bookie {bookie} did not sync the ledger" in note.reason
        faulty = False
        await there.unmarked(ledger_id)

    scene(work)


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("change", ["grown", "created again"])
def test_a_mark_is_kept_if_the_ledger_changed_since_its_check(
    *, change: str, lags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change promises an entry that the bookies of the mark were not asked for.

    The server of the worker may lag behind the change.
    """
    force = ControlChannel.force

    async def work(there: Scene) -> None:
        writer = await there.ledger(entries=ENTRIES, close=False)
        ledger_id, store = writer.ledger_id, there.client.metadata
        writer.abandon()
        bookies = await there.ensemble(ledger_id)
        changes = 0

        async def changed(self: ControlChannel, number: int) -> None:
            nonlocal changes
            await force(self, number)
            changes += 1
            if changes > 1:
                return
            if lags:
                LaggingServer(there._running["worker"][0].metadata).fall_behind()
            stored = await store.read_ledger(ledger_id)
            if change == "grown":
                later = Segment(ENTRIES + 1, tuple(reversed(bookies)))
                value = replace(stored.value, segments=(*stored.value.segments, later))
                await store.write_ledger(ledger_id, value, stored.version)
            else:
                await store.delete_ledger(ledger_id)
                other = replace(stored.value, ctoken=stored.value.ctoken + 1)
                await store.create_ledger(other.with_close(ENTRIES, 1000), ledger_id)

        monkeypatch.setattr(ControlChannel, "force", changed)
        await there.locks.mark(ledger_id, [bookies[0]])
        running = there.begin("worker")
        await asyncio.sleep(30)
        assert changes
        assert await there.locks.marked(ledger_id) is not None
        assert running.stats.ledgers_done == 0
        note = await last_failure(store, ledger_id)
        assert note is not None
        assert f"entries {ENTRIES}..{ENTRIES} of bookie {bookies[0]}" in note.reason

    scene(work)


def test_a_recreated_ledger_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the same segments as the one before, of which the bookie had everything."""
    force = ControlChannel.force

    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        store, changed = there.client.metadata, False
        bookie = (await there.ensemble(ledger_id))[0]

        async def forced(self: ControlChannel, number: int) -> None:
            nonlocal changed
            await force(self, number)
            if not changed:
                changed = True
                value = (await store.read_ledger(ledger_id)).value
                await store.delete_ledger(ledger_id)
                there.world.bookies[name_of(bookie)].store.drop_ledgers([ledger_id])
                await store.create_ledger(replace(value, ctoken=value.ctoken + 1), ledger_id)

        monkeypatch.setattr(ControlChannel, "force", forced)
        await there.locks.mark(ledger_id, [bookie])
        running = there.begin("worker")
        await there.unmarked(ledger_id)
        assert changed
        assert running.stats.replicas_repaired == ENTRIES
        await has_all(there.client, ledger_id)

    scene(work)


def test_a_failure_is_noted_and_tried_again_when_a_bookie_joins() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        lost = (await there.ensemble(ledger_id))[0]
        there.world.crash(name_of(lost))
        await asyncio.sleep(30)
        running = there.begin("worker", backoff_s=500.0, backoff_max_s=500.0)
        await there.locks.mark(ledger_id, [lost])
        await asyncio.sleep(30)
        store = there.client.metadata
        note = await last_failure(store, ledger_id)
        assert note is not None
        assert (note.attempts, running.stats.ledgers_failed) == (1, 1)
        assert note.next_attempt_ms - note.at_ms > 300_000
        assert await there.locks.marked(ledger_id) is not None
        began_s = asyncio.get_running_loop().time()
        await there.world.start(name_of(lost))
        await there.unmarked(ledger_id)
        assert asyncio.get_running_loop().time() - began_s < 60
        assert await last_failure(store, ledger_id) is None

    scene(work, bookies=3)


@pytest.mark.parametrize(
    ("writable", "readonly", "joins"),
    [
        ("a", "b", False),  # the same list again
        ("a", "", False),
        ("", "ab", False),  # nothing new but that a is read-only now
        ("ab", "", True),  # b is writable again
        ("a", "bc", True),
        ("c", "", True),  # one joins while others leave
    ],
)
def test_what_is_remembered_of_bookies_ends_when_one_joins(
    monkeypatch: pytest.MonkeyPatch, writable: str, readonly: str, joins: bool
) -> None:
    """Otherwise the attempt that it makes possible would find it silent or unregistered still."""
    asked: list[str] = []

    async def silent(client: Client, bookie: str) -> str:
        asked.append(bookie)
        return "no answer"

    def listed(writable: str, readonly: str) -> Bookies:
        def addresses(names: str) -> dict[str, BookieAddress]:
            return {name: BookieAddress(name, name, 1) for name in names}

        return Bookies(addresses(writable), addresses(readonly))

    async def work(there: Scene) -> None:
        monkeypatch.setattr(worker, "answers", silent)
        store = there.client.metadata
        registered = store.registered
        reads = 0

        async def counted() -> frozenset[str]:
            nonlocal reads
            reads += 1
            return await registered() | {"a", "b", "c"}

        monkeypatch.setattr(store, "registered", counted)
        one = ReplicationWorker(
            there.client, there.locks, owner="w", settings=AutorecoverySettings(),
            stats=AutorecoveryStats(), clock=there.client.clock, rng=there.world.loop.derive("w"),
            budget=UNBOUNDED, log=lambda event, **fields: None,
        )  # fmt: skip
        one._on_bookies(listed("a", "b"))
        for _ in range(2):
            assert set(await one._still_lost(("a", "b"))) == {"a", "b"}
        assert (asked, reads) == (["a", "b"], 1)
        one._on_bookies(listed(writable, readonly))
        await one._still_lost(("a", "b"))
        assert (asked, reads) == (["a", "b"] * (1 + joins), 1 + joins)
        await asyncio.sleep(FRESH_S)
        await one._still_lost(("a", "b"))
        assert (asked[-2:], len(asked)) == (["a", "b"], 4 + 2 * joins)

    scene(work)


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (UsageError("the placement policy failed"), "the placement policy failed"),
        (OverflowError("too large"), "unexpected error: OverflowError('too large')"),
    ],
)
def test_an_unexpected_error_about_one_ledger_does_not_end_the_worker(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, reason: str
) -> None:
    """A placement policy of another package fails, for example, or there is a bug in Quire."""

    async def work(there: Scene) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        ledgers = [(await there.ledger(entries=ENTRIES)).ledger_id for _ in range(2)]
        broken, other = ledgers
        lost = (await there.ensemble(broken))[0]
        there.world.crash(name_of(lost))
        await asyncio.sleep(30)
        failures = 1

        async def taken_out(client: Any, locks: Any, lock: Any, *more: Any, **how: Any) -> Any:
            nonlocal failures
            if lock.ledger_id == broken and failures:
                failures -= 1
                raise raised
            return await take_out_locked(client, locks, lock, *more, **how)

        monkeypatch.setattr(worker, "take_out_locked", taken_out)
        for ledger_id in ledgers:
            await there.locks.mark(ledger_id, [lost])
        running = there.begin("worker", backoff_s=100.0, backoff_max_s=100.0)
        await there.unmarked(other)
        note = await last_failure(there.client.metadata, broken)
        assert note is not None
        assert note.reason == reason
        await there.unmarked(broken)
        assert running.stats.ledgers_failed == 1

    scene(work)


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_ms": None},
        {"attempts": "3"},
        {"next_attempt_ms": "soon"},
        {"next_attempt_ms": 10**400},
        {"next_attempt_ms": -(10**400)},
    ],
)
def test_a_failure_note_with_wrong_types_is_ignored(wrong: dict[str, Any]) -> None:
    """A later version may have written it. It ended all workers of the process."""
    note = {"reason": "why", "at_ms": 2**60, "attempts": 1, "next_attempt_ms": 2**60, "by": "x"}

    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        store = there.client.metadata
        key = ("autorecovery", "failures", str(ledger_id))
        await store.write_value(key, json.dumps(note | wrong).encode(), None)
        assert await last_failure(store, ledger_id) is None
        await there.locks.mark(ledger_id, await there.ensemble(ledger_id))
        there.begin("worker")
        await there.unmarked(ledger_id)

    scene(work)


def test_a_worker_waits_once_after_the_failure_of_another() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        bookie = (await there.ensemble(ledger_id))[0]
        await there.locks.mark(ledger_id, [bookie])
        now_ms = there.client.clock.now_ms()
        # The clock of the other worker is an hour ahead.
        note = LastFailure("no", now_ms, 3, now_ms + 3_600_000, "other")
        await note_failure(there.client.metadata, ledger_id, note)
        there.begin("worker", backoff_max_s=40.0)
        await asyncio.sleep(35)
        assert await there.locks.marked(ledger_id) is not None
        await asyncio.sleep(10)
        assert await there.locks.marked(ledger_id) is None

    scene(work)


def test_a_worker_repairs_nothing_while_autorecovery_is_disabled() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        assert await there.marks.disable()
        assert not await there.marks.disable()
        await there.locks.mark(ledger_id, await there.ensemble(ledger_id))
        there.begin("worker")
        await asyncio.sleep(30)
        assert await there.locks.marked(ledger_id) is not None
        assert await there.marks.enable()
        assert not await there.marks.enable()
        await there.unmarked(ledger_id)

    scene(work)


def test_a_worker_that_begins_while_autorecovery_is_disabled_notices_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to its first question was older than the event, and replaced it."""
    enabled, watch_enabled = ReplicationMarks.enabled, ReplicationMarks.watch_enabled

    def watch_changes(self: ReplicationMarks, changed: Callable[[bool], None]) -> Watch:
        """Call `changed` only when the switch changes, as if the first value was on its way."""
        values: list[bool] = []

        def look(value: bool) -> None:
            values.append(value)
            if len(values) > 1:
                changed(value)

        return watch_enabled(self, look)

    async def slowly(self: ReplicationMarks) -> bool:
        found = await enabled(self)
        await self.disable()
        await asyncio.sleep(1)
        return found

    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        await there.locks.mark(ledger_id, await there.ensemble(ledger_id))
        monkeypatch.setattr(ReplicationMarks, "watch_enabled", watch_changes)
        monkeypatch.setattr(ReplicationMarks, "enabled", slowly)
        there.begin("worker")
        await asyncio.sleep(30)
        assert not await enabled(there.marks)
        assert await there.locks.marked(ledger_id) is not None
        assert await there.marks.enable()
        await there.unmarked(ledger_id)

    scene(work)


def test_only_one_task_of_an_idle_process_searches_for_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster has as many processes as bookies, so the requests of the idle ones add up."""
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(ReplicationMarks, name)

        def counted(self: ReplicationMarks, *args: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(self, *args, **options)

        monkeypatch.setattr(ReplicationMarks, name, counted)

    for name in ("walk", "locked", "enabled"):
        count(name)

    async def work(there: Scene) -> None:
        ledgers = [(await there.ledger(entries=ENTRIES)).ledger_id for _ in range(4)]
        running = there.begin("worker", ledgers_at_once=4, poll_s=4.0)
        await asyncio.sleep(10)
        calls.clear()
        await asyncio.sleep(120)
        assert 120 / 4 <= calls.pop("walk") <= 120 / 4 / (1 - POLL_JITTER) + 1
        assert not calls, "an idle process requests only marks"
        for ledger_id in ledgers:
            await there.locks.mark(ledger_id, [])
        for ledger_id in ledgers:
            await there.unmarked(ledger_id)
        assert running.stats.ledgers_done == 4

    scene(work)


def test_the_mark_of_a_deleted_ledger_is_removed() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        ensemble = await there.ensemble(ledger_id)
        await there.client.delete_ledger(ledger_id)
        await there.locks.mark(ledger_id, ensemble)
        running = there.begin("worker")
        await there.unmarked(ledger_id)
        assert running.stats.ledgers_failed == 0

    scene(work)


def test_a_ledger_that_another_process_holds_is_skipped() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        await there.locks.mark(ledger_id, await there.ensemble(ledger_id))
        async with there.locks.hold(ledger_id):
            running = there.begin("worker")
            await asyncio.sleep(20)
            assert await there.locks.marked(ledger_id) is not None
            assert running.stats.ledgers_done == 0
        await there.unmarked(ledger_id)

    scene(work)


def test_a_bookie_that_joins_ends_the_pause_after_a_lock_of_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause is no grace period of a writer, which a bookie that joins would not end."""

    async def none_yet(marks: ReplicationMarks) -> set[int]:
        return set()  # The other process takes its lock after the worker has listed the locks.

    monkeypatch.setattr(ReplicationMarks, "locked", none_yet)

    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        members = await there.ensemble(ledger_id)
        await there.locks.mark(ledger_id, members)
        (other,) = set(there.world.bookies) - set(map(name_of, members))
        there.world.crash(other)
        await asyncio.sleep(30)
        async with there.locks.hold(ledger_id):
            running = there.begin("worker", backoff_s=5_000.0, backoff_max_s=5_000.0)
            await asyncio.sleep(20)
            assert running.stats.locks_missed == 1
        began_s = asyncio.get_running_loop().time()
        await there.world.start(other)
        await there.unmarked(ledger_id)
        assert asyncio.get_running_loop().time() - began_s < 60

    scene(work)


def test_a_node_without_a_mark_is_reported_and_kept() -> None:
    async def work(there: Scene) -> None:
        marks, tree = there.marks, there.client.metadata.tree
        await marks.prepare()
        await there.locks.mark(7, ["b:1"])
        strays = [f"{marks.root}/{LEDGERS}/stray{number:03}" for number in range(MALFORMED_MAX + 5)]
        deep = f"{marks.root}/{LEDGERS}/0000/0000/0000/zzzz"
        for path in (*strays, deep):
            await tree.make_path(path)
        malformed: dict[str, str] = {}
        assert [one async for one in marks.walk(prune=True, malformed=malformed)] == [7]
        assert len(malformed) == MALFORMED_MAX
        assert set(malformed) <= {*strays, deep}
        assert set(malformed.values()) == {"its name is not one that leads to a mark"}
        assert [one async for one in marks.walk()] == [7]
        for path in (*strays, deep):
            assert await tree.exists(path)

    scene(work)


def test_empty_parents_of_marks_are_pruned_only_on_request() -> None:
    async def work(there: Scene) -> None:
        marks, tree = there.marks, there.client.metadata.tree
        await marks.prepare()
        empty = f"{marks.root}/{LEDGERS}/0000/0001"
        await tree.make_path(empty)
        await there.locks.mark(7, ["b:1"])
        assert [one async for one in marks.walk()] == [7]
        assert await tree.exists(empty)
        assert [one async for one in marks.walk(prune=True)] == [7]
        assert not await tree.exists(empty)
        assert await marks.locked() == set()
        async with there.locks.hold(7):
            assert await marks.locked() == {7}

    scene(work)


def test_locks_that_a_cancelled_run_could_not_release_are_released_by_the_next() -> None:
    async def work(there: Scene) -> None:
        ledger_id = (await there.ledger(entries=ENTRIES)).ledger_id
        lost = (await there.ensemble(ledger_id))[0]
        client = there.world.client("worker")
        worker = Autorecovery(
            client,
            "worker",
            settings=AutorecoverySettings(poll_s=1.0),
            auditor=False,
            clock=client.clock,
            rng=there.world.loop.derive("worker"),
        )
        tree = client.metadata.tree
        commit = tree.commit

        async def without_answer(*operations: Operation) -> list[Result]:
            if any(isinstance(one, Delete) and "/locks/" in one.path for one in operations):
                raise MetadataUnavailableError("it does not answer")
            return await commit(*operations)

        tree.commit = without_answer  # type: ignore[method-assign]
        there.world.crash(name_of(lost))
        await there.locks.mark(ledger_id, [lost])
        running = asyncio.ensure_future(worker.run())
        await until(lambda: there.locks.held_by(ledger_id), right=lambda held: held is not None)
        running.cancel()
        await asyncio.wait([running])
        assert await there.locks.held_by(ledger_id) is not None
        tree.commit = commit  # type: ignore[method-assign]
        await there.locks.mark(ledger_id, [lost])
        running = asyncio.ensure_future(worker.run())
        await there.whole(ledger_id, lost)
        running.cancel()
        await asyncio.wait([running])
        await client.close()

    scene(work)
