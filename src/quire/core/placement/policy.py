"""The interface of a placement policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.placement.choice import Chance
from quire.core.placement.values import Adherence, Place, View, Wanted


class Policy(Protocol):
    """A placement policy. It is deterministic: the same arguments and the same random numbers give
    the same result."""

    default_location: str
    """The location of bookies whose location is not known."""
    parts: int | None
    """The number of components that locations must have. None means any number, but the same for
    all bookies."""

    def indifferent(self, view: View) -> bool:
        """Return whether the policy, with the facts in `view`, ignores locations.

        It then considers only hosts, and no ensemble violates it.
        """
        ...

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Raise UsageError if the policy can never be satisfied with these quorums."""
        ...

    def fill(self, wanted: Wanted, view: View, rng: Chance) -> dict[int, str]:
        """Return a bookie id for each open place, by ensemble index.

        The bookies are in `view.writable` and not in `wanted.barred`, and none is used twice. If
        there are too few, the result has fewer places or none. A new ensemble is filled completely
        or not at all.
        """
        ...

    def wish(self, wanted: Wanted, view: View) -> str:
        """Return the bookies that are wanted, and the policy's requirement, as text.

        For example: '3 bookies in 2 racks for a write quorum of 3 (minimum 2 racks, enforced)'.
        """
        ...

    def adherence(
        self, members: Sequence[Place], write_quorum: int, ack_quorum: int, view: View
    ) -> Adherence:
        """Return how well an ensemble satisfies the policy, and as text where it does not."""
        ...

    def ack_domains(
        self, members: Sequence[Place], write_quorum: int, view: View
    ) -> tuple[list[str], int] | None:
        """Return the fault domain of each member, and the number of domains that an entry needs.

        An entry counts as acknowledged once an ack quorum has it in that many domains. Returns None
        if an ack quorum alone is enough.
        """
        ...

    def read_order(self, bookies: Sequence[str], view: View) -> list[str]:
        """Return the bookies in the order in which a reader should ask them.

        A policy that prefers near bookies sorts them by distance from the client.
        """
        ...
