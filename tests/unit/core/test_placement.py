"""Placement policies: the answers of Apache's classes, and further promises of ours."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from quire.config import PlacementConfig
from quire.core.append.quorum import write_set
from quire.core.placement import (
    POLICIES,
    Level,
    Place,
    Policy,
    Standing,
    View,
    Wanted,
    parse_location,
    policies,
    read_order,
    region_of,
    weighed,
)
from quire.core.placement.choice import mix
from quire.core.placement.descriptions import situation
from quire.core.placement.tables import (
    parse_groups,
    parse_lines,
    parse_toml,
    read_groups,
    with_location,
)
from quire.errors import UsageError
from tests.support.metadata.golden import GOLDEN

SEEDS = 60
JAVA_LEVELS = {"MEETS_STRICT": Level.STRICT, "MEETS_SOFT": Level.SOFT, "FAIL": Level.FAIL}


def vectors(group: str) -> list[Any]:
    found = [vector for vector in GOLDEN["vectors"] if vector["group"] == group]
    assert len(found) == GOLDEN["groups"][group]
    return [pytest.param(vector, id=vector["name"]) for vector in found]


def policy(**settings: Any) -> Policy:
    config = PlacementConfig(**settings)
    return POLICIES[config.policy](config)


def view(racks: Mapping[str, str], chosen_by: Policy, **more: Any) -> View:
    """Return a view of bookies named after their racks, such as {'/a': 'a1 a2'}.

    Each has its own host, except for names like 'b1@h', which is on host h.
    """
    places = {}
    for rack, names in racks.items():
        for name in names.split():
            bookie, _, host = name.partition("@")
            places[bookie] = Place(bookie, host or f"host-{bookie}", rack)
    default = chosen_by.default_location
    located = any(place.location != default for place in places.values())
    return View(places, located=located, default_location=default, **more)


def ensembles(chosen_by: Policy, known: View, wanted: Wanted) -> list[list[Place]]:
    """Return the chosen ensembles over many seeds."""
    found = []
    for seed in range(SEEDS):
        chosen = chosen_by.fill(wanted, known, random.Random(seed))
        members = [chosen.get(i) or b for i, b in enumerate(wanted.members)]
        assert None not in members
        assert len({*members}) == len(members)
        found.append([known.find(bookie) for bookie in members if bookie is not None])
    return found


def racks_of(window: Sequence[Place]) -> set[str]:
    return {place.location for place in window}


def windows_of(members: Sequence[Place], quorum: int) -> list[list[Place]]:
    size = len(members)
    return [[members[index] for index in write_set(entry, size, quorum)] for entry in range(size)]


# -- Apache's answers -------------------------------------------------------------------------


@pytest.mark.parametrize("vector", vectors("rackaware_adherence"))
def test_rack_adherence_equals_that_of_apache(vector: dict[str, Any]) -> None:
    given = vector["inputs"]
    chosen_by = policy(
        min_racks=given["minNumRacksPerWriteQuorum"],
        enforce_racks=given["enforceMinNumRacksPerWriteQuorum"],
    )
    racks = given["ensembleRacks"]
    members = [Place(f"b{at}", f"h{at}", rack) for at, rack in enumerate(racks)]
    quorum = given["writeQuorumSize"]
    found = chosen_by.adherence(members, quorum, quorum, View({}, located=True))
    assert found.level is JAVA_LEVELS[vector["adherence"]]
    assert bool(found.reason) is (found.level is Level.FAIL)


@pytest.mark.parametrize("vector", vectors("read_reorder"))
def test_the_read_order_equals_that_of_apache(vector: dict[str, Any]) -> None:
    given = {
        name: json.loads(text) for name, text in vector["inputs"].items() if text.startswith("[")
    }

    def standing(bookie: str) -> Standing:
        number = int(bookie)
        if number + 1 in given["slow"]:
            return Standing.SLOW
        if number + 1 in given["readonly"]:
            return Standing.READONLY
        if number + 1 not in given["writable"]:
            return Standing.UNAVAILABLE
        return Standing.FAILED if given["lastFailedEntry"][number] >= 0 else Standing.GOOD

    for entry, expected in vector["result"].items():
        members = [str(index) for index in write_set(int(entry), 5, 5)]
        assert [int(bookie) for bookie in read_order(members, standing)] == expected


# -- racks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("enforced", [False, True])
@pytest.mark.parametrize(("size", "quorum", "racks"), [(3, 3, 2), (3, 2, 2), (5, 3, 2), (6, 3, 3)])
def test_every_write_quorum_spans_its_racks(
    size: int, quorum: int, racks: int, enforced: bool
) -> None:
    chosen_by = policy(min_racks=racks, enforce_racks=enforced)
    known = view({"/a": "a1 a2 a3 a4", "/b": "b1 b2 b3", "/c": "c1 c2"}, chosen_by)
    # Windows go around: 3 racks for quorums of 3 want an ensemble that is a multiple of 3.
    for members in ensembles(chosen_by, known, Wanted.new(size, quorum)):
        assert all(len(racks_of(window)) >= racks for window in windows_of(members, quorum))
        assert chosen_by.adherence(members, quorum, quorum, known).level is Level.STRICT


@pytest.mark.parametrize("name", ["rack-aware", "region-aware", "zone-aware"])
def test_placement_ranks_locations_instead_of_single_bookies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranking each bookie for each position once dominated the cost in a large cluster."""
    chosen_by = policy(policy=name)
    racks = {f"/z{n % 3}/r{n}": " ".join(f"b{n}-{k}" for k in range(20)) for n in range(10)}
    known = view(racks, chosen_by)
    wanted = Wanted.new(3, 3, 2)
    asked: list[str] = []
    kind: Any = type(chosen_by)
    rank = kind.rank

    def counted(self: Any, index: int, place: Place, *rest: Any) -> Any:
        asked.append(place.bookie_id)
        return rank(self, index, place, *rest)

    slow = policy(policy=name)
    monkeypatch.setattr(policies, "_BY_LOCATION", ())
    one_by_one = [slow.fill(wanted, known, random.Random(seed)) for seed in range(SEEDS)]
    monkeypatch.setattr(kind, "rank", counted)
    monkeypatch.setattr(policies, "_BY_LOCATION", (counted,))
    assert [chosen_by.fill(wanted, known, random.Random(seed)) for seed in range(SEEDS)] == (
        one_by_one
    )
    assert 0 < len(asked) <= 3 * len(racks) * SEEDS


def test_placement_finds_an_ensemble_that_a_greedy_choice_misses() -> None:
    """In two racks with quorums of two, bookies must alternate all around."""
    chosen_by = policy(enforce_racks=True)
    known = view({"/a": "a1 a2 a3 a4 a5 a6 a7", "/b": "b1 b2"}, chosen_by)
    for members in ensembles(chosen_by, known, Wanted.new(4, 2)):
        assert [place.location for place in members] in (["/a", "/b"] * 2, ["/b", "/a"] * 2)
    assert chosen_by.fill(Wanted.new(5, 2), known, random.Random(1)) == {}


def test_placement_uses_a_recently_failed_bookie_if_no_other_ensemble_exists() -> None:
    chosen_by = policy(enforce_racks=True)
    known = view({"/a": "a1", "/c": "c1", "/d": "d1 d2"}, chosen_by, failed_s={"d2": 1.0})
    for members in ensembles(chosen_by, known, Wanted.new(4, 2)):
        assert {place.bookie_id for place in members} == {"a1", "c1", "d1", "d2"}


def test_without_enforcement_an_ensemble_spans_all_available_racks() -> None:
    chosen_by = policy(min_racks=3)
    known = view({"/a": "a1 a2 a3", "/b": "b1"}, chosen_by)
    for members in ensembles(chosen_by, known, Wanted.new(3, 3)):
        assert racks_of(members) == {"/a", "/b"}
        assert chosen_by.adherence(members, 3, 2, known).level is Level.FAIL


def test_bookies_of_unknown_racks_are_not_chosen_if_racks_are_enforced() -> None:
    chosen_by = policy(enforce_racks=True)
    known = view({"/a": "a1", "/b": "b1", "/default-rack": "x1 x2 x3"}, chosen_by)
    assert chosen_by.fill(Wanted.new(3, 3), known, random.Random(1)) == {}
    for members in ensembles(chosen_by, known, Wanted.new(2, 2)):
        assert racks_of(members) == {"/a", "/b"}
    nothing = view({"/default-rack": "x1 x2 x3"}, chosen_by)
    assert chosen_by.fill(Wanted.new(2, 2), nothing, random.Random(1)) == {}


def test_the_first_member_is_from_the_clients_own_rack() -> None:
    chosen_by = policy()
    known = view({"/a": "a1 a2", "/b": "b1 b2", "/c": "c1 c2"}, chosen_by, own_location="/b")
    found = ensembles(chosen_by, known, Wanted.new(3, 3))
    assert all(members[0].location == "/b" for members in found)
    assert all(len(racks_of(members)) == 3 for members in found)


def test_a_replacement_comes_from_the_same_rack_if_possible() -> None:
    chosen_by = policy()
    known = view({"/a": "a1 a2", "/b": "b1 b2", "/c": "c1"}, chosen_by)
    wanted = Wanted.replacing(("a1", "b1"), {0: "a1"}, 2, 2)
    assert {m[0].bookie_id for m in ensembles(chosen_by, known, wanted)} == {"a2"}
    known = view({"/a": "a1", "/b": "b1 b2", "/c": "c1"}, chosen_by)
    assert {m[0].bookie_id for m in ensembles(chosen_by, known, wanted)} == {"c1"}


def test_a_replacement_restores_the_missing_rack() -> None:
    chosen_by = policy()
    known = view({"/a": "a1 a2 a3", "/b": "b1"}, chosen_by)
    wanted = Wanted.replacing(("a1", "a2"), {0: "a1"}, 2, 2)
    assert {m[0].bookie_id for m in ensembles(chosen_by, known, wanted)} == {"b1"}


def test_enforced_racks_allow_a_replacement_that_does_not_reduce_adherence() -> None:
    """The ledger is older than the enforcement, and its writer continues nevertheless."""
    chosen_by = policy(enforce_racks=True)
    known = view({"/a": "a1 a2 a3"}, chosen_by)
    wanted = Wanted.replacing(("a1", "a2"), {0: "a1"}, 2, 2)
    assert {m[0].bookie_id for m in ensembles(chosen_by, known, wanted)} == {"a3"}
    known = view({"/a": "a1 a2 a3", "/b": "b1"}, chosen_by)
    wanted = Wanted.replacing(("a1", "b1"), {1: "b1"}, 2, 2)
    assert chosen_by.fill(wanted, known, random.Random(1)) == {}


def test_members_that_can_be_replaced_are_replaced_even_if_others_cannot() -> None:
    """One of two failed members has a possible replacement, and the other one has none."""
    chosen_by = policy(min_racks=3, enforce_racks=True)
    known = view({"/a": "a1", "/b": "b1 b2", "/c": "c1"}, chosen_by)
    wanted = Wanted.replacing(("a1", "b1", "c1"), {0: "a1", 1: "b1"}, 3, 2)
    assert chosen_by.fill(wanted, known, random.Random(1)) == {1: "b2"}
    wanted = Wanted.replacing(("b1", "a1", "c1"), {0: "b1", 1: "a1"}, 3, 2)
    assert chosen_by.fill(wanted, known, random.Random(1)) == {0: "b2"}


def test_recently_failed_bookies_are_chosen_only_if_needed() -> None:
    chosen_by = policy()
    known = view({"/a": "a1 a2", "/b": "b1"}, chosen_by, failed_s={"b1": 3.0})
    for members in ensembles(chosen_by, known, Wanted.new(2, 2)):
        assert racks_of(members) == {"/a"}
    for members in ensembles(chosen_by, known, Wanted.new(3, 3)):
        assert racks_of(members) == {"/a", "/b"}
    enforced = policy(enforce_racks=True)
    for members in ensembles(enforced, known, Wanted.new(2, 2)):
        assert racks_of(members) == {"/a", "/b"}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_bookies_on_different_hosts_are_preferred(name: str) -> None:
    chosen_by = policy(policy=name, strict_zones=False)
    default = chosen_by.default_location
    for racks in ({default: "a1@h a2@h a3@h b1"}, {"/x/r": "a1@h a2@h a3@h b1"}):
        known = view(racks, chosen_by, own_host="h" if name == "local-first" else "")
        for members in ensembles(chosen_by, known, Wanted.new(2, 2)):
            assert {place.host for place in members} == {"h", "host-b1"}


# -- regions ----------------------------------------------------------------------------------

REGIONS = {"/x/1": "x1 x2", "/x/2": "x3 x4", "/y/1": "y1 y2", "/y/2": "y3", "/z/1": "z1 z2"}


def regions_of(members: Sequence[Place]) -> list[str]:
    return [region_of(place.location) for place in members]


def test_members_alternate_between_regions_starting_with_the_clients_own() -> None:
    chosen_by = policy(policy="region-aware")
    known = view(REGIONS, chosen_by, own_location="/y/1")
    for members in ensembles(chosen_by, known, Wanted.new(5, 5)):
        assert regions_of(members)[0] == "y"
        counts = [regions_of(members).count(name) for name in "xyz"]
        assert max(counts) <= 2
        assert len(racks_of(members)) >= 4, "different racks within a region"


def test_every_ack_quorum_spans_the_regions() -> None:
    chosen_by = policy(policy="region-aware", regions=("x", "y", "z"), min_regions=2)
    known = view(REGIONS, chosen_by)
    chosen_by.check(3, 3, 2)
    for members in ensembles(chosen_by, known, Wanted.new(3, 3, 2)):
        assert set(regions_of(members)) == {"x", "y", "z"}
    two = policy(policy="region-aware", regions=("x", "y"), min_regions=2)
    for members in ensembles(two, known, Wanted.new(4, 4, 3)):
        assert sorted(regions_of(members)) == ["x", "x", "y", "y"]
        assert two.adherence(members, 4, 3, known).level is Level.STRICT
        assert two.adherence(members, 4, 2, known).level is Level.FAIL
    with pytest.raises(UsageError, match="does not always span 2 regions"):
        two.check(3, 3, 2)


def test_bookies_outside_the_configured_regions_are_not_chosen() -> None:
    chosen_by = policy(policy="region-aware", regions=("x", "y"), min_regions=1)
    known = view(REGIONS, chosen_by)
    for members in ensembles(chosen_by, known, Wanted.new(3, 3, 2)):
        assert "z" not in regions_of(members)
    assert "z" in chosen_by.adherence([known.find("z1")], 1, 1, known).reason


def test_reads_prefer_the_clients_own_region_unless_disabled() -> None:
    chosen_by = policy(policy="region-aware")
    known = view(REGIONS, chosen_by, own_location="/y/9")
    order = chosen_by.read_order(["x1", "y1", "z1", "y3"], known)
    assert order == ["y1", "x1", "y3", "z1"]
    silent = policy(policy="region-aware", local_reads=False)
    assert silent.read_order(["x1", "y1"], known) == ["x1", "y1"]


def test_reads_prefer_the_clients_own_rack_if_configured() -> None:
    racks = {"/a": "a1", "/b": "b1"}
    for local, order in ((None, ["a1", "b1"]), (True, ["b1", "a1"])):
        chosen_by = policy(local_reads=local)
        known = view(racks, chosen_by, own_location="/b")
        assert chosen_by.read_order(["a1", "b1"], known) == order


# -- zones ------------------------------------------------------------------------------------

ZONES = {"/1/u": "a1 a2", "/1/v": "a3", "/2/u": "b1 b2", "/2/v": "b3", "/3/u": "c1"}


def test_an_ensemble_spans_zones_and_upgrade_domains() -> None:
    chosen_by = policy(policy="zone-aware")
    known = view(ZONES, chosen_by)
    for members in ensembles(chosen_by, known, Wanted.new(3, 3)):
        assert sorted(regions_of(members)) == ["1", "2", "3"]
        assert chosen_by.adherence(members, 3, 2, known).level is Level.STRICT
    known = view({**ZONES, "/3/u": ""}, chosen_by)
    for members in ensembles(chosen_by, known, Wanted.new(3, 3)):
        assert chosen_by.adherence(members, 3, 2, known).level is Level.SOFT
    for members in ensembles(chosen_by, known, Wanted.new(4, 4)):
        assert len(racks_of(members)) == 4, "upgrade domains of one zone differ"
    known = view({"/1/u": "a1 a2 a3 a4"}, chosen_by)
    assert chosen_by.fill(Wanted.new(3, 3), known, random.Random(1)) == {}


def test_adherence_is_judged_by_zones_and_upgrade_domains() -> None:
    chosen_by = policy(policy="zone-aware")
    known = view(ZONES, chosen_by)

    def level(*names: str) -> Level:
        return chosen_by.adherence([known.find(n) for n in names], len(names), 2, known).level

    assert level("a1", "b1", "c1") is Level.STRICT
    assert level("a1", "a3", "b1") is Level.SOFT
    assert level("a1", "a2", "b1") is Level.FAIL
    assert level("a1", "a3") is Level.FAIL


def test_strict_zones_require_fitting_quorums() -> None:
    chosen_by = policy(policy="zone-aware")
    chosen_by.check(6, 3, 2)
    for size, quorum in ((4, 3), (2, 2)):
        with pytest.raises(UsageError, match="strict_zones"):
            chosen_by.check(size, quorum, 2)
    policy(policy="zone-aware", strict_zones=False).check(4, 3, 2)


# -- near, and heavy --------------------------------------------------------------------------


def test_local_first_prefers_the_own_host_then_rack_then_region() -> None:
    chosen_by = policy(policy="local-first")
    known = view(
        {"/r/1": "mine@h mine2@h near", "/r/2": "further", "/s/1": "far"}, chosen_by,
        own_host="h", own_location="/r/1",
    )  # fmt: skip
    for members in ensembles(chosen_by, known, Wanted.new(4, 3)):
        assert members[0].host == "h"
        assert [place.bookie_id for place in members[1:]] == ["near", "further", "far"]
    some = ["far", "further", "near", "mine"]
    assert chosen_by.read_order(some, known) == ["mine", "near", "further", "far"]
    silent = policy(policy="local-first", local_reads=False)
    assert silent.read_order(some, known) == some


def test_weights_are_bounded_by_a_multiple_of_the_median_free_space() -> None:
    free = {"full": 10, "half": 100, "half2": 100, "empty": 10_000}
    weights = weighed(free, [*free, "silent"], 3.0)
    assert weights == {"full": 10, "half": 100, "half2": 100, "empty": 300, "silent": 10}
    assert weighed({}, ["silent"], 3.0) == {}


@pytest.mark.parametrize("racks", [{"/default-rack": "a b"}, {"/x": "a b", "/y": "c"}])
def test_a_heavy_bookie_is_chosen_more_often(racks: Mapping[str, str]) -> None:
    chosen_by = policy()
    known = view(racks, chosen_by, weights={"a": 1.0, "b": 9.0, "c": 5.0}, own_location="/x")
    seeds, rng = 600, random.Random(7)
    heavy = sum(chosen_by.fill(Wanted.new(1), known, rng)[0] == "b" for _ in range(seeds))
    # 540 are expected, and the standard deviation is 7.
    assert 0.8 * seeds < heavy < seeds


def test_shuffling_by_weight_keeps_bookies_without_a_weight() -> None:
    ids = ["a", "b", "c"]
    mix(ids, random.Random(1), {"a": 1.0})
    assert ids[0] == "a"
    assert sorted(ids) == ["a", "b", "c"]


# -- words ------------------------------------------------------------------------------------


def test_messages_describe_wanted_and_writable_bookies() -> None:
    chosen_by = policy(enforce_racks=True)
    known = view({"/a": "b1 b2 b3", "/b": "b4"}, chosen_by, failed_s={"b4": 3.2, "b3": -1.0})
    wanted = Wanted.new(5, 2)
    assert chosen_by.wish(wanted, known) == (
        "5 bookies in 2 racks for a write quorum of 2 (minimum 2 racks, enforced)"
    )
    assert situation(wanted, known) == (
        "4 are writable: rack /a: b1, b2, b3 (in quarantine); rack /b: b4 (failed 3 s ago)"
    )


def test_the_message_names_a_rack_without_writable_bookies() -> None:
    chosen_by = policy(enforce_racks=True)
    gone = Place("b9", "h9", "/b")
    known = View(
        {"b1": Place("b1", "h1", "/a"), "b2": Place("b2", "h2", "/a")},
        others={"b9": gone},
        located=True,
    )
    wanted = Wanted.replacing(("b1", "b9"), {1: "b9"}, 2, 2)
    assert chosen_by.fill(wanted, known, random.Random(1)) == {}
    assert situation(wanted, known) == (
        "2 are writable: rack /a: b1 (in the ensemble), b2; rack /b: none writable"
    )
    assert "instead of b9" in chosen_by.wish(wanted, known)


def test_the_message_does_not_list_a_bookie_to_be_replaced_as_writable() -> None:
    """Readers misunderstood the message '1 is writable: b1 (to be replaced)'."""
    chosen_by = policy()
    alone = view({"/a": "b1"}, chosen_by)
    assert situation(Wanted.replacing(("b1",), {0: "b1"}, 1, 1), alone) == (
        "no other bookie is writable"
    )
    both = view({"/a": "b1 b2"}, chosen_by)
    assert situation(Wanted.replacing(("b1", "b2"), {0: "b1"}, 2, 2), both) == (
        "every writable bookie is in the ensemble already"
    )


def test_the_message_abbreviates_long_lists_of_bookies() -> None:
    chosen_by = policy()
    racks = {f"/r{n}": " ".join(f"b{n}-{k}" for k in range(30)) for n in range(30)}
    known = view(racks, chosen_by)
    text = situation(Wanted.new(3), known)
    assert len(text) < 1_000
    assert "and 22 more" in text
    assert "and 22 more racks" in text
    members = list(known.writable.values())[:90]
    strict = policy(min_racks=90)
    assert len(strict.adherence(members, 90, 90, known).reason) < 1_000


# -- locations --------------------------------------------------------------------------------


def test_locations_are_normalised() -> None:
    assert parse_location("rack-a") == "/rack-a"
    assert parse_location(" /region/rack/ ") == "/region/rack"


@pytest.mark.parametrize("text", ["", "/", "//a", "/a//b", "/a\tb\n/c", "/a / b", "/" + "x" * 300])
def test_invalid_locations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a network location"):
        parse_location(text)


def test_location_tables_are_parsed_and_bad_ones_refused() -> None:
    lines = "# racks\nbookie-1:3181  /a\n\nhost2 b # the other one\n"
    assert parse_lines(lines) == {"bookie-1:3181": "/a", "host2": "/b"}
    assert parse_toml('[locations]\n"bookie-1:3181" = "/a"\n') == {"bookie-1:3181": "/a"}
    for bad, why in (
        ("one /a\ntwo", "line 2 is 'two', but a line must have a bookie"),
        ("one /a\none /b", "line 2 gives bookie one a second location; the first is /a"),
        ("one //", "line 1 .* not a network location"),
    ):
        with pytest.raises(UsageError, match=why):
            parse_lines(bad)
    for bad in ("x = 1", "[locations]\nx = 1", "not toml"):
        with pytest.raises(UsageError):
            parse_toml(bad)


PULSAR = b"""{"default": {"b1:3181": {"rack": "/rack-a", "hostname": "h1"},
              "b2:3181": {"rack": "rack-b", "hostname": ""}},
              "west": {"b3:3181": {"rack": "/w/1", "note": "kept"}, "b4:3181": {"rack": null}}}"""


def test_the_location_table_of_pulsar_is_parsed() -> None:
    assert parse_groups(PULSAR) == {
        "b1:3181": "/rack-a", "h1": "/rack-a", "b2:3181": "/rack-b", "b3:3181": "/w/1",
    }  # fmt: skip
    assert parse_groups(b"") == {}
    for bad in (b"[]", b'{"g": []}', b'{"g": {"b": 1}}', b"{", b"\xff"):
        with pytest.raises(UsageError):
            parse_groups(bad)


def test_a_change_of_the_table_keeps_unknown_fields() -> None:
    changed = read_groups(with_location(PULSAR, "b3:3181", "/w/2"))
    assert changed["west"]["b3:3181"] == {"rack": "/w/2", "note": "kept"}
    assert changed["default"] == read_groups(PULSAR)["default"]
    moved = read_groups(with_location(PULSAR, "b3:3181", "/w/2", group="default", host="h3"))
    assert "b3:3181" not in moved["west"]
    assert moved["default"]["b3:3181"]["hostname"] == "h3"
    gone = read_groups(with_location(PULSAR, "b1:3181", None))
    assert list(gone["default"]) == ["b2:3181"]
    assert read_groups(with_location(b"", "b9:1", "/x")) == {"default": {"b9:1": {"rack": "/x"}}}
