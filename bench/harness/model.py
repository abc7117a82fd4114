"""The values of the benchmark: what is run (work, measures, rows) and the results (samples)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Side = Literal["quire", "apache", "disk"]
Verb = Literal[
    "add", "read", "ledgers", "recover", "rereplicate", "latency", "tail",
    "stream write", "stream read", "stream tail",
]  # fmt: skip
Metric = Literal[
    "rate_per_s", "mb_per_s", "p50_ms", "p99_ms", "acked_p50_ms", "acked_p99_ms", "rss_mb",
]  # fmt: skip

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of load, the same for both sides."""

    verb: Verb
    entries: int
    size_bytes: int = 1024
    outstanding: int = 1000
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    ledgers: int = 1
    appends_per_s: int = 0
    """The append rate of the writer of `tail`."""
    readers: int = 1
    """The number of readers of `tail`."""
    clients: int = 0
    """The number of clients that the readers of `tail` share, or 0 for one client per reader."""
    explicit_lac_ms: int = 0
    """Milliseconds without an append after which Quire's writer of `tail` sends its LAC, or 0 for
    never.
    """
    streams: int = 1
    """The number of streams of `stream write`. Each takes `entries` records."""
    mode: Literal["many", "one"] = "many"
    """How Quire's client appends: `append_many`, or single `append` calls. Apache's has one way."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured line: one side with one work."""

    name: str
    """The name, unique within its row."""
    side: Side
    work: Work
    protocol: Literal["v2", "v3", "batch"] = "v2"
    """The protocol of Apache's client. Quire's client chooses for itself."""
    settings: tuple[str, ...] = ()
    """Further settings for Apache's client, as KEY=VALUE."""


@dataclass(frozen=True, slots=True)
class Target:
    """The project's target. `at_least` and `at_most` are multiples of Apache's value."""

    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None
    floor: float | None = None
    """The least own value of Quire, alone or in addition to `at_least`."""
    disk_share: float | None = None
    """An alternative to `at_least`: this share of what the disk allows for three replicas."""

    def text(self) -> str:
        if self.at_least is not None and self.disk_share is not None:
            return f"≥ {self.at_least:g}x, or {self.disk_share:.0%} of the disk's limit"
        if self.at_least is not None and self.floor is not None:
            return f"≥ {self.at_least:g}x, and ≥ {self.floor:,.0f}/s"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}x"
        if self.at_most is not None:
            return f"≤ {self.at_most:g}x"
        return f"< {self.below:g}" if self.below is not None else ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table."""

    title: str
    """May contain `{entries}`, `{ledgers}`, `{streams}` and `{readers}` of the work of `ours`."""
    metric: Metric
    ours: str
    theirs: str | None
    """`ours` and `theirs` are names of measures of the same row."""
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    bookies: int
    measures: tuple[Measure, ...]
    comparisons: tuple[Comparison, ...]
    zookeeper: bool = False
    """Whether Quire's metadata is in ZooKeeper too, instead of its embedded default."""
    half_load: bool = False
    """Whether each side first searches its own half load.

    This is the number of outstanding adds that gives half of the side's highest rate.
    """

    def work(self, comparison: Comparison) -> Work:
        return next(m.work for m in self.measures if m.name == comparison.ours)

    def title(self, comparison: Comparison) -> str:
        work = self.work(comparison)
        return comparison.title.format(
            entries=work.entries,
            ledgers=work.ledgers,
            streams=work.streams,
            readers=work.readers,
        )


@dataclass(frozen=True, slots=True)
class BookieUse:
    """The resources that one bookie process used while one sample was taken."""

    cpu_s: float
    written_bytes: int
    rss_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one measure. Values that a client does not print are None."""

    kind: str
    """A verb, or 'disk'."""
    rate_per_s: float | None = None
    mb_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    acked_p50_ms: float | None = None
    """The latency of `tail` from the acknowledgement on."""
    acked_p99_ms: float | None = None
    errors: int = 0
    client_cpu_s: float | None = None
    seconds: float | None = None
    bookies: tuple[BookieUse, ...] = ()

    def get(self, metric: Metric) -> float | None:
        if metric == "rss_mb":
            return max((use.rss_peak_bytes / MIB for use in self.bookies), default=None)
        value: float | None = getattr(self, metric)
        return value


@dataclass(slots=True)
class Outcome:
    """The samples of one measure over the whole run."""

    measure: Measure
    bookies: int
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def values(self, metric: Metric) -> list[float]:
        return [value for s in self.samples if (value := s.get(metric)) is not None]


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    minimum: float
    maximum: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values))


class BenchmarkError(Exception):
    """An error that the user of the benchmark must know, in one line."""
