"""The auditor's list of lost bookies, the order of its requests, and its other tasks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.underreplication import (
    CHECKED_PLACEMENT,
    LockHolder,
    checked_at,
    delay_of,
    ledger_of,
    locked_ledger,
    vote_number,
)
from quire.errors import MetadataUnavailableError
from quire.replication.autorecovery import auditor
from quire.replication.autorecovery.auditor import Adheres, Auditor, LackingReplicas
from quire.replication.autorecovery.lost_bookies import LostBookies
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import AwaitedBookie, last_waiting, note_waiting
from quire_simulator.machine.clock import SimClock
from quire_simulator.world.world import World, bookie_id
from tests.support.waiting import until

ALL = ("a", "b", "c")


def looked(delay_s: int = 10) -> LostBookies:
    lost = LostBookies(delay_s)
    lost.learn(ALL)
    lost.look(ALL, 0.0)
    return lost


def test_the_auditor_waits_for_a_single_lost_bookie() -> None:
    lost = looked()
    assert lost.due_s() is None
    lost.look(("a", "b"), 100.0)
    assert lost.due_s() == 110.0
    assert lost.waited_for(109.9) == {"c"}
    assert lost.waited_for(110.0) == set()
    lost.look(("a", "b"), 105.0)  # Missed since the first check.
    assert lost.due_s() == 110.0


def test_a_bookie_that_returns_in_time_is_not_given_up() -> None:
    lost = looked()
    lost.look(("a", "b"), 100.0)
    lost.look(ALL, 101.0)
    assert lost.due_s() is None
    assert (lost.waits, lost.returns) == (1, 1)
    lost.look(("a", "b"), 200.0)
    assert lost.due_s() == 210.0


def test_the_auditor_does_not_wait_for_several_lost_bookies() -> None:
    lost = looked()
    lost.look(("a", "b"), 100.0)
    lost.look(("a",), 103.0)
    assert lost.due_s() == 103.0
    lost.look(("a", "b"), 104.0)  # again a single one
    assert lost.due_s() == 110.0


def test_waits_and_returns_are_counted_only_if_the_auditor_waits() -> None:
    lost = looked(0)
    lost.look(("a", "b"), 100.0)
    lost.look(ALL, 101.0)
    assert (lost.waits, lost.returns) == (0, 0)  # There is no delay.
    lost.set_delay(10)
    lost.look(("a",), 200.0)
    assert (lost.waits, lost.returns) == (0, 0)  # Several are missing.
    lost.look(("a", "b"), 201.0)
    assert (lost.waits, lost.returns) == (1, 0)  # Now c is the only one; b was not waited for.
    lost.look(("a", "b"), 202.0)
    lost.look(("a",), 203.0)
    lost.look(("a", "b"), 204.0)
    assert (lost.waits, lost.returns) == (1, 0)  # It is the same absence of c.
    lost.look(ALL, 205.0)
    assert (lost.waits, lost.returns) == (1, 1)
    lost.look(("a", "b"), 300.0)
    lost.give_up(("c",))
    lost.look(ALL, 320.0)
    assert (lost.waits, lost.returns) == (2, 1)  # c was given up before it returned.
    lost.look(("a", "b"), 400.0)
    lost.overrule()
    lost.look(("a",), 401.0)
    assert (lost.waits, lost.returns) == (3, 1)


def test_a_bookie_that_was_given_up_is_not_counted_until_it_returns() -> None:
    lost = looked()
    lost.look(("a", "b"), 100.0)
    lost.give_up(("c",))
    lost.look(("a", "b"), 120.0)
    assert lost.due_s() is None
    lost.look(("a",), 130.0)
    assert lost.due_s() == 140.0  # A single one, besides those that were given up.
    lost.look(ALL, 131.0)
    lost.look(("a", "b"), 150.0)
    assert lost.due_s() == 160.0


def test_a_decommissioned_bookie_neither_returns_nor_ends_a_wait() -> None:
    lost = looked()
    lost.look(("a", "b"), 100.0)
    lost.look(("a",), 103.0, taken_away=("b",))
    assert lost.due_s() == 103.0
    assert (lost.wait_until_s(), lost.waited_for(103.0)) == (110.0, {"c"})
    lost.give_up(("b",))
    lost.look(("a",), 104.0)
    assert lost.due_s() == 110.0
    assert lost.waited_for(110.0) == set()
    lost.look((), 105.0)
    assert lost.due_s() == 105.0  # Two of them may return.


def test_the_delay_can_be_changed_and_cut_short() -> None:
    lost = looked(0)
    lost.look(("a", "b"), 100.0)
    assert lost.due_s() == 100.0
    lost.set_delay(60)
    assert lost.due_s() == 160.0
    lost.overrule()
    assert lost.due_s() == 100.0
    lost.look(ALL, 101.0)
    lost.look(("a", "b"), 102.0)
    assert lost.due_s() == 162.0  # that was about the one before


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("ends", ["given up", "returned", "given up with another", "nothing"])
def test_a_request_of_an_operator_ends_no_later_wait(ends: str, quiet: bool) -> None:
    """It is about the bookies that are missing then.

    The next one may be missed at the very next look, or after one that misses none (`quiet`).
    """
    lost = looked()
    there = {"a", "b", "c"}
    if ends != "nothing":
        there.discard("c")
        lost.look(there, 100.0)
    if ends == "given up with another":
        there.discard("b")
        lost.look(there, 101.0)
    lost.overrule()
    assert lost.waited_for(102.0) == set()
    match ends:
        case "given up" | "given up with another":
            lost.give_up(tuple(lost.missing))
        case "returned":
            there.add("c")
            lost.look(there, 102.0)
        case _:
            lost.look(there, 102.0)
    if quiet:
        lost.look(there, 103.0)
    there.discard("a")
    lost.look(there, 104.0)
    assert lost.waited_for(113.9) == {"a"}
    assert (lost.due_s(), lost.wait_until_s()) == (114.0, 114.0)
    assert lost.waited_for(114.0) == set()


def test_a_bookie_that_a_ledger_names_but_was_never_seen_is_missing() -> None:
    lost = looked(0)
    lost.learn(("d",))
    lost.look(ALL, 5.0)
    assert lost.missing == {"d": 5.0}


def test_lock_holders_ledger_paths_and_votes_are_parsed() -> None:
    assert LockHolder.decode(b'bookieId: "h"\n') == LockHolder("h")
    one = LockHolder("10.0.0.1:3181", 1_750_000_000_000, "1f/2")
    assert LockHolder.decode(one.encode()) == one
    with pytest.raises(ValueError, match="names no owner"):
        LockHolder.decode(b"")
    assert ledger_of(["0000", "0000", "0000", "3039"]) == 12_345
    assert ledger_of(["0000", "0000", "0000"]) is None
    assert ledger_of(["0000", "0000", "0000", "303G"]) is None
    assert [vote_number(n) for n in ("V_0000000007", "V_", "x")] == [7, None, None]
    assert [locked_ledger(n) for n in ("urL0000000007", "urLx", "7")] == [7, None, None]
    assert checked_at(bytes.fromhex("08fb80babbc82e")) == 1_600_000_000_123
    for seconds in (-1, 10**400):
        with pytest.raises(ValueError, match="not a delay"):
            delay_of(b"%d" % seconds)


# -- the auditor on a simulated store ---------------------------------------------------------


class Office:
    """An auditor on a store without bookies that answer; registrations are made here."""

    def __init__(self, world: World, adheres: Adheres | None = None, **settings: float) -> None:
        self.world = world
        self.client = world.client("auditor")
        self.store = self.client.metadata
        self.marks = ReplicationMarks(self.store)
        self.stats = AutorecoveryStats()
        clock = SimClock(world.loop)
        self.locks = ReplicationLocks(self.store, "auditor", clock)
        self.running: asyncio.Task[None] | None = None
        self.auditor = Auditor(
            self.client,
            self.locks,
            settings=AutorecoverySettings(**{"ledger_check_interval_s": 0, **settings}),  # type: ignore[arg-type]
            stats=self.stats,
            clock=clock,
            rng=random.Random(1),
            adheres=adheres,
            log=lambda event, **fields: None,
        )

    async def ledger(self, *bookies: str) -> int:
        metadata = LedgerMetadata(
            ensemble_size=len(bookies),
            write_quorum=len(bookies),
            ack_quorum=1,
            segments=(Segment(0, bookies),),
        ).with_close(0, 5)
        ledger_id, _ = await self.store.create_ledger(metadata)
        return ledger_id

    async def marked(self, ledger_id: int) -> tuple[str, ...]:
        found = await self.locks.marked(ledger_id)
        return () if found is None else found.value.replicas


def office(
    scenario: Callable[[Office], Awaitable[None]], adheres: Adheres | None = None, **settings: float
) -> None:
    world = World.make(1, 4)

    async def whole() -> None:
        for name in world.disks:
            await world.start(name)
        there = Office(world, adheres, **settings)
        there.running = running = asyncio.ensure_future(there.auditor.run())
        try:
            await scenario(there)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await there.client.close()
        for name in list(world.bookies):
            await world.stop(name)

    world.loop.run(whole())


def test_bookies_lost_earlier_are_noticed_at_the_start() -> None:
    """This includes a bookie without a cookie, which only a ledger names (rule 29)."""

    async def scenario(there: Office) -> None:
        gone = await there.ledger(bookie_id("bookie-0"), "10.0.0.9:3181")
        well = await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        await asyncio.sleep(1.0)
        assert there.stats.audits >= 1
        # The ledgers came after it: the next audit finds them.
        await there.marks.trigger()
        await asyncio.sleep(1.0)
        assert await there.marked(gone) == ("10.0.0.9:3181",)
        assert await there.marked(well) == ()

    office(scenario)


def test_the_audit_that_first_finds_a_lost_bookie_marks_its_ledgers() -> None:
    """The next audit may be a day away."""

    async def scenario(there: Office) -> None:
        await asyncio.sleep(1.0)
        assert there.stats.audits == 1
        gone = await there.ledger(bookie_id("bookie-0"), "10.0.0.9:3181")
        await there.marks.trigger()
        await asyncio.sleep(1.0)
        assert there.stats.audits == 2
        assert await there.marked(gone) == ("10.0.0.9:3181",)

    office(scenario)


def test_a_bookie_lost_during_an_audit_is_searched_for_in_all_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first pages were examined while it was still registered."""
    monkeypatch.setattr("quire.replication.autorecovery.auditor.PAGE_LEDGERS", 1)

    async def scenario(there: Office) -> None:
        await asyncio.sleep(1.0)
        names = [await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1")) for _ in "123"]
        read_ledger = there.store.read_ledger

        async def losing(number: int) -> Any:
            if number == names[1] and "bookie-0" in there.world.bookies:
                there.world.kill("bookie-0")
                await asyncio.sleep(60.0)  # its session ends
            return await read_ledger(number)

        there.store.read_ledger = losing  # type: ignore[method-assign]
        await there.marks.trigger()
        await asyncio.sleep(120.0)
        for ledger_id in names:
            assert await there.marked(ledger_id) == (bookie_id("bookie-0"),)

    office(scenario)


def test_a_bookie_that_returns_during_an_audit_is_not_lost() -> None:
    """Metadata is read first, and registrations afterwards."""

    async def scenario(there: Office) -> None:
        ledger_id = await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        await asyncio.sleep(1.0)
        read_ledger = there.store.read_ledger
        reading, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(number: int) -> Any:
            found = await read_ledger(number)
            reading.set()
            await go_on.wait()
            return found

        there.store.read_ledger = slowly  # type: ignore[method-assign]
        there.world.kill("bookie-0")
        await reading.wait()
        await there.world.start("bookie-0")
        go_on.set()
        await asyncio.sleep(1.0)
        assert there.stats.audits == 2
        assert await there.marked(ledger_id) == ()

    office(scenario)


@pytest.mark.parametrize("delay_s", [0, 100])
def test_a_bookie_that_returns_and_is_lost_again_during_an_audit_is_searched_for_again(
    monkeypatch: pytest.MonkeyPatch, delay_s: int
) -> None:
    """The pages in between were examined while it was registered."""
    monkeypatch.setattr("quire.replication.autorecovery.auditor.PAGE_LEDGERS", 1)

    async def scenario(there: Office) -> None:
        await asyncio.sleep(1.0)
        names = [await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1")) for _ in "123"]
        read_ledger, steps = there.store.read_ledger, iter(names[1:])
        upcoming: int | None = next(steps)

        async def flapping(number: int) -> Any:
            nonlocal upcoming
            if number == upcoming:
                upcoming = next(steps, None)
                if upcoming is not None:
                    await there.world.start("bookie-0")
                else:
                    there.world.kill("bookie-0")
                    await asyncio.sleep(60.0)  # its session ends
            return await read_ledger(number)

        there.store.read_ledger = flapping  # type: ignore[method-assign]
        there.world.kill("bookie-0")
        await asyncio.sleep(200.0 + 2 * delay_s)
        assert upcoming is None
        for ledger_id in names:
            assert await there.marked(ledger_id) == (bookie_id("bookie-0"),)

    office(scenario, lost_bookie_delay_s=delay_s)


def test_raising_the_delay_during_an_audit_keeps_the_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator has raised the delay in the middle."""
    monkeypatch.setattr("quire.replication.autorecovery.auditor.PAGE_LEDGERS", 1)

    async def scenario(there: Office) -> None:
        await asyncio.sleep(1.0)
        names = [await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1")) for _ in "123"]
        read_ledger = there.store.read_ledger

        async def delaying(number: int) -> Any:
            if number == names[1] and await there.marks.delay_s() == 0:
                await there.marks.set_delay(300)
                await asyncio.sleep(1.0)
            return await read_ledger(number)

        there.store.read_ledger = delaying  # type: ignore[method-assign]
        there.world.kill("bookie-0")
        await asyncio.sleep(200.0)
        assert await there.marked(names[2]) == ()
        await asyncio.sleep(300.0)
        for ledger_id in names:
            assert await there.marked(ledger_id) == (bookie_id("bookie-0"),)

    office(scenario)


def test_the_auditor_follows_a_changed_or_shortened_delay() -> None:
    async def scenario(there: Office) -> None:
        ledger_id = await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        await asyncio.sleep(1.0)
        there.world.kill("bookie-0")
        await asyncio.sleep(50.0)
        assert await there.marked(ledger_id) == ()
        await there.marks.set_delay(600)
        await asyncio.sleep(500.0)
        assert await there.marked(ledger_id) == ()
        await there.marks.trigger()
        await asyncio.sleep(1.0)
        assert await there.marked(ledger_id) == (bookie_id("bookie-0"),)

    office(scenario, lost_bookie_delay_s=60)


def test_the_auditor_records_which_bookie_it_waits_for() -> None:
    """The note explains why nothing is copied. A changed delay is reported again."""

    async def scenario(there: Office) -> None:
        now_ms = there.client.clock.now_ms
        await asyncio.sleep(1.0)
        assert await last_waiting(there.store, now_ms()) is None
        there.world.kill("bookie-0")
        missed_ms = now_ms()
        await asyncio.sleep(20.0)
        told = await last_waiting(there.store, now_ms())
        assert told is not None
        assert told.bookie == bookie_id("bookie-0")
        assert 0 <= told.since_ms - missed_ms < 20_000
        assert told.until_ms == told.since_ms + 60_000
        await there.marks.set_delay(600)
        await asyncio.sleep(1.0)
        later = await last_waiting(there.store, now_ms())
        assert later is not None
        assert later.until_ms == told.since_ms + 600_000
        assert await last_waiting(there.store, later.until_ms) is None

    office(scenario, lost_bookie_delay_s=60)


@pytest.mark.parametrize("end", ["trigger", "second", "return"])
def test_the_auditor_withdraws_its_note_when_the_wait_ends(end: str) -> None:
    """An operator, a second lost bookie and the bookie itself can end a wait before its time."""

    async def scenario(there: Office) -> None:
        now_ms = there.client.clock.now_ms
        await asyncio.sleep(1.0)
        there.world.kill("bookie-0")
        await asyncio.sleep(20.0)
        assert await last_waiting(there.store, now_ms()) is not None
        if end == "trigger":
            await there.marks.trigger()
        elif end == "second":
            there.world.kill("bookie-1")
        else:
            await there.world.start("bookie-0")
        await asyncio.sleep(20.0)
        assert await last_waiting(there.store, now_ms()) is None
        if end == "return":  # another wait is reported again
            there.world.kill("bookie-0")
            await asyncio.sleep(20.0)
            assert await last_waiting(there.store, now_ms()) is not None

    office(scenario, lost_bookie_delay_s=600)


def test_a_new_auditor_withdraws_the_note_of_a_former_one() -> None:
    async def scenario(there: Office) -> None:
        now_ms = there.client.clock.now_ms()
        await note_waiting(there.store, AwaitedBookie("10.0.0.9:3181", now_ms, now_ms + 600_000))
        await asyncio.sleep(1.0)
        assert await last_waiting(there.store, now_ms + 1_000) is None

    office(scenario, lost_bookie_delay_s=600)


def test_a_note_that_could_not_be_withdrawn_is_withdrawn_by_the_next_look() -> None:
    async def scenario(there: Office) -> None:
        now_ms = there.client.clock.now_ms
        await asyncio.sleep(1.0)
        there.world.kill("bookie-0")
        await asyncio.sleep(20.0)
        delete_value = there.store.delete_value
        refused: list[Any] = []

        async def refuse(key: Any, *rest: Any) -> None:
            if not refused:
                refused.append(key)
                raise MetadataUnavailableError("no answer")
            await delete_value(key, *rest)

        there.store.delete_value = refuse  # type: ignore[method-assign]
        await there.world.start("bookie-0")
        await asyncio.sleep(20.0)
        assert len(refused) == 1
        assert there.stats.store_errors == 1
        assert await last_waiting(there.store, now_ms()) is not None
        await there.marks.set_delay(601)  # the next look
        await asyncio.sleep(1.0)
        assert await last_waiting(there.store, now_ms()) is None

    office(scenario, lost_bookie_delay_s=600)


def test_a_decommissioned_bookie_does_not_end_the_wait_for_another() -> None:
    """It was decommissioned, and another bookie is restarted after that."""

    async def scenario(there: Office) -> None:
        ledger_id = await there.ledger(bookie_id("bookie-1"), bookie_id("bookie-2"))
        await asyncio.sleep(1.0)
        audits = there.stats.audits
        await there.store.delete_cookie(bookie_id("bookie-0"))
        there.world.kill("bookie-0")
        there.world.kill("bookie-1")
        await asyncio.sleep(60.0)
        assert there.stats.audits == audits + 1  # a ledger might name it all the same
        now_ms = there.client.clock.now_ms()
        waiting = await last_waiting(there.store, now_ms)
        assert waiting is not None
        assert waiting.bookie == bookie_id("bookie-1")
        await there.world.start("bookie-1")
        await asyncio.sleep(300.0)
        assert await there.marked(ledger_id) == ()
        there.world.kill("bookie-1")
        await asyncio.sleep(200.0)
        assert await there.marked(ledger_id) == (bookie_id("bookie-1"),)

    office(scenario, lost_bookie_delay_s=100)


def test_a_delay_that_has_passed_does_not_start_again() -> None:
    async def scenario(there: Office) -> None:
        ledger_id = await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        await asyncio.sleep(1.0)
        there.world.kill("bookie-0")
        await asyncio.sleep(61.0)
        assert await there.marked(ledger_id) == (bookie_id("bookie-0"),)
        assert there.stats.bookies_waited_for == 1
        there.world.kill("bookie-1")
        await asyncio.sleep(59.0)
        assert await there.marked(ledger_id) == (bookie_id("bookie-0"),)
        await asyncio.sleep(2.0)
        assert len(await there.marked(ledger_id)) == 2

    office(scenario, lost_bookie_delay_s=60)


def test_no_ledger_is_marked_while_autorecovery_is_disabled() -> None:
    async def scenario(there: Office) -> None:
        ledger_id = await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        await there.marks.disable()
        await asyncio.sleep(1.0)
        there.world.kill("bookie-0")
        await asyncio.sleep(100.0)
        assert await there.marked(ledger_id) == ()
        await there.marks.enable()
        await asyncio.sleep(1.0)
        assert await there.marked(ledger_id) == (bookie_id("bookie-0"),)

    office(scenario)


def test_a_search_interrupted_by_disabling_resumes_when_autorecovery_is_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the ledger names the lost bookie, so nothing else causes a search."""
    monkeypatch.setattr("quire.replication.autorecovery.auditor.PAGE_LEDGERS", 1)

    async def scenario(there: Office) -> None:
        await asyncio.sleep(1.0)
        assert there.stats.audits == 1
        first = await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        gone = await there.ledger(bookie_id("bookie-0"), "10.0.0.9:3181")
        read_ledger, disabled = there.store.read_ledger, False

        async def disabling(number: int) -> Any:
            nonlocal disabled
            if number == first and not disabled:
                disabled = True
                await there.marks.disable()
                await asyncio.sleep(1.0)
            return await read_ledger(number)

        there.store.read_ledger = disabling  # type: ignore[method-assign]
        await there.marks.trigger()
        await asyncio.sleep(10.0)
        assert there.stats.audits == 1
        await there.marks.enable()
        await asyncio.sleep(10.0)
        assert there.stats.audits == 2
        assert await there.marked(gone) == ("10.0.0.9:3181",)

    office(scenario)


def test_read_only_bookies_are_not_lost() -> None:
    async def scenario(there: Office) -> None:
        ledger_id = await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        presence = there.world.cluster.presences[bookie_id("bookie-0")]
        presence.readonly = True
        there.world.cluster.bookies_changed()
        await asyncio.sleep(1.0)
        await there.marks.trigger()
        await asyncio.sleep(1.0)
        assert await there.marked(ledger_id) == ()

    office(scenario)


def test_a_ledger_check_marks_missing_entries_and_stores_its_time() -> None:
    """The ledgers of this test have no entries on any bookie."""

    async def scenario(there: Office) -> None:
        members = bookie_id("bookie-0"), bookie_id("bookie-1")
        ledger_id = await there.ledger(*members)
        await asyncio.sleep(150.0)
        assert sorted(await there.marked(ledger_id)) == list(members)
        assert there.stats.ledger_checks == 2  # at once, and after its interval
        assert there.stats.replicas_checks == 3
        assert there.stats.replicas_missing == 2
        at_ms = await there.marks.checked_ms("replicascheckctime")
        assert at_ms is not None
        assert at_ms > SimClock(there.world.loop).now_ms() - 50_000

    office(scenario, ledger_check_interval_s=100, replicas_check_interval_s=50)


def test_a_new_auditor_continues_with_the_check_times_of_the_former_one() -> None:
    async def scenario(there: Office) -> None:
        await asyncio.sleep(75.0)
        assert there.stats.replicas_checks == 2  # at once, and after its interval
        stats = AutorecoveryStats()
        later = Auditor(
            there.client,
            there.locks,
            settings=AutorecoverySettings(ledger_check_interval_s=0, replicas_check_interval_s=50),
            stats=stats,
            clock=SimClock(there.world.loop),
            rng=random.Random(2),
            log=lambda event, **fields: None,
        )
        running = asyncio.ensure_future(later.run())
        await asyncio.sleep(20.0)
        assert stats.replicas_checks == 0
        await asyncio.sleep(15.0)
        assert stats.replicas_checks == 1
        running.cancel()
        await asyncio.wait([running])

    office(scenario, replicas_check_interval_s=50)


def test_a_bookie_that_hangs_does_not_delay_a_search_for_each_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was asked again for each page of ledgers, for half a minute each time."""
    asked, hangs_s = 0, 30.0

    async def hangs(client: object, bookie: str) -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(hangs_s)
        return "it hangs"

    monkeypatch.setattr(auditor, "answers", hangs)
    monkeypatch.setattr(auditor, "PAGE_LEDGERS", 1)

    async def scenario(there: Office) -> None:
        hanging = bookie_id("bookie-0")
        ledgers = [await there.ledger(hanging) for _ in range(50)]
        there.auditor._silent.add(hanging)
        await asyncio.sleep(4 * hangs_s)
        assert await there.marked(ledgers[-1]) == (hanging,)
        assert asked <= 3

    office(scenario)


def test_a_check_of_the_future_delays_the_next_one_once_and_not_in_each_term() -> None:
    """The clock was a year ahead. Auditors that change more often than that never checked."""
    interval_s = 100.0
    settings = AutorecoverySettings(ledger_check_interval_s=0, replicas_check_interval_s=interval_s)

    async def scenario(there: Office) -> None:
        clock, stats = SimClock(there.world.loop), AutorecoveryStats()
        ahead_ms = clock.now_ms() + 365 * 86_400_000
        await there.marks.set_checked("replicascheckctime", ahead_ms)
        for term in range(3):
            auditor = Auditor(
                there.client, there.locks, settings=settings, stats=stats, clock=clock,
                rng=random.Random(term), log=lambda event, **fields: None,
            )  # fmt: skip
            running = asyncio.ensure_future(auditor.run())
            await asyncio.sleep(0.45 * interval_s)
            running.cancel()
            await asyncio.wait([running])
        assert stats.replicas_checks == 1

    office(scenario)


def test_a_replica_that_only_lags_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker would read all of it, and find nothing to do."""
    behind, short = bookie_id("bookie-0"), bookie_id("bookie-1")
    looks: list[int] = []

    async def check(client: Any, ledger_id: int, registered: Any) -> LackingReplicas:
        looks.append(ledger_id)
        lacking = (short,) if looks.count(ledger_id) > 1 else (behind, short)
        return LackingReplicas(lacking if ledger_id == looks[0] else lacking[:-1], entries=1)

    monkeypatch.setattr(auditor, "check_replicas", check)

    async def scenario(there: Office) -> None:
        ledgers = [await there.ledger(behind, short) for _ in range(2)]
        await asyncio.sleep(30.0)
        assert sorted(looks) == sorted([*ledgers, *ledgers])
        assert [await there.marked(ledger_id) for ledger_id in ledgers] == [(short,), ()]
        assert (there.stats.replicas_lagged, there.stats.ledgers_marked) == (1, 1)

    office(scenario, replicas_check_interval_s=50)


def test_an_unexpected_error_about_one_ledger_does_not_end_the_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next auditor would meet the same error, and end as well."""
    looks: list[int] = []

    async def check(client: Any, ledger_id: int, registered: Any) -> LackingReplicas:
        looks.append(ledger_id)
        if ledger_id == looks[0]:
            raise OverflowError("too large")
        return LackingReplicas((bookie_id("bookie-0"),))

    monkeypatch.setattr(auditor, "check_replicas", check)

    async def scenario(there: Office) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        ledgers = [await there.ledger(bookie_id("bookie-0")) for _ in range(2)]
        await asyncio.sleep(30.0)
        assert there.running is not None
        assert not there.running.done()
        marks = [await there.marked(ledger_id) for ledger_id in ledgers]
        assert sorted(marks) == [(), (bookie_id("bookie-0"),)]
        assert (there.stats.replicas_checks, there.stats.ledgers_unreadable) == (1, 1)

    office(scenario, replicas_check_interval_s=50)


def test_an_absent_bookie_makes_no_ledger_misplaced() -> None:
    """Its rack is unknown, so its ledgers are left to the search for lost bookies."""

    async def scenario(there: Office) -> None:
        await there.ledger(bookie_id("bookie-0"), "away:3181")
        await asyncio.sleep(60.0)
        assert there.stats.placement_checks > 0
        assert there.stats.ledgers_misplaced == 0

    office(scenario, lambda metadata: False, placement_check_interval_s=50)


def test_a_placement_check_is_not_repeated_if_its_note_could_not_be_stored() -> None:
    """The pass was once repeated, and all marks made again, until the store accepted the note."""
    passes = 0

    def adheres(metadata: LedgerMetadata) -> bool | None:
        nonlocal passes
        passes += 1
        return False

    async def scenario(there: Office) -> None:
        await there.ledger(bookie_id("bookie-0"), bookie_id("bookie-1"))
        write_value, refused = there.store.write_value, 0

        async def refuse(key: Any, value: bytes, version: int | None) -> int:
            nonlocal refused
            if tuple(key) == ("autorecovery", "placement"):
                refused += 1
                raise MetadataUnavailableError("the metadata store does not answer")
            return await write_value(key, value, version)

        there.store.write_value = refuse  # type: ignore[method-assign]
        await asyncio.sleep(40.0)
        assert (passes, refused) == (1, 1)
        assert (there.stats.placement_checks, there.stats.store_errors) == (1, 1)
        assert await there.marks.checked_ms(CHECKED_PLACEMENT) is not None

    office(scenario, adheres, placement_check_interval_s=50)


def test_statistics_show_only_the_findings_of_the_current_auditor() -> None:
    """A former auditor reported for ever what was repaired long ago."""

    async def scenario(there: Office) -> None:
        for _ in range(2):
            await there.ledger(*(bookie_id(f"bookie-{n}") for n in range(3)))
        await asyncio.sleep(60.0)
        mine, theirs = there.stats, AutorecoveryStats()
        mine.ledgers_unreadable = 7
        assert (mine.ledgers_misplaced, mine.replicas_missing) == (2, 6)
        assert there.running is not None
        there.running.cancel()
        await asyncio.wait([there.running])
        found = (mine.ledgers_unreadable, mine.ledgers_misplaced, mine.replicas_missing)
        assert found == (0, 0, 0)
        later = Auditor(
            there.client,
            there.locks,
            settings=AutorecoverySettings(
                ledger_check_interval_s=0, placement_check_interval_s=1e6
            ),
            stats=theirs,
            clock=SimClock(there.world.loop),
            rng=random.Random(2),
            log=lambda event, **fields: None,
        )
        running = asyncio.ensure_future(later.run())
        # It takes over what the former one noted, and need not wait for its own check.
        await until(lambda: theirs.ledgers_misplaced, right=lambda found: found == 2)
        running.cancel()
        await asyncio.wait([running])

    def adheres(metadata: LedgerMetadata) -> bool:
        return False

    office(scenario, adheres, placement_check_interval_s=50, replicas_check_interval_s=50)
