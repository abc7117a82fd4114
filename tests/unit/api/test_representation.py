"""The `repr` of each handle shows its kind, its subject and its state, and no secret."""

from __future__ import annotations

import re

import pytest

import quire
from quire import blocking
from quire.statemachine import Dictionary

SECRET = b"hunter2"


async def test_each_handle_has_a_short_repr(client: quire.Client) -> None:
    uri = client.metadata.uri
    writer = await client.create_ledger(password=SECRET)
    at = writer.ledger_id
    await writer.append(b"one")
    assert repr(writer) == f"<LedgerWriter ledger={at} open last_acknowledged=0>"
    await writer.close()
    assert repr(writer) == f"<LedgerWriter ledger={at} closed last_acknowledged=0>"
    async with client.create_ledger(caller_ids=True) as ids:
        assert repr(ids) == f"<CallerIdWriter ledger={ids.ledger_id} open last_acknowledged=-1>"
    reader = await client.open_ledger(at, password=SECRET)
    assert repr(reader) == f"<LedgerReader ledger={at} open last_acknowledged=0>"
    reader.close()
    assert repr(reader) == f"<LedgerReader ledger={at} closed last_acknowledged=0>"

    streams = await client.namespace("/a", create=True, password=SECRET)
    assert repr(streams) == "<Namespace path=/a open>"
    stream = await streams.open_writer("s", create=True)
    appended = await stream.submit_many([b"one", b"two"])
    assert repr(appended) == "<Appended records=2 under_way>"
    await appended.wait()
    assert repr(appended) == "<Appended records=2 settled>"
    assert repr(stream) == "<StreamWriter stream=s open next_sequence=2>"
    producer = await stream.producer("p")
    assert repr(producer) == "<Producer name=p stream=s open last_sequence=-1>"
    records = await streams.open_reader("s")
    assert repr(records) == "<StreamReader stream=s open position=None>"
    assert [record.payload async for record in records] == [b"one", b"two"]
    assert re.fullmatch(r"<StreamReader stream=s open position=\d+:\d+:\d+>", repr(records))
    assert repr(streams.subscription("s", "me")) == "<Subscription name=me stream=s>"
    await streams.close()
    assert repr(streams) == "<Namespace path=/a closed>"
    assert repr(stream) == "<StreamWriter stream=s closed next_sequence=2>"

    settings = await client.durable_dict("/a", "d", create=True)
    await settings.set("a", 1)
    assert repr(settings) == "<DurableDict name=d open keys=1>"
    assert repr(settings.leader) == "<Leader name=d open applied=1>"
    await settings.close()
    assert repr(settings) == "<DurableDict name=d closed keys=1>"
    async with client.state_machine("/a", "d", Dictionary(), follow=True) as follower:
        await follower.wait_applied(1)
        assert repr(follower) == "<Follower name=d open applied=1>"

    objects = client.objects()
    await objects.put("o", b"bytes")
    assert repr(objects) == "<Objects bucket=default>"
    async with objects.get("o") as found:
        assert repr(found) == "<ObjectReader name=o size_bytes=5 open>"
    assert repr(found) == "<ObjectReader name=o size_bytes=5 closed>"
    assert repr(client.datasets) == f"<Datasets cluster={uri}>"
    assert repr(client) == f"<Client cluster={uri} open>"
    await client.close()
    assert repr(client) == f"<Client cluster={uri} closed>"


async def test_no_representation_has_a_password(client: quire.Client) -> None:
    async with client.create_ledger(password=SECRET) as writer:
        shown = [repr(writer), repr(writer.metadata)]
    async with client.open_ledger(writer.ledger_id, password=SECRET) as reader:
        shown += [repr(reader), repr(reader.metadata)]
    shown.append(repr(quire.ZooKeeperOptions(digest="user:hunter2")))
    assert not [one for one in shown if "hunter2" in one]


@pytest.mark.parametrize("name", sorted(blocking.__all__))
def test_every_handle_defines_its_repr(name: str) -> None:
    found = getattr(quire, name, None) or getattr(quire.blocking, name)
    if isinstance(found, type):
        assert found.__repr__ is not object.__repr__
        bases = getattr(blocking, name).__orig_bases__[0].__args__
        asynchronous = getattr(bases[0], "__origin__", bases[0])
        assert asynchronous.__repr__ is not object.__repr__
