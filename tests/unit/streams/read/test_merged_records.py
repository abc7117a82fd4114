"""The records of a topic as one list: their order, pages both ways, limits, what is unreadable."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import pytest

from quire.client import Client
from quire.errors import BookieTimeoutError, NoSuchStreamError, UsageError
from quire.http.routes import payloads
from quire.http.routes.payloads import PayloadRoutes
from quire.http.server.api import Route
from quire.http.views import payload_json
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.namespace import open_namespace
from quire.streams.read import merged
from tests.support.streams import Bench, run

TOPIC = "t"
GIVEN = {"txids": "given"}


def route_of(b: Bench) -> Route:
    async def connect() -> Client:
        return b.client

    routes = PayloadRoutes(connect).routes()
    return next(one for one in routes if one.path.endswith("/topic/records"))


async def view(b: Bench, **body: Any) -> dict[str, Any]:
    route = route_of(b)
    asked = {"namespace": "/acme/test", "name": TOPIC, **body}
    found: dict[str, Any] = await route.handler(route.check({}, [], asked))
    return found


def txids(found: dict[str, Any]) -> list[int]:
    return [one["txid"] for one in found["items"]]


def places(found: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["partition"], one["position"]) for one in found["items"]]


async def fill(b: Bench, records: list[tuple[int, int]], *, leave_open: bool = False) -> None:
    """Append a record for each (partition, txid), in a new segment of each partition."""
    topic = await b.streams.topic(TOPIC)
    writer = await topic.open_writer()
    for partition, txid in records:
        await writer.append(b"%d" % txid, partition=partition, txid=txid)
    if leave_open:
        writer.abandon()
    else:
        await writer.close()


@pytest.mark.parametrize("seed", range(6))
def test_paging_in_either_direction_returns_each_record_once(seed: int) -> None:
    """Whatever the partitions' shares are, with equal txids and several segments."""
    chance = random.Random(seed)

    async def scene(b: Bench) -> None:
        partitions = chance.choice((1, 2, 3, 7))
        await b.streams.create_topic(TOPIC, partitions, settings=GIVEN)
        weights = [chance.choice((0, 1, 1, 9)) for _ in range(partitions - 1)] + [1]
        txid, written = 0, []
        for segment in range(3):
            records = []
            for _ in range(chance.randrange(5, 40)):
                txid += chance.choice((0, 0, 1, 5))
                records.append((chance.choices(range(partitions), weights)[0], txid))
            await fill(b, records, leave_open=segment == 2)
            written += records
        # A reader cannot know that the last record of a segment that is not closed is acknowledged.
        everything = await view(b, **{"from": "earliest", "limit": 100})
        while everything["next"]:
            more = await view(b, after=everything["next"], limit=100)
            everything = {**more, "items": everything["items"] + more["items"]}
        known = txids(everything)
        assert known == sorted(known)
        assert len(set(places(everything))) == len(known) >= len(written) - partitions
        limit = chance.choice((1, 7, 20))
        page = await view(b, limit=limit)
        assert page["next"] is None
        found = txids(page)
        while page["previous"]:
            assert len(page["items"]) == limit
            newer = page
            page = await view(b, before=page["previous"], limit=limit)
            found = txids(page) + found
            again = await view(b, after=page["next"], limit=limit)
            assert sorted(places(again)) == sorted(places(newer)) or len(set(known)) < len(known)
        assert found == known
        page = await view(b, **{"from": "earliest", "limit": limit})
        assert page["previous"] is None
        found = txids(page)
        while page["next"]:
            page = await view(b, after=page["next"], limit=limit)
            found += txids(page)
        assert found == known
        assert (await view(b, after=page["end"]))["items"] == []
        for number in range(partitions):
            only = await view(b, partition=number, limit=100)
            assert {one["partition"] for one in only["items"]} <= {number}
            assert (
                txids(only)
                == [one["txid"] for one in everything["items"] if one["partition"] == number][-100:]
            )

    run(scene)


def test_a_start_time_is_found_in_all_partitions() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic(TOPIC, 3)
        topic = await b.streams.topic(TOPIC)
        async with topic.open_writer() as writer:
            await writer.append(b"old 0", partition=0, key="k", headers={"h": b"v"})
            await writer.append(b"old 2", partition=2)
            await asyncio.sleep(60)  # simulated
            middle = b.client.clock.now_ms()
            await writer.append(b"new 2", partition=2)
            await writer.append(b"new 0", partition=0)
        moment = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
        for place in (f"time:{moment}", f"txid:{middle}"):
            found = await view(b, **{"from": place})
            assert [b64decode(one["payload"]) for one in found["items"]] == [b"new 2", b"new 0"]
            assert found["items"][0]["time"].startswith(moment[:19])
        before = await view(b, before=found["previous"])
        assert [b64decode(one["payload"]) for one in before["items"]] == [b"old 0", b"old 2"]
        assert b64decode(before["items"][0]["key"]["payload"]) == b"k"
        assert (found["partitions"], found["locked"]) == (3, None)

    run(scene)


def test_lost_and_unreadable_records_do_not_hide_other_records() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic(TOPIC, 2, settings=GIVEN)
        for first in (0, 10, 20):
            await fill(b, [(number % 2, number) for number in range(first, first + 10)])
        segments = await b.streams.segments(f"{TOPIC}/1")
        await b.client.delete_ledger(segments[1].ledger_id)
        page = await view(b, **{"from": "earliest", "limit": 100})
        kinds = [one["kind"] for one in page["items"]]
        assert kinds.count("gap") == 1
        assert txids({"items": [one for one in page["items"] if one["kind"] == "record"]}) == [
            number for number in range(30) if number % 2 == 0 or not 10 <= number < 20
        ]
        found: list[dict[str, Any]] = []
        older = await view(b, limit=4)
        while True:
            found = older["items"] + found
            if older["previous"] is None:
                break
            older = await view(b, before=older["previous"], limit=4)
        assert sorted(map(str, found)) == sorted(map(str, page["items"]))
        # The ledger of the last segment of one partition cannot be opened.
        original = b.client.open_ledger
        last = (await b.streams.segments(f"{TOPIC}/0"))[2].ledger_id

        async def open_ledger(ledger_id: int, **options: Any) -> Any:
            if ledger_id == last:
                raise BookieTimeoutError(f"ledger {last} does not answer")
            return await original(ledger_id, **options)

        b.client.open_ledger = open_ledger  # type: ignore[method-assign, assignment]
        page = await view(b, limit=3)
        assert {one["partition"] for one in page["items"]} == {1}
        (wrong,) = page["unreadable"]
        assert (wrong["partition"], wrong["error"]["kind"]) == (0, "BookieTimeoutError")

    run(scene)


def test_a_page_respects_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_json, "READ_BYTES_MAX", 50)
    monkeypatch.setattr(payloads, "VIEW_TIMEOUT_S", 5.0)

    async def scene(b: Bench) -> None:
        await b.streams.create_topic(TOPIC, 2)
        topic = await b.streams.topic(TOPIC)
        async with topic.open_writer() as writer:
            for number in range(20):
                await writer.append(b"x" * 20, partition=number % 2)
        seen, page = 0, await view(b, shown_bytes=2)
        while True:
            assert len(page["items"]) == 3 or not page["previous"]
            assert {one["shown_bytes"] for one in page["items"]} == {2}
            seen += len(page["items"])
            if not page["previous"]:
                break
            assert page["stopped"] == "bytes"
            page = await view(b, before=page["previous"], shown_bytes=2)
        assert seen == 20

        original = b.client.open_ledger

        async def slow(ledger_id: int, **options: Any) -> Any:
            await asyncio.sleep(20)
            return await original(ledger_id, **options)

        b.client.open_ledger = slow  # type: ignore[method-assign, assignment]
        with pytest.raises(BookieTimeoutError, match="the partitions of topic t could not be read"):
            await view(b)

    run(scene)


def test_a_page_reads_few_records_of_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record of each of many partitions, and a chunk more only where all of one are shown."""
    read = 0
    original = merged.MergedPeek._found

    def counting(self: Any, *given: Any) -> None:
        nonlocal read
        read += 1
        original(self, *given)

    monkeypatch.setattr(merged.MergedPeek, "_found", counting)

    async def scene(b: Bench) -> None:
        nonlocal read
        await b.streams.create_topic(TOPIC, 20, settings=GIVEN)
        await fill(b, [(number % 20, number) for number in range(400)])
        await fill(b, [(3, number) for number in range(400, 500)])
        for asked in ({}, {"from": "txid:400"}):
            read = 0
            assert len(txids(await view(b, **asked, limit=20))) == 20
            assert read <= 60

    run(scene)


def test_invalid_requests_are_refused() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic(TOPIC, 2)
        assert (await view(b))["items"] == []
        for body, wrong in (
            ({"from": "1:0:0"}, "is not a place in a topic"),
            ({"from": "seq:4"}, "is not a place in a topic"),
            ({"from": "latest"}, "is not a place in a topic"),
            ({"from": "txid:x"}, "is not a place in a stream"),
            ({"from": "earliest", "after": ["1:0:0", "1:0:0"]}, "one of the fields"),
            ({"before": ["1:0:0"]}, "1 positions were given for 2 partitions"),
            ({"after": ["1:0:0", "x"]}, "position"),
            ({"partition": 2}, "has no partition 2"),
            ({"partition": 64}, "partition must be an integer"),
        ):
            with pytest.raises(UsageError, match=wrong):
                await view(b, **body)
        with pytest.raises(NoSuchStreamError, match="there is no topic u"):
            await view(b, name="u")

    run(scene)


def test_records_of_a_topic_with_a_password_are_shown() -> None:
    async def scene(b: Bench) -> None:
        path = namespace_path("/acme/locked")
        async with await open_namespace(b.client, path, create=True, password=b"s") as locked:
            await locked.create_topic(TOPIC, 2)
            async with (await locked.topic(TOPIC)).open_writer() as writer:
                await writer.append(b"x", partition=1)
        found = await view(b, namespace=path)
        assert (found["items"], found["locked"]) == ([], "a password is needed to read this")
        assert len((await view(b, namespace=path, password="s"))["items"]) == 1

    run(scene)
