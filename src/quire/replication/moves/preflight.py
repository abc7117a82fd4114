"""The checks whether a job can succeed at all, before it changes anything.

A job that empties a bookie needs another bookie for each of its replicas, and space there. Without
the check it would fail ledger by ledger, each with the same reason, after the bookie was made
read-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from quire._runtime.tasks import each
from quire._runtime.units import are, counted, verb
from quire.client import Client
from quire.client.client import pool_of
from quire.core.fragments import Fragment
from quire.core.placement import Wanted
from quire.errors import JobRefusedError, QuireError
from quire.replication.repair.opened_ledger import OpenedLedger

SHAPES_MAX = 2_000
"""The largest number of different ensembles for which a check looks for replacements. If there are
more, it assumes that the others have some."""
SPACE_TIMEOUT_S = 2.0
"""Seconds that a bookie may take to report its free space. A check treats a bookie without a report
as if it had enough."""
NO_CHECK = "The command begins anyway with --no-check, and moves what can be moved"


@dataclass(frozen=True, slots=True)
class Shape:
    """An ensemble in which a bookie is to be replaced, with its quorums. Ledgers may share it."""

    ensemble: tuple[str, ...]
    write_quorum: int
    ack_quorum: int


@dataclass(slots=True)
class Shapes:
    """The different ensembles that include a bookie, and the ledgers that have each of them."""

    bookie: str
    ledgers: dict[Shape, set[int]] = field(default_factory=dict)

    def add(self, ledger: OpenedLedger, found: Sequence[Fragment]) -> None:
        """Add the segments of a ledger that name the bookie."""
        metadata = ledger.metadata
        for one in found:
            shape = Shape(one.ensemble, metadata.write_quorum, metadata.ack_quorum)
            if shape in self.ledgers or len(self.ledgers) < SHAPES_MAX:
                self.ledgers.setdefault(shape, set()).add(ledger.ledger_id)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why ledgers cannot be moved."""

    ledgers: tuple[int, ...]
    """The ids of all ledgers that cannot be moved, ascending. `why` is the reason for at least one
    ledger among them."""
    why: str
    remedy: str


async def no_place(client: Client, shapes: Shapes) -> Obstacle | None:
    """Return why some ledgers have no bookie that could replace `shapes.bookie`, or None.

    The client's placement policy decides, as it does when the ledgers are copied. The result has
    all of these ledgers, with the reason for the first ensemble. Other ensembles may have other
    reasons.
    """
    pool, out = pool_of(client), frozenset({shapes.bookie})
    stuck: set[int] = set()
    first: Wanted | None = None
    for shape, ledgers in shapes.ledgers.items():
        gone = dict.fromkeys(_indexes(shape, shapes.bookie), shapes.bookie)
        wanted = Wanted.replacing(
            shape.ensemble, gone, shape.write_quorum, shape.ack_quorum, exclude=out
        )
        # Only the first one waits, for bookies that are just starting.
        found = await pool.pick(wanted) if first is None else pool.pick_now(wanted)
        if len(found) < len(wanted.holes):
            first = first or wanted
            stuck |= ledgers
    if first is None:
        return None
    view = client.placement.view()
    remedy = "Start another bookie first"
    if client.placement.enough_elsewhere(first, view):
        remedy = "Start a bookie in another place first, or lower the minimum of the placement"
    if trouble := client.placement.location_trouble:
        remedy += f" (locations may be out of date: {trouble})"
    return Obstacle(tuple(sorted(stuck)), client.placement.why(first, view), remedy)


def _indexes(shape: Shape, bookie: str) -> list[int]:
    return [index for index, one in enumerate(shape.ensemble) if one == bookie]


async def no_space(client: Client, needed: Mapping[str, int]) -> str:
    """Return a clause that names a bookie with less free space than it needs, or ''.

    `needed` has the bytes that would be copied to each bookie. The clause has both sizes. A bookie
    that does not report its space counts as having enough.
    """
    free = await free_bytes(client, needed)
    for bookie, size in needed.items():
        if bookie in free and free[bookie] < size:
            return (
                f"{counted(size, 'byte')} would be copied to bookie {bookie}, which has "
                f"{counted(free[bookie], 'byte')} of free space"
            )
    return ""


async def no_space_together(client: Client, others: Collection[str], needed: int) -> str:
    """Return a clause that says that bookies have less than `needed` bytes of free space together.

    The result is '' if they have enough, or if one of them does not report its space. A disk that
    several bookies share is counted for each of them, so a lack of space may go unnoticed.
    """
    free = await free_bytes(client, others)
    if not others or len(free) < len(others) or sum(free.values()) >= needed:
        return ""
    return (
        f"{counted(needed, 'byte')} would be copied, and the {counted(len(others), 'bookie')} "
        f"that {are(len(others))} writable {verb('have', len(others))} "
        f"{counted(sum(free.values()), 'byte')} of free space"
    )


async def free_bytes(client: Client, bookies: Collection[str]) -> dict[str, int]:
    """Return the free bytes of each bookie, by bookie id, without those that do not answer."""
    found: dict[str, int] = {}

    async def ask(bookie: str) -> None:
        try:
            async with asyncio.timeout(SPACE_TIMEOUT_S):
                found[bookie] = (await client.bookie_info(bookie)).free_bytes
        except (QuireError, TimeoutError):
            pass

    await each(list(bookies), ask)
    return found


async def check_removal(
    client: Client, shapes: Shapes, size_bytes: int, total: int, *, partly: bool, what: str
) -> None:
    """Raise JobRefusedError if the bookie of `shapes` cannot be replaced in its ledgers.

    The job is refused if a ledger has no bookie to go to, or if the other writable bookies have too
    little space. With `partly`, it suffices that one ledger can be moved. `total` is the number of
    the bookie's ledgers, and `size_bytes` the size of all copies. `what` begins the message.
    """
    found = await no_place(client, shapes)
    if found is not None and (not partly or len(found.ledgers) == total):
        raise JobRefusedError(
            f"{what}: {len(found.ledgers):,} of its {counted(total, 'ledger')} "
            f"{verb('have', len(found.ledgers))} no other bookie to go to, for example ledger "
            f"{found.ledgers[0]}: {found.why}. Nothing was changed",
            remedy=f"{found.remedy}. {NO_CHECK}",
        )
    others = set((await client.bookies()).writable) - {shapes.bookie}
    if why := await no_space_together(client, others, size_bytes):
        raise JobRefusedError(
            f"{what}: {why}. Nothing was changed",
            remedy=f"Add a bookie or free space first. {NO_CHECK}",
        )
