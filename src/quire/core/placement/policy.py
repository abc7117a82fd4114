"""The questions that every placement policy answers."""

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
        """Return whether only hosts matter with the current knowledge. No ensemble is then
        wrong."""
        ...

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Raise UsageError for quorums with which the policy can never be satisfied."""
        ...

    def fill(self, wanted: Wanted, view: View, rng: Chance) -> dict[int, str]:
        """Return a bookie for each open place, by index.

        The bookies are writable and not `barred`, and none is used twice. If there are too few, the
        result has fewer places or none. A new ensemble is filled completely or not at all.
        """
        ...

    def wish(self, wanted: Wanted, view: View) -> str:
        """Return the requirement in words.

        For example: '3 bookies in 2 racks for a write quorum of 3 (minimum 2 racks, enforced)'.
        """
        ...

    def adherence(
        self, members: Sequence[Place], write_quorum: int, ack_quorum: int, view: View
    ) -> Adherence:
        """Return how well an ensemble satisfies the policy, and where it does not."""
        ...

    def ack_domains(
        self, members: Sequence[Place], write_quorum: int, view: View
    ) -> tuple[list[str], int] | None:
        """Return the fault domain of each member, and in how many domains an entry must be to count
        as acknowledged.

        Returns None if the ack quorum is enough.
        """
        ...

    def read_order(self, bookies: Sequence[str], view: View) -> list[str]:
        """Return the order in which a reader should ask these bookies, as far as nearness
        matters."""
        ...
