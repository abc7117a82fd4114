"""The changes of a ledger's metadata by its writer and by recoveries (rules 6, 18, 19 and 20)."""

from __future__ import annotations

import dataclasses

import pytest

from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.core.ledger_changes import (
    changed_ensemble,
    closed_by_recovery,
    closed_by_writer,
    marked_in_recovery,
    private_change,
    with_private,
)
from tests.support.metadata.shapes import ledger

OPEN, IN_RECOVERY, CLOSED = LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED


@pytest.mark.parametrize("state", [IN_RECOVERY, CLOSED])
def test_a_writer_changes_the_ensemble_of_an_open_ledger_only(state: LedgerState) -> None:
    now = ledger(state=OPEN)
    changed = changed_ensemble(now, {1: "b:1"}, {1: "x:1"}, 7)
    assert changed == now.with_ensemble_from(7, ("a:1", "x:1", "c:1"))
    assert changed.segments == (now.segments[0], Segment(7, ("a:1", "x:1", "c:1")))
    assert changed_ensemble(ledger(state=state), {1: "b:1"}, {1: "x:1"}, 7) is None


def test_a_writer_replaces_only_members_that_the_metadata_still_names() -> None:
    """Another client has replaced b:1 in the meantime."""
    now = ledger(state=OPEN).with_ensemble_from(0, ("a:1", "n:1", "c:1"))
    failed, new = {1: "b:1", 2: "c:1"}, {1: "x:1", 2: "y:1"}
    changed = changed_ensemble(now, failed, new, 7)
    assert changed is not None
    assert changed.last_segment == Segment(7, ("a:1", "n:1", "y:1"))
    assert changed_ensemble(now, {1: "b:1"}, {1: "x:1"}, 7) is None


def test_a_writer_closes_an_unclosed_ledger_and_keeps_an_earlier_close() -> None:
    for state in (OPEN, IN_RECOVERY):
        closed = closed_by_writer(ledger(state=state), 5, 50)
        assert closed is not None
        assert (closed.closed, closed.last_entry_id, closed.length) == (True, 5, 50)
    assert closed_by_writer(ledger(last=9), 5, 50) is None


def test_a_recovery_marks_only_an_open_ledger() -> None:
    marked = marked_in_recovery(ledger(state=OPEN))
    assert marked == dataclasses.replace(ledger(state=OPEN), state=IN_RECOVERY)
    assert marked_in_recovery(ledger(state=IN_RECOVERY)) is None
    assert marked_in_recovery(ledger()) is None


@pytest.mark.parametrize("state", [OPEN, CLOSED])
def test_a_recovery_closes_only_a_ledger_in_recovery(state: LedgerState) -> None:
    private = [(7, ("a:1", "x:1", "c:1"))]
    closed = closed_by_recovery(ledger(state=IN_RECOVERY), private, 9, 90)
    assert closed is not None
    assert (closed.closed, closed.last_entry_id, closed.length) == (True, 9, 90)
    assert closed.segments[1:] == (Segment(7, ("a:1", "x:1", "c:1")),)
    assert closed_by_recovery(ledger(state=state, last=3), private, 9, 90) is None


def test_each_ensemble_change_of_a_recovery_starts_from_its_previous_one() -> None:
    """Two changes at one entry are one segment. The metadata is not changed before the close."""
    now = ledger(state=IN_RECOVERY, firsts=(0, 4))
    one = private_change(now, [], {1: "x:1"}, 7)
    assert one == [(7, ("a:1", "x:1", "c:1"))]
    two = private_change(now, one, {2: "y:1"}, 7)
    assert two == [(7, ("a:1", "x:1", "y:1"))]
    three = private_change(now, two, {0: "z:1"}, 9)
    assert three == [(7, ("a:1", "x:1", "y:1")), (9, ("z:1", "x:1", "y:1"))]
    assert one == [(7, ("a:1", "x:1", "c:1"))]
    after = with_private(now, three)
    assert [segment.first_entry_id for segment in after.segments] == [0, 4, 7, 9]
    assert after.last_segment.ensemble == ("z:1", "x:1", "y:1")
    again = private_change(now, [], {0: "z:1"}, 4)
    replaced = with_private(now, again)
    assert [one.first_entry_id for one in replaced.segments] == [0, 4]
    assert replaced.last_segment.ensemble == ("z:1", "b:1", "c:1")
