"""All ledgers of a ZooKeeper root, in ascending ranges without a gap (metadata spec, 3.2).

A bookie deletes what a range does not hold. So whatever is strange here is an error: a missing
root, a missing LAYOUT, a ledger where the cluster's ledger manager has none. A parent that vanished
while it was looked for counts as empty, once LAYOUT is seen to be there still.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from quire.codec.ledger_path import (
    LEAF_CAPACITY,
    LEDGER_ID_MAX,
    TOP_DIGITS,
    LedgerManager,
    Tree,
    is_flat_name,
    leaf_digits,
)
from quire.errors import MetadataError
from quire.metadata.base import LedgerRange
from quire.metadata.kazoo_adapter import NoNodeError
from quire.metadata.zookeeper_root import ZooKeeperRoot

_MIDDLE = re.compile(r"\d{4}", re.ASCII)


async def list_ledgers(root: ZooKeeperRoot, first: int) -> AsyncIterator[LedgerRange]:
    """Ranges that cover [first, 2**63-1]."""
    top = await _children(root, "", must_exist=True)
    manager = root.manager
    await _refuse_foreign(root, manager, top)
    start = first
    for tree in manager.trees:
        async for parent in _lowest_parents(root, _tops(top, tree.top_digits), tree.digits, start):
            found, last = await _ledgers_below(root, parent, tree)
            if last >= start:
                yield LedgerRange(start, last, tuple(id_ for id_ in found if id_ >= start))
                start = last + 1
    if start <= LEDGER_ID_MAX:
        # What is said of the rest rests on the first listing: the cluster must be there still.
        await root.do("list ledgers", lambda again: root.check_layout())
        yield LedgerRange(start, LEDGER_ID_MAX, _flat(manager, top, start))


def _flat(manager: LedgerManager, top: Sequence[str], start: int) -> tuple[int, ...]:
    """The ledgers right below the root, where the manager has them there."""
    if manager.trees:
        return ()
    found = (manager.ledger_id_of(name) for name in top if is_flat_name(name))
    return tuple(sorted(ledger_id for ledger_id in found if ledger_id >= start))


async def _refuse_foreign(root: ZooKeeperRoot, manager: LedgerManager, top: Sequence[str]) -> None:
    """Ledgers that another manager has written would be left out, and so be deleted."""
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
        f"{root.at(name)} is there, where the {manager.name} ledger manager has no ledgers: the "
        "ledgers cannot be listed",
        remedy="Find out which program wrote it, with which ledger manager",
    )


def _tops(names: Sequence[str], digits: int) -> list[str]:
    return sorted(name for name in names if len(name) == digits and _is_number(name))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


async def _lowest_parents(
    root: ZooKeeperRoot, names: list[str], digits: int, first: int
) -> AsyncIterator[str]:
    """The parents of leaves below `names`, in order, without those that lie before `first`."""
    for name in names:
        missing = digits - 4 - len(name.replace("/", ""))
        if (int(name.replace("/", "")) + 1) * 10 ** (missing + 4) <= first:
            continue
        if missing == 0:
            yield name
            continue
        below = sorted(filter(_MIDDLE.fullmatch, await _children(root, name)))
        paths = [f"{name}/{child}" for child in below]
        async for parent in _lowest_parents(root, paths, digits, first):
            yield parent


async def _ledgers_below(root: ZooKeeperRoot, parent: str, tree: Tree) -> tuple[list[int], int]:
    """The ledgers of a lowest parent, and the last id that it can have."""
    base = int(parent.replace("/", "")) * LEAF_CAPACITY
    leaves = map(leaf_digits, await _children(root, parent))
    found = sorted(base + leaf for leaf in leaves if leaf is not None)
    for ledger_id in found:
        if not tree.first <= ledger_id <= tree.last:
            raise _foreign(root, root.manager, f"{parent}/L{ledger_id - base:04d}")
    return found, min(base + LEAF_CAPACITY - 1, tree.last)


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
