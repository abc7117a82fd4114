"""The values that a state of the protocol consists of.

Each part of a state (the metadata, the writer, each recovery, each bookie, the copy of a disk) is
an immutable value. `Table` gives equal values one small number, so a state is a tuple of numbers,
and a step that changes two parts is computed once for each pair of their values.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

NOTHING = -9
"""The LAC of an entry that a bookie does not have."""

Label = tuple[str | int, ...]
"""The name of a step and its arguments. `text` turns it into a sentence."""
Add = tuple[int, int]
"""An add of a client: the entry, and the LAC that it carries."""


class Table(Generic[T]):
    """Numbers of values, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self.values: list[T] = []

    def number(self, value: T) -> int:
        """Return the number of this value."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that a state or a step does not have."""

    property: str
    what: str


class Bookie(NamedTuple):
    """The durable state of a bookie, as far as it concerns the ledger."""

    lacs: tuple[int, ...]
    """The LAC in each entry, or NOTHING if the bookie does not have the entry."""
    fenced: bool = False
    lost: bool = False
    """Whether the bookie counts as one that lost data: absence is unknown."""

    def has(self, entry: int) -> bool:
        """Return whether the bookie has an entry."""
        return entry < len(self.lacs) and self.lacs[entry] != NOTHING

    @property
    def last_lac(self) -> int | None:
        """The LAC in the last entry, or None if the bookie has no entry."""
        return next((lac for lac in reversed(self.lacs) if lac != NOTHING), None)

    def with_entry(self, entry: int, lac: int) -> Bookie:
        """Return the state with this entry. A newer copy of an entry hides an older one."""
        return self._replace(lacs=(*self.lacs[:entry], lac, *self.lacs[entry + 1 :]))


class Copy(NamedTuple):
    """The copy of a disk that may be restored later, or was."""

    bookie: str = ""
    lacs: tuple[int, ...] = ()
    fenced: bool = False
    restored: bool = False


class WriterPhase(enum.IntEnum):
    """The state of a writer."""

    OPEN = 0
    CHANGING = 1
    """An ensemble change is in progress, and nothing is confirmed."""
    ENDED = 2
    """The writer was fenced, or found that it lost its ledger."""
    CLOSED = 3


class Link(NamedTuple):
    """The connection of a writer to a member: what is on its way there and back."""

    queue: tuple[Add, ...] = ()
    acks: tuple[int, ...] = ()
    refusal: str = ""
    """The refusal that follows the acknowledgements, or ''."""
    broken: bool = False
    """Whether the bookie has restarted, so that no more requests arrive there."""


class Writer(NamedTuple):
    """A writer. The members are in ensemble order."""

    phase: WriterPhase
    pipeline: int
    ensemble: tuple[str, ...]
    known: int
    """The metadata that it knows."""
    links: tuple[Link | None, ...]
    changing: tuple[int, ...] = ()
    """The members that the ensemble change in progress is about."""
    failed: tuple[int, ...] = ()
    """The members that failed since the ensemble change began."""
    first: int = NOTHING
    """The first entry of the new ensemble, once the change is decided. It is NOTHING before."""
    replacements: tuple[tuple[int, str], ...] = ()
    """The new bookies of that ensemble, by index."""
    absent: tuple[int, ...] = ()
    losses: int = 0
    """How often it may still lose a member."""
    strays: tuple[tuple[str, int, int, int], ...] = ()
    """Adds to members that it gave up, which may still arrive: bookie, entry, LAC, index."""


class RecoveryPhase(enum.IntEnum):
    """The state of a recovery."""

    NEW = 0
    FENCING = 1
    READING = 2
    DONE = 3
    FAILED = 4


class Recovery(NamedTuple):
    """A recovery. The members are in the order of the ensemble that it found."""

    phase: RecoveryPhase
    losses: int
    known: int = 0
    """The metadata that it knows, which is also its snapshot."""
    answers: tuple[int | None, ...] = ()
    """The LAC that each member answered, -1 if it has no entry, None if it has not answered."""
    lac: int = -1
    upcoming: int = 0
    """The entry that it asks for."""
    positive: tuple[int, ...] = ()
    negative: tuple[int, ...] = ()
    neither: tuple[int, ...] = ()
    end_found: bool = False
    pipeline: int = 0
    ensemble: tuple[str, ...] = ()
    segments: tuple[tuple[int, tuple[str, ...]], ...] = ()
    queues: tuple[tuple[Add, ...], ...] = ()
    absent: tuple[int, ...] = ()
    told: int = NOTHING
    """The last entry that it reported to its caller, or NOTHING."""
