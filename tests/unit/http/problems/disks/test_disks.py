"""The problems of disks."""

from __future__ import annotations

from typing import Any

import pytest

from quire.http.views.bookie_report import read_report
from quire.http.views.problems.cluster import problems
from tests.support.http.problems import GB, WELL, bookie, said


def test_nearly_full_disks_are_one_problem_from_80_percent() -> None:
    assert said([bookie("a", free=21)]) == []
    assert said([bookie("a", free=20)]) == [
        ("warn", "1 disk is nearly full: 80 % of the disk of a is used (20.0 GB of 100 GB free)")
    ]
    many = [bookie(f"b{n}", free=9 - n) for n in range(1, 9)]
    (found,) = problems([*many, bookie("z")], WELL)
    assert found.what == "8 disks are nearly full"
    assert found.items[0] == "99 % of the disk of b8 is used (1.0 GB of 100 GB free)"
    assert found.bookies == tuple(f"b{n}" for n in range(8, 0, -1)), "all of them, fullest first"
    # No directory is known, so the command is the same on each machine.
    assert found.next == (
        "See on each machine what takes the space. On the machine of b8, b7, b6, b5, b4, b3, b2, "
        "b1: quire bookie explain space DIR"
    )
    cookie = {**bookie("a", free=20), "directories": ["/data/1"]}
    (found,) = problems([cookie], WELL)
    assert "(/data/1: 20.0 GB of 100 GB free)" in found.what
    assert found.next == "Run this on the machine of a: quire bookie explain space /data/1"


def test_each_nearly_full_disk_has_its_command() -> None:
    """Only the command for the fullest disk was printed."""
    many = [{**bookie(f"b{n:02}", free=18 - n), "directories": [f"/d/{n}"]} for n in range(12)]
    (found,) = problems([*many, bookie("z")], WELL)
    assert (len(found.items), found.items[-1]) == (11, "and 2 more")
    first, *commands, last = found.next.split(". ")
    assert first == "See on each machine what takes the space"
    assert commands == [
        f"On the machine of b{n:02}: quire bookie explain space /d/{n}" for n in range(11, 1, -1)
    ]
    assert last == "For b01, b00, do the same"


def test_a_large_disk_counts_as_nearly_full_from_90_percent() -> None:
    """20 % of 1 TB is room for a long time."""
    large = {"free_bytes": 150 * GB, "total_bytes": 1000 * GB}
    assert said([{**bookie("a"), **large}]) == []
    assert "90 % of" in said([{**bookie("a"), **large, "free_bytes": 100 * GB}])[0][1]


def test_a_disk_shared_by_several_bookies_is_reported_once() -> None:
    """Three bookies of one machine were three nearly full disks."""

    def on(host: str, name: str, free: float, directory: str) -> dict[str, Any]:
        disk = {"directory": directory, "free_bytes": free * GB, "total_bytes": 100 * GB}
        return {**bookie(name, free=10), "host": host, "disks": [disk]}

    shared = [on("h1", "h1:1", 10.0, "/d/1"), on("h1", "h1:2", 10.05, "/d/2")]
    (found,) = problems(shared, WELL)
    assert found.what == (
        "1 disk is nearly full: 90 % of the disk of 2 bookies on h1 is used (/d/1, /d/2: 10.0 GB "
        "of 100 GB free)"
    )
    assert found.bookies == ("h1:1", "h1:2")
    (found,) = problems([*shared, on("h2", "h2:1", 10.0, "/d/1")], WELL)
    assert found.what == "2 disks are nearly full", "another machine has another disk"
    (found,) = problems([*shared, on("h1", "h1:3", 5.0, "/d/3")], WELL)
    assert found.what == "2 disks are nearly full", "another disk of the same size"


def test_a_nearly_full_directory_is_named_even_if_the_total_has_room() -> None:
    disks = [
        {"directory": path, "free_bytes": free * GB, "total_bytes": 50 * GB}
        for path, free in (("/data/1", 40), ("/a; reboot", 2))
    ]
    (found,) = problems([{**bookie("a", free=42), "disks": disks}], WELL)
    assert "96 % of the disk of a is used (/a; reboot: 2.0 GB of 50.0 GB free)" in found.what
    assert found.next.endswith(": quire bookie explain space '/a; reboot'"), (
        "the path is quoted for the shell"
    )


def test_an_unwritable_directory_of_a_writable_bookie_is_a_problem() -> None:
    told = [{"why": "full", "directory": "/data/2"}, {"why": "failed", "directory": "/data/3"}]
    full = {"directory": "/data/2", "free_bytes": GB, "total_bytes": 100 * GB}
    one = {**bookie("a"), "unwritable": told, "disks": [full]}
    first, second = problems([one], WELL)
    assert first.severity == "bad"
    assert first.what.startswith("The data directory /data/3 of a cannot be used")
    assert "quire bookie disk replace a /data/3 NEW" in first.next
    assert second.what == "A disk of a is full: /data/2: 1.0 GB of 100 GB free"


def test_suspended_compaction_is_one_problem_with_its_command() -> None:
    held = [
        {**bookie("a"), "compaction_suspended": ["minor", "major"], "http": ["http://a:1; reboot"]},
        {**bookie("b"), "compaction_suspended": ["major"]},
        {**bookie("c"), "compaction_suspended": []},
    ]
    (found,) = problems(held, WELL)
    assert found.severity == "note"
    assert found.what == "Major and minor compaction of a, b is suspended"
    assert "only if no ledger in the same segment is left" in found.risk
    assert "curl -X PUT 'http://a:1; reboot/api/v1/bookie/gc/resume_compaction'" in found.next
    assert "For b: curl -X PUT http://BOOKIE/api/v1/bookie/gc/resume_compaction" in found.next
    held[1] = {**bookie("b", free=1), "compaction_suspended": ["major"]}
    assert (
        "warn",
        "Major and minor compaction of a, b is suspended; the disk of b is nearly full",
    ) in said(held)


@pytest.mark.parametrize("kind", ["major", "minor"])
def test_suspending_one_kind_of_compaction_names_the_other(kind: str) -> None:
    (found,) = problems([{**bookie("a"), "compaction_suspended": [kind]}], WELL)
    assert found.what == f"{kind.capitalize()} compaction of a is suspended"
    assert "only if no ledger" not in found.risk


@pytest.mark.parametrize(
    "directories",
    [
        "null",
        '[{"path": "/d"}]',
        '[{"path": "/d", "segments": [{"state": "sealed"}]}]',
        '[{"state": "writable"}]',
    ],
)
def test_a_report_without_a_log_size_hides_no_other_problem(directories: str) -> None:
    """Any process that registers as a bookie may answer with such a report."""
    report = read_report(f'{{"directories": {directories}}}')
    full = {
        **bookie("a", "read-only"),
        "unwritable": [{"why": "full", "directory": "/d"}],
        "disks": [{"directory": "/d", "free_bytes": 1, "total_bytes": 100 * GB}],
        "min_free_bytes": GB,
        "report": report,
    }
    told = [one.what for one in problems([full, bookie("z")], WELL)]
    assert (
        "a is read-only because its disk is full: /d: 1 B of 100 GB free, less than "
        "min_free_bytes (1.0 GB)"
    ) in told
