"""The bounds of a search: how many of everything there are, and how often something may fail.

`QUICK` and `FULL` are the searches of the tests and of `make explore`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

NAMES = "abcdefgh"
"""The names of the bookies."""


class Rollback(enum.StrEnum):
    """The kinds of disks that go back in time."""

    NOTICED = "noticed"
    """The bookie notices it at its start (`bookie.directories.rollback`), and counts as lost."""
    UNNOTICED = "unnoticed"
    """The bookie does not notice it. The documents call this undetectable."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of clients and bookies that are not decisions of `quire.core`.

    Each is true in Quire. A test sets one to False to plant a defect that the search must find.
    """

    lac_read_fences: bool = True
    """The LAC read of a recovery fences (`client.recovery`)."""
    reads_fence: bool = True
    """Every other read of a recovery fences (`client.recovery`, rule 1)."""
    late_answers_ignored: bool = True
    """Answers of a member that was replaced do not count (`client.write.add_session`, rule 14)."""
    compares_versions: bool = True
    """The metadata store refuses a write that names an old version (`metadata`, rule 18)."""
    written_back_lac_is_old: bool = True
    """Entries that are written back carry the LAC of the fencing (`client.recovery`, rule 42)."""
    waits_for_copies: bool = True
    """A recovery closes only when an ack quorum has all that it wrote back (`client.recovery`,
    rule 5)."""
    changes_begin_after_the_lac: bool = True
    """A new ensemble begins after the LAC (`client.write.ensemble_changes`, rule 10). Otherwise it
    begins after the last entry that was sent."""
    stops_when_fenced: bool = True
    """A writer that a bookie refuses as fenced ends (`client.write.add_session`, rule 16). Without
    this rule it takes the refusal for the failure of one member."""
    lost_is_unknown: bool = True
    """A bookie that lost data denies nothing (`bookie.protocol.service`, rule 32)."""
    lost_takes_no_adds: bool = True
    """A bookie that lost data takes no ordinary adds, because it may have lost a fence
    (`bookie.protocol.service`)."""
    heals_when_complete: bool = True
    """A loss ends only after `bookie.background.complete_ledger.is_complete` agrees."""
    fences_are_kept: bool = True
    """A fence is durable before the answer (`bookie.protocol.service`, rules 33 and 34)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one search."""

    bookies: int = 3
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    entries: int = 3
    """The number of entries that the writer appends, at most."""
    recoverers: int = 2
    losses: int = 1
    """How often the writer may lose a member without a rollback."""
    recovery_losses: int = 0
    """How often each recovery may lose a member of its session without a rollback."""
    rollbacks: int = 0
    """How often a disk may go back to an earlier state: 0 or 1."""
    rollback: Rollback = Rollback.NOTICED
    heals: bool = True
    """Whether autorecovery repairs a bookie that counts as lost, so that it becomes ordinary."""
    late_answers: bool = False
    """Whether answers to the writer are steps of their own, and adds may arrive after the writer
    gave up their connection. Otherwise an add and its answer are one step."""
    symmetry: bool = True
    """Whether states that differ in the names of bookies only are one state."""
    judge: bool = True
    """Whether the judge recovers every state, so that lost entries are found before a step loses
    them. Without it, a trace shows the steps of the recovery."""
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        if not self.bookies >= self.ensemble >= self.write_quorum >= self.ack_quorum > 0:
            raise ValueError(
                f"bookies {self.bookies} >= ensemble {self.ensemble} >= write quorum "
                f"{self.write_quorum} >= ack quorum {self.ack_quorum} > 0 does not hold"
            )
        if self.bookies > len(NAMES) or self.rollbacks > 1:
            raise ValueError(f"at most {len(NAMES)} bookies and one rollback can be explored")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the bookies."""
        return tuple(NAMES[: self.bookies])

    @property
    def striped(self) -> bool:
        """Whether a bookie of the ensemble stores a part of the entries only."""
        return self.ensemble != self.write_quorum


QUICK = {
    "one-recovery": Bounds(entries=2, recoverers=1),
    "two-recoveries": Bounds(entries=1, losses=0),
    "striped": Bounds(write_quorum=2, entries=2, recoverers=1),
    "late-answers": Bounds(entries=1, recoverers=1, late_answers=True),
    "spare": Bounds(ensemble=2, write_quorum=2, entries=1, recoverers=1, recovery_losses=1),
    "rollback": Bounds(
        ensemble=2, write_quorum=2, entries=1, recoverers=1, losses=0, recovery_losses=1,
        rollbacks=1,
    ),
}  # fmt: skip
"""Searches that take seconds."""

FULL = {
    **QUICK,
    "rollback-fewer": Bounds(entries=1, recoverers=1, rollbacks=1),
    "rollback-two-recoveries": Bounds(
        ensemble=2, write_quorum=2, entries=1, losses=0, rollbacks=1
    ),
    "rollback-two-entries": Bounds(
        ensemble=2, write_quorum=2, entries=2, recoverers=1, losses=0, recovery_losses=1,
        rollbacks=1,
    ),
    "two-recoveries-three-entries": Bounds(ensemble=2, write_quorum=2, losses=0),
    "three-entries": Bounds(recoverers=1, losses=0),
    "four-bookies": Bounds(bookies=4, entries=1, recoverers=1, recovery_losses=1),
    "four-bookies-two-entries": Bounds(bookies=4, entries=2, recoverers=1),
    "three-entries-a-loss": Bounds(recoverers=1),
}  # fmt: skip
"""Searches that take minutes."""

UNDETECTABLE = Bounds(entries=1, recoverers=1, losses=0, rollbacks=1, rollback=Rollback.UNNOTICED)
"""A rollback that the documents call undetectable. An acknowledged entry is lost."""
