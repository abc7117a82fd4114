"""A metadata store that is restored from an older copy, and later from the newest one.

In between, clients cannot reach the store. Bookies can, and must not delete what only the newest
state names. The switch that turns garbage collection off is here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from quire.bookie.background.collection_guard import read_remembered
from quire.metadata.bookies.collection import (
    SWITCH_NODE,
    BookieMark,
    CollectionMark,
    Switch,
    mark_path,
)
from quire.metadata.common import ancestors_of
from quire.metadata.tree import Create, Delete
from quire.metadata.uri import replication_root
from quire_simulator.metadata.items import StoredItem
from quire_simulator.metadata.nodes import PERSISTENT, TreeNode
from quire_simulator.plans.faults import Fault
from quire_simulator.world.world import World, bookie_id

K = TypeVar("K", bound=Hashable)
Fail = Callable[[str, str], None]

MARKS_S = 10.0
"""Seconds to wait for a mark of every bookie that the copy does not have."""
NEWER_S = 3.0
"""The longest time after these marks in which more ledgers are made that the copy does not have."""
OLDER_S = (8.0, 14.0)
"""How long the older copy is in place. A pass of garbage collection takes less."""
SWITCH_PATH = f"{replication_root('memory://sim')}/{SWITCH_NODE}"
SWITCH_SLACK_S = 2.0
"""The longest time between the last read of the switch and the deletions of the same pass."""


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """The persistent state of a metadata store."""

    next_ledger_id: int
    ledgers: dict[int, StoredItem]
    cookies: dict[str, StoredItem]
    values: dict[tuple[str, ...], StoredItem]
    nodes: dict[str, TreeNode]


class OlderMetadata:
    """The fault that restores the store from copies, and checks what bookies do meanwhile."""

    def __init__(self, world: World, fail: Fail) -> None:
        self.world = world
        self.fail = fail
        self.restored = 0
        """How often the store went back."""
        self.newer = 0
        """The number of ledgers that the older copies did not name."""
        self._newest: StoreCopy | None = None
        """The state to which the store will return, or None if it has the newest state."""
        self._off_since_s: float | None = None
        dropped = world.claims.dropped

        def on_drop(bookie: str, ledger_id: int) -> None:
            self._dropped(bookie, ledger_id)
            dropped(bookie, ledger_id)

        world.claims.dropped = on_drop

    def _dropped(self, bookie: str, ledger_id: int) -> None:
        now_s = self.world.loop.time()
        if self._newest is not None and ledger_id in self._newest.ledgers:
            what = f"{bookie} dropped ledger {ledger_id}, which an older copy does not name"
            self.fail("an_older_store_deletes_nothing", what)
        if self._off_since_s is not None and now_s > self._off_since_s + SWITCH_SLACK_S:
            what = f"{bookie} dropped ledger {ledger_id} {now_s - self._off_since_s:.1f} s after"
            self.fail("what_is_switched_off_deletes_nothing", what)

    # -- an older copy ------------------------------------------------------------------------

    async def go_back(self, fault: Fault) -> None:
        """Copy the store now. Later put the copy in its place for a while, and then the newest."""
        if self._newest is not None:
            return
        world, copy = self.world, self._copy()
        deadline_s = world.loop.time() + MARKS_S
        while not self._all_remember_more_than(copy):
            if world.loop.time() > deadline_s:
                return  # No bookie could notice that the store was rolled back.
            await asyncio.sleep(0.1)
        await asyncio.sleep(NEWER_S * fault.amount)
        if self._newest is not None or not self._all_remember_more_than(copy):
            return
        self._newest = self._copy()
        self.restored += 1
        self.newer += len(self._newest.ledgers.keys() - copy.ledgers.keys())
        newer = sorted(self._newest.ledgers.keys() - copy.ledgers.keys())
        world.trace.record("metadata", "went back", newer=str(newer))
        self._end_sessions(away=True)
        self._put(copy)
        low, high = OLDER_S
        await asyncio.sleep(low + (high - low) * fault.amount)
        await self._alarms()
        world.trace.record("metadata", "is the newest again")
        self._end_sessions(away=False)
        self._put(self._newest)
        self._newest = None
        if self._off_since_s is None:
            self._remove_switch()

    def _all_remember_more_than(self, copy: StoreCopy) -> bool:
        """Return whether every bookie has a mark on its disks that the copy does not have."""
        for name in self.world.disks:
            remembered = read_remembered(self.world.disks_of(name)).mark
            path = mark_path("memory://sim", bookie_id(name))
            there = copy.nodes.get(path)
            stored = CollectionMark(0, "") if there is None else BookieMark.decode(there.value).mark
            if remembered is None or remembered.count <= stored.count:
                return False
        return True

    async def _alarms(self) -> None:
        """Check that every bookie refuses to collect garbage, and says so."""
        for name, bookie in list(self.world.bookies.items()):
            guard = bookie.collection
            if not bookie.recovered or guard is None:
                continue
            why = await self.world.within(bookie, bookie.collect_garbage())
            if why is None or self.world.bookies.get(name) is not bookie:
                continue
            if why and not guard.went_back and "went back" not in why:
                continue  # The store did not answer, or collection is switched off.
            if not guard.went_back or guard.may_collect:
                self.fail("an_older_store_raises_an_alarm", f"{name} did not notice: {why!r}")

    def _copy(self) -> StoreCopy:
        cluster = self.world.cluster
        return StoreCopy(
            cluster.next_ledger_id,
            _copied(cluster.ledgers),
            _copied(cluster.cookies),
            _copied(cluster.values),
            cluster.tree.copy(),
        )

    def _put(self, copy: StoreCopy) -> None:
        cluster = self.world.cluster
        cluster.next_ledger_id = copy.next_ledger_id
        _replace(cluster.ledgers, copy.ledgers)
        _replace(cluster.cookies, copy.cookies)
        _replace(cluster.values, copy.values)
        cluster.ledger_ids[:] = sorted(copy.ledgers)
        cluster.tree.restore(copy.nodes)

    def _end_sessions(self, *, away: bool) -> None:
        """End all sessions. With `away`, clients get no new ones until the call without it."""
        world = self.world
        world.metadata_away = away
        for name in list(world.bookies):
            world.expire_session(name)
        for store in world.client_stores():
            store.expire_session(back=not away)

    # -- the switch ---------------------------------------------------------------------------

    def switch_off(self) -> Callable[[], None]:
        """Switch garbage collection off for the cluster. Return what switches it on again."""
        tree, path = self.world.cluster.tree, SWITCH_PATH
        if tree.get(path) is not None or self._newest is not None:
            return lambda: None
        missing = [one for one in ancestors_of(path)[:-1] if tree.get(one) is None]
        made = Create(path, Switch(by="nemesis").encode())
        tree.commit([*(Create(one) for one in missing), made], PERSISTENT)
        self._off_since_s = self.world.loop.time()

        def on() -> None:
            self._off_since_s = None
            self._remove_switch()

        return on

    def _remove_switch(self) -> None:
        tree = self.world.cluster.tree
        if tree.get(SWITCH_PATH) is not None:
            tree.commit([Delete(SWITCH_PATH)], PERSISTENT)


def _copied(items: Mapping[K, StoredItem]) -> dict[K, StoredItem]:
    return {key: replace(item) for key, item in items.items()}


def _replace(items: dict[K, StoredItem], copies: Mapping[K, StoredItem]) -> None:
    """Replace all items by copies of these, in the same dictionary."""
    items.clear()
    items.update(_copied(copies))
