"""The HTTP server of a service: the metrics and the health of all its bookies on one page.

It has no routes about the cluster or about a single bookie. Each bookie serves those itself, and
the error of an unknown path names the addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from quire._runtime.clock import SystemClock
from quire._runtime.event_log import EventLog
from quire._runtime.metrics import CONTENT_TYPE, Metric, Sample, exposition
from quire.cli.servers.processes.bookie_process import BookieProcess
from quire.cli.servers.processes.merged_metrics import LABEL, merged
from quire.http.server.api import Api, Call, Reply, Route, Text
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer

PATH = "/api/v1/quire/processes"


class Service(Protocol):
    """The attributes of a supervisor that the HTTP server of the service uses."""

    bookies: list[BookieProcess]
    rolling: bool


@asynccontextmanager
async def serve_page(
    supervisor: Service, options: HttpOptions, version: str, log: EventLog
) -> AsyncIterator[HttpServer]:
    """Run the HTTP server of a service. Raises StartError and TlsConfigError."""
    page = ServicePage(supervisor)
    api = Api("Quire")
    api.add(page.routes())
    server = HttpServer(
        api, options, version=version, monotonic=SystemClock().monotonic, log=log,
        elsewhere=page.elsewhere,
    )  # fmt: skip
    await server.start()
    try:
        log("http_serving", url=server.url)
        yield server
    finally:
        await server.stop()


class ServicePage:
    """The routes of the HTTP server of a service."""

    def __init__(self, supervisor: Service) -> None:
        self._supervisor = supervisor

    @property
    def _bookies(self) -> list[BookieProcess]:
        return self._supervisor.bookies

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/heartbeat", "Return OK if every bookie that runs answers",
                  self.heartbeat, example=Text("OK\n"), open=True),
            Route("GET", "/api/v1/bookie/is_ready",
                  "Return 200 when all bookies serve clients, otherwise 503", self.is_ready,
                  example=Text("OK"), open=True),
            Route("GET", "/metrics", "Return the metrics of all bookies in Prometheus' text format",
                  self.metrics, example=Text("")),
            Route("GET", PATH, "List the bookies of the service and their states", self.processes,
                  example={"rolling_restart": False, "bookies": [{"process": 0}]}),
        ]  # fmt: skip

    async def heartbeat(self, call: Call) -> Any:
        # A bookie that ended is started again here, so a restart of the service would not help it.
        return self._health([one for one in self._bookies if not one.answers], "OK\n")

    async def is_ready(self, call: Call) -> Any:
        return self._health([one for one in self._bookies if one.complaint], "OK")

    def _health(self, unwell: list[BookieProcess], well: str) -> Any:
        if not unwell:
            return Text(well)
        said = [f"process {one.share.number} ({one.name}) {one.complaint}" for one in unwell]
        return Reply(503, Text("\n".join(said) + "\n"))

    async def metrics(self, call: Call) -> Text:
        texts = await asyncio.gather(*(one.metrics() for one in self._bookies))
        found = {
            one.name: text
            for one, text in zip(self._bookies, texts, strict=True)
            if text is not None
        }
        return Text(exposition(self._own_metrics()) + merged(found), CONTENT_TYPE)

    def _own_metrics(self) -> list[Metric]:
        def each(value: Any) -> tuple[Sample, ...]:
            return tuple(Sample(value(one), {LABEL: one.name}) for one in self._bookies)

        return [
            Metric("quire_service_bookie_up", "gauge",
                   "1 if the bookie of this service serves and answers, otherwise 0.",
                   each(lambda one: int(not one.complaint))),
            Metric("quire_service_bookie_restarts_total", "counter",
                   "The number of times the service has started the bookie again.",
                   each(lambda one: one.restarts)),
        ]  # fmt: skip

    async def processes(self, call: Call) -> dict[str, Any]:
        return {
            "rolling_restart": self._supervisor.rolling,
            "bookies": [
                {
                    "process": one.share.number,
                    "id": one.name,
                    "state": one.state,
                    "answers": one.answers,
                    "writable": one.state == "serving" and one.status.writable,
                    "problem": one.complaint or None,
                    "pid": one.pid,
                    "http": one.status.http,
                    "directories": list(one.share.directories),
                    "restarts": one.restarts,
                    "error": one.error or None,
                }
                for one in self._bookies
            ],
        }

    def elsewhere(self) -> str:
        """Return the text for an unknown path, which says where the other routes are."""
        places = [f"{one.name} at {one.status.http}" for one in self._bookies if one.status.http]
        return (
            "This server only has the health and the metrics of several bookies. Send other "
            "requests to one of them: " + (", ".join(places) or "none of them answers yet")
        )
