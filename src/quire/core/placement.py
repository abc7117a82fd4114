"""Which bookies form an ensemble. Pure: candidates and randomness are passed in.

The host is the lowest fault domain: several bookies of one host are normal (one Python bookie uses
about one core), so an ensemble takes different hosts as long as there are enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


class Shuffler(Protocol):
    """`random.Random`, handed in."""

    def shuffle(self, x: list[str]) -> None: ...


def choose(
    candidates: Mapping[str, str],
    count: int,
    rng: Shuffler,
    *,
    exclude: Collection[str] = (),
    avoid: Collection[str] = (),
    used_hosts: Collection[str] = (),
) -> list[str]:
    """Up to `count` bookie ids out of `candidates` (id -> host), at random.

    Never one of `exclude`. Hosts not yet used come first, then used ones; bookies of `avoid` (they
    failed a moment ago) only where nothing else is left. Fewer than `count` where there are not
    enough.
    """
    hosts = set(used_hosts)
    ids = [bookie for bookie in sorted(candidates) if bookie not in exclude]
    rng.shuffle(ids)
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
