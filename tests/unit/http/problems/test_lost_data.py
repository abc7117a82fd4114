"""The problems of stored data."""

from __future__ import annotations

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.lost_bookies import ALONE
from quire.replication.explain.at_risk import AtRisk
from tests.support.http.problems import WELL, bookie


def test_what_cannot_be_read_comes_first() -> None:
    risk = AtRisk(ledgers=9, whole=True, lacking=4, unreadable=2, by_group={ALONE: 4})
    first = problems([bookie("a"), bookie("b", "gone")], WELL, risk)[0]
    assert first.severity == "bad"
    assert first.what.startswith("Some entries of 2 ledgers cannot be read")
