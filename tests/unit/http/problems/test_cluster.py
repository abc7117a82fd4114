"""All problems of a cluster, in order."""

from __future__ import annotations

from tests.support.http.problems import bookie, said


def test_a_healthy_cluster_has_no_problems() -> None:
    assert said([bookie("a"), bookie("b")]) == []


def test_problems_are_sorted_by_severity() -> None:
    bookies = [
        bookie("a", free=1),
        bookie("b", "gone"),
        {**bookie("c"), "compaction_suspended": ["major"]},
    ]
    assert [one[0] for one in said(bookies, auditor=None)] == ["bad", "warn", "warn", "note"]
