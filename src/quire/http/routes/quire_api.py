"""Quire's own routes, for what Apache's HTTP server has no route.

Lists come in pages, and the answers use the same words as the command line.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.name import stream_name
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.codec.metadata.registration import check_bookie_id
from quire.errors import NoSuchLedgerError, UsageError
from quire.http.routes.cluster import RESULT_LEDGERS_MAX, Connect
from quire.http.routes.jobs import HttpJob, Jobs, attended
from quire.http.server.api import INT64_MAX, Call, Field, Reply, Route
from quire.http.views.bookie_list import bookie_facts
from quire.http.views.cluster_view import ClusterView
from quire.http.views.ledger_json import ledger_as_json
from quire.http.views.ledger_list import OWNERS, REPLICATION, LedgerQuery, ledger_page
from quire.http.views.stream_statistics import (
    copies_of_streams,
    copies_of_topic,
    segment_as_json,
    stream_statistics,
    subscription_lags,
)
from quire.replication.explain.explain import explain_ledger
from quire.replication.explain.status import why_not
from quire.replication.marks.job_announcements import running_jobs
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.pauses import CLUSTER, KINDS, Pause, Pauses
from quire.replication.moves.rebalance import RebalanceOptions, rebalance
from quire.replication.moves.recover import check_known
from quire.replication.moves.remaining import left_by_rebalance
from quire.streams import Namespace
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.tree_search import streams_page
from quire.streams.ownership.owner_index import owners_as_json
from quire.streams.ownership.owners import missed
from quire.streams.topics.topic_metadata import StoredTopic, TopicMetadata

PREFIX = "/api/v1/quire"
PAGE = 100
PAGE_MAX = 1_000
DEFAULT_NAMESPACE = "/streams"
NEWEST = "newest"
STATES = tuple(state.name for state in LedgerState)
"""The names of the states of a ledger, as its metadata has them."""
NAMES_S = 0.15
"""Seconds after which a page of a list of names ends with what was found."""

LEDGER_ID = Field("ledger_id", "integer", "the id of the ledger")
JOB_ID = Field("job_id", "integer", "the id of the job")
LIMIT = Field(
    "limit", "integer", f"the number of items on a page (default {PAGE})",
    minimum=1, maximum=PAGE_MAX,
)  # fmt: skip
AFTER_LEDGER = Field(
    "after", "integer", "begin after this id: `next` of the previous page", maximum=INT64_MAX
)
AFTER_NAME = Field("after", "string", "begin after this name: `next` of the previous page")
KIND = Field("kind", "string", "the kind of job", required=True, choices=KINDS)
TARGET = Field("target", "string", f"the bookie, or {CLUSTER}", required=True)
MAX_BYTES = Field("max_bytes", "bytes", "the most to copy (default: no limit)", minimum=1)
NAMESPACE = Field(
    "namespace", "string", f"the namespace of the streams (default {DEFAULT_NAMESPACE})"
)
LEDGER_FILTERS = (
    Field("order", "string", "by id: oldest first (default) or newest first",
          choices=("oldest", NEWEST)),
    Field("first", "integer", "only ledgers with this id or a larger one"),
    Field("last", "integer", "only ledgers with this id or a smaller one"),
    Field("state", "string", "only ledgers in this state", choices=STATES),
    Field("owner", "string", "only ledgers with this kind of owner", choices=OWNERS),
    Field("owner_name", "string", "only ledgers whose owner's name contains this text"),
    Field("replication", "string", "include the state of the replicas; unless it is any: only "
          "ledgers in this state", choices=REPLICATION),
)  # fmt: skip


class QuireRoutes:
    """The routes under `/api/v1/quire`, except for those that only the dashboard uses."""

    def __init__(self, connect: Connect, jobs: Jobs, view: ClusterView, owner: str) -> None:
        """Create the routes. `owner` is the name of this process in locks and pauses."""
        self._connect = connect
        self._jobs = jobs
        self._view = view
        self._owner = owner

    def routes(self) -> list[Route]:
        page = (AFTER_LEDGER, LIMIT)
        names = (AFTER_NAME, LIMIT)
        ledger = {"ledger_id": 7, "state": "CLOSED", "last_entry_id": 99}
        job = {"id": 1, "kind": "recover", "target": "10.0.0.1:3181", "state": "running"}
        space = Field("space", "boolean", "ask each bookie for the free space of its disk")
        rates = Field("rates", "boolean", "include the rates of each bookie, from its /metrics")
        gone = Field("gone", "boolean", "include bookies that have a cookie and are not registered")
        severity = Field("severity", "boolean", "include the worst severity of the problems that "
                         "name each bookie, and also its free space and its rates"
                         )  # fmt: skip
        deep = Field("deep", "boolean", "read every entry of every replica")
        missing = Field("namespace", "string", NAMESPACE.help)
        name = Field("name", "string", "the stream's name", required=True)
        statistics = Field("statistics", "boolean",
                           "include the size, rate, lag and last write of each stream and topic"
                           )  # fmt: skip
        part = Field("search", "string", "only streams and topics whose name contains this text")
        return [
            Route("GET", f"{PREFIX}/cluster",
                  "Return the state of the cluster and of its autorecovery",
                  self.cluster, example={"instance_id": "…", "writable": 3, "readonly": 0}),
            Route("GET", f"{PREFIX}/bookies", "List the registered bookies", self.bookies,
                  query=(*names, space, rates, gone, severity),
                  example={"bookies": [{"id": "10.0.0.1:3181", "state": "writable"}],
                           "next": None}),
            Route("GET", f"{PREFIX}/ledgers", "List ledgers with their metadata and owners",
                  self.ledgers, query=(*page, *LEDGER_FILTERS),
                  example={"ledgers": [ledger], "next": 7, "looked_at": 1}),
            Route("GET", f"{PREFIX}/ledgers/{{ledger_id}}", "Return the metadata of a ledger",
                  self.ledger, fields=(LEDGER_ID,), example=ledger),
            Route("GET", f"{PREFIX}/ledgers/{{ledger_id}}/explain",
                  "Return where its replicas are, what is missing, why, and which command to run",
                  self.explain,
                  fields=(LEDGER_ID,), query=(deep,),
                  example={"ledger": 7, "verdict": {"sentence": "…", "command": "…"}}),
            Route("GET", f"{PREFIX}/marked",
                  "List under-replicated ledgers and why they are not repaired yet",
                  self.marked, query=page, example={"ledgers": [{"ledger": 7}], "next": None}),
            Route("GET", f"{PREFIX}/streams", "List the streams and topics of a namespace",
                  self.streams,
                  query=(missing, *names, part, statistics),
                  example={"streams": ["orders", "visits/0", "visits/1"],
                           "topics": [{"name": "visits", "partitions": 2, "deleting": False}],
                           "next": None}),
            Route("GET", f"{PREFIX}/stream",
                  "Return one stream with its segments and subscriptions",
                  self.stream, query=(missing, name),
                  example={"name": "orders", "records": 10, "segments": []}),
            Route("GET", f"{PREFIX}/topic", "Return one topic with its partitions",
                  self.topic,
                  query=(missing, Field("name", "string", "the topic's name", required=True)),
                  example={"name": "visits", "partitions": 2, "deleting": False,
                           "streams": ["visits/0", "visits/1"], "statistics": {},
                           "replicas": {}, "copies": [],
                           "subscriptions": [
                               {"name": "billing", "records": 10, "whole": True, "partitions": [
                                   {"partition": 0, "position": "1:0:0", "records": 10}]}]}),
            Route("GET", f"{PREFIX}/jobs", "List the jobs of this process, newest first", self.jobs,
                  example={"jobs": [job]}),
            Route("GET", f"{PREFIX}/jobs/{{job_id}}",
                  "Return one job. Its state is running, done, incomplete, failed or cancelled; "
                  "remaining says what an incomplete job did not do, why, and what to do",
                  self.job, fields=(JOB_ID,),
                  example={**job, "state": "incomplete", "remaining": {
                      "counts": "ledgers", "done": 9, "left": 1,
                      "reasons": ["ledger 7: its writer is active"], "remedy": "…"}}),
            Route("DELETE", f"{PREFIX}/jobs/{{job_id}}",
                  "Cancel a job; what it has done so far remains", self.cancel, fields=(JOB_ID,),
                  example={**job, "state": "cancelled"}),
            Route("PUT", f"{PREFIX}/pause", "Pause a job, in any process that runs it now or later",
                  self.pause, body=(KIND, TARGET), example={"paused": True, "changed": True}),
            Route("PUT", f"{PREFIX}/resume", "Resume a job", self.resume, body=(KIND, TARGET),
                  example={"paused": False, "changed": True}),
            Route("GET", f"{PREFIX}/paused", "List the paused jobs", self.paused,
                  example={"paused": [{"kind": "recover", "target": "10.0.0.1:3181"}]}),
            Route("GET", f"{PREFIX}/running", "List the running jobs of all processes",
                  self.running, example={"running": [
                      {"kind": "recover", "target": "10.0.0.1:3181", "by": "host.4711",
                       "ledgers": 10, "ledgers_done": 3, "pausable": True}]}),
            Route("PUT", f"{PREFIX}/rebalance",
                  "Begin a job that moves replicas from the fullest bookies to the emptiest",
                  self.rebalance,
                  body=(MAX_BYTES,), example={**job, "kind": "rebalance", "target": CLUSTER}),
        ]  # fmt: skip

    async def cluster(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        store, bookies = client.metadata, await client.bookies()
        return {
            "metadata": store.uri,
            "instance_id": await store.instance_id(),
            "writable": len(bookies.writable),
            "readonly": len(set(bookies.readonly) - set(bookies.writable)),
            "autorecovery": await self._view.autorecovery(client),
        }

    async def bookies(self, call: Call) -> dict[str, Any]:
        client, gone = await self._connect(), call.query.get("gone", False)
        if call.query.get("severity"):
            state = await self._view.recent(client)
            found = [
                {name: value for name, value in one.items() if name != "report"}
                for one in state.bookies
                if gone or one["state"] != "gone"
            ]
        else:
            found = await bookie_facts(
                client,
                gone=gone,
                spaces=self._view.spaces if call.query.get("space") else None,
                rates=self._view.rates if call.query.get("rates") else None,
            )
        listed = {one["id"]: one for one in found}
        names, following = _page(list(listed), call)
        return {"bookies": [listed[name] for name in names], "next": following}

    async def ledgers(self, call: Call) -> dict[str, Any]:
        client, given = await self._connect(), call.query
        query = LedgerQuery(
            given.get("limit", PAGE),
            newest=given.get("order") == NEWEST,
            after=given.get("after"),
            first=given.get("first", 0),
            last=given.get("last", INT64_MAX),
            state=given.get("state"),
            owner=given.get("owner"),
            owner_name=given.get("owner_name", ""),
            replication=given.get("replication"),
        )
        return await ledger_page(client, await self._view.owners(client), query)

    async def ledger(self, call: Call) -> dict[str, Any]:
        client, ledger_id = await self._connect(), call.path["ledger_id"]
        described = await self._describer(client)
        return described(ledger_id, await client.ledger_metadata(ledger_id))

    async def _describer(self, client: Client) -> Callable[[int, LedgerMetadata], dict[str, Any]]:
        """Return a function that describes a ledger with its owners as JSON.

        The function receives the ledger id and the metadata, and does not read the owners' records
        again.
        """
        index = await self._view.owners(client)

        def described(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
            owners = owners_as_json(index.of(ledger_id, metadata))
            return {**ledger_as_json(ledger_id, metadata), "owners": owners}

        return described

    async def explain(self, call: Call) -> dict[str, Any]:
        client, ledger_id = await self._connect(), call.path["ledger_id"]
        try:
            found = await explain_ledger(client, ledger_id, deep=call.query.get("deep", False))
        except NoSuchLedgerError as error:
            raise await missed(client, error, ledger_id) from None
        described = await self._describer(client)
        metadata = described(ledger_id, await client.ledger_metadata(ledger_id))
        return {**asdict(found), "metadata": metadata}

    async def marked(self, call: Call) -> dict[str, Any]:
        store = (await self._connect()).metadata
        limit, after = call.query.get("limit", PAGE), call.query.get("after", -1)
        ids = []
        async for ledger_id in ReplicationMarks(store).walk():
            if ledger_id > after:
                ids.append(ledger_id)
        ids = sorted(ids)[: limit + 1]
        found = await each(ids[:limit], lambda one: why_not(store, one))
        return {
            "ledgers": [{**asdict(one), "why": one.sentence()} for one in found if one is not None],
            "next": ids[limit - 1] if len(ids) > limit else None,
        }

    async def _namespace(self, call: Call) -> Namespace:
        path = namespace_path(call.query.get("namespace", DEFAULT_NAMESPACE))
        return await open_namespace(await self._connect(), path)

    async def streams(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        until_s = client.clock.monotonic() + NAMES_S
        async with await self._namespace(call) as opened:
            page = await streams_page(
                opened,
                after=call.query.get("after", ""),
                limit=call.query.get("limit", PAGE),
                part=call.query.get("search", ""),
                is_late=lambda: client.clock.monotonic() >= until_s,
            )
            topics = page.topics.values()
            answer: dict[str, Any] = {
                "streams": page.streams(),
                "topics": [_topic_as_json(topic) for topic in topics],
                "unreadable": "; ".join(page.unreadable),
                "next": page.next,
            }
            if call.query.get("statistics"):
                whole = [topic for topic in topics if not topic.deleting]
                answer["statistics"] = await self._figures(opened, answer["streams"], whole)
            return answer

    async def _figures(
        self, opened: Namespace, streams: Sequence[str], topics: Sequence[StoredTopic]
    ) -> dict[str, Any]:
        """Return the figures of streams, and of topics whose partitions are among them, by name."""
        watch = self._view.streams
        found = await watch.of(opened.client, opened.path, streams)
        return found | watch.of_topics(opened.path, {one.name: one.streams() for one in topics})

    async def topic(self, call: Call) -> dict[str, Any]:
        async with await self._namespace(call) as opened:
            metadata = TopicMetadata(opened.client, opened.path)
            name = stream_name(call.query["name"])
            topic = await metadata.find(name) or await metadata.read(name)
            streams = topic.streams()
            if topic.deleting:
                there = await each(streams, opened.exists)
                streams = [stream for stream, exists in zip(streams, there) if exists]
            whole = [] if topic.deleting else [topic]
            statistics, replicas, copies = await asyncio.gather(
                self._figures(opened, streams, whole),
                self._view.replicas.of(opened.client, opened.path, streams, topic=name),
                copies_of_topic(opened, streams),
            )
            return {
                **_topic_as_json(topic),
                "streams": streams,
                "statistics": statistics,
                "replicas": replicas,
                "copies": copies,
                "subscriptions": self._view.streams.subscriptions(opened.path, streams)
                if whole
                else [],
            }

    async def stream(self, call: Call) -> dict[str, Any]:
        async with await self._namespace(call) as opened:
            name = call.query["name"]
            topic = await TopicMetadata(opened.client, opened.path).topic_of(name)
            facts = await stream_statistics(opened, name, b"")
            copies = (await copies_of_streams(opened, [name]))[name]
            figures, replicas = await asyncio.gather(
                self._view.streams.of(opened.client, opened.path, [name]),
                self._view.replicas.of(opened.client, opened.path, [name]),
            )
            return {
                **facts.as_json(),
                "settings": facts.settings.as_json(),
                "segments": [segment_as_json(one) for one in facts.facts],
                "lost": facts.lost_as_json(),
                "subscriptions": await opened.subscriptions(call.query["name"]),
                "lag": await subscription_lags(opened, facts, b""),
                "figures": figures[name],
                "copies": copies,
                "replicas": replicas[name],
                "topic": None if topic is None else _topic_as_json(topic),
            }

    async def jobs(self, call: Call) -> dict[str, Any]:
        return {"jobs": [job.as_json() for job in self._jobs.all()]}

    async def job(self, call: Call) -> dict[str, Any]:
        return self._jobs.get(call.path["job_id"]).as_json()

    async def pause(self, call: Call) -> dict[str, bool]:
        kind, target = _paused(call)
        client = await self._connect()
        if kind != "rebalance":
            await check_known(client, target)
        one = Pause(kind, target, self._owner, client.clock.now_ms())
        changed = await Pauses(client.metadata).pause(one)
        if changed:
            self._jobs.pausing(kind, target, one)
        return {"paused": True, "changed": changed}

    async def resume(self, call: Call) -> dict[str, bool]:
        kind, target = _paused(call)
        client = await self._connect()
        changed = await Pauses(client.metadata).resume(kind, target)
        self._jobs.pausing(kind, target, None)
        return {"paused": False, "changed": changed}

    async def paused(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        return {"paused": [asdict(one) for one in await Pauses(client.metadata).all()]}

    async def running(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        return {"running": [one.as_json() for one in await running_jobs(client.metadata)]}

    async def rebalance(self, call: Call) -> Reply:
        client = await self._connect()

        max_bytes: int | None = call.body.get("max_bytes")

        async def work(job: HttpJob) -> dict[str, Any]:
            locks = ReplicationLocks(client.metadata, self._owner, client.clock)
            options = RebalanceOptions(max_bytes=max_bytes)
            async with attended(client, job, self._owner):
                result = await rebalance(
                    client, locks, random.Random(), options=options, progress=job
                )
            job.remaining = left_by_rebalance(result)
            return result.as_json(RESULT_LEDGERS_MAX)

        given = {"max_bytes": max_bytes}
        return Reply(202, self._jobs.start("rebalance", CLUSTER, work, given).as_json())

    async def cancel(self, call: Call) -> Reply:
        return Reply(200, (await self._jobs.cancel(call.path["job_id"])).as_json())


def _topic_as_json(topic: StoredTopic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": topic.partitions, "deleting": topic.deleting}


def _page(names: list[str], call: Call) -> tuple[list[str], str | None]:
    """Return the names on the requested page, and the `after` of the next page if there is one."""
    limit, after = call.query.get("limit", PAGE), call.query.get("after", "")
    rest = [name for name in names if name > after]
    return rest[:limit], rest[limit - 1] if len(rest) > limit else None


def _paused(call: Call) -> tuple[str, str]:
    """Return the kind and the target of the job to pause or resume.

    Raises UsageError if the target is not one of a job of this kind.
    """
    kind, target = call.body["kind"], call.body["target"]
    if kind != "rebalance":
        check_bookie_id(target)
    elif target != CLUSTER:
        raise UsageError(f"the target of a rebalance must be {CLUSTER!r}, not {target!r}")
    return kind, target
