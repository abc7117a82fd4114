"""What recovery may conclude from the answers of bookies (replication spec, 6.3; rules 1-5, 9).

An entry *exists* with one valid copy. It *does not exist* with `write_quorum - ack_quorum + 1`
negatives out of its write set: then it cannot have been acknowledged. Everything else (a time-out,
a bad digest, "data unknown") is neither.

With a `TrustModel` that expects f Byzantine bookies, f bookies of an ensemble may answer anything.
At least `ack_quorum - f` of the bookies that acknowledged an entry are honest and have it, so it
takes f more negatives to prove its absence. Where digests can be forged, one copy proves nothing;
f + 1 equal copies do, because one of them is honest. If everybody has answered and nothing else is
decided, members with a bad digest count as Byzantine, and what the others have, if they agree, as
true. This errs towards keeping an entry; it is never a reason to end the ledger.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from quire.core.append.quorum import covered, negatives_needed, write_set


@dataclass(frozen=True, slots=True)
class TrustModel:
    """How far the answers of bookies are believed."""

    byzantine: int = 0
    """The number of bookies of any ensemble that may be Byzantine: they may answer anything, and
    drop what they acknowledged."""
    forgeable: bool = False
    """Whether a bookie could make an entry with a digest that is right."""

    @property
    def copies_needed(self) -> int:
        """The number of equal copies of an entry that are believed."""
        return self.byzantine + 1 if self.forgeable else 1

    @property
    def compares_copies(self) -> bool:
        """Whether copies have to be compared."""
        return self.copies_needed > 1

    def covered(
        self, known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int
    ) -> bool:
        """Rule 4, with fewer than `ack_quorum - byzantine` unknown members a window."""
        return covered(known, ensemble_size, write_quorum, ack_quorum - self.byzantine)

    def believed_lac(self, lacs: Collection[int]) -> int:
        """Return the highest LAC that an honest bookie has for certain. Each bookie gives one."""
        ranked = sorted(lacs, reverse=True)
        return ranked[self.copies_needed - 1] if len(ranked) >= self.copies_needed else -1


HONEST_BOOKIES = TrustModel()
"""No bookie is Byzantine: bookies crash, and disks lose or damage data."""


class EntryVerdict(enum.Enum):
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
    damaged: set[int] = field(default_factory=set)
    """Of these, the ones whose copy has a bad digest."""
    found: bool = False
    copies: dict[Hashable, set[int]] = field(default_factory=dict)
    """Who has which content, where that is compared."""

    def most(self) -> tuple[Hashable, int]:
        """The content that most have, and how many."""
        ranked = [(value, len(who)) for value, who in self.copies.items()]
        return max(ranked, key=lambda one: one[1], default=(None, 0))


class RecoveryVotes:
    """Answers for the entries from `first` on, by ensemble index."""

    def __init__(
        self,
        first: int,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        trust: TrustModel = HONEST_BOOKIES,
    ) -> None:
        self.first = first
        self._trust = trust
        self._ack_quorum = ack_quorum
        self._ensemble_size = ensemble_size
        self._write_quorum = write_quorum
        self._negatives_needed = negatives_needed(write_quorum, ack_quorum) + trust.byzantine
        self._votes: dict[int, EntryVotes] = {}

    def positive(self, entry_id: int, index: int = 0, content: Hashable = None) -> None:
        """`content` says what is in the copy of the member `index`. It counts only if copies are
        compared."""
        votes = self._of(entry_id)
        votes.found = True
        votes.copies.setdefault(content, set()).add(index)

    def negative(self, entry_id: int, index: int) -> None:
        self._of(entry_id).negative.add(index)

    def neither(self, entry_id: int, index: int, *, damaged: bool = False) -> None:
        """`damaged`: there is a copy, with a bad digest."""
        self._of(entry_id).neither.add(index)
        if damaged:
            self._of(entry_id).damaged.add(index)

    def verdict(self, entry_id: int) -> EntryVerdict:
        votes = self._votes.get(entry_id)
        if votes is None:
            return EntryVerdict.OPEN
        if votes.found and votes.most()[1] >= self._trust.copies_needed:
            return EntryVerdict.EXISTS
        members = set(write_set(entry_id, self._ensemble_size, self._write_quorum))
        if len(votes.negative & members) >= self._negatives_needed:
            return EntryVerdict.ABSENT
        told = votes.negative.union(*votes.copies.values())
        # Who said nothing useful may have any of the contents.
        most = votes.most()[1] + len(members - told)
        if self._trust.compares_copies and most < self._ack_quorum - self._trust.byzantine:
            return EntryVerdict.ABSENT
        if not members <= told | votes.neither:
            return EntryVerdict.OPEN
        return EntryVerdict.EXISTS if self._kept(votes) else EntryVerdict.UNDECIDABLE

    def _kept(self, votes: EntryVotes) -> bool:
        """Whether the only content that anybody has is true, if members with a bad digest are
        Byzantine."""
        byzantine, damaged = self._trust.byzantine, len(votes.damaged)
        return len(votes.copies) == 1 and damaged <= byzantine < damaged + votes.most()[1]

    def content(self, entry_id: int) -> Hashable:
        """What is in an entry that exists."""
        return self._votes[entry_id].most()[0]

    def _of(self, entry_id: int) -> EntryVotes:
        return self._votes.setdefault(entry_id, EntryVotes())


def recovery_lac(answers: Mapping[int, int], last_segment_first: int) -> int:
    """Where recovery starts: the highest LAC that a bookie of the last segment knows, but not below
    the end of the segment before (rule 2)."""
    return max([last_segment_first - 1, *answers.values()])
