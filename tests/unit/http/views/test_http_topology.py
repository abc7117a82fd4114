"""The bookies by region and rack, and the warnings about racks that hold too much."""

from __future__ import annotations

from typing import Any

import pytest

from quire.http.views.topology import topology, warnings_of

GB = 10**9


def bookie(name: str, location: str | None, state: str = "writable", gb: int = 10) -> Any:
    space = {"free_bytes": gb * GB // 2, "total_bytes": gb * GB} if state != "gone" else {}
    return {"id": name, "location": location, "state": state, **space}


def rack(location: str | None, count: int, gb: int = 10, state: str = "writable") -> list[Any]:
    return [bookie(f"{location}-{number}", location, state, gb) for number in range(count)]


def said(bookies: list[Any]) -> list[str]:
    return [one.what for one in warnings_of(bookies)]


def test_regions_racks_and_bookies_are_sorted() -> None:
    found = topology([
        bookie("d", "/us/r1"), bookie("c", "/eu/r2"), bookie("b", "/eu/r1"),
        bookie("a", "/eu/r1", "gone"), bookie("e", None),
    ])  # fmt: skip
    assert [
        (region["name"], [(one["name"], [b["id"] for b in one["bookies"]]) for one in racks])
        for region in found["regions"]
        for racks in [region["racks"]]
    ] == [("eu", [("r1", ["b", "a"]), ("r2", ["c"])]), ("us", [("r1", ["d"])])]
    assert [one["id"] for one in found["unknown"]] == ["e"]
    first = found["regions"][0]["racks"][0]
    assert (first["free_bytes"], first["total_bytes"]) == (5 * GB, 10 * GB)
    assert [one["state"] for one in first["bookies"]] == ["writable", "gone"]


def test_a_rack_without_a_region_is_shown() -> None:
    (region,) = topology([bookie("a", "/r1")])["regions"]
    assert (region["name"], region["racks"][0]["name"]) == ("", "r1")


def test_a_good_cluster_has_no_warnings() -> None:
    assert said(rack("/a", 2) + rack("/b", 2) + rack("/c", 2)) == []
    assert said([]) == []
    assert said([bookie("alone", None)]) == []


def test_a_cluster_without_locations_gives_a_note() -> None:
    (one,) = warnings_of(rack(None, 3))
    assert one.severity == "note"
    assert "No bookie has a location" in one.what
    assert one.next == "quire cluster locations set None-0 /RACK"


def test_some_bookies_without_a_location_give_a_warning() -> None:
    (one,) = warnings_of(rack("/a", 2) + rack("/b", 2) + rack("/c", 2) + [bookie("x y", None)])
    assert one.what.startswith("1 of 7 bookies has no location: x y. ")
    assert one.next.startswith("quire cluster locations set 'x y' /RACK. To let autorecovery move")


def test_each_bookie_without_a_location_has_its_command() -> None:
    """Only the command for the first one was printed."""
    unknown = [bookie(f"x{n:02}", None) for n in range(12)]
    (one,) = warnings_of(rack("/a", 2) + rack("/b", 2) + rack("/c", 2) + unknown)
    first, *commands, rest, _ = one.next.split(". ")
    assert first == "Say where each of them is"
    assert commands == [
        f"For x{n:02}: quire cluster locations set x{n:02} /RACK" for n in range(10)
    ]
    assert rest == "For x10, x11, do the same"
    assert "x00, x01, x02, x03, x04, x05, x06, x07, x08, x09 and 2 more. " in one.what


def test_at_most_ten_commands_correct_locations_of_unusual_depth() -> None:
    usual = rack("/a", 5) + rack("/b", 5) + rack("/c", 5)
    one, *_ = warnings_of([*usual, *(bookie(f"x{n:02}", f"/eu/{'abc'[n % 3]}") for n in range(12))])
    assert one.next.count("quire cluster locations set") == 10
    assert "For x10, x11, do the same. To move copies to them afterwards" in one.next


def test_a_location_of_unusual_depth_gives_a_warning() -> None:
    usual = rack("/eu/a", 2) + rack("/eu/b", 2) + rack("/eu/c", 2)
    (one,) = warnings_of([*usual, bookie("odd", "/d")])
    assert one.what == (
        "1 bookie has a location of another depth than most bookies: odd (/d). Clients do not "
        "choose such a bookie"
    )
    assert one.next == (
        "quire cluster locations set odd /REGION/RACK (the other bookies are in /eu/a, /eu/b, "
        "/eu/c). To move copies to it afterwards: quire cluster rebalance"
    )
    assert one.risk.startswith("This bookie gets no new copies: its disk stays emptier")


def test_the_command_names_the_rack_that_a_wrong_location_ends_with() -> None:
    usual = rack("/rack-a", 2) + rack("/rack-b", 1)
    one, *_ = warnings_of([*usual, bookie("b3", "/hall-2/rack-b")])
    assert one.next == (
        "If b3 is in /rack-b: quire cluster locations set b3 /rack-b. To move copies to it "
        "afterwards: quire cluster rebalance"
    )
    both = [bookie("b3", "/hall-2/rack-b"), bookie("b4", "/hall-2/rack-a")]
    one, *_ = warnings_of([*usual, *rack("/rack-c", 1), *both])
    assert (
        "For b4, if it is in /rack-a: quire cluster locations set b4 /rack-a. To move" in one.next
    )
    assert one.risk.startswith("These bookies get no new copies: their disks stay emptier")


def test_of_two_equally_frequent_depths_the_smaller_is_right_as_for_a_client() -> None:
    """The finding once named the bookies that clients do choose."""
    deep = [bookie("a", "/eu/a"), bookie("b", "/eu/b")]
    one, *_ = warnings_of([*deep, *rack("/c", 1), *rack("/d", 1)])
    assert one.bookies == ("a", "b")


def test_a_single_rack_gives_a_warning() -> None:
    lost = {**bookie("/b-0", "/b", "gone"), "severity": "bad"}
    gone, one = warnings_of([*rack("/a", 5), lost])
    assert gone.severity == "bad"
    assert gone.what == (
        "1 bookie is gone: /b-0 (/b). The overview says whether copies are missing"
    )
    assert gone.next == "quire explain"
    assert one.severity == "warn"
    assert one.what.startswith("All 5 writable bookies with a location are in /a, because /b-0 of")
    (one,) = warnings_of(rack("/a", 5))
    assert "quire cluster locations set /a-0 /RACK" in one.next


@pytest.mark.parametrize("severity", ["bad", "note"])
def test_a_lost_bookie_has_the_severity_of_its_problem(severity: str) -> None:
    """It was a warning here while the overview called it a note."""
    lost = [{**bookie(name, None, "gone"), "severity": severity} for name in "ab"]
    lost[0]["severity"] = "note"
    (one,) = (one for one in warnings_of([*rack("/a", 1), *lost]) if "gone" in one.what)
    assert one.severity == severity
    (shown, *_) = topology(lost)["unknown"]
    assert shown["severity"] == "note"


def test_a_rack_is_as_full_as_its_fullest_bookie() -> None:
    full = {**bookie("a", "/r"), "fullness": "warn"}
    found = topology([full, {**bookie("b", "/r"), "fullness": ""}, bookie("c", "/s")])
    assert [one["fullness"] for one in found["regions"][0]["racks"]] == ["warn", ""]


def test_a_rack_whose_loss_leaves_too_few_bookies_gives_a_warning() -> None:
    found = said(rack("/a", 4) + rack("/b", 1) + rack("/c", 1))
    assert found[0] == (
        "/a has 4 of 6 writable bookies. If it is lost, 2 are left, and new ledgers need 3 by "
        "default"
    )
    # Without /b or /c, 5 bookies are left: nothing is said about them.
    assert not any(one.startswith(("/b", "/c")) for one in found)


def test_three_copies_in_two_racks_give_a_warning() -> None:
    found = said(rack("/a", 3) + rack("/b", 3))
    assert len(found) == 1
    assert "2 of 3 copies of an entry share a rack" in found[0]


@pytest.mark.parametrize(
    ("gb", "unusable"),
    [(20, ""), (40, ""), (60, "33 %")],
)
def test_space_that_the_placement_cannot_use_gives_a_warning(gb: int, unusable: str) -> None:
    """If 2 of 3 copies are in one rack, the other racks need half of its space."""
    found = said(rack("/a", 3, gb=gb) + rack("/b", 3) + rack("/c", 3))
    wanted = [f"{unusable} of its space cannot be used"] if unusable else []
    assert [one.rpartition(", so ")[2] for one in found] == wanted
