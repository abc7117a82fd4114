"""What placement knows, what it is asked, and what it says of an ensemble."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from quire.errors import UsageError

LOCATION_CHARACTERS_MAX = 255


def parse_location(text: str) -> str:
    """A network location, as '/rack' or '/region/rack'; a missing slash in front is added, one at
    the end taken away (metadata spec, 6.1). UsageError for what is none."""
    parts = text.strip().removeprefix("/").removesuffix("/").split("/")
    location = "/" + "/".join(parts)
    bad = any(not part or part != part.strip() or not part.isprintable() for part in parts)
    if bad or len(location) > LOCATION_CHARACTERS_MAX:
        raise UsageError(
            f"{text[:LOCATION_CHARACTERS_MAX]!r} is not a network location",
            remedy="Write it as /rack or /region/rack",
        )
    return location


def parts_of(location: str) -> tuple[str, ...]:
    return tuple(location.split("/")[1:]) if location else ()


def region_of(location: str) -> str:
    """The first component: the region, or the zone."""
    return location.split("/", 2)[1] if location else ""


def distance(one: str, other: str) -> int:
    """How many components of the deeper location lie behind what both share; 0: the same place."""
    a, b = parts_of(one), parts_of(other)
    shared = 0
    for x, y in zip(a, b):
        if x != y:
            break
        shared += 1
    return max(len(a), len(b)) - shared


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bookie is."""

    bookie_id: str
    host: str
    location: str
    """Its network location, or the policy's default where nothing is known."""


@dataclass(frozen=True, slots=True)
class View:
    """All that is known at one moment."""

    writable: Mapping[str, Place]
    """Those that may be chosen."""
    others: Mapping[str, Place] = field(default_factory=dict)
    """Read-only ones, those that are gone, and those that do not fit in (`misplaced`)."""
    failed_s: Mapping[str, float] = field(default_factory=dict)
    """Those that failed lately, so many seconds ago, or are in quarantine (-1). Chosen only where
    nothing else is left."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the writable ones; empty: all are the same."""
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """Writable ones that are not chosen, and why: 'its location /a/b/c has 3 parts, not 2'."""
    located: bool = False
    """Whether any location is known; without, racks mean nothing."""
    own_host: str = ""
    own_location: str = ""
    """Of this client; '': not known."""
    default_location: str = "/default-rack"

    def find(self, bookie_id: str) -> Place:
        found = self.writable.get(bookie_id) or self.others.get(bookie_id)
        return found or Place(bookie_id, "", self.default_location)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An ensemble of which some places are to be filled."""

    members: tuple[str | None, ...]
    """By index; None: to be filled."""
    write_quorum: int
    ack_quorum: int
    gone: Mapping[int, str] = field(default_factory=dict)
    """Who stood at the places that are to be filled, where it is a replacement."""
    exclude: frozenset[str] = frozenset()
    """Besides the members and those gone."""

    @classmethod
    def new(cls, size: int, write_quorum: int = 0, ack_quorum: int = 0) -> Wanted:
        """A whole ensemble. Without quorums: entries on all of it."""
        write_quorum = write_quorum or size
        return cls((None,) * size, write_quorum, ack_quorum or write_quorum)

    @classmethod
    def replacing(
        cls,
        ensemble: tuple[str, ...],
        gone: Mapping[int, str],
        write_quorum: int,
        ack_quorum: int,
        exclude: frozenset[str] = frozenset(),
    ) -> Wanted:
        """Others for those `gone` (by index)."""
        members = tuple(None if i in gone else bookie for i, bookie in enumerate(ensemble))
        return cls(members, write_quorum, ack_quorum, dict(gone), exclude | {*ensemble})

    @property
    def holes(self) -> list[int]:
        return [index for index, bookie in enumerate(self.members) if bookie is None]

    @property
    def barred(self) -> frozenset[str]:
        """Who must not be chosen."""
        kept = (bookie for bookie in self.members if bookie is not None)
        return self.exclude.union(kept, self.gone.values())

    def filled_only(self, holes: list[int]) -> Wanted:
        """The same with fewer places to fill: the others keep who is gone."""
        members = tuple(
            self.gone.get(i) if bookie is None and i not in holes else bookie
            for i, bookie in enumerate(self.members)
        )
        return replace(self, members=members, gone={i: self.gone[i] for i in holes})


class Level(enum.Enum):
    """How well an ensemble keeps to a policy; by BookKeeper's names."""

    STRICT = "strict"
    SOFT = "soft"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Adherence:
    level: Level
    reason: str = ""
    """In words of racks and bookies; '' where there is nothing to say."""

    def __bool__(self) -> bool:
        return self.level is not Level.FAIL
