"""The problems of autorecovery."""

from __future__ import annotations

from quire.http.views.problems.cluster import problems
from tests.support.http.problems import WELL, bookie, said


def test_autorecovery() -> None:
    well = [bookie("a")]
    (one,) = problems(well, {**WELL, "enabled": False})
    assert (one.severity, one.what) == ("warn", "Autorecovery is switched off")
    assert one.risk.startswith("If a bookie or a disk is lost, its copies stay missing")
    (one,) = problems(well, {**WELL, "auditor": None})
    assert (one.severity, one.next) == ("warn", "quire autorecovery start")
    assert one.risk.startswith("If a bookie or a disk is lost, its copies stay missing")
    assert [one[0] for one in said(well, auditor=None, marked=3)] == ["warn", "warn"]
    laptop = [{**bookie(name), "host": "127.0.0.1"} for name in "ab"]
    (one,) = problems(laptop, {**WELL, "auditor": None})
    assert one.severity == "note"
    mixed = [laptop[0], {**laptop[1], "host": "10.0.0.2"}]
    (one,) = problems(mixed, {**WELL, "auditor": None})
    assert one.severity == "warn"
    failure = {"ledger": 7, "failure": {"reason": "no bookie has room"}}
    (one,) = problems(well, {**WELL, "marked": 1, "failing": 1, "failures": [failure]})
    assert one.severity == "bad"
    assert one.what == "1 ledger could not be repaired, such as ledger 7: no bookie has room"
    assert one.next == "quire explain ledger 7"


def test_under_replicated_ledgers_name_one_and_who_lacks_its_entries() -> None:
    example = {"ledger": 7, "replicas": ["10.0.0.2:3181"]}
    (one,) = problems([bookie("a")], {**WELL, "marked": 2, "locked": 1, "example": example})
    assert one.what == (
        "Under-replicated ledgers: 2, such as ledger 7, which may lack entries on 10.0.0.2:3181"
    )
    assert (one.bookies, one.doing) == (("10.0.0.2:3181",), "1 is being repaired")
    off = {**WELL, "marked": 2, "example": {**example, "replicas": []}, "enabled": False}
    (_, one) = problems([bookie("a")], off)
    assert one.what == "Under-replicated ledgers: 2, such as ledger 7"
    assert one.doing == "Nothing is repaired, because autorecovery is switched off"
    (_, one) = problems([bookie("a")], {**WELL, "marked": 2, "auditor": None})
    assert one.doing == "Nothing is repaired, because no autorecovery process is running"
