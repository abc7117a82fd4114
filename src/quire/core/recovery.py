"""The conclusions that recovery may draw from the answers of bookies.

See rules 1 to 5 and 9 of docs/internals/replication-rules.md.

An entry *exists* if there is one valid copy. It *does not exist* if `write_quorum - ack_quorum + 1`
members of its write set deny it: it cannot have been acknowledged then. Any other answer (a
time-out, a bad digest, "data unknown") proves neither.

With a `TrustModel` that expects f Byzantine bookies, f bookies of an ensemble may answer anything.
At least `ack_quorum - f` of the bookies that acknowledged an entry are honest and have it, so it
takes f more denials to prove its absence. If digests can be forged, one copy proves nothing; f + 1
equal copies do, because one of them is honest. If all members have answered without a decision,
members with a bad digest count as Byzantine, and the content of the others counts as true if they
agree. This errs on the side of keeping an entry, and it is never a reason to end the ledger.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from quire.core.append.quorum import covered, negatives_needed, write_set


@dataclass(frozen=True, slots=True)
class TrustModel:
    """The assumptions about how many bookies may give false answers, and of which kind."""

    byzantine: int = 0
    """The number of bookies of any ensemble that may be Byzantine: they may answer anything, and
    may drop entries that they acknowledged."""
    forgeable: bool = False
    """Whether a bookie can make an entry with a correct digest."""

    @property
    def copies_needed(self) -> int:
        """The number of equal copies that prove that an entry exists with this content."""
        return self.byzantine + 1 if self.forgeable else 1

    @property
    def compares_copies(self) -> bool:
        """Whether several equal copies of an entry are needed before it is believed."""
        return self.copies_needed > 1

    def covered(
        self, known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int
    ) -> bool:
        """Return whether the answers include an honest member of every possible ack quorum.

        This is rule 4: each window of `write_quorum` neighbouring members has fewer than
        `ack_quorum - byzantine` members without an answer. `known` has the ensemble indexes of the
        bookies that answered.
        """
        return covered(known, ensemble_size, write_quorum, ack_quorum - self.byzantine)

    def believed_lac(self, lacs: Collection[int]) -> int:
        """Return the highest LAC that an honest bookie certainly has, or -1 if there is none.

        `lacs` has the LAC that each bookie returned.
        """
        ranked = sorted(lacs, reverse=True)
        return ranked[self.copies_needed - 1] if len(ranked) >= self.copies_needed else -1


HONEST_BOOKIES = TrustModel()
"""The trust model without Byzantine bookies: bookies crash, and disks lose or damage data."""


class EntryVerdict(enum.Enum):
    """The conclusion of a recovery about one entry, from the answers of bookies."""

    EXISTS = "exists"
    ABSENT = "absent"
    OPEN = "open"
    """Answers are still missing."""
    UNDECIDABLE = "undecidable"
    """All members have answered, and the answers prove neither EXISTS nor ABSENT."""


@dataclass(slots=True)
class EntryVotes:
    """The answers of the members of an ensemble about one entry.

    Members are identified by their ensemble index.
    """

    negative: set[int] = field(default_factory=set)
    """The members that say that they do not have the entry."""
    neither: set[int] = field(default_factory=set)
    """The members whose answer proves nothing, such as a time-out or a bad digest."""
    damaged: set[int] = field(default_factory=set)
    """The members among `neither` whose copy has a bad digest."""
    found: bool = False
    """Whether any member returned a valid copy."""
    copies: dict[Hashable, set[int]] = field(default_factory=dict)
    """The members that have each content. If contents are not compared, the only key is None."""

    def most(self) -> tuple[Hashable, int]:
        """Return the content that most members have, and the number of these members.

        The result is (None, 0) if no member has a copy.
        """
        ranked = [(value, len(who)) for value, who in self.copies.items()]
        return max(ranked, key=lambda one: one[1], default=(None, 0))


class RecoveryVotes:
    """The answers of an ensemble's members about the entries from `first` on, and the verdicts."""

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
        """Record that a member has the entry.

        `index` is the ensemble index of the member, and `content` is the content of its copy. Both
        matter only if the trust model compares copies.
        """
        votes = self._of(entry_id)
        votes.found = True
        votes.copies.setdefault(content, set()).add(index)

    def negative(self, entry_id: int, index: int) -> None:
        """Record that the member with this ensemble index does not have the entry."""
        self._of(entry_id).negative.add(index)

    def neither(self, entry_id: int, index: int, *, damaged: bool = False) -> None:
        """Record an answer of a member that proves nothing, such as a time-out.

        `damaged` says that the member returned a copy with a bad digest.
        """
        self._of(entry_id).neither.add(index)
        if damaged:
            self._of(entry_id).damaged.add(index)

    def verdict(self, entry_id: int) -> EntryVerdict:
        """Return the conclusion about an entry from the answers so far."""
        votes = self._votes.get(entry_id)
        if votes is None:
            return EntryVerdict.OPEN
        if votes.found and votes.most()[1] >= self._trust.copies_needed:
            return EntryVerdict.EXISTS
        members = set(write_set(entry_id, self._ensemble_size, self._write_quorum))
        if len(votes.negative & members) >= self._negatives_needed:
            return EntryVerdict.ABSENT
        told = votes.negative.union(*votes.copies.values())
        # A member whose answer proves nothing may have any of the contents.
        most = votes.most()[1] + len(members - told)
        if self._trust.compares_copies and most < self._ack_quorum - self._trust.byzantine:
            return EntryVerdict.ABSENT
        if not members <= told | votes.neither:
            return EntryVerdict.OPEN
        return EntryVerdict.EXISTS if self._kept(votes) else EntryVerdict.UNDECIDABLE

    def _kept(self, votes: EntryVotes) -> bool:
        """Return whether the only content that was found is true.

        The content is true if members with a bad digest count as Byzantine, and there are then not
        enough other Byzantine bookies to have invented it.
        """
        byzantine, damaged = self._trust.byzantine, len(votes.damaged)
        return len(votes.copies) == 1 and damaged <= byzantine < damaged + votes.most()[1]

    def content(self, entry_id: int) -> Hashable:
        """Return the content that most members have of an entry whose verdict is EXISTS."""
        return self._votes[entry_id].most()[0]

    def _of(self, entry_id: int) -> EntryVotes:
        return self._votes.setdefault(entry_id, EntryVotes())


def recovery_lac(answers: Mapping[int, int], last_segment_first: int) -> int:
    """Return the id of the entry after which recovery starts to read.

    It is the highest LAC in `answers`, but at least `last_segment_first - 1`, the end of the
    segment before (rule 2 of docs/internals/replication-rules.md). Each LAC must already be
    believed under the trust model (`TrustModel.believed_lac`), because one answer of a Byzantine
    bookie would decide here.
    """
    return max([last_segment_first - 1, *answers.values()])
