"""The choice of bookies if only their hosts are known.

The host is the lowest fault domain. Several bookies on one host are normal, because one Python
bookie uses about one core. Therefore an ensemble uses different hosts as long as there are enough.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import Protocol


class Shuffler(Protocol):
    """A source of random order, such as `random.Random`."""

    def shuffle(self, x: list[str]) -> None: ...


class Chance(Shuffler, Protocol):
    """A source of random order and of random numbers, which weights need."""

    def random(self) -> float: ...


def choose(
    candidates: Mapping[str, str],
    count: int,
    rng: Shuffler,
    *,
    exclude: Collection[str] = (),
    avoid: Collection[str] = (),
    used_hosts: Collection[str] = (),
    weights: Mapping[str, float] | None = None,
) -> list[str]:
    """Return up to `count` bookies, at random.

    Bookies on hosts that are not used yet are chosen first. Bookies in `avoid` are chosen only if
    no other is left. The result is shorter than `count` if there are not enough.

    Args:
        candidates: The host of each bookie that can be chosen, by bookie id.
        count: The number of bookies wanted.
        rng: The source of randomness. It must be a `Chance` if there are weights.
        exclude: Bookies that are never chosen.
        avoid: Bookies that failed recently.
        used_hosts: Hosts that have a member of the ensemble already.
        weights: The weight of each bookie. A heavier one is chosen more often. None gives all
            bookies the same weight.
    """
    hosts = set(used_hosts)
    ids = [bookie for bookie in sorted(candidates) if bookie not in exclude]
    mix(ids, rng, weights)
    chosen: list[str] = []
    for reluctant in (False, True):
        pool = [b for b in ids if (b in avoid) is reluctant and b not in chosen]
        for fresh_host in (True, False):
            for bookie in pool:
                if len(chosen) == count:
                    return chosen
                if bookie in chosen or (fresh_host and candidates[bookie] in hosts):
                    continue
                chosen.append(bookie)
                hosts.add(candidates[bookie])
    return chosen


def mix(ids: list[str], rng: Shuffler, weights: Mapping[str, float] | None = None) -> None:
    """Put the bookies into a random order, in place.

    With weights, each bookie is the first with a probability in proportion to its weight. The
    second is chosen in the same way among the others, and so on. Without weights, every order is
    equally likely.
    """
    if not weights:
        rng.shuffle(ids)
        return
    assert hasattr(rng, "random")
    # Each bookie has the largest u**(1/w) with probability w / sum of w.
    keys = {b: rng.random() ** (1 / weights[b]) if weights.get(b, 0) > 0 else 0.0 for b in ids}
    ids.sort(key=lambda bookie: -keys[bookie])


def weighed(
    free_bytes: Mapping[str, int], ids: Collection[str], multiple: float
) -> dict[str, float]:
    """Return weights for the bookies `ids`, in proportion to their free disk space.

    A weight is at most `multiple` times the median free space, so that a new, empty bookie does not
    receive every ledger. A bookie whose free space is not known counts as the fullest one. The
    result is empty if no free space is known.
    """
    known = [free_bytes[bookie] for bookie in ids if free_bytes.get(bookie, 0) > 0]
    if not known:
        return {}
    least = min(known)
    cap = multiple * statistics.median(known)
    return {bookie: min(free_bytes.get(bookie, 0) or least, cap) for bookie in ids}
