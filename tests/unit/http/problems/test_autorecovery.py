"""The problems of autorecovery."""

from __future__ import annotations

from typing import Any

import pytest

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from quire.replication.explain.at_risk import AtRisk
from tests.support.http.problems import WELL, bookie, said


def test_switched_off_or_missing_autorecovery_is_a_problem() -> None:
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


def test_the_finding_says_who_switched_autorecovery_off_and_when() -> None:
    off = {"by": "admin.4711", "since_ms": NOW_MS}
    (one,) = problems([bookie("a")], {**WELL, "enabled": False, "switched_off": off})
    assert one.what == ("Autorecovery is switched off by admin.4711 since 2030-03-17T17:46:40Z")


def test_the_risk_is_stated_as_a_fact_when_a_bookie_is_already_lost() -> None:
    """The finding was a warning about a bookie that may be lost, while one was lost."""
    bookies = [bookie("a"), bookie("b", "gone")]
    for off, until in (
        ({"enabled": False}, "switches autorecovery on"),
        ({"auditor": None}, "starts such a process"),
    ):
        risk = AtRisk(15, True, lacking=8, by_group={"alone": 8})
        (_, one) = problems(bookies, {**WELL, **off}, risk)
        assert (one.severity, one.risk) == (
            "bad",
            f"8 ledgers lack copies now, and lack them until somebody {until} or the lost bookies "
            "return",
        )
        (one, _) = problems(bookies, {**WELL, **off}, AtRisk(15, True, by_group={"alone": 0}))
        assert (one.severity, one.risk[:12]) == ("warn", "If a bookie "), "it had no copies"
        (_, one) = problems(bookies, {**WELL, **off}, None)
        assert one.risk.startswith("The copies on the lost bookies stay missing until somebody")
    assert "do that first: then nothing is copied needlessly" in (
        problems(bookies, {**WELL, "enabled": False}, risk)[1].next
    )


def test_a_problem_of_under_replicated_ledgers_names_an_example() -> None:
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


NOW_MS = 1_900_000_000_000


def failed(attempts: int, in_s: float, **more: Any) -> dict[str, Any]:
    failure = {
        "reason": "no bookie has room", "at_ms": NOW_MS, "attempts": attempts,
        "next_attempt_ms": NOW_MS + int(in_s * 1000), "by": "w1",
    }  # fmt: skip
    return {"ledger": 7, "failure": failure, "lock_owner": None, **more}


def failing(*failures: dict[str, Any], number: int = 1, **recovery: Any) -> Problem:
    found = {**WELL, "marked": number, "failing": number, "failures": failures, **recovery}
    (one,) = [one for one in problems([bookie("a")], found, now_ms=NOW_MS) if "ledger" in one.what]
    return one


def test_a_failed_repair_names_the_time_of_its_retry() -> None:
    one = failing(failed(2, 12))
    assert (one.severity, one.doing) == (
        "bad",
        "The repair of ledger 7 will be tried again at 2030-03-17T17:46:52Z (in 12 s), or as soon "
        "as another bookie registers",
    )
    one = failing(failed(2, -1))
    assert one.doing == "The repair of ledger 7 will be tried again within seconds"
    one = failing(failed(2, 12, lock_owner="w2"))
    assert one.doing == "w2 is repairing ledger 7 now"


def test_a_failed_repair_says_why_it_is_not_retried() -> None:
    one = failing(failed(2, -1), auditor=None)
    assert one.doing == "Nothing is repaired, because no autorecovery process is running"
    one = failing(failed(2, 12), enabled=False)
    assert one.doing == "Nothing is repaired, because autorecovery is switched off"


def test_waiting_for_a_writer_is_not_a_failure() -> None:
    """The finding was red, although no attempt had failed."""
    one = failing(failed(0, 30))
    assert (one.severity, one.next) == ("warn", "quire explain ledger 7")
    assert one.what == (
        "1 under-replicated ledger waits for a writer before autorecovery repairs it, such as "
        "ledger 7: no bookie has room"
    )
    both = failing(failed(0, 30), {**failed(1, 30), "ledger": 8}, number=2)
    assert (both.severity, both.next) == ("bad", "quire explain ledger 8")
    unknown = failing(failed(0, 30), number=101)
    assert unknown.severity == "bad", "the others may have failed"


def test_a_repair_that_fails_for_a_lost_bookie_is_part_of_that_problem() -> None:
    """One lost bookie gave two findings; the second spoke of racks, ensembles and minima."""
    why = {**failed(2, 12), "replicas": ["b"]}
    found = {**WELL, "marked": 1, "failing": 1, "failures": [why]}
    bookies = [bookie("a"), bookie("b", "gone")]
    risk = AtRisk(9, True, lacking=2, by_group={"alone": 2}, without_spare=2)
    first, second = problems(bookies, found, risk, now_ms=NOW_MS)
    assert first.what.startswith("b is gone")
    assert second.what == (
        "1 ledger could not be repaired, such as ledger 7: no writable bookie can replace b"
    )
    assert second.next == (
        "This follows from b, which is gone: bring it back, as the finding about it "
        "says. To see one of the ledgers: quire explain ledger 7"
    )
    _, second = problems(bookies, found, AtRisk(9, True, by_group={"alone": 2}), now_ms=NOW_MS)
    assert second.what.endswith("such as ledger 7: no bookie has room"), "another reason"
    assert second.next.startswith("This follows from b")
    other = {**found, "failures": [why, {**why, "ledger": 8, "replicas": ["z"]}]}
    _, second = problems(bookies, other, risk, now_ms=NOW_MS)
    assert second.next == "quire explain ledger 7", "z is not lost"


def test_marked_ledgers_of_a_lost_bookie_are_part_of_that_problem() -> None:
    example = {"ledger": 7, "replicas": ["b"]}
    found = {**WELL, "marked": 2, "locked": 1, "example": example}
    _, one = problems([bookie("a"), bookie("b", "gone")], found)
    assert one.next.startswith("This follows from b, which is gone: bring it back, as")
    assert one.next.endswith("To list the ledgers: quire autorecovery list")
    (one,) = problems([bookie("a"), bookie("b")], found)
    assert one.next == "quire autorecovery list"


@pytest.mark.parametrize(
    ("state", "command"), [({"enabled": False}, "enable"), ({"auditor": None}, "start")]
)
def test_ledgers_that_nobody_repairs_need_the_switch_first(
    state: dict[str, Any], command: str
) -> None:
    """The advice was to bring a bookie back that had been replaced. The switch was the reason."""
    bookies = [bookie("a"), bookie("b", "gone")]
    marked = {**WELL, **state, "marked": 2, "example": {"ledger": 7, "replicas": ["b"]}}
    start = f"To have the copies restored: quire autorecovery {command}. "
    at_once = "If b, which is gone, can be started again at once, do that first. "
    see = "To list the ledgers: quire autorecovery list"
    assert of_marked(problems(bookies, marked)).next == start + at_once + see
    assert of_marked(problems(bookies[:1], marked)).next == start + see, "b is registered"
    one = {**failed(2, 12), "replicas": ["b"]}
    failing = {**WELL, **state, "marked": 1, "failing": 1, "failures": [one]}
    see = "To see one of the ledgers: quire explain ledger 7"
    assert of_marked(problems(bookies, failing)).next == start + at_once + see
    assert of_marked(problems(bookies[:1], failing)).next == start + see


def of_marked(found: list[Problem]) -> Problem:
    """Return the problem of the marked ledgers."""
    return next(one for one in found if "ledger 7" in one.what)


def test_unreadable_ledgers_found_by_a_former_auditor_have_a_date() -> None:
    skipped = {"at_ms": 1_900_000_000_000, "ledgers": 1, "first": [[7, "it is damaged"]]}
    now_ms = 1_900_000_000_000 + 5 * 86_400_000
    found = problems([bookie("a")], {**WELL, "unreadable": skipped}, now_ms=now_ms)
    (one,) = [each for each in found if "ledger 7" in each.what]
    assert one.doing.startswith("The auditor skips it")
    found = problems([bookie("a")], {**WELL, "unreadable": skipped, "auditor": None}, now_ms=now_ms)
    (one,) = [each for each in found if "ledger 7" in each.what]
    assert one.doing.startswith("An auditor found this 5 d ago, at 2030-03-17T17:46:40Z. None runs")
