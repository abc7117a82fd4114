"""The owners of many ledgers, for lists of ledgers."""

from __future__ import annotations

import pytest

from quire.client import Client
from quire.client.datasets.format import DatasetLedger
from quire.codec.distributedlog.name import StreamPaths
from quire.codec.distributedlog.segment import StreamSegment
from quire.metadata.tree import Create
from quire.streams import Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.objects.objects import Objects
from quire.streams.ownership import owner_index
from quire.streams.ownership.named_ledgers import Owner, UnreadableRecord, records
from quire.streams.ownership.owner_index import (
    SKEW_MS,
    OwnerIndex,
    owners_as_json,
    owners_in_words,
)
from tests.support.objects import plain_ledger

NAMESPACE = "/streams"
LATER_MS = 2 * SKEW_MS
"""An index that began this much later expects every ledger that exists."""


async def stream(client: Client, name: str = "orders") -> tuple[Namespace, int]:
    """Make a stream with one segment, and return the ledger of the segment as well."""
    streams = await open_namespace(client, NAMESPACE, create=True)
    await streams.create_stream(name)
    async with await streams.open_writer(name) as writer:
        await writer.append(b"one")
    [segment] = await streams.segments(name)
    return streams, segment.ledger_id


async def read(client: Client, later_ms: int = LATER_MS) -> OwnerIndex:
    index = OwnerIndex(client.clock.now_ms() + later_ms)
    async for record in records(client):
        index.add(record)
    index.whole = True
    return index


async def words(client: Client, index: OwnerIndex, ledger_id: int) -> str:
    claims = index.of(ledger_id, await client.ledger_metadata(ledger_id))
    return owners_in_words(owners_as_json(claims))


async def test_each_kind_of_owner_is_named(client: Client) -> None:
    _, segment = await stream(client)
    held = await Objects(client).put("jobs/1", b"a")
    ours, free = await plain_ledger(client), await plain_ledger(client)
    await client.datasets.publish("flights", [DatasetLedger(ours, 0, 9, 10, 1)])
    pulsar = await plain_ledger(
        client, {"application": b"pulsar", "pulsar/managed-ledger": b"public/default/topic"}
    )
    index = await read(client)
    assert await words(client, index, segment) == "stream orders in namespace /streams"
    assert await words(client, index, held.ledger_id) == "object jobs/1 in bucket default"
    assert await words(client, index, ours) == "dataset flights"
    assert await words(client, index, pulsar) == "Pulsar's managed ledger public/default/topic"
    assert await words(client, index, free) == ""
    assert len(index) == 3


async def test_a_ledger_of_two_datasets_names_both(client: Client) -> None:
    ours = await plain_ledger(client)
    for name in ("one", "two"):
        await client.datasets.publish(name, [DatasetLedger(ours, 0, 9, 10, 1)])
    index = await read(client)
    assert await words(client, index, ours) == "dataset one and dataset two"
    claims = index.of(ours, await client.ledger_metadata(ours))
    assert owners_as_json(claims) == [
        {"kind": "dataset", "name": name, "place": "", "part": "", "doubt": ""}
        for name in ("one", "two")
    ]


async def test_renamed_streams_and_streams_of_distributedlog_are_named_as_owners(
    client: Client,
) -> None:
    streams, segment = await stream(client)
    await streams.rename_stream("orders", "sales")
    java = await plain_ledger(client)
    paths = StreamPaths(NAMESPACE, "sales")
    made = StreamSegment(2, java, 7)
    await client.metadata.tree.commit(Create(paths.segment("java"), made.to_bytes()))
    index = await read(client)
    for ledger_id in (segment, java):
        assert await words(client, index, ledger_id) == "stream sales in namespace /streams"


async def test_an_orphan_has_no_owner_and_an_open_ledger_may_have_one(client: Client) -> None:
    await stream(client)
    custom = {"application": b"quire", "component": b"stream", "stream": b"/streams/orders"}
    orphan = await plain_ledger(client, custom)
    written = await client.create_ledger(custom=custom)
    index = await read(client)
    assert await words(client, index, orphan) == ""
    assert (
        await words(client, index, written.ledger_id)
        == "perhaps stream orders in namespace /streams"
    )
    written.abandon()


async def test_a_ledger_that_may_be_younger_than_the_index_is_not_free(client: Client) -> None:
    index = await read(client, later_ms=-1)
    held = await Objects(client).put("jobs/1", b"a")
    free = await plain_ledger(client)
    assert await words(client, index, held.ledger_id) == "perhaps object jobs/1 in bucket default"
    assert await words(client, index, free) == "unknown"
    assert owners_as_json(index.of(free, await client.ledger_metadata(free))) is None


async def test_an_incomplete_or_full_index_calls_no_ledger_free(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, segment = await stream(client)
    free = await plain_ledger(client)
    metadata = await client.ledger_metadata(free)
    index = OwnerIndex(client.clock.now_ms() + LATER_MS)
    assert index.of(free, metadata) is None
    assert await words(client, index, segment) == "perhaps stream orders in namespace /streams"
    monkeypatch.setattr(owner_index, "INDEXED_MAX", 0)
    full = await read(client)
    assert full.of(free, metadata) is None


async def test_an_unreadable_record_may_own_any_ledger_without_an_owner_in_its_metadata(
    client: Client,
) -> None:
    free = await plain_ledger(client)
    index = await read(client)
    index.add(UnreadableRecord(Owner("dataset", "flights"), "it is damaged"))
    claims = index.of(free, await client.ledger_metadata(free))
    assert owners_as_json(claims) == [
        {
            "kind": "unknown",
            "name": "",
            "place": "",
            "part": "",
            "doubt": "a record cannot be read: dataset flights (it is damaged)",
        }
    ]
