"""The routes about single bookies, which every server of the cluster has, and about their topology.

A server asks the bookie itself for what only the bookie knows, and forwards changes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from quire._runtime.names.suggest import did_you_mean
from quire._runtime.tasks import each
from quire.bookie.server import Bookie
from quire.client import Client
from quire.client.client import pool_of
from quire.codec.metadata.registration import check_bookie_id
from quire.errors import BookieTimeoutError, BookieUnavailableError, UsageError
from quire.http.routes.answering import answering
from quire.http.routes.cluster import Connect
from quire.http.routes.jobs import Jobs
from quire.http.server.api import INT64_MAX, Call, Field, Reply, Route
from quire.http.server.error_responses import NotFoundError
from quire.http.server.fetch import Put
from quire.http.views.bookie_list import bookie_facts
from quire.http.views.bookie_page import actions, problems_of, with_fullness
from quire.http.views.bookie_report import bookie_report
from quire.http.views.cluster_view import ClusterView
from quire.http.views.job_pace import jobs_with_pace, running_with_pace
from quire.http.views.ledger_json import described_or_error, ledger_as_json
from quire.http.views.topology import split, topology
from quire.http.views.untrusted import taken
from quire.http.watch.bookie_reports import GIVE_TOKEN, SeenReport, why_not
from quire.http.watch.prometheus import HistoryError, PrometheusHistory
from quire.http.watch.rates import http_url
from quire.metadata.bookies.orders import stored_order
from quire.replication.marks.pauses import CLUSTER, Pauses
from quire.replication.moves.decommission import take_back

PREFIX = "/api/v1/quire"
PAGE = 100
PAGE_MAX = 1_000
FORWARD_TIMEOUT_S = 5.0
"""Seconds that a bookie has to answer a change that this server forwards to it."""
READONLY_PATH = "/api/v1/bookie/state/readonly"

BOOKIE_ID = Field("bookie_id", "string", "the id of the bookie")


class BookiePages:
    """The routes about single bookies."""

    def __init__(
        self,
        connect: Connect,
        jobs: Jobs,
        view: ClusterView,
        owner: str,
        put: Put,
        own: Bookie | None = None,
        version: str = "",
        started_ms: int = 0,
        has_series: Callable[[str], bool] = lambda bookie_id: False,
        prometheus: PrometheusHistory | None = None,
    ) -> None:
        """Create the routes.

        Args:
            connect: Returns the client.
            jobs: The jobs of this process.
            view: The state of the cluster.
            owner: The name of this process in the announcements of jobs.
            put: Sends a change to a bookie's HTTP server.
            own: The bookie of this process. It is asked and changed directly, without HTTP.
            version: The version of Quire of this process.
            started_ms: When this process started, in milliseconds since 1970.
            has_series: Returns whether there are charts of a bookie, whose id it receives.
            prometheus: The Prometheus server that knows the metrics of clients, if there is one.
        """
        self._connect = connect
        self._jobs = jobs
        self._view = view
        self._owner = owner
        self._put = put
        self._own = own
        self._version = version
        self._started_ms = started_ms
        self._has_series = has_series
        self._prometheus = prometheus

    def routes(self) -> list[Route]:
        after = Field("after", "integer", "begin below this id: `next` of the previous page",
                      maximum=INT64_MAX)  # fmt: skip
        limit = Field("limit", "integer", f"the number of items on a page (default {PAGE})",
                      minimum=1, maximum=PAGE_MAX)  # fmt: skip
        held = Field("readOnly", "boolean", "whether to refuse entries of writers", required=True)
        one = f"{PREFIX}/bookies/{{bookie_id}}"
        described = {"id": "10.0.0.1:3181", "state": "writable", "location": "/eu/rack1"}
        return [
            Route("GET", one, "Return one bookie: its state, its problems and directories, the "
                  "jobs that touch it, and what can be done", self.bookie, fields=(BOOKIE_ID,),
                  example={"bookie": described, "problems": [], "report": None, "jobs": [],
                           "actions": {"decommission": {"possible": True, "why": ""}}}),
            Route("GET", f"{one}/ledgers", "List the ledgers that name a bookie, the greatest id "
                  "first", self.ledgers, fields=(BOOKIE_ID,), query=(after, limit),
                  example={"ledgers": [{"ledger_id": 7, "state": "CLOSED"}], "next": None,
                           "count": 1, "whole": True, "age_s": 2.0}),
            Route("GET", f"{one}/clients", "List the programs that avoid a bookie, or got wrong "
                  "answers from it, as far as this server and Prometheus know", self.clients,
                  fields=(BOOKIE_ID,),
                  example={"own": {"reasons": [], "wrong_answers": {}}, "prometheus": True,
                           "clients": [{"instance": "app-1:9000", "job": "quire-clients",
                                        "reasons": ["slow"], "wrong_answers": {}}],
                           "missing": None}),
            Route("PUT", f"{one}/readonly", "Keep a bookie read-only until its next start, or stop "
                  "keeping it so", self.hold, fields=(BOOKIE_ID,), body=(held,),
                  example={"readOnly": True}),
            Route("DELETE", f"{one}/decommission", "Withdraw the order to decommission a bookie, "
                  "so that it accepts entries again", self.take_back, fields=(BOOKIE_ID,),
                  example={"changed": True}),
            Route("GET", f"{PREFIX}/topology", "Return the bookies by region and rack, and what is "
                  "wrong with their distribution", self.topology,
                  example={"regions": [{"name": "eu", "racks": []}], "unknown": [],
                           "warnings": []}),
        ]  # fmt: skip

    # -- one bookie ---------------------------------------------------------------------------

    async def bookie(self, call: Call) -> dict[str, Any]:
        bookie_id = _checked(call)
        async with answering(self._connect) as client:
            # Each of these may wait for an observation, so they wait at the same time.
            state, order, paused, seen, index = await asyncio.gather(
                self._view.recent(client),
                stored_order(client.metadata, bookie_id),
                Pauses(client.metadata).all(),
                self._report(client, bookie_id),
                self._view.index.of(client),
            )
        listed = {one["id"]: one for one in state.bookies}
        if bookie_id not in listed:
            raise _unknown(bookie_id, listed)
        one, given = listed[bookie_id], None if order is None else order.value
        region, rack = split(one["location"]) if one["location"] else (None, None)
        waiting = state.autorecovery["waiting"]
        return {
            "bookie": one,
            "region": region,
            "rack": rack,
            "series": self._has_series(bookie_id),
            "report": with_fullness(seen.report),
            "report_missing": {"what": seen.missing, "next": seen.remedy} if seen.missing else None,
            "order": None if given is None else asdict(given),
            "problems": [asdict(each) for each in problems_of(bookie_id, state.problems)],
            "ledgers": {
                "count": index.count(bookie_id),
                "read": index.ledgers,
                "whole": index.whole,
                "age_s": self._view.index.age_s,
            },
            "jobs": jobs_with_pace(
                [job for job in self._jobs.all() if _touches(job.kind, job.target, one)],
                self._view.paces,
                client.clock.now_ms(),
            ),
            "elsewhere": running_with_pace(
                [job for job in state.running if _touches(job.kind, job.target, one)],
                self._owner,
                self._view.paces,
            ),
            "paused": [
                asdict(pause) for pause in paused if _touches(pause.kind, pause.target, one)
            ],
            "waiting": waiting if waiting is not None and waiting["bookie"] == bookie_id else None,
            "actions": actions(
                one,
                seen.report,
                given,
                seen.missing,
                unneeded=index.whole and not index.count(bookie_id),
            ),
        }

    async def _report(self, client: Client, bookie_id: str) -> SeenReport:
        if self._own is not None and self._own.bookie_id == bookie_id:
            return SeenReport(bookie_report(self._own, self._version, self._started_ms))
        address = (await client.bookies()).find(bookie_id)
        return await self._view.reports.of(bookie_id, address)

    async def ledgers(self, call: Call) -> dict[str, Any]:
        bookie_id = _checked(call)
        limit = call.query.get("limit", PAGE)
        async with answering(self._connect) as client:
            index = await self._view.index.of(client)
            ids = index.newest(bookie_id, limit + 1, call.query.get("after"))
            shown = ids[:limit]
            found = await each(
                shown, lambda one: described_or_error(client.metadata, one, ledger_as_json)
            )
        return {
            # A ledger may have been deleted, or have left the bookie, since the index was made.
            "ledgers": [one for one in found if one is not None and _names(one, bookie_id)],
            "next": shown[-1] if len(ids) > limit else None,
            "count": index.count(bookie_id),
            "read": index.ledgers,
            "skipped": index.skipped,
            "whole": index.whole,
            "age_s": self._view.index.age_s,
        }

    async def clients(self, call: Call) -> dict[str, Any]:
        bookie_id = _checked(call)
        async with answering(self._connect) as client:
            own = {
                "reasons": [
                    reason.value
                    for bookie, reason in pool_of(client).health.avoided()
                    if bookie == bookie_id
                ],
                "wrong_answers": {
                    one.kind.value: one.count
                    for one in client.suspects()
                    if one.bookie == bookie_id
                },
            }
        found: dict[str, Any] = {
            "own": own, "prometheus": self._prometheus is not None, "clients": [], "missing": None,
        }  # fmt: skip
        if self._prometheus is not None:
            try:
                clients = await self._prometheus.clients_of(bookie_id)
                found["clients"] = [asdict(one) for one in clients]
            except HistoryError as error:
                found["missing"] = {"what": str(error.args[0]), "next": error.remedy}
        return found

    # -- changes ------------------------------------------------------------------------------

    async def hold(self, call: Call) -> dict[str, bool]:
        bookie_id, wanted = _checked(call), call.body["readOnly"]
        if self._own is not None and self._own.bookie_id == bookie_id:
            self._own.hold_readonly(wanted)
            return {"readOnly": not self._own.writable}
        client = await self._connect()
        address = (await client.bookies()).find(bookie_id)
        if address is None:
            await self._refuse_unknown(client, bookie_id)
            raise UsageError(
                f"bookie {bookie_id} is not registered, so it cannot be made read-only or writable",
                remedy="Start it, or decommission it",
            )
        url = http_url(address)
        if url is None:
            raise UsageError(
                f"bookie {bookie_id} has no HTTP server, so it cannot be made read-only or "
                "writable from here",
                remedy="Start it with --http HOST:PORT",
            )
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT_S):
                status, text = await self._put(f"{url}{READONLY_PATH}", {"readOnly": wanted})
        except Exception as error:  # noqa: BLE001 - any failure of the connection
            if isinstance(error, TimeoutError):
                raise BookieTimeoutError(
                    f"it is not known whether bookie {bookie_id} was changed: its HTTP server at "
                    f"{url} did not answer within {FORWARD_TIMEOUT_S:g} s",
                    remedy="Look at the state of the bookie, then try again",
                ) from None
            what, remedy = why_not(url, error)
            raise BookieUnavailableError(
                f"it is not known whether bookie {bookie_id} was changed: {what}", remedy=remedy
            ) from None
        return _forwarded(bookie_id, url, status, text)

    async def take_back(self, call: Call) -> Reply:
        bookie_id = _checked(call)
        client = await self._connect()
        changed = await take_back(client, bookie_id)
        if not changed:
            await self._refuse_unknown(client, bookie_id)
        return Reply(200, {"changed": changed})

    async def _refuse_unknown(self, client: Client, bookie_id: str) -> None:
        listed = {one["id"]: one for one in await bookie_facts(client, gone=True)}
        if bookie_id not in listed:
            raise _unknown(bookie_id, listed)

    # -- all bookies --------------------------------------------------------------------------

    async def topology(self, call: Call) -> dict[str, Any]:
        async with answering(self._connect) as client:
            return topology((await self._view.recent(client)).bookies)


def _checked(call: Call) -> str:
    bookie_id: str = call.path["bookie_id"]
    check_bookie_id(bookie_id)
    return bookie_id


def _unknown(bookie_id: str, known: dict[str, Any]) -> NotFoundError:
    return NotFoundError(
        f"the cluster knows no bookie {bookie_id}: it is not registered and has no cookie",
        remedy=did_you_mean(bookie_id, known, "GET /api/v1/quire/bookies lists the bookies"),
    )


def _touches(kind: str, target: str, bookie: dict[str, Any]) -> bool:
    """Return whether a job may copy data from or to the bookie.

    It may if its target is the bookie, or if it is a rebalancing and the bookie is registered.
    """
    return target == bookie["id"] or (
        kind == "rebalance" and target == CLUSTER and bookie["state"] != "gone"
    )


def _names(ledger: dict[str, Any], bookie_id: str) -> bool:
    """Return whether a ledger names the bookie, or may name it because it cannot be read."""
    parts = ledger.get("segments")
    return parts is None or any(bookie_id in one["bookies"] for one in parts)


def _forwarded(bookie_id: str, url: str, status: int, text: str) -> dict[str, bool]:
    """Return the answer of a bookie to a change.

    Raises UsageError if the bookie refused it with status 401 or 403, and BookieUnavailableError
    after any other answer than success.
    """
    try:
        found = taken(text, {"readOnly": bool, "error": {"what": str, "remedy": str}})
    except ValueError:
        found = {"readOnly": None, "error": None}
    if status == 200 and found["readOnly"] is not None:
        return {"readOnly": found["readOnly"]}
    if status == 401:
        raise UsageError(
            f"bookie {bookie_id} was not changed: its HTTP server at {url} needs a token that this "
            "server does not have",
            remedy=GIVE_TOKEN,
        )
    error = found["error"] or {}
    what = error.get("what") or f"it answered with status {status}"
    refused = UsageError if status == 403 else BookieUnavailableError
    raise refused(
        f"bookie {bookie_id} did not accept the change. Its HTTP server at {url} says: {what}",
        remedy=error.get("remedy") or "Look at the state of the bookie, then try again",
    )
