"""The invariants of one ledger, and the `Facts` that they check.

Each invariant is a function that describes what is wrong, or returns None. It must hold at every
moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.append.quorum import write_set


def _nothing() -> int:
    return -1


@dataclass
class Facts:
    """Everything known about one ledger."""

    ledger_id: int
    scale: int = 1
    """The factor by which the payloads of its entries are larger."""
    password: bytes = b""
    handle_confirmed: Callable[[], int] = _nothing
    """Returns the last entry that the writer's handle counts as acknowledged.

    The writer's caller may not know of it yet.
    """
    backlog: Callable[[], int] = _nothing
    """Returns the number of bytes that the writer holds for the slowest bookie."""
    backlog_max_bytes: int = 0
    acked: int = -1
    lac_seen: int = -1
    read_last: int = -1
    changes: int = 0
    """The number of times that the metadata was stored."""
    crowded: str = ""
    """A segment that names a bookie twice."""
    states: list[LedgerState] = field(default_factory=lambda: [LedgerState.OPEN])
    """The different states that were stored, in order."""
    closes: list[tuple[int, int]] = field(default_factory=list)
    """The last entry and length of each different close that was stored or seen."""
    acked_at_close: int = -1
    length_expected: int = -1
    """The number of payload bytes up to the last entry of the close."""
    thin: str = ""
    """An acknowledged entry that too few bookies claim to have."""
    checked_through: int = -1
    """The last entry whose claims were checked since the metadata changed."""
    deleted: bool = False
    """Whether the ledger is deleted, or about to be."""
    recreated: bool = False
    """Whether another ledger was created with the id. Nothing else is checked from then on."""
    foreign: bool = False
    """Whether a layer above ledgers writes the ledger, and checks its entries."""
    wrong: str = ""
    """A read that returned something other than what was appended."""
    denied: str = ""
    """A reply that denies something that exists."""
    refused_from: int | None = None
    """The first entry that the client reported to the writer as certainly not appended."""
    rewritten: int = 0
    """The number of times that somebody wrote the same metadata again (the knob `LOST_SWAPS`)."""
    changed_by: Counter[str] = field(default_factory=Counter)
    """The number of changes of the metadata by each client."""
    closed_by: str = ""
    """The client that stored the close."""
    contested: bool = False
    """Whether a recovery began before the close. A bookie that it fences refuses adds of the writer
    that are still under way, although the writer then closes the ledger."""
    member_failed: Callable[[], bool] = lambda: False
    """Whether a member of the ensemble has failed for the writer, for example because it did not
    answer an add in time. The writer continues without it, so it may lack entries for good."""
    late: str = ""
    """An operation that succeeded on a handle that had failed for good."""

    @property
    def confirmed(self) -> int:
        return max(self.acked, self.handle_confirmed())

    @property
    def closed_at(self) -> int | None:
        return self.closes[0][0] if self.closes else None

    @property
    def closed_whole(self) -> bool:
        """Whether its writer closed the ledger, no recovery had begun before, and no member failed.

        Every member has then been sent all its entries, and stores them.
        """
        by_writer = self.closed_by.startswith("writer-") and not self.contested
        return by_writer and not self.member_failed()

    @property
    def known(self) -> int:
        """The last entry that was acknowledged or recovered."""
        return max(self.confirmed, -1 if self.closed_at is None else self.closed_at)


METADATA_CHANGES_MAX = 300

Invariant = Callable[[Facts], str | None]


def acknowledged_is_kept(facts: Facts) -> str | None:
    """An acknowledged append is part of the closed ledger."""
    end = facts.closed_at
    if end is not None and end < facts.acked_at_close:
        return f"closed at {end}, but {facts.acked_at_close} had been acknowledged"
    return None


def acknowledged_is_on_a_quorum(facts: Facts) -> str | None:
    """An entry is durable on an ack quorum of the write set that the metadata names.

    This holds from its acknowledgement on, and after every change of the metadata.
    """
    return facts.thin or None


def nothing_acknowledged_beyond_the_close(facts: Facts) -> str | None:
    end = facts.closed_at
    if end is not None and facts.confirmed > end:
        return f"{facts.confirmed} was acknowledged, the ledger was closed at {end}"
    return None


def lac_is_acknowledged(facts: Facts) -> str | None:
    """The LAC never exceeds the prefix that was acknowledged or recovered."""
    if facts.lac_seen > facts.known:
        return (
            f"LAC {facts.lac_seen} was seen, but only {facts.known} was acknowledged or recovered"
        )
    return None


def lac_is_within_the_close(facts: Facts) -> str | None:
    end = facts.closed_at
    if end is not None and facts.lac_seen > end:
        return f"LAC {facts.lac_seen} was seen, but the ledger was closed at {end}"
    return None


def only_the_acknowledged_is_read(facts: Facts) -> str | None:
    """No reader is given an entry before it is acknowledged or recovered."""
    if facts.read_last > facts.known:
        return f"entry {facts.read_last} was read, but {facts.known} is the last confirmed entry"
    return None


def what_was_read_stays(facts: Facts) -> str | None:
    end = facts.closed_at
    if end is not None and facts.read_last > end:
        return f"entry {facts.read_last} was read, but the ledger was closed at {end}"
    return None


def one_close_wins(facts: Facts) -> str | None:
    """Writers, recoverers and readers agree on the end of the ledger for good."""
    if len(facts.closes) > 1:
        return f"closed more than once: {facts.closes}"
    return None


def the_state_goes_on(facts: Facts) -> str | None:
    """A ledger goes from open through in recovery to closed, and never back."""
    if facts.states != sorted(facts.states):
        return f"the states were {', '.join(state.name for state in facts.states)}"
    return None


def the_length_is_that_of_the_entries(facts: Facts) -> str | None:
    """The length of the closed ledger is the sum of its payloads.

    A recovery that cannot read the last entry may store 0, because the length is only advisory.
    """
    allowed = [-1, facts.length_expected]
    if LedgerState.IN_RECOVERY in facts.states:
        allowed.append(0)
    for last, length in facts.closes:
        if length not in allowed:
            return (
                f"closed at {last} with {length} bytes, "
                f"but its entries have {facts.length_expected}"
            )
    return None


def the_bookies_of_a_segment_are_distinct(facts: Facts) -> str | None:
    return facts.crowded or None


def metadata_is_not_hammered(facts: Facts) -> str | None:
    """The ensemble changes as often as faults require, and not as fast as it can."""
    if facts.changes > METADATA_CHANGES_MAX:
        return f"its metadata was stored {facts.changes} times"
    return None


def entries_are_what_was_appended(facts: Facts) -> str | None:
    """No entry is altered or in another entry's place, so any two readers agree."""
    return facts.wrong or None


def no_false_absence(facts: Facts) -> str | None:
    """ "No such entry" and "no such ledger" are answered only if nothing was acknowledged there."""
    return facts.denied if facts.denied and not facts.deleted else None


def a_dead_handle_stays_dead(facts: Facts) -> str | None:
    """A writer whose handle has failed for good never succeeds again."""
    return facts.late or None


def what_was_refused_is_not_there(facts: Facts) -> str | None:
    """No entry is in the ledger whose append raised an error with `outcome_known`."""
    end, refused = facts.closed_at, facts.refused_from
    if end is not None and refused is not None and end >= refused:
        return f"closed at {end}, but the writer was told that {refused} was not appended"
    return None


LEDGER_INVARIANTS: tuple[Invariant, ...] = (
    one_close_wins,
    the_state_goes_on,
    acknowledged_is_kept,
    acknowledged_is_on_a_quorum,
    nothing_acknowledged_beyond_the_close,
    lac_is_within_the_close,
    lac_is_acknowledged,
    what_was_read_stays,
    only_the_acknowledged_is_read,
    the_length_is_that_of_the_entries,
    the_bookies_of_a_segment_are_distinct,
    metadata_is_not_hammered,
    entries_are_what_was_appended,
    no_false_absence,
    what_was_refused_is_not_there,
    a_dead_handle_stays_dead,
)


def bookies_of(metadata: LedgerMetadata) -> set[str]:
    """Return all bookies that the ledger names."""
    return {bookie for segment in metadata.segments for bookie in segment.ensemble}


def members_of(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """Return the bookies that should have this entry."""
    ensemble = metadata.segment_of(entry_id).ensemble
    places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
    return [ensemble[index] for index in places]


def lacking(
    metadata: LedgerMetadata,
    entry_id: int,
    held: Mapping[str, set[int]],
    destroyed: frozenset[str],
    lost: Mapping[str, set[int]] | None = None,
) -> str | None:
    """Describe what is wrong if too few bookies hold this entry, or return None.

    Bookies in `destroyed`, and bookies that `lost` the entry with a directory, need not hold it.
    """
    members = members_of(metadata, entry_id)
    have = [m for m in members if m not in destroyed and entry_id in held.get(m, ())]
    have = list(dict.fromkeys(have))  # A bookie that is named twice holds one copy.
    lacked = {m for m, entries in (lost or {}).items() if entry_id in entries and m not in have}
    gone = sum(member in destroyed or member in lacked for member in members)
    if len(have) >= metadata.ack_quorum - gone:
        return None
    return f"held by {have or 'nobody'} of {members}, ack quorum {metadata.ack_quorum}"
