"""Run operators' jobs, check their invariants, and check the end state.

A job may be killed at any moment, and several jobs may work on the same bookie at once. When the
faults have ended and every ledger is closed, an operator repeats the decommission jobs until the
bookie is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.bookie.server import Bookie
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.fragments import Fragment, fragments, stored_by
from quire.errors import NoSuchLedgerError, QuireError
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.moves import decommission as taking_away
from quire.replication.moves import rebalance as balancing
from quire.replication.moves.recover import MoveOptions, OpenLedgers
from quire_simulator.actors import shuttles
from quire_simulator.metadata.store import MemoryStore
from quire_simulator.plans.plans import JobPlan, RunPlan
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import bookie_id

LAST = "job-last"
RETRY_S = 1.0
SPREAD_PERCENT = 20.0
PASSES_PER_BOOKIE = 4
"""The number of passes over the copies of all bookies for each bookie of the cluster. With lost
swaps, three of ten passes may drop nothing."""
SHUTTLED = 2
"""The number of ledgers that one job moves back and forth, while there are faults."""


async def operate(stage: Stage, name: str, client: Client, plan: JobPlan) -> None:
    """Run one job once."""
    store = client.metadata
    assert isinstance(store, MemoryStore)
    stage.world.sessions[name] = store
    locks = ReplicationLocks(store, name, client.clock)
    if plan.kind == "shuttle":
        moved = await shuttles.shuttle(
            stage, name, client, locks, plan, 1 if name.startswith(LAST) else SHUTTLED
        )
        note = f"shuttle: {moved} moved"
    elif plan.kind == "rebalance":
        balanced = await balancing.rebalance(
            client,
            locks,
            stage.world.loop.derive(f"plan of {name}"),
            options=balancing.RebalanceOptions(
                target_spread_percent=SPREAD_PERCENT,
                parallel=plan.parallel,
                bytes_per_s=plan.bytes_per_s,
            ),
        )
        note = f"rebalance: {balanced.moved} moved, {len(balanced.left)} left"
    else:
        done = await taking_away.decommission(
            client,
            locks,
            bookie_id(plan.bookie),
            owner=name,
            now_ms=client.clock.now_ms,
            options=MoveOptions(
                open_ledgers=OpenLedgers(plan.open_ledgers),
                open_grace_s=plan.open_grace_s,
                parallel=plan.parallel,
                bytes_per_s=plan.bytes_per_s,
            ),
        )
        note = f"decommission: {done.moved.fragments} moved, drained {done.drained}"
    stage.history.add(name, "job", note=note)


async def finish(stage: Stage) -> None:
    """Repeat the jobs until each bookie to be decommissioned is gone."""
    for plan in stage.plan.jobs:
        if plan.kind == "rebalance" or (plan.kind == "shuttle" and not plan.number):
            # Now all ledgers are closed.
            await _again(stage, f"{LAST}.{plan.number}", plan)
    for name, plan in leaving(stage.plan).items():
        attempt = 0
        while not _gone(stage, name):
            attempt += 1
            await _again(stage, f"{LAST}.{plan.number}.{attempt}", plan)
            await asyncio.sleep(RETRY_S)
        for ledger_id in sorted(stage.world.cluster.ledgers):
            if _names(_metadata(stage, ledger_id), bookie_id(name)):
                what = f"{name} is decommissioned, but ledger {ledger_id} still names it"
                stage.checker.fail("nothing_names_a_bookie_that_is_gone", what)


def leaving(plan: RunPlan) -> dict[str, JobPlan]:
    """Return the bookies that are to be decommissioned, each with its job."""
    return {job.bookie: job for job in plan.jobs if job.kind == "decommission"}


async def _again(stage: Stage, operator: str, plan: JobPlan) -> None:
    client = stage.world.client(operator, stage.plan.client_config)
    try:
        await operate(stage, operator, client, replace(plan, bytes_per_s=None, open_ledgers="wait"))
    except QuireError as error:
        stage.history.add(operator, "failed", note=str(error))
    await client.close()


def _gone(stage: Stage, name: str) -> bool:
    return stage.world.retired(name) and name not in stage.world.bookies


async def collect_copies(stage: Stage) -> None:
    """Check that in the end no bookie keeps a closed ledger that does not name it."""
    if not stage.plan.jobs:
        return
    world = stage.world
    # Dropping a copy changes the ledger's metadata version, so other bookies may need another pass.
    # So does a change whose answer was lost.
    for _ in range(PASSES_PER_BOOKIE * (1 + len(world.bookies))):
        for bookie in list(world.bookies.values()):
            await world.within(bookie, bookie.collect_over_replicated())
        left = [
            f"{name} still stores ledger {ledger_id}, which does not name it"
            for name, bookie in world.bookies.items()
            for ledger_id in bookie.store.ledger_ids()
            if (metadata := _metadata(stage, ledger_id)) is not None
            and metadata.closed
            and not _names(metadata, bookie_id(name))
        ]
        if not left:
            return
    stage.checker.fail("copies_too_many_are_dropped", left[0])


def _metadata(stage: Stage, ledger_id: int) -> LedgerMetadata | None:
    try:
        return stage.world.cluster.ledger(ledger_id).value
    except NoSuchLedgerError:
        return None


def _names(metadata: LedgerMetadata | None, bookie: str) -> bool:
    return metadata is not None and any(bookie in one.ensemble for one in metadata.segments)


class _Cookies(dict[str, Any]):
    """A dict of cookies that calls `removed` for each cookie that is removed."""

    def __init__(self, cookies: dict[str, Any], removed: Callable[[str], None]) -> None:
        super().__init__(cookies)
        self._removed = removed

    def pop(self, bookie: str, *otherwise: Any) -> Any:
        there = bookie in self
        found = super().pop(bookie, *otherwise)
        if there:
            self._removed(bookie)
        return found


class JobInvariants:
    """Check every change of a ledger, and every drop by a bookie, at the moment it happens."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._world = stage.world
        self._before: dict[int, LedgerMetadata] = {}
        self._retired: set[str] = set()
        cluster, observer = stage.world.cluster, stage.world.cluster.observer
        started = stage.world.started

        def on_ledger(ledger_id: int) -> None:
            self._ledger(ledger_id)
            observer(ledger_id)

        async def on_start(name: str, bookie: Bookie) -> None:
            # A bookie that was already starting when its cookie was removed notices a moment later.
            if bookie_id(name) in self._retired and bookie.writable:
                what = f"{name} was decommissioned, but it accepts entries"
                stage.checker.fail("a_bookie_that_is_gone_stays_away", what)
            await started(name, bookie)

        cluster.observer = on_ledger
        cluster.cookies = _Cookies(cluster.cookies, self._cookie_removed)
        stage.world.started = on_start

    def _ledger(self, ledger_id: int) -> None:
        now, before = _metadata(self._stage, ledger_id), self._before.pop(ledger_id, None)
        if now is None:
            return
        self._before[ledger_id] = now
        if before is None:
            return
        ends = {one.segment_first: one for one in fragments(now, now.last_entry_id)}
        for fragment in fragments(before, before.last_entry_id):
            now_there = ends.get(fragment.segment_first)
            if now_there is None:
                continue
            if not fragment.closed:
                if now_there.ensemble != fragment.ensemble:
                    self._is_left_alone(ledger_id, now, fragment)
                continue
            for index, bookie in enumerate(now_there.ensemble):
                if bookie != fragment.ensemble[index]:
                    self._is_whole(ledger_id, now, index, bookie, fragment.first, now_there.last)

    def _is_left_alone(self, ledger_id: int, now: LedgerMetadata, fragment: Fragment) -> None:
        caller = self._world.metadata_caller
        if not now.closed and caller.startswith("job-"):
            what = (
                f"{caller} changed the open segment {fragment.segment_first} of ledger {ledger_id}"
            )
            self._stage.checker.fail("a_segment_is_its_writer_s_until_it_is_full", what)

    def _is_whole(
        self, ledger_id: int, now: LedgerMetadata, index: int, bookie: str, first: int, last: int
    ) -> None:
        if bookie in self._stage.checker.destroyed or last < first:
            return
        held = self._world.claims.of(ledger_id).get(bookie, set())
        lacks = [entry for entry in stored_by(now, index, first, last) if entry not in held]
        if lacks:
            what = (
                f"ledger {ledger_id}: {bookie} became a member but lacks {lacks[:5]}"
                f" of {first}..{last}"
            )
            self._stage.checker.fail("a_new_member_has_its_part", what)

    def _cookie_removed(self, bookie: str) -> None:
        self._retired.add(bookie)
        for ledger_id in sorted(self._world.cluster.ledgers):
            if _names(_metadata(self._stage, ledger_id), bookie):
                what = f"the cookie of {bookie} was removed, but ledger {ledger_id} names it"
                self._stage.checker.fail("a_bookie_that_is_needed_keeps_its_cookie", what)
