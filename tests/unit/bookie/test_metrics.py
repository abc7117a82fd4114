"""Histograms and the Prometheus text format, checked with Prometheus' own parser."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from quire._runtime.metrics import (
    BOUNDS_S,
    QUANTILES,
    WINDOW_S,
    Histogram,
    Metric,
    Sample,
    counter,
    exposition,
    gauge,
    histogram,
    labelled,
    summary_ms,
)
from quire.bookie.metrics import COUNTED, NOW, SINCE_START
from quire.bookie.protocol.service import Counters
from quire.http.server.metrics import AUTORECOVERY
from quire.replication.autorecovery.settings import AutorecoveryStats
from quire.storage.stats import COUNTERS, StorageStats

seconds = st.floats(0, 30, allow_nan=False)


def parsed(*metrics: Metric) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition(metrics))
        for sample in family.samples
    }


@given(st.lists(st.tuples(seconds, st.integers(1, 1_000)), max_size=30))
def test_a_histogram_counts_the_observed_values(observed: list[tuple[float, int]]) -> None:
    one = Histogram()
    for value, count in observed:
        one.observe(value, count)
    found = parsed(histogram("t_seconds", "Some.", one))
    total = sum(count for _, count in observed)
    assert found["t_seconds_count", ()] == total == one.count
    assert found["t_seconds_sum", ()] == pytest.approx(
        sum(value * count for value, count in observed), rel=1e-6
    )
    buckets = {
        labels[0][1]: value for (name, labels), value in found.items() if name == "t_seconds_bucket"
    }
    assert buckets.pop("+Inf") == total
    for bound, value in buckets.items():
        assert value == sum(count for took, count in observed if took <= float(bound) * (1 + 1e-9))


@given(st.lists(seconds, min_size=1, max_size=50))
def test_a_quantile_is_in_the_bucket_of_its_exact_value(observed: list[float]) -> None:
    one = Histogram()
    for value in observed:
        one.observe(value)
    for wanted, found in zip(QUANTILES, one.quantiles(0.0), strict=True):
        rank = max(1, math.ceil(wanted * len(observed) - 1e-9))
        exact = sorted(observed)[rank - 1]
        upper = next((bound for bound in BOUNDS_S if exact <= bound), BOUNDS_S[-1])
        lower = max((bound for bound in BOUNDS_S if bound < exact), default=0.0)
        assert min(lower, BOUNDS_S[-1]) - 1e-9 <= found <= upper + 1e-9


def test_quantiles_cover_the_last_minutes() -> None:
    one = Histogram()
    one.observe(5.0, 100)
    assert one.quantiles(0.0)[0] > 1
    one.observe(0.001, 10)
    one.quantiles(WINDOW_S)  # the second window begins; the slow ones are in the first
    one.observe(0.001, 10)
    assert one.quantiles(2 * WINDOW_S)[0] < 0.01
    one.quantiles(10 * WINDOW_S)
    assert math.isnan(one.quantiles(12 * WINDOW_S)[0])


def test_a_summary_has_the_format_of_apache() -> None:
    good, bad = Histogram(), Histogram()
    good.observe(0.002, 3)
    found = parsed(summary_ms("bookie_X", "Some.", good, bad, 0.0))
    assert found["bookie_X_count", (("success", "true"),)] == 3
    assert found["bookie_X_sum", (("success", "true"),)] == pytest.approx(6.0)
    assert found["bookie_X_count", (("success", "false"),)] == 0
    assert 1 <= found["bookie_X", (("quantile", "0.99"), ("success", "true"))] <= 2
    assert math.isnan(found["bookie_X", (("quantile", "0.99"), ("success", "false"))])


@given(st.text(max_size=20), st.text(max_size=20), st.floats())
def test_any_label_and_any_number_can_be_exposed(label: str, help_text: str, value: float) -> None:
    label = label.replace("\r", "")  # the parser takes it for the end of a line
    help_text = "".join(c for c in help_text if c.isprintable())
    found = parsed(labelled("x", "gauge", help_text, "directory", [(label, value)]))
    ((name, labels), told) = next(iter(found.items()))
    assert name == "x"
    if "\n" not in label and label.isprintable():
        assert labels == (("directory", label),)
    if math.isnan(value):
        assert math.isnan(told)
    else:
        assert told == pytest.approx(value, rel=1e-14)  # times have ten digits before the point


def test_a_label_that_is_not_valid_text_is_exposed() -> None:
    """The path of a directory may hold any bytes."""
    text = exposition([labelled("x", "gauge", "X.", "directory", [("/d/\udcff", 1)])])
    assert text.encode()
    [family] = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"directory": r"/d/\udcff"}


def test_the_kind_and_help_of_metrics_are_exposed() -> None:
    text = exposition([counter("a_total", "One\nline.", 3), gauge("b", "Two.", 1.5, rack="r")])
    assert "# HELP a_total One\\nline.\n# TYPE a_total counter\na_total 3\n" in text
    assert '# TYPE b gauge\nb{rack="r"} 1.5\n' in text
    assert Metric("c", "gauge", "", (Sample(1, {}),)).samples[0].suffix == ""


def test_every_counter_has_a_metric_with_a_description() -> None:
    assert {one.name for one in fields(Counters)} == set(COUNTED)
    numbers = {one.name for one in fields(StorageStats) if one.type in ("int", "float", "bool")}
    assert numbers == {*SINCE_START, *NOW}
    assert not set(SINCE_START) & set(NOW)
    assert set(SINCE_START) == COUNTERS
    assert {one.name for one in fields(AutorecoveryStats)} == set(AUTORECOVERY)
