"""The bookies by region and rack, and what is wrong with their distribution.

The warnings are about ledgers of the default shape, written with the default placement policy,
which puts the copies of each entry into at least two racks if it can. The functions are pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quire._runtime.names.in_commands import COMMANDS_MAX, command_with, for_each
from quire._runtime.units import are, counted, percent_text, plural, some_of, them, verb
from quire.client.client import DEFAULT_ENSEMBLE_SIZE, DEFAULT_WRITE_QUORUM
from quire.config import PlacementConfig
from quire.core.placement.values import parts_of, usual_depth
from quire.http.views.problems.problem import Severity, worst_first, worst_of

Bookie = Mapping[str, Any]
"""A bookie as `bookie_list.bookie_facts` describes it."""
UNEVEN_SHARE_LEAST = 0.01
"""The least unusable share of the cluster's space that is reported. Space is unusable if the rule
of two racks keeps copies from being stored there."""


WRITERS_GO_ON = (
    "By default, writers go on, and put every copy into this rack. A writer whose placement has "
    "enforce_racks, zone-aware or regions is refused: it can neither create a ledger nor replace a "
    "bookie"
)
"""The risk for writers if all writable bookies are in one rack."""
MOVES_NOTHING = (
    "A location applies to ensembles that are chosen after it was set. Copies that exist are not "
    "moved, unless autorecovery runs with repair_placement"
)
"""The effect of a corrected location on ensembles and on copies."""
COPIES_STAY = (
    "Writers use the other racks again as soon as they have writable bookies. Copies that were "
    "written meanwhile are not moved, unless autorecovery runs with repair_placement"
)
"""The effect of bookies in the other racks that become writable again."""
MOVE_COPIES = (
    "To let autorecovery move the copies that exist, start each of its processes again with these "
    "settings, in addition to its other options: quire autorecovery start --set "
    "placement_check_interval_s=1d --set repair_placement=true --placement "
    "rack-aware,locations=metadata"
)
"""The advice on how to move the copies of ledgers that are in too few racks."""


@dataclass(frozen=True, slots=True)
class TopologyWarning:
    """Something that is wrong with the distribution of bookies over racks."""

    severity: Severity
    """`warn`: data or writing is at stake when a rack is lost. `note`: good to know. Bookies that
    are gone have the severity of the problem that reports them."""
    what: str
    next: str
    """The command to type, or the action to take."""
    risk: str = ""
    """The possible consequences. Empty if `what` already names them."""
    bookies: tuple[str, ...] = ()
    """The ids of the bookies that the warning is about."""
    doing: str = ""
    """The action that Quire takes by itself. Empty if that is not known or does not matter."""


def topology(bookies: Sequence[Bookie]) -> dict[str, Any]:
    """Return the regions with their racks and bookies, and the warnings.

    A rack without a region is in the region "". Bookies without a location are in the list
    `unknown`. Everything is sorted by name.
    """
    regions: dict[str, dict[str, list[Bookie]]] = {}
    for one in bookies:
        if one["location"]:
            region, _ = split(one["location"])
            regions.setdefault(region, {}).setdefault(one["location"], []).append(one)
    return {
        "shape": {"ensemble": DEFAULT_ENSEMBLE_SIZE, "write_quorum": DEFAULT_WRITE_QUORUM},
        "regions": [
            {
                "name": region,
                "racks": [_rack(location, members) for location, members in sorted(racks.items())],
            }
            for region, racks in sorted(regions.items())
        ],
        "unknown": [_short(one) for one in bookies if not one["location"]],
        "warnings": [asdict(one) for one in warnings_of(bookies)],
    }


def split(location: str) -> tuple[str, str]:
    """Return the region and the rack of a location. The region of `/rack` is ""."""
    *region, rack = parts_of(location)
    return "/".join(region), rack


def _rack(location: str, members: Sequence[Bookie]) -> dict[str, Any]:
    told = [one for one in members if one.get("free_bytes") is not None]
    return {
        "name": split(location)[1],
        "location": location,
        "free_bytes": sum(one["free_bytes"] for one in told) if told else None,
        "total_bytes": sum(one["total_bytes"] for one in told) if told else None,
        "fullness": "warn" if any(one.get("fullness") for one in members) else "",
        "bookies": [_short(one) for one in members],
    }


def _short(one: Bookie) -> dict[str, Any]:
    names = (
        "id", "state", "severity", "free_bytes", "total_bytes", "fullness", "answers",
        "compaction_suspended",
    )  # fmt: skip
    return {name: one.get(name) for name in names}


def warnings_of(bookies: Sequence[Bookie]) -> list[TopologyWarning]:
    """Return what is wrong with the distribution of the bookies, the worst first."""
    there = [one for one in bookies if one["state"] != "gone"]
    located = [one for one in there if one["location"]]
    lost = list(_lost(bookies))
    if len(there) < 2:
        return lost
    if not located:
        return [
            *lost,
            TopologyWarning(
                "note",
                "No bookie has a location, so clients cannot keep the copies of an entry in "
                "different racks",
                _locate(there[0]["id"]),
            ),
        ]
    found = [*lost, *data_warnings(bookies), *_capacity(located)]
    return worst_first(found)


def data_warnings(bookies: Sequence[Bookie]) -> list[TopologyWarning]:
    """Return the warnings about locations that are missing or wrong, or that are all the same.

    There are none if no bookie has a location, because then nobody uses racks.
    """
    there = [one for one in bookies if one["state"] != "gone"]
    located = [one for one in there if one["location"]]
    if len(there) < 2 or not located:
        return []
    return [*_unlocated(there, located), *_depths(located), *_one_rack(bookies)]


def _lost(bookies: Sequence[Bookie]) -> Iterator[TopologyWarning]:
    gone = [one for one in bookies if one["state"] == "gone"]
    if gone:
        named = [one["id"] + (f" ({one['location']})" if one["location"] else "") for one in gone]
        yield TopologyWarning(
            worst_of({one.get("severity") for one in gone}) or "note",
            f"{counted(len(gone), 'bookie')} {are(len(gone))} gone: {some_of(named)}. "
            "The overview says whether copies are missing",
            "quire explain",
            bookies=tuple(one["id"] for one in gone),
        )


def _unlocated(there: Sequence[Bookie], located: Sequence[Bookie]) -> Iterator[TopologyWarning]:
    unknown = [one["id"] for one in there if not one["location"]]
    if unknown:
        yield TopologyWarning(
            "warn",
            f"{len(unknown)} of {counted(len(there), 'bookie')} {_have(len(unknown))} no location: "
            f"{some_of(unknown, COMMANDS_MAX)}. Clients treat such bookies as one rack, and do not "
            "use them where racks are enforced",
            f"{_locate_each(unknown)}. {MOVE_COPIES}",
            "All copies of an entry may be in one rack",
            tuple(unknown),
            MOVES_NOTHING,
        )


def _depths(located: Sequence[Bookie]) -> Iterator[TopologyWarning]:
    """Yield the warning about bookies that clients do not choose because of their locations.

    As for a client, the usual number of parts is the one that most writable bookies have, and the
    smaller of two that are equally frequent.
    """
    depths = {one["id"]: len(parts_of(one["location"])) for one in located}
    voting = [one for one in located if one["state"] == "writable"] or located
    usual = usual_depth(depths[one["id"]] for one in voting)
    other = [one for one in located if depths[one["id"]] != usual]
    if other:
        named = [f"{one['id']} ({one['location']})" for one in other]
        racks = sorted({one["location"] for one in located if depths[one["id"]] == usual})
        one_only = len(other) == 1
        yield TopologyWarning(
            "warn",
            f"{counted(len(other), 'bookie')} {_have(len(other))} a location of another depth than "
            f"most bookies: {some_of(named, COMMANDS_MAX)}. Clients do not choose such a bookie",
            f"{_relocate_all(other, racks, usual)}. To move "
            f"copies to {them(len(other))} afterwards: quire cluster rebalance",
            ("This bookie gets" if one_only else "These bookies get")
            + " no new copies: "
            + ("its disk stays" if one_only else "their disks stay")
            + " emptier, and the disks of the others fill sooner. If too few others are left, no "
            "ledger can be created",
            tuple(one["id"] for one in other),
            "Writers and autorecovery use the other bookies. After the location is corrected, they "
            f"choose {them(len(other))} for new ensembles. Copies that exist are not moved",
        )


def _relocate_all(other: Sequence[Bookie], racks: Sequence[str], usual: int) -> str:
    """Return the command for each bookie whose location has another depth than most."""
    commands = [(one["id"], *_relocate(one, racks, usual)) for one in other]
    if len(commands) == 1:
        ((bookie_id, rack, command),) = commands
        return f"If {bookie_id} is in {rack}: {command}" if rack else command
    return for_each(
        (
            (bookie_id, f", if it is in {rack}: {command}" if rack else f": {command}")
            for bookie_id, rack, command in commands
        ),
        "For",
    )


def _relocate(one: Bookie, racks: Sequence[str], usual: int) -> tuple[str, str]:
    """Return the command that gives a bookie a location with the usual number of parts.

    The first text is the rack in which the bookie must be for the command to be right, or "".
    If exactly one of the `racks` of the other bookies ends like the bookie's present location, it
    is the bookie's rack in all probability.
    """
    last = parts_of(one["location"])[-1]
    alike = [rack for rack in racks if parts_of(rack)[-1] == last]
    if len(alike) == 1:
        (rack,) = alike
        return rack, _locate(one["id"], shlex.quote(rack))
    form = "/".join(("REGION", "RACK") if usual == 2 else ["RACK"] * usual)
    command = _locate(one["id"], f"/{form}")
    return "", f"{command} (the other bookies are in {some_of(racks)})"


def _by_rack(located: Sequence[Bookie]) -> dict[str, list[Bookie]]:
    """Return the writable bookies among `located`, by location."""
    racks: dict[str, list[Bookie]] = {}
    for one in located:
        if one["state"] == "writable":
            racks.setdefault(one["location"], []).append(one)
    return racks


def _one_rack(bookies: Sequence[Bookie]) -> Iterator[TopologyWarning]:
    located = [one for one in bookies if one["location"]]
    racks = _by_rack(located)
    if len(racks) != 1:
        return
    ((rack, writable),) = racks.items()
    away = [one["id"] for one in located if one["location"] != rack]
    if len(writable) > 1 and away:
        yield TopologyWarning(
            "warn",
            f"All {counted(len(writable), 'writable bookie')} with a location are in {rack}, "
            f"because {some_of(away)} of other racks {are(len(away))} gone or read-only: every "
            "copy of a ledger that is written now can be lost with that rack",
            f"Make {them(len(away))} writable again, as the "
            f"{plural('finding', len(away))} about {them(len(away))} {verb('say', len(away))}. "
            f"{MOVE_COPIES}",
            WRITERS_GO_ON,
            tuple(one["id"] for one in writable),
            COPIES_STAY,
        )
    elif len(writable) > 1:
        yield TopologyWarning(
            "warn",
            f"All {counted(len(writable), 'writable bookie')} with a location are in {rack}: every "
            "copy of a ledger can be lost with that rack",
            f"If a bookie is really in another rack, say so: {_locate(writable[0]['id'])}. "
            "Otherwise start a bookie in another rack, "
            f"and set its location in the same way. {MOVE_COPIES}. To make writers fail rather "
            "than put all copies into one rack, start them with this in their environment: "
            "export QUIRE_PLACEMENT=rack-aware,enforce_racks,locations=metadata",
            WRITERS_GO_ON,
            tuple(one["id"] for one in writable),
            MOVES_NOTHING,
        )


def _capacity(located: Sequence[Bookie]) -> Iterator[TopologyWarning]:
    """Yield the warnings about a number of bookies or an amount of space that racks make unusable.

    They are about a rack whose loss leaves too few bookies, about only two racks, and about a rack
    with too much of the space.
    """
    racks = _by_rack(located)
    writable = [one for members in racks.values() for one in members]
    if len(racks) < 2:
        return
    for rack, members in sorted(racks.items()):
        left = len(writable) - len(members)
        if left < DEFAULT_ENSEMBLE_SIZE <= len(writable):
            yield TopologyWarning(
                "note",
                f"{rack} has {len(members)} of {counted(len(writable), 'writable bookie')}. If it "
                f"is lost, {left} {are(left)} left, and new ledgers need {DEFAULT_ENSEMBLE_SIZE} "
                "by default",
                "Start bookies in another rack",
            )
    if len(racks) == 2 and DEFAULT_WRITE_QUORUM > 2:
        yield TopologyWarning(
            "note",
            f"The writable bookies are in two racks, so {DEFAULT_WRITE_QUORUM - 1} of "
            f"{DEFAULT_WRITE_QUORUM} copies of an entry share a rack. If it is lost, an entry may "
            "be lost whose last copy was not written yet",
            "Start bookies in a third rack, or let clients write with spread_acks",
        )
    yield from _uneven(racks)


def _uneven(racks: Mapping[str, Sequence[Bookie]]) -> Iterator[TopologyWarning]:
    """Yield a note about a rack with more space than the rule of two racks can use."""
    spaces = {
        rack: sum(one["total_bytes"] for one in members if one.get("total_bytes") is not None)
        for rack, members in racks.items()
    }
    total = sum(spaces.values())
    elsewhere = min(PlacementConfig().min_racks, len(racks)) - 1
    most = DEFAULT_WRITE_QUORUM - elsewhere
    for rack, size in spaces.items():
        # With `most` of the copies of every entry in this rack, the other racks are full first.
        usable = (total - size) * most / elsewhere if elsewhere else size
        if total and size - usable > UNEVEN_SHARE_LEAST * total:
            yield TopologyWarning(
                "note",
                f"{rack} has {percent_text(size / total)} of the space of the racks. Of "
                f"{DEFAULT_WRITE_QUORUM} copies of an entry, at most {most} are in one rack, so "
                f"{percent_text((size - usable) / size)} of its space cannot be used",
                "Move bookies to another rack, or add space there",
            )


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _locate_each(bookies: Sequence[str]) -> str:
    """Return the commands that set the locations of bookies that have none."""
    if len(bookies) == 1:
        return _locate(bookies[0])
    commands = ((one, f": {_locate(one)}") for one in bookies)
    return f"Say where each of them is. {for_each(commands, 'For')}"


def _locate(bookie_id: str, location: str = "/RACK") -> str:
    """Return the command that sets the location of a bookie."""
    return command_with("quire cluster locations set", bookie_id, then=location)
