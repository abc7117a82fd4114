"""New ledger ids from ZooKeeper's sequence nodes.

Short ids, below 2**31 - 1, are the numbers of `idgen/ID-` (flat manager: of `ID-` below the root).
When they are used up, or as soon as `idgen-long` exists, ids are long. A long id is (number of the
greatest `idgen-long/HOB-`) << 32 | (number of a sequence node below it). The flat and the legacy
manager have no long ids. No id is generated twice, and some are never used.

The existence of `idgen-long`, and the greatest `HOB-` node, are checked for every id, after its
sequence node was created: a server may lag behind others, but the answer to a write comes after
everything that was written before. So no id is generated that another client has skipped before.
Java remembers that `idgen-long` does not exist, so for a while some clients may generate long ids
and others short ones. No id is generated twice then, because the two ranges do not overlap.
"""

from __future__ import annotations

from quire._runtime.tasks import TaskSet
from quire.codec.metadata.ledger_path import (
    HIGH_ORDER_MAX,
    SEQUENCE_PREFIX,
    SHORT_ID_END,
    high_order_name,
    high_order_of,
    long_id,
    sequence_of,
)
from quire.errors import MetadataError, QuireError
from quire.metadata.zookeeper.kazoo_adapter import Access, NodeError, NoNodeError
from quire.metadata.zookeeper.root import ZooKeeperRoot

_FIRST_HIGH_ORDER = 1
HIGH_ORDER_KEPT = 3
"""The number of `HOB-` nodes to keep. Older ones are deleted."""

COUNTED_MAX = 1_000_000
"""The largest number of ids to skip one by one, which takes some thousands a second."""

_ATTEMPTS_MAX = 10
"""The number of attempts to generate one id while others delete the node above it."""


class LedgerIdCounter:
    """The generator of ledger ids of one cluster."""

    def __init__(self, root: ZooKeeperRoot, tasks: TaskSet) -> None:
        self._root = root
        self._tasks = tasks
        self._long = root.at("idgen-long")
        self._only_long = False
        """Whether `idgen-long` is known to exist. It is never deleted. Each process uses up one
        short id to find out."""

    async def next(self, again: bool) -> int:
        """Return an id that was never generated before.

        `again` says that this call repeats one whose response was lost. It makes no difference,
        because a repeated call generates another id and leaves the first one unused. Raises
        MetadataError if all ids are used up that the cluster's ledger manager can generate.
        """
        manager = self._root.manager
        if not self._only_long:
            below = manager.sequence_parent
            number = await self._sequence(self._root.at(below) if below else self._root.path)
            if manager.long_ids:
                self._only_long = await self._root.zk.exists(self._long) is not None
            if 0 <= number < SHORT_ID_END and not self._only_long:
                return number
        if not manager.long_ids:
            raise MetadataError(
                f"no ledger was created: all ids that the {manager.name} ledger manager "
                f"generates (below {SHORT_ID_END}) are used up",
                remedy=(
                    "Create a cluster with the hierarchical ledger manager, or create "
                    "ledgers with ids that you choose"
                ),
            )
        return await self._next_long()

    def may_jump(self, made: int, last: int) -> bool:
        """Return whether to skip the ids up to `last` with `jump`, and not one by one.

        `made` is the id that was generated last. The result is True if there are more than
        `COUNTED_MAX` ids to skip, and the ledger manager has long ids.
        """
        return self._root.manager.long_ids and last - made > COUNTED_MAX

    async def jump(self, last: int) -> None:
        """Begin long ids above `last`, so that no id up to `last` is generated from now on.

        A Java client that remembers that there are only short ids still generates short ones, until
        it is restarted. Raises MetadataError if the store fails.
        """
        await self._make_high_order((last >> 32) + 1)

    async def _next_long(self) -> int:
        for _ in range(_ATTEMPTS_MAX):
            high = await self._high_order()
            try:
                number = await self._sequence(f"{self._long}/{high_order_name(high)}", make=False)
            except NoNodeError:
                continue  # the node was deleted meanwhile, because there is a greater one
            if await self._high_order() > high:
                continue  # the server lagged behind the process that has made a greater one
            if 0 <= number < SHORT_ID_END:
                return long_id(high, number)
            await self._make_high_order(high + 1)
        raise MetadataError(
            f"no ledger id was generated: other processes deleted the nodes below {self._long} "
            f"{_ATTEMPTS_MAX} times in a row",
            remedy="Try again",
        )

    async def _high_order(self) -> int:
        try:
            names = await self._root.zk.children(self._long)
        except NoNodeError:
            names = []
        known = sorted(high for name in names if (high := high_order_of(name)) is not None)
        if not known:
            await self._make_high_order(_FIRST_HIGH_ORDER)
            return _FIRST_HIGH_ORDER
        for old in known[:-HIGH_ORDER_KEPT]:
            self._tasks.start(self._delete_quietly(f"{self._long}/{high_order_name(old)}"))
        return known[-1]

    async def _make_high_order(self, high: int) -> None:
        if high > HIGH_ORDER_MAX:
            raise MetadataError(
                "no ledger was created: all ledger ids that the metadata store can generate are "
                "used up",
                remedy="Create the ledger with an id that you choose",
            )
        # As in Java, everyone has access, also in a cluster with access control.
        await self._root.make(f"{self._long}/{high_order_name(high)}", Access.OPEN)

    async def _sequence(self, parent: str, *, make: bool = True) -> int:
        prefix = f"{parent}/{SEQUENCE_PREFIX}"
        try:
            path, _ = await self._root.zk.create(prefix, ephemeral=True, sequence=True)
        except NoNodeError:
            if not make:
                raise
            await self._root.make(parent)
            path, _ = await self._root.zk.create(prefix, ephemeral=True, sequence=True)
        # In the background. If it fails, the node is deleted when the session ends.
        self._tasks.start(self._delete_quietly(path))
        return sequence_of(path)

    async def _delete_quietly(self, path: str) -> None:
        try:
            await self._root.zk.delete(path)
        except (NodeError, QuireError):
            pass
