"""The consequences of an ensemble change for the members of a session."""

from __future__ import annotations

from quire.core.append.member_changes import MembersAfterChange, members_after_change

BEFORE = ("a", "b", "c")


def test_a_replaced_absent_member_no_longer_counts_as_absent() -> None:
    """Otherwise the session would miss an ack quorum that it has."""
    after = members_after_change(BEFORE, ("a", "d", "c"), {1: "b"}, {1, 2})
    assert after == MembersAfterChange(frozenset(), frozenset({1}), frozenset({2}))


def test_a_member_without_a_replacement_is_excluded_and_replaced_members_restart() -> None:
    after = members_after_change(BEFORE, ("d", "b", "c"), {0: "a", 2: "c"}, ())
    assert after == MembersAfterChange(frozenset({2}), frozenset({0}), frozenset())


def test_a_member_whose_bookie_failed_and_was_swapped_back_restarts() -> None:
    """The bookie "a" was replaced by "x", and "x" failed and was replaced by "a" (rule 43)."""
    after = members_after_change(BEFORE, BEFORE, {0: "x"}, ())
    assert after == MembersAfterChange(frozenset(), frozenset({0}), frozenset())
