"""Looking at records: gaps and what cannot be read are shown, and nothing is recovered."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.errors import ReadError, UsageError
from quire.http.routes.payloads import PayloadRoutes
from quire.metadata.tree import Put
from quire.streams.read.peek import Peeked, UnreadableEntry, peek, position_before_end
from quire.streams.read.records import Gap, Record
from quire.streams.read.statistics import segment_statistics
from tests.support.streams import Bench, run

START = DLSN(1, 0, 0)


async def fill(b: Bench, *numbers: int, leave_open: bool = False) -> None:
    """Append, in one segment more, one entry for each record."""
    writer = await b.streams.open_writer("s", create=True)
    for number in numbers:
        await writer.append(b"%d" % number)
    if leave_open:
        writer.abandon()
    else:
        await writer.close()


async def peeked(b: Bench, start: DLSN = START) -> list[Peeked]:
    async with aclosing(peek(b.client, await b.streams.segments("s"), start)) as items:
        return [item async for item, _ in items]


def payloads(items: list[Peeked]) -> list[bytes]:
    return [item.payload for item in items if isinstance(item, Record)]


def test_records_of_several_segments_are_shown() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        await fill(b, 3)
        await fill(b, 4, 5, leave_open=True)
        read = [record.payload for record in await b.read("s", follow=False)]
        items = await peeked(b)
        assert payloads(items) == read
        assert all(isinstance(item, Record) for item in items)
        # Each position leads to the rest.
        segments = await b.streams.segments("s")
        async with aclosing(peek(b.client, segments, START)) as all_items:
            behind = [behind async for _, behind in all_items]
        for count, position in enumerate(behind, 1):
            rest = await peeked(b, position)
            assert payloads(rest) == read[count:]
            assert all(isinstance(item, Record) for item in rest)
        assert await peeked(b, DLSN(9, 0, 0)) == []

    run(scene)


def test_peeking_does_not_disturb_the_writer() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"1")
        await writer.append(b"2")
        await peeked(b)
        await writer.append(b"3")
        await writer.close()
        assert payloads(await peeked(b)) == [b"1", b"2", b"3"]

    run(scene)


def test_truncated_and_lost_records_are_gaps() -> None:
    async def scene(b: Bench) -> None:
        for numbers in ((1, 2), (3, 4), (5, 6), (7, 8)):
            await fill(b, *numbers)
        segments = await b.streams.segments("s")
        await b.client.delete_ledger(segments[2].ledger_id)
        await b.streams.truncate("s", DLSN(2, 1, 0))
        items = await peeked(b)
        assert payloads(items) == [b"4", b"7", b"8"]
        assert [item for item in items if isinstance(item, Gap)] == [
            Gap("truncated", START, DLSN(2, 1, 0)),
            Gap("lost", DLSN(3, 0, 0), DLSN(4, 0, 0)),
        ]
        assert payloads(await peeked(b, DLSN(4, 1, 0))) == [b"8"]

    run(scene)


def test_unreadable_entries_do_not_end_a_peek() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2)
        (segment,) = await b.streams.segments("s")
        # A ledger of other content: the entries are good, and are no records.
        async with await b.client.create_ledger() as other:
            await other.append(b"this is not a record")
            await other.append(b"\x01")
        path = b.streams.metadata("s").paths.segment(segment.name)
        found = await b.client.metadata.tree.read(path)
        changed = found.value.replace(b";%d;" % segment.ledger_id, b";%d;" % other.ledger_id, 1)
        assert changed != found.value
        await b.client.metadata.tree.commit(Put(path, changed, found.version))
        await fill(b, 3)
        items = await peeked(b)
        wrong = [item for item in items if isinstance(item, UnreadableEntry)]
        assert [one.position for one in wrong] == [DLSN(1, 0, 0), DLSN(1, 1, 0)]
        assert "a later version" in str(wrong[0].error)
        assert "cannot be decoded" in str(wrong[1].error)
        assert payloads(items) == [b"3"]

    run(scene)


def test_a_completed_segment_whose_ledger_is_open_is_not_recovered() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2, 3)
        (segment,) = await b.streams.segments("s")
        stored = await b.client.metadata.read_ledger(segment.ledger_id)
        # As if the writer had died between the two changes.
        opened = replace(stored.value, state=LedgerState.OPEN, last_entry_id=-1, length=0)
        await b.client.metadata.write_ledger(segment.ledger_id, opened, stored.version)
        assert payloads(await peeked(b)) == [b"1", b"2", b"3"]
        # And as if bookies did not know yet that the last records are acknowledged.
        path = b.streams.metadata("s").paths.segment(segment.name)
        version = (await b.client.metadata.tree.read(path)).version
        longer = replace(segment, last_entry_id=segment.last_entry_id + 3)
        await b.client.metadata.tree.commit(Put(path, longer.to_bytes(), version))
        async with await b.client.open_ledger(segment.ledger_id) as reader:
            known = reader.last_add_confirmed
        *records, last = await peeked(b)
        assert payloads(records) == [b"1", b"2", b"3"]
        assert isinstance(last, UnreadableEntry)
        assert "before it closed the ledger" in str(last.error)
        # The place where the records end, by which an operator finds the ledger.
        first = known + 1
        assert last.position == DLSN(1, first, 0)
        assert isinstance(last.error, ReadError)
        assert (last.error.ledger_id, last.error.entry_id) == (segment.ledger_id, first)
        assert f"from entry {first} to {longer.last_entry_id} of ledger" in str(last.error)
        again = (await b.client.metadata.read_ledger(segment.ledger_id)).value
        assert again.state is LedgerState.OPEN

    run(scene)


def test_an_entry_that_no_bookie_returns_does_not_end_a_peek() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, 1, 2, 3)
        (segment,) = await b.streams.segments("s")
        found = (await b.client.metadata.read_ledger(segment.ledger_id)).value
        assert found.last_entry_id >= 2
        # The metadata promises more entries than any bookie has.
        stored = await b.client.metadata.read_ledger(segment.ledger_id)
        end = found.last_entry_id + 2
        longer = replace(found, last_entry_id=end)
        await b.client.metadata.write_ledger(segment.ledger_id, longer, stored.version)
        items = await peeked(b)
        assert payloads(items) == [b"1", b"2", b"3"]
        wrong = [item for item in items if isinstance(item, UnreadableEntry)]
        assert [one.position for one in wrong] == [DLSN(1, end - 1, 0), DLSN(1, end, 0)]
        assert all(isinstance(one.error, ReadError) for one in wrong)

    run(scene)


def test_the_last_records_are_shown() -> None:
    async def scene(b: Bench) -> None:
        assert await position_before_end(b.client, [], 5) is None
        await fill(b, *range(10))
        await fill(b, *range(10, 20))
        segments = await b.streams.segments("s")
        for count in (1, 9, 10, 11, 20, 30):
            position = await position_before_end(b.client, segments, count)
            assert position is not None
            assert len(payloads(await peeked(b, position))) == min(count, 20)

    run(scene)


def test_control_records_are_not_counted_as_the_last_records() -> None:
    """The beginning of a segment was found before its first record, where nothing can be read."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.set_fencing_token("one")
        first = await writer.append(b"1", token="one")
        second = await writer.append(b"2", token="one")
        await writer.set_fencing_token("two", expect="one")
        writer.abandon()
        await (await b.streams.open_writer("s")).close()
        segments = await b.streams.segments("s")
        (fact,) = await segment_statistics(b.client, segments[:1])
        assert fact.records == 2
        assert fact.last is not None
        assert fact.last >= second
        for count in (1, 2, 3):
            position = await position_before_end(b.client, segments, count)
            assert position is not None
            assert len(payloads(await peeked(b, position))) == min(count, 2)
        found = await position_before_end(b.client, segments, 1, end=second)
        assert found is not None
        assert found <= first
        assert first > DLSN(1, 0, 0)
        assert await position_before_end(b.client, segments, 1, end=first) is None

    run(scene)


# -- over HTTP --------------------------------------------------------------------------------


async def view(b: Bench, **body: Any) -> dict[str, Any]:
    async def connect() -> Client:
        return b.client

    routes = PayloadRoutes(connect).routes()
    route = next(one for one in routes if one.path.endswith("/stream/records"))
    body = {"namespace": "/acme/test", "name": "s", **body}
    found: dict[str, Any] = await route.handler(route.check({}, [], body))
    return found


def numbers(found: dict[str, Any]) -> list[int]:
    return [int(b64decode(one["payload"])) for one in found["items"]]


def test_pages_continue_at_the_requested_positions() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, *range(30))
        await asyncio.sleep(60)  # simulated
        await fill(b, *range(30, 50))
        first = await view(b)
        assert numbers(first) == list(range(20))
        item = first["items"][3]
        assert (item["kind"], item["position"], item["sequence"]) == ("record", "1:3:0", 3)
        second = await view(b, **{"from": first["next"], "limit": 100})
        assert numbers(second) == list(range(20, 50))
        assert (second["next"], second["stopped"]) == (None, None)
        assert numbers(await view(b, **{"from": "seq:33", "limit": 2})) == [33, 34]
        assert numbers(await view(b, **{"from": f"txid:{item['txid']}", "limit": 1}))[0] <= 3
        assert numbers(await view(b, **{"from": "last:4"})) == [46, 47, 48, 49]
        late = (await b.streams.segments("s"))[1].first_txid
        assert numbers(await view(b, **{"from": "latest"})) == []
        moment = f"time:{_iso(late)}"
        assert numbers(await view(b, **{"from": moment, "limit": 1})) == [30]
        for wrong in ("last:0", "last:101", "last:x", "nowhere", "time:now"):
            with pytest.raises(UsageError, match="is not a place in a stream"):
                await view(b, **{"from": wrong})

    run(scene)


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
