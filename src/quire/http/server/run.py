"""Which routes a process serves: a bookie's own and the cluster's, or the cluster's alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quire._runtime.clock import SystemClock
from quire._runtime.metrics import CONTENT_TYPE, Metric, counter, exposition, gauge
from quire._runtime.tasks import TaskSet
from quire.client import Client, connect
from quire.codec.metadata.registration import Endpoint
from quire.config import ClientConfig
from quire.errors import QuireError
from quire.http.routes.cluster import ClusterRoutes, Connect
from quire.http.routes.dashboard import DashboardRoutes
from quire.http.routes.jobs import Jobs
from quire.http.routes.ours import OurRoutes
from quire.http.server.api import Api, Call, Handler, Route, Text
from quire.http.server.fetch import fetcher, proves
from quire.http.server.process import process_metrics
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer, Log
from quire.http.server.static_files import static_routes
from quire.http.views.cluster_view import ClusterView, cluster_metrics
from quire.http.watch.rates import ENDPOINT
from quire.http.watch.reach import Reach
from quire.net.tls import client_tls
from quire.replication.autorecovery.settings import AutorecoveryStats

if TYPE_CHECKING:
    from quire.bookie.server import Bookie

Collect = Callable[[], Iterable[Metric]]
CLUSTER_TIMEOUT_S = 2.0
"""For what the metrics say of a whole cluster."""


class LazyClient:
    """Connects at the first call; after a failure the next call tries again. Who waits for it may
    give up: the attempt goes on for the others."""

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
        return self._client.pool.metrics() if self._client is not None else ()

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
    log: Log,
    *,
    autorecovery: AutorecoveryStats | None = None,
) -> AsyncIterator[HttpServer]:
    """Start the whole HTTP server before the bookie starts; it reports "not ready" until the bookie
    serves.

    The bookie's registration will name the port. The counters of `autorecovery` are among the
    metrics. Raises StartError and TlsConfigError.
    """
    from quire.bookie.metrics import bookie_metrics
    from quire.http.routes.bookie import BookieRoutes

    clock = SystemClock()
    client, tasks = LazyClient(uri, config), TaskSet()

    def collect() -> Iterable[Metric]:
        yield from bookie_metrics(bookie, clock.monotonic())
        if autorecovery is not None:
            yield from autorecovery_metrics(autorecovery)

    own = BookieRoutes(bookie, client, tasks).routes()
    # Of the bookies of one machine each by another name.
    owner = f"http.{bookie.address.advertise}.{os.getpid()}"
    reach = Reach(uri, bookie.metadata.instance_id, clock)
    try:
        async with _serving(client, reach, own, collect, options, owner, version, log) as server:
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
    log: Log,
    *,
    owner: str,
    autorecovery: AutorecoveryStats | None = None,
) -> AsyncIterator[HttpServer]:
    """What needs no bookie of this process. `autorecovery`: what it counts is among the metrics."""

    def collect() -> Iterable[Metric]:
        return () if autorecovery is None else autorecovery_metrics(autorecovery)

    client = LazyClient(uri, config)
    reach = Reach(uri, client.instance_id, SystemClock())
    served = _serving(
        client, reach, [], collect, options, owner, version, log, about_cluster=autorecovery is None
    )
    async with served as server:
        yield server


@asynccontextmanager
async def _serving(
    client: LazyClient,
    reach: Reach,
    own: list[Route],
    collect: Collect,
    options: HttpOptions,
    owner: str,
    version: str,
    log: Log,
    *,
    about_cluster: bool = False,
) -> AsyncIterator[HttpServer]:
    """`about_cluster`: metrics of the whole cluster, too: one or two servers are to have them, for
    each asks all bookies."""
    clock = SystemClock()
    jobs = Jobs(clock)
    api = Api("Quire")
    server: HttpServer | None = None

    async def metrics(call: Call) -> Text:
        found = [*collect(), *reach.metrics(), *client.metrics(), *process_metrics()]
        if server is not None:
            found += server_metrics(server)
        if about_cluster:
            found += await _cluster_metrics(connected, view)
        return Text(exposition(found), CONTENT_TYPE)

    api.add(_about_process(metrics))
    connected = reach.connecting(client)
    tls = client_tls(client.config.tls, clock.monotonic, log) if client.config.tls else None
    current = tls.current if tls else None
    proven = proves(client.config.tls)
    async with fetcher(options.bookies_token, current, proven=proven) as fetch:
        view = ClusterView(clock.monotonic, fetch)
        api.add(own)
        for routes in (
            ClusterRoutes(connected, jobs, owner).routes(),
            OurRoutes(connected, jobs, view, owner).routes(),
            DashboardRoutes(connected, jobs, view, owner).routes(),
        ):
            api.add(reach.guarded(routes))
        api.add(static_routes())
        server = HttpServer(api, options, version=version, monotonic=clock.monotonic, log=log)
        try:
            await server.start()
            reach.start()
            log("http_serving", url=server.url)
            yield server
        finally:
            await server.stop()
            await reach.stop()
            await jobs.close()
            await view.close()
            await client.close()


def _about_process(metrics: Handler) -> list[Route]:
    async def heartbeat(call: Call) -> Text:
        return Text("OK\n")

    return [
        Route("GET", "/heartbeat", "Whether the process answers", heartbeat,
              example=Text("OK\n"), open=True),
        Route("GET", "/metrics", "Prometheus' text format", metrics, example=Text("")),
    ]  # fmt: skip


async def _cluster_metrics(connect: Connect, view: ClusterView) -> Iterable[Metric]:
    """None of them while the metadata store does not answer, which other metrics say."""
    try:
        async with asyncio.timeout(CLUSTER_TIMEOUT_S):
            return list(cluster_metrics(await view.look(await connect())))
    except (QuireError, TimeoutError):
        return ()


def server_metrics(server: HttpServer) -> Iterable[Metric]:
    yield counter("quire_http_requests_total", "HTTP requests that were let in.", server.requests)
    yield counter("quire_http_refused_total", "HTTP requests that were refused.", server.refused)
    yield counter("quire_http_failed_total", "HTTP requests that failed.", server.failed)
    yield gauge("quire_http_connections", "HTTP connections.", len(server.connections))
    yield gauge("quire_http_unsent_bytes", "Bytes of HTTP answers that clients have not taken.",
                server.unsent_bytes)  # fmt: skip
    yield counter("quire_http_connections_displaced_total",
                  "HTTP connections that were closed to admit another.",
                  server.displaced)  # fmt: skip
    yield counter("quire_http_connections_refused_total",
                  "HTTP connections that were refused because there was no place for them.",
                  server.turned_away)  # fmt: skip


_GAUGES = {
    "replicas_missing",
    "ledgers_misplaced",
    "ledgers_unreadable",
    "marks_malformed",
}


def autorecovery_metrics(stats: AutorecoveryStats) -> Iterable[Metric]:
    for name, value in asdict(stats).items():
        text = name.replace("_", " ").capitalize()
        known: Any = AUTORECOVERY.get(name, text)
        if name in _GAUGES:
            yield gauge(f"quire_autorecovery_{name}", f"{known}.", value)
        else:
            yield counter(f"quire_autorecovery_{name}_total", f"{known}.", value)


AUTORECOVERY = {
    "elections_won": "Elections as auditor that were won",
    "sessions_lost": "Sessions with the metadata store that were lost",
    "store_errors": "Times the metadata store did not answer, or was not understood",
    "ledgers_unreadable": "Ledgers that the last pass skipped: their metadata or mark cannot be "
    "read",
    "marks_malformed": "Nodes in the tree of marks that are not marks, as of the last check",
    "audits": "Looks for lost bookies that came to their end",
    "bookies_waited_for": "Lost bookies that were waited for",
    "bookies_returned": "Those that came back meanwhile",
    "ledgers_marked": "Ledgers that this auditor has marked",
    "ledger_checks": "Checks of the ends of replicas",
    "replicas_checks": "Checks of lists of entries",
    "placement_checks": "Checks of placement",
    "replicas_lagged": "Ledgers with replicas that were short at first, and whole when asked again",
    "replicas_missing": "Entries that bookies lacked, at the last check",
    "ledgers_misplaced": "Ledgers that lie otherwise than wanted, at the last check",
    "ledgers_done": "Marked ledgers that lack nothing any more",
    "ledgers_failed": "Attempts to repair a ledger that failed",
    "ledgers_fenced": "Ledgers whose writers were taken for dead",
    "locks_missed": "Times somebody else had the ledger",
    "replicas_read": "Entries that were read to see whether a living bookie has them",
    "replicas_repaired": "Entries that were written again to the bookie that lacked them",
    "fragments": "Fragments in which a bookie was replaced",
    "fragments_moved": "Fragments that were moved to where the placement policy wants them",
    "entries_copied": "Entries that were copied",
    "bytes_copied": "Bytes of payload that were written to bookies",
}
