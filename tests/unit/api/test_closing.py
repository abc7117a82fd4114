"""After a client or a handle is closed, nobody keeps waiting for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.errors import ClientClosedError, QuireError, StreamClosedError, UsageError
from quire.statemachine import Dictionary
from quire.streams import Namespace
from tests.support.waiting import until

LIMIT_S = 10.0
"""Shorter than the interval at which a reader checks by itself."""
PACKAGE = Path(quire.__file__).parent
OF_BOOKIES = ("storage", "bookie", "net/accepting.py")
"""The code of tasks that a bookie runs, and no client."""
Waiting = Callable[[quire.Client, Namespace], Awaitable[Any]]


async def all_of(items: AsyncIterator[Any]) -> None:
    async for _ in items:
        pass


async def tail_a_ledger(client: quire.Client, streams: Namespace) -> None:
    writer = await client.create_ledger()
    await writer.append(b"one")
    await all_of((await client.open_ledger(writer.ledger_id)).tail(0))


async def wait_for_an_entry(client: quire.Client, streams: Namespace) -> None:
    writer = await client.create_ledger()
    await (await client.open_ledger(writer.ledger_id)).wait_confirmed(5)


async def follow_an_empty_stream(client: quire.Client, streams: Namespace) -> None:
    await all_of(aiter(await streams.open_reader("empty", follow=True)))


async def follow_behind_a_segment(client: quire.Client, streams: Namespace) -> None:
    await all_of(aiter(streams.open_reader("done", follow=True)))


async def follow_a_segment_in_progress(client: quire.Client, streams: Namespace) -> None:
    await all_of((await streams.open_reader("open", follow=True)).batches())


async def wait_for_a_command(client: quire.Client, streams: Namespace) -> None:
    follower = await client.state_machine("/a", "commands", Dictionary(), follow=True)
    await follower.wait_applied(100)


async def wait_for_a_lock(client: quire.Client, streams: Namespace) -> None:
    await streams.open_writer("locked", lock=60)


@pytest.mark.parametrize(
    "waiting",
    [
        tail_a_ledger,
        wait_for_an_entry,
        follow_an_empty_stream,
        follow_behind_a_segment,
        follow_a_segment_in_progress,
        wait_for_a_command,
        wait_for_a_lock,
    ],
)
async def test_waiting_calls_fail_at_once_when_the_client_is_closed(
    client: quire.Client, waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    async with quire.connect(client.metadata.uri) as other:
        streams = await other.namespace("/a", create=True)
        for name in ("empty", "done", "open", "commands", "locked"):
            await streams.create_stream(name)
        async with streams.open_writer("done") as writer:
            await writer.append(b"one")
        await (await streams.open_writer("open")).append(b"one")
        async with client.namespace("/a") as theirs:
            await theirs.open_writer("locked", lock=1)
            task = asyncio.ensure_future(waiting(other, streams))
            await asyncio.sleep(0.3)  # whether it waits by then or not, it must end
            await other.close()
            with pytest.raises(ClientClosedError):
                await asyncio.wait_for(task, LIMIT_S)
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_calls_that_wait_for_a_leader_fail_when_the_client_is_closed(
    client: quire.Client,
) -> None:
    async with quire.connect(client.metadata.uri) as other:
        settings = await other.durable_dict("/a", "d", create=True)
        await settings.set("a", 1)
        tasks = [asyncio.ensure_future(settings.set("b", number)) for number in range(10)]
        await asyncio.sleep(0)
        await other.close()
        for task in tasks:
            with pytest.raises(ClientClosedError) as failed:
                await asyncio.wait_for(task, LIMIT_S)
            assert not failed.value.outcome_known
        with pytest.raises(ClientClosedError):
            await settings.set("c", 1)


async def test_a_stream_writer_reports_that_the_client_is_closed(client: quire.Client) -> None:
    async with quire.connect(client.metadata.uri) as other:
        streams = await other.namespace("/a", create=True)
        writer = await streams.open_writer("s", create=True)
        await writer.append(b"one")
        await other.close()
        with pytest.raises(ClientClosedError):
            await writer.append(b"two")
        with pytest.raises(ClientClosedError):
            await writer.close()
        await streams.close()


def is_of_a_bookie(task: asyncio.Task[Any]) -> bool:
    """Return whether a bookie of this process runs the task, for example to read from its disk."""
    file = Path(task.get_coro().cr_code.co_filename)  # type: ignore[union-attr]
    return any(file.is_relative_to(PACKAGE / part) for part in OF_BOOKIES)


async def test_closing_a_client_leaves_no_task(client: quire.Client) -> None:
    before = asyncio.all_tasks()
    other = await quire.connect(client.metadata.uri)
    streams = await other.namespace("/a", create=True)
    settings = await other.durable_dict("/a", "d", create=True)
    await settings.set("a", 1)
    leader = await other.state_machine("/a", "m", Dictionary(), create=True)
    follower = await other.state_machine("/a", "m", Dictionary(), follow=True)
    writer = await streams.open_writer("s", create=True, lock=1)
    await writer.append(b"one")
    ledger = await other.create_ledger()
    await ledger.append(b"one")
    await other.close()
    assert {task for task in asyncio.all_tasks() - before if not is_of_a_bookie(task)} == set()
    del settings, leader, follower, writer, ledger


async def test_every_call_on_a_handle_of_a_closed_client_raises_client_closed(
    client: quire.Client,
) -> None:
    """Some once advised to open the metadata store again, which programs cannot do."""
    async with quire.connect(client.metadata.uri) as other:
        writer = await other.create_ledger()
        await writer.append(b"one")
        await writer.append(b"two")
        reader = await other.open_ledger(writer.ledger_id)
        streams = await other.namespace("/a", create=True)
        objects, datasets = other.objects("bucket"), other.datasets
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: all_of(reader.read(0, 0)),
        lambda: all_of(reader.read_unconfirmed(0)),
        lambda: all_of(reader.tail()),
        lambda: reader.refresh(),
        lambda: reader.wait_confirmed(0),
        lambda: reader.read_last(),
        lambda: streams.streams(),
        lambda: streams.open_reader("s"),
        lambda: objects.get("o"),
        lambda: objects.put("o", b"one"),
        lambda: datasets.read("d"),
        lambda: datasets.publish("d", []),
        lambda: datasets.sweep(0),
    ]
    for call in calls:
        with pytest.raises(ClientClosedError, match=r"the client is closed.* Connect again"):
            await call()


# -- handles that are closed by themselves ----------------------------------------------------


@pytest.mark.parametrize("name", ["empty", "done", "open"])
async def test_closing_a_stream_reader_ends_its_iteration(client: quire.Client, name: str) -> None:
    async with client.namespace("/a", create=True) as streams:
        await streams.create_stream("empty")
        async with streams.open_writer("done", create=True) as writer:
            await writer.append(b"one")
        async with streams.open_writer("open", create=True) as writer:
            await writer.append(b"one")
            reader = await streams.open_reader(name, follow=True)
            task = asyncio.ensure_future(all_of(aiter(reader)))
            await asyncio.sleep(0.3)
            reader.close()
            with pytest.raises(UsageError, match=f"the reader of stream {name} is closed"):
                await asyncio.wait_for(task, LIMIT_S)
            with pytest.raises(UsageError, match=f"the reader of stream {name} is closed"):
                await all_of(reader.batches())


async def test_closing_a_stream_reader_between_records_ends_its_iteration(
    client: quire.Client,
) -> None:
    async with client.namespace("/a", create=True) as streams:
        async with streams.open_writer("s", create=True) as writer:
            for _ in range(3):
                await writer.append(b"one")
        reader = await streams.open_reader("s")
        seen = []
        with pytest.raises(UsageError, match="the reader of stream s is closed"):  # noqa: PT012
            async for batch in reader.batches():
                seen.append(batch)
                reader.close()
        assert len(seen) == 1
        async with streams.open_reader("s") as reader:
            async for _ in reader:
                break  # leaving the loop and the block is no error


async def test_a_namespace_of_a_closed_client_says_that_the_client_is_closed(
    client: quire.Client,
) -> None:
    streams = await client.namespace("/a", create=True)
    await client.close()
    for call in (streams.open_writer("s", create=True), streams.open_reader("s")):
        with pytest.raises(ClientClosedError, match="the client is closed"):
            await call


async def test_closing_a_follower_ends_the_calls_that_wait_for_it(client: quire.Client) -> None:
    async with client.state_machine("/a", "m", Dictionary(), create=True) as leader:
        follower = await client.state_machine("/a", "m", Dictionary(), follow=True)
        await follower.wait_applied(leader.applied)
        task = asyncio.ensure_future(follower.wait_applied(leader.applied + 1))
        await asyncio.sleep(0)
        await follower.close()
        with pytest.raises(StreamClosedError, match="state machine m is closed"):
            await asyncio.wait_for(task, LIMIT_S)
        assert follower.failure is None


async def test_leaving_a_leader_by_an_error_ends_the_calls_that_wait_for_it(
    client: quire.Client,
) -> None:
    tasks: list[asyncio.Future[Any]] = []
    with pytest.raises(RuntimeError, match="in the block"):  # noqa: PT012
        async with client.state_machine("/a", "m", Dictionary(), create=True) as leader:
            tasks = [asyncio.ensure_future(leader.execute(b"{}")) for _ in range(3)]
            await until(lambda: len(leader._waiting) == 3)
            raise RuntimeError("in the block")
    for task in tasks:
        with pytest.raises(QuireError):
            await asyncio.wait_for(task, LIMIT_S)


async def test_the_error_of_a_closed_handle_names_the_handle(client: quire.Client) -> None:
    """It named the ledger of the object, and the stream of the state machine."""
    objects = client.objects()
    await objects.put("o", b"one")
    reader = await objects.get("o")
    reader.close()
    with pytest.raises(UsageError, match=r"the reader of object 'o' is closed\. Get"):
        await reader.read_all()
    leader = await client.state_machine("/a", "m", Dictionary(), create=True)
    await leader.close()
    for call in (lambda: leader.execute(b"{}"), leader.confirm, leader.snapshot):
        with pytest.raises(StreamClosedError, match="state machine m is closed"):
            await call()
