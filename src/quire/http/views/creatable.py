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
from quire.core.placement.values import Wanted
from quire.errors import QuireError

DEFAULT_SHAPE = (DEFAULT_ENSEMBLE_SIZE, DEFAULT_WRITE_QUORUM, DEFAULT_ACK_QUORUM)
SMALLER_SHAPES = ((2, 2, 2), (1, 1, 1))
"""The ensemble size, write quorum and ack quorum of smaller shapes, the safest first."""
SETTLE_S = 0.5
"""Seconds to wait for the locations of bookies, if the placement policy needs them."""


@dataclass(frozen=True, slots=True)
class Creatable:
    """Whether a ledger with the default ensemble and quorums can be created."""

    default: bool
    why_not: str = ""
    """Which bookies are wanted and which are writable, or "" if the default shape is possible."""
    smaller: tuple[int, int, int] | None = None
    """A smaller ensemble size, write quorum and ack quorum that is possible, if there is one."""


async def creatable(client: Client, silent: Collection[str] = ()) -> Creatable:
    """Ask the client's placement policy for an ensemble. Nothing is created.

    `silent` has registered bookies that do not answer; they are not chosen. Cancel-safe.
    """
    pool = pool_of(client)
    placement = pool.placement
    await placement.settle(asyncio.get_running_loop().time() + SETTLE_S)
    view = placement.view(frozenset(silent))

    def possible(shape: tuple[int, int, int]) -> bool:
        wanted = Wanted.new(*shape)
        try:
            placement.policy.check(*shape)
            return len(placement.fill(wanted, view)) == shape[0]
        except QuireError:
            return False

    if possible(DEFAULT_SHAPE):
        return Creatable(True)
    smaller = next((one for one in SMALLER_SHAPES if possible(one)), None)
    return Creatable(False, placement.why(Wanted.new(*DEFAULT_SHAPE), view), smaller)
