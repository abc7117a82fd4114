"""The entries that each member should hold, and how a replaced member changes the metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import decode
from quire.core.fragments import (
    entry_bytes,
    fragments,
    last_stored,
    members,
    next_stored,
    replaced_in,
    stored_by,
    stored_count,
    with_segments,
)
from tests.support.metadata.golden import NAMED
from tests.support.metadata.shapes import ledger


def test_only_closed_fragments_of_an_open_ledger_may_be_copied() -> None:
    open_ledger = ledger(firsts=(0, 40), state=LedgerState.OPEN)
    first, newest = fragments(open_ledger, 70)
    assert (first.first, first.last, first.closed) == (0, 39, True)
    assert (newest.first, newest.last, newest.closed) == (40, 70, False)
    # The known LAC may be lower than the start of the last segment. The other segments are
    # complete.
    assert [one.last for one in fragments(open_ledger, 12)] == [39, 39]
    assert fragments(open_ledger, 12)[-1].empty
    assert all(one.closed for one in fragments(ledger(firsts=(0, 40)), 12))
    assert [one.last for one in fragments(ledger(firsts=(0, 40)), 12)] == [39, 99]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (4, 1, 1)])
def test_the_part_of_a_member_has_the_right_count_and_bounds(quorums: tuple[int, int, int]) -> None:
    metadata = ledger(quorums)
    for index in range(quorums[0]):
        for first in range(7):
            for last in range(first, 19):
                mine = list(stored_by(metadata, index, first, last))
                assert stored_count(metadata, index, first, last) == len(mine)
                if mine:
                    assert next_stored(metadata, index, first) == mine[0]
                    assert last_stored(metadata, index, last) == mine[-1]


def test_replacing_a_member_gives_the_metadata_that_java_writes() -> None:
    vector = NAMED["update_rereplicate_first_segment"]
    before = decode(bytes.fromhex(vector["beforeHex"]))
    new = vector["after"]["segments"][0]["ensemble"][1]
    changed = replaced_in(before, 0, {1: ("10.0.0.2:3181", new)})
    assert changed is not None
    after = with_segments(before, [changed])
    assert [list(one.ensemble) for one in after.segments] == [
        one["ensemble"] for one in vector["after"]["segments"]
    ]
    assert replace(after, segments=before.segments) == before


def test_a_member_is_replaced_only_if_the_metadata_still_names_it() -> None:
    metadata = ledger(firsts=(0, 40))
    changed = replaced_in(metadata, 40, {0: ("a:1", "x:1"), 1: ("gone:1", "y:1")})
    assert changed == Segment(40, ("x:1", "b:1", "c:1"))
    assert replaced_in(metadata, 40, {1: ("gone:1", "y:1")}) is None
    assert replaced_in(metadata, 41, {0: ("a:1", "x:1")}) is None
    assert replaced_in(metadata, 0, {0: ("a:1", "b:1")}) is None  # one bookie twice
    still_open = ledger(firsts=(0, 40), state=LedgerState.OPEN)
    assert replaced_in(still_open, 40, {0: ("a:1", "x:1")}) is None
    assert replaced_in(still_open, 0, {0: ("a:1", "x:1")}) is not None


def test_a_replaced_member_changes_nothing_else() -> None:
    """Several members may change at once. One that another client has replaced stays."""
    metadata = ledger(firsts=(0, 40, 70))
    changed = replaced_in(metadata, 40, {0: ("a:1", "x:1"), 2: ("c:1", "y:1")})
    assert changed == Segment(40, ("x:1", "b:1", "y:1"))
    after = with_segments(metadata, [changed, Segment(99, ("q:1", "r:1", "s:1"))])
    assert after.segments == (metadata.segments[0], changed, metadata.segments[2])
    assert replace(after, segments=metadata.segments) == metadata
    assert replaced_in(metadata, 40, {0: ("a:1", "x:1"), 1: ("b:1", "x:1")}) is None
    assert replaced_in(metadata, 40, {}) is None


def test_the_members_among_some_bookies_are_found_by_their_index() -> None:
    [one, _] = fragments(ledger(firsts=(0, 40)), -1)
    assert members(one, ("c:1", "z:1", "a:1")) == [0, 2]
    assert members(one, ()) == []
    assert not one.empty


def test_the_mean_size_of_an_entry_is_known_once_the_ledger_is_closed() -> None:
    assert entry_bytes(replace(ledger(last=9), length=55)) == 5.5
    assert entry_bytes(ledger(state=LedgerState.OPEN)) == 0.0
    assert entry_bytes(replace(ledger(last=-1), length=0)) == 0.0
