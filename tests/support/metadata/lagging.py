"""A server of the metadata store that lags behind the others, as one of ZooKeeper may."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

from quire.metadata.interface import MetadataStore
from quire_simulator.metadata.store import MemoryStore

T = TypeVar("T")

READS = frozenset(
    (
        "read_ledger", "list_ledgers", "read", "list_values", "list_cookies", "is_initialised",
        "instance_id", "bookies", "registered", "tree_read", "tree_exists", "tree_children",
    )
)  # fmt: skip
"""The operations of an in-memory store that the server answers from its own state."""


class LaggingServer:
    """The server of one session, whose reads do not show the newest changes of other sessions.

    From `fall_behind` on, reads show the state of that moment. The server catches up with a `sync`
    and with each change that the session itself asks for, even if it is refused, because the
    servers of ZooKeeper decide all changes in one order. Watches do not lag.
    """

    def __init__(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        self._cluster = store.cluster
        self._call = store.call
        cluster = store.cluster
        self._items: list[dict[Any, Any]] = [
            cluster.ledgers, cluster.cookies, cluster.values, cluster.presences, cluster.tree._nodes
        ]  # fmt: skip
        """The state that lags: operations that wait hold these dictionaries, so they stay."""
        self._past: list[dict[Any, Any]] | None = None
        self.syncs = 0
        """The number of times that the session has asked the server to catch up."""
        store.call = self._lagging  # type: ignore[method-assign]

    def fall_behind(self) -> None:
        """Show no later change of other sessions until the server catches up."""
        ledgers, cookies, values, presences, nodes = self._items
        self._past = [*deepcopy([ledgers, cookies, values]), dict(presences), deepcopy(nodes)]

    @property
    def behind(self) -> bool:
        """Whether the server has not caught up yet."""
        return self._past is not None

    def _show(self, state: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
        """Replace the state of the cluster, and return the one before."""
        before = [dict(items) for items in self._items]
        for items, shown in zip(self._items, state, strict=True):
            items.clear()
            items.update(shown)
        self._cluster.ledger_ids[:] = sorted(self._cluster.ledgers)
        return before

    async def _lagging(self, name: str, work: Callable[[], T]) -> T:
        def in_the_past() -> T:
            if self._past is None:
                return work()
            present = self._show(self._past)
            try:
                return work()
            finally:
                self._show(present)

        if name in READS:
            return await self._call(name, in_the_past)
        self.syncs += name == "tree_sync"
        try:
            return await self._call(name, work)
        finally:
            self._past = None
