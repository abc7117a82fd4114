"""The routes that list objects, datasets and state machines, and describe one of them.

They return what the metadata store says. The bytes are in ledgers, and only the routes of
`payloads` return them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

from quire._runtime.tasks import each
from quire._runtime.units import counted
from quire.client import Client
from quire.client.datasets import as_json
from quire.client.datasets.datasets import Datasets
from quire.client.datasets.heads import HEADS as DATASETS
from quire.client.unreadable_items import NAMED_MAX, Skipped
from quire.errors import (
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchObjectError,
    NoSuchStreamError,
    QuireError,
    UnreadableMetadataError,
)
from quire.http.routes.cluster import Connect
from quire.http.server.api import Call, Field, Route
from quire.http.server.error_responses import NotFoundError
from quire.http.views.ledger_json import time_text
from quire.http.views.stream_statistics import stream_statistics
from quire.streams.namespace.namespace import open_namespace
from quire.streams.objects.format import HEADS as OBJECTS
from quire.streams.objects.format import ObjectInfo
from quire.streams.objects.objects import DEFAULT_BUCKET, Objects, listed_objects
from quire.streams.ownership.named_ledgers import stream_owner
from quire.streams.read.statistics import records_from
from quire.streams.statemachine.snapshot_info import BUCKET as STATE_MACHINES
from quire.streams.statemachine.snapshot_info import SnapshotInfo, snapshot_info

PREFIX = "/api/v1/quire"
PAGE = 100
PAGE_MAX = 1_000
BUCKETS_MAX = 1_000
"""The largest number of buckets that are listed."""
TRANSACTIONS_SHOWN_MAX = 100
"""The largest number of transaction keys of a dataset that are shown, the newest."""

LIMIT = Field(
    "limit", "integer", f"the number of items on a page (default {PAGE})",
    minimum=1, maximum=PAGE_MAX,
)  # fmt: skip
AFTER_NAME = Field("after", "string", "begin after this name: `next` of the previous page")
AFTER_NUMBER = Field(
    "after", "integer", "the number of ledgers to pass over: `next` of the previous page"
)
BUCKET = Field("bucket", "string", f"the bucket of the objects (default {DEFAULT_BUCKET})")
PREFIX_OF_NAMES = Field("prefix", "string", "only objects whose names begin with this text")
PART = Field("search", "string", "only datasets whose name contains this text")
NAME = Field("name", "string", "the name of the item to return", required=True)


class ContentRoutes:
    """The routes about objects, datasets and state machines."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def routes(self) -> list[Route]:
        found = {"name": "jobs/42", "ledger_id": 7, "bytes": 5, "ctime": "2026-01-01T00:00:00.000Z"}
        dataset = {"name": "flights", "sequence": 3, "ledgers": 2, "rows": 100, "bytes": 5120}
        machine = {"name": "team/accounts", "namespace": "/team", "stream": "accounts",
                   "applied": 1200, "position": "4:0:0", "ledger_id": 7}  # fmt: skip
        return [
            Route("GET", f"{PREFIX}/buckets", f"List the first {BUCKETS_MAX} buckets of objects",
                  self.buckets, example={"buckets": [DEFAULT_BUCKET], "more": False}),
            Route("GET", f"{PREFIX}/objects", "List the objects of a bucket", self.objects,
                  query=(BUCKET, PREFIX_OF_NAMES, AFTER_NAME, LIMIT),
                  example={"objects": [found], "next": None, "unreadable": ""}),
            Route("GET", f"{PREFIX}/object", "Return what is known of one object", self.object,
                  query=(BUCKET, NAME), example={**found, "sha256": "9f…", "metadata": {}}),
            Route("GET", f"{PREFIX}/datasets", "List the datasets", self.datasets,
                  query=(AFTER_NAME, LIMIT, PART), example={"datasets": [dataset], "next": None}),
            Route("GET", f"{PREFIX}/dataset", "Return one dataset with a page of its ledgers",
                  self.dataset, query=(NAME, AFTER_NUMBER, LIMIT),
                  example={**dataset, "parts": [{"ledger_id": 7, "first": 0, "last": 99,
                                                 "rows": 100, "bytes": 5120, "partition": {}}],
                           "part_count": 1, "columns": {"day": "date"}, "partition_by": [],
                           "next": None}),
            Route("GET", f"{PREFIX}/state_machines",
                  "List the state machines that have a snapshot", self.state_machines,
                  query=(AFTER_NAME, LIMIT), example={"state_machines": [machine], "next": None,
                                                      "unreadable": ""}),
            Route("GET", f"{PREFIX}/state_machine",
                  "Return a state machine: its snapshot, and the commands since then",
                  self.state_machine, query=(NAME,),
                  example={**machine, "commands_since": 10, "problem": ""}),
        ]  # fmt: skip

    # -- objects ------------------------------------------------------------------------------

    async def buckets(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        names = sorted(unquote(one) for one in await client.metadata.list_values((OBJECTS,)))
        names = [name for name in names if name != STATE_MACHINES]
        return {"buckets": names[:BUCKETS_MAX], "more": len(names) > BUCKETS_MAX}

    async def objects(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        bucket = Objects(client, call.query.get("bucket", DEFAULT_BUCKET))
        page, following, unreadable = await _objects_page(
            bucket, call, call.query.get("prefix", "")
        )
        return {
            "objects": [_object_json(one) for one in page],
            "next": following,
            "unreadable": unreadable,
        }

    async def object(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        bucket = Objects(client, call.query.get("bucket", DEFAULT_BUCKET))
        info = await bucket.info(call.query["name"])
        return {
            **_object_json(info),
            "bucket": bucket.bucket,
            "metadata": dict(info.metadata),
            "ledger": await _ledger_state(client, info.ledger_id),
        }

    # -- datasets -----------------------------------------------------------------------------

    async def datasets(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        limit, after = call.query.get("limit", PAGE), call.query.get("after", "")
        part = call.query.get("search", "")
        every = await client.metadata.list_values((DATASETS,))
        names = [name for name in every if name > after and part in name]
        found: list[dict[str, Any]] = []
        following: str | None = None
        # A dropped dataset leaves a head behind, so more heads than items may have to be read.
        for begin in range(0, len(names), limit):
            some = names[begin : begin + limit]
            for name, one in zip(some, await each(some, lambda n: _dataset_item(client, n))):
                if one is not None and len(found) == limit:
                    return {"datasets": found, "next": following}
                if one is not None:
                    found.append(one)
                following = name
        return {"datasets": found, "next": None}

    async def dataset(self, call: Call) -> dict[str, Any]:
        client, name = await self._connect(), call.query["name"]
        begin, limit = call.query.get("after", 0), call.query.get("limit", PAGE)
        try:
            dataset = await Datasets(client.metadata).read(name)
        except NoSuchKeyError as error:
            raise NotFoundError(str(error.args[0]), remedy=error.remedy) from None
        parts = dataset.ledgers[begin : begin + limit]
        newest = list(dataset.transactions.items())[-TRANSACTIONS_SHOWN_MAX:]
        more = begin + limit < len(dataset.ledgers)
        return {
            **as_json.summary(dataset),
            "transactions": [{"key": key, "sequence": number} for key, number in newest[::-1]],
            "transaction_count": len(dataset.transactions),
            "part_count": len(dataset.ledgers),
            **as_json.columns(dataset),
            "parts": [{**as_json.part(one), "partition": dict(one.partition)} for one in parts],
            "next": begin + limit if more else None,
        }

    # -- state machines -----------------------------------------------------------------------

    async def state_machines(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        page, following, unreadable = await _objects_page(Objects(client, STATE_MACHINES), call)
        found = await each(page, lambda one: _machine_json(client, one))
        return {"state_machines": found, "next": following, "unreadable": unreadable}

    async def state_machine(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        info = await Objects(client, STATE_MACHINES).info(call.query["name"])
        machine = await _machine_json(client, info)
        since, problem = None, str(machine.get("error", ""))
        if not problem:
            since, problem = await _commands_since(client, machine, snapshot_info(info))
        return {
            **machine,
            "sha256": info.sha256,
            "ledger": await _ledger_state(client, info.ledger_id),
            "commands_since": since,
            "problem": problem,
        }


async def _objects_page(
    bucket: Objects, call: Call, prefix: str = ""
) -> tuple[list[ObjectInfo], str | None, str]:
    """Return a page of objects, the `after` of the next page, and what cannot be read.

    `after` is None on the last page. The text names the objects between those of the page that
    cannot be read, or is ''.
    """
    limit, after = call.query.get("limit", PAGE), call.query.get("after", "")
    page: list[ObjectInfo] = []
    skipped: list[Skipped] = []
    async with aclosing(listed_objects(bucket, prefix, after)) as listed:
        async for items in listed:
            for one in items:
                if len(page) == limit:
                    return page, page[-1].name, _unreadable(skipped)
                if isinstance(one, Skipped):
                    skipped.append(one)
                else:
                    page.append(one)
    return page, None, _unreadable(skipped)


def _unreadable(skipped: Sequence[Skipped]) -> str:
    """Return a sentence that names objects that cannot be read, or '' if there are none."""
    if not skipped:
        return ""
    more = len(skipped) - NAMED_MAX
    named = "; ".join(map(str, skipped[:NAMED_MAX]))
    return (
        f"{counted(len(skipped), 'object')} of this page cannot be read: {named}"
        f"{f'; and {more} more' if more > 0 else ''}"
    )


def _object_json(info: ObjectInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "ledger_id": info.ledger_id,
        "bytes": info.size_bytes,
        "chunk_bytes": info.chunk_bytes,
        "chunks": info.chunks,
        "sha256": info.sha256,
        "ctime": time_text(info.ctime_ms),
    }


async def _ledger_state(client: Client, ledger_id: int) -> str:
    """Return the name of the state in a ledger's metadata.

    Return "lost" if the ledger does not exist, and "unreadable" if its metadata cannot be decoded.
    Raises MetadataUnavailableError if the store does not answer.
    """
    try:
        return (await client.ledger_metadata(ledger_id)).state.name
    except NoSuchLedgerError:
        return "lost"
    except UnreadableMetadataError:
        return "unreadable"


async def _dataset_item(client: Client, name: str) -> dict[str, Any] | None:
    """Return a dataset as an item of a list, or None if it was dropped since it was listed.

    If its record cannot be read, the item has the reason as `error`. Raises
    MetadataUnavailableError if the store does not answer.
    """
    try:
        return as_json.summary(await Datasets(client.metadata).read(name))
    except NoSuchKeyError:
        return None
    except MetadataUnavailableError:
        raise
    except QuireError as error:
        return {"name": name, "error": str(error.args[0])}


async def _machine_json(client: Client, info: ObjectInfo) -> dict[str, Any]:
    owner = await stream_owner(client.metadata.tree, f"/{info.name}")
    described: dict[str, Any] = {
        "name": info.name,
        "namespace": owner.place,
        "stream": owner.name,
        "ledger_id": info.ledger_id,
        "bytes": info.size_bytes,
        "ctime": time_text(info.ctime_ms),
    }
    try:
        snapshot = snapshot_info(info)
    except QuireError as error:
        return {**described, "applied": None, "position": None, "error": str(error.args[0])}
    return {**described, "applied": snapshot.applied, "position": str(snapshot.position)}


async def _commands_since(
    client: Client, machine: dict[str, Any], snapshot: SnapshotInfo
) -> tuple[int | None, str]:
    """Return the number of records after a snapshot, and what is wrong with their stream.

    Either the number is None, or the text is ''. Raises MetadataUnavailableError if the store does
    not answer.
    """
    try:
        async with await open_namespace(client, machine["namespace"]) as opened:
            life = await opened.metadata(machine["stream"]).life_id()
            if life and snapshot.life not in (None, life):
                return None, (
                    "The snapshot belongs to a stream that was deleted or renamed, so it cannot be "
                    "used with the present stream of this name"
                )
            facts = await stream_statistics(opened, machine["stream"], b"")
            return await records_from(client, facts.facts, snapshot.position), ""
    except MetadataUnavailableError:
        raise
    except (NoSuchStreamError, NoSuchObjectError):
        return None, "The stream with the commands does not exist: it was deleted or renamed"
    except QuireError as error:
        return None, f"The stream with the commands cannot be read: {error.args[0]}"
