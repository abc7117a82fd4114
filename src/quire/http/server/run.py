"""The start of the HTTP server of a process.

A bookie serves its own routes and those of the cluster. Other processes serve only those of the
cluster.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.event_log import EventLog
from quire._runtime.metrics import CONTENT_TYPE, Metric, exposition
from quire._runtime.tasks import TaskSet
from quire.client import Client, connect
from quire.client.client import metrics_of
from quire.codec.metadata.registration import Endpoint
from quire.config import ClientConfig
from quire.errors import QuireError
from quire.http.routes.bookie_pages import BookiePages
from quire.http.routes.cluster import ClusterRoutes, Connect
from quire.http.routes.configuration import ConfigurationRoutes
from quire.http.routes.contents import ContentRoutes
from quire.http.routes.dashboard import KEPT, LAST_KNOWN, DashboardRoutes
from quire.http.routes.jobs import Jobs
from quire.http.routes.payloads import PayloadRoutes
from quire.http.routes.problem_counts import OVERVIEW, ProblemCountRoutes
from quire.http.routes.quire_api import QuireRoutes
from quire.http.routes.series import SeriesRoutes
from quire.http.server.api import Api, Call, Handler, Route, Text
from quire.http.server.fetch import peers, prometheus_fetcher, proves
from quire.http.server.metrics import autorecovery_metrics, process_metrics, server_metrics
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer
from quire.http.server.static_files import static_routes
from quire.http.views.cluster_view import ClusterView, cluster_metrics
from quire.http.views.last_known import LastKnown
from quire.http.watch.prometheus import PrometheusHistory, history_metrics
from quire.http.watch.rates import ENDPOINT
from quire.http.watch.reachability import MetadataReachability, server_causes
from quire.http.watch.recorder import SeriesRecorder
from quire.net.certificates import CertificateExpiry
from quire.net.tls import client_tls
from quire.replication.autorecovery.settings import AutorecoveryStats

if TYPE_CHECKING:
    from quire.bookie.server import Bookie

Collect = Callable[[], Iterable[Metric]]
CLUSTER_TIMEOUT_S = 2.0
"""Seconds to collect the metrics of the whole cluster. If that takes longer, they are left out, and
`quire_cluster_readable` is 0."""


class LazyClient:
    """A client that connects at the first call.

    A call raises the errors of `connect`. After a failure the next call tries again. A caller that
    gives up does not end the attempt for the others.
    """

    def __init__(self, uri: str, config: ClientConfig) -> None:
        self.uri = uri
        self.config = config
        self._client: Client | None = None
        self._connecting: asyncio.Task[Client] | None = None

    async def __call__(self) -> Client:
        if self._client is None:
            if self._connecting is None:
                self._connecting = asyncio.get_running_loop().create_task(self._connect())
                self._connecting.add_done_callback(self._connected)
            return await asyncio.shield(self._connecting)
        return self._client

    async def _connect(self) -> Client:
        return await connect(self.uri, config=self.config)

    def _connected(self, task: asyncio.Task[Client]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._client = task.result()

    async def instance_id(self) -> str:
        return await (await self()).metadata.instance_id()

    def metrics(self) -> Iterable[Metric]:
        return metrics_of(self._client) if self._client is not None else ()

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._client is not None:
            await self._client.close()


@asynccontextmanager
async def serve_bookie(
    bookie: Bookie,
    options: HttpOptions,
    uri: str,
    config: ClientConfig,
    version: str,
    log: EventLog,
    *,
    autorecovery: AutorecoveryStats | None = None,
    settings: Mapping[str, Any] | None = None,
) -> AsyncIterator[HttpServer]:
    """Run the HTTP server of a bookie.

    It starts before the bookie, and reports "not ready" until the bookie serves clients. The
    bookie's registration names the port. If `autorecovery` is given, its counters are among the
    metrics. `settings` is the configuration of the process (`quire.configuration.report`), if it is
    to be served. With `uri` and `config`, the server connects a client for the routes of the
    cluster. `log` receives the events of the server. Raises UsageError, StartError and
    TlsConfigError (see `HttpServer`).
    """
    from quire.bookie.metrics import bookie_metrics
    from quire.http.routes.bookie import BookieRoutes

    clock = SystemClock()
    client, tasks = LazyClient(uri, config), TaskSet()

    def collect() -> Iterable[Metric]:
        yield from bookie_metrics(bookie, clock.monotonic())
        if autorecovery is not None:
            yield from autorecovery_metrics(autorecovery)

    own = BookieRoutes(bookie, client, tasks, version=version, started_ms=clock.now_ms()).routes()
    # Each bookie of a machine has a different name.
    owner = f"http.{bookie.address.advertise}.{os.getpid()}"
    reach = MetadataReachability(
        uri, bookie.metadata.instance_id, clock, lambda: server_causes(uri)
    )
    try:
        served = _serving(
            client, reach, own, collect, options, owner, version, log,
            bookie=bookie, settings=settings,
        )  # fmt: skip
        async with served as server:
            extensions = ("tls",) if options.tls is not None else ()
            host = bookie.address.advertise if not options.loopback else options.host
            bookie.others = (
                Endpoint(ENDPOINT, host, server.port, options.scheme, extensions=extensions),
            )
            yield server
    finally:
        await tasks.close()


@asynccontextmanager
async def serve_cluster(
    options: HttpOptions,
    uri: str,
    config: ClientConfig,
    version: str,
    log: EventLog,
    *,
    owner: str,
    autorecovery: AutorecoveryStats | None = None,
    settings: Mapping[str, Any] | None = None,
    instance_id: Callable[[], Awaitable[str]] | None = None,
    of_client: Collect | None = None,
) -> AsyncIterator[HttpServer]:
    """Run an HTTP server with the routes of the cluster, in a process without a bookie.

    If `autorecovery` is given, its counters are among the metrics. Otherwise the metrics of the
    whole cluster are, for which the server asks all bookies. `settings` is the configuration of the
    process (`quire.configuration.report`), if it is to be served. A process that has a metadata
    store gives its `instance_id`, which is called to find out whether the store answers. The server
    then connects a client of its own only for a request that needs one. `of_client` returns the
    metrics of the client with which the process works. They are served instead of those of the
    client of the routes. `owner` is the name of the process in locks, orders and pauses. Raises
    UsageError, StartError and TlsConfigError (see `HttpServer`).
    """

    def collect() -> Iterable[Metric]:
        return () if autorecovery is None else autorecovery_metrics(autorecovery)

    client = LazyClient(uri, config)
    asked = instance_id or client.instance_id
    reach = MetadataReachability(uri, asked, SystemClock(), lambda: server_causes(uri))
    served = _serving(
        client, reach, [], collect, options, owner, version, log,
        about_cluster=autorecovery is None, settings=settings, of_client=of_client,
    )  # fmt: skip
    async with served as server:
        yield server


@asynccontextmanager
async def _serving(
    client: LazyClient,
    reach: MetadataReachability,
    own: list[Route],
    collect: Collect,
    options: HttpOptions,
    owner: str,
    version: str,
    log: EventLog,
    *,
    about_cluster: bool = False,
    bookie: Bookie | None = None,
    settings: Mapping[str, Any] | None = None,
    of_client: Collect | None = None,
) -> AsyncIterator[HttpServer]:
    """Run an HTTP server with the given routes and those of the cluster.

    `bookie` is the bookie of this process, if it has one. `of_client` returns the metrics of
    another client than that of the routes, if they are to be served.

    `about_cluster` adds the metrics of the whole cluster. Only one or two servers of a cluster
    should have them, because each such server asks all bookies.
    """
    clock = SystemClock()
    jobs = Jobs(clock, log)
    api = Api("Quire")
    server: HttpServer | None = None

    async def metrics(call: Call) -> Text:
        clients = client.metrics() if of_client is None else of_client()
        found = [*collect(), *reach.metrics(), *clients, *process_metrics(version)]
        found += recorder.metrics()
        if history is not None:
            found += history_metrics(history)
        if server is not None:
            found += server_metrics(server, clock.now_ms())
        if about_cluster:
            found += await _cluster_metrics(connected, view)
        return Text(exposition(found), CONTENT_TYPE)

    api.add(_about_process(metrics))
    connected = reach.connecting(client)
    tls = client_tls(client.config.tls, clock.monotonic, log) if client.config.tls else None
    current = tls.current if tls else None
    proven = proves(client.config.tls)
    async with (
        peers(options.bookies_token, current, proven=proven) as (fetch, put),
        prometheus_fetcher() as ask,
    ):
        view = ClusterView(clock.monotonic, fetch, now_ms=clock.now_ms)
        recorder = SeriesRecorder(
            connected, clock, fetch, view.spaces, view.marks, log, always=about_cluster
        )
        jobs.on_end = view.changed
        history = None
        if options.prometheus:
            labels = options.prometheus_labels
            history = PrometheusHistory(options.prometheus, ask, clock, labels)
        api.add(_reporting(own, view.changed))
        # Series are answered from memory, also while the metadata store is away.
        api.add(SeriesRoutes(recorder, history).routes())
        background = TaskSet()
        known = LastKnown(reach, clock.now_ms)
        for routes in (
            ClusterRoutes(connected, jobs, owner).routes(),
            QuireRoutes(connected, jobs, view, owner).routes(),
            DashboardRoutes(connected, jobs, view, owner).routes(),
            BookiePages(
                connected,
                jobs,
                view,
                owner,
                put,
                bookie,
                version,
                clock.now_ms(),
                recorder.knows,
                history,
            ).routes(),
            ConfigurationRoutes(connected, fetch, settings, owner, version, bookie).routes(),
            ContentRoutes(connected).routes(),
            PayloadRoutes(connected).routes(),
        ):
            guarded = _reporting(reach.guarded(routes), view.changed)
            api.add([
                known.of(one) if one.path in LAST_KNOWN and not one.changes else one
                for one in guarded
            ])  # fmt: skip
        overview = next(one for one in api.routes if one.path == OVERVIEW)
        counts = ProblemCountRoutes(known, overview.handler, clock.monotonic)
        api.add(counts.routes())
        api.add(static_routes())
        server = HttpServer(api, options, version=version, monotonic=clock.monotonic, log=log)
        view.http_certificates = partial(_certificates, server, clock)
        try:
            await server.start()
            reach.start()
            recorder.start()
            if about_cluster:
                kept = [
                    (one, KEPT[one.path])
                    for one in api.routes
                    if one.path in KEPT and not one.changes
                ]
                background.start(known.keep(kept, log))
            log("http_serving", url=server.url)
            yield server
        finally:
            await server.stop()
            await reach.stop()
            await jobs.close()
            await background.close()
            await counts.close()
            await recorder.close()
            await view.close()
            await client.close()


def _reporting(routes: Iterable[Route], changed: Callable[[], None]) -> list[Route]:
    """Return the routes. Those that change something also call `changed`, even after an error."""

    def of(route: Route) -> Route:
        async def handle(call: Call) -> Any:
            try:
                return await route.handler(call)
            finally:
                changed()

        return replace(route, handler=handle) if route.changes else route

    return [of(one) for one in routes]


def _certificates(server: HttpServer, clock: Clock) -> list[CertificateExpiry]:
    return server.certificates(clock.now_ms())


def _about_process(metrics: Handler) -> list[Route]:
    async def heartbeat(call: Call) -> Text:
        return Text("OK\n")

    return [
        Route("GET", "/heartbeat", "Return OK if the process answers", heartbeat,
              example=Text("OK\n"), open=True),
        Route("GET", "/metrics", "Return the metrics in Prometheus' text format", metrics,
              example=Text("")),
    ]  # fmt: skip


async def _cluster_metrics(connect: Connect, view: ClusterView) -> Iterable[Metric]:
    """Return the metrics of the whole cluster.

    After any QuireError, or if they cannot be computed within `CLUSTER_TIMEOUT_S`, only
    `quire_cluster_readable` is left. Without it, no alert would ever say that they are missing.
    """
    try:
        async with asyncio.timeout(CLUSTER_TIMEOUT_S):
            return list(cluster_metrics(await view.recent(await connect())))
    except (QuireError, TimeoutError):
        return list(cluster_metrics(None))
