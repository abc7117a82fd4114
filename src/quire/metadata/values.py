"""The values that ledgers, bookies and the tree of a metadata store have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

ANY_VERSION = -1
"""The version that stands for any version in a compare-and-swap."""
UNKNOWN_CREATION = -1
"""The creation of a value whose creations the store does not tell apart."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value with the version that a compare-and-swap must name."""

    value: T
    version: int
    created: int = field(default=UNKNOWN_CREATION, compare=False)
    """A number that identifies the creation of a ledger in this store: another number means another
    creation (`quire.metadata.ledgers.creation`). `UNKNOWN_CREATION` for values that are not
    ledgers."""


class Watch(Protocol):
    """A watch as its owner holds it."""

    def close(self) -> None:
        """End the watch. Nothing is delivered afterwards."""
        ...
