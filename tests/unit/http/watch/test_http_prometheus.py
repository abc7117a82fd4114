"""Charts of long times, read from a stand-in for Prometheus.

The stand-in answers `query_range` as the HTTP API of Prometheus describes it. It computes nothing:
the queries themselves are parsed by promql-parser.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import promql_parser
import pytest
from aiohttp import web

from quire.codec.metadata.registration import Endpoint
from quire.errors import UsageError
from quire.http.routes.series import SeriesRoutes
from quire.http.server.error_responses import NotFoundError, status_of
from quire.http.server.fetch import prometheus_fetcher
from quire.http.watch import prometheus as module
from quire.http.watch.prometheus import (
    AVOIDED,
    FAILURE_KEPT_S,
    KEPT_MAX,
    POINTS,
    RANGES_S,
    WRONG_ANSWERS,
    HistoryError,
    PrometheusHistory,
    SuspectingClient,
    checked_label,
    checked_url,
    history_metrics,
    queries,
    values_of,
)
from quire.http.watch.rates import ENDPOINT
from quire.http.watch.series import OF_BOOKIES, OF_CLUSTER, SPAN_S
from quire.metadata.interface import BookieAddress

DAY_S = 86_400
NOW_S = 1_780_000_123


class FakePrometheus:
    """A server of `/api/v1/query_range`, for tests only.

    The value of each point is its number, beginning with 0. `missing` points have no value, as for
    times when nothing was scraped. Requests that Prometheus refuses are refused as it does.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.missing: set[int] = set()
        self.value: Callable[[int], str] = str
        self.silent = False
        self.answer: web.Response | None = None
        self.never = asyncio.Event()
        self.text = ""
        """The answer to all requests of `/api/v1/query`, if it is not that of Prometheus."""
        self.vectors: list[list[dict[str, Any]]] = []
        """The results of the next requests of `/api/v1/query`."""

    async def query(self, request: web.Request) -> web.Response:
        given = dict(request.query)
        self.asked.append(given)
        promql_parser.parse(given["query"])
        if self.text:
            return web.Response(text=self.text, content_type="application/json")
        data = {"resultType": "vector", "result": self.vectors.pop(0)}
        return web.json_response({"status": "success", "data": data})

    async def query_range(self, request: web.Request) -> web.Response:
        given = dict(request.query)
        self.asked.append(given)
        if self.silent:
            await self.never.wait()
        if self.answer is not None:
            return self.answer
        try:
            promql_parser.parse(given["query"])
        except ValueError as error:
            return web.json_response(
                {"status": "error", "errorType": "bad_data", "error": str(error)}, status=400
            )
        start, end, step = (float(given[name]) for name in ("start", "end", "step"))
        if (end - start) / step > 11_000:
            return web.json_response(
                {"status": "error", "errorType": "bad_data", "error": "too many points"}, status=400
            )
        points = [
            [start + number * step, self.value(number)]
            for number in range(math.floor((end - start) / step) + 1)
            if number not in self.missing
        ]
        result = [{"metric": {}, "values": points}] if points else []
        data = {"resultType": "matrix", "result": result}
        return web.json_response({"status": "success", "data": data})


class HandClock:
    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def now_ms(self) -> int:
        return round(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


@asynccontextmanager
async def world() -> AsyncIterator[tuple[FakePrometheus, HandClock, PrometheusHistory]]:
    fake, clock = FakePrometheus(), HandClock()
    app = web.Application()
    app.router.add_get("/api/v1/query_range", fake.query_range)
    app.router.add_get("/api/v1/query", fake.query)
    app.router.add_get("/below/api/v1/query_range", fake.query_range)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with prometheus_fetcher() as fetch:
            yield fake, clock, PrometheusHistory(f"http://127.0.0.1:{port}", fetch, clock)
    finally:
        fake.never.set()
        await runner.cleanup()


async def test_prometheus_values_of_a_day_are_read() -> None:
    async with world() as (fake, _, history):
        fake.missing = {5}
        found = await history.read(DAY_S)
    assert found.step_s == DAY_S // POINTS
    assert found.first_s == (NOW_S // found.step_s - POINTS) * found.step_s
    assert set(found.values) == set(OF_CLUSTER)
    values = found.values["adds_per_s"]
    assert values[:7] == [0, 1, 2, 3, 4, None, 6]
    assert len(values) == POINTS + 1
    assert {one["step"] for one in fake.asked} == {str(found.step_s)}
    assert {one["end"] for one in fake.asked} == {str(found.first_s + DAY_S)}


@pytest.mark.parametrize("instance", [None, "10.0.0.1:8080"])
@pytest.mark.parametrize("range_s", RANGES_S)
async def test_prometheus_accepts_every_query(range_s: int, instance: str | None) -> None:
    async with world() as (fake, _, history):
        found = await history.read(range_s, instance)
    assert set(found.values) == set(OF_CLUSTER if instance is None else OF_BOOKIES)
    assert all(values == found.values["adds_per_s"] for values in found.values.values())
    assert len(fake.asked) == len(found.values)


def test_a_label_value_cannot_escape_its_quotation_marks() -> None:
    """The value of a label cannot end its quotation marks."""
    hostile = 'x"} or vector(1) or {a="b\\'
    for query in queries(120, {"instance": hostile}, one_bookie=True).values():
        assert json.dumps(hostile) in query
        promql_parser.parse(query)


async def test_every_metric_is_selected_by_the_labels_of_the_cluster() -> None:
    async with world() as (fake, clock, history):
        async with prometheus_fetcher() as fetch:
            ours = PrometheusHistory(history._url, fetch, clock, {"cluster": "orders"})
            await ours.read(DAY_S)
            await ours.read(DAY_S, "10.0.0.1:8080")
        assert len(fake.asked) == len(OF_CLUSTER) + len(OF_BOOKIES)
    for one in fake.asked:
        metrics = one["query"].count("bookkeeper_") + one["query"].count("bookie_")
        metrics += one["query"].count("quire_")
        assert one["query"].count('cluster="orders"') == metrics, one["query"]


def test_an_invalid_label_is_refused() -> None:
    assert checked_label("cluster=a=b") == ("cluster", "a=b")
    for text in ("cluster", "=a", "my-cluster=a", ""):
        with pytest.raises(UsageError, match="--prometheus-label"):
            checked_label(text)


async def test_a_value_that_is_not_a_number_is_missing() -> None:
    async with world() as (fake, _, history):
        fake.value = lambda number: ["NaN", "+Inf", "1.23456"][number % 3]
        found = await history.read(DAY_S)
    assert found.values["adds_per_s"][:3] == [None, None, 1.235]


async def test_an_answer_is_cached_while_it_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as (fake, clock, history):
        await asyncio.gather(*(history.read(DAY_S) for _ in range(3)))
        asked = len(fake.asked)
        assert asked == len(OF_CLUSTER)
        clock.now_s += DAY_S / POINTS
        await history.read(DAY_S)
        assert len(fake.asked) == 2 * asked
        monkeypatch.setattr(module, "KEPT_MAX", 2)
        for number in range(4):
            await history.read(DAY_S, f"10.0.0.{number}:8080")
        assert len(history._kept) == len(history._reading) == 2
    assert len(RANGES_S) < KEPT_MAX


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: web.json_response({"status": "error", "error": "no"}, status=422), "refused a"),
        (lambda: web.json_response({"status": "success", "data": {"resultType": "vector"}}),
         "cannot be decoded"),
        (lambda: web.json_response([1]), "cannot be decoded"),
        (lambda: web.Response(text="{", content_type="application/json"), "cannot be decoded"),
        (lambda: web.Response(text="<html>", content_type="text/html"), "no JSON"),
        (lambda: web.Response(status=302, headers={"Location": "/other"}), "status 302"),
        (lambda: web.Response(body=b" " * (module.ANSWER_BYTES_MAX + 1),
                              content_type="application/json"), "more than"),
    ],
    ids=["refused", "vector", "list", "half", "html", "redirect", "large"],
)  # fmt: skip
async def test_an_unexpected_answer_of_prometheus_is_an_error(
    answer: Callable[[], web.Response], said: str
) -> None:
    async with world() as (fake, _, history):
        fake.answer = answer()
        with pytest.raises(HistoryError, match=said) as caught:
            await history.read(DAY_S)
    assert status_of(caught.value) == 502
    assert caught.value.remedy
    (metric,) = history_metrics(history)
    assert metric.samples[0].value == 1


async def test_an_unreachable_prometheus_is_retried_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked again after a while, and not by everybody who looks."""
    monkeypatch.setattr(module, "QUERY_TIMEOUT_S", 0.05)
    async with world() as (fake, clock, history):
        fake.silent = True
        with pytest.raises(HistoryError, match=r"did not answer within 0\.05 s"):
            await history.read(DAY_S)
        asked = len(fake.asked)
        with pytest.raises(HistoryError):
            await history.read(DAY_S, "10.0.0.1:8080")
        assert len(fake.asked) == asked
        fake.silent = False
        monkeypatch.setattr(module, "QUERY_TIMEOUT_S", 10)
        clock.now_s += FAILURE_KEPT_S
        assert (await history.read(DAY_S)).values["adds_per_s"]
    async with prometheus_fetcher() as fetch:
        away = PrometheusHistory("http://127.0.0.1:1", fetch, HandClock())
        with pytest.raises(HistoryError, match=r"127\.0\.0\.1:1 cannot be read") as caught:
            await away.read(DAY_S)
        assert "--prometheus" in caught.value.remedy


def test_a_value_outside_the_range_is_dropped() -> None:
    answer = {"resultType": "matrix", "result": [{"values": [[-100, "1"], [10, "2"], [1e9, "3"]]}]}
    values = values_of(json.dumps({"status": "success", "data": answer}), 0, 10)
    assert [value for value in values if value is not None] == [2]


@pytest.mark.parametrize(
    "url",
    ["prometheus:9090", "ftp://prometheus", "http://", "http://p:x", "http://me:secret@p:9090",
     "http://me:a/secret@p", "http://me:1/secret@p", "ftp://me:secret@p",
     "http://p:9090/?query=up", "http://p#x"],
)  # fmt: skip
def test_an_invalid_prometheus_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--prometheus") as caught:
        checked_url(url)
    assert "secret" not in str(caught.value)


def test_a_prometheus_url_may_have_a_path() -> None:
    assert checked_url("https://p:9090/below/") == "https://p:9090/below"
    assert checked_url("http://p") == "http://p"


class Recorder:
    """Knows the bookies a (with an HTTP address) and b (without)."""

    def touch(self) -> None:
        pass

    def now_ms(self) -> int:
        return NOW_S * 1000

    def knows(self, bookie: str) -> bool:
        return bookie in ("a", "b")

    def endpoint(self, bookie: str) -> BookieAddress | None:
        others = (Endpoint(ENDPOINT, "10.0.0.1", 8080, "http"),) if bookie == "a" else ()
        return BookieAddress(bookie, "10.0.0.1", 3181, others=others)


async def test_the_route_asks_prometheus_for_more_than_an_hour() -> None:
    async with world() as (fake, _, history):
        (route,) = SeriesRoutes(cast(Any, Recorder()), history).routes()

        async def ask(**query: str) -> Any:
            return await route.handler(route.check({}, list(query.items()), {}))

        found = await ask(range="1d", bookie="a")
        assert (found["source"], found["bookie"]) == ("prometheus", "a")
        assert found["ranges_s"] == [900, SPAN_S, *RANGES_S]
        assert found["to_s"] == NOW_S
        instances = {
            matcher.value
            for one in fake.asked
            for matcher in matchers(promql_parser.parse(one["query"]))
            if matcher.name == "instance"
        }
        assert instances == {"10.0.0.1:8080"}
        asked = len(fake.asked)
        with pytest.raises(NotFoundError, match="no HTTP address"):
            await ask(range="1d", bookie="b")
        with pytest.raises(NotFoundError, match="no series"):
            await ask(range="1d", bookie="up} or up{")
        with pytest.raises(UsageError, match="is not offered"):
            await ask(range="2d")
        assert len(fake.asked) == asked


def matchers(expression: Any) -> list[Any]:
    """Return all matchers in a query."""
    if isinstance(expression, promql_parser.VectorSelector):
        return list(expression.matchers.matchers)
    found = []
    for name in ("expr", "lhs", "rhs", "vector_selector", "selector"):
        if hasattr(expression, name):
            found += matchers(getattr(expression, name))
    for one in getattr(expression, "args", []):
        found += matchers(one)
    return found


async def test_a_prometheus_server_below_a_path_is_queried() -> None:
    async with world() as (fake, clock, history):
        async with prometheus_fetcher() as fetch:
            below = PrometheusHistory(f"{history._url}/below", fetch, clock)
            await below.read(DAY_S)
        assert len(fake.asked) == len(OF_CLUSTER)


# -- clients ----------------------------------------------------------------------------------


def said(value: str, instance: str, **labels: str) -> dict[str, Any]:
    return {"metric": {"instance": instance, "job": "apps", **labels}, "value": [NOW_S, value]}


async def test_clients_that_suspect_a_bookie_are_merged_from_both_metrics() -> None:
    hostile = 'b"} or vector(1) or {a="'
    async with world() as (fake, _, history):
        fake.vectors = [
            [said("1", "a:1", reason="slow"), said("1", "a:1", reason="failed"),
             said("0", "z:1", reason="slow")],
            [said("3", "b:1", kind="dropped"), said("2", "a:1", kind="missing")],
        ]  # fmt: skip
        found = await history.clients_of(hostile)
    assert found == [
        SuspectingClient("a:1", "apps", ("failed", "slow"), {"missing": 2}),
        SuspectingClient("b:1", "apps", (), {"dropped": 3}),
    ]
    for asked, metric in zip(fake.asked, (AVOIDED, WRONG_ANSWERS), strict=True):
        assert asked["query"] == f"{metric}{{bookie={json.dumps(hostile)}}}"


@pytest.mark.parametrize(
    "answer",
    [
        "not JSON",
        '{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        '{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}}',
        '{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"reason":'
        ' "slow"}, "value": [1, "+Inf"]}]}}',
    ],
)
async def test_an_answer_about_clients_that_cannot_be_decoded_is_an_error(answer: str) -> None:
    async with world() as (fake, clock, history):
        fake.text = answer
        for _ in range(2):
            with pytest.raises(HistoryError, match="cannot be decoded"):
                await history.clients_of("b")
        assert len(fake.asked) == 2, "the failure is kept for a while"
        clock.now_s += FAILURE_KEPT_S
        fake.text, fake.vectors = "", [[], []]
        assert await history.clients_of("b") == []
