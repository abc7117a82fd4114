"""The choice of replicas to move so that bookies hold about the same, with few bytes moved.

This module has no I/O: the contents of bookies and the allowed ensembles are arguments. Bytes are
estimated from the metadata (`fragments.entry_bytes`). A move from a bookie above the mean to one
below it is never in vain if neither crosses the mean. So the fullest bookie gives to the emptiest,
and the largest replica that fits is moved first. If no replica is small enough, one bookie may
cross the mean, as long as the fuller of the two becomes less full.
"""

from __future__ import annotations

import enum
import heapq
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.fragments import Fragment, entry_bytes, fragments, stored_count
from quire.replication.autorecovery.settings import TARGET_SPREAD_PERCENT

CANDIDATES_MAX = 50_000
"""The largest number of replicas of one bookie that a plan considers. It considers the largest
replicas. The next run considers others."""
TRIED_MAX = 2_000
"""The largest number of replicas of one bookie that are tried as moves to one other bookie."""
MOVES_MAX = 100_000
"""The largest number of moves of one plan."""

Ensemble = tuple[str, ...]
Allowed = Callable[[Ensemble, int, int], bool]
"""A function that receives an ensemble, a write quorum and an ack quorum, and returns whether a
ledger with both quorums may have the ensemble."""


def anywhere(ensemble: Ensemble, write_quorum: int, ack_quorum: int) -> bool:
    """Return True: every ensemble is allowed."""
    return True


class Blocked(enum.StrEnum):
    """A rule that forbids a move."""

    MEMBER = "member"
    """The rule that a bookie has at most one replica of a segment."""
    HOST = "host"
    """The rule that a move does not put the replicas of a segment on fewer hosts."""
    PLACEMENT = "placement"
    """The rule that a move does not make an ensemble violate the placement policy."""


@dataclass(frozen=True, slots=True)
class MovableReplica:
    """A replica that can be moved: the entries of a closed segment on its member `index`."""

    ledger: int
    segment_first: int
    index: int
    size_bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class PlannedMove:
    ledger: int
    segment_first: int
    index: int
    source: str
    target: str
    size_bytes: int
    entries: int


@dataclass(slots=True)
class BookieContents:
    """The used space and the movable replicas of bookies, collected ledger by ledger."""

    used_bytes: dict[str, int] = field(default_factory=dict)
    """The payload bytes that each bookie stores, estimated from the metadata. Open ledgers count as
    0, because their length is unknown."""
    replicas: dict[str, list[tuple[int, int, int, int, int]]] = field(default_factory=dict)
    """A heap of the movable replicas of each bookie: (bytes, ledger, segment, index, entries). It
    has only the `CANDIDATES_MAX` largest ones."""
    ensembles: dict[tuple[int, int], tuple[Ensemble, int, int]] = field(default_factory=dict)
    """The ensemble, the write quorum and the ack quorum of each segment with movable replicas, by
    ledger id and first entry id."""

    def add(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Add the replicas of one ledger.

        The size of the entries of an open ledger is not known, so none of its replicas are movable.
        """
        mean = entry_bytes(metadata)
        for fragment in fragments(metadata, metadata.last_entry_id):
            self._add(ledger_id, metadata, fragment, mean)

    def _add(
        self, ledger_id: int, metadata: LedgerMetadata, fragment: Fragment, mean: float
    ) -> None:
        for index, bookie in enumerate(fragment.ensemble):
            count = stored_count(metadata, index, fragment.first, fragment.last)
            size = int(count * mean)
            self.used_bytes[bookie] = self.used_bytes.get(bookie, 0) + size
            if not fragment.closed or not size:
                continue
            quorums = metadata.write_quorum, metadata.ack_quorum
            self.ensembles[ledger_id, fragment.segment_first] = (fragment.ensemble, *quorums)
            heap = self.replicas.setdefault(bookie, [])
            one = (size, ledger_id, fragment.segment_first, index, count)
            if len(heap) < CANDIDATES_MAX:
                heapq.heappush(heap, one)
            else:
                heapq.heappushpop(heap, one)


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """A plan of moves, with its effect."""

    moves: tuple[PlannedMove, ...]
    before: Mapping[str, int]
    """The used bytes of each writable bookie before the moves."""
    after: Mapping[str, int]
    """The used bytes of each writable bookie after the moves."""
    blocked: Mapping[Blocked, int] = field(default_factory=dict)
    """The number of moves that each rule forbade in the last search, which found no allowed move.
    It is empty if the bookies are balanced, or if `MOVES_MAX` ended the plan."""
    too_large: bool = False
    """Whether the plan ended because every replica on the fuller bookies is too large: the bookie
    that received it would be as full as the one that gave it."""

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.moves)

    @property
    def spread_before(self) -> float:
        return spread_percent(self.before.values())

    @property
    def spread_after(self) -> float:
        return spread_percent(self.after.values())


def spread_percent(used: Iterable[int]) -> float:
    """Return the difference between the fullest and the emptiest bookie, in percent of the mean.

    `used` has the used bytes of each bookie. The result is 0 if all of them are 0.
    """
    values = list(used)
    total = sum(values)
    return (max(values) - min(values)) * len(values) * 100 / total if total else 0.0


def make_plan(
    stock: BookieContents,
    writable: Collection[str],
    rng: random.Random,
    *,
    hosts: Mapping[str, str],
    allowed: Allowed = anywhere,
    target_spread_percent: float = TARGET_SPREAD_PERCENT,
    max_bytes: int | None = None,
) -> RebalancePlan:
    """Plan moves among the writable bookies, in the order in which they are to be done.

    Each move improves the balance. `rng` chooses among equal moves. No move puts two replicas of a
    segment on one bookie, puts the replicas on fewer hosts than before, or changes an ensemble that
    is `allowed` to one that is not. `hosts` has the host of each bookie, by bookie id; a bookie
    that is missing counts as a host of its own. The plan ends when the spread is at most
    `target_spread_percent`, or when another move would exceed `max_bytes` in all. With None, the
    bytes are not limited.
    """
    before = {bookie: stock.used_bytes.get(bookie, 0) for bookie in sorted(writable)}
    planner = _Planner(stock, before, rng, hosts, allowed)
    moves: list[PlannedMove] = []
    moved = 0
    while len(moves) < MOVES_MAX and spread_percent(planner.used.values()) > target_spread_percent:
        limit = None if max_bytes is None else max_bytes - moved
        found = planner.next(limit)
        if found is None:
            break
        moves.append(found)
        moved += found.size_bytes
    balanced = spread_percent(planner.used.values()) <= target_spread_percent
    blocked = {} if balanced or len(moves) == MOVES_MAX else dict(planner.blocked)
    ended = not balanced and len(moves) < MOVES_MAX
    too_large = ended and not blocked and max_bytes is None
    return RebalancePlan(tuple(moves), before, dict(planner.used), blocked, too_large)


class _Planner:
    def __init__(
        self,
        stock: BookieContents,
        used: Mapping[str, int],
        rng: random.Random,
        hosts: Mapping[str, str],
        allowed: Allowed,
    ) -> None:
        self.used = dict(used)
        self.blocked: Counter[Blocked] = Counter()
        """The number of moves that each rule forbade in the last search."""
        self._hosts = hosts
        self._allowed = allowed
        self._ensembles = dict(stock.ensembles)
        self._order = list(used)
        rng.shuffle(self._order)  # which of equal bookies comes first
        self._replicas: dict[str, list[MovableReplica]] = {}
        for bookie in used:
            found = [
                MovableReplica(ledger, segment, index, size, entries)
                for size, ledger, segment, index, entries in stock.replicas.get(bookie, ())
            ]
            rng.shuffle(found)
            found.sort(key=lambda one: -one.size_bytes)
            self._replicas[bookie] = found

    def next(self, limit_bytes: int | None) -> PlannedMove | None:
        """Return the best move, or None if no move improves the balance.

        A replica of more than `limit_bytes` bytes is not moved. None means no limit.
        """
        self.blocked.clear()
        mean = sum(self.used.values()) / max(len(self.used), 1)
        full = sorted(self._order, key=lambda bookie: -self.used[bookie])
        empty = full[::-1]
        for past_mean in (False, True):
            for source in full:
                if self.used[source] <= mean:
                    break
                for target in empty:
                    if self.used[target] >= mean:
                        break
                    room = self.used[source] - self.used[target] - 1
                    if not past_mean:
                        room = int(min(self.used[source] - mean, mean - self.used[target]))
                    if limit_bytes is not None:
                        room = min(room, limit_bytes)
                    found = self._take(source, target, room)
                    if found is not None:
                        return found
        return None

    def _take(self, source: str, target: str, room: int) -> PlannedMove | None:
        replicas = self._replicas[source]
        begin = bisect_left(replicas, -room, key=lambda one: -one.size_bytes)
        for at in range(begin, min(begin + TRIED_MAX, len(replicas))):
            one = replicas[at]
            key = one.ledger, one.segment_first
            ensemble, *quorums = self._ensembles[key]
            changed = (*ensemble[: one.index], target, *ensemble[one.index + 1 :])
            why = self._why_not(ensemble, changed, target, *quorums)
            if why is not None:
                self.blocked[why] += 1
                continue
            del replicas[at]
            self._ensembles[key] = (changed, quorums[0], quorums[1])
            self.used[source] -= one.size_bytes
            self.used[target] += one.size_bytes
            return PlannedMove(
                one.ledger, one.segment_first, one.index, source, target, one.size_bytes,
                one.entries,
            )  # fmt: skip
        return None

    def _why_not(
        self,
        ensemble: Ensemble,
        changed: Ensemble,
        target: str,
        write_quorum: int,
        ack_quorum: int,
    ) -> Blocked | None:
        if target in ensemble:
            return Blocked.MEMBER
        if self._hosts_of(changed) < self._hosts_of(ensemble):
            return Blocked.HOST
        quorums = write_quorum, ack_quorum
        if self._allowed(changed, *quorums) or not self._allowed(ensemble, *quorums):
            return None
        return Blocked.PLACEMENT

    def _hosts_of(self, ensemble: Sequence[str]) -> int:
        return len({self._hosts.get(bookie, bookie) for bookie in ensemble})
