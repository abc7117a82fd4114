"""The last hour of a cluster's rates, latencies and disk use, kept in memory.

There is one slot for each `STEP_S` seconds. A slot without a sample stays empty: the server was not
running, or the bookie did not answer. Times are those of the calendar, but a step of the calendar
moves no value into another slot.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire._runtime.clock import Clock
from quire.http.watch.rates import COUNTERS, LATENCIES

STEP_S = 10
"""Seconds between two samples."""
SPAN_S = 3_600
"""Seconds for which samples are kept."""
SLOTS = SPAN_S // STEP_S + 1
BOOKIES_MAX = 1_000
"""The largest number of bookies whose samples are kept. The sums over the cluster contain all
bookies."""
DIGITS = 4
"""The number of significant digits of the values in an answer."""

OF_BOOKIES = (*COUNTERS, *LATENCIES, "ledgers", "disk_used")
"""The names of the values of one bookie in a sample. `disk_used` is a share from 0 to 1."""
OF_CLUSTER = (
    *COUNTERS,
    *LATENCIES,
    "disk_used",
    "disk_used_max",
    "under_replicated",
    "bookies",
    "bookies_writable",
)
"""The names of the values of the cluster in a sample.

Rates are sums, and latencies are those of the slowest bookie. `disk_used` is the used share of all
disks, and `disk_used_max` that of the fullest bookie. The last three are numbers of ledgers and of
bookies.
"""

Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, at `first_s` (Unix time in seconds) and every `step_s` seconds after it."""

    first_s: int
    step_s: int
    values: Mapping[str, list[float | None]]
    """For each name, the values in order of time. None stands for a missing value."""


class SeriesStore:
    """The samples of the last `SPAN_S` seconds, for the cluster and for each bookie.

    Time is divided into slots of `STEP_S` seconds with consecutive numbers. One bookie needs 4
    bytes for each value and slot: about 24 kB with its dictionary.
    """

    def __init__(self, clock: Clock) -> None:
        """Create an empty store. `clock` gives the time of each sample."""
        self._clock = clock
        self._tick = -1
        self._passed_s = 0.0
        self._last_s = 0.0
        self._last_ms = 0
        self._cluster = _Ring(OF_CLUSTER)
        self._bookies: dict[str, _Ring] = {}
        self.left_out = 0
        """The number of bookies of the last sample that were left out, because of `BOOKIES_MAX`."""

    @property
    def bookies(self) -> frozenset[str]:
        """The bookies with a value in the last `SPAN_S` seconds."""
        return frozenset(self._bookies)

    def begin(self) -> int:
        """Return the number of the slot of a sample that is taken now, for `add`.

        Slots that were passed over since the last sample become empty.
        """
        now_s, now_ms = self._clock.monotonic(), self._clock.now_ms()
        if self._tick < 0:
            self._tick = 0
        else:
            # While a computer sleeps, only the calendar goes on. If the calendar is set back, only
            # the other clock does.
            self._passed_s += max(now_s - self._last_s, (now_ms - self._last_ms) / 1000)
            tick = round(self._passed_s / STEP_S)
            for ring in (self._cluster, *self._bookies.values()):
                ring.clear(self._tick + 1, tick)
            self._tick = tick
        self._last_s, self._last_ms = now_s, now_ms
        return self._tick

    def add(self, tick: int, cluster: Values, bookies: Mapping[str, Values]) -> None:
        """Store a sample in the slot that `begin` returned."""
        self._cluster.put(tick, cluster)
        self.left_out = 0
        for name, values in bookies.items():
            ring = self._bookies.get(name)
            if ring is None:
                if len(self._bookies) >= BOOKIES_MAX:
                    self.left_out += 1
                    continue
                ring = self._bookies[name] = _Ring(OF_BOOKIES)
            ring.put(tick, values)
        for name, ring in list(self._bookies.items()):
            if ring.newest <= tick - SLOTS:
                del self._bookies[name]

    def read(self, range_s: int, bookie: str | None = None) -> Series:
        """Return the values of the last `range_s` seconds, of the cluster or of a bookie.

        With None as `bookie`, they are those of the cluster. The lists are empty for a bookie
        without samples.
        """
        ring = self._cluster if bookie is None else self._bookies.get(bookie)
        names = OF_CLUSTER if bookie is None else OF_BOOKIES
        now_s = self._clock.now_ms() / 1000
        newest_s = self._last_ms / 1000
        since = self._tick - SLOTS + 1
        since = max(0, since, self._tick - math.floor((range_s - (now_s - newest_s)) / STEP_S))
        if ring is None or since > self._tick:
            return Series(round(now_s), STEP_S, {name: [] for name in names})
        first_s = round(newest_s - (self._tick - since) * STEP_S)
        return Series(first_s, STEP_S, ring.read(since, self._tick))


class _Ring:
    """The values of one bookie or of the cluster in the last `SLOTS` slots."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._values = array("f", [math.nan]) * (len(names) * SLOTS)
        self.newest = -1
        """The number of the last slot that has a value, or -1."""

    def put(self, tick: int, values: Values) -> None:
        for at, name in enumerate(self._names):
            value = values.get(name)
            if value is not None:
                self.newest = tick
            self._values[at * SLOTS + tick % SLOTS] = math.nan if value is None else value

    def clear(self, first: int, last: int) -> None:
        for tick in range(max(first, last - SLOTS + 1), last + 1):
            for at in range(len(self._names)):
                self._values[at * SLOTS + tick % SLOTS] = math.nan

    def read(self, first: int, last: int) -> dict[str, list[float | None]]:
        slots = [tick % SLOTS for tick in range(first, last + 1)]
        return {
            name: [rounded(self._values[at * SLOTS + slot]) for slot in slots]
            for at, name in enumerate(self._names)
        }


def rounded(value: float) -> float | None:
    """Return the value with `DIGITS` significant digits, or None if it is not a finite number."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
