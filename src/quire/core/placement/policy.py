"""What every policy answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.placement.choice import Chance
from quire.core.placement.values import Adherence, Place, View, Wanted


class Policy(Protocol):
    """Pure: the same question with the same chance gives the same answer."""

    default_location: str
    """Of bookies of which nothing is known."""
    parts: int | None
    """How many components locations must have; None: the same everywhere, however many."""

    def indifferent(self, view: View) -> bool:
        """Whether, as things are known, nothing but hosts counts: then no ensemble is wrong."""
        ...

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """UsageError for quorums with which the policy can never be kept."""
        ...

    def fill(self, wanted: Wanted, view: View, rng: Chance) -> dict[int, str]:
        """Index -> bookie for the places that are to be filled: writable ones, none twice and none
        that is `barred`. {} or fewer where it cannot be done; a new ensemble is filled whole or not
        at all."""
        ...

    def wish(self, wanted: Wanted, view: View) -> str:
        """What was asked for, in words: '3 bookies in 2 racks for a write quorum of 3 (minimum 2
        racks, enforced)'."""
        ...

    def adherence(
        self, members: Sequence[Place], write_quorum: int, ack_quorum: int, view: View
    ) -> Adherence:
        """How well an ensemble keeps to the policy, and where it does not."""
        ...

    def ack_domains(
        self, members: Sequence[Place], write_quorum: int, view: View
    ) -> tuple[list[str], int] | None:
        """In which fault domain each member is, and in how many an entry must be before it is
        acknowledged. None: the ack quorum is enough."""
        ...

    def read_order(self, bookies: Sequence[str], view: View) -> list[str]:
        """In which order a reader should ask these, as far as nearness counts."""
        ...
