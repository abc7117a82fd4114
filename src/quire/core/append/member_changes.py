"""The consequences of an ensemble change for the members of a session.

See rules 12, 13 and 43 of docs/internals/replication-rules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MembersAfterChange:
    """The consequences of an ensemble change for the members. Values are ensemble indexes."""

    left_out: frozenset[int]
    """The failed members that no bookie replaced. The session continues without them."""
    restarted: frozenset[int]
    """The members that are sent everything after the last confirmed entry. They count as having
    acknowledged nothing after it."""
    absent: frozenset[int]
    """The members that were absent before, and still are."""


def members_after_change(
    before: Sequence[str], now: Sequence[str], failed: Mapping[int, str], absent: Collection[int]
) -> MembersAfterChange:
    """Return the consequences of a change from the ensemble `before` to the ensemble `now`.

    Args:
        before: The ensemble that the session has used so far.
        now: The ensemble after the change.
        failed: The bookies that failed, by their indexes. Each place starts again unless it is left
            out, even if its bookie is the same in the end (A replaced by B, and B by A: rule 43).
        absent: The indexes of the members that were absent before.
    """
    changed = {index for index, bookie in enumerate(now) if bookie != before[index]}
    left_out = {index for index, bookie in failed.items() if now[index] == bookie}
    return MembersAfterChange(
        frozenset(left_out),
        frozenset(changed.union(failed.keys() - left_out)),
        frozenset(absent).difference(changed),
    )
