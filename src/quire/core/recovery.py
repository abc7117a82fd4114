"""What recovery may conclude from the answers of bookies (replication spec, 6.3; rules 1-5, 9).

An entry *exists* with one valid copy. It *does not exist* with `write_quorum - ack_quorum + 1`
negatives out of its write set: then it cannot have been acknowledged. Everything else (a time-out,
a bad digest, "data unknown") is neither.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.core.quorum import negatives_needed, write_set


class Verdict(enum.Enum):
    EXISTS = "exists"
    ABSENT = "absent"
    OPEN = "open"
    """Answers are still missing."""
    UNDECIDABLE = "undecidable"
    """Everybody answered and neither rule is met."""


@dataclass(slots=True)
class EntryVotes:
    negative: set[int] = field(default_factory=set)
    neither: set[int] = field(default_factory=set)
    found: bool = False


class RecoveryVotes:
    """Answers for the entries from `first` on, by ensemble index."""

    def __init__(self, first: int, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self.first = first
        self._ensemble_size = ensemble_size
        self._write_quorum = write_quorum
        self._negatives_needed = negatives_needed(write_quorum, ack_quorum)
        self._votes: dict[int, EntryVotes] = {}

    def positive(self, entry_id: int) -> None:
        self._of(entry_id).found = True

    def negative(self, entry_id: int, index: int) -> None:
        self._of(entry_id).negative.add(index)

    def neither(self, entry_id: int, index: int) -> None:
        self._of(entry_id).neither.add(index)

    def verdict(self, entry_id: int) -> Verdict:
        votes = self._votes.get(entry_id)
        if votes is None:
            return Verdict.OPEN
        if votes.found:
            return Verdict.EXISTS
        members = set(write_set(entry_id, self._ensemble_size, self._write_quorum))
        if len(votes.negative & members) >= self._negatives_needed:
            return Verdict.ABSENT
        if members <= votes.negative | votes.neither:
            return Verdict.UNDECIDABLE
        return Verdict.OPEN

    def _of(self, entry_id: int) -> EntryVotes:
        return self._votes.setdefault(entry_id, EntryVotes())


def recovery_lac(answers: Mapping[int, int], last_segment_first: int) -> int:
    """Where recovery starts: the highest LAC that a bookie of the last segment knows, but not below
    the end of the segment before (rule 2)."""
    return max([last_segment_first - 1, *answers.values()])
