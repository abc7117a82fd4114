"""The routes that return what users have stored: entries of ledgers and records of streams.

They are the only routes with payloads, so a server can switch them off, and they need the token
even where reading needs none. They use POST, because a request may contain the password of a
ledger, and a password does not belong into a URL. They change nothing: no ledger is recovered or
fenced, and a ledger that is still written is read up to the last entry that is known to be
acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from quire._runtime.tasks import each
from quire.client.read.outcomes import outcomes
from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import BookieTimeoutError, QuireError, UnauthorizedError, UsageError
from quire.http.routes.cluster import Connect
from quire.http.server.api import Call, Field, Route
from quire.http.server.error_responses import NotFoundError
from quire.http.views.payload_json import (
    SHOWN_BYTES,
    SHOWN_BYTES_MAX,
    PayloadBudget,
    copies_json,
    entry_json,
    error_json,
    item_json,
)
from quire.replication.explain.entry import entry_copies
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.namespace import open_namespace
from quire.streams.read.merged import STREAMS_AT_ONCE, MergedPeek
from quire.streams.read.peek import Peeked, peek, position_before_end
from quire.streams.read.positions import EARLIEST, PLACES, AtTime, AtTxid, find, parse_start
from quire.streams.topics.topic_metadata import PARTITIONS_MAX, TopicMetadata

PREFIX = "/api/v1/quire"
ITEMS = 20
"""The default number of entries or records in an answer."""
ITEMS_MAX = 100
"""The largest number of entries or records in an answer."""
VIEW_TIMEOUT_S = 10.0
"""Seconds to read the entries of an answer. After that it ends with what was read."""
VIEWS_AT_ONCE = 4
"""The number of answers with payloads that are made at the same time. Each may need 16 MiB."""
LAST = "last"
"""The word of the place `last:N` in a stream, from which the last N records are returned."""

NEWEST = "newest"
"""The place in a topic at which its newest records end."""
TOPIC_PLACES = f"{EARLIEST}, {NEWEST}, txid:N or time:ISO"
"""The places in a topic. A position or a sequence number belongs to one partition."""

LIMIT = Field(
    "limit",
    "integer",
    f"the number of entries or records (default {ITEMS})",
    minimum=1,
    maximum=ITEMS_MAX,
)
SHOWN = Field(
    "shown_bytes",
    "bytes",
    f"the bytes of each payload to return (default {SHOWN_BYTES})",
    minimum=1,
    maximum=SHOWN_BYTES_MAX,
)
PASSWORD = Field("password", "string", "the password of the ledger, if it has one", secret=True)
LEDGER_ID = Field("ledger_id", "integer", "the id of the ledger")
ENTRY_ID = Field("entry_id", "integer", "the id of the entry")


class PayloadRoutes:
    """The routes with payloads."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._views = asyncio.Semaphore(VIEWS_AT_ONCE)

    def routes(self) -> list[Route]:
        first = Field("first", "integer", "the id of the first entry (default 0)")
        last = Field("from_end", "boolean", "return the last entries instead")
        offset = Field("offset", "integer", "the first byte of the payload to return (default 0)")
        bookie = Field(
            "bookie", "string", "return the bytes of this bookie's copy, even if it is damaged"
        )
        namespace = Field("namespace", "string", "the namespace of the stream", required=True)
        name = Field("name", "string", "the stream's name", required=True)
        place = Field("from", "string", f"where to begin: {PLACES}, or {LAST}:N (default earliest)")
        topic = Field("name", "string", "the topic's name", required=True)
        partition = Field("partition", "integer", "only records of this partition",
                          maximum=PARTITIONS_MAX - 1)  # fmt: skip
        place_in_topic = Field(
            "from", "string", f"where to begin: {TOPIC_PLACES} (default {NEWEST})"
        )
        before = Field("before", "strings", "return the last records before these positions, one "
                       "of each partition: `previous` of another page")  # fmt: skip
        after = Field("after", "strings", "return the first records from these positions on, one "
                      "of each partition: `next` or `end` of another page")  # fmt: skip
        payload = {"bytes": 5, "offset": 0, "shown_bytes": 5, "payload": "aGVsbG8="}
        return [
            Route("POST", f"{PREFIX}/ledgers/{{ledger_id}}/entries",
                  "Return a page of a ledger's entries, with the reason for those that cannot be "
                  "read", self.entries,
                  fields=(LEDGER_ID,), body=(first, last, LIMIT, SHOWN, PASSWORD),
                  example={"ledger_id": 7, "state": "CLOSED", "last_entry_id": 0,
                           "entries": [{"entry_id": 0, **payload}], "next": None,
                           "stopped": None, "locked": None}, payloads=True),
            Route("POST", f"{PREFIX}/ledgers/{{ledger_id}}/entries/{{entry_id}}",
                  "Return one entry, and what is wrong with each of its copies", self.entry,
                  fields=(LEDGER_ID, ENTRY_ID), body=(offset, SHOWN, bookie, PASSWORD),
                  example={"ledger_id": 7, "entry_id": 0, "write_quorum": 2, "copies": [
                      {"bookie": "10.0.0.1:3181", "registered": "writable", "state": "good",
                       "detail": "", "bytes": 5}],
                      "from": "10.0.0.1:3181", "verified": True, **payload}, payloads=True),
            Route("POST", f"{PREFIX}/stream/records",
                  "Return records of a stream, with gaps and with the reason for what cannot be "
                  "read", self.records,
                  body=(namespace, name, place, LIMIT, SHOWN, PASSWORD),
                  example={"items": [{"kind": "record", "position": "1:0:0", "txid": 1,
                                      "sequence": 0, **payload}],
                           "next": None, "stopped": None, "locked": None}, payloads=True),
            Route("POST", f"{PREFIX}/topic/records",
                  "Return records of all partitions of a topic, or of one, in the order of their "
                  "transaction ids, with gaps and with the reason for what cannot be read",
                  self.topic_records,
                  body=(namespace, topic, partition, place_in_topic, before, after, LIMIT, SHOWN,
                        PASSWORD),
                  example={"partitions": 2, "items": [
                               {"partition": 1, "kind": "record", "position": "1:0:0", "txid": 1,
                                "sequence": 0, **payload}],
                           "previous": None, "next": None, "end": ["1:0:0", "1:0:1"],
                           "unreadable": [], "stopped": None, "locked": None}, payloads=True),
        ]  # fmt: skip

    async def entries(self, call: Call) -> dict[str, Any]:
        nothing = {"ledger_id": call.path["ledger_id"], "state": None, "last_entry_id": -1,
                   "entries": [], "next": None, "stopped": None}  # fmt: skip
        return await _unlocked(call, self._entries(call), nothing)

    async def _entries(self, call: Call) -> dict[str, Any]:
        ledger_id, limit = call.path["ledger_id"], call.body.get("limit", ITEMS)
        budget = PayloadBudget(call.body.get("shown_bytes", SHOWN_BYTES))
        client = await self._connect()
        found: list[dict[str, Any]] = []
        stopped: str | None = None
        async with self._viewing():
            reader = await client.open_ledger(ledger_id, password=_password(call))
            async with reader:
                end = reader.last_add_confirmed
                first = call.body.get("first", 0)
                if call.body.get("from_end"):
                    first = max(0, end - limit + 1)
                upcoming, last = first, min(end, first + limit - 1)
                try:
                    async with (
                        asyncio.timeout(VIEW_TIMEOUT_S),
                        aclosing(outcomes(reader, first, last)) as entries,
                    ):
                        async for entry_id, entry in entries:
                            if budget.used_up:
                                stopped = "bytes"
                                break
                            found.append(entry_json(entry_id, entry, budget))
                            upcoming = entry_id + 1
                except QuireError:
                    raise
                except TimeoutError:
                    stopped = "time"
        return {
            "ledger_id": ledger_id,
            "state": reader.metadata.state.name,
            "last_entry_id": end,
            "entries": found,
            "next": upcoming if upcoming <= end else None,
            "stopped": stopped,
        }

    async def entry(self, call: Call) -> dict[str, Any]:
        return await _unlocked(call, self._entry(call), {**call.path, "copies": []})

    async def _entry(self, call: Call) -> dict[str, Any]:
        budget = PayloadBudget(call.body.get("shown_bytes", SHOWN_BYTES))
        client, chosen = await self._connect(), call.body.get("bookie")
        async with self._viewing():
            found = await entry_copies(
                client, call.path["ledger_id"], call.path["entry_id"], password=_password(call)
            )
        if chosen is not None and chosen not in {one.bookie for one in found.copies}:
            raise UsageError(
                f"bookie {chosen} stores no copy of entry {found.entry_id} of ledger "
                f"{found.ledger_id}",
                remedy=f"Name one of {', '.join(one.bookie for one in found.copies)}",
            )
        return copies_json(found, chosen, call.body.get("offset", 0), budget)

    async def records(self, call: Call) -> dict[str, Any]:
        nothing: dict[str, Any] = {"items": [], "next": None, "end": None, "stopped": None}
        return await _unlocked(call, self._records(call), nothing)

    async def _records(self, call: Call) -> dict[str, Any]:
        limit, password = call.body.get("limit", ITEMS), _password(call)
        budget = PayloadBudget(call.body.get("shown_bytes", SHOWN_BYTES))
        place, client = call.body.get("from", "earliest"), await self._connect()
        last = _last(place)
        start = None if last is not None else parse_start(place)
        path = namespace_path(call.body["namespace"])
        found: list[dict[str, Any]] = []
        upcoming, stopped, more = None, None, False
        async with self._viewing():
            async with await open_namespace(client, path, password=password) as opened:
                segments = await opened.segments(call.body["name"])
                settings = await opened.stream_settings(call.body["name"])
            try:
                async with asyncio.timeout(VIEW_TIMEOUT_S):
                    if start is not None:
                        upcoming = await find(client, segments, start, password)
                    else:
                        upcoming = await position_before_end(client, segments, last or 0, password)
                    if upcoming is not None:
                        async with aclosing(peek(client, segments, upcoming, password)) as items:
                            async for item, behind in items:
                                if len(found) >= limit or budget.used_up:
                                    stopped, more = "bytes" if budget.used_up else None, True
                                    break
                                found.append(
                                    item_json(item, budget, times=settings.txids == "time")
                                )
                                upcoming = behind
            except QuireError:
                raise
            except TimeoutError:
                if not found:
                    raise BookieTimeoutError(
                        f"no record of stream {call.body['name']} could be read within "
                        f"{VIEW_TIMEOUT_S:g} s",
                        remedy="Check that the bookies answer: quire explain",
                    ) from None
                stopped, more = "time", True
        return {
            "items": found,
            "next": str(upcoming) if more else None,
            "end": None if more or upcoming is None else str(upcoming),
            "stopped": stopped,
        }

    async def topic_records(self, call: Call) -> dict[str, Any]:
        nothing: dict[str, Any] = {"partitions": None, "items": [], "previous": None, "next": None,
                                   "end": None, "unreadable": [], "stopped": None}  # fmt: skip
        return await _unlocked(call, self._topic_records(call), nothing)

    async def _topic_records(self, call: Call) -> dict[str, Any]:
        password, given = _password(call), call.body
        start = _place_in_topic(given)
        name, client = given["name"], await self._connect()
        path = namespace_path(given["namespace"])
        budget = PayloadBudget(given.get("shown_bytes", SHOWN_BYTES))
        async with self._viewing():
            async with await open_namespace(client, path, password=password) as opened:
                topic = await TopicMetadata(client, opened.path).read(name)
                numbers = _partitions(topic.partitions, given)
                streams = [topic.streams()[number] for number in numbers]
                segments = await each(streams, opened.segments, STREAMS_AT_ONCE)
                settings = await each(streams, opened.stream_settings, STREAMS_AT_ONCE)

            def keep(at: int, item: Peeked) -> tuple[PayloadBudget, dict[str, Any]]:
                used = PayloadBudget(budget.each_bytes)
                described = item_json(item, used, times=settings[at].txids == "time")
                return used, {"partition": numbers[at], **described}

            def is_enough(kept: tuple[PayloadBudget, dict[str, Any]]) -> bool:
                budget.add(kept[0])
                return budget.used_up

            limit = given.get("limit", ITEMS)
            page = MergedPeek(client, segments, limit, keep, is_enough, password)
            stopped = None
            try:
                async with asyncio.timeout(VIEW_TIMEOUT_S):
                    if "before" in given:
                        await page.before(_positions(given["before"], len(numbers)))
                    elif "after" in given:
                        await page.after(_positions(given["after"], len(numbers)))
                    elif start is None:
                        await page.before([None] * len(numbers))
                    else:
                        await page.after([start] * len(numbers))
            except QuireError:
                raise
            except TimeoutError:
                if not page.begun:
                    raise BookieTimeoutError(
                        f"the partitions of topic {name} could not be read within "
                        f"{VIEW_TIMEOUT_S:g} s",
                        remedy="Show the records of one partition, and check that the bookies "
                        "answer: quire explain",
                    ) from None
                stopped = "time"
        if budget.used_up:
            stopped = "bytes"
        begins = [str(one.begin) for one in page.streams]
        ends = [str(one.end) for one in page.streams]
        return {
            "partitions": topic.partitions,
            "items": [item for _, item in page.items],
            **_pages(given, begins, ends, page.more),
            "unreadable": [
                {"partition": numbers[one.number], "error": error_json(one.error)}
                for one in page.streams
                if one.error is not None
            ],
            "stopped": stopped,
        }

    @asynccontextmanager
    async def _viewing(self) -> AsyncIterator[None]:
        async with self._views:
            yield


async def _unlocked(
    call: Call, answer: Awaitable[dict[str, Any]], nothing: dict[str, Any]
) -> dict[str, Any]:
    """Return the answer, or say that the ledger needs a password.

    The result is that of `answer`, with None as `locked`. If the request contains no password and
    the ledger has one, it is `nothing`, with a sentence as `locked`. A wrong password is an error.
    """
    try:
        return {**await answer, "locked": None}
    except UnauthorizedError:
        if "password" in call.body:
            raise
        return {**nothing, "locked": "a password is needed to read this"}


def _password(call: Call) -> bytes:
    return str(call.body.get("password", "")).encode()


def _place_in_topic(given: Mapping[str, Any]) -> AtTime | AtTxid | str | None:
    """Return the place in a topic from which records are read forwards, or None for `NEWEST`.

    Raises UsageError if it is another place, or if the request names two places.
    """
    if len(given.keys() & {"from", "before", "after"}) > 1:
        raise UsageError(
            "the request has more than one of the fields from, before and after",
            remedy="Give only one of them",
        )
    place = given.get("from", NEWEST)
    if place == NEWEST:
        return None
    kind, colon, _ = place.partition(":")
    if place != EARLIEST and not (colon and kind in ("txid", "time")):
        raise UsageError(
            f"{place[:80]!r} is not a place in a topic. Use {TOPIC_PLACES}",
            remedy="A position or a sequence number belongs to one partition: show the records of "
            "its stream, TOPIC/PARTITION",
        )
    start = parse_start(place)
    assert isinstance(start, AtTime | AtTxid | str)
    return start


def _partitions(count: int, given: Mapping[str, Any]) -> list[int]:
    """Return the partitions whose records the request asks for.

    Raises NotFoundError if it names a partition that the topic does not have.
    """
    number = given.get("partition")
    if number is None:
        return list(range(count))
    if number >= count:
        raise NotFoundError(
            f"topic {given['name']} has no partition {number}",
            remedy=f"Its partitions are 0 to {count - 1}",
        )
    return [number]


def _positions(texts: Sequence[str], count: int) -> list[DLSN]:
    """Return the positions of a page's address, one for each of `count` partitions.

    Raises UsageError if there are more or fewer, or if one is not a position.
    """
    if len(texts) != count:
        raise UsageError(
            f"{len(texts)} positions were given for {count} partitions",
            remedy="Use the positions of another page of the same partitions",
        )
    return [DLSN.parse(one) for one in texts]


def _pages(
    given: Mapping[str, Any], begins: list[str], ends: list[str], more: bool
) -> dict[str, list[str] | None]:
    """Return where the pages before and after this one begin.

    `previous` is None on the first page. `next` is None on the last page, and then `end` is where
    later records will be.
    """
    if "before" in given:
        return {"previous": begins if more else None, "next": ends, "end": None}
    if given.get("from", NEWEST) == NEWEST and "after" not in given:
        return {"previous": begins if more else None, "next": None, "end": ends}
    first = given.get("from") == EARLIEST
    return {
        "previous": None if first else begins,
        "next": ends if more else None,
        "end": None if more else ends,
    }


def _last(place: str) -> int | None:
    """Return N of the place `last:N`, or None for another place.

    Raises UsageError if N is not a number from 1 to `ITEMS_MAX`.
    """
    kind, colon, number = place.partition(":")
    if kind != LAST or not colon:
        return None
    if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= ITEMS_MAX:
        raise UsageError(
            f"{place[:80]!r} is not a place in a stream: {LAST}:N needs a number from 1 to "
            f"{ITEMS_MAX}"
        )
    return int(number)
