"""Recoveries, decommissionings, rebalancing and explanations on simulated bookies.

`tests/sim/replication/test_jobs.py` has the cases that take longer.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from quire.bookie.background.orders import Orders
from quire.client.client import pool_of
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.core.fragments import fragments
from quire.errors import (
    BookieBusyError,
    BookieError,
    BookieIOError,
    JobError,
    JobRefusedError,
    MetadataError,
    MetadataWentBackError,
    NoSuchEntryError,
    ProtocolError,
    ReadError,
    UsageError,
)
from quire.metadata.bookies.orders import Order, What, give_order, stored_order
from quire.metadata.interface import MetadataStore, Versioned
from quire.replication.explain.entry import entry_copies
from quire.replication.explain.explain import explain_ledger
from quire.replication.moves import decommission as decommission_module
from quire.replication.moves.cookie_removal import (
    BookieIdentity,
    identity_of,
    remove_lost_bookie,
)
from quire.replication.moves.decommission import (
    PASSES_MAX,
    SETTLE_S,
    decommission,
    take_back,
)
from quire.replication.moves.rebalance import RebalanceOptions, _fragment, rebalance
from quire.replication.moves.rebalance_plan import PlannedMove
from quire.replication.moves.recover import (
    MoveOptions,
    NoProgress,
    OpenLedgers,
    RecoverResult,
    check_known,
    recover_bookie,
    refuse_unknown,
)
from quire_simulator.world.world import World, bookie_id
from tests.support.sim.jobs import names
from tests.support.sim.replication import (
    audited,
    has,
    locks_of,
    name_of,
    read_all,
    simulated,
    start,
    write,
)

QUICK = MoveOptions(open_grace_s=1.0)
PASSWORD = b"pw"


# -- recover ----------------------------------------------------------------------------------


def test_a_lost_bookie_is_recovered() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ids = [(await write(client, 20)).ledger_id for _ in range(3)]
        lost = (await client.ledger_metadata(ids[0])).segments[0].ensemble[0]
        locks = locks_of(world, client)
        with pytest.raises(UsageError, match="is running"):
            await recover_bookie(client, locks, lost)
        world.crash(name_of(lost))
        before = await names(client, lost)
        planned = await recover_bookie(client, locks, lost, dry_run=True, options=QUICK)
        assert [one.ledger for one in planned.moves] == before == await names(client, lost)
        done = await recover_bookie(client, locks, lost, options=QUICK)
        assert done.complete
        assert (done.ledgers, done.fragments) == (len(before), len(before))
        assert done.entries == 20 * len(before)
        assert await names(client, lost) == []
        assert await audited(client, ids) == []
        assert done.as_json()["left"] == {"open": 0, "locked": 0, "failed": 0, "unreadable": 0}
        await client.close()

    simulated(scenario, bookies=4)


def test_a_ledger_that_another_process_repairs_is_skipped() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = (await write(client, 5)).ledger_id
        lost = (await client.ledger_metadata(ledger_id)).segments[0].ensemble[0]
        world.crash(name_of(lost))
        async with locks_of(world, client, "other").hold(ledger_id):
            done = await recover_bookie(client, locks_of(world, client), lost, options=QUICK)
        assert not done.complete
        assert done.as_json()["left"] == {"open": 0, "locked": 1, "failed": 0, "unreadable": 0}
        assert await names(client, lost) == [ledger_id]
        await client.close()

    simulated(scenario, bookies=4)


@pytest.mark.parametrize("mode", [OpenLedgers.SKIP, OpenLedgers.FENCE])
def test_an_open_ledger_is_skipped_or_fenced_as_requested(mode: OpenLedgers) -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client, other = world.client("client"), world.client("other")
        ledger_id = (await write(client, 5, close=False)).ledger_id
        lost = (await client.ledger_metadata(ledger_id)).segments[0].ensemble[1]
        world.crash(name_of(lost))
        options = MoveOptions(open_ledgers=mode, open_grace_s=1.0)
        done = await recover_bookie(other, locks_of(world, other), lost, options=options)
        closed = (await other.ledger_metadata(ledger_id)).closed
        fenced = mode is OpenLedgers.FENCE
        assert (done.complete, closed) == (fenced, fenced)
        assert done.open == (() if fenced else (ledger_id,))
        assert done.fenced == ((ledger_id,) if fenced else ())
        await client.close()
        await other.close()

    simulated(scenario, bookies=4)


def test_a_writer_that_has_replaced_the_bookie_meanwhile_is_not_fenced() -> None:
    """The turn that found its ledger open may take hours."""

    async def scenario(world: World) -> None:
        await start(world, 5)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 5, close=False)
        ledger_id = writer.ledger_id
        lost = (await client.ledger_metadata(ledger_id)).segments[0].ensemble[1]
        world.crash(name_of(lost))

        class Progress(NoProgress):
            calls = 0

            async def may_go_on(self) -> None:
                self.calls += 1
                if self.calls == 2:  # before the ledger is fenced
                    await writer.append(b"five")
                    while lost in (await other.ledger_metadata(ledger_id)).last_segment.ensemble:
                        await asyncio.sleep(0.1)

        options = MoveOptions(open_ledgers=OpenLedgers.FENCE, open_grace_s=1.0)
        locks = locks_of(world, other)
        done = await recover_bookie(other, locks, lost, options=options, progress=Progress())
        assert (done.complete, done.fenced) == (True, ())
        await writer.append(b"six")
        await writer.close()
        assert len(await read_all(other, ledger_id)) == 7
        await client.close()
        await other.close()

    simulated(scenario)


def test_an_unknown_bookie_is_refused() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ledger_id = (await write(client, 1)).ledger_id
        locks = locks_of(world, client)
        known = bookie_id("bookie-0")
        await check_known(client, known)
        unknown = "the cluster knows no bookie bookie-9:3181: "
        with pytest.raises(UsageError, match=f"{unknown}no ledger names it, and") as caught:
            await recover_bookie(client, locks, "bookie-9:3181")
        assert caught.value.remedy.startswith("Did you mean bookie-")
        with pytest.raises(UsageError, match=f"{unknown}ledger {ledger_id} does not name it, and"):
            await refuse_unknown(client, "bookie-9:3181", 0, ledger_id)
        with pytest.raises(UsageError, match=r"names it \(the metadata of 2 ledgers cannot be"):
            await refuse_unknown(client, "bookie-9:3181", 2)
        await refuse_unknown(client, known, 0)
        await client.close()

    simulated(scenario, bookies=3)


# -- decommission -----------------------------------------------------------------------------


async def retire(world: World, client: Any, bookie: str, **how: Any) -> Any:
    return await decommission(
        client,
        locks_of(world, client),
        bookie,
        owner="operator",
        now_ms=client.clock.now_ms,
        options=QUICK,
        **how,
    )


def test_a_running_bookie_is_drained_and_ends() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ids = [(await write(client, 10)).ledger_id for _ in range(2)]
        old = (await client.ledger_metadata(ids[0])).segments[0].ensemble[0]
        before = await names(client, old)
        dry = await retire(world, client, old, dry_run=True)
        assert [one.ledger for one in dry.moved.moves] == before
        assert await stored_order(client.metadata, old) is None
        done = await retire(world, client, old)
        assert done.as_json()["cookie_removed"] is True
        assert done.as_json()["ended"] is True
        assert await names(client, old) == []
        assert old not in await client.metadata.list_cookies()
        assert (await client.bookies()).find(old) is None
        assert await stored_order(client.metadata, old) is None
        assert await audited(client, ids) == []
        await client.close()

    simulated(scenario, bookies=4)


def test_a_drained_bookie_with_its_cookie_can_be_taken_back() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = (await write(client, 10)).ledger_id
        old = (await client.ledger_metadata(ledger_id)).segments[0].ensemble[0]
        assert not await take_back(client, old)
        done = await retire(world, client, old, keep_cookie=True)
        assert done.as_json()["drained"] is True
        assert done.as_json()["cookie_removed"] is False
        assert old in (await client.bookies()).readonly
        assert old in await client.metadata.list_cookies()
        assert await take_back(client, old)
        assert await stored_order(client.metadata, old) is None
        await client.close()

    simulated(scenario, bookies=4)


def test_a_store_that_goes_back_during_the_job_keeps_the_cookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ledgers that the store lacks may be on this bookie alone."""
    asked: list[int] = []

    async def check(store: MetadataStore) -> None:
        asked.append(1)
        if len(asked) > 1:
            raise MetadataWentBackError("the metadata store went back to an older state")

    monkeypatch.setattr(decommission_module, "check_not_back", check)

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        old = bookie_id("bookie-0")
        with pytest.raises(MetadataWentBackError):
            await retire(world, client, old)
        assert old in await client.metadata.list_cookies()
        found = await stored_order(client.metadata, old)
        assert found is not None
        assert found.value.what is What.DRAIN
        await client.close()

    simulated(scenario, bookies=4)


def may_lack_ledgers(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node among the ledgers has a name that this version does not know."""
    listed = client.metadata.list_ledgers

    async def list_ledgers(first: int = 0, *, complete: bool = False, **how: Any) -> Any:
        if complete:
            raise MetadataError("the list of ledgers may not be complete")
        async for one in listed(first, **how):
            yield one

    monkeypatch.setattr(client.metadata, "list_ledgers", list_ledgers)


def test_an_incomplete_list_of_ledgers_keeps_the_cookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ledger that is not listed may name the bookie."""

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = (await write(client, 10)).ledger_id
        old = (await client.ledger_metadata(ledger_id)).segments[0].ensemble[0]
        may_lack_ledgers(client, monkeypatch)
        with pytest.raises(MetadataError, match="may not be complete"):
            await retire(world, client, old)
        assert await names(client, old) == []
        assert old in await client.metadata.list_cookies()
        found = await stored_order(client.metadata, old)
        assert found is not None
        assert found.value.what is What.DRAIN
        await client.close()

    simulated(scenario, bookies=4)


def test_a_lost_bookie_that_an_unlisted_ledger_may_name_keeps_its_cookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        lost = bookie_id("bookie-0")
        before = await identity_of(client.metadata, lost)
        world.crash("bookie-0")
        await asyncio.sleep(30)
        with monkeypatch.context() as patched:
            may_lack_ledgers(client, patched)
            with pytest.raises(MetadataError, match="may not be complete"):
                await remove_lost_bookie(client.metadata, lost, before)
        assert lost in await client.metadata.list_cookies()
        assert await remove_lost_bookie(client.metadata, lost, before)
        await client.close()

    simulated(scenario, bookies=4)


def test_a_bookie_on_which_ledgers_keep_appearing_keeps_its_cookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pass has proved that it is empty."""
    passes: list[int] = []

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        old = bookie_id("bookie-0")

        async def finds_another(*_: Any) -> RecoverResult:
            passes.append(1)
            return RecoverResult(old, False, ())

        monkeypatch.setattr(decommission_module._Decommissioning, "run_pass", finds_another)
        with pytest.raises(JobError, match=r"bookie .* is not empty: each of 20 searches"):
            await retire(world, client, old)
        assert len(passes) == PASSES_MAX
        assert old in await client.metadata.list_cookies()
        await client.close()

    simulated(scenario, bookies=4)


def test_a_job_that_was_cancelled_does_not_go_on_with_the_order_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ledgers may have been placed on the bookie between the two orders."""
    again = Order(What.DRAIN, 123, "another operator")

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        old = bookie_id("bookie-0")

        async def cancelled_and_begun_again(store: MetadataStore) -> None:
            assert await take_back(client, old)
            await give_order(store, old, again, None)

        monkeypatch.setattr(decommission_module, "check_all_listed", cancelled_and_begun_again)
        with pytest.raises(JobError, match="was cancelled by another command"):
            await retire(world, client, old)
        assert old in await client.metadata.list_cookies()
        found = await stored_order(client.metadata, old)
        assert found is not None
        assert found.value == again
        await client.close()

    simulated(scenario, bookies=4)


def test_clients_have_time_to_notice_that_a_bookie_is_read_only() -> None:
    """A client that does not know it yet may still place a ledger on the bookie."""

    async def scenario(world: World) -> None:
        await start(world, 4)
        client, late = world.client("client"), world.client("late")
        old = bookie_id("bookie-0")
        begun_s = world.loop.time()
        job = asyncio.ensure_future(retire(world, client, old, keep_cookie=True))
        while old in (await client.bookies()).writable:
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S - 1)
        metadata = LedgerMetadata(1, 1, 1, (Segment(0, (old,)),)).with_close(-1, 0)
        ledger_id, _ = await late.metadata.create_ledger(metadata)
        done = await job
        assert world.loop.time() - begun_s >= SETTLE_S
        assert done.drained
        assert [one.ledger for one in done.moved.moves] == [ledger_id]
        assert await names(client, old) == []
        await client.close()
        await late.close()

    simulated(scenario, bookies=4)


def test_a_recreated_bookie_is_treated_as_another_one() -> None:
    """Its cookie may be the same in each byte, and the version begins again."""
    cookie = Versioned(b"cookie", 0)
    before = BookieIdentity(cookie, frozenset({"0a", "0b"}))
    for now, same in (
        (before, True),
        (BookieIdentity(cookie, frozenset({"0b", "0c"})), True),  # a directory was replaced
        (BookieIdentity(cookie, frozenset({"0c"})), False),
        (BookieIdentity(cookie), True),
        (BookieIdentity(Versioned(b"cookie", 1), before.directories), False),
        (BookieIdentity(Versioned(b"other", 0), before.directories), False),
        (BookieIdentity(None, before.directories), False),
    ):
        assert before.is_of(now) is same
    assert BookieIdentity(cookie).is_of(before)


def test_a_bookie_that_stays_registered_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie without the order would accept entries again, although it has no cookie."""

    async def stays(_: Orders) -> None:
        pass

    monkeypatch.setattr(Orders, "_end", stays)

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        old = bookie_id("bookie-0")
        done = await retire(world, client, old)
        assert done.as_json()["ended"] is False
        found = await stored_order(client.metadata, old)
        assert found is not None
        assert found.value.what is What.RETIRED
        with pytest.raises(UsageError, match="cannot be cancelled"):
            await take_back(client, old)
        await client.close()

    simulated(scenario, bookies=4)


def test_a_decommissioning_without_room_for_the_copies_is_refused() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ledger_id = (await write(client, 3)).ledger_id
        for dry_run in (False, True):
            with pytest.raises(JobRefusedError, match=str(ledger_id)):
                await retire(world, client, bookie_id("bookie-0"), dry_run=dry_run)
        assert await stored_order(client.metadata, bookie_id("bookie-0")) is None
        assert bookie_id("bookie-0") in (await client.bookies()).writable
        await client.close()

    simulated(scenario, bookies=3)


def test_a_late_cancellation_is_reported_as_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once failed with a version conflict that named a node of the metadata store."""
    real = decommission_module.stored_order

    async def overtaken(store: MetadataStore, bookie: str) -> Any:
        found = await real(store, bookie)
        if found is not None and found.value.what is What.DRAIN:
            await give_order(store, bookie, replace(found.value, what=What.RETIRED), found.version)
        return found

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        old = bookie_id("bookie-0")
        await give_order(client.metadata, old, Order(What.DRAIN, 0, "host"), None)
        monkeypatch.setattr(decommission_module, "stored_order", overtaken)
        with pytest.raises(UsageError, match="cannot be cancelled"):
            await take_back(client, old)
        await client.close()

    simulated(scenario, bookies=4)


def test_a_job_that_cannot_drain_does_not_withdraw_the_order_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It once withdrew it, so that the bookie accepted entries while the other job emptied it."""
    monkeypatch.setattr(Orders, "_seen", lambda self, found: None)
    meanwhile = Order(What.DRAIN, 7, "another host")

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        first, second = bookie_id("bookie-0"), bookie_id("bookie-1")

        async def given(store: MetadataStore, bookie: str, order: Order, at: int | None) -> int:
            if bookie == first:  # another job is faster
                await give_order(store, bookie, meanwhile, None)
                return await give_order(store, bookie, order, at)
            version = await give_order(store, bookie, order, at)
            await give_order(store, bookie, meanwhile, version)  # another job goes on
            return version

        monkeypatch.setattr(decommission_module, "give_order", given)
        for old, says in ((first, "another command"), (second, "still accepts")):
            with pytest.raises(JobError, match=says):
                await retire(world, client, old)
            found = await stored_order(client.metadata, old)
            assert found is not None
            assert found.value == meanwhile
        await client.close()

    simulated(scenario, bookies=4)


# -- rebalance --------------------------------------------------------------------------------


def test_replicas_move_to_a_new_bookie() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ids = [(await write(client, 20)).ledger_id for _ in range(4)]
        await world.start("bookie-3")
        new = bookie_id("bookie-3")
        locks = locks_of(world, client)
        planned = await rebalance(client, locks, random.Random(1), dry_run=True)
        assert planned.dry_run
        assert planned.plan.moves
        assert await names(client, new) == []
        done = await rebalance(client, locks, random.Random(1))
        assert (done.moved, done.left) == (len(done.plan.moves), ())
        assert done.entries == sum(one.entries for one in done.plan.moves)
        assert done.as_json()["moved"] == done.moved
        moved = await names(client, new)
        assert {one.ledger for one in done.plan.moves} == set(moved)
        for ledger_id in moved:
            assert await has(client, ledger_id, new) == list(range(20))
        assert await audited(client, ids) == []
        await client.close()

    simulated(scenario, bookies=4)


def test_a_move_is_skipped_if_its_segment_changed_since_the_plan() -> None:
    """A bookie would be in the ensemble twice, or another member would be replaced."""
    closed = LedgerMetadata(3, 3, 2, (Segment(0, ("a", "b", "c")),)).with_close(9, 90)
    move = PlannedMove(1, 0, 1, "b", "d", 90, 10)

    def found(metadata: LedgerMetadata) -> object:
        last = metadata.last_entry_id if metadata.closed else 9
        return _fragment({one.segment_first: one for one in fragments(metadata, last)}, move)

    assert found(closed) is not None
    for ensemble in (("a", "b", "d"), ("d", "b", "c"), ("a", "e", "c"), ("b", "a", "c")):
        assert found(replace(closed, segments=(Segment(0, ensemble),))) is None
    assert found(LedgerMetadata(3, 3, 2, (Segment(0, ("a", "b", "c")),))) is None
    assert found(replace(closed, segments=(Segment(3, ("a", "b", "c")),))) is None


def test_a_locked_ledger_is_not_rebalanced() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ids = [(await write(client, 20)).ledger_id for _ in range(2)]
        await world.start("bookie-3")
        other = locks_of(world, client, "other")
        async with other.hold(ids[0]), other.hold(ids[1]):
            done = await rebalance(client, locks_of(world, client), random.Random(1))
        assert done.moved == 0
        assert len(done.left) == len(done.plan.moves) > 0
        assert all("other" in one.why for one in done.left)
        assert await names(client, bookie_id("bookie-3")) == []
        await client.close()

    simulated(scenario, bookies=4)


def test_a_rebalancing_needs_two_writable_bookies() -> None:
    async def scenario(world: World) -> None:
        await start(world, 1)
        client = world.client("client")
        locks = locks_of(world, client)
        with pytest.raises(JobRefusedError, match="1 bookie is writable, and a move needs two"):
            await rebalance(client, locks, random.Random(1))
        options = RebalanceOptions(check=False)
        done = await rebalance(client, locks, random.Random(1), options=options)
        assert (done.moved, done.plan.moves) == (0, ())
        await client.close()

    simulated(scenario, bookies=1)


# -- explain ----------------------------------------------------------------------------------


def test_the_state_of_each_replica_is_explained() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = (await write(client, 10)).ledger_id
        ensemble = (await client.ledger_metadata(ledger_id)).segments[0].ensemble
        for deep in (False, True):
            found = await explain_ledger(client, ledger_id, deep=deep)
            [segment] = found.segments
            assert [one.state for one in segment.replicas] == ["present"] * 3
            assert [one.entries for one in segment.replicas] == [10] * 3
            assert [one.registered for one in segment.replicas] == ["writable"] * 3
            assert (segment.first, segment.last, segment.copies_min) == (0, 9, 3)
            assert (found.last_entry, found.quorums, found.deep) == (9, (3, 3, 2), deep)
            assert (found.mark, found.lock_owner, found.auditor) == (None, None, None)
            assert found.spare == 1
        lost = ensemble[1]
        world.bookies[name_of(ensemble[2])].store.drop_ledgers([ledger_id])
        world.crash(name_of(lost))
        found = await explain_ledger(client, ledger_id)
        [segment] = found.segments
        states = [one.state for one in segment.replicas]
        assert states == ["present", "unreachable", "missing"]
        assert segment.copies_min == 1
        assert lost in found.verdict.sentence
        locks = locks_of(world, client, "worker-7")
        await locks.mark(ledger_id, [lost])
        async with locks.hold(ledger_id):
            found = await explain_ledger(client, ledger_id)
        assert found.lock_owner == "worker-7"
        assert "worker-7" in found.verdict.sentence
        await client.close()

    simulated(scenario, bookies=4)


def test_a_ledger_without_entries_is_explained() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ledger_id = (await write(client, 0)).ledger_id
        found = await explain_ledger(client, ledger_id)
        for segment in found.segments:
            assert {one.state for one in segment.replicas} == {"empty"}
        await client.close()

    simulated(scenario, bookies=3)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BookieBusyError("the bookie has too many requests"), "unreachable"),
        (ProtocolError("the answer is too short"), "unreachable"),
        (BookieIOError("I/O error on the bookie"), "damaged"),
    ],
)
def test_only_an_unreadable_entry_is_explained_as_a_damaged_copy(
    error: BookieError, state: str
) -> None:
    """A busy bookie seemed to have a failing disk."""

    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ledger_id = (await write(client, 5)).ledger_id
        first = (await entry_copies(client, ledger_id, 2, password=PASSWORD)).copies[0]
        pool = pool_of(client)
        ask = pool.ask

        async def refused(bookie: str, question: Any) -> Any:
            if bookie == first.bookie:
                raise error
            return await ask(bookie, question)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pool, "ask", refused)
            found = await entry_copies(client, ledger_id, 2, password=PASSWORD)
        assert [one.state for one in found.copies] == [state, "good", "good"]
        assert str(error.args[0]) in found.copies[0].detail
        await client.close()

    simulated(scenario, bookies=3)


def test_the_copies_of_an_entry_are_shown() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        ledger_id = (await write(client, 5)).ledger_id
        empty = (await write(client, 0)).ledger_id
        with pytest.raises(NoSuchEntryError, match="is closed and has no entries"):
            await entry_copies(client, empty, 0, password=PASSWORD)
        found = await entry_copies(client, ledger_id, 2, password=PASSWORD)
        assert [one.state for one in found.copies] == ["good"] * 3
        assert [one.registered for one in found.copies] == ["writable"] * 3
        assert found.good is not None
        assert found.good.payload == (await read_all(client, ledger_id))[2]
        gone, lost, _ = (one.bookie for one in found.copies)
        world.bookies[name_of(gone)].store.drop_ledgers([ledger_id])
        world.crash(name_of(lost))
        found = await entry_copies(client, ledger_id, 2, password=PASSWORD)
        assert [one.state for one in found.copies] == ["missing", "unreachable", "good"]
        assert found.good is found.copies[2]
        with pytest.raises(NoSuchEntryError, match="ends at entry 4"):
            await entry_copies(client, ledger_id, 5, password=PASSWORD)
        await client.close()

    simulated(scenario, bookies=3)


def test_an_entry_that_may_be_unacknowledged_is_not_shown() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client, other = world.client("client"), world.client("other")
        ledger_id = (await write(client, 0, close=False)).ledger_id
        with pytest.raises(ReadError, match="no entry is known to be") as caught:
            await entry_copies(other, ledger_id, 0, password=PASSWORD)
        assert not isinstance(caught.value, NoSuchEntryError)
        await client.close()
        await other.close()

    simulated(scenario, bookies=3)
