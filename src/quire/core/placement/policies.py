"""The policies that come with Quire (docs/guides/cluster/placement.md).

All of them use bookies that failed recently, and second bookies on one host, only if no others are
left. They choose at random among equals, in proportion to free disk space if that is configured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from quire._runtime.units import counted, some_of
from quire.config import PlacementConfig
from quire.core.placement.choice import Chance, choose, mix
from quire.core.placement.descriptions import NAMES_MAX, bookies_of
from quire.core.placement.search import ANYTHING, Members, Rank, Rule, Window, fill, windows
from quire.core.placement.values import (
    Adherence,
    Level,
    Place,
    View,
    Wanted,
    distance,
    region_of,
)
from quire.errors import UsageError


def spread(least: int, domain: Callable[[Place], str]) -> Rule:
    """Return the rule that each write quorum has members in at least `least` fault domains.

    `domain` returns the fault domain of a bookie, such as its rack.
    """

    def holds(window: Window) -> bool:
        found = {domain(place) for place in window if place is not None}
        return len(found) + window.count(None) >= least

    return Rule(holds, lambda places: len({domain(place) for place in places}) >= least)


def every(*rules: Rule) -> Rule:
    """Return a rule that holds if all of the given rules hold."""
    return Rule(
        lambda window: all(rule.holds(window) for rule in rules),
        lambda places: all(rule.feasible(places) for rule in rules),
    )


def rack_of(place: Place) -> str:
    """Return the rack of a place, which is its whole location."""
    return place.location


def region(place: Place) -> str:
    """Return the region or zone of a place, which is the first component of its location."""
    return region_of(place.location)


class DomainPolicy:
    """A policy that uses any bookie, on different hosts if possible. It is the base of all others.

    Derive a policy of your own from this class. Override `rules` for the conditions on a write
    quorum, `admits` for the bookies that may be chosen, and `rank` for the preference among them.
    The client constructs the policy with its `PlacementConfig`.
    """

    default_location = "/default-rack"
    """The location that stands for one that is not known."""
    parts: int | None = None
    """The number of components that a location must have. None accepts what most locations have."""

    def __init__(self, config: PlacementConfig) -> None:
        self.config = config
        """The placement configuration of the client."""

    # -- what a subclass defines --------------------------------------------------------------

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Raise UsageError if the policy can never be satisfied with these quorums.

        The base class accepts all quorums.
        """

    def rules(self, wanted: Wanted, view: View) -> Sequence[Rule]:
        """Return the rules for every write quorum, the best first. One of them must hold.

        The base class has one rule, which always holds.
        """
        return (ANYTHING,)

    def admits(self, place: Place, view: View) -> bool:
        """Return whether the bookie at `place` may be chosen at all.

        The base class admits every bookie.
        """
        return True

    def rank(self, index: int, place: Place, members: Members, wanted: Wanted, view: View) -> Rank:
        """Return how well the bookie `place` fits at an index of the ensemble. Smaller is better.

        Among equal bookies, one on a host without a member is preferred. After that the random
        order decides, in which heavier bookies tend to come first. The base class ranks all bookies
        equally.
        """
        return ()

    def requirement(self, wanted: Wanted, view: View) -> str:
        """Return the policy's requirement, as text that follows "3 bookies".

        For example "in 2 racks for a write quorum of 3". It is empty if there is none.
        """
        return ""

    def adherence(
        self, members: Sequence[Place], write_quorum: int, ack_quorum: int, view: View
    ) -> Adherence:
        return Adherence(Level.STRICT)

    def ack_domains(
        self, members: Sequence[Place], write_quorum: int, view: View
    ) -> tuple[list[str], int] | None:
        return None

    def read_order(self, bookies: Sequence[str], view: View) -> list[str]:
        if not self.config.local_reads or not view.own_location:
            return list(bookies)
        own = view.own_location
        return sorted(bookies, key=lambda bookie: distance(own, view.find(bookie).location))

    # -- what all policies share --------------------------------------------------------------

    def fill(self, wanted: Wanted, view: View, rng: Chance) -> dict[int, str]:
        if self.indifferent(view):
            return self._any(wanted, view, rng)
        barred = wanted.barred
        ids = [bookie for bookie in sorted(view.writable) if bookie not in barred]
        mix(ids, rng, view.weights)
        options = [view.writable[bookie] for bookie in ids]
        options = [place for place in options if self.admits(place, view)]
        return fill(
            wanted,
            view,
            options,
            self.rules(wanted, view),
            lambda index, place, members: self.rank(index, place, members, wanted, view),
            type(self).rank in _BY_LOCATION,
        )

    def wish(self, wanted: Wanted, view: View) -> str:
        count = len(wanted.holes)
        text = f"{count} {'bookie' if count == 1 else 'bookies'}"
        if wanted.gone:
            text += f" instead of {some_of(sorted(wanted.gone.values()), NAMES_MAX)}"
        indifferent = self.indifferent(view)
        requirement = "" if indifferent else self.requirement(wanted, view)
        return f"{text} {requirement}" if requirement else text

    def indifferent(self, view: View) -> bool:
        """Return whether the policy ignores locations now and considers hosts alone."""
        return type(self) is DomainPolicy

    def _any(self, wanted: Wanted, view: View, rng: Chance) -> dict[int, str]:
        hosts = {bookie: place.host for bookie, place in view.writable.items()}
        used = {view.find(bookie).host for bookie in kept(wanted)} - {""}
        holes = wanted.holes
        chosen = choose(
            hosts,
            len(holes),
            rng,
            exclude=wanted.barred,
            avoid=view.failed_s,
            used_hosts=used,
            weights=view.weights,
        )
        return dict(zip(holes, chosen)) if wanted.gone or len(chosen) == len(holes) else {}


class AnyBookie(DomainPolicy):
    """A policy that ignores locations."""

    def indifferent(self, view: View) -> bool:
        return True


class RackAware(DomainPolicy):
    """A policy that puts every write quorum in `min_racks` racks or more.

    A smaller write quorum gets as many racks as it has members. With `enforce_racks` an ensemble in
    fewer racks is refused. A replacement is then accepted for a write quorum that violated the rule
    before. Without `enforce_racks` the policy uses as many of these racks as it can.
    """

    def rules(self, wanted: Wanted, view: View) -> Sequence[Rule]:
        least = self._racks(wanted.write_quorum)
        if self.config.enforce_racks:
            rule = spread(least, rack_of)
            return (rule, Rule(rule.holds, mends_nothing=True)) if wanted.gone else (rule,)
        return [spread(count, rack_of) for count in range(least, 0, -1)]

    def admits(self, place: Place, view: View) -> bool:
        return not self.config.enforce_racks or place.location != view.default_location

    def rank(self, index: int, place: Place, members: Members, wanted: Wanted, view: View) -> Rank:
        near = neighbours(index, members, wanted.write_quorum)
        uses = sum(member.location == place.location for member in near)
        return (*self._habit(index, place.location, view, members, wanted), uses)

    def _habit(
        self, index: int, location: str, view: View, members: Members, wanted: Wanted
    ) -> Rank:
        """Return a rank that is smallest for the preferred rack.

        That is the rack of the bookie to replace. For the first member of a new ensemble it is the
        client's own rack.
        """
        if wanted.gone:
            before = view.find(wanted.gone[index]).location
            return (location != before,)
        if index or view.own_location in ("", view.default_location):
            return (0,)
        return (location != view.own_location,)

    def requirement(self, wanted: Wanted, view: View) -> str:
        least = self._racks(wanted.write_quorum)
        how = "enforced" if self.config.enforce_racks else "if possible"
        return (
            f"in {counted(least, 'rack')} for a write quorum of {wanted.write_quorum} "
            f"(minimum {counted(self.config.min_racks, 'rack')}, {how})"
        )

    def adherence(
        self, members: Sequence[Place], write_quorum: int, ack_quorum: int, view: View
    ) -> Adherence:
        if self.config.enforce_racks:
            lost = [p.bookie_id for p in members if p.location == view.default_location]
            if lost:
                return Adherence(Level.FAIL, f"the rack of {some_of(lost, NAMES_MAX)} is not known")
        least = self._racks(write_quorum)
        for window in windows(len(members), write_quorum):
            inside = [members[index] for index in window]
            racks = {place.location for place in inside}
            if len(racks) < least:
                return Adherence(
                    Level.FAIL,
                    f"{bookies_of(inside)}: {counted(len(racks), 'rack')} for a write "
                    f"quorum of {len(inside)}, where {least} are wanted",
                )
        return Adherence(Level.STRICT)

    def ack_domains(
        self, members: Sequence[Place], write_quorum: int, view: View
    ) -> tuple[list[str], int] | None:
        if not self.config.spread_acks:
            return None
        return [place.location for place in members], self._racks(write_quorum)

    def _racks(self, write_quorum: int) -> int:
        return max(1, min(write_quorum, self.config.min_racks))

    def indifferent(self, view: View) -> bool:
        return not view.located and not self.config.enforce_racks


class RegionAware(RackAware):
    """A policy that spreads each write quorum over as many regions as possible.

    It begins with the client's region, and prefers different racks within a region. With `regions`
    it writes only to those, and every possible ack quorum spans `min_regions` of them. A write
    quorum that violated this before a replacement may violate it afterwards.
    """

    default_location = "/default-region/default-rack"

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        regions, least = len(self.config.regions), self.config.min_regions
        if not regions:
            return
        share, more = divmod(write_quorum, regions)
        shares = [share + 1] * more + [share] * (regions - more)
        if least > regions or sum(shares[: least - 1]) >= ack_quorum:
            raise UsageError(
                f"the placement cannot be met: with a write quorum of {write_quorum} in "
                f"{counted(regions, 'region')}, an ack quorum of {ack_quorum} does not always "
                f"span {counted(least, 'region')}",
                remedy="Lower min_regions, or change the quorums or the regions. An ack quorum "
                f"must be larger than the part of a write quorum in any {least - 1} of the regions",
            )

    def rules(self, wanted: Wanted, view: View) -> Sequence[Rule]:
        racks = max(1, min(wanted.write_quorum, self.config.min_racks))
        if self.config.regions:
            rule = Rule(lambda window: self._durable(window, wanted.ack_quorum))
            both = every(rule, spread(racks, rack_of))
            mending = (Rule(rule.holds, mends_nothing=True),) if wanted.gone else ()
            return (both, rule, *mending)
        known = {region(p) for p in (*view.writable.values(), *map(view.find, kept(wanted)))}
        most = max(1, min(wanted.write_quorum, len(known)))
        better = spread(racks, rack_of)
        rules = [every(spread(count, region), better) for count in range(most, 0, -1)]
        return (*rules, ANYTHING)

    def admits(self, place: Place, view: View) -> bool:
        return not self.config.regions or region(place) in self.config.regions

    def rank(self, index: int, place: Place, members: Members, wanted: Wanted, view: View) -> Rank:
        mine = region(place)
        near = neighbours(index, members, wanted.write_quorum)
        racks = sum(member.location == place.location for member in near)
        if wanted.gone:
            gone = view.find(wanted.gone[index]).location
            return (mine != region_of(gone), racks)
        uses = sum(member is not None and region(member) == mine for member in members)
        return (uses, mine != region_of(view.own_location), racks)

    def requirement(self, wanted: Wanted, view: View) -> str:
        if not self.config.regions:
            return "in different regions if possible"
        least = self.config.min_regions
        return (
            f"in the regions {some_of(self.config.regions, NAMES_MAX)}, "
            f"every ack quorum of {wanted.ack_quorum} in {least} of them,"
        )

    def adherence(
        self, members: Sequence[Place], write_quorum: int, ack_quorum: int, view: View
    ) -> Adherence:
        least = self.config.min_regions
        for window in windows(len(members), write_quorum):
            inside = [members[index] for index in window]
            if self.config.regions:
                outside = [p.bookie_id for p in inside if region(p) not in self.config.regions]
                if outside:
                    return Adherence(
                        Level.FAIL, f"{some_of(outside, NAMES_MAX)}: not in the configured regions"
                    )
                if not self._durable(inside, ack_quorum):
                    reason = f"an ack quorum of {ack_quorum} may be in fewer than {least} regions"
                    return Adherence(Level.FAIL, f"{bookies_of(inside)}: {reason}")
            elif len({region(p) for p in inside}) < min(least, write_quorum):
                return Adherence(Level.SOFT, f"{bookies_of(inside)}: fewer than {least} regions")
        return Adherence(Level.STRICT)

    def read_order(self, bookies: Sequence[str], view: View) -> list[str]:
        """Return the bookies of the client's region first, except for one in second place.

        The second bookie is in another region, so that the second request leaves a region that is
        in trouble. The remaining bookies of other regions come last.
        """
        if not view.own_location or self.config.local_reads is False:
            return list(bookies)
        own = region_of(view.own_location)
        near = [bookie for bookie in bookies if region(view.find(bookie)) == own]
        far = [bookie for bookie in bookies if region(view.find(bookie)) != own]
        return [*near[:1], *far[:1], *near[1:], *far[1:]]

    def _durable(self, window: Window, ack_quorum: int) -> bool:
        """Return whether every ack quorum in a write quorum spans `min_regions` regions.

        No ack quorum fits into fewer regions if the fullest `min_regions - 1` regions together have
        fewer members of the write quorum than an ack quorum has.
        """
        counts = Counter(region(place) for place in window if place is not None)
        fullest = sum(count for _, count in counts.most_common(max(self.config.min_regions - 1, 0)))
        return fullest < ack_quorum

    def indifferent(self, view: View) -> bool:
        return not view.located and not self.config.regions


class ZoneAware(DomainPolicy):
    """A policy for locations of the form '/zone/upgrade-domain'.

    It puts every write quorum in up to `desired_zones` zones. Several members in one zone are not
    all in one upgrade domain. With `strict_zones` an ensemble that violates this, or has a write
    quorum in fewer than `min_zones` zones, is refused. A replacement is then accepted for a write
    quorum that violated the rule before. Without `strict_zones` the policy comes as near to the
    rule as it can.
    """

    default_location = "/default-zone/default-upgradedomain"
    parts = 2

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        if not self.config.strict_zones:
            return
        if ensemble_size % write_quorum or write_quorum <= self.config.min_zones:
            raise UsageError(
                f"the placement with strict_zones requires an ensemble ({ensemble_size}) that is "
                f"a multiple of the write quorum ({write_quorum}), and a write quorum greater "
                f"than min_zones ({self.config.min_zones})",
                remedy="Change the quorums, or set strict_zones=False",
            )

    def rules(self, wanted: Wanted, view: View) -> Sequence[Rule]:
        low = 1 if not self.config.strict_zones else self._zones(self.config.min_zones, wanted)
        high = max(low, self._zones(self.config.desired_zones, wanted))
        rules = [self._rule(count) for count in range(high, low - 1, -1)]
        if not self.config.strict_zones:
            return (*rules, ANYTHING)
        mending = Rule(rules[-1].holds, mends_nothing=True)
        return (*rules, mending) if wanted.gone else rules

    def admits(self, place: Place, view: View) -> bool:
        return not self.config.strict_zones or place.location != view.default_location

    def rank(self, index: int, place: Place, members: Members, wanted: Wanted, view: View) -> Rank:
        near = neighbours(index, members, wanted.write_quorum)
        zone = sum(region(member) == region(place) for member in near)
        domain = sum(member.location == place.location for member in near)
        if wanted.gone:
            gone = view.find(wanted.gone[index]).location
            return (region(place) != region_of(gone), domain, zone)
        if not index and view.own_location:
            return (region(place) != region_of(view.own_location), domain, zone)
        return (zone, domain)

    def requirement(self, wanted: Wanted, view: View) -> str:
        how = "strict" if self.config.strict_zones else "if possible"
        return (
            f"in {self._zones(self.config.min_zones, wanted)} zones for a write quorum of "
            f"{wanted.write_quorum}, different upgrade domains within a zone ({how})"
        )

    def adherence(
        self, members: Sequence[Place], write_quorum: int, ack_quorum: int, view: View
    ) -> Adherence:
        found = Adherence(Level.STRICT)
        for window in windows(len(members), write_quorum):
            inside = [members[index] for index in window]
            if not apart(inside):
                reason = "all of a zone in one upgrade domain"
                return Adherence(Level.FAIL, f"{bookies_of(inside)}: {reason}")
            zones = len({region(place) for place in inside})
            reason = f"{bookies_of(inside)}: {counted(zones, 'zone')}"
            if zones < min(write_quorum, self.config.min_zones):
                least = min(write_quorum, self.config.min_zones)
                return Adherence(Level.FAIL, f"{reason}, where at least {least} are wanted")
            if zones < min(write_quorum, self.config.desired_zones):
                found = Adherence(
                    Level.SOFT, f"{reason}, where {self.config.desired_zones} are desired"
                )
        return found

    def ack_domains(
        self, members: Sequence[Place], write_quorum: int, view: View
    ) -> tuple[list[str], int] | None:
        if not self.config.spread_acks:
            return None
        return [region(place) for place in members], min(write_quorum, self.config.min_zones)

    @staticmethod
    def _zones(count: int, wanted: Wanted) -> int:
        return max(1, min(count, wanted.write_quorum))

    @staticmethod
    def _rule(least: int) -> Rule:
        return every(spread(least, region), Rule(apart))

    def indifferent(self, view: View) -> bool:
        return not view.located and not self.config.strict_zones


class LocalFirst(DomainPolicy):
    """A policy that puts the first member on the client's own host, if it has a bookie.

    The other members are near the client: in the same rack, then in the same region.
    """

    def rank(self, index: int, place: Place, members: Members, wanted: Wanted, view: View) -> Rank:
        elsewhere = not view.own_host or place.host != view.own_host
        far = distance(view.own_location, place.location) if view.own_location else 0
        used = any(member is not None and member.host == place.host for member in members)
        return (used, elsewhere, far)

    def requirement(self, wanted: Wanted, view: View) -> str:
        return "as near as possible"

    def read_order(self, bookies: Sequence[str], view: View) -> list[str]:
        if self.config.local_reads is False:
            return list(bookies)
        own, host = view.own_location, view.own_host

        def key(bookie: str) -> tuple[bool, int]:
            place = view.find(bookie)
            return (not host or place.host != host, distance(own, place.location) if own else 0)

        return sorted(bookies, key=key)

    def indifferent(self, view: View) -> bool:
        return not view.own_host and not view.own_location


_BY_LOCATION = (DomainPolicy.rank, RackAware.rank, RegionAware.rank, ZoneAware.rank)
"""The ranks that depend only on the location of a bookie. That of a class from another package may
depend on anything."""

POLICIES: Mapping[str, Callable[[PlacementConfig], DomainPolicy]] = {
    "rack-aware": RackAware,
    "region-aware": RegionAware,
    "zone-aware": ZoneAware,
    "local-first": LocalFirst,
    "any": AnyBookie,
}
"""The policies, by the names with which a client is configured."""


def neighbours(index: int, members: Members, write_quorum: int) -> list[Place]:
    """Return the known members that share a write quorum with the place at `index`."""
    size, reach = len(members), min(write_quorum, len(members)) - 1
    near = {(index + k) % size for k in range(-reach, reach + 1)} - {index}
    return [member for i in sorted(near) if (member := members[i]) is not None]


def apart(window: Window) -> bool:
    """Return whether each zone with several members has them in two or more upgrade domains.

    The result is True while a place is still open, because its bookie may satisfy this.
    """
    if None in window:
        return True
    zones: dict[str, list[str]] = {}
    for place in window:
        if place is not None:
            zones.setdefault(region(place), []).append(place.location)
    return all(len(found) == 1 or len(set(found)) > 1 for found in zones.values())


def kept(wanted: Wanted) -> list[str]:
    """Return the ids of the members that are not to be replaced."""
    return [bookie for bookie in wanted.members if bookie is not None]
