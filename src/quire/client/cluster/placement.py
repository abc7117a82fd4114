"""The placement of one client: its policy, and the locations and free space of the bookies."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TypeVar

from quire._runtime.tasks import TaskSet, UnexpectedErrors, each
from quire._runtime.units import are, some_of
from quire.client.cluster.location_files import FileLocations, ScriptLocations
from quire.client.cluster.locations import (
    PULSAR_NODE,
    Locations,
    MetadataLocations,
    TableLocations,
)
from quire.config import PlacementConfig
from quire.core.placement import (
    POLICIES,
    Adherence,
    Level,
    Place,
    Policy,
    View,
    Wanted,
    parse_location,
    weighed,
)
from quire.core.placement.descriptions import NAMES_MAX, situation
from quire.core.placement.settings import parse_placement as parse_placement
from quire.core.placement.values import parts_of, usual_depth
from quire.errors import NotEnoughBookiesError, QuireError, UsageError
from quire.metadata.interface import BookieAddress, Bookies, MetadataStore

T = TypeVar("T")

logger = logging.getLogger("quire.placement")

ENTRY_POINTS = "quire.placement"
"""The group of Python entry points in which packages register placement policies of their own."""
SEE_BOOKIES = "`quire explain cluster` says why bookies are gone or read-only"
"""The last sentence of the remedy when there are not enough writable bookies."""
RETRY_S = 5.0
"""The longest time, in seconds, until a source of locations that failed is asked again."""


_BY_LOCATION = ("rack-aware", "region-aware", "zone-aware", "any")
"""The policies that use the host of a bookie only to find its location, and to avoid two bookies on
one host."""


def make_policy(config: PlacementConfig) -> Policy:
    """Return a new placement policy with the configured name.

    Args:
        config: The placement configuration, which the policy receives.

    Raises:
        UsageError: There is no such policy, or its settings contradict each other.
    """
    make: Callable[[PlacementConfig], Policy] | None = POLICIES.get(config.policy)
    if make is None:
        found = entry_points(group=ENTRY_POINTS, name=config.policy)
        if not found:
            known = [*POLICIES, *sorted({point.name for point in entry_points(group=ENTRY_POINTS)})]
            raise UsageError(
                f"{config.policy!r} is not a placement policy",
                remedy=f"Choose one of {', '.join(known)}, or install the package that provides it",
            )
        make = next(iter(found)).load()
    return make(config)


def open_locations(config: PlacementConfig, metadata: MetadataStore) -> Locations | None:
    """Return the configured source of locations, or None if none is configured.

    The caller closes it.

    Raises:
        UsageError: There is no such source, or a location in the configured table is not valid.
    """
    given = config.locations
    if not isinstance(given, str):
        return TableLocations(given)
    if not given:
        return None
    kind, _, rest = given.partition(":")
    if kind == "metadata":
        return MetadataLocations(metadata, rest or PULSAR_NODE)
    if kind == "table" and rest:
        return FileLocations(rest, config)
    if kind == "script" and rest:
        return ScriptLocations(rest, config)
    raise UsageError(
        f"{given!r} is not a source of the locations of bookies",
        remedy="Use table:FILE, script:FILE, metadata or metadata:/NODE",
    )


class Placement:
    """The placement policy of a client, and the locations and free space of the bookies.

    The client's `BookiePool` makes this object, and reports every change of the registered bookies
    to it.
    """

    def __init__(
        self,
        config: PlacementConfig,
        metadata: MetadataStore,
        rng: random.Random,
        tasks: TaskSet,
        free_bytes: Callable[[str], Awaitable[int]],
        failed_s: Callable[[], Mapping[str, float]],
    ) -> None:
        """Make the policy and the source of locations.

        Args:
            config: The placement configuration.
            metadata: The metadata store, which may hold the locations.
            rng: The source of random choices.
            tasks: The owner of background tasks.
            free_bytes: A function that asks a bookie for its free disk space, with a time-out.
            failed_s: A function that returns the bookies to avoid, each with the seconds since its
                failure, or -1 if it is in quarantine.
        """
        self.config = config
        self.policy = make_policy(config)
        self._own_location = parse_location(config.own_location) if config.own_location else ""
        self._locations = open_locations(config, metadata)
        self._rng = rng
        self._tasks = tasks
        self._unexpected = UnexpectedErrors()
        self._ask_free_bytes = free_bytes
        self._free_bytes: dict[str, int] = {}
        self._bookies = Bookies({}, {})
        self._plain: tuple[Bookies, dict[str, Place]] = self._bookies, {}
        self._known: Mapping[str, BookieAddress] = {}
        self._failed_s = failed_s
        self._asked: set[str] = set()
        self._learned = asyncio.Event()
        self._come = asyncio.Event()
        self._told: dict[str, str] = {}
        self._work: list[asyncio.Task[None]] = []

    # -- what is asked of it ------------------------------------------------------------------

    def adherence(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        """Return how well an ensemble satisfies the policy, and as text where it does not.

        Without a configured source of locations the result is STRICT, unless the policy enforces
        something even then (`Policy.indifferent`).

        Args:
            ensemble: The ids of the bookies, in order.
            write_quorum: The write quorum of the ledger.
            ack_quorum: The ack quorum of the ledger.

        Raises:
            UsageError: The policy of another package fails.
        """
        view = self.view()
        if self._locations is None and self._asked_of(lambda policy: policy.indifferent(view)):
            return Adherence(Level.STRICT, "no locations are known")
        members = [view.find(bookie) for bookie in ensemble]
        return self._asked_of(
            lambda policy: policy.adherence(members, write_quorum, ack_quorum, view)
        )

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Raise UsageError if the policy can never be satisfied with these quorums."""
        self._asked_of(lambda policy: policy.check(ensemble_size, write_quorum, ack_quorum))

    def _asked_of(self, question: Callable[[Policy], T]) -> T:
        """Ask the policy. Raises UsageError if it is of another package, and fails."""
        try:
            return question(self.policy)
        except Exception as error:
            if self.config.policy in POLICIES or isinstance(error, QuireError):
                raise
            raise UsageError(
                f"the placement policy {self.config.policy!r}, which another package provides, "
                f"failed: {error!r}",
                remedy="Report this to the author of the policy, or choose another one",
            ) from error

    def ack_domains(
        self, ensemble: Sequence[str], write_quorum: int
    ) -> tuple[list[str], int] | None:
        """Return the fault domain of each member, and the number of domains that an entry needs.

        An entry counts as acknowledged once an ack quorum has it in that many domains. Returns None
        if an ack quorum alone is enough, as without `spread_acks`. Raises UsageError if the policy
        of another package fails.
        """
        if not self.config.spread_acks:
            return None
        view = self.view()
        members = [view.find(bookie) for bookie in ensemble]
        return self._asked_of(lambda policy: policy.ack_domains(members, write_quorum, view))

    def location(self, bookie_id: str) -> str:
        """Return the location of a bookie, or the default of the policy if it is not known."""
        return self.view().find(bookie_id).location

    def relocate(self, table: Mapping[str, str]) -> None:
        """Use this table of locations, by bookie id or host, instead of the configured source.

        Raises UsageError if a location is not valid; nothing is changed then.
        """
        locations = TableLocations(table)
        if self._locations is not None:
            self._locations.close()
        self._locations = locations
        self._learned.set()

    @property
    def location_failures(self) -> int:
        """The number of times that the source of locations failed."""
        return 0 if self._locations is None else self._locations.failures

    @property
    def location_trouble(self) -> str:
        """The reason why the source of locations failed the last time, or "" if it succeeded."""
        return "" if self._locations is None else self._locations.trouble

    def fill(self, wanted: Wanted, view: View) -> dict[int, str]:
        """Return a bookie id for each open place, by ensemble index, as the policy chooses them.

        There are fewer bookies, or none, if too few satisfy the policy. Raises UsageError if the
        policy of another package fails, or chooses a bookie that must not be chosen.
        """
        found = self._asked_of(lambda policy: policy.fill(wanted, view, self._rng))
        barred = wanted.barred
        for bookie in found.values():
            if bookie in barred or bookie not in view.writable:
                raise UsageError(
                    f"the placement policy {self.config.policy!r} chose bookie {bookie}, which "
                    "is not writable or must not be chosen",
                    remedy="Report this to the author of the policy, or choose another one",
                )
        if len(set(found.values())) < len(found):
            raise UsageError(
                f"the placement policy {self.config.policy!r} chose a bookie twice for one "
                "ensemble",
                remedy="Report this to the author of the policy, or choose another one",
            )
        return found

    @property
    def needs_addresses(self) -> bool:
        """Whether this placement needs the address of every bookie before it chooses any.

        Otherwise it may first take the host of each bookie from the bookie's id, as long as the
        addresses of the chosen bookies are read before they are used. With a script, another
        policy, `spread_acks` or near reads, the addresses of all bookies decide which are chosen.
        """
        return (
            self.config.policy not in _BY_LOCATION
            or isinstance(self._locations, ScriptLocations)
            or self.config.spread_acks
            or self.orders_reads
        )

    def unplaced(self) -> list[str]:
        """Return the bookies with an assumed address whose location is not known.

        Neither the id of such a bookie nor the host in the id has a location. The result is empty
        if no source of locations is configured.
        """
        if self._locations is None:
            return []
        assumed = (one for one in self._bookies.writable.values() if one.assumed)
        return [
            one.bookie_id
            for one in assumed
            if self._locations.find(one.bookie_id, one.host) is None
        ]

    def why(self, wanted: Wanted, view: View) -> str:
        """Return text that says which bookies are wanted, and why there are not enough.

        It names the bookies that are registered and read-only, as far as this client knows. Raises
        UsageError if the policy of another package fails.
        """
        verb = "is" if len(wanted.holes) == 1 else "are"
        wish = self._asked_of(lambda policy: policy.wish(wanted, view))
        closed = self._bookies.readonly.keys() - self._bookies.writable.keys() - wanted.barred
        readonly = f"; {some_of(sorted(closed), NAMES_MAX)} {are(len(closed))} read-only"
        return f"{wish} {verb} wanted; {situation(wanted, view)}{readonly if closed else ''}"

    def enough_elsewhere(self, wanted: Wanted, view: View) -> bool:
        """Return whether there are enough writable bookies, but not where the policy wants them."""
        choosable = {*view.writable, *view.misplaced} - wanted.barred
        return view.located and len(choosable) >= len(wanted.holes)

    def too_few(self, wanted: Wanted) -> NotEnoughBookiesError:
        """Return the error for a new ensemble for which there are too few bookies.

        Raises UsageError if the policy of another package fails.
        """
        view = self.view()
        remedy = "Start more bookies or ask for a smaller ensemble"
        if self.enough_elsewhere(wanted, view):
            remedy = (
                "Start bookies in other places, ask for a smaller ensemble, or lower the minimum"
            )
        if self.location_trouble:
            remedy += f" (locations may be out of date: {self.location_trouble})"
        return NotEnoughBookiesError(self.why(wanted, view), remedy=f"{remedy}. {SEE_BOOKIES}")

    def read_order(self, bookies: Sequence[str]) -> list[str]:
        """Return the bookies in the order in which the policy wants readers to ask them.

        A policy that prefers near bookies sorts them by their distance from this client. Bookies
        that a policy leaves out come last: an entry is missing only if every replica denies it.
        Raises UsageError if the policy of another package fails.
        """
        default = self.policy.default_location
        known = {b: self._known[b] for b in bookies if b in self._known}
        places = {b: self._place(address, default) for b, address in known.items()}
        view = View(
            places,
            own_host=self.config.own_host,
            own_location=self._own(),
            default_location=default,
        )
        order = self._asked_of(lambda policy: policy.read_order(bookies, view))
        return list(dict.fromkeys((*(one for one in order if one in bookies), *bookies)))

    @property
    def orders_reads(self) -> bool:
        """Whether `read_order` can return another order than the one that it receives."""
        if self.config.policy not in POLICIES:
            return True
        near = bool(self.config.own_location or self.config.own_host)
        return near and self.config.local_reads is not False

    # -- what it knows ------------------------------------------------------------------------

    def view(self, rested_out: frozenset[str] = frozenset()) -> View:
        """Return everything that this client knows about the bookies now.

        `rested_out` has the ids of the writable bookies that must not be chosen, because they
        failed a moment ago.
        """
        default = self.policy.default_location
        places = self._writable(default)
        located = self._locations is not None and any(
            place.location != default for place in places.values()
        )
        misplaced = self._misplaced(places, default) if located else {}
        out = {*misplaced, *rested_out}
        others: dict[str, Place] = {}
        if self._locations is not None or self.config.policy not in POLICIES:
            others = {
                bookie: self._place(address, default)
                for bookie, address in self._known.items()
                if bookie not in places
            }
        others.update({bookie: places[bookie] for bookie in out if bookie in places})
        writable = {b: place for b, place in places.items() if b not in out} if out else places
        weights: dict[str, float] = {}
        if self.config.disk_weighted:
            weights = weighed(self._free_bytes, writable.keys(), self.config.weight_multiple_max)
        return View(
            writable=writable,
            others=others,
            failed_s=self._failed_s(),
            weights=weights,
            misplaced=misplaced,
            located=located,
            own_host=self.config.own_host,
            own_location=self._own(),
            default_location=default,
        )

    def _writable(self, default: str) -> dict[str, Place]:
        """Return the places of the writable bookies, by bookie id.

        Without a source of locations, the result is the same object until the registered bookies
        change.
        """
        if self._locations is not None or self._plain[0] is not self._bookies:
            writable = self._bookies.writable
            places = {b: self._place(address, default) for b, address in writable.items()}
            self._plain = self._bookies, places
        return self._plain[1]

    def _place(self, address: BookieAddress, default: str) -> Place:
        found = None
        if self._locations is not None:
            found = self._locations.find(address.bookie_id, address.host)
        return Place(address.bookie_id, address.host, found or default)

    def _own(self) -> str:
        host = self.config.own_host
        if self._own_location or not host or self._locations is None:
            return self._own_location
        return self._locations.find(host, host) or ""

    def _misplaced(self, places: Mapping[str, Place], default: str) -> dict[str, str]:
        """Return the bookies that are not chosen because of their locations, with the reasons.

        A location must have the number of components that the policy demands, or else the number
        that most locations have.
        """
        depths = {
            bookie: len(parts_of(place.location))
            for bookie, place in places.items()
            if place.location != default
        }
        wanted = self.policy.parts
        if wanted is None:
            wanted = usual_depth(depths.values())
        found: dict[str, str] = {}
        for bookie, depth in depths.items():
            if depth != wanted:
                location = places[bookie].location
                found[bookie] = f"its location {location} has {depth} parts, not {wanted}"
                if self._told.get(bookie) != location:
                    self._told[bookie] = location
                    logger.warning(
                        "bookie %s is not chosen: %s", bookie, found[bookie],
                        extra={"event": "bookie_not_chosen", "bookie": bookie},
                    )  # fmt: skip
        return found

    # -- what changes -------------------------------------------------------------------------

    def on_bookies(self, bookies: Bookies, known: Mapping[str, BookieAddress]) -> None:
        """Replace the known registered bookies by `bookies`.

        `known` has the address of every bookie that was registered since the client was made. The
        caller may add to it later.
        """
        self._bookies = bookies
        self._known = known
        come, self._come = self._come, asyncio.Event()
        come.set()
        if self._work:
            return
        if self._asks:
            self._work.append(self._tasks.start(self._learn_on()))
        if self.config.disk_weighted:
            self._work.append(self._tasks.start(self._weigh_on()))

    async def settle(self, deadline: float) -> None:
        """Wait until the source of locations was asked for all writable bookies.

        It waits until loop time `deadline` at the latest. Cancel-safe.
        """
        if not self._asks:
            return
        try:
            async with asyncio.timeout_at(deadline):
                while self._asks and not self._asked.issuperset(self._bookies.writable):
                    await self._learned.wait()
        except TimeoutError:
            pass

    @property
    def _asks(self) -> bool:
        """Whether there is a source of locations that has to be asked. A fixed table is not."""
        return self._locations is not None and type(self._locations) is not TableLocations

    async def _learn_on(self) -> None:
        """Ask the source of locations whenever a new bookie has registered, and at intervals.

        It runs until it is cancelled, or until the source is replaced by a fixed table.
        """
        while self._asks:
            source = self._locations
            assert source is not None
            bookies = {**self._bookies.readonly, **self._bookies.writable}
            try:
                await source.learn(list(bookies.values()))
            except Exception as error:  # noqa: BLE001 - otherwise no location would be learnt again
                self._unexpected.note("learn locations", error)
            self._asked = set(bookies)
            learned, self._learned = self._learned, asyncio.Event()
            learned.set()
            wait_s = source.refresh_s
            if source.trouble and wait_s is not None:
                wait_s = min(wait_s, RETRY_S)
            await self._others_than(self._asked, wait_s)

    async def _others_than(self, asked: set[str], wait_s: float | None) -> None:
        """Wait until a bookie is registered that is not in `asked`, for `wait_s` seconds at most.

        Without `wait_s` there is no limit.
        """
        try:
            async with asyncio.timeout(wait_s):
                while asked.issuperset({*self._bookies.writable, *self._bookies.readonly}):
                    await self._come.wait()
        except TimeoutError:
            pass

    async def _weigh_on(self) -> None:
        """Ask bookies for free disk space every `weight_refresh_s`, and when a new one registers.

        The free space of a bookie that does not answer is unknown.
        """
        while True:
            bookies = {**self._bookies.readonly, **self._bookies.writable}
            try:
                found = await each(bookies, self._free_of)
            except Exception as error:  # noqa: BLE001 - otherwise the weights would stay for ever
                self._unexpected.note("ask for free space", error)
            else:
                self._free_bytes = {b: free for b, free in zip(bookies, found) if free is not None}
            await self._others_than(set(bookies), self.config.weight_refresh_s)

    async def _free_of(self, bookie_id: str) -> int | None:
        try:
            return await self._ask_free_bytes(bookie_id)
        except QuireError:
            return None

    def close(self) -> None:
        """Close the source of locations."""
        if self._locations is not None:
            self._locations.close()
