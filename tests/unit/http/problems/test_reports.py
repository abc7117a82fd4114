"""The problems that the reports of bookies show: clocks that differ, and refusals."""

from __future__ import annotations

from typing import Any

from quire.http.views.problems.reports import (
    CLOCK_DIFFERENCE_MAX_MS,
    of_clocks,
    of_refusals,
)
from tests.support.http.problems import bookie

HOUR_MS = 3_600_000


def told(name: str, ahead_ms: int | None, state: str = "writable") -> dict[str, Any]:
    return {**bookie(name, state), "report": {"clock_ahead_ms": ahead_ms}}


def test_a_clock_that_is_far_off_is_named_with_the_command() -> None:
    bookies = [told("a:1", 3 * HOUR_MS), told("b:1", 12), told("c:1", None), bookie("d:1")]
    (one,) = of_clocks(bookies)
    assert one.severity == "warn"
    assert one.what == "The clock of a:1 is 3 h ahead of the clock of this process"
    assert one.bookies == ("a:1",)
    assert one.next.startswith("On the machine of a:1, see whether")
    assert one.next.endswith("sudo timedatectl set-ntp true")


def test_several_clocks_are_one_problem() -> None:
    (one,) = of_clocks([told("a:1", HOUR_MS), told("b:1", -60_000), told("c:1", 0)])
    assert "2 bookies" in one.what
    assert "a:1 (60 min ahead of it), b:1 (60 s behind it)" in one.what


def test_if_all_bookies_differ_in_the_same_direction_the_own_clock_is_suspected() -> None:
    (one,) = of_clocks([told("a:1", HOUR_MS), told("b:1", HOUR_MS + 20)])
    assert one.what.startswith("The clock of this process differs from the clocks of all 2 bookies")
    assert not one.bookies
    (alone,) = of_clocks([told("a:1", HOUR_MS), bookie("b:1")])
    assert alone.bookies == ("a:1",), "one bookie proves nothing about the own clock"


def test_small_differences_and_bookies_that_are_gone_are_no_problem() -> None:
    small = told("a:1", CLOCK_DIFFERENCE_MAX_MS)
    assert not list(of_clocks([small, told("b:1", HOUR_MS, "gone")]))


def test_bookies_that_refuse_the_server_are_one_note_with_the_option() -> None:
    refusing = [{**bookie(name), "report_refused": True} for name in ("a:1", "b:1")]
    (one,) = of_refusals([*refusing, bookie("c:1")])
    assert (one.severity, one.bookies) == ("note", ("a:1", "b:1"))
    assert one.what.startswith("The HTTP servers of 2 bookies refuse this process")
    assert "--http-bookies-token-file FILE" in one.next
    (alone,) = of_refusals(refusing[:1])
    assert alone.what.startswith("The HTTP server of a:1 refuses this process")
    assert not list(of_refusals([bookie("c:1")]))
