"""The problems of read-only bookies."""

from __future__ import annotations

from typing import Any

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from tests.support.http.problems import GB, WELL, bookie, said


def readonly(*reasons: tuple[str, str], **more: Any) -> list[Problem]:
    """Return the problems of a bookie that is read-only for these reasons."""
    told = [{"why": why, "directory": directory} for why, directory in reasons]
    one = {**bookie("a", "read-only", free=1), "unwritable": told, **more}
    return problems([bookie("z"), one], WELL, now_ms=1_000_000)


def test_the_problem_of_a_read_only_bookie_states_the_reason() -> None:
    (found,) = readonly(("full", "/data/1"))
    assert found.what == "a is read-only because its disk is full: /data/1: 1.0 GB of 100 GB free"
    assert found.next == "Run this on the machine of a: quire bookie explain space /data/1"
    assert found.risk.endswith(
        "New entries go to the 1 writable bookie; a ledger with a larger ensemble cannot be created"
    )
    (found,) = readonly(("lost", "/data/1"), free_bytes=50 * GB)
    assert "a part of its data in /data/1 is lost" in found.what
    (found,) = readonly(("loading", ""), free_bytes=50 * GB)
    assert (found.severity, "still loading" in found.what) == ("note", True)
    held = {"http": ["http://10.0.0.1:8080"], "free_bytes": 50 * GB}
    (found,) = readonly(("held", ""), **held)
    assert "an operator holds it" in found.what
    assert found.next == (
        "curl -X PUT http://10.0.0.1:8080/api/v1/bookie/state/readonly "
        "-H 'Authorization: Bearer TOKEN' -H 'Content-Type: application/json' "
        """-d '{"readOnly": false}'"""
    )
    order = {"what": "drain", "since_ms": 400_000, "by": "admin-host"}
    (found,) = readonly(("ordered", ""), order=order, free_bytes=50 * GB)
    assert found.what == (
        "a is read-only because it is being drained or decommissioned (ordered from admin-host, "
        "10 min ago)"
    )
    assert "quire bookie decommission a --cancel" in found.next
    (found,) = readonly(("tired", ""), free_bytes=50 * GB)
    assert found.what == "a is read-only: tired"


def test_each_reason_for_read_only_is_a_problem() -> None:
    both = readonly(("held", ""), ("full", "/data/1"))
    assert sorted(one.what.split("because ")[1][:7] for one in both) == ["an oper", "its dis"]


def test_a_nearly_full_disk_is_reported_beside_another_read_only_reason() -> None:
    found = readonly(("held", ""))
    assert any("nearly full" in one.what for one in found)


def test_a_read_only_bookie_without_a_registered_reason_is_reported() -> None:
    ((severity, what),) = said([bookie("z"), bookie("a", "read-only", free=1)])
    assert (severity, what) == (
        "warn",
        "a is read-only, probably because its disk is full: 1.0 GB of 100 GB free",
    )
    ((_, what),) = said([bookie("z"), bookie("a", "read-only")])
    assert what == "a is read-only, and its registration does not say why"


def full(name: str, free: int, **more: Any) -> dict[str, Any]:
    reason = {"why": "full", "directory": "/data/1"}
    return {**bookie(name, "read-only", free=free), "unwritable": [reason], **more}


def test_several_full_disks_are_one_problem() -> None:
    (found,) = problems([bookie("z"), full("a", 1), full("b", 2)], WELL)
    assert found.what == "2 bookies are read-only because their disks are full"
    assert found.items == (
        "a: /data/1: 1.0 GB of 100 GB free", "b: /data/1: 2.0 GB of 100 GB free",
    )  # fmt: skip
    assert found.bookies == ("a", "b")
    assert found.next == (
        "See on each machine what takes the space. On the machine of a, b: quire bookie explain "
        "space /data/1"
    )
    other = {"unwritable": [{"why": "full", "directory": "/my disk"}]}
    (found,) = problems([bookie("z"), full("a", 1), full("b", 2, **other)], WELL)
    assert found.next == (
        "See on each machine what takes the space. On the machine of a: quire bookie explain space "
        "/data/1. On the machine of b: quire bookie explain space '/my disk'"
    )
    both = {"unwritable": [{"why": "full", "directory": path} for path in ("/data/1", "/data/2")]}
    (found,) = problems([bookie("z"), full("a", 1, **both)], WELL)
    assert found.next == "Run this on the machine of a: quire bookie explain space /data/1 /data/2"


def test_the_problem_of_a_full_disk_states_the_needed_space() -> None:
    (found,) = problems([bookie("z"), full("a", 1, min_free_bytes=2 * GB)], WELL)
    assert found.what.endswith("1.0 GB of 100 GB free, less than min_free_bytes (2.0 GB)")
    # It accepts entries again only when somewhat more is free.
    (found,) = problems([bookie("z"), full("a", 3, min_free_bytes=2 * GB)], WELL)
    assert found.what.endswith("3.0 GB of 100 GB free")


def report(file_bytes: int, prepared_bytes: int | None = None) -> dict[str, Any]:
    segments = [{"state": "sealed", "segments": 1, "file_bytes": file_bytes, "live_bytes": 0}]
    one = {"path": "/data/1", "segments": segments, "prepared_bytes": prepared_bytes}
    return {"directories": [one]}


def test_a_disk_filled_by_foreign_files_is_reported_as_such() -> None:
    """The finding said that the bookie frees space, although waiting could not help."""
    one = full("a", 1, min_free_bytes=3 * GB, report=report(1 * GB))
    (found,) = problems([bookie("z"), one], WELL)
    assert found.what.endswith(
        "min_free_bytes (3.0 GB); the files of this bookie take 1.0 GB, and other files 98.0 GB"
    )
    assert found.doing.startswith("Nothing that helps: even if the bookie deleted its whole log")
    assert found.next == (
        "Run this on the machine of a: quire bookie explain space /data/1. It also says how to "
        "find the files that are not the bookie's"
    )
    own = full("a", 1, min_free_bytes=3 * GB, report=report(60 * GB))
    (found,) = problems([bookie("z"), own], WELL)
    assert found.what.endswith("the files of this bookie take 60.0 GB, and other files 39.0 GB")
    assert found.doing.startswith("The bookie frees the space of deleted ledgers")
    assert found.next == "Run this on the machine of a: quire bookie explain space /data/1"
    (found,) = problems([bookie("z"), one, {**own, "id": "b"}], WELL)
    assert found.doing.startswith("Each bookie frees"), "one of them may make room"


def test_prepared_files_are_the_bookies_but_not_freed() -> None:
    one = full("a", 1, min_free_bytes=5 * GB, report=report(1 * GB, 4 * GB))
    (found,) = problems([bookie("z"), one], WELL)
    assert found.what.endswith("the files of this bookie take 5.0 GB, and other files 94.0 GB")
    assert found.doing.startswith("Nothing that helps"), "the prepared files stay"


def test_a_writable_bookies_disk_filled_by_foreign_files_is_reported() -> None:
    one = full("a", 1, min_free_bytes=3 * GB, report=report(1 * GB), state="writable")
    found, *_ = problems([bookie("z"), one], WELL)
    assert found.what.startswith("A disk of a is full: /data/1")
    assert found.what.endswith("; the files of this bookie take 1.0 GB, and other files 98.0 GB")
    assert found.doing.startswith("Nothing that helps")
