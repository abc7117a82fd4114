"""A client with a meter reports its metrics through OpenTelemetry."""

from __future__ import annotations

import gc
import random
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from quire._runtime.clock import SystemClock
from quire._runtime.metrics import Metric
from quire.api import Client
from quire.client.observability.metrics import ClientCounters, client_metrics
from quire.client.observability.otel_metrics import attach
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore


def store() -> MemoryStore:
    return MemoryStore(MemoryCluster("test", clock=SystemClock(), rng=random.Random(1)))


class Counting:
    """A client as far as its metrics go."""

    def __init__(self) -> None:
        self.counters = ClientCounters()
        self.unhealthy = 0
        self.wrong_answers: list[tuple[str, str, int]] = []
        self.avoided: list[tuple[str, str]] = []

    def metrics(self) -> Iterator[Metric]:
        return client_metrics(
            self.counters, self.unhealthy, 0, 0, 0, self.wrong_answers, self.avoided
        )


class Collected:
    """A meter, and what its reader collects."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def value(self, name: str, **attributes: str) -> float:
        [point] = [
            point
            for point in self.metrics()[name].data.data_points
            if dict(point.attributes) == attributes
        ]
        return float(point.value)


def test_each_metric_is_an_instrument() -> None:
    collected, client = Collected(), Counting()
    attach(collected.meter, client.metrics)
    client.counters.count_adds(3, 300)
    client.counters.add_time.observe(0.002, 3)
    client.unhealthy = 2
    # These metrics had no samples when the instruments were made.
    client.wrong_answers, client.avoided = [("b1", "dropped", 4)], [("b1", "slow")]
    found = collected.metrics()
    assert collected.value("quire_client_wrong_answers", bookie="b1", kind="dropped") == 4
    assert collected.value("quire_client_bookie_avoided", bookie="b1", reason="slow") == 1
    names = {
        one.name.removesuffix("_total") + sample.suffix
        for one in client.metrics()
        for sample in one.samples
    }
    assert set(found) == names
    assert len(names) == 18
    assert (collected.value("quire_client_adds"), found["quire_client_adds"].unit) == (3, "")
    assert found["quire_client_adds"].description == (
        "The number of entries that were sent, each counted once."
    )
    assert found["quire_client_adds"].data.is_monotonic
    assert found["quire_client_add_bytes"].unit == "By"
    assert collected.value("quire_client_suspects") == 2
    assert not hasattr(found["quire_client_suspects"].data, "is_monotonic")  # a gauge
    assert collected.value("quire_client_add_seconds_count") == 3
    assert collected.value("quire_client_add_seconds_sum") == pytest.approx(0.006)
    assert found["quire_client_add_seconds_sum"].unit == "s"
    assert collected.value("quire_client_add_seconds_bucket", le="0.001") == 0
    assert collected.value("quire_client_add_seconds_bucket", le="+Inf") == 3


def test_clients_of_a_meter_are_added_and_no_count_decreases() -> None:
    collected, first, second = Collected(), Counting(), Counting()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = attach(collected.meter, first.metrics)
        attach(collected.provider.get_meter("test"), second.metrics)
    first.counters.count_adds(3, 300)
    second.counters.count_adds(4, 400)
    first.unhealthy = second.unhealthy = 1
    assert collected.value("quire_client_adds") == 7
    assert collected.value("quire_client_suspects") == 2
    end()
    assert collected.value("quire_client_adds") == 7
    assert collected.value("quire_client_suspects") == 1
    first.counters.count_adds(10, 10)
    end()
    assert collected.value("quire_client_adds") == 7


def test_clients_of_different_meters_are_reported_separately() -> None:
    one, other, client = Collected(), Collected(), Counting()
    attach(one.meter, client.metrics)
    attach(other.meter, Counting().metrics)
    client.counters.count_adds(1, 1)
    assert one.value("quire_client_adds") == 1
    assert "quire_client_adds" not in other.metrics()  # Its client is gone: there is no value.


def test_a_client_that_is_dropped_is_freed() -> None:
    collected, client = Collected(), Counting()
    attach(collected.meter, client.metrics)
    seen = weakref.ref(client)
    del client
    gc.collect()
    assert seen() is None


def test_no_count_decreases_when_a_client_is_dropped() -> None:
    """Readers took the smaller sum for a restart of the program, and counted all of it again."""
    collected, dropped, other = Collected(), Counting(), Counting()
    end = attach(collected.meter, dropped.metrics)
    attach(collected.meter, other.metrics)
    dropped.counters.count_adds(3, 300)
    dropped.unhealthy = 1
    other.counters.count_adds(4, 400)
    assert collected.value("quire_client_adds") == 7
    assert collected.value("quire_client_suspects") == 1
    del dropped
    gc.collect()
    assert collected.value("quire_client_adds") == 7
    assert collected.value("quire_client_suspects") == 0
    end()
    other.counters.count_adds(1, 1)
    assert collected.value("quire_client_adds") == 8


async def test_a_client_reports_until_it_is_closed() -> None:
    collected = Collected()
    async with Client(store(), meter=collected.meter) as client:
        client._pool.counters.count_adds(5, 50)
        assert collected.value("quire_client_adds") == 5
    client._pool.counters.count_adds(5, 50)
    assert collected.value("quire_client_adds") == 5


async def test_without_a_meter_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as if it were not installed
    async with Client(store()) as client:
        assert "quire_client_adds_total 0" in client.metrics()
