"""The items of an in-memory cluster other than the nodes of its tree."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StoredItem:
    """The bytes of a ledger, cookie or value, with their version."""

    data: bytes
    version: int = 0
    ctime_ms: int = -1
    creation: object = field(default_factory=object, repr=False, compare=False)
    """What distinguishes this item and its copies from one that is created again."""


@dataclass(slots=True)
class MemoryPresence:
    """A registered bookie."""

    owner: object
    """The session that holds the registration."""
    payload: bytes
    readonly: bool
