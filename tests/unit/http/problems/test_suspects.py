"""Bookies that gave wrong answers to reads of the server that shows the dashboard."""

from __future__ import annotations

from quire.client.client import pool_of
from quire.client.cluster.health import Misbehaviour, UnhealthyBookie
from quire.http.views.cluster_view import ClusterView
from quire.http.views.problems.cluster import problems
from quire.http.watch.suspects import KEPT_S, Suspects
from quire_simulator.world.world import bookie_id
from tests.support.http.problems import WELL, bookie
from tests.support.streams import Bench, run

BAD = UnhealthyBookie("b:1", Misbehaviour.BAD_DIGEST, 7, 9, 4)
STALE = UnhealthyBookie("b:1", Misbehaviour.STALE_LAC, 1, 8, -1)
LATE = UnhealthyBookie("c:1", Misbehaviour.MISSING, 1, 3, 0)


def test_a_bookie_that_gave_wrong_answers_is_a_problem() -> None:
    """Only `explain ledger` of a ledger that somebody suspected told of it."""
    bookies = [bookie("a:1"), bookie("b:1"), bookie("c:1")]
    wrong, late = problems(bookies, WELL, suspects=[STALE, BAD, LATE])
    assert (wrong.severity, wrong.bookies) == ("bad", ("b:1",))
    assert wrong.what == (
        "b:1 gave wrong answers to reads of this server: the last one was about entry 4 of ledger 9"
    )
    assert "quire explain ledger 9 --deep. If" in wrong.next
    assert wrong.next.endswith("quire bookie recover b:1")
    assert wrong.items == (
        "1 time: an older end of an open ledger than before",
        "7 times: an entry whose bytes do not match its digest",
    )
    assert (late.severity, late.bookies) == ("note", ("c:1",))
    (stale,) = problems(bookies, WELL, suspects=[STALE])
    assert stale.what.endswith("the last one was about ledger 8")


def test_wrong_answers_are_reported_for_an_hour_after_the_last_one() -> None:
    now = 0.0
    suspects = Suspects(lambda: now)
    assert suspects.recent([BAD, LATE]) == [BAD, LATE]
    now = KEPT_S
    more = UnhealthyBookie("b:1", Misbehaviour.BAD_DIGEST, 8, 9, 5)
    assert suspects.recent([more, LATE]) == [more, LATE]
    now = KEPT_S + 1
    assert suspects.recent([more, LATE]) == [more]
    now = 2 * KEPT_S + 1
    assert suspects.recent([more, LATE]) == []


def test_the_overview_learns_of_wrong_answers_from_the_reads_of_its_own_client() -> None:
    async def nothing(url: str) -> str:
        return ""

    async def scene(b: Bench) -> None:
        view = ClusterView(b.client.clock.monotonic, nothing, wait_s=10.0)
        try:
            found = (await view.look(b.client)).problems
            assert not [one for one in found if "wrong answers" in one.what]
            name = bookie_id(next(iter(b.world.disks)))
            pool_of(b.client).health.misbehaved(name, Misbehaviour.BAD_DIGEST, 7, 3)
            state = await view.look(b.client)
            (wrong,) = [one for one in state.problems if "gave wrong answers" in one.what]
            assert wrong.bookies == (name,)
            (shown,) = [one for one in state.bookies if one["id"] == name]
            assert shown["severity"] == "bad"
        finally:
            await view.close()

    run(scene)
