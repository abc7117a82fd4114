"""The problems of autorecovery."""

from __future__ import annotations

from quire.http.views.problems.cluster import problems
from tests.support.http.problems import WELL, bookie, said


def test_autorecovery() -> None:
    well = [bookie("a")]
    assert said(well, enabled=False) == [("warn", "Autorecovery is switched off")]
    assert said(well, auditor=None)[0][0] == "note"
    assert [one[0] for one in said(well, auditor=None, marked=3)] == ["warn", "warn"]
    failure = {"ledger": 7, "failure": {"reason": "no bookie has room"}}
    (one,) = problems(well, {**WELL, "marked": 1, "failing": 1, "failures": [failure]})
    assert one.severity == "bad"
    assert one.what == "1 ledger could not be repaired, such as ledger 7: no bookie has room"
    assert one.next == "quire explain ledger 7"
