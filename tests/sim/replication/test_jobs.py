"""Operators' jobs on simulated bookies.

Lost entries are copied, a live bookie is drained, replicas move to a new bookie, and bookies drop
surplus copies.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from quire.cli.common.progress import JobBar
from quire.cli.shell.replicas import _recovering as recovering
from quire.client import Client
from quire.codec.entry.digest import master_key
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.codec.wire.v2 import Code, Flag
from quire.errors import (
    JobError,
    JobRefusedError,
    NoSuchKeyError,
    NotEnoughBookiesError,
    UsageError,
)
from quire.http.routes.cluster import ClusterRoutes
from quire.http.routes.jobs import HttpJob, Jobs
from quire.http.server.api import Call
from quire.metadata.bookies.directories import (
    BookieDirectories,
    forget_bookie,
    read_directories,
    write_directories,
)
from quire.metadata.bookies.orders import What, order_path, stored_order
from quire.replication import ReplicationLocks
from quire.replication.explain.explain import explain_ledger
from quire.replication.moves import recover as recover_module
from quire.replication.moves.decommission import (
    Decommissioned,
    _Decommissioning,
    decommission,
    take_back,
)
from quire.replication.moves.rebalance import RebalanceOptions, rebalance
from quire.replication.moves.recover import MoveOptions, OpenLedgers, recover_bookie
from quire.replication.repair.bookie_removal import LedgerOutcome, take_out
from quire_simulator import simulate
from quire_simulator.metadata.store import MemoryStore
from quire_simulator.world.world import BOOKIE_CONFIG, World, bookie_id
from tests.support.long import long_after
from tests.support.sim.jobs import filled, names
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
from tests.support.waiting import until

SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "5"))
QUICK = MoveOptions(open_grace_s=1.0)
BY_HAND = replace(BOOKIE_CONFIG, gc_over_replicated_interval_s=0.0)
"""Passes for copies too many are made by the test."""


async def retire(world: World, client: Client, bookie: str, **how: Any) -> Decommissioned:
    how = {"options": QUICK, **how}
    return await decommission(
        client, locks_of(world, client), bookie, owner="operator", now_ms=client.clock.now_ms, **how
    )


# -- recover ----------------------------------------------------------------------------------


def test_recover_reports_why_an_open_ledger_could_not_be_closed() -> None:
    """`--open-ledgers fence` once hid the error, and reported that the ledger was being written."""

    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        ledger_id = (await write(client, 40, close=False)).ledger_id
        await client.close()
        operator = world.client("operator")
        metadata = await operator.ledger_metadata(ledger_id)
        lost, other, _ = metadata.segments[0].ensemble
        for one in (lost, other):
            world.crash(name_of(one))
        await asyncio.sleep(30)
        options = MoveOptions(OpenLedgers.FENCE)
        locks = locks_of(world, operator)
        done = await recover_bookie(operator, locks, lost, options=options)
        assert not done.open
        [left] = done.failed
        assert left.why.startswith("the ledger could not be fenced and closed: ")
        assert f"ledger {ledger_id}" in left.why
        await operator.close()

    simulated(scenario)


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_unknown_bookie_is_refused(dry_run: bool) -> None:
    """It has no cookie and no ledger names it, so the id is a mistake."""

    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        await filled(client, bookie_id("bookie-1"))
        locks = locks_of(world, client)
        with pytest.raises(
            UsageError, match="the cluster knows no bookie nobody: no ledger names it, and"
        ):
            await recover_bookie(client, locks, "nobody", dry_run=dry_run)
        with pytest.raises(
            UsageError, match="the cluster knows no bookie nobody: no ledger names it, and"
        ):
            await retire(world, client, "nobody", dry_run=dry_run)

    simulated(scenario)


def test_the_shell_refuses_an_unknown_bookie_even_for_one_ledger() -> None:
    """`recover -ledger ID` once ended successfully, having done nothing."""

    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        (ledger_id, *_) = await filled(client, bookie_id("bookie-1"))
        work = recovering("nobody", ledger_id, False, False, None)
        with pytest.raises(
            UsageError, match=f"no bookie nobody: ledger {ledger_id} does not name it, and it has"
        ):
            await work(client, locks_of(world, client), JobBar(shown=False))
        await client.close()

    simulated(scenario)


def test_a_lost_bookie_without_a_cookie_is_recovered_despite_a_similar_id() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        lost = bookie_id("bookie-1")
        await filled(client, lost)
        await world.stop("bookie-1")
        cookie = await client.metadata.read_cookie(lost)
        await client.metadata.delete_cookie(lost, cookie.version)
        done = await recover_bookie(client, locks_of(world, client), lost)
        assert done.complete
        with pytest.raises(
            UsageError, match=r"the cluster knows no bookie .*: no ledger names it"
        ) as caught:
            await recover_bookie(client, locks_of(world, client), lost)
        assert caught.value.remedy.startswith("Did you mean bookie-")

    simulated(scenario)


def test_recovering_a_lost_bookie_twice_has_nothing_left_to_do() -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        lost = bookie_id("bookie-1")
        ids = await filled(client, lost)
        locks = locks_of(world, client)
        with pytest.raises(UsageError, match="is running"):
            await recover_bookie(client, locks, lost)
        world.crash("bookie-1")
        before = await names(client, lost)
        planned = await recover_bookie(client, locks, lost, dry_run=True)
        assert [one.ledger for one in planned.moves] == before == await names(client, lost)
        done = await recover_bookie(client, locks, lost, options=QUICK)
        assert done.complete
        assert (done.ledgers, done.fragments) == (len(before), len(before))
        assert done.entries == sum(one.entries for one in planned.moves)
        assert await names(client, lost) == []
        assert await audited(client, ids) == []
        again = await recover_bookie(client, locks, lost, options=QUICK)
        assert (again.moves, again.entries) == ((), 0)
        described = done.as_json(limit=1)
        assert len(described["moves"]) == 1
        assert described["to_move"]["ledgers"] == len(before)
        assert described["left"] == {"open": 0, "locked": 0, "failed": 0, "unreadable": 0}
        await client.close()

    simulated(scenario)


def test_two_recoveries_of_one_bookie_share_the_work() -> None:
    async def scenario(world: World) -> None:
        await start(world, 6)
        client, other = world.client("client"), world.client("other")
        lost = bookie_id("bookie-1")
        ids = await filled(client, lost)
        world.crash("bookie-1")
        planned = await recover_bookie(client, locks_of(world, client), lost, dry_run=True)
        found = await asyncio.gather(
            recover_bookie(client, locks_of(world, client, "one"), lost, options=QUICK),
            recover_bookie(other, locks_of(world, other, "two"), lost, options=QUICK),
        )
        assert all(one.complete for one in found)
        assert sum(one.fragments for one in found) == len(planned.moves)
        assert await audited(client, ids) == []
        await client.close()
        await other.close()

    simulated(scenario, bookies=6)


@pytest.mark.parametrize("mode", list(OpenLedgers))
def test_an_open_ledger_is_awaited_fenced_or_skipped(mode: OpenLedgers) -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 50, close=False)
        lost = (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble[1]
        world.crash(name_of(lost))
        if mode is not OpenLedgers.SKIP:
            await client.close()  # otherwise the writer replaces the bookie itself
        options = replace(QUICK, open_ledgers=mode)
        done = await recover_bookie(other, locks_of(world, other), lost, options=options)
        metadata = await other.ledger_metadata(writer.ledger_id)
        if mode is OpenLedgers.SKIP:
            assert (done.open, done.complete) == ((writer.ledger_id,), False)
            assert metadata.state is LedgerState.OPEN
            await writer.append(payload(50))  # the writer was left alone
        else:
            assert done.complete
            assert metadata.closed
            assert metadata.last_entry_id == 49
            assert await names(other, lost) == []
        closed = (writer.ledger_id,)
        assert done.recovered == (closed if mode is OpenLedgers.WAIT else ())
        assert done.fenced == (closed if mode is OpenLedgers.FENCE else ())
        assert done.as_json()["fenced"] == done.fenced
        await client.close()
        await other.close()

    simulated(scenario)


async def recovered_by_http(client: Client, bookie: str) -> HttpJob:
    """Run the HTTP job that recovers a bookie and removes its cookie."""

    async def connect() -> Client:
        return client

    jobs = Jobs(client.clock)
    routes = ClusterRoutes(connect, jobs, "operator")
    reply = await routes.recover(Call({}, {}, {"bookie_src": [bookie], "delete_cookie": True}))
    assert reply.status == 202
    (job,) = jobs.all()
    assert job.task is not None
    await asyncio.wait([job.task])
    return job


def test_a_recovery_removes_the_cookie() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        lost = bookie_id("bookie-1")
        await filled(client, lost)
        await world.stop("bookie-1")
        job = await recovered_by_http(client, lost)
        assert job.result is not None
        assert job.result["cookie_removed"] is True
        assert lost not in await client.metadata.list_cookies()
        assert await read_directories(client.metadata, lost) is None
        again = await recovered_by_http(client, lost)
        assert again.state == "failed"
        assert again.error is not None
        assert f"the cluster knows no bookie {lost}" in again.error["what"]
        await client.close()

    simulated(scenario)


async def created_again(client: Client, bookie: str) -> None:
    """Do what an operator does who removes a bookie and starts a new one with the same id.

    The new cookie has the same bytes and the same version as the old one.
    """
    store = client.metadata
    cookie = (await store.read_cookie(bookie)).value
    await store.delete_cookie(bookie)
    await forget_bookie(store, bookie)
    await write_directories(store, bookie, BookieDirectories({"/data": "ab" * 16}), None)
    await store.write_cookie(bookie, cookie, None)


@pytest.mark.parametrize("job", ["recover", "decommission"])
def test_a_job_keeps_the_cookie_of_a_recreated_bookie(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recover` once removed any cookie, and `decommission` every one with the same version."""
    taken_out = recover_module.take_out_of

    async def then_created(client: Client, locks: Any, bookie: str, *more: Any, **how: Any) -> Any:
        done = await taken_out(client, locks, bookie, *more, **how)
        await created_again(client, bookie)
        return done

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        lost = bookie_id("bookie-1")
        await filled(client, lost)
        await world.stop("bookie-1")
        monkeypatch.setattr(f"quire.replication.moves.{job}.take_out_of", then_created)
        if job == "recover":
            told = (await recovered_by_http(client, lost)).error
            assert told is not None
            assert "created the bookie again" in told["what"]
        else:
            with pytest.raises(JobError, match="created the bookie again"):
                await retire(world, client, lost)
        assert (await client.metadata.read_cookie(lost)).value
        found = await read_directories(client.metadata, lost)
        assert found is not None
        assert found.value.ids == {"/data": "ab" * 16}
        await client.close()

    simulated(scenario)


@pytest.mark.parametrize("with_cookie", [False, True])
def test_a_bookie_that_is_created_during_the_last_pass_is_not_forgotten(
    with_cookie: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job deleted the record of whichever bookie had the id by then."""
    ended = _Decommissioning.end
    made = BookieDirectories({"/data": "ab" * 16})

    async def then_created(job: _Decommissioning, version: int | None) -> bool:
        done = await ended(job, version)
        store = job.client.metadata
        found = await read_directories(store, job.bookie)
        assert found is not None
        await write_directories(store, job.bookie, made, found.version)
        if with_cookie:
            await store.write_cookie(job.bookie, b"cookie", None)
        return done

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        lost = bookie_id("bookie-1")
        await filled(client, lost)
        await world.stop("bookie-1")
        monkeypatch.setattr(_Decommissioning, "end", then_created)
        assert (await retire(world, client, lost)).ended
        found = await read_directories(client.metadata, lost)
        assert found is not None
        assert found.value == made
        await client.close()

    simulated(scenario)


def test_a_recovery_keeps_the_cookie_of_a_returned_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken_out = recover_module.take_out_of

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        lost = bookie_id("bookie-1")
        await filled(client, lost)
        await world.stop("bookie-1")

        async def then_started(*words: Any, **how: Any) -> Any:
            done = await taken_out(*words, **how)
            await world.start("bookie-1")
            return done

        monkeypatch.setattr(recover_module, "take_out_of", then_started)
        told = (await recovered_by_http(client, lost)).error
        assert told is not None
        assert "the bookie was started during the job" in told["what"]
        assert (await client.metadata.read_cookie(lost)).value
        await client.close()

    simulated(scenario)


# -- decommission -----------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", [PLAIN, STRIPED], ids=["plain", "striped"])
def test_a_running_bookie_is_drained_under_a_writer_and_ends(
    quorums: tuple[int, int, int],
) -> None:
    async def scenario(world: World) -> None:
        await start(world, 6)
        client, operator = world.client("client"), world.client("operator")
        writer = await write(client, 40, quorums, close=False)
        leaving = (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble[0]
        ids = [*await filled(client, leaving, quorums), writer.ledger_id]
        going = True

        async def go_on() -> None:
            while going:
                await writer.append(payload(writer.last_add_pushed + 1))
                await asyncio.sleep(0.05)

        writing = asyncio.ensure_future(go_on())
        dry = await retire(world, operator, leaving, dry_run=True)
        assert dry.alive
        assert dry.moved.moves
        assert await stored_order(operator.metadata, leaving) is None
        done = await retire(world, operator, leaving)
        assert (done.drained, done.cookie_removed, done.ended) == (True, True, True)
        assert done.moved.recovered == ()  # the writer was not fenced
        assert await names(operator, leaving) == []
        with pytest.raises(NoSuchKeyError):
            await operator.metadata.read_cookie(leaving)
        assert await stored_order(operator.metadata, leaving) is None
        assert await read_directories(operator.metadata, leaving) is None  # the id is free
        assert name_of(leaving) not in world.bookies
        await writer.append(payload(writer.last_add_pushed + 1))
        going = False
        await writing
        last = await writer.close()
        assert await read_all(client, writer.ledger_id) == [payload(n) for n in range(last + 1)]
        assert await audited(client, ids) == []
        # It does not start on its old data.
        with pytest.raises(Exception, match="does not know"):
            await world.start(name_of(leaving))
        with pytest.raises(UsageError, match="the cluster knows no bookie"):
            await retire(world, operator, leaving)
        await client.close()
        await operator.close()

    simulated(scenario, bookies=6)


def test_a_decommissioned_bookie_stays_read_only_if_it_is_started_again() -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        leaving = bookie_id("bookie-2")
        ids = await filled(client, leaving)
        await world.stop("bookie-2")
        done = await retire(world, client, leaving, keep_cookie=True)
        assert (done.alive, done.drained, done.cookie_removed) == (False, True, False)
        await world.start("bookie-2")
        assert leaving in (await client.bookies()).readonly
        assert await take_back(client, leaving)
        await until(lambda: writable(client, leaving), poll_s=0.05)
        assert not await take_back(client, leaving)
        assert await audited(client, ids) == []
        await client.close()

    simulated(scenario)


async def writable(client: Client, bookie: str) -> bool:
    return bookie in (await client.bookies()).writable


def test_an_interrupted_job_is_continued() -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        leaving = bookie_id("bookie-0")
        ids = await filled(client, leaving)
        for part_s in (0.05, 0.4, 1.0, 2.0, 3.0, 3.2, 3.4):
            job = asyncio.ensure_future(retire(world, client, leaving))
            await asyncio.wait([job], timeout=part_s)
            job.cancel()
            await asyncio.wait([job])
        if name_of(leaving) in world.bookies:
            done = await retire(world, client, leaving)
            assert done.drained
        assert await names(client, leaving) == []
        assert await audited(client, ids) == []
        with pytest.raises(NoSuchKeyError):
            await client.metadata.read_cookie(leaving)
        await client.close()

    simulated(scenario)


def test_a_writable_bookie_that_ignores_orders_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quire.bookie.background.orders import Orders

    monkeypatch.setattr(Orders, "_seen", lambda self, found: None)

    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        leaving = bookie_id("bookie-0")
        await filled(client, leaving)
        before = await names(client, leaving)
        with pytest.raises(JobError, match="still accepts entries") as caught:
            await retire(world, client, leaving)
        assert "read-only" in str(caught.value)
        assert await stored_order(client.metadata, leaving) is None
        assert await names(client, leaving) == before
        await client.close()

    simulated(scenario)


def test_a_bookie_whose_entries_have_no_destination_is_kept() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        leaving = bookie_id("bookie-0")
        await filled(client, leaving)
        with pytest.raises(JobRefusedError, match="1 bookie instead of") as refused:
            await retire(world, client, leaving)
        assert refused.value.outcome_known
        assert await stored_order(client.metadata, leaving) is None
        done = await retire(world, client, leaving, options=replace(QUICK, check=False))
        assert not done.drained
        assert not done.cookie_removed
        assert len(done.moved.failed) == len(await names(client, leaving)) > 0
        assert all("bookies" in one.why for one in done.moved.failed)
        assert (await client.metadata.read_cookie(leaving)).value
        found = await stored_order(client.metadata, leaving)
        assert found is not None
        assert found.value.what is What.DRAIN
        with pytest.raises(NotEnoughBookiesError):  # No ledger is placed there now.
            await write(client, 1)
        await take_back(client, leaving)
        await until(lambda: writable(client, leaving), poll_s=0.05)
        await write(client, 1)
        await client.close()

    simulated(scenario, bookies=3)


# -- rebalance, and copies too many -----------------------------------------------------------


def test_a_new_bookie_gets_its_share_and_the_others_delete_their_copies() -> None:
    async def scenario(world: World) -> None:
        for number in range(3):
            await world.start(f"bookie-{number}", BY_HAND)
        client = world.client("client")
        ids = [(await write(client, 300)).ledger_id for _ in range(12)]
        await world.start("bookie-3", BY_HAND)
        await until(lambda: writable(client, bookie_id("bookie-3")), poll_s=0.05)
        locks = locks_of(world, client)
        options = RebalanceOptions(target_spread_percent=10)
        planned = await rebalance(client, locks, random.Random(1), dry_run=True, options=options)
        assert planned.plan.moves
        assert await names(client, bookie_id("bookie-3")) == []
        done = await rebalance(client, locks, random.Random(1), options=options)
        assert (done.moved, done.left) == (len(planned.plan.moves), ())
        assert done.plan == planned.plan
        assert len(await names(client, bookie_id("bookie-3"))) == done.moved == 9
        again = await rebalance(client, locks, random.Random(1), options=options)
        assert again.plan.moves == ()
        moved = {(one.ledger, one.source) for one in done.plan.moves}
        for ledger_id, source in moved:
            assert await has(client, ledger_id, source)  # a copy too many
        await dropped_in_two_passes(world)
        for bookie in world.bookies.values():
            mine = {ledger for ledger, source in moved if source == bookie.bookie_id}
            kept = set(await names(client, bookie.bookie_id))
            assert set(bookie.store.ledger_ids()) == kept
            assert not mine & kept
        assert await audited(client, ids) == []
        for ledger_id in ids:
            assert await read_all(client, ledger_id) == [payload(n) for n in range(300)]
        await client.close()

    simulated(scenario)


async def dropped_in_two_passes(world: World) -> None:
    before = {name: b.store.ledger_ids() for name, b in world.bookies.items()}
    for bookie in world.bookies.values():
        await bookie.collect_over_replicated()
    assert before == {name: b.store.ledger_ids() for name, b in world.bookies.items()}
    for bookie in world.bookies.values():
        await bookie.collect_over_replicated()


def test_a_dropped_ledger_can_be_copied_again_but_not_written() -> None:
    """It can also be copied to a bookie where it was fenced. Only its old writer must be refused
    (rule 36).
    """

    async def scenario(world: World) -> None:
        for number in range(4):
            await world.start(f"bookie-{number}", BY_HAND)
        client, other = world.client("client"), world.client("other")
        stale = await write(client, 30, close=False)
        ledger_id = stale.ledger_id
        reader = await other.open_ledger(ledger_id, password=b"pw", recover=True)
        reader.close()
        first = (await other.ledger_metadata(ledger_id)).segments[0].ensemble
        spare = next(b for b in map(bookie_id, world.bookies) if b not in first)
        locks = locks_of(world, other)
        await swap(other, locks, ledger_id, first[0], spare)
        await dropped_in_two_passes(world)
        gone = world.bookies[name_of(first[0])]
        key = master_key(b"pw")
        assert gone.store.is_refused(ledger_id)
        assert gone.service.may_add(ledger_id, key, Flag.NONE) == Code.FENCED
        await swap(other, locks, ledger_id, spare, first[0])
        assert await gone.store.entry_ranges(ledger_id) == [(0, 29)]
        assert gone.service.may_add(ledger_id, key, Flag.NONE) == Code.FENCED
        world.crash(name_of(first[0]))
        await world.start(name_of(first[0]), BY_HAND)
        gone = world.bookies[name_of(first[0])]
        assert await gone.store.entry_ranges(ledger_id) == [(0, 29)]
        assert gone.service.may_add(ledger_id, key, Flag.NONE) == Code.FENCED
        assert await audited(other, [ledger_id]) == []
        await client.close()
        await other.close()

    simulated(scenario)


async def swap(client: Client, locks: ReplicationLocks, ledger_id: int, old: str, new: str) -> None:
    from quire.replication.repair.fragment import CopyOutcome
    from quire.replication.repair.opened_ledger import open_for_repair
    from tests.support.replication import replicate_fragment

    async with locks.hold(ledger_id):
        ledger = await open_for_repair(client, ledger_id, password=b"pw")
        (fragment,) = ledger.fragments()
        at = fragment.ensemble.index(old)
        done = await replicate_fragment(client, ledger, fragment, {at: new})
        assert done.outcome is CopyOutcome.DONE


def test_a_copy_that_is_being_made_is_not_dropped() -> None:
    """The copy is safe under its maker's lock, and without it until a full interval without an
    entry.
    """

    async def scenario(world: World) -> None:
        for number in range(4):
            await world.start(f"bookie-{number}", BY_HAND)
        client = world.client("client")
        ledger_id = (await write(client, 200)).ledger_id
        ensemble = (await client.ledger_metadata(ledger_id)).segments[0].ensemble
        spare = next(b for b in map(bookie_id, world.bookies) if b not in ensemble)
        bookie, locks = world.bookies[name_of(spare)], locks_of(world, client)

        async def copy(first: int, last: int) -> None:
            from quire.replication.repair.opened_ledger import open_for_repair
            from quire.replication.repair.recovery_adds import RecoveryAdds
            from quire.replication.repair.replica_source import ReplicaSource

            ledger = await open_for_repair(client, ledger_id, password=b"pw")
            copies = await ReplicaSource(client, ledger).read(ensemble, range(first, last + 1))
            async with RecoveryAdds(client, ledger, spare) as adds:
                await adds.write(copies)

        async with locks.hold(ledger_id):
            await copy(0, 99)
            for _ in range(3):
                await bookie.collect_over_replicated()
            assert await has(client, ledger_id, spare) == list(range(100))
        for _ in range(2):  # the second time the same again: that counts as well
            await copy(100, 150)
            await bookie.collect_over_replicated()
            assert await has(client, ledger_id, spare) == list(range(151))
        await bookie.collect_over_replicated()
        assert ledger_id not in bookie.store.ledgers
        assert await audited(client, [ledger_id]) == []
        await client.close()

    simulated(scenario)


def test_a_copy_dropped_before_the_metadata_named_it_is_repeated() -> None:
    """The copier lost its session and its lock, and paused for two passes before it named the
    bookie.

    The bookie then lacked all its entries.
    """

    async def scenario(world: World) -> None:
        for number in range(4):
            await world.start(f"bookie-{number}", BY_HAND)
        client, other = world.client("client"), world.client("other")
        ledger_id = (await write(client, 200)).ledger_id
        ensemble = (await client.ledger_metadata(ledger_id)).segments[0].ensemble
        spare = next(b for b in map(bookie_id, world.bookies) if b not in ensemble)
        bookie, locks = world.bookies[name_of(spare)], locks_of(world, client)
        store = client.metadata
        assert isinstance(store, MemoryStore)
        write_ledger, late = store.write_ledger, 0

        async def write_late(*arguments: Any) -> Any:
            nonlocal late
            late += 1
            if late == 1:
                store.expire_session()
                for _ in range(3):
                    await bookie.collect_over_replicated()
                assert ledger_id not in bookie.store.ledgers
            return await write_ledger(*arguments)

        store.write_ledger = write_late  # type: ignore[method-assign]
        world.crash(name_of(ensemble[0]))
        done = await take_out(client, locks, ledger_id, [ensemble[0]])
        assert done.work is LedgerOutcome.DONE
        assert spare in (await other.ledger_metadata(ledger_id)).segments[0].ensemble
        assert await has(other, ledger_id, spare) == list(range(200))
        assert await audited(other, [ledger_id]) == []
        assert late == 2
        await client.close()
        await other.close()

    simulated(scenario)


def test_open_ledgers_and_ledgers_of_another_cluster_are_not_collected() -> None:
    async def scenario(world: World) -> None:
        for number in range(4):
            await world.start(f"bookie-{number}", BY_HAND)
        client, other = world.client("client"), world.client("other")
        writer = await write(client, 20, close=False)
        ledger_id = writer.ledger_id
        left_out = (await client.ledger_metadata(ledger_id)).segments[0].ensemble[0]
        world.expire_session(name_of(left_out))
        world.network.partition("client", name_of(left_out), reset=True)
        await writer.append(payload(20))
        await writer.append(payload(21))
        world.network.heal()
        bookie = world.bookies[name_of(left_out)]
        for _ in range(2):
            await bookie.collect_over_replicated()
        assert ledger_id in bookie.store.ledgers
        closed = (await write(client, 5)).ledger_id
        holder = (await client.ledger_metadata(closed)).segments[0].ensemble[0]
        bookie = world.bookies[name_of(holder)]
        assert bookie._over_replicated is not None
        bookie._over_replicated._bookie_id = "somebody-else:1"  # nothing would name it
        bookie._over_replicated._instance_id = "another"
        for _ in range(2):
            await bookie.collect_over_replicated()
        assert closed in bookie.store.ledgers
        await writer.close()
        await client.close()
        await other.close()

    simulated(scenario)


# -- explain ----------------------------------------------------------------------------------


def test_a_ledger_is_explained() -> None:
    async def scenario(world: World) -> None:
        await start(world, 4)
        client = world.client("client")
        ledger_id = (await write(client, 50)).ledger_id
        for deep in (False, True):
            well = await explain_ledger(client, ledger_id, deep=deep)
            assert well.verdict.sentence.startswith("Nothing is wrong")
            assert well.verdict.command == ""
            (segment,) = well.segments
            assert (segment.first, segment.last, segment.closed) == (0, 49, True)
            assert [(one.state, one.entries) for one in segment.replicas] == [("present", 50)] * 3
            assert segment.copies_min == 3
        lost = segment.replicas[1].bookie
        world.crash(name_of(lost))
        ill = await explain_ledger(client, ledger_id)
        replica = ill.segments[0].replicas[1]
        assert (replica.state, replica.registered) == ("unreachable", "gone")
        assert ill.segments[0].copies_min == 2
        assert lost in ill.verdict.sentence
        assert ill.verdict.command == f"quire bookie recover {lost}"
        locks = locks_of(world, client, "worker-7")
        await locks.mark(ledger_id, [lost])
        async with locks.hold(ledger_id):
            held = await explain_ledger(client, ledger_id)
        assert held.lock_owner == "worker-7"
        assert "worker-7" in held.verdict.sentence
        for replica in ill.segments[0].replicas:
            if replica.registered != "gone":
                world.crash(name_of(replica.bookie))
        nothing = await explain_ledger(client, ledger_id)
        assert "Start bookie-0:3181" in nothing.verdict.sentence
        assert nothing.segments[0].copies_min == 0
        await client.close()

    simulated(scenario, bookies=4)


def test_a_replica_that_lacks_entries_is_explained() -> None:
    async def scenario(world: World) -> None:
        for number in range(4):
            await world.start(f"bookie-{number}", BY_HAND)
        client = world.client("client")
        ledger_id = (await write(client, 50, STRIPED)).ledger_id
        bookie = (await client.ledger_metadata(ledger_id)).segments[0].ensemble[2]
        world.bookies[name_of(bookie)].store.drop_ledgers([ledger_id])
        for deep in (False, True):
            found = await explain_ledger(client, ledger_id, deep=deep)
            states = {one.bookie: one.state for one in found.segments[0].replicas}
            assert states.pop(bookie) == "missing"
            assert set(states.values()) == {"present"}
            assert found.segments[0].copies_min == 2
            assert bookie in found.verdict.sentence
            assert found.verdict.command == "quire autorecovery start"
        await client.close()

    simulated(scenario)


def test_an_open_ledger_of_a_lost_bookie_without_a_spare_is_explained() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        writer = await write(client, 5, close=False)
        lost = (await client.ledger_metadata(writer.ledger_id)).segments[0].ensemble[0]
        world.crash(name_of(lost))
        found = await explain_ledger(client, writer.ledger_id)
        assert (found.state, found.spare) == ("OPEN", 0)
        again = f"Start {lost} again, with the options that it had, or another bookie"
        assert again in found.verdict.sentence
        assert asdict(found)["segments"][0]["closed"] is False
        await client.close()

    simulated(scenario, bookies=3)


def test_orders_have_their_own_metadata_path() -> None:
    assert order_path("memory://x", "b:1") == "/quire/underreplication/quire-orders/b:1"
    assert order_path("zk://h:1/ledgers", "b:1") == "/ledgers/underreplication/quire-orders/b:1"


# -- the workload -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", long_after(1, range(max(2, SEEDS // 5))))
def test_the_invariants_hold_under_jobs(seed: int) -> None:
    result = simulate(seed, "decommission")
    assert result.failure is None, (seed, result.failure)
