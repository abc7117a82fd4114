"""Series over long times, and what clients say of a bookie, read from Prometheus.

The queries are fixed. Nothing of a request becomes part of one, except for the HTTP address or the
id of a bookie. The answers are those of Prometheus' HTTP API, `/api/v1/query_range` and
`/api/v1/query`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from quire._runtime.clock import Clock
from quire._runtime.metrics import Metric, counter
from quire._runtime.tasks import each
from quire._runtime.uris import without_credentials
from quire.errors import QuireError, UsageError
from quire.http.watch.rates import COUNTERS, LATENCIES
from quire.http.watch.series import OF_BOOKIES, OF_CLUSTER, Series, rounded

POINTS = 240
"""The number of steps of a series, about as many as a chart can show. It has one value more."""
WINDOW_MIN_S = 120
"""The shortest time in seconds over which Prometheus computes a rate: at least four scrapes of the
usual 30 s."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""The size limit in bytes of one answer of Prometheus."""
QUERY_TIMEOUT_S = 10.0
"""Seconds that Prometheus has to answer all queries for one request."""
QUERIES_AT_ONCE = 4
FAILURE_KEPT_S = 5.0
"""Seconds for which a failure is reported again without another request to Prometheus."""
KEPT_MAX = 32
"""The largest number of results that are kept, to answer requests for the same step again."""

RANGES_S = (6 * 3_600, 24 * 3_600, 7 * 24 * 3_600, 30 * 24 * 3_600)
"""The lengths of time, in seconds, for which series can be read from Prometheus."""

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

AVOIDED = "quire_client_bookie_avoided"
"""The metric of clients that avoid a bookie."""
WRONG_ANSWERS = "quire_client_wrong_answers_total"
"""The metric of wrong answers that clients got from a bookie."""

T = TypeVar("T")

FetchText = Callable[[str], Awaitable[str]]
"""A function that returns the text at a URL, or raises an error."""


@dataclass(frozen=True, slots=True)
class SuspectingClient:
    """What one program says about a bookie."""

    instance: str
    """The address at which Prometheus reads the metrics of the program."""
    job: str
    """The job of Prometheus that reads them."""
    reasons: tuple[str, ...]
    """Why the program avoids the bookie now, sorted: values of `Avoided`. Empty if it does not."""
    wrong_answers: Mapping[str, int]
    """The number of wrong answers since the program started, by kind (`Misbehaviour`)."""


class HistoryError(QuireError):
    """The error for series that Prometheus did not return."""


class PrometheusHistory:
    """A reader of series, and of what clients say of bookies, from a Prometheus server."""

    def __init__(
        self, url: str, fetch: FetchText, clock: Clock, labels: Mapping[str, str] | None = None
    ) -> None:
        """Create a reader of a Prometheus server.

        Args:
            url: The URL, as `checked_url` returns it.
            fetch: Reads a URL.
            clock: The clock whose time the series end at.
            labels: The labels that all metrics of this cluster have.
        """
        self._url = url
        self._labels = dict(labels or {})
        self._fetch = fetch
        self._clock = clock
        self._kept: dict[tuple[int, str | None], tuple[int, Series]] = {}
        self._reading: dict[tuple[int, str | None], asyncio.Lock] = {}
        self._failure: HistoryError | None = None
        self._failed_s = -math.inf
        self.failures = 0
        """The number of reads that failed since the start."""

    async def read(self, range_s: int, instance: str | None = None) -> Series:
        """Return the values of the last `range_s` seconds.

        Args:
            range_s: One of `RANGES_S`.
            instance: HOST:PORT of the HTTP server of a bookie, which Prometheus calls the
                instance. None means the whole cluster.

        Raises:
            HistoryError: Prometheus did not answer, or not with series.
        """
        step_s = range_s // POINTS
        last_s = self._clock.now_ms() // 1000 // step_s * step_s
        key = (range_s, instance)
        async with self._reading.setdefault(key, asyncio.Lock()):
            kept = self._kept.get(key)
            if kept is not None and kept[0] == last_s:
                return kept[1]
            if self._failure and self._clock.monotonic() - self._failed_s < FAILURE_KEPT_S:
                raise self._failure
            try:
                found = await self._read(last_s, range_s, step_s, instance)
            except HistoryError as error:
                self.failures += 1
                self._failure, self._failed_s = error, self._clock.monotonic()
                raise
            self._kept[key] = (last_s, found)
            while len(self._kept) > KEPT_MAX:
                oldest = min(self._kept, key=lambda one: self._kept[one][0])
                del self._kept[oldest]
                self._reading.pop(oldest, None)
        return found

    async def clients_of(self, bookie_id: str) -> list[SuspectingClient]:
        """Return the clients that avoid a bookie now, or that it gave wrong answers.

        Only clients whose metrics Prometheus collects are known. Raises HistoryError if Prometheus
        cannot be read.
        """
        if self._failure and self._clock.monotonic() - self._failed_s < FAILURE_KEPT_S:
            raise self._failure
        labels = {**self._labels, "bookie": bookie_id}
        names = (_select(AVOIDED, labels), _select(WRONG_ANSWERS, labels))

        async def ask(query: str) -> str:
            return await self._fetch(f"{self._url}/api/v1/query?{urlencode({'query': query})}")

        try:
            avoided, wrong = await self._asked(each(names, ask))
            return clients_in(avoided, wrong)
        except HistoryError as error:
            self.failures += 1
            self._failure, self._failed_s = error, self._clock.monotonic()
            raise

    async def _read(self, last_s: int, range_s: int, step_s: int, instance: str | None) -> Series:
        first_s = last_s - POINTS * step_s
        labels = self._labels if instance is None else {**self._labels, "instance": instance}
        asked = queries(max(WINDOW_MIN_S, step_s), labels, one_bookie=instance is not None)

        async def one(name: str) -> list[float | None]:
            query = {"query": asked[name], "start": first_s, "end": last_s, "step": step_s}
            text = await self._fetch(f"{self._url}/api/v1/query_range?{urlencode(query)}")
            return values_of(text, first_s, step_s)

        values = await self._asked(each(list(asked), one, QUERIES_AT_ONCE))
        return Series(first_s, step_s, dict(zip(asked, values, strict=True)))

    async def _asked(self, answers: Awaitable[T]) -> T:
        """Return the answers of Prometheus. Raises HistoryError if they do not come in time."""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                return await answers
        except QuireError:
            raise
        except TimeoutError:
            raise self._error(f"it did not answer within {QUERY_TIMEOUT_S:g} s") from None
        except Exception as error:  # noqa: BLE001 - the network and aiohttp have many errors
            raise self._error(f"{type(error).__name__}: {error}") from None

    def _error(self, why: str) -> HistoryError:
        return HistoryError(
            f"Prometheus at {self._url} cannot be read: {why}",
            remedy="Check that it runs and that --prometheus names it. The last hour comes from "
            "this server's own memory",
        )


def history_metrics(history: PrometheusHistory) -> Iterable[Metric]:
    """Yield the metrics of the reads from Prometheus."""
    yield counter("quire_series_history_failures_total",
                  "The number of times that Prometheus did not return the charts of a long time. "
                  "Only with `--prometheus`.",
                  history.failures)  # fmt: skip


def checked_url(url: str) -> str:
    """Return the URL of a Prometheus server without a final slash.

    Raises UsageError if it is not an HTTP URL, or contains a user name, a password, a query or a
    fragment.
    """
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_valid = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
        raise UsageError(
            f"{without_credentials(url)[:200]!r} (--prometheus) is not the URL of a Prometheus "
            "server",
            remedy="Give it like this: http://prometheus:9090",
        )
    # A password with a slash looks like a port and a path.
    if parts.username or parts.password or "@" in parts.path:
        raise UsageError(
            "the URL of Prometheus (--prometheus) contains a user name or a password, which other "
            "users of the machine could see",
            remedy="Put Prometheus behind a proxy on this machine that adds the password",
        )
    if parts.query or parts.fragment:
        raise UsageError(
            "the URL of Prometheus (--prometheus) has a query or a fragment: "
            f"{without_credentials(url)[:200]!r}",
            remedy="Give only its scheme, host, port and path, such as http://prometheus:9090",
        )
    return url.rstrip("/")


def checked_label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label in the form NAME=VALUE.

    Raises UsageError for another text.
    """
    name, given, value = text.partition("=")
    if not given or not _LABEL.fullmatch(name):
        raise UsageError(
            f"{text[:200]!r} (--prometheus-label) is not a label in the form NAME=VALUE",
            remedy="Give it like this: cluster=orders",
        )
    return name, value


def queries(window_s: int, labels: Mapping[str, str], *, one_bookie: bool) -> dict[str, str]:
    """Return the query in PromQL for each series, by the name of the series.

    The queries select metrics with these labels, and compute rates over `window_s` seconds. The
    series are those of a bookie (`OF_BOOKIES`) with `one_bookie`, and otherwise those of the
    cluster (`OF_CLUSTER`).
    """

    def of(metric: str) -> str:
        return _select(metric, labels)

    rates = {name: f"rate({of(one)}[{window_s}s])" for name, one in COUNTERS.items()}
    free, total = of("quire_directory_free_bytes"), of("quire_directory_total_bytes")
    used = f"1 - sum({free}) / sum({total})"
    if one_bookie:
        found = {
            **rates,
            **{name: of(one) for name, one in LATENCIES.items()},
            "ledgers": of("bookie_ledgers_count"),
            "disk_used": used,
        }
        assert set(found) == set(OF_BOOKIES)
        return found
    bookies = of('quire_cluster_bookies{state=~"writable|read-only"}')
    writable = of('quire_cluster_bookies{state="writable"}')
    found = {
        **{name: f"sum({rate})" for name, rate in rates.items()},
        **{name: f"max({of(one)})" for name, one in LATENCIES.items()},
        "disk_used": used,
        "disk_used_max": f"max(1 - sum by (instance) ({free}) / sum by (instance) ({total}))",
        "under_replicated": f"max({of('quire_cluster_ledgers_marked')})",
        "bookies": f"sum(max by (state) ({bookies}))",
        "bookies_writable": f"max({writable})",
    }
    assert set(found) == set(OF_CLUSTER)
    return found


def _select(metric: str, labels: Mapping[str, str]) -> str:
    """Return the selector of a metric in PromQL, with these labels added to those that it has."""
    more = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
    if not more:
        return metric
    return f"{metric[:-1]},{more}}}" if metric.endswith("}") else f"{metric}{{{more}}}"


def values_of(text: str, first_s: int, step_s: int) -> list[float | None]:
    """Return the values in an answer of Prometheus' `query_range`, from `first_s` on.

    There is one value for every `step_s` seconds, which is None if the answer has none. If the
    answer has several series, the first value at each time counts. Raises HistoryError if the text
    is not an answer with series.
    """
    values: list[float | None] = [None] * (POINTS + 1)
    with _decoding():
        for series in _result(text, "matrix"):
            for at_s, value in series["values"]:
                place = round((float(at_s) - first_s) / step_s)
                if 0 <= place <= POINTS and values[place] is None:
                    number = float(value)
                    values[place] = rounded(number) if math.isfinite(number) else None
    return values


def clients_in(avoided: str, wrong_answers: str) -> list[SuspectingClient]:
    """Return the clients in two answers of Prometheus' `query`, sorted by job and instance.

    `avoided` is that about `AVOIDED`, and `wrong_answers` that about `WRONG_ANSWERS`. Raises
    HistoryError if one of them is not an answer with values.
    """
    reasons: dict[tuple[str, str], set[str]] = {}
    counts: dict[tuple[str, str], dict[str, int]] = {}
    with _decoding():
        for text, label in ((avoided, "reason"), (wrong_answers, "kind")):
            for one in _result(text, "vector"):
                labels, count = one["metric"], int(float(one["value"][1]))
                client = str(labels.get("job", "")), str(labels.get("instance", ""))
                if count and label == "reason":
                    reasons.setdefault(client, set()).add(str(labels["reason"]))
                elif count:
                    kinds = counts.setdefault(client, {})
                    kind = str(labels["kind"])
                    kinds[kind] = kinds.get(kind, 0) + count
    return [
        SuspectingClient(
            instance,
            job,
            tuple(sorted(reasons.get((job, instance), ()))),
            dict(sorted(counts.get((job, instance), {}).items())),
        )
        for job, instance in sorted({*reasons, *counts})
    ]


def _result(text: str, kind: str) -> Iterable[Any]:
    """Return the series in an answer of Prometheus, which must be of this kind."""
    answer = json.loads(text)
    if answer["status"] != "success":
        raise HistoryError(
            f"Prometheus refused a query: {str(answer.get('error'))[:200]}",
            remedy="Look at the log of Prometheus",
        )
    if answer["data"]["resultType"] != kind:
        raise ValueError(f"the result is not a {kind}")
    found: Iterable[Any] = answer["data"]["result"]
    return found


@contextmanager
def _decoding() -> Iterator[None]:
    """Raise HistoryError if an answer cannot be decoded within the context."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise HistoryError(
            f"the answer of Prometheus to a query cannot be decoded: {error!r}",
            remedy="Check that --prometheus names a Prometheus server, or one with its HTTP API",
        ) from None
