"""Records with a key, headers and an event time, beside plain records in one stream."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from quire.codec.distributedlog.record_envelope import MAGIC, encode_envelope
from quire.errors import (
    ArgumentTypeError,
    LaterStreamError,
    RecordTooLargeError,
    StreamDamagedError,
    UsageError,
)
from quire.http.views.payload_json import PayloadBudget, item_json
from quire.streams import DLSN, KeyedRecord, Record, RecordBatch
from quire.streams.mirror.copy import copy_ledger
from quire.streams.publish.publishing import BatchKey, SegmentBuilder, begin, publish
from quire.streams.read.arrow import ALL_COLUMNS, Origin, RecordColumns
from quire.streams.read.peek import UnreadableEntry, peek
from quire.streams.read.records import decode
from tests.support.record_envelopes import envelope
from tests.support.streams import Bench, run

NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)

Parts = tuple[bytes, bytes | None, dict[str, bytes], datetime | None]


def parts(record: Record) -> Parts:
    assert record.value == record.payload
    return record.value, record.key, dict(record.headers), record.event_time


async def stored(b: Bench, name: str = "s") -> list[bytes]:
    """Return the payloads of all records as DistributedLog's readers see them."""
    found: list[bytes] = []
    async with aclosing((await b.streams.open_reader(name, follow=False)).batches()) as batches:
        async for batch in batches:
            assert isinstance(batch, RecordBatch)
            found += batch.records.payloads()
    return found


async def rows(b: Bench, columns: Sequence[str] = ALL_COLUMNS) -> list[dict[str, Any]]:
    """Return the records as Arrow columns, which must agree with the records."""
    made = RecordColumns(columns)
    for segment in await b.streams.segments("s"):
        async with await b.client.open_ledger(segment.ledger_id) as ledger:
            async for run_ in ledger.read_runs(0, ledger.last_add_confirmed):
                made.add(Origin("s", segment), run_)
    found: list[dict[str, Any]] = made.batch().to_pylist()
    return found


async def publish_payloads(b: Bench, payloads: list[bytes], envelopes: bytes) -> None:
    """Publish records with these bytes, whatever they are."""
    batch = await begin(b.streams, "s", BatchKey.of_job(f"job-{payloads[0].hex()[:8]}"))
    assert batch is not None
    settings = await b.streams.stream_settings("s")
    builder = SegmentBuilder(b.client, f"{b.streams.path}/s", settings)
    await builder.append(payloads, [batch.txid] * len(payloads), envelopes)
    built = await builder.close()
    assert built is not None
    await publish(b.streams, "s", batch, [built])


def test_every_append_call_stores_keys_and_headers() -> None:
    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"plain")
            await writer.append(
                bytearray(b"v"), key="ключ", headers={"a": "1", "b": b"\xff"}, event_time=NOON
            )
            await writer.append_many(
                [b"x", b"y", b"z", MAGIC],
                keys=[None, b"", "k", None],
                headers=[None, {}, {"h": b""}, {}],
                event_times=[None, None, NOON, None],
            )
            appended = await writer.submit_many([b"s"], keys=[memoryview(b"k")])
            await appended.wait()
            producer = await writer.producer("p")
            assert await producer.append(b"p0", 0, key="p") is not None
            await producer.append_many([b"p0", b"p1"], 0, keys=["other", "q"])
        expected: list[Parts] = [
            (b"plain", None, {}, None),
            (b"v", "ключ".encode(), {"a": b"1", "b": b"\xff"}, NOON),
            (b"x", None, {}, None),
            (b"y", b"", {}, None),
            (b"z", b"k", {"h": b""}, NOON),
            (MAGIC, None, {}, None),
            (b"s", b"k", {}, None),
            (b"p0", b"p", {}, None),
            (b"p1", b"q", {}, None),
        ]
        found = await b.read("s", follow=False)
        assert [parts(record) for record in found] == expected
        assert [record.sequence for record in found] == list(range(9))
        has_one = [isinstance(record, KeyedRecord) for record in found]
        assert has_one == [
            any(part not in (None, {}) for part in found_parts[1:]) for found_parts in expected
        ]
        # A reader that knows no envelopes gets the documented bytes, and plain records as they are.
        time_us = int((NOON - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
        assert (await stored(b))[:4] == [
            b"plain",
            envelope(b"v", "ключ".encode(), ((b"a", b"1"), (b"b", b"\xff")), time_us),
            b"x",
            envelope(b"y", b""),
        ]
        # From the middle of an entry, in batches, and after pickling.
        middle = await b.read("s", follow=False, start=found[4].position)
        assert [parts(record) for record in middle] == expected[4:]
        async with aclosing((await b.streams.open_reader("s", follow=False)).batches()) as batches:
            together = [batch async for batch in batches if isinstance(batch, RecordBatch)]
        assert [one for batch in together for one in batch.payloads()] == [e[0] for e in expected]
        assert [batch.keyed for batch in together if len(batch) == 1][:2] == [False, True]
        copies = pickle.loads(pickle.dumps(found))
        assert [parts(record) for record in copies] == expected
        assert "key=b'k', headers={'h': b''}, event_time=datetime.datetime(2026" in repr(found[4])
        assert "headers" not in repr(found[0])
        payload, position, txid, sequence = found[4]
        assert (payload, position, sequence) == (b"z", found[4].position, 4)
        assert txid == found[4].txid

        arrow = await rows(b)
        assert [
            (row["value"], row["key"], dict(row["headers"] or ()), row["event_time"])
            for row in arrow
        ] == expected
        assert [row["size"] for row in arrow] == [len(e[0]) for e in expected]
        assert [row["headers"] for row in arrow if not row["headers"]] == [None] * 7
        only = await rows(b, ("value", "slot"))
        assert [row["value"] for row in only] == [e[0] for e in expected]

    run(scene)


def test_records_survive_a_crash_of_bookies_and_writer() -> None:
    """Entries that are sent again to another segment keep their envelopes."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        for number in range(40):
            if number == 20:
                await b.world.stop(next(iter(b.world.bookies)))
            await writer.append_many([b"a", b"b"], keys=[b"%d" % number, None])
        writer.abandon()
        await (await b.streams.open_writer("s")).close()
        keys = [record.key for record in await b.read("s", follow=False)]
        assert keys == [key for number in range(40) for key in (b"%d" % number, None)]

    run(scene, bookies=4)


def test_published_batches_and_copies_keep_envelopes() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"entry_bytes": 1_024})
        batch = await begin(b.streams, "s", BatchKey("job", "query", 0))
        assert batch is not None
        settings = await b.streams.stream_settings("s")
        built = []
        for first in (0, 30):
            builder = SegmentBuilder(b.client, f"{b.streams.path}/s", settings)
            payloads = [encode_envelope(b"v" * 50, b"%d" % n) for n in range(first, first + 30)]
            await builder.append([*payloads, MAGIC], [batch.txid] * 31, b"\1" * 30 + b"\0")
            one = await builder.close()
            assert one is not None
            built.append(one)
        [segment] = await publish(b.streams, "s", batch, built)  # which merges both
        found = [record.key for record in await b.read("s", follow=False)]
        plain = [None]
        assert found == [*map(str.encode, map(str, range(30))), *plain,
                         *map(str.encode, map(str, range(30, 60))), *plain]  # fmt: skip

        source = await b.client.ledger_metadata(segment.ledger_id)
        copied = await copy_ledger(
            b.client, b.client,
            {"ledger": segment.ledger_id, "path": "/copy/s", "life": "1-1",
             "empty": False,
             "digest": source.digest, "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2},
            b"", b"",
        )  # fmt: skip
        entries = []
        for ledger_id in (segment.ledger_id, copied["ledger"]):
            async with await b.client.open_ledger(ledger_id) as ledger:
                entries.append([bytes(entry.payload) async for entry in ledger.read()])
        assert entries[0] == entries[1]
        assert decode(segment, 0, entries[1][0]).envelopes

    run(scene)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": 7}, r"the key of a record must be bytes or a text, not int\..*: str\(number\)$"),
        ({"key": [b"a"]}, "must be bytes or a text, not list. Nothing was appended$"),
        ({"key": "\ud800"}, "the key of a record cannot be encoded in UTF-8"),
        ({"headers": [("a", b"")]}, "headers of a record must be a dictionary, not list"),
        ({"headers": {1: b""}}, "name of a header must be str, not int"),
        ({"headers": {"a": 1}}, "header 'a' of a record must be bytes"),
        ({"headers": {"\ud800": b""}}, "cannot be encoded in UTF-8"),
        ({"event_time": 1_700_000_000}, "must be a datetime, not int"),
        ({"event_time": datetime(2026, 1, 1)}, "has no time zone"),
        (
            {"event_time": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
            "must be in the years 1 to 9999",
        ),
    ],
)
def test_invalid_keys_and_headers_are_refused(arguments: dict[str, Any], message: str) -> None:
    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            with pytest.raises((UsageError, ArgumentTypeError), match=message):
                await writer.append(b"v", **arguments)
        assert await b.read("s", follow=False) == []

    run(scene)


def test_invalid_keys_and_headers_of_many_records_are_refused() -> None:
    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            with pytest.raises(UsageError, match="keys needs one item for each record, but it"):
                await writer.append_many([b"a", b"b"], keys=[b"k"])
            keys: Any = b"ab"
            with pytest.raises(ArgumentTypeError, match="keys must be a list with one item"):
                await writer.append_many([b"a", b"b"], keys=keys)
            with pytest.raises(RecordTooLargeError, match="with its key, headers and event time"):
                await writer.append(b"v", headers={"large": bytes(1_040_400)})
        assert await b.read("s", follow=False) == []

    run(scene)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (envelope(b"v", b"k", version=2), LaterStreamError),
        (envelope(b"v", None, ((b"a", b"1"), (b"a", b"2"))), StreamDamagedError),
    ],
)
def test_an_envelope_that_cannot_be_read_stops_readers_at_its_record(
    payload: bytes, error: type[Exception]
) -> None:
    """A reader can continue after it, a viewer shows what is wrong, and the bytes are there."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        good = encode_envelope(b"good", b"k")
        await publish_payloads(b, [good, payload, b"plain"], b"\1\1")
        reader = await b.streams.open_reader("s", follow=False)
        records = aiter(reader)
        assert parts(await anext(records)) == (b"good", b"k", {}, None)
        with pytest.raises(error, match="the record at 1:0:1 cannot be "):
            await anext(records)
        assert reader.position == DLSN(1, 0, 1)
        assert await stored(b) == [good, payload, b"plain"]
        rest = await b.read("s", follow=False, start=DLSN(1, 0, 2))
        assert [record.payload for record in rest] == [b"plain"]
        with pytest.raises(error, match="the record at 1:0:1"):
            await rows(b)
        assert await rows(b, ("sequence",)) == [{"sequence": n} for n in range(3)]

        segments = await b.streams.segments("s")
        async with aclosing(peek(b.client, segments, DLSN(1, 0, 0))) as items:
            seen = [item async for item, _ in items]
        assert [type(item) for item in seen] == [KeyedRecord, UnreadableEntry, Record]
        shown = [item_json(item, PayloadBudget(), times=True) for item in seen]
        assert [one["kind"] for one in shown] == ["record", "unreadable", "record"]
        assert shown[1]["position"] == "1:0:1"

    run(scene)


def test_a_viewer_shows_keys_and_headers() -> None:
    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"plain")
            await writer.append(b"v", key=b"key", headers={"h": bytes(9)}, event_time=NOON)
            await writer.append(b"v", headers={"n" * 300 + str(n): b"" for n in range(150)})
        shown = [
            item_json(item, PayloadBudget(each_bytes=4), times=True)
            for item in await b.read("s", follow=False)
        ]
        assert "headers" not in shown[0]
        wanted = {"bytes": 3, "offset": 0, "shown_bytes": 3, "payload": "a2V5"}
        assert (shown[1]["key"], shown[1]["payload"]) == (wanted, "dg==")
        header = {"name": "h", "bytes": 9, "offset": 0, "shown_bytes": 4, "payload": "AAAAAA=="}
        assert (shown[1]["headers"], shown[1]["headers_count"]) == ([header], 1)
        assert shown[1]["event_time"] == "2026-01-31T12:00:00.000001Z"
        assert (len(shown[2]["headers"]), shown[2]["headers_count"]) == (100, 150)
        assert {len(one["name"]) for one in shown[2]["headers"]} == {256}
        assert (shown[2]["key"], shown[2]["event_time"]) == (None, None)

    run(scene)
