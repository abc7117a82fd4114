"""The judge: one more recovery, from any state of a ledger that is not closed.

A close is reachable from a state if a recovery that begins there, and meets no further fault,
closes the ledger. The judge tries it with all bookies of the last ensemble, and with each smaller
group that the documents call sufficient. It must never end the ledger before an acknowledged entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.core.append import quorum
from quire.metadata.interface import Versioned
from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.metadata import Metadata
from quire_simulator.exploration.recoverer import RecoverySteps
from quire_simulator.exploration.values import NOTHING, Bookie, RecoveryPhase, Violation


class Judge:
    """The recoveries of the judge, each with its result."""

    def __init__(self, bounds: Bounds, metadata: Metadata, steps: RecoverySteps) -> None:
        self._bounds = bounds
        self._shape = bounds.ensemble, bounds.write_quorum, bounds.ack_quorum
        self._metadata = metadata
        self._steps = steps
        self._ends: dict[tuple[object, ...], tuple[int | None, str]] = {}
        self.runs = 0

    def of(
        self, now: LedgerMetadata, bookies: Sequence[Bookie], acknowledged: int
    ) -> Violation | None:
        """Return what a recovery from here would violate. `bookies` are in the order of names."""
        segment = now.last_segment
        members = [bookies[self._bounds.names.index(name)] for name in segment.ensemble]
        if not self._bounds.striped:
            members.sort()  # all members store the same entries
        key = (segment.first_entry_id, *members)
        if key not in self._ends:
            self._ends[key] = self._lowest(now, members)
        end, who = self._ends[key]
        if end is None:
            return Violation("a_close_is_reachable", f"a recovery with {who} fails")
        if end < acknowledged:
            return Violation(
                "acknowledged_is_kept",
                f"{acknowledged} was acknowledged, a recovery with {who} would close at {end}",
            )
        return None

    def _lowest(self, now: LedgerMetadata, members: list[Bookie]) -> tuple[int | None, str]:
        """Return the lowest end at which any sufficient group closes, or None if one fails."""
        names = self._bounds.names[: self._bounds.ensemble]
        segment = Segment(now.last_segment.first_entry_id, names)
        value = replace(now, segments=(segment,), state=LedgerState.OPEN)
        found: list[tuple[int, str]] = []
        for group in self._groups(members):
            who = "the bookies " + " ".join(str(members[index]) for index in sorted(group))
            end = self._close(value, members, group)
            if end is None:
                return None, who
            found.append((end, who))
        return min(found, default=(self._bounds.entries, "nobody"))

    def _groups(self, members: list[Bookie]) -> Iterator[set[int]]:
        """Yield the groups of members with which a recovery must succeed.

        A bookie that has lost data accepts what is written back, but its answers prove nothing.
        """
        lost = {index for index, one in enumerate(members) if one.lost}
        for count in range(len(members), 0, -1):
            for chosen in combinations(range(len(members)), count):
                absent = set(range(len(members))).difference(chosen)
                if quorum.covered(set(chosen) - lost, *self._shape) and quorum.bearable(
                    absent, *self._shape
                ):
                    yield set(chosen)

    def _close(self, value: LedgerMetadata, members: list[Bookie], group: set[int]) -> int | None:
        """Run a recovery that only this group answers. Return the end, or None if it fails."""
        self.runs += 1
        bookies = list(members)
        stored = self._metadata.number(Versioned(value, 0))
        one = self._steps.first()
        while one.phase not in (RecoveryPhase.DONE, RecoveryPhase.FAILED):
            before = one
            for kind, index, name in self._steps.targets(one):
                if index in group:
                    _, one, bookies[index] = self._steps.arrive(
                        one, kind, index, name, bookies[index]
                    )
                    if one != before:
                        break
            if one == before:
                changed = next(self._steps.with_metadata(one, stored), None)
                if changed is not None:
                    _, one, stored = changed
            if one == before and one.phase is RecoveryPhase.FENCING:
                alone = next(self._steps.alone(one, ""), None)
                if alone is not None:
                    _, one = alone
            if one == before:
                return None
        return None if one.told == NOTHING else one.told
