"""All ledgers of a ZooKeeper root, in ascending ranges without a gap (metadata spec, 3.2).

A bookie deletes what a range does not hold. So whatever is strange here is an error: a missing
root, a missing LAYOUT, a ledger where the default arrangement has none. A parent that vanished
while it was looked for counts as empty, once LAYOUT is seen to be there still.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from quire.codec.ledger_path import LEAF_CAPACITY, LEDGER_ID_MAX, SHORT_ID_END, leaf_digits
from quire.errors import MetadataError
from quire.metadata.base import LedgerRange
from quire.metadata.kazoo_adapter import NoNodeError
from quire.metadata.zookeeper_root import ZooKeeperRoot

_SHORT_TOP = re.compile(r"\d{2}", re.ASCII)
_LONG_TOP = re.compile(r"\d{3}", re.ASCII)
_MIDDLE = re.compile(r"\d{4}", re.ASCII)
_SHORT_DIGITS = 10
_LONG_DIGITS = 19


async def list_ledgers(root: ZooKeeperRoot, first: int) -> AsyncIterator[LedgerRange]:
    """Ranges that cover [first, 2**63-1]."""
    top = await _children(root, "", must_exist=True)
    start = first
    for names, digits in (
        (sorted(filter(_SHORT_TOP.fullmatch, top)), _SHORT_DIGITS),
        (sorted(filter(_LONG_TOP.fullmatch, top)), _LONG_DIGITS),
    ):
        async for parent in _lowest_parents(root, names, digits, start):
            base = int(parent.replace("/", "")) * LEAF_CAPACITY
            found = await _ledgers_below(root, parent, base, digits)
            last = base + LEAF_CAPACITY - 1
            if digits == _SHORT_DIGITS:
                last = min(last, SHORT_ID_END - 1)
            last = min(last, LEDGER_ID_MAX)
            if last >= start:
                yield LedgerRange(start, last, tuple(id_ for id_ in found if id_ >= start))
                start = last + 1
    if start <= LEDGER_ID_MAX:
        # What is said of the rest rests on the first listing: the cluster must be there still.
        await root.do("list ledgers", lambda again: root.check_layout())
        yield LedgerRange(start, LEDGER_ID_MAX, ())


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


async def _ledgers_below(root: ZooKeeperRoot, parent: str, base: int, digits: int) -> list[int]:
    leaves = map(leaf_digits, await _children(root, parent))
    found = sorted(base + leaf for leaf in leaves if leaf is not None)
    for ledger_id in found:
        if (ledger_id < SHORT_ID_END) != (digits == _SHORT_DIGITS) or ledger_id > LEDGER_ID_MAX:
            raise MetadataError(
                f"ledger {ledger_id} lies below {root.at(parent)}, where the hierarchical "
                "arrangement has none: the ledgers cannot be listed",
                remedy="Find out which program wrote it, with which ledger manager",
            )
    return found


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
