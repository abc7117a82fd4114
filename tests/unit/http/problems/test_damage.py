"""The problem of damaged data on a bookie's disk."""

from __future__ import annotations

from typing import Any

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from tests.support.http.problems import WELL, bookie


def damaged(segments: int, ledgers: int, directories: tuple[str, ...] = (), **recovery: Any) -> Any:
    one = {
        **bookie("a"),
        "damaged": {"segments": segments, "ledgers": ledgers},
        "directories": directories,
    }
    found = problems([one, bookie("b")], {**WELL, **recovery})
    return [one for one in found if "damaged" in one.what]


def test_damage_names_the_bookie_and_what_is_done_about_it() -> None:
    found: Problem
    (found,) = damaged(1, 2, ("/my data",))
    assert (found.severity, found.bookies) == ("warn", ("a",))
    assert (
        found.what == "a found damaged data in 1 segment of its log: 2 ledgers lack entries there"
    )
    assert found.doing == (
        "Autorecovery copies these entries from other bookies. The bookie then rewrites the segment"
    )
    assert "quire bookie scrub '/my data'" in found.next
    (found,) = damaged(1, 2)
    assert "quire bookie scrub DIR" in found.next


def test_damage_that_nobody_repairs_says_what_to_start() -> None:
    (found,) = damaged(1, 1, auditor=None)
    assert found.next.startswith("To have the copies restored: quire autorecovery start. ")
    assert "no autorecovery process is running" in found.doing
    (found,) = damaged(1, 1, enabled=False)
    assert found.next.startswith("To have the copies restored: quire autorecovery enable. ")


def test_a_segment_whose_entries_are_restored_is_only_a_note() -> None:
    (found,) = damaged(1, 0)
    assert (found.severity, found.risk) == ("note", "")
    assert damaged(0, 0) == []
