"""Which replicas to move so that bookies hold about the same, with as few bytes moved as can be.
Pure: what there is, and who may stand where, is handed in.

Bytes are estimated from the metadata (`fragments.entry_bytes`). A byte that goes from a bookie
above the mean to one below it, and no further, is never moved in vain; so the fullest gives to the
emptiest, the largest replica first that takes neither past the mean. Where none is small enough,
one may be taken past it, as long as the fuller of the two becomes less full by it.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.fragments import Fragment, entry_bytes, fragments, stored_count
from quire.replication.autorecovery.settings import TARGET_SPREAD_PERCENT

CANDIDATES_MAX = 50_000
"""Replicas of one bookie that are thought of, the largest: a plan for more is made by the next
run."""
TRIED_MAX = 2_000
"""Replicas of one bookie that are tried for a place on another one."""
MOVES_MAX = 100_000
"""Of one plan."""

Ensemble = tuple[str, ...]
Allowed = Callable[[Ensemble, int, int], bool]
"""Whether a ledger with this write quorum and ack quorum may stand on these bookies."""


def anywhere(ensemble: Ensemble, write_quorum: int, ack_quorum: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class MovableReplica:
    """What the member `index` of a closed segment should hold."""

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
    """What bookies hold, collected ledger by ledger."""

    used_bytes: dict[str, int] = field(default_factory=dict)
    """By bookie; open segments as far as their length is known."""
    replicas: dict[str, list[tuple[int, int, int, int, int]]] = field(default_factory=dict)
    """By bookie, a heap of those that may be moved: (bytes, ledger, segment, index, entries)."""
    ensembles: dict[tuple[int, int], tuple[Ensemble, int, int]] = field(default_factory=dict)
    """Of the segments in which these stand, with write quorum and ack quorum."""

    def add(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """One ledger. Of one that is still written only the segments before the last may be moved;
        how large their entries are is not known, so they are left where they are."""
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
    moves: tuple[PlannedMove, ...]
    before: Mapping[str, int]
    """Bytes by bookie, of those that may hold more."""
    after: Mapping[str, int]

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
    """From the emptiest to the fullest, in percent of the mean."""
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
    """Moves among the writable bookies, in the order in which they are to be done: each leaves the
    cluster better than before. Equal ones are chosen among by `rng`.

    No move puts two replicas of a segment on one bookie, or its replicas on fewer hosts than
    before, or makes an ensemble that is not `allowed` out of one that is."""
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
    return RebalancePlan(tuple(moves), before, dict(planner.used))


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
        """The best move there is; None: nothing becomes better."""
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
            if not self._may(ensemble, changed, target, *quorums):
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

    def _may(
        self,
        ensemble: Ensemble,
        changed: Ensemble,
        target: str,
        write_quorum: int,
        ack_quorum: int,
    ) -> bool:
        if target in ensemble:
            return False
        if self._hosts_of(changed) < self._hosts_of(ensemble):
            return False
        quorums = write_quorum, ack_quorum
        return self._allowed(changed, *quorums) or not self._allowed(ensemble, *quorums)

    def _hosts_of(self, ensemble: Sequence[str]) -> int:
        return len({self._hosts.get(bookie, bookie) for bookie in ensemble})
