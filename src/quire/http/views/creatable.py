"""Whether new ledgers can be created now, and with which ensemble and quorums."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from quire.client import Client
from quire.client.client import (
    DEFAULT_ACK_QUORUM,
    DEFAULT_ENSEMBLE_SIZE,
    DEFAULT_WRITE_QUORUM,
    pool_of,
)
from quire.core.placement.values import View, Wanted
from quire.errors import QuireError

DEFAULT_SHAPE = (DEFAULT_ENSEMBLE_SIZE, DEFAULT_WRITE_QUORUM, DEFAULT_ACK_QUORUM)
SMALLER_SHAPES = ((2, 2, 2),)
"""The ensemble size, write quorum and ack quorum of smaller shapes, the safest first. A shape with
one copy is never offered, because one lost disk would lose its entries."""
SETTLE_S = 0.5
"""The longest time, in seconds, to wait for the locations of bookies if the placement policy needs
them."""


@dataclass(frozen=True, slots=True)
class Creatable:
    """Whether a ledger with the default ensemble and quorums can be created."""

    default: bool
    why_not: str = ""
    """Why the default shape is not possible: how many bookies it needs, and how many are writable.
    Empty if it is possible."""
    smaller: tuple[int, int, int] | None = None
    """The ensemble size, write quorum and ack quorum of a smaller ledger that could be created, or
    None."""
    places: bool = False
    """Whether there are enough bookies, but in racks that the placement policy does not accept."""
    movable: str = ""
    """If `places` is set, a writable bookie that could be given another location."""
    silent: tuple[str, ...] = ()
    """The writable bookies that do not answer, if a ledger of the default shape needs some of them.
    Empty if enough bookies answer."""
    answering: int = 0
    """The number of writable bookies that answer."""


async def creatable(client: Client, silent: Collection[str] = ()) -> Creatable:
    """Return whether new ledgers can be created, by asking the client's placement policy.

    Nothing is created. `silent` has registered bookies that do not answer. A client prefers other
    bookies, but creates a ledger with a silent one if there is no other. Cancel-safe.
    """
    pool = pool_of(client)
    placement = pool.placement
    await placement.settle(asyncio.get_running_loop().time() + SETTLE_S)
    registered, view = placement.view(), placement.view(frozenset(silent))

    def possible(shape: tuple[int, int, int], view: View = view) -> bool:
        wanted = Wanted.new(*shape)
        try:
            placement.check(*shape)
            return len(placement.fill(wanted, view)) == shape[0]
        except QuireError:
            return False

    names = sorted(view.writable)
    if possible(DEFAULT_SHAPE):
        return Creatable(True, answering=len(names))
    if possible(DEFAULT_SHAPE, registered):
        waiting = tuple(sorted(registered.writable.keys() - names))
        return Creatable(True, silent=waiting, answering=len(names))
    smaller = next((one for one in SMALLER_SHAPES if possible(one)), None)
    # A policy that refuses bookies for their racks has enough of them, but cannot choose.
    places = len(registered.writable) + len(registered.misplaced) >= DEFAULT_ENSEMBLE_SIZE
    return Creatable(
        False,
        placement.why(Wanted.new(*DEFAULT_SHAPE), registered),
        smaller,
        places=places,
        movable=min(registered.misplaced or names, default="") if places else "",
        answering=len(names),
    )
