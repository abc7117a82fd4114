"""Since when a problem is known."""

from __future__ import annotations

from quire.http.views.problems.problem import Problem
from quire.http.watch.first_seen import GAP_MAX_MS, FirstSeen


def problem(what: str) -> Problem:
    return Problem("warn", what, "")


def since(seen: FirstSeen, now_ms: int, *whats: str) -> list[tuple[int | None, bool]]:
    found = seen.mark([problem(what) for what in whats], now_ms)
    assert [one.what for one in found] == list(whats)
    return [(one.since_ms, one.since_before) for one in found]


def test_a_problem_has_the_time_of_its_first_observation() -> None:
    seen = FirstSeen()
    assert since(seen, 1_000, "a is gone: stopped") == [(1_000, True)], "the problem may be older"
    found = since(seen, 4_000, "a is gone: cut off", "b (ordered 2 s ago) is drained")
    assert found == [(1_000, True), (4_000, False)]
    assert since(seen, 7_000, "b (ordered 5 s ago) is drained") == [(4_000, False)]
    # It was over meanwhile.
    assert since(seen, 9_000, "a is gone: stopped") == [(9_000, False)]


def test_a_problem_found_after_a_gap_may_be_older() -> None:
    seen = FirstSeen()
    assert since(seen, 0) == []
    assert since(seen, GAP_MAX_MS, "a is gone") == [(GAP_MAX_MS, False)]
    late = 2 * GAP_MAX_MS + 1
    assert since(seen, late, "a is gone", "b is gone") == [(GAP_MAX_MS, False), (late, True)]
