"""Numbers for monitoring: histograms of durations, and Prometheus' text format.

Code that counts keeps plain integers, and a `Metric` is made of them when metrics are requested.
Only durations need more than an integer: the code that measures them receives a `Histogram` as an
argument, which can count a whole batch in one call. There is no registry and no global state.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""The quantiles of a summary, which are those that Apache BookKeeper reports."""
WINDOW_S = 60.0
"""The length of a window for quantiles, in seconds. Quantiles cover the last one or two windows."""

Kind = Literal["counter", "gauge", "histogram", "summary"]

BOUNDS_S: tuple[float, ...] = (
    *(base * 10.0**power for power in range(-5, 1) for base in (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)),
    10.0,
)
"""The upper bounds of a histogram's buckets, in seconds: from ten microseconds to ten seconds, six
for each power of ten."""
EXPOSED_BOUNDS_S = BOUNDS_S[::3]
"""The bucket bounds that appear in Prometheus' text format, two for each power of ten."""


class Histogram:
    """A histogram of durations in seconds. It is not safe for several threads at once."""

    __slots__ = ("_before", "_since", "_since_s", "counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """The number of durations in each bucket of `BOUNDS_S`. The last bucket has the durations
        beyond all bounds."""
        self.sum_s = 0.0
        self._since = self._before = [0] * len(self.counts)
        self._since_s = -math.inf

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count `count` durations of `seconds` each."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum_s += seconds * count

    @property
    def count(self) -> int:
        """The number of durations that were counted since the start."""
        return sum(self.counts)

    def quantiles(self, now_s: float) -> list[float]:
        """Return the value of each of `QUANTILES`, in seconds.

        The values cover the last one or two minutes, or more if the previous calls were longer ago.
        If there were no durations, each value is NaN. Durations beyond all bounds count as the
        largest bound. `now_s` is the time of a monotonic clock.
        """
        if now_s - self._since_s >= WINDOW_S:
            self._before, self._since, self._since_s = self._since, list(self.counts), now_s
        recent = [now - then for now, then in zip(self.counts, self._before, strict=True)]
        return [_quantile(recent, wanted) for wanted in QUANTILES]


def _quantile(counts: Sequence[int], wanted: float) -> float:
    """Return a quantile in seconds, interpolated linearly within its bucket as Prometheus does."""
    rank = wanted * sum(counts)
    if not rank:
        return math.nan
    passed = 0
    for index, count in enumerate(counts):
        if count and passed + count >= rank:
            if index == len(BOUNDS_S):
                return BOUNDS_S[-1]
            low = BOUNDS_S[index - 1] if index else 0.0
            return low + (BOUNDS_S[index] - low) * (rank - passed) / count
        passed += count
    return BOUNDS_S[-1]


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with its labels."""

    value: float
    labels: Mapping[str, str]
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its samples."""

    name: str
    kind: Kind
    help: str
    """One sentence that describes the metric, with its unit."""
    samples: tuple[Sample, ...]


def counter(name: str, help: str, value: float, **labels: str) -> Metric:
    """Return a counter with one sample."""
    return Metric(name, "counter", help, (Sample(value, labels),))


def gauge(name: str, help: str, value: float, **labels: str) -> Metric:
    """Return a gauge with one sample."""
    return Metric(name, "gauge", help, (Sample(value, labels),))


def labelled(
    name: str, kind: Kind, help: str, label: str, values: Iterable[tuple[str, float]]
) -> Metric:
    """Return a metric with one sample for each value of one label.

    `label` is the name of the label. `values` has pairs of a label value and the sample's value.
    """
    return Metric(name, kind, help, tuple(Sample(value, {label: text}) for text, value in values))


def histogram(name: str, help: str, of: Histogram) -> Metric:
    """Return a metric of Prometheus' kind "histogram" for durations in seconds."""
    samples, total = [], 0
    shown = dict.fromkeys(EXPOSED_BOUNDS_S)
    for bound, count in zip(BOUNDS_S, of.counts):
        total += count
        if bound in shown:
            samples.append(Sample(total, {"le": _number(bound)}, "_bucket"))
    total += of.counts[-1]
    samples.append(Sample(total, {"le": "+Inf"}, "_bucket"))
    samples.append(Sample(of.sum_s, {}, "_sum"))
    samples.append(Sample(total, {}, "_count"))
    return Metric(name, "histogram", help, tuple(samples))


def summary_ms(
    name: str, help: str, succeeded: Histogram, failed: Histogram | None, now_s: float
) -> Metric:
    """Return a summary in the form of Apache BookKeeper: quantiles in milliseconds.

    The label `success` separates the durations of successes from those of failures. `failed` is
    None if there are none of failures. `now_s` is the time of a monotonic clock.
    """
    samples = []
    for success, of in (("false", failed or Histogram()), ("true", succeeded)):
        for wanted, value in zip(QUANTILES, of.quantiles(now_s)):
            labels = {"success": success, "quantile": repr(wanted)}
            samples.append(Sample(value * 1000, labels))
        samples.append(Sample(of.count, {"success": success}, "_count"))
        samples.append(Sample(of.sum_s * 1000, {"success": success}, "_sum"))
    return Metric(name, "summary", help, tuple(samples))


def exposition(metrics: Iterable[Metric]) -> str:
    """Return the metrics in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for one in metric.samples:
            labels = ",".join(f'{name}="{_quoted(text)}"' for name, text in one.labels.items())
            braces = f"{{{labels}}}" if labels else ""
            lines.append(f"{metric.name}{one.suffix}{braces} {_number(one.value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else f"{value:.15g}"


def _escaped(text: str) -> str:
    """Return a help text or a label value with backslashes and line ends escaped.

    Quotes stay as they are. Surrogates, which stand for bytes that are not text, become Python's
    escape sequences.
    """
    text = text.encode(errors="backslashreplace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
