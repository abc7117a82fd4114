"""OpenTelemetry metrics for programs that pass a meter to their client.

The metrics are those of `client.metrics()`, as observable instruments: they cost nothing until a
reader of the program collects them. `opentelemetry-api` (the extra `otel`) is imported only if
there is a meter. docs/guides/programs/client-observability.md describes the names.

All clients with the same meter share its instruments, which report the sum over these clients. The
counts of a closed client stay in the sum, because a counter must not decrease. Those of a client
that was dropped without being closed stay as they were last reported.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from quire._runtime.metrics import Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

Source = Callable[[], Iterable[Metric]]
_Held = Callable[[], Iterable[Metric] | None]
"""A source that is held weakly. It returns None once its client was freed."""
Labels = tuple[tuple[str, str], ...]
Values = dict[Labels, float]
"""The value of an instrument for each set of attributes."""

UNITS = (("_bytes", "By"), ("_seconds_sum", "s"))
"""The unit of an instrument, by the end of its name. All other instruments have no unit."""

_bridges: weakref.WeakKeyDictionary[Meter, MeterBridge] = weakref.WeakKeyDictionary()
_bridges_lock = threading.Lock()


def attach(meter: Meter, source: Source) -> Callable[[], None]:
    """Report the metrics of a client through a meter.

    Args:
        meter: The meter.
        source: The method that returns the metrics of the client. It is held weakly, so that a
            client that is dropped without being closed can be freed.

    Returns:
        The function to call when the client is closed.
    """
    with _bridges_lock:
        bridge = _bridges.get(meter)
        if bridge is None:
            bridge = _bridges[meter] = MeterBridge()
            bridge.create_instruments(meter, source())
    return bridge.add(source)


class MeterBridge:
    """The clients that share one meter, and the sums that its instruments report about them.

    OpenTelemetry's readers call the instruments from threads of their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[int, _Held] = {}
        self._number = 0
        self._reported: dict[int, dict[str, Values]] = {}
        """The counters of each client as they were last reported, by the name of the instrument."""
        self._ended: dict[str, Values] = {}
        """The sum of the counters of all former clients, by the name of the instrument."""

    def create_instruments(self, meter: Meter, metrics: Iterable[Metric]) -> None:
        """Create the instruments that report these metrics: one for each metric.

        A histogram has three: its buckets, its sum and its count.
        """
        for metric in metrics:
            # A metric of bookies has no samples before something is wrong with one.
            suffixes = [one.suffix for one in metric.samples] or [""]
            for name in dict.fromkeys(_instrument(metric, suffix) for suffix in suffixes):
                unit = next((unit for end, unit in UNITS if name.endswith(end)), "")
                kind = "gauge" if metric.kind == "gauge" else "counter"
                create = getattr(meter, f"create_observable_{kind}")
                create(name, [self._callback(name)], unit=unit, description=metric.help)

    def add(self, source: Source) -> Callable[[], None]:
        """Include a client in the reports from now on.

        Returns the function to call when the client is closed.
        """
        held = weakref.WeakMethod(source)

        def metrics() -> Iterable[Metric] | None:
            living = held()
            return None if living is None else living()

        with self._lock:
            self._number += 1
            number = self._number
            self._sources[number] = metrics
        return lambda: self._remove(number)

    def _remove(self, number: int) -> None:
        with self._lock:
            source = self._sources.pop(number, None)
            if source is None:
                return
            metrics = source()
            if metrics is None:
                self._end_dropped(number)
                return
            self._reported.pop(number, None)
            for metric in metrics:
                if metric.kind != "gauge":
                    for name, labels, value in _values(metric):
                        _add(self._ended.setdefault(name, {}), labels, value)

    def _end_dropped(self, number: int) -> None:
        """Keep the counters of a client that was freed, whose present values nobody knows."""
        self._sources.pop(number, None)
        for name, values in self._reported.pop(number, {}).items():
            for labels, value in values.items():
                _add(self._ended.setdefault(name, {}), labels, value)

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, dict(labels)) for labels, value in self._now(name).items()]

        return observe

    def _now(self, wanted: str) -> Values:
        """Return the present values of the instrument with this name, summed over all clients."""
        with self._lock:
            total: Values = {}
            for number, source in list(self._sources.items()):
                metrics = source()
                if metrics is None:
                    self._end_dropped(number)
                    continue
                mine: Values = {}
                for metric in metrics:
                    for name, labels, value in _values(metric):
                        if name == wanted:
                            _add(mine, labels, value)
                            if metric.kind != "gauge":
                                self._reported.setdefault(number, {})[name] = mine
                for labels, value in mine.items():
                    _add(total, labels, value)
            for labels, value in self._ended.get(wanted, {}).items():
                _add(total, labels, value)
            return total


def _add(values: Values, labels: Labels, value: float) -> None:
    values[labels] = values.get(labels, 0.0) + value


def _instrument(metric: Metric, suffix: str) -> str:
    """Return the name of the instrument for a metric's samples with this suffix.

    It has no `_total`, because exporters for Prometheus add that again.
    """
    return metric.name.removesuffix("_total") + suffix


def _values(metric: Metric) -> Iterator[tuple[str, Labels, float]]:
    for one in metric.samples:
        yield _instrument(metric, one.suffix), tuple(one.labels.items()), one.value
