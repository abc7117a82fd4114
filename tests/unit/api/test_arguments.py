"""An argument of the wrong type is refused at the public call, with an error that names it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import quire
from quire.errors import ArgumentTypeError, NoSuchLedgerError, UsageError
from quire.metadata import open_metadata
from quire.statemachine import Dictionary
from quire.streams import DLSN, AtSequence, AtTime, AtTxid, Producer
from quire.streams.ownership.orphans import look_for_orphans
from tests.support.bookies.bookie import running_bookie


class Handles:
    """One open handle of each kind."""

    client: quire.Client
    writer: quire.LedgerWriter
    ids: quire.CallerIdWriter
    reader: quire.LedgerReader
    streams: Any
    records: Any
    settings: Any
    objects: Any
    found: Any


@pytest_asyncio.fixture
async def h(client: quire.Client) -> AsyncIterator[Handles]:
    h = Handles()
    h.client = client
    h.writer = await client.create_ledger()
    h.ids = await client.create_ledger(caller_ids=True)
    await h.writer.append(b"one")
    h.reader = await client.open_ledger(h.writer.ledger_id)
    async with client.namespace("/a", create=True) as h.streams:
        h.records = await h.streams.open_writer("s", create=True)
        async with client.durable_dict("/a", "d", create=True) as h.settings:
            h.objects = client.objects()
            await h.objects.put("o", b"bytes")
            h.found = await h.objects.get("o")
            yield h


async def done(made: Any) -> Any:
    """Await a call, or take the first item of an iteration."""
    if hasattr(made, "__aiter__") and not hasattr(made, "__await__"):
        return await anext(aiter(made), None)
    return await made if inspect.isawaitable(made) else made


CALLS: list[Callable[[Handles], Any]] = [
    lambda h: h.client.create_ledger(ensemble_size="3"),  # type: ignore[call-overload]
    lambda h: h.client.create_ledger(ack_quorum=2.0),  # type: ignore[call-overload]
    lambda h: h.client.create_ledger(digest=5),  # type: ignore[call-overload]
    lambda h: h.client.create_ledger(password="text"),  # type: ignore[call-overload]
    lambda h: h.client.create_ledger(custom=5),  # type: ignore[call-overload]
    lambda h: h.client.create_ledger(custom={"k": "text"}),  # type: ignore[call-overload]
    lambda h: h.client.create_ledger(ledger_id="7"),  # type: ignore[call-overload]
    lambda h: h.client.open_ledger("7"),  # type: ignore[arg-type]
    lambda h: h.client.open_ledger(None),  # type: ignore[arg-type]
    lambda h: h.client.open_ledger(7, password="text"),  # type: ignore[arg-type]
    lambda h: h.client.open_ledger(7, assume_liars="1"),  # type: ignore[arg-type]
    # Python would take the text for True: the ledger would be closed, or deleted.
    lambda h: h.client.open_ledger(7, recover="no"),  # type: ignore[arg-type]
    lambda h: h.client.open_ledger(7, unverified_password="no"),  # type: ignore[arg-type]
    lambda h: h.client.create_ledger(deferred_sync="no"),  # type: ignore[call-overload]
    lambda h: h.client.create_ledger(caller_ids="no"),  # type: ignore[call-overload]
    lambda h: h.client.datasets.publish("x", [], overwrite="no"),  # type: ignore[arg-type]
    lambda h: h.client.datasets.drop("x", delete_ledgers="no"),  # type: ignore[arg-type]
    lambda h: h.client.namespace("/a", create="no"),  # type: ignore[arg-type]
    lambda h: h.client.state_machine("/a", "m", Dictionary(), follow="no"),  # type: ignore[call-overload]
    lambda h: h.client.durable_dict("/a", "d", create="no"),  # type: ignore[arg-type]
    lambda h: h.streams.open_writer("s", create="no"),
    lambda h: h.streams.open_reader("s", follow="no"),
    lambda h: h.streams.create_topic("t", 1, adopt="no"),
    lambda h: h.streams.truncate("s", DLSN(1, 0, 0), dry_run=0),
    lambda h: h.streams.retain("s", dry_run=0),
    lambda h: h.client.delete_ledger("7"),  # type: ignore[arg-type]
    lambda h: h.client.ledger_metadata("7"),  # type: ignore[arg-type]
    lambda h: h.client.list_ledgers("7"),  # type: ignore[arg-type]
    lambda h: h.client.bookie_info(5),  # type: ignore[arg-type]
    lambda h: h.client.list_entries("b", "7"),  # type: ignore[arg-type]
    lambda h: h.client.namespace(5),  # type: ignore[arg-type]
    lambda h: h.client.namespace("/a", password="text"),  # type: ignore[arg-type]
    lambda h: h.client.namespace("/a", create=True, settings=5),  # type: ignore[arg-type]
    lambda h: h.client.objects(5),  # type: ignore[arg-type]
    lambda h: h.client.state_machine("/a", "m", object()),  # type: ignore[call-overload]
    lambda h: h.client.state_machine("/a", "m", Dictionary),  # type: ignore[call-overload]
    lambda h: h.client.state_machine("/a", "m", None, follow=True),  # type: ignore[call-overload]
    lambda h: h.client.state_machine("/a", 5, Dictionary(), create=True),  # type: ignore[call-overload]
    lambda h: h.client.state_machine("/a", "m", Dictionary(), snapshot_every="1", create=True),  # type: ignore[call-overload]
    lambda h: h.client.durable_dict("/a", 5),  # type: ignore[arg-type]
    lambda h: h.writer.append(5),  # type: ignore[arg-type]
    lambda h: h.writer.append("text"),  # type: ignore[arg-type]
    lambda h: h.writer.append(None),  # type: ignore[arg-type]
    lambda h: h.writer.submit("text"),  # type: ignore[arg-type]
    lambda h: h.writer.append_many(5),  # type: ignore[arg-type]
    lambda h: h.writer.append_many("text"),  # type: ignore[arg-type]
    lambda h: h.writer.append_many(b"bytes"),  # type: ignore[arg-type]
    lambda h: h.writer.append_many([b"one", "text"]),  # type: ignore[list-item]
    lambda h: h.writer.submit_many(b"one" for _ in range(2)),  # type: ignore[arg-type]
    lambda h: h.writer.wait("0"),  # type: ignore[arg-type]
    lambda h: h.ids.append_at("0", b"one"),  # type: ignore[arg-type]
    lambda h: h.ids.append_at(0, "text"),  # type: ignore[arg-type]
    lambda h: h.reader.read(first="a"),  # type: ignore[arg-type]
    lambda h: h.reader.read(0, "a"),  # type: ignore[arg-type]
    lambda h: h.reader.read(None),  # type: ignore[arg-type]
    lambda h: h.reader.read_runs("a"),  # type: ignore[arg-type]
    lambda h: h.reader.read_unconfirmed("a"),  # type: ignore[arg-type]
    lambda h: h.reader.read_entry("a"),  # type: ignore[arg-type]
    lambda h: h.reader.tail("a"),  # type: ignore[arg-type]
    lambda h: h.reader.wait_confirmed("a"),  # type: ignore[arg-type]
    lambda h: h.streams.create_stream(5),
    lambda h: h.streams.create_stream("x", settings=5),
    lambda h: h.streams.open_writer(5),
    lambda h: h.streams.open_writer("s", lock="1"),
    lambda h: h.streams.open_reader(5),
    lambda h: h.streams.open_reader("s", start=5),
    lambda h: h.streams.open_reader("s", end="5:0:0"),
    lambda h: h.streams.find("s", 5),
    lambda h: h.streams.truncate("s", "5:0:0"),
    lambda h: h.streams.subscription("s", 5),
    lambda h: h.streams.subscription("s", "me").commit("5:0:0"),
    lambda h: h.records.append(5),
    lambda h: h.records.append("text"),
    lambda h: h.records.append_many("text"),
    lambda h: h.records.append(b"one", expect="1"),
    lambda h: h.records.append(b"one", token=5),
    lambda h: h.records.append_many([b"one"], token=5),
    lambda h: h.records.set_fencing_token("a", expect=5),
    lambda h: h.settings.set(1, "x"),
    lambda h: h.settings.set("a", b"bytes"),
    lambda h: h.settings.compare_and_set("a", None, object()),
    lambda h: h.settings.leader.execute("text"),
    lambda h: h.settings.leader.execute(5),
    lambda h: h.objects.put(5, b"bytes"),
    lambda h: h.objects.put("x", 5),
    lambda h: h.objects.put("x", "text"),
    lambda h: h.objects.put("x", b"bytes", chunk_bytes="1"),
    lambda h: h.objects.get(5),
    lambda h: h.found.read("0"),
    lambda h: h.objects.put("x", b"bytes", metadata=5),
    lambda h: h.objects.list(5),
    lambda h: h.objects.list("a", after=5),
    lambda h: h.objects.orphans("60"),
    lambda h: h.objects.sweep("60"),
    lambda h: h.streams.streams(5),
    lambda h: h.streams.topics(5),
    lambda h: h.streams.find("s", AtTime("now")),  # type: ignore[arg-type]
    lambda h: h.streams.find("s", AtTxid("1")),  # type: ignore[arg-type]
    lambda h: h.streams.open_reader("s", start=AtSequence("1")),  # type: ignore[arg-type]
    lambda h: h.records.producer(5),
    lambda h: h.records.set_fencing_token(5),
    lambda h: Producer(h.records, "p").append(b"one", "1"),  # type: ignore[arg-type]
    lambda h: h.client.datasets.read(5),  # type: ignore[arg-type]
    lambda h: h.client.datasets.read_schema(5),  # type: ignore[arg-type]
    lambda h: h.client.datasets.find_transaction(5, "t"),  # type: ignore[arg-type]
    lambda h: h.client.datasets.publish(5, []),  # type: ignore[arg-type]
    lambda h: h.client.datasets.publish("x", 5),  # type: ignore[arg-type]
    lambda h: h.client.datasets.publish("x", ["7"]),  # type: ignore[list-item]
    lambda h: h.client.datasets.publish("x", [], txn=5),  # type: ignore[arg-type]
    lambda h: h.client.datasets.drop(5),  # type: ignore[arg-type]
    lambda h: h.client.datasets.discard("x", ["7"]),  # type: ignore[list-item]
    # True is never meant as the number 1.
    lambda h: h.client.create_ledger(ensemble_size=True, write_quorum=1, ack_quorum=1),
    lambda h: h.client.create_ledger(ledger_id=True),
    lambda h: h.client.delete_ledger(True),
    lambda h: h.client.open_ledger(False),
    lambda h: h.reader.read_entry(False),
    lambda h: h.ids.append_at(False, b"one"),
    lambda h: h.streams.create_topic("t", True),
    lambda h: h.streams.create_topic("t", True, adopt=True),
    lambda h: h.records.append(b"one", expect=False),
    lambda h: h.objects.put("x", b"bytes", chunk_bytes=True),
    lambda h: h.client.datasets.sweep("60"),  # type: ignore[arg-type]
    lambda h: h.client.datasets.look_for_orphans("60"),  # type: ignore[arg-type]
    lambda h: quire.DatasetLedger(7, 0, "9", 10, 100),  # type: ignore[arg-type]
    lambda h: quire.DatasetLedger(7, 0, 9, 10.5, 100),  # type: ignore[arg-type]
    lambda h: quire.load_config(5),  # type: ignore[arg-type]
    lambda h: quire.connect(5),  # type: ignore[arg-type]
    lambda h: quire.connect("memory://x", config={}),  # type: ignore[arg-type]
    lambda h: quire.connect("memory://x", zookeeper="me:secret"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    "call", CALLS, ids=[inspect.getsource(one).split(": ", 1)[1].split("#")[0] for one in CALLS]
)
async def test_a_wrong_type_is_refused(h: Handles, call: Callable[[Handles], Any]) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        await done(call(h))
    assert isinstance(refused.value, TypeError)
    assert isinstance(refused.value, UsageError)
    assert h.writer.last_add_pushed == 0
    assert h.records.next_sequence == 0
    assert not await h.streams.exists("m")


@pytest.mark.parametrize("age_s", [float("nan"), float("inf")])
async def test_an_age_that_is_not_finite_is_refused(h: Handles, age_s: float) -> None:
    for sweep in (
        h.client.datasets.sweep,
        h.objects.sweep,
        h.client.datasets.look_for_orphans,
        partial(look_for_orphans, h.client),
    ):
        with pytest.raises(UsageError, match="older_than_s must be a finite number"):
            await sweep(age_s)


async def test_a_sweep_refuses_a_negative_number_of_ledgers(h: Handles) -> None:
    """It left out the newest ledger of each page, and read all others."""
    with pytest.raises(UsageError, match="look_at_most must be a number of ledgers from 0 on"):
        await h.client.datasets.sweep(60, look_at_most=-1)


async def test_compatible_types_are_accepted(h: Handles) -> None:
    numpy = pytest.importorskip("numpy")
    assert await h.writer.append_many((bytearray(b"two"), memoryview(b"three"))) == 2
    reader = await h.client.open_ledger(numpy.int64(h.writer.ledger_id), recover=True)
    [entry] = [entry async for entry in reader.read(numpy.int64(1), numpy.int64(1))]
    assert entry.payload == b"two"
    assert await h.streams.find("s", DLSN(1, 0, 0)) == DLSN(1, 0, 0)


async def test_numbers_of_numpy_are_numbers_in_every_call(tmp_path: Path) -> None:
    # A column of ids in a data frame has them. Those of 8 bits overflow where a sum is made, and
    # SQLite compares them as bytes.
    numpy = pytest.importorskip("numpy")
    small = numpy.uint8
    uri = f"sqlite:///{tmp_path / 'metadata.db'}"
    async with AsyncExitStack() as stack:
        store = await open_metadata(uri, create=True)
        stack.push_async_callback(store.close)
        await store.initialise()
        for number in range(3):
            bookie = running_bookie(tmp_path / f"b{number}", metadata=await open_metadata(uri))
            await stack.enter_async_context(bookie)
        client = await stack.enter_async_context(quire.connect(uri))
        writer = await client.create_ledger(
            ensemble_size=small(3), write_quorum=small(3), ack_quorum=small(2), ledger_id=small(200)
        )
        await writer.append_many([b"%d" % number for number in range(300)])
        assert await writer.wait(small(255)) == 255
        await writer.close()

        reader = await client.open_ledger(small(200))
        found = [entry async for entry in reader.read(small(250), numpy.int16(260))]
        assert [entry.entry_id for entry in found] == list(range(250, 261))
        assert {type(entry.entry_id) for entry in found} == {int}
        assert len([entry async for entry in reader.tail(small(255))]) == 45
        assert (await client.ledger_metadata(small(200))).last_entry_id == 299
        assert [found async for found in client.list_ledgers(small(200))] == [200]
        part = quire.DatasetLedger(small(200), first=small(0), last=small(255), rows=256, bytes=900)
        await client.datasets.publish("numbers", [part])
        assert (await client.datasets.read("numbers")).rows == 256

        async with client.namespace("/numbers", create=True) as streams:
            await streams.create_topic("topic", small(2))
            topic = await streams.topic("topic")
            assert topic.partitions == 2
            async with topic.open_writer(assign=[small(1)]) as records:
                await records.append(b"one", partition=small(1))
            given = await streams.open_writer("given", create=True)
            producer = await given.producer("p")
            await producer.append_many([b"one"] * 10, small(250))
            assert producer.last_sequence == 259
            await given.append(b"two", expect=small(10))
            await given.close()
            start = AtSequence(small(3))
            assert len([one async for one in streams.open_reader("given", start=start)]) == 8
        objects = client.objects()
        await objects.put("o", b"x" * 1000, chunk_bytes=small(200))
        async with objects.get("o") as blob:
            assert await blob.read_all(small(100), small(250)) == b"x" * 250

        await client.delete_ledger(small(200))
        with pytest.raises(NoSuchLedgerError):
            await client.open_ledger(200)


async def test_a_state_machine_is_checked_before_anything_is_created(client: quire.Client) -> None:
    with pytest.raises(ArgumentTypeError, match=r"object is not a state machine.*'apply'"):
        await client.state_machine("/new", "m", object(), create=True)  # type: ignore[call-overload]
    with pytest.raises(quire.errors.NoSuchNamespaceError):
        await client.namespace("/new")
