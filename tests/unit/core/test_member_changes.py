"""The consequences of an ensemble change for the members of a session."""

from __future__ import annotations

from quire.core.append.member_changes import MembersAfterChange, members_after_change

BEFORE = ("a", "b", "c")


def test_an_absent_member_that_was_replaced_is_not_absent_any_more() -> None:
    """Otherwise the session would miss an ack quorum that it has."""
    after = members_after_change(BEFORE, ("a", "d", "c"), {1: "b"}, {1, 2})
    assert after == MembersAfterChange(frozenset(), frozenset({1}), frozenset({2}))


def test_a_member_without_a_replacement_is_left_out_and_others_start_again() -> None:
    after = members_after_change(BEFORE, ("d", "b", "c"), {0: "a", 2: "c"}, ())
    assert after == MembersAfterChange(frozenset({2}), frozenset({0}), frozenset())


def test_a_member_that_failed_under_another_name_starts_again() -> None:
    """The bookie "a" was replaced by "x", and "x" failed and was replaced by "a" (rule 43)."""
    after = members_after_change(BEFORE, BEFORE, {0: "x"}, ())
    assert after == MembersAfterChange(frozenset(), frozenset({0}), frozenset())
