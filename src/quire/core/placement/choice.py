"""The choice where nothing is known but hosts.

The host is the lowest fault domain: several bookies of one host are normal (one Python bookie uses
about one core), so an ensemble takes different hosts as long as there are enough.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import Protocol


class Shuffler(Protocol):
    """`random.Random`, handed in."""

    def shuffle(self, x: list[str]) -> None: ...


class Chance(Shuffler, Protocol):
    """The same, where weights count."""

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
    """Up to `count` bookie ids out of `candidates` (id -> host), at random.

    Never one of `exclude`. Hosts not yet used come first, then used ones; bookies of `avoid` (they
    failed a moment ago) only where nothing else is left. Fewer than `count` where there are not
    enough. With `weights` (then `rng` is a `Chance`) heavier ones are chosen more often.
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
    """Put them into a random order, in place. With weights, the first is each one with a
    probability in proportion to its weight, the second likewise among those left, and so on."""
    if not weights:
        rng.shuffle(ids)
        return
    assert hasattr(rng, "random")
    # The largest of u**(1/w) falls on each with probability w / sum of w.
    keys = {b: rng.random() ** (1 / weights[b]) if weights.get(b, 0) > 0 else 0.0 for b in ids}
    ids.sort(key=lambda bookie: -keys[bookie])


def weighed(
    free_bytes: Mapping[str, int], ids: Collection[str], multiple: float
) -> dict[str, float]:
    """Weights out of free disk space, for all `ids`: at most `multiple` times the median, so that a
    new, empty bookie does not get everything; one that did not tell counts as the fullest."""
    known = [free_bytes[bookie] for bookie in ids if free_bytes.get(bookie, 0) > 0]
    if not known:
        return {}
    least = min(known)
    cap = multiple * statistics.median(known)
    return {bookie: min(free_bytes.get(bookie, 0) or least, cap) for bookie in ids}
