"""What the dashboard says is wrong with a cluster."""

from __future__ import annotations

from typing import Any

from quire.http.problems import problems

GB = 10**9
WELL: dict[str, Any] = {
    "enabled": True, "auditor": "a", "marked": 0, "failing": 0, "failures": [],
}  # fmt: skip


def bookie(
    name: str, state: str = "writable", rack: str | None = None, free: int | None = 50
) -> dict[str, Any]:
    space = None if free is None or state == "gone" else free * GB
    total = None if space is None else 100 * GB
    return {
        "id": name, "state": state, "location": rack, "free_bytes": space, "total_bytes": total,
    }  # fmt: skip


def said(bookies: list[dict[str, Any]], **recovery: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.what) for one in problems(bookies, {**WELL, **recovery})]


def test_nothing_is_wrong() -> None:
    assert said([bookie("a"), bookie("b")]) == []


def test_lost_bookies() -> None:
    lost = [bookie("a"), bookie("b", "gone")]
    assert said(lost) == [("bad", "b is not registered: stopped, or cut off from the metadata")]
    (one,) = problems(lost, WELL)
    assert "quire bookie recover b" in one.next
    many = [bookie("z"), *(bookie(f"b{n}", "gone") for n in range(9))]
    ((_, what),) = said(many)
    assert what.startswith("b0, b1, b2, b3, b4 and 4 more are not registered")


def test_a_lost_rack_is_one_thing() -> None:
    bookies = [bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", "gone", "/r2")]
    assert said(bookies) == [("bad", "All of /r2 is gone: b, c")]
    half = [bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", rack="/r2")]
    ((_, what),) = said(half)
    assert what.startswith("b is not registered")


def test_nobody_takes_entries() -> None:
    first = said([bookie("a", "gone")])[0]
    assert first == ("bad", "No bookie takes entries: nothing can be written")


def test_disks() -> None:
    assert said([bookie("a", free=4)]) == [
        ("warn", "The disk of a is nearly full; 4% of its disk is free")
    ]
    ((severity, what),) = said([bookie("z"), bookie("a", "read-only", free=1)])
    assert (severity, what) == (
        "warn",
        "a is read-only (its disk is full); 1% of its disk is free",
    )
    ((_, what),) = said([bookie("z"), bookie("a", "read-only")])
    assert "an operator's wish" in what


def test_one_that_does_not_answer() -> None:
    assert said([bookie("z"), bookie("a", free=None)]) == [
        ("bad", "a is registered, and does not answer")
    ]


def test_autorecovery() -> None:
    well = [bookie("a")]
    assert said(well, enabled=False) == [("warn", "Autorecovery is switched off")]
    assert said(well, auditor=None)[0][0] == "note"
    assert [one[0] for one in said(well, auditor=None, marked=3)] == ["warn", "warn"]
    failure = {"ledger": 7, "failure": {"reason": "no bookie has room"}}
    (one,) = problems(well, {**WELL, "marked": 1, "failing": 1, "failures": [failure]})
    assert one.severity == "bad"
    assert "7: no bookie has room" in one.what
    assert one.next == "quire explain ledger 7"


def test_the_worst_comes_first() -> None:
    bookies = [bookie("a", free=1), bookie("b", "gone")]
    assert [one[0] for one in said(bookies, auditor=None)] == ["bad", "warn", "note"]
