"""The bookies that gave wrong answers to this process, while that is news."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.client.cluster.health import UnhealthyBookie

KEPT_S = 3_600.0
"""Seconds after the last wrong answer for which it is reported. The bookie may be repaired then."""


class Suspects:
    """When the numbers of wrong answers, which a client counts without a time, last grew."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}
        """The number of wrong answers by bookie and kind, and when it was first seen."""

    def recent(self, found: Sequence[UnhealthyBookie]) -> list[UnhealthyBookie]:
        """Return those of a client's suspects whose number grew in the last `KEPT_S` seconds.

        `found` is what `Client.suspects` returns now.
        """
        now_s = self._monotonic()
        seen = {}
        for one in found:
            key = one.bookie, one.kind.value
            count, since_s = self._seen.get(key, (0, now_s))
            seen[key] = (one.count, since_s if count == one.count else now_s)
        self._seen = seen
        return [one for one in found if now_s - seen[one.bookie, one.kind.value][1] <= KEPT_S]
