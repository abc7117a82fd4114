"""The tables of docs/reference/http.md and docs/reference/metrics.md match the code.

With QUIRE_WRITE_DOCS=1 the test writes the tables.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from quire._runtime.clock import SystemClock
from quire._runtime.metrics import Metric
from quire._runtime.tasks import TaskSet
from quire.bookie.metrics import bookie_metrics
from quire.bookie.server import Bookie
from quire.cli.servers.processes.page import Service, ServicePage
from quire.client import Client
from quire.client.client import metrics_of, pool_of
from quire.client.cluster.health import Misbehaviour
from quire.http.routes.bookie import BookieRoutes
from quire.http.routes.bookie_pages import BookiePages
from quire.http.routes.cluster import ClusterRoutes, Connect
from quire.http.routes.configuration import ConfigurationRoutes
from quire.http.routes.contents import ContentRoutes
from quire.http.routes.dashboard import DashboardRoutes
from quire.http.routes.jobs import Jobs
from quire.http.routes.payloads import PayloadRoutes
from quire.http.routes.problem_counts import ProblemCountRoutes
from quire.http.routes.quire_api import QuireRoutes
from quire.http.routes.series import SeriesRoutes
from quire.http.server.api import Api, Handler, Route
from quire.http.server.fetch import Put
from quire.http.server.metrics import autorecovery_metrics, process_metrics, server_metrics
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer
from quire.http.views.cluster_view import ClusterState, ClusterView, cluster_metrics
from quire.http.views.last_known import LastKnown
from quire.http.watch.prometheus import PrometheusHistory, history_metrics
from quire.http.watch.rates import Fetch
from quire.http.watch.reachability import MetadataReachability
from quire.http.watch.recorder import SeriesRecorder
from quire.net.certificates import CertificateExpiry, expiry_metric
from quire.replication.autorecovery.settings import AutorecoveryStats
from quire.replication.explain.explain import Diagnosis, Explained
from tests.support.bookies.bookie import memory_metadata, running_bookie

DOCS = Path(__file__).parents[4] / "docs" / "reference"
HANGS = re.compile(r"\b(such|these|those|here|above|former|latter|respectively)\b", re.IGNORECASE)
"""Words that refer to the help of another metric."""
DIRECTORY = re.compile(r"bookie_ledger_dir_\w+_usage")


def check(name: str, mark: str, rows: list[str]) -> None:
    """Compare the table between `<!-- mark -->` and `<!-- end -->` with these rows."""
    path = DOCS / name
    text = path.read_text(encoding="utf-8")
    table = re.compile(rf"(<!-- {mark} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    assert table.search(text), f"{name} has no {mark}"
    wanted = table.sub(lambda m: m[1] + "\n".join(rows) + "\n" + m[3], text)
    if os.environ.get("QUIRE_WRITE_DOCS"):
        path.write_text(wanted, encoding="utf-8")
        text = wanted
    assert text == wanted, (
        f"{name} is out of date: run QUIRE_WRITE_DOCS=1 pytest {Path(__file__).name}"
    )


def with_a_certificate(one: Metric) -> Metric:
    """Return the metric as a process with TLS files has it. The others have no labels."""
    found = re.fullmatch(r"quire_(\w+)_tls_certificate_expires_seconds", one.name)
    return expiry_metric(found[1], [CertificateExpiry("x", True, 0)]) if found else one


def metric_rows(metrics: list[Metric]) -> list[str]:
    metrics = list(map(with_a_certificate, metrics))
    for one in metrics:
        assert not HANGS.search(one.help), f"the help of {one.name} must stand alone: {one.help}"
    rows = ["| name | type | meaning |", "|---|---|---|"]
    for one in metrics:
        name = DIRECTORY.sub("bookie_ledger_dir_PATH_usage", one.name)
        labels = sorted({label for sample in one.samples for label in sample.labels} - {"le"})
        shown = f"`{name}`" + (f" ({', '.join(labels)})" if labels else "")
        rows.append(f"| {shown} | {one.kind} | {one.help} |")
    return rows


async def test_every_metric_is_documented(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        found = list(bookie_metrics(bookie, 0.0))
        apaches = [one for one in found if not one.name.startswith("quire_")]
        ours = [one for one in found if one.name.startswith("quire_")]
        check("metrics.md", "apache", metric_rows(apaches))
        check("metrics.md", "bookie", metric_rows(ours))
    client = Client(memory_metadata(), rng=random.Random(0))
    health = pool_of(client).health
    health.misbehaved("b", Misbehaviour.BAD_DIGEST, 7, 0)  # the metrics of bookies have samples
    try:
        check("metrics.md", "client", metric_rows(list(metrics_of(client))))
    finally:
        await client.close()
    autorecovery = list(autorecovery_metrics(AutorecoveryStats()))
    check("metrics.md", "autorecovery", metric_rows(autorecovery))
    server = HttpServer(
        Api("x"),
        HttpOptions(),
        version="1",
        monotonic=lambda: 0.0,
        log=lambda event, **fields: None,
    )
    reach = MetadataReachability("x", lambda: asyncio.sleep(0), SystemClock())
    process = [*process_metrics("1"), *server_metrics(server), *reach.metrics()]
    history = PrometheusHistory("http://x", cast(Fetch, None), SystemClock())
    process += [*recorder().metrics(), *history_metrics(history)]
    check("metrics.md", "process", metric_rows(process))
    view = ClusterState("x", "x", [], {"marked": 0}, None, [], None)
    check("metrics.md", "cluster", metric_rows(list(cluster_metrics(view))))


def recorder() -> SeriesRecorder:
    nothing = cast(Any, None)
    return SeriesRecorder(nothing, SystemClock(), nothing, nothing, nothing, nothing, always=False)


def route_rows(routes: list[Route]) -> list[str]:
    rows = ["| route | fields | result |", "|---|---|---|"]
    for one in routes:
        fields = [f"`{field.name}`" for field in (*one.query, *one.body)]
        rows.append(f"| `{one.method} {one.path}` | {', '.join(fields)} | {one.summary} |")
    return rows


def test_every_route_is_documented() -> None:
    connect, jobs = cast(Connect, None), Jobs(SystemClock())
    bookie = BookieRoutes(cast(Bookie, None), connect, TaskSet()).routes()
    check("http.md", "bookie", route_rows(bookie))
    check("http.md", "cluster", route_rows(ClusterRoutes(connect, jobs, "x").routes()))
    view = ClusterView(lambda: 0.0, cast(Fetch, None))
    ours = [
        *QuireRoutes(connect, jobs, view, "x").routes(),
        *DashboardRoutes(connect, jobs, view, "x").routes(),
        *BookiePages(connect, jobs, view, "x", cast(Put, None)).routes(),
        *ConfigurationRoutes(connect, cast(Fetch, None), None, "x", "1").routes(),
        *SeriesRoutes(recorder(), None).routes(),
        *ProblemCountRoutes(cast(LastKnown, None), cast(Handler, None), lambda: 0.0).routes(),
        *ContentRoutes(connect).routes(),
        *PayloadRoutes(connect).routes(),
    ]
    check("http.md", "ours", route_rows(ours))
    check("http.md", "service", route_rows(ServicePage(cast(Service, None)).routes()))


def test_the_example_of_an_explanation_has_the_fields_of_the_answer() -> None:
    """It named two fields of the verdict that no answer has."""
    routes = QuireRoutes(cast(Connect, None), Jobs(SystemClock()), cast(Any, None), "x").routes()
    [route] = [one for one in routes if one.path.endswith("/explain")]
    assert route.example.keys() <= {field.name for field in fields(Explained)}
    assert list(route.example["verdict"]) == [field.name for field in fields(Diagnosis)]
