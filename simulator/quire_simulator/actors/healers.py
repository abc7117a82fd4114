"""Run autorecovery, check its invariants, and check the end state.

A healer is one process with an auditor, a worker, or both. Any healer may die. When the faults have
ended, one more healer starts, so that the work can finish.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from quire.bookie.server import Bookie
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.codec.metadata.underreplication import (
    ELECTION,
    LEDGERS,
    LockHolder,
    Underreplicated,
    lock_path,
    vote_number,
)
from quire.core.append.quorum import write_set
from quire.core.fragments import Fragment, fragments, members, stored_by
from quire.errors import NoSuchLedgerError
from quire.replication.autorecovery.autorecovery import Autorecovery
from quire.replication.autorecovery.settings import AutorecoverySettings
from quire.replication.marks.locks import replication_root
from quire_simulator.actors import racks
from quire_simulator.invariants.checker import InvariantError
from quire_simulator.invariants.claims import entries_of
from quire_simulator.knobs.drawing import drawn_settings
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.nodes import Change
from quire_simulator.metadata.store import MemoryStore
from quire_simulator.plans.faults import (
    BETWEEN_TWO,
    DIRECTORY_KINDS,
    DISK_ERROR_KINDS,
    REPLACEMENT_KINDS,
)
from quire_simulator.plans.plans import HealerPlan
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.world.stage import POLL_S, Stage
from quire_simulator.world.world import World, bookie_id

HEAL_S = 300.0
"""Seconds within which every entry must be on its whole write set, counted from the time when the
faults have ended and all ledgers are closed.
"""
PLACEMENT_CHECK_S = 9.0
REPLICAS_CHECK_S = 5.0
REPLICAS_CHECK_SELDOM_S = 200.0
"""The interval in workloads in which bookies must report by themselves what they have lost."""
LAST = "healer-last"
CANCELLED = 0.1
"""The probability that autorecovery is cancelled and run again within `POLL_S`, in some runs."""
READS = 4
"""A check of a healer acts on one of the last READS values that it read of a ledger's metadata."""
BRIEF_S = 1.0
"""Seconds of presence between two absences that healers may not notice."""
STOPPING_S = 0.1
"""A bookie that stops closes its connections up to this long before its registration."""


def _settings(stage: Stage, plan: HealerPlan) -> AutorecoverySettings:
    replacing = WORKLOADS[stage.plan.workload].replacing
    usual: dict[str, Any] = {
        "lost_bookie_delay_s": plan.delay_s,
        "bookie_check_interval_s": 20.0,
        "ledger_check_interval_s": 7.0,
        "replicas_check_interval_s": (REPLICAS_CHECK_SELDOM_S if replacing else REPLICAS_CHECK_S),
        "open_grace_s": plan.open_grace_s,
        "backoff_s": 0.5,
        "backoff_max_s": 5.0,
        "poll_s": 1.0,
        "bytes_per_s": None,
        "placement_check_interval_s": PLACEMENT_CHECK_S if stage.plan.racks else 0.0,
        "repair_placement": bool(stage.plan.racks),
    }
    drawn = drawn_settings(stage.plan.knobs, "AutorecoverySettings")
    return AutorecoverySettings(**{**usual, **drawn})


async def heal(stage: Stage, name: str, client: Client, plan: HealerPlan) -> None:
    """Run one autorecovery process until the checks at the end of the run have passed."""
    store = client.metadata
    assert isinstance(store, MemoryStore)
    stage.world.sessions[name] = store
    autorecovery = Autorecovery(
        client,
        name,
        settings=_settings(stage, plan),
        auditor=plan.part != "worker",
        worker=plan.part != "auditor",
        clock=client.clock,
        rng=stage.world.loop.derive(f"autorecovery {name}"),
        log=partial(stage.world.trace.record, name),
    )
    running = asyncio.ensure_future(autorecovery.run())
    chance, ends_s = stage.cancelling(name), stage.begin_s + stage.plan.span_s
    while not stage.healed and not running.done():
        await asyncio.sleep(POLL_S)
        if chance is None or chance.random() > CANCELLED or stage.world.loop.time() > ends_s:
            continue
        await asyncio.sleep(chance.random() * POLL_S)
        running.cancel()
        await asyncio.wait([running])
        if running.cancelled():
            running = asyncio.ensure_future(autorecovery.run())
    running.cancel()
    await asyncio.wait([running])
    if not running.cancelled():
        stage.checker.fail("only_our_errors", f"{name}: {running.exception()!r}")


def is_healer(name: str) -> bool:
    return name.startswith("healer-")


class HealInvariants:
    """Check every change of a registration, a mark or a ledger at the moment it is made."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._world = stage.world
        self._cluster = stage.world.cluster
        plan = stage.plan.healers[0]
        self._delay_s = plan.delay_s
        self._grace_s = plan.open_grace_s
        top = replication_root("memory://sim")
        self._root, self._locks = f"{top}/{LEDGERS}/", lock_path(top, 0).rpartition("/")[0]
        self._locked_at: dict[str, float] = {}
        """The time when each ledger's lock was last taken, by the path of the lock."""
        self._away_since: dict[str, float] = {}
        """The time since when each bookie is unregistered or dead, whichever came first."""
        self._away_until: dict[str, float] = {}
        self._away_before: dict[str, float] = {}
        """The start of the previous absence of each bookie in `_away_until`."""
        self._down: set[str] = set()
        """Bookies that have left and do not serve again.

        A bookie that is starting may be registered already, but it does not answer yet.
        """
        self._marks: dict[str, Underreplicated] = {}
        self._read: WeakKeyDictionary[asyncio.Task[Any], dict[int, LedgerMetadata]] = (
            WeakKeyDictionary()
        )
        """The metadata of each ledger that each healer task read last and acts on."""
        self._read_by: defaultdict[tuple[str, int], deque[LedgerMetadata]] = defaultdict(
            lambda: deque(maxlen=READS)
        )
        """The metadata of each ledger that each healer, with all its tasks, read last."""
        self._marked_at: dict[int, float] = {}
        """The time since when each ledger is marked."""
        self._states: dict[int, LedgerState] = {}
        self._known = set(self._cluster.presences)
        # A healer that cannot reach a bookie also treats it as lost.
        self._all_reach_all = not any(f.kind in BETWEEN_TWO for f in stage.plan.schedule)
        self._incomplete = {
            bookie_id(f.target)
            for f in stage.plan.schedule
            if f.kind in (*DIRECTORY_KINDS, *REPLACEMENT_KINDS)
            or (f.kind in DISK_ERROR_KINDS and stage.plan.directories > 1)
        }
        """Bookies that miss a directory at some time during the run."""
        self._wrap()

    def _wrap(self) -> None:
        cluster = self._cluster
        bookies_changed, observer = cluster.bookies_changed, cluster.observer
        read_observer, tree_observer = cluster.read_observer, cluster.tree_observer

        def on_bookies() -> None:
            self._registrations()
            bookies_changed()

        leave, started = self._world._leave, self._world.started

        def on_leave(name: str, session_left_s: float) -> None:
            if name in self._world.bookies:
                self._leaves(bookie_id(name))
                self._down.add(bookie_id(name))
            leave(name, session_left_s)

        async def on_start(name: str, bookie: Bookie) -> None:
            self._down.discard(bookie_id(name))
            self._registrations()
            await started(name, bookie)

        def on_ledger(ledger_id: int) -> None:
            self._ledger(ledger_id)
            observer(ledger_id)

        def on_read(ledger_id: int, metadata: LedgerMetadata) -> None:
            self._on_read(ledger_id, metadata)
            read_observer(ledger_id, metadata)

        def on_tree(changes: Iterable[Change]) -> None:
            changes = list(changes)
            for path, children in changes:
                if path.startswith(self._root) and not children:
                    self._mark(path)
                elif path.startswith(self._locks) and cluster.tree.get(path) is not None:
                    self._locked_at[path] = self._now_s
            tree_observer(changes)

        self._world._leave = on_leave  # type: ignore[method-assign]
        self._world.started = on_start
        cluster.bookies_changed = on_bookies  # type: ignore[method-assign]
        cluster.observer = on_ledger
        cluster.read_observer = on_read
        cluster.tree_observer = on_tree

    @property
    def _now_s(self) -> float:
        return self._world.loop.time()

    def _on_read(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        task = asyncio.current_task()
        if task is not None and self._by_healer():
            self._read.setdefault(task, {})[ledger_id] = metadata
            self._read_by[self._world.metadata_caller, ledger_id].append(metadata)

    def _by_healer(self) -> bool:
        return is_healer(self._world.metadata_caller)

    def _leaves(self, bookie: str) -> None:
        """Record that the bookie left.

        If it was back for less than `BRIEF_S`, the earlier absence continues, because an observer
        may not have seen it come back.
        """
        if self._now_s - self._away_until.get(bookie, -BRIEF_S) < BRIEF_S:
            self._away_since.setdefault(bookie, self._away_before[bookie])
        else:
            self._away_since.setdefault(bookie, self._now_s)

    def _registrations(self) -> None:
        running = {bookie_id(name) for name in self._world.bookies}
        present = running.intersection(self._cluster.presences) - self._down
        for bookie in self._known - present - self._away_since.keys():
            self._leaves(bookie)
        for bookie in present & self._away_since.keys():
            self._away_before[bookie] = self._away_since.pop(bookie)
            self._away_until[bookie] = self._now_s
        self._known |= present

    # -- marks --------------------------------------------------------------------------------

    def _mark(self, path: str) -> None:
        if "/urL" not in path:
            return
        ledger_id = int(path.rpartition("urL")[2])
        node, before = self._cluster.tree.get(path), self._marks.pop(path, None)
        if node is not None:
            now = self._marks[path] = Underreplicated.decode(node.value)
            self._marked_at.setdefault(ledger_id, self._now_s)
            for bookie in now.replicas:
                if before is None or bookie not in before.replicas:
                    self._is_given_up(ledger_id, bookie)
            return
        self._marked_at.pop(ledger_id, None)
        if before is not None and self._by_healer():
            self._is_whole(ledger_id, before)

    def _is_given_up(self, ledger_id: int, bookie: str) -> None:
        """Check that a single absent bookie is not given up before the delay has passed."""
        since_s = self._away_since.get(bookie)
        if since_s is None or not self._delay_s or not self._all_reach_all:
            return
        if bookie in self._incomplete:
            return  # A check before the bookie left has found that it lacks something.
        if self._stage.plan.racks:
            return  # The placement check names bookies that are alive, or were a moment ago.
        back = {other for other, at_s in self._away_until.items() if at_s > since_s}
        others = {*self._away_since, *back} - {bookie}
        away_s = self._now_s - since_s
        # A check may mark a ledger that was repaired since the check read its metadata.
        read = self._read_by.get((self._world.metadata_caller, ledger_id), ())
        lacks = any(any(self._lacking(ledger_id, one, (bookie,))) for one in read)
        if not others and not lacks and away_s < self._delay_s - STOPPING_S:
            what = f"ledger {ledger_id}: {bookie} was given up {away_s:.2f} s after it left"
            self._stage.checker.fail("a_lost_bookie_is_waited_for", what)

    def _is_whole(self, ledger_id: int, mark: Underreplicated) -> None:
        """Check that a mark is removed only when the bookies it names lack nothing.

        Only the segments count that were complete when the remover last read the metadata. The
        replica check finds segments that become complete later.
        """
        task = asyncio.current_task()
        read = self._read.get(task, {}).get(ledger_id) if task is not None else None
        now = self._metadata(ledger_id)
        if now is None:
            return
        metadata = read or now
        destroyed = self._stage.checker.destroyed
        locked_s = self._locked_at.get(lock_path(replication_root("memory://sim"), ledger_id), 0.0)
        for bookie in mark.replicas:
            if self._world.claims.lost_at_s.get(bookie, 0.0) > locked_s:
                continue  # It was checked before this loss.
            gone = bookie in destroyed and self._away_since.get(bookie, locked_s) < locked_s
            if gone and any(bookie in f.ensemble for f in _closed(metadata)):
                what = f"ledger {ledger_id} still names {bookie}, which has lost its data"
                self._stage.checker.fail("a_mark_goes_when_nothing_is_missing", what)
            for what in self._lacking(ledger_id, metadata, (bookie,), but=self._queued):
                self._stage.checker.fail("a_mark_goes_when_nothing_is_missing", what)

    def _queued(self, bookie: str, ledger_id: int) -> set[int]:
        """Return entries that the bookie serves but may not have synced yet; their state is
        unknown.
        """
        running = self._world.bookies.get(bookie.partition(":")[0])
        info = running.store.ledgers.get(ledger_id) if running and running.recovered else None
        runs = () if info is None else (run for part in info.open_parts for run in part.runs)
        return {entry for run in runs for entry in entries_of(run)}

    def _lacking(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        bookies: Iterable[str],
        *,
        but: Callable[[str, int], set[int]] = lambda bookie, ledger_id: set(),
    ) -> Iterator[str]:
        """Yield what these bookies lack of the complete segments, according to the entries that
        they claimed to have.
        """
        held = self._world.claims.of(ledger_id)
        for fragment in _closed(metadata):
            for index in members(fragment, bookies):
                bookie = fragment.ensemble[index]
                wanted = set(stored_by(metadata, index, fragment.first, fragment.last))
                wanted -= held.get(bookie, set())
                if wanted and (lacks := sorted(wanted - but(bookie, ledger_id))):
                    yield f"ledger {ledger_id}: {bookie} lacks {lacks[:5]} of {fragment}"

    # -- ledgers ------------------------------------------------------------------------------

    def _metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the metadata of now, without counting it as read by the current task."""
        try:
            return MemoryCluster.ledger(self._cluster, ledger_id).value
        except NoSuchLedgerError:
            return None

    def _ledger(self, ledger_id: int) -> None:
        metadata = self._metadata(ledger_id)
        if metadata is None:
            self._states.pop(ledger_id, None)
            return
        before = self._states.get(ledger_id, LedgerState.OPEN)
        self._states[ledger_id] = metadata.state
        fenced = before is LedgerState.OPEN and metadata.state is LedgerState.IN_RECOVERY
        if not fenced or not self._by_healer():
            return
        # The grace period belongs to the mark, so it continues if one bookie returns as another
        # leaves.
        since_s = self._marked_at.get(ledger_id, 0.0)
        if self._stage.recreated is not None:
            since_s = max(since_s, self._stage.recreated.at_s.get(ledger_id, 0.0))
        marked_s = self._now_s - since_s
        if marked_s < self._grace_s:
            what = f"ledger {ledger_id} was fenced {marked_s:.2f} s after it was marked"
            self._stage.checker.fail("a_writer_has_its_grace", what)


def _closed(metadata: LedgerMetadata) -> list[Fragment]:
    return [fragment for fragment in fragments(metadata, -1) if fragment.closed]


# -- the end ----------------------------------------------------------------------------------


async def judge(stage: Stage) -> None:
    """Wait until every acknowledged or recovered entry is on its whole write set.

    Autorecovery must achieve this by itself, without an operator's command.
    """
    await replicated(stage)
    stage.healed = True


async def replicated(stage: Stage, but: Collection[int] = ()) -> None:
    """Wait until every entry is on its whole write set, except those of the ledgers `but`."""
    begin_s = stage.world.loop.time()
    while left := await _lacking(stage, but) or racks.misplaced(stage.world):
        if stage.world.loop.time() - begin_s > HEAL_S:
            raise InvariantError("everything_is_replicated_again", left)
        await asyncio.sleep(1.0)


async def _lacking(stage: Stage, but: Collection[int]) -> str:
    """Describe one thing that is missing, or return '' if nothing is."""
    world, checker = stage.world, stage.checker
    for ledger_id in sorted(world.cluster.ledgers):
        if checker.facts(ledger_id).deleted or ledger_id in but:
            continue
        metadata = world.cluster.ledger(ledger_id).value
        named = {bookie for segment in metadata.segments for bookie in segment.ensemble}
        if gone := sorted(named & checker.destroyed):
            return f"ledger {ledger_id} still names {gone}, which lost their data"
        names = list(world.bookies)
        held = {bookie_id(name): await checker.held(name, ledger_id) for name in names}
        known = metadata.last_entry_id if metadata.closed else checker.facts(ledger_id).confirmed
        for entry_id in range(known + 1):
            ensemble = metadata.segment_of(entry_id).ensemble
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                if entry_id not in held.get(ensemble[index], ()):
                    return f"ledger {ledger_id} entry {entry_id} is not on {ensemble[index]}"
    return _mark_left(world, but) or _without_auditor(world)


def _mark_left(world: World, but: Collection[int]) -> str:
    """Describe a mark that is left, or an empty node of the tree of marks. Return '' without."""
    tree, root = world.cluster.tree, f"{replication_root('memory://sim')}/{LEDGERS}"
    for path in tree.below(root):
        if path == root or path in world.unreadable.marks:
            continue
        _, is_mark, ledger_id = path.rpartition("/urL")
        if int(ledger_id) not in but if is_mark else not tree.children(path):
            return f"the under-replication mark {path} remains"
    return ""


def _without_auditor(world: World) -> str:
    """Describe what is wrong unless the process with the lowest vote is the elected auditor."""
    tree, root = world.cluster.tree, f"{replication_root('memory://sim')}/{ELECTION}"
    votes = sorted((vote_number(name) or 0, name) for name in tree.children(root) or ())
    elected = tree.get(root)
    first = tree.get(f"{root}/{votes[0][1]}") if votes else None
    if first is None or elected is None:
        return "no process stands for election as auditor"
    names = [LockHolder.decode(node.value).owner for node in (first, elected) if node.value]
    return "" if len(names) == 2 and names[0] == names[1] else f"two auditors are elected: {names}"
