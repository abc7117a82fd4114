"""The problems of copies in too few racks."""

from __future__ import annotations

from quire.http.views.problems.cluster import problems
from tests.support.http.problems import WELL, bookie, said


def test_a_cluster_without_locations_has_no_placement_problem() -> None:
    assert said([bookie(name) for name in "abc"]) == []


def test_a_single_rack_is_a_problem() -> None:
    bookies = [bookie(f"10.0.0.{n}:3181", rack="/r1") for n in range(1, 4)]
    (found,) = problems(bookies, WELL)
    assert found.severity == "warn"
    assert found.what == (
        "All 3 writable bookies with a location are in /r1: every copy of a ledger can be lost "
        "with that rack"
    )
    assert "quire cluster locations set 10.0.0.1:3181 /RACK" in found.next
    assert found.risk.startswith("By default, writers go on, and put every copy into this rack.")
    assert found.next.endswith("export QUIRE_PLACEMENT=rack-aware,enforce_racks,locations=metadata")
    assert found.bookies == ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")
    assert (
        "Copies that exist are not moved, unless autorecovery runs with repair_pla" in found.doing
    )
    assert "quire autorecovery start --set placement_check_interval_s=1d --set rep" in found.next


def test_a_single_remaining_rack_refers_to_the_lost_bookies() -> None:
    """The finding asked for another location, or another rack, although there was one."""
    bookies = [bookie("a", rack="/r1"), bookie("b", rack="/r1"), bookie("c", "gone", rack="/r2")]
    lost, found = problems(bookies, WELL)
    assert lost.what.startswith("c is gone")
    assert found.what == (
        "All 2 writable bookies with a location are in /r1, because c of other racks is gone or "
        "read-only: every copy of a ledger that is written now can be lost with that rack"
    )
    assert found.next.startswith("Make it writable again, as the finding about it says. To let")
    assert "locations set" not in found.next
    assert found.doing.startswith("Writers use the other racks again as soon as")


def test_bookies_without_a_location_are_a_problem() -> None:
    bookies = [bookie("a", rack="/r1"), bookie("b", rack="/r2"), bookie("c")]
    (found,) = problems(bookies, WELL)
    assert found.what.startswith("1 of 3 bookies has no location: c.")
    assert found.next.startswith("quire cluster locations set c /RACK. To let autorecovery move")
    assert found.bookies == ("c",)
    assert "are not moved" in found.doing


def test_a_location_of_another_depth_is_a_problem() -> None:
    bookies = [bookie("a", rack="/eu/r1"), bookie("b", rack="/eu/r2"), bookie("c", rack="/r3")]
    (found,) = problems(bookies, WELL)
    assert "1 bookie has a location of another depth than most bookies: c (/r3)" in found.what
    assert found.what.endswith("Clients do not choose such a bookie")
    assert found.next.endswith("quire cluster rebalance")
    assert "repair_placement" not in found.next
    assert "are not moved" in found.doing


def test_three_bookies_in_three_racks_are_no_problem() -> None:
    """The loss of a rack would leave two bookies, but that is so in every small cluster."""
    assert said([bookie(name, rack=f"/{name}") for name in "abc"]) == []


def test_misplaced_ledgers_are_a_problem() -> None:
    check = {"at_ms": 1, "ledgers": 11, "misplaced": 2, "first": [3, 7]}
    (found,) = problems([bookie("a")], {**WELL, "placement": check})
    assert found.severity == "warn"
    assert found.what == (
        "2 of 11 ledgers violate the placement policy: the copies of an entry are in too few "
        "racks (such as ledger 3, 7)"
    )
    assert "quire cluster locations list" in found.next
    assert said([bookie("a")], placement={**check, "misplaced": 0}) == []


def test_an_old_placement_check_is_reported_with_its_date() -> None:
    """Its findings were once reported forever as the current state."""
    check = {"at_ms": 1_900_000_000_000, "ledgers": 11, "misplaced": 2, "first": [3, 7]}
    recovery = {**WELL, "placement": check}
    (found,) = problems([bookie("a")], recovery, now_ms=1_900_000_000_000 + 5 * 86_400_000)
    assert "last check of placement, 5 d ago, at 2030-03-17T17:46:40Z. It stays" in found.doing
    assert "there is none without placement_check_interval_s" in found.doing
