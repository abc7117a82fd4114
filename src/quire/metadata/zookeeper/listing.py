"""Listing of all ledgers of a ZooKeeper root, in ranges without a gap that ascend or descend.

A bookie deletes ledgers that are in no range (rule 45 of docs/internals/replication-rules.md).
Therefore everything unexpected is an error: a missing root, a missing LAYOUT, or a ledger where the
cluster's ledger manager stores none, such as a small id in the tree of the long ids. A complete
listing also fails on each unknown name in the ledger trees; only such a listing may be used for
deletion. Other listings skip the name.

A parent that vanished during the listing counts as empty if LAYOUT still exists, because ZooKeeper
only removes a parent without children. A ledger that is created below it afterwards is younger than
the listing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

from quire.codec.metadata.ledger_path import (
    LEAF_CAPACITY,
    LEDGER_ID_MAX,
    TOP_DIGITS,
    LedgerManager,
    LedgerTree,
    is_flat_name,
    leaf_digits,
)
from quire.errors import MetadataError
from quire.metadata.interface import KnownRanges, LedgerRange, RangeStamp
from quire.metadata.zookeeper.kazoo_adapter import NoNodeError, Stat
from quire.metadata.zookeeper.root import ZooKeeperRoot

_MIDDLE = re.compile(r"\d{4}", re.ASCII)
_TOP_LIKE = re.compile(r"L?\d+", re.ASCII)
"""The names directly below the root that a ledger manager could have created."""


async def list_ledgers(
    root: ZooKeeperRoot,
    first: int,
    *,
    complete: bool = False,
    known: KnownRanges | None = None,
) -> AsyncIterator[LedgerRange]:
    """Yield ranges that cover [first, 2**63-1], with the arguments of `MetadataStore.list_ledgers`.

    The stamp of a range consists of the zxid at which the parent of its leaves was created, and
    the number of leaves that were created and deleted there so far.
    """
    top = await _children(root, "", must_exist=True)
    manager = root.manager
    await _refuse_foreign(root, manager, top)
    walk = _Walk(root, complete)
    if complete:
        for name in top:
            if _TOP_LIKE.fullmatch(name) and not _is_understood(manager, name):
                raise walk.unknown(name)
    start = first
    for tree in manager.trees:
        tops = _tops(top, tree.top_digits)
        if tree.first > 0 and (complete or first < tree.first):
            # This manager has no ledger here, so the ranges below skip this part.
            async for parent in walk.lowest_parents(tops, tree.digits, 0, tree.first):
                await walk.ledgers_below(parent, tree)
        async for parent in walk.lowest_parents(tops, tree.digits, start):
            last = _last_below(parent, tree)
            before = None if known is None else known.get((start, last))
            if before is not None and await _stamp_now(root, parent) == before:
                yield LedgerRange(start, last, (), before, unchanged=True)
                start = last + 1
                continue
            found, stamp = await walk.ledgers_below(parent, tree)
            if last >= start:
                there = tuple(id_ for id_ in found if id_ >= start)
                yield LedgerRange(start, last, there, stamp)
                start = last + 1
    if start <= LEDGER_ID_MAX:
        # The last range relies on the first listing, so the cluster must still exist.
        await root.do("list ledgers", lambda again: root.check_layout())
        yield LedgerRange(start, LEDGER_ID_MAX, _flat(manager, top, start))


async def list_ledgers_down(root: ZooKeeperRoot, last: int) -> AsyncIterator[LedgerRange]:
    """Yield ranges that cover [0, last], in descending order.

    See `MetadataStore.list_ledgers_down`.
    """
    top = await _children(root, "", must_exist=True)
    manager = root.manager
    await _refuse_foreign(root, manager, top)
    walk = _Walk(root, complete=False)
    end = last
    for tree in reversed(manager.trees):
        if end < tree.first:
            continue
        tops = _tops(top, tree.top_digits)
        parents = walk.lowest_parents(tops, tree.digits, tree.first, end + 1, down=True)
        async for parent in parents:
            found, _ = await walk.ledgers_below(parent, tree)
            first = max(_first_below(parent), tree.first)
            yield LedgerRange(first, end, tuple(id_ for id_ in found if id_ <= end))
            end = first - 1
    if end >= 0:
        await root.do("list ledgers", lambda again: root.check_layout())
        flat = _flat(manager, top, 0)
        yield LedgerRange(0, end, tuple(id_ for id_ in flat if id_ <= end))


def _flat(manager: LedgerManager, top: Sequence[str], start: int) -> tuple[int, ...]:
    """Return the ledgers directly below the root, where the flat manager stores them."""
    if manager.trees:
        return ()
    found = (_flat_id(manager, name) for name in top)
    return tuple(sorted(one for one in found if one is not None and one >= start))


def _first_below(parent: str) -> int:
    """Return the first id that a ledger below this parent of leaves can have."""
    return int(parent.replace("/", "")) * LEAF_CAPACITY


def _last_below(parent: str, tree: LedgerTree) -> int:
    """Return the last id that a ledger below this parent of leaves can have."""
    return min(_first_below(parent) + LEAF_CAPACITY - 1, tree.last)


def _stamp_of(stat: Stat) -> RangeStamp:
    return stat.created_zxid, stat.children_version


async def _stamp_now(root: ZooKeeperRoot, parent: str) -> RangeStamp | None:
    """Return the present stamp of a parent of leaves, or None if it does not exist."""
    path = root.at(parent)

    async def work(again: bool) -> RangeStamp | None:
        # One connection answers in order, as in `children_synced`.
        _, stat = await asyncio.gather(root.zk.sync(path), root.zk.exists(path))
        return None if stat is None else _stamp_of(stat)

    return await root.do("list ledgers", work)


def _flat_id(manager: LedgerManager, name: str) -> int | None:
    """Return the id of the flat manager's ledger with this name, or None if there is none.

    A name may look like one and not be one: it has too many zeros, or its number is too large.
    """
    if not is_flat_name(name):
        return None
    try:
        return manager.ledger_id_of(name)
    except MetadataError:
        return None


async def _refuse_foreign(root: ZooKeeperRoot, manager: LedgerManager, top: Sequence[str]) -> None:
    """Raise MetadataError if another manager has stored ledgers.

    They would be missing from the list, and bookies would delete them.
    """
    own = [tree.top_digits for tree in manager.trees]
    for digits in TOP_DIGITS:
        for name in [] if digits in own else _tops(top, digits):
            if await _children(root, name):
                raise _foreign(root, manager, name)
    if manager.trees:
        for name in filter(is_flat_name, top):
            raise _foreign(root, manager, name)


def _foreign(root: ZooKeeperRoot, manager: LedgerManager, name: str) -> MetadataError:
    return MetadataError(
        f"the ledgers cannot be listed: the node {root.at(name)} exists, but the {manager.name} "
        "ledger manager of this cluster stores no ledgers there",
        remedy=(
            "Find out which program created the node, and with which ledger manager. Until "
            "it is moved or removed, bookies delete nothing"
        ),
    )


def _tops(names: Sequence[str], digits: int) -> list[str]:
    return sorted(name for name in names if len(name) == digits and _is_number(name))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _is_understood(manager: LedgerManager, name: str) -> bool:
    if _flat_id(manager, name) is not None:
        return True
    return _is_number(name) and len(name) in TOP_DIGITS


class _Walk:
    """A walk through the trees of a root."""

    def __init__(self, root: ZooKeeperRoot, complete: bool) -> None:
        self._root = root
        self._complete = complete

    async def lowest_parents(
        self,
        names: list[str],
        digits: int,
        first: int,
        before: int = LEDGER_ID_MAX + 1,
        *,
        down: bool = False,
    ) -> AsyncIterator[str]:
        """Yield the parents of leaves below `names`, in order, that can have ids in this range.

        `names` are nodes of the tree, by path. `digits` is the number of digits of an id in this
        tree. The range contains `first`, and ends before `before`. With `down` the order descends.
        """
        for name in sorted(names, reverse=down):
            number = int(name.replace("/", ""))
            missing = digits - 4 - len(name.replace("/", ""))
            ids = 10 ** (missing + 4)
            if (number + 1) * ids <= first or number * ids >= before:
                continue
            if missing == 0:
                yield name
                continue
            paths = [f"{name}/{child}" for child in await self._middles(name)]
            async for parent in self.lowest_parents(paths, digits, first, before, down=down):
                yield parent

    async def _middles(self, parent: str) -> list[str]:
        names = await _children(self._root, parent)
        found = [name for name in names if _MIDDLE.fullmatch(name)]
        if self._complete and len(found) < len(names):
            raise self.unknown(f"{parent}/{next(iter(set(names).difference(found)))}")
        return found

    async def ledgers_below(
        self, parent: str, tree: LedgerTree
    ) -> tuple[list[int], RangeStamp | None]:
        """Return the ledgers below a parent of leaves, and its stamp, or None if it is gone."""
        base = _first_below(parent)
        found = []
        names, stamp = await _leaves(self._root, parent)
        for name in names:
            leaf = leaf_digits(name)
            if leaf is not None:
                found.append(base + leaf)
            elif self._complete:
                raise self.unknown(f"{parent}/{name}")
        found.sort()
        for ledger_id in found:
            if not tree.first <= ledger_id <= tree.last:
                raise _foreign(self._root, self._root.manager, f"{parent}/L{ledger_id - base:04d}")
        return found, stamp

    def unknown(self, name: str) -> MetadataError:
        return MetadataError(
            f"the list of ledgers may not be complete: the node {self._root.at(name)} among the "
            "ledgers has a name that Quire does not know, and may be a ledger",
            remedy=(
                "Look at it with ZooKeeper's own client, and find out which program wrote "
                "it. Until it is moved or removed, bookies delete nothing"
            ),
        )


async def _children(root: ZooKeeperRoot, below: str, *, must_exist: bool = False) -> list[str]:
    path = root.at(below) if below else root.path

    async def work(again: bool) -> list[str]:
        if must_exist:
            await root.zk.sync(path)
            await root.check_layout()
        try:
            return await root.zk.children_synced(path)
        except NoNodeError:
            await root.check_layout()
            return []

    return await root.do("list ledgers", work)


async def _leaves(root: ZooKeeperRoot, parent: str) -> tuple[list[str], RangeStamp | None]:
    """Return the names below a parent of leaves, and the stamp of the parent at that moment."""
    path = root.at(parent)

    async def work(again: bool) -> tuple[list[str], RangeStamp | None]:
        try:
            _, (names, stat) = await asyncio.gather(root.zk.sync(path), root.zk.children_stat(path))
        except NoNodeError:
            await root.check_layout()
            return [], None
        return names, _stamp_of(stat)

    return await root.do("list ledgers", work)
