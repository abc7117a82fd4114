"""The ensembles of a deleted ledger, made again from the entries that bookies hold."""

from __future__ import annotations

import pytest

from quire.codec.metadata.ledger_metadata import Segment
from quire.errors import JobRefusedError
from quire.replication.repair.deleted_ledger import ensembles

BOOKIES = ["a", "b", "c", "d"]


def test_bookies_that_hold_all_entries_are_one_ensemble() -> None:
    held = {"a": [(0, 9)], "b": [(0, 9)], "c": [(0, 9)], "d": [(4, 6)]}
    assert ensembles(7, held, 3, 2, BOOKIES) == (Segment(0, ("a", "b", "c")),)


def test_a_replaced_bookie_ends_an_ensemble() -> None:
    held = {"a": [(0, 9)], "b": [(0, 9)], "c": [(0, 4)], "d": [(5, 9)]}
    assert ensembles(7, held, 3, 2, BOOKIES) == (
        Segment(0, ("c", "a", "b")),
        Segment(5, ("a", "b", "d")),
    )


def test_the_last_entries_may_lack_a_copy() -> None:
    held = {"a": [(0, 9)], "b": [(0, 9)], "c": [(0, 8)]}
    assert ensembles(7, held, 3, 2, BOOKIES) == (Segment(0, ("c", "a", "b")),)


def test_others_fill_the_place_of_a_bookie_that_has_deleted_its_copies() -> None:
    held = {"b": [(0, 9)], "c": [(0, 9)]}
    assert ensembles(7, held, 3, 2, BOOKIES) == (Segment(0, ("b", "c", "a")),)
    with pytest.raises(JobRefusedError, match="Bring the other bookies back"):
        ensembles(7, held, 3, 2, ["b", "c"])


@pytest.mark.parametrize(
    ("held", "count", "entry"),
    [
        ({"a": [(0, 9)]}, "1 registered bookie", 0),
        ({"a": [(1, 9)], "b": [(1, 9)], "c": [(1, 9)]}, "0 registered bookies", 0),
        ({"a": [(0, 2), (4, 9)], "b": [(0, 2), (4, 9)], "c": [(0, 9)]}, "1 registered bookie", 3),
        ({"a": [(0, 4)], "b": [(0, 4)], "c": [(0, 4)], "d": [(5, 9)]}, "1 registered bookie", 5),
    ],
)
def test_entries_with_too_few_copies_are_refused(
    held: dict[str, list[tuple[int, int]]], count: str, entry: int
) -> None:
    with pytest.raises(JobRefusedError, match=rf"entry {entry} is on {count}, and 2 are needed"):
        ensembles(7, held, 3, 2, BOOKIES)
