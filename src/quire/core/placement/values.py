"""The values of placement: facts about bookies, an ensemble to fill, and how well one fits."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from quire.errors import UsageError

LOCATION_CHARACTERS_MAX = 255
ENSEMBLE_MAX = 10_000
"""The largest number of bookies of an ensemble. The metadata of a ledger has no room for more."""


def parse_location(text: str) -> str:
    """Return a network location in its normal form, such as '/rack' or '/region/rack'.

    A missing slash at the start is added, and one at the end is removed.
    Raises UsageError if the text is not a location.
    """
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
    """Return the components of a location, such as ("region", "rack") for '/region/rack'."""
    return tuple(location.split("/")[1:]) if location else ()


def usual_depth(depths: Iterable[int]) -> int:
    """Return the most frequent number of components, and of several such numbers the smallest."""
    counts = Counter(depths)
    return min(counts, key=lambda depth: (-counts[depth], depth))


def region_of(location: str) -> str:
    """Return the first component of a location, which is its region or zone.

    The result is empty for an empty location.
    """
    return location.split("/", 2)[1] if location else ""


def distance(one: str, other: str) -> int:
    """Return the distance of two locations: 0 for equal ones, and more the less they share.

    It is the number of components of the deeper location that follow the common beginning.
    """
    a, b = parts_of(one), parts_of(other)
    shared = 0
    for x, y in zip(a, b):
        if x != y:
            break
        shared += 1
    return max(len(a), len(b)) - shared


@dataclass(frozen=True, slots=True)
class Place:
    """The host and the location of a bookie."""

    bookie_id: str
    """The id of the bookie."""
    host: str
    """The host that the bookie has registered."""
    location: str
    """The network location, or the default location of the policy if it is not known."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a client knows about the bookies at one moment. Keys are bookie ids."""

    writable: Mapping[str, Place]
    """The bookies that may be chosen, by bookie id."""
    others: Mapping[str, Place] = field(default_factory=dict)
    """Bookies that are not chosen: read-only, not registered, `misplaced` or failed a moment
    ago."""
    failed_s: Mapping[str, float] = field(default_factory=dict)
    """The bookies that are chosen only if no other is left. The value is the number of seconds
    since the bookie failed, or -1 if it is in quarantine."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of the writable bookies: a heavier one is chosen more often. If it is empty, all
    have the same weight."""
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """Writable bookies that are not chosen, with the reason, such as 'its location /a/b/c has 3
    parts, not 2'."""
    located: bool = False
    """Whether the location of any bookie is known. Otherwise policies cannot spread over racks."""
    own_host: str = ""
    """The host of this client. It is empty if it is not known."""
    own_location: str = ""
    """The location of this client. It is empty if it is not known."""
    default_location: str = "/default-rack"
    """The location that stands for an unknown one, which the policy defines."""

    def find(self, bookie_id: str) -> Place:
        """Return the place of a bookie, with the default location if nothing is known about it."""
        found = self.writable.get(bookie_id) or self.others.get(bookie_id)
        return found or Place(bookie_id, "", self.default_location)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request to a policy: an ensemble with places for which bookies are to be chosen."""

    members: tuple[str | None, ...]
    """The id of the bookie in each place of the ensemble, or None if the place is to be filled."""
    write_quorum: int
    """The number of bookies that store each entry."""
    ack_quorum: int
    """The number of bookies that must have an entry on disk before it is acknowledged."""
    gone: Mapping[int, str] = field(default_factory=dict)
    """The bookies that are to be replaced, by ensemble index. It is empty for a new ensemble."""
    exclude: frozenset[str] = frozenset()
    """Bookies that must not be chosen, in addition to the members and the bookies to replace."""

    @classmethod
    def new(cls, size: int, write_quorum: int = 0, ack_quorum: int = 0) -> Wanted:
        """Return an ensemble of `size` open places.

        By default the write quorum is the ensemble size, and the ack quorum is the write quorum.
        Raises UsageError if the ensemble is larger than `ENSEMBLE_MAX`.
        """
        if size > ENSEMBLE_MAX:
            raise UsageError(
                f"an ensemble of {size} bookies is too large: the limit is {ENSEMBLE_MAX}. "
                "Nothing was created"
            )
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
        """Return an existing ensemble whose members in `gone`, by index, are to be replaced.

        Bookies in `exclude`, and all present members, are not chosen.
        """
        members = tuple(None if i in gone else bookie for i, bookie in enumerate(ensemble))
        return cls(members, write_quorum, ack_quorum, dict(gone), exclude | {*ensemble})

    @property
    def holes(self) -> list[int]:
        """The ensemble indexes of the places to fill, ascending."""
        return [index for index, bookie in enumerate(self.members) if bookie is None]

    @property
    def barred(self) -> frozenset[str]:
        """The ids of the bookies that must not be chosen: `exclude`, the members and `gone`."""
        kept = (bookie for bookie in self.members if bookie is not None)
        return self.exclude.union(kept, self.gone.values())

    def filled_only(self, holes: list[int]) -> Wanted:
        """Return the same ensemble with only the places at these indexes to fill.

        The other places keep the bookies that were to be replaced.
        """
        members = tuple(
            self.gone.get(i) if bookie is None and i not in holes else bookie
            for i, bookie in enumerate(self.members)
        )
        return replace(self, members=members, gone={i: self.gone[i] for i in holes})


class Level(enum.Enum):
    """How well an ensemble satisfies a policy, in BookKeeper's terms."""

    STRICT = "strict"
    """The ensemble satisfies the policy."""
    SOFT = "soft"
    """The ensemble satisfies the minimum of the policy, but not all that it desires."""
    FAIL = "fail"
    """The ensemble violates the policy."""


@dataclass(frozen=True, slots=True)
class Adherence:
    """How well an ensemble satisfies a policy, and why. Its truth value is False at level FAIL."""

    level: Level
    """How well the ensemble satisfies the policy."""
    reason: str = ""
    """The reason for the level as text that names bookies and racks. It may be empty."""

    def __bool__(self) -> bool:
        return self.level is not Level.FAIL
