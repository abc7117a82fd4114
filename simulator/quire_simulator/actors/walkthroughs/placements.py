"""A walkthrough of placement: ensembles of each policy, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.config import PlacementConfig
from quire.core.placement import Level
from quire.core.placement.tables import parse_groups, parse_lines, with_location
from quire.errors import NotEnoughBookiesError, UsageError
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.world.world import bookie_id

REGIONS, RACKS = 2, 2
LEDGERS = 6
PULSAR_NODE = "/bookies"


def _window(ensemble: Sequence[str], first: int, quorum: int) -> list[str]:
    return [ensemble[(first + k) % len(ensemble)] for k in range(quorum)]


def _region(location: str) -> str:
    return location.split("/")[1]


class _Policy:
    """A policy, and its rules in other words than those of Quire."""

    def __init__(self, walk: Walk, locations: dict[str, str]) -> None:
        self.locations = locations
        chance = walk.chance
        own = chance.choice(sorted(locations))
        settings: dict[str, dict[str, Any]] = {
            "rack-aware": {"enforce_racks": True, "min_racks": 2},
            "region-aware": {},
            "zone-aware": {"min_zones": 2, "desired_zones": 2, "strict_zones": False},
            "local-first": {"own_host": own.partition(":")[0], "own_location": locations[own]},
            "any": {},
        }
        self.name = chance.choice(list(settings))
        self.own = own if self.name == "local-first" else ""
        self.settings = settings[self.name]

    def keeps(self, ensemble: Sequence[str], quorum: int) -> bool:
        """Return whether an ensemble is as the policy wants it. There are enough bookies."""
        places = self.locations
        for first in range(len(ensemble)):
            inside = [places[one] for one in _window(ensemble, first, quorum)]
            racks, regions = set(inside), set(map(_region, inside))
            if self.name == "rack-aware" and len(racks) < min(2, quorum):
                return False
            if self.name in ("region-aware", "zone-aware") and len(regions) < min(2, quorum):
                return False
        return self.own in ("", ensemble[0])


async def walk_placement(walk: Walk) -> None:
    """Create ledgers with each policy, from each source of locations, and check the ensembles."""
    world = walk.stage.world
    names = sorted(bookie_id(name) for name in world.bookies)
    locations = {
        name: f"/region-{at % REGIONS}/rack-{at // REGIONS % RACKS}"
        for at, name in enumerate(names)
    }
    if world.racks or len(names) < REGIONS * RACKS:
        return
    source = await _source(walk, locations)
    for _ in range(LEDGERS):
        policy = _Policy(walk, locations)
        config = PlacementConfig(policy.name, locations=source, **policy.settings)
        client = walk.another_client(placement=config)
        ensemble = walk.chance.choice([2, 4])
        quorum = walk.chance.choice([1, 2])
        writer = await client.create_ledger(
            ensemble_size=ensemble, write_quorum=quorum, ack_quorum=1
        )
        facts = walk.stage.checker.facts(writer.ledger_id)
        metadata: LedgerMetadata = world.cluster.ledger(writer.ledger_id).value
        chosen = metadata.segments[0].ensemble
        if not policy.keeps(chosen, quorum):
            places = [locations[one] for one in chosen]
            walk.fail("reports_are_true", f"{policy.name} chose {places} for quorums of {quorum}")
        placement = client.placement
        walk.same(f"the adherence of {policy.name}", placement.adherence(chosen, quorum, 1).level,
                  Level.STRICT)  # fmt: skip
        for one in chosen:
            if policy.name != "any":
                walk.same("the location of a bookie", placement.location(one), locations[one])
        order = placement.read_order(chosen)
        walk.same("the bookies in the order of reads", sorted(order), sorted(chosen))
        if policy.own:
            walk.same("the first bookie to be read", order[0], policy.own)
        _one_rack(walk, policy, placement)
        await writer.close()
        facts.deleted = True
        await walk.client.delete_ledger(writer.ledger_id)
    many = PlacementConfig("rack-aware", locations=source, enforce_racks=True, min_racks=9)
    client = walk.another_client(placement=many)
    size = min(REGIONS * RACKS + 1, len(names))
    if size > REGIONS * RACKS:
        call = client.create_ledger(ensemble_size=size, write_quorum=size, ack_quorum=1)
        await walk.refused("an ensemble in more racks than there are", call,
                           NotEnoughBookiesError, f"{size} racks")  # fmt: skip
    few = PlacementConfig("region-aware", locations=source, regions=("region-0",))
    call = walk.another_client(placement=few).create_ledger(
        ensemble_size=2, write_quorum=2, ack_quorum=2
    )
    await walk.refused("a policy that can never be satisfied", call, UsageError, "min_regions")


def _one_rack(walk: Walk, policy: _Policy, placement: Any) -> None:
    """An ensemble within one rack does not satisfy the policies that know racks."""
    inside = [one for one, place in policy.locations.items() if place.endswith("0/rack-0")]
    if len(inside) < 2:
        inside = [one for one, place in policy.locations.items() if "region-0" in place]
    found = placement.adherence(inside[:2], 2, 1)
    level = {
        "rack-aware": Level.FAIL if len({policy.locations[x] for x in inside[:2]}) < 2 else None,
        "region-aware": Level.SOFT, "any": Level.STRICT, "local-first": Level.STRICT,
    }.get(policy.name)  # fmt: skip
    if level is not None:
        walk.same(f"the adherence of {policy.name} in one place", found.level, level)
    if found.level is not Level.STRICT and not found.reason:
        walk.fail("reports_are_true", f"{policy.name} does not say why {inside[:2]} is wrong")


async def _source(walk: Walk, locations: dict[str, str]) -> Any:
    """Return a source of locations: a mapping, or the table of Pulsar in the metadata store."""
    lines = "".join(f"{name} {place}  # comment\n\n" for name, place in locations.items())
    walk.same("a table of locations in lines", parse_lines(lines), locations)
    data = b""
    for name, place in locations.items():
        data = with_location(data, name, "/elsewhere", host=name.partition(":")[0])
        data = with_location(data, name, place, group="g")
    data = with_location(data, "gone:1", "/elsewhere")
    data = with_location(data, "gone:1", None)
    hosts = {name.partition(":")[0]: place for name, place in locations.items()}
    walk.same("Pulsar's table of locations", parse_groups(data), {**hosts, **locations})
    if walk.chance.random() < 0.5:
        return locations
    tree = walk.client.metadata.tree
    if not await tree.exists(PULSAR_NODE):
        await tree.make_path(PULSAR_NODE, data)
    return "metadata"
