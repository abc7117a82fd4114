"""The search for bookies such that a rule holds in every write quorum.

A greedy choice, one place after the other, misses possible ensembles. With racks a, a and b, a
second member from rack a may leave no place for b. Ensembles are small, and bookies in one location
are equal to a rule, so a search over locations finds every possible ensemble. The search is limited
nevertheless.

Bookies that failed recently are admitted one at a time. An ensemble without any of them is
preferred to one that satisfies a better rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from quire.core.placement.values import Place, View, Wanted

FIRST_STEPS_MAX = 40
"""The largest number of bookies that the first attempt of a search tries in open places. It may
choose from all bookies, and usually the first ones fit."""
STEPS_MAX = 1_000
"""The largest number of bookies that the second attempt of a search tries in open places. It may
choose from a few bookies of each location. After it, the rule counts as impossible to satisfy."""

Members = list[Place | None]
Window = Sequence[Place | None]
Rank = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the members of each write quorum (each cyclic window of the ensemble)."""

    holds: Callable[[Window], bool]
    """A function that returns whether the rule holds for a window, or can still hold if some of its
    places are open (None)."""
    feasible: Callable[[Collection[Place]], bool] = lambda places: True
    """A function that returns whether the rule can hold at all with the given bookies. If not,
    there is no search."""
    mends_nothing: bool = False
    """Whether quorums that violated the rule before a replacement may violate it afterwards."""


ANYTHING = Rule(lambda window: True)


def windows(size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Return the ensemble indexes of the members of every write quorum.

    `size` is the ensemble size. If every entry is stored by all members, there is one write quorum.
    """
    if write_quorum >= size:
        return [tuple(range(size))]
    return [
        tuple((start + k) % size for k in range(write_quorum)) for start in range(size)
    ]  # fmt: skip


def fill(
    wanted: Wanted,
    view: View,
    options: Sequence[Place],
    rules: Sequence[Rule],
    rank: Callable[[int, Place, Members], Rank],
    by_location: bool = False,
) -> dict[int, str]:
    """Return a bookie id for every open place, by ensemble index, such that one of `rules` holds.

    As few bookies as possible that failed recently are used. Among such choices, the first rule
    that can be satisfied is used. If not all bookies to replace have a replacement, only some of
    them are replaced. The result is {} if none can be replaced, or if a new ensemble cannot be
    filled completely.

    Args:
        wanted: The ensemble with its open places.
        view: The known facts about bookies.
        options: The bookies to choose from.
        rules: The rules for every write quorum, the best first.
        rank: A function that returns how well a bookie fits at an index among the members so far.
            A smaller result is better.
        by_location: Whether `rank` depends only on the location of a bookie. It is then called
            once for each location, and not once for each bookie of a large cluster.
    """
    for some in _attempts(wanted):
        if len(options) < len(some.holes):
            continue
        found = _fill_all(some, view, options, rules, rank, by_location)
        if found:
            return found
    return {}


def _attempts(wanted: Wanted) -> Iterator[Wanted]:
    yield wanted
    if not wanted.gone:
        return  # a new ensemble is filled completely or not at all
    holes = wanted.holes
    for count in range(len(holes) - 1, 1, -1):
        yield wanted.filled_only(holes[:count])
    if len(holes) > 1:
        for hole in holes:
            yield wanted.filled_only([hole])


def _fill_all(
    wanted: Wanted,
    view: View,
    options: Sequence[Place],
    rules: Sequence[Rule],
    rank: Callable[[int, Place, Members], Rank],
    by_location: bool,
) -> dict[int, str]:
    unhealthy = sum(option.bookie_id in view.failed_s for option in options)
    holes = len(wanted.holes)
    least = max(0, holes - (len(options) - unhealthy))
    few = _few(options, view, holes)
    kept = [view.find(bookie) for bookie in wanted.members if bookie is not None]
    rules = [rule for rule in rules if rule.mends_nothing or rule.feasible([*options, *kept])]

    def search(rule: Rule, unhealthy_max: int) -> dict[int, str]:
        first = _Search(
            wanted, view, options, rule, rank, by_location, unhealthy_max, FIRST_STEPS_MAX
        )
        found = first.run()
        if not found and first.steps_left < 0:
            found = _Search(
                wanted, view, few, rule, rank, by_location, unhealthy_max, STEPS_MAX
            ).run()
        return found

    most = min(holes, unhealthy)
    for unhealthy_max in range(least, most + 1):
        for rule in rules:
            found = search(rule, unhealthy_max)
            if found:
                return found
        # If no rule can hold with all unhealthy bookies, none can hold with fewer of them.
        if unhealthy_max == least < most - 1 and not any(search(rule, most) for rule in rules):
            break
    return {}


def _few(options: Sequence[Place], view: View, holes: int) -> list[Place]:
    """Return at most `holes` healthy and `holes` unhealthy bookies of each location.

    `holes` is the number of places to fill. Bookies on different hosts come first. These bookies
    are enough, because a rule does not distinguish bookies in one location.
    """
    fresh: list[Place] = []
    second: list[Place] = []
    hosts: set[tuple[str, str]] = set()
    for option in options:
        host = option.location, option.host
        (second if host in hosts else fresh).append(option)
        hosts.add(host)
    found: list[Place] = []
    counts: Counter[tuple[str, bool]] = Counter()
    for option in (*fresh, *second):
        kind = option.location, option.bookie_id in view.failed_s
        if counts[kind] < holes:
            counts[kind] += 1
            found.append(option)
    return found


class _Search:
    def __init__(
        self,
        wanted: Wanted,
        view: View,
        options: Sequence[Place],
        rule: Rule,
        rank: Callable[[int, Place, Members], Rank],
        by_location: bool,
        unhealthy_max: int,
        steps_max: int,
    ) -> None:
        self.steps_left = steps_max
        """The number of bookies that may still be tried. It is below 0 once the search has given
        up."""
        self._options = options
        self._unhealthy = view.failed_s
        self._rank = rank
        self._by_location = by_location
        self._unhealthy_left = unhealthy_max
        self._members: Members = [
            None if bookie is None else view.find(bookie) for bookie in wanted.members
        ]
        self._holes = wanted.holes
        self._rule = rule
        self._windows = windows(len(wanted.members), wanted.write_quorum)
        if rule.mends_nothing and wanted.gone:
            before = [
                view.find(bookie or wanted.gone[index])
                for index, bookie in enumerate(wanted.members)
            ]
            self._windows = [w for w in self._windows if rule.holds([before[i] for i in w])]

    def run(self) -> dict[int, str]:
        if not self._place(0):
            return {}
        return {
            index: place.bookie_id
            for index in self._holes
            if (place := self._members[index]) is not None
        }

    def _place(self, at: int) -> bool:
        """Fill the open places from `self._holes[at]` on, and return whether that succeeded."""
        if at == len(self._holes):
            return True
        index = self._holes[at]
        for option in self._best(index):
            self.steps_left -= 1
            if self.steps_left < 0:
                return False
            unhealthy = option.bookie_id in self._unhealthy
            self._members[index] = option
            self._unhealthy_left -= unhealthy
            if self._holds(index) and self._place(at + 1):
                return True
            self._members[index] = None
            self._unhealthy_left += unhealthy
        return False

    def _best(self, index: int) -> list[Place]:
        """Return the best bookie of each location, the best location first."""
        taken = {member.bookie_id for member in self._members if member is not None}
        hosts = {member.host for member in self._members if member is not None}
        best: dict[str, tuple[tuple[bool, Rank, bool, int], Place]] = {}
        ranks: dict[str, Rank] = {}
        for number, option in enumerate(self._options):
            unhealthy = option.bookie_id in self._unhealthy
            if option.bookie_id in taken or (unhealthy and not self._unhealthy_left):
                continue
            rank = ranks.get(option.location) if self._by_location else None
            if rank is None:
                rank = ranks[option.location] = self._rank(index, option, self._members)
            key = (unhealthy, rank, option.host in hosts, number)
            known = best.get(option.location)
            if known is None or key < known[0]:
                best[option.location] = (key, option)
        return [option for _, option in sorted(best.values(), key=lambda found: found[0])]

    def _holds(self, index: int) -> bool:
        members, holds = self._members, self._rule.holds
        return all(holds([members[i] for i in w]) for w in self._windows if index in w)
