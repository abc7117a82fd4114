"""The factories of a client: each can be awaited or entered, and creates only when asked to."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

import quire
from quire.errors import (
    ClientClosedError,
    LedgerClosedError,
    NoSuchNamespaceError,
    NoSuchStreamError,
    StreamClosedError,
    UsageError,
)
from quire.statemachine import Dictionary, DurableDict, follow, lead
from quire.streams import Namespace


async def test_a_ledger_is_created_and_opened_with_await_or_async_with(
    client: quire.Client,
) -> None:
    async with client.create_ledger() as ledger:
        await ledger.append(b"one")
    awaited = await client.create_ledger(caller_ids=True)
    await awaited.append_at(0, b"two")
    assert await awaited.close() == 0
    async with client.open_ledger(ledger.ledger_id) as reader:
        assert [entry.payload async for entry in reader.read()] == [b"one"]
    with pytest.raises(UsageError):
        await reader.read_entry(0)
    reader = await client.open_ledger(awaited.ledger_id, recover=True)
    assert (await reader.read_last()).payload == b"two"


async def test_a_ledger_is_abandoned_by_an_error_in_its_block(client: quire.Client) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.create_ledger() as ledger:
            raise ZeroDivisionError
    with pytest.raises(LedgerClosedError):
        await ledger.append(b"late")
    assert not (await client.ledger_metadata(ledger.ledger_id)).closed


async def test_a_namespace_is_created_only_on_request(client: quire.Client) -> None:
    with pytest.raises(NoSuchNamespaceError, match="create=True"):
        await client.namespace("/team")
    with pytest.raises(UsageError, match="settings"):
        await client.namespace("/team", settings={"roll_bytes": 1_000_000})
    async with client.namespace("/team", create=True, settings={"roll_bytes": 1_000_000}) as team:
        assert team.path == "/team"
    async with client.namespace("/team") as team:
        assert team.settings.roll_bytes == 1_000_000
        with pytest.raises(NoSuchStreamError):
            await team.open_writer("orders")


async def test_streams_are_written_and_read_with_await_or_async_with(client: quire.Client) -> None:
    async with client.namespace("/team", create=True) as team:
        async with team.open_writer("orders", create=True) as writer:
            await writer.append_many([b"one", b"two"])
        assert [record.payload async for record in team.open_reader("orders")] == [b"one", b"two"]
        async with team.open_reader("orders") as reader, aclosing(aiter(reader)) as records:
            assert (await anext(records)).payload == b"one"
            position = reader.position
        with pytest.raises(UsageError, match="closed"):
            await anext(aiter(reader))
        subscription = await team.subscription("orders", "billing")
        assert position is not None
        assert await subscription.commit(position)
        async with team.subscription("orders", "billing") as same:
            assert await same.position() == position


async def test_objects_are_put_and_read_with_await_or_async_with(client: quire.Client) -> None:
    objects = client.objects("models")
    assert objects is await objects
    await objects.put("a", b"bytes")
    async with objects.get("a") as found:
        assert await found.read_all() == b"bytes"
    async with client.objects("models") as same:
        assert [info.name async for info in same.list()] == ["a"]
    assert [info async for info in client.objects().list()] == []


async def test_datasets_need_no_opening(client: quire.Client) -> None:
    async with client.datasets as datasets:
        assert await datasets.list_datasets() == []


async def test_a_state_machine_is_led_and_followed(client: quire.Client) -> None:
    with pytest.raises(NoSuchNamespaceError):
        await client.state_machine("/state", "settings", Dictionary())
    await (await client.namespace("/state", create=True)).close()
    with pytest.raises(NoSuchStreamError):
        await client.state_machine("/state", "settings", Dictionary())
    with pytest.raises(NoSuchStreamError):
        await client.state_machine("/state", "settings", Dictionary(), follow=True)
    opened = client.state_machine("/state", "settings", Dictionary(), create=True)
    async with opened as leader:
        assert await leader.execute(b'["set", "colour", "blue"]')
        followed: Dictionary = Dictionary()
        async with client.state_machine("/state", "settings", followed, follow=True) as follower:
            await follower.wait_applied(leader.applied)
        assert followed.items == {"colour": "blue"}
    with pytest.raises(StreamClosedError):
        await leader.execute(b'["delete", "colour"]')
    async with client.durable_dict("/state", "settings") as settings:
        assert dict(settings) == {"colour": "blue"}


async def test_a_namespace_opened_for_a_machine_is_closed_with_it(
    client: quire.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = Namespace.close

    async def noted(self: Namespace) -> None:
        closed.append(self.path)
        await close(self)

    monkeypatch.setattr(Namespace, "close", noted)
    async with client.durable_dict("/state", "d", create=True):
        assert closed == []
    assert closed == ["/state"]
    follower = await client.state_machine("/state", "d", Dictionary(), follow=True)
    await follower.close()
    with pytest.raises(ZeroDivisionError):
        async with client.durable_dict("/state", "d"):
            raise ZeroDivisionError
    with pytest.raises(NoSuchStreamError):
        await client.durable_dict("/state", "another")
    assert closed == ["/state"] * 4


async def test_a_closed_client_opens_nothing(client: quire.Client) -> None:
    await client.close()
    opened: list[Any] = [
        client.create_ledger(),
        client.open_ledger(0),
        client.namespace("/team", create=True),
        client.state_machine("/team", "d", Dictionary(), create=True),
        client.durable_dict("/team", "d"),
    ]
    for opening in opened:
        with pytest.raises(ClientClosedError):
            await opening
    with pytest.raises(ClientClosedError):
        client.objects()


async def test_the_old_factories_work_and_warn(client: quire.Client) -> None:
    with pytest.warns(DeprecationWarning, match=r"client\.namespace\(path, create=True\)"):
        made = await Namespace.create(client, "/old", settings={"roll_bytes": 1_000_000})
    await made.close()
    with pytest.warns(DeprecationWarning, match=r"client\.namespace\(path\)"):
        streams = await Namespace.open(client, "/old")
    with pytest.warns(DeprecationWarning, match="client.durable_dict"):
        settings = await DurableDict.open(streams, "d")
    await settings.set("a", 1)
    await settings.close()
    with pytest.warns(DeprecationWarning, match="client.state_machine"):
        leader = await lead(streams, "d", Dictionary())
    with pytest.warns(DeprecationWarning, match="follow=True"):
        follower = await follow(streams, "d", Dictionary())
    await follower.wait_applied(leader.applied)
    assert follower.machine.items == {"a": 1}
    await follower.close()
    await leader.close()
    assert await streams.exists("d")  # a namespace that was handed in is not closed
    await streams.close()
