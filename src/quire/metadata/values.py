"""The types that ledgers, bookies and the tree of a metadata store have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

ANY_VERSION = -1
"""The version with which a compare-and-swap matches any version."""
UNKNOWN_CREATION = -1
"""The value of `Versioned.created` if the store cannot tell creations apart."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value and its version, which a compare-and-swap of the value must name."""

    value: T
    version: int
    created: int = field(default=UNKNOWN_CREATION, compare=False)
    """A number that identifies the creation of a ledger in this store. Two creations with one id
    have different numbers (see `quire.metadata.ledgers.creation`). Values that are not ledgers have
    `UNKNOWN_CREATION`."""


class Watch(Protocol):
    """The handle of a watch, for its owner."""

    def close(self) -> None:
        """End the watch. Nothing is delivered afterwards."""
        ...
