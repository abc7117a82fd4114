"""No page shows a bookie or a disk worse than the problem that reports it."""

from __future__ import annotations

from typing import Any

import pytest

from quire.http.views.bookie_list import bookie_fullness, disk_fullness
from quire.http.views.bookie_page import with_fullness
from quire.http.views.cluster_view import ClusterState
from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem, severities
from tests.support.http.problems import GB, WELL, bookie


def test_a_bookie_has_the_severity_of_its_worst_problem() -> None:
    found = [
        Problem("note", "…", "", bookies=("a", "b")),
        Problem("bad", "…", "", bookies=("b",)),
        Problem("warn", "…", "", bookies=("b", "c")),
    ]
    assert severities(found) == {"a": "note", "b": "bad", "c": "warn"}


@pytest.mark.parametrize(
    ("severity", "answers", "away"),
    [("note", None, "note"), ("bad", None, "bad"), ("", None, ""), ("warn", True, "warn")],
)
def test_the_overview_has_the_worst_severity_of_absent_bookies(
    severity: str, answers: bool | None, away: str
) -> None:
    well: dict[str, Any] = {"state": "writable", "answers": True, "severity": "bad"}
    gone = {"state": "gone", "answers": answers, "severity": severity}
    found = [well, gone]
    assert ClusterState("m", "i", found, {}, None, [], None).away_severity() == away
    silent = {"state": "writable", "answers": False, "severity": "bad"}
    found.append(silent)
    assert ClusterState("m", "i", found, {}, None, [], None).away_severity() == "bad"


FULL = [{"why": "full", "directory": "/d"}]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"free_bytes": 21 * GB}, ""),
        ({"free_bytes": 20 * GB}, "warn"),
        ({"free_bytes": 19 * GB, "total_bytes": 96 * GB}, "warn"),
        ({"free_bytes": 200 * GB, "total_bytes": 1_000 * GB}, ""),
        ({"free_bytes": 0}, "warn"),
        ({"free_bytes": 21 * GB, "state": "read-only", "unwritable": FULL}, "warn"),
    ],
)
def test_a_disk_is_shown_full_exactly_if_it_is_a_problem(
    changes: dict[str, Any], wanted: str
) -> None:
    """Five disks were amber below "No problems were found"."""
    one = {**bookie("a"), **changes}
    assert bookie_fullness({"unwritable": (), **one}) == wanted
    assert severities(problems([one, bookie("b")], WELL)).get("a", "") == wanted


def test_each_disk_and_directory_has_its_own_fullness() -> None:
    assert disk_fullness(10 * GB, 100 * GB) == "warn"
    assert disk_fullness(None, None) == ""
    assert with_fullness(None) is None
    directories: list[dict[str, Any]] = [
        {"path": "/1", "free_bytes": 10 * GB, "total_bytes": 100 * GB},
        {"path": "/2", "free_bytes": None, "total_bytes": None},
    ]
    found = with_fullness({"id": "a", "directories": directories})
    assert found is not None
    assert [one["fullness"] for one in found["directories"]] == ["warn", ""]
    assert "fullness" not in directories[0], "the report is shared"
