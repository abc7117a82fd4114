"""The problem that new ledgers cannot be created."""

from __future__ import annotations

from typing import Any

from quire.http.views.creatable import Creatable
from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from quire.http.watch.stream_limits import FullNamespace
from tests.support.http.problems import WELL, bookie


def test_too_few_bookies_for_the_default_ensemble_are_a_problem() -> None:
    bookies = [bookie("a"), bookie("b"), bookie("c", "read-only")]
    why = "3 bookies are wanted; 2 are writable: a, b"

    def shaped(creatable: Creatable, there: list[dict[str, Any]] = bookies[:2]) -> list[Problem]:
        return problems(there, WELL, creatable=creatable)

    assert shaped(Creatable(True)) == []
    (found,) = shaped(Creatable(False, why, (2, 2, 2)))
    assert found.severity == "bad"
    assert found.what == (
        "No ledger with the default ensemble can be created (ensemble 3, write quorum 3, ack "
        f"quorum 2): {why}"
    )
    assert "quire ledger write --ensemble 2 --write-quorum 2 --ack-quorum 2. " in found.next
    (found,) = shaped(Creatable(False, why))
    assert "quire ledger write" not in found.next
    nobody = shaped(Creatable(False, why), [bookie("c", "gone")])
    assert not any("default ensemble" in one.what for one in nobody), "nothing can be written"


def test_a_smaller_shape_is_offered_for_ledgers_and_streams() -> None:
    (found,) = problems([bookie("a")], WELL, creatable=Creatable(False, "few", (2, 2, 2)))
    assert "quire stream set NAME ensemble_size=2 write_quorum=2 ack_quorum=2" in found.next


def test_enough_bookies_in_the_wrong_racks_are_a_problem() -> None:
    """Starting another bookie, or a ledger with one copy, would not help or would be dangerous."""
    shape = Creatable(False, "2 racks are wanted", places=True, movable="a:1; reboot")
    (found,) = problems([bookie("a")], WELL, creatable=shape)
    assert "quire cluster locations set 'a:1; reboot' /RACK" in found.next
    assert "make room" not in found.next
    assert "--write-quorum" not in found.next


def test_a_silent_bookie_does_not_prevent_the_creation_of_ledgers() -> None:
    (found,) = problems([bookie("a")], WELL, creatable=Creatable(True, silent=("c",), answering=2))
    assert (found.severity, found.bookies) == ("warn", ("c",))
    assert found.what == (
        "New ledgers of programs that connect now lack a copy until c answers: 3 bookies are "
        "wanted, and only 2 are writable and answer"
    )
    assert found.risk == (
        "Each entry of such a ledger has 2 copies instead of 3. A ledger with a larger ensemble or "
        "write quorum, which needs it as well, cannot be created, or fails at its first entries. "
        "A program whose connections are open and still work writes all copies"
    ), "a writer with open connections wrote three copies, and a new one with four failed"
    (found,) = problems(
        [bookie("a")], WELL, creatable=Creatable(True, silent=("b", "c"), answering=1)
    )
    assert found.severity == "bad"
    assert found.what == (
        "New ledgers with the default ensemble can be created but not written: 1 of 3 bookies "
        "answers, and each entry needs 2. b, c do not answer"
    )


def test_a_lack_of_bookies_refers_to_the_lost_ones() -> None:
    """One lost bookie gave two findings, and the second did not name it."""
    few = Creatable(False, "3 bookies are wanted; 2 are writable: a, b", (2, 2, 2))
    there = [bookie("a"), bookie("b")]
    _, found = problems([*there, bookie("c", "gone")], WELL, creatable=few)
    assert found.next.startswith(
        "This follows from c, which is gone: bring it back, as the finding about it "
        "says. Otherwise: start another bookie"
    )
    _, found = problems([there[0], bookie("c", "gone")], WELL, creatable=few)
    assert found.next.startswith("Start another bookie"), "c alone would not be enough"


def test_a_bookie_that_loads_its_log_is_waited_for() -> None:
    """A stranger was once told to make room on a bookie whose disk had enough."""
    loading = {**bookie("c", "read-only"), "unwritable": [{"why": "loading", "directory": ""}]}
    there = [bookie("a"), bookie("b"), loading]
    wait = "This ends by itself once c has loaded its log: wait for it. "
    shape, *_ = problems(there, WELL, creatable=Creatable(False, "few"))
    assert shape.next == (f"{wait}Otherwise: start another bookie")
    told = {**loading, "report": {"state": "loading", "loading_percent": 42}}
    _, one = problems([*there[:2], told], WELL, creatable=Creatable(False, "few"))
    assert one.what == "c is read-only because it is still loading its log: 42 % of it is loaded"
    (_, one) = problems([*there[:2], loading], WELL, creatable=Creatable(False, "few"))
    assert one.what.endswith("still loading its log")
    full = [bookie("a"), bookie("b"), bookie("c", "read-only")]
    shape = next(
        one
        for one in problems(full, WELL, creatable=Creatable(False, "few"))
        if "default" in one.what
    )
    assert shape.next == "Start another bookie, or make room on one that is read-only"


def test_failed_repairs_wait_for_a_bookie_that_loads_its_log() -> None:
    loading = {**bookie("c", "read-only"), "unwritable": [{"why": "loading", "directory": ""}]}
    failure = {"reason": "few", "attempts": 2, "next_attempt_ms": None}
    failed = {"failing": 1, "failures": [{"ledger": 7, "failure": failure, "replicas": ["c"]}]}
    found = problems([bookie("a"), loading], {**WELL, **failed})
    (one,) = [one for one in found if "could not be repaired" in one.what]
    assert one.next == (
        "This ends by itself once c has loaded its log: wait for it. To see one of the ledgers: "
        "quire explain ledger 7"
    )


def test_a_namespace_that_may_have_no_more_streams_is_a_problem() -> None:
    """Neither the overview nor `quire explain` said why programs could not create streams."""
    full = [FullNamespace("/acme/it's", 2, 2)]
    (one,) = problems([bookie("a")], WELL, full=full)
    assert (one.severity, one.what) == (
        "warn",
        "No further stream can be created in /acme/it's: it has 2 streams, and its limit "
        "streams_max is 2",
    )
    assert one.next.startswith(
        "To raise the limit: quire namespace set '/acme/it'\"'\"'s' streams_max=4. A limit of a "
    )
    assert one.items == ()
    (both,) = problems([bookie("a")], WELL, full=[*full, FullNamespace("/b", 1_200, 1_000)])
    assert both.what.startswith("No further stream can be created in 2 namespaces")
    assert both.items == ("/acme/it's has 2 of 2 streams", "/b has 1,200 of 1,000 streams")
