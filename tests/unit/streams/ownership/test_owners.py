"""The owner of a ledger before its deletion: streams, objects, datasets or Pulsar."""

from __future__ import annotations

import asyncio

import pytest

from quire.client import Client
from quire.client.datasets.format import DatasetLedger
from quire.codec.distributedlog.name import StreamPaths
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import LedgerOwnedError, MetadataError, NoSuchLedgerError
from quire.http.server.error_responses import error_body, status_of
from quire.metadata.tree import Create, Put
from quire.streams import Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.objects.format import head_key
from quire.streams.objects.objects import Objects
from quire.streams.ownership import owners
from quire.streams.ownership.named_ledgers import UnreadableRecord, dataset_record
from quire.streams.ownership.owners import find_claims, missed, refuse_owned
from quire.streams.statemachine.state_machine import BUCKET
from tests.support.metadata.lagging import LaggingServer
from tests.support.objects import Bench, plain_ledger
from tests.support.waiting import until

NAMESPACE = "/streams"


async def stream(client: Client, name: str = "orders") -> Namespace:
    streams = await open_namespace(client, NAMESPACE, create=True)
    await streams.create_stream(name)
    async with await streams.open_writer(name) as writer:
        await writer.append(b"one")
        await writer.append(b"two")
    return streams


async def told(client: Client, ledger_id: int) -> str:
    """Why the ledger is not deleted."""
    with pytest.raises(LedgerOwnedError) as refused:
        await refuse_owned(client, [ledger_id])
    await client.ledger_metadata(ledger_id)
    return str(refused.value)


async def test_a_ledger_of_a_segment_is_owned_by_its_stream(client: Client) -> None:
    streams = await stream(client)
    [segment] = await streams.segments("orders")
    text = await told(client, segment.ledger_id)
    assert f"ledger {segment.ledger_id} belongs to stream orders in namespace /streams" in text
    assert "segment 1, 2 records from position" in text
    assert "Nothing was deleted" in text


async def test_the_open_and_the_preallocated_ledger_are_owned_by_their_stream(
    client: Client,
) -> None:
    streams = await stream(client)
    writer = await streams.open_writer("orders")
    await writer.append(b"three")
    inside = writer._segments
    inside.prepare()
    await until(lambda: inside._spare is not None)
    segments = await streams.segments("orders")
    assert "in progress" in await told(client, segments[-1].ledger_id)
    known = {one.ledger_id for one in segments}
    [ahead] = [one async for one in client.list_ledgers() if one not in known]
    assert "created ahead for its next segment" in await told(client, ahead)
    await writer.close()


async def test_a_ledger_of_a_renamed_stream_is_owned_under_its_new_name(client: Client) -> None:
    streams = await stream(client)
    [segment] = await streams.segments("orders")
    await streams.rename_stream("orders", "sales")
    assert "stream sales in namespace /streams" in await told(client, segment.ledger_id)


async def test_an_orphan_may_be_deleted(client: Client) -> None:
    """A ledger that was made for a stream, and that the stream does not name."""
    await stream(client)
    orphan = await plain_ledger(
        client,
        {"application": b"quire", "component": b"stream", "stream": b"/streams/orders"},
    )
    await refuse_owned(client, [orphan])
    written = await client.create_ledger(
        custom={"application": b"quire", "component": b"stream", "stream": b"/streams/orders"}
    )
    assert "so it may be in use" in await told(client, written.ledger_id)
    written.abandon()


async def test_ledgers_of_distributedlog_are_found_through_their_stream(client: Client) -> None:
    streams = await stream(client)
    ledger_id = await plain_ledger(client)
    await refuse_owned(client, [ledger_id])
    paths = StreamPaths(NAMESPACE, "orders")
    segment = StreamSegment(2, ledger_id, 7)
    await client.metadata.tree.commit(Create(paths.segment("java"), segment.to_bytes()))
    looked: list[int] = []
    with pytest.raises(LedgerOwnedError, match="segment 2, in progress"):
        await refuse_owned(client, [ledger_id], looked_at=looked.append)
    assert sum(looked) == 1  # records, each of which was read once
    assert streams is not None


async def test_ledgers_of_objects_and_state_machines_are_owned(client: Client) -> None:
    info = await Objects(client).put("jobs/42", b"bytes")
    assert "object jobs/42 in bucket default (all of it, 5 bytes)" in await told(
        client, info.ledger_id
    )
    snapshot = await Objects(client, BUCKET).put("streams/bank", b"state")
    assert f"state machine streams/bank in bucket {BUCKET}" in await told(
        client, snapshot.ledger_id
    )
    replaced = await Objects(client).put("jobs/42", b"others", replace=True)
    with pytest.raises(NoSuchLedgerError):
        await client.ledger_metadata(info.ledger_id)
    await client.metadata.delete_value(head_key("default", "jobs/42"))
    await refuse_owned(client, [replaced.ledger_id])  # an orphan


async def test_a_ledger_that_an_object_has_just_got_is_owned_although_the_server_lags(
    bench: Bench, client: Client
) -> None:
    other = await bench.client()
    info = await Objects(other).put("jobs/42", b"bytes")
    head = await other.metadata.read_value(head_key("default", "jobs/42"))
    await other.metadata.delete_value(head_key("default", "jobs/42"))
    server = LaggingServer(client.metadata)
    server.fall_behind()
    await other.metadata.write_value(head_key("default", "jobs/42"), head.value, None)
    assert "object jobs/42 in bucket default" in await told(client, info.ledger_id)


async def test_ledgers_of_datasets_are_owned(client: Client) -> None:
    made_for = await plain_ledger(client, {"quire.dataset": b"flights", "quire.job": b"nightly"})
    anyone = await plain_ledger(client)
    await refuse_owned(client, [made_for, anyone])
    ledgers = [DatasetLedger(one, 0, 9, 10, 100) for one in (made_for, anyone)]
    await client.datasets.publish("flights", ledgers)
    for ledger_id in (made_for, anyone):
        assert "dataset flights (entries 0 to 9)" in await told(client, ledger_id)
    await client.datasets.drop("flights")
    await refuse_owned(client, [made_for, anyone])


async def test_a_dataset_names_a_ledger_once(client: Client) -> None:
    """A lost ledger of a dataset with partitions was counted once for each of its ranges."""
    ledger_id = await plain_ledger(client)
    for name, ranges, told_as in (
        ("whole", [(5, 9), (0, 4)], "entries 0 to 9"),
        ("some", [(0, 1), (3, 3), (5, 5), (7, 7), (9, 9)], "entries 0 to 1, 3 to 3, 5 to 5, and 2 "
         "more ranges"),
    ):  # fmt: skip
        parts = [DatasetLedger(ledger_id, first, last, 1, 1) for first, last in ranges]
        await client.datasets.publish(name, parts)
        record = await dataset_record(client, name)
        assert not isinstance(record, UnreadableRecord)
        assert [(one.ledger_id, one.part) for one in record] == [(ledger_id, told_as)]


async def test_ledgers_of_pulsar_are_owned(client: Client) -> None:
    made = {"application": b"pulsar", "component": b"managed-ledger"}
    topic = b"public/default/persistent/orders"
    ledger = await plain_ledger(client, {**made, "pulsar/managed-ledger": topic})
    assert "Pulsar's managed ledger public/default/persistent/orders" in await told(client, ledger)
    cursor = await plain_ledger(
        client, {**made, "pulsar/managed-ledger": topic, "pulsar/cursor": b"reader"}
    )
    assert topic.decode() in await told(client, cursor)
    other = await plain_ledger(client, {"application": b"mine", "component": b"log"})
    assert "application mine (log)" in await told(client, other)


async def test_a_record_that_cannot_be_read_may_name_any_ledger(client: Client) -> None:
    streams = await stream(client)
    ledger_id = await plain_ledger(client)
    [segment] = await streams.segments("orders")
    paths = StreamPaths(NAMESPACE, "orders")
    [name] = await client.metadata.tree.children(paths.segments)
    await client.metadata.tree.commit(Put(paths.segment(name), b"nonsense"))
    for one in (ledger_id, segment.ledger_id):
        text = await told(client, one)
        assert f"ledger {one} may belong to stream /streams/orders: its record" in text
        assert "cannot be read" in text
    # With force only the ledger's own metadata is looked at.
    claims = await find_claims(client, [ledger_id], scan=False)
    assert claims == {ledger_id: []}


async def test_a_search_for_owners_that_takes_too_long_refuses_the_deletion(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream(client)
    ledger_id = await plain_ledger(client)
    listed = client.metadata.tree.children

    async def slow(path: str) -> list[str]:
        await asyncio.sleep(0.2)
        return list(await listed(path))

    client.metadata.tree.children = slow  # type: ignore[method-assign]
    with pytest.raises(
        LedgerOwnedError, match=r"may belong to an unknown owner: .* within 0\.01 s"
    ) as refused:
        await refuse_owned(client, [ledger_id], limit_s=0.01)
    assert refused.value.owners[ledger_id][0].startswith("perhaps an unknown owner: ")
    # The same doubt about a ledger that does not exist.
    monkeypatch.setattr(owners, "MISSED_LIMIT_S", 0.01)
    error = await missed(client, NoSuchLedgerError("it does not exist"), 4711)
    assert str(error).startswith(
        "ledger 4711 does not exist. It is unknown whether an owner names it: not all"
    )


async def test_a_deleted_ledger_still_has_its_owners(client: Client) -> None:
    streams = await stream(client)
    [segment] = await streams.segments("orders")
    ledger_id = segment.ledger_id
    gone = NoSuchLedgerError(f"ledger {ledger_id} does not exist")
    assert await missed(client, gone, 4711) is gone
    told = str(await missed(client, gone, ledger_id))
    assert told.startswith(f"ledger {ledger_id} does not exist, and stream orders in namespace")
    assert ") names it. Readers of its owner" in told
    await client.datasets.publish("flights", [DatasetLedger(ledger_id, 0, 1, 2, 100)])
    await streams.create_stream("broken")
    paths = StreamPaths(NAMESPACE, "broken")
    await client.metadata.tree.commit(Create(paths.segment("x"), b"nonsense"))
    told = str(await missed(client, gone, ledger_id))
    assert "dataset flights (entries 0 to 1)" in told
    assert " and stream orders" in told or " and dataset flights" in told
    assert ") name it. It is unknown whether stream /streams/broken names it: its record" in told


async def test_http_reports_an_owned_ledger_with_status_409(client: Client) -> None:
    info = await Objects(client).put("jobs/42", b"bytes")
    with pytest.raises(LedgerOwnedError) as refused:
        await refuse_owned(client, [info.ledger_id])
    assert status_of(refused.value) == 409
    body = error_body(refused.value)["error"]
    assert (body["kind"], body["status"], body["outcome_known"]) == ("LedgerOwnedError", 409, True)
    assert body["owners"] == {
        str(info.ledger_id): ["object jobs/42 in bucket default (all of it, 5 bytes)"]
    }


async def test_a_ledger_that_does_not_exist_belongs_to_nobody(client: Client) -> None:
    await refuse_owned(client, [4711])


async def test_the_record_of_one_owner_is_read_once_for_all_its_ledgers(client: Client) -> None:
    streams = await stream(client)
    for n in range(5):
        async with await streams.open_writer("orders") as writer:
            await writer.append(b"%d" % n)
    ids = [one.ledger_id for one in await streams.segments("orders")]
    # The writers apply retention in the background, which also reads the lists.
    while any("_retain" in repr(task) for task in asyncio.all_tasks()):
        await asyncio.sleep(0)
    tree, read = client.metadata.tree, list[str]()
    children = tree.children

    async def counted(path: str) -> list[str]:
        read.append(path)
        return list(await children(path))

    tree.children = counted  # type: ignore[method-assign]
    claims = await find_claims(client, ids)
    assert all(len(found) == 1 for found in claims.values())
    assert read == [StreamPaths(NAMESPACE, "orders").segments]


async def test_a_damaged_binding_is_named(client: Client) -> None:
    await client.metadata.tree.commit(Create("/bound", b"1\nBKDL\nnonsense"))
    with pytest.raises(MetadataError, match=r"namespace /bound cannot be opened.*the node /bound"):
        await open_namespace(client, "/bound")
